//! Sleep until a local process wakes one of several segments, or somebody the alarm.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::transport::segment::Segment;
use crate::transport::shared::futex;

/// How long to sleep at most if the system cannot wait for so many words at once.
const NAP: Duration = Duration::from_micros(200);

/// Wakes whoever sleeps.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<AtomicU32>);

impl Alarm {
    pub(super) fn new(word: &Arc<AtomicU32>) -> Alarm {
        Alarm(Arc::clone(word))
    }

    /// Ends the present sleep, or the next one if nobody sleeps.
    pub fn ring(&self) {
        self.0.fetch_add(1, Ordering::Release);
        futex::wake(&self.0);
    }
}

/// An announced sleep.
#[must_use]
pub struct Sleep {
    segments: Vec<Arc<Segment>>,
    alarm: Arc<AtomicU32>,
    seen: u32,
}

impl Sleep {
    /// Has the owners of rings to `segments` wake whoever sleeps. What came before has to be looked for after this.
    pub(super) fn announce(segments: Vec<Arc<Segment>>, alarm: &Arc<AtomicU32>) -> Sleep {
        let seen = alarm.load(Ordering::Acquire);
        for segment in &segments {
            segment.fall_asleep();
        }
        Sleep {
            segments,
            alarm: Arc::clone(alarm),
            seen,
        }
    }

    /// Sleeps until something comes, or until the time is over.
    pub fn sleep(self, timeout: Duration) {
        let words: Vec<(&AtomicU32, u32)> = std::iter::once((&*self.alarm, self.seen))
            .chain(self.segments.iter().map(|segment| segment.sleep_word()))
            .collect();
        if !futex::wait_any(&words, timeout) {
            std::thread::sleep(timeout.min(NAP));
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        for segment in &self.segments {
            segment.stay_awake();
        }
    }
}
