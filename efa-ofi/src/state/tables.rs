//! Completions in C's representation: addresses of their peers, and entries of completion queues.

use efa_core::endpoint::{Errno, Failure, PeerId};
use slab::Slab;

use crate::ffi::result::Result;
use crate::state::addresses::Addresses;
use crate::state::completions::Completions;

/// The address vectors and completion queues of a domain.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) vectors: Vec<Option<Addresses>>,
    pub(crate) queues: Slab<Completions>,
    /// Whether a queue may have been full since the last [`Tables::check_room`]. Usually none is,
    /// and then no operation has to check.
    pub(crate) may_be_full: bool,
    /// Messages of collective operations that have ended, by their context.
    pub(crate) collective: Vec<(u64, std::result::Result<(), MessageFailure>)>,
}

/// The reason why a message failed, and its peer.
pub(crate) type MessageFailure = (Failure, Option<PeerId>);

impl Tables {
    /// The entries of a completion queue.
    ///
    /// # Errors
    /// `FI_EINVAL` for an unknown queue.
    #[inline]
    pub(crate) fn completions(&mut self, queue: usize) -> Result<&mut Completions> {
        self.queues.get_mut(queue).ok_or(Errno::EINVAL)
    }

    /// Checks that a completion queue has room for another operation's completion.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the application has to read completions first.
    #[inline]
    pub(crate) fn check_room(&mut self, queue: Option<usize>) -> Result<()> {
        match self.may_be_full {
            false => Ok(()),
            true => self.look_for_room(queue),
        }
    }

    #[cold]
    fn look_for_room(&mut self, queue: Option<usize>) -> Result<()> {
        self.may_be_full = self.queues.iter().any(|(_, queue)| queue.is_full());
        let completions = queue.and_then(|queue| self.queues.get(queue));
        match completions.is_some_and(Completions::is_full) {
            false => Ok(()),
            true => Err(Errno::EAGAIN),
        }
    }
}
