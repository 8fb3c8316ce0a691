//! Answers of peers to requests of this device.

use std::collections::VecDeque;
use std::time::Duration;

use efa_core::nic::Status;
use efa_device_model::device::Device;
use efa_device_model::link::Token;

use super::bulk::{BulkName, BulkStage, BulkTable};
use super::out_ring::{Pending, PullName, status_of};
use super::state::Outbound;
use crate::process::clock::monotonic_now;
use efa_lock_free::record::Answer;

/// Gives the outcome of a request other than a success to the device. Returns false for an outcome
/// that the device does not take at once.
#[inline(never)]
fn take_other(device: &mut Device, token: Token, answer: Answer) -> bool {
    match answer {
        // Only this status starts a timer.
        Answer::Status(status) if status != Status::RemoteRnr => {
            device.complete(Duration::ZERO, token, status);
            true
        }
        Answer::Acknowledged => {
            device.acknowledged(token);
            true
        }
        _ => false,
    }
}

impl Outbound {
    /// Processes the available answers, and passes the outcomes of requests to the device. Outcomes
    /// that start a timer wait for [`Outbound::next_completed`]. Returns whether there were any
    /// answers.
    #[inline(always)]
    pub(crate) fn reap(&mut self, device: &mut Device) -> bool {
        // Nearly all are a success, for which one test is enough.
        self.take_answers(|token, answer| match answer {
            Answer::Status(Status::Ok) => {
                device.complete(Duration::ZERO, token, Status::Ok);
                true
            }
            other => take_other(device, token, other),
        })
    }

    /// As [`Outbound::reap`], if all outcomes need individual handling: all wait for
    /// [`Outbound::next_completed`].
    #[cold]
    pub(crate) fn reap_aside(&mut self) -> bool {
        self.take_answers(|_, _| false)
    }

    /// Processes the answers that have arrived. Outcomes of requests that `complete` does not
    /// accept wait for [`Outbound::next_completed`].
    #[inline(always)]
    fn take_answers(&mut self, mut complete: impl FnMut(Token, Answer) -> bool) -> bool {
        let mut any = false;
        let mut position = 0;
        while let Some(index) = self.waiting.get(position).copied() {
            let ring = &mut self.rings[index];
            let before = ring.producer.waiting();
            ring.producer.reap(|pending, number, answer| {
                let is_complete = match pending {
                    Pending::Request(token) => complete(token, answer),
                    _ => false,
                };
                if !is_complete {
                    self.others.push((number, pending, answer));
                }
            });
            if ring.producer.waiting() != before {
                any = true;
                ring.progressed = true;
            }
            ring.listed = ring.producer.waiting() > 0;
            if ring.listed {
                position += 1;
            } else {
                self.waiting.swap_remove(position);
            }
            if !self.others.is_empty() {
                self.take_others(index);
            }
        }
        any
    }

    /// Processes the answers of a ring other than plain outcomes of requests.
    #[cold]
    pub(super) fn take_others(&mut self, index: usize) {
        let mut others = std::mem::take(&mut self.others);
        for (number, pending, answer) in others.drain(..) {
            match pending {
                _ if answer == Answer::Deferred => {
                    if let Some(ring) = self.rings.get_mut(index) {
                        ring.deferred += 1;
                    }
                    self.deferred.insert((index, number), pending);
                }
                Pending::Request(token) => self.completed.push_back((token, answer)),
                Pending::ReadData(pull) => self.read_data.push((pull, status_of(answer))),
                Pending::Outcome | Pending::Datagram => {}
                Pending::Bulk(name) => {
                    if answer == Answer::UseRings
                        && let Some(ring) = self.rings.get_mut(index)
                    {
                        ring.rings_only = true;
                    }
                    settle(
                        &mut self.bulks,
                        &mut self.working,
                        &mut self.completed,
                        name,
                        answer,
                    );
                }
            }
        }
        // Its memory is used again.
        self.others = others;
    }

    /// The next request with an outcome, for the device. Packets with acknowledgements are handed
    /// to it here, because code that handles outcomes ignores them.
    #[inline]
    pub(crate) fn next_completed(&mut self, device: &mut Device) -> Option<(Token, Status)> {
        while let Some((token, answer)) = self.completed.pop_front() {
            match answer {
                Answer::Acknowledged => device.acknowledged(token),
                other => return Some((token, status_of(other))),
            }
        }
        self.next_failed()
    }

