//! The software half of tag matching: what a library does around a shared receive queue that matches
//! tags, as `tag_matching.txt` divides the work.
//!
//! The device holds a bounded prefix of the receives, this list the rest. Messages that the device
//! had no tag for come to [`TagMatcher::unexpected`], in the order in which they arrived, and are
//! matched here. A message and a new receive may miss each other: the message arrives when the tag
//! is on its way to the device. So the device does not match new tags until it was told that all
//! messages were looked at here ([`TagMatcher::settle`]), and a receive that a message takes here
//! leaves the device before it is told.
//!
//! With a prefix of 0 the device matches nothing, and the results are the same.
//!
//! It does no I/O: whoever uses it hands completions in, and carries out requests for the device.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::device::Error;
use crate::device::connected::{BufferList, TagRequest, TagRequestOperation, TaggedBuffer};
use crate::match_list::MatchList;

/// A receive of a program.
#[derive(Clone, Debug)]
pub struct TagReceive {
    /// The program's own name of it, by which the device reports its messages. Of receives that are
    /// posted at a time, each has another.
    pub id: u64,
    /// The memory for a message.
    pub buffers: BufferList,
    /// The tag.
    pub tag: u64,
    /// The bits of a message's tag that are compared; others are wildcards.
    pub mask: u64,
}

impl TagReceive {
    /// Whether a message with this tag is for it.
    pub fn accepts(&self, tag: u64) -> bool {
        tag & self.mask == self.tag & self.mask
    }
}

/// A message that no receive was there for, with whatever its user keeps of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnexpectedMessage<M> {
    /// Its tag.
    pub tag: u64,
    /// What its user knows it by.
    pub message: M,
}

/// What became of a receive that was to be cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancellation {
    /// It is gone, and no message will have it.
    Done,
    /// The device was asked to delete it: [`TagMatcher::deleted`] tells.
    Asked,
    /// There is no such receive: a message has it.
    Unknown,
}

/// Carries out requests for the list of a device's shared receive queue. Returns the handle of a tag
/// that was added.
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
    /// The handle of one that the device holds.
    handle: u32,
}

impl Posted {
    /// The request that deletes it from the device's list.
    fn deletion(&self, is_signaled: bool) -> TagRequest {
        TagRequest {
            wr_id: self.receive.id,
            is_signaled,
            handled: None,
            operation: TagRequestOperation::Delete(self.handle),
        }
    }
}

/// The receives of a program and the messages that wait for one.
pub struct TagMatcher<M> {
    /// In the order of posting.
    posted: MatchList<Posted>,
    /// Their numbers, by the program's names.
    numbers: HashMap<u64, u64>,
    /// Receives that were ever posted.
    count: u64,
    /// Receives with smaller numbers were given to the device, which still holds so many.
    given_below: u64,
    held: usize,
    /// The most that the device is to hold.
    prefix: usize,
    /// In the order of arrival.
    unexpected: VecDeque<UnexpectedMessage<M>>,
    /// Messages that were looked at here.
    handled: u32,
    /// How many of them the device was told of.
    told: u32,
}

impl<M> TagMatcher<M> {
    /// Matches with a device that holds at most `prefix` receives; 0 for matching here only.
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
            told: 0,
        }
    }

    /// Receives that no message has.
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// Messages that no receive was there for, so far.
    pub fn handled(&self) -> u32 {
        self.handled
    }

    /// Posts a receive. Returns the message that it takes, if one waits.
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

    /// A message has arrived that the device had no tag for. Returns the receive that it takes, and
    /// keeps the message if there is none.
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
            // The device has not matched it since the message came. It may as soon as it is told of
            // the message, so that the receive goes first.
            device.request(&posted.deletion(false))?;
            self.held -= 1;
        }
        self.handled = self.handled.wrapping_add(1);
        let taken = self.remove(number);
        self.fill(device)?;
        Ok(taken.map(|receive| (receive, message)))
    }

    /// The device has matched a message with a receive. Returns the receive, which there is if the
    /// device is right.
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

    /// Cancels a receive, unless a message has it.
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
        Ok(Cancellation::Asked)
    }

    /// A deletion of a receive has completed. Returns whether the receive is cancelled: if not, a
    /// message has it.
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

    /// Tells the device how many messages were looked at, so that it matches new tags. To be called
    /// when all completions that are there were handed in.
    ///
    /// # Errors
    /// Those of the device.
    pub fn settle(&mut self, device: &mut impl TagListDevice) -> Result<(), Error> {
        if self.told == self.handled || self.prefix == 0 {
            return Ok(());
        }
        device.request(&TagRequest {
            wr_id: 0,
            is_signaled: false,
            handled: Some(self.handled),
            operation: TagRequestOperation::Sync,
        })?;
        self.told = self.handled;
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

    /// Has the device hold as many of the oldest receives as it may.
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

    /// What a device is asked, as words.
    #[derive(Default)]
    struct Asked(Vec<String>);

    impl TagListDevice for Asked {
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
        let (mut matcher, mut device) = (TagMatcher::<()>::new(2), Asked::default());
        for id in 1..=4 {
            matcher.post(receive(id, id), &mut device).unwrap();
        }
        assert_eq!(device.0, ["add 1", "add 2"]);
        let matched = matcher.matched(2, &mut device).unwrap();
        assert_eq!(matched.map(|receive| receive.id), Some(2));
        assert_eq!(device.0[2..], ["add 3"]);
        assert_eq!(matcher.cancel(4, &mut device), Ok(Cancellation::Done));
        assert_eq!(matcher.cancel(3, &mut device), Ok(Cancellation::Asked));
        assert_eq!(matcher.deleted(3, true, &mut device), Ok(true));
        assert_eq!(matcher.outstanding(), 1);
    }

    /// Else the device could match it a second time.
    #[test]
    fn a_receive_leaves_before_the_device_is_told() {
        let (mut matcher, mut device) = (TagMatcher::new(2), Asked::default());
        matcher.post(receive(1, 5), &mut device).unwrap();
        let taken = matcher.unexpected(5, "message", &mut device).unwrap();
        assert_eq!(taken.map(|(receive, _)| receive.id), Some(1));
        matcher.settle(&mut device).unwrap();
        matcher.settle(&mut device).unwrap();
        assert_eq!(device.0, ["add 1", "delete 0", "sync 1"]);
    }
}
