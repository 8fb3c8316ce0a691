//! The results by the pair of places at which cases were played.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Case, Summary};

/// The results of a pair of places.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PairReport {
    /// The places, in the order of the endpoints that were played there.
    pub places: [String; 2],
    pub(crate) summary: Summary,
}

/// The results of each pair, in the order of the first cases.
pub(crate) fn of(cases: &[Case]) -> Vec<PairReport> {
    let mut pairs: Vec<PairReport> = Vec::new();
    for case in cases {
        let mut places = case.places.values();
        let (Some(first), Some(second)) = (places.next(), places.next()) else {
            continue;
        };
        let places = [first.clone(), second.clone()];
        let known = pairs.iter().position(|pair| pair.places == places);
        let at = known.unwrap_or_else(|| {
            let summary = Summary::default();
            pairs.push(PairReport { places, summary });
            pairs.len() - 1
        });
        pairs[at].summary.add(case);
    }
    pairs
}

/// A row for each place of the first endpoint, and a column for each place of the second.
#[derive(Clone, Debug)]
pub struct Matrix<'p> {
    /// All places, in the order of their first cases.
    pub places: Vec<&'p str>,
    pairs: &'p [PairReport],
}

impl<'p> Matrix<'p> {
    /// The matrix of the given pairs.
    pub fn of(pairs: &'p [PairReport]) -> Self {
        let mut places: Vec<&str> = Vec::new();
        for place in pairs.iter().flat_map(|pair| &pair.places) {
            if !places.contains(&place.as_str()) {
                places.push(place);
            }
        }
        Matrix { places, pairs }
    }

    /// The rows: a place, and its results with each place.
    pub fn rows(&self) -> impl Iterator<Item = (&'p str, Vec<Option<&'p Summary>>)> + '_ {
        self.places.iter().map(|first| {
            let cell = |second: &&str| {
                let mut pairs = self.pairs.iter();
                let pair = pairs.find(|pair| pair.places == [*first, *second])?;
                Some(&pair.summary)
            };
            (*first, self.places.iter().map(cell).collect())
        })
    }
}

/// The text of a cell.
pub fn cell(summary: Option<&Summary>) -> String {
    match summary {
        None => "-".into(),
        Some(Summary {
            failed: 0, passed, ..
        }) => format!("{passed} passed"),
        Some(Summary { failed, .. }) => format!("{failed} FAILED"),
    }
}

/// The matrix as text, for terminals.
impl fmt::Display for Matrix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.places.iter().map(|place| place.chars().count());
        let width = longest
            .chain(["100 passed".len()])
            .max()
            .unwrap_or_default();
        let mut header = format!("{:width$}", "");
        for place in &self.places {
            header += &format!("  {place:width$}");
        }
        write!(f, "{}", header.trim_end())?;
        for (row, cells) in self.rows() {
            let mut line = format!("{row:width$}");
            for summary in cells {
                line += &format!("  {:width$}", cell(summary));
            }
            write!(f, "\n{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(places: [&str; 2], passed: usize, failed: usize) -> PairReport {
        PairReport {
            places: places.map(str::to_owned),
            summary: Summary {
                passed,
                failed,
                ..Summary::default()
            },
        }
    }

    #[test]
    fn a_cell_is_a_pair_in_its_order() {
        let pairs = [
            pair(["node0", "node1"], 12, 0),
            pair(["node0", "node2"], 11, 1),
            pair(["node2", "node1"], 3, 0),
        ];
        let text = Matrix::of(&pairs).to_string();
        let expected = "            node0       node1       node2\n\
                        node0       -           12 passed   1 FAILED\n\
                        node1       -           -           -\n\
                        node2       -           3 passed    -";
        assert_eq!(text, expected);
    }
}
