//! Time: events of the fabric, ends of waits, and polling of endpoints.

use efa_core::endpoint::{CompletionFlags, Endpoint, Event, Instant, PacketError, ProviderError};

use crate::model::ProgramId;

use super::{MESSAGE, NUMBER, ONE_SIDED, RECEIVE, World};

impl World {
    /// A program refuses a packet that it has received before. There are no more of them than
    /// duplicated packets.
    fn on_copy(&mut self, at: ProgramId, event: &Event) -> Result<(), String> {
        self.troubles.copies += 1;
        let repetitions = self.repetitions.iter();
        let copies: u64 = repetitions.map(|id| self.fabric.applied(*id)).sum();
        match self.troubles.copies as u64 <= copies {
            true => Ok(()),
            false => Err(format!(
                "program {at}, with {copies} packets repeated: {event}"
            )),
        }
    }

    /// Runs the next event of the fabric, or the end of a wait. Returns whether there was one.
    pub(super) fn advance(&mut self) -> Result<bool, String> {
        let timeout = (0..self.programs.len())
            .filter_map(|at| {
                let endpoint = self.programs[at].endpoint.as_ref()?;
                Some((endpoint.next_timeout()?, at))
            })
            .min();
        match (timeout, self.fabric.next_event_time()) {
            (Some((Instant(until), at)), event) if event.is_none_or(|event| until < event) => {
                self.fabric.run_until(until);
                self.progress(at)?;
                Ok(true)
            }
            (_, None) => Ok(false),
            _ => {
                if let Some(host) = self.fabric.step().and_then(|step| step.host) {
                    let at = self.current[host.index()];
                    let program = &mut self.programs[at];
                    program.unpolled += 1;
                    if program.unpolled >= program.settings.patience {
                        program.unpolled = 0;
                        self.progress(at)?;
                    }
                }
                Ok(true)
            }
        }
    }

    pub(super) fn progress(&mut self, at: ProgramId) -> Result<(), String> {
        let now = Instant(self.fabric.now());
        for _ in 0..10_000 {
            let Some(endpoint) = &mut self.programs[at].endpoint else {
                return Ok(());
            };
            let taken = endpoint.progress(now);
            self.troubles.waits += usize::from(endpoint.usage().waiting > 0);
            if let Some(objection) = endpoint.nic().objection() {
                return Err(format!("program {at}: {objection}"));
            }
            self.collect(at)?;
            self.collect_without_header(at)?;
            self.push(at)?;
            if taken == 0 {
                return Ok(());
            }
        }
        Err(format!("program {at} always has something to do"))
    }

    /// Runs until there are no more events.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        for _ in 0..100_000 {
            if self.advance()? {
                continue;
            }
            for at in 0..self.programs.len() {
                self.progress(at)?;
            }
            let timeouts = self.programs.iter().filter_map(|program| {
                let endpoint = program.endpoint.as_ref()?;
                endpoint.next_timeout()
            });
            if self.fabric.next_event_time().is_none() && timeouts.count() == 0 {
                return Ok(());
            }
        }
        Err("the programs do not come to rest".into())
    }

    /// Polls a program's endpoint.
    pub(super) fn collect(&mut self, at: ProgramId) -> Result<(), String> {
        // Events give the reason for failed completions.
        while let Some(event) = self.programs[at]
            .endpoint
            .as_mut()
            .and_then(Endpoint::poll_event)
        {
            self.on_event(at, &event)?;
        }
        loop {
            let Some(endpoint) = &mut self.programs[at].endpoint else {
                return Ok(());
            };
            let Some(completion) = endpoint.poll_completion() else {
                break;
            };
            let (context, flags) = match &completion {
                Ok(entry) => (entry.context, entry.flags),
                Err(entry) => (entry.context, entry.flags),
            };
            let number = (context & NUMBER) as usize;
            match context & !NUMBER {
                MESSAGE => self.on_sent(number, completion)?,
                ONE_SIDED => self.on_one_sided(number, completion)?,
                RECEIVE => self.on_received(at, number, completion)?,
                _ if flags.contains(CompletionFlags::REMOTE_WRITE) => match completion {
                    Ok(entry) => self.on_announced(at, &entry)?,
                    Err(entry) => return Err(format!("program {at} heard {entry:?}")),
                },
                _ => return Err(format!("program {at} heard {completion:?}")),
            }
        }
        Ok(())
    }

    pub(super) fn on_event(&mut self, at: ProgramId, event: &Event) -> Result<(), String> {
        self.fabric
            .note(format_args!("program {at} hears: {event}"));
        if let Event::PacketRefused {
            peer: Some(peer),
            reason: PacketError::BeyondWindow { msg_id, expected },
            ..
        } = *event
        {
            return self.on_overflow(at, peer, msg_id, expected);
        }
        if let Event::PeerFailed { peer, .. } = *event
            && let Some(from) = self.program_of(at, peer)
            && self.overrun.contains(&(at, from))
        {
            // From now on it gets no reports of that program.
            self.parted.insert((at, from));
        }
        // After deaths and partings packets arrive unexpectedly, or are lost.
        let troubled = (0..self.programs.len()).any(|other| self.is_doomed(at, other));
        let orphaned = self
            .one_sided
            .iter()
            .any(|one| one.orphaned && (one.from == at || one.to == at));
        match event {
            _ if troubled => Ok(()),
            Event::RemoteOperationFailed { .. }
            | Event::PacketRefused {
                reason: PacketError::StaleOperation { .. },
                ..
            } if orphaned => Ok(()),
            // The device had not yet read the packet that a peer was to read.
            Event::ControlSendFailed { failure, .. }
                if orphaned && failure.provider == ProviderError::LocalInvalidLkey =>
            {
                Ok(())
            }
            // A packet of a message that one side aborts while the other still answers.
            Event::PacketRefused {
                reason: PacketError::StaleOperation { .. } | PacketError::AlreadyProcessed { .. },
                ..
            } if self.aborts => Ok(()),
            Event::PacketRefused { reason, .. } if reason.fits_second_copy() => {
                self.on_copy(at, event)
            }
            other => Err(format!("program {at}: {other}")),
        }
    }
}
