//! The packets between two endpoints, in the view of one of them.
//!
//! The view is that of the *near* end, in the order in which its host captured the frames. The near
//! end sends its packets in this order, and cannot react to packets that have not arrived. The
//! order in which the far end sent its packets is not known, but a packet that they answer arrived
//! before they were sent. If both hosts are captured, there are two conversations, and each packet
//! is judged in its sender's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use efa_wire::address::Qkey;
use efa_wire::rules::{self, Evidence, Rule, Severity};
use efa_wire::{ExtraFeatures, PacketType, ParseError};
use foldhash::HashMap;

use super::births::Birth;
use super::completeness::Lives;
use super::device::Requests;
use super::node::{Node, NodeId, Nodes, View};
use super::operation::{Due, End, Names, OpId, Operation, Operations, Turn};
use super::packet::{PacketBody, Reading};
use super::report::{AT_THE_END, Finding, Findings, Found, Report};
use super::sequence::{PROOF, Sequence};

/// The number of messages with refused packets that are kept.
const MOST_REFUSED: usize = 1024;
/// The number of packets with a feature before the peer's HANDSHAKE that are kept.
const MOST_EARLY: usize = 16;
/// The number of connection ids of former endpoints that are kept.
const MOST_FORMER: usize = 64;

/// The frame of a finding.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameContext {
    /// The frame's number.
    pub(super) number: u64,
    /// The interface that captured it.
    pub(super) interface: usize,
    /// The end that sent the frame, or should have sent one.
    pub(super) sender: End,
    /// Whether the frame is judged in this conversation, and not in its sender's.
    pub(super) is_judged: bool,
    /// Whether the near end sent the frame.
    pub(super) is_own: bool,
}

/// State of one end of a conversation.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) node: Node,
    pub(super) id: NodeId,
    /// The connection id, and the packet that stated it.
    connid: Option<(u32, u64)>,
    /// The last Q-key that packets were sent to.
    addressed: Option<u32>,
    /// The run of requests of its last packet.
    run: Option<u64>,
    /// The connection ids of earlier owners of the queue pair.
    former: Vec<u32>,
    /// The packet number of its HANDSHAKE.
    pub(super) handshake: Option<u64>,
    pub(super) features: ExtraFeatures,
    /// The number of its first packet.
    first: Option<u64>,
    /// The number of its first request without a raw address.
    without_address: Option<u64>,
    /// The first answer that it sent.
    pub(super) answered: Option<(u64, PacketType)>,
    /// Its first packet, other than a HANDSHAKE, after the first packet from the peer.
    went_on: Option<(u64, PacketType)>,
    pub(super) sequence: Sequence,
    /// Operations by the ids that it assigned.
    pub(super) send_ids: Names,
    pub(super) recv_ids: Names,
    pub(super) fetch_ids: Names,
    /// Messages whose receiver may refuse to read them, by msg_id.
    pub(super) readable: HashMap<u32, OpId>,
    /// Operations whose memory the peer will read, in their order.
    pub(super) long_reads: Vec<OpId>,
    pub(super) requests: Requests,
    /// The number of its requests that were refused.
    refusals: u64,
    /// Its messages with packets that were refused and not sent again yet, by msg_id.
    refused: BTreeMap<u32, Refused>,
    /// Packets of extra features that it sent before the peer's HANDSHAKE.
    early: Vec<(FrameContext, PacketType)>,
    /// The number of earlier owners of the queue pair number, as far as sequence numbers show.
    generation: u32,
    /// The least progress of the endpoint that its answers prove.
    come_to: Progress,
    /// The times at which the windows that the endpoint has filled were opened.
    pub(super) filled: VecDeque<u64>,
    /// Frames that it sent.
    frames: u64,
    /// The last of them, and the last frame of the previous endpoint.
    last_frame: u64,
    former_frame: u64,
    /// The time of its queue pair's first request, if the capture has it.
    pub(super) born: Option<u64>,
}

/// A message with packets that the receiver refused.
#[derive(Clone, Copy, Debug)]
struct Refused {
    /// The number of packets that were not sent again yet.
    packets: u64,
    /// The number and type of the first of them.
    first: (u64, PacketType),
    /// The number of messages that had begun then.
    begun: u64,
    /// The device has repeated one of these requests: the next repetition is an equal frame, which
    /// may be missing from the capture.
    is_repeated: bool,
}

/// The ids that an endpoint assigns to operations.
pub(super) struct IdSpace {
    /// The packet field with an id.
    pub(super) field: &'static str,
    pub(super) of: fn(&mut Side) -> &mut Names,
    /// Whether an id still refers to its operation, from the view of the endpoint that assigned it.
    pub(super) holds: fn(&Operation) -> bool,
}

pub(super) const SEND_IDS: IdSpace = IdSpace {
    field: "send_id",
    of: |side| &mut side.send_ids,
    holds: Operation::holds_send_id,
};
pub(super) const RECV_IDS: IdSpace = IdSpace {
    field: "recv_id",
    of: |side| &mut side.recv_ids,
    holds: Operation::holds_recv_id,
};
/// The `recv_id` of fetching atomics.
pub(super) const FETCH_IDS: IdSpace = IdSpace {
    field: "recv_id",
    of: |side| &mut side.fetch_ids,
    holds: Operation::holds_recv_id,
};

/// The least progress of an endpoint that its answers prove.
#[derive(Debug, Default)]
struct Progress {
    arrival: Option<u64>,
    matched: HashMap<Option<u64>, u32>,
    atomic: Option<u32>,
    keys: Vec<u64>,
    /// The times at which the packets that it answered last arrived.
    recent: VecDeque<u64>,
}

/// This number of answers to later arrivals proves that an endpoint has processed the end of a
/// read: completions of reads and of receives may wait in two queues.
const PROVES_READ: usize = 4;
/// The number of answers that are kept.
const MOST_RECENT: usize = 64;

