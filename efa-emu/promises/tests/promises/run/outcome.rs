//! The end of a run: all operations are complete, and no state of them is left.

use efa_core::endpoint::{CompletionFlags, Counter, Statistics, Usage};

use crate::model::{OneSidedKind, ProgramId, RequestState, check_matching};
use crate::plan::{REGIONS, SendMode};

use super::{RareEvents, World};

impl World {
    pub(super) fn finish(mut self) -> Result<RareEvents, String> {
        self.receive_the_rest_without_header()?;
        self.settle()?;
        // Live programs clean up after dead or parted ones.
        self.forget_the_doomed()?;
        self.settle()?;
        self.receive_the_rest()?;
        for number in 0..self.receives.len() {
            if !self.receives[number].ended {
                self.cancel(number, true)?;
            }
        }
        self.settle()?;
        // Late packets of parted programs may have added them again.
        self.forget_the_doomed()?;
        self.settle()?;
        self.check_outcomes()?;
        self.end_orphans()?;
        self.check_rest()?;
        for at in 0..self.programs.len() {
            self.check_counters(at)?;
            if self.is_dead(at) {
                continue;
            }
            check_matching(&self.messages, &self.receives, self.ordered)?;
        }
        Ok(self.troubles)
    }

    pub(super) fn check_outcomes(&self) -> Result<(), String> {
        for (number, message) in self.messages.iter().enumerate() {
            let doomed = self.is_doomed(message.from, message.to);
            let reported = matches!(message.state, RequestState::Ended(_));
            let reports = matches!(message.mode, SendMode::Plain | SendMode::DeliveryComplete);
            let never = !self.is_dead(message.from)
                && !message.lost
                && match message.state {
                    RequestState::Started => reports,
                    RequestState::Waiting => true,
                    RequestState::Refused | RequestState::Ended(_) => false,
                };
            if never {
                return Err(format!(
                    "message {number} never ends: {:?}; {}",
                    message.state,
                    self.usages()
                ));
            }
            if message.aborted && !matches!(message.state, RequestState::Ended(Err(_))) {
                return Err(format!(
                    "message {number} failed on one side, on the other it is {:?}",
                    message.state
                ));
            }
            let excused = doomed || message.lost || message.state == RequestState::Refused;
            if !excused && reports && !reported {
                return Err(format!("message {number} was not reported"));
            }
        }
        for (number, operation) in self.one_sided.iter().enumerate() {
            let doomed = self.is_doomed(operation.from, operation.to);
            let reports = matches!(operation.mode, SendMode::Plain | SendMode::DeliveryComplete);
            let what = format!("one-sided operation {number} ({:?})", operation.kind);
            let never = !self.is_dead(operation.from)
                && !operation.orphaned
                && match operation.state {
                    RequestState::Started => reports,
                    RequestState::Waiting => true,
                    RequestState::Refused | RequestState::Ended(_) => false,
                };
            if never {
                return Err(format!(
                    "{what} of {} bytes from program {} to {} never ends: {:?}; {}",
                    operation.length,
                    operation.from,
                    operation.to,
                    operation.state,
                    self.usages()
                ));
            }
            if doomed || operation.orphaned || operation.state == RequestState::Refused {
                continue;
            }
            if !self.is_written(number) {
                return Err(format!("{what} did not do its work"));
            }
            if operation.announces && !operation.announced {
                return Err(format!("{what} was not announced"));
            }
        }
        (0..self.programs.len())
            .filter(|at| !self.is_dead(*at))
            .try_for_each(|at| self.check_words(at))
    }

    /// The resources of programs, for reports of hangs.
    pub(super) fn usages(&self) -> String {
        let all = self.programs.iter().enumerate();
        all.filter_map(|(at, program)| {
            let usage = program.endpoint.as_ref()?.usage();
            Some(format!("program {at} keeps {usage:?}"))
        })
        .collect::<Vec<_>>()
        .join(", ")
    }

    /// The counter and the lock word of a program have the values that its peers' atomics give.
    pub(super) fn check_words(&self, at: ProgramId) -> Result<(), String> {
        let to_it = |kinds: &[OneSidedKind]| -> Vec<usize> {
            let all = self.one_sided.iter().enumerate();
            all.filter(|(_, one)| one.to == at && kinds.contains(&one.kind))
                .map(|(number, _)| number)
                .collect()
        };
        let fetched = |number: &usize| {
            let operation = &self.one_sided[*number];
            let bytes = self.bytes(operation.from, operation.local + 8, 8);
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        };
        let adds = to_it(&[OneSidedKind::Add, OneSidedKind::FetchAdd]);
        let certain = adds.iter().filter(|number| {
            let operation = &self.one_sided[**number];
            operation.state != RequestState::Refused && !self.is_doomed(operation.from, at)
        });
        let counter = self.word(at, 0);
        if !(certain.count() as u64..=adds.len() as u64).contains(&counter) {
            return Err(format!(
                "the counter of program {at} is {counter} after {} additions",
                adds.len()
            ));
        }
        let mut values: Vec<u64> = adds
            .iter()
            .filter(|number| {
                let operation = &self.one_sided[**number];
                operation.kind == OneSidedKind::FetchAdd
                    && operation.state == RequestState::Ended(Ok(()))
            })
            .map(fetched)
            .collect();
        values.sort_unstable();
        if values.windows(2).any(|pair| pair[0] == pair[1])
            || values.iter().any(|value| *value >= counter)
        {
            return Err(format!(
                "fetched from the counter of program {at}: {values:?}"
            ));
        }
        let owner = self.word(at, 8);
        for number in to_it(&[OneSidedKind::Claim]) {
            let operation = &self.one_sided[number];
            if operation.state != RequestState::Ended(Ok(())) {
                continue;
            }
            let (old, won) = (fetched(&number), owner == number as u64 + 1);
            if (old == 0) != won || (!won && old != owner) {
                return Err(format!(
                    "operation {number} found {old} in the lock word of program {at}, which {owner} \
                     owns"
                ));
            }
        }
        Ok(())
    }

