//! The frames of a trace: the sends, each once, and the data of read requests.

use efa_capture::Direction;
use efa_capture::frame::FrameKind;
use efa_check::capture::CapturedPacket;
use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;
use efa_play::operation::EndpointIndex;
use efa_play::trace::Trace;

/// Most bytes of a region in a trace. Lengths in packets are not trusted.
pub(super) const MOST_MEMORY: u64 = 1 << 28;

/// Indices of the sends when they left their hosts, each once: without retransmissions below the
/// protocol, and without those that were answered with RNR, which are retried.
pub fn sent_requests(trace: &Trace) -> impl Iterator<Item = usize> + '_ {
    let frames = trace.capture.frames.iter().enumerate();
    frames
        .filter(|(place, frame)| {
            frame.direction == Some(Direction::Outbound)
                && matches!(frame.header.kind, FrameKind::Send)
                && !frame.header.retransmission
                && !comes_again(trace, *place)
        })
        .map(|(place, _)| place)
}

/// Whether a frame was answered with RNR.
pub(super) fn comes_again(trace: &Trace, place: usize) -> bool {
    trace.refused.get(&place) == Some(&Status::RemoteRnr)
}

/// A key that is the same for a packet's frames at its sender and at its receiver.
pub fn packet_key(frame: &CapturedPacket) -> (Gid, u16, u32) {
    (
        frame.source,
        frame.header.source_qpn.0,
        frame.header.sequence,
    )
}

/// Whether `node` is a queue pair of an endpoint.
pub(super) fn is_node_of(trace: &Trace, endpoint: EndpointIndex, node: (Gid, Qpn)) -> bool {
    sent_requests(trace).any(|place| {
        let frame = &trace.capture.frames[place];
        trace.endpoint_of[frame.interface] == endpoint
            && (frame.source, frame.header.source_qpn) == node
    })
}

/// The data that RDMA reads fetched from memory of a trace's endpoint: the read for `request` if it
/// is `Some`, otherwise any read of `length` bytes at `address`.
pub fn fetched(
    trace: &Trace,
    owner: EndpointIndex,
    request: Option<&CapturedPacket>,
    address: u64,
    length: usize,
) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for frame in &trace.capture.frames {
        let FrameKind::RdmaReadResponse(rdma) = frame.header.kind else {
            continue;
        };
        let is_sent = frame.direction == Some(Direction::Outbound);
        if !is_sent || trace.endpoint_of[frame.interface] != owner {
            continue;
        }
        if let Some(request) = request
            && (frame.header.sequence != request.header.sequence
                || frame.destination != request.source
                || frame.header.destination_qpn != request.header.source_qpn)
        {
            continue;
        }
        let start = rdma.remote.address.wrapping_add(rdma.offset.into());
        let offset = start.checked_sub(address).map(|offset| offset as usize);
        let place =
            offset.and_then(|offset| bytes.get_mut(offset..)?.get_mut(..frame.payload.len()));
        if let Some(place) = place {
            place.copy_from_slice(&frame.payload);
        }
    }
    bytes
}
