//! Sleep until a local process rings a doorbell of the page, or the alarm is rung.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::process::shared::futex;
use crate::transport::doorbell_page::DoorbellPage;
use efa_lock_free::doorbell;

/// Longest sleep if the system cannot wait for two futexes simultaneously.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

/// Wakes the sleeping thread.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<AtomicU32>);

impl Alarm {
    pub(super) fn new(word: &Arc<AtomicU32>) -> Alarm {
        Alarm(Arc::clone(word))
    }

    /// Ends the present sleep, or the next one if no thread sleeps.
    pub fn ring(&self) {
        self.0.fetch_add(1, Ordering::Release);
        futex::wake(&self.0);
    }
}

/// An announced sleep.
#[must_use]
pub struct Sleep {
    doorbells: Option<Arc<DoorbellPage>>,
    alarm: Arc<AtomicU32>,
    /// The alarm's value at the sleeper's last complete check for work.
    heard: u32,
}

impl Sleep {
    /// Makes local processes wake the sleeper. The caller must check for earlier work afterwards.
    pub(super) fn announce(
        doorbells: Option<Arc<DoorbellPage>>,
        alarm: &Arc<AtomicU32>,
        heard: u32,
    ) -> Sleep {
        if let Some(doorbells) = &doorbells {
            doorbells.fall_asleep();
        }
        Sleep {
            doorbells,
            alarm: Arc::clone(alarm),
            heard,
        }
    }

    /// Sleeps until it is woken, or until the timeout.
    pub fn sleep(self, timeout: Duration) {
        let alarm = (&*self.alarm, self.heard);
        let Some(doorbells) = &self.doorbells else {
            return futex::wait(&self.alarm, self.heard, Some(timeout));
        };
        if !futex::wait_any(&[alarm, (doorbells.wake_word(), doorbell::ASLEEP)], timeout) {
            std::thread::sleep(timeout.min(LONGEST_SLEEP));
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(doorbells) = &self.doorbells {
            doorbells.stay_awake();
        }
    }
}
