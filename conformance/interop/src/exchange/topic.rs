//! The kinds of exchanges, and the messages of each.

use std::fmt;

use efa_play::operation::SendMode;

use crate::harness::CellsError;

/// A kind of exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Topic {
    /// Untagged and tagged messages; the tagged ones also unexpected.
    Messages,
    /// Messages with remote completion data, and injected ones.
    Data,
    /// Messages with remote completion data that arrive before their receive is posted.
    UnexpectedData,
    /// Messages with `FI_DELIVERY_COMPLETE`.
    DeliveryComplete,
    /// Reads and writes of memory.
    Rma,
    WriteData,
    /// Atomics on 64-bit elements: updating, fetching, comparing.
    Atomics,
    /// Messages to a zero-copy receiver, each in one packet, in any order. The parties must be
    /// opened for that ([`super::Party::promise_packets`]).
    ZeroCopy,
}

impl Topic {
    /// Sizes in bytes for which subprotocols differ.
    pub(crate) const SMALL: [usize; 7] = [0, 1, 64, 4 << 10, (8 << 10) + 1, 64 << 10, 1 << 20];
    /// Sizes in bytes that need several packets or more than one device operation.
    pub(crate) const LARGE: [usize; 2] = [8 << 20, 64 << 20];
}

impl Topic {
    const NAMES: [(&'static str, Topic); 8] = [
        ("messages", Topic::Messages),
        ("data", Topic::Data),
        ("unexpected-data", Topic::UnexpectedData),
        ("delivery-complete", Topic::DeliveryComplete),
        ("rma", Topic::Rma),
        ("write-data", Topic::WriteData),
        ("atomics", Topic::Atomics),
        ("zero-copy", Topic::ZeroCopy),
    ];

    pub(crate) fn named(name: &str) -> Result<Topic, CellsError> {
        let found = Self::NAMES.iter().find(|(named, _)| *named == name);
        let topic = found.map(|(_, topic)| *topic);
        topic.ok_or_else(|| CellsError::unknown("topic", name))
    }

    pub(crate) fn count_of_messages(self, sizes: &[usize]) -> usize {
        let messages = self.messages();
        let of_size = |size: &usize| messages.iter().filter(|one| *size <= one.largest).count();
        sizes.iter().map(of_size).sum()
    }
}

/// A kind of messages.
#[derive(Clone, Copy)]
pub(super) struct MessageKind {
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) mode: SendMode,
    /// Whether it arrives before its receive is posted.
    pub(super) is_unexpected: bool,
    /// The largest size in bytes.
    pub(super) largest: usize,
}

impl MessageKind {
    pub(super) const PLAIN: MessageKind = MessageKind {
        tag: None,
        data: None,
        mode: SendMode::Normal,
        is_unexpected: false,
        largest: usize::MAX,
    };

    fn tagged(self) -> Self {
        let tag = Some(0x7a9_0000);
        MessageKind { tag, ..self }
    }

    fn with_data(self) -> Self {
        let data = Some(0x1234_5678);
        MessageKind { data, ..self }
    }

    fn unexpected(self) -> Self {
        let is_unexpected = true;
        MessageKind {
            is_unexpected,
            ..self
        }
    }

    fn delivered(self) -> Self {
        let mode = SendMode::DeliveryComplete;
        MessageKind { mode, ..self }
    }

    /// The limit differs between releases. All accept this size.
    fn injected(self) -> Self {
        let (mode, largest) = (SendMode::Inject, 64);
        MessageKind {
            mode,
            largest,
            ..self
        }
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            SendMode::Normal => "",
            SendMode::Inject => "injected ",
            SendMode::DeliveryComplete => "delivered ",
        };
        let unexpected = if self.is_unexpected {
            "unexpected "
        } else {
            ""
        };
        let tagged = if self.tag.is_some() { "tagged " } else { "" };
        let data = if self.data.is_some() {
            " with data"
        } else {
            ""
        };
        write!(f, "{mode}{unexpected}{tagged}message{data}")
    }
}

impl Topic {
    /// Its messages, in each size.
    pub(super) fn messages(self) -> Vec<MessageKind> {
        let plain = MessageKind::PLAIN;
        let (tagged, with_data) = (plain.tagged(), plain.with_data());
        let both = tagged.with_data();
        match self {
            Topic::Messages => vec![plain, tagged, tagged.unexpected()],
            Topic::Data => vec![with_data, both, plain.injected(), both.injected()],
            Topic::UnexpectedData => vec![both.unexpected()],
            Topic::DeliveryComplete => vec![
                plain.delivered(),
                both.delivered(),
                tagged.delivered().unexpected(),
            ],
            Topic::ZeroCopy => {
                // Stock libfabric includes a header in the limit for messages with data, and sends
                // longer ones as two packets, which the receiver does not expect.
                let with_data = MessageKind {
                    largest: 8192,
                    ..with_data
                };
                vec![plain, with_data, plain.delivered(), plain.injected()]
            }
            Topic::Rma | Topic::WriteData | Topic::Atomics => Vec::new(),
        }
    }
}
