//! Copies between the memory of two processes.

use efa_core::nic::Status;
use efa_device_model::device::Device;

use super::in_ring::tap_rdma;
use super::state::{CopyInProgress, Inbound};
use super::transfers::{BetweenProcesses, CopyOutcome};
use crate::link::memory::Window;
use crate::link::outbound::Outbound;
use efa_lock_free::record::{self, Answer};

/// Bytes that one copy between processes moves before other copies have their turn, and before the
/// memory is checked again.
const COPY: u32 = 1 << 20;

impl Inbound {
    /// Copies some pieces, of each copy in turn.
    pub(super) fn copy_some(&mut self, device: &mut Device, outbound: &mut Outbound) -> bool {
        let mut budget = i64::from(COPY);
        while budget > 0
            && let Some(mut copying) = self.copies.pop_front()
        {
            let before = copying.done;
            match self.copy_piece(&mut copying, device, outbound) {
                Some(answer) => {
                    self.answer(&copying.of, answer);
                    budget -= i64::from(copying.of.incoming.record.request_length() - before);
                }
                None => {
                    budget = 0;
                    self.copies.push_back(copying);
                }
            }
            // The fixed cost of a piece, in bytes.
            budget -= 4096;
        }
        true
    }

    /// Copies one piece. Returns the answer if it was the last.
    fn copy_piece(
        &mut self,
        copying: &mut CopyInProgress,
        device: &mut Device,
        outbound: &mut Outbound,
    ) -> Option<Answer> {
        // Copies end with their ring.
        let Some(ring) = self.ring(&copying.of) else {
            return Some(Answer::Withdrawn);
        };
        let incoming = &copying.of.incoming;
        let header = incoming.record.header();
        let mut bytes = [0; record::MAX_SEGMENTS * record::SEGMENT];
        let length = incoming.record.payload();
        let list = ring.consumer.payload(incoming.payload(), 0, length);
        let segments = list
            .and_then(|(memory, at)| {
                let bytes = bytes.get_mut(..length as usize)?;
                memory.read(at, bytes);
                record::segments_from_bytes(bytes, header.length).ok()
            })
            .filter(|_| header.remote.is_some());
        let Some((segments, count)) = segments else {
            return Some(Answer::Status(Status::RemoteBadAddress));
        };
        if !ring.consumer.begin_copy(incoming) {
            return Some(Answer::Withdrawn);
        }
        // The lookup follows the claim, because until then the initiator may withdraw its memory,
        // or die.
        let Some(pid) = ring.peer.process() else {
            ring.consumer.end_copy(incoming);
            return Some(Answer::Status(Status::RemoteAbort));
        };
        let window = Window {
            offset: copying.done,
            length: COPY.min(header.length - copying.done),
        };
        let mut transfer = BetweenProcesses {
            pid,
            theirs: &segments[..count],
            window,
            is_last: window.end() == header.length,
            outcome: CopyOutcome::Done,
            whole: None,
        };
        let from = ring.peer.address().gid;
        let status = device.deliver(from, &header, &mut transfer);
        ring.consumer.end_copy(incoming);
        let answer = match (transfer.outcome, status) {
            (CopyOutcome::Instead(answer), _) => answer,
            (CopyOutcome::Done, Status::Ok) if !transfer.is_last => {
                copying.done = window.end();
                return None;
            }
            (CopyOutcome::Done, status) => Answer::Status(status),
        };
        if let (Some(tap), Answer::Status(status)) = (outbound.tap(), answer) {
            tap_rdma(tap, from, &incoming.record, transfer.whole, status);
        }
        Some(answer)
    }
}
