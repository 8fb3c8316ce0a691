//! The headers of reliable connections and of hardware tag matching, which EFA devices do not have.
//! RoCE v2 packets and tagged messages begin with them. Each header is declared once. The
//! structure, the codec, the fields that `efa-conformance show` prints and the tables of
//! `docs/tag-matching.md` are generated from the declaration.
//!
//! Sources: InfiniBand Architecture Specification, volume 1, chapter 9; rdma-core's
//! `Documentation/tag_matching.md`. All numbers are big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A field of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderField {
    /// Its name.
    pub name: &'static str,
    /// Its offset in its header, in bytes.
    pub offset: usize,
    /// Its width in bytes.
    pub width: usize,
    /// Whether it is best read in hexadecimal digits.
    pub is_hexadecimal: bool,
    /// Its meaning.
    pub meaning: &'static str,
}

impl HeaderField {
    /// The field's value in the bytes of its header. `None` if they are cut off.
    pub fn value(&self, header: &[u8]) -> Option<u64> {
        let bytes = header.get(self.offset..self.offset + self.width)?;
        Some(
            bytes
                .iter()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
        )
    }
}

/// A header by its name, for those who print or document all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderFormat {
    /// Its name in the specification.
    pub name: &'static str,
    /// Its position in packets.
    pub place: &'static str,
    /// Its fields, in order.
    pub fields: &'static [HeaderField],
}

impl HeaderFormat {
    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.fields.iter().map(|field| field.width).sum()
    }
}

/// Declares headers: `field: type, hexadecimal?, meaning;`.
macro_rules! headers {
    ($(
        $(#[$doc:meta])*
        $name:ident $text:literal, $place:literal {
            $($field:ident: $type:ty, $hexadecimal:literal, $meaning:literal;)+
        }
    )+) => {
        $(
            $(#[$doc])*
            #[derive(
                Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout,
                Immutable, Unaligned,
            )]
            #[repr(C)]
            pub struct $name {
                $(
                    #[doc = concat!("This: ", $meaning, ".")]
                    pub $field: $type,
                )+
            }

            impl $name {
                /// Its length in bytes.
                pub const LENGTH: usize = size_of::<$name>();

                /// Reads the header at the start of the bytes. Returns `None` if they are too
                /// short.
                pub fn read(bytes: &[u8]) -> Option<Self> {
                    let (header, _) = Self::read_from_prefix(bytes).ok()?;
                    Some(header)
                }

                /// Its declaration.
                pub const FORMAT: HeaderFormat = HeaderFormat {
                    name: $text,
                    place: $place,
                    fields: &[$(HeaderField {
                        name: stringify!($field),
                        offset: core::mem::offset_of!($name, $field),
                        width: size_of::<$type>(),
                        is_hexadecimal: $hexadecimal,
                        meaning: $meaning,
                    },)+],
                };
            }
        )+

        /// All headers.
        pub const HEADERS: &[HeaderFormat] = &[$($name::FORMAT),+];
    };
}

headers! {
    /// The base transport header.
    Bth "BTH", "all packets" {
        opcode: u8, false, "what the packet is";
        flags: u8, true, "solicited 7, migrated 6, bytes of padding 5:4, version 3:0";
        partition: U16, true, "the partition";
        destination: U32, false, "the receiver's queue pair, in the lower 24 bits";
        sequence: U32, true, "an acknowledgement is wanted 31, number of the packet 23:0";
    }

    /// The RDMA extended transport header.
    Reth "RETH", "first packet of a write, read request" {
        address: U64, true, "first byte of the responder's memory";
        key: U32, true, "key of that memory";
        length: U32, false, "bytes of the whole operation";
    }

    /// The header of an atomic operation.
    AtomicEth "AtomicETH", "atomic operation" {
        address: U64, true, "the word in the responder's memory";
        key: U32, true, "key of that memory";
        swap_or_add: U64, true, "what is stored or added";
        compare: U64, true, "what the word is compared with";
    }

    /// The acknowledgement extended transport header.
    Aeth "AETH", "acknowledgement, first and last packet of a read's data, answer of an atomic operation" {
        syndrome: u8, true, "how it went";
        messages: [u8; 3], false, "messages that the responder has completed";
    }

    /// The answer of an atomic operation.
    AtomicAckEth "AtomicAckETH", "answer of an atomic operation" {
        original: U64, true, "the word as it was";
    }

    /// Immediate data.
    ImmDt "ImmDt", "last packet of a send or write with immediate data" {
        immediate: U32, true, "data for the receiver's completion";
    }

    /// The tag matching header.
    Tmh "TMH", "begin of a message with a tag" {
        operation: u8, false, "0 no tag, 1 request of a rendezvous, 2 its end, 3 eager";
        reserved: [u8; 3], true, "0";
        data: U32, true, "the program's own";
        tag: U64, true, "the tag";
    }

    /// The rendezvous header.
    Rvh "RVH", "behind the TMH of a request of a rendezvous and of its end" {
        address: U64, true, "first byte of the message in the sender's memory";
        key: U32, true, "key of that memory";
        length: U32, false, "bytes of the message";
    }
}

