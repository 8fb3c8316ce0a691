//! The cost of hosts of another machine: one process on that machine creates hosts that do nothing.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use efa_commands::process_group::ProcessGroup;
use efa_shm::{Fabric, Host};

use crate::network::{Binding, Bridges, Machines};
use crate::programs;

/// The name of the table.
pub(crate) const NAME: &str = "hosts";

/// The argument that makes this program create hosts.
const ENTER: &str = "--enter-hosts";

/// Hosts on the other machine.
const HOSTS: [usize; 4] = [1, 50, 150, 1000];

/// The time for which the bridges are observed.
const WATCHED: Duration = Duration::from_secs(5);

/// The longest time until the other machine has the hosts.
const PATIENCE: Duration = Duration::from_secs(120);

/// Queue pairs that a host may have.
const QUEUE_PAIRS: u32 = 64;

/// The arguments of the process that creates hosts.
pub(crate) struct Arguments {
    hosts: usize,
    fabric: String,
}

impl Arguments {
    pub(crate) fn of_this_process() -> Option<Arguments> {
        let mut words = std::env::args().skip(1);
        if words.next()? != ENTER {
            return None;
        }
        Some(Arguments {
            hosts: words.next()?.parse().ok()?,
            fabric: words.next()?,
        })
    }
}

