//! Captures with their scenario: traces.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use efa_capture::frame::{self, Opcode};
use efa_capture::{Direction, ReadError};
use efa_check::capture::{Capture, CapturedPacket};
use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;

use crate::operation::{EndpointIndex, Remote};
use crate::scenario::{Scenario, ScenarioError};

/// The reason why a capture or trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] ReadError),
    /// The scenario cannot be read, or contradicts itself.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A capture without the scenario of which it is the recording.
    #[error(
        "{trace} has no scenario: {scenario} is missing; a trace is a capture with its scenario"
    )]
    NoScenario {
        /// The path of the capture.
        trace: PathBuf,
        /// The path at which its scenario was expected.
        scenario: PathBuf,
    },
    /// The capture is not a recording of this scenario.
    #[error("{trace}: {problem}; record it again with `efa-conformance record`")]
    Foreign {
        /// The path of the capture.
        trace: PathBuf,
        /// The first contradiction.
        problem: MismatchError,
    },
}

/// How a capture contradicts a scenario. Packets have the numbers that they have in the capture.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MismatchError {
    /// An interface of the capture has the name of no endpoint.
    #[error("the scenario has no endpoint `{0}`")]
    NoEndpoint(String),
    /// The capture has only the beginning of a packet.
    #[error("a snap length cut off packet {0}")]
    CutOff(u64),
    /// A packet precedes the comments that say which step was played.
    #[error("packet {0} belongs to no step: the capture has no step comments")]
    NoStep(u64),
    /// A comment names a step that the scenario does not have.
    #[error("packet {packet}: `{comment}` is not a step of the scenario")]
    UnknownStep {
        /// The first packet of that step.
        packet: u64,
        /// The comment of the packet.
        comment: String,
    },
    /// A comment describes a step otherwise than the scenario.
    #[error("packet {packet}: it was recorded in `{comment}`, but the scenario says `{described}`")]
    OtherStep {
        /// The first packet of that step.
        packet: u64,
        /// The comment of the packet.
        comment: String,
        /// How such a comment describes the step of the scenario.
        described: String,
    },
}

/// A capture with the scenario that was played.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What was played.
    pub scenario: Scenario,
    /// What was recorded.
    pub capture: Capture,
    /// The endpoint of each interface.
    pub endpoint_of: Vec<EndpointIndex>,
    /// The step during which each frame was captured; the number of steps means after the last one.
    pub step_of: Vec<usize>,
    /// The registered memory of each `register` step, by its id, from comments of the capture.
    pub regions: HashMap<String, Remote>,
    /// Statuses of requests that were not served, by the indices of their outgoing frames.
    pub refused: HashMap<usize, Status>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scenario.name)
    }
}

impl Trace {
    /// Reads a trace: the capture at `path` and the scenario in the same directory, `NAME.toml`.
    pub fn load(path: &Path) -> Result<Self, TraceError> {
        let capture = Capture::load(path)?;
        let beside = path.with_extension("toml");
        if !beside.is_file() {
            return Err(TraceError::NoScenario {
                trace: path.to_owned(),
                scenario: beside,
            });
        }
        Self::new(Scenario::load(&beside)?, capture)
    }

