//! Requests To Atomic (spec sections 3.3 and 4.2).

use crate::codec::prelude::*;

packet_format! {
    /// WRITE_RTA, FETCH_RTA, COMPARE_RTA and DC_WRITE_RTA: an atomic operation in one packet.
    Rta, table("3.3", "3.13, 3.14") => data;
    /// Atomics and messages have one sequence.
    pub msg_id: MsgId, "place of the operation in the sequence from this sender";
    wire rma_iov_count: Count = rma_iov, { array: Some(Array::RmaIov) }
        "number of rma_iov entries, at most 4";
    pub atomic_datatype: AtomicDatatype, "enum fi_datatype of libfabric";
    pub atomic_op: AtomicOp, "enum fi_op of libfabric";
    pub kind: RtaKind, "which of the four types, with the operation that its answer has to name";
    /// Lengths are in bytes.
    pub rma_iov: RmaIovs, { array: Some(Array::RmaIov) } "the target's memory";
    pub options: ReqOptions, "optional headers";
}

/// The type of an RTA, with the meaning of the word before the iovs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RtaKind {
    /// WRITE_RTA: the word is padding.
    #[default]
    Write,
    /// FETCH_RTA: the operation id for ATOMRSP.
    Fetch(RecvId),
    /// COMPARE_RTA: the operation id for ATOMRSP. The payload is the source operand and then the
    /// comparand, with equal lengths.
    Compare(RecvId),
    /// DC_WRITE_RTA: the operation id for RECEIPT.
    DcWrite(SendId),
}

/// The types in which the word is an id.
const ANSWERED: TypeTraits = TypeTraits::FETCHING.union(TypeTraits::DELIVERY_COMPLETE);

const fn word(
    name: &'static str,
    presence: Presence,
    kind: FieldKind,
    source: Source,
    description: &'static str,
) -> FieldDescriptor {
    FieldDescriptor {
        name,
        width: Width::Fixed(4),
        presence,
        kind,
        source,
        description,
    }
}

impl Part for RtaKind {
    const SHAPE: Shape = Shape::Sections(&[&Section {
        array: None,
        fields: &[
            word(
                "padding",
                Presence::UnlessType(ANSWERED),
                FieldKind::Padding,
                table("3.3", "3.13"),
                PADDING,
            ),
            word(
                "recv_id",
                Presence::IfType(TypeTraits::FETCHING),
                FieldKind::Number,
                table("3.3", "3.14"),
                "operation of the requester, for ATOMRSP",
            ),
            word(
                "send_id",
                Presence::IfType(TypeTraits::DELIVERY_COMPLETE),
                FieldKind::Number,
                section("4.2"),
                "operation of the requester, for RECEIPT",
            ),
        ],
    }]);

    #[inline(always)]
    fn parse(line: &Line, cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let id = u32::parse(line, cursor)?;
        let packet_type = cursor.packet_type();
        Ok(if packet_type.is(TypeTraits::DELIVERY_COMPLETE) {
            RtaKind::DcWrite(SendId(id))
        } else if packet_type.is(TypeTraits::COMPARING) {
            RtaKind::Compare(RecvId(id))
        } else if packet_type.is(TypeTraits::FETCHING) {
            RtaKind::Fetch(RecvId(id))
        } else {
            RtaKind::Write
        })
    }

    #[inline(always)]
    fn write(&self, line: &Line, output: &mut impl Output) {
        let (id, traits) = match *self {
            RtaKind::Write => (0, TypeTraits::empty()),
            RtaKind::Fetch(recv_id) => (recv_id.0, TypeTraits::FETCHING),
            RtaKind::Compare(recv_id) => {
                (recv_id.0, TypeTraits::FETCHING.union(TypeTraits::COMPARING))
            }
            RtaKind::DcWrite(send_id) => (send_id.0, TypeTraits::DELIVERY_COMPLETE),
        };
        output.traits(traits);
        id.write(line, output);
    }
}

#[cfg(test)]
pub(crate) use tests::literals;