/// Creates hosts, which live until standard input is closed.
pub(crate) fn enter(arguments: &Arguments) -> ExitCode {
    let enter = || -> Result<Vec<Host>, efa_shm::FabricError> {
        let fabric = Fabric::open(&arguments.fabric)?;
        let host = |number| fabric.enter_host(Some(&format!("h{number}")), None, QUEUE_PAIRS);
        (0..arguments.hosts).map(host).collect()
    };
    match enter() {
        Ok(_hosts) => {
            println!("entered");
            // The input never has a byte.
            let _ = std::io::stdin().read(&mut [0]);
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the cost of hosts for the machine that they are not on.
pub(crate) fn table(machines: &Machines) -> Result<(), String> {
    println!("\n{NAME}: idle hosts of another machine");
    println!(
        "{:>6} {:>16} {:>14} {:>14} {:>12} {:>22}",
        "",
        "shared memory",
        "of the bridge",
        "descriptors",
        "connections",
        "processor, both bridges"
    );
    println!(
        "{:>6} {:>16} {:>14} {:>14} {:>12} {:>22}",
        "hosts", "KiB a host", "KiB a host", "a host", "of it", "% of one"
    );
    for hosts in HOSTS {
        let bridges = machines.join("hosts", 61347, &[], Binding::Anywhere)?;
        let without = Costs::of(machines, &bridges)?;
        let _hosts = start(machines, &bridges, hosts)?;
        let with = Costs::of(machines, &bridges)?;
        let processor = watch(&bridges)?;
        let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / hosts as f64;
        println!(
            "{hosts:>6} {:>16.1} {:>14.1} {:>14.1} {:>12} {:>16.2} {:>5.2}",
            each(with.shared, without.shared) / 1024.0,
            each(with.resident, without.resident) / 1024.0,
            each(with.descriptors, without.descriptors),
            with.connections,
            processor[0],
            processor[1],
        );
    }
    Ok(())
}

/// Creates hosts on the second machine, and waits until the first one has them.
fn start(machines: &Machines, bridges: &Bridges, hosts: usize) -> Result<ProcessGroup, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = machines.command(1, &own);
    command.args([ENTER, &hosts.to_string(), &bridges.fabric]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = programs::start(&mut command, "the process that makes hosts")?;
    let mut line = String::new();
    if let Some(output) = child.leader.stdout.take() {
        let _ = BufReader::new(output).read_line(&mut line);
    }
    if line.trim_end() != "entered" {
        return Err(format!("{hosts} hosts cannot be made: {}", line.trim_end()));
    }
    let begin = Instant::now();
    loop {
        let known = count(machines, bridges)?;
        if known >= hosts {
            return Ok(child);
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("only {known} of {hosts} hosts are known of"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The directory of the fabric on the first machine, with the proxies of the hosts of the second
/// one.
fn directory(machines: &Machines, bridges: &Bridges) -> Result<PathBuf, String> {
    let shared = machines.shared_memory(0);
    let users = std::fs::read_dir(&shared).map_err(|error| error.to_string())?;
    let mut fabrics = users
        .flatten()
        .map(|user| user.path().join(&bridges.fabric));
    let found = fabrics.find(|fabric| fabric.is_dir());
    found.ok_or_else(|| format!("no fabric {} is in {}", bridges.fabric, shared.display()))
}

/// The number of hosts whose proxies are complete: each has the segment of one participant.
fn count(machines: &Machines, bridges: &Bridges) -> Result<usize, String> {
    let hosts = directory(machines, bridges)?.join("hosts");
    let Ok(entries) = std::fs::read_dir(hosts) else {
        return Ok(0);
    };
    let is_complete = |host: &Path| {
        let files = std::fs::read_dir(host).into_iter().flatten().flatten();
        let mut names = files.map(|file| file.file_name());
        names.any(|name| name.to_string_lossy().ends_with(".device"))
    };
    Ok(entries
        .flatten()
        .filter(|host| is_complete(&host.path()))
        .count())
}

/// The resources that the bridge of the first machine uses.
struct Costs {
    /// Bytes of the machine's shared memory.
    shared: u64,
    /// Bytes of the process's memory that is not shared.
    resident: u64,
    descriptors: u64,
    connections: usize,
}

impl Costs {
    fn of(machines: &Machines, bridges: &Bridges) -> Result<Costs, String> {
        let process = Path::new("/proc").join(bridges.bridges[0].leader.id().to_string());
        let failed = |error: std::io::Error| format!("{}: {error}", process.display());
        let status = std::fs::read_to_string(process.join("status")).map_err(failed)?;
        let field = |name: &str| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        };
        let mut links = Vec::new();
        for entry in std::fs::read_dir(process.join("fd")).map_err(failed)? {
            links.extend(entry.and_then(|entry| std::fs::read_link(entry.path())));
        }
        let is_socket = |link: &&PathBuf| link.to_string_lossy().starts_with("socket:");
        // Several descriptors may refer to one socket.
        let sockets: HashSet<&PathBuf> = links.iter().filter(is_socket).collect();
        let memory =
            rustix::fs::statvfs(machines.shared_memory(0)).map_err(|error| error.to_string())?;
        Ok(Costs {
            shared: (memory.f_blocks - memory.f_bfree) * memory.f_frsize,
            resident: 1024 * field("RssAnon:").ok_or("no resident memory")?,
            descriptors: links.len() as u64,
            // One of them is the listening socket of the first bridge.
            connections: sockets.len() - 1,
        })
    }
}

/// The share of a processor that each idle bridge uses, in percent.
fn watch(bridges: &Bridges) -> Result<[f64; 2], String> {
    let used = |bridge: &ProcessGroup| -> Result<Duration, String> {
        let tasks = format!("/proc/{}/task", bridge.leader.id());
        let mut all = Duration::ZERO;
        let entries = std::fs::read_dir(&tasks).map_err(|error| format!("{tasks}: {error}"))?;
        for entry in entries.flatten() {
            // A thread may have ended.
            let text = std::fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
            let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok());
            all += Duration::from_nanos(nanoseconds.unwrap_or(0));
        }
        Ok(all)
    };
    let [first, second] = &bridges.bridges;
    // Lets the work that the new hosts caused finish.
    std::thread::sleep(Duration::from_secs(1));
    let (begin, before) = (Instant::now(), [used(first)?, used(second)?]);
    std::thread::sleep(WATCHED);
    let after = [used(first)?, used(second)?];
    let time = begin.elapsed().as_secs_f64();
    Ok([0, 1].map(|at| 100.0 * (after[at] - before[at]).as_secs_f64() / time))
}
