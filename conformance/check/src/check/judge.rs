//! Judges frames one by one, each in its conversation.

use std::collections::BTreeSet;
use std::hash::BuildHasher as _;

use efa_capture::Direction;
use efa_capture::frame::header::FIRST_TAPPED_SEQUENCE;
use efa_capture::frame::{FrameKind, Rdma};
use efa_wire::address::Gid;
use efa_wire::rules;
use efa_wire::{Packet, ParseError};
use foldhash::fast::FixedState;
use foldhash::{HashMap, HashSet};

use super::completeness::{FrameId, Lifetimes, Unmatched};
use super::content::Content;
use super::conversation::Conversation;
use super::device::{Attempt, NamedEndpoints, Position, Resent};
use super::follow::Follower;
use super::format;
use super::frame::{FrameContext, PacketFrame};
use super::gaps::RequestNumbers;
use super::node::{Node, NodeId, Nodes, View};
use super::order::{OutOfOrder, TimeSorter};
use super::packet::ParsedPacket;
use super::qp_generations::QpGenerations;
use super::report::{CheckResult, NotJudged, Report};
use super::tagged::Tagged;
use crate::capture::{Capture, CapturedPacket, UserRecvQps};
use crate::roce::ConnectedPacket;

/// The maximum number of requests and completed operations that all conversations together store;
/// each occupies a few hundred bytes. More requests are never in flight.
const MOST_REMEMBERED: usize = 1 << 17;

/// Judges a capture, frame by frame.
#[derive(Default)]
pub struct Judge {
    order: TimeSorter,
    user_recv: UserRecvQps,
    nodes: Nodes,
    /// In the order of their first frames.
    conversations: Vec<(View, Conversation)>,
    /// The index of each conversation.
    views: HashMap<View, u32>,
    state: CaptureState,
    numbers: RequestNumbers,
    tagged: Tagged,
    report: Report,
    lossy: BTreeSet<usize>,
    /// The number of requests and operations that the conversations store.
    remembered: usize,
}

impl Judge {
    /// A judge without frames so far.
    pub fn new() -> Judge {
        Judge::default()
    }

    /// Handles the next frame of the capture. Frames may be out of order. Returns a frame that was
    /// judged, so that its memory can be reused.
    ///
    /// # Errors
    /// If later frames were judged already, because too many frames are between them and this one.
    pub fn frame(
        &mut self,
        frame: impl Into<Box<CapturedPacket>>,
    ) -> Result<Option<Box<CapturedPacket>>, OutOfOrder> {
        let frame = frame.into();
        self.knows(&frame);
        let earliest = self.order.push(frame)?;
        if let Some(frame) = &earliest {
            self.judge(frame);
        }
        Ok(earliest)
    }

    /// Handles the next packet of a reliable connection, in the order of the capture.
    pub fn connected(&mut self, packet: &ConnectedPacket) {
        self.tagged.take(packet);
    }

    /// Records the hosts whose sends are in the capture, before the first of them is judged.
    fn knows(&mut self, frame: &CapturedPacket) {
        if frame.direction == Some(Direction::Outbound) {
            self.state.captured.insert(frame.source);
        }
    }

    /// Records that an interface did not capture all frames, so that missing ones prove nothing.
    pub fn lossy(&mut self, interface: usize) {
        self.lossy.insert(interface);
    }

