//! Executables into which the dynamic linker does not put the device's libraries.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A script may be run by a script, and so on; Linux follows that many.
const MOST_INTERPRETERS: usize = 4;

/// The beginning of an ELF file: `e_ident[EI_CLASS]` and `[EI_DATA]`, then (64 bits) the fields of `elf(5)`.
const ELF_MAGIC: &[u8] = b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const ELF_HEADER_LENGTH: usize = 64;
const PROGRAM_HEADER_LENGTH: usize = 56;
const PT_INTERP: u32 = 3;

/// `e_machine` of this program.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

/// Why the device's libraries do not get into a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    Static,
    Bits32,
    OtherMachine,
    /// The set-uid or set-gid bit, or capabilities, which take effect.
    OtherRights,
    /// The dynamic linker is not that of glibc.
    OtherLinker(PathBuf),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static => {
                f.write_str("is statically linked, so nothing can be loaded into it")
            }
            Obstacle::Bits32 => {
                f.write_str("is a 32-bit program, and the device's libraries are for 64 bits")
            }
            Obstacle::OtherMachine => {
                f.write_str("is for another processor than the device's libraries")
            }
            Obstacle::OtherRights => f.write_str(
                "runs with rights of another user (set-uid, set-gid or capabilities), so LD_PRELOAD is \
                 ignored: start `efa-emu run` with those rights",
            ),
            Obstacle::OtherLinker(linker) => write!(
                f,
                "is loaded by {}, and the device's libraries need glibc's dynamic linker",
                linker.display()
            ),
        }
    }
}

/// The file that is executed for a command's first word.
pub(super) fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into()).filter(|path: &PathBuf| path.is_file());
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// What keeps the libraries out of the program in this file; `None` if nothing is known to. For a script, that
/// is about its interpreter.
pub(super) fn obstacle(path: &Path) -> Option<Obstacle> {
    let mut path = path.to_owned();
    for _ in 0..=MOST_INTERPRETERS {
        match interpreter(&path) {
            Some(interpreter) => path = interpreter,
            None => return obstacle_of_binary(&path),
        }
    }
    None
}

/// The program that runs the script `path`, if it is a script.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    let start = BufReader::new(File::open(path).ok()?.take(256));
    start.take(256).read_until(b'\n', &mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace);
    let name = &line[..end.unwrap_or(line.len())];
    Some(PathBuf::from(OsString::from_vec(name.to_owned())))
}

fn obstacle_of_binary(path: &Path) -> Option<Obstacle> {
    let file = File::open(path).ok()?;
    let mut header = [0; ELF_HEADER_LENGTH];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(ELF_MAGIC) {
        return None;
    }
    if header[4] != CLASS_64 {
        return Some(Obstacle::Bits32);
    }
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if header[5] != LITTLE_ENDIAN || short(18) != MACHINE {
        return Some(Obstacle::OtherMachine);
    }
    let mut offset = u64::from_le_bytes(header[32..40].try_into().expect("eight bytes"));
    let mut linker = None;
    for _ in 0..short(56) {
        let mut entry = [0; PROGRAM_HEADER_LENGTH];
        file.read_exact_at(&mut entry, offset).ok()?;
        let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| entry[at + index]));
        if entry[..4] == PT_INTERP.to_le_bytes() {
            let mut name = vec![0; usize::try_from(long(32)).ok()?.min(4096)];
            file.read_exact_at(&mut name, long(8)).ok()?;
            name.truncate(name.iter().position(|byte| *byte == 0)?);
            linker = Some(PathBuf::from(OsString::from_vec(name)));
        }
        offset = offset.checked_add(u64::from(short(54)))?;
    }
    let Some(linker) = linker else {
        return Some(Obstacle::Static);
    };
    let is_of_glibc = linker
        .file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"));
    if !is_of_glibc {
        return Some(Obstacle::OtherLinker(linker));
    }
    has_other_rights(&file).then_some(Obstacle::OtherRights)
}

/// Whether who executes the file gets rights that the caller does not have.
fn has_other_rights(file: &File) -> bool {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    let user = rustix::process::geteuid().as_raw();
    let is_set = |bit| metadata.mode() & bit != 0;
    let mut capabilities = [0_u8; 64];
    is_set(SET_UID) && metadata.uid() != user
        || is_set(SET_GID) && metadata.gid() != rustix::process::getegid().as_raw()
        || user != 0
            && rustix::fs::fgetxattr(file, "security.capability", &mut capabilities).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of an ELF file for `class` and `machine`, with one program header that names a linker.
    fn elf(class: u8, machine: u16, linker: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; ELF_HEADER_LENGTH + PROGRAM_HEADER_LENGTH];
        bytes[..4].copy_from_slice(ELF_MAGIC);
        bytes[4..6].copy_from_slice(&[class, LITTLE_ENDIAN]);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = ELF_HEADER_LENGTH as u8;
        bytes[54] = PROGRAM_HEADER_LENGTH as u8;
        bytes[56] = 1;
        if let Some(linker) = linker {
            let at = ELF_HEADER_LENGTH;
            bytes[at] = PT_INTERP as u8;
            bytes[at + 8] = (ELF_HEADER_LENGTH + PROGRAM_HEADER_LENGTH) as u8;
            bytes[at + 32] = linker.len() as u8 + 1;
            bytes.extend_from_slice(linker.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    #[test]
    fn headers_tell_what_keeps_the_libraries_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        let judge = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            obstacle(&path)
        };
        let glibc = Some("/lib64/ld-linux-x86-64.so.2");
        assert_eq!(judge(&elf(CLASS_64, MACHINE, glibc)), None);
        assert_eq!(judge(&elf(CLASS_64, MACHINE, None)), Some(Obstacle::Static));
        assert_eq!(judge(&elf(1, 3, glibc)), Some(Obstacle::Bits32));
        assert_eq!(
            judge(&elf(CLASS_64, 243, glibc)),
            Some(Obstacle::OtherMachine)
        );
        let musl = "/lib/ld-musl-x86_64.so.1";
        let expected = Some(Obstacle::OtherLinker(musl.into()));
        assert_eq!(judge(&elf(CLASS_64, MACHINE, Some(musl))), expected);
        assert_eq!(judge(b"plain text"), None);
        // Cut off anywhere: nothing is known.
        let whole = elf(CLASS_64, MACHINE, glibc);
        assert_eq!(judge(&whole[..whole.len() - 1]), None);
        assert_eq!(judge(&whole[..70]), None);

        let script = directory.path().join("script");
        std::fs::write(&path, elf(CLASS_64, MACHINE, None)).unwrap();
        std::fs::write(&script, format!("#! {} -x\nmore\n", path.display())).unwrap();
        assert_eq!(obstacle(&script), Some(Obstacle::Static));
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(obstacle(&script), None, "it runs itself");
    }

    #[test]
    fn this_program_takes_libraries() {
        assert_eq!(obstacle(&std::env::current_exe().unwrap()), None);
        assert_eq!(obstacle(Path::new("/no/such/file")), None);
    }
}
