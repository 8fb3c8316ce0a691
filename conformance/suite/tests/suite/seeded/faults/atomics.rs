//! Atomics.

use efa_core::rules;
use efa_core::wire::PacketType as T;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Fault, all, fault, nth};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "atomic-unknown-operation",
        "The operation is a number that libfabric does not have.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(nth(T::WriteRta, 0), Set("atomic_op", 200)),
        ByCheck(&rules::ATOMIC_OPERAND),
    ),
    fault(
        "atomic-unknown-type",
        "The datatype is a number that libfabric does not have.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(nth(T::WriteRta, 0), Set("atomic_datatype", 99)),
        ByCheck(&rules::ATOMIC_OPERAND),
    ),
    fault(
        "atomic-other-operation",
        "Another operation is asked for.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(nth(T::WriteRta, 0), Add("atomic_op", 1)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "atomic-compare-in-write",
        "A compare-and-swap goes in the packet of an update.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(nth(T::WriteRta, 0), Set("atomic_op", 12)),
        ByCheck(&rules::ATOMIC_OPERAND),
    ),
    fault(
        "atomic-iov-length",
        "`rma_iov` is 8 bytes longer than the operand.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(nth(T::WriteRta, 0), Add("rma_iov.len", 8)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "atomic-not-atomic",
        "The flag ATOMIC is missing.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(all(T::WriteRta), Clear(0x20)),
        ByCheck(&rules::REQ_FLAGS),
    ),
    fault(
        "atomic-own-numbers",
        "Atomics have a numbering of their own.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(all(T::WriteRta), Sub("msg_id", 1)),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "atomic-twice",
        "An atomic is sent twice.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(nth(T::WriteRta, 1), Twice),
        ByCheck(&rules::MSG_ID_ONCE),
    ),
    fault(
        "atomic-cq-data",
        "An atomic carries completion data.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(nth(T::WriteRta, 0), With(7, 2)),
        ByCheck(&rules::CQ_DATA_PLACE),
    ),
    fault(
        "atomic-operand-garbled",
        "The operand's last byte is another one.",
        ("releases/atomic-2.5-2.5", 0),
        Sends(nth(T::WriteRta, 0), Garbled),
        ByRun(&rules::DATA_AS_GIVEN),
    ),
    fault(
        "atomrsp-other-operation",
        "ATOMRSP names no operation of the peer.",
        ("releases/atomic-fetch-2.5-2.5", 1),
        Sends(nth(T::AtomRsp, 0), Add("recv_id", 77)),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "atomrsp-short",
        "ATOMRSP lacks 8 bytes of the old values.",
        ("releases/atomic-fetch-2.5-2.5", 1),
        Sends(nth(T::AtomRsp, 0), Shorter(8)),
        ByCheck(&rules::PACKET_FORM),
    ),
    fault(
        "atomrsp-twice",
        "ATOMRSP is sent twice.",
        ("releases/atomic-compare-2.5-2.5", 1),
        Sends(nth(T::AtomRsp, 0), Twice),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "atomrsp-never",
        "The first of two fetching atomics is not answered.",
        ("releases/atomic-fetch-2.5-2.5", 1),
        Sends(nth(T::AtomRsp, 0), Lost),
        ByRun(&rules::ANSWER_MISSING),
    ),
    fault(
        "atomrsp-new-values",
        "ATOMRSP has other values than the memory had.",
        ("releases/atomic-fetch-2.5-2.5", 1),
        Sends(nth(T::AtomRsp, 0), Garbled),
        ByRun(&rules::DATA_AS_GIVEN),
    ),
];
