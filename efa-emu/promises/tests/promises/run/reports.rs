//! Reports of endpoints, checked against the requests.

use efa_core::endpoint::{CompletionEntry, CompletionFlags, Errno, ErrorEntry, Failure, PeerId};

use crate::combine::Call;
use crate::model::{
    OneSidedKind, ProgramId, ReceiveKind, RequestState, is_abort, is_loss, pattern,
};
use crate::plan::SendMode;

use super::memory::combined;
use super::{SOMETHING_ELSE, World};

impl World {
    pub(super) fn ended(
        &self,
        what: &str,
        state: RequestState,
        mode: SendMode,
        (from, to): (ProgramId, ProgramId),
        orphaned: bool,
        result: Result<(), Failure>,
    ) -> Result<RequestState, String> {
        if state != RequestState::Started && state != RequestState::Waiting {
            return Err(format!("{what} was reported although it is {state:?}"));
        }
        match result {
            Ok(()) if matches!(mode, SendMode::Silent | SendMode::Inject) => {
                Err(format!("the success of {what} was reported"))
            }
            Err(failure) if !self.is_doomed(from, to) && !orphaned => {
                Err(format!("{what} failed: {failure}"))
            }
            Err(failure) if !is_loss(failure) => {
                Err(format!("{what} failed for the wrong reason: {failure}"))
            }
            _ => Ok(RequestState::Ended(result)),
        }
    }

    pub(super) fn on_sent(
        &mut self,
        number: usize,
        completion: Result<CompletionEntry, ErrorEntry>,
    ) -> Result<(), String> {
        let what = format!("message {number}");
        // The data is present when the sender's success is reported, even if the receiver has not
        // polled.
        self.collect_without_header(self.messages[number].to)?;
        let message = &self.messages[number];
        let result = completion.map_err(|entry| entry.failure).map(|_| ());
        if let Ok(entry) = completion {
            if entry.length != message.length as u64 {
                return Err(format!("{what} was reported with length {}", entry.length));
            }
            // The program may reuse its memory.
            let junk = vec![SOMETHING_ELSE; message.length];
            self.fill(message.from, message.address, &junk);
        }
        if result.is_ok()
            && message.mode == SendMode::DeliveryComplete
            && message.taken.is_none()
            && !self.is_dead(message.to)
        {
            return Err(format!("{what} was reported before its delivery"));
        }
        let pair = (message.from, message.to);
        let aborted = self.aborts && result.is_err_and(is_abort);
        let (state, mode) = (message.state, message.mode);
        if aborted && !self.messages[number].aborted {
            self.messages[number].aborted = true;
            self.troubles.aborts[0] += 1;
        }
        self.messages[number].state = match aborted && state == RequestState::Started {
            true => RequestState::Ended(result),
            false => self.ended(&what, state, mode, pair, false, result)?,
        };
        Ok(())
    }

    pub(super) fn on_one_sided(
        &mut self,
        number: usize,
        completion: Result<CompletionEntry, ErrorEntry>,
    ) -> Result<(), String> {
        let operation = &self.one_sided[number];
        let what = format!("one-sided operation {number} ({:?})", operation.kind);
        let result = completion.map_err(|entry| entry.failure).map(|_| ());
        if let Ok(entry) = completion {
            let flags = operation.kind.flags();
            if (entry.flags, entry.length) != (flags, operation.length as u64) {
                return Err(format!("{what} was reported as {entry:?}"));
            }
            if operation.kind == OneSidedKind::Read
                && self.bytes(operation.from, operation.local, operation.length)
                    != pattern(number, operation.length)
            {
                return Err(format!("{what} brought other data"));
            }
            if let OneSidedKind::Combine(combine) = operation.kind
                && combine.call != Call::Write
            {
                let length = operation.length;
                let fetched = self.bytes(operation.from, operation.local + length as u64, length);
                let [old, ..] = combined(number, length);
                if fetched != old {
                    return Err(format!("{what} fetched other values"));
                }
            }
            let in_place = operation.orphaned || self.is_written(number);
            if operation.mode == SendMode::DeliveryComplete && !in_place {
                return Err(format!("{what} was reported before its delivery"));
            }
        }
        let pair = (operation.from, operation.to);
        self.one_sided[number].state = self.ended(
            &what,
            operation.state,
            operation.mode,
            pair,
            operation.orphaned,
            result,
        )?;
        Ok(())
    }

