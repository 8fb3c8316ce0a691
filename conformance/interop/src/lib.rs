//! The interoperability table: existing software on emulated devices, with measured results.
//!
//! A *cell* is a test of one combination of software, such as one release of libfabric sending to
//! another. Cells belong to *groups*, which [`GROUPS`] lists. A cell runs programs on emulated
//! hosts ([`Bench::host`]), or on two real ones behind a remote shell ([`Hosts`]), with a time
//! limit, and reports its measurement. `docs/interop.md` explains how to add a cell.
//!
//! Most cells are data (`cells/`, read by `table`), others are code in the module of their group;
//! `harness` is common to all, and `results` stores the passed cells.
//!
//! ```no_run
//! use efa_commands::installation::Installation;
//! use efa_interop::{Lab, Row, Selection, Summary, select};
//! use efa_play::player::Launcher;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let installation = Installation::of_this_program()?;
//! let lab = Lab::new(&installation, Launcher::new(None)?, Selection::default())?;
//! let cells = select(&lab, Some("perftest"), Some("ib_write_bw"))?;
//! let rows: Vec<Row> = cells.iter().map(|cell| cell.run(&lab)).collect();
//! println!("{}", Summary::of(&rows));
//! # Ok(())
//! # }
//! ```

mod engine;
mod exchange;
mod harness;
mod kill;
mod libfabric;
mod machines;
mod mpi;
mod results;
mod scenarios;
mod table;

pub use harness::{
    Bench, Cell, CellResult, CellsError, Finished, Host, Hosts, HostsError, Lab, NotMeasured,
    Outcome, Row, Running, Selection, Summary, Userland, report, traffic,
};
pub use results::{Results, Shard, ShardError};

/// Related cells.
pub struct Group {
    /// Its name for `--group`.
    pub name: &'static str,
    /// Its subject, in one line.
    pub about: &'static str,
    /// The reason why the whole group only runs on emulated hosts, if so.
    pub emulated: Option<&'static str>,
    /// The file of its cells as data.
    file: Option<&'static str>,
    /// Returns its cells as code, without starting anything.
    cells: fn(&Lab) -> Result<Vec<Cell>, CellsError>,
}

/// All groups, in the order in which they run.
pub const GROUPS: &[Group] = &[
    Group {
        name: "scenarios",
        about: "the protocol engine in place of each stock endpoint of each scenario",
        emulated: Some(
            "`efa-conformance run --at a=HOST --at b=HOST --peer libfabric` plays them on hosts",
        ),
        file: None,
        cells: scenarios::cells,
    },
    Group {
        name: "libfabric",
        about: "releases of stock libfabric, each with itself and with each other",
        emulated: None,
        file: Some(libfabric::FILE),
        cells: libfabric::cells,
    },
    Group {
        name: "corpus",
        about: "the whole corpus against each release of stock libfabric",
        emulated: Some(
            "the peers are scripted, which only emulated devices let; `efa-conformance run --at` plays the corpus live",
        ),
        file: Some(include_str!("../cells/corpus.toml")),
        cells: none,
    },
    Group {
        name: "efa_rs",
        about: "the engine as a provider that stock libfabric loads: in four releases, and with their own provider",
        emulated: None,
        file: Some(include_str!("../cells/efa_rs.toml")),
        cells: none,
    },
    Group {
        name: "mpi",
        about: "MPI over libfabric and over UCX, two to eight ranks on one to four hosts",
        emulated: Some(
            "the jobs are those of `efa-emu cluster`; on hosts, start `conformance/interop/mpi/exercise.c` by your launcher",
        ),
        file: Some(include_str!("../cells/mpi.toml")),
        cells: mpi::cells,
    },
    Group {
        name: "kill",
        about: "one side of a run is killed at random moments; nothing may be left",
        emulated: Some("what is looked for after each kill is the state of the emulator"),
        file: None,
        cells: kill::cells,
    },
    Group {
        name: "perftest",
        about: "the InfiniBand performance tests of two releases",
        emulated: None,
        file: Some(include_str!("../cells/perftest.toml")),
        cells: none,
    },
    Group {
        name: "python",
        about: "the Python package efa",
        emulated: None,
        file: Some(include_str!("../cells/python.toml")),
        cells: none,
    },
    Group {
        name: "rdma_core",
        about: "rdma-core's tools, and the tests of its Python bindings",
        emulated: None,
        file: Some(include_str!("../cells/rdma_core.toml")),
        cells: none,
    },
    Group {
        name: "applications",
        about: "libraries for other things than MPI: oneCCL, NIXL, Mooncake, OpenCoarrays",
        emulated: Some("their ranks are started, and meet, on the hosts of `efa-emu cluster`"),
        file: Some(include_str!("../cells/applications.toml")),
        cells: none,
    },
    Group {
        name: "tag_matching",
        about: "connected queue pairs, shared receive queues and tag matching: rdma-core's programs and tests, perftest",
        emulated: Some("EFA has no connected queue pairs"),
        file: Some(include_str!("../cells/tag_matching.toml")),
        cells: none,
    },
    Group {
        name: "monitoring",
        about: "programs that look at /sys and /dev themselves",
        emulated: Some("they look at the machine's own /sys there"),
        file: Some(include_str!("../cells/monitoring.toml")),
        cells: none,
    },
    Group {
        name: "engine",
        about: "the protocol engine and four releases of libfabric: every subprotocol, in both directions",
        emulated: Some(
            "faults are staged, and all packets looked at, by the emulator; `efa-conformance run --at a=HOST --at b=HOST --peer libfabric` meets stock libfabric on hosts",
        ),
        file: None,
        cells: engine::cells,
    },
    Group {
        name: "machines",
        about: "two to four machines whose fabrics bridges join: rows of libfabric, engine and mpi, partitions, kills",
        emulated: Some("the machines are namespaces of this one, with emulated hosts"),
        file: None,
        cells: machines::cells,
    },
    Group {
        name: "pci",
        about: "the stock Linux driver in virtual machines, and stock programs over it",
        emulated: Some("the machines are emulated, and so are their devices"),
        file: Some(include_str!("../cells/pci.toml")),
        cells: none,
    },
];

/// No cells as code.
fn none(_: &Lab) -> Result<Vec<Cell>, CellsError> {
    Ok(Vec::new())
}

/// The cells of all groups, or of the group `group`, with names that contain `filter`.
pub fn select(
    lab: &Lab,
    group: Option<&str>,
    filter: Option<&str>,
) -> Result<Vec<Cell>, CellsError> {
    let groups: Vec<&Group> = GROUPS
        .iter()
        .filter(|candidate| group.is_none_or(|name| candidate.name == name))
        .collect();
    if groups.is_empty() {
        let names: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
        return Err(CellsError::NoGroup {
            name: group.unwrap_or_default().to_owned(),
            known: names.join(", "),
        });
    }
    let mut cells = Vec::new();
    for group in groups {
        let of_file = group.file.map(|file| table::cells(group.name, file));
        let of_file = of_file.transpose()?.unwrap_or_default();
        let all = of_file.into_iter().chain((group.cells)(lab)?);
        cells.extend(all.map(|cell| match group.emulated {
            Some(reason) => cell.emulated_only(reason),
            None => cell,
        }));
    }
    if let Some(filter) = filter {
        cells.retain(|cell| cell.name().contains(filter));
    }
    if cells.is_empty() {
        return Err(CellsError::Filtered(filter.unwrap_or_default().to_owned()));
    }
    Ok(cells)
}
