//! Interleaved rounds of measurements that compare, and round trips without their beginning.

use std::time::{Duration, Instant};

/// Rounds of a table, if there is time for them.
const ROUNDS: usize = 5;
/// About how long the messages of one measurement take.
const MESSAGES_TIME: Duration = Duration::from_secs(1);
/// Failures in a row after which a row is not tried again.
const FAILURES: usize = 2;

/// Calls `round` until it wants no more, there were enough, or the time is over, and tells it
/// whether it is. Says on standard error how far it is.
pub(crate) fn rounds(name: &str, time: Duration, mut round: impl FnMut(&dyn Fn() -> bool) -> bool) {
    let start = Instant::now();
    for number in 1..=ROUNDS {
        if start.elapsed() > time {
            eprintln!("{name}: no time for more than {} rounds", number - 1);
            return;
        }
        let seconds = start.elapsed().as_secs();
        eprintln!(
            "{name}: round {number} of {ROUNDS}, {seconds} s of {}",
            time.as_secs()
        );
        let is_over = || start.elapsed() > time;
        if !round(&is_over) {
            return;
        }
    }
}

/// What the rounds of one row gave.
pub(crate) struct Figures {
    /// Of each round that gave one.
    figures: Vec<f64>,
    /// Failures since the last one that did.
    failures: usize,
    /// What the last failure was.
    pub(crate) reason: String,
}

impl Figures {
    pub(crate) fn new() -> Figures {
        Figures {
            figures: Vec::new(),
            failures: 0,
            reason: "no time was left".to_owned(),
        }
    }

    /// Of what cannot be measured here.
    pub(crate) fn missing(reason: String) -> Figures {
        Figures {
            failures: FAILURES,
            reason,
            ..Figures::new()
        }
    }

    pub(crate) fn add(&mut self, measured: Result<f64, String>) {
        match measured {
            Ok(figure) => {
                self.figures.push(figure);
                self.failures = 0;
            }
            Err(reason) => {
                self.failures += 1;
                self.reason = reason;
            }
        }
    }

    /// Whether it is worth trying again.
    pub(crate) fn is_hopeful(&self) -> bool {
        self.failures < FAILURES
    }

    /// Rounds that gave a figure.
    pub(crate) fn count(&self) -> usize {
        self.figures.len()
    }

    /// The figures, the smallest one first.
    pub(crate) fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.figures.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    pub(crate) fn least(&self) -> Option<f64> {
        self.sorted().first().copied()
    }

    pub(crate) fn most(&self) -> Option<f64> {
        self.sorted().last().copied()
    }
}

/// Round trips of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trips {
    /// Of the short run, which is taken off.
    pub(crate) warm_up: usize,
    /// At most so many more, if they do not take longer than [`MESSAGES_TIME`].
    pub(crate) most: usize,
}

impl Trips {
    /// Microseconds of half a round trip once both sides have warmed up. `mean` measures the mean
    /// of so many round trips from the first one on.
    pub(crate) fn one_way(
        self,
        mean: impl Fn(usize) -> Result<f64, String>,
    ) -> Result<f64, String> {
        let total = |round_trips: usize| Ok::<f64, String>(mean(round_trips)? * round_trips as f64);
        let short = total(self.warm_up)?;
        let per_trip = Duration::from_secs_f64(2.0 * short / self.warm_up as f64 * 1e-6);
        let in_time = MESSAGES_TIME.as_nanos() / per_trip.as_nanos().max(1);
        let more = usize::try_from(in_time)
            .unwrap_or(usize::MAX)
            .clamp(self.warm_up, self.most);
        let difference = total(self.warm_up + more)? - short;
        if difference > 0.0 {
            Ok(difference / more as f64)
        } else {
            Err("the short run took longer than the long one".to_owned())
        }
    }
}
