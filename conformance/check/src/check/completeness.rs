//! The frames that a capture lacks, as far as its other frames reveal them.
//!
//! An end of a conversation can be judged only if the capture contains what that end had received.
//! A beginning therefore counts as captured if the first requests of both queue pairs are in the
//! capture. A direction counts as captured if some of its frames are in the capture, and no frame
//! that the other end's host captured is missing.

use std::collections::VecDeque;
use std::time::Duration;

use efa_capture::Direction;
use efa_capture::frame::header::FIRST_TAPPED_SEQUENCE;
use efa_capture::frame::{FrameKind, Repr};
use efa_wire::address::Qkey;
use foldhash::{HashMap, HashSet};

use super::content::Content;
use super::copies::SentPacket;
use super::node::{HostId, NodeId, Nodes, View};
use super::recent::RecentMap;
use crate::capture::CapturedPacket;

/// The number of first requests that are kept for each queue pair number.
const MOST_STARTS: usize = 64;
/// Maximum number of frames that are in flight simultaneously.
const MOST_FRAMES: usize = 1 << 15;
/// A packet within this distance before or after the last one is of the same queue pair.
const NEAR: u32 = 64;

/// A queue pair, in captures with and without directions.
type Owner = (bool, NodeId);

/// The lifetimes of queue pairs, by the numbers of their requests.
#[derive(Debug, Default)]
pub(super) struct Lifetimes {
    /// The lifetime of each queue pair, in captures without and with directions.
    of: Vec<Lifetime>,
    /// Queue pairs whose first arrival a tap saw.
    tapped: HashSet<NodeId>,
}

#[derive(Debug, Default)]
struct Lifetime {
    /// The times of first requests, and whether they were captured at their sender.
    starts: VecDeque<(u64, bool)>,
    /// The latest request at its receiver, and the latest one at its sender, with its run.
    latest: [Option<(u32, u64)>; 2],
}

impl Lifetimes {
    /// Handles a request that is not a repetition, captured as frame `at`. Returns its run of
    /// consecutive request numbers.
    pub(super) fn request(&mut self, owner: Owner, is_own: bool, at: u64, header: &Repr) -> u64 {
        let sequence = header.sequence;
        let at_lifetime = owner.1.index(owner.0);
        if self.of.len() <= at_lifetime {
            self.of.resize_with(at_lifetime + 1, Lifetime::default);
        }
        let lifetime = &mut self.of[at_lifetime];
        if sequence == 0 && !header.retransmission {
            lifetime.starts.push_back((at, is_own));
            if lifetime.starts.len() > MOST_STARTS {
                lifetime.starts.pop_front();
            }
        }
        let latest = &mut lifetime.latest[usize::from(is_own)];
        let (latest, run) = latest.get_or_insert((sequence.wrapping_sub(1), 0));
        let follows = match is_own && owner.0 {
            true => sequence == latest.wrapping_add(1),
            false => sequence.wrapping_sub(*latest).wrapping_add(NEAR) <= 2 * NEAR,
        };
        *latest = sequence;
        *run += u64::from(!follows);
        *run
    }

    /// Handles a packet that a tap saw arrive, with the number that the tap assigned to it.
    pub(super) fn tapped(&mut self, at: NodeId, sequence: u32) {
        if sequence == FIRST_TAPPED_SEQUENCE {
            self.tapped.insert(at);
        }
    }

    /// Whether a tap has captured all packets that arrived at a queue pair.
    pub(super) fn has_all_arrivals(&self, at: NodeId) -> bool {
        self.tapped.contains(&at)
    }

    /// Whether the capture has all packets that a queue pair has sent since it was created.
    pub(super) fn has_all_sent(&self, owner: Owner) -> bool {
        self.starts(owner).any(|&(_, is_own)| is_own)
    }

    /// The time of the latest first request of a queue pair number; `is_own`: as its own host
    /// captured it, since the clock of another may be late.
    pub(super) fn first_request(&self, owner: Owner, is_own: bool) -> Option<u64> {
        let mut starts = self.starts(owner).rev();
        Some(starts.find(|(_, own)| *own || !is_own)?.0)
    }

    /// Whether a queue pair's first request was captured after one frame and not after another;
    /// `is_own` as for [`Lifetimes::first_request`].
    pub(super) fn began_between(&self, owner: Owner, is_own: bool, after: u64, until: u64) -> bool {
        let mut starts = self.starts(owner);
        starts.any(|&(at, own)| at > after && at <= until && (own || !is_own))
    }

    fn starts(&self, owner: Owner) -> impl DoubleEndedIterator<Item = &(u64, bool)> {
        let lifetime = self.of.get(owner.1.index(owner.0));
        lifetime.into_iter().flat_map(|lifetime| &lifetime.starts)
    }
}

/// Identifies a frame at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FrameKey {
    from: NodeId,
    to: NodeId,
    /// Distinguishes lifetimes of queue pairs, which repeat the numbers.
    qkey: Qkey,
    sequence: u32,
    /// A repetition does not replace the first attempt, which may be the only one that a rule
    /// checks.
    retransmission: bool,
    opcode: u8,
}

#[derive(Debug, Default)]
struct Observations {
    sent: Option<Duration>,
    arrived: Option<Duration>,
    /// The packet as it was sent.
    packet: Option<SentPacket>,
}

/// The number of a frame among those that are remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameId(u32);

