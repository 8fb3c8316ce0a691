//! Messages of a stream socket, and the descriptors that come with them.
//!
//! A message is read to its end before the next one, whatever is in it, so that one that is refused
//! does not spoil those that follow.

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

/// The most descriptors that come with a message.
pub const MAX_DESCRIPTORS: usize = 16;

/// The longest message in bytes: as much data as the device says that it takes, and what is in front
/// of it.
const MAX_LENGTH: usize = (64 << 10) + 64;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// What follows the header.
    pub body: Vec<u8>,
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Why a stream is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The other side has ended in the middle of a message.
    #[error("the stream ends in the middle of a message")]
    Cut,
    /// A length that no message has.
    #[error("a message of {0} bytes: there are 16 to {MAX_LENGTH}")]
    Length(u32),
    /// More descriptors than a message may have.
    #[error("a message has more than {MAX_DESCRIPTORS} descriptors")]
    Descriptors,
    /// The socket fails.
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
    /// Waits until there is something to read. Returns `false` if there is nothing after this time.
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

    /// Reads a message; `None` at the end of the stream.
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

    /// Reads until there are so many bytes, or the stream ends. Returns how many there are.
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

    /// Sends a message. Its length is written into the header.
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

/// Reads a structure from the beginning of a body.
pub(super) fn structure<T: FromBytes>(body: &[u8]) -> Result<T, i32> {
    let (structure, _) = T::read_from_prefix(body).map_err(|_| libc::EINVAL)?;
    Ok(structure)
}
