//! Parts of the table, and the results of earlier runs.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::harness::{Cell, NotMeasured, Outcome, Row, Summary};
use crate::{GROUPS, Group};

/// One of several parts of the table, such as `3/12`. Each cell belongs to one part, which depends
/// only on its name, so that all machines have the same parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// From 1 to `of`.
    number: u64,
    of: u64,
}

/// A text that is not a [`Shard`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a shard: write NUMBER/OF, from 1/12 to 12/12 for twelve of them")]
pub struct ShardError(String);

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            let numbers = (number.parse().ok()?, of.parse().ok()?);
            (1..=numbers.1).contains(&numbers.0).then_some(numbers)
        });
        let (number, of) = numbers.ok_or_else(|| ShardError(text.to_owned()))?;
        Ok(Shard { number, of })
    }
}

impl Shard {
    /// Whether it contains the cell `name` of a group.
    pub fn takes(self, group: &str, name: &str) -> bool {
        // FNV-1a, because it is independent of the compiler's release.
        let bytes = group.bytes().chain([0]).chain(name.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // Names that only differ in their last bytes would have neighbouring values.
        let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed ^ (mixed >> 33)) % self.of == self.number - 1
    }
}

/// A row as a line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    group: String,
    cell: String,
    result: String,
    text: String,
    capture: Option<PathBuf>,
    seconds: f64,
}

impl Line {
    fn of(row: &Row) -> Line {
        Line {
            group: row.group.to_owned(),
            cell: row.name.clone(),
            result: row.outcome.word().to_owned(),
            text: row.outcome.text().to_owned(),
            capture: row.outcome.capture().map(Path::to_owned),
            seconds: row.duration.as_secs_f64(),
        }
    }

    /// `None` if no release of this program has written it.
    fn into_row(self) -> Option<Row> {
        let is_named = |group: &&Group| group.name == self.group;
        let outcome = match (self.result.as_str(), self.capture) {
            ("PASS", _) => Outcome::Passed {
                measured: self.text,
            },
            ("FAIL", _) => Outcome::NotMeasured(NotMeasured::Failed(self.text)),
            ("SKIP", _) => Outcome::NotMeasured(NotMeasured::Skipped(self.text)),
            ("KNOWN", Some(capture)) => Outcome::NotMeasured(NotMeasured::Known {
                reason: self.text,
                capture,
            }),
            _ => return None,
        };
        Some(Row {
            group: GROUPS.iter().find(is_named)?.name,
            name: self.cell,
            places: BTreeMap::new(),
            outcome,
            duration: Duration::try_from_secs_f64(self.seconds).ok()?,
        })
    }
}

/// The results of cells for one state of the source: a file with a line for each cell that ran on
/// emulated hosts.
pub struct Results {
    file: File,
    /// By group and name.
    rows: HashMap<(String, String), Row>,
}

