//! Events that separate programs from each other, or from their memory, and permitted failures.

use efa_core::endpoint::{CompletionFlags, Errno, ErrorEntry, PeerId};

use crate::model::{OneSidedKind, ProgramId, RequestState};
use crate::plan::{SendMode, Settings};

use super::memory::register;
use super::{Item, SOMETHING_ELSE, World};

impl World {
    /// A program removes another one, which may be dead, from its address vector.
    pub(super) fn forget(&mut self, at: ProgramId, peer: ProgramId) -> Result<(), String> {
        let address = self.programs[peer].address;
        self.programs[at].peers.remove(&peer);
        if let Some(endpoint) = &mut self.programs[at].endpoint
            && let Some(id) = endpoint.find_address(&address)
        {
            endpoint
                .remove_address(id)
                .map_err(|error| format!("program {peer} cannot be removed: {error}"))?;
        }
        self.collect(at)
    }

    /// A program deregisters the memory for its peers, and reuses the memory.
    pub(super) fn withdraw(&mut self, at: ProgramId) -> Result<(), String> {
        let lent = self.programs[at].lent;
        let Some(endpoint) = &mut self.programs[at].endpoint else {
            return Ok(());
        };
        endpoint
            .deregister(lent)
            .map_err(|error| format!("program {at} cannot deregister: {error}"))?;
        for number in 0..self.one_sided.len() {
            let operation = &self.one_sided[number];
            let names_it = match operation.kind {
                OneSidedKind::Write | OneSidedKind::Read | OneSidedKind::Combine(_) => true,
                OneSidedKind::Add | OneSidedKind::FetchAdd | OneSidedKind::Claim => false,
            };
            // Without delivery complete a success says that the data was sent. The arrival of a
            // write of no bytes is seen only by its CQ data.
            let is_in_place = match (operation.kind, operation.length) {
                (OneSidedKind::Write, 0) => operation.announced,
                _ => self.is_written(number),
            };
            let under_way = match operation.state {
                RequestState::Started => true,
                RequestState::Ended(Ok(())) => !is_in_place,
                RequestState::Ended(Err(_)) | RequestState::Waiting | RequestState::Refused => {
                    false
                }
            };
            if operation.to == at && names_it && under_way && !operation.orphaned {
                let (address, length) = (operation.remote, operation.length);
                self.fill(at, address, &vec![SOMETHING_ELSE; length]);
                self.one_sided[number].orphaned = true;
                self.troubles.orphans += 1;
            }
        }
        let program = &mut self.programs[at];
        if let Some(endpoint) = &mut program.endpoint {
            program.lent = register(endpoint, program.memory)?;
        }
        self.collect(at)
    }

    /// An operation that lost its memory may never complete, because the requester is not told. It
    /// ends with its peer, and has not changed the memory.
    pub(super) fn end_orphans(&mut self) -> Result<(), String> {
        let orphans: Vec<usize> = (0..self.one_sided.len())
            .filter(|number| self.one_sided[*number].orphaned)
            .collect();
        for number in &orphans {
            let (from, to) = (self.one_sided[*number].from, self.one_sided[*number].to);
            self.parted.insert((from, to));
        }
        let lost: Vec<usize> = (0..self.messages.len())
            .filter(|number| self.messages[*number].lost)
            .collect();
        for number in &lost {
            let (from, to) = (self.messages[*number].from, self.messages[*number].to);
            self.parted.insert((from, to));
        }
        self.forget_the_doomed()?;
        self.settle()?;
        for number in lost {
            let message = &self.messages[number];
            let reports = matches!(message.mode, SendMode::Plain | SendMode::DeliveryComplete);
            if reports && !self.is_dead(message.from) && message.state == RequestState::Started {
                return Err(format!("message {number} does not end with its peer"));
            }
        }
        for number in orphans {
            let operation = &self.one_sided[number];
            let what = format!("one-sided operation {number} ({:?})", operation.kind);
            let reports = matches!(operation.mode, SendMode::Plain | SendMode::DeliveryComplete);
            if reports && !self.is_dead(operation.from) && operation.state == RequestState::Started
            {
                return Err(format!("{what} does not end with its peer"));
            }
            let memory = self.bytes(operation.to, operation.remote, operation.length);
            if memory.iter().any(|byte| *byte != SOMETHING_ELSE) {
                return Err(format!("{what} changed memory that was deregistered"));
            }
        }
        Ok(())
    }

    /// The program that another one knows as a peer.
    pub(super) fn program_of(&self, at: ProgramId, peer: PeerId) -> Option<ProgramId> {
        let endpoint = self.programs[at].endpoint.as_ref()?;
        let address = endpoint.lookup_address(peer)?;
        let mut programs = self.programs.iter();
        programs.position(|other| other.address == address)
    }

    /// Handles a packet beyond the window of its receiver, after checking that it is beyond.
    pub(super) fn on_overflow(
        &mut self,
        at: ProgramId,
        peer: PeerId,
        msg_id: u32,
        expected: u32,
    ) -> Result<(), String> {
        let from = self
            .program_of(at, peer)
            .ok_or(format!("program {at} gives up {peer}, which is nobody"))?;
        let Settings { endpoint, .. } = &self.programs[at].settings;
        let sent = self.sequences.get(&(from, at)).map_or(&[][..], |sent| sent);
        let item = |id: u32| sent.get(id.wrapping_sub(endpoint.first_msg_id) as usize);
        let missing = match item(expected) {
            // A message that is aborted before any of it arrives leaves its id to the next one.
            Some(_) if self.aborts => true,
            Some(Item::Message(number)) => self.messages[*number].taken.is_none(),
            Some(Item::OneSided(_)) => true,
            None => false,
        };
        let ahead = msg_id.wrapping_sub(expected);
        if ahead < endpoint.reorder_window || item(msg_id).is_none() || !missing {
            return Err(format!(
                "program {at} gives up program {from}, which has sent {} messages, at id {msg_id} \
                 with id {expected} missing",
                sent.len(),
            ));
        }
        self.overrun.insert((at, from));
        self.troubles.overruns += 1;
        Ok(())
    }

    /// Whether a message failed because its receiver could not read it, and its sender or the
    /// receiver lacks READ_NACK.
    pub(super) fn is_lost(&self, at: ProgramId, entry: &ErrorEntry) -> bool {
        let Some(message) = self.messages.get(entry.data as usize) else {
            return false;
        };
        let [from, to] = [message.from, message.to].map(|program| self.release(program));
        entry.failure.errno == Errno::ENOMEM
            && entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA)
            && message.to == at
            && !(from.has_read_nack() && to.has_read_nack())
    }

    pub(super) fn forget_the_doomed(&mut self) -> Result<(), String> {
        for at in 0..self.programs.len() {
            for other in 0..self.programs.len() {
                if self.is_doomed(at, other) {
                    self.forget(at, other)?;
                }
            }
        }
        Ok(())
    }
}
