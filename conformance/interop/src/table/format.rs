//! The keys of the files in `conformance/interop/cells`.

use crate::harness::CellsError;
use std::collections::{BTreeMap, BTreeSet};
use std::num::ParseIntError;
use std::process::ExitStatus;
use std::str::FromStr;

use regex::Regex;
use serde::Deserialize;

use efa_commands::shell::split_words;

use super::exchange::Exchange;
use super::expand::{Variables, unknown_name};
use crate::libfabric::release::Release;
use crate::mpi::{Layout, Library, Transport};

/// A file: the cells of a group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "it is read for its errors, which say line and column"
)]
pub(super) struct File {
    /// Lists of variables by name.
    #[serde(default)]
    list: BTreeMap<String, Vec<Variables>>,
    pub(super) cell: Vec<Spec>,
}

/// A list of variables for `each`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum List {
    /// One of the file, by name.
    Named(String),
    Rows(Vec<Variables>),
}

/// A cell, or several that differ in the variables of `each`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    pub(super) name: String,
    /// Its time limit in seconds.
    pub(super) limit: u64,
    /// The reason why it only runs on emulated hosts, if so.
    pub(super) emulated: Option<String>,
    /// Lists of variables, or their names. There is a cell for each combination of a row of each
    /// list; `{NAME}` in its texts stands for the value.
    #[serde(default)]
    #[expect(
        dead_code,
        reason = "`super::expand` takes it out before the cell is made"
    )]
    each: Vec<List>,
    /// Required programs, with their Debian packages, unless there is a userland.
    #[serde(default)]
    pub(super) needs: BTreeMap<String, String>,
    /// Software of another release (`scripts/userland`) for the programs; empty for this machine's.
    #[serde(default)]
    pub(super) userland: String,
    /// An MPI library, for `{mpicc}`, `{mpiexec}` and `{python}` in programs.
    pub(super) mpi: Option<String>,
    /// A release of libfabric, for `{library}`, and `{runner}` before programs that load it.
    pub(super) library: Option<String>,
    /// The generation of the hosts' devices.
    pub(super) profile: Option<String>,
    /// A shell script that runs on this machine first. With the exit status 77 the cell is skipped,
    /// and its output is the reason.
    pub(super) setup: Option<String>,
    /// The hosts whose packets are captured. The counts of the first one are shown.
    #[serde(default)]
    pub(super) captured: Vec<String>,
    /// The hosts, and virtual machines (`vm1`, `vm2`), whose captures must contain no protocol
    /// error.
    #[serde(default)]
    pub(super) checked: Vec<String>,
    /// The programs in the order in which they are started.
    #[serde(default)]
    pub(super) program: Vec<Program>,
    /// Endpoints that exchange messages, instead of programs.
    pub(super) exchange: Option<Exchange>,
}

/// A program. It must exit before the next one is started, unless it is the server of the next one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Program {
    /// Lists of variables, as for cells: there is a program for each combination.
    #[serde(default, rename = "each")]
    _each: Vec<List>,
    /// Its host, unless it is local, belongs to an MPI job or runs in virtual machines.
    #[serde(default)]
    pub(super) host: String,
    /// Whether it runs on this machine, outside of emulated hosts.
    #[serde(default)]
    pub(super) local: bool,
    /// The MPI job to which it belongs.
    pub(super) job: Option<Job>,
    /// Further options of `efa-emu vm`, which runs it in virtual machines. There a program that
    /// listens prints `listens`.
    pub(super) guests: Option<String>,
    /// Its words, as a shell splits them.
    pub(super) run: String,
    /// The release of its libfabric.
    pub(super) release: Option<String>,
    /// The libfabric provider that it uses, a plug-in that belongs to efa-emu.
    pub(super) provider: Option<String>,
    /// Whether it finds the devices in `/sys` and `/dev` (`efa-emu run --sysfs`).
    #[serde(default)]
    pub(super) sysfs: bool,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// Fault rules for its host ([faults.md](../../../../docs/faults.md)).
    pub(super) faults: Option<String>,
    /// Whether it listens on `{port}` of `{address}`. The next programs are started after it
    /// listens.
    #[serde(default)]
    pub(super) listens: bool,
    #[serde(default)]
    pub(super) ends: Ends,
    /// Texts that its output must contain. Spaces and line ends are equivalent.
    #[serde(default)]
    pub(super) prints: Vec<String>,
    /// Figures that its output must contain. The cell's line shows them.
    #[serde(default)]
    pub(super) figures: Vec<Figure>,
}

