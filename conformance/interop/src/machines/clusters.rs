//! Clusters with hosts on several machines: `efa-emu cluster --machines`, which reaches the other
//! machines through a remote shell and starts the bridges itself.

use std::process::Command;

use efa_device_model::sysfs::Rail;
use efa_play::player::{join, quote};

use super::jobs::{self, run_parts};
use super::limits::{END, GROUP, START, nothing_is_left};
use super::network::Machines;
use crate::harness::{Bench, Cell, CellResult, NotMeasured, Running, failed};
use crate::mpi::{DEBIAN_OPENMPI, Installation, Layout, Library, MPICH, OPENMPI, Transport};

const LIBRARIES: [&Library; 3] = [&DEBIAN_OPENMPI, &OPENMPI, &MPICH];

pub(super) fn cells() -> Vec<Cell> {
    let cell =
        |name: &str, limit, run: fn(&Bench) -> CellResult| Cell::new(GROUP, name, limit, run);
    let name = |what| format!("cluster of two machines, {what}");
    let mut cells = vec![
        cell(&name("commands"), START, commands),
        cell(
            "two clusters of two machines at a time",
            START + END,
            two_at_a_time,
        ),
        cell(&name("a part that ends"), START + END, a_part_ends),
        cell(&name("killed"), START + END, killed),
        cell(&name("what cannot be"), START, mistakes),
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
fn options(machines: &Machines) -> Result<Vec<String>, NotMeasured> {
    let names: Vec<&str> = (0..machines.count()).map(|at| machines.name(at)).collect();
    let shell = machines.shell_of_machines(&[])?.display().to_string();
    let key = machines.key().display().to_string();
    let options = [
        ["--machines", &names.join(",")],
        ["--rsh", &quote(&shell)],
        ["--uplink-key", &key],
    ];
    Ok(options
        .as_flattened()
        .iter()
        .map(|word| (*word).to_owned())
        .collect())
}

/// A command on the first machine.
fn on_first(bench: &Bench, machines: &Machines, command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    jobs::on_first(&bench.directory().join("rsh"), machines, &join(&words))
}

fn job(bench: &Bench, library: &'static Library, machines: u8, each: usize) -> CellResult {
    let machines = Machines::bare(bench, machines)?;
    let installation = Installation::find(bench, library)?;
    let program = installation.compile(bench, "exercise.c")?;
    let hosts = machines.count() * each;
    let layout = Layout::new(hosts, hosts);
    let options = options(&machines)?;
    let measured = run_parts(bench, &machines, |part| {
        let words = [program.clone(), part.into()];
        let transport = Transport::Libfabric;
        let job = installation.job_with(bench, transport, layout, &words, &options)?;
        Ok(on_first(bench, &machines, &job))
    })?;
    nothing_is_left(bench, &machines, END)?;
    Ok(measured)
}

/// Two machines, and the options of a cluster on them.
struct Pair<'a> {
    bench: &'a Bench<'a>,
    machines: Machines<'a>,
    options: Vec<String>,
}

impl<'a> Pair<'a> {
    fn new(bench: &'a Bench<'a>) -> Result<Self, NotMeasured> {
        let machines = Machines::bare(bench, 2)?;
        let mut options = options(&machines)?;
        options.extend(["--fabric", bench.fabric()].map(str::to_owned));
        Ok(Pair {
            bench,
            machines,
            options,
        })
    }

    /// The options with another value of this one.
    fn options_with(&self, option: &str, value: &str) -> Vec<String> {
        let mut options = self.options.clone();
        let at = options.iter().position(|word| word == option);
        match at {
            Some(at) => options[at + 1] = value.to_owned(),
            None => options.extend([option, value].map(str::to_owned)),
        }
        options
    }

    /// `efa-emu cluster` on the first machine, with a script instead of a launcher.
    fn cluster(
        &self,
        hosts: u32,
        options: &[String],
        script: &str,
    ) -> Result<Running<'a>, NotMeasured> {
        let mut command = Command::new(&self.bench.lab().launcher.efa_emu);
        command
            .args(["cluster", &hosts.to_string(), "--quiet"])
            .args(options)
            .args(["--", "sh", "-c", script]);
        let command = on_first(self.bench, &self.machines, &command);
        Running::start(self.bench, "efa-emu cluster".into(), command)
    }

    /// A cluster with these options must fail, and print the text.
    fn expect_refusal(&self, options: &[String], text: &str) -> Result<(), NotMeasured> {
        let finished = self.cluster(4, options, "true")?.wait()?;
        let (status, said) = (finished.status, finished.stderr);
        match !status.success() && said.contains(text) {
            true => Ok(()),
            false => Err(failed!("{text:?} was not printed: {status}: {said}")),
        }
    }

    fn expect_nothing_left(&self) -> Result<(), NotMeasured> {
        nothing_is_left(self.bench, &self.machines, END)
    }
}

fn expect(what: &str, found: &str, expected: &str) -> Result<(), NotMeasured> {
    match found == expected {
        true => Ok(()),
        false => Err(failed!("{what}: {found:?} in the place of {expected:?}")),
    }
}

