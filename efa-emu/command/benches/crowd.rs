//! Programs that wait for each other on a machine with more programs than processors: MPI jobs on
//! two emulated hosts, compared with the same jobs over the library's own shared memory and over
//! TCP; the start-up time of such a job; and a ping-pong while other programs never wait.
//!
//! Rounds are interleaved, and each figure is the median of the rounds, whose number is printed.
//! Missing programs are named. Arguments: none, or a filter that `cargo bench` passes on (`mpi`,
//! `start` or `busy`).

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use efa_testing::mpi::{OPEN_MPI, OPEN_MPI_OVER_LIBFABRIC};
use efa_testing::workspace::{emulator, userland};

use programs::{command, converse, ended, free_port, parse, wait};

mod programs;

/// Ranks of the MPI jobs.
const RANKS: [usize; 3] = [4, 16, 64];
/// Seconds of each operation of a job.
const SECONDS: &str = "0.3";
/// Rounds, if there is time for them.
const ROUNDS: usize = 3;
/// No measurement begins later than this after the start of its table.
const TABLE_TIME: Duration = Duration::from_secs(110);
/// The longest that a job may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of programs that never wait: ten for each of two processors.
const BUSY: usize = 20;
/// The round trips of the ping-pong.
const TRIPS: &str = "300";

/// libfabric's `tcp` providers use the loopback interface.
const LOOPBACK: &[(&str, &str)] = &[("FI_TCP_IFACE", "lo")];

/// The name of the engine as a provider.
const ENGINE: &str = "efa_rs";

const OPERATIONS: [&str; 3] = ["alltoall", "allreduce", "pair"];

fn main() -> ExitCode {
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let is_wanted = |name: &str| filter.as_deref().is_none_or(|filter| name.contains(filter));
    let result = Bench::new().and_then(|bench| {
        for (name, table) in [("mpi", Bench::jobs as Table), ("start", Bench::starts)] {
            if !is_wanted(name) {
                continue;
            }
            for library in [Library::debian_open_mpi, Library::mpich, Library::intel_mpi] {
                match library() {
                    Ok(library) => table(&bench, &library)?,
                    Err(missing) => println!("\nnot measured: {missing}"),
                }
            }
        }
        if is_wanted("busy") {
            bench.beside_busy_programs()?;
        }
        Ok(())
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("crowd: {message}");
            ExitCode::from(2)
        }
    }
}

/// A function that prints a table of an MPI library.
type Table = fn(&Bench, &Library) -> Result<(), String>;

/// The transport of a job's messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LaunchMethod {
    SharedMemory,
    /// libfabric's efa provider on two emulated hosts.
    Device,
    /// The engine as libfabric's provider `efa_rs`, on two emulated hosts.
    Engine,
    /// libfabric's `tcp` providers.
    LibfabricTcp,
    /// TCP of the MPI library itself.
    OwnTcp,
}

impl LaunchMethod {
    fn name(self) -> &'static str {
        match self {
            LaunchMethod::SharedMemory => "its own shared memory",
            LaunchMethod::Device => "efa on efa-emu, two hosts",
            LaunchMethod::Engine => "efa_rs on efa-emu, two hosts",
            LaunchMethod::LibfabricTcp => "libfabric's tcp",
            LaunchMethod::OwnTcp => "its own TCP",
        }
    }
}

/// An MPI library.
struct Library {
    name: &'static str,
    /// A program that makes others find the libraries, if needed.
    runner: Option<PathBuf>,
    mpiexec: PathBuf,
    mpicc: PathBuf,
    ways: Vec<Start>,
}

/// The start of a job with a given transport.
struct Start {
    way: LaunchMethod,
    /// Options of `mpiexec`.
    options: Vec<&'static str>,
    variables: Vec<(&'static str, &'static str)>,
}

