//! Cases that a release of stock software fails because of a known fault of that release.
//!
//! There is a file for each release, `conformance/suite/expected/NAME-RELEASE.toml`. Each entry
//! names the row of docs/deviations.md that has the evidence. A case that fails as an entry
//! describes is not a failure. A case that passes although an entry names it is a failure, so that
//! outdated entries are found.

use std::path::{Path, PathBuf};

use efa_core::rules::Severity;
use efa_play::drive::Identity;
use efa_replay::compare::Finding;
use serde::Deserialize;

use super::{Case, Outcome};

/// The files, by the name and the release of the software under test.
const FILES: [(&str, &str, &str); 4] = [
    (
        "libfabric",
        "1.11",
        include_str!("../expected/libfabric-1.11.toml"),
    ),
    (
        "libfabric",
        "1.17",
        include_str!("../expected/libfabric-1.17.toml"),
    ),
    (
        "libfabric",
        "2.1",
        include_str!("../expected/libfabric-2.1.toml"),
    ),
    (
        "libfabric",
        "2.5",
        include_str!("../expected/libfabric-2.5.toml"),
    ),
];

/// A deviation, and the cases that fail because of it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deviation {
    /// The row of docs/deviations.md with the description and the evidence.
    pub row: u32,
    /// The names of the traces; `*` matches any characters.
    pub traces: String,
    /// The endpoint under test; `None` for any.
    pub role: Option<String>,
    /// A text that every finding of such a case contains.
    pub findings: String,
    /// The release's behaviour, and why it is wrong.
    pub why: String,
    /// Whether the case may pass, because the failure depends on timing.
    #[serde(default)]
    pub sometimes: bool,
}

/// The deviations of one release.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    #[serde(default, rename = "deviation")]
    pub(crate) deviations: Vec<Deviation>,
}

/// A file of deviations cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ExpectedError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason of the system.
        source: std::io::Error,
    },
    /// The file is not TOML, or has other keys.
    #[error("{}: {source}; docs/conformance.md describes the keys", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Which key, on which line.
        source: toml::de::Error,
    },
}

impl Expected {
    /// Returns the known deviations of the stock software under test; none for other software.
    pub fn of(under_test: &Identity) -> Self {
        let Some(version) = under_test.version() else {
            return Expected::default();
        };
        let version = version.to_string();
        FILES
            .iter()
            .find(|(name, release, _)| *name == under_test.name && *release == version)
            // A test parses all files, so no error is lost here.
            .and_then(|(_, _, text)| toml::from_str(text).ok())
            .unwrap_or_default()
    }

    /// Reads a file of deviations.
    ///
    /// # Errors
    /// If the file cannot be read, or is not one of deviations.
    pub fn load(path: &Path) -> Result<Self, ExpectedError> {
        let text = std::fs::read_to_string(path).map_err(|source| ExpectedError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|source| ExpectedError::Invalid {
            path: path.to_owned(),
            source,
        })
    }

    /// Turns a known failure of a case into [`Outcome::Expected`], and an unexpected pass into a
    /// failure.
    pub fn judge(&self, case: &mut Case) {
        let (trace, role) = (case.trace.clone(), case.role.clone());
        let named = self.deviations.iter().filter(|deviation| {
            matches(&deviation.traces, &trace)
                && deviation.role.as_ref().is_none_or(|other| *other == role)
        });
        for deviation in named {
            match &case.outcome {
                Outcome::Failed { findings, .. } if deviation.explains(findings) => {
                    case.outcome = Outcome::Expected {
                        row: deviation.row,
                        findings: findings.clone(),
                    };
                    return;
                }
                Outcome::Passed { .. } if !deviation.sometimes => {
                    let text = format!(
                        "passes, although row {} of docs/deviations.md says that it cannot ({}): the \
                         entry of the expected deviations no longer holds",
                        deviation.row, deviation.findings
                    );
                    case.outcome = Outcome::Failed {
                        findings: vec![Finding::plain(Severity::Error, text)],
                        capture: None,
                    };
                    return;
                }
                _ => {}
            }
        }
    }
}

impl Deviation {
    fn explains(&self, findings: &[Finding]) -> bool {
        findings
            .iter()
            .all(|finding| finding.to_string().contains(&self.findings))
    }
}