    /// The counters of a program match the outcomes of its operations.
    pub(super) fn check_counters(&self, at: ProgramId) -> Result<(), String> {
        let Some(endpoint) = &self.programs[at].endpoint else {
            return Ok(());
        };
        let counted = |states: &[RequestState]| {
            let ended = |wanted: fn(&RequestState) -> bool| {
                states.iter().filter(|state| wanted(state)).count() as u64
            };
            Counter {
                // An operation without a reported success stays started.
                successes: ended(|state| {
                    matches!(state, RequestState::Started | RequestState::Ended(Ok(())))
                }),
                errors: ended(|state| matches!(state, RequestState::Ended(Err(_)))),
            }
        };
        let messages = self.messages.iter().filter(|message| message.from == at);
        let one_sided = |reads: bool| -> Vec<RequestState> {
            let all = self.one_sided.iter().filter(|one| one.from == at);
            all.filter(|one| one.kind.flags().contains(CompletionFlags::READ) == reads)
                .map(|one| one.state)
                .collect()
        };
        let statistics = endpoint.statistics();
        self.check_remote_counters(at, statistics)?;
        for (what, found, expected) in [
            (
                "sends",
                statistics.sends,
                counted(&messages.map(|message| message.state).collect::<Vec<_>>()),
            ),
            ("receives", statistics.receives, self.programs[at].received),
            ("writes", statistics.writes, counted(&one_sided(false))),
            ("reads", statistics.reads, counted(&one_sided(true))),
        ] {
            if found != expected {
                return Err(format!(
                    "program {at} counted {what}: {found:?} instead of {expected:?}"
                ));
            }
        }
        Ok(())
    }

    /// A target counts the accesses of peers that its device does not execute alone: all accesses
    /// with data for its completion queue, all atomics that their initiator saw complete, and no
    /// more than were started.
    fn check_remote_counters(&self, at: ProgramId, statistics: &Statistics) -> Result<(), String> {
        for (reads, found) in [
            (false, statistics.remote_writes),
            (true, statistics.remote_reads),
        ] {
            let accesses = || {
                let to_it = self.one_sided.iter().filter(|one| one.to == at);
                to_it.filter(|one| one.kind.flags().contains(CompletionFlags::READ) == reads)
            };
            let certain = accesses().filter(|one| {
                let is_atomic = one.kind.flags().contains(CompletionFlags::ATOMIC);
                one.announced || (is_atomic && reads && one.state == RequestState::Ended(Ok(())))
            });
            let possible = certain.count() as u64..=accesses().count() as u64;
            if found.errors != 0 || !possible.contains(&found.successes) {
                return Err(format!(
                    "program {at} counted as target, reads {reads}: {found:?}, not {possible:?}"
                ));
            }
        }
        Ok(())
    }

    /// Completed operations have left no state.
    pub(super) fn check_rest(&self) -> Result<(), String> {
        for (at, program) in self.programs.iter().enumerate() {
            let Some(endpoint) = &program.endpoint else {
                continue;
            };
            let usage = endpoint.usage();
            let waits = self.aborts && !program.settings.endpoint.handshake_before_messages;
            let expected = Usage {
                peers: usage.peers,
                // Reports owed after a HANDSHAKE, if the message that requests it was lost.
                owed: if waits { usage.owed } else { 0 },
                ..Usage::default()
            };
            if usage != expected || endpoint.has_packets_in_flight() {
                return Err(format!("program {at} keeps {usage:?}"));
            }
            let nic = endpoint.nic().sim();
            let found = (nic.posted_receives(), nic.free_buffers(), nic.regions());
            let nic = &program.settings.nic;
            let expected = (nic.recv_queue_depth, nic.send_queue_depth, REGIONS);
            if found != expected {
                return Err(format!(
                    "program {at} on host {}: receives, free buffers and registrations are {found:?} \
                     instead of {expected:?}",
                    program.slot
                ));
            }
        }
        Ok(())
    }
}
