//! The protocol between `efa-emu rsh` and a host, over a socket in the cluster's directory.
//!
//! The client sends its three standard streams and one request. The host answers with [`Reply`]s.
//! When a client closes the connection, its command is ended.
//!
//! Requests and replies are lines of JSON. Names and values that are not UTF-8 are sent as bytes.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// Longest request in bytes: the arguments and the environment of a program can be 6 MiB, and the
/// encoding of a byte has at most four characters.
const LONGEST: u64 = 4 * (6 << 20);

/// The standard streams of a command.
pub(crate) const STREAMS: usize = 3;

/// The command to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct CommandRequest {
    /// The command for the user's shell; `None` for a login shell.
    pub(crate) command: Option<OsString>,
    /// Variables in addition to the host's environment.
    pub(crate) variables: Vec<(OsString, OsString)>,
}

/// A host's report about a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    Started,
    /// It was started on a host that lacks this.
    StartedWithout(String),
    /// It could not be started, for this reason.
    Refused(String),
    Exited(u8),
    Killed(u8),
    /// The cluster ends, and the command with it.
    ClusterEnds,
}

impl CommandRequest {
    /// Sends the request with the streams for the command.
    pub(crate) fn send(
        &self,
        connection: &mut UnixStream,
        streams: [BorrowedFd<'_>; STREAMS],
    ) -> io::Result<()> {
        let line = line(self)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&streams));
        let sent = sendmsg(
            &*connection,
            &[IoSlice::new(&line)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        connection.write_all(&line[sent..])
    }

    pub(crate) fn receive(
        connection: &UnixStream,
    ) -> io::Result<(CommandRequest, [OwnedFd; STREAMS])> {
        // The streams arrive with the first byte.
        let mut first = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            connection,
            &mut [IoSliceMut::new(&mut first)],
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
        let rest = BufReader::new(connection).take(LONGEST);
        let mut line = Vec::new();
        first[..received.bytes]
            .chain(rest)
            .read_until(b'\n', &mut line)?;
        Ok((serde_json::from_slice(&line)?, streams))
    }
}

impl Reply {
    /// Sends the reply. Ignores that a client has disconnected.
    pub(crate) fn send(&self, connection: &mut UnixStream) {
        let _ = line(self).and_then(|line| connection.write_all(&line));
    }

    /// Waits for the next reply; `None` if the host closed the connection.
    pub(crate) fn receive(connection: &mut impl BufRead) -> io::Result<Option<Reply>> {
        let mut line = Vec::new();
        match connection.read_until(b'\n', &mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_slice(&line)?)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The encoding of a request or reply.
fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The name of a host's socket in its directory.
const SOCKET: &str = "socket";

/// Listens for clients of the host with this directory.
pub(crate) fn listen(directory: &Path) -> io::Result<UnixListener> {
    at_short_path(directory, |path| UnixListener::bind(path))
}

/// Connects to the host with this directory.
pub(crate) fn connect(directory: &Path) -> io::Result<UnixStream> {
    at_short_path(directory, |path| UnixStream::connect(path))
}

/// Socket paths are limited to 107 bytes. A path through a descriptor in `/proc` is short.
fn at_short_path<T>(directory: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = std::fs::File::open(directory)?;
    let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_fd().as_raw_fd());
    work(Path::new(&path))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    fn request() -> CommandRequest {
        CommandRequest {
            command: Some("echo a b".into()),
            variables: vec![("A".into(), "1=2".into()), ("B".into(), "".into())],
        }
    }

    #[test]
    fn requests_and_replies_are_lines_of_json() {
        let request = CommandRequest {
            command: Some(OsString::from_vec(b"a\xff".to_vec())),
            variables: vec![("A".into(), "1".into())],
        };
        assert_eq!(
            line(&request).unwrap(),
            b"{\"command\":{\"Unix\":[97,255]},\"variables\":[[{\"Unix\":[65]},{\"Unix\":[49]}]]}\n"
        );
        assert_eq!(line(&Reply::Exited(3)).unwrap(), b"{\"exited\":3}\n");
        assert_eq!(line(&Reply::Started).unwrap(), b"\"started\"\n");
        assert!(Reply::receive(&mut &b"started\n"[..]).is_err());
        assert!(Reply::receive(&mut &b"{\"exited\":"[..]).is_err());
    }

    #[test]
    fn streams_and_replies_are_received() {
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
        let (received, streams) = CommandRequest::receive(&host).unwrap();
        assert_eq!(received, request());
        File::from(streams.into_iter().nth(1).unwrap())
            .write_all(b"written")
            .unwrap();
        assert_eq!(std::fs::read(long.join("file")).unwrap(), b"written");
        let replies = [
            Reply::Started,
            Reply::StartedWithout("that".into()),
            Reply::Exited(3),
            Reply::Killed(9),
            Reply::ClusterEnds,
            Reply::Refused("because".into()),
        ];
        for reply in &replies {
            reply.send(&mut host);
        }
        drop(host);
        let mut client = BufReader::new(client);
        for reply in replies {
            assert_eq!(Reply::receive(&mut client).unwrap(), Some(reply));
        }
        assert_eq!(Reply::receive(&mut client).unwrap(), None);
    }

    #[test]
    fn a_request_without_streams_is_refused() {
        let (mut client, host) = UnixStream::pair().unwrap();
        client.write_all(&line(&request()).unwrap()).unwrap();
        let error = CommandRequest::receive(&host).unwrap_err();
        assert!(error.to_string().contains("streams"), "{error}");
    }
}
