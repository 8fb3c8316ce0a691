//! What ranks send to each other: a byte for the kind, the length as four bytes, big end first, and the content.

use std::io::{self, Read, Write};

/// No content is longer, in bytes.
const MOST: u32 = 1 << 20;

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// A rank introduces itself to rank 0, as JSON.
    Join(String),
    /// Rank 0 has counted it.
    Welcome,
    /// Rank 0 has not, and why.
    Refused(String),
    /// The command line to run.
    Command(String),
    /// For its standard input.
    Input(Vec<u8>),
    /// The end of its standard input.
    InputEnd,
    /// From its standard output.
    Output(Vec<u8>),
    /// From its standard error.
    Errors(Vec<u8>),
    /// It has ended with this status.
    Ended(u8),
}

impl Message {
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let status;
        let (kind, content): (u8, &[u8]) = match self {
            Message::Join(text) => (1, text.as_bytes()),
            Message::Welcome => (2, &[]),
            Message::Refused(text) => (3, text.as_bytes()),
            Message::Command(text) => (4, text.as_bytes()),
            Message::Input(bytes) => (5, bytes),
            Message::InputEnd => (6, &[]),
            Message::Output(bytes) => (7, bytes),
            Message::Errors(bytes) => (8, bytes),
            Message::Ended(code) => {
                status = [*code];
                (9, &status)
            }
        };
        let length = u32::try_from(content.len())
            .ok()
            .filter(|length| *length <= MOST);
        let length = length.ok_or_else(|| wrong("a message is too long"))?;
        let mut bytes = vec![kind];
        bytes.extend(length.to_be_bytes());
        bytes.extend(content);
        to.write_all(&bytes)
    }

    /// Reads one. Nothing is believed of a length before that many bytes have come.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length);
        if length > MOST {
            return Err(wrong("a message says that it is too long"));
        }
        let mut content = Vec::new();
        from.take(length.into()).read_to_end(&mut content)?;
        if content.len() < length as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = |content| String::from_utf8(content).map_err(|_| wrong("a text is not UTF-8"));
        match (kind, &content[..]) {
            (1, _) => Ok(Message::Join(text(content)?)),
            (2, []) => Ok(Message::Welcome),
            (3, _) => Ok(Message::Refused(text(content)?)),
            (4, _) => Ok(Message::Command(text(content)?)),
            (5, _) => Ok(Message::Input(content)),
            (6, []) => Ok(Message::InputEnd),
            (7, _) => Ok(Message::Output(content)),
            (8, _) => Ok(Message::Errors(content)),
            (9, [status]) => Ok(Message::Ended(*status)),
            _ => Err(wrong("a message is of no known kind")),
        }
    }
}

fn wrong(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let mut bytes = Vec::new();
        Message::Command("ls".into()).write(&mut bytes).unwrap();
        Message::Ended(255).write(&mut bytes).unwrap();
        assert_eq!(bytes, b"\x04\0\0\0\x02ls\x09\0\0\0\x01\xff");
    }

    #[test]
    fn each_message_is_read_as_it_was_written() {
        let messages = [
            Message::Join("{}".into()),
            Message::Welcome,
            Message::Refused("why".into()),
            Message::Command("true".into()),
            Message::Input(vec![0, 255]),
            Message::InputEnd,
            Message::Output(Vec::new()),
            Message::Errors(vec![1; MOST as usize]),
            Message::Ended(3),
        ];
        let mut bytes = Vec::new();
        for message in &messages {
            message.write(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        for message in messages {
            assert!(Message::read(&mut rest).unwrap() == message);
        }
        assert!(rest.is_empty());
        assert!(
            Message::Output(vec![0; MOST as usize + 1])
                .write(&mut bytes)
                .is_err()
        );
    }

    #[test]
    fn hostile_bytes_are_an_error() {
        let hostile: [&[u8]; 9] = [
            b"",
            b"\x05\0\0",
            b"\0\0\0\0\0",
            b"\x0a\0\0\0\0",
            b"\x05\0\0\0\x02x",
            b"\x05\xff\xff\xff\xff",
            b"\x04\0\0\0\x01\xff",
            b"\x06\0\0\0\x01x",
            b"\x09\0\0\0\0",
        ];
        for mut bytes in hostile {
            assert!(Message::read(&mut bytes).is_err());
        }
    }
}
