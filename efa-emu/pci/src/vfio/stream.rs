//! Messages over a stream socket, with their file descriptors.
//!
//! Every message is read completely before the next one, so that the stream stays usable after an
//! invalid message.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, IntoBytes};

use super::message::Header;

/// The most descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 16;

/// The longest message in bytes: the most data that the device accepts, and the headers.
const MAX_LENGTH: usize = (64 << 10) + 64;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// The data after the header.
    pub body: Vec<u8>,
    /// Its file descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// The reason why a stream is unusable.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The other side closed the stream in the middle of a message.
    #[error("the stream ends in the middle of a message")]
    Cut,
    /// A length that is too small or too large.
    #[error("a message of {0} bytes: there are 16 to {MAX_LENGTH}")]
    Length(u32),
    /// More descriptors than a message may have.
    #[error("a message has more than {MAX_DESCRIPTORS} descriptors")]
    Descriptors,
    /// The socket failed.
    #[error("the socket fails: {0}")]
    Socket(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for StreamError {
    fn from(error: rustix::io::Errno) -> Self {
        StreamError::Socket(error.into())
    }
}

/// A connection.
pub struct Stream(UnixStream);

impl From<UnixStream> for Stream {
    fn from(socket: UnixStream) -> Stream {
        Stream(socket)
    }
}

impl Stream {
    /// Waits for data. Returns `false` after the timeout.
    pub fn wait(&self, time: Duration) -> Result<bool, StreamError> {
        let mut readable = [PollFd::new(&self.0, PollFlags::IN)];
        let time = Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        };
        match poll(&mut readable, Some(&time)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a message. Returns `None` at the end of the stream.
    pub fn receive(&self) -> Result<Option<Message>, StreamError> {
        let mut descriptors = Vec::new();
        let mut header = [0; Header::LENGTH];
        match self.fill(&mut header, &mut descriptors)? {
            0 => return Ok(None),
            Header::LENGTH => {}
            _ => return Err(StreamError::Cut),
        }
        let header: Header = zerocopy::transmute!(header);
        let size = header.size.get() as usize;
        if !(Header::LENGTH..=MAX_LENGTH).contains(&size) {
            return Err(StreamError::Length(header.size.get()));
        }
        let mut body = vec![0; size - Header::LENGTH];
        if self.fill(&mut body, &mut descriptors)? < body.len() {
            return Err(StreamError::Cut);
        }
        Ok(Some(Message {
            header,
            body,
            descriptors,
        }))
    }

    /// Reads until the buffer is full, or the stream ends. Returns the number of bytes.
    fn fill(&self, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize, StreamError> {
        let mut filled = 0;
        while filled < into.len() {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let rest = &mut [IoSliceMut::new(&mut into[filled..])];
            let received = match recvmsg(&self.0, rest, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => received,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    descriptors.extend(received);
                }
            }
            if descriptors.len() > MAX_DESCRIPTORS {
                return Err(StreamError::Descriptors);
            }
            if received.bytes == 0 {
                break;
            }
            filled += received.bytes;
        }
        Ok(filled)
    }

    /// Sends a message. The length in the header is set here.
    pub fn send(
        &self,
        mut header: Header,
        body: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), StreamError> {
        let length: usize = body.iter().map(|part| part.len()).sum();
        header.size = ((Header::LENGTH + length) as u32).into();
        let mut bytes = header.as_bytes().to_vec();
        for part in body {
            bytes.extend_from_slice(part);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(StreamError::Descriptors);
        }
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &[IoSlice::new(&bytes[sent..])];
            match sendmsg(&self.0, rest, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    sent += count;
                    ancillary.clear();
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Reads a structure at the start of a body.
pub(super) fn structure<T: FromBytes>(body: &[u8]) -> Result<T, i32> {
    let (structure, _) = T::read_from_prefix(body).map_err(|_| libc::EINVAL)?;
    Ok(structure)
}
