//! The environment with which MPI launchers, and other programs that start programs on hosts, find
//! the hosts of a cluster and choose the device.
//!
//! The sources of the variables' names are Open MPI's MCA parameters (`ompi_info --all`, `prte_info
//! --all`), MPICH's Hydra (`mpiexec -info`, its `MPIR_CVAR_` list), Intel MPI's reference, pdsh's
//! and libfabric's manual pages.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::files::AGENT;
use crate::names::HostLists;

/// The library through which MPI libraries use the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommunicationLibrary {
    /// libfabric, with its efa provider or the one of `--provider`.
    Ofi,
    /// UCX with SRD queue pairs.
    Ucx,
}

/// A libfabric provider for all programs.
#[derive(Debug)]
pub struct Provider {
    /// The provider's name, such as `efa_rs`.
    pub name: String,
    /// The variables that make libfabric find it, and no other provider.
    pub variables: Vec<(&'static str, OsString)>,
}

/// The variables that permit Open MPI 4 and 5 to run as root.
const ROOT_PERMITTED: [&str; 4] = [
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
];

/// Batch systems in whose jobs a cluster may be started: the prefix of their variables, and
/// variables of which at least one is set in a job.
const BATCH_SYSTEMS: [(&str, &[&str]); 4] = [
    ("SLURM_", &["SLURM_JOB_ID", "SLURM_JOBID"]),
    ("PBS_", &["PBS_JOBID"]),
    ("LSB_", &["LSB_JOBID"]),
    // Grid Engine, whose other variables have no common prefix.
    ("PE_HOSTFILE", &["PE_HOSTFILE"]),
];

/// Changes of the environment of a cluster's programs.
pub(crate) struct Environment {
    set: Vec<(&'static str, OsString)>,
    removed: Vec<OsString>,
}

impl Environment {
    /// Sets these variables, and removes those of the batch job in which the cluster was started.
    /// Otherwise launchers would use the job's hosts.
    pub(crate) fn new(set: Vec<(&'static str, OsString)>) -> Environment {
        let names = env::vars_os().map(|(name, _)| name);
        Environment {
            set,
            removed: of_batch_jobs(&names.collect::<Vec<_>>()),
        }
    }

    pub(crate) fn apply(&self, command: &mut Command) {
        for name in &self.removed {
            command.env_remove(name);
        }
        command.envs(self.set.iter().map(|(name, value)| (name, value)));
    }
}

/// The names that belong to a batch job.
fn of_batch_jobs(names: &[OsString]) -> Vec<OsString> {
    let is_there = |wanted: &&str| names.iter().any(|name| name == wanted);
    let systems = BATCH_SYSTEMS
        .iter()
        .filter(|(_, of_job)| of_job.iter().any(is_there));
    let beginnings: Vec<_> = systems.map(|(beginning, _)| beginning.as_bytes()).collect();
    let is_of_job = |name: &&OsString| {
        let mut beginnings = beginnings.iter();
        beginnings.any(|beginning| name.as_bytes().starts_with(beginning))
    };
    names.iter().filter(is_of_job).cloned().collect()
}

/// Whether the cluster, and not the user, permits Open MPI to run as root.
pub(crate) fn permits_root() -> bool {
    rustix::process::geteuid().is_root() && env::var_os(ROOT_PERMITTED[0]).is_none()
}

/// The inputs for the variables.
pub(crate) struct LauncherInputs<'a> {
    pub(crate) middleware: CommunicationLibrary,
    pub(crate) provider: Option<&'a Provider>,
    pub(crate) lists: &'a HostLists,
    /// The program that is called as `ssh`.
    pub(crate) agent: &'a Path,
    /// The number of consecutive processes on a host; `None` to place one on each host in turn.
    pub(crate) slots: Option<u32>,
    /// The cluster's directory for temporary files of the command.
    pub(crate) temporary: &'a Path,
    /// Whether each host has a separate name and separate shared memory.
    pub(crate) isolated: bool,
    /// Whether all hosts are on this machine.
    pub(crate) is_alone: bool,
}

/// Additional variables for a command that a launcher starts on a host.
///
/// MPICH's ranks of one host use MPICH's shared memory. The shared memory of libfabric 2.5.1, in
/// its wheel, aborts a rank at the start in some jobs (docs/cluster.md), and in writes.
pub(crate) fn remedies(command: &OsStr) -> Vec<(&'static str, OsString)> {
    let mut variables = Variables(Vec::new());
    if contains(command, "hydra_pmi_proxy") {
        variables.prefer("FI_EFA_ENABLE_SHM_TRANSFER", "0");
    }
    variables.0
}

/// Whether a command that a launcher starts on a host is a daemon of Open MPI 4 or 5.
pub(crate) fn is_open_mpi(command: &OsStr) -> bool {
    contains(command, "orted") || contains(command, "prted")
}

fn contains(command: &OsStr, program: &str) -> bool {
    let mut words = command.as_bytes().windows(program.len());
    words.any(|word| word == program.as_bytes())
}

/// Additional variables for all commands of a host. `directory` is the host's own, for temporary
/// files.
pub(crate) fn of_host(directory: &Path) -> Vec<(&'static str, OsString)> {
    let mut variables = Variables(Vec::new());
    for name in OPEN_MPI_TEMPORARY {
        variables.prefer(name, directory);
    }
    variables.0
}

/// The directory of session files of Open MPI 4.1 and of 5.0, by default `/tmp`.
///
/// In 4.1, jobs on one machine, or on hosts with the same name, share a directory that is named
/// after the host and the user. A daemon fails if another one creates the same directory
/// concurrently (`mkdir`: File exists), or removes its parent (No such file or directory). 5.0
/// leaves the directories of killed daemons behind.
const OPEN_MPI_TEMPORARY: [&str; 2] = ["OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"];

/// Variables. The user's values take precedence over preferences.
struct Variables(Vec<(&'static str, OsString)>);

impl Variables {
    fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.0.push((name, value.into()));
    }

    fn prefer(&mut self, name: &'static str, value: impl Into<OsString>) {
        if env::var_os(name).is_none() {
            self.set(name, value);
        }
    }
}

impl LauncherInputs<'_> {
    /// The variables for the command and for all hosts.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = Variables(Vec::new());
        self.open_mpi(&mut variables);
        self.hydra(&mut variables);
        self.intel(&mut variables);
        self.device(&mut variables);
        // pdsh: its default hosts, and the remote shell.
        variables.set("WCOLL", &self.lists.names);
        variables.set("PDSH_RCMD_TYPE", "ssh");
        variables.0
    }