#[cfg(test)]
mod tests {
    use crate::literal::prelude::*;

    const TARGET: RmaIovs = RmaIovs::new(&[RmaIov::new(0x2000, 8, 0x77)]).unwrap();
    fn rta(kind: RtaKind, atomic_op: AtomicOp) -> Rta {
        Rta {
            kind,
            msg_id: MSG_ID,
            atomic_datatype: AtomicDatatype::UINT64,
            atomic_op,
            rma_iov: TARGET,
            options: connid(),
        }
    }

    literals! {
        write_rta WriteRta {
            literal(
                [
                    74, 4, 0x20, 0x80,                   // flags ATOMIC, CONNID
                    0x02, 0x01, 0, 0,                    // msg_id
                    1, 0, 0, 0,                          // rma_iov_count
                    7, 0, 0, 0,                          // atomic_datatype
                    2, 0, 0, 0,                          // atomic_op
                    0, 0, 0, 0,                          // padding
                    0, 0x20, 0, 0, 0, 0, 0, 0,
                    8, 0, 0, 0, 0, 0, 0, 0,
                    0x77, 0, 0, 0, 0, 0, 0, 0,
                    0x78, 0x56, 0x34, 0x12,
                    1, 0, 0, 0, 0, 0, 0, 0,
                ],
                rta(RtaKind::Write, AtomicOp::SUM),
                &[1, 0, 0, 0, 0, 0, 0, 0],
            ),
        }
        fetch_rta FetchRta {
            literal(
                [
                    75, 4, 0x20, 0x80,
                    0x02, 0x01, 0, 0,
                    1, 0, 0, 0,
                    7, 0, 0, 0,
                    2, 0, 0, 0,
                    0x0a, 0x0b, 0x0c, 0x0d,              // recv_id
                    0, 0x20, 0, 0, 0, 0, 0, 0,
                    8, 0, 0, 0, 0, 0, 0, 0,
                    0x77, 0, 0, 0, 0, 0, 0, 0,
                    0x78, 0x56, 0x34, 0x12,
                    1, 0, 0, 0, 0, 0, 0, 0,
                ],
                rta(RtaKind::Fetch(RECV_ID), AtomicOp::SUM),
                &[1, 0, 0, 0, 0, 0, 0, 0],
            ),
        }
        compare_rta CompareRta {
            literal(
                [
                    76, 4, 0x20, 0x80,
                    0x02, 0x01, 0, 0,
                    1, 0, 0, 0,
                    7, 0, 0, 0,
                    12, 0, 0, 0,                         // atomic_op: CSWAP
                    0x0a, 0x0b, 0x0c, 0x0d,              // recv_id
                    0, 0x20, 0, 0, 0, 0, 0, 0,
                    8, 0, 0, 0, 0, 0, 0, 0,
                    0x77, 0, 0, 0, 0, 0, 0, 0,
                    0x78, 0x56, 0x34, 0x12,
                    1, 0, 0, 0, 0, 0, 0, 0,              // operand
                    2, 0, 0, 0, 0, 0, 0, 0,              // comparand
                ],
                rta(RtaKind::Compare(RECV_ID), AtomicOp::CSWAP),
                &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            ),
        }
        dc_write_rta DcWriteRta {
            literal(
                [
                    141, 4, 0x20, 0x80,
                    0x02, 0x01, 0, 0,
                    1, 0, 0, 0,
                    7, 0, 0, 0,
                    2, 0, 0, 0,
                    1, 2, 3, 4,                          // send_id
                    0, 0x20, 0, 0, 0, 0, 0, 0,
                    8, 0, 0, 0, 0, 0, 0, 0,
                    0x77, 0, 0, 0, 0, 0, 0, 0,
                    0x78, 0x56, 0x34, 0x12,
                    1, 0, 0, 0, 0, 0, 0, 0,
                ],
                rta(RtaKind::DcWrite(SendId(0x0403_0201)), AtomicOp::SUM),
                &[1, 0, 0, 0, 0, 0, 0, 0],
            ),
        }
    }
}
