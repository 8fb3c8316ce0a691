//! The traces of tag matching: a correct device plays them, a wrong one does not.

use std::path::{Path, PathBuf};

use efa_hw::connected::{Completion, TagOperation, TagRequest, Work};
use efa_play::scenario::tags::TagScenario;
use efa_replay::replay::emu::Emu;
use efa_replay::tagged::wire::{WirePacket, compare};
use efa_replay::tagged::{Connection, DeviceError, Devices, TagTrace, TagVerdict, play};
use efa_testing::workspace;

/// The trace that was recorded here; the others are from elsewhere.
const OWN: &str = "list";

fn traces() -> Vec<PathBuf> {
    let directory = workspace::traces().join("tag-matching");
    efa_suite::find_cases(&[directory], None).unwrap()
}

fn load(path: &Path) -> TagTrace {
    TagTrace::load(path).unwrap_or_else(|error| panic!("{error}"))
}

fn own() -> TagTrace {
    load(&workspace::traces().join(format!("tag-matching/{OWN}.pcapng")))
}

fn texts(verdict: &TagVerdict) -> Vec<String> {
    verdict.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_right_device_plays_all_traces() {
    for path in traces() {
        let trace = load(&path);
        let verdict = play(&trace, &mut Emu::orderly());
        if workspace::is_update() && trace.scenario.name == OWN {
            std::fs::write(&path, verdict.capture.unwrap()).unwrap();
            continue;
        }
        assert_eq!(texts(&verdict), [""; 0], "{}", path.display());
        assert_eq!(verdict.compared, trace.recorded.len());
        assert!(verdict.played > 0);
    }
}

/// Losses and reordering below the connection do not show.
#[test]
fn a_correct_device_passes_in_a_bad_network() {
    for seed in 1..=5 {
        for path in traces() {
            let verdict = play(&load(&path), &mut Emu::disorderly(seed));
            assert_eq!(texts(&verdict), [""; 0], "{}, seed {seed}", path.display());
        }
    }
}

/// A packet that is added, missing, early or changed in a run is a difference.
#[test]
fn every_change_on_the_wire_is_found() {
    for path in traces() {
        let TagTrace { recorded, .. } = load(&path);
        assert_eq!(compare(&recorded, &recorded), (recorded.len(), vec![]));
        for at in 0..recorded.len() {
            let mut changes: Vec<(&str, Vec<WirePacket>)> = Vec::new();
            let mut change = |what, make: &dyn Fn(&mut Vec<WirePacket>)| {
                let mut packets = recorded.clone();
                make(&mut packets);
                changes.push((what, packets));
            };
            change("lost", &|packets| {
                packets.remove(at);
            });
            change("twice", &|packets| packets.insert(at, packets[at].clone()));
            change("other sender", &|packets| packets[at].from ^= 1);
            for (what, packets) in changes {
                let (_, findings) = compare(&recorded, &packets);
                assert!(!findings.is_empty(), "{}: {at} {what}", path.display());
            }
        }
    }
}

/// The error of a wrong device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    MaskIgnored,
    DeletedTagStays,
    DeletionNeverFails,
    CountsNotLookedAt,
    NeverAsksForCounts,
    MatchNotReported,
    DataValidWithTheMatch,
    MatchWithoutTag,
    UnexpectedAsPlain,
    HeaderStaysInTheBuffer,
    DataGarbled,
    IncompleteAsSuccess,
    CompletionTwice,
    CompletionLost,
    MessageLost,
    MessageTwice,
    OtherMemoryRead,
}

/// Each fault, and the start of its finding.
const FAULTS: [(Fault, &str); 17] = [
    (
        Fault::MaskIgnored,
        "`any-of-16` is next to complete, but `b` sees `exact`",
    ),
    (
        Fault::DeletedTagStays,
        "`plain-1` is next to complete, but `b` sees `deleted`",
    ),
    (
        Fault::DeletionNeverFails,
        "`delete-2`: status: expected TM_ERR, actual SUCCESS",
    ),
    (
        Fault::CountsNotLookedAt,
        "`sync-2`: status: expected TM_ERR, actual SUCCESS",
    ),
    (
        Fault::NeverAsksForCounts,
        "`waits`: flags: expected [\"TM_SYNC_REQ\"], actual []",
    ),
    (
        Fault::MatchNotReported,
        "`exact`: flags: expected [\"TM_MATCH\"]",
    ),
    (
        Fault::DataValidWithTheMatch,
        "`exact`: flags: expected [\"TM_MATCH\"]",
    ),
    (
        Fault::MatchWithoutTag,
        "`any-of-16`: tag: expected 0x12, actual 0x0",
    ),
    (
        Fault::UnexpectedAsPlain,
        "`plain-1`: opcode: expected TM_RECV, actual RECV",
    ),
    (Fault::HeaderStaysInTheBuffer, "`any-of-16`: byte 0:"),
    (Fault::DataGarbled, "`any-of-16`: byte 99:"),
    (
        Fault::IncompleteAsSuccess,
        "`too-small`: status: expected TM_RNDV_INCOMPLETE",
    ),
    (
        Fault::CompletionTwice,
        "`exact` is next to complete, but `b` sees `any-of-16`",
    ),
    (Fault::CompletionLost, "`any-of-16` does not complete"),
    (Fault::MessageLost, "`any-of-16` does not complete"),
    (Fault::MessageTwice, "`long` does not complete"),
    (Fault::OtherMemoryRead, "`read-by-software`: byte 0:"),
];

