//! Group `kill`: one side of a run is killed at a random moment, repeatedly, in one network.
//!
//! Half of the kills come while the programs start, at any instruction. The other half come when data flows,
//! which shows that the network still works after the earlier kills. The survivor may fail by itself, or
//! wait forever for a message that nobody will send; it must end on SIGTERM. After that nothing may be left
//! in the network.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use efa_core::address::Qpn;
use efa_shm::{HostStatus, ParticipantStatus, list_hosts};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::harness::{Bench, Cell, CellResult, Lab, Running, Unmet, free_port};
use super::mpi;

const GROUP: &str = "kill";

/// The seed of the moments, which a failing cell reports.
const SEED: u64 = 0xefa;

/// How long a survivor may take to notice that its peer is gone.
const NOTICE: Duration = Duration::from_secs(1);
/// How long it may take to end on SIGTERM, and a launcher to end its job. The machine may be busy.
const END: Duration = Duration::from_secs(60);
/// How long programs may take until data flows.
const START: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(5);

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let cell = |name, rounds: u64, limit, mpi: bool| {
        Cell::new(GROUP, name, Duration::from_secs(limit), move |bench| {
            kills(bench, rounds, mpi)
        })
    };
    Ok(vec![
        cell("kill-20 fi_pingpong", 20, 600, false),
        cell("kill-200 fi_pingpong and MPI", 200, 5400, true),
    ])
}

/// Counts of kills and survivors.
#[derive(Default)]
struct Tally {
    /// Kills by victim.
    sides: u32,
    ranks: u32,
    /// Kills by moment.
    early: u32,
    flowing: u32,
    /// Survivors by how they ended.
    noticed: u32,
    told: u32,
    /// All hosts that ever had a queue pair.
    gids: BTreeSet<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kills of fi_pingpong", self.sides)?;
        if self.ranks > 0 {
            write!(f, ", {} of MPI ranks", self.ranks)?;
        }
        write!(
            f,
            ", {} at start, {} with data under way; survivors: {} ended by themselves, {} when told to; \
             nothing left",
            self.early, self.flowing, self.noticed, self.told
        )
    }
}