impl Results {
    /// The results in this file, which may not exist. An incomplete last line of a killed run is
    /// ignored.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn open(path: &Path) -> io::Result<Results> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        let lines = text.lines();
        let lines = lines.filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let rows = lines
            .filter_map(Line::into_row)
            .map(|row| ((row.group.to_owned(), row.name.clone()), row))
            .collect();
        Ok(Results { file, rows })
    }

    fn of(&self, cell: &Cell) -> Option<&Row> {
        let key = (cell.group().to_owned(), cell.name().to_owned());
        self.rows.get(&key)
    }

    /// The row of a cell that need not run again because it passed, or showed a known fault.
    pub fn kept(&self, cell: &Cell) -> Option<&Row> {
        let is_kept = |row: &&Row| matches!(row.outcome.word(), "PASS" | "KNOWN");
        self.of(cell).filter(is_kept)
    }

    /// Writes a row, which replaces an earlier one of the same cell.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep(&mut self, row: &Row) -> io::Result<()> {
        let mut line = serde_json::to_string(&Line::of(row))?;
        line.push('\n');
        self.file.write_all(line.as_bytes())?;
        let key = (row.group.to_owned(), row.name.clone());
        self.rows.insert(key, row.clone());
        Ok(())
    }

    /// A Markdown table with a line for each group of `cells`: the number of cells by result, those
    /// that did not run, and the total time.
    pub fn table(&self, cells: &[Cell], title: &str) -> String {
        let mut text = format!(
            "{title}\n\n| group | cells | passed | known | skipped | failed | not run | minutes |\n\
             |---|---|---|---|---|---|---|---|\n"
        );
        for group in GROUPS {
            let of_group: Vec<&Cell> = cells.iter().filter(|it| it.group() == group.name).collect();
            if of_group.is_empty() {
                continue;
            }
            let rows = of_group.iter().filter_map(|cell| self.of(cell));
            let rows: Vec<Row> = rows.cloned().collect();
            let counts = Summary::of(&rows);
            let time: Duration = rows.iter().map(|row| row.duration).sum();
            // Writing to a `String` cannot fail.
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {} | {} | {} | {:.1} |",
                group.name,
                of_group.len(),
                counts.passed,
                counts.known,
                counts.skipped,
                counts.failed,
                of_group.len() - rows.len(),
                time.as_secs_f64() / 60.0
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(name: &str) -> Cell {
        Cell::new("kill", name, Duration::ZERO, |_| Ok(String::new()))
    }

    fn row(name: &str, outcome: Outcome) -> Row {
        Row {
            group: "kill",
            name: name.to_owned(),
            places: BTreeMap::new(),
            outcome,
            duration: Duration::from_secs(90),
        }
    }

    #[test]
    fn each_cell_is_in_one_shard() {
        let shards: Vec<Shard> = (1..=12)
            .map(|number| format!("{number}/12").parse().unwrap())
            .collect();
        let mut sizes = [0; 12];
        for cell in 0..1200 {
            let name = format!("release {cell}");
            let takes = (0..12).filter(|at| shards[*at].takes("libfabric", &name));
            let takes: Vec<usize> = takes.collect();
            assert_eq!(takes.len(), 1, "{name}");
            sizes[takes[0]] += 1;
        }
        assert!(
            sizes.iter().all(|size| (60..=140).contains(size)),
            "{sizes:?}"
        );
    }

    #[test]
    fn invalid_shards_are_refused() {
        for text in ["", "3", "0/12", "13/12", "1/0", "a/b", "1/2/3", "-1/2"] {
            let error = text.parse::<Shard>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("`{text}` is not a shard"))
            );
        }
    }

    /// The test includes a run that was killed during a write.
    #[test]
    fn only_passed_results_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/state.jsonl");
        let mut results = Results::open(&path).unwrap();
        let known = Outcome::NotMeasured(NotMeasured::Known {
            reason: "stock drops it".into(),
            capture: "a.pcapng".into(),
        });
        let passed = Outcome::Passed {
            measured: "3 messages".into(),
        };
        let rows = [
            row("works", passed.clone()),
            row("is known", known),
            row(
                "fails",
                Outcome::NotMeasured(NotMeasured::Failed("no".into())),
            ),
            row(
                "mended",
                Outcome::NotMeasured(NotMeasured::Failed("no".into())),
            ),
            row("mended", passed),
            row(
                "lacks",
                Outcome::NotMeasured(NotMeasured::Skipped("no MPI".into())),
            ),
        ];
        for row in &rows {
            results.keep(row).unwrap();
        }
        drop(results);
        let torn = r#"{"group":"kill","cell":"torn","result":"PA"#;
        fs::write(&path, fs::read_to_string(&path).unwrap() + torn).unwrap();

        let mut results = Results::open(&path).unwrap();
        results
            .keep(&row("after", rows[0].outcome.clone()))
            .unwrap();
        let results = Results::open(&path).unwrap();
        let names = [
            "works", "is known", "mended", "after", "fails", "lacks", "torn",
        ];
        let cells: Vec<Cell> = names.into_iter().map(cell).collect();
        let kept = cells.iter().filter_map(|cell| results.kept(cell));
        let kept: Vec<&str> = kept.map(|row| row.name.as_str()).collect();
        assert_eq!(kept, ["works", "is known", "mended", "after"]);
        assert_eq!(results.kept(&cells[1]).unwrap().outcome, rows[1].outcome);
        let table = results.table(&cells, "title");
        let line = "| `kill` | 7 | 3 | 1 | 1 | 1 | 1 | 9.0 |";
        assert_eq!(table.lines().last(), Some(line), "{table}");
    }
}
