//! Clusters with hosts on several machines: `efa-emu cluster --machines`, which reaches the other
//! machines through a remote shell and starts the bridges itself.

use std::ffi::OsString;
use std::process::Command;

use efa_device_model::sysfs::Rail;
use efa_play::player::quote;

use super::jobs::{self, run_parts};
use super::limits::{END, GROUP, START, nothing_is_left};
use super::network::{BridgeOptions, Machines};
use crate::harness::{Bench, Cell, CellResult, Finished, NotMeasured, Running, failed};
use crate::mpi::{DEBIAN_OPENMPI, Installation, Layout, Library, MPICH, OPENMPI, Transport};

const LIBRARIES: [&Library; 3] = [&DEBIAN_OPENMPI, &OPENMPI, &MPICH];

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = vec![
        Cell::new(GROUP, "cluster of two machines, commands", START, commands),
        Cell::new(
            GROUP,
            "two clusters of two machines at a time",
            START + END,
            two_at_a_time,
        ),
        Cell::new(
            GROUP,
            "cluster of two machines, a part that ends",
            START + END,
            a_part_ends,
        ),
        Cell::new(
            GROUP,
            "cluster of two machines, killed",
            START + END,
            killed,
        ),
        Cell::new(
            GROUP,
            "cluster of two machines, what cannot be",
            START,
            mistakes,
        ),
    ];
    for library in LIBRARIES {
        for (machines, each) in [(2, 2), (3, 1)] {
            let name = format!(
                "cluster of {machines} machines, mpi {} C {} ranks",
                library.name,
                usize::from(machines) * each
            );
            cells.push(Cell::new(GROUP, name, START + jobs::LIMIT, move |bench| {
                job(bench, library, machines, each)
            }));
        }
    }
    cells
}

/// The options of a cluster on these machines.
fn options(bench: &Bench, machines: &Machines) -> Result<Vec<OsString>, NotMeasured> {
    let names: Vec<&str> = (0..machines.count()).map(|at| machines.name(at)).collect();
    let shell = machines.shell_of_machines(&[])?.display().to_string();
    Ok(vec![
        "--machines".into(),
        names.join(",").into(),
        "--rsh".into(),
        quote(&shell).into(),
        "--uplink-key".into(),
        bench.directory().join("key").into(),
    ])
}

/// A command on the first machine.
fn on_first(bench: &Bench, machines: &Machines, command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    jobs::on_first(&bench.directory().join("rsh"), machines, &words)
}

fn job(bench: &Bench, library: &'static Library, machines: u8, each: usize) -> CellResult {
    let machines = Machines::bare(bench, machines, BridgeOptions::DEFAULT)?;
    machines.make_key()?;
    let installation = Installation::find(bench, library)?;
    let program = installation.compile(bench, "exercise.c")?;
    let hosts = machines.count() * each;
    let layout = Layout::new(hosts, hosts);
    let options = options(bench, &machines)?;
    let measured = run_parts(bench, &machines, |part| {
        let words = [program.clone(), part.into()];
        let transport = Transport::Libfabric;
        let job = installation.job_with(bench, transport, layout, &words, &options)?;
        Ok(on_first(bench, &machines, &job))
    })?;
    nothing_is_left(bench, &machines)?;
    Ok(measured)
}

/// `efa-emu cluster` on the first machine, with a script instead of a launcher.
fn cluster<'a>(
    bench: &'a Bench<'a>,
    machines: &Machines,
    hosts: u32,
    options: &[OsString],
    script: &str,
) -> Result<Running<'a>, NotMeasured> {
    cluster_on(bench.fabric(), bench, machines, hosts, options, script)
}

/// As [`cluster`], on the fabric with this name.
fn cluster_on<'a>(
    fabric: &str,
    bench: &'a Bench<'a>,
    machines: &Machines,
    hosts: u32,
    options: &[OsString],
    script: &str,
) -> Result<Running<'a>, NotMeasured> {
    let mut command = Command::new(&bench.lab().launcher.efa_emu);
    command
        .args(["cluster", &hosts.to_string()])
        .args(["--fabric", fabric, "--quiet"])
        .args(options)
        .args(["--", "sh", "-c", script]);
    Running::start(
        bench,
        "efa-emu cluster".into(),
        on_first(bench, machines, &command),
    )
}

fn expect(what: &str, found: &str, expected: &str) -> Result<(), NotMeasured> {
    match found == expected {
        true => Ok(()),
        false => Err(failed!("{what}: {found:?} in the place of {expected:?}")),
    }
}

/// Commands run on the machines of their hosts, with their streams, variables and exit statuses.
fn commands(bench: &Bench) -> CellResult {
    let machines = Machines::bare(bench, 2, BridgeOptions::DEFAULT)?;
    machines.make_key()?;
    let script = "for host in node0 node1 node2 node3; do \
                  ssh -n $host 'echo $(uname -n) $(readlink /proc/self/ns/net) $(ls $SYSFS_PATH/class/infiniband)'; done; \
                  echo 'it is' | ssh node3 cat; \
                  A='1  2' ssh -n -o SendEnv=A node2 'echo \"$A\"'; \
                  ssh -n node3 'exit 7'; echo $?; \
                  getent hosts node3 | cut -d' ' -f1";
    let options = options(bench, &machines)?;
    let finished = cluster(bench, &machines, 4, &options, script)?.success()?;
    let device: String = Rail::all(1).map(Rail::device_name).collect();
    let mut expected = String::new();
    for host in 0..4 {
        let network = machines.network(host / 2)?;
        expected += &format!("node{host} {network} {device}\n");
    }
    expected += &format!("it is\n1  2\n7\n{}\n", machines.address(1));
    expect("printed", &finished.stdout, &expected)?;
    nothing_is_left(bench, &machines)?;
    Ok("4 hosts on 2 machines: names, networks, streams, variables, exit statuses".into())
}

