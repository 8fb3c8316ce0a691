//! The packets of a reliable connection: the InfiniBand transport headers of RoCE v2, from the BTH
//! on, which [`infiniband`](efa_core::wire::infiniband) declares. Between devices the packets have
//! no invariant CRC after the payload, because neither link changes bytes. Captures contain it.

pub(super) use efa_core::wire::infiniband::{AtomicEth, RcOpcode as Opcode, Reth};

use efa_core::wire::infiniband::{Aeth, AtomicAckEth, Bth, ImmDt, RcHeader};
use zerocopy::{FromBytes, IntoBytes};

use super::psn::Psn;

/// Bytes of the longest headers: BTH and AtomicETH.
pub(super) const LONGEST_HEAD: usize = Bth::LENGTH + AtomicEth::LENGTH;

/// The default partition, full member.
const PARTITION: u16 = 0xffff;

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Syndrome {
    /// All packets up to and including this one were accepted.
    Acknowledged,
    /// No receive is posted (RNR). Retry after the delay with this code.
    NotReady(u8),
    /// A packet before the received one is missing.
    OutOfSequence,
    /// The request is invalid.
    InvalidRequest,
    /// Access to the memory was denied.
    AccessError,
    /// The responder failed to execute the request.
    OperationError,
}

impl Syndrome {
    /// Acknowledgements contain no count of posted receives.
    const NO_CREDITS: u8 = 31;
    const NOT_READY: u8 = 0x20;
    const NEGATIVE: u8 = 0x60;

    fn code(self) -> u8 {
        match self {
            Syndrome::Acknowledged => Self::NO_CREDITS,
            Syndrome::NotReady(timer) => Self::NOT_READY | (timer & 31),
            Syndrome::OutOfSequence => Self::NEGATIVE,
            Syndrome::InvalidRequest => Self::NEGATIVE | 1,
            Syndrome::AccessError => Self::NEGATIVE | 2,
            Syndrome::OperationError => Self::NEGATIVE | 3,
        }
    }

    fn from_code(code: u8) -> Option<Syndrome> {
        Some(match code {
            0..=0x1f => Syndrome::Acknowledged,
            0x20..=0x3f => Syndrome::NotReady(code & 31),
            0x60 => Syndrome::OutOfSequence,
            0x61 => Syndrome::InvalidRequest,
            0x62 => Syndrome::AccessError,
            0x63 => Syndrome::OperationError,
            _ => return None,
        })
    }
}

/// The headers of a packet. Headers that its opcode does not have are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) opcode: Opcode,
    pub(super) is_solicited: bool,
    /// Zeroes after the payload.
    pub(super) padding: u8,
    /// The receiver's queue pair.
    pub(super) destination: u32,
    pub(super) wants_acknowledgement: bool,
    pub(super) psn: Psn,
    pub(super) reth: Reth,
    pub(super) atomic: AtomicEth,
    pub(super) syndrome: Syndrome,
    /// The number of messages that the responder has completed, 24 bits.
    pub(super) message_number: u32,
    pub(super) original: u64,
    pub(super) immediate: u32,
}

impl Head {
    /// Headers with these fields, and all others zero.
    pub(super) fn new(opcode: Opcode, destination: u32, psn: Psn) -> Head {
        Head {
            opcode,
            is_solicited: false,
            padding: 0,
            destination,
            wants_acknowledgement: false,
            psn,
            reth: Reth::default(),
            atomic: AtomicEth::default(),
            syndrome: Syndrome::Acknowledged,
            message_number: 0,
            original: 0,
            immediate: 0,
        }
    }

    /// The immediate, if the packet has one.
    #[inline]
    pub(super) fn immediate(&self) -> Option<u32> {
        let has_one = self.opcode.headers().last() == Some(&RcHeader::ImmDt);
        has_one.then_some(self.immediate)
    }

    /// Writes the headers to the start of `bytes`, which has room for [`LONGEST_HEAD`], and returns
    /// their length.
    #[inline]
    pub(super) fn emit(&self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        let bth = Bth {
            opcode: self.opcode as u8,
            flags: u8::from(self.is_solicited) << 7 | 1 << 6 | (self.padding & 3) << 4,
            partition: PARTITION.into(),
            destination: (self.destination & 0x00ff_ffff).into(),
            sequence: (u32::from(self.wants_acknowledgement) << 31 | self.psn.bits()).into(),
        };
        put(bth.as_bytes());
        for header in self.opcode.headers() {
            match header {
                RcHeader::Reth => put(self.reth.as_bytes()),
                RcHeader::AtomicEth => put(self.atomic.as_bytes()),
                RcHeader::Aeth => {
                    let [_, messages @ ..] = self.message_number.to_be_bytes();
                    let syndrome = self.syndrome.code();
                    put(Aeth { syndrome, messages }.as_bytes());
                }
                RcHeader::AtomicAckEth => put(&self.original.to_be_bytes()),
                RcHeader::ImmDt => put(&self.immediate.to_be_bytes()),
            }
        }
        at
    }

