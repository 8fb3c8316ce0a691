//! Interleaved rounds of measurements, and round trips without the warm-up.

use std::time::{Duration, Instant};

/// The rounds of a table, if there is time for them.
const ROUNDS: usize = 5;
/// The approximate time of the messages of one measurement.
const MESSAGES_TIME: Duration = Duration::from_secs(1);
/// The number of successive failures after which a row is skipped.
const FAILURES: usize = 2;

/// Calls `round` until it returns false, there were enough rounds, or the time is over; `round` can
/// ask whether it is. Prints its progress on standard error.
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

/// The results of the rounds of one row.
pub(crate) struct Figures {
    /// The figures of the successful rounds.
    figures: Vec<f64>,
    /// Failures since the last success.
    failures: usize,
    /// The reason of the last failure.
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

    /// The results of a row that cannot be measured on this machine.
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

    /// The number of successful rounds.
    pub(crate) fn count(&self) -> usize {
        self.figures.len()
    }

    /// The figures, the smallest first.
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
    /// Round trips of the short run, whose time is subtracted.
    pub(crate) warm_up: usize,
    /// The most further round trips, if they take no longer than [`MESSAGES_TIME`].
    pub(crate) most: usize,
}

impl Trips {
    /// Microseconds of half a round trip after the warm-up of both sides. `mean` measures the mean
    /// of that many round trips from the first one on.
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