/// While a cluster runs on two machines, another one is created on the same machines, with a
/// separate fabric and port. Each reaches its hosts.
fn two_at_a_time(bench: &Bench) -> CellResult {
    let machines = Machines::bare(bench, 2, BridgeOptions::DEFAULT)?;
    machines.make_key()?;
    let first = options(bench, &machines)?;
    let end = bench.directory().join("end");
    let wait = format!(
        "echo runs; until [ -e {} ]; do sleep 0.1; done",
        quote(&end.display().to_string())
    );
    let names = "ssh -n node0 'uname -n; echo $EFA_EMU_FABRIC'; ssh -n node1 'uname -n; echo $EFA_EMU_FABRIC'";
    let mut running = cluster(bench, &machines, 2, &first, &format!("{wait}; {names}"))?;
    running.printed("runs")?;
    let other = format!("{}-other", bench.fabric());
    // The port is in use.
    let refused = cluster_on(&other, bench, &machines, 2, &first, "true")?.wait()?;
    if refused.status.success() || !refused.stderr.contains("--uplink-port") {
        return Err(failed!(
            "the second cluster does not say that it needs another port: {}: {}",
            refused.status,
            refused.stderr
        ));
    }
    let second = [&first[..], &["--uplink-port".into(), "61346".into()]].concat();
    let beside = cluster_on(&other, bench, &machines, 2, &second, names)?.success()?;
    let printed = |fabric: &str| format!("node0\n{fabric}\nnode1\n{fabric}\n");
    expect("printed by the second", &beside.stdout, &printed(&other))?;
    std::fs::write(&end, "").map_err(NotMeasured::failed)?;
    let finished = running.success()?;
    expect(
        "printed by the first",
        &finished.stdout,
        &format!("runs\n{}", printed(bench.fabric())),
    )?;
    nothing_is_left(bench, &machines)?;
    Ok("each with its own 2 hosts on the same 2 machines".into())
}

/// A part of the cluster is killed: the first machine reports this, and continues with its hosts.
fn a_part_ends(bench: &Bench) -> CellResult {
    let machines = Machines::bare(bench, 2, BridgeOptions::DEFAULT)?;
    machines.make_key()?;
    // The grandparent of a node is the part's `efa-emu cluster`, with the process ids that all
    // machines share.
    let script = "part=$(ssh -n node1 'ps -o ppid= -p $PPID'); kill -9 $part; \
                  while ssh -n node1 true; do sleep 0.1; done 2>&1; ssh -n node0 uname -n";
    let options = options(bench, &machines)?;
    let finished: Finished = cluster(bench, &machines, 2, &options, script)?.success()?;
    expect(
        "after the end of a part",
        finished.stdout.lines().last().unwrap_or_default(),
        "node0",
    )?;
    let notice = "the part of the cluster on the machine m1 has ended";
    match finished.stderr.contains(notice) {
        true => Ok(notice.into()),
        false => Err(failed!("nothing is said of it: {}", finished.stderr)),
    }
}

/// The first machine's command is killed: the other part ends too, with its programs.
fn killed(bench: &Bench) -> CellResult {
    let machines = Machines::bare(bench, 2, BridgeOptions::DEFAULT)?;
    machines.make_key()?;
    let script = "ssh -f node1 sleep 3600; echo runs; kill -9 $PPID";
    let options = options(bench, &machines)?;
    let finished = cluster(bench, &machines, 2, &options, script)?.wait()?;
    if finished.status.success() || !finished.stdout.ends_with("runs\n") {
        return Err(failed!(
            "it was not killed while it ran ({}): {}{}",
            finished.status,
            finished.stdout,
            finished.stderr
        ));
    }
    nothing_is_left(bench, &machines)?;
    Ok("the other part ended with it".into())
}

/// Errors are reported on the first machine, with the name of the other machine.
fn mistakes(bench: &Bench) -> CellResult {
    let machines = Machines::bare(bench, 2, BridgeOptions::DEFAULT)?;
    machines.make_key()?;
    let good = options(bench, &machines)?;
    let with = |at: usize, word: &str| -> Vec<OsString> {
        let mut options = good.clone();
        options[at] = word.into();
        options
    };
    let recorded = [&good[..], &["--pcap".into(), "all.pcapng".into()]].concat();
    let cases = [
        (with(1, "m0,m9"), "cannot find the machine m9"),
        (with(1, "m0,m1,m0"), "--machines has m0 twice"),
        (
            with(3, "./no-such-shell"),
            "name another command with --rsh",
        ),
        (with(5, "/none"), "cannot open /none"),
        (recorded, "run `efa-emu capture` on each"),
        (with(3, "false"), "on the machine m1 could not be started"),
    ];
    let count = cases.len();
    for (options, text) in cases {
        let finished = cluster(bench, &machines, 4, &options, "true")?.wait()?;
        if finished.status.success() || !finished.stderr.contains(text) {
            return Err(failed!(
                "{text:?} was not printed: {}: {}",
                finished.status,
                finished.stderr
            ));
        }
    }
    Ok(format!("{count} mistakes"))
}
