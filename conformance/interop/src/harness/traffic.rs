//! Counts of frames in captures.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::not_measured::NotMeasured;
use efa_check::capture::Capture;

/// Number of frames of a capture by RDM packet type or device operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    kinds: BTreeMap<String, usize>,
}

impl Traffic {
    /// Counts the frames of one host's capture.
    pub fn of(capture: &Path) -> Result<Self, NotMeasured> {
        let capture = Capture::load(capture).map_err(NotMeasured::failed)?;
        let mut kinds = BTreeMap::new();
        for frame in &capture.frames {
            *kinds.entry(frame.kind()).or_default() += 1;
        }
        Ok(Traffic { kinds })
    }

    /// The number of frames.
    pub fn total(&self) -> usize {
        self.kinds.values().sum()
    }

    /// The number of frames of `kind`.
    pub fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).copied().unwrap_or(0)
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kinds.is_empty() {
            return f.write_str("no frames recorded");
        }
        for (place, (kind, count)) in self.kinds.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{kind} {count}")?;
        }
        Ok(())
    }
}
