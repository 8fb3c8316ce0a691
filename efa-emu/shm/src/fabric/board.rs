//! The board: a file of the fabric with all armed rules and their counts.
//!
//! Every process that opens a device maps it. The rules are changed under the registry's lock; the
//! counts are changed by all processes, by one atomic step each, so the n-th event of a rule is the
//! n-th in the whole fabric. After each change the generation is incremented, the only word that
//! devices read as long as no rule is armed.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `EFAEMUFB` |
//! | 8 | 4 | layout version |
//! | 64 | 8 | generation |
//! | 72 | 8 | serial number of the last rule |
//! | 65536 + 2048 i | 2048 | slot i |
//!
//! A slot:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | id of the rule, 0 if the slot is free |
//! | 8 / 16 / 24 | 8 each | events seen / applied to / held now |
//! | 32 | 8 | orders to release |
//! | 40 | 4 | 1 if a cut is in force |
//! | 44 | 4 | length of the text |
//! | 48 / 64 | 16 / 4 | owner: GID and participant; 0: the fabric |
//! | 128 | 1920 | the rule's text |

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use efa_core::address::Gid;

use crate::error::FabricError;
use crate::process::layout::Layout;
use crate::process::opening;
use crate::process::shared::{PAGE, SharedMemory};
use crate::process::warning::Warning;
use crate::transport::segment::Address;
use efa_device_model::fault::{Fault, FaultId, Tally};
use efa_lock_free::qpn::ParticipantId;

const LAYOUT: Layout = Layout {
    magic: u64::from_le_bytes(*b"EFAEMUFB"),
    version: 1,
    foreign: "it does not start with the magic number of a board of faults",
};

const AT_GENERATION: usize = 64;
const AT_SERIAL: usize = 72;
const AT_SLOTS: usize = PAGE;
const SLOT: usize = 2048;

const AT_ID: usize = 0;
const AT_SEEN: usize = 8;
const AT_APPLIED: usize = 16;
const AT_HELD: usize = 24;
const AT_RELEASES: usize = 32;
const AT_ENGAGED: usize = 40;
const AT_LENGTH: usize = 44;
const AT_GID: usize = 48;
const AT_PARTICIPANT: usize = 64;
const AT_TEXT: usize = 128;

/// Rules that can be armed at a time.
pub(crate) const SLOTS: usize = 32;
/// Longest text of a rule.
const LONGEST_TEXT: usize = SLOT - AT_TEXT;
const LENGTH: usize = AT_SLOTS + SLOTS * SLOT;

/// An armed rule, with its state so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArmedFault {
    /// The name by which commands remove or release it.
    pub id: FaultId,
    /// The rule as it was read.
    pub fault: Fault,
    /// Matching events so far.
    pub seen: u64,
    /// Events that it was applied to.
    pub applied: u64,
    /// Frames that it currently holds.
    pub held: u64,
    /// The device of the participant with which it ends; `None`: it ends with the fabric.
    pub owner: Option<Gid>,
}

/// The mapped board.
#[derive(Debug)]
pub(crate) struct FaultBoard {
    memory: SharedMemory,
    path: PathBuf,
}

pub(crate) fn board_path(fabric: &Path) -> PathBuf {
    fabric.join("faults")
}

/// The path at which it is written before it is complete.
pub(crate) fn draft_path(fabric: &Path) -> PathBuf {
    fabric.join("faults.draft")
}

impl FaultBoard {
    /// Maps the board of the fabric in `fabric`, making it if there is none. The registry is
    /// locked.
    pub(crate) fn open(fabric: &Path) -> Result<FaultBoard, FabricError> {
        if let Some(board) = FaultBoard::open_existing(fabric)? {
            return Ok(board);
        }
        let path = board_path(fabric);
        let draft = draft_path(fabric);
        let mut options = opening::options();
        options.create(true).truncate(true);
        let (_, memory) = LAYOUT.create(&options, &draft, LENGTH, LENGTH)?;
        LAYOUT.complete(&memory);
        std::fs::rename(&draft, &path).map_err(FabricError::io("rename", &draft))?;
        Ok(FaultBoard { memory, path })
    }

