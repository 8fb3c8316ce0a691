//! JUnit XML for CI systems, within the schema of Jenkins' xUnit plug-in, which is the strictest of
//! those in use.

use std::io;
use std::path::Path;

use askama::Template;

use super::json::{CaseReport, Ending, Report};

/// A file.
#[derive(Clone, Debug, Template)]
#[template(path = "junit.xml", whitespace = "minimize")]
pub struct JUnit {
    /// The name of the whole run.
    pub name: String,
    /// The start of the tests, in the format of RFC 3339; empty if unknown.
    pub timestamp: String,
    /// The host on which they ran; empty if unknown.
    pub host: String,
    /// The properties of the run, by name.
    pub properties: Vec<(String, String)>,
    /// The tests in groups.
    pub suites: Vec<Suite>,
}

/// A group of tests.
#[derive(Clone, Debug)]
pub struct Suite {
    /// What its tests have in common.
    pub name: String,
    /// The tests in their order.
    pub tests: Vec<Test>,
}

/// A test.
#[derive(Clone, Debug)]
pub struct Test {
    /// The name, which need not be unique.
    pub name: String,
    /// The class name, with dots.
    pub class: String,
    /// The duration in seconds.
    pub seconds: f64,
    /// How it ended.
    pub result: TestResult,
    /// Further output.
    pub output: String,
}

/// The result of a test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TestResult {
    /// Nothing was found.
    Passed,
    /// It was not run, for this reason.
    Skipped(String),
    /// It was run, and found an error.
    Failed {
        /// The failure in one line.
        message: String,
        /// The key that distinguishes failures.
        kind: String,
        /// All errors.
        text: String,
    },
}

impl Suite {
    fn failures(&self) -> usize {
        let failed = |test: &&Test| matches!(test.result, TestResult::Failed { .. });
        self.tests.iter().filter(failed).count()
    }

    fn skipped(&self) -> usize {
        let skipped = |test: &&Test| matches!(test.result, TestResult::Skipped(_));
        self.tests.iter().filter(skipped).count()
    }

    fn seconds(&self) -> f64 {
        self.tests.iter().map(|test| test.seconds).sum()
    }
}

impl JUnit {
    fn tests(&self) -> usize {
        self.suites.iter().map(|suite| suite.tests.len()).sum()
    }

    fn failures(&self) -> usize {
        self.suites.iter().map(Suite::failures).sum()
    }

    fn seconds(&self) -> f64 {
        self.suites.iter().map(Suite::seconds).sum()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = self.render().map_err(io::Error::other)?;
        // XML cannot represent other control characters.
        text.retain(|c| !c.is_control() || c == '\n' || c == '\t');
        std::fs::write(path, text)
    }
}

/// The name of the test suite of a case.
fn suite_of(case: &CaseReport) -> String {
    let places = case.places.iter();
    let places = places.map(|(endpoint, place)| format!("{endpoint} at {place}"));
    match places.collect::<Vec<_>>() {
        places if places.is_empty() => case.backend.clone(),
        places => format!("{}: {}", case.backend, places.join(", ")),
    }
}

fn result_of(case: &CaseReport) -> TestResult {
    let heading = case.heading();
    match case.result {
        Ending::Passed => TestResult::Passed,
        Ending::Skipped => TestResult::Skipped(heading.to_owned()),
        Ending::CodecOnly => TestResult::Skipped(format!("codec only: {heading}")),
        Ending::Unsupported => TestResult::Skipped(format!("unsupported: {heading}")),
        Ending::Known => TestResult::Skipped(format!(
            "known, row {} of docs/deviations.md: {heading}",
            case.deviation.unwrap_or_default()
        )),
        Ending::Failed => {
            let texts = case.findings.iter().map(|finding| finding.text.clone());
            let capture = case.capture.iter();
            let capture = capture.map(|path| format!("captured in {}", path.display()));
            let statement = case.findings.first().and_then(|it| it.statement.clone());
            TestResult::Failed {
                message: heading.to_owned(),
                kind: statement.unwrap_or_else(|| "unfit".into()),
                text: texts.chain(capture).collect::<Vec<_>>().join("\n"),
            }
        }
    }
}

/// A report: one test suite for each backend, and for each pair of places on other hosts. A case
/// that was not played is `skipped`, not passed.
pub fn of(report: &Report) -> JUnit {
    let mut names: Vec<String> = report.cases.iter().map(suite_of).collect();
    names.sort_unstable();
    names.dedup();
    let suites = names.into_iter().map(|name| {
        let cases = report.cases.iter().filter(|case| suite_of(case) == name);
        let tests = cases.map(|case| Test {
            name: format!("{} ({} as {})", case.trace, case.dut, case.role),
            class: format!("efa-conformance.{}", case.backend),
            seconds: case.seconds,
            result: result_of(case),
            output: match case.repeat.as_str() {
                "" => String::new(),
                command => format!("repeat with: {command}"),
            },
        });
        let tests = tests.collect();
        Suite { name, tests }
    });
    let under_test = report.under_test.properties();
    let mut properties: Vec<(String, String)> = under_test
        .map(|(key, value)| (format!("under-test.{key}"), value.to_owned()))
        .collect();
    let run = &report.run;
    properties.push(("command".into(), run.command.clone()));
    properties.push(("directory".into(), run.directory.display().to_string()));
    let versions = run.versions.iter();
    properties.extend(versions.map(|(name, version)| (format!("version.{name}"), version.clone())));
    for section in &report.sections {
        let parts = section.subprotocols.iter().chain(&section.statements);
        let all = [(&section.title, section.passed, section.total)];
        let parts = parts.map(|part| (&part.name, part.passed, part.total));
        for (name, passed, total) in all.into_iter().chain(parts) {
            let name = format!("section.{}.{name}", section.section);
            properties.push((name, format!("{passed} of {total}")));
        }
    }
    JUnit {
        name: "efa-conformance".into(),
        timestamp: run.started.clone(),
        host: run.host.clone(),
        properties,
        suites: suites.collect(),
    }
}

