//! Reads and writes.

use efa_core::rules;
use efa_core::wire::PacketType as T;

use super::super::fault::Act::*;
use super::super::fault::Caught::*;
use super::super::fault::Change::*;
use super::super::fault::{Fault, RdmaChange, all, fault, nth};

/// Reads.
pub(super) const READS: &[Fault] = &[
    fault(
        "rtr-other-id",
        "The request announces another `recv_id` than the engine knows.",
        ("read-emulated", 0),
        Sends(all(T::ShortRtr), Add("recv_id", 6)),
        ByRun(&rules::OUTCOME),
    ),
    fault(
        "rtr-length",
        "The request of a short read is for a byte more than its `rma_iov`.",
        ("read-emulated", 0),
        Sends(all(T::ShortRtr), Add("msg_length", 1)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "rtr-other-address",
        "`rma_iov` begins 8 bytes too far.",
        ("read-emulated", 0),
        Sends(all(T::ShortRtr), Add("rma_iov.addr", 8)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "rtr-no-window",
        "The request of a long read opens no window.",
        ("read-emulated", 0),
        Sends(all(T::LongctsRtr), Set("recv_length", 0)),
        ByCheck(&rules::CTS_POSITIVE),
    ),
    fault(
        "readrsp-ids-swapped",
        "`send_id` and `recv_id` are swapped in READRSP.",
        ("read-emulated", 1),
        Sends(all(T::ReadRsp), Swap("send_id", "recv_id")),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "readrsp-twice",
        "READRSP is sent twice.",
        ("read-emulated", 1),
        Sends(nth(T::ReadRsp, 0), Twice),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "readrsp-never",
        "The first of two reads is not answered.",
        ("releases/read-2.5-2.5", 1),
        Sends(nth(T::ReadRsp, 0), Lost),
        ByCheck(&rules::ANSWER_MISSING),
    ),
    fault(
        "readrsp-short",
        "READRSP lacks its last byte.",
        ("read-emulated", 1),
        Sends(nth(T::ReadRsp, 0), Shorter(1)),
        ByCheck(&rules::PACKET_FORM),
    ),
    fault(
        "readrsp-length",
        "READRSP and its `seg_length` lack 8 bytes of the data.",
        ("read-emulated", 1),
        Sends(nth(T::ReadRsp, 0), Fewer("seg_length", 8)),
        ByCheck(&rules::ANSWER_LENGTH),
    ),
    fault(
        "read-ctsdata-other-operation",
        "The CTSDATA of a read names no operation of the peer.",
        ("read-emulated", 1),
        Sends(nth(T::CtsData, 0), Add("recv_id", 1)),
        ByCheck(&rules::CTSDATA_NAMES_CTS),
    ),
    fault(
        "read-ctsdata-offset",
        "The CTSDATA of a read counts its offsets from behind the READRSP.",
        ("read-emulated", 1),
        Sends(nth(T::CtsData, 0), Set("seg_offset", 0)),
        ByCheck(&rules::SEGMENT_OVERLAP),
    ),
    fault(
        "direct-read-short",
        "A direct read lacks the last 100 bytes.",
        ("read-direct", 0),
        Reads(RdmaChange::Shorter(100)),
        ByRun(&rules::RDMA_AS_ASKED),
    ),
    fault(
        "direct-read-elsewhere",
        "A direct read is of the wrong place.",
        ("releases/read-by-device-2.5-2.5", 0),
        Reads(RdmaChange::Elsewhere(8)),
        ByRun(&rules::RDMA_AS_ASKED),
    ),
    fault(
        "direct-read-skipped",
        "A direct read completes, and nothing was read.",
        ("read-direct", 0),
        Reads(RdmaChange::Skipped),
        ByRun(&rules::RDMA_AS_ASKED),
    ),
];

/// Writes.
pub(super) const WRITES: &[Fault] = &[
    fault(
        "rtw-iov-length",
        "`rma_iov` is one byte longer than the data.",
        ("write-emulated", 0),
        Sends(all(T::EagerRtw), Add("rma_iov.len", 1)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "rtw-other-address",
        "`rma_iov` begins one byte too far.",
        ("write-emulated", 0),
        Sends(all(T::EagerRtw), Add("rma_iov.addr", 1)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "rtw-other-key",
        "The key in `rma_iov` is another one.",
        ("write-emulated", 0),
        Sends(all(T::LongctsRtw), Add("rma_iov.key", 1)),
        ByRun(&rules::REQUEST_AS_ASKED),
    ),
    fault(
        "rtw-no-iov",
        "The request has no `rma_iov`, and data.",
        ("write-emulated", 0),
        Sends(all(T::EagerRtw), Set("rma_iov_count", 0)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "rtw-too-many-iovs",
        "`rma_iov_count` says 200.",
        ("write-emulated", 0),
        Sends(all(T::EagerRtw), Set("rma_iov_count", 200)),
        ByCheck(&rules::PACKET_FORM),
    ),
    fault(
        "rtw-data-lost",
        "A write is never sent, but completes.",
        ("write-emulated", 0),
        Sends(all(T::EagerRtw), Lost),
        ByRun(&rules::MESSAGE_WHOLE),
    ),
    fault(
        "rtw-length",
        "The length of a long write is one too low.",
        ("write-emulated", 0),
        Sends(all(T::LongctsRtw), Sub("msg_length", 1)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "write-cts-ids-swapped",
        "`send_id` and `recv_id` are swapped in the CTS of a write.",
        ("write-emulated", 1),
        Sends(all(T::Cts), Swap("send_id", "recv_id")),
        ByCheck(&rules::ANSWER_NAMES_REQUEST),
    ),
    fault(
        "read-write-eor-early",
        "The EOR of a write that the target reads goes out before the read.",
        ("releases/write-read-1.17-1.17", 1),
        Reads(RdmaChange::Late),
        ByCheck(&rules::EOR_EARLY),
    ),
    fault(
        "read-write-iov",
        "`read_iov` of a write is one byte short.",
        ("releases/write-read-1.17-1.17", 0),
        Sends(all(T::LongreadRtw), Sub("read_iov.len", 1)),
        ByCheck(&rules::IOV_LENGTH),
    ),
    fault(
        "direct-write-short",
        "A direct write lacks its last byte.",
        ("releases/write-direct-2.5-2.5", 0),
        Writes(RdmaChange::Shorter(1)),
        ByRun(&rules::RDMA_AS_ASKED),
    ),
    fault(
        "direct-write-elsewhere",
        "A direct write goes to the wrong place.",
        ("releases/write-direct-2.5-2.5", 0),
        Writes(RdmaChange::Elsewhere(1)),
        ByRun(&rules::RDMA_AS_ASKED),
    ),
    fault(
        "direct-write-skipped",
        "A direct write completes, and nothing was written.",
        ("releases/write-direct-2.5-2.5", 0),
        Writes(RdmaChange::Skipped),
        ByRun(&rules::RDMA_AS_ASKED),
    ),
];
