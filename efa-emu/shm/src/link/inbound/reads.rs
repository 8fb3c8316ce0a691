//! Serves reads by peers whose data returns through the rings, and receives data for reads of this
//! device.

use efa_core::nic::Status;
use efa_device_model::device::Device;

use super::in_ring::{DeferredRecord, tap_rdma};
use super::pulls::{self, Pull};
use super::state::Inbound;
use super::transfers::IntoRing;
use crate::link::memory::{self, Window};
use crate::link::outbound::{BulkName, Outbound, PullName, PushError};
use crate::transport::segment::Address;
use efa_lock_free::record::Answer;

impl Inbound {
    /// Begins to serve a read whose data returns through the rings. The request is removed from its
    /// ring immediately. Otherwise two processes that read from each other could deadlock: the data
    /// for each read would wait for space behind the request of the peer.
    pub(super) fn begin_read(&mut self, later: DeferredRecord) {
        let leaves = match self.ring(&later) {
            Some(ring) if ring.reads < pulls::MOST_READS => {
                ring.reads += 1;
                true
            }
            _ => false,
        };
        if leaves {
            self.answer_now(&later, Answer::Deferred);
        }
        self.pulls.insert(Pull::new(later, leaves));
    }

    /// Reports the outcome of a read to its initiator.
    fn end_read(&mut self, of: &DeferredRecord, has_left: bool, status: Status) {
        if !has_left {
            return self.answer(of, Answer::Status(status));
        }
        let Some(ring) = self.ring(of) else {
            return;
        };
        ring.reads = ring.reads.saturating_sub(1);
        let to = ring.peer.address();
        self.conclude(to, of.incoming.number, &of.incoming.record, status);
    }

    /// Receives data for a read by this device.
    pub(super) fn take_read_data(
        &mut self,
        later: DeferredRecord,
        device: &Device,
        outbound: &Outbound,
    ) {
        let Some(ring) = self.ring(&later) else {
            return;
        };
        let record = &later.incoming.record;
        let segments = outbound
            .read_target(ring.peer.address(), record)
            .and_then(|token| device.local_memory(token));
        let status = match segments {
            None => Status::LocalInvalidLkey,
            Some(segments) => {
                let window = Window {
                    offset: record.offset(),
                    length: record.payload(),
                };
                if let Some((memory, at)) =
                    ring.consumer
                        .payload(later.incoming.payload(), 0, record.payload())
                {
                    memory::scatter(memory, at, segments, window);
                }
                Status::Ok
            }
        };
        self.answer_now(&later, Answer::Status(status));
    }

    /// Sends data for peers' reads, and ends the finished ones.
    pub(super) fn serve_pulls(&mut self, device: &mut Device, outbound: &mut Outbound) -> bool {
        let mut busy = false;
        while let Some((name, status)) = outbound.next_read_data() {
            busy = true;
            self.pulls.settle(name, status);
        }
        for name in self.pulls.names() {
            let Some(pull) = self.pulls.get_mut(name) else {
                continue;
            };
            let of = pull.of;
            let before = pull.sent;
            if !pull.is_over() {
                match self.ring(&of).map(|ring| ring.peer.address()) {
                    Some(from) => self.send_read_data(name, from, device, outbound),
                    None => {
                        self.pulls.remove(name);
                        continue;
                    }
                }
            }
            let Some(pull) = self.pulls.get_mut(name) else {
                continue;
            };
            busy |= pull.sent != before;
            if pull.is_over() && pull.in_flight == 0 {
                busy = true;
                let (has_left, status) = (pull.has_left, pull.failed.unwrap_or(Status::Ok));
                self.pulls.remove(name);
                self.end_read(&of, has_left, status);
            }
        }
        busy
    }

    /// Sends parts of one read's data until the ring is full or its turn ends.
    fn send_read_data(
        &mut self,
        name: PullName,
        to: Address,
        device: &mut Device,
        outbound: &mut Outbound,
    ) {
        let Some(pull) = self.pulls.get_mut(name) else {
            return;
        };
        let record = &pull.of.incoming.record;
        let header = record.header();
        for _ in 0..pulls::PARTS_PER_TURN {
            if pull.is_over() {
                return;
            }
            let rest = header.length - pull.sent;
            let window = Window {
                offset: pull.sent,
                length: rest.min(pulls::PART),
            };
            let mut transfer = IntoRing {
                outbound,
                to,
                read: BulkName(record.offset()),
                pull: name,
                total: header.length,
                window,
                is_last: window.length == rest,
                whole: None,
                pushed: Ok(false),
            };
            let status = device.deliver(to.gid, &header, &mut transfer);
            let (is_last, whole, pushed) = (transfer.is_last, transfer.whole, transfer.pushed);
            if let Some(tap) = outbound.tap()
                && pushed.is_ok()
                && (is_last || status != Status::Ok)
            {
                tap_rdma(tap, to.gid, record, whole, status);
            }
            match (pushed, status) {
                (Err(PushError::Full), _) => return,
                (Err(PushError::Gone), _) => {
                    pull.failed = Some(Status::RemoteAbort);
                }
                (Ok(pushed), Status::Ok) => {
                    pull.sent = window.end();
                    pull.is_delivered = is_last;
                    pull.in_flight += u32::from(pushed);
                }
                (Ok(_), status) => pull.failed = Some(status),
            }
        }
    }
}