    /// Whether an operation on memory of its own has written it correctly.
    pub(super) fn is_written(&self, number: usize) -> bool {
        let operation = &self.one_sided[number];
        let expected = match operation.kind {
            OneSidedKind::Write => pattern(number, operation.length),
            OneSidedKind::Combine(combine) => {
                let [old, operand, comparand] = combined(number, operation.length);
                combine.outcome(&old, &operand, &comparand)
            }
            // Memory that others change as well is checked at the end.
            _ => return true,
        };
        self.bytes(operation.to, operation.remote, operation.length) == expected
    }

    /// A peer's write with CQ data.
    pub(super) fn on_announced(
        &mut self,
        at: ProgramId,
        entry: &CompletionEntry,
    ) -> Result<(), String> {
        let number = entry.data as usize;
        let Some(operation) = self.one_sided.get(number) else {
            return Err(format!(
                "program {at} heard of a write nobody made: {entry:?}"
            ));
        };
        if !operation.announces || operation.to != at || operation.announced {
            return Err(format!("program {at} heard of write {number}: {entry:?}"));
        }
        let in_place = operation.orphaned || self.is_written(number);
        if !in_place || entry.length != operation.length as u64 {
            return Err(format!("write {number} was announced before its data"));
        }
        let from = operation.from;
        // Immediate data has no connection id: the sender may have addressed an earlier owner of
        // the queue pair number.
        let found = entry.source.and_then(|peer| self.program_of(at, peer));
        let is_earlier = found.is_some_and(|other| {
            let [other, address] = [other, from].map(|one| self.programs[one].address);
            (other.gid, other.qpn) == (address.gid, address.qpn)
        });
        if !is_earlier && !self.is_sender(at, entry.source, from) {
            return Err(format!(
                "write {number} was announced as another's: {entry:?}"
            ));
        }
        self.one_sided[number].announced = true;
        Ok(())
    }

    /// Whether a program's endpoint reports another one as a source. It may not know a source that
    /// has ended.
    fn is_sender(&self, at: ProgramId, source: Option<PeerId>, from: ProgramId) -> bool {
        let found = source.and_then(|peer| self.program_of(at, peer));
        found == Some(from) || self.is_doomed(from, at)
    }

    pub(super) fn note_taken(&mut self, receive: usize, number: usize) -> Result<(), String> {
        let Some(message) = self.messages.get_mut(number) else {
            return Err(format!("receive {receive} got a message nobody sent"));
        };
        let taker = &mut self.receives[receive];
        if !taker.accepts(message) {
            return Err(format!(
                "receive {receive} got message {number}, which is not for it"
            ));
        }
        if let Some(other) = message.taken.replace(receive) {
            return Err(format!(
                "message {number} was received by {other} and by {receive}"
            ));
        }
        taker.taken.push(number);
        Ok(())
    }

