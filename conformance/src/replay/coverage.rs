//! What of a trace the protocol engine can play, and what not yet.

use std::collections::BTreeSet;

use efa_core::wire::PacketType;
use efa_emu::frame::Kind;

use super::script::sent_requests;
use crate::scenario::{Action, Operation};
use crate::trace::Trace;

/// Packet types that the engine both sends and answers.
const ENGINE: &[PacketType] = &[
    PacketType::Cts,
    PacketType::CtsData,
    PacketType::Handshake,
    PacketType::Receipt,
    PacketType::EagerMsgRtm,
    PacketType::EagerTagRtm,
    PacketType::MediumMsgRtm,
    PacketType::MediumTagRtm,
    PacketType::LongctsMsgRtm,
    PacketType::LongctsTagRtm,
    PacketType::DcEagerMsgRtm,
    PacketType::DcEagerTagRtm,
    PacketType::DcMediumMsgRtm,
    PacketType::DcMediumTagRtm,
    PacketType::DcLongctsMsgRtm,
    PacketType::DcLongctsTagRtm,
];

/// Why the engine cannot play a part in the trace, if it cannot.
pub fn beyond_engine(trace: &Trace) -> Option<String> {
    let mut names = BTreeSet::new();
    for place in sent_requests(trace) {
        let frame = &trace.capture.frames[place];
        // Unassigned types are not a matter of coverage: they are wrong.
        if let Some(packet_type) = frame.packet_type()
            && !ENGINE.contains(&packet_type)
        {
            names.insert(packet_type.name().to_owned());
        }
    }
    for frame in &trace.capture.frames {
        match frame.header.kind {
            Kind::RdmaReadRequest(_) | Kind::RdmaReadResponse(_) => {
                names.insert("RDMA read".into());
            }
            Kind::RdmaWrite(_) => {
                names.insert("RDMA write".into());
            }
            Kind::Send | Kind::Response(_) | Kind::Datagram => {}
        }
    }
    for step in &trace.scenario.steps {
        if let Action::Start { operation, .. } = &step.action {
            match operation {
                Operation::Write { .. } => names.insert("fi_write".into()),
                Operation::Read { .. } => names.insert("fi_read".into()),
                _ => false,
            };
        }
    }
    if names.is_empty() {
        return None;
    }
    let names: Vec<String> = names.into_iter().collect();
    Some(format!("the engine lacks {}", names.join(", ")))
}
