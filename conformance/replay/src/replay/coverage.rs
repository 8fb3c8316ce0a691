//! The traces that the protocol engine and the scripted endpoints can play.

use std::collections::BTreeSet;

use efa_capture::Direction;
use efa_capture::frame::FrameKind;
use efa_core::nic::Status;
use efa_core::wire::PacketType;
use efa_play::trace::Trace;

use super::frames::sent_requests;

/// Whether the engine neither sends nor answers packets of this type. Stock libfabric does not
/// either.
fn is_beyond_engine(packet_type: PacketType) -> bool {
    !packet_type.has_header()
}

/// The reason why the engine cannot play a part in the trace, if any.
pub fn beyond_engine(trace: &Trace) -> Option<String> {
    let mut names = BTreeSet::new();
    for place in sent_requests(trace) {
        let frame = &trace.capture.frames[place];
        // Unassigned types are errors, and not missing features.
        if let Some(packet_type) = frame.packet_type()
            && is_beyond_engine(packet_type)
        {
            names.insert(packet_type.name().to_owned());
        }
    }
    if names.is_empty() {
        return None;
    }
    let names: Vec<String> = names.into_iter().collect();
    Some(format!("the engine lacks {}", names.join(", ")))
}

/// The reason why no endpoint can play the trace, if any: features that scripted endpoints lack.
pub fn beyond_script(trace: &Trace) -> Option<String> {
    for (place, frame) in trace.capture.frames.iter().enumerate() {
        match frame.header.kind {
            FrameKind::Response(status)
                if status != Status::Ok && trace.scenario.faults.is_empty() =>
            {
                return Some(format!(
                    "in packet {} the device refuses a request; scripted devices only do what \
                     [[fault]] rules of the scenario stage",
                    frame.number
                ));
            }
            _ if !frame.header.payload_captured
                && frame.direction != Some(Direction::Inbound)
                && !trace.refused.contains_key(&place) =>
            {
                return Some(format!(
                    "the data of packet {} was not captured",
                    frame.number
                ));
            }
            _ => {}
        }
    }
    None
}