impl Side {
    fn new(node: Node, id: NodeId) -> Side {
        Side {
            node,
            id,
            connid: None,
            addressed: None,
            run: None,
            former: Vec::new(),
            handshake: None,
            features: ExtraFeatures::empty(),
            first: None,
            without_address: None,
            answered: None,
            went_on: None,
            sequence: Sequence::default(),
            send_ids: Names::default(),
            recv_ids: Names::default(),
            fetch_ids: Names::default(),
            readable: HashMap::default(),
            long_reads: Vec::new(),
            requests: Requests::default(),
            refusals: 0,
            refused: BTreeMap::new(),
            early: Vec::new(),
            generation: 0,
            come_to: Progress::default(),
            filled: VecDeque::new(),
            frames: 0,
            last_frame: 0,
            former_frame: 0,
            born: None,
        }
    }

    /// Resets the state for the next endpoint on this queue pair or on the peer's.
    fn renew(&mut self, is_another: bool) {
        let mut fresh = Side::new(self.node, self.id);
        std::mem::swap(&mut fresh.requests, &mut self.requests);
        std::mem::swap(&mut fresh.former, &mut self.former);
        fresh.former_frame = match is_another {
            // The previous endpoint may have sent nothing.
            true => self.last_frame.max(self.former_frame),
            false => self.former_frame,
        };
        fresh.run = self.run;
        fresh.generation = self.generation;
        // The present frame may be the first of the next endpoint.
        let former_frame = fresh.former_frame;
        fresh.born = self.born.filter(|&at| at > former_frame);
        *self = fresh;
    }

    /// Its connection id as it states it or, before it does, as its peer states it.
    pub(super) fn known(&self) -> Option<u32> {
        self.connid.map(|(connid, _)| connid).or(self.addressed)
    }

    /// Whether a connection id belongs to a new endpoint.
    fn is_another(&self, connid: u32) -> bool {
        self.known().is_some_and(|known| known != connid) && !self.is_former(connid)
    }

    /// Records that a packet of a message was refused, and has to be sent again.
    pub(super) fn left_behind(
        &mut self,
        msg_id: u32,
        number: u64,
        packet_type: PacketType,
        is_repeated: bool,
    ) {
        let begun = self.sequence.begun;
        let is_known = self.refused.contains_key(&msg_id);
        if !is_known && self.refused.len() >= MOST_REFUSED {
            return;
        }
        let refused = self.refused.entry(msg_id).or_insert(Refused {
            packets: 0,
            first: (number, packet_type),
            begun,
            is_repeated: false,
        });
        refused.packets += 1;
        refused.is_repeated |= is_repeated;
    }

    /// Records that a refused packet of a message was sent again.
    pub(super) fn sent_again(&mut self, msg_id: u32) {
        if let Some(refused) = self.refused.get_mut(&msg_id) {
            refused.packets -= 1;
            if refused.packets == 0 {
                self.refused.remove(&msg_id);
            }
        }
    }

    /// Records that a message will not be sent again.
    pub(super) fn is_taken_back(&mut self, msg_id: u32) {
        self.refused.remove(&msg_id);
    }

    /// The messages that were not sent again, and the number of messages since then that were not
    /// refused.
    fn abandoned(&self) -> Vec<(u32, Refused, u64)> {
        let behind = |refused: &Refused| {
            let later = self
                .refused
                .values()
                .filter(|other| other.begun > refused.begun);
            (self.sequence.begun - refused.begun).saturating_sub(later.count() as u64)
        };
        let abandoned = self.refused.iter();
        abandoned
            .map(|(msg_id, refused)| (*msg_id, *refused, behind(refused)))
            .filter(|(.., behind)| *behind > 0)
            .collect()
    }

    fn is_former(&self, connid: u32) -> bool {
        self.former.contains(&connid)
    }

    fn retire(&mut self) {
        if let Some((connid, _)) = self.connid {
            if self.former.len() >= MOST_FORMER {
                self.former.remove(0);
            }
            self.former.push(connid);
        }
    }
}

/// The sends between two endpoints during the lifetime of their queue pairs, which show whether
/// they use the RDM protocol. The next owners of the numbers may use another one.
#[derive(Debug, Default)]
struct Speech {
    /// Whether a request stated its sender's true address, or a HANDSHAKE was sent.
    is_rdm: bool,
    /// Whether the previous owners of the queue pairs used it.
    follows_rdm: bool,
    /// The number of sends that could be RDM packets, and of sends that could not.
    valid: u64,
    invalid: u64,
    /// The number of packets that were judged, each counted once.
    packets: u64,
    /// The number and type of the last packet, or the error of an unparsable one.
    last: Option<(u64, Result<PacketType, String>)>,
    /// Findings, without those that lack evidence in the capture.
    proven: Findings,
    /// The number of findings without evidence.
    unproven: u64,
    /// Whether rules were not applied because the capture lacks a direction.
    lacks_direction: bool,
    lacks_beginning: bool,
}

impl Speech {
    /// Whether the endpoints use the RDM protocol.
    fn is_of_rdm(&self) -> bool {
        let weight = if self.follows_rdm { 1 } else { 8 };
        self.is_rdm || self.valid > 0 && self.valid >= weight * self.invalid
    }

    /// Whether the endpoints use another protocol. False without sends.
    fn is_foreign(&self) -> bool {
        !self.is_of_rdm() && self.invalid > 0
    }

    /// Adds the findings of another one.
    fn append(&mut self, other: Speech) {
        self.valid += other.valid;
        self.invalid += other.invalid;
        self.packets += other.packets;
        self.last = other.last.or(self.last.take());
        self.proven.append(other.proven);
        self.unproven += other.unproven;
        self.lacks_direction |= other.lacks_direction;
        self.lacks_beginning |= other.lacks_beginning;
    }
}