/// A header that may follow the BTH of a packet of a reliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RcHeader {
    /// [`Reth`].
    Reth,
    /// [`AtomicEth`].
    AtomicEth,
    /// [`Aeth`].
    Aeth,
    /// [`AtomicAckEth`].
    AtomicAckEth,
    /// [`ImmDt`].
    ImmDt,
}

impl RcHeader {
    /// Its declaration.
    pub const fn format(self) -> HeaderFormat {
        match self {
            RcHeader::Reth => Reth::FORMAT,
            RcHeader::AtomicEth => AtomicEth::FORMAT,
            RcHeader::Aeth => Aeth::FORMAT,
            RcHeader::AtomicAckEth => AtomicAckEth::FORMAT,
            RcHeader::ImmDt => ImmDt::FORMAT,
        }
    }
}

/// Declares the opcodes, from 0 on: each with its name and the headers after the BTH.
macro_rules! rc_opcodes {
    ($($opcode:ident $name:literal [$($header:ident),*];)+) => {
        /// The opcode of a packet of a reliable connection. The variants have the specification's
        /// numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum RcOpcode {
            $(#[doc = concat!("`", $name, "`.")] $opcode,)+
        }

        impl RcOpcode {
            /// All of them, by their numbers.
            pub const ALL: &[RcOpcode] = &[$(RcOpcode::$opcode),+];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(RcOpcode::$opcode => $name,)+
                }
            }

            /// The headers after the BTH, in order.
            pub const fn headers(self) -> &'static [RcHeader] {
                match self {
                    $(RcOpcode::$opcode => &[$(RcHeader::$header),*],)+
                }
            }
        }
    };
}

rc_opcodes! {
    SendFirst "SEND_FIRST" [];
    SendMiddle "SEND_MIDDLE" [];
    SendLast "SEND_LAST" [];
    SendLastImmediate "SEND_LAST_IMMEDIATE" [ImmDt];
    SendOnly "SEND_ONLY" [];
    SendOnlyImmediate "SEND_ONLY_IMMEDIATE" [ImmDt];
    WriteFirst "WRITE_FIRST" [Reth];
    WriteMiddle "WRITE_MIDDLE" [];
    WriteLast "WRITE_LAST" [];
    WriteLastImmediate "WRITE_LAST_IMMEDIATE" [ImmDt];
    WriteOnly "WRITE_ONLY" [Reth];
    WriteOnlyImmediate "WRITE_ONLY_IMMEDIATE" [Reth, ImmDt];
    ReadRequest "READ_REQUEST" [Reth];
    ReadResponseFirst "READ_RESPONSE_FIRST" [Aeth];
    ReadResponseMiddle "READ_RESPONSE_MIDDLE" [];
    ReadResponseLast "READ_RESPONSE_LAST" [Aeth];
    ReadResponseOnly "READ_RESPONSE_ONLY" [Aeth];
    Acknowledge "ACKNOWLEDGE" [Aeth];
    AtomicAcknowledge "ATOMIC_ACKNOWLEDGE" [Aeth, AtomicAckEth];
    CompareSwap "COMPARE_SWAP" [AtomicEth];
    FetchAdd "FETCH_ADD" [AtomicEth];
}

