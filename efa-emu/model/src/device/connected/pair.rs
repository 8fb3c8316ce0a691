//! A connected queue pair, and the parts of the device that it needs.

use std::time::Duration;

use efa_core::address::Qpn;
use slab::Slab;

use super::attributes::ConnectionAttributes;
use super::completion::{ConnectedCompletion, ConnectedFlags, WcOperation, WcStatus};
use super::receives::{ReceiveQueue, SharedQueue, SrqId};
use super::requester::{EndedRequest, Purpose, Requester};
use super::responder::Responder;
use crate::counters::{Counters, DiagnosticCounters};
use crate::device::cq_table::CqTable;
use crate::device::event::DeviceEvent;
use crate::device::ids::{CqId, PdId};
use crate::device::initiator::Initiator;
use crate::device::queue::CompletionEntry;
use crate::device::queue_pair::QpState;
use crate::device::regions::RegionTable;

/// The parameters for creating a connected queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectedConfig {
    /// The protection domain.
    pub pd: PdId,
    /// The completion queue of the send queue.
    pub send_cq: CqId,
    /// The completion queue of receives, unless a shared receive queue has a separate one.
    pub recv_cq: CqId,
    /// The shared receive queue from which it receives.
    pub shared: Option<SrqId>,
    /// The most work requests of the send queue.
    pub max_send_wr: u32,
    /// The most receives of the queue pair itself.
    pub max_recv_wr: u32,
    /// The most buffers of a receive.
    pub max_recv_sge: u32,
}

/// The parts of the device that a connected queue pair needs.
pub(super) struct DeviceParts<'a> {
    pub(super) regions: &'a RegionTable,
    pub(super) cqs: &'a mut CqTable,
    pub(super) counters: &'a mut Counters,
    pub(super) diagnostics: &'a mut DiagnosticCounters,
    pub(super) initiator: &'a mut Initiator,
    pub(super) shared: &'a mut Slab<SharedQueue>,
}

/// Counts of a queue pair's sent packets.
pub(super) struct SentCounts {
    /// Distinguishes packets of the connection from those of earlier ones.
    pub(super) connection: u8,
    /// Packets sent, for the network.
    pub(super) frames: u32,
    /// Packets of requests that the link has accepted and neither delivered nor lost.
    pub(super) requests: u32,
    /// Packets of answers that the link has accepted and neither delivered nor lost.
    pub(super) answers: u32,
}

impl SentCounts {
    fn of(connection: u8) -> SentCounts {
        SentCounts {
            connection,
            frames: 0,
            requests: 0,
            answers: 0,
        }
    }
}

/// A connected queue pair.
pub(in crate::device) struct Pair {
    pub(super) config: ConnectedConfig,
    pub(super) qpn: Qpn,
    pub(super) attributes: ConnectionAttributes,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) receives: ReceiveQueue,
    /// Whether it is in the device's list of queue pairs with packets to send.
    pub(super) is_scheduled: bool,
    pub(super) sent_counts: SentCounts,
    /// The time of its next entry in the device's timers.
    pub(super) tick_at: Option<Duration>,
}

impl Pair {
    pub(super) fn new(qpn: Qpn, config: ConnectedConfig, connection: u8) -> Pair {
        Pair {
            receives: ReceiveQueue::new(config.max_recv_wr, config.max_recv_sge),
            config,
            qpn,
            attributes: ConnectionAttributes::default(),
            requester: Requester::new(),
            responder: Responder::new(),
            is_scheduled: false,
            sent_counts: SentCounts::of(connection),
            tick_at: None,
        }
    }

    /// Whether it executes requests of the peer.
    pub(super) fn receives(&self) -> bool {
        matches!(
            self.attributes.state,
            QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrained
        )
    }

    /// Whether it sends requests and accepts answers.
    pub(super) fn sends(&self) -> bool {
        matches!(
            self.attributes.state,
            QpState::ReadyToSend | QpState::SendQueueDrained
        )
    }

