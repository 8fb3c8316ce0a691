//! RDMA reads and writes, and the completion of requests.

use efa_capture::frame::{Rdma, Repr};
use efa_wire::ExtraFeatures;
use efa_wire::Status;
use efa_wire::rules::{self, Rule};

use super::conversation::Conversation;
use super::device::RequestOutcome;
use super::frame::FrameContext;
use super::operation::End;

impl Conversation {
    /// Handles a request of `me` to read memory of `you`.
    pub(super) fn read_begins(
        &mut self,
        context: FrameContext,
        header: &Repr,
        rdma: &Rdma,
        (me, you): (End, End),
    ) {
        let remote = rdma.remote;
        let length = u64::from(rdma.total_length);
        let candidates = &self.sides[you].long_reads;
        let found = self
            .operations
            .read_by(candidates, remote.address, length, remote.key);
        if let Some(id) = found {
            self.sides[me].requests.belongs(header.sequence, id);
            if let Some(operation) = self.operations.get_mut(id) {
                let offset = operation.offset_of(remote.address, remote.key);
                operation.read_from = operation.read_from.or(offset);
                operation.reads_begun += 1;
                operation.reads_under_way += 1;
            }
            return;
        }
        let feature = ExtraFeatures::RDMA_READ;
        self.check_rdma(context, header, feature, (me, you));
    }

    /// Handles data of an RDMA read, from the owner of the memory to `you`.
    pub(super) fn read_data(&mut self, header: &Repr, rdma: &Rdma, you: End) {
        let ends_at = u64::from(rdma.offset) + u64::from(header.payload_length);
        if ends_at < u64::from(rdma.total_length) {
            return;
        }
        let serial = self.next_serial();
        let requests = &self.sides[you].requests;
        if let Some(id) = requests.operation(header.sequence)
            && let Some(operation) = self.operations.get_mut(id)
        {
            operation.reads_under_way = operation.reads_under_way.saturating_sub(1);
            operation.bytes_read += u64::from(rdma.total_length);
            let is_whole = operation.reads_under_way == 0
                && operation.sent() >= operation.in_requests
                && operation.in_requests.saturating_add(operation.bytes_read) >= operation.length;
            if let Some(due) = &mut operation.due
                && is_whole
                && !operation.shares_memory
            {
                due.ripe = Some(serial);
            }
        }
    }

    /// Handles a part of an RDMA write of `me` to memory of `you`.
    pub(super) fn write(
        &mut self,
        context: FrameContext,
        header: &Repr,
        rdma: &Rdma,
        (me, you): (End, End),
    ) {
        if rdma.offset == 0 {
            let feature = ExtraFeatures::RDMA_WRITE;
            self.check_rdma(context, header, feature, (me, you));
        }
        let both = [me, you].map(|end| {
            let side = &self.sides[end];
            let is_on = side
                .features
                .contains(ExtraFeatures::UNSOLICITED_WRITE_RECV);
            side.handshake.map(|_| is_on)
        });
        if let [Some(mine), Some(yours)] = both
            && header.immediate.is_some()
            && mine != yours
        {
            let says = |is_on| {
                if is_on {
                    "announced"
                } else {
                    "did not announce"
                }
            };
            let text = format!(
                "the writer {} it, the target {} it",
                says(mine),
                says(yours)
            );
            let rule = &rules::UNSOLICITED_WRITE;
            self.breach(context, header.kind.opcode(), rule, text);
        }
    }

    /// Checks whether the target has announced direct RDMA.
    fn check_rdma(
        &mut self,
        context: FrameContext,
        header: &Repr,
        feature: ExtraFeatures,
        (me, you): (End, End),
    ) {
        const RULE: &Rule = &rules::RDMA_ANNOUNCED;
        let peer = &self.sides[you];
        // A read may access memory that the peer has offered before the capture begins. The
        // HANDSHAKE of the same endpoint shows that it does not accept direct RDMA.
        let is_named = peer.handshake.is_some() && peer.known() == Some(header.qkey.0);
        let has_beginning = self.is_from_start() && self.sides[me].born.is_some();
        let needs_beginning = feature != ExtraFeatures::RDMA_WRITE || !is_named;
        if needs_beginning && !has_beginning {
            return;
        }
        let (is_proven, text) = match peer.handshake {
            Some(_) if peer.features.contains(feature) => return,
            Some(packet) => (true, format!("{} lacks it in packet {packet}", peer.node)),
            // libfabric 2.5 has a setting to assume homogeneous peers.
            None => (false, format!("{} has announced nothing yet", peer.node)),
        };
        self.suspect(context, header.kind.opcode(), RULE, is_proven, text);
    }

    /// Handles the completion of a request of `initiator`.
    pub(super) fn request_ends(&mut self, initiator: End, sequence: u32, status: Status) {
        self.sees_answer(initiator, sequence);
        let side = &mut self.sides[initiator];
        match side.requests.answered(sequence, status) {
            RequestOutcome::Arrived {
                msg_id,
                is_piece,
                was_refused,
            } => {
                if let Some(msg_id) = msg_id {
                    if was_refused {
                        side.sent_again(msg_id);
                    }
                    side.sequence.arrived(msg_id, is_piece);
                }
            }
            RequestOutcome::NotReady {
                msg_id,
                packet,
                is_repeated,
            } => {
                if let (Some(msg_id), (number, Some(packet_type))) = (msg_id, packet) {
                    side.left_behind(msg_id, number, packet_type, is_repeated);
                }
                self.refused(initiator);
            }
            RequestOutcome::Failed {
                operation,
                not_delivered,
            } => {
                if let Some(msg_id) = not_delivered {
                    side.sequence.lost(msg_id);
                }
                self.has_failed = true;
                if let Some(operation) = operation.and_then(|id| self.operations.get_mut(id)) {
                    operation.has_failed = true;
                }
            }
        }
    }
}
