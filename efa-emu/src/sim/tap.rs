//! Watching the frames of a fabric, for captures.

use std::fmt;
use std::time::Duration;

use super::HostId;
use super::fault::Frame;

/// Which way a frame goes through a host's port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// The host sends it.
    Sent,
    /// The host receives it.
    Received,
}

/// A frame at a host's port. Lost frames are seen by their sender only.
#[derive(Clone, Copy, Debug)]
pub struct TappedFrame<'a> {
    /// Virtual time since the fabric's start.
    pub time: Duration,
    /// The host at whose port the frame is seen.
    pub host: HostId,
    /// Whether that host sends or receives it.
    pub direction: Direction,
    /// The path that the frame takes, from 0.
    pub path: u16,
    /// The frame. A request of any length is one frame here, even if it needs many packets.
    pub frame: Frame<'a>,
}

/// What is called for every frame.
pub(super) struct FrameTap(Box<dyn FnMut(&TappedFrame<'_>)>);

impl FrameTap {
    pub(super) fn new(tap: impl FnMut(&TappedFrame<'_>) + 'static) -> Self {
        FrameTap(Box::new(tap))
    }

    pub(super) fn call(&mut self, frame: &TappedFrame<'_>) {
        (self.0)(frame);
    }
}

impl fmt::Debug for FrameTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrameTap")
    }
}