    /// The time-out for acknowledgements; `None` for no time-out.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match self.attributes.timeout {
            0 => None,
            power => Some(Duration::from_nanos(4096 << power)),
        }
    }

    /// A completion of this queue pair.
    #[inline]
    pub(super) fn completion(
        &self,
        wr_id: u64,
        operation: WcOperation,
        status: WcStatus,
    ) -> ConnectedCompletion {
        ConnectedCompletion {
            wr_id,
            status,
            operation,
            flags: ConnectedFlags::empty(),
            qpn: self.qpn,
            peer_qpn: Qpn(self.attributes.destination as u16),
            length: 0,
            data: 0,
            tag: 0,
        }
    }

    /// The completion queue of receives.
    #[inline]
    pub(super) fn receive_cq(&self, shared: &Slab<SharedQueue>) -> CqId {
        self.config
            .shared
            .and_then(|id| shared.get(id.0 as usize)?.config.tags)
            .map_or(self.config.recv_cq, |tags| tags.cq)
    }

    /// Writes a completion of something that was received.
    #[inline]
    pub(super) fn report(&self, around: &mut DeviceParts<'_>, completion: &ConnectedCompletion) {
        let cq = self.receive_cq(around.shared);
        around
            .cqs
            .write(cq, &CompletionEntry::of_connected(completion));
    }

    /// Writes the completions of requests that have ended.
    #[inline]
    pub(super) fn complete_ended(&mut self, around: &mut DeviceParts<'_>) {
        if self.requester.has_ended() {
            self.complete_all(around);
        }
    }

    fn complete_all(&mut self, around: &mut DeviceParts<'_>) {
        while let Some(ended) = self.requester.next_ended() {
            let EndedRequest {
                wr_id,
                operation,
                length,
                status,
                ..
            } = ended;
            let is_success = status == WcStatus::Success;
            match ended.purpose {
                Purpose::Program => {
                    count(around.counters, operation, length, is_success);
                    if ended.is_signaled || !is_success {
                        let mut completion = self.completion(wr_id, operation, status);
                        if is_success && ended.is_read_like {
                            completion.length = length;
                        }
                        let entry = CompletionEntry::of_connected(&completion);
                        around.cqs.write(self.config.send_cq, &entry);
                    }
                }
                Purpose::Rendezvous { tag, data } => {
                    let mut completion = self.completion(wr_id, WcOperation::TagRecv, status);
                    (completion.tag, completion.data) = (tag, data);
                    if is_success {
                        completion.flags = ConnectedFlags::TM_DATA_VALID;
                        completion.length = length;
                    }
                    self.report(around, &completion);
                }
                Purpose::Finish => {}
            }
        }
    }

    /// Puts the queue pair into the error state, and flushes all outstanding requests.
    pub(super) fn fail(&mut self, around: &mut DeviceParts<'_>) {
        self.attributes.state = QpState::Error;
        self.requester.flush();
        self.complete_ended(around);
        let broken = self.abort_incoming(around);
        if let Some((wr_id, operation)) = broken.and_then(|incoming| incoming.target.receive()) {
            let completion = self.completion(wr_id, operation, WcStatus::Flushed);
            self.report(around, &completion);
        }
        while let Some(receive) = self.receives.take() {
            let completion = self.completion(receive.wr_id, WcOperation::Recv, WcStatus::Flushed);
            self.report(around, &completion);
        }
        if self.config.shared.is_some() {
            around.cqs.raise(DeviceEvent::QpLastReceive(self.qpn));
        }
    }
}

fn count(counters: &mut Counters, operation: WcOperation, length: u32, is_success: bool) {
    let bytes = u64::from(length);
    match (operation, is_success) {
        (WcOperation::Send, true) => {
            counters.send_wrs += 1;
            counters.send_bytes += bytes;
        }
        (WcOperation::RdmaWrite, true) => {
            counters.rdma_write_wrs += 1;
            counters.rdma_write_bytes += bytes;
        }
        (WcOperation::RdmaWrite, false) => counters.rdma_write_wr_err += 1,
        (WcOperation::RdmaRead, true) => {
            counters.rdma_read_wrs += 1;
            counters.rdma_read_bytes += bytes;
        }
        (WcOperation::RdmaRead, false) => counters.rdma_read_wr_err += 1,
        _ => {}
    }
}