/// The frames of a conversation without directions, which may be from two hosts with two clocks.
#[derive(Debug, Default)]
struct Undirected {
    /// The interface of the first frame, and whether another one captured frames too.
    interface: Option<usize>,
    has_interfaces: bool,
    /// Whether each end sent requests, and whether any of them was captured twice.
    requests: [bool; 2],
    copies: [bool; 2],
}

impl Undirected {
    fn has_copies(&self) -> bool {
        self.copies.contains(&true)
    }

    /// Whether the first copies of the packets are in a possible order: there is one clock, or each
    /// end's packets were captured at both. The requests of an end that only the other end's host
    /// captured are in the order of that clock.
    fn has_possible_order(&self) -> bool {
        match self.has_copies() {
            true => self.copies == self.requests,
            false => !self.has_interfaces,
        }
    }
}

/// The packets between two endpoints, in the view of one of them.
#[derive(Debug)]
pub(super) struct Conversation {
    /// The end of the view, and whether its frames have directions.
    view: View,
    /// The near end and the far end; an endpoint that sends to itself uses only the first.
    pub(super) sides: [Side; 2],
    pub(super) operations: Operations,
    /// Whether its beginning is in the capture; decided at the first packet.
    from_start: Option<bool>,
    /// Whether the queue pair numbers had earlier owners, which may have used another protocol.
    is_later: bool,
    /// Whether packets were truncated, so that the history is incomplete.
    is_torn: bool,
    /// Whether a device refused a request permanently.
    pub(super) has_failed: bool,
    /// The sends of the present endpoints.
    speech: Speech,
    /// The sends of earlier endpoints: of the RDM protocol, and of others.
    rdm: Option<Speech>,
    foreign: Speech,
    serial: u64,
    interface: usize,
    /// The number of frames of the capture up to the present one.
    at: u64,
    /// The Q-key that the near end sends to since it stated another receiver than before.
    target: Option<Qkey>,
    /// The findings about the present endpoints.
    findings: Findings,
    /// The captured frames without directions.
    undirected: Undirected,
    /// Whether there was an answer to a request that is not in the capture.
    has_stray_answer: bool,
}

impl Conversation {
    pub(super) fn new(view: View, nodes: &Nodes) -> Conversation {
        Conversation {
            view,
            sides: [view.near, view.far].map(|id| Side::new(nodes.node(id), id)),
            operations: Operations::default(),
            from_start: None,
            is_later: false,
            is_torn: false,
            has_failed: false,
            speech: Speech::default(),
            rdm: None,
            foreign: Speech::default(),
            serial: 0,
            interface: 0,
            at: 0,
            target: None,
            findings: Findings::default(),
            undirected: Undirected::default(),
            has_stray_answer: false,
        }
    }

    /// Sets the time of the first request of `me`'s queue pair, if the capture has it.
    pub(super) fn is_born(&mut self, me: End, at: Option<u64>) {
        let side = &mut self.sides[me];
        side.born = at.filter(|&at| at > side.former_frame);
    }

    /// Whether it has no packets so far.
    pub(super) fn is_beginning(&self) -> bool {
        self.from_start.is_none()
    }

    /// Starts to handle a frame, the `at`-th of the capture.
    pub(super) fn begins_frame(&mut self, at: u64) {
        self.at = at;
    }

    /// The number of frames of the capture up to the present one.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Forgets requests from before a frame, and operations that were complete then. Returns how
    /// many of both remain.
    pub(super) fn forget_before(&mut self, at: u64) -> usize {
        let mut left = self.operations.forget_before(at);
        for side in &mut self.sides {
            left += side.requests.forget_before(at);
            for names in [&mut side.send_ids, &mut side.recv_ids, &mut side.fetch_ids] {
                names.retain_known(&self.operations);
            }
        }
        left
    }

    /// Handles any frame, the `at`-th of the capture, that `me` sent.
    pub(super) fn sees(&mut self, me: End, at: u64, interface: usize) {
        self.sides[me].frames += 1;
        self.sides[me].last_frame = at;
        let first = *self.undirected.interface.get_or_insert(interface);
        self.undirected.has_interfaces |= interface != first;
    }

    /// Handles a request of `me`, or a second copy of it.
    pub(super) fn sees_request(&mut self, me: End, is_copy: bool) {
        self.undirected.requests[me] = true;
        self.undirected.copies[me] |= is_copy;
    }

    /// Handles an answer to a request of `initiator`.
    pub(super) fn sees_answer(&mut self, initiator: End, sequence: u32) {
        let is_known = self.sides[initiator].requests.knows(sequence);
        self.has_stray_answer |= !is_known;
    }

    /// Drops the findings without evidence in the capture.
    fn settle(&mut self, lives: &Lives) {
        let [near, far] = &self.sides;
        let is_own = near.node == far.node;
        let has_both = is_own || near.frames > 0 && far.frames > 0;
        let has_directions = self.view.has_direction;
        let has_possible_order = has_directions || self.undirected.has_possible_order();
        let was_born = |side: &Side| {
            let owner = (has_directions, side.id);
            side.born.is_some() || lives.began_between(owner, side.former_frame, side.last_frame)
        };
        let has_arrivals = has_directions && lives.has_all_arrivals(near.id);
        let has_beginning = has_both
            && has_possible_order
            && self.from_start == Some(true)
            && was_born(near)
            && (is_own || was_born(far) || has_arrivals);
        // If the captures of two hosts begin at different times, some first copies are the second.
        let has_first_copies = has_beginning && !self.has_stray_answer;
        let is_in_order = !self.undirected.has_copies() || has_first_copies;
        let has_history = has_both && has_possible_order && (has_directions || is_in_order);
        let is_talk = near.frames + far.frames > 0 && self.from_start.is_some();
        let speech = &mut self.speech;
        speech.lacks_direction |= is_talk && !has_both;
        speech.lacks_beginning |= is_talk && has_both && !has_beginning;
        speech.unproven += self.findings.retain(|evidence, _| match evidence {
            Evidence::Packet => true,
            Evidence::History | Evidence::Sender => has_history,
            Evidence::Beginning => has_beginning,
        });
        speech.proven.append(std::mem::take(&mut self.findings));
    }

