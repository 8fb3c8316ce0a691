//! Group `kill`: one side of a run is killed at a random moment, repeatedly, in one network.
//!
//! After each kill the network must contain no remains of the run.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use efa_commands::ports;
use efa_core::address::Qpn;
use efa_shm::{HostStatus, ParticipantStatus, SHARED_MEMORY, list_hosts};
use rand::Rng;

use super::harness::survivors::{END, ENDLESS, Round, START, Survivors, rounds};
use super::harness::{
    Bench, Cell, CellResult, CellsError, Lab, NotMeasured, Running, await_some, failed, installed,
};
use super::mpi;

const GROUP: &str = "kill";

/// Maximum time for a survivor to detect its peer's death.
const NOTICE: Duration = Duration::from_secs(1);

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, CellsError> {
    let cell = |name, count: u64, limit, mpi: bool| {
        Cell::new(GROUP, name, Duration::from_secs(limit), move |bench| {
            kills(bench, count, mpi)
        })
    };
    Ok(vec![
        cell("kill-20 fi_pingpong", 20, 600, false),
        cell("kill-200 fi_pingpong and MPI", 200, 5400, true),
    ])
}

/// Counts of kills and survivors.
#[derive(Default)]
struct KillCounts {
    /// Kills by victim.
    sides: u32,
    ranks: u32,
    /// Kills by moment.
    early: u32,
    flowing: u32,
    survivors: Survivors,
    /// All hosts that ever had a queue pair.
    gids: BTreeSet<String>,
}

impl fmt::Display for KillCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kills of fi_pingpong", self.sides)?;
        if self.ranks > 0 {
            write!(f, ", {} of MPI ranks", self.ranks)?;
        }
        write!(
            f,
            ", {} at start, {} with data under way; survivors: {}; nothing left",
            self.early, self.flowing, self.survivors
        )
    }
}

fn kills(bench: &Bench, count: u64, with_mpi: bool) -> CellResult {
    installed("fi_pingpong", "libfabric-bin")?;
    let job = match with_mpi {
        true => Some(mpi::Job::prepare(bench)?),
        false => None,
    };
    let segments = mpi::Segments::now();
    // These programs keep the hosts, with their tables of queue pair numbers, alive in all rounds.
    let [first, second] = HOSTS;
    let keepers = [
        bench.host(first).start(&["sleep", "infinity"])?,
        bench.host(second).start(&["sleep", "infinity"])?,
    ];
    await_left(bench, keepers.len())?;
    let kept = participants(bench)?;
    let numbers = lowest_numbers(bench)?;
    let mut tally = KillCounts::default();
    let begin = Instant::now();
    rounds(count, |round| {
        match &job {
            // Each of the four combinations of time and side occurs with both programs.
            Some(job) if round.number / 4 % 2 == 1 => {
                kill_rank(bench, job, &kept, round, &mut tally)?;
            }
            _ => kill_side(bench, round, &mut tally)?,
        }
        await_left(bench, keepers.len())
    })?;
    let time = begin.elapsed();
    // Killed ranks of MPICH leave segments behind, with or without a device.
    let segments = match with_mpi {
        true => segments.remove_new(),
        false => 0,
    };
    let numbers_now = lowest_numbers(bench)?;
    if numbers_now != numbers {
        return Err(failed!(
            "the lowest free queue pair numbers are {numbers_now:?}, and were {numbers:?}"
        ));
    }
    let (server, client) = start_pair(bench, None, &["-c"])?;
    client.success()?;
    server.success()?;
    drop(keepers);
    await_left(bench, 0)?;
    bench.host("last").run(&["true"])?;
    expect_no_files(bench, &tally.gids)?;
    let mut measured = format!("{tally}; {:.0} s", time.as_secs_f64());
    if segments > 0 {
        measured.push_str(&format!("; {segments} segments of MPICH's own removed"));
    }
    Ok(measured)
}

/// The emulated hosts of all programs.
const HOSTS: [&str; 2] = ["h0", "h1"];

/// Returns the lowest free queue pair numbers, by creating queue pairs with them.
fn lowest_numbers(bench: &Bench) -> Result<Vec<Vec<Qpn>>, NotMeasured> {
    let sides = start_pair(bench, Some(("--qpn-reuse", "lowest")), &ENDLESS)?;
    let hosts = await_queue_pairs(bench)?;
    drop(sides);
    let participants = hosts.into_iter().flat_map(|host| host.participants);
    Ok(participants
        .map(|participant| participant.queue_pairs)
        .filter(|numbers| !numbers.is_empty())
        .collect())
}

/// `fi_pingpong`, server first, on emulated hosts with an option of `efa-emu run`.
fn start_pair<'a>(
    bench: &'a Bench<'a>,
    host_option: Option<(&str, &str)>,
    options: &[&str],
) -> Result<(Running<'a>, Running<'a>), NotMeasured> {
    let port = ports::free_port().map_err(NotMeasured::failed)?;
    let text = port.to_string();
    let common = [&["fi_pingpong", "-p", "efa", "-e", "rdm"], options].concat();
    // libinfinipath, which Debian's libfabric loads for another vendor's devices, calls `exit` in
    // its handler of SIGTERM. Destructors of libraries then deadlock on locks that the interrupted
    // code holds: those of malloc or libfabric.
    let host = |name| {
        let host = bench.host(name).env("IPATH_NO_BACKTRACE", "1");
        match host_option {
            Some((option, value)) => host.option(option, value),
            None => host,
        }
    };
    let [first, second] = HOSTS;
    let mut server = host(first).start(&[&common[..], &["-B", &text]].concat())?;
    server.await_listener(port)?;
    let client = host(second).start(&[&common[..], &["-P", &text, "127.0.0.1"]].concat())?;
    Ok((server, client))
}

