//! Known faults of stock software: `conformance/interop/cells/known.toml`.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use efa_capture::frame::FrameKind;
use efa_check::capture::Capture;
use regex::Regex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::bench::Bench;
use super::cells_error::CellsError;
use super::not_measured::{CellResult, NotMeasured, failed};

const TEXT: &str = include_str!("../../cells/known.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    known: Vec<KnownFault>,
}

/// A fault of stock software that makes cells fail.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KnownFault {
    /// The cells, as regular expressions for group and name.
    #[serde(deserialize_with = "expressions")]
    cells: Vec<Regex>,
    /// Texts in the resulting failure.
    shows: Vec<String>,
    /// Texts that must not be in the failure, because other software works correctly.
    #[serde(default)]
    lacks: Vec<String>,
    /// A device response status that one of the captures must contain.
    response: Option<u8>,
    /// The hosts whose captures show it. The first one is reported.
    captures: Vec<String>,
    /// The time limit of the cells in seconds, if programs hang because of it.
    limit: Option<u64>,
    reason: String,
}

fn expressions<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Regex>, D::Error> {
    let texts = Vec::<String>::deserialize(value)?;
    let expressions = texts.iter().map(|text| Regex::new(text));
    let expressions: Result<_, _> = expressions.collect();
    expressions.map_err(D::Error::custom)
}

fn all() -> Result<&'static [KnownFault], CellsError> {
    static KNOWN: LazyLock<Result<Vec<KnownFault>, toml::de::Error>> =
        LazyLock::new(|| toml::from_str(TEXT).map(|file: File| file.known));
    KNOWN.as_deref().map_err(|error| CellsError::Toml {
        file: "cells/known.toml".into(),
        source: error.clone(),
    })
}

pub(crate) fn fault(group: &str, cell: &str) -> Result<Option<&'static KnownFault>, CellsError> {
    let cell = format!("{group} {cell}");
    Ok(all()?.iter().find(|known| known.is_of(&cell)))
}

impl KnownFault {
    fn is_of(&self, cell: &str) -> bool {
        self.cells.iter().any(|cells| cells.is_match(cell))
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit.map(Duration::from_secs)
    }

    /// Judges the result of a cell with this fault.
    pub(crate) fn judge(&self, bench: &Bench, result: CellResult) -> CellResult {
        match result {
            Err(NotMeasured::Failed(text)) if self.explains(bench, &text) => {
                Err(NotMeasured::Known {
                    reason: self.reason.clone(),
                    capture: bench.capture(self.captures.first().map_or("", String::as_str)),
                })
            }
            Err(NotMeasured::Failed(text)) => Err(failed!(
                "{text}\nthis is not the fault of stock software that is listed: {}",
                self.reason
            )),
            Ok(_) => Err(failed!(
                "this works, but is listed as a fault of stock software: {}",
                self.reason
            )),
            other => other,
        }
    }

    fn explains(&self, bench: &Bench, failure: &str) -> bool {
        let answers = |capture: &Path, status: u8| {
            Capture::load(capture).is_ok_and(|capture| {
                let mut frames = capture.frames.iter();
                frames.any(|frame| match frame.header.kind {
                    FrameKind::Response(answer) => answer.code() == status,
                    _ => false,
                })
            })
        };
        self.shows.iter().all(|text| failure.contains(text))
            && !self.lacks.iter().any(|text| failure.contains(text))
            && self.response.is_none_or(|status| {
                let mut captures = self.captures.iter();
                captures.any(|host| answers(&bench.capture(host), status))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Lab, Selection};
    use super::*;
    use crate::{GROUPS, select};
    use efa_commands::installation::Installation;
    use efa_play::player::Launcher;

    fn cells_of(reason: &str) -> Vec<&'static str> {
        let cells = [
            "libfabric 1.11 -> 1.17: fi_pingpong rdm",
            "libfabric 1.11 fi_pingpong rdm",
            "libfabric 1.11 -> 2.5: fi_pingpong rdm",
            "libfabric 1.17 -> 2.5: fi_pingpong rdm",
            "libfabric 2.5 fi_pingpong rdm -f efa",
            "libfabric 2.5 fi_pingpong rdm -f efa-direct",
            "libfabric 2.5 -> 1.11: fi_pingpong dgram",
            "libfabric 2.5 -> 1.17: fi_pingpong dgram",
            "libfabric 2.1 -> 2.5-openmpi: write-data",
            "libfabric 2.1+solicited -> 2.5: write-data",
            "libfabric 2.5 -> 1.11+rdma: unexpected-data",
            "libfabric 1.11 -> 2.1: unexpected-data",
            "efa_rs to 1.17: unexpected-data",
            "efa_rs from 1.17: unexpected-data",
        ];
        let has = |cell: &&str| {
            let (group, name) = cell.split_once(' ').unwrap();
            let known = fault(group, name).unwrap();
            known.is_some_and(|known| known.reason.starts_with(reason))
        };
        cells.into_iter().filter(has).collect()
    }

    #[test]
    fn a_fault_is_known_of_its_cells_alone() {
        let prefix = ["libfabric 1.11 -> 1.17: fi_pingpong rdm"];
        assert_eq!(cells_of("1.11 offers the prefix"), prefix);
        let prefix = [
            "libfabric 1.11 -> 2.5: fi_pingpong rdm",
            "libfabric 1.17 -> 2.5: fi_pingpong rdm",
            "libfabric 2.5 fi_pingpong rdm -f efa",
        ];
        assert_eq!(cells_of("2.5.1 offers the prefix"), prefix);
        let keys = ["libfabric 2.5 -> 1.11: fi_pingpong dgram"];
        assert_eq!(cells_of("1.11 gives its queue pair"), keys);
        let unsolicited = ["libfabric 2.1 -> 2.5-openmpi: write-data"];
        assert_eq!(cells_of("2.1 receives writes"), unsolicited);
        let flags = [
            "libfabric 2.5 -> 1.11+rdma: unexpected-data",
            "efa_rs to 1.17: unexpected-data",
        ];
        assert_eq!(cells_of("the data is in the packet"), flags);
    }

    #[test]
    fn every_fault_belongs_to_a_cell() {
        let launcher = Launcher {
            efa_emu: "efa-emu".into(),
            efa_conformance: "efa-conformance".into(),
            fabric: "known-tests".into(),
        };
        let installation = Installation::of_this_program().unwrap();
        let lab = Lab::new(&installation, launcher, Selection::default()).unwrap();
        let groups = GROUPS.iter().filter(|group| group.name != "scenarios");
        let cells = groups.flat_map(|group| select(&lab, Some(group.name), None).unwrap());
        let names = cells.map(|cell| format!("{} {}", cell.group(), cell.name()));
        let names: Vec<String> = names.collect();
        for cells in all().unwrap().iter().flat_map(|known| &known.cells) {
            let found = names.iter().any(|name| cells.is_match(name));
            assert!(found, "{cells}");
        }
    }
}
