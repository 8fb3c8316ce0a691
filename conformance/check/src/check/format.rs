//! Rules that depend on a single packet only.

use efa_wire::rules::{self, Rule};
use efa_wire::{AtomicOp, ExtraFeatures, ReqFlags, RmaIovs, RtaKind};

use super::packet::{Atomic, PacketBody, ParsedPacket, Window};

/// The largest number of feature words in libfabric 2.x.
const MOST_WORDS: usize = 4;

/// The rules that a packet violates, without its context, with a text for each.
pub(super) fn breaches(parsed: &ParsedPacket) -> Vec<(&'static Rule, String)> {
    let mut found = Vec::new();
    if let Some(request) = parsed.request {
        flags(parsed, &mut found);
        if request.raw_address.is_some() && parsed.connid.is_some() {
            let text = "it has a raw address header and a connid header".into();
            found.push((&rules::ONE_IDENTITY, text));
        }
        if let Some(data) = request.cq_data
            && matches!(parsed.body, PacketBody::Read(_) | PacketBody::Atomic(_))
        {
            let text = format!("it has the completion data {data:#x}");
            found.push((&rules::CQ_DATA_PLACE, text));
        }
    }
    match parsed.body {
        PacketBody::Message(message) => {
            let length = message.length;
            iov(message.rma_iov, length, "rma_iov", &mut found);
            iov(message.read_iov, length, "read_iov", &mut found);
        }
        PacketBody::Read(read) => {
            iov(Some(read.rma_iov), read.length, "rma_iov", &mut found);
            if !read.is_short && read.window == 0 {
                let text = "its recv_length is 0".into();
                found.push((&rules::CTS_POSITIVE, text));
            }
        }
        PacketBody::Atomic(rta) => atomic(parsed, &rta, &mut found),
        PacketBody::Cts(Window { length: 0, .. }) => {
            found.push((&rules::CTS_POSITIVE, "its recv_length is 0".into()));
        }
        PacketBody::Handshake(announced) => {
            if announced.words > MOST_WORDS {
                let text = format!("it has {} words of features", announced.words);
                found.push((&rules::HANDSHAKE_FORM, text));
            }
            let wants_qp = announced.features.contains(ExtraFeatures::USER_RECV_QP);
            if wants_qp && !announced.has_user_recv_qp {
                let text = "it announces a user receive QP and does not say which".into();
                found.push((&rules::HANDSHAKE_FORM, text));
            }
        }
        _ => {}
    }
    found
}

fn flags(parsed: &ParsedPacket, found: &mut Vec<(&'static Rule, String)>) {
    let flags = ReqFlags::from_bits_retain(parsed.flags);
    let needed = parsed.packet_type.implied_flags();
    // The dissector reports each flag separately.
    for (_, flag) in needed.difference(flags).iter_names() {
        let text = format!("its flags {:#06x} lack {:#x}", flags.bits(), flag.bits());
        found.push((&rules::REQ_FLAGS, text));
    }
    let excluded = parsed.packet_type.excluded_flags();
    for (name, flag) in flags.intersection(excluded).iter_names() {
        let text = format!(
            "its flags {:#06x} have {:#x} ({name})",
            flags.bits(),
            flag.bits()
        );
        found.push((&rules::REQ_FLAGS, text));
    }
}

fn iov(iov: Option<RmaIovs>, length: u64, name: &str, found: &mut Vec<(&'static Rule, String)>) {
    let Some(iov) = iov else { return };
    if iov.total_len() != Some(length) {
        let total = iov
            .total_len()
            .map_or_else(|| "more than 2^64".into(), |total| total.to_string());
        let text = format!("`{name}` describes {total} bytes, the data has {length}");
        found.push((&rules::IOV_LENGTH, text));
    }
}

fn atomic(parsed: &ParsedPacket, atomic: &Atomic, found: &mut Vec<(&'static Rule, String)>) {
    let operand = match atomic.kind {
        RtaKind::Compare(_) => parsed.payload / 2,
        _ => parsed.payload,
    };
    iov(Some(atomic.rma_iov), operand, "rma_iov", found);
    let mut breach = |text| found.push((&rules::ATOMIC_OPERAND, text));
    let (operation, datatype) = (atomic.operation, atomic.datatype);
    let is_known = operation.name().is_some();
    let compares = operation.has_comparand();
    let fits = match atomic.kind {
        RtaKind::Compare(_) => compares,
        RtaKind::Fetch(_) => is_known && !compares,
        // A read without an answer has no effect.
        RtaKind::Write | RtaKind::DcWrite(_) => {
            is_known && !compares && operation != AtomicOp::ATOMIC_READ
        }
    };
    if !fits {
        breach(format!(
            "{operation} does not go with {}",
            parsed.packet_type
        ));
    }
    let Some(size) = datatype.size() else {
        return breach(format!("datatype {datatype} does not exist"));
    };
    for entry in atomic.rma_iov.as_slice() {
        if !entry.len().is_multiple_of(size as u64) {
            breach(format!(
                "an rma_iov of {} bytes does not hold whole elements of {size}",
                entry.len()
            ));
        }
    }
}