    /// Ends the capture and returns the findings.
    pub fn finish(mut self) -> CheckResult {
        while let Some(frame) = self.order.pop() {
            self.judge(&frame);
        }
        self.lossy.extend(self.numbers.lossy());
        let nodes = self.nodes;
        let mut views = self.conversations;
        views.sort_by_key(|(view, _)| {
            let ends = [view.near, view.far].map(|id| nodes.node(id));
            (view.has_direction, ends)
        });
        self.report.checked.not_judged = self.state.not_judged;
        self.tagged.close(&mut self.report, &self.lossy);
        let incomplete = self.state.unmatched.incomplete(&nodes);
        // If a tool removed the directions of some frames, no view contains all that the end sent
        // or received.
        let pair = |view: &View| (view.near.min(view.far), view.near.max(view.far));
        let is_without = |(view, _): &&(View, Conversation)| !view.has_direction;
        let without: HashSet<_> = views
            .iter()
            .filter(is_without)
            .map(|it| pair(&it.0))
            .collect();
        let is_with = |(view, _): &&(View, Conversation)| view.has_direction;
        let with: HashSet<_> = views.iter().filter(is_with).map(|it| pair(&it.0)).collect();
        for (view, conversation) in views {
            let is_mixed = with.contains(&pair(&view)) && without.contains(&pair(&view));
            let lacks_frames = is_mixed || incomplete.contains(&view);
            conversation.close(
                &mut self.report,
                &self.state.lifetimes,
                lacks_frames,
                &self.lossy,
            );
        }
        self.report.finish()
    }

    fn judge(&mut self, frame: &CapturedPacket) {
        let header = &frame.header;
        let is_headerless = self.user_recv.follow(frame);
        let sender = Node {
            gid: frame.source,
            qpn: header.source_qpn.0,
        };
        let receiver = Node {
            gid: frame.destination,
            qpn: header.destination_qpn.0,
        };
        let is_arrival = frame.direction == Some(Direction::Inbound);
        // An endpoint that sends to itself has both its sends and its arrivals.
        let is_known = sender == receiver && is_arrival;
        if matches!(header.kind, FrameKind::Datagram) || is_known {
            return;
        }
        let [from, to] = self.nodes.ids([sender, receiver]);
        self.numbers.take(frame, from);
        if is_headerless {
            return;
        }
        let id = self.state.unmatched.frame(&self.nodes, frame, from, to);
        let (near, far) = match frame.direction {
            Some(Direction::Outbound) => (from, to),
            Some(Direction::Inbound) => (to, from),
            None if receiver < sender => (to, from),
            None => (from, to),
        };
        let view = View {
            has_direction: frame.direction.is_some(),
            near,
            far,
        };
        let at = self.views.get(&view).copied().unwrap_or_else(|| {
            let at = self.conversations.len() as u32;
            let conversation = Conversation::new(view, &self.nodes);
            self.conversations.push((view, conversation));
            self.views.insert(view, at);
            at
        });
        let (_, conversation) = &mut self.conversations[at as usize];
        self.state.judge(conversation, frame, from, id);
        // A packet is a request, and may be the last one of an operation.
        self.remembered += 2;
        if self.remembered > MOST_REMEMBERED {
            self.forget();
        }
    }

    /// Forgets the older half of the state of the conversations.
    fn forget(&mut self) {
        let until = self.state.at.saturating_sub(MOST_REMEMBERED as u64 / 4);
        let left = self.conversations.iter_mut();
        self.remembered = left.map(|(_, it)| it.forget_before(until)).sum();
    }
}

/// The state of all conversations together.
#[derive(Default)]
struct CaptureState {
    lifetimes: Lifetimes,
    generations: QpGenerations,
    /// Hosts whose own sends are in the capture.
    captured: HashSet<Gid>,
    unmatched: Unmatched,
    not_judged: NotJudged,
    /// The number of frames that were judged, of all interfaces and of each.
    at: u64,
    of_interfaces: Vec<u64>,
}

impl CaptureState {
    fn judge(
        &mut self,
        conversation: &mut Conversation,
        frame: &CapturedPacket,
        from: NodeId,
        id: Option<FrameId>,
    ) {
        self.at += 1;
        conversation.begins_frame(self.at);
        if self.of_interfaces.len() <= frame.interface {
            self.of_interfaces.resize(frame.interface + 1, 0);
        }
        let of_interface = &mut self.of_interfaces[frame.interface];
        *of_interface += 1;
        let position = Position {
            number: frame.number,
            interface: frame.interface,
            at: self.at,
            of_interface: *of_interface,
        };
        self.judge_frame(conversation, frame, from, id, position);
        let (me, _) = conversation.ends(from);
        conversation.sees(me, self.at, frame.interface);
    }

