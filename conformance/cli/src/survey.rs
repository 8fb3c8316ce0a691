//! `survey`: what a device does, beside what the emulator's device model assumes.

use std::path::PathBuf;

use efa_conformance::survey::{self, EXPERIMENTS, Measured};
use efa_emu::profile::Profile;
use efa_hw::{DeviceName, HwDevice};

use crate::{Outcome, complain, say};

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
    /// Only this experiment; may be given again for others.
    #[arg(long, value_name = "EXPERIMENT")]
    only: Vec<String>,
    /// Compare with this profile (a name or a file) instead of that of the device's generation.
    #[arg(long, value_name = "PROFILE")]
    against: Option<String>,
    /// Print the rows of docs/hardware-checklist.md: the experiments, and what is assumed of a device with the
    /// default profile.
    #[arg(long)]
    list: bool,
}

pub(crate) fn survey(arguments: &Survey) -> Outcome {
    if arguments.list {
        say(survey::checklist().trim_end());
        return Outcome::Passed;
    }
    match measure(arguments) {
        Ok(outcome) => outcome,
        Err(problem) => complain(problem, Outcome::Unfit),
    }
}

fn measure(arguments: &Survey) -> Result<Outcome, String> {
    let is_known = |name: &str| EXPERIMENTS.iter().any(|experiment| experiment.id == name);
    if let Some(unknown) = arguments.only.iter().find(|name| !is_known(name)) {
        return Err(format!(
            "there is no experiment {unknown:?}: `efa-conformance survey --list` lists them"
        ));
    }
    let name = match &arguments.device {
        Some(name) => DeviceName::Named(name.clone()),
        None => DeviceName::First,
    };
    let device = HwDevice::open(&name).map_err(|error| error.to_string())?;
    let report = device.report().map_err(|error| error.to_string())?;
    let base = survey::assumed_profile(report.vendor_part_id);
    let against = match &arguments.against {
        Some(name) => Profile::named(name).map_err(|error| error.to_string())?,
        None => base.clone(),
    };
    say(format_args!(
        "{}, part id {:#06x}, beside profile {}",
        device.name(),
        report.vendor_part_id,
        against.name
    ));
    let wanted =
        |id: &str| arguments.only.is_empty() || arguments.only.iter().any(|name| name == id);
    let measured = survey::run(&device, wanted, |measured| say_answer(measured, &against));
    let measured = measured.map_err(|error| error.to_string())?;
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
