//! Rounds in which one side of a run is killed, and the behaviour of the survivor.

use std::fmt;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::not_measured::{NotMeasured, failed};
use super::process::Running;

/// The seed of the times, which a failing cell reports.
pub(crate) const SEED: u64 = 0xefa;

/// Maximum time for programs until data flows.
pub(crate) const START: Duration = Duration::from_secs(60);
/// Maximum time for a survivor to exit after SIGTERM, and for a launcher to end its job, on a busy
/// machine.
pub(crate) const END: Duration = Duration::from_secs(60);

/// Options of a `fi_pingpong` that does not exit by itself.
pub(crate) const ENDLESS: [&str; 4] = ["-I", "100000000", "-S", "65536"];

/// One round with a kill.
pub(crate) struct Round {
    pub(crate) number: u64,
    pub(crate) random: SmallRng,
}

/// Runs this many rounds.
pub(crate) fn rounds(
    count: u64,
    mut run: impl FnMut(&mut Round) -> Result<(), NotMeasured>,
) -> Result<(), NotMeasured> {
    for number in 0..count {
        let random = SmallRng::seed_from_u64(SEED + number);
        run(&mut Round { number, random })
            .map_err(|error| error.at(format_args!("kill {number} of seed {SEED:#x}")))?;
    }
    Ok(())
}

impl Round {
    /// Whether the kill happens while the programs start, at any instruction. In the other half of
    /// the rounds it happens while data flows, which shows that the network still works after the
    /// earlier kills.
    pub(crate) fn is_early(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    /// Waits for the time of the kill: some time after the start, or after `flows` has waited for
    /// data.
    pub(crate) fn await_moment(
        &mut self,
        flows: impl FnOnce() -> Result<(), NotMeasured>,
    ) -> Result<(), NotMeasured> {
        let longest = match self.is_early() {
            true => 500,
            false => {
                flows()?;
                200
            }
        };
        std::thread::sleep(Duration::from_millis(self.random.random_range(0..longest)));
        Ok(())
    }
}

/// Counts of survivors that exited on their own, and after SIGTERM: some wait forever for a message
/// of the killed side.
#[derive(Default)]
pub(crate) struct Survivors {
    pub(crate) noticed: u32,
    told: u32,
}

impl Survivors {
    /// Waits for the exit of a survivor: by itself, for at most `notice`, otherwise after SIGTERM.
    pub(crate) fn end(
        &mut self,
        mut survivor: Running,
        notice: Duration,
    ) -> Result<(), NotMeasured> {
        if survivor.ends_within(notice).is_some() {
            self.noticed += 1;
            return Ok(());
        }
        self.told += 1;
        survivor.terminate();
        match survivor.ends_within(END) {
            Some(_) => Ok(()),
            None => Err(failed!(
                "the survivor, process {}, did not end within {END:?} of SIGTERM",
                survivor.id()
            )),
        }
    }
}

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Survivors { noticed, told } = self;
        write!(f, "{noticed} ended by themselves, {told} when told to")
    }
}
