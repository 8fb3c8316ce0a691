//! Requests To Read: emulated reads (spec section 3.3).

use crate::codec::prelude::*;

/// How the responder sends the data of an emulated read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RtrKind {
    /// SHORT_RTR: all of it in one READRSP.
    #[default]
    Short,
    /// LONGCTS_RTR: READRSP and then CTSDATA, in windows.
    Longcts,
}

packet_format! {
    /// SHORT_RTR and LONGCTS_RTR: a read that the responder answers with packets.
    Rtr, table("3.3", "3.10, 3.12") => end;
    pub kind: RtrKind, "Which of the two types.";
    wire rma_iov_count: Count = rma_iov, { array: Some(Array::RmaIov) }
        "number of rma_iov entries, at most 4";
    pub msg_length: u64, "length of the whole read";
    pub recv_id: RecvId, "operation of the requester, for READRSP and CTSDATA";
    /// The spec has padding here in SHORT_RTR, but every stock libfabric sends the whole length.
    pub recv_length: u32,
        "bytes that the requester is ready to receive, those in READRSP included";
    pub rma_iov: RmaIovs, { array: Some(Array::RmaIov) } "the responder's memory";
    pub options: ReqOptions, "optional headers";
}

/// Only the packet type distinguishes the two kinds; no bytes are read.
impl Part for RtrKind {
    const SHAPE: Shape = NOTHING;

    #[inline(always)]
    fn parse(_line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        Ok(match cursor.packet_type().is(TypeTraits::WINDOWED) {
            true => RtrKind::Longcts,
            false => RtrKind::Short,
        })
    }

    #[inline(always)]
    fn write(&self, _line: &Line, output: &mut impl Output) {
        if let RtrKind::Longcts = self {
            output.traits(TypeTraits::WINDOWED);
        }
    }
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    const TARGET: RmaIovs = RmaIovs::new(&[RmaIov::new(0x2000, 8, 0x77)]).unwrap();

    literals! {
        short_rtr ShortRtr {
            literal(
                [
                    72, 4, 0x00, 0x80,
                    1, 0, 0, 0,                          // rma_iov_count
                    8, 0, 0, 0, 0, 0, 0, 0,              // msg_length
                    0x0a, 0x0b, 0x0c, 0x0d,              // recv_id
                    8, 0, 0, 0,                          // recv_length, unlike spec table 3.10
                    0, 0x20, 0, 0, 0, 0, 0, 0,           // rma_iov[0]
                    8, 0, 0, 0, 0, 0, 0, 0,
                    0x77, 0, 0, 0, 0, 0, 0, 0,
                    0x78, 0x56, 0x34, 0x12,              // connid
                ],
                Rtr {
                    kind: RtrKind::Short,
                    rma_iov: TARGET,
                    msg_length: 8,
                    recv_id: RECV_ID,
                    recv_length: 8,
                    options: connid(),
                },
                b"",
            ),
        }
        longcts_rtr LongctsRtr {
            literal(
                [
                    73, 4, 0x00, 0x80,
                    1, 0, 0, 0,
                    0, 0, 0x10, 0, 0, 0, 0, 0,           // msg_length
                    0x0a, 0x0b, 0x0c, 0x0d,              // recv_id
                    0, 0, 0x04, 0,                       // recv_length
                    0, 0x20, 0, 0, 0, 0, 0, 0,
                    8, 0, 0, 0, 0, 0, 0, 0,
                    0x77, 0, 0, 0, 0, 0, 0, 0,
                    0x78, 0x56, 0x34, 0x12,
                ],
                Rtr {
                    kind: RtrKind::Longcts,
                    rma_iov: TARGET,
                    msg_length: 0x10_0000,
                    recv_id: RECV_ID,
                    recv_length: 0x4_0000,
                    options: connid(),
                },
                b"",
            ),
        }
    }
}
