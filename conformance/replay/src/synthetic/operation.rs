//! The operations of a scenario's packets, and the progress of their data.

use efa_core::wire::{AtomicDatatype, AtomicOp, PacketType, Transfer};
use efa_play::operation::{AtomicAction, RegionOffset, Remote, pattern};
use efa_play::scenario::{Action, Operation, Scenario};

use super::invented;

/// An operation of a scenario.
#[derive(Clone, Debug)]
pub(super) struct SyntheticOperation {
    pub(super) step: usize,
    pub(super) content: Vec<u8>,
    /// Whether its data is from the target.
    pub(super) is_read: bool,
    pub(super) tag: Option<u64>,
    /// Remote completion data.
    pub(super) data: Option<u64>,
    /// The target memory at the peer, if any.
    pub(super) target: Remote,
    pub(super) atomic: Option<(AtomicOp, AtomicDatatype)>,
    pub(super) msg_id: Option<u64>,
    /// Number of sent bytes.
    pub(super) sent: usize,
    /// The end of the bytes that its receiver has granted.
    pub(super) granted: usize,
    /// Lengths of the pieces of its sender's buffer that were offered for reading.
    pieces: Vec<usize>,
}

impl SyntheticOperation {
    /// The operation that the step with index `step` starts, if it transfers data to or from a
    /// peer.
    pub(super) fn of(scenario: &Scenario, step: usize) -> Option<Self> {
        let Action::Start { operation, .. } = &scenario.steps.get(step)?.action else {
            return None;
        };
        let mut written = SyntheticOperation {
            step,
            is_read: false,
            content: operation
                .payload()
                .map(|payload| payload.bytes())
                .unwrap_or_default(),
            tag: None,
            data: None,
            target: Remote { address: 0, key: 0 },
            atomic: None,
            msg_id: None,
            sent: 0,
            granted: 0,
            pieces: Vec::new(),
        };
        match operation {
            Operation::Send { tag, data, .. } => {
                written.tag = *tag;
                written.data = *data;
            }
            Operation::Write { remote, data, .. } => {
                written.data = *data;
                written.target = region(scenario, remote).0;
            }
            Operation::Read { remote, length, .. } => {
                let (target, bytes) = region(scenario, remote);
                written.target = target;
                written.is_read = true;
                written.content = bytes.get(..*length).unwrap_or_default().to_vec();
            }
            Operation::Atomic {
                remote,
                datatype,
                action,
                operand,
                ..
            } => {
                written.target = region(scenario, remote).0;
                written.atomic = Some((action.code(), *datatype));
                if let AtomicAction::Compare { comparand, .. } = action {
                    let bytes = pattern::bytes(*comparand, operand.length);
                    written.content.extend(bytes);
                }
            }
            Operation::Recv { .. } | Operation::Register { .. } => return None,
        }
        Some(written)
    }

    /// Notes a packet that contains the data up to `end`.
    pub(super) fn follow(&mut self, packet_type: PacketType, end: usize, recv_length: usize) {
        use PacketType as T;
        if packet_type.carries_data() {
            self.sent = self.sent.max(end);
        }
        match packet_type {
            T::Cts => self.granted += recv_length,
            T::ReadRsp => {}
            T::ShortRtr | T::LongctsRtr => self.granted = recv_length,
            _ if packet_type.transfer() == Some(Transfer::LongCts) => self.granted = self.sent,
            _ => {}
        }
    }

    /// Notes a request that offers the buffer in pieces of these lengths.
    pub(super) fn offer(&mut self, pieces: Vec<usize>) {
        self.pieces = pieces;
    }

    /// The memory of a part of the buffer, if it was offered in one piece.
    pub(super) fn offered(&self, offset: usize, length: usize) -> Option<Remote> {
        let mut start = 0;
        for (index, piece) in self.pieces.iter().enumerate() {
            if (start..start + piece).contains(&offset) && offset + length <= start + piece {
                let remote = invented::piece(self.step, index);
                let address = remote.address + (offset - start) as u64;
                return Some(Remote { address, ..remote });
            }
            start += piece;
        }
        None
    }

    /// Restarts the operation, without the data sent so far.
    pub(super) fn start_afresh(&mut self) {
        self.sent = 0;
        self.granted = 0;
    }
}

/// The memory that a step registered, from an offset on, and its bytes.
fn region(scenario: &Scenario, place: &RegionOffset) -> (Remote, Vec<u8>) {
    let step = scenario
        .steps
        .iter()
        .position(|step| matches!(&step.action, Action::Start { id, .. } if *id == place.region));
    let Some(step) = step else {
        // A scenario that was parsed refers to existing regions only.
        return (Remote { address: 0, key: 0 }, Vec::new());
    };
    let bytes = match &scenario.steps[step].action {
        Action::Start {
            operation: Operation::Register { payload, .. },
            ..
        } => payload.bytes(),
        _ => Vec::new(),
    };
    let rest = bytes.get(place.offset..).unwrap_or_default().to_vec();
    (place.within(invented::memory(step)), rest)
}