    /// Joins a capture with its scenario.
    pub fn new(scenario: Scenario, capture: Capture) -> Result<Self, TraceError> {
        let foreign = |problem| TraceError::Foreign {
            trace: capture.path.clone(),
            problem,
        };
        let endpoint_of = capture
            .interfaces
            .iter()
            .map(|name| {
                scenario
                    .endpoint(name)
                    .ok_or_else(|| foreign(MismatchError::NoEndpoint(name.clone())))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut step_of = Vec::new();
        let mut regions = HashMap::new();
        let mut current = None;
        for frame in &capture.frames {
            if frame.cut_off > 0 {
                return Err(foreign(MismatchError::CutOff(frame.number)));
            }
            for comment in &frame.comments {
                if let Some((id, remote)) = parse_region_comment(comment) {
                    regions.insert(id.to_owned(), remote);
                }
                let named = step_named(frame.number, comment, &scenario).map_err(foreign)?;
                current = named.or(current);
            }
            let no_step = || foreign(MismatchError::NoStep(frame.number));
            step_of.push(current.ok_or_else(no_step)?);
        }
        let refused = refused(&capture.frames, !scenario.faults.is_empty());
        Ok(Trace {
            scenario,
            capture,
            endpoint_of,
            step_of,
            regions,
            refused,
        })
    }

    /// The name of the endpoint of a frame's interface.
    pub fn recorder(&self, frame: &CapturedPacket) -> &str {
        &self.scenario.endpoints[self.endpoint_of[frame.interface]].name
    }

    /// Indices of the frames that an endpoint's host recorded in one direction.
    pub fn recorded(
        &self,
        endpoint: EndpointIndex,
        direction: Direction,
    ) -> impl Iterator<Item = usize> + '_ {
        self.capture
            .frames
            .iter()
            .enumerate()
            .filter(move |(_, frame)| {
                self.endpoint_of[frame.interface] == endpoint && frame.direction == Some(direction)
            })
            .map(|(place, _)| place)
    }
}

/// Statuses of requests that were not served, by the indices of their outgoing frames. Where frames
/// may be lost permanently, a request that never arrived counts as lost.
fn refused(frames: &[CapturedPacket], may_be_lost: bool) -> HashMap<usize, Status> {
    let key = |initiator: Gid, qpn: Qpn, frame: &CapturedPacket| {
        let sequence = frame.header.sequence;
        (initiator, qpn, sequence)
    };
    let mut outcomes = HashMap::new();
    for frame in frames {
        let (from, to) = (frame.header.source_qpn, frame.header.destination_qpn);
        match frame.header.kind {
            // The last one counts, because devices retry by themselves.
            frame::FrameKind::Response(status) => {
                outcomes.insert(key(frame.destination, to, frame), status);
            }
            frame::FrameKind::RdmaReadResponse(_) => {}
            // A served request need not have an answer in the capture.
            _ if frame.direction == Some(Direction::Inbound) => {
                outcomes.insert(key(frame.source, from, frame), Status::Ok);
            }
            _ => {}
        }
    }
    let requests = frames.iter().enumerate().filter(|(_, frame)| {
        let opcode = frame.header.kind.opcode();
        let is_answer = matches!(opcode, Opcode::Response | Opcode::RdmaReadResponse);
        frame.direction == Some(Direction::Outbound) && !is_answer
    });
    let of_request = |(place, frame): (usize, &CapturedPacket)| {
        let lost = may_be_lost.then_some(Status::LocalUnresponsiveRemote);
        let outcome = outcomes.get(&key(frame.source, frame.header.source_qpn, frame));
        let status = outcome.copied().or(lost)?;
        (status != Status::Ok).then_some((place, status))
    };
    requests.filter_map(of_request).collect()
}

/// Returns the step that a packet's comment names, if any. The scenario must describe the step in
/// the same words.
fn step_named(
    packet: u64,
    comment: &str,
    scenario: &Scenario,
) -> Result<Option<usize>, MismatchError> {
    if comment == END_OF_STEPS {
        return Ok(Some(scenario.steps.len()));
    }
    let Some(rest) = comment.strip_prefix("step ") else {
        return Ok(None);
    };
    let number = rest
        .split_once(':')
        .and_then(|(number, _)| number.parse().ok());
    let Some(number) = number.filter(|number| (1..=scenario.steps.len()).contains(number)) else {
        let comment = comment.to_owned();
        return Err(MismatchError::UnknownStep { packet, comment });
    };
    let index: usize = number - 1;
    let described = scenario.steps[index].describe(index, scenario);
    if described != comment {
        return Err(MismatchError::OtherStep {
            packet,
            comment: comment.to_owned(),
            described,
        });
    }
    Ok(Some(index))
}

/// The comment at the first frame after the last step.
pub const END_OF_STEPS: &str = "end of steps";

/// The comment about registered memory, at the first frame after the registration.
pub fn region_comment(id: &str, remote: Remote) -> String {
    let Remote { address, key } = remote;
    format!("region {id}: address {address:#x}, key {key:#x}")
}

/// Parses a comment of [`region_comment`].
pub fn parse_region_comment(comment: &str) -> Option<(&str, Remote)> {
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (id, rest) = comment.strip_prefix("region ")?.split_once(": address ")?;
    let (address, key) = rest.split_once(", key ")?;
    Some((
        id,
        Remote {
            address: number(address)?,
            key: number(key)?,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_about_regions_are_read_back() {
        let remote = Remote {
            address: 0x7f00_1234_5000,
            key: 0x42,
        };
        let comment = region_comment("inbox", remote);
        assert_eq!(comment, "region inbox: address 0x7f0012345000, key 0x42");
        assert_eq!(parse_region_comment(&comment), Some(("inbox", remote)));
        assert_eq!(parse_region_comment("region of interest"), None);
    }

    #[test]
    fn comments_name_steps_in_the_scenarios_words() {
        let text = r#"
            description = "Nothing happens."
            spec = ["2"]
            endpoint = [
                { name = "a", software = "core", capabilities = ["msg"] },
                { name = "b", software = "core", capabilities = ["msg"] },
            ]
            step = [{ do = "settle" }, { do = "settle", progress = ["b"] }]
        "#;
        let scenario = Scenario::parse("quiet.toml".as_ref(), text).unwrap();
        let named = |comment| step_named(7, comment, &scenario).map_err(|error| error.to_string());
        let second = "step 2: b make progress until nothing happens";
        assert_eq!(named(second), Ok(Some(1)));
        assert_eq!(named(END_OF_STEPS), Ok(Some(2)));
        assert_eq!(named("steps"), Ok(None));
        for wrong in ["step 0: a", "step 3: a", "step one"] {
            let problem = format!("packet 7: `{wrong}` is not a step of the scenario");
            assert_eq!(named(wrong), Err(problem));
        }
        let other = "step 2: a make progress until nothing happens";
        let problem =
            format!("packet 7: it was recorded in `{other}`, but the scenario says `{second}`");
        assert_eq!(named(other), Err(problem));
    }
}
