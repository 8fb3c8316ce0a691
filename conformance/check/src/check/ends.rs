//! What is due in a conversation, and what is missing at its end.

use std::collections::BTreeSet;

use efa_wire::PacketType;
use efa_wire::rules::{self, Evidence};

use super::completeness::Lifetimes;
use super::conversation::Conversation;
use super::frame::FrameContext;
use super::operation::{AnswerOrder, DueAnswer, End, OpId};
use super::protocol_detection::ProtocolDetection;
use super::report::{AT_THE_END, Finding, LocatedFinding, Report};
use super::sequence::PROOF;

/// This number of answers to later arrivals proves that an endpoint has processed the end of a
/// read: completions of reads and of receives may wait in two queues.
const PROVES_READ: usize = 4;
/// The number of answers that are kept.
const MOST_RECENT: usize = 64;

impl Conversation {
    /// Records that `me` has sent a due answer.
    pub(super) fn answered(
        &mut self,
        context: FrameContext,
        packet_type: PacketType,
        me: End,
        id: OpId,
    ) {
        let side = &mut self.sides[me];
        side.answered.get_or_insert((context.number, packet_type));
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
            AnswerOrder::Arrival => {}
            AnswerOrder::Match(tag, msg_id) => {
                if progress.matched.len() > 1024 {
                    progress.matched.clear();
                }
                let latest = progress.matched.entry(tag).or_insert(msg_id);
                *latest = later(*latest, msg_id);
            }
            AnswerOrder::Atomic(msg_id) => {
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
    fn is_overdue(&self, due: &DueAnswer, keys: &[u64]) -> bool {
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
            AnswerOrder::Arrival => progress.arrival.is_some_and(|arrival| arrival > due.serial),
            AnswerOrder::Match(tag, msg_id) => progress
                .matched
                .get(&tag)
                .is_some_and(|&latest| latest != msg_id && later(latest, msg_id) == latest),
            AnswerOrder::Atomic(msg_id) => progress
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
    fn context_of(&self, end: End, number: u64) -> FrameContext {
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
        let context = self.context_of(0, number);
        let rule = &rules::HANDSHAKE_ANSWER;
        self.suspect(context, packet_type, rule, is_proven, text);
    }

    fn end_of_sequences(&mut self) {
        for (msg_id, refused, behind) in self.sides[0].abandoned() {
            let (number, packet_type) = refused.first;
            let text = format!(
                "message {msg_id} was refused and not sent again, {behind} messages were begun after that"
            );
            let context = self.context_of(0, number);
            let rule = &rules::MSG_ID_REFUSED;
            let requests = &self.sides[0].requests;
            let has_attempts = !refused.is_repeated || requests.keeps_equal_frames();
            let has_order = self.has_order() && !self.has_failed;
            let is_proven = behind >= PROOF as u64 && has_order && has_attempts;
            self.suspect(context, packet_type, rule, is_proven, text);
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
            let context = self.context_of(0, last);
            let rule = &rules::MESSAGE_WHOLE;
            let is_proven = is_proven && is_whole;
            self.suspect(context, shape.packet_type, rule, is_proven, text);
        }
    }

    /// Reports messages that the near end has not sent.
    pub(super) fn gap(&mut self, gap: super::sequence::IdGap, interface: usize) {
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
        let context = FrameContext {
            interface,
            ..self.context_of(0, gap.packet)
        };
        let is_orderly = self.has_order() && !self.has_failed && self.sides[0].refusals == 0;
        let is_proven = gap.is_proven && is_orderly;
        self.suspect(context, gap.packet_type, rule, is_proven, text);
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
                self.sides[0].node, due.answer
            );
            let context = self.context_of(0, due.packet);
            let rule = &rules::ANSWER_MISSING;
            self.suspect(context, due.packet_type, rule, is_proven, text);
        }
        for (request, packet_type, sent, granted, is_proven) in unfinished {
            let text = format!("{sent} bytes were sent, {granted} were granted");
            let context = self.context_of(0, request);
            let rule = &rules::MESSAGE_WHOLE;
            self.suspect(context, packet_type, rule, is_proven, text);
        }
    }

    /// Ends the conversation, and decides whether it used the RDM protocol. `lacks_frames`: the
    /// other end's host captured frames that are missing here. `lossy`: the interfaces that lack
    /// frames.
    pub(super) fn close(
        mut self,
        report: &mut Report,
        lifetimes: &Lifetimes,
        lacks_frames: bool,
        lossy: &BTreeSet<usize>,
    ) {
        self.at = AT_THE_END;
        self.end();
        self.settle(lifetimes);
        self.ends_detection();
        let checked = &mut report.checked;
        checked.foreign += self.foreign.packets;
        // A truncated packet proves nothing.
        if let Some((packet, kind)) = self.foreign.last
            && self.foreign.packets > 0
            && !self.is_torn
        {
            let [near, far] = &self.sides;
            let ProtocolDetection { valid, invalid, .. } = self.foreign;
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
                kind: kind.into_owned(),
                interface: self.interface,
                text,
            };
            let at = self.at;
            report.findings.add(LocatedFinding { finding, at });
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
