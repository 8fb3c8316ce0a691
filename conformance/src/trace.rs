//! Captures, and captures with their scenario: traces.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::wire::{Header, Packet, PacketType};
use efa_emu::capture::{Direction, ReadError, Reader};
use efa_emu::frame::{self, Frame, OUTER_LEN, Repr};

use crate::operation::{EndpointIndex, Remote};
use crate::record::{END_OF_STEPS, parse_region_comment};
use crate::scenario::{Scenario, ScenarioError};

/// Where the UDP checksum is in a frame: the last two bytes in front of the transport header.
const CHECKSUM: std::ops::Range<usize> = OUTER_LEN - 2..OUTER_LEN;

/// A capture whose frames are all in memory.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Where it was read from.
    pub path: PathBuf,
    /// The hosts' names, by interface.
    pub interfaces: Vec<String>,
    /// The frames, in file order.
    pub frames: Vec<CapturedPacket>,
    /// What is wrong with the file short of making it unreadable.
    pub damage: Vec<String>,
    /// Indices of the interfaces that could not capture everything.
    pub lossy: Vec<usize>,
}

/// One frame of a capture.
#[derive(Clone, Debug)]
pub struct CapturedPacket {
    /// The frame's number in the capture, from 1 as in Wireshark.
    pub number: u64,
    /// Index of the interface that recorded it.
    pub interface: usize,
    /// Since the Unix epoch or the start of a simulation.
    pub time: Duration,
    /// Seen from the interface.
    pub direction: Option<Direction>,
    /// Comments.
    pub comments: Vec<String>,
    /// The sender's GID.
    pub source: Gid,
    /// The receiver's GID.
    pub destination: Gid,
    /// The transport header.
    pub header: Repr,
    /// Whether it goes to a queue pair that takes messages without the RDM header, as an earlier
    /// HANDSHAKE says.
    pub headerless: bool,
    /// What the transport header carries.
    pub payload: Vec<u8>,
}

impl CapturedPacket {
    /// The RDM packet that it carries, if it is a send with the RDM header.
    pub fn rdm(&self) -> Option<&[u8]> {
        let is_packet = matches!(self.header.kind, frame::Kind::Send) && !self.headerless;
        is_packet.then_some(&self.payload[..])
    }

    /// The type of the RDM packet, if it is one of an assigned type.
    pub fn packet_type(&self) -> Option<PacketType> {
        PacketType::peek(self.rdm()?)
    }

    /// What it is: the RDM packet's type, or the transport's operation.
    pub fn kind(&self) -> String {
        match (self.rdm(), self.packet_type()) {
            (Some(_), Some(packet_type)) => packet_type.to_string(),
            (Some(packet), None) => match packet.first() {
                Some(code) => format!("packet of unassigned type {code}"),
                None => "empty packet".into(),
            },
            (None, _) if self.headerless => "message without header".into(),
            (None, _) => self.header.kind.opcode().to_string(),
        }
    }
}

/// Why a capture or trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] ReadError),
    /// The scenario beside it cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario beside it is missing.
    #[error(
        "{trace} has no scenario: {scenario} is missing; a trace is a capture with its scenario"
    )]
    NoScenario {
        /// The trace.
        trace: PathBuf,
        /// Where its scenario should be.
        scenario: PathBuf,
    },
    /// The capture does not belong to the scenario.
    #[error("{trace}: {problem}; record it again with `efa-conformance record`")]
    Foreign {
        /// The trace.
        trace: PathBuf,
        /// What does not fit.
        problem: String,
    },
}

/// The queue pairs that take messages without the RDM header, as far as a capture has told.
#[derive(Default)]
pub(crate) struct UserRecvQps(HashSet<(Gid, Qpn)>);

impl UserRecvQps {
    /// Learns from a frame; returns whether it goes to such a queue pair.
    pub(crate) fn follow(&mut self, frame: &CapturedPacket) -> bool {
        if frame.header.kind != frame::Kind::Send {
            return false;
        }
        let (from, to) = (frame.header.source_qpn, frame.header.destination_qpn);
        // It only receives: what sends is another one that has got its number.
        self.0.remove(&(frame.source, from));
        if self.0.contains(&(frame.destination, to)) {
            return true;
        }
        if PacketType::peek(&frame.payload) == Some(PacketType::Handshake)
            && let Ok(packet) = Packet::parse(&frame.payload)
            && let Header::Handshake(handshake) = packet.header
            && let Some(qp) = handshake.user_recv_qp
            && let Ok(qpn) = qp.qpn.try_into()
        {
            self.0.insert((frame.source, Qpn(qpn)));
        }
        false
    }
}

