//! What `efa-emu rsh` and a host say to each other, over a socket in the cluster's directory.
//!
//! The client sends its three standard streams and one request. The host answers with [`Reply`]s. A
//! client that closes the connection before the end takes its command along.
//!
//! ```text
//! request   length of the rest (4 bytes), fields with a zero byte between them:
//!           "c" and the command, or "l" for a login shell; then any number of NAME=VALUE
//! reply     "+"                       the command was started
//!           "-" and text until end    it was not, and why
//!           "x" and its exit status, "s" and the number of the signal that ended it
//!           "e"                       the cluster ends, and the command with it
//! ```

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Longest request in bytes: as much as the arguments and the environment of a program can be.
const LONGEST: u32 = 6 << 20;

/// The standard streams of a command.
pub(super) const STREAMS: usize = 3;

/// What is to be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// The command for the user's shell; `None` for a login shell.
    pub(super) command: Option<OsString>,
    /// Variables on top of the host's environment.
    pub(super) variables: Vec<(OsString, OsString)>,
}

/// What a host says about a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// It was started.
    Started,
    /// It could not be started.
    Refused(String),
    /// It has ended with this status.
    Exited(u8),
    /// A signal has ended it.
    Killed(u8),
    /// The cluster ends, and the command with it.
    ClusterEnds,
}

impl Request {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        match &self.command {
            Some(command) => {
                bytes.push(b'c');
                bytes.extend(command.as_bytes());
            }
            None => bytes.push(b'l'),
        }
        for (name, value) in &self.variables {
            bytes.push(0);
            bytes.extend(name.as_bytes());
            bytes.push(b'=');
            bytes.extend(value.as_bytes());
        }
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> io::Result<Request> {
        let mut fields = bytes.split(|byte| *byte == 0);
        let command = match fields.next().and_then(<[u8]>::split_first) {
            Some((b'c', command)) => Some(OsString::from_vec(command.to_vec())),
            Some((b'l', [])) => None,
            _ => return Err(invalid("a request that is none")),
        };
        let variables = fields.map(|field| {
            let at = field.iter().position(|byte| *byte == b'=');
            let at = at
                .filter(|at| *at > 0)
                .ok_or_else(|| invalid("a variable without name or value"))?;
            let text = |bytes| OsStr::from_bytes(bytes).to_owned();
            Ok((text(&field[..at]), text(&field[at + 1..])))
        });
        Ok(Request {
            command,
            variables: variables.collect::<io::Result<_>>()?,
        })
    }

    /// Sends the request with the streams that the command gets.
    pub(super) fn send(
        &self,
        connection: &mut UnixStream,
        streams: [BorrowedFd<'_>; STREAMS],
    ) -> io::Result<()> {
        let bytes = self.to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&streams));
        let sent = sendmsg(
            &*connection,
            &[IoSlice::new(&bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        connection.write_all(&bytes[sent..])
    }

    /// Receives a request and the streams.
    pub(super) fn receive(
        connection: &mut UnixStream,
    ) -> io::Result<(Request, [OwnedFd; STREAMS])> {
        let mut length = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &*connection,
            &mut [IoSliceMut::new(&mut length)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let streams: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(streams) => Some(streams),
                _ => None,
            })
            .flatten()
            .collect();
        let streams = <[OwnedFd; STREAMS]>::try_from(streams)
            .map_err(|_| invalid("a request without the standard streams"))?;
        connection.read_exact(&mut length[received.bytes..])?;
        let length = u32::from_le_bytes(length);
        if length > LONGEST {
            return Err(invalid("a request that is too long"));
        }
        let mut bytes = vec![0; length as usize];
        connection.read_exact(&mut bytes)?;
        Ok((Request::from_bytes(&bytes)?, streams))
    }
}

impl Reply {
    /// Sends the reply. A client that is gone does not want it.
    pub(super) fn send(&self, connection: &mut UnixStream) {
        let bytes = match self {
            Reply::Started => vec![b'+'],
            Reply::Refused(reason) => [b"-", reason.as_bytes()].concat(),
            Reply::Exited(status) => vec![b'x', *status],
            Reply::Killed(signal) => vec![b's', *signal],
            Reply::ClusterEnds => vec![b'e'],
        };
        let _ = connection.write_all(&bytes);
    }

