//! The packets between two endpoints, in the view of one of them.
//!
//! The view is that of the *near* end, in the order in which its host captured the frames. The near
//! end sends its packets in this order, and cannot react to packets that have not arrived. The
//! order in which the far end sent its packets is not known, but a packet that they answer arrived
//! before they were sent. If both hosts are captured, there are two conversations, and each packet
//! is judged in its sender's.

use efa_wire::address::Qkey;
use efa_wire::rules::{self, Evidence, Rule, Severity};
use efa_wire::{ExtraFeatures, PacketType, ParseError};

use super::completeness::Lifetimes;
use super::frame::{FrameContext, PacketFrame, begins};
use super::node::{Node, NodeId, Nodes, View};
use super::operation::{End, Operations};
use super::packet::{PacketBody, ParsedPacket};
use super::protocol_detection::{ProtocolDetection, UndirectedFrames};
use super::report::{Finding, Findings, LocatedFinding};
use super::side::Side;

/// The number of packets with a feature before the peer's HANDSHAKE that are kept.
const MOST_EARLY: usize = 16;

/// The packets between two endpoints, in the view of one of them.
#[derive(Debug)]
pub(super) struct Conversation {
    /// The end of the view, and whether its frames have directions.
    pub(super) view: View,
    /// The near end and the far end; an endpoint that sends to itself uses only the first.
    pub(super) sides: [Side; 2],
    pub(super) operations: Operations,
    /// Whether its beginning is in the capture; decided at the first packet.
    from_start: Option<bool>,
    /// Whether the queue pair numbers had earlier owners, which may have used another protocol.
    is_later: bool,
    /// Whether packets were truncated, so that the history is incomplete.
    pub(super) is_torn: bool,
    /// Whether a device refused a request permanently.
    pub(super) has_failed: bool,
    /// The sends of the present endpoints.
    detection: ProtocolDetection,
    /// The sends of earlier endpoints: of the RDM protocol, and of others.
    pub(super) rdm: Option<ProtocolDetection>,
    pub(super) foreign: ProtocolDetection,
    serial: u64,
    pub(super) interface: usize,
    /// The number of frames of the capture up to the present one.
    pub(super) at: u64,
    /// The Q-key that the near end sends to since it stated another receiver than before.
    target: Option<Qkey>,
    /// The findings about the present endpoints.
    findings: Findings,
    /// The captured frames without directions.
    pub(super) undirected: UndirectedFrames,
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
            detection: ProtocolDetection::default(),
            rdm: None,
            foreign: ProtocolDetection::default(),
            serial: 0,
            interface: 0,
            at: 0,
            target: None,
            findings: Findings::default(),
            undirected: UndirectedFrames::default(),
            has_stray_answer: false,
        }
    }

    /// Sets the time of the first request of `me`'s queue pair, if the capture has it.
    pub(super) fn set_first_request(&mut self, me: End, at: Option<u64>) {
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

    /// Handles an answer to a request of `initiator`.
    pub(super) fn sees_answer(&mut self, initiator: End, sequence: u32) {
        let is_known = self.sides[initiator].requests.knows(sequence);
        self.has_stray_answer |= !is_known;
    }

    /// Drops the findings without evidence in the capture.
    pub(super) fn settle(&mut self, lifetimes: &Lifetimes) {
        let [near, far] = &self.sides;
        let is_own = near.node == far.node;
        let has_both = is_own || near.frames > 0 && far.frames > 0;
        let has_directions = self.view.has_direction;
        let has_possible_order = has_directions || self.undirected.has_possible_order();
        let was_born = |side: &Side, is_own| {
            let owner = (has_directions, side.id);
            let (after, until) = (side.former_frame, side.last_frame);
            side.born.is_some() || lifetimes.began_between(owner, is_own, after, until)
        };
        let has_arrivals = has_directions && lifetimes.has_all_arrivals(near.id);
        let has_beginning = has_both
            && has_possible_order
            && self.from_start == Some(true)
            && was_born(near, has_directions)
            && (is_own || was_born(far, false) || has_arrivals);
        // If the captures of two hosts begin at different times, some first copies are the second.
        // A tool may have removed all others.
        let has_first_copies = has_beginning && !self.has_stray_answer;
        let may_have_copies = self.undirected.has_copies() || self.undirected.is_late;
        let is_in_order = !may_have_copies || has_first_copies;
        let has_history = has_both && has_possible_order && (has_directions || is_in_order);
        let is_talk = near.frames + far.frames > 0 && self.from_start.is_some();
        let detection = &mut self.detection;
        detection.lacks_direction |= is_talk && !has_both;
        detection.lacks_beginning |= is_talk && has_both && !has_beginning;
        detection.unproven += self.findings.retain(|evidence, _| match evidence {
            Evidence::Packet => true,
            Evidence::History | Evidence::Sender => has_history,
            Evidence::Beginning => has_beginning,
        });
        detection.proven.append(std::mem::take(&mut self.findings));
    }

    /// Decides which protocol was spoken, and starts again for the next endpoints.
    pub(super) fn ends_detection(&mut self) {
        let detection = std::mem::take(&mut self.detection);
        if detection.is_foreign() {
            self.foreign.append(detection);
        } else {
            self.detection.follows_rdm = detection.is_of_rdm();
            self.rdm.get_or_insert_default().append(detection);
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
        context: FrameContext,
        kind: impl ToString,
        rule: &'static Rule,
        text: String,
    ) {
        self.find(context, kind.to_string(), rule, rule.severity, text);
    }

    /// Reports a breach, as a note unless it is proven.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn suspect(
        &mut self,
        context: FrameContext,
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
        self.find(context, kind.to_string(), rule, severity, text);
    }

    fn find(
        &mut self,
        context: FrameContext,
        kind: String,
        rule: &'static Rule,
        severity: Severity,
        text: String,
    ) {
        let needs_history = rule.evidence != Evidence::Packet;
        if !context.is_judged || self.is_torn && needs_history {
            return;
        }
        if rule.evidence == Evidence::Sender && self.sides[context.sender].born.is_none() {
            self.detection.unproven += 1;
            return;
        }
        let finding = Finding {
            rule,
            severity,
            packet: context.number,
            kind,
            interface: context.interface,
            text,
        };
        let at = self.at;
        self.findings.add(LocatedFinding { finding, at });
    }

    /// Handles a send that cannot be parsed as an RDM packet.
    pub(super) fn malformed(
        &mut self,
        context: FrameContext,
        lifetimes: &Lifetimes,
        frame: &PacketFrame,
        kind: String,
        error: &ParseError,
    ) {
        let (me, you) = self.ends(frame.from);
        let Qkey(used) = frame.qkey;
        // The present owners of the queue pairs may use another protocol.
        let is_first = frame.sequence == 0 && !frame.retransmission;
        let is_restart = context.is_own && is_first && self.sides[me].first.is_some();
        let is_to_unknown = self.detection.is_rdm && self.sides[you].known().is_none();
        if is_restart || is_to_unknown || self.is_to_another(you, used) {
            self.begin_anew(lifetimes, &[(me, true), (you, true)]);
            self.from_start = None;
            self.is_later = true;
        }
        self.sides[you].addressed.get_or_insert(used);
        self.interface = context.interface;
        self.detection.invalid += 1;
        self.detection.packets += u64::from(context.is_judged);
        self.detection.last = Some((context.number, kind.clone().into()));
        self.breach(context, kind, &rules::PACKET_FORM, error.to_string());
    }

    /// Handles a truncated packet.
    pub(super) fn torn(&mut self) {
        self.is_torn = true;
    }

    /// Handles a packet. Returns sender and receiver if its operation has to be followed.
    pub(super) fn packet(
        &mut self,
        context: FrameContext,
        lifetimes: &Lifetimes,
        frame: &PacketFrame,
        parsed: &ParsedPacket,
        is_repetition: bool,
    ) -> Option<(End, End)> {
        self.interface = context.interface;
        if self.from_start.is_none() {
            // A packet without an address that arrives first may be a late one, for a predecessor.
            // An endpoint that begins with an answer has received packets that are not in the
            // capture.
            let is_beginning = match context.is_own {
                true => parsed.request.is_some(),
                false => parsed.raw_address().is_some(),
            };
            let is_from_start = frame.is_from_start && is_beginning && !self.is_later;
            self.from_start = Some(is_from_start || begins(frame, parsed));
        }
        let (me, you) = self.ends(frame.from);
        // As long as its numbers go on, the queue pair has not been replaced.
        let is_same = self.view.has_direction
            && context.is_own
            && frame.run.is_some()
            && frame.run == self.sides[me].named_run;
        self.ends_after_a_break(context, lifetimes, frame, parsed, (me, you));
        let is_present =
            !is_repetition && self.identify(context, lifetimes, frame, parsed, (me, you), is_same);
        self.hear(me, parsed);
        let packet_type = parsed.packet_type;
        self.detection.packets += u64::from(context.is_judged && !is_repetition);
        self.detection.last = Some((context.number, packet_type.name().into()));
        if !is_present {
            return None;
        }
        self.check_features(context, packet_type, (me, you));
        if parsed.request.is_some() {
            self.check_address(context, parsed, me, you);
        }
        self.check_connid_asked(context, parsed, you);
        let side = &mut self.sides[me];
        side.first.get_or_insert(context.number);
        if packet_type != PacketType::Handshake && self.sides[you].first.is_some() {
            let side = &mut self.sides[me];
            side.went_on.get_or_insert((context.number, packet_type));
        }
        Some((me, you))
    }

    /// Handles a packet that could be one of the RDM protocol, and may prove that it is.
    fn hear(&mut self, me: End, parsed: &ParsedPacket) {
        self.detection.valid += 1;
        let names_sender = parsed.raw_address().is_some_and(|address| {
            Node {
                gid: address.gid,
                qpn: address.qpn.0,
            } == self.sides[me].node
        });
        self.detection.is_rdm |= names_sender || matches!(parsed.body, PacketBody::Handshake(_));
    }

    /// Judges the identification of the packet's sender and receiver. Returns whether they are the
    /// present owners of their queue pairs. `is_same`: the sender's is the owner that stated its
    /// connection id last.
    fn identify(
        &mut self,
        context: FrameContext,
        lifetimes: &Lifetimes,
        frame: &PacketFrame,
        parsed: &ParsedPacket,
        (me, you): (End, End),
        is_same: bool,
    ) -> bool {
        let packet_type = parsed.packet_type;
        let raw = parsed.raw_address();
        if let Some(address) = raw {
            let named = Node {
                gid: address.gid,
                qpn: address.qpn.0,
            };
            let sender = self.sides[me].node;
            if named != sender {
                let text = format!("it names {named}, but was sent by {sender}");
                self.breach(context, packet_type, &rules::RAW_ADDRESS_TRUE, text);
            }
        }
        let Qkey(used) = frame.qkey;
        let known = self.sides[me].connid.map(|(connid, _)| connid);
        let named = parsed.named();
        if frame.qp_generation.generation > self.sides[me].generation {
            self.sides[me].generation = frame.qp_generation.generation;
            if frame.qp_generation.keeps_connid && known.is_some() && known == named {
                self.begins_with_old_connid(context, lifetimes, packet_type, (me, you));
            }
        }
        if context.is_own && self.target.is_some_and(|target| target != frame.qkey) {
            // It sends to the earlier endpoint and to the later one, with two counts of messages.
            self.from_start = Some(false);
        }
        if let Some(Qkey(connid)) = raw.map(|address| address.qkey) {
            if self.sides[me].is_another(connid) && !is_same {
                // The queue pair now belongs to another endpoint: both ends restart their numbers.
                self.sides[me].retire();
                let is_same_peer = self.sides[you].connid.is_some_and(|(peer, _)| peer == used);
                self.begin_anew(lifetimes, &[(me, true), (you, !is_same_peer)]);
                self.sides[me].connid = Some((connid, context.number));
                self.from_start = Some(begins(frame, parsed));
            } else if me != you && self.is_to_another(you, used) {
                // The HANDSHAKE is for the next endpoint on the queue pair, or it is wrong.
                self.begin_anew(lifetimes, &[(me, false), (you, true)]);
                // The capture has all packets of the near end to the next endpoint.
                let is_first = context.is_own && self.target.is_none();
                self.from_start = Some(is_first && self.from_start == Some(true));
                self.target = Some(frame.qkey);
            }
        }
        let told = [
            (raw.map(|address| address.qkey.0), "raw_addr.connid"),
            (parsed.connid, "connid"),
        ];
        for (connid, field) in told {
            let Some(connid) = connid else { continue };
            let side = &mut self.sides[me];
            if side.is_former(connid) {
                let text = format!("`{field}` is {connid:#x}, of an earlier endpoint");
                self.breach(context, packet_type, &rules::LATE_PACKET, text);
                return false;
            }
            let (known, first) = *side.connid.get_or_insert((connid, context.number));
            if known == connid {
                side.named_run = frame.run.or(side.named_run);
            } else {
                let text = format!(
                    "`{field}` is {connid:#x}, but packet {first} shows that {} has {known:#x}",
                    side.node
                );
                self.breach(context, packet_type, &rules::CONNID_TRUE, text);
            }
        }
        if let Some((connid, first)) = self.sides[you].connid
            && connid != used
        {
            if self.sides[you].is_former(used) {
                let text = format!("it is sent to Q-key {used:#x}, of an earlier endpoint");
                self.breach(context, packet_type, &rules::LATE_PACKET, text);
                return false;
            }
            let text = format!(
                "it is sent to Q-key {used:#x}, but packet {first} shows that {} has {connid:#x}",
                self.sides[you].node
            );
            self.breach(context, packet_type, &rules::QKEY_TRUE, text);
        }
        self.sides[you].addressed = Some(used);
        if let Some(connid) = named {
            self.sides[me].confirm(connid, self.at);
        }
        self.sides[you].confirm(used, self.at);
        true
    }

    /// Handles a new endpoint with the connection id of the queue pair's previous owner. Its peer
    /// cannot detect this, and continues.
    fn begins_with_old_connid(
        &mut self,
        context: FrameContext,
        lifetimes: &Lifetimes,
        packet_type: PacketType,
        (me, you): (End, End),
    ) {
        let Some((connid, first)) = self.sides[me].connid else {
            return;
        };
        let text =
            format!("the queue pair begins anew, and `connid` is {connid:#x} as in packet {first}");
        self.breach(context, packet_type, &rules::CONNID_FRESH, text);
        self.begin_anew(lifetimes, &[(me, true), (you, false)]);
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
        context: FrameContext,
        lifetimes: &Lifetimes,
        frame: &PacketFrame,
        parsed: &ParsedPacket,
        (me, you): (End, End),
    ) {
        let Qkey(used) = frame.qkey;
        // After packets of another protocol only the Q-key is known.
        let told = parsed.named();
        let names_another = told.is_some_and(|told| self.sides[me].is_another(told));
        if self.detection.is_foreign() && (names_another || self.is_to_another(you, used)) {
            self.sides[me].run = frame.run.or(self.sides[me].run);
            self.begin_anew(lifetimes, &[(me, true), (you, true)]);
            self.from_start = Some(begins(frame, parsed));
            return;
        }
        let side = &self.sides[me];
        let (told, known) = (parsed.connid, side.known());
        let is_other = told.is_some_and(|told| side.is_another(told));
        let is_to_another = self.is_to_another(you, used);
        // The numbers of arriving packets have gaps, so they prove less.
        let is_next = self.view.has_direction && context.is_own;
        let run = self.sides[me].run;
        self.sides[me].run = frame.run.or(run);
        // The first packet that arrives with another connection id than the near end's destination
        // is from a later endpoint, unless the capture is complete from the beginning.
        let is_first = run.is_none() && !is_next && (self.is_from_start() || !is_other);
        let follows = frame.run.is_none() || run == frame.run || is_first;
        // If its id became known after the last packet with the peer's old one, both are new.
        let is_known =
            told.is_some() && told == known && self.sides[me].is_known_with(&self.sides[you]);
        let is_same = follows && (is_next || !is_to_another || is_known);
        if is_same || parsed.raw_address().is_some() || !is_other && !is_to_another {
            return;
        }
        self.begin_anew(lifetimes, &[(me, true), (you, true)]);
        self.from_start = Some(false);
    }

    /// Ends the conversation of its endpoints; the given ends belong to other endpoints from now
    /// on.
    fn begin_anew(&mut self, lifetimes: &Lifetimes, ends: &[(End, bool); 2]) {
        // The first request of an endpoint that begins with the present frame is not the previous
        // endpoint's.
        let born = [0, 1].map(|end| self.sides[end].born);
        // Findings in the present frame belong to the endpoints that begin with it.
        let of_present = self.findings.split_off(self.at);
        for side in &mut self.sides {
            side.born = side.born.filter(|&at| at <= side.last_frame);
        }
        self.end();
        self.settle(lifetimes);
        self.ends_detection();
        self.findings = of_present;
        for (side, born) in self.sides.iter_mut().zip(born) {
            side.born = born;
        }
        let count = if ends[0].0 == ends[1].0 { 1 } else { 2 };
        for &(end, is_another) in &ends[..count] {
            let side = &mut self.sides[end];
            let (connid, addressed) = (side.connid, side.addressed);
            let confirmed = side.confirmed.take();
            side.renew(is_another);
            side.connid = connid.filter(|_| !is_another);
            side.addressed = addressed.filter(|_| !is_another);
            side.confirmed = confirmed.filter(|_| !is_another);
        }
        self.operations = Operations::default();
        self.has_failed = false;
    }

    fn check_features(
        &mut self,
        context: FrameContext,
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
                self.breach(context, packet_type, &rules::FEATURE_ANNOUNCED, text);
            }
        } else if self.is_from_start() {
            let name = feature_names(packet_type);
            let text = format!("{peer} has announced nothing yet, so not {name}");
            self.breach(context, packet_type, &rules::FEATURE_EARLY, text);
            let early = &mut self.sides[me].early;
            if me != you && early.len() < MOST_EARLY {
                early.push((context, packet_type));
            }
        }
    }

    /// Judges the packets that `you` sent to `me` before the HANDSHAKE with the features of `me`.
    pub(super) fn check_early(&mut self, handshake: u64, me: End, you: End) {
        let (peer, features) = (self.sides[me].node, self.sides[me].features);
        for (context, packet_type) in std::mem::take(&mut self.sides[you].early) {
            if !features.permit(packet_type) {
                let name = feature_names(packet_type);
                let text = format!("the HANDSHAKE of {peer} in packet {handshake} lacks {name}");
                self.breach(context, packet_type, &rules::FEATURE_LACKED, text);
            }
        }
    }

    /// Judges whether a request has a raw address if it must.
    fn check_address(&mut self, context: FrameContext, parsed: &ParsedPacket, me: End, you: End) {
        let packet_type = parsed.packet_type;
        let is_constant = self.sides[you]
            .features
            .contains(ExtraFeatures::CONSTANT_HEADER_LENGTH);
        let sender = self.sides[me].node;
        if parsed.raw_address().is_some() {
            if let Some(first) = self.sides[me].without_address
                && !is_constant
            {
                let text = format!(
                    "packet {first} has none, so {sender} had processed the HANDSHAKE by then"
                );
                self.breach(context, packet_type, &rules::RAW_ADDRESS_LAST, text);
            }
            return;
        }
        self.sides[me].without_address.get_or_insert(context.number);
        if self.sides[you].handshake.is_none() {
            if self.is_from_start() {
                let text = format!("{sender} has received no HANDSHAKE yet");
                self.breach(context, packet_type, &rules::RAW_ADDRESS_FIRST, text);
            }
        } else if is_constant {
            let text = format!(
                "{} asked for headers of constant length",
                self.sides[you].node
            );
            self.breach(context, packet_type, &rules::CONSTANT_HEADER, text);
        }
    }

    /// Judges whether the peer has requested the optional connid of a packet.
    fn check_connid_asked(&mut self, context: FrameContext, parsed: &ParsedPacket, you: End) {
        let is_optional = parsed.request.is_some() || parsed.packet_type == PacketType::CtsData;
        if parsed.connid.is_none() || !is_optional || self.sides[you].handshake.is_none() {
            return;
        }
        if !self.sides[you]
            .features
            .contains(ExtraFeatures::CONNID_HEADER)
        {
            let text = format!("{} has not asked for it", self.sides[you].node);
            self.breach(context, parsed.packet_type, &rules::CONNID_UNASKED, text);
        }
    }

    /// Records that one of the requests of `me` was refused.
    pub(super) fn refused(&mut self, me: End) {
        self.sides[me].refusals += 1;
    }
}

/// The names of the features of which a receiver of such packets must have announced one.
fn feature_names(packet_type: PacketType) -> String {
    let needed = packet_type.needs_any_of();
    let names: Vec<_> = needed.iter_names().map(|(name, _)| name).collect();
    names.join(" or ")
}
