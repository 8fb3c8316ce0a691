//! Frames that a capture lacks, by the request numbers of queue pairs.
//!
//! A queue pair counts its requests to all receivers, from 0. If the capture has some of them where
//! they were sent and not those between, its recorder has dropped frames, whatever its drop count
//! says: the classic format has none, and tools keep that of the original file.

use std::collections::BTreeSet;
use std::hash::BuildHasher as _;

use efa_capture::Direction;
use efa_capture::frame::FrameKind;
use efa_capture::frame::header::FIRST_TAPPED_SEQUENCE;
use foldhash::fast::FixedState;

use super::node::NodeId;
use crate::capture::CapturedPacket;

/// The number of missing requests of a queue pair from which on none of them can be late.
const MOST_MISSING: usize = 4096;

/// The request numbers of all queue pairs, in captures without and with directions.
#[derive(Debug, Default)]
pub(super) struct RequestNumbers {
    of: Vec<Numbers>,
    /// Interfaces where numbers are missing that no later frame can bring.
    gapped: BTreeSet<usize>,
}

/// The request numbers of one queue pair.
#[derive(Debug, Default)]
struct Numbers {
    interface: usize,
    /// From the least number to the one after the greatest; `None` before the first frame.
    range: Option<(u32, u32)>,
    missing: BTreeSet<u32>,
    /// The digest of the request with the number 0.
    first: Option<u64>,
}

impl RequestNumbers {
    /// Handles a frame of a queue pair. Its arrivals prove nothing: it sends to others, too.
    pub(super) fn take(&mut self, frame: &CapturedPacket, from: NodeId) {
        let header = &frame.header;
        let is_request = match header.kind {
            FrameKind::Send | FrameKind::RdmaReadRequest(_) | FrameKind::RdmaWrite(_) => true,
            FrameKind::Response(_) | FrameKind::RdmaReadResponse(_) | FrameKind::Datagram => false,
        };
        let sequence = header.sequence;
        if !is_request
            || frame.direction == Some(Direction::Inbound)
            || sequence >= FIRST_TAPPED_SEQUENCE
        {
            return;
        }
        let at = from.index(frame.direction.is_some());
        if self.of.len() <= at {
            self.of.resize_with(at + 1, Numbers::default);
        }
        let numbers = &mut self.of[at];
        if sequence == 0 && !header.retransmission {
            let packet = (frame.destination, header.destination_qpn.0, header.qkey.0);
            let first = FixedState::default().hash_one((packet, &frame.payload));
            // Another request with this number begins the next queue pair. An equal one is a copy.
            if numbers.first != Some(first) {
                if !numbers.missing.is_empty() {
                    self.gapped.insert(numbers.interface);
                }
                *numbers = Numbers::default();
            }
            numbers.first = Some(first);
        }
        numbers.interface = frame.interface;
        let (start, next) = numbers.range.unwrap_or((sequence, sequence));
        numbers.range = Some((start.min(sequence), next.max(sequence + 1)));
        let between = match sequence {
            _ if sequence == next => return,
            _ if sequence > next => next..sequence,
            _ if sequence < start => sequence + 1..start,
            _ => {
                numbers.missing.remove(&sequence);
                return;
            }
        };
        if numbers.missing.len() + between.len() > MOST_MISSING {
            self.gapped.insert(frame.interface);
        } else {
            numbers.missing.extend(between);
        }
    }

    /// The interfaces that lack frames, after the last frame.
    pub(super) fn lossy(self) -> impl Iterator<Item = usize> {
        let numbers = self.of.into_iter();
        let gapped = numbers.filter(|numbers| !numbers.missing.is_empty());
        gapped.map(|numbers| numbers.interface).chain(self.gapped)
    }
}