    /// Waits for the next reply; `None` if the host closed the connection.
    pub(super) fn receive(connection: &mut UnixStream) -> io::Result<Option<Reply>> {
        let mut byte = || {
            let mut byte = [0];
            match connection.read_exact(&mut byte) {
                Ok(()) => Ok(Some(byte[0])),
                Err(error) if is_end(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        Ok(match byte()? {
            None => None,
            Some(b'+') => Some(Reply::Started),
            Some(b'x') => byte()?.map(Reply::Exited),
            Some(b's') => byte()?.map(Reply::Killed),
            Some(b'e') => Some(Reply::ClusterEnds),
            Some(b'-') => {
                let mut reason = String::new();
                connection.read_to_string(&mut reason)?;
                Some(Reply::Refused(reason))
            }
            Some(_) => return Err(invalid("a reply that is none")),
        })
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
    )
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The name of a host's socket in its directory.
const SOCKET: &str = "socket";

/// Begins to listen for the clients of the host with this directory.
pub(super) fn listen(directory: &Path) -> io::Result<UnixListener> {
    at_short_path(directory, |path| UnixListener::bind(path))
}

/// Connects to the host with this directory.
pub(super) fn connect(directory: &Path) -> io::Result<UnixStream> {
    at_short_path(directory, |path| UnixStream::connect(path))
}

/// Paths of sockets have room for 107 bytes. A path by way of a descriptor is short.
fn at_short_path<T>(directory: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = std::fs::File::open(directory)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_fd().as_raw_fd());
    work(Path::new(&path))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn request() -> Request {
        Request {
            command: Some("echo a b".into()),
            variables: vec![("A".into(), "1=2".into()), ("B".into(), "".into())],
        }
    }

    #[test]
    fn a_request_is_its_fields_with_zeros_between_them() {
        assert_eq!(request().to_bytes(), b"\x12\0\0\0cecho a b\0A=1=2\0B=");
        let login = Request {
            command: None,
            variables: Vec::new(),
        };
        assert_eq!(login.to_bytes(), b"\x01\0\0\0l");
        for request in [request(), login] {
            let bytes = &request.to_bytes()[4..];
            assert_eq!(Request::from_bytes(bytes).unwrap(), request);
        }
        for bytes in [&b""[..], b"x", b"lx", b"cls\0A", b"cls\0=1"] {
            assert!(Request::from_bytes(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn streams_and_replies_come_across() {
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("l".repeat(150));
        std::fs::create_dir(&long).unwrap();
        let listener = listen(&long).unwrap();
        let mut client = connect(&long).unwrap();
        let (mut host, _) = listener.accept().unwrap();
        let file = File::create(long.join("file")).unwrap();
        request()
            .send(&mut client, [file.as_fd(); STREAMS])
            .unwrap();
        let (received, streams) = Request::receive(&mut host).unwrap();
        assert_eq!(received, request());
        File::from(streams.into_iter().nth(1).unwrap())
            .write_all(b"written")
            .unwrap();
        assert_eq!(std::fs::read(long.join("file")).unwrap(), b"written");
        let replies = [
            Reply::Started,
            Reply::Exited(3),
            Reply::Killed(9),
            Reply::ClusterEnds,
            Reply::Refused("because".into()),
        ];
        for reply in &replies {
            reply.send(&mut host);
        }
        drop(host);
        for reply in replies {
            assert_eq!(Reply::receive(&mut client).unwrap(), Some(reply));
        }
        assert_eq!(Reply::receive(&mut client).unwrap(), None);
    }

    #[test]
    fn a_request_without_streams_is_refused() {
        let (mut client, mut host) = UnixStream::pair().unwrap();
        client.write_all(&request().to_bytes()).unwrap();
        let error = Request::receive(&mut host).unwrap_err();
        assert!(error.to_string().contains("streams"), "{error}");
    }
}
