//! Hardware tag matching: devices execute a scenario, and the result is compared with a capture.
//!
//! Both ends are devices of one backend, which execute the verbs in the scenario's steps
//! ([`TagScenario`]): messages, operations on the tag list, and the expected completions in order,
//! with their data. The traffic is compared with the scenario's capture packet by packet
//! ([`wire`]): messages, reads and ends of rendezvous, with their order and memory. It is also
//! checked by the rules of tag matching.

mod emu;
mod error;
mod hw;
mod player;
pub mod wire;

use efa_capture::{ReadError, Reader};
use efa_check::capture::{CapturedItem, Frames};
use efa_check::check::Judge;
use efa_core::rules::Severity;
use efa_hw::connected::{Completion, TagRequest, Work};
use efa_play::scenario::ScenarioError;
use efa_play::scenario::tags::TagScenario;

use crate::compare::Finding;

pub use error::DeviceError;
pub use hw::Verbs;

/// One end of a connection on a device.
pub trait Connection {
    /// The address of its memory's first byte, and the key by which the peer reads it.
    fn region(&self) -> (u64, u32);

    /// Copies bytes of its memory.
    fn read(&self, offset: usize, length: usize) -> Vec<u8>;

    /// Changes bytes of its memory.
    fn write(&mut self, offset: usize, bytes: &[u8]);

    /// Posts a work request with a part of the memory.
    ///
    /// # Errors
    /// If the device refuses the request. So do the next two.
    fn post(
        &mut self,
        wr_id: u64,
        work: Work,
        offset: usize,
        length: usize,
    ) -> Result<(), DeviceError>;

    /// Posts a receive.
    fn post_receive(&mut self, wr_id: u64, offset: usize, length: usize)
    -> Result<(), DeviceError>;

    /// Posts an operation on the tag list, and returns the handle of an added tag.
    fn post_tag_request(&mut self, request: &TagRequest) -> Result<u32, DeviceError>;

    /// Removes and returns the next completion.
    fn poll(&mut self) -> Option<Completion>;
}

/// The devices of the two ends.
pub trait Devices {
    /// One end.
    type Connection: Connection;

    /// The name of the backend, as in `--backend`.
    fn name(&self) -> &'static str;

    /// Connects two ends, `a` and `b`, with this much memory in bytes, and starts a capture if
    /// possible. `b` has a tag list.
    ///
    /// # Errors
    /// If the backend lacks a feature that the scenario needs.
    fn connect(
        &mut self,
        memory: usize,
        scenario: &TagScenario,
    ) -> Result<[Self::Connection; 2], DeviceError>;

    /// Called when there is nothing to do: lets time pass. `rounds` counts the calls since the last
    /// event. Returns `false` if further waiting is useless.
    fn wait(&mut self, rounds: u32) -> bool;

    /// The number of calls of [`Devices::wait`] without an event after which the network is empty.
    fn quiet_rounds(&self) -> u32;

    /// Ends the capture, if there is one.
    fn captured(&mut self) -> Option<Vec<u8>>;
}

/// The result of a scenario.
#[derive(Debug, Default)]
pub struct TagVerdict {
    /// Packets that were compared.
    pub compared: usize,
    /// Messages of the scenario that were sent.
    pub played: usize,
    /// Differences from the scenario or its capture.
    pub findings: Vec<Finding>,
    /// The feature that the backend lacks for the scenario.
    pub unsupported: Option<String>,
    /// A pcapng file of the traffic; `None`: the devices do not record it.
    pub capture: Option<Vec<u8>>,
}

/// A scenario or its capture cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TagTraceError {
    /// The scenario cannot be read, or contradicts itself.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] ReadError),
}

/// A scenario with the packets of its capture.
#[derive(Clone, Debug)]
pub struct TagTrace {
    /// What is played.
    pub scenario: TagScenario,
    /// The packets of the capture in the order in which they were sent, without retransmissions.
    pub recorded: Vec<wire::WirePacket>,
}

impl TagTrace {
    /// Whether a capture belongs to a tag matching scenario, which has the same name.
    pub fn is_one(path: &std::path::Path) -> bool {
        TagScenario::is_one(&path.with_extension("toml"))
    }

    /// Reads a trace, given the path of the capture or of the scenario.
    ///
    /// # Errors
    /// If one of the two cannot be read.
    pub fn load(path: &std::path::Path) -> Result<TagTrace, TagTraceError> {
        let scenario = TagScenario::load(&path.with_extension("toml"))?;
        let capture = Reader::open(&path.with_extension("pcapng"))?;
        let recorded = wire::packets(capture, scenario.connection.mtu)?;
        Ok(TagTrace { scenario, recorded })
    }
}

/// Plays a scenario, and compares the result with it and with its capture.
pub fn play<D: Devices>(trace: &TagTrace, devices: &mut D) -> TagVerdict {
    let mut verdict = player::play(&trace.scenario, devices);
    if verdict.unsupported.is_some() {
        return verdict;
    }
    let Some(capture) = &verdict.capture else {
        let text = "traffic is not recorded here: only what the two ends see was compared";
        verdict.findings.push(Finding::plain(Severity::Note, text));
        return verdict;
    };
    let mtu = trace.scenario.connection.mtu;
    let reader = Reader::new(&capture[..], "the run");
    match reader.and_then(|reader| wire::packets(reader, mtu)) {
        Ok(actual) => {
            let (compared, differences) = wire::compare(&trace.recorded, &actual);
            verdict.compared = compared;
            verdict.findings.extend(differences);
        }
        Err(error) => {
            let text = format!("the capture of the run cannot be read: {error}");
            verdict.findings.push(Finding::plain(Severity::Error, text));
        }
    }
    let broken = judge(capture).unwrap_or_default();
    // Violated rules explain more than differences.
    verdict.findings.splice(0..0, broken);
    verdict
}

/// The violations of rules in a capture.
fn judge(capture: &[u8]) -> Result<Vec<Finding>, ReadError> {
    let mut frames = Frames::new(Reader::new(capture, "the run")?);
    let mut judge = Judge::new();
    while let Some(item) = frames.next_item()? {
        if let CapturedItem::Connected(packet) = item {
            judge.connected(&packet);
        }
    }
    for interface in frames.lossy() {
        judge.lossy(interface);
    }
    let checked = judge.finish();
    let broken = checked.worse_than(Severity::Note);
    Ok(broken.map(Finding::of_capture).collect())
}