/// Reads a capture frame by frame, in file order.
pub struct Frames<R> {
    reader: Reader<R>,
    /// Whether the data of RDMA is copied too.
    with_rdma_data: bool,
    damage: Vec<String>,
    damaged: u64,
}

/// Damaged frames that are told one by one.
const MOST_DAMAGE: usize = 20;

impl Frames<BufReader<File>> {
    /// Opens a capture file.
    ///
    /// # Errors
    /// If it is no capture.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Ok(Frames::new(Reader::open(path)?))
    }
}

impl<R: Read> Frames<R> {
    /// Reads what is left in a reader.
    pub fn new(reader: Reader<R>) -> Self {
        Frames {
            reader,
            with_rdma_data: true,
            damage: Vec::new(),
            damaged: 0,
        }
    }

    /// Leaves the data of RDMA out.
    #[must_use]
    pub fn without_rdma_data(mut self) -> Self {
        self.with_rdma_data = false;
        self
    }

    /// The next frame of the emulated wire. Others are damage.
    ///
    /// # Errors
    /// If the file cannot be read on.
    pub fn next_frame(&mut self) -> Result<Option<CapturedPacket>, ReadError> {
        while let Some(captured) = self.reader.next_frame()? {
            let number = captured.number;
            let mut damage = |error: &frame::Error| {
                self.damaged += 1;
                if self.damage.len() < MOST_DAMAGE {
                    self.damage.push(format!("packet {number}: {error}"));
                }
            };
            let mut repaired = Vec::new();
            let frame = match captured.frame {
                Ok(frame) => frame,
                // The checksum says that something was changed; the fields will say what.
                Err(error @ frame::Error::Checksum { .. }) => {
                    damage(&error);
                    repaired.extend_from_slice(captured.bytes);
                    // Zero stands for "no checksum".
                    repaired[CHECKSUM].fill(0);
                    match Frame::parse(&repaired) {
                        Ok(frame) => frame,
                        Err(error) => {
                            damage(&error);
                            continue;
                        }
                    }
                }
                Err(error) => {
                    damage(&error);
                    continue;
                }
            };
            let is_rdma = frame.header.kind.rdma().is_some();
            let payload = match is_rdma && !self.with_rdma_data {
                true => Vec::new(),
                false => frame.payload.to_vec(),
            };
            return Ok(Some(CapturedPacket {
                number,
                interface: captured.interface.0 as usize,
                time: captured.time,
                direction: captured.direction,
                comments: captured.comments.iter().map(|c| c.to_string()).collect(),
                source: frame.source,
                destination: frame.destination,
                headerless: false,
                header: frame.header,
                payload,
            }));
        }
        Ok(None)
    }

    /// After the last frame: the names of the interfaces.
    pub fn interfaces(&self) -> Vec<String> {
        let names = self.reader.interfaces().iter().enumerate();
        names
            .map(|(index, interface)| {
                let name = interface.name.clone();
                name.unwrap_or_else(|| format!("interface {index}"))
            })
            .collect()
    }

    /// After the last frame: indices of the interfaces that could not capture everything.
    pub fn lossy(&self) -> Vec<usize> {
        let interfaces = self.reader.interfaces().iter().enumerate();
        interfaces
            .filter(|(_, interface)| interface.counts.is_some_and(|counts| counts.dropped > 0))
            .map(|(index, _)| index)
            .collect()
    }

    /// After the last frame: what is wrong with the file short of making it unreadable.
    pub fn damage(&self) -> Vec<String> {
        let mut damage = self.damage.clone();
        let more = self.damaged - self.damage.len() as u64;
        if more > 0 {
            damage.push(format!(
                "{more} more frames are damaged or of another protocol"
            ));
        }
        if let Some(truncation) = self.reader.truncation() {
            damage.push(truncation.to_string());
        }
        let names = self.interfaces();
        for (interface, name) in self.reader.interfaces().iter().zip(names) {
            if let Some(counts) = interface.counts
                && counts.dropped > 0
            {
                damage.push(format!(
                    "host {name}: {} of {} frames were not captured",
                    counts.dropped, counts.seen
                ));
            }
        }
        damage
    }
}

impl Capture {
    /// Reads a whole capture. Frames that are not of the emulated wire are damage.
    pub fn load(path: &Path) -> Result<Self, ReadError> {
        let mut source = Frames::open(path)?;
        let mut frames = Vec::new();
        let mut user_recv = UserRecvQps::default();
        while let Some(mut frame) = source.next_frame()? {
            frame.headerless = user_recv.follow(&frame);
            frames.push(frame);
        }
        Ok(Capture {
            path: path.to_owned(),
            interfaces: source.interfaces(),
            frames,
            damage: source.damage(),
            lossy: source.lossy(),
        })
    }