    /// Decides which protocol was spoken, and starts again for the next endpoints.
    fn ends_speech(&mut self) {
        let speech = std::mem::take(&mut self.speech);
        if speech.is_foreign() {
            self.foreign.append(speech);
        } else {
            self.speech.follows_rdm = speech.is_of_rdm();
            self.rdm.get_or_insert_default().append(speech);
        }
    }

    /// Whether the order in which the near end received and sent its packets is known.
    pub(super) fn has_order(&self) -> bool {
        self.view.has_direction
    }

    /// Returns sender and receiver of a frame from this node.
    pub(super) fn ends(&self, from: NodeId) -> (End, End) {
        if self.view.near == self.view.far {
            (0, 0)
        } else if self.view.near == from {
            (0, 1)
        } else {
            (1, 0)
        }
    }

    /// Whether the capture has the conversation from its beginning.
    pub(super) fn is_from_start(&self) -> bool {
        self.from_start == Some(true) && !self.is_torn
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Reports a breach.
    pub(super) fn breach(
        &mut self,
        place: FrameContext,
        kind: impl ToString,
        rule: &'static Rule,
        text: String,
    ) {
        self.find(place, kind.to_string(), rule, rule.severity, text);
    }

    /// Reports a breach, as a note unless it is proven.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn suspect(
        &mut self,
        place: FrameContext,
        kind: impl ToString,
        rule: &'static Rule,
        is_proven: bool,
        text: String,
    ) {
        let severity = if is_proven {
            rule.severity
        } else {
            Severity::Note
        };
        self.find(place, kind.to_string(), rule, severity, text);
    }

    fn find(
        &mut self,
        place: FrameContext,
        kind: String,
        rule: &'static Rule,
        severity: Severity,
        text: String,
    ) {
        let needs_history = rule.evidence != Evidence::Packet;
        if !place.is_judged || self.is_torn && needs_history {
            return;
        }
        if rule.evidence == Evidence::Sender && self.sides[place.sender].born.is_none() {
            self.speech.unproven += 1;
            return;
        }
        let finding = Finding {
            rule,
            severity,
            packet: place.number,
            kind,
            interface: place.interface,
            text,
        };
        let at = self.at;
        self.findings.add(Found { finding, at });
    }

    /// Handles a send that cannot be parsed as an RDM packet.
    pub(super) fn malformed(
        &mut self,
        place: FrameContext,
        lives: &Lives,
        frame: &PacketFrame,
        kind: String,
        error: &ParseError,
    ) {
        let (me, you) = self.ends(frame.from);
        let Qkey(used) = frame.qkey;
        // The present owners of the queue pairs may use another protocol.
        let is_first = frame.sequence == 0 && !frame.retransmission;
        let is_reborn = place.is_own && is_first && self.sides[me].first.is_some();
        let is_to_unknown = self.speech.is_rdm && self.sides[you].known().is_none();
        if is_reborn || is_to_unknown || self.is_to_another(you, used) {
            self.begin_anew(lives, &[(me, true), (you, true)]);
            self.from_start = None;
            self.is_later = true;
        }
        self.sides[you].addressed.get_or_insert(used);
        self.interface = place.interface;
        self.speech.invalid += 1;
        self.speech.packets += u64::from(place.is_judged);
        self.speech.last = Some((place.number, Err(kind.clone())));
        self.breach(place, kind, &rules::PACKET_FORM, error.to_string());
    }

    /// Handles a truncated packet.
    pub(super) fn torn(&mut self) {
        self.is_torn = true;
    }

    /// Handles a packet. Returns sender and receiver if its operation has to be followed.
    pub(super) fn packet(
        &mut self,
        place: FrameContext,
        lives: &Lives,
        frame: &PacketFrame,
        reading: &Reading,
        is_repetition: bool,
    ) -> Option<(End, End)> {
        self.interface = place.interface;
        if self.from_start.is_none() {
            // A packet without an address that arrives first may be a late one, for a predecessor.
            // An endpoint that begins with an answer has received packets that are not in the
            // capture.
            let is_beginning = match place.is_own {
                true => reading.request.is_some(),
                false => reading.raw_address().is_some(),
            };
            let is_from_birth = frame.is_from_birth && is_beginning && !self.is_later;
            self.from_start = Some(is_from_birth || begins(frame, reading));
        }
        let (me, you) = self.ends(frame.from);
        self.ends_after_a_break(place, lives, frame, reading, (me, you));
        let is_present = !is_repetition && self.identify(place, lives, frame, reading, me, you);
        self.hear(me, reading);
        let packet_type = reading.packet_type;
        self.speech.packets += u64::from(place.is_judged && !is_repetition);
        self.speech.last = Some((place.number, Ok(packet_type)));
        if !is_present {
            return None;
        }
        self.check_features(place, packet_type, (me, you));
        if reading.request.is_some() {
            self.check_address(place, reading, me, you);
        }
        self.check_connid_asked(place, reading, you);
        let side = &mut self.sides[me];
        side.first.get_or_insert(place.number);
        if packet_type != PacketType::Handshake && self.sides[you].first.is_some() {
            let side = &mut self.sides[me];
            side.went_on.get_or_insert((place.number, packet_type));
        }
        Some((me, you))
    }

    /// Handles a packet that could be one of the RDM protocol, and may prove that it is.
    fn hear(&mut self, me: End, reading: &Reading) {
        self.speech.valid += 1;
        let names_sender = reading.raw_address().is_some_and(|address| {
            Node {
                gid: address.gid,
                qpn: address.qpn.0,
            } == self.sides[me].node
        });
        self.speech.is_rdm |= names_sender || matches!(reading.said, PacketBody::Handshake(_));
    }

