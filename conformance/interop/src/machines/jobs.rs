//! MPI jobs with ranks on two and four machines. The launcher runs on the first machine, and starts
//! its daemons on the others through a remote shell, as on a cluster; the daemons start `efa-emu
//! run`, which starts the ranks. So launchers may pass on their whole environment, as MPICH's does.
//! One job runs under Slurm with the machines as nodes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::limits::{END, GROUP, START, nothing_is_left};
use super::network::Machines;
use efa_play::libfabric::Provider;
use efa_play::player::{join, quote};

use crate::harness::volume::Volume;
use crate::harness::{Bench, Cell, CellResult, NotMeasured, Running, failed, installed};
use crate::mpi::{self, DEBIAN_OPENMPI, Installation, Library, MPICH, OPENMPI, Transport};

/// Generous, because eight busy-waiting ranks and four bridges share few processors.
pub(super) const LIMIT: Duration = Duration::from_secs(400);

const LIBRARIES: [(&Library, Transport); 6] = [
    (&DEBIAN_OPENMPI, Transport::Libfabric),
    (&OPENMPI, Transport::Libfabric),
    (&MPICH, Transport::Libfabric),
    (&DEBIAN_OPENMPI, Transport::Engine),
    (&OPENMPI, Transport::Engine),
    (&MPICH, Transport::Engine),
];

/// Machines, and ranks on each.
const LAYOUTS: [(u8, usize); 4] = [(2, 1), (2, 2), (4, 1), (4, 2)];

/// Bytes that each machine must send to another one in the ring test of the program.
const LEAST: u64 = 24 << 20;

/// Programs of Slurm, and their packages.
const SLURM: [(&str, &str); 4] = [
    ("srun", "slurm-client"),
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("munged", "munge"),
];

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (library, transport) in LIBRARIES {
        for (machines, each) in LAYOUTS {
            let name = format!(
                "mpi {} {} C {} ranks {machines} machines",
                library.name,
                transport.name(),
                usize::from(machines) * each
            );
            cells.push(Cell::new(GROUP, name, START + LIMIT, move |bench| {
                let machines = Machines::joined(bench, machines)?;
                run_parts_between_machines(bench, &machines, library, transport, each)
            }));
        }
    }
    cells.push(Cell::new(
        GROUP,
        "mpi openmpi-4.1.4 efa C 4 ranks 4 machines, losses and reordering",
        START + LIMIT,
        |bench| {
            let mut machines = Machines::joined(bench, 4)?;
            machines.forward(0.005, Duration::from_micros(500))?;
            let (library, transport) = (&DEBIAN_OPENMPI, Transport::Libfabric);
            let measured = run_parts_between_machines(bench, &machines, library, transport, 1)?;
            let forwarded = machines.end_forwarder()?;
            Ok(format!("{measured}; {forwarded}"))
        },
    ));
    cells.push(Cell::new(
        GROUP,
        "mpi openmpi-4.1.4 efa C 2 ranks 2 machines, slurm",
        START + LIMIT,
        under_slurm,
    ));
    cells
}

/// Runs all parts of the C program with the launcher of the machines.
fn run_parts_between_machines(
    bench: &Bench,
    machines: &Machines,
    library: &'static Library,
    transport: Transport,
    each: usize,
) -> CellResult {
    let installation = Installation::find(bench, library)?;
    let program = installation.compile(bench, "exercise.c")?;
    let program = program.display().to_string();
    let hosts: Vec<&str> = (0..machines.count()).map(|at| machines.name(at)).collect();
    run_parts(bench, machines, |part| {
        let shell = bench.directory().join("rsh");
        let options = match transport {
            Transport::Engine => format!("--provider {}", Provider::ENGINE),
            _ => String::new(),
        };
        let on_host = machines.on_own_host(&options)?.display().to_string();
        let words = installation.job_on(&hosts, each, &[on_host.as_str(), &program, part]);
        machines.shell_of_machines(&installation.variables_on_hosts(&shell, transport))?;
        Ok(on_first(&shell, machines, &join(&words)))
    })
}

/// A command line on the first machine, which `shell` reaches.
pub(super) fn on_first(shell: &Path, machines: &Machines, line: &str) -> Command {
    let mut command = Command::new(shell);
    command.args([machines.name(0), line]);
    command
}