    /// Parameters begin with `OMPI_MCA_` for the launcher of 4.1 and for the library, and with
    /// `PRTE_MCA_` for the launcher of 5.0.
    fn open_mpi(&self, variables: &mut Variables) {
        let policy = match self.slots {
            Some(_) => "slot",
            None => "node",
        };
        // The launcher passes its parameters to the daemons on other machines, which exit if they
        // find no agent. The agent has another path there, but the same name.
        let mut agents = self.agent.as_os_str().to_owned();
        agents.push(":");
        agents.push(AGENT);
        variables.set("OMPI_MCA_plm", "rsh");
        variables.set("OMPI_MCA_plm_rsh_agent", &agents);
        variables.set("OMPI_MCA_orte_default_hostfile", &self.lists.open_mpi);
        if self.isolated && self.is_alone {
            // The launcher passes it to the daemons, so hosts with the same name cannot have
            // separate ones.
            for name in OPEN_MPI_TEMPORARY {
                variables.prefer(name, self.temporary);
            }
        }
        variables.prefer("OMPI_MCA_rmaps_base_mapping_policy", policy);
        variables.prefer("OMPI_MCA_rmaps_base_oversubscribe", "1");
        variables.set("PRTE_MCA_plm", "ssh");
        variables.set("PRTE_MCA_plm_ssh_agent", agents);
        variables.set("PRTE_MCA_prte_default_hostfile", &self.lists.open_mpi);
        variables.prefer(
            "PRTE_MCA_rmaps_default_mapping_policy",
            format!("{policy}:oversubscribe"),
        );
        // Each host assumes that it can use all processors: bound ranks of several hosts would
        // share the first ones. Waiting ranks yield.
        variables.prefer("OMPI_MCA_hwloc_base_binding_policy", "none");
        variables.prefer("PRTE_MCA_hwloc_default_binding_policy", "none");
        variables.prefer("OMPI_MCA_mpi_yield_when_idle", "1");
        if !self.is_alone {
            // Hosts of other machines cannot reach this machine's hosts.
            variables.set("OMPI_MCA_plm_rsh_no_tree_spawn", "1");
            variables.set("PRTE_MCA_plm_ssh_no_tree_spawn", "1");
        }
        if permits_root() {
            for name in ROOT_PERMITTED {
                variables.prefer(name, "1");
            }
        }
    }

    fn hydra(&self, variables: &mut Variables) {
        variables.set("HYDRA_RMK", "user");
        variables.set("HYDRA_LAUNCHER", "ssh");
        variables.set("HYDRA_LAUNCHER_EXEC", self.agent);
        variables.set("HYDRA_HOST_FILE", &self.lists.hydra);
    }

