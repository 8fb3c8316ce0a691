//! Group `mpi`: MPI libraries over libfabric, with its efa provider and with the engine, and over
//! UCX, two to eight ranks on one to four emulated hosts. Most cells are in
//! `conformance/interop/cells/mpi.toml`; this module has those that show a fault, and the jobs for
//! other groups.

mod endless;
mod faults;
mod library;
mod parts;
mod segments;

pub(super) use self::endless::Job;
pub(super) use self::faults::cells;
pub(super) use self::library::{
    DEBIAN_OPENMPI, Installation, Layout, Library, MPICH, OPENMPI, Transport,
};
pub(super) use self::parts::{PARTS, checks_of};
pub(super) use self::segments::Segments;
