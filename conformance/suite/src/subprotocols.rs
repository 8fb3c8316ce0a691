//! The subprotocols that are recorded in a trace.

use std::collections::BTreeSet;

use efa_capture::frame::FrameKind;
use efa_core::wire::PacketType;
use efa_play::trace::Trace;

/// The subprotocols of a trace, by the names of the protocol document, in their order.
pub(crate) fn of(trace: &Trace) -> Vec<String> {
    let frames = &trace.capture.frames;
    let requested = frames.iter().filter_map(|frame| frame.packet_type());
    let mut found: BTreeSet<&str> = requested.filter_map(PacketType::starts).collect();
    let is_direct = found.is_empty();
    for frame in frames.iter().filter(|_| is_direct) {
        // Together with a request, they carry out the request's subprotocol.
        found.extend(match frame.header.kind {
            FrameKind::RdmaReadRequest(_) => Some("Direct read"),
            FrameKind::RdmaWrite(_) => Some("Direct write"),
            _ => None,
        });
    }
    found.into_iter().map(str::to_owned).collect()
}
