//! RDMA requests whose data is transferred through the rings, part by part.

use efa_core::nic::Status;
use efa_device_model::device::Device;

use super::bulk::{BulkName, BulkStage};
use super::out_ring::{Pending, list, request_record};
use super::state::Outbound;
use crate::link::memory::{self, Window};
use efa_lock_free::record::{Answer, RecordKind};
use efa_lock_free::ring::RingFull;

/// Bytes of data in one part of an RDMA request whose data is transferred through the rings. A ring
/// of the smallest size has room for three.
const PART: u32 = 16 << 10;

/// Parts of one request that are sent before the next request's turn.
const PARTS_PER_TURN: u32 = 8;

/// The outcome of sending more of a bulk request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BulkProgress {
    Sent,
    Blocked,
    Finished,
}

impl Outbound {
    /// Sends the remaining data of bulk requests. Returns whether anything was sent.
    #[inline(always)]
    pub(crate) fn advance(&mut self, device: &Device) -> bool {
        !self.working.is_empty() && self.advance_working(device)
    }

    #[cold]
    fn advance_working(&mut self, device: &Device) -> bool {
        let mut any = false;
        for _ in 0..self.working.len() {
            let Some(name) = self.working.pop_front() else {
                break;
            };
            match self.step(name, device) {
                BulkProgress::Sent => {
                    any = true;
                    self.working.push_back(name);
                }
                BulkProgress::Blocked => self.working.push_back(name),
                BulkProgress::Finished => any = true,
            }
        }
        any
    }

    fn step(&mut self, name: BulkName, device: &Device) -> BulkProgress {
        let Some(bulk) = self.bulks.get_mut(name) else {
            return BulkProgress::Finished;
        };
        let Some(ring) = self.rings.get_mut(bulk.ring) else {
            return BulkProgress::Finished;
        };
        match &mut bulk.stage {
            BulkStage::Direct(_) | BulkStage::TakenBack | BulkStage::Read => BulkProgress::Finished,
            BulkStage::ReadUnsent => {
                let record =
                    request_record(RecordKind::Pull, &bulk.header, 0, bulk.arrival).at(name.0);
                match ring.producer.push(&record, Pending::Bulk(name), |_, _| {}) {
                    Ok(_) => {
                        bulk.stage = BulkStage::Read;
                        list(&mut self.waiting, ring, bulk.ring);
                        BulkProgress::Finished
                    }
                    Err(RingFull) => BulkProgress::Blocked,
                }
            }
            BulkStage::Write {
                next,
                in_flight,
                failed,
            } => {
                let mut sent = BulkProgress::Blocked;
                for _ in 0..PARTS_PER_TURN {
                    let rest = bulk.header.length - *next;
                    if failed.is_some() || rest == 0 {
                        return BulkProgress::Finished;
                    }
                    let is_last = rest <= PART;
                    if is_last && *in_flight > 0 {
                        break;
                    }
                    // The memory may have been deregistered since the last part.
                    let Some(segments) = device.local_memory(bulk.token) else {
                        *failed = Some(Status::LocalInvalidLkey);
                        if *in_flight == 0 {
                            let token = bulk.token;
                            self.bulks.remove(name);
                            let status = Status::LocalInvalidLkey;
                            self.completed.push_back((token, Answer::Status(status)));
                        }
                        return BulkProgress::Finished;
                    };
                    let window = Window {
                        offset: *next,
                        length: rest.min(PART),
                    };
                    let mut record =
                        request_record(RecordKind::Data, &bulk.header, window.length, bulk.arrival);
                    record = record.at(window.offset);
                    if !is_last {
                        record = record.not_last();
                    }
                    let pushed = ring
                        .producer
                        .push(&record, Pending::Bulk(name), |memory, at| {
                            memory::gather_part(memory, at, segments, window);
                        });
                    if pushed.is_err() {
                        break;
                    }
                    *next += window.length;
                    *in_flight += 1;
                    sent = BulkProgress::Sent;
                    list(&mut self.waiting, ring, bulk.ring);
                }
                sent
            }
        }
    }
}