    /// Judges the identification of the packet's sender and receiver. Returns whether they are the
    /// present owners of their queue pairs.
    #[allow(clippy::too_many_arguments)]
    fn identify(
        &mut self,
        place: FrameContext,
        lives: &Lives,
        frame: &PacketFrame,
        reading: &Reading,
        me: End,
        you: End,
    ) -> bool {
        let packet_type = reading.packet_type;
        let raw = reading.raw_address();
        if let Some(address) = raw {
            let named = Node {
                gid: address.gid,
                qpn: address.qpn.0,
            };
            let sender = self.sides[me].node;
            if named != sender {
                let text = format!("it names {named}, but was sent by {sender}");
                self.breach(place, packet_type, &rules::RAW_ADDRESS_TRUE, text);
            }
        }
        let Qkey(used) = frame.qkey;
        let known = self.sides[me].connid.map(|(connid, _)| connid);
        let named = reading.named();
        if frame.birth.generation > self.sides[me].generation {
            self.sides[me].generation = frame.birth.generation;
            if frame.birth.keeps_connid && known.is_some() && known == named {
                self.begins_with_old_connid(place, lives, packet_type, (me, you));
            }
        }
        if place.is_own && self.target.is_some_and(|target| target != frame.qkey) {
            // It sends to the earlier endpoint and to the later one, with two counts of messages.
            self.from_start = Some(false);
        }
        if let Some(Qkey(connid)) = raw.map(|address| address.qkey) {
            if self.sides[me].is_another(connid) {
                // The queue pair now belongs to another endpoint: both ends restart their numbers.
                self.sides[me].retire();
                let is_same_peer = self.sides[you].connid.is_some_and(|(peer, _)| peer == used);
                self.begin_anew(lives, &[(me, true), (you, !is_same_peer)]);
                self.sides[me].connid = Some((connid, place.number));
                self.from_start = Some(begins(frame, reading));
            } else if me != you && self.is_to_another(you, used) {
                // The HANDSHAKE is for the next endpoint on the queue pair, or it is wrong.
                self.begin_anew(lives, &[(me, false), (you, true)]);
                // The capture has all packets of the near end to the next endpoint.
                let is_first = place.is_own && self.target.is_none();
                self.from_start = Some(is_first && self.from_start == Some(true));
                self.target = Some(frame.qkey);
            }
        }
        let told = [
            (raw.map(|address| address.qkey.0), "raw_addr.connid"),
            (reading.connid, "connid"),
        ];
        for (connid, field) in told {
            let Some(connid) = connid else { continue };
            let side = &mut self.sides[me];
            if side.is_former(connid) {
                let text = format!("`{field}` is {connid:#x}, of an earlier endpoint");
                self.breach(place, packet_type, &rules::LATE_PACKET, text);
                return false;
            }
            let (known, first) = *side.connid.get_or_insert((connid, place.number));
            if known != connid {
                let text = format!(
                    "`{field}` is {connid:#x}, but packet {first} shows that {} has {known:#x}",
                    side.node
                );
                self.breach(place, packet_type, &rules::CONNID_TRUE, text);
            }
        }
        if let Some((connid, first)) = self.sides[you].connid
            && connid != used
        {
            if self.sides[you].is_former(used) {
                let text = format!("it is sent to Q-key {used:#x}, of an earlier endpoint");
                self.breach(place, packet_type, &rules::LATE_PACKET, text);
                return false;
            }
            let text = format!(
                "it is sent to Q-key {used:#x}, but packet {first} shows that {} has {connid:#x}",
                self.sides[you].node
            );
            self.breach(place, packet_type, &rules::QKEY_TRUE, text);
        }
        self.sides[you].addressed = Some(used);
        true
    }

    /// Handles a new endpoint with the connection id of the queue pair's previous owner. Its peer
    /// cannot detect this, and continues.
    fn begins_with_old_connid(
        &mut self,
        place: FrameContext,
        lives: &Lives,
        packet_type: PacketType,
        (me, you): (End, End),
    ) {
        let Some((connid, first)) = self.sides[me].connid else {
            return;
        };
        let text =
            format!("the queue pair begins anew, and `connid` is {connid:#x} as in packet {first}");
        self.breach(place, packet_type, &rules::CONNID_FRESH, text);
        self.begin_anew(lives, &[(me, true), (you, false)]);
        self.sides[me].connid = Some((connid, first));
        self.from_start = Some(false);
    }

    /// Whether a packet is sent to a Q-key of no known endpoint of the receiver.
    fn is_to_another(&self, you: End, used: u32) -> bool {
        self.sides[you].is_another(used)
    }

    /// Starts again if a packet without a raw address is not between the known endpoints. If its
    /// number proves that it is, its id is wrong. The capture may lack frames in between, and the
    /// endpoints may be the next ones.
    fn ends_after_a_break(
        &mut self,
        place: FrameContext,
        lives: &Lives,
        frame: &PacketFrame,
        reading: &Reading,
        (me, you): (End, End),
    ) {
        let Qkey(used) = frame.qkey;
        // After packets of another protocol only the Q-key is known.
        let told = reading.named();
        let names_another = told.is_some_and(|told| self.sides[me].is_another(told));
        if self.speech.is_foreign() && (names_another || self.is_to_another(you, used)) {
            self.sides[me].run = frame.run.or(self.sides[me].run);
            self.begin_anew(lives, &[(me, true), (you, true)]);
            self.from_start = Some(begins(frame, reading));
            return;
        }
        let side = &self.sides[me];
        let (told, known) = (reading.connid, side.known());
        let is_other = told.is_some_and(|told| side.is_another(told));
        let is_to_another = self.is_to_another(you, used);
        // The numbers of arriving packets have gaps, so they prove less.
        let is_next = self.view.has_direction && place.is_own;
        let run = self.sides[me].run;
        self.sides[me].run = frame.run.or(run);
        // The first packet that arrives with another connection id than the near end's destination
        // is from a later endpoint, unless the capture is complete from the beginning.
        let is_first = run.is_none() && !is_next && (self.is_from_start() || !is_other);
        let follows = frame.run.is_none() || run == frame.run || is_first;
        let is_known = told.is_some() && known.is_none_or(|known| told == Some(known));
        let is_same = follows && (is_next || !is_to_another || is_known);
        if is_same || reading.raw_address().is_some() || !is_other && !is_to_another {
            return;
        }
        self.begin_anew(lives, &[(me, true), (you, true)]);
        self.from_start = Some(false);
    }

