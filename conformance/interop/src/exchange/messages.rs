//! The operations of a topic, in each size.

use efa_play::application::OperationRequest;
use efa_play::operation::{Payload, SendMode, TagMatch};

use super::pair::Pair;
use super::party::{INITIATOR, TARGET};
use super::topic::{MessageKind, Topic};
use crate::harness::{NotMeasured, failed};

/// The numbers of elements of atomics. The largest fits into a packet of each profile.
const ELEMENTS: [usize; 4] = [1, 8, 500, 1000];

impl Pair<'_> {
    pub(super) fn exchange(&mut self, topic: Topic, sizes: &[usize]) -> Result<(), NotMeasured> {
        for &size in sizes {
            let messages = topic.messages().into_iter();
            for message in messages.filter(|message| size <= message.largest) {
                self.message(message, size)
                    .map_err(|error| error.at(format_args!("{message} of {size} bytes")))?;
            }
            // Not all releases support reads and writes of 0 bytes.
            match topic {
                Topic::Rma if size > 0 => self.read_and_write(size),
                Topic::WriteData if size > 0 => self.write_with_data(size),
                _ => Ok(()),
            }
            .map_err(|error| error.at(format_args!("{size} bytes")))?;
        }
        match topic {
            Topic::Atomics => {
                for count in ELEMENTS {
                    let bytes = count * size_of::<u64>();
                    self.atomics(count)
                        .map_err(|error| error.at(format_args!("atomics on {bytes} bytes")))?;
                }
                Ok(())
            }
            Topic::ZeroCopy => self.read_and_write(4096),
            _ => Ok(()),
        }
    }

    fn message(&mut self, message: MessageKind, size: usize) -> Result<(), NotMeasured> {
        let seed = self.tokens;
        let recv = OperationRequest::Recv {
            length: size,
            from: None,
            // The lower half of the tag is ignored.
            tag: message.tag.map(|tag| TagMatch {
                tag: tag | 0xffff,
                ignore: 0xffff,
            }),
        };
        let send = OperationRequest::Send {
            to: TARGET,
            payload: Payload { length: size, seed },
            tag: message.tag,
            data: message.data,
            mode: message.mode,
        };
        let (sent, received);
        if message.is_unexpected {
            sent = self.begin(INITIATOR, send, None)?;
            // Messages are delivered in order: after this one has arrived, the earlier one has too.
            self.message(MessageKind::PLAIN, 0)?;
            received = self.begin(TARGET, recv, Some(seed))?;
        } else {
            received = self.begin(TARGET, recv, Some(seed))?;
            sent = self.begin(INITIATOR, send, None)?;
        }
        let report = self.wait(received, Some(size))?;
        if message.mode != SendMode::Inject {
            self.wait(sent, None)?;
        }
        if message.tag.is_some_and(|tag| tag != report.tag) {
            return Err(failed!("the tag that arrives is {:#x}", report.tag));
        }
        if report.data != message.data {
            return Err(failed!("the data that arrives is {:x?}", report.data));
        }
        self.count(size);
        Ok(())
    }
}
