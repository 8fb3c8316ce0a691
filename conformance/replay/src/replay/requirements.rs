//! The requirements of a trace on the endpoint under test and on its device.
//!
//! Without them the trace is unsupported, and its result does not depend on the endpoint's
//! correctness.

use efa_capture::frame::FrameKind;
use efa_core::nic::{DeviceCaps, NicAttributes};
use efa_core::rules;
use efa_core::wire::{ExtraFeatures, PacketType};
use efa_play::operation::EndpointIndex;
use efa_play::trace::Trace;

use super::frames::sent_requests;

/// The feature that a packet's receiver must have announced. READ_NACK has none: a sender of
/// read-based requests must expect it, so only those count.
fn feature_of(packet_type: PacketType) -> Option<ExtraFeatures> {
    use PacketType as T;
    if packet_type.is_delivery_complete() {
        return Some(ExtraFeatures::DELIVERY_COMPLETE);
    }
    match packet_type {
        T::LongreadMsgRtm | T::LongreadTagRtm | T::LongreadRtw => Some(ExtraFeatures::RDMA_READ),
        T::RuntreadMsgRtm | T::RuntreadTagRtm => Some(ExtraFeatures::RUNTING_READ),
        T::ReadNack => Some(ExtraFeatures::READ_NACK),
        _ => None,
    }
}

/// The features that an endpoint needs in place of `dut`: those that its peers use, and those that
/// its application uses.
pub(super) fn features(trace: &Trace, dut: EndpointIndex) -> ExtraFeatures {
    let mut needed = ExtraFeatures::empty();
    for place in sent_requests(trace) {
        let frame = &trace.capture.frames[place];
        let is_own = trace.endpoint_of[frame.interface] == dut;
        if frame.headerless && !is_own {
            needed |= ExtraFeatures::USER_RECV_QP;
        }
        let Some(packet_type) = frame.packet_type() else {
            continue;
        };
        // The sender chooses whether to use read-based requests, but not delivery complete.
        if let Some(feature) = feature_of(packet_type)
            && (!is_own || feature == ExtraFeatures::DELIVERY_COMPLETE)
        {
            needed |= feature;
        }
    }
    // An endpoint that does not request connection ids receives none, and cannot detect a wrong
    // one.
    if trace.scenario.breaks.contains(&rules::CONNID_TRUE.id) {
        needed |= ExtraFeatures::CONNID_HEADER;
    }
    for frame in &trace.capture.frames {
        if trace.endpoint_of[frame.interface] != dut
            && frame.direction == Some(efa_capture::Direction::Outbound)
        {
            match frame.header.kind {
                FrameKind::RdmaWrite(_) => needed |= ExtraFeatures::RDMA_WRITE,
                FrameKind::RdmaReadRequest(_) => needed |= ExtraFeatures::RDMA_READ,
                _ => {}
            }
        }
    }
    needed
}

/// The part of `needed` that is not in `announced`, as text.
pub(super) fn lacks(needed: ExtraFeatures, announced: ExtraFeatures) -> Option<String> {
    let missing = needed - announced;
    let names: Vec<String> = missing
        .iter_names()
        .map(|(name, _)| name.to_ascii_lowercase().replace('_', " "))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "its HANDSHAKE does not announce {} (spec section 2.1, table 2.1)",
            names.join(", ")
        )
    })
}

/// The device capabilities that are missing for the trace, as text.
pub(super) fn device_lacks(trace: &Trace, device: &NicAttributes) -> Option<String> {
    let mut needed = DeviceCaps::empty();
    for frame in &trace.capture.frames {
        match frame.header.kind {
            FrameKind::RdmaReadRequest(_) => needed |= DeviceCaps::RDMA_READ,
            FrameKind::RdmaWrite(_) => needed |= DeviceCaps::RDMA_WRITE,
            _ => {}
        }
        let feature = frame.packet_type().and_then(feature_of);
        if let Some(ExtraFeatures::RDMA_READ | ExtraFeatures::RUNTING_READ) = feature {
            needed |= DeviceCaps::RDMA_READ;
        }
    }
    let missing = needed - device.caps;
    let names: Vec<String> = missing
        .iter_names()
        .map(|(name, _)| {
            name.replace('_', " ")
                .replace("READ", "read")
                .replace("WRITE", "write")
        })
        .collect();
    if !names.is_empty() {
        return Some(format!("the device has no {}", names.join(", no ")));
    }
    let longest = sent_requests(trace)
        .map(|place| trace.capture.frames[place].payload.len())
        .max()?;
    (longest > device.mtu).then(|| {
        format!(
            "the device takes packets of {} bytes, the trace has packets of {longest}",
            device.mtu
        )
    })
}