    /// Maps the board if there is one.
    pub(crate) fn open_existing(fabric: &Path) -> Result<Option<FaultBoard>, FabricError> {
        let path = board_path(fabric);
        let found = LAYOUT.open(&path, LENGTH, LENGTH)?;
        Ok(found.map(|(_, memory)| FaultBoard { memory, path }))
    }

    /// Changes whenever something was armed, disarmed or released.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.memory
            .u64_at::<AT_GENERATION>()
            .load(Ordering::Relaxed)
    }

    /// Makes all devices look.
    fn raise(&self) {
        self.memory
            .u64_at::<AT_GENERATION>()
            .fetch_add(1, Ordering::Release);
    }

    fn word(&self, slot: usize, at: usize) -> &AtomicU64 {
        self.memory.u64(AT_SLOTS + SLOT * slot + at)
    }

    /// The slot of a rule, if it is still there.
    fn slot(&self, id: FaultId) -> Option<usize> {
        let slot = (id.0 % SLOTS as u64) as usize;
        (self.word(slot, AT_ID).load(Ordering::Acquire) == id.0).then_some(slot)
    }

    /// Arms a rule for `owner`, or until it is disarmed. The registry is locked.
    pub(crate) fn arm(
        &self,
        fault: &Fault,
        owner: Option<Address>,
    ) -> Result<FaultId, FabricError> {
        let text = fault.to_string();
        if text.len() > LONGEST_TEXT {
            return Err(FabricError::FaultTooLong {
                label: fault.label.clone(),
                length: text.len(),
                limit: LONGEST_TEXT,
            });
        }
        let is_free = |slot: &usize| self.word(*slot, AT_ID).load(Ordering::Relaxed) == 0;
        let slot = (0..SLOTS)
            .find(is_free)
            .ok_or(FabricError::TooManyFaults { limit: SLOTS })?;
        let serial = self
            .memory
            .u64_at::<AT_SERIAL>()
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        let id = FaultId(serial * SLOTS as u64 + slot as u64);
        // A reader that sees any of the following writes sees that the previous rule was removed.
        fence(Ordering::Release);
        for at in [AT_SEEN, AT_APPLIED, AT_HELD, AT_RELEASES] {
            self.word(slot, at).store(0, Ordering::Relaxed);
        }
        let start = AT_SLOTS + SLOT * slot;
        let engaged = self.memory.u32(start + AT_ENGAGED);
        engaged.store(0, Ordering::Relaxed);
        let owner = owner.map_or((Gid([0; 16]), 0), |owner| (owner.gid, owner.id.0));
        self.memory.write(start + AT_GID, &owner.0.0);
        let participant = self.memory.u32(start + AT_PARTICIPANT);
        participant.store(owner.1, Ordering::Relaxed);
        self.memory.write(start + AT_TEXT, text.as_bytes());
        let length = self.memory.u32(start + AT_LENGTH);
        length.store(text.len() as u32, Ordering::Relaxed);
        self.word(slot, AT_ID).store(id.0, Ordering::Release);
        self.raise();
        Ok(id)
    }

    /// Disarms a rule. The registry is locked.
    pub(crate) fn disarm(&self, id: FaultId) {
        if let Some(slot) = self.slot(id) {
            self.word(slot, AT_ID).store(0, Ordering::Release);
            self.raise();
        }
    }

    /// Disarms the rules of owners that have ended. The registry is locked.
    pub(crate) fn disarm_orphans(&self, is_alive: impl Fn(Address) -> bool) {
        for slot in 0..SLOTS {
            let id = self.word(slot, AT_ID).load(Ordering::Acquire);
            let owner = self.owner(slot).filter(|_| id != 0);
            if owner.is_some_and(|owner| !is_alive(owner)) {
                self.disarm(FaultId(id));
            }
        }
    }

    /// The owner of the rule in a slot; `None` is the fabric.
    fn owner(&self, slot: usize) -> Option<Address> {
        let start = AT_SLOTS + SLOT * slot;
        let participant = self.memory.u32(start + AT_PARTICIPANT);
        let id = ParticipantId(participant.load(Ordering::Relaxed));
        let mut gid = [0; 16];
        self.memory.read(start + AT_GID, &mut gid);
        (id.0 != 0).then_some(Address { gid: Gid(gid), id })
    }

    /// Orders the release of all frames that a rule holds.
    pub(crate) fn release(&self, id: FaultId) {
        if let Some(slot) = self.slot(id) {
            self.word(slot, AT_RELEASES).fetch_add(1, Ordering::Release);
            self.raise();
        }
    }

    /// Counts the orders to release all frames that a rule holds.
    pub(crate) fn releases(&self, id: FaultId) -> u64 {
        self.count(id, AT_RELEASES)
    }

    /// Counts one more or one less frame that a device holds for a rule.
    pub(crate) fn note_held(&self, id: FaultId, change: i64) {
        if let Some(slot) = self.slot(id) {
            self.word(slot, AT_HELD)
                .fetch_add(change as u64, Ordering::Relaxed);
        }
    }

    /// The armed rules, in the order in which they were armed. Unreadable ones are skipped.
    pub(crate) fn list(&self) -> Vec<ArmedFault> {
        let mut list: Vec<_> = (0..SLOTS).filter_map(|slot| self.read(slot)).collect();
        list.sort_by_key(|armed| armed.id);
        list
    }

    fn read(&self, slot: usize) -> Option<ArmedFault> {
        let id = self.word(slot, AT_ID).load(Ordering::Acquire);
        if id == 0 || id % SLOTS as u64 != slot as u64 {
            return None;
        }
        let start = AT_SLOTS + SLOT * slot;
        let length = self.memory.u32(start + AT_LENGTH).load(Ordering::Relaxed) as usize;
        let mut text = vec![0; length.min(LONGEST_TEXT)];
        self.memory.read(start + AT_TEXT, &mut text);
        let owner = self.owner(slot).map(|owner| owner.gid);
        // Pairs with the fence of `arm`: either the words that were read belong to that rule, or
        // the id has changed.
        fence(Ordering::Acquire);
        if self.word(slot, AT_ID).load(Ordering::Relaxed) != id {
            return None;
        }
        let fault = match String::from_utf8_lossy(&text).parse() {
            Ok(fault) => fault,
            Err(error) => {
                let path = self.path.display();
                Warning::UnreadableRule.warn_once(format_args!(
                    "leaving out a rule of {path} that cannot be read: {error}"
                ));
                return None;
            }
        };
        let count = |at| self.word(slot, at).load(Ordering::Relaxed);
        Some(ArmedFault {
            id: FaultId(id),
            fault,
            seen: count(AT_SEEN),
            applied: count(AT_APPLIED),
            held: count(AT_HELD),
            owner,
        })
    }

    fn count(&self, id: FaultId, at: usize) -> u64 {
        self.slot(id)
            .map_or(0, |slot| self.word(slot, at).load(Ordering::Acquire))
    }
}

