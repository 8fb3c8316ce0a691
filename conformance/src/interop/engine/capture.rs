//! What is in a cell's capture.

use std::collections::BTreeMap;

use efa_emu::frame::Kind;

use crate::trace::{Capture, CapturedPacket};

/// How many packets or device operations of each kind a host sent.
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

/// As [`CapturedPacket::kind`]; writes with immediate data are a kind of their own.
fn kind(packet: &CapturedPacket) -> String {
    match packet.header.kind {
        Kind::RdmaWrite { .. } if packet.header.immediate.is_some() => {
            format!("{} with immediate", packet.kind())
        }
        _ => packet.kind(),
    }
}