#[cfg(test)]
mod tests {
    use quick_xml::Reader;
    use quick_xml::events::{BytesStart, Event};

    use super::*;

    /// Elements, their attributes (`!` marks required ones) and permitted children, as in
    /// `junit-10.xsd` of Jenkins' xUnit plug-in; only the elements that this module writes.
    const SCHEMA: [(&str, &[&str], &[&str]); 8] = [
        (
            "testsuites",
            &["name", "time", "tests", "failures", "errors"],
            &["testsuite"],
        ),
        (
            "testsuite",
            &[
                "name!",
                "tests!",
                "failures!",
                "errors!",
                "group",
                "time",
                "skipped",
                "timestamp",
                "hostname",
            ],
            &["properties", "testcase"],
        ),
        ("properties", &[], &["property"]),
        ("property", &["name!", "value!"], &[]),
        (
            "testcase",
            &["name!", "time", "classname", "group"],
            &["skipped", "failure", "system-out"],
        ),
        ("skipped", &["type", "message"], &["text"]),
        ("failure", &["type", "message"], &["text"]),
        ("system-out", &[], &["text"]),
    ];

    /// Whether it is a number of seconds with at most three decimal places.
    fn is_time(text: &str) -> bool {
        let (whole, behind) = text.split_once('.').unwrap_or((text, ""));
        let are_digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
        are_digits(whole) && are_digits(behind) && behind.len() <= 3
    }

    /// Checks an element inside `outer`, and returns its name.
    fn check(start: &BytesStart<'_>, outer: Option<&String>) -> String {
        let name = String::from_utf8(start.name().as_ref().to_vec()).unwrap();
        let of = |name: &str| SCHEMA.iter().find(|(known, ..)| *known == name).unwrap();
        let (_, known, _) = of(&name);
        if let Some(outer) = outer {
            assert!(of(outer).2.contains(&name.as_str()), "{name} in {outer}");
        }
        let mut seen = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.unwrap();
            let key = String::from_utf8(attribute.key.as_ref().to_vec()).unwrap();
            let is_known = known.iter().any(|it| it.trim_end_matches('!') == key);
            assert!(is_known, "{name} {key}");
            if key == "time" {
                assert!(is_time(std::str::from_utf8(&attribute.value).unwrap()));
            }
            seen.push(key);
        }
        for needed in known.iter().filter_map(|it| it.strip_suffix('!')) {
            assert!(seen.iter().any(|it| it == needed), "{name} {needed}");
        }
        name
    }

    /// Checks a file, and returns its text between elements.
    fn validate(xml: &str) -> String {
        let mut reader = Reader::from_str(xml);
        let (mut open, mut text): (Vec<String>, _) = (Vec::new(), String::new());
        loop {
            match reader.read_event().unwrap() {
                Event::Start(start) => open.push(check(&start, open.last())),
                Event::Empty(start) => drop(check(&start, open.last())),
                Event::End(_) => drop(open.pop()),
                Event::Text(read) => text += &String::from_utf8_lossy(&read),
                Event::Eof => return text,
                _ => {}
            }
        }
    }

    fn file(hostile: &str) -> JUnit {
        let failed = TestResult::Failed {
            message: hostile.to_owned(),
            kind: "v4/3.2/cts-window".into(),
            text: format!("{hostile}\n{hostile}"),
        };
        let skipped = TestResult::Skipped(hostile.to_owned());
        let tests = [failed, skipped, TestResult::Passed].map(|result| Test {
            name: hostile.to_owned(),
            class: "a.b".into(),
            seconds: 12345.6789,
            result,
            output: hostile.to_owned(),
        });
        JUnit {
            name: "x".into(),
            timestamp: "2026-11-27T01:02:03Z".into(),
            host: "node0".into(),
            properties: vec![(hostile.to_owned(), hostile.to_owned())],
            suites: vec![Suite {
                name: hostile.to_owned(),
                tests: tests.to_vec(),
            }],
        }
    }

    #[test]
    fn files_are_valid_for_the_xunit_plugin() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("junit.xml");
        file("<&\"'>]]>\u{1b}[31m\u{0} ü").write(&path).unwrap();
        let xml = std::fs::read_to_string(&path).unwrap();
        let text = validate(&xml);
        assert!(
            !text.contains('\u{1b}') && !text.contains('\u{0}'),
            "{text}"
        );
        assert!(
            xml.contains("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\""),
            "{xml}"
        );
        assert!(xml.contains("time=\"12345.679\""), "{xml}");
        assert!(xml.contains("timestamp=\"2026-11-27T01:02:03Z\""), "{xml}");
    }

    #[test]
    #[should_panic(expected = "testsuite disabled")]
    fn elements_outside_the_schema_are_detected() {
        let xml = file("x").render().unwrap();
        validate(&xml.replace(" skipped=", " disabled="));
    }
}
