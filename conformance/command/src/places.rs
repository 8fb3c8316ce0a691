//! The hosts of `run`, and `place`, with which a host describes itself to the host that runs the
//! suite.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use efa_commands::ports::free_port;
use efa_play::drive::{Command, Identity, Line, VERSION};
use efa_play::player::{
    Description, HostDevice, HostedProgram, ParseHostDeviceError, PlaceError, Player, PlayerError,
    Program, Recorder, Recording, RemoteAccess, RemoteShell, RequirementError, Timeouts,
};
use efa_suite::Case;
use efa_suite::hosts::HostAssignment;

use crate::dut::Dut;
use crate::outcome::{Outcome, complain, say};

/// An endpoint of a scenario, or a side of two programs, and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EndpointPlace {
    pub(crate) endpoint: String,
    pub(crate) place: HostDevice,
}

impl FromStr for EndpointPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((endpoint, place)) if !endpoint.is_empty() => Ok(EndpointPlace {
                endpoint: endpoint.to_owned(),
                place: place
                    .parse()
                    .map_err(|error: ParseHostDeviceError| error.to_string())?,
            }),
            _ => Err(format!(
                "`{text}` names no endpoint and host: write for example a=node0"
            )),
        }
    }
}

/// The pairs of hosts that play.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Pairs {
    /// Every two hosts, in the order in which they are named.
    All,
    /// Every two hosts, in both orders.
    Both,
    /// Each host with the next one, and the last with the first.
    Ring,
}

/// How hosts are reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostAccess {
    /// The command that starts commands on hosts: a command with the arguments of ssh, or a
    /// launcher of a parallel job whose last word is the option for a host, such as `srun -N 1 -n 1
    /// -w` and `mpirun -n 1 --host`.
    #[arg(long, value_name = "COMMAND", default_value = RemoteShell::DEFAULT)]
    rsh: RemoteShell,
    /// `efa-conformance` on the hosts: a path, or a name for the shell there. It is
    /// `efa-conformance`, or with a launcher the path that this program has, unless another is
    /// named.
    #[arg(long, value_name = "PROGRAM")]
    remote_program: Option<String>,
}

impl HostAccess {
    /// How hosts are reached; `limit` is the time in which they have to answer.
    pub(crate) fn reach(&self, limit: Duration) -> RemoteAccess {
        let program = self.remote_program.clone();
        let own = || {
            std::env::current_exe()
                .ok()?
                .into_os_string()
                .into_string()
                .ok()
        };
        let usual = || match self.rsh.is_launcher() {
            true => own().unwrap_or_else(|| REMOTE_PROGRAM.into()),
            false => REMOTE_PROGRAM.into(),
        };
        RemoteAccess {
            shell: self.rsh.clone(),
            program: program.unwrap_or_else(usual),
            limit,
        }
    }
}

/// The error of a place, with the option of [`HostAccess`] that remedies it.
pub(crate) fn explain(error: &PlaceError) -> String {
    match error {
        PlaceError::Start { .. } => format!("{error}; name the command with --rsh"),
        PlaceError::Unreachable { .. } => format!("{error}, or name another command with --rsh"),
        PlaceError::NoProgram { .. } => format!("{error}, or name its path with --remote-program"),
        PlaceError::Different { host, .. } => {
            format!("{error}, or name another program of {host} with --remote-program")
        }
        _ => error.to_string(),
    }
}

