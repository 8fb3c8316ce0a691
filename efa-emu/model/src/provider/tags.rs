//! The software half of tag matching: a library's part for a shared receive queue that matches
//! tags, according to `Documentation/tag_matching.md` of rdma-core.
//!
//! The device has the oldest receives up to a limit, this list all of them. Messages for which the
//! device had no tag are passed to [`TagMatcher::unexpected`] in the order of their arrival, and
//! are matched here. A message can arrive while the tag of a new receive is on its way to the
//! device. So the device does not match new tags until [`TagMatcher::settle`] has reported that all
//! unexpected messages were handled here, and a receive that an unexpected message matches is
//! deleted from the device before that.
//!
//! With a limit of 0 the device matches nothing, and the results are the same.
//!
//! This module does no I/O: its user passes completions to it, and executes the requests for the
//! device.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::device::Error;
use crate::device::connected::{BufferList, TagRequest, TagRequestOperation, TaggedBuffer};
use crate::match_list::MatchList;

/// A receive of a program.
#[derive(Clone, Debug)]
pub struct TagReceive {
    /// The program's id of the receive, with which the device reports its messages. Unique among
    /// posted receives.
    pub id: u64,
    /// The memory for a message.
    pub buffers: BufferList,
    /// The tag.
    pub tag: u64,
    /// The bits of a message's tag that are compared; others are wildcards.
    pub mask: u64,
}

impl TagReceive {
    /// Whether the receive accepts a message with this tag.
    pub fn accepts(&self, tag: u64) -> bool {
        tag & self.mask == self.tag & self.mask
    }
}

/// A message without a matching receive, with the data that its user needs to find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnexpectedMessage<M> {
    /// Its tag.
    pub tag: u64,
    /// The user's data.
    pub message: M,
}

/// The result of a cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancellation {
    /// The receive is removed, and no message will use it.
    Done,
    /// The device was requested to delete it. [`TagMatcher::deleted`] returns the result.
    Requested,
    /// The receive does not exist: a message has matched it.
    Unknown,
}

/// Executes a request for the tag list of a device's shared receive queue. Returns the handle of an
/// added tag.
pub trait TagListDevice {
    /// As [`Device::post_tag_request`](crate::device::Device::post_tag_request).
    fn request(&mut self, request: &TagRequest) -> Result<u32, Error>;
}

impl<F: FnMut(&TagRequest) -> Result<u32, Error>> TagListDevice for F {
    fn request(&mut self, request: &TagRequest) -> Result<u32, Error> {
        self(request)
    }
}

struct Posted {
    receive: TagReceive,
    /// The handle, if the device has the receive.
    handle: u32,
}

impl Posted {
    /// The request to delete it from the device's list.
    fn deletion(&self, is_signaled: bool) -> TagRequest {
        TagRequest {
            wr_id: self.receive.id,
            is_signaled,
            handled: None,
            operation: TagRequestOperation::Delete(self.handle),
        }
    }
}

/// The receives of a program and its unexpected messages.
pub struct TagMatcher<M> {
    /// Posted receives, in the order of posting.
    posted: MatchList<Posted>,
    /// Their numbers, by the program's ids.
    numbers: HashMap<u64, u64>,
    /// Number of receives posted so far.
    count: u64,
    /// Receives with smaller numbers were passed to the device, which still has `held` of them.
    given_below: u64,
    held: usize,
    /// Maximum number of receives in the device.
    prefix: usize,
    /// In the order of arrival.
    unexpected: VecDeque<UnexpectedMessage<M>>,
    /// Number of unexpected messages that were handled here.
    handled: u32,
    /// The value of `handled` that was last reported to the device.
    reported: u32,
}

impl<M> TagMatcher<M> {
    /// A matcher with a device that has at most `prefix` receives; 0 to match here only.
    pub fn new(prefix: usize) -> TagMatcher<M> {
        TagMatcher {
            posted: MatchList::new(),
            numbers: HashMap::new(),
            count: 0,
            given_below: 0,
            held: 0,
            prefix,
            unexpected: VecDeque::new(),
            handled: 0,
            reported: 0,
        }
    }

    /// Number of receives that no message has matched.
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// Number of unexpected messages so far that had no matching receive.
    pub fn handled(&self) -> u32 {
        self.handled
    }

    /// Posts a receive. Returns the unexpected message that it matches, if there is one.
    ///
    /// # Errors
    /// Those of the device.
    pub fn post(
        &mut self,
        receive: TagReceive,
        device: &mut impl TagListDevice,
    ) -> Result<Option<UnexpectedMessage<M>>, Error> {
        let waiting = self.unexpected.iter();
        let position = waiting
            .map(|message| message.tag)
            .position(|tag| receive.accepts(tag));
        if let Some(position) = position {
            return Ok(self.unexpected.remove(position));
        }
        let TagReceive { id, tag, mask, .. } = receive;
        let number = self.count;
        self.count += 1;
        self.numbers.insert(id, number);
        let posted = Posted { receive, handle: 0 };
        self.posted.insert(number, tag & mask, mask, posted);
        self.fill(device)?;
        Ok(None)
    }

    /// Handles a message for which the device had no tag. Returns the receive that it matches, or
    /// stores the message if there is none.
    ///
    /// # Errors
    /// Those of the device.
    pub fn unexpected(
        &mut self,
        tag: u64,
        message: M,
        device: &mut impl TagListDevice,
    ) -> Result<Option<(TagReceive, M)>, Error> {
        let Some(number) = self.posted.first(tag, u64::MAX) else {
            self.handled = self.handled.wrapping_add(1);
            self.unexpected
                .push_back(UnexpectedMessage { tag, message });
            return Ok(None);
        };
        if number < self.given_below
            && let Some(posted) = self.posted.get(number)
        {
            // The device has matched no new tags since the message arrived, but may do so as soon
            // as it learns that the message was handled. So the deletion must precede that.
            device.request(&posted.deletion(false))?;
            self.held -= 1;
        }
        self.handled = self.handled.wrapping_add(1);
        let taken = self.remove(number);
        self.fill(device)?;
        Ok(taken.map(|receive| (receive, message)))
    }

