//! Staged errors of queues: their effects without their cause.

use efa_core::address::Qpn;

use super::ids::CqId;
use super::queue_pair::QpState;
use super::state::Device;

/// An error of a device's queues.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QueueError {
    /// The affected objects.
    pub kind: QueueKind,
    /// The queue pair, or the one that uses the completion queues; `None` for all of the device.
    pub qpn: Option<Qpn>,
}

/// The objects with a staged error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QueueKind {
    /// Queue pairs fail as with an invalid queue or doorbell: outstanding requests are flushed.
    QueuePair,
    /// Completion queues overflow: their next entry is lost.
    CompletionQueue,
}

impl Device {
    /// Stages an error of queues. Queue pairs that are not ready, or have failed, are not affected.
    pub fn stage(&mut self, error: QueueError) {
        match error.kind {
            QueueKind::QueuePair => {
                for qpn in self.queue_pairs(error.qpn) {
                    let state = self.qps.get(qpn).map(|qp| qp.state);
                    if !matches!(state, Some(QpState::Reset | QpState::Error)) {
                        self.fail(qpn);
                    }
                }
                self.stage_connected(error.qpn);
            }
            QueueKind::CompletionQueue => {
                for queue in self.completion_queues(error.qpn) {
                    self.cqs.lose_next(queue);
                }
            }
        }
    }

    fn queue_pairs(&self, chosen: Option<Qpn>) -> Vec<Qpn> {
        let is_chosen = |qpn: &Qpn| chosen.is_none_or(|chosen| chosen == *qpn);
        self.qps.numbers().filter(is_chosen).collect()
    }

    /// The completion queues of a queue pair, or all.
    fn completion_queues(&self, of: Option<Qpn>) -> Vec<CqId> {
        match of {
            None => self.cqs.ids().collect(),
            Some(qpn) => {
                let config = self.qps.get(qpn).map(|qp| qp.config);
                let mut queues: Vec<_> = config
                    .into_iter()
                    .flat_map(|config| [config.send_cq, config.recv_cq])
                    .chain(self.connected_completion_queues(qpn))
                    .collect();
                queues.dedup();
                queues
            }
        }
    }
}
