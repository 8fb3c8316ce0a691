//! The values of counters.
//!
//! The engine counts all ends of operations, whether or not they are reported. The value of a
//! counter is the sum of the counts of its bound endpoints and of the application's own additions.

use std::sync::{Arc, Mutex};

use efa_core::endpoint::{Counter, Domain, EndpointId, Statistics};
use efa_hw::HwDomain;

use crate::ffi::{FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE};
use crate::state::wait::WaitFd;

/// Summands of a counter.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// The application's additions, and the counts of closed endpoints. Together
    /// with the counts of the sources this is the counter's value, in arithmetic that wraps around.
    pub(crate) base: Counter,
    /// Endpoints, with the operations that are counted of each (`FI_SEND`, ...).
    pub(crate) sources: Vec<(EndpointId, u64)>,
}

impl Counts {
    pub(crate) fn values(&self, engine: &mut Domain<HwDomain>) -> Counter {
        let mut values = self.base;
        for (endpoint, operations) in &self.sources {
            if let Some(endpoint) = engine.endpoint(*endpoint) {
                add(&mut values, endpoint.statistics(), *operations);
            }
        }
        values
    }

    /// Stores the final counts of an endpoint that is closing.
    pub(crate) fn detach(&mut self, endpoint: EndpointId, statistics: &Statistics) {
        let Counts { base, sources } = self;
        sources.retain(|(source, operations)| {
            let closes = *source == endpoint;
            if closes {
                add(base, statistics, *operations);
            }
            !closes
        });
    }
}

/// Adds the endpoint's counts of these operations.
fn add(to: &mut Counter, statistics: &Statistics, operations: u64) {
    let counters = [
        (FI_SEND, statistics.sends),
        (FI_RECV, statistics.receives),
        (FI_READ, statistics.reads),
        (FI_WRITE, statistics.writes),
        (FI_REMOTE_READ, statistics.remote_reads),
        (FI_REMOTE_WRITE, statistics.remote_writes),
    ];
    for (operation, counter) in counters {
        if operations & operation != 0 {
            to.successes = to.successes.wrapping_add(counter.successes);
            to.errors = to.errors.wrapping_add(counter.errors);
        }
    }
}

/// A thread that sleeps until a counter has other values than these.
#[derive(Debug)]
pub(crate) struct CounterSleeper {
    pub(crate) counts: Arc<Mutex<Counts>>,
    pub(crate) wait_fd: Arc<WaitFd>,
    pub(crate) values: Counter,
}

impl CounterSleeper {
    /// Notifies if the values have changed. Returns whether it did.
    pub(crate) fn wake(&self, engine: &mut Domain<HwDomain>) -> bool {
        let counts = self.counts.lock();
        let changed = counts.is_ok_and(|counts| counts.values(engine) != self.values);
        if changed {
            self.wait_fd.eventfd.notify();
        }
        changed
    }
}