impl RcOpcode {
    /// The opcode of a code, if it is one of reliable connections.
    pub fn from_code(code: u8) -> Option<RcOpcode> {
        RcOpcode::ALL.get(usize::from(code)).copied()
    }

    /// Whether the packet is for the requester: the answer to a request.
    pub fn is_response(self) -> bool {
        self == RcOpcode::ReadResponseMiddle || self.headers().first() == Some(&RcHeader::Aeth)
    }

    /// Whether a message begins with such a packet.
    pub fn begins_message(self) -> bool {
        use RcOpcode::{SendFirst, SendOnly, SendOnlyImmediate};
        matches!(self, SendFirst | SendOnly | SendOnlyImmediate)
    }

    /// Whether such a packet is a whole message.
    pub fn is_whole_message(self) -> bool {
        matches!(self, RcOpcode::SendOnly | RcOpcode::SendOnlyImmediate)
    }

    /// Whether a request ends with such a packet, which responders count.
    pub fn ends_request(self) -> bool {
        use RcOpcode::{SendFirst, SendMiddle, WriteFirst, WriteMiddle};
        let goes_on = matches!(self, SendFirst | SendMiddle | WriteFirst | WriteMiddle);
        !goes_on && !self.is_response()
    }

    /// Whether the data of a read ends with such a packet.
    pub fn ends_read(self) -> bool {
        matches!(
            self,
            RcOpcode::ReadResponseLast | RcOpcode::ReadResponseOnly
        )
    }
}

impl Aeth {
    /// Lower syndromes acknowledge; with these the responder was not ready.
    pub const NOT_READY: u8 = 0b001_00000;

    /// The syndrome of a responder that refuses access to its memory.
    pub const ACCESS_REFUSED: u8 = 0b011_00010;
}

impl Tmh {
    /// The operation of a request of a rendezvous.
    pub const RENDEZVOUS: u8 = 1;

    /// The operation of the end of a rendezvous.
    pub const FINISH: u8 = 2;

    /// The operation of a message with its data.
    pub const EAGER: u8 = 3;