    /// The next request that fails now.
    #[inline]
    fn next_failed(&mut self) -> Option<(Token, Status)> {
        if self.failing.is_empty() {
            return None;
        }
        self.next_due_failure()
    }

    #[cold]
    fn next_due_failure(&mut self) -> Option<(Token, Status)> {
        let token = self.failing.pop_due(monotonic_now())?;
        tracing::debug!("request given up: each attempt was lost");
        Some((token, Status::LocalUnresponsiveRemote))
    }

    /// The next answer to data for a peer's read.
    #[inline]
    pub(crate) fn next_read_data(&mut self) -> Option<(PullName, Status)> {
        self.read_data.pop()
    }
}

/// Applies an answer to a bulk request.
pub(super) fn settle(
    bulks: &mut BulkTable,
    working: &mut VecDeque<BulkName>,
    completed: &mut VecDeque<(Token, Answer)>,
    name: BulkName,
    answer: Answer,
) {
    let Some(bulk) = bulks.get_mut(name) else {
        return;
    };
    let outcome = match (&mut bulk.stage, answer) {
        // A peer that reports withdrawn memory may have read it in a moment of temporary
        // withdrawal.
        (BulkStage::Direct(_), Answer::UseRings | Answer::Withdrawn) => {
            bulk.stage = BulkStage::through_rings(bulk.header.operation);
            working.push_back(name);
            return;
        }
        // If the device has not given up the request, the request fails.
        (BulkStage::TakenBack, Answer::UseRings | Answer::Withdrawn) => Status::LocalInvalidLkey,
        (
            BulkStage::Write {
                next,
                in_flight,
                failed,
            },
            answer,
        ) => {
            *in_flight = in_flight.saturating_sub(1);
            let status = status_of(answer);
            if status != Status::Ok {
                failed.get_or_insert(status);
            }
            let is_over = failed.is_some() || *next == bulk.header.length;
            if *in_flight > 0 || !is_over {
                return;
            }
            failed.unwrap_or(Status::Ok)
        }
        (_, answer) => status_of(answer),
    };
    if let Some(bulk) = bulks.remove(name) {
        completed.push_back((bulk.token, Answer::Status(outcome)));
    }
}

#[cfg(test)]
mod tests {
    use efa_device_model::link::{Operation, RemoteRange, RequestHeader};

    use super::super::bulk::Bulk;
    use super::*;
    use crate::link::egress::Arrival;
    use efa_lock_free::record::Record;
    use efa_lock_free::ring::Position;

    /// The new state of a request at `stage` after an answer.
    fn settled(
        stage: impl FnOnce(Position) -> BulkStage,
        answer: Answer,
    ) -> (Option<BulkStage>, Option<Status>) {
        let header = RequestHeader {
            operation: Operation::RdmaWrite,
            remote: Some(RemoteRange::new(0, 0)),
            length: 1 << 20,
            ..Record::NO_REQUEST
        };
        let mut bulks = BulkTable::default();
        let name = bulks.insert(Bulk {
            token: Token(1),
            header,
            ring: 0,
            arrival: Arrival::default(),
            stage: stage(Position::default()),
        });
        let (mut working, mut completed) = Default::default();
        settle(&mut bulks, &mut working, &mut completed, name, answer);
        assert_eq!(working.contains(&name), bulks.get(name).is_some());
        let stage = bulks.get(name).map(|bulk| bulk.stage);
        (
            stage,
            completed.pop_front().map(|(_, answer)| status_of(answer)),
        )
    }

    #[test]
    fn a_revoked_withdrawal_does_not_end_the_request() {
        let (stage, status) = settled(BulkStage::Direct, Answer::Withdrawn);
        assert!(
            matches!(stage, Some(BulkStage::Write { next: 0, .. })),
            "{stage:?}"
        );
        assert_eq!(status, None);
    }

    #[test]
    fn withdrawn_requests_end_as_the_target_found_them() {
        let taken = |answer| {
            let (stage, status) = settled(|_| BulkStage::TakenBack, answer);
            assert!(stage.is_none(), "{stage:?}");
            status
        };
        let lost = Some(Status::LocalInvalidLkey);
        assert_eq!(taken(Answer::Withdrawn), lost);
        assert_eq!(taken(Answer::UseRings), lost);
        assert_eq!(taken(Answer::Status(Status::Ok)), Some(Status::Ok));
    }
}
