//! The work requests that a program builds between `wr_start` and `wr_complete`.

use core::ops::Range;

use super::memory::Buffers;
use crate::exchange::{Body, flag};

/// A request that is being built, or was posted.
#[derive(Default)]
pub(super) struct WorkRequest {
    pub(super) kind: u8,
    /// Bits of [`flag`].
    pub(super) flags: u8,
    /// Its fields that are known so far.
    pub(super) body: Body,
    pub(super) buffers: Buffers,
    /// The range of its data in the session's bytes.
    pub(super) inline: Option<Range<usize>>,
}

impl WorkRequest {
    /// Starts a request in place: most of the structure is unused memory.
    #[inline(always)]
    pub(super) fn set(&mut self, kind: u8, body: Body, immediate: Option<u32>) {
        self.kind = kind;
        self.flags = immediate.map_or(0, |_| flag::IMMEDIATE);
        self.body = Body {
            immediate: immediate.unwrap_or(0),
            ..body
        };
        self.buffers.clear();
        self.inline = None;
    }
}

/// The requests between `wr_start` and `wr_complete`.
#[derive(Default)]
pub(crate) struct Session {
    /// The recording ([`current`](super::ring::current)) in which it began, or 0 if it is not
    /// recorded. If the recording is switched off and on in between, its number differs, and the
    /// session is not recorded.
    pub(super) recording: u32,
    /// Whether `last` was started.
    pub(super) is_begun: bool,
    /// The request that is being built.
    pub(super) last: WorkRequest,
    /// The requests that were started before it.
    pub(super) earlier: Vec<WorkRequest>,
    pub(super) inline: Vec<u8>,
}

impl Session {
    pub(super) fn start(&mut self, recording: u32) {
        self.recording = recording;
        self.is_begun = false;
        self.earlier.clear();
        self.inline.clear();
    }

    /// Starts a request.
    #[inline(always)]
    pub(super) fn begin(&mut self, kind: u8, body: Body, immediate: Option<u32>) {
        if self.is_begun {
            self.keep_last();
        }
        self.is_begun = true;
        self.last.set(kind, body, immediate);
    }

    #[cold]
    fn keep_last(&mut self) {
        self.earlier.push(core::mem::take(&mut self.last));
    }
}
