//! Judges the captures of a scenario's hosts.

use std::path::{Path, PathBuf};

use efa_check::capture::Capture;
use efa_check::check;
use efa_check::clocks;
use efa_check::merge::merge_clocks;
use efa_core::rules::Severity;
use efa_play::record::ScratchDirectory;
use efa_play::scenario::Scenario;
use efa_replay::compare::Finding;

/// The judgement of a case's captures.
#[derive(Default)]
pub(super) struct Judgement {
    /// Violated rules.
    pub(super) findings: Vec<Finding>,
    /// The comparison of the clocks, and the gaps of the captures. These do not fail a case.
    pub(super) statements: Vec<Finding>,
    /// The number of packets that were judged.
    pub(super) packets: usize,
    /// The merged capture, in its directory.
    merged: Option<(ScratchDirectory, PathBuf)>,
}

impl Judgement {
    /// Keeps the merged capture in a directory.
    pub(super) fn keep(&self, directory: &Path, name: &str) -> Option<PathBuf> {
        let (_, merged) = self.merged.as_ref()?;
        let path = directory.join(name);
        let copied = std::fs::create_dir_all(directory).and_then(|()| std::fs::copy(merged, &path));
        // An error does not change the verdict.
        copied.is_ok().then_some(path)
    }
}

/// Judges the captures of the endpoints as one. If that is impossible, because their clocks
/// contradict each other or one of them lost frames, judges each separately. Errors of endpoints
/// that are not under test are notes.
pub(super) fn judge(scenario: &Scenario, role: Option<usize>, captures: &[Vec<u8>]) -> Judgement {
    let mut judged = Judgement::default();
    if captures.iter().all(Vec::is_empty) {
        return judged;
    }
    let RecordedCaptures {
        directory,
        captures,
        problems,
    } = match RecordedCaptures::load(scenario, captures) {
        Ok(recorded) => recorded,
        Err(problem) => {
            judged.state(format!("the captures are not judged: {problem}"));
            return judged;
        }
    };
    for problem in problems {
        judged.state(problem);
    }
    match merged(scenario, &captures, &directory.0) {
        Ok(MergedCapture {
            path,
            capture,
            endpoints,
            clocks,
        }) => {
            judged.take(role, &capture, &endpoints);
            for text in clocks {
                judged.state(text);
            }
            judged.merged = Some((directory, path));
        }
        Err(problem) => {
            judged.state(format!("each capture is judged by itself: {problem}"));
            for (at, _, capture) in &captures {
                judged.take(role, capture, &vec![*at; capture.interfaces.len()]);
            }
        }
    }
    judged
}

impl Judgement {
    /// Adds the findings about a capture; `endpoints` are the endpoints of its interfaces.
    fn take(&mut self, role: Option<usize>, capture: &Capture, endpoints: &[usize]) {
        let checked = check::check(capture);
        self.packets += usize::try_from(checked.packets).unwrap_or(usize::MAX);
        let found = checked.worse_than(Severity::Note).map(|found| {
            let endpoint = endpoints.get(found.interface).copied();
            let is_under_test = role.is_none() || role == endpoint;
            let finding = Finding::of_capture(found);
            Finding {
                severity: if is_under_test {
                    finding.severity
                } else {
                    Severity::Note
                },
                ..finding
            }
        });
        self.findings.extend(found);
        for text in &capture.damage {
            self.state(text.clone());
        }
    }

    fn state(&mut self, text: String) {
        self.statements.push(Finding::plain(Severity::Note, text));
    }
}

/// The captures of endpoints, in files.
struct RecordedCaptures {
    directory: ScratchDirectory,
    /// The endpoint, the file, and its content.
    captures: Vec<(usize, PathBuf, Capture)>,
    /// The reasons why others cannot be read.
    problems: Vec<String>,
}

