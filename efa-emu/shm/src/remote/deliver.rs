//! Requests and answers from the other machine to local processes.

use std::time::Duration;

use efa_core::address::Gid;
use efa_core::nic::Status;

use super::backlog::{Destination, RecordTarget, WaitingRecord};
use super::machine::{Pull, RemoteMachine, UnansweredRecord};
use super::message::{self, BadMessage, Message};
use super::proxy::{Origin, SendError, Token};
use crate::process::clock::monotonic_now;
use efa_lock_free::record::{Answer, Record, RecordKind};

/// Most bytes of requests that are queued for full rings of local processes. Beyond that the caller
/// should deliver no further messages: see [`RemoteMachine::is_overloaded`].
const MOST_BACKLOG: usize = 256 << 20;

impl RemoteMachine {
    // --- from the machine to local processes ---

    /// Handles a message of the machine: one whole frame.
    ///
    /// # Errors
    /// The frame is malformed. The machine must not be trusted any more.
    pub fn deliver(&mut self, frame: &[u8]) -> Result<(), BadMessage> {
        let bad = |field| BadMessage {
            kind: frame.get(4).copied().unwrap_or(0),
            length: frame.len(),
            field,
        };
        match Message::parse(frame)? {
            Message::Request {
                name,
                from,
                to,
                fields,
                data,
            } => {
                let record = Record::from_fields(&fields).map_err(|error| bad(error.field))?;
                if !matches!(record.kind(), RecordKind::Data | RecordKind::Pull)
                    || record.payload() as usize != data.len()
                {
                    return Err(bad("record"));
                }
                // Without a name, the end of the read cannot be reported.
                if record.kind() == RecordKind::Pull && name == 0 {
                    return Err(bad("name"));
                }
                self.take_request(name, from, to, record, data);
            }
            Message::ReadData {
                name,
                read,
                offset,
                data,
            } => self.take_read_data(name, read, offset, data),
            Message::Answer { name, code } => self.take_answer(name, Answer::from_code(code)),
            Message::Outcome { name, code } => {
                if self
                    .unanswered
                    .get_mut(name)
                    .is_some_and(|record| record.is_deferred)
                    && let Some(record) = self.unanswered.remove(name)
                {
                    let status = Status::from_code(code).unwrap_or(Status::RemoteBadStatus);
                    self.end(&record, status);
                }
            }
        }
        Ok(())
    }