/// The hosts that take part, and their roles.
#[derive(clap::Args)]
#[command(next_help_heading = "On several hosts (docs/two-machines.md)")]
pub(crate) struct HostOptions {
    /// Play this endpoint of the scenarios, or this side of the programs, on this host, or on this
    /// device of it: `--at a=node0 --at b=node1%rdmap0s6`. All endpoints are live, and the results
    /// of the applications are judged.
    #[arg(long, value_name = "ENDPOINT=HOST[%DEVICE]",
          conflicts_with_all = ["hosts", "hostfile", "pairs"])]
    at: Vec<EndpointPlace>,
    /// Play everything on pairs of these hosts.
    #[arg(long, value_name = "HOST[%DEVICE],...", value_delimiter = ',')]
    hosts: Vec<HostDevice>,
    /// The same, with the hosts in a file: the first word of each line, `#` begins a comment.
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// The pairs of the hosts that play; by default `all`. Inside of a job of Slurm the hosts are
    /// the job's, which `srun` reaches, if no others are given.
    #[arg(long, value_enum)]
    pairs: Option<Pairs>,
    #[command(flatten)]
    pub(crate) access: HostAccess,
    /// The device of hosts that are named without one; `all` makes each device of each host of
    /// `--hosts` a place. Otherwise it is the first EFA device.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The command that records the packets of a program on a host, placed before the program;
    /// `{file}` stands for the capture. Without it, `efa-emu run --pcap` where the device is
    /// emulated, and `efa-tap run --pcap` where it is not.
    #[arg(long, value_name = "COMMAND", value_parser = recorder, conflicts_with = "no_captures")]
    recorder: Option<String>,
    /// Do not record: only the results of the applications are judged.
    #[arg(long)]
    no_captures: bool,
}

#[derive(clap::Args)]
#[command(next_help_heading = "On several hosts (docs/two-machines.md)")]
pub(crate) struct Places {
    #[command(flatten)]
    pub(crate) hosts: HostOptions,
    /// The device's port. EFA devices have one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=1))]
    port: Option<u8>,
    /// The software that plays the endpoints that are not under test, as in `--dut`; each endpoint
    /// in turn is then under test. Otherwise all are.
    #[arg(long, value_name = "WHAT")]
    peer: Option<Dut>,
}

fn recorder(command: &str) -> Result<String, RequirementError> {
    Recorder::parse(command).map(|_| command.to_owned())
}

/// The name of `efa-conformance` on hosts that a remote shell reaches.
const REMOTE_PROGRAM: &str = "efa-conformance";

/// The command that starts a program on a host of a Slurm job.
const SRUN: &str = "srun --nodes=1 --ntasks=1 --overlap --quiet -w";

/// The word for all devices.
const ALL_DEVICES: &str = "all";

impl HostOptions {
    pub(crate) fn are_named(&self) -> bool {
        !self.at.is_empty() || self.have_hosts()
    }