/// Commands run on the machines of their hosts, with their streams, variables and exit statuses.
fn commands(bench: &Bench) -> CellResult {
    let pair = Pair::new(bench)?;
    let script = "for host in node0 node1 node2 node3; do \
                  ssh -n $host 'echo $(uname -n) $(readlink /proc/self/ns/net) $(ls $SYSFS_PATH/class/infiniband)'; done; \
                  echo 'it is' | ssh node3 cat; \
                  A='1  2' ssh -n -o SendEnv=A node2 'echo \"$A\"'; \
                  ssh -n node3 'exit 7'; echo $?; \
                  getent hosts node3 | cut -d' ' -f1";
    let finished = pair.cluster(4, &pair.options, script)?.success()?;
    let device: String = Rail::all(1).map(Rail::device_name).collect();
    let mut expected = String::new();
    for host in 0..4 {
        let network = pair.machines.network(host / 2)?;
        expected += &format!("node{host} {network} {device}\n");
    }
    expected += &format!("it is\n1  2\n7\n{}\n", pair.machines.address(1));
    expect("printed", &finished.stdout, &expected)?;
    pair.expect_nothing_left()?;
    Ok("4 hosts on 2 machines: names, networks, streams, variables, exit statuses".into())
}

/// While a cluster runs on two machines, another one is created on the same machines, with a
/// separate fabric and port. Each reaches its hosts.
fn two_at_a_time(bench: &Bench) -> CellResult {
    let mut pair = Pair::new(bench)?;
    let end = bench.directory().join("end");
    let wait = format!(
        "echo runs; until [ -e {} ]; do sleep 0.1; done",
        quote(&end.display().to_string())
    );
    let names = "ssh -n node0 'uname -n; echo $EFA_EMU_FABRIC'; ssh -n node1 'uname -n; echo $EFA_EMU_FABRIC'";
    let mut running = pair.cluster(2, &pair.options, &format!("{wait}; {names}"))?;
    running.printed("runs")?;
    let other = format!("{}-other", bench.fabric());
    pair.options = pair.options_with("--fabric", &other);
    // The port is in use.
    pair.expect_refusal(&pair.options, "--uplink-port")?;
    let second = pair.options_with("--uplink-port", "61346");
    let beside = pair.cluster(2, &second, names)?.success()?;
    let printed = |fabric: &str| format!("node0\n{fabric}\nnode1\n{fabric}\n");
    expect("printed by the second", &beside.stdout, &printed(&other))?;
    std::fs::write(&end, "").map_err(NotMeasured::failed)?;
    let finished = running.success()?;
    let expected = format!("runs\n{}", printed(bench.fabric()));
    expect("printed by the first", &finished.stdout, &expected)?;
    pair.expect_nothing_left()?;
    Ok("each with its own 2 hosts on the same 2 machines".into())
}

/// A part of the cluster is killed: the first machine reports this, and continues with its hosts.
fn a_part_ends(bench: &Bench) -> CellResult {
    let pair = Pair::new(bench)?;
    // The grandparent of a node is the part's `efa-emu cluster`, with the process ids that all
    // machines share.
    let script = "part=$(ssh -n node1 'ps -o ppid= -p $PPID'); kill -9 $part; \
                  while ssh -n node1 true; do sleep 0.1; done 2>&1; ssh -n node0 uname -n";
    let finished = pair.cluster(2, &pair.options, script)?.success()?;
    let last = finished.stdout.lines().last().unwrap_or_default();
    expect("after the end of a part", last, "node0")?;
    let notice = "the part of the cluster on the machine m1 has ended";
    match finished.stderr.contains(notice) {
        true => Ok(notice.into()),
        false => Err(failed!("nothing is said of it: {}", finished.stderr)),
    }
}

/// The first machine's command is killed: the other part ends too, with its programs.
fn killed(bench: &Bench) -> CellResult {
    let pair = Pair::new(bench)?;
    let script = "ssh -f node1 sleep 3600; echo runs; kill -9 $PPID";
    let finished = pair.cluster(2, &pair.options, script)?.wait()?;
    let (status, said) = (finished.status, finished.stdout);
    if status.success() || !said.ends_with("runs\n") {
        let stderr = finished.stderr;
        return Err(failed!(
            "it was not killed while it ran ({status}): {said}{stderr}"
        ));
    }
    pair.expect_nothing_left()?;
    Ok("the other part ended with it".into())
}

/// Errors are reported on the first machine, with the name of the other machine.
fn mistakes(bench: &Bench) -> CellResult {
    let pair = Pair::new(bench)?;
    let cases = [
        ("--machines", "m0,m9", "cannot find the machine m9"),
        ("--machines", "m0,m1,m0", "--machines has m0 twice"),
        (
            "--rsh",
            "./no-such-shell",
            "name another command with --rsh",
        ),
        ("--uplink-key", "/none", "cannot open /none"),
        ("--pcap", "all.pcapng", "run `efa-emu capture` on each"),
        ("--rsh", "false", "on the machine m1 could not be started"),
    ];
    for (option, value, text) in cases {
        pair.expect_refusal(&pair.options_with(option, value), text)?;
    }
    Ok(format!("{} mistakes", cases.len()))
}