    fn judge_frame(
        &mut self,
        conversation: &mut Conversation,
        frame: &CapturedPacket,
        from: NodeId,
        id: Option<FrameId>,
        position: Position,
    ) {
        let header = &frame.header;
        let is_arrival = frame.direction == Some(Direction::Inbound);
        let (me, you) = conversation.ends(from);
        let context = FrameContext {
            number: frame.number,
            interface: frame.interface,
            sender: me,
            is_judged: !is_arrival || !self.captured.contains(&frame.source),
            is_own: !is_arrival,
        };
        let parsed = Packet::parse(&frame.payload);
        let mut sent = id.and_then(|id| self.unmatched.sent(id, frame));
        let mut content = None;
        let identity = match header.kind {
            FrameKind::Response(status) => {
                return conversation.request_ends(you, header.sequence, status);
            }
            FrameKind::RdmaReadResponse(rdma) => return conversation.read_data(header, &rdma, you),
            FrameKind::RdmaWrite(rdma) if rdma.offset > 0 => {
                return conversation.write(context, header, &rdma, (me, you));
            }
            FrameKind::RdmaReadRequest(rdma) | FrameKind::RdmaWrite(rdma) => rdma_identity(&rdma),
            FrameKind::Send => {
                let parsed = parsed.as_ref().ok();
                let known = sent.map(|sent| &sent.content);
                let content = content.insert(Content::of(frame, parsed, known));
                match sent.take_if(|sent| sent.content == *content) {
                    Some(same) => same.identity,
                    None => content.identity(),
                }
            }
            FrameKind::Datagram => return,
        };
        let lifetimes = &mut self.lifetimes;
        let request = note_request(lifetimes, conversation, frame, from, identity, position);
        let Some((is_repetition, run)) = request else {
            return;
        };
        match header.kind {
            FrameKind::RdmaReadRequest(rdma) if !is_repetition => {
                conversation.read_begins(context, header, &rdma, (me, you));
            }
            FrameKind::RdmaWrite(rdma) if !is_repetition => {
                conversation.write(context, header, &rdma, (me, you));
            }
            _ => {}
        }
        let Some(content) = content else { return };
        if !has_header(frame, &parsed) {
            self.not_judged.cut_headers += u64::from(context.is_judged);
            return conversation.torn();
        }
        self.not_judged.cut_data += u64::from(context.is_judged && frame.cut_off > 0);
        // `sent` is `None` here if the copy is equal.
        if let Some(text) = sent.and_then(|sent| sent.difference(&content)) {
            let rule = &rules::COPIES_AGREE;
            let seen = FrameContext {
                is_judged: true,
                ..context
            };
            conversation.breach(seen, frame.kind(), rule, text);
        }
        if let Some(id) = id {
            self.unmatched.sends(id, frame, &content, identity);
        }
        let connid = match &parsed {
            Ok(packet) if header.sequence == 0 => ParsedPacket::of(packet).named(),
            _ => None,
        };
        let qp_generation =
            self.generations
                .of(from, is_arrival, header.sequence, &content, connid);
        let near = (frame.direction.is_some(), conversation.sides[0].id);
        let outer = PacketFrame {
            from,
            qkey: header.qkey,
            sequence: header.sequence,
            retransmission: header.retransmission,
            is_from_start: conversation.is_beginning() && self.lifetimes.has_all_sent(near),
            run,
            qp_generation,
        };
        let sent = CurrentPacket {
            frame,
            outer,
            parsed: &parsed,
            content,
            is_repetition,
        };
        judge_packet(conversation, &self.lifetimes, context, sent);
    }
}

/// A digest of an RDMA request.
fn rdma_identity(rdma: &Rdma) -> u64 {
    let identity = (rdma.remote.address, rdma.remote.key, rdma.total_length);
    FixedState::default().hash_one(identity)
}

/// Whether the capture has the whole header of a packet.
fn has_header(frame: &CapturedPacket, parsed: &Result<Packet, ParseError>) -> bool {
    let header_ends = parsed.as_ref().map(|packet| packet.payload.offset);
    frame.cut_off == 0 || header_ends.is_ok_and(|end| end <= frame.there().len())
}