    /// Ends the conversation of its endpoints; the given ends belong to other endpoints from now
    /// on.
    fn begin_anew(&mut self, lives: &Lives, ends: &[(End, bool); 2]) {
        // The first request of an endpoint that begins with the present frame is not the previous
        // endpoint's.
        let born = [0, 1].map(|end| self.sides[end].born);
        // Findings in the present frame belong to the endpoints that begin with it.
        let of_present = self.findings.split_off(self.at);
        for side in &mut self.sides {
            side.born = side.born.filter(|&at| at <= side.last_frame);
        }
        self.end();
        self.settle(lives);
        self.ends_speech();
        self.findings = of_present;
        for (side, born) in self.sides.iter_mut().zip(born) {
            side.born = born;
        }
        let count = if ends[0].0 == ends[1].0 { 1 } else { 2 };
        for &(end, is_another) in &ends[..count] {
            let side = &mut self.sides[end];
            let (connid, addressed) = (side.connid, side.addressed);
            side.renew(is_another);
            side.connid = connid.filter(|_| !is_another);
            side.addressed = addressed.filter(|_| !is_another);
        }
        self.operations = Operations::default();
        self.has_failed = false;
    }

    fn check_features(
        &mut self,
        place: FrameContext,
        packet_type: PacketType,
        (me, you): (End, End),
    ) {
        let peer = self.sides[you].node;
        // Every endpoint accepts packets that need no feature.
        let needs_none = ExtraFeatures::empty().permit(packet_type);
        // A PEER_ERROR to an endpoint with the same node is sent to itself, which needs no
        // HANDSHAKE.
        let is_itself = packet_type == PacketType::PeerError && self.sides[me].node == peer;
        if needs_none || is_itself {
            return;
        }
        if self.sides[you].handshake.is_some() {
            if !self.sides[you].features.permit(packet_type) {
                let name = feature_names(packet_type);
                let text = format!("{peer} has not announced {name}");
                self.breach(place, packet_type, &rules::FEATURE_ANNOUNCED, text);
            }
        } else if self.is_from_start() {
            let name = feature_names(packet_type);
            let text = format!("{peer} has announced nothing yet, so not {name}");
            self.breach(place, packet_type, &rules::FEATURE_EARLY, text);
            let early = &mut self.sides[me].early;
            if me != you && early.len() < MOST_EARLY {
                early.push((place, packet_type));
            }
        }
    }

    /// Judges the packets that `you` sent to `me` before the HANDSHAKE with the features of `me`.
    pub(super) fn check_early(&mut self, handshake: u64, me: End, you: End) {
        let (peer, features) = (self.sides[me].node, self.sides[me].features);
        for (place, packet_type) in std::mem::take(&mut self.sides[you].early) {
            if !features.permit(packet_type) {
                let name = feature_names(packet_type);
                let text = format!("the HANDSHAKE of {peer} in packet {handshake} lacks {name}");
                self.breach(place, packet_type, &rules::FEATURE_LACKED, text);
            }
        }
    }

    /// Judges whether a request has a raw address if it must.
    fn check_address(&mut self, place: FrameContext, reading: &Reading, me: End, you: End) {
        let packet_type = reading.packet_type;
        let is_constant = self.sides[you]
            .features
            .contains(ExtraFeatures::CONSTANT_HEADER_LENGTH);
        let sender = self.sides[me].node;
        if reading.raw_address().is_some() {
            if let Some(first) = self.sides[me].without_address
                && !is_constant
            {
                let text = format!(
                    "packet {first} has none, so {sender} had processed the HANDSHAKE by then"
                );
                self.breach(place, packet_type, &rules::RAW_ADDRESS_LAST, text);
            }
            return;
        }
        self.sides[me].without_address.get_or_insert(place.number);
        if self.sides[you].handshake.is_none() {
            if self.is_from_start() {
                let text = format!("{sender} has received no HANDSHAKE yet");
                self.breach(place, packet_type, &rules::RAW_ADDRESS_FIRST, text);
            }
        } else if is_constant {
            let text = format!(
                "{} asked for headers of constant length",
                self.sides[you].node
            );
            self.breach(place, packet_type, &rules::CONSTANT_HEADER, text);
        }
    }

    /// Judges whether the peer has requested the optional connid of a packet.
    fn check_connid_asked(&mut self, place: FrameContext, reading: &Reading, you: End) {
        let is_optional = reading.request.is_some() || reading.packet_type == PacketType::CtsData;
        if reading.connid.is_none() || !is_optional || self.sides[you].handshake.is_none() {
            return;
        }
        if !self.sides[you]
            .features
            .contains(ExtraFeatures::CONNID_HEADER)
        {
            let text = format!("{} has not asked for it", self.sides[you].node);
            self.breach(place, reading.packet_type, &rules::CONNID_UNASKED, text);
        }
    }

    /// Records that one of the requests of `me` was refused.
    pub(super) fn refused(&mut self, me: End) {
        self.sides[me].refusals += 1;
    }