    /// The frames that hosts sent, each once: the outbound ones, or all if no direction is known.
    pub fn sent(&self) -> impl Iterator<Item = &CapturedPacket> {
        self.frames
            .iter()
            .filter(|frame| frame.direction != Some(Direction::Inbound))
    }
}

/// A capture with the scenario that was played.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The scenario.
    pub scenario: Scenario,
    /// The capture.
    pub capture: Capture,
    /// The endpoint behind each interface.
    pub endpoint_of: Vec<EndpointIndex>,
    /// The step during which each frame was captured; the number of steps stands for "afterwards".
    pub step_of: Vec<usize>,
    /// Where the memory of each `register` step was.
    pub regions: HashMap<String, Remote>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scenario.name)
    }
}

impl Trace {
    /// Reads a trace: the capture at `path` and the scenario beside it, `NAME.toml`.
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
                    .ok_or_else(|| foreign(format!("the scenario has no endpoint `{name}`")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut step_of = Vec::new();
        let mut regions = HashMap::new();
        let mut current = None;
        for frame in &capture.frames {
            for comment in &frame.comments {
                if let Some((id, remote)) = parse_region_comment(comment) {
                    regions.insert(id.to_owned(), remote);
                }
                match step_named(comment, &scenario) {
                    Ok(None) => {}
                    Ok(Some(step)) => current = Some(step),
                    Err(problem) => {
                        return Err(foreign(format!("packet {}: {problem}", frame.number)));
                    }
                }
            }
            let Some(step) = current else {
                return Err(foreign(format!(
                    "packet {} belongs to no step: the capture has no step comments",
                    frame.number
                )));
            };
            step_of.push(step);
        }
        Ok(Trace {
            scenario,
            capture,
            endpoint_of,
            step_of,
            regions,
        })
    }

    /// The name of the endpoint behind a frame's interface.
    pub fn recorder(&self, frame: &CapturedPacket) -> &str {
        &self.scenario.endpoints[self.endpoint_of[frame.interface]].name
    }

    /// Places of the frames that an endpoint's host recorded in one direction.
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

/// The step that a frame's comment names, if it names one; the scenario must describe the step in
/// the same words.
fn step_named(comment: &str, scenario: &Scenario) -> Result<Option<usize>, String> {
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
        return Err(format!("`{comment}` is no step of the scenario"));
    };
    let index: usize = number - 1;
    let described = scenario.steps[index].describe(index, scenario);
    if described != comment {
        return Err(format!(
            "it was recorded in `{comment}`, but the scenario says `{described}`"
        ));
    }
    Ok(Some(index))
}

#[cfg(test)]
mod tests {
    use efa_core::address::Qkey;
    use efa_core::wire::{ExtraFeatures, Handshake, Repr as _, UserRecvQp};

    use super::*;

    const RECEIVER: Gid = Gid([2; 16]);
    const SENDER: Gid = Gid([1; 16]);

    fn send(source: Gid, from: u16, destination: Gid, to: u16, payload: &[u8]) -> CapturedPacket {
        CapturedPacket {
            number: 1,
            interface: 0,
            time: Duration::ZERO,
            direction: None,
            comments: Vec::new(),
            headerless: false,
            source,
            destination,
            header: Repr {
                kind: frame::Kind::Send,
                source_qpn: Qpn(from),
                destination_qpn: Qpn(to),
                qkey: Qkey(0),
                sequence: 0,
                immediate: None,
                retransmission: false,
                path: 0,
                payload_length: payload.len() as u32,
                payload_captured: true,
            },
            payload: payload.to_vec(),
        }
    }

    #[test]
    fn a_handshake_names_the_queue_pair_that_takes_messages_without_header() {
        let handshake = Handshake {
            extra_info: ExtraFeatures::USER_RECV_QP.into(),
            user_recv_qp: Some(UserRecvQp {
                qpn: 7,
                qkey: Qkey(0),
            }),
            ..Handshake::default()
        };
        let mut bytes = [0; 64];
        let length = handshake.emit_packet(&[], &mut bytes).unwrap();
        let handshake = &bytes[..length];
        let mut known = UserRecvQps::default();
        let message = send(SENDER, 1, RECEIVER, 7, b"nothing but data");
        assert!(!known.follow(&message));
        assert!(!known.follow(&send(RECEIVER, 2, SENDER, 1, handshake)));
        assert!(known.follow(&message));
        assert!(!known.follow(&send(SENDER, 1, RECEIVER, 2, b"")));
        // Another host's, and one that got the number later.
        assert!(!known.follow(&send(RECEIVER, 2, SENDER, 7, b"")));
        assert!(!known.follow(&send(RECEIVER, 7, SENDER, 1, b"")));
        assert!(!known.follow(&message));
    }
}
