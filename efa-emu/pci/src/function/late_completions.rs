//! Completions of commands that a staged fault delays.

use std::time::Instant;

use crate::admin::{AdminStatus, Completion, RequestId};

struct LateCompletion {
    due: Instant,
    id: RequestId,
    outcome: Result<Completion, AdminStatus>,
}

/// The most delayed completions: the length of the longest admin queue. A driver has no more
/// outstanding commands.
const MOST: usize = 1 << 15;

/// Completions that are not yet written to the guest.
#[derive(Default)]
pub(super) struct LateCompletions(Vec<LateCompletion>);

impl LateCompletions {
    pub(super) fn is_full(&self) -> bool {
        self.0.len() == MOST
    }

    pub(super) fn add(
        &mut self,
        due: Instant,
        id: RequestId,
        outcome: Result<Completion, AdminStatus>,
    ) {
        self.0.push(LateCompletion { due, id, outcome });
    }

    /// The time of the next completion.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|late| late.due).min()
    }

    /// Removes and returns a completion that is due.
    pub(super) fn take(
        &mut self,
        now: Instant,
    ) -> Option<(RequestId, Result<Completion, AdminStatus>)> {
        let index = self.0.iter().position(|late| late.due <= now)?;
        let late = self.0.remove(index);
        Some((late.id, late.outcome))
    }
}