/// A job of the cell's MPI library on the hosts of a cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Job {
    pub(super) transport: String,
    ranks: String,
    hosts: String,
    /// The number of devices per host.
    #[serde(default)]
    devices: String,
    /// The number of devices that must send at least an eighth of their host's volume.
    #[serde(default)]
    pub(super) devices_used: usize,
    /// The name of the capture of all hosts.
    pub(super) capture: String,
    /// The number of bytes that each host must send to others.
    #[serde(default)]
    least: String,
    /// Required kinds of packets.
    #[serde(default)]
    pub(super) one_of: Vec<String>,
}

fn number<N: FromStr<Err = ParseIntError>>(text: &str) -> Result<N, CellsError> {
    text.parse().map_err(|source| CellsError::Number {
        text: text.to_owned(),
        source,
    })
}

impl Job {
    pub(super) fn layout(&self) -> Result<Layout, CellsError> {
        Ok(Layout {
            ranks: number::<usize>(&self.ranks)?,
            hosts: number::<usize>(&self.hosts)?,
            devices: match self.devices.as_str() {
                "" => 1,
                devices => number::<usize>(devices)?,
            },
        })
    }

    /// The number of bytes that each host must send to others.
    pub(super) fn least(&self) -> Result<u64, CellsError> {
        match self.least.as_str() {
            "" => Ok(0),
            text => number(text),
        }
    }
}

impl Spec {
    /// Checks that need expanded variables.
    pub(super) fn check(&self) -> Result<(), CellsError> {
        let texts = self.program.iter().flat_map(|program| {
            let lists = program.env.values().chain(&program.prints);
            lists.chain([&program.run]).chain(&program.guests)
        });
        if let Some(name) = texts.chain(&self.setup).find_map(|text| unknown_name(text)) {
            return Err(CellsError::unknown("name", &format!("{{{name}}}")));
        }
        if self.program.is_empty() == self.exchange.is_none() {
            return Err(CellsError::ProgramsOrExchange);
        }
        if let Some(exchange) = &self.exchange {
            exchange.check()?;
        }
        if let Some(mpi) = &self.mpi {
            Library::named(mpi)?;
        }
        if let Some(library) = &self.library {
            Release::named(library)?;
        }
        for program in &self.program {
            if let Some(release) = &program.release {
                Release::named(release)?;
            }
            for figure in &program.figures {
                Regex::new(&figure.find)?;
            }
            split_words(&program.run)?;
            match (&program.job, program.host.as_str()) {
                (None, "") if program.guests.is_some() || program.local => {}
                (None, "") => return Err(CellsError::Nowhere(program.run.clone())),
                (None, _) => {}
                (Some(_), _) if self.mpi.is_none() => {
                    return Err(CellsError::JobWithoutMpi);
                }
                (Some(job), _) => {
                    job.layout()?;
                    job.least()?;
                    Transport::named(&job.transport)?;
                }
            }
        }
        Ok(())
    }
}

/// The expected exit of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ends {
    /// Exit status 0.
    #[default]
    Success,
    /// Another exit status, or a signal.
    Failure,
    Status(i32),
    Any,
}

impl Ends {
    pub(super) fn permits(self, status: ExitStatus) -> bool {
        match self {
            Ends::Success => status.success(),
            Ends::Failure => !status.success(),
            Ends::Status(code) => status.code() == Some(code),
            Ends::Any => true,
        }
    }
}

/// A part of a program's output.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    /// The regular expression that must be found.
    find: String,
    /// How it is shown: `$1` is the first group of the last match, `{count}` the number of matches,
    /// `{distinct}` the number of different values of the first group, and `{sum}` the sum of its
    /// last values in all programs of the cell.
    pub(super) show: String,
}

/// The value of a figure.
pub(super) struct Found {
    /// The shown text, with `{sum}` unexpanded.
    pub(super) shown: String,
    /// The first group of the last match, if it is a number.
    pub(super) number: Option<u64>,
}

/// A figure is missing in the output.
#[derive(Debug, thiserror::Error)]
pub(super) enum FigureError {
    #[error(transparent)]
    Expression(#[from] regex::Error),
    #[error("no `{find}` in\n{printed}")]
    Absent { find: String, printed: String },
}

impl Figure {
    pub(super) fn of(&self, printed: &str) -> Result<Found, FigureError> {
        let find = Regex::new(&self.find)?;
        let (mut count, mut distinct, mut shown) = (0, BTreeSet::new(), String::new());
        let mut value = "";
        for captures in find.captures_iter(printed) {
            count += 1;
            value = captures.get(1).map_or("", |group| group.as_str());
            distinct.insert(value);
            shown.clear();
            captures.expand(&self.show, &mut shown);
        }
        if count == 0 {
            return Err(FigureError::Absent {
                find: self.find.clone(),
                printed: printed.to_owned(),
            });
        }
        let distinct = Vec::from_iter(distinct).join(" and ");
        let shown = shown.replace("{count}", &count.to_string());
        Ok(Found {
            shown: shown.replace("{distinct}", &distinct),
            number: value.parse().ok(),
        })
    }
}