    /// The names of all operations, by their numbers.
    pub const OPERATIONS: [&'static str; 4] = ["NO_TAG", "RENDEZVOUS", "FINISH", "EAGER"];

    /// The bytes of the headers at the start of a message, by the operation in its first byte. One
    /// byte if the operation has no headers, or is not known.
    pub const fn headers_length(operation: u8) -> usize {
        match operation {
            Tmh::RENDEZVOUS | Tmh::FINISH => Tmh::LENGTH + Rvh::LENGTH,
            Tmh::EAGER => Tmh::LENGTH,
            _ => 1,
        }
    }
}

/// The bits of the BTH's flags that count the bytes of padding after the payload, and their shift.
pub const PADDING: (u8, u32) = (0b11, 4);

/// The number of bits of a packet number of a reliable connection.
pub const SEQUENCE_BITS: u32 = 24;

/// The payload of the shortest path MTU: a read has at most one packet for this many bytes.
pub const SHORTEST_MTU: u32 = 256;

/// The headers at the start of a packet, each with its bytes; the first one is the BTH. Truncated
/// headers are left out.
pub fn headers_of(packet: &[u8]) -> Vec<(HeaderFormat, &[u8])> {
    let opcode = packet.first().and_then(|code| RcOpcode::from_code(*code));
    let behind = opcode.map_or(&[][..], RcOpcode::headers);
    let (mut found, mut rest) = (Vec::new(), packet);
    let behind = behind.iter().map(|header| header.format());
    for format in [Bth::FORMAT].into_iter().chain(behind) {
        let Some((bytes, after)) = rest.split_at_checked(format.length()) else {
            return found;
        };
        found.push((format, bytes));
        rest = after;
    }
    if opcode.is_some_and(RcOpcode::begins_message)
        && let Ok((header, behind)) = Tmh::read_from_prefix(rest)
        && has_tag(&header, rest.len())
    {
        found.push((Tmh::FORMAT, &rest[..Tmh::LENGTH]));
        if Tmh::headers_length(header.operation) > Tmh::LENGTH {
            found.push((Rvh::FORMAT, &behind[..Rvh::LENGTH]));
        }
    }
    found
}

/// Whether a message may begin with a tag header. This is a heuristic, because no field on the wire
/// marks tagged messages.
fn has_tag(header: &Tmh, length: usize) -> bool {
    let known = Tmh::RENDEZVOUS..=Tmh::EAGER;
    let is_known = known.contains(&header.operation) && header.reserved == [0; 3];
    is_known && length >= Tmh::headers_length(header.operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(packet: &[u8]) -> Vec<&'static str> {
        headers_of(packet)
            .iter()
            .map(|(format, _)| format.name)
            .collect()
    }

    fn bth(opcode: u8) -> Vec<u8> {
        vec![opcode, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 0, 9]
    }

    #[test]
    fn headers_have_the_specifications_lengths() {
        let lengths: Vec<_> = HEADERS
            .iter()
            .map(|header| (header.name, header.length()))
            .collect();
        let expected = [
            ("BTH", 12),
            ("RETH", 16),
            ("AtomicETH", 28),
            ("AETH", 4),
            ("AtomicAckETH", 8),
            ("ImmDt", 4),
            ("TMH", 16),
            ("RVH", 16),
        ];
        assert_eq!(lengths, expected);
    }

    #[test]
    fn fields_have_the_values_of_literal_bytes() {
        #[rustfmt::skip]
        let rvh = [
            1, 2, 3, 4, 5, 6, 7, 8,     // address
            9, 10, 11, 12,              // key
            13, 14, 15, 16,             // length
        ];
        let header = Rvh::read_from_bytes(&rvh).unwrap();
        assert_eq!(header.address.get(), 0x0102_0304_0506_0708);
        assert_eq!(
            (header.key.get(), header.length.get()),
            (0x090a_0b0c, 0x0d0e_0f10)
        );
        let values = Rvh::FORMAT.fields.iter().map(|field| field.value(&rvh));
        let expected = [0x0102_0304_0506_0708, 0x090a_0b0c, 0x0d0e_0f10];
        assert!(values.eq(expected.map(Some)));
        assert_eq!(Rvh::FORMAT.fields[2].value(&rvh[..15]), None, "cut off");
    }

    #[test]
    fn opcodes_say_which_headers_follow() {
        let mut packet = bth(11);
        packet.extend([0; 20]);
        assert_eq!(names(&packet), ["BTH", "RETH", "ImmDt"]);
        let mut packet = bth(18);
        packet.extend([0; 12]);
        assert_eq!(names(&packet), ["BTH", "AETH", "AtomicAckETH"]);
        assert_eq!(names(&bth(12)), ["BTH"], "the rest is cut off");
        assert_eq!(names(&bth(100)), ["BTH"], "no reliable connection's");
        assert!(names(&[4, 0]).is_empty());
        let lengths = [
            12, 12, 12, 16, 12, 16, // sends
            28, 12, 12, 16, 28, 32, // writes
            28, 16, 12, 16, 16, // reads
            16, 24, 40, 40, // acknowledgements and atomic operations
        ];
        let found = RcOpcode::ALL.iter().map(|opcode| {
            let behind = opcode.headers().iter();
            Bth::LENGTH + behind.map(|header| header.format().length()).sum::<usize>()
        });
        assert!(found.eq(lengths));
    }

    #[test]
    fn tag_matching_headers_are_found_where_messages_begin() {
        let of = |opcode, operation: u8, behind: usize| {
            let mut packet = bth(opcode);
            packet.extend([operation, 0, 0, 0, 0xda, 0x7a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
            packet.resize(packet.len() + behind, 1);
            names(&packet)[1..].to_vec()
        };
        assert_eq!(of(4, 3, 0), ["TMH"]);
        assert_eq!(of(0, 1, 16), ["TMH", "RVH"]);
        assert_eq!(of(4, 2, 20), ["TMH", "RVH"]);
        for (opcode, operation, behind) in [(4, 1, 15), (4, 0, 0), (4, 4, 0), (1, 3, 0)] {
            assert!(
                of(opcode, operation, behind).is_empty(),
                "{opcode} {operation}"
            );
        }
    }
}