/// Notes that a device sends a request. Returns whether it repeats one, and the run of its
/// queue pair; `None` if it is known from another place.
fn note_request(
    lifetimes: &mut Lifetimes,
    conversation: &mut Conversation,
    frame: &CapturedPacket,
    from: NodeId,
    identity: u64,
    position: Position,
) -> Option<(bool, Option<u64>)> {
    let header = &frame.header;
    let is_arrival = frame.direction == Some(Direction::Inbound);
    let (me, _) = conversation.ends(from);
    let owner = (frame.direction.is_some(), from);
    let requests = &mut conversation.sides[me].requests;
    let attempt = requests.take(header, identity, position);
    let is_copy = matches!(attempt, Attempt::Sighting);
    conversation.undirected.sees_request(me, header, is_copy);
    if is_copy {
        return None;
    }
    let is_repetition = matches!(attempt, Attempt::Repetition);
    let mut run = None;
    if is_arrival && header.sequence >= FIRST_TAPPED_SEQUENCE {
        let near = conversation.sides[0].id;
        lifetimes.tapped(near, header.sequence);
    } else if !is_repetition {
        run = Some(lifetimes.request(owner, !is_arrival, position.at, header));
    }
    if conversation.sides[me].born.is_none() {
        let is_own = frame.direction == Some(Direction::Outbound);
        conversation.set_first_request(me, lifetimes.first_request(owner, is_own));
    }
    Some((is_repetition, run))
}

/// A packet that was sent.
struct CurrentPacket<'f> {
    frame: &'f CapturedPacket,
    outer: PacketFrame,
    parsed: &'f Result<Packet, ParseError>,
    content: Content,
    /// Whether the device repeats it.
    is_repetition: bool,
}

/// Judges a packet.
fn judge_packet(
    conversation: &mut Conversation,
    lifetimes: &Lifetimes,
    context: FrameContext,
    sent: CurrentPacket<'_>,
) {
    let CurrentPacket {
        frame,
        outer,
        parsed,
        content,
        is_repetition,
    } = sent;
    let header = &frame.header;
    if !header.payload_captured {
        return conversation.torn();
    }
    let from = outer.from;
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            return conversation.malformed(context, lifetimes, &outer, frame.kind(), error);
        }
    };
    let parsed = ParsedPacket::of(parsed);
    if context.is_judged {
        for (rule, text) in format::breaches(&parsed) {
            conversation.breach(context, parsed.packet_type, rule, text);
        }
    }
    let (me, _) = conversation.ends(from);
    let requests = &mut conversation.sides[me].requests;
    let named = NamedEndpoints {
        connid: parsed.named(),
        qkey: header.qkey,
    };
    let resent = requests.is_resent(
        header.retransmission,
        header.sequence,
        frame.number,
        content,
        parsed.body.msg_id().is_some(),
        named,
    );
    let is_resent = match resent {
        Resent::No => false,
        Resent::Yes => true,
        Resent::Perhaps { is_due } => !conversation.misses(&parsed, from).unwrap_or(!is_due),
    };
    if is_resent && let Some(msg_id) = parsed.body.msg_id() {
        conversation.sides[me].sent_again(msg_id);
    }
    let repeats = is_repetition || is_resent;
    let Some((me, you)) = conversation.packet(context, lifetimes, &outer, &parsed, repeats) else {
        return;
    };
    let mut follower = Follower {
        conversation,
        context,
        parsed: &parsed,
        sequence: header.sequence,
        me,
        you,
    };
    follower.follow();
}

/// Judges a capture that is in memory.
pub fn check(capture: &Capture) -> CheckResult {
    let mut frames: Vec<&CapturedPacket> = capture.frames.iter().collect();
    frames.sort_by_key(|frame| (frame.time, frame.number));
    let mut judge = Judge::new();
    for &interface in &capture.lossy {
        judge.lossy(interface);
    }
    for &frame in &frames {
        judge.knows(frame);
    }
    for frame in frames {
        judge.judge(frame);
    }
    judge.finish()
}
