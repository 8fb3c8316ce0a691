//! `survey`: compares a device's behaviour with the assumptions of the emulator's device model.

use std::path::PathBuf;

use efa_device_model::profile::Profile;
use efa_doctor::survey::{self, EXPERIMENTS, Lab, Measured, SurveyError};
use efa_hw::{DeviceName, HwDevice};
use efa_play::player::{HostDevice, Timeouts};

use crate::drive::private_output;
use crate::outcome::{Outcome, complain, say};
use crate::places::{self, EndpointPlace, HostAccess};

#[derive(clap::Args)]
pub(crate) struct Survey {
    /// Write the answers as a profile, for `efa-emu run --profile FILE`.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The name of that profile.
    #[arg(long, value_name = "NAME", default_value = "measured")]
    name: String,
    /// The device; the first EFA device if it is not named.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The host of the side that sends, `a`, or of the side that is sent to, `b`, and its device:
    /// `--at a=node0 --at b=node1`. Both are named, or none: then both sides are on one device of
    /// this host.
    #[arg(long, value_name = "SIDE=HOST[%DEVICE]", conflicts_with = "device")]
    at: Vec<EndpointPlace>,
    #[command(flatten)]
    access: HostAccess,
    /// Run as a side of a survey between hosts, with commands from standard input.
    #[arg(long, hide = true)]
    side: bool,
    /// Only this experiment; may be given again for others.
    #[arg(long, value_name = "EXPERIMENT")]
    only: Vec<String>,
    /// Compare with this profile (a name or a file) instead of the profile of the device's
    /// generation.
    #[arg(long, value_name = "PROFILE")]
    against: Option<String>,
    /// Print the rows of docs/hardware-checklist.md: the experiments, and the assumptions about a
    /// device with the default profile.
    #[arg(long)]
    list: bool,
}

pub(crate) fn survey(arguments: &Survey) -> Outcome {
    if arguments.list {
        say(survey::checklist().trim_end());
        return Outcome::Passed;
    }
    let ended = match arguments.side {
        true => serve(arguments),
        false => measure(arguments),
    };
    match ended {
        Ok(outcome) => outcome,
        Err(problem) => complain(problem, Outcome::Unfit),
    }
}

fn open(arguments: &Survey) -> Result<HwDevice, String> {
    let name = match &arguments.device {
        Some(name) => DeviceName::Named(name.clone()),
        None => DeviceName::First,
    };
    HwDevice::open(&name).map_err(|error| error.to_string())
}

/// Executes the requests on standard input, for a survey between hosts.
fn serve(arguments: &Survey) -> Result<Outcome, String> {
    let output = private_output().map_err(|error| error.to_string())?;
    let device = open(arguments)?;
    let served = survey::serve(device, std::io::stdin().lock(), output);
    served.map_err(|error| error.to_string())?;
    Ok(Outcome::Passed)
}

/// The places of the two sides, if they are named.
fn sides(at: &[EndpointPlace]) -> Result<Option<[&HostDevice; 2]>, String> {
    let side = |name: &str| {
        let mut named = at.iter().filter(|at| at.endpoint == name);
        let place = named.next().map(|at| &at.place);
        place.filter(|_| named.next().is_none())
    };
    match (at.len(), side("a"), side("b")) {
        (0, ..) => Ok(None),
        (2, Some(a), Some(b)) => Ok(Some([a, b])),
        _ => Err(
            "the sides are `a`, which sends, and `b`: name both, --at a=HOST --at b=HOST".into(),
        ),
    }
}

fn measure(arguments: &Survey) -> Result<Outcome, String> {
    let is_known = |name: &str| EXPERIMENTS.iter().any(|experiment| experiment.id == name);
    if let Some(unknown) = arguments.only.iter().find(|name| !is_known(name)) {
        return Err(format!(
            "unknown experiment {unknown:?}: `efa-conformance survey --list` lists them"
        ));
    }
    let lab = match sides(&arguments.at)? {
        None => Lab::here(open(arguments)?),
        Some(places) => Lab::between(places, &arguments.access.reach(Timeouts::DEFAULT.start)),
    }
    .map_err(|error| match error {
        SurveyError::Place(error) => places::explain(&error),
        SurveyError::Start { .. } => format!("{error}; see --rsh"),
        _ => error.to_string(),
    })?;
    let base = survey::assumed_profile(lab.part_id());
    let against = match &arguments.against {
        Some(name) => Profile::named(name).map_err(|error| error.to_string())?,
        None => base.clone(),
    };
    say(format_args!(
        "{}, part id {:#06x}, beside profile {}",
        lab.name(),
        lab.part_id(),
        against.name
    ));
    let wanted =
        |id: &str| arguments.only.is_empty() || arguments.only.iter().any(|name| name == id);
    let measured = survey::run(&lab, wanted, |measured| say_answer(measured, &against));
    let failed = measured.iter().filter(|one| one.answer.is_err()).count();
    let different = measured.iter().filter(|one| differs(one, &against)).count();
    say(format_args!(
        "as assumed: {}, different: {different}, failed: {failed}",
        measured.len() - different - failed
    ));
    if let Some(path) = &arguments.output {
        let (profile, changed) = survey::profile(&arguments.name, base, &measured);
        let text = survey::file(&profile, base, &measured, &changed);
        std::fs::write(path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        say(format_args!("wrote {}", path.display()));
    }
    Ok(match failed {
        0 => Outcome::Passed,
        _ => Outcome::Failed,
    })
}

fn differs(measured: &Measured, against: &Profile) -> bool {
    let assumed = measured.experiment.assumed(against);
    matches!(&measured.answer, Ok(answer) if !answer.agrees(&assumed))
}

fn say_answer(measured: &Measured, against: &Profile) {
    let id = measured.experiment.id;
    match &measured.answer {
        Err(problem) => say(format_args!("FAILED     {id:<20} {problem}")),
        Ok(answer) if differs(measured, against) => {
            let assumed = measured.experiment.assumed(against);
            say(format_args!(
                "DIFFERENT  {id:<20} {answer}; assumed: {assumed}"
            ));
        }
        Ok(answer) => say(format_args!("as assumed {id:<20} {answer}")),
    }
}
