//! The packets that end a message or write: EOR, RECEIPT and READ_NACK.

use efa_capture::frame::header::FIRST_TAPPED_SEQUENCE;
use efa_wire::PacketType;
use efa_wire::rules;

use super::follower::Follower;
use crate::check::frame::FrameContext;
use crate::check::operation::{Operation, OperationKind};
use crate::check::packet::AnswerIds;
use crate::check::side::SEND_IDS;

impl Follower<'_> {
    /// Handles an EOR, which ends a read-based operation, or a RECEIPT, which ends one with
    /// delivery complete and contains the id of its message.
    pub(super) fn acknowledge(&mut self, send_id: u32, receipt_of: Option<u32>) {
        let is_eor = receipt_of.is_none();
        let Some(id) = self.named(&SEND_IDS, send_id, |operation| match is_eor {
            true => operation.is_to_be_read,
            false => operation.delivery_complete,
        }) else {
            return;
        };
        self.answered(id);
        let number = self.context.number;
        // A tap does not capture the reads of peers that its device serves.
        let is_tapped = self.sequence >= FIRST_TAPPED_SEQUENCE;
        // A capture without directions does not show the end of a read that its frames belong to.
        let reads_are_seen = self.conversation.has_order() && !is_tapped;
        let Some(operation) = self.operation(id) else {
            return;
        };
        let request = operation.request;
        let (is_message, msg_id) = (operation.is_message, operation.msg_id);
        if is_message && receipt_of.is_some() && receipt_of != msg_id {
            let (receipt, is) = (receipt_of.unwrap_or(0), msg_id.unwrap_or(0));
            let text = format!("its msg_id is {receipt}, send_id {send_id} names message {is}");
            self.breach(&rules::RECEIPT_MESSAGE, text);
        }
        let Some(operation) = self.operation(id) else {
            return;
        };
        let before = operation.acknowledged.replace(number);
        let short_runt = is_eor
            .then(|| ShortRunt::of(operation))
            .flatten()
            .filter(|_| self.conversation.is_from_start());
        if let Some(runt) = short_runt {
            self.short_runt(&runt, is_tapped);
        }
        let Some(operation) = self.operation(id) else {
            return;
        };
        let is_early = if is_eor {
            let reads_are_known = reads_are_seen
                && !operation.shares_memory
                && !operation.regions.is_empty()
                && operation.length > operation.in_requests;
            let begun = operation.reads_begun;
            let text = match operation.reads_under_way {
                _ if begun == 0 => "none of its memory was read".to_owned(),
                under_way => format!("{under_way} of {begun} reads of its memory are under way"),
            };
            let is_early = begun == 0 || operation.reads_under_way > 0;
            (reads_are_known && is_early && operation.nacked.is_none()).then_some(text)
        } else {
            let (sent, length) = (operation.sent(), operation.length);
            (sent < length).then(|| format!("{sent} of {length} bytes had arrived"))
        };
        let is_refused = operation.nacked.is_some();
        if let Some(before) = before {
            let text =
                format!("the operation of packet {request} was acknowledged in packet {before}");
            self.breach(&rules::ONE_ANSWER, text);
        } else if let Some(text) = is_early
            && self.conversation.is_from_start()
        {
            let text = format!("{text} (packet {request})");
            let rule = if is_eor {
                &rules::EOR_EARLY
            } else {
                &rules::RECEIPT_EARLY
            };
            self.breach(rule, text);
        }
        if is_eor && is_refused {
            let text = format!("the read of packet {request} was refused before");
            self.breach(&rules::READ_NACK, text);
        }
        self.done(id);
    }

    /// Handles an EOR of a runting read with missing segments. If the peer has read the rest from
    /// that offset on, `runt_length` is wrong.
    fn short_runt(&mut self, runt: &ShortRunt, is_tapped: bool) {
        let ShortRunt { sent, length, .. } = *runt;
        if runt.read_from != Some(sent) || is_tapped {
            let text = format!("{sent} of {length} bytes of the runt had arrived");
            return self.breach(&rules::EOR_EARLY, text);
        }
        let text = format!("it says {length}, the segments have {sent} bytes");
        let context = FrameContext {
            number: runt.request,
            is_judged: runt.is_judged,
            ..self.context
        };
        let rule = &rules::RUNT_LENGTH;
        let kind = runt.packet_type;
        self.conversation.breach(context, kind, rule, text);
    }

    pub(super) fn refuse(&mut self, ids: AnswerIds) {
        let Some(id) = self.named(&SEND_IDS, ids.send_id, |_| true) else {
            return;
        };
        self.answered(id);
        let number = self.context.number;
        let Some(operation) = self.operation(id) else {
            return;
        };
        let request = operation.request;
        let is_readable = operation.kind == OperationKind::LongRead
            && operation.acknowledged.is_none()
            && operation.nacked.is_none();
        let (sent, runt) = (operation.sent(), operation.in_requests);
        let is_message = operation.is_message;
        operation.nacked.get_or_insert(number);
        if !is_readable {
            let text = format!("packet {request} is not to be read (any more)");
            self.breach(&rules::READ_NACK, text);
        } else if sent < runt && self.conversation.is_from_start() {
            let text = format!("{sent} of {runt} bytes of the runt had arrived");
            self.breach(&rules::NACK_RUNT, text);
        }
        if !is_message {
            // The write is repeated, as another operation.
            self.done(id);
        }
    }
}

/// A runting read that was acknowledged before all its segments had arrived.
struct ShortRunt {
    request: u64,
    packet_type: PacketType,
    is_judged: bool,
    /// The number of bytes in segments so far.
    sent: u64,
    /// The number of bytes in all segments, as these state it.
    length: u64,
    /// The offset in the message where the peer began to read.
    read_from: Option<u64>,
}

impl ShortRunt {
    fn of(operation: &Operation) -> Option<ShortRunt> {
        let is_short = operation.sent() < operation.in_requests && operation.nacked.is_none();
        is_short.then(|| ShortRunt {
            request: operation.request,
            packet_type: operation.packet_type,
            is_judged: operation.is_judged,
            sent: operation.sent(),
            length: operation.in_requests,
            read_from: operation.read_from,
        })
    }
}