impl Tally for FaultBoard {
    fn sight(&self, fault: FaultId) -> u64 {
        self.slot(fault).map_or(0, |slot| {
            let seen = self.word(slot, AT_SEEN).fetch_add(1, Ordering::AcqRel);
            seen.wrapping_add(1)
        })
    }

    fn apply(&self, fault: FaultId) {
        if let Some(slot) = self.slot(fault) {
            self.word(slot, AT_APPLIED).fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_engaged(&self, fault: FaultId) -> bool {
        self.slot(fault).is_some_and(|slot| {
            let engaged = self.memory.u32(AT_SLOTS + SLOT * slot + AT_ENGAGED);
            engaged.load(Ordering::Acquire) != 0
        })
    }

    fn engage(&self, fault: FaultId, in_force: bool) {
        if let Some(slot) = self.slot(fault) {
            let engaged = self.memory.u32(AT_SLOTS + SLOT * slot + AT_ENGAGED);
            engaged.store(in_force.into(), Ordering::Release);
            self.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::layout::{AT_MAGIC, AT_VERSION};

    fn rule(text: &str) -> Fault {
        text.parse().unwrap()
    }

    #[test]
    fn rules_and_counts_are_shared() {
        let directory = tempfile::tempdir().unwrap();
        assert!(
            FaultBoard::open_existing(directory.path())
                .unwrap()
                .is_none()
        );
        let one = FaultBoard::open(directory.path()).unwrap();
        let other = FaultBoard::open(directory.path()).unwrap();
        let before = other.generation();
        let fault = rule(r#"label = "k", when = { packet = "CTS" }, then = "hold""#);
        let id = one.arm(&fault, None).unwrap();
        assert_ne!(other.generation(), before);
        assert_eq!((one.sight(id), other.sight(id)), (1, 2));
        other.apply(id);
        one.note_held(id, 1);
        one.note_held(id, 1);
        one.note_held(id, -1);
        let expected = ArmedFault {
            id,
            fault,
            seen: 2,
            applied: 1,
            held: 1,
            owner: None,
        };
        assert_eq!(other.list(), [expected]);
        one.release(id);
        assert_eq!(other.releases(id), 1);
        one.disarm(id);
        assert_eq!(other.list(), []);
        assert_eq!(other.sight(id), 0, "the rule is gone");
        let next = one.arm(&rule(r#"then = { kill = "a" }"#), None).unwrap();
        assert_ne!(next, id);
        assert_eq!(other.sight(next), 1, "counts start over");
    }

    /// Two rules use a slot alternately, and neither is read under the id of the other.
    #[test]
    fn rules_are_read_whole_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let board = FaultBoard::open(directory.path()).unwrap();
        let [even, odd] = ["even", "odd"].map(|parity| {
            let label = parity.repeat(300);
            rule(&format!(r#"label = "{label}", then = {{ kill = "a" }}"#))
        });
        let is_odd = |id: FaultId| (id.0 / SLOTS as u64) % 2 == 1;
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..=5000 {
                    let rule = if turn % 2 == 1 { &odd } else { &even };
                    let id = board.arm(rule, None).unwrap();
                    assert_eq!(is_odd(id), turn % 2 == 1);
                    board.disarm(id);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                for armed in board.list() {
                    let expected = if is_odd(armed.id) { &odd } else { &even };
                    assert_eq!(armed.fault, *expected);
                }
            }
        });
    }

    #[test]
    fn rules_go_with_their_owners() {
        let directory = tempfile::tempdir().unwrap();
        let board = FaultBoard::open(directory.path()).unwrap();
        let owner = |id| Address {
            gid: Gid([7; 16]),
            id: ParticipantId(id),
        };
        let cut = rule(r#"then = { cut = ["a", "b"] }"#);
        let kept = board.arm(&cut, None).unwrap();
        board.arm(&cut, Some(owner(1))).unwrap();
        let living = board.arm(&cut, Some(owner(2))).unwrap();
        board.disarm_orphans(|address| address == owner(2));
        let ids: Vec<_> = board.list().iter().map(|armed| armed.id).collect();
        assert_eq!(ids, [kept, living]);
        assert!(!board.is_engaged(kept));
        board.engage(kept, true);
        assert!(board.is_engaged(kept) && !board.is_engaged(living));
    }

    #[test]
    fn the_board_has_room_for_so_many() {
        let directory = tempfile::tempdir().unwrap();
        let board = FaultBoard::open(directory.path()).unwrap();
        let cut = rule(r#"then = { cut = ["a", "b"] }"#);
        for _ in 0..SLOTS {
            board.arm(&cut, None).unwrap();
        }
        let error = board.arm(&cut, None).unwrap_err().to_string();
        assert!(error.contains("32") && error.contains("clear"), "{error}");
        let long = cut.labelled(&"x".repeat(2000));
        let error = board.arm(&long, None).unwrap_err().to_string();
        assert!(error.contains("1920"), "{error}");
    }

    #[test]
    fn damaged_boards_are_refused_damaged_rules_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let board = FaultBoard::open(directory.path()).unwrap();
        let cut = rule(r#"then = { cut = ["a", "b"] }"#);
        board.arm(&cut, None).unwrap();
        let whole = std::fs::read(board_path(directory.path())).unwrap();
        for at in AT_SLOTS..AT_SLOTS + AT_TEXT + 40 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            std::fs::write(board_path(directory.path()), bytes).unwrap();
            // It only has to return.
            let _ = FaultBoard::open(directory.path()).unwrap().list();
        }
        for (at, expected) in [(AT_MAGIC, "magic"), (AT_VERSION, "layout")] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            std::fs::write(board_path(directory.path()), bytes).unwrap();
            let error = FaultBoard::open(directory.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        std::fs::write(board_path(directory.path()), &whole[..5000]).unwrap();
        let error = FaultBoard::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("too short"), "{error}");
    }
}
