//! Names by which programs find a cluster: a variable, files in its directory, the agent.

/// The variable that names the directory of the cluster.
pub(crate) const ENV_CLUSTER: &str = "EFA_EMU_CLUSTER";

/// The name of the file with the fabric's name in the cluster's directory.
pub(crate) const FABRIC_FILE: &str = "fabric";

/// The name of the file with the names of the hosts there.
pub(crate) const NAMES_FILE: &str = "names";

/// The name of the file there that the hosts see as `/etc/hosts`.
pub(crate) const ADDRESSES_FILE: &str = "hosts";

/// The name of a file in a host's directory: it is there if Open MPI has started a daemon on the host.
pub(crate) const OPEN_MPI_FILE: &str = "open-mpi";

/// The name under which this program does what ssh does, and is found first by those who call ssh.
pub const AGENT: &str = "ssh";
