//! The releases of libfabric.

use std::path::PathBuf;

use efa_play::libfabric::Version;
use efa_play::record::Stock;

use crate::harness::{Bench, Unmet};

/// One generation of stock libfabric.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) name: &'static str,
    pub(super) version: Version,
    /// Whether this build takes writes with immediate data without receives. Both sides of such a write
    /// must agree on it.
    pub(super) unsolicited: bool,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The machine's own libfabric.
    System,
    /// `scripts/userland NAME`, whose `run` finds the library.
    Runner(&'static str),
    /// The library of `scripts/userland USERLAND`, at these paths in its directory.
    File {
        userland: &'static str,
        library: &'static str,
        providers: &'static str,
    },
}

/// An available release.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) stock: Stock,
    /// The directory of its providers, if they are separate files.
    pub(super) providers: Option<PathBuf>,
}

const fn version(major: u16, minor: u16) -> Version {
    Version { major, minor }
}

/// From the oldest to the newest.
pub(super) const RELEASES: &[Release] = &[
    Release {
        name: "1.11.0",
        version: version(1, 11),
        unsolicited: false,
        source: Source::Runner("debian11"),
    },
    Release {
        name: "1.17.0",
        version: version(1, 17),
        unsolicited: false,
        source: Source::System,
    },
    Release {
        name: "2.1.0",
        version: version(2, 1),
        unsolicited: true,
        source: Source::Runner("debian13"),
    },
    Release {
        name: "2.5.1",
        version: version(2, 5),
        unsolicited: false,
        source: Source::File {
            userland: "pypi-mpich",
            library: "venv/lib/mpich/libfabric.so.1",
            providers: "venv/lib/mpich/libfabric",
        },
    },
];

impl Release {
    /// Makes the release available. If the machine's own libfabric is of another release, the driver reports
    /// that after loading it.
    pub(super) fn fetch(&self, bench: &Bench) -> Result<Fetched, Unmet> {
        let mut fetched = Fetched::default();
        match self.source {
            Source::System => {}
            Source::Runner(name) => fetched.stock.runner = Some(bench.userland(name)?.runner()),
            Source::File {
                userland,
                library,
                providers,
            } => {
                let directory = bench.userland(userland)?.directory().to_owned();
                fetched.stock.library = directory.join(library);
                fetched.providers = Some(directory.join(providers));
            }
        }
        Ok(fetched)
    }
}