    fn take_request(&mut self, name: u64, from: Gid, to: Gid, record: Record, data: &[u8]) {
        let Some(device) = self.by_gid.get(&from).copied() else {
            return self.reply(name, Status::LocalUnreachableRemote);
        };
        let mut record = match record.due() {
            0 => record,
            after => {
                let due = monotonic_now().saturating_add(Duration::from_nanos(after));
                record.due_at(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX))
            }
        };
        let pull = (record.kind() == RecordKind::Pull).then(|| {
            self.pulls.insert(Pull {
                name,
                device,
                by: None,
            })
        });
        if let Some(pull) = pull {
            // Data for the read is accepted only from the process that serves it.
            record = record.at(pull);
        }
        let token = match name {
            0 => Token::Nobody,
            name => Token::Request { name, pull },
        };
        let to = RecordTarget::QueuePair(to, record.header().destination_qpn);
        self.deliver_or_queue(device, to, record, token, data);
    }

    fn take_read_data(&mut self, name: u64, read: u64, offset: u32, data: &[u8]) {
        let record = self.unanswered.get_mut(read);
        let fits = |record: &&mut UnansweredRecord| {
            let record = &record.origin.incoming.record;
            let end = u64::from(offset) + data.len() as u64;
            record.kind() == RecordKind::Pull && end <= u64::from(record.request_length())
        };
        let Some(record) = record.filter(fits) else {
            return self.reply(name, Status::RemoteAbort);
        };
        let (device, Origin { from, incoming, .. }) = (record.device, record.origin);
        // The name that the initiator assigned to the read.
        let read = incoming.record.offset();
        let total = incoming.record.request_length();
        let record = Record::read_data(read, total, offset, data.len() as u32);
        let to = RecordTarget::Process(from);
        self.deliver_or_queue(device, to, record, Token::ReadData { name }, data);
    }

    fn take_answer(&mut self, name: u64, answer: Answer) {
        if answer == Answer::Deferred {
            if let Some(record) = self
                .unanswered
                .get_mut(name)
                .filter(|record| !record.is_deferred)
            {
                record.is_deferred = true;
                let (device, origin) = (record.device, record.origin);
                self.devices[device].answer(&origin, answer);
            }
        } else if self
            .unanswered
            .get_mut(name)
            .is_some_and(|record| !record.is_deferred)
            && let Some(record) = self.unanswered.remove(name)
        {
            self.devices[record.device].answer(&record.origin, answer);
        }
    }

    /// Answers a request of the machine that does not reach a local process.
    fn reply(&mut self, name: u64, status: Status) {
        if name != 0 {
            message::append_answer(&mut self.replies, name, status.code());
        }
    }

    pub(super) fn deliver_or_queue(
        &mut self,
        device: usize,
        to: RecordTarget,
        record: Record,
        token: Token,
        data: &[u8],
    ) {
        let destination = Destination { device, to };
        let sent = match self.backlog.wait_for(&destination) {
            true => Err(SendError::Busy),
            false => self.try_send(&destination, &record, token, data),
        };
        match sent {
            Ok(()) => {}
            Err(SendError::Failed(status)) => self.undelivered(token, status),
            Err(SendError::Busy) => self.backlog.push(destination, record, token, data),
        }
    }

    fn try_send(
        &mut self,
        &Destination { device, to }: &Destination,
        record: &Record,
        token: Token,
        data: &[u8],
    ) -> Result<(), SendError> {
        let proxy = &mut self.devices[device];
        let process = match to {
            RecordTarget::QueuePair(gid, _) => proxy.send(gid, record, token, data)?,
            RecordTarget::Process(process) => proxy.send_to(process, record, token, data)?,
        };
        self.list_if_busy(device);
        // Only this process may answer a read.
        if let Token::Request {
            pull: Some(pull), ..
        } = token
            && let Some(pull) = self.pulls.get_mut(pull)
        {
            pull.by = Some(process);
        }
        Ok(())
    }

    pub(super) fn undelivered(&mut self, token: Token, status: Status) {
        let status = match token {
            Token::ReadData { .. } => Status::RemoteAbort,
            Token::Request { .. } | Token::Nobody => status,
        };
        self.answered(token, Answer::Status(status));
    }

    /// Sends the machine the final answer to its request.
    pub(super) fn answered(&mut self, token: Token, answer: Answer) {
        let name = match token {
            Token::Request { name, pull } => {
                if let Some(pull) = pull {
                    self.pulls.remove(pull);
                }
                name
            }
            Token::ReadData { name } => name,
            Token::Nobody => return,
        };
        if name != 0 {
            message::append_answer(&mut self.replies, name, answer.to_code());
        }
    }

    pub(super) fn send_backlog(&mut self) -> bool {
        let mut backlog = std::mem::take(&mut self.backlog);
        let any = backlog.send(|to, waiting| {
            let WaitingRecord { token, .. } = *waiting;
            match self.try_send(to, &waiting.record, token, &waiting.data) {
                Ok(()) => true,
                Err(SendError::Failed(status)) => {
                    self.undelivered(token, status);
                    true
                }
                Err(SendError::Busy) => false,
            }
        });
        self.backlog = backlog;
        any
    }

    /// Whether too many bytes are queued for full rings of local processes, so that the caller
    /// should deliver no more messages for now.
    pub fn is_overloaded(&self) -> bool {
        self.backlog.bytes() > MOST_BACKLOG
    }
}