/// Kills one side of `fi_pingpong`.
fn kill_side(bench: &Bench, round: &mut Round, tally: &mut KillCounts) -> Result<(), NotMeasured> {
    tally.sides += 1;
    let (server, client) = start_pair(bench, None, &ENDLESS)?;
    await_moment(bench, round, tally)?;
    let (victim, survivor) = match (round.number / 2).is_multiple_of(2) {
        true => (client, server),
        false => (server, client),
    };
    // The program that its `efa-emu run` has started.
    let process = victim.id();
    let program = await_some(START, || {
        child_of(process).ok_or_else(|| failed!("process {process} starts nothing"))
    })?;
    kill(program);
    let ended = victim.wait()?.status;
    if ended.success() {
        return Err(failed!("the killed side ended with {ended}"));
    }
    tally.survivors.end(survivor, NOTICE)
}

/// Kills one rank of an MPI job; the launcher ends the others.
fn kill_rank(
    bench: &Bench,
    job: &mpi::Job,
    others: &[ParticipantStatus],
    round: &mut Round,
    tally: &mut KillCounts,
) -> Result<(), NotMeasured> {
    tally.ranks += 1;
    let mut running = job.start(bench, HOSTS)?;
    await_moment(bench, round, tally)?;
    // Ranks are the children of the `efa-emu run`s, which do not open the device.
    let ranks = await_some(START, || {
        let all = participants(bench)?.into_iter();
        let runs = all.filter(|one| !one.has_device && !others.contains(one));
        let ranks = runs.filter_map(|run| child_of(run.pid.cast_unsigned()));
        let ranks = <[i32; 2]>::try_from(ranks.collect::<Vec<_>>());
        ranks.map_err(|_| failed!("the job has not started its ranks"))
    })?;
    kill(ranks[round.random.random_range(0..2)]);
    match running.ends_within(END) {
        Some(status) if status.success() => Err(failed!("the job succeeded without its rank")),
        Some(_) => {
            tally.survivors.noticed += 1;
            Ok(())
        }
        None => Err(failed!(
            "the job did not end within {END:?} of the death of a rank"
        )),
    }
}

/// Waits for the time of the kill.
fn await_moment(
    bench: &Bench,
    round: &mut Round,
    tally: &mut KillCounts,
) -> Result<(), NotMeasured> {
    match round.is_early() {
        true => tally.early += 1,
        false => tally.flowing += 1,
    }
    round.await_moment(|| {
        let hosts = await_queue_pairs(bench)?;
        let gids = hosts.iter().map(|host| host.gid.to_string());
        tally.gids.extend(gids);
        Ok(())
    })
}

/// Waits until two processes have queue pairs, and returns all hosts.
fn await_queue_pairs(bench: &Bench) -> Result<Vec<HostStatus>, NotMeasured> {
    await_some(START, || {
        let hosts = list_hosts(bench.fabric()).map_err(NotMeasured::failed)?;
        let participants = hosts.iter().flat_map(|host| &host.participants);
        let open = participants.filter(|participant| !participant.queue_pairs.is_empty());
        match open.count() {
            2.. => Ok(hosts),
            _ => Err(failed!("no two sides with queue pairs within {START:?}")),
        }
    })
}

fn participants(bench: &Bench) -> Result<Vec<ParticipantStatus>, NotMeasured> {
    let hosts = list_hosts(bench.fabric()).map_err(NotMeasured::failed)?;
    let participants = hosts.into_iter().flat_map(|host| host.participants);
    Ok(participants.collect())
}

/// Waits until `count` processes are left in the network, all of them without the device.
fn await_left(bench: &Bench, count: usize) -> Result<(), NotMeasured> {
    await_some(END, || {
        let left = participants(bench)?;
        let is_met = left.len() == count && !left.iter().any(|one| one.has_device);
        match is_met {
            true => Ok(()),
            false => Err(failed!("still in the network: {left:?}")),
        }
    })
}

/// Fails if shared memory of the network or of libfabric is left.
fn expect_no_files(bench: &Bench, gids: &BTreeSet<String>) -> Result<(), NotMeasured> {
    // SAFETY: the call takes no pointers.
    let user = unsafe { libc::geteuid() };
    let network = Path::new(SHARED_MEMORY)
        .join(format!("efa-emu-{user}"))
        .join(bench.fabric());
    if network.exists() {
        return Err(failed!("{} is left", network.display()));
    }
    let objects = std::fs::read_dir(SHARED_MEMORY).map_err(NotMeasured::failed)?;
    // libfabric's names begin with the address of the endpoint.
    let left: Vec<String> = objects
        .flatten()
        .map(|object| object.file_name().to_string_lossy().into_owned())
        .filter(|name| gids.iter().any(|gid| name.starts_with(gid.as_str())))
        .collect();
    match left.is_empty() {
        true => Ok(()),
        false => Err(failed!("{SHARED_MEMORY} has {left:?}")),
    }
}

/// The first child of a process.
fn child_of(process: u32) -> Option<i32> {
    let children = format!("/proc/{process}/task/{process}/children");
    std::fs::read_to_string(children)
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn kill(process: i32) {
    // SAFETY: sends a signal, accesses no memory. The process is a child of a live child of this
    // process, so its id is not reused.
    unsafe { libc::kill(process, libc::SIGKILL) };
}
