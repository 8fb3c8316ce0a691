//! Captures as lists that can be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use efa_capture::frame::FrameKind;
use efa_capture::{Direction, Reader};
use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_testing::workspace::{efa_conformance, outcome};

/// A frame, with the fields that both captures have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ComparedFrame {
    pub(crate) direction: Direction,
    pub(crate) what: String,
    pub(crate) ends: [(Gid, u16); 2],
    pub(crate) qkey: u32,
    /// Present only for requests of this host, which cannot determine the numbers of other hosts.
    pub(crate) sequence: Option<u32>,
    pub(crate) immediate: Option<u32>,
    pub(crate) length: u32,
    pub(crate) payload: Option<Vec<u8>>,
}

/// The frames of a capture that a tap can observe: not the device's answers and retransmissions.
pub(crate) fn frames(path: &Path) -> Vec<ComparedFrame> {
    let mut reader = Reader::open(path).unwrap();
    let mut found: Vec<(u32, ComparedFrame)> = Vec::new();
    while let Some(captured) = reader.next_frame().unwrap() {
        let frame = captured.frame.unwrap();
        let header = &frame.header;
        let direction = captured.direction.unwrap();
        let is_own = direction == Direction::Outbound;
        let what = match (header.kind, is_own) {
            (FrameKind::Send, _) => "send".to_owned(),
            (FrameKind::Datagram, _) => "datagram".to_owned(),
            (FrameKind::RdmaReadRequest(rdma), true) => {
                format!("read of {} at {:?}", rdma.total_length, rdma.remote)
            }
            (FrameKind::RdmaReadResponse(rdma), false) => format!("read data at {}", rdma.offset),
            // The device reports no more than this to the program.
            (FrameKind::RdmaWrite(rdma), false) if header.immediate.is_some() => {
                format!("write of {} arrived", rdma.total_length)
            }
            (FrameKind::RdmaWrite(rdma), true) => {
                format!("write at {} of {:?}", rdma.offset, rdma.remote)
            }
            (FrameKind::Response(status), false) if status != Status::RemoteRnr => {
                format!("{status:?}")
            }
            (FrameKind::Response(_), true) => {
                // The device has refused it, so the host has no completion for it.
                let peer = (frame.destination, header.destination_qpn.0);
                let refused = found.iter().rposition(|(sequence, seen)| {
                    seen.direction == Direction::Inbound
                        && seen.ends[0] == peer
                        && *sequence == header.sequence
                });
                refused.map(|index| found.remove(index));
                continue;
            }
            _ => continue,
        };
        if header.retransmission && is_own {
            continue;
        }
        let is_write = matches!(header.kind, FrameKind::RdmaWrite(_)) && !is_own;
        let is_others =
            is_write || matches!(header.kind, FrameKind::Send | FrameKind::Datagram) && !is_own;
        let seen = ComparedFrame {
            direction,
            what,
            ends: [
                (frame.source, header.source_qpn.0),
                (frame.destination, header.destination_qpn.0),
            ],
            qkey: header.qkey.0,
            sequence: (!is_others).then_some(header.sequence),
            immediate: header.immediate,
            length: if is_write { 0 } else { header.payload_length },
            payload: (header.payload_captured && !is_write).then(|| frame.payload.to_vec()),
        };
        found.push((header.sequence, seen));
    }
    assert_eq!(reader.truncation(), None);
    found.into_iter().map(|(_, seen)| seen).collect()
}

/// The local queue pair, with its Q-key where packets arrive, the direction, and whether it is RDMA
/// data or an arrived write of a peer. Another queue pair with the same number has another Q-key.
/// The order of peers' writes and of the completions of local requests is random.
type Stream = ((Gid, u16), u32, bool, &'static str);

fn streams(frames: Vec<ComparedFrame>) -> BTreeMap<Stream, Vec<ComparedFrame>> {
    let mut streams: BTreeMap<Stream, Vec<ComparedFrame>> = BTreeMap::new();
    for seen in frames {
        let is_own = seen.direction == Direction::Outbound;
        let own = seen.ends[usize::from(!is_own)];
        let rdma = match &seen.what[..] {
            data if data.starts_with("read data") => "data",
            write if write.ends_with(" arrived") => "arrived",
            _ => "",
        };
        let arrives = !is_own && matches!(&seen.what[..], "send" | "datagram");
        let qkey = if arrives { seen.qkey } else { 0 };
        streams
            .entry((own, qkey, is_own, rdma))
            .or_default()
            .push(seen);
    }
    streams
}

/// # Panics
/// If the captures do not have the same frames in the same order, for each queue pair.
pub(crate) fn agree(tapped: &Path, emulated: &Path) {
    compare(tapped, streams(frames(emulated)));
}

/// As [`agree`], for a program that polls with `ibv_poll_cq`, which does not report the sender as
/// long as the receiver has no address handle for it: the first messages of a sender may lack its
/// GID. After the first message with a GID, all have it.
///
/// # Panics
/// As [`agree`], or if no message that arrives has a GID.
pub(crate) fn agree_but_for_strangers(tapped: &Path, emulated: &Path) {
    let mut expected = streams(frames(emulated));
    let found = streams(frames(tapped));
    let mut knows_any = false;
    for (stream, expected) in &mut expected {
        let mut known = BTreeSet::new();
        for (expected, found) in expected
            .iter_mut()
            .zip(found.get(stream).into_iter().flatten())
        {
            if expected.direction != Direction::Inbound || expected.qkey == 0 {
                continue;
            }
            let sender = expected.ends[0];
            if found.ends[0].0 != Gid::default() {
                known.insert(sender);
            } else if !known.contains(&sender) {
                expected.ends[0].0 = Gid::default();
            }
        }
        knows_any |= !known.is_empty();
    }
    assert!(knows_any, "no message has the GID of its sender");
    compare(tapped, expected);
}

/// As [`agree`], for a program that closes queue pairs without a last poll: packets may have
/// arrived for which the program never polled.
///
/// # Panics
/// As [`agree`].
pub(crate) fn agree_but_for_last_arrivals(tapped: &Path, emulated: &Path) {
    let mut expected = streams(frames(emulated));
    let found = streams(frames(tapped));
    expected.retain(|stream, expected| {
        let (.., is_own, _) = stream;
        let seen = found.get(stream).map_or(0, Vec::len);
        if !is_own {
            expected.truncate(seen);
        }
        !expected.is_empty()
    });
    compare(tapped, expected);
}

fn compare(tapped: &Path, emulated: BTreeMap<Stream, Vec<ComparedFrame>>) {
    let tapped = streams(frames(tapped));
    assert!(!tapped.is_empty(), "nothing was captured");
    let keys = |streams: &BTreeMap<Stream, Vec<ComparedFrame>>| {
        streams.keys().copied().collect::<Vec<_>>()
    };
    assert_eq!(keys(&tapped), keys(&emulated));
    for (stream, expected) in &emulated {
        let found = &tapped[stream];
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(found, expected, "frame {index} of {stream:?}");
        }
        assert_eq!(found.len(), expected.len(), "{stream:?}");
    }
}

/// # Panics
/// If the rules of the protocol are broken in the capture.
pub(crate) fn check(capture: &Path) {
    let output = efa_conformance(&["check", capture.to_str().unwrap()])
        .output()
        .unwrap();
    let (status, said) = outcome(&output);
    assert_eq!(status, Some(0), "{said}");
}
