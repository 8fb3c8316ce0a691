//! Observes the frames of a fabric, for captures.

use std::fmt;
use std::time::Duration;

use super::host_id::HostId;
use efa_capture::{Direction, Interface};
use efa_device_model::fault::Frame;

/// A frame at a host's port. A lost frame is only reported at its sender.
#[derive(Clone, Copy, Debug)]
pub struct TappedFrame<'a> {
    /// Virtual time since the fabric's start.
    pub time: Duration,
    /// The host at whose port the frame is observed.
    pub host: HostId,
    /// Whether that host sends or receives it.
    pub direction: Direction,
    /// All hosts of the fabric, by number.
    pub interfaces: &'a [Interface],
    /// The number of the frame's path, from 0.
    pub path: u16,
    /// The frame. A request of any length is one frame here, even if it needs many packets.
    pub frame: Frame<'a>,
}

/// Identifies a tap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TapId(u32);

/// The functions that are called for every frame.
#[derive(Default)]
pub(super) struct FrameTaps {
    taps: Vec<(TapId, FrameTap)>,
    next: u32,
}

type FrameTap = Box<dyn FnMut(&TappedFrame<'_>)>;

impl FrameTaps {
    pub(super) fn add(&mut self, tap: impl FnMut(&TappedFrame<'_>) + 'static) -> TapId {
        let id = TapId(self.next);
        self.next += 1;
        self.taps.push((id, Box::new(tap)));
        id
    }

    pub(super) fn remove(&mut self, id: TapId) {
        self.taps.retain(|(tap, _)| *tap != id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }

    pub(super) fn call(&mut self, frame: &TappedFrame<'_>) {
        for (_, tap) in &mut self.taps {
            tap(frame);
        }
    }
}

impl fmt::Debug for FrameTaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameTaps")
            .field("taps", &self.taps.len())
            .finish()
    }
}