/// Runs all parts of the C program as Slurm jobs on two machines. Bridges find each other by the
/// job's list of nodes, and each rank is on the host with its machine's name.
fn under_slurm(bench: &Bench) -> CellResult {
    for (program, package) in SLURM {
        installed(program, package)?;
    }
    let machines = Machines::bare(bench, 2)?;
    if !machines.are_of_root() {
        return Err(NotMeasured::Skipped("scripts/slurm needs root".into()));
    }
    let installation = Installation::find(bench, &DEBIAN_OPENMPI)?;
    let program = installation.compile(bench, "exercise.c")?;
    let variables =
        installation.variables_on_hosts(&bench.directory().join("rsh"), Transport::Libfabric);
    let shell = machines.shell_of_machines(&variables)?;
    let quoted = |path: &Path| quote(&path.display().to_string());
    let job = format!(
        "{} --machines m0,m1 --rsh {} srun --kill-on-bad-exit --mpi=pmix -N 2 -n 2 \
         {} run --uplink slurm --fabric {} --uplink-key {} -- {}",
        quoted(&bench.lab().file("scripts/slurm")),
        quoted(&shell),
        quoted(&bench.lab().launcher.efa_emu),
        bench.fabric(),
        quoted(machines.key()),
        quoted(&program),
    );
    let measured = run_parts(bench, &machines, |part| {
        Ok(on_first(&shell, &machines, &format!("{job} {part}")))
    })?;
    nothing_is_left(bench, &machines, END)?;
    Ok(measured)
}

/// Runs the jobs of all parts of the C program, and measures the traffic of each machine. `job`
/// makes the command for a part.
pub(super) fn run_parts(
    bench: &Bench,
    machines: &Machines,
    job: impl Fn(&str) -> Result<Command, NotMeasured>,
) -> CellResult {
    let mut sum = Volume::default();
    let mut checks = 0;
    let begin = Instant::now();
    for part in mpi::PARTS {
        let command = job(part)?;
        let recorders = Recorders::start(bench, machines, part)?;
        let finished = Running::start(bench, part.to_owned(), command)?.success()?;
        checks += mpi::checks_of(&finished.stdout, part)
            .ok_or_else(|| failed!("{part} printed {:?}", finished.stdout))?;
        for (machine, sent) in recorders.end()?.into_iter().enumerate() {
            if part == "p2p" && sent.bytes < LEAST {
                return Err(failed!(
                    "{part}: m{machine} has sent {sent}, but {LEAST} bytes must have gone to others"
                ));
            }
            sum += sent;
        }
    }
    Ok(format!(
        "{checks} checks, {sum}; {:.1} s",
        begin.elapsed().as_secs_f64()
    ))
}

/// The recorders of each machine's hosts.
struct Recorders<'a> {
    running: Vec<(Running<'a>, PathBuf)>,
}

impl<'a> Recorders<'a> {
    fn start(
        bench: &'a Bench<'a>,
        machines: &Machines<'a>,
        part: &str,
    ) -> Result<Self, NotMeasured> {
        let mut running = Vec::new();
        for machine in 0..machines.count() {
            let name = machines.name(machine);
            let file = bench.capture(&format!("{part}-{name}"));
            let mut command = machines.command(machine);
            command
                .arg(&bench.lab().launcher.efa_emu)
                .args(["capture", "--fabric", bench.fabric(), "-w"])
                .arg(&file);
            let mut recorder = Running::start(bench, format!("capture on {name}"), command)?;
            recorder.complained("recording fabric")?;
            running.push((recorder, file));
        }
        Ok(Recorders { running })
    }

    /// The traffic sent by each machine.
    fn end(self) -> Result<Vec<Volume>, NotMeasured> {
        let mut volumes = Vec::new();
        for (recorder, file) in self.running {
            recorder.terminate();
            recorder.success()?;
            volumes.push(Volume::of_hosts(&file)?.into_values().sum());
            // It has hundreds of megabytes, and is not needed any more.
            let _ = std::fs::remove_file(&file);
        }
        Ok(volumes)
    }
}