    /// Parses the headers of a packet from its first bytes, and returns their length. `None` if
    /// they are not those of a packet of a reliable connection, or if bytes are missing.
    #[inline(always)]
    pub(super) fn parse(bytes: &[u8]) -> Option<(Head, usize)> {
        let (bth, mut rest) = Bth::read_from_prefix(bytes).ok()?;
        let opcode = Opcode::from_code(bth.opcode)?;
        // The version of the transport is 0.
        if bth.flags & 0x0f != 0 {
            return None;
        }
        let sequence = bth.sequence.get();
        let destination = bth.destination.get() & 0x00ff_ffff;
        let mut head = Head {
            is_solicited: bth.flags & 0x80 != 0,
            padding: bth.flags >> 4 & 3,
            wants_acknowledgement: sequence & 1 << 31 != 0,
            ..Head::new(opcode, destination, Psn::new(sequence))
        };
        for header in opcode.headers() {
            match header {
                RcHeader::Reth => head.reth = take(&mut rest)?,
                RcHeader::AtomicEth => head.atomic = take(&mut rest)?,
                RcHeader::Aeth => {
                    let aeth: Aeth = take(&mut rest)?;
                    let [high, middle, low] = aeth.messages;
                    head.syndrome = Syndrome::from_code(aeth.syndrome)?;
                    head.message_number = u32::from_be_bytes([0, high, middle, low]);
                }
                RcHeader::AtomicAckEth => {
                    head.original = take::<AtomicAckEth>(&mut rest)?.original.get();
                }
                RcHeader::ImmDt => head.immediate = take::<ImmDt>(&mut rest)?.immediate.get(),
            }
        }
        Some((head, bytes.len() - rest.len()))
    }
}

fn take<T: FromBytes>(bytes: &mut &[u8]) -> Option<T> {
    let (header, rest) = T::read_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks literal bytes against the decoded fields.
    fn literal(head: &Head, bytes: &[u8]) {
        let mut emitted = [0; LONGEST_HEAD];
        let length = head.emit(&mut emitted);
        assert_eq!(emitted[..length], *bytes);
        assert_eq!(Head::parse(bytes), Some((*head, length)));
        for short in 0..bytes.len() {
            assert_eq!(Head::parse(&bytes[..short]), None, "{short} bytes");
        }
    }

    #[test]
    #[rustfmt::skip]
    fn headers_have_the_bytes_of_the_specification() {
        literal(
            &Head {
                is_solicited: true,
                padding: 3,
                wants_acknowledgement: true,
                immediate: 0x0102_0304,
                ..Head::new(Opcode::SendOnlyImmediate, 0x0a0b0c, Psn::new(0x112233))
            },
            &[
                5, 0xf0, 0xff, 0xff,        // opcode, solicited, migrated, padding, partition
                0, 0x0a, 0x0b, 0x0c,        // destination
                0x80, 0x11, 0x22, 0x33,     // acknowledge, PSN
                1, 2, 3, 4,                 // immediate
            ],
        );
        literal(
            &Head {
                reth: Reth {
                    address: 0x0102_0304_0506_0708.into(),
                    key: 0x090a_0b0c.into(),
                    length: 0x0d0e_0f10.into(),
                },
                ..Head::new(Opcode::WriteFirst, 7, Psn::new(8))
            },
            &[
                6, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 8,
                1, 2, 3, 4, 5, 6, 7, 8,     // address
                9, 10, 11, 12,              // key
                13, 14, 15, 16,             // length
            ],
        );
        literal(
            &Head {
                atomic: AtomicEth { address: 1.into(), key: 2.into(), swap_or_add: 3.into(), compare: 4.into() },
                ..Head::new(Opcode::CompareSwap, 7, Psn::new(8))
            },
            &[
                19, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 8,
                0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2,
                0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4,
            ],
        );
        literal(
            &Head {
                syndrome: Syndrome::NotReady(12),
                message_number: 5,
                ..Head::new(Opcode::Acknowledge, 7, Psn::new(8))
            },
            &[17, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 8, 0x2c, 0, 0, 5],
        );
        literal(
            &Head {
                message_number: 6,
                original: 0xff,
                ..Head::new(Opcode::AtomicAcknowledge, 7, Psn::new(8))
            },
            &[18, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 8, 31, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0xff],
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some((head, parsed)) = Head::parse(&bytes) {
                let mut emitted = [0; LONGEST_HEAD];
                let length = head.emit(&mut emitted);
                prop_assert_eq!(length, parsed);
                prop_assert_eq!(Head::parse(&emitted[..length]), Some((head, length)));
            }
        }

        #[test]
        fn every_opcode_and_syndrome_round_trips(opcode in 0..21u8, code in any::<u8>()) {
            let opcode = Opcode::from_code(opcode).unwrap();
            if let Some(syndrome) = Syndrome::from_code(code) {
                let has_aeth = opcode.headers().first() == Some(&RcHeader::Aeth);
                let syndrome = if has_aeth { syndrome } else { Syndrome::Acknowledged };
                let head = Head { syndrome, ..Head::new(opcode, 1, Psn::new(2)) };
                let mut emitted = [0; LONGEST_HEAD];
                let length = head.emit(&mut emitted);
                prop_assert_eq!(Head::parse(&emitted[..length]), Some((head, length)));
            }
        }
    }
}
