//! The headers of reliable connections and of hardware tag matching, which no EFA has: what packets of
//! RoCE v2 begin with, and what messages with tags do. Each is declared once: structure, codec, the
//! fields that `efa-conformance show` prints and the tables of `docs/tag-matching.md` come from the
//! declaration.
//!
//! Sources: InfiniBand Architecture Specification, volume 1, chapter 9; the document *Hardware tag
//! matching* of rdma-core. All numbers are big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A field of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderField {
    /// Its name.
    pub name: &'static str,
    /// Where it is in its header, in bytes.
    pub offset: usize,
    /// How many bytes it has.
    pub width: usize,
    /// Whether it is best read in hexadecimal digits.
    pub is_hexadecimal: bool,
    /// What it means.
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
    /// Where it is found.
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

                /// Reads what bytes begin with. `None` if there are too few.
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

/// The opcodes of reliable connections, by their numbers: the name, and the headers behind the BTH.
const OPCODES: [(&str, &[HeaderFormat]); 21] = {
    const RETH: HeaderFormat = Reth::FORMAT;
    const ATOMIC: HeaderFormat = AtomicEth::FORMAT;
    const AETH: HeaderFormat = Aeth::FORMAT;
    const IMMEDIATE: HeaderFormat = ImmDt::FORMAT;
    [
        ("SEND_FIRST", &[]),
        ("SEND_MIDDLE", &[]),
        ("SEND_LAST", &[]),
        ("SEND_LAST_IMMEDIATE", &[IMMEDIATE]),
        ("SEND_ONLY", &[]),
        ("SEND_ONLY_IMMEDIATE", &[IMMEDIATE]),
        ("WRITE_FIRST", &[RETH]),
        ("WRITE_MIDDLE", &[]),
        ("WRITE_LAST", &[]),
        ("WRITE_LAST_IMMEDIATE", &[IMMEDIATE]),
        ("WRITE_ONLY", &[RETH]),
        ("WRITE_ONLY_IMMEDIATE", &[RETH, IMMEDIATE]),
        ("READ_REQUEST", &[RETH]),
        ("READ_RESPONSE_FIRST", &[AETH]),
        ("READ_RESPONSE_MIDDLE", &[]),
        ("READ_RESPONSE_LAST", &[AETH]),
        ("READ_RESPONSE_ONLY", &[AETH]),
        ("ACKNOWLEDGE", &[AETH]),
        ("ATOMIC_ACKNOWLEDGE", &[AETH, AtomicAckEth::FORMAT]),
        ("COMPARE_SWAP", &[ATOMIC]),
        ("FETCH_ADD", &[ATOMIC]),
    ]
};

/// What a packet of a reliable connection is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RcOpcode(u8);

impl RcOpcode {
    /// The request to read.
    pub const READ_REQUEST: RcOpcode = RcOpcode(12);

    /// All of them, by their numbers.
    pub fn all() -> impl Iterator<Item = RcOpcode> {
        (0..OPCODES.len() as u8).map(RcOpcode)
    }

    /// The opcode of a code, if it is one of reliable connections.
    pub fn from_code(code: u8) -> Option<RcOpcode> {
        (usize::from(code) < OPCODES.len()).then_some(RcOpcode(code))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        OPCODES[usize::from(self.0)].0
    }

    /// The headers behind the BTH, in order.
    pub fn headers(self) -> &'static [HeaderFormat] {
        OPCODES[usize::from(self.0)].1
    }

    /// Whether a message begins with such a packet.
    pub fn begins_message(self) -> bool {
        matches!(self.0, 0 | 4 | 5)
    }
}

/// The headers that a packet begins with, each with its bytes; the first one is the BTH. What is cut
/// off is left out.
pub fn headers_of(packet: &[u8]) -> Vec<(HeaderFormat, &[u8])> {
    let opcode = packet.first().and_then(|code| RcOpcode::from_code(*code));
    let behind = opcode.map_or(&[][..], RcOpcode::headers);
    let (mut found, mut rest) = (Vec::new(), packet);
    for format in [Bth::FORMAT].iter().chain(behind) {
        let Some((bytes, after)) = rest.split_at_checked(format.length()) else {
            return found;
        };
        found.push((*format, bytes));
        rest = after;
    }
    if opcode.is_some_and(RcOpcode::begins_message)
        && let Ok((header, behind)) = Tmh::read_from_prefix(rest)
        && has_tag(&header, behind.len())
    {
        found.push((Tmh::FORMAT, &rest[..Tmh::LENGTH]));
        if is_of_rendezvous(&header) {
            found.push((Rvh::FORMAT, &behind[..Rvh::LENGTH]));
        }
    }
    found
}

/// Whether a message may be one with a tag: nothing on the wire says what messages are.
fn has_tag(header: &Tmh, behind: usize) -> bool {
    let is_known = matches!(header.operation, 1..=3) && header.reserved == [0; 3];
    is_known && (!is_of_rendezvous(header) || behind >= Rvh::LENGTH)
}

fn is_of_rendezvous(header: &Tmh) -> bool {
    matches!(header.operation, 1 | 2)
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