    /// Uses the hosts of the Slurm job of this process, if pairs are requested and no hosts are
    /// named.
    pub(crate) fn find_job(&mut self) -> Result<(), String> {
        if self.pairs.is_none() || self.are_named() {
            return Ok(());
        }
        let list = std::env::var("SLURM_JOB_NODELIST").map_err(|_| {
            "--pairs without hosts are those of a Slurm job, and this is not one: name them with --hosts or --hostfile"
        })?;
        let output = std::process::Command::new("scontrol")
            .args(["show", "hostnames", &list])
            .output()
            .map_err(|error| {
                format!("cannot run scontrol, which lists the hosts of the job: {error}")
            })?;
        let names = String::from_utf8_lossy(&output.stdout);
        for name in names.lines() {
            self.hosts.push(
                name.parse()
                    .map_err(|error: ParseHostDeviceError| error.to_string())?,
            );
        }
        if self.access.rsh.to_string() == RemoteShell::DEFAULT {
            let srun = SRUN.parse::<RemoteShell>();
            self.access.rsh = srun.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn have_hosts(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }

    /// How packets are recorded; `None` if they are not.
    pub(crate) fn recording(&self) -> Option<Recording> {
        match &self.recorder {
            _ if self.no_captures => None,
            Some(command) => Some(Recording::By(command.clone())),
            None => Some(Recording::AsTheHostDoes),
        }
    }

    /// Queries a host for its versions and devices. Prints a message if its packets cannot be
    /// recorded.
    fn inspect(
        &self,
        reach: &RemoteAccess,
        place: &HostDevice,
        unrecorded: &mut BTreeSet<String>,
        explain: fn(&PlaceError) -> String,
    ) -> Result<Description, String> {
        let description = reach.inspect(place).map_err(|error| explain(&error))?;
        if self.recording() == Some(Recording::AsTheHostDoes)
            && let Some(why) = &description.no_recorder
            && unrecorded.insert(place.host.clone())
        {
            eprintln!(
                "efa-conformance: note: the packets of {} are not recorded: {why}; install it there, or name \
                 another with --recorder",
                place.host
            );
        }
        Ok(description)
    }

    /// Queries all hosts for their versions and devices. Returns the places of the endpoints; hosts
    /// whose packets cannot be recorded are added to `unrecorded`. `explain` adds the command's
    /// remedy to an error.
    pub(crate) fn assignments(
        &self,
        reach: &RemoteAccess,
        unrecorded: &mut BTreeSet<String>,
        explain: fn(&PlaceError) -> String,
    ) -> Result<Vec<HostAssignment>, String> {
        if !self.at.is_empty() {
            let mut places = BTreeMap::new();
            for EndpointPlace { endpoint, place } in &self.at {
                let place = self.with_device(place);
                self.inspect(reach, &place, unrecorded, explain)?;
                if places.insert(endpoint.clone(), place).is_some() {
                    return Err(format!("--at has endpoint `{endpoint}` twice"));
                }
            }
            return Ok(vec![HostAssignment::Named(places)]);
        }
        let mut places = Vec::new();
        for named in self.all_hosts()? {
            let place = self.with_device(&named);
            let is_all = place.device.as_deref() == Some(ALL_DEVICES);
            let asked = HostDevice {
                device: place.device.clone().filter(|_| !is_all),
                ..place.clone()
            };
            let description = self.inspect(reach, &asked, unrecorded, explain)?;
            match is_all {
                true => places.extend(description.devices.into_keys().map(|device| HostDevice {
                    host: place.host.clone(),
                    device: Some(device),
                })),
                false => places.push(place),
            }
        }
        let distinct: BTreeSet<&HostDevice> = places.iter().collect();
        if distinct.len() < places.len() {
            return Err("a host is named twice; name two of its devices as HOST%DEVICE".into());
        }
        if places.len() < 2 {
            return Err("pairs need two hosts at least; name them with --hosts HOST,HOST".into());
        }
        Ok(pairs_of(&places, self.pairs.unwrap_or(Pairs::All)))
    }

    fn with_device(&self, place: &HostDevice) -> HostDevice {
        let device = place.device.clone().or_else(|| self.device.clone());
        HostDevice {
            device,
            ..place.clone()
        }
    }

    fn all_hosts(&self) -> Result<Vec<HostDevice>, String> {
        let mut hosts = self.hosts.clone();
        if let Some(path) = &self.hostfile {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            for (line, text) in text.lines().enumerate() {
                let text = text.split('#').next().unwrap_or_default();
                if let Some(word) = text.split_whitespace().next() {
                    let place = word.parse().map_err(|problem| {
                        format!("{}, line {}: {problem}", path.display(), line + 1)
                    })?;
                    hosts.push(place);
                }
            }
        }
        Ok(hosts)
    }
}

impl Places {
    /// The software that plays the endpoints that are not under test.
    pub(crate) fn peer(&self) -> Option<&Dut> {
        self.peer.as_ref()
    }

    /// The options that repeat a case.
    pub(crate) fn words(&self, case: &Case) -> Vec<(&'static str, String)> {
        let mut words: Vec<(&str, String)> = case
            .places
            .iter()
            .map(|(endpoint, place)| ("--at", format!("{endpoint}={place}")))
            .collect();
        if words.is_empty() {
            return words;
        }
        let HostOptions {
            access, recorder, ..
        } = &self.hosts;
        let rsh = access.rsh.to_string();
        if rsh != RemoteShell::DEFAULT {
            words.push(("--rsh", rsh));
        }
        if let Some(program) = &access.remote_program {
            words.push(("--remote-program", program.clone()));
        }
        if let Some(peer) = &self.peer {
            words.push(("--peer", peer.to_string()));
        }
        if let Some(recorder) = recorder {
            words.push(("--recorder", recorder.clone()));
        }
        words
    }
}

fn pairs_of(places: &[HostDevice], pairs: Pairs) -> Vec<HostAssignment> {
    let numbers = 0..places.len();
    let chosen: Vec<(usize, usize)> = match pairs {
        Pairs::All => numbers
            .flat_map(|first| (first + 1..places.len()).map(move |second| (first, second)))
            .collect(),
        Pairs::Both => numbers
            .clone()
            .flat_map(|first| numbers.clone().map(move |second| (first, second)))
            .filter(|(first, second)| first != second)
            .collect(),
        Pairs::Ring => numbers
            .map(|first| (first, (first + 1) % places.len()))
            .collect(),
    };
    chosen
        .into_iter()
        .map(|(first, second)| {
            let pair = [places[first].clone(), places[second].clone()];
            // Start after the second place, so that every host is used in turn.
            let others = (1..places.len()).map(|step| &places[(second + step) % places.len()]);
            let is_other = |place: &&HostDevice| pair.iter().all(|one| one.host != place.host);
            let others = others.filter(is_other).cloned().collect();
            HostAssignment::Pair { pair, others }
        })
        .collect()
}

/// Starts the programs once at each place, and returns the identity of the program under test at
/// the first.
pub(crate) fn introduce(
    assignments: &[HostAssignment],
    reach: &RemoteAccess,
    program: &Program,
    peer: Option<&Program>,
    timeouts: Timeouts,
) -> Result<Identity, String> {
    let mut found: Option<Identity> = None;
    let mut places: Vec<&HostDevice> = Vec::new();
    for place in assignments.iter().flat_map(HostAssignment::places) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    for place in places {
        let answered = identity(place, reach, program, timeouts)?;
        match &found {
            None => found = Some(answered),
            Some(first) if first.release != answered.release => {
                say(format_args!("at {place}: {}", answered.details()));
            }
            Some(_) => {}
        }
        if let Some(peer) = peer {
            let answered = identity(place, reach, peer, timeouts);
            let answered = answered.map_err(|problem| format!("--peer: {problem}"))?;
            say(format_args!("peer at {place}: {}", answered.details()));
        }
    }
    found.ok_or_else(|| "no host is named".into())
}

fn identity(
    place: &HostDevice,
    reach: &RemoteAccess,
    program: &Program,
    timeouts: Timeouts,
) -> Result<Identity, String> {
    let hosted = HostedProgram::driven(program);
    let player = Player::launch_at("under-test", place, reach, &hosted, timeouts);
    let identity = player.and_then(|mut player| player.identity());
    identity.map_err(|error: PlayerError| match program {
        Program::Exec { words } => format!(
            "{error}; `{}` has to answer `{}` on its standard output there (docs/driver.md)",
            words.join(" "),
            Command::Hello { version: VERSION }.line()
        ),
        Program::Core | Program::Libfabric { .. } => error.to_string(),
    })
}

#[derive(clap::Args)]
pub(crate) struct PlaceArguments {
    /// Print a TCP port that no process listens on instead.
    #[arg(long, hide = true)]
    free_port: bool,
}

/// `place`: prints the line that describes this host.
pub(crate) fn describe(arguments: &PlaceArguments) -> Outcome {
    if arguments.free_port {
        return match free_port() {
            Ok(port) => {
                say(port);
                Outcome::Passed
            }
            Err(error) => complain(format_args!("no free port: {error}"), Outcome::Unfit),
        };
    }
    say(Description::of_this_host().line());
    Outcome::Passed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: Pairs) -> Vec<String> {
        let places = ["x", "y", "z"].map(|name| name.parse().unwrap());
        let assignments = pairs_of(&places, pairs);
        assignments
            .iter()
            .map(|assignment| {
                let places: Vec<String> = assignment.places().map(ToString::to_string).collect();
                places.join("-")
            })
            .collect()
    }

    #[test]
    fn pairs_are_made_of_hosts() {
        assert_eq!(pairs(Pairs::All), ["x-y", "x-z", "y-z"]);
        assert_eq!(
            pairs(Pairs::Both),
            ["x-y", "x-z", "y-x", "y-z", "z-x", "z-y"]
        );
        assert_eq!(pairs(Pairs::Ring), ["x-y", "y-z", "z-x"]);
    }
}