    pub(super) fn on_received(
        &mut self,
        at: ProgramId,
        number: usize,
        completion: Result<CompletionEntry, ErrorEntry>,
    ) -> Result<(), String> {
        let what = format!("receive {number}");
        let receive = &self.receives[number];
        let kind = receive.kind;
        if receive.ended || receive.at != at {
            return Err(format!("{what} was reported after its end: {completion:?}"));
        }
        let flags = match &completion {
            Ok(entry) => entry.flags,
            Err(entry) => entry.flags,
        };
        match completion {
            Ok(_) => self.programs[at].received.successes += 1,
            Err(_) => self.programs[at].received.errors += 1,
        }
        if kind != ReceiveKind::Multi || flags.contains(CompletionFlags::MULTI_RECV) {
            self.give_up_receive(number);
        }
        let receive = &self.receives[number];
        let (address, length, whole, data) = match completion {
            Ok(entry) => {
                let address = match kind {
                    ReceiveKind::Multi => entry.buffer,
                    _ => receive.address,
                };
                (address, entry.length as usize, entry.length, entry)
            }
            Err(entry) if entry.failure.errno == Errno::ETRUNC => {
                let whole = entry.length + entry.overflow_length;
                let like = CompletionEntry {
                    context: entry.context,
                    flags: entry.flags,
                    length: whole,
                    data: entry.data,
                    tag: entry.tag,
                    source: entry.source,
                    buffer: 0,
                };
                (receive.address, entry.length as usize, whole, like)
            }
            Err(entry) if self.is_lost(at, &entry) => {
                let message = entry.data as usize;
                self.note_taken(number, message)?;
                self.messages[message].lost = true;
                self.troubles.lost += 1;
                return Ok(());
            }
            Err(entry)
                if self.aborts
                    && is_abort(entry.failure)
                    && flags.contains(CompletionFlags::REMOTE_CQ_DATA) =>
            {
                let message = entry.data as usize;
                self.note_taken(number, message)?;
                if !self.messages[message].aborted {
                    self.messages[message].aborted = true;
                    self.troubles.aborts[1] += 1;
                }
                return Ok(());
            }
            Err(entry) => {
                let troubled = (0..self.programs.len()).any(|other| self.is_doomed(at, other));
                let asked = receive.cancelled && entry.failure.errno == Errno::ECANCELED;
                return match asked || (troubled && is_loss(entry.failure)) {
                    true => Ok(()),
                    false => Err(format!("{what} failed: {}", entry.failure)),
                };
            }
        };
        let truncated = completion.is_err();
        let has_data = flags.contains(CompletionFlags::REMOTE_CQ_DATA);
        let message_number = if has_data {
            data.data as usize
        } else {
            let head = self.bytes(at, address, 8);
            u64::from_le_bytes(head.try_into().expect("eight bytes")) as usize
        };
        self.note_taken(number, message_number)?;
        let (message, receive) = (&self.messages[message_number], &self.receives[number]);
        let what = format!("{what} of message {message_number}");
        if whole != message.length as u64 || message.data.is_some() != has_data {
            return Err(format!("{what} reported {data:?}"));
        }
        if data.tag != message.tag.unwrap_or(0) {
            return Err(format!("{what} reported tag {}", data.tag));
        }
        if kind != ReceiveKind::Multi && truncated != (message.length > receive.capacity) {
            return Err(format!("{what}: truncated is {truncated}"));
        }
        let whole_kind = match message.tag {
            Some(_) => CompletionFlags::TAGGED,
            None => CompletionFlags::MSG,
        };
        let optional = CompletionFlags::REMOTE_CQ_DATA | CompletionFlags::MULTI_RECV;
        if flags - optional != whole_kind | CompletionFlags::RECV {
            return Err(format!("{what} reported {flags:?}"));
        }
        if kind != ReceiveKind::Multi && length != message.length.min(receive.capacity) {
            return Err(format!("{what} brought {length} bytes"));
        }
        if !self.is_sender(at, data.source, message.from) {
            return Err(format!("{what} reported another sender: {data:?}"));
        }
        // The location of a truncated message in a multi-receive buffer is not reported.
        if kind == ReceiveKind::Multi && truncated {
            return Ok(());
        }
        let expected = pattern(message_number, message.length);
        match self.bytes(at, address, length) == expected[..length] {
            true => Ok(()),
            false => Err(format!("{what} brought other data")),
        }
    }
}
