//! Requests from local processes to the other machine.

use std::time::Duration;

use efa_core::address::Gid;
use efa_core::nic::Status;

use super::machine::{DeferredRequest, Pull, ReceivePolicy, RemoteMachine, UnansweredRecord};
use super::message;
use super::proxy::{Origin, Token};
use crate::process::clock::monotonic_now;
use crate::transport::doorbell_page::LINES;
use efa_lock_free::record::{Answer, RecordKind};

/// Records of one ring that are read before the next ring's turn.
const RECORDS_PER_TURN: usize = 32;

impl RemoteMachine {
    /// Appends messages for the machine: records of local processes, as far as `receive_policy`
    /// allows, and answers. Returns whether there was any work.
    pub fn collect(&mut self, receive_policy: ReceivePolicy, messages: &mut Vec<u8>) -> bool {
        let mut busy = !self.replies.is_empty();
        messages.append(&mut self.replies);
        busy |= self.send_backlog();
        busy |= self.answer_doorbells();
        for position in 0..self.busy.len() {
            let index = self.busy[position];
            busy |= self.take_answers(index, messages);
            busy |= self.take_records(index, receive_policy, messages);
        }
        if matches!(receive_policy, ReceivePolicy::Until(limit) if messages.len() >= limit) {
            // The next call begins with another device.
            self.busy.rotate_left(1);
        }
        busy
    }

    /// Handles the doorbells that local processes have rung. Returns whether there were any.
    fn answer_doorbells(&mut self) -> bool {
        let Some(doorbells) = self.doorbells().filter(|page| page.is_rung()) else {
            return false;
        };
        let mut any = false;
        doorbells.take(|line| {
            for index in (line..self.devices.capacity()).step_by(LINES) {
                if self.devices.contains(index) {
                    let is_known = |sender: Gid| self.admitted.contains(&sender);
                    any |= self.devices[index].answer_doorbells(is_known);
                    self.list_if_busy(index);
                }
            }
        });
        any
    }

    fn take_records(
        &mut self,
        index: usize,
        receive_policy: ReceivePolicy,
        messages: &mut Vec<u8>,
    ) -> bool {
        let mut busy = false;
        // Backwards, because a ring may be dropped, and its slot leaves the list.
        for place in (0..self.devices[index].polled()).rev() {
            let is_known = |sender: Gid| self.admitted.contains(&sender);
            if receive_policy != ReceivePolicy::Unresponsive
                && !self.devices[index].sender(place).is_some_and(is_known)
            {
                continue;
            }
            for _ in 0..RECORDS_PER_TURN {
                let is_enough = match receive_policy {
                    ReceivePolicy::Until(limit) => messages.len() >= limit,
                    ReceivePolicy::Nothing => true,
                    ReceivePolicy::Unresponsive => false,
                };
                if is_enough {
                    return busy;
                }
                let Some(origin) = self.devices[index].take(place) else {
                    break;
                };
                busy = true;
                match receive_policy {
                    ReceivePolicy::Unresponsive => self.refuse(index, &origin),
                    _ => self.carry(index, origin, messages),
                }
            }
        }
        busy
    }

    /// Answers a record that is not sent to the machine.
    pub(super) fn refuse(&mut self, index: usize, origin: &Origin) {
        let answer = match origin.incoming.record.kind() {
            RecordKind::Outcome => Answer::Status(Status::Ok),
            RecordKind::Direct => Answer::UseRings,
            _ => Answer::Status(Status::LocalUnresponsiveRemote),
        };
        self.devices[index].answer(origin, answer);
    }

    fn carry(&mut self, index: usize, origin: Origin, messages: &mut Vec<u8>) {
        let record = origin.incoming.record;
        match record.kind() {
            // Rings skip the padding.
            RecordKind::Pad => {}
            RecordKind::Direct => self.devices[index].answer(&origin, Answer::UseRings),
            RecordKind::Data | RecordKind::Pull => self.carry_request(index, origin, messages),
            RecordKind::ReadData => {
                let pull = self.pulls.get_mut(record.sequence());
                let is_its = |pull: &&mut Pull| pull.by == Some(origin.from);
                let Some(read) = pull.filter(is_its).map(|pull| pull.name) else {
                    let status = Answer::Status(Status::LocalInvalidLkey);
                    return self.devices[index].answer(&origin, status);
                };
                let name = self.hold(index, origin);
                let length = record.payload() as usize;
                let fill = |into: &mut [u8]| self.devices[index].read_data(&origin, into);
                message::append_read_data(messages, [name, read], record.offset(), length, fill);
            }
            RecordKind::Outcome => {
                let number = u64::from(record.sequence()) | u64::from(record.offset()) << 32;
                let key = (index, origin.from, number);
                let mut deferred = self.deferred.remove(&key);
                if deferred.is_none() {
                    // The process answered that it defers the request before it sent the outcome,
                    // but that answer may not have been read.
                    self.take_answers(index, messages);
                    deferred = self.deferred.remove(&key);
                }
                if let Some(DeferredRequest { name, pull }) = deferred {
                    if let Some(pull) = pull {
                        self.pulls.remove(pull);
                    }
                    let code = record.header().immediate.unwrap_or(u32::MAX);
                    let code = u8::try_from(code).unwrap_or(u8::MAX);
                    message::append_outcome(messages, name, code);
                }
                self.devices[index].answer(&origin, Answer::Status(Status::Ok));
            }
        }
    }

    fn carry_request(&mut self, index: usize, origin: Origin, messages: &mut Vec<u8>) {
        let record = origin.incoming.record;
        let is_datagram = record.operation().is_unanswered();
        let name = match is_datagram {
            true => 0,
            false => self.hold(index, origin),
        };
        let due = match record.due() {
            0 => 0,
            due => Duration::from_nanos(due)
                .saturating_sub(monotonic_now())
                .as_nanos()
                .max(1) as u64,
        };
        // Acknowledgements are not returned over a bridge.
        let fields = record.due_at(due).acknowledged(false).fields();
        let device = &mut self.devices[index];
        let gids = [origin.from.gid, device.gid()];
        let fill = |into: &mut [u8]| device.read_data(&origin, into);
        message::append_request(
            messages,
            name,
            gids,
            &fields,
            record.payload() as usize,
            fill,
        );
        if is_datagram {
            // Its outcome is not reported.
            self.devices[index].answer(&origin, Answer::Status(Status::Ok));
        }
    }

    fn hold(&mut self, device: usize, origin: Origin) -> u64 {
        self.unanswered.insert(UnansweredRecord {
            device,
            origin,
            is_deferred: false,
            epoch: self.epoch,
        })
    }

    /// Processes the answers of local processes to requests of the machine.
    fn take_answers(&mut self, index: usize, messages: &mut Vec<u8>) -> bool {
        let RemoteMachine {
            devices,
            pulls,
            deferred,
            ..
        } = self;
        devices[index].reap(|process, number, token, answer| match token {
            Token::Nobody => {}
            Token::ReadData { name } => message::append_answer(messages, name, answer.to_code()),
            Token::Request { name, pull } => {
                match (answer, pull) {
                    (Answer::Deferred, _) => {
                        deferred.insert((index, process, number), DeferredRequest { name, pull });
                    }
                    (_, Some(pull)) => drop(pulls.remove(pull)),
                    _ => {}
                }
                message::append_answer(messages, name, answer.to_code());
            }
        })
    }
}
