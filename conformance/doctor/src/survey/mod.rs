//! Measures a device's behaviour: an experiment for each assumption of the emulator's device model.
//!
//! [`EXPERIMENTS`] is the only table: `docs/hardware-checklist.md` is made from it, [`run`]
//! executes it over verbs, and [`profile`] makes a profile of the answers, with which the emulator
//! behaves the same.

mod error;
mod experiments;
mod lab;
mod side;

use std::fmt;
use std::time::Duration;

use efa_core::nic::Status;
use efa_device_model::profile::Profile;
use efa_device_model::qpn_policy::QpnPolicy;

pub use error::{SideError, SurveyError};
pub use experiments::EXPERIMENTS;
pub use lab::Lab;
pub use side::serve;

/// The result of an experiment, or the model's assumption.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// A limit.
    Number(u64),
    /// The status of a completion.
    Status(Status),
    /// The next queue pair number.
    Reuse(QpnPolicy),
    /// A time, which differs in each measurement.
    Time(Duration),
    /// Anything else.
    Text(String),
    /// The device lacks a feature that the experiment needs.
    Absent(&'static str),
}

impl Answer {
    fn text(text: impl Into<String>) -> Answer {
        Answer::Text(text.into())
    }

    /// Returns whether two answers agree. Times agree if one is at most eight times the other.
    pub fn agrees(&self, other: &Answer) -> bool {
        match (self, other) {
            (Answer::Time(one), Answer::Time(other)) => *one <= *other * 8 && *other <= *one * 8,
            _ => self == other,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Number(number) => write!(f, "{number}"),
            Answer::Status(status) => {
                write!(f, "status {} ({})", status.code(), status.describe())
            }
            Answer::Reuse(policy) => write!(f, "{policy}"),
            Answer::Time(time) => write!(f, "{time:.1?}"),
            Answer::Text(text) => f.write_str(text),
            Answer::Absent(what) => write!(f, "the device has no {what}"),
        }
    }
}

/// One assumption of the device model, and its test.
pub struct Experiment {
    /// Its name in the table and on the command line.
    pub id: &'static str,
    pub(crate) question: &'static str,
    measure: fn(&Lab) -> Result<Answer, SurveyError>,
    assumed: fn(&Profile) -> Answer,
    learn: fn(&mut Profile, &Answer),
}

impl Experiment {
    /// The model's assumption for a device with this profile.
    pub fn assumed(&self, profile: &Profile) -> Answer {
        (self.assumed)(profile)
    }
}

/// An experiment with its result.
pub struct Measured {
    /// The assumption that was tested.
    pub experiment: &'static Experiment,
    /// The result, or why it failed.
    pub answer: Result<Answer, SurveyError>,
}

/// Runs the experiments whose names `wanted` accepts, and passes each result to `done`.
pub fn run(
    lab: &Lab,
    wanted: impl Fn(&str) -> bool,
    mut done: impl FnMut(&Measured),
) -> Vec<Measured> {
    let wanted = EXPERIMENTS
        .iter()
        .filter(|experiment| wanted(experiment.id));
    let measured = wanted.map(|experiment| {
        let answer = (experiment.measure)(lab);
        let measured = Measured { experiment, answer };
        done(&measured);
        measured
    });
    measured.collect()
}

/// The built-in profile of a device's generation, or the default one if there is none.
pub fn assumed_profile(part_id: u32) -> &'static Profile {
    let all = || Profile::all().iter();
    all()
        .find(|profile| profile.part_id == part_id)
        .or_else(|| all().find(|profile| profile.name == Profile::DEFAULT))
        .expect("the default profile is built in")
}

/// A profile with the measured values, and descriptions of the values that had to be changed
/// because the emulator does not support them. Values that were not measured are as in `base`.
pub fn profile(name: &str, base: &Profile, measured: &[Measured]) -> (Profile, Vec<String>) {
    let mut profile = base.clone();
    profile.name = String::leak(name.to_owned());
    profile.description = "measured by efa-conformance survey";
    for one in measured {
        if let Ok(answer) = &one.answer {
            (one.experiment.learn)(&mut profile, answer);
        }
    }
    let changed = profile.fit();
    (profile, changed)
}

/// The file of a measured profile.
pub fn file(
    profile: &Profile,
    base: &Profile,
    measured: &[Measured],
    changed: &[String],
) -> String {
    let answers = measured.iter().map(|one| {
        let answer = match &one.answer {
            Ok(answer) => answer.to_string(),
            Err(problem) => format!("failed: {problem}"),
        };
        (one.experiment.id.to_owned(), answer.into())
    });
    let text = profile.file_text(base.name, answers.collect());
    let mut head =
        "# What `efa-conformance survey` has measured; for `efa-emu run --profile FILE`.\n"
            .to_owned();
    for line in changed {
        head += &format!("# {line}.\n");
    }
    head + &text
}

/// The rows of `docs/hardware-checklist.md`: the default profile's assumption for each experiment.
pub fn checklist() -> String {
    let profile = Profile::default();
    let mut rows = String::new();
    for experiment in &EXPERIMENTS {
        let assumed = experiment.assumed(&profile);
        rows += &format!(
            "| `{}` | {} | {assumed} |\n",
            experiment.id, experiment.question
        );
    }
    rows
}