    /// Records that `me` has sent a due answer.
    pub(super) fn answered(
        &mut self,
        place: FrameContext,
        packet_type: PacketType,
        me: End,
        id: OpId,
    ) {
        let side = &mut self.sides[me];
        side.answered.get_or_insert((place.number, packet_type));
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let Some(due) = operation.due.take_if(|due| due.from == me) else {
            return;
        };
        let progress = &mut side.come_to;
        progress.arrival = progress.arrival.max(Some(due.serial));
        if progress.recent.len() >= MOST_RECENT {
            progress.recent.pop_front();
        }
        progress.recent.push_back(due.serial);
        match due.turn {
            Turn::Arrival => {}
            Turn::Match(tag, msg_id) => {
                if progress.matched.len() > 1024 {
                    progress.matched.clear();
                }
                let latest = progress.matched.entry(tag).or_insert(msg_id);
                *latest = later(*latest, msg_id);
            }
            Turn::Atomic(msg_id) => {
                progress.atomic = Some(progress.atomic.map_or(msg_id, |id| later(id, msg_id)));
            }
        }
        for key in &operation.keys {
            if !progress.keys.contains(key) && progress.keys.len() < 256 {
                progress.keys.push(*key);
            }
        }
    }

    /// Whether an endpoint has sent answers that had to wait for one that is still due.
    fn is_overdue(&self, due: &Due, keys: &[u64]) -> bool {
        // The far end's order of arrivals is not known.
        let side = &self.sides[due.from];
        if due.from != 0
            || !self.has_order()
            || self.has_failed
            || side.refusals > 0
            || !self.is_from_start()
        {
            return false;
        }
        let progress = &side.come_to;
        let came_later = match due.turn {
            Turn::Arrival => progress.arrival.is_some_and(|arrival| arrival > due.serial),
            Turn::Match(tag, msg_id) => progress
                .matched
                .get(&tag)
                .is_some_and(|&latest| latest != msg_id && later(latest, msg_id) == latest),
            Turn::Atomic(msg_id) => progress
                .atomic
                .is_some_and(|latest| latest != msg_id && later(latest, msg_id) == latest),
        };
        let has_read = due.ripe.is_some_and(|ripe| {
            let later = progress.recent.iter().filter(|answered| **answered > ripe);
            later.count() >= PROVES_READ
        });
        // A request with a wrong key gets no answer, so only keys of answered requests count.
        (came_later || has_read) && keys.iter().all(|key| progress.keys.contains(key))
    }

    /// Judges the incomplete operations at the end of the conversation.
    pub(super) fn end(&mut self) {
        self.end_of_handshakes();
        self.end_of_sequences();
        self.end_of_operations();
    }

    /// The frame of packet `number`, to which `end` never reacted.
    fn place_of(&self, end: End, number: u64) -> FrameContext {
        FrameContext {
            number,
            interface: self.interface,
            sender: end,
            // The far end's omissions are judged in its own conversation.
            is_judged: end == 0,
            is_own: end == 0,
        }
    }

    fn end_of_handshakes(&mut self) {
        if !self.is_from_start() || self.has_failed {
            return;
        }
        let side = &self.sides[0];
        let peer = if side.node == self.sides[1].node {
            0
        } else {
            1
        };
        let (Some(heard), None) = (self.sides[peer].first, side.handshake) else {
            return;
        };
        let is_proven = side.answered.is_some() && side.refusals == 0;
        let Some((number, packet_type)) = side.answered.or(side.went_on) else {
            return;
        };
        let text = format!(
            "{} heard from {} in packet {heard} and never sent it a HANDSHAKE",
            side.node, self.sides[peer].node
        );
        let place = self.place_of(0, number);
        let rule = &rules::HANDSHAKE_ANSWER;
        self.suspect(place, packet_type, rule, is_proven, text);
    }

    fn end_of_sequences(&mut self) {
        for (msg_id, refused, behind) in self.sides[0].abandoned() {
            let (number, packet_type) = refused.first;
            let text = format!(
                "message {msg_id} was refused and not sent again, {behind} messages were begun after that"
            );
            let place = self.place_of(0, number);
            let rule = &rules::MSG_ID_REFUSED;
            let requests = &self.sides[0].requests;
            let has_attempts = !refused.is_repeated || requests.keeps_equal_frames();
            let has_order = self.has_order() && !self.has_failed;
            let is_proven = behind >= PROOF as u64 && has_order && has_attempts;
            self.suspect(place, packet_type, rule, is_proven, text);
        }
        let is_whole = self.has_order() && !self.has_failed && self.sides[0].refusals == 0;
        let gaps = self.sides[0].sequence.gaps();
        // The capture may lack earlier messages.
        if !self.is_from_start() {
            return;
        }
        for gap in gaps {
            self.gap(gap, self.interface);
        }
        let unfinished: Vec<_> = self.sides[0]
            .sequence
            .unfinished()
            .map(|(part, is_proven)| {
                (
                    part.first,
                    part.last,
                    part.shape,
                    part.operation,
                    part.runs.total(),
                    is_proven,
                )
            })
            .collect();
        for (first, last, shape, operation, sent, is_proven) in unfinished {
            let operation = operation.and_then(|id| self.operations.get(id));
            let sent = operation.map_or(sent, |operation| operation.sent());
            let text = format!(
                "{sent} of {} bytes of the message of packet {first} were sent",
                shape.in_requests
            );
            let place = self.place_of(0, last);
            let rule = &rules::MESSAGE_WHOLE;
            let is_proven = is_proven && is_whole;
            self.suspect(place, shape.packet_type, rule, is_proven, text);
        }
    }

    /// Reports messages that the near end has not sent.
    pub(super) fn gap(&mut self, gap: super::sequence::Gap, interface: usize) {
        let (rule, what) = match gap.is_first {
            true => (&rules::MSG_ID_FIRST, "begins with"),
            false => (&rules::MSG_ID_GAP, "goes on with"),
        };
        let (first, last) = gap.missing;
        let text = format!(
            "{} {what} message {}, messages {first} to {last} were never sent",
            self.sides[0].node,
            last.wrapping_add(1)
        );
        let place = FrameContext {
            interface,
            ..self.place_of(0, gap.packet)
        };
        let is_orderly = self.has_order() && !self.has_failed && self.sides[0].refusals == 0;
        let is_proven = gap.is_proven && is_orderly;
        self.suspect(place, gap.packet_type, rule, is_proven, text);
    }