    fn intel(&self, variables: &mut Variables) {
        variables.set("I_MPI_HYDRA_RMK", "user");
        variables.set("I_MPI_HYDRA_BOOTSTRAP", "ssh");
        variables.set("I_MPI_HYDRA_BOOTSTRAP_EXEC", self.agent);
        variables.set("I_MPI_HYDRA_HOST_FILE", &self.lists.hydra);
        if self.slots.is_none() {
            variables.prefer("I_MPI_PERHOST", "1");
        }
        variables.prefer("I_MPI_PIN", "0");
    }

    /// The libraries' choice of the device.
    fn device(&self, variables: &mut Variables) {
        match self.middleware {
            CommunicationLibrary::Ofi => {
                match self.provider {
                    Some(provider) => {
                        // Intel's launcher passes its variables to the ranks, in place of their
                        // hosts' variables.
                        for (name, value) in &provider.variables {
                            variables.set(name, value);
                        }
                        variables.set("I_MPI_OFI_PROVIDER", &provider.name);
                    }
                    None => {
                        variables.prefer("FI_PROVIDER", "efa");
                        variables.prefer("I_MPI_OFI_PROVIDER", "efa");
                    }
                }
                variables.prefer("OMPI_MCA_pml", "cm");
                variables.prefer("OMPI_MCA_mtl", "ofi");
                // Otherwise 4.1 would use UCX for windows, regardless of the choice for messages.
                variables.prefer("OMPI_MCA_osc", "^ucx");
                variables.prefer("MPIR_CVAR_CH4_NETMOD", "ofi");
                variables.prefer(
                    "I_MPI_FABRICS",
                    if self.isolated { "shm:ofi" } else { "ofi" },
                );
            }
            CommunicationLibrary::Ucx => {
                variables.prefer("OMPI_MCA_pml", "ucx");
                variables.prefer("OMPI_MCA_osc", "ucx");
                // EFA is not on Open MPI's list of devices for UCX.
                variables.prefer("OMPI_MCA_opal_common_ucx_tls", "any");
                variables.prefer("OMPI_MCA_opal_common_ucx_devices", "any");
                variables.prefer("MPIR_CVAR_CH4_NETMOD", "ucx");
                // Its `cma` treats hosts with common process numbers as one machine.
                let shared_memory = if self.isolated { ",sysv,posix" } else { "" };
                variables.prefer("UCX_TLS", format!("self,srd{shared_memory}"));
            }
        }
        if !self.isolated {
            variables.prefer("MPIR_CVAR_NOLOCAL", "1");
            // 5.0 divides collectives by hosts, and its ranks on hosts with the same name disagree
            // about the division.
            variables.prefer("OMPI_MCA_coll", "^han");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_batch_jobs_go() {
        let of = |names: &str| {
            let names: Vec<_> = names.split_whitespace().map(OsString::from).collect();
            of_batch_jobs(&names).join(OsStr::new(" "))
        };
        assert_eq!(
            of("HOME SLURM_JOB_ID SLURM_CONF PBS_HOME"),
            "SLURM_JOB_ID SLURM_CONF"
        );
        assert_eq!(of("SLURM_CONF PBS_HOME JOB_ID"), "");
        assert_eq!(
            of("PBS_JOBID PBS_NODEFILE LSB_JOBID LSB_HOSTS PE_HOSTFILE NSLOTS"),
            "PBS_JOBID PBS_NODEFILE LSB_JOBID LSB_HOSTS PE_HOSTFILE"
        );
    }

    #[test]
    fn mpich_gets_its_settings_through_the_launcher() {
        let of = |command: &str| remedies(OsStr::new(command)).len();
        assert_eq!(of("\"/usr/bin/hydra_pmi_proxy\" --control-port vm:1"), 1);
        assert_eq!(of("/opt/hydra_bstrap_proxy --upstream-host vm"), 0);
        assert_eq!(of("orted -mca ess env"), 0);
    }

    #[test]
    fn daemons_of_open_mpi_are_known() {
        let is_open_mpi = |command: &str| is_open_mpi(OsStr::new(command));
        assert!(is_open_mpi(
            "  orted -mca ess \"env\" -mca orte_node_regex \"vm\""
        ));
        assert!(is_open_mpi(
            "PRTE_PREFIX=/opt/prte;  /opt/prte/bin/prted --leader"
        ));
        assert!(!is_open_mpi("/opt/hydra_bstrap_proxy --upstream-host vm"));
    }
}
