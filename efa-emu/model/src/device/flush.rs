//! Outcome of outstanding requests when a queue pair fails, is reset or is destroyed.

use efa_core::address::{Ahn, Qpn};
use efa_core::nic::Status;

use super::event::DeviceEvent;
use super::flight::InFlightRequest;
use super::prepare::{LocalFailure, count_completed, send_entry};
use super::queue_pair::QpState;
use super::state::Device;

impl Device {
    /// Puts a queue pair into the error state, because its queues are invalid or a rule stages it.
    pub(super) fn fail(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.state = QpState::Error;
            qp.broken = true;
            tracing::warn!(%qpn, "queue pair failed: its queues are invalid, or a rule says so");
            self.flush(qpn);
            self.cqs.raise(DeviceEvent::QpFatal(qpn));
        }
    }

    /// Completes all outstanding requests with [`Status::Flushed`]: requests in flight, then send
    /// queue entries that the device has not read, then receives. [`Device::transmit`] flushes
    /// requests that are posted later.
    pub(super) fn flush(&mut self, qpn: Qpn) {
        let requests = self.take_requests(qpn);
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        for request in requests {
            count_completed(&mut self.counters, &request, Status::Flushed);
            self.cqs.write(
                qp.config.send_cq,
                &send_entry(&request, &qp.config, Status::Flushed),
            );
        }
        qp.send.in_flight = 0;
        self.initiator.note_failed(qpn);
        self.flush_posted(qpn);
    }

    /// Flushes the entries in the queues of a failed queue pair.
    pub(super) fn flush_posted(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        qp.take_ring();
        let producer = match qp.send.is_direct {
            true => qp.send.rung,
            false => qp.rings.send.doorbell().read() as u16,
        };
        if u32::from(producer.wrapping_sub(qp.send.fetched)) <= qp.config.send_entries {
            qp.send.producer = producer;
        }
        while qp.send.fetched != qp.send.producer {
            let failure = match qp.rings.send.read(qp.send.fetched) {
                Ok(wqe) => LocalFailure::of(&wqe, Status::Flushed),
                Err(error) => LocalFailure::unreadable(&error).with_status(Status::Flushed),
            };
            failure.count(&mut self.counters);
            self.cqs
                .write(qp.config.send_cq, &failure.entry(qpn, &qp.config));
            qp.send.fetched = qp.send.fetched.wrapping_add(1);
        }
        qp.flush_receives(qpn, &mut self.cqs);
    }

    /// Drops all outstanding requests without completions.
    pub(super) fn forget_requests(&mut self, qpn: Qpn) {
        self.take_requests(qpn);
        self.initiator.note_reset(qpn);
    }

    /// Removes a queue pair's requests from the flight table, in the order in which they were
    /// posted.
    fn take_requests(&mut self, qpn: Qpn) -> Vec<InFlightRequest> {
        let mut requests = self.initiator.take_requests(qpn);
        let next = self.qps.get(qpn).map_or(0, |qp| qp.send.sequence);
        requests.sort_unstable_by_key(|request| request.sequence.wrapping_sub(next));
        requests
    }

    /// Fails the requests that wait for a destination whose handle was destroyed.
    pub(super) fn abandon_backlog(&mut self, ahn: Ahn) {
        while let Some(request) = self.initiator.take_from_backlog(ahn) {
            if let Some(qp) = self.qps.get_mut(request.qpn) {
                let status = Status::LocalInvalidAh;
                qp.send.in_flight -= 1;
                count_completed(&mut self.counters, &request, status);
                self.cqs
                    .write(qp.config.send_cq, &send_entry(&request, &qp.config, status));
            }
        }
    }
}
