//! Archives for the kernel's initial file system: `cpio` in the format `newc`
//! (`Documentation/driver-api/early-userspace/buffer-format.rst` of Linux).

use std::io::{self, Write};

/// The type of an entry, with its mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    Directory,
    /// An executable file.
    Program,
    File,
    /// A symbolic link. The contents are its target.
    Link,
}

impl FileKind {
    const fn mode(self) -> u32 {
        match self {
            FileKind::Directory => 0o040755,
            FileKind::Program => 0o100755,
            FileKind::File => 0o100644,
            FileKind::Link => 0o120777,
        }
    }
}

/// Writes an archive.
pub(crate) struct Archive<W> {
    out: W,
    entries: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Archive<W> {
        Archive { out, entries: 0 }
    }

    /// Adds an entry. The path has no slash in front.
    pub(crate) fn add(&mut self, path: &str, kind: FileKind, contents: &[u8]) -> io::Result<()> {
        self.write(path, kind.mode(), contents)
    }

    /// Writes the trailer.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.write("TRAILER!!!", 0, &[])?;
        self.out.flush()
    }

    fn write(&mut self, path: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let length = u32::try_from(contents.len())
            .map_err(|_| io::Error::other(format!("{path} is too long for an archive")))?;
        let name_length = path.len() as u32 + 1;
        // Owner, group, time, devices and checksum are 0; there is one link.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            0,
            0,
            name_length,
            0,
        ];
        self.out.write_all(b"070701")?;
        for field in fields {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(path.as_bytes())?;
        self.out.write_all(&[0])?;
        // The header has 110 bytes, and everything is aligned to 4.
        self.pad(110 + name_length)?;
        self.out.write_all(contents)?;
        self.pad(length)
    }

    fn pad(&mut self, length: u32) -> io::Result<()> {
        let padding = length.next_multiple_of(4) - length;
        self.out.write_all(&[0; 3][..padding as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_these_bytes() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.add("init", FileKind::Program, b"#!sh\n").unwrap();
        archive.finish().unwrap();
        let expected = concat!(
            "070701",
            "00000001",
            "000081ed",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000005",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000005",
            "00000000",
            "init\0",
            "\0",
            "#!sh\n",
            "\0\0\0",
            "070701",
            "00000002",
            "00000000",
            "00000000",
            "00000000",
            "00000001",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "00000000",
            "0000000b",
            "00000000",
            "TRAILER!!!\0",
            "\0\0\0",
        );
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}