impl RecordedCaptures {
    fn load(scenario: &Scenario, captures: &[Vec<u8>]) -> Result<Self, std::io::Error> {
        let mut recorded = RecordedCaptures {
            directory: ScratchDirectory::new()?,
            captures: Vec::new(),
            problems: Vec::new(),
        };
        for (at, bytes) in captures.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            let path = recorded.directory.0.join(format!("{at}.pcapng"));
            std::fs::write(&path, bytes)?;
            match Capture::load(&path) {
                Ok(capture) => recorded.captures.push((at, path, capture)),
                Err(error) => {
                    let name = &scenario.endpoints[at].name;
                    let problem =
                        format!("the capture of endpoint `{name}` is not judged: {error}");
                    recorded.problems.push(problem);
                }
            }
        }
        Ok(recorded)
    }
}

/// The captures of several endpoints, merged into one.
struct MergedCapture {
    path: PathBuf,
    capture: Capture,
    /// The endpoint of each interface.
    endpoints: Vec<usize>,
    /// The comparison of the hosts' clocks.
    clocks: Vec<String>,
}

/// The captures of several endpoints cannot be merged.
#[derive(Debug, thiserror::Error)]
enum UnmergedError {
    /// The clock of an endpoint's capture cannot be compared with that of the first.
    #[error("the capture of endpoint `{endpoint}`: {source}")]
    Clocks {
        endpoint: String,
        source: clocks::ClockError,
    },
    #[error(transparent)]
    Write(#[from] efa_check::merge::MergeError),
    #[error(transparent)]
    Read(#[from] efa_capture::ReadError),
}

fn merged(
    scenario: &Scenario,
    recorded: &[(usize, PathBuf, Capture)],
    directory: &Path,
) -> Result<MergedCapture, UnmergedError> {
    let name = |at: usize| &scenario.endpoints[at].name;
    let loaded: Vec<&Capture> = recorded.iter().map(|(.., capture)| capture).collect();
    let differences = clocks::align(&loaded).map_err(|(at, source)| UnmergedError::Clocks {
        endpoint: name(recorded[at].0).clone(),
        source,
    })?;
    let first = recorded.first().map_or(0, |(at, ..)| *at);
    let described = recorded.iter().zip(&differences).skip(1);
    let described = described
        .map(|((at, ..), difference)| {
            format!(
                "the clock of endpoint `{}` compared with that of endpoint `{}`: {difference}",
                name(*at),
                name(first)
            )
        })
        .collect::<Vec<_>>();
    let sources: Vec<_> = recorded
        .iter()
        .zip(&differences)
        .map(|((_, path, _), difference)| (path.clone(), *difference))
        .collect();
    let path = directory.join("merged.pcapng");
    let comments = [vec![scenario.description.clone()], described.clone()].concat();
    merge_clocks(&sources, &comments, &[], &path)?;
    let capture = Capture::load(&path)?;
    let endpoints = recorded
        .iter()
        .flat_map(|(at, _, it)| vec![*at; it.interfaces.len()]);
    Ok(MergedCapture {
        path,
        capture,
        endpoints: endpoints.collect(),
        clocks: described,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use efa_capture::{InterfaceId, Reader, RecordedFrame, Writer};

    use super::*;

    /// A trace of the corpus: its scenario, and the bytes of its capture.
    fn trace(name: &str) -> (Scenario, Vec<u8>) {
        let path = efa_testing::workspace::traces().join(name);
        let scenario = Scenario::load(&path.with_extension("toml")).unwrap();
        (scenario, std::fs::read(path).unwrap())
    }

    fn statements(judged: &Judgement) -> String {
        let texts = judged.statements.iter().map(|it| it.text.as_str());
        texts.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn unrelated_captures_are_judged_separately() {
        let (scenario, eager) = trace("eager-tagged.pcapng");
        let (_, long) = trace("long-cts.pcapng");
        let alone = |capture: &Vec<u8>| judge(&scenario, None, &[capture.clone(), Vec::new()]);
        let packets = alone(&eager).packets + alone(&long).packets;
        assert!(alone(&eager).packets > 0 && alone(&long).packets > 0);
        let judged = judge(&scenario, None, &[eager, long]);
        let said = statements(&judged);
        let why = "each capture is judged by itself: the capture of endpoint `b`: no packet is in both captures";
        assert!(said.contains(why), "{said}");
        assert_eq!(judged.packets, packets);
        assert!(judged.findings.is_empty(), "{:?}", judged.findings);
    }

    /// A trace of the corpus as its hosts recorded it, each with a separate clock. `shown` returns
    /// the time on the clock of a host from the host's number, the number of the frame on it, and
    /// the true time.
    fn recorded_apart(
        name: &str,
        shown: impl Fn(usize, usize, Duration) -> Duration,
    ) -> (Scenario, Vec<Vec<u8>>) {
        let (scenario, bytes) = trace(name);
        let mut reader = Reader::new(&bytes[..], name).unwrap();
        let mut frames = Vec::new();
        while let Some(frame) = reader.next_frame().unwrap() {
            let host = frame.interface.0 as usize;
            frames.push((host, RecordedFrame::from(&frame)));
        }
        let captures = reader.interfaces().iter().enumerate();
        let captures = captures.map(|(host, interface)| {
            let mut writer = Writer::new(Vec::new()).unwrap();
            writer.add_interface(&interface.device().unwrap()).unwrap();
            let of_host = frames.iter().filter(|(of, _)| *of == host);
            for (number, (_, frame)) in of_host.enumerate() {
                let mut frame = frame.clone();
                frame.time = shown(host, number, frame.time);
                writer.add(InterfaceId::FIRST, &frame).unwrap();
            }
            writer.finish(Duration::ZERO).unwrap()
        });
        (scenario, captures.collect())
    }

    /// The number of frames in a capture.
    fn frames_of(bytes: &[u8]) -> usize {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Capture::load(file.path()).unwrap().frames.len()
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn captures_with_clock_steps_are_judged_separately() {
        // The middle of the second host's capture.
        let (_, captures) = recorded_apart("ping-pong.pcapng", |_, _, time| time);
        let half = frames_of(&captures[1]) / 2;
        assert!(half > 2);
        for forward in [true, false] {
            let (scenario, captures) =
                recorded_apart("ping-pong.pcapng", |host, frame, time| match host {
                    1 if frame < half => time,
                    1 if forward => time + HOUR,
                    1 => time - HOUR,
                    _ => time,
                });
            let judged = judge(&scenario, None, &captures);
            let said = statements(&judged);
            let why = "each capture is judged by itself: the capture of endpoint `b`: whatever the difference of the \
                       clocks, packets arrived before they were sent: a clock was set during the capture";
            assert!(said.contains(why), "{said}");
            // No frame is lost, invented or merged.
            let whole: usize = captures
                .iter()
                .map(|capture| judge(&scenario, None, &[capture.clone(), Vec::new()]).packets)
                .sum();
            assert_eq!(judged.packets, whole);
            assert!(judged.findings.is_empty(), "{:?}", judged.findings);
            assert!(judged.merged.is_none());
        }
        // A clock that is an hour ahead from the beginning on.
        let (scenario, captures) = recorded_apart("ping-pong.pcapng", |host, _, time| match host {
            1 => time + HOUR,
            _ => time,
        });
        let judged = judge(&scenario, None, &captures);
        let said = statements(&judged);
        assert!(said.contains("of endpoint `a`: 3"), "{said}");
        assert!(judged.merged.is_some());
    }

    #[test]
    fn an_unreadable_capture_does_not_block_others() {
        let (scenario, eager) = trace("eager-tagged.pcapng");
        let judged = judge(&scenario, None, &[b"rubbish".to_vec(), eager]);
        let said = statements(&judged);
        assert!(
            said.contains("the capture of endpoint `a` is not judged: "),
            "{said}"
        );
        assert!(judged.packets > 0);
        let judged = judge(&scenario, None, &[b"rubbish".to_vec(), Vec::new()]);
        assert_eq!((judged.packets, judged.statements.len()), (0, 1));
    }
}