/// Returns whether a name matches a pattern, in which `*` matches any characters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.into_iter().any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use efa_play::libfabric::Provider;

    fn case(trace: &str, role: &str, outcome: Outcome) -> Case {
        Case {
            trace: trace.to_owned(),
            path: PathBuf::new(),
            backend: "hw".to_owned(),
            dut: "libfabric".to_owned(),
            role: role.to_owned(),
            sections: Vec::new(),
            subprotocols: Vec::new(),
            places: std::collections::BTreeMap::new(),
            outcome,
            ladder: crate::ladder::Ladder::default(),
            duration: Duration::ZERO,
        }
    }

    fn failed(texts: &[&str]) -> Outcome {
        let findings = texts
            .iter()
            .map(|text| Finding::plain(Severity::Error, *text))
            .collect();
        Outcome::Failed {
            findings,
            capture: None,
        }
    }

    fn passed() -> Outcome {
        Outcome::Passed {
            compared: 1,
            played: 1,
            seeds: 0,
            events: 0,
            remarks: Vec::new(),
        }
    }

    fn after(expected: &Expected, trace: &str, role: &str, outcome: Outcome) -> Outcome {
        let mut case = case(trace, role, outcome);
        expected.judge(&mut case);
        case.outcome
    }

    #[test]
    fn only_failures_matching_the_description_are_expected() {
        let expected: Expected = toml::from_str(
            "[[deviation]]\nrow = 19\ntraces = 'long-*-efa0'\nrole = 'a'\nfindings = 'refused'\nwhy = ''\n",
        )
        .unwrap();
        let run = |trace, role, outcome| after(&expected, trace, role, outcome);
        let explained = run("long-read-efa0", "a", failed(&["is refused (95)"]));
        assert!(matches!(explained, Outcome::Expected { row: 19, .. }));
        for (trace, role, texts) in [
            ("long-read-efa1", "a", &["is refused"] as &[_]),
            ("long-read-efa0", "b", &["is refused"]),
            ("long-read-efa0", "a", &["crashed"]),
            ("long-read-efa0", "a", &["is refused", "crashed"]),
        ] {
            let still = run(trace, role, failed(texts));
            assert!(matches!(still, Outcome::Failed { .. }), "{trace} {role}");
        }
    }

    #[test]
    fn an_entry_that_no_longer_holds_fails() {
        let text = "[[deviation]]\nrow = 19\ntraces = '*'\nfindings = 'refused'\nwhy = ''\n";
        let expected: Expected = toml::from_str(text).unwrap();
        let Outcome::Failed { findings, .. } = after(&expected, "long", "a", passed()) else {
            panic!("passed");
        };
        assert!(findings[0].text.contains("row 19"), "{findings:?}");
        let expected: Expected = toml::from_str(&format!("{text}sometimes = true\n")).unwrap();
        assert_eq!(after(&expected, "long", "a", passed()), passed());
    }

    /// Deviations of stock's own provider do not apply to other providers of the same libfabric.
    #[test]
    fn another_provider_has_no_known_deviations() {
        let identity = |provider: &str| {
            let provider = Provider {
                name: provider.into(),
                directory: None,
            };
            Identity {
                name: provider.software(),
                release: Some("1.17.0".into()),
                path: None,
                commit: None,
            }
        };
        assert_ne!(Expected::of(&identity("efa")), Expected::default());
        assert_eq!(Expected::of(&identity("efa_rs")), Expected::default());
    }

    #[test]
    fn patterns_have_stars() {
        for (pattern, name, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("*", "", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    /// Each file parses, and each entry names traces of the corpus and a row of the page.
    #[test]
    fn the_files_hold() {
        let checkout = efa_testing::workspace::root();
        let page = std::fs::read_to_string(checkout.join("docs/deviations.md")).unwrap();
        let directory = checkout.join("conformance/suite/expected");
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), FILES.len());
        let traces = crate::find_traces(&[checkout.join("traces")], None).unwrap();
        for (name, release, text) in FILES {
            let expected: Expected = toml::from_str(text).unwrap();
            for deviation in expected.deviations {
                let row = format!("\n| {} |", deviation.row);
                assert!(page.contains(&row), "{name} {release}: no row {row}");
                let found = traces
                    .iter()
                    .any(|path| matches(&deviation.traces, &crate::name_of(path)));
                assert!(found, "{name} {release}: no trace {}", deviation.traces);
            }
        }
    }
}