fn kills(bench: &Bench, rounds: u64, with_mpi: bool) -> CellResult {
    if !Path::new("/usr/bin/fi_pingpong").is_file() {
        return Err(Unmet::Skipped(
            "fi_pingpong is missing: install the Debian package libfabric-bin".into(),
        ));
    }
    let job = match with_mpi {
        true => Some(mpi::Job::prepare(bench)?),
        false => None,
    };
    let segments = mpi::Segments::now();
    // These programs keep the hosts, with their tables of queue pair numbers, through all rounds.
    let [first, second] = HOSTS;
    let keepers = [
        bench.host(first).start(&["sleep", "infinity"])?,
        bench.host(second).start(&["sleep", "infinity"])?,
    ];
    await_left(bench, keepers.len())?;
    let kept = participants(bench)?;
    let numbers = lowest_numbers(bench)?;
    let mut tally = Tally::default();
    let begin = Instant::now();
    for round in 0..rounds {
        let mut random = SmallRng::seed_from_u64(SEED + round);
        let result = match &job {
            // Each of the four combinations of moment and side gets both programs.
            Some(job) if round / 4 % 2 == 1 => {
                kill_rank(bench, job, &kept, round, &mut random, &mut tally)
            }
            _ => kill_side(bench, round, &mut random, &mut tally),
        };
        result
            .and_then(|()| await_left(bench, keepers.len()))
            .map_err(|unmet| match unmet {
                Unmet::Failed(text) => {
                    Unmet::Failed(format!("kill {round} of seed {SEED:#x}: {text}"))
                }
                other => other,
            })?;
    }
    let time = begin.elapsed();
    // Killed ranks of MPICH leave segments behind, with or without a device.
    let segments = match with_mpi {
        true => segments.remove_new(),
        false => 0,
    };
    let numbers_now = lowest_numbers(bench)?;
    if numbers_now != numbers {
        return Err(Unmet::Failed(format!(
            "the lowest free queue pair numbers are {numbers_now:?}, and were {numbers:?}"
        )));
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

/// Options of a `fi_pingpong` that does not end by itself.
const ENDLESS: [&str; 4] = ["-I", "100000000", "-S", "65536"];

/// Returns the lowest free queue pair numbers, by opening queue pairs that get them.
fn lowest_numbers(bench: &Bench) -> Result<Vec<Vec<Qpn>>, Unmet> {
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
) -> Result<(Running<'a>, Running<'a>), Unmet> {
    let port = free_port()?;
    let text = port.to_string();
    let common = [&["fi_pingpong", "-p", "efa", "-e", "rdm"], options].concat();
    // libinfinipath, which Debian's libfabric loads for another vendor's devices, calls `exit` inside its
    // handler of SIGTERM. Destructors of libraries then deadlock on locks that the interrupted code holds:
    // malloc's, or libfabric's own.
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
fn kill_side(
    bench: &Bench,
    round: u64,
    random: &mut SmallRng,
    tally: &mut Tally,
) -> Result<(), Unmet> {
    tally.sides += 1;
    let (server, client) = start_pair(bench, None, &ENDLESS)?;
    await_moment(bench, round, random, tally)?;
    let (victim, mut survivor) = match (round / 2).is_multiple_of(2) {
        true => (client, server),
        false => (server, client),
    };
    kill(await_child(victim.id())?);
    let ended = victim.wait()?.status;
    if ended.success() {
        return Err(Unmet::Failed(format!("the killed side ended with {ended}")));
    }
    match survivor.ends_within(NOTICE) {
        Some(_) => tally.noticed += 1,
        None => {
            tally.told += 1;
            survivor.terminate();
            if survivor.ends_within(END).is_none() {
                return Err(Unmet::Failed(format!(
                    "the survivor, process {}, did not end within {END:?} of SIGTERM",
                    survivor.id()
                )));
            }
        }
    }
    Ok(())
}

/// Kills one rank of an MPI job; the launcher ends the others.
fn kill_rank(
    bench: &Bench,
    job: &mpi::Job,
    others: &[ParticipantStatus],
    round: u64,
    random: &mut SmallRng,
    tally: &mut Tally,
) -> Result<(), Unmet> {
    tally.ranks += 1;
    let mut running = job.start(bench, HOSTS)?;
    await_moment(bench, round, random, tally)?;
    let deadline = Instant::now() + START;
    // Ranks are the children of the `efa-emu run`s, which do not open the device.
    let ranks = loop {
        let ranks: Vec<i32> = participants(bench)?
            .into_iter()
            .filter(|participant| !participant.has_device && !others.contains(participant))
            .filter_map(|participant| child_of(participant.pid.cast_unsigned()))
            .collect();
        if ranks.len() == 2 {
            break ranks;
        }
        if Instant::now() > deadline {
            return Err(Unmet::Failed("the job has not started its ranks".into()));
        }
        std::thread::sleep(TICK);
    };
    kill(ranks[random.random_range(0..2)]);
    match running.ends_within(END) {
        Some(status) if status.success() => {
            Err(Unmet::Failed("the job succeeded without its rank".into()))
        }
        Some(_) => {
            tally.noticed += 1;
            Ok(())
        }
        None => Err(Unmet::Failed(format!(
            "the job did not end within {END:?} of the death of a rank"
        ))),
    }
}

/// Waits for the moment of the kill: in even rounds some time from the start, in odd rounds some time
/// after both sides have queue pairs.
fn await_moment(
    bench: &Bench,
    round: u64,
    random: &mut SmallRng,
    tally: &mut Tally,
) -> Result<(), Unmet> {
    if round.is_multiple_of(2) {
        tally.early += 1;
        std::thread::sleep(Duration::from_millis(random.random_range(0..500)));
        return Ok(());
    }
    tally.flowing += 1;
    let hosts = await_queue_pairs(bench)?;
    tally
        .gids
        .extend(hosts.iter().map(|host| host.gid.to_string()));
    std::thread::sleep(Duration::from_millis(random.random_range(0..200)));
    Ok(())
}

/// Waits until two processes have queue pairs, and returns all hosts.
fn await_queue_pairs(bench: &Bench) -> Result<Vec<HostStatus>, Unmet> {
    let deadline = Instant::now() + START;
    loop {
        let hosts = list_hosts(bench.fabric()).map_err(Unmet::failed)?;
        let participants = hosts.iter().flat_map(|host| &host.participants);
        let open = participants.filter(|participant| !participant.queue_pairs.is_empty());
        if open.count() >= 2 {
            return Ok(hosts);
        }
        if Instant::now() > deadline {
            return Err(Unmet::Failed(format!(
                "no two sides with queue pairs within {START:?}"
            )));
        }
        std::thread::sleep(TICK);
    }
}

fn participants(bench: &Bench) -> Result<Vec<ParticipantStatus>, Unmet> {
    let hosts = list_hosts(bench.fabric()).map_err(Unmet::failed)?;
    Ok(hosts
        .into_iter()
        .flat_map(|host| host.participants)
        .collect())
}

/// Waits until `count` processes are left in the network, none of which has the device.
fn await_left(bench: &Bench, count: usize) -> Result<(), Unmet> {
    let deadline = Instant::now() + END;
    loop {
        let left = participants(bench)?;
        if left.len() == count && !left.iter().any(|participant| participant.has_device) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Unmet::Failed(format!("still in the network: {left:?}")));
        }
        std::thread::sleep(TICK);
    }
}

/// Fails if shared memory of the network or of libfabric is left.
fn expect_no_files(bench: &Bench, gids: &BTreeSet<String>) -> Result<(), Unmet> {
    // SAFETY: takes no pointers.
    let user = unsafe { libc::geteuid() };
    let network = Path::new("/dev/shm")
        .join(format!("efa-emu-{user}"))
        .join(bench.fabric());
    if network.exists() {
        return Err(Unmet::Failed(format!("{} is left", network.display())));
    }
    let objects = std::fs::read_dir("/dev/shm").map_err(Unmet::failed)?;
    // libfabric's names begin with the address of the endpoint.
    let left: Vec<String> = objects
        .flatten()
        .map(|object| object.file_name().to_string_lossy().into_owned())
        .filter(|name| gids.iter().any(|gid| name.starts_with(gid.as_str())))
        .collect();
    match left.is_empty() {
        true => Ok(()),
        false => Err(Unmet::Failed(format!("/dev/shm has {left:?}"))),
    }
}

/// Waits for the program that an `efa-emu run` starts, and returns its process id.
fn await_child(process: u32) -> Result<i32, Unmet> {
    let deadline = Instant::now() + START;
    loop {
        if let Some(child) = child_of(process) {
            return Ok(child);
        }
        if Instant::now() > deadline {
            return Err(Unmet::Failed(format!("process {process} starts nothing")));
        }
        std::thread::sleep(TICK);
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
    // SAFETY: sends a signal, touches no memory. The process is a child of a live child of this one, so its
    // id is not reused.
    unsafe { libc::kill(process, libc::SIGKILL) };
}
