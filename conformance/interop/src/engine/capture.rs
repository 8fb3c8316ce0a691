//! Reading a cell's capture.

use std::collections::BTreeMap;

use efa_capture::frame::FrameKind;
use efa_core::nic::Status;
use efa_core::wire::Packet;

use efa_check::capture::{Capture, CapturedPacket};

/// The number of packets or device operations of each kind that a host sent.
pub(super) fn sent_by(capture: &Capture, host: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let sent = capture
        .sent()
        .filter(|packet| capture.interfaces[packet.interface] == host);
    for packet in sent {
        *counts.entry(kind(packet)).or_default() += 1;
    }
    counts
}

/// The RDM packets that a host sent.
pub(super) fn packets<'a>(
    capture: &'a Capture,
    host: &'a str,
) -> impl Iterator<Item = Packet> + 'a {
    capture
        .sent()
        .filter(move |packet| capture.interfaces[packet.interface] == host)
        .filter_map(|packet| Packet::parse(packet.rdm()?).ok())
}

/// The response of a device that has no receive posted.
pub(super) const NOT_READY: &str = "receiver not ready";

/// As [`CapturedPacket::kind`], with separate kinds for writes with immediate data and
/// [`NOT_READY`].
fn kind(packet: &CapturedPacket) -> String {
    match packet.header.kind {
        FrameKind::RdmaWrite { .. } if packet.header.immediate.is_some() => {
            format!("{} with immediate", packet.kind())
        }
        FrameKind::Response(Status::RemoteRnr) => NOT_READY.into(),
        _ => packet.kind(),
    }
}
