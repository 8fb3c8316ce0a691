//! Names by which programs find a cluster: a variable, files in its directory, and the agent.

/// The variable with the directory of the cluster.
pub(crate) const ENV_CLUSTER: &str = "EFA_EMU_CLUSTER";

/// The name of the file with the fabric's name in the cluster's directory.
pub(crate) const FABRIC_FILE: &str = "fabric";

/// The name of the file with the hosts' names in the cluster's directory.
pub(crate) const NAMES_FILE: &str = "names";

/// The name of the file in the cluster's directory that hosts see as `/etc/hosts`.
pub(crate) const ADDRESSES_FILE: &str = "hosts";

/// The name of a file in a host's directory that exists if Open MPI has started a daemon there.
pub(crate) const OPEN_MPI_FILE: &str = "open-mpi";

/// The name of the program that replaces ssh, first in `PATH`.
pub const AGENT: &str = "ssh";
