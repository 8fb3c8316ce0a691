//! What completions become: addresses of their peers, and entries of completion queues.

use efa_core::endpoint::Errno;
use slab::Slab;

use crate::ffi::result::Result;
use crate::state::addresses::Addresses;
use crate::state::completions::Completions;

/// The address vectors and completion queues of a domain.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) vectors: Vec<Option<Addresses>>,
    pub(crate) queues: Slab<Completions>,
}

impl Tables {
    /// The entries of a completion queue.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is no such queue.
    #[inline]
    pub(crate) fn completions(&mut self, queue: usize) -> Result<&mut Completions> {
        self.queues.get_mut(queue).ok_or(Errno::EINVAL)
    }
}
