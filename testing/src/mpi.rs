//! Options with which Open MPI starts jobs on a test machine.

/// For any transport: the tests may be root, and there are more ranks than processors.
pub const OPEN_MPI: &[&str] = &["--allow-run-as-root", "--oversubscribe"];

/// Messages by libfabric.
pub const OPEN_MPI_OVER_LIBFABRIC: &[&str] = &["--mca", "pml", "cm", "--mca", "mtl", "ofi"];

/// Messages by UCX. EFA is not on Open MPI's list of devices for it.
pub const OPEN_MPI_OVER_UCX: &[&str] = &[
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "opal_common_ucx_tls",
    "any",
    "--mca",
    "opal_common_ucx_devices",
    "any",
];