impl Start {
    fn new(
        way: LaunchMethod,
        options: &[&[&'static str]],
        variables: &[&[(&'static str, &'static str)]],
    ) -> Start {
        Start {
            way,
            options: options.concat(),
            variables: variables.concat(),
        }
    }
}

impl Library {
    /// Uses the libfabric of the same distribution.
    fn debian_open_mpi() -> Result<Library, String> {
        let mpiexec = PathBuf::from("/usr/bin/mpiexec.openmpi");
        if !mpiexec.exists() {
            return Err(
                "Open MPI: install the Debian packages openmpi-bin and libopenmpi-dev".into(),
            );
        }
        let yields: &[&str] = &["--mca", "mpi_yield_when_idle", "1"];
        let common = &[OPEN_MPI, yields].concat();
        let own: &[&str] = &["--mca", "pml", "ob1", "--mca", "btl"];
        let provider: &[&str] = &["--mca", "mtl_ofi_provider_include"];
        let libfabric = &[OPEN_MPI_OVER_LIBFABRIC, provider].concat();
        let loopback: &[&str] = &["--mca", "btl_tcp_if_include", "lo"];
        Ok(Library {
            name: "Open MPI 4.1 of Debian",
            runner: None,
            mpiexec,
            mpicc: "/usr/bin/mpicc.openmpi".into(),
            ways: vec![
                Start::new(
                    LaunchMethod::SharedMemory,
                    &[common, own, &["self,vader"]],
                    &[],
                ),
                Start::new(LaunchMethod::Device, &[common, libfabric, &["efa"]], &[]),
                Start::new(LaunchMethod::Engine, &[common, libfabric, &[ENGINE]], &[]),
                Start::new(
                    LaunchMethod::LibfabricTcp,
                    &[common, libfabric, &["tcp;ofi_rxm"]],
                    &[LOOPBACK],
                ),
                Start::new(
                    LaunchMethod::OwnTcp,
                    &[common, own, &["self,tcp"], loopback],
                    &[],
                ),
            ],
        })
    }

    /// The wheel, which includes libfabric.
    fn mpich() -> Result<Library, String> {
        let bin = userland("pypi-mpich")
            .ok_or("MPICH's wheel could not be fetched")?
            .join("venv/bin");
        let remote: &[_] = &[("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1")];
        // Ranks of one emulated host also use the device.
        let efa: &[_] = &[("FI_PROVIDER", "efa"), ("FI_EFA_ENABLE_SHM_TRANSFER", "0")];
        let tcp: &[_] = &[("FI_PROVIDER", "tcp")];
        Ok(Library {
            name: "MPICH 5.0 (wheel)",
            runner: None,
            mpiexec: bin.join("mpiexec"),
            mpicc: bin.join("mpicc"),
            ways: vec![
                Start::new(LaunchMethod::SharedMemory, &[], &[]),
                Start::new(LaunchMethod::Device, &[], &[remote, efa]),
                Start::new(LaunchMethod::Engine, &[], &[remote]),
                Start::new(LaunchMethod::LibfabricTcp, &[], &[remote, tcp, LOOPBACK]),
            ],
        })
    }

    /// The wheel, which includes libfabric. It has no compiler, and runs programs that were
    /// compiled for MPICH.
    fn intel_mpi() -> Result<Library, String> {
        let place = userland("pypi-impi").ok_or("Intel MPI's wheel could not be fetched")?;
        let compiler = Library::mpich()?.mpicc;
        // Otherwise ranks of both hosts would be bound to the same processors.
        let unbound: &[_] = &[("I_MPI_PIN", "0")];
        let local: &[_] = &[("I_MPI_FABRICS", "shm")];
        let remote: &[_] = &[("I_MPI_FABRICS", "ofi"), ("I_MPI_PIN", "0")];
        let efa: &[_] = &[
            ("I_MPI_OFI_PROVIDER", "efa"),
            ("FI_EFA_ENABLE_SHM_TRANSFER", "0"),
        ];
        let engine: &[_] = &[("I_MPI_OFI_PROVIDER", ENGINE)];
        let tcp: &[_] = &[("I_MPI_OFI_PROVIDER", "tcp")];
        Ok(Library {
            name: "Intel MPI 2021.18 (wheel)",
            runner: Some(place.join("run")),
            mpiexec: place.join("venv/bin/mpiexec"),
            mpicc: compiler,
            ways: vec![
                Start::new(LaunchMethod::SharedMemory, &[], &[local, unbound]),
                Start::new(LaunchMethod::Device, &[], &[remote, efa]),
                Start::new(LaunchMethod::Engine, &[], &[remote, engine]),
                Start::new(LaunchMethod::LibfabricTcp, &[], &[remote, tcp, LOOPBACK]),
            ],
        })
    }
}

/// The figures of a row, for each operation.
#[derive(Default)]
struct Row {
    figures: [Vec<f64>; OPERATIONS.len()],
    failure: Option<String>,
}

fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

struct Bench {
    emulator: PathBuf,
    fabric: String,
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        Ok(Bench {
            emulator: emulator(),
            fabric: format!("crowd-{}", std::process::id()),
            directory: tempfile::tempdir().map_err(|error| error.to_string())?,
        })
    }

    /// Prints the table of an MPI library.
    fn jobs(&self, library: &Library) -> Result<(), String> {
        println!(
            "\n{}, 64 bytes: us, and ratio to its own shared memory; medians",
            library.name
        );
        let program = self.compile(library)?;
        println!(
            "{:<6} {:<28} {:>10} {:>7} {:>10} {:>7} {:>10} {:>7} {:>7}",
            "ranks", "", "alltoall", "", "allreduce", "", "pair", "", "rounds"
        );
        let begin = Instant::now();
        let mut rows: Vec<(usize, LaunchMethod, Row)> = RANKS
            .iter()
            .flat_map(|ranks| {
                let ways = library.ways.iter();
                ways.map(|start| (*ranks, start.way, Row::default()))
            })
            .collect();
        for _ in 0..ROUNDS {
            for (ranks, way, row) in &mut rows {
                if row.failure.is_some() || begin.elapsed() > TABLE_TIME {
                    continue;
                }
                match self.times(library, *way, *ranks, &program) {
                    Ok(figures) => {
                        for (all, figure) in row.figures.iter_mut().zip(figures) {
                            all.push(figure);
                        }
                    }
                    Err(error) => row.failure = Some(error),
                }
            }
        }
        let mut own = [None; OPERATIONS.len()];
        for (ranks, way, row) in &rows {
            let medians = [0, 1, 2].map(|index| median(&row.figures[index]));
            if *way == LaunchMethod::SharedMemory {
                own = medians;
            }
            print!("{ranks:<6} {:<28}", way.name());
            match &row.failure {
                Some(failure) => println!(" not measured: {failure}"),
                None => {
                    for (figure, own) in medians.into_iter().zip(own) {
                        match (figure, own) {
                            (Some(figure), Some(own)) => {
                                print!(" {figure:>10.1} {:>6.2}x", figure / own);
                            }
                            (Some(figure), None) => print!(" {figure:>10.1} {:>7}", "-"),
                            (None, _) => print!(" {:>10} {:>7}", "no time", ""),
                        }
                    }
                    println!(" {:>7}", row.figures[0].len());
                }
            }
        }
        Ok(())
    }

    /// Compiles the job's program.
    fn compile(&self, library: &Library) -> Result<PathBuf, String> {
        let program = self.directory.path().join("crowd");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/crowd.c");
        let words = [
            library.mpicc.as_os_str(),
            "-O2".as_ref(),
            "-o".as_ref(),
            program.as_ref(),
            source.as_ref(),
        ];
        let status = ended(&mut command(&words), PATIENCE)?;
        match status.success() {
            true => Ok(program),
            false => Err(format!("{}: {status}", library.mpicc.display())),
        }
    }

    /// Prints the run time of jobs with the most ranks that only start and end.
    fn starts(&self, library: &Library) -> Result<(), String> {
        let ranks = RANKS[RANKS.len() - 1];
        println!(
            "\n{}, {ranks} ranks that wait for each other once: s, from the job's start to its end",
            library.name
        );
        let program = self.compile(library)?;
        let begin = Instant::now();
        let mut rows: Vec<_> = library
            .ways
            .iter()
            .map(|start| (start.way, Vec::new(), None))
            .collect();
        for _ in 0..ROUNDS {
            for (way, times, failure) in &mut rows {
                if failure.is_some() || begin.elapsed() > TABLE_TIME {
                    continue;
                }
                let start = Instant::now();
                match self.job(library, *way, ranks, &[program.as_ref(), "0".as_ref()]) {
                    Ok(_) => times.push(start.elapsed().as_secs_f64()),
                    Err(error) => *failure = Some(error),
                }
            }
        }
        for (way, times, failure) in &rows {
            print!("{:<28}", way.name());
            match (failure, median(times)) {
                (Some(failure), _) => println!(" not measured: {failure}"),
                (None, Some(median)) => {
                    println!(" {median:>6.1}   median of {}: {times:.1?}", times.len());
                }
                (None, None) => println!(" no time"),
            }
        }
        Ok(())
    }

    /// Runs a job that measures its operations. Returns the microseconds of each.
    fn times(
        &self,
        library: &Library,
        way: LaunchMethod,
        ranks: usize,
        program: &Path,
    ) -> Result<[f64; OPERATIONS.len()], String> {
        let words = [program.as_os_str(), SECONDS.as_ref(), "64".as_ref()];
        let printed = self.job(library, way, ranks, &words)?;
        let mut figures = [0.0; OPERATIONS.len()];
        for (figure, operation) in figures.iter_mut().zip(OPERATIONS) {
            *figure = printed
                .lines()
                .find_map(|line| {
                    line.strip_prefix(operation)?
                        .split(' ')
                        .nth(2)?
                        .parse()
                        .ok()
                })
                .ok_or_else(|| format!("the job printed {printed:?}"))?;
        }
        Ok(figures)
    }

    /// Runs a job of this program with these arguments. Returns its output.
    fn job(
        &self,
        library: &Library,
        way: LaunchMethod,
        ranks: usize,
        program: &[&OsStr],
    ) -> Result<String, String> {
        let start = library.ways.iter().find(|start| start.way == way);
        let start = start.expect("the row was made from it");
        let mut words = library.runner.iter().chain([&library.mpiexec]);
        let mut job = Command::new(words.next().expect("mpiexec is one"));
        job.args(words)
            .args(&start.options)
            .envs(start.variables.iter().copied());
        if matches!(way, LaunchMethod::Device | LaunchMethod::Engine) {
            for (host, half) in [("h0", ranks / 2), ("h1", ranks - ranks / 2)] {
                if host != "h0" {
                    job.arg(":");
                }
                job.args(["-n", &half.to_string()]).arg(&self.emulator);
                job.args(["run", "--fabric", &self.fabric, "--host", host]);
                if way == LaunchMethod::Engine {
                    job.args(["--provider", ENGINE]);
                }
                job.arg("--").args(program);
            }
        } else {
            job.args(["-n", &ranks.to_string()]).args(program);
        }
        job.stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = programs::start(job.stdout(Stdio::piped()), "the job")?;
        let mut output = child.leader.stdout.take().ok_or("no standard output")?;
        let reader = std::thread::spawn(move || {
            let mut printed = String::new();
            output.read_to_string(&mut printed).map(|_| printed)
        });
        let status = wait(&mut child, PATIENCE)?;
        if !status.success() {
            return Err(format!("the job failed: {status}"));
        }
        reader
            .join()
            .map_err(|_| "its output could not be read")?
            .map_err(|error| error.to_string())
    }

    /// Prints the table of ping-pongs while other programs never wait.
    fn beside_busy_programs(&self) -> Result<(), String> {
        println!(
            "\nfi_pingpong -e rdm -S 64 -I {TRIPS} beside {BUSY} programs that never wait: us one way"
        );
        let _busy = (0..BUSY)
            .map(|_| {
                let mut program = Command::new("sh");
                program.args(["-c", "while :; do :; done"]);
                programs::start(&mut program, "a busy program")
            })
            .collect::<Result<Vec<_>, _>>()?;
        let providers = ["shm", "tcp;ofi_rxm", "efa"];
        let mut figures = providers.map(|_| Vec::new());
        let mut failures = providers.map(|_| None);
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            for (index, provider) in providers.iter().enumerate() {
                if begin.elapsed() > TABLE_TIME {
                    continue;
                }
                match self.ping_pong(provider) {
                    Ok(figure) => figures[index].push(figure),
                    Err(error) => failures[index] = Some(error),
                }
            }
        }
        for ((provider, figures), failure) in providers.iter().zip(&figures).zip(&failures) {
            match (median(figures), failure) {
                (Some(figure), _) => {
                    let of = figures.len();
                    println!("{provider:<28} {figure:>10.1}   median of {of}: {figures:.1?}");
                }
                (None, Some(failure)) => println!("{provider:<28} not measured: {failure}"),
                (None, None) => println!("{provider:<28} no time"),
            }
        }
        Ok(())
    }

    fn ping_pong(&self, provider: &str) -> Result<f64, String> {
        let port = free_port()?.to_string();
        let side = |peer: &[&str]| {
            let mut words: Vec<&OsStr> = Vec::new();
            if provider == "efa" {
                words.push(self.emulator.as_os_str());
                words.extend(["run", "--fabric", &self.fabric, "--"].map(OsStr::new));
            }
            let options = [
                "fi_pingpong",
                "-p",
                provider,
                "-e",
                "rdm",
                "-I",
                TRIPS,
                "-S",
                "64",
            ];
            words.extend(options.iter().chain(peer).map(OsStr::new));
            command(&words)
        };
        let output = converse(side(&["-B", &port]), || side(&["-P", &port, "127.0.0.1"]))?;
        let printed = output.iter().filter_map(|line| parse(line)).next_back();
        printed.ok_or_else(|| "the client printed no result".to_owned())
    }
}