/// The simulator with a wrong device.
struct FaultySimulator(Emu, Fault);

struct FaultyEnd<C> {
    end: C,
    fault: Fault,
    messages: u32,
    /// A completion to report again.
    again: Option<Completion>,
    deletions: Vec<u64>,
    has_matched: bool,
}

impl Devices for FaultySimulator {
    type Connection = FaultyEnd<<Emu as Devices>::Connection>;

    fn name(&self) -> &'static str {
        "emu"
    }

    fn connect(
        &mut self,
        memory: usize,
        scenario: &TagScenario,
    ) -> Result<[Self::Connection; 2], DeviceError> {
        let ends = self.0.connect(memory, scenario)?;
        Ok(ends.map(|end| FaultyEnd {
            end,
            fault: self.1,
            messages: 0,
            again: None,
            deletions: Vec::new(),
            has_matched: false,
        }))
    }

    fn wait(&mut self, rounds: u32) -> bool {
        self.0.wait(rounds)
    }

    fn quiet_rounds(&self) -> u32 {
        self.0.quiet_rounds()
    }

    fn captured(&mut self) -> Option<Vec<u8>> {
        self.0.captured()
    }
}

const MATCH: u32 = 1 << 5;
const DATA_VALID: u32 = 1 << 6;
const TAG_DELETE: u32 = 131;
const TAG_RECV: u32 = 133;

impl<C: Connection> Connection for FaultyEnd<C> {
    fn region(&self) -> (u64, u32) {
        self.end.region()
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = self.end.read(offset, length);
        match self.fault {
            Fault::DataGarbled if self.has_matched && length == 100 => bytes[99] ^= 1,
            Fault::HeaderStaysInTheBuffer if self.has_matched && length == 100 => {
                bytes.rotate_right(16);
            }
            _ => {}
        }
        bytes
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.end.write(offset, bytes);
    }

    fn post(
        &mut self,
        wr_id: u64,
        work: Work,
        offset: usize,
        length: usize,
    ) -> Result<(), DeviceError> {
        if work == Work::Send {
            self.messages += 1;
        }
        let is_first = self.messages == 1 && work == Work::Send;
        match (self.fault, work) {
            (Fault::MessageLost, _) if is_first => {
                // The packet appears to have been sent.
                self.again = Some(Completion {
                    wr_id,
                    ..Completion::default()
                });
                Ok(())
            }
            (Fault::MessageTwice, _) if is_first => {
                self.end.post(wr_id, work, offset, length)?;
                self.end.post(wr_id, work, offset, length)
            }
            (Fault::OtherMemoryRead, Work::Read { address, key }) => {
                let address = address - 64;
                self.end
                    .post(wr_id, Work::Read { address, key }, offset, length)
            }
            _ => self.end.post(wr_id, work, offset, length),
        }
    }

    fn post_receive(
        &mut self,
        wr_id: u64,
        offset: usize,
        length: usize,
    ) -> Result<(), DeviceError> {
        self.end.post_receive(wr_id, offset, length)
    }

    fn post_tag_request(&mut self, request: &TagRequest) -> Result<u32, DeviceError> {
        let mut request = *request;
        match (self.fault, &mut request.operation) {
            (Fault::MaskIgnored, TagOperation::Add { mask, .. }) => *mask = u64::MAX,
            (Fault::DeletedTagStays, operation @ TagOperation::Delete(_))
                if self.deletions.is_empty() =>
            {
                self.deletions.push(request.wr_id);
                *operation = TagOperation::Sync;
            }
            (Fault::CountsNotLookedAt, _) => request.handled = None,
            _ => {}
        }
        self.end.post_tag_request(&request)
    }

    fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.again.take() {
            return Some(completion);
        }
        let mut completion = self.end.poll()?;
        let has = |bits| completion.flags & bits == bits;
        let is_first_match = has(MATCH) && !self.has_matched;
        self.has_matched |= has(MATCH);
        match self.fault {
            Fault::DeletedTagStays if self.deletions.contains(&completion.wr_id) => {
                completion.opcode = TAG_DELETE;
            }
            Fault::DeletionNeverFails if completion.opcode == TAG_DELETE => completion.status = 0,
            Fault::NeverAsksForCounts => completion.flags &= MATCH | DATA_VALID,
            Fault::MatchNotReported if has(MATCH) && !has(DATA_VALID) => return self.poll(),
            Fault::DataValidWithTheMatch if has(MATCH) => completion.flags |= DATA_VALID,
            Fault::MatchWithoutTag => completion.tag = 0,
            Fault::UnexpectedAsPlain if completion.opcode == TAG_RECV && completion.flags == 0 => {
                completion.opcode = 128;
            }
            Fault::IncompleteAsSuccess if completion.status == 23 => completion.status = 0,
            Fault::CompletionTwice if is_first_match => self.again = Some(completion),
            Fault::CompletionLost if is_first_match => return self.poll(),
            _ => {}
        }
        Some(completion)
    }
}

#[test]
fn a_wrong_device_is_found_and_named() {
    let trace = own();
    for (fault, expected) in FAULTS {
        let verdict = play(&trace, &mut FaultySimulator(Emu::orderly(), fault));
        let found = texts(&verdict);
        let is_named = found.iter().any(|text| text.contains(expected));
        assert!(is_named, "{fault:?}: {found:#?}");
    }
}