/// Frames that the host of only one end captured.
#[derive(Debug, Default)]
pub(super) struct Unmatched {
    seen: RecentMap<FrameKey, Observations>,
    /// The time of the last frame of each host's own capture.
    last: Vec<Option<Duration>>,
    /// The pairs of hosts whose frames were captured at both ends, and whether any of them arrived
    /// before it was sent.
    flights: HashMap<(HostId, HostId), bool>,
    /// Frames that were captured at one end only so far, with the view of that end.
    missing: HashMap<View, Duration>,
    /// Hosts where a tap counted the arrivals: it is not known which frame an arrival is.
    tapped: HashSet<HostId>,
}

impl Unmatched {
    /// Processes a frame. Returns its number if it is remembered.
    pub(super) fn frame(
        &mut self,
        nodes: &Nodes,
        frame: &CapturedPacket,
        from: NodeId,
        to: NodeId,
    ) -> Option<FrameId> {
        let direction = frame.direction?;
        let recorder = match direction {
            Direction::Outbound => from,
            Direction::Inbound => to,
        };
        let recorder = nodes.host(recorder).0 as usize;
        if self.last.len() <= recorder {
            self.last.resize(recorder + 1, None);
        }
        self.last[recorder] = Some(frame.time);
        if from == to {
            return None;
        }
        // The rules only depend on the last packet of RDMA data.
        let is_piece = match frame.header.kind {
            FrameKind::RdmaReadResponse(rdma) => {
                let ends_at = u64::from(rdma.offset) + u64::from(frame.header.payload_length);
                ends_at < u64::from(rdma.total_length)
            }
            FrameKind::RdmaWrite(_) | FrameKind::Datagram => true,
            FrameKind::Send | FrameKind::Response(_) | FrameKind::RdmaReadRequest(_) => false,
        };
        if frame.header.sequence >= FIRST_TAPPED_SEQUENCE {
            self.tapped.insert(nodes.host(to));
            return None;
        }
        (!is_piece).then(|| self.see(nodes, frame, direction, from, to))
    }

    fn see(
        &mut self,
        nodes: &Nodes,
        frame: &CapturedPacket,
        direction: Direction,
        from: NodeId,
        to: NodeId,
    ) -> FrameId {
        let mark = FrameKey {
            from,
            to,
            qkey: frame.header.qkey,
            sequence: frame.header.sequence,
            retransmission: frame.header.retransmission,
            opcode: frame.header.kind.opcode() as u8,
        };
        if self.seen.len() >= MOST_FRAMES {
            self.forget();
        }
        let number = self.seen.find_or_insert(mark, Observations::default);
        let known = self.seen.get_mut(number);
        match direction {
            Direction::Outbound => known.sent = Some(frame.time),
            Direction::Inbound => known.arrived = Some(frame.time),
        }
        if let Some((sent, arrived)) = known.sent.zip(known.arrived) {
            let is_backward = self
                .flights
                .entry((nodes.host(from), nodes.host(to)))
                .or_default();
            *is_backward |= arrived < sent;
        }
        FrameId(number)
    }

    /// Remembers the packet of a frame, if its sender's host captured it.
    pub(super) fn sends(
        &mut self,
        id: FrameId,
        frame: &CapturedPacket,
        content: &Content,
        identity: u64,
    ) {
        if frame.direction == Some(Direction::Outbound) {
            self.seen.get_mut(id.0).packet = Some(SentPacket {
                number: frame.number,
                content: content.clone(),
                identity,
            });
        }
    }

    /// The packet that arrives in a frame, as it was sent.
    pub(super) fn sent(&self, id: FrameId, frame: &CapturedPacket) -> Option<&SentPacket> {
        if frame.direction != Some(Direction::Inbound) {
            return None;
        }
        let (mark, sightings) = self.seen.get(id.0);
        let first = || {
            let retransmission = false;
            let first = self.seen.find(&FrameKey {
                retransmission,
                ..*mark
            })?;
            self.seen.get(first).1.packet.as_ref()
        };
        let is_repetition = mark.retransmission;
        let packet = sightings.packet.as_ref();
        packet.or_else(|| is_repetition.then(first).flatten())
    }

    /// Ends the wait for the earliest frame.
    fn forget(&mut self) -> bool {
        let Some((FrameKey { from, to, .. }, sightings)) = self.seen.pop() else {
            return false;
        };
        let (near, far, time) = match (sightings.sent, sightings.arrived) {
            (Some(time), None) => (to, from, time),
            (None, Some(time)) => (from, to, time),
            _ => return true,
        };
        let view = View {
            has_direction: true,
            near,
            far,
        };
        let first = self.missing.entry(view).or_insert(time);
        *first = time.min(*first);
        true
    }

    /// After the last frame: the views that lack frames. Frames in flight at the end of a host's
    /// capture are not missing.
    pub(super) fn incomplete(mut self, nodes: &Nodes) -> HashSet<View> {
        while self.forget() {}
        let Unmatched {
            missing,
            last,
            flights,
            tapped,
            ..
        } = self;
        let is_forward = |from, to| flights.get(&(from, to)) == Some(&false);

        let is_missing = |(view, time): (View, Duration)| {
            let (near, far) = (nodes.host(view.near), nodes.host(view.far));
            let last_of_near = last.get(near.0 as usize).copied().flatten();
            let has_ended = last_of_near.is_none_or(|last| last < time);
            let have_one_clock = is_forward(near, far) && is_forward(far, near);
            let is_missing = !has_ended || !have_one_clock;
            (is_missing && !tapped.contains(&near) && !tapped.contains(&far)).then_some(view)
        };
        missing.into_iter().filter_map(is_missing).collect()
    }
}