    /// Handles a message that the device has matched with a receive. Returns the receive, or `None`
    /// if the device does not have it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn matched(
        &mut self,
        id: u64,
        device: &mut impl TagListDevice,
    ) -> Result<Option<TagReceive>, Error> {
        let taken = self.take_held(id);
        self.fill(device)?;
        Ok(taken)
    }

    /// Cancels a receive, unless a message has matched it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn cancel(
        &mut self,
        id: u64,
        device: &mut impl TagListDevice,
    ) -> Result<Cancellation, Error> {
        let Some(number) = self.numbers.get(&id).copied() else {
            return Ok(Cancellation::Unknown);
        };
        if number >= self.given_below {
            self.remove(number);
            return Ok(Cancellation::Done);
        }
        if let Some(posted) = self.posted.get(number) {
            device.request(&posted.deletion(true))?;
        }
        Ok(Cancellation::Requested)
    }

    /// Handles the completion of a receive's deletion. Returns whether the receive is cancelled; if
    /// not, a message has matched it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn deleted(
        &mut self,
        id: u64,
        succeeded: bool,
        device: &mut impl TagListDevice,
    ) -> Result<bool, Error> {
        let is_cancelled = succeeded && self.take_held(id).is_some();
        self.fill(device)?;
        Ok(is_cancelled)
    }

    /// Reports the number of handled messages to the device, so that it matches new tags. To be
    /// called after all available completions were passed in.
    ///
    /// # Errors
    /// Those of the device.
    pub fn settle(&mut self, device: &mut impl TagListDevice) -> Result<(), Error> {
        if self.reported == self.handled || self.prefix == 0 {
            return Ok(());
        }
        device.request(&TagRequest {
            wr_id: 0,
            is_signaled: false,
            handled: Some(self.handled),
            operation: TagRequestOperation::Sync,
        })?;
        self.reported = self.handled;
        Ok(())
    }

    fn remove(&mut self, number: u64) -> Option<TagReceive> {
        let receive = self.posted.remove(number)?.receive;
        self.numbers.remove(&receive.id);
        Some(receive)
    }

    fn take_held(&mut self, id: u64) -> Option<TagReceive> {
        let number = *self.numbers.get(&id)?;
        if number >= self.given_below {
            return None;
        }
        self.held -= 1;
        self.remove(number)
    }

    /// Passes the oldest receives to the device, up to its limit.
    fn fill(&mut self, device: &mut impl TagListDevice) -> Result<(), Error> {
        while self.held < self.prefix
            && let Some((number, next)) = self.posted.from(self.given_below)
        {
            let TagReceive {
                id,
                buffers,
                tag,
                mask,
            } = next.receive.clone();
            next.handle = device.request(&TagRequest {
                wr_id: id,
                is_signaled: false,
                handled: None,
                operation: TagRequestOperation::Add(TaggedBuffer {
                    wr_id: id,
                    buffers,
                    tag: tag & mask,
                    mask,
                }),
            })?;
            self.held += 1;
            self.given_below = number + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(id: u64, tag: u64) -> TagReceive {
        TagReceive {
            id,
            buffers: BufferList::default(),
            tag,
            mask: u64::MAX,
        }
    }

    /// The requests to a device, as text.
    #[derive(Default)]
    struct Requests(Vec<String>);

    impl TagListDevice for Requests {
        fn request(&mut self, request: &TagRequest) -> Result<u32, Error> {
            let handle = self.0.len() as u32;
            self.0.push(match &request.operation {
                TagRequestOperation::Add(buffer) => format!("add {}", buffer.wr_id),
                TagRequestOperation::Delete(handle) => format!("delete {handle}"),
                TagRequestOperation::Sync => format!("sync {}", request.handled.unwrap_or(0)),
            });
            Ok(handle)
        }
    }

    #[test]
    fn the_device_holds_a_prefix() {
        let (mut matcher, mut device) = (TagMatcher::<()>::new(2), Requests::default());
        for id in 1..=4 {
            matcher.post(receive(id, id), &mut device).unwrap();
        }
        assert_eq!(device.0, ["add 1", "add 2"]);
        let matched = matcher.matched(2, &mut device).unwrap();
        assert_eq!(matched.map(|receive| receive.id), Some(2));
        assert_eq!(device.0[2..], ["add 3"]);
        assert_eq!(matcher.cancel(4, &mut device), Ok(Cancellation::Done));
        assert_eq!(matcher.cancel(3, &mut device), Ok(Cancellation::Requested));
        assert_eq!(matcher.deleted(3, true, &mut device), Ok(true));
        assert_eq!(matcher.outstanding(), 1);
    }

    /// Otherwise the device could match it a second time.
    #[test]
    fn a_receive_leaves_before_the_device_is_told() {
        let (mut matcher, mut device) = (TagMatcher::new(2), Requests::default());
        matcher.post(receive(1, 5), &mut device).unwrap();
        let taken = matcher.unexpected(5, "message", &mut device).unwrap();
        assert_eq!(taken.map(|(receive, _)| receive.id), Some(1));
        matcher.settle(&mut device).unwrap();
        matcher.settle(&mut device).unwrap();
        assert_eq!(device.0, ["add 1", "delete 0", "sync 1"]);
    }
}