    fn end_of_operations(&mut self) {
        let mut overdue = Vec::new();
        let mut unfinished = Vec::new();
        let is_orderly = self.has_order() && !self.has_failed && self.sides[0].refusals == 0;
        for operation in self.operations.all() {
            if operation.has_failed || operation.is_done {
                continue;
            }
            if let Some(due) = operation.due
                && due.from == 0
            {
                overdue.push((
                    due,
                    self.is_overdue(&due, &operation.keys),
                    operation.request,
                ));
            }
            if operation.source == 0
                && operation.kind != super::operation::OperationKind::LongRead
                && operation.sent() < operation.granted.min(operation.length)
                && let Some((opened, before)) = operation.window
            {
                let later = self.sides[0].filled.iter().filter(|&&at| at > opened);
                let is_proven = is_orderly && before == operation.sent() && later.count() >= 4;
                unfinished.push((
                    operation.request,
                    operation.packet_type,
                    operation.sent(),
                    operation.granted,
                    is_proven,
                ));
            }
        }
        overdue.sort_by_key(|(due, ..)| due.serial);
        unfinished.sort_unstable_by_key(|(request, ..)| *request);
        for (due, is_proven, request) in overdue {
            let text = format!(
                "{} owes the {} for packet {request}",
                self.sides[0].node, due.what
            );
            let place = self.place_of(0, due.packet);
            let rule = &rules::ANSWER_MISSING;
            self.suspect(place, due.packet_type, rule, is_proven, text);
        }
        for (request, packet_type, sent, granted, is_proven) in unfinished {
            let text = format!("{sent} bytes were sent, {granted} were granted");
            let place = self.place_of(0, request);
            let rule = &rules::MESSAGE_WHOLE;
            self.suspect(place, packet_type, rule, is_proven, text);
        }
    }

    /// Ends the conversation, and decides whether it used the RDM protocol. `lacks_frames`: the
    /// other end's host captured frames that are missing here. `lossy`: the interfaces that lack
    /// frames.
    pub(super) fn close(
        mut self,
        report: &mut Report,
        lives: &Lives,
        lacks_frames: bool,
        lossy: &BTreeSet<usize>,
    ) {
        self.at = AT_THE_END;
        self.end();
        self.settle(lives);
        self.ends_speech();
        let checked = &mut report.checked;
        checked.foreign += self.foreign.packets;
        // A truncated packet proves nothing.
        if let Some((packet, last)) = self.foreign.last
            && self.foreign.packets > 0
            && !self.is_torn
        {
            let [near, far] = &self.sides;
            let Speech { valid, invalid, .. } = self.foreign;
            let text = format!(
                "{} sends between {} and {}, of which {valid} could be RDM packets",
                valid + invalid,
                near.node,
                far.node
            );
            let finding = Finding {
                rule: &rules::NOT_RDM,
                severity: rules::NOT_RDM.severity,
                packet,
                kind: last.map_or_else(|kind| kind, |packet_type| packet_type.to_string()),
                interface: self.interface,
                text,
            };
            let at = self.at;
            report.findings.add(Found { finding, at });
        }
        let Some(mut rdm) = self.rdm else { return };
        let is_lossy = |interface: usize| match self.view.has_direction {
            true => lossy.contains(&interface),
            false => !lossy.is_empty(),
        };
        rdm.unproven += rdm.proven.retain(|evidence, interface| {
            evidence == Evidence::Packet || !lacks_frames && !is_lossy(interface)
        });
        checked.packets += rdm.packets;
        checked.conversations += u64::from(rdm.packets > 0);
        checked.unproven += rdm.unproven;
        let is_incomplete = rdm.lacks_direction || lacks_frames || self.is_torn;
        let lacks_order = !self.view.has_direction && rdm.packets > 0;
        checked.not_judged.without_direction += u64::from(is_incomplete);
        checked.not_judged.without_order += u64::from(lacks_order && !is_incomplete);
        checked.not_judged.without_beginning += u64::from(rdm.lacks_beginning && !is_incomplete);
        report.findings.append(rdm.proven);
    }
}

/// The later of two msg_ids, which wrap.
fn later(one: u32, other: u32) -> u32 {
    if one.wrapping_sub(other) < 1 << 31 {
        one
    } else {
        other
    }
}

/// A packet's frame and its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketFrame {
    pub(super) from: NodeId,
    pub(super) qkey: Qkey,
    pub(super) sequence: u32,
    pub(super) retransmission: bool,
    /// Whether the capture has all packets that the near end has sent since it was created.
    pub(super) is_from_birth: bool,
    /// Its run of consecutive requests of the queue pair; unknown for a repetition.
    pub(super) run: Option<u64>,
    /// The life of the sender's queue pair.
    pub(super) birth: Birth,
}

/// Whether a packet can only be the first of a conversation: the first request of a queue pair,
/// message 0 to a peer to which the sender is still unknown, or a request for a handshake.
fn begins(frame: &PacketFrame, reading: &Reading) -> bool {
    if reading.raw_address().is_none() {
        return false;
    }
    let is_first = frame.sequence == 0 && !frame.retransmission;
    is_first
        || match reading.said {
            PacketBody::Message(message) => match (message.msg_id, message.rma_iov) {
                (Some(msg_id), _) => msg_id.0 == 0,
                (None, iov) => iov.is_some_and(|iov| iov.count() == 0),
            },
            PacketBody::Atomic(atomic) => atomic.msg_id == 0,
            _ => false,
        }
}

/// The names of the features of which a receiver of such packets must have announced one.
fn feature_names(packet_type: PacketType) -> String {
    let needed = packet_type.needs_any_of();
    let names: Vec<_> = needed.iter_names().map(|(name, _)| name).collect();
    names.join(" or ")
}
