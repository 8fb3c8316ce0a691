//! A device's shared segment, over which its peers send to it.
//!
//! A process that opens a device creates one file. It contains a wake word, a doorbell, and room
//! for one ring from each process that sends to it. A sender claims a slot and writes its records
//! there. The file belongs to the receiver, so that all records for a process vanish together with
//! it.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `EFAEMUDV` |
//! | 8 | 4 | layout version |
//! | 12 | 4 | number of slots |
//! | 16 | 16 | GID |
//! | 32 | 4 | participant number |
//! | 36 | 4 | process id in the owner's pid namespace (for people) |
//! | 64 | 4 | wake word: 1 while the owner sleeps on it |
//! | 68 | 4 | 0, or 1 and the segment's line in the doorbell page of the owner (module `doorbell_page`), whose wake word replaces this one |
//! | 128 | 8 | doorbell summary: bit w is set when doorbell word w may have bits; bit 63: no slot is free |
//! | 192 | 128 | doorbell words: bit s of word w requests a check of slot 64 w + s |
//! | 320 | 256 | the owner's network options as text, padded with zeros |
//! | 65536 | 64 each | slot descriptors |
//! | 131072 | | rings, [`SLOT_STRIDE`] bytes apart: a page that ends with the answers, then the records |
//!
//! | offset in a slot descriptor | size | field |
//! |---|---|---|
//! | 0 | 8 | claim: participant number (low 32 bits) and a digest of the holder's GID, 0 = free |
//! | 8 | 4 | state: 0 being set up, 1 in use, 2 refused by the owner, 3 given up by the sender |
//! | 12 | 4 | bytes for records |
//! | 16 | 16 | GID of the sender |
//! | 32 | 4 | attention: 1 while the owner polls this ring, 0 when it requests the doorbell |
//!
//! Only senders claim slots and only the owner frees them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use efa_core::address::Gid;

use super::doorbell_page::{self, DoorbellLine, DoorbellPage};
use crate::error::FabricError;
use crate::identity::config::NetworkOptions;
use crate::process::layout::{self, Layout};
use crate::process::opening;
use crate::process::shared::{self, PAGE, SharedMemory};
use efa_lock_free::doorbell;
use efa_lock_free::qpn::ParticipantId;
use efa_lock_free::ring::ANSWERS;

const LAYOUT: Layout = Layout {
    magic: u64::from_le_bytes(*b"EFAEMUDV"),
    version: 3,
    foreign: "it does not start with the magic number of a device segment",
};

const AT_SLOT_COUNT: usize = 12;
const AT_GID: usize = 16;
const AT_PARTICIPANT: usize = 32;
const AT_PID: usize = 36;
const AT_WAKE: usize = 64;
const AT_LINE: usize = 68;
const AT_SUMMARY: usize = 128;
const AT_DOORBELLS: usize = 192;
const AT_NETWORK: usize = 320;
const NETWORK_BYTES: usize = 256;
const AT_SLOTS: usize = PAGE;

/// Ring slots of a segment: the number of processes that can send to one process at a time.
pub(crate) const SLOTS: usize = 1024;
const DOORBELL_WORDS: usize = SLOTS / 64;
const SLOT_BYTES: usize = 64;
const HEADER_BYTES: usize = AT_SLOTS + SLOTS * SLOT_BYTES;

/// Most bytes of records in a ring.
pub(crate) const MAX_RING: usize = 1 << 20;
/// Fewest bytes of records in a ring: enough for several of the longest records.
pub(crate) const MIN_RING: usize = 1 << 16;
/// Distance between the rings of neighbouring slots.
pub(crate) const SLOT_STRIDE: usize = PAGE + MAX_RING;

/// Memory used by a segment with one sender.
pub(crate) const BYTES_WITH_ONE_RING: usize = HEADER_BYTES + ANSWERS + MAX_RING;

/// The length of the file in bytes.
pub(crate) const LENGTH: usize = HEADER_BYTES + SLOTS * SLOT_STRIDE;

/// Doorbell summary bit by which a sender requests that the owner frees the slots of dead senders.
const SUMMARY_FULL: u64 = 1 << 63;

/// State of a slot.
mod state {
    pub(crate) const SETTING_UP: u32 = 0;
    pub(crate) const IN_USE: u32 = 1;
    pub(crate) const REFUSED: u32 = 2;
    pub(crate) const GIVEN_UP: u32 = 3;
}

/// Identifies a process with a device: the owner of a segment, or the sender that has claimed a
/// slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Address {
    pub(crate) gid: Gid,
    pub(crate) id: ParticipantId,
}

impl Address {
    /// The claim word of a slot. The digest must distinguish the hosts of one fabric only well
    /// enough to find the claimant if it died before it wrote its whole GID.
    pub(crate) fn claim(self) -> u64 {
        let digest = self.gid.0.chunks_exact(4).fold(0u32, |digest, bytes| {
            let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            digest.rotate_left(5) ^ word
        });
        (u64::from(digest) << 32) | u64::from(self.id.0)
    }
}

/// The header of a segment, mapped by its owner and by its peers.
#[derive(Debug)]
pub(crate) struct Segment {
    file: File,
    header: SharedMemory,
    address: Address,
    line: Option<DoorbellLine>,
}

impl Segment {
    /// Creates the calling process's own segment.
    pub(crate) fn create(path: &Path, address: Address) -> Result<Segment, FabricError> {
        Segment::create_with(path, address, None)
    }

    /// As [`Segment::create`], for an owner with many segments. The doorbell page has a file
    /// name next to the segment's.
    pub(crate) fn create_at(
        path: &Path,
        address: Address,
        line: DoorbellLine,
    ) -> Result<Segment, FabricError> {
        Segment::create_with(path, address, Some(line))
    }

    fn create_with(
        path: &Path,
        address: Address,
        line: Option<DoorbellLine>,
    ) -> Result<Segment, FabricError> {
        // Sparse: a ring uses memory only after its slot is claimed.
        let mut options = opening::options();
        options.create_new(true);
        let (file, header) = LAYOUT.create(&options, path, LENGTH, HEADER_BYTES)?;
        header
            .u32_at::<AT_SLOT_COUNT>()
            .store(SLOTS as u32, Ordering::Relaxed);
        header.write(AT_GID, &address.gid.0);
        header
            .u32_at::<AT_PARTICIPANT>()
            .store(address.id.0, Ordering::Relaxed);
        header
            .u32_at::<AT_PID>()
            .store(std::process::id(), Ordering::Relaxed);
        let number = line.as_ref().map_or(0, |line| line.number as u32 + 1);
        header.u32_at::<AT_LINE>().store(number, Ordering::Relaxed);
        LAYOUT.complete(&header);
        Ok(Segment {
            file,
            header,
            address,
            line,
        })
    }

    /// Maps the segment of the participant `address`; `None` if the file does not exist.
    pub(crate) fn open(path: &Path, address: Address) -> Result<Option<Segment>, FabricError> {
        let Some((file, header)) = LAYOUT.open(path, LENGTH, HEADER_BYTES)? else {
            return Ok(None);
        };
        let slots = header.u32_at::<AT_SLOT_COUNT>().load(Ordering::Relaxed);
        if slots != SLOTS as u32 {
            return Err(FabricError::UnknownLayout {
                path: path.to_owned(),
                found: format!("{slots} slots"),
                expected: format!("{SLOTS} slots"),
            });
        }
        let mut gid = [0; 16];
        header.read(AT_GID, &mut gid);
        let id = ParticipantId(header.u32_at::<AT_PARTICIPANT>().load(Ordering::Relaxed));
        if (Address { gid: Gid(gid), id }) != address {
            return Err(layout::damaged(path, "it names another owner"));
        }
        let line = match header.u32_at::<AT_LINE>().load(Ordering::Relaxed) {
            0 => None,
            line if line as usize > doorbell_page::LINES => {
                return Err(layout::damaged(
                    path,
                    "it names a line that no doorbell page has",
                ));
            }
            line => match DoorbellPage::open(&path.with_extension(doorbell_page::KIND))? {
                Some(page) => Some(DoorbellLine {
                    page: Arc::new(page),
                    number: line as usize - 1,
                }),
                // The owner has just left.
                None => return Ok(None),
            },
        };
        Ok(Some(Segment {
            file,
            header,
            address,
            line,
        }))
    }

    /// Declares the network options of the owner's packets to peers. To be called before the owner
    /// sends.
    pub(crate) fn declare_network(&self, options: &NetworkOptions) {
        let text = options.to_string();
        debug_assert!(text.len() <= NETWORK_BYTES, "{text}");
        // All bytes, since a longer text may have been there before.
        let mut bytes = [0; NETWORK_BYTES];
        let length = text.len().min(NETWORK_BYTES);
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.header.write(AT_NETWORK, &bytes);
    }

    /// The network options of the owner's packets.
    pub(crate) fn network(&self) -> Result<NetworkOptions, FabricError> {
        let mut text = [0; NETWORK_BYTES];
        self.header.read(AT_NETWORK, &mut text);
        let length = text.iter().position(|byte| *byte == 0);
        let text = &text[..length.unwrap_or(NETWORK_BYTES)];
        String::from_utf8_lossy(text).parse()
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    fn slot(&self, slot: usize) -> SlotHeader<'_> {
        assert!(slot < SLOTS);
        SlotHeader {
            header: &self.header,
            at: AT_SLOTS + slot * SLOT_BYTES,
        }
    }

    /// Maps the ring of a slot with `capacity` bytes of records.
    fn map_ring(&self, slot: usize, capacity: usize) -> std::io::Result<SharedMemory> {
        SharedMemory::map(&self.file, ring_offset(slot), PAGE + capacity)
    }

    // --- the sender's side ---

    /// Claims a slot and sets up a ring of at most `capacity` bytes in it. `Ok(None)` if all slots
    /// are in use; then the owner is requested to free the slots of dead senders.
    pub(crate) fn claim_ring(
        &self,
        sender: Address,
        capacity: usize,
    ) -> std::io::Result<Option<(usize, SharedMemory)>> {
        let mut capacity = capacity.clamp(MIN_RING, MAX_RING).next_multiple_of(PAGE);
        let claimed = (0..SLOTS).find(|slot| {
            let claim = self.slot(*slot).claim();
            claim.load(Ordering::Relaxed) == 0
                && claim
                    .compare_exchange(0, sender.claim(), Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        });
        let Some(index) = claimed else {
            self.summary().fetch_or(SUMMARY_FULL, Ordering::SeqCst);
            self.ring_line();
            self.wake();
            return Ok(None);
        };
        let slot = self.slot(index);
        let mut set_up = || {
            loop {
                // Zeroes the memory, which may contain an earlier sender's ring.
                shared::discard(&self.file, ring_offset(index), SLOT_STRIDE)?;
                let answers = ring_offset(index) + PAGE - ANSWERS;
                match shared::reserve(&self.file, answers, ANSWERS + capacity) {
                    Ok(()) => break,
                    Err(error)
                        if error.raw_os_error() == Some(libc::ENOSPC) && capacity > MIN_RING =>
                    {
                        capacity = (capacity / 2).next_multiple_of(PAGE).max(MIN_RING);
                    }
                    Err(error) => return Err(error),
                }
            }
            let ring = self.map_ring(index, capacity)?;
            Ok((ring, capacity))
        };
        match set_up() {
            Ok((ring, capacity)) => {
                slot.capacity().store(capacity as u32, Ordering::Relaxed);
                self.header.write(slot.at + SlotHeader::GID, &sender.gid.0);
                slot.state().store(state::IN_USE, Ordering::Release);
                self.ring_doorbell(index);
                Ok(Some((index, ring)))
            }
            Err(error) => {
                slot.state().store(state::GIVEN_UP, Ordering::Release);
                self.ring_doorbell(index);
                Err(error)
            }
        }
    }

    /// Notifies the owner after a record was committed to the ring of `slot`, unless the owner
    /// polls it.
    #[inline]
    pub(crate) fn announce(&self, slot: usize) {
        if doorbell::is_wanted(self.slot(slot).attention()) {
            self.ring_doorbell(slot);
        }
    }

    #[cold]
    fn ring_doorbell(&self, slot: usize) {
        doorbell::ring(self.doorbell(slot / 64), self.summary(), slot);
        self.ring_line();
        self.wake();
    }

    /// Whether the owner has many segments, that is, whether it is a bridge.
    pub(crate) fn has_doorbell_page(&self) -> bool {
        self.line.is_some()
    }

    /// Makes an owner of many segments check the doorbells of this one.
    fn ring_line(&self) {
        if let Some(line) = &self.line {
            line.page.ring(line.number);
        }
    }

    /// Wakes the owner if it sleeps. To be called after a change for which the owner checks before
    /// it sleeps.
    #[inline]
    pub(crate) fn wake(&self) {
        doorbell::wake(self.wake_word());
    }

    /// As [`Segment::wake`], for an owner that has been asleep for a while. An owner that falls
    /// asleep at this moment may be missed.
    #[inline]
    pub(crate) fn wake_sleeper(&self) {
        doorbell::wake_sleeper(self.wake_word());
    }

    /// Whether the owner has refused the ring of `slot` because of invalid records.
    pub(crate) fn is_refused(&self, slot: usize) -> bool {
        self.slot(slot).state().load(Ordering::Acquire) == state::REFUSED
    }

    /// Gives a slot up. The sender must not use it afterwards.
    pub(crate) fn give_up(&self, slot: usize) {
        self.slot(slot)
            .state()
            .store(state::GIVEN_UP, Ordering::Release);
        self.ring_doorbell(slot);
    }

    // --- the owner's side ---

    fn doorbell(&self, word: usize) -> &AtomicU64 {
        self.header.u64(AT_DOORBELLS + 8 * word)
    }

    #[inline]
    fn summary(&self) -> &AtomicU64 {
        self.header.u64_at::<AT_SUMMARY>()
    }

    #[inline]
    fn wake_word(&self) -> &AtomicU32 {
        match &self.line {
            None => self.header.u32_at::<AT_WAKE>(),
            Some(line) => line.page.wake_word(),
        }
    }

    /// Whether any doorbell was rung. Reads one cache line.
    #[inline]
    pub(crate) fn doorbell_rung(&self) -> bool {
        self.summary().load(Ordering::Relaxed) != 0
    }

    /// Clears all rung doorbells and calls `look` for each slot. Returns whether a sender found no
    /// free slot.
    pub(crate) fn take_doorbells(&self, mut look: impl FnMut(usize)) -> bool {
        doorbell::take(
            self.summary(),
            DOORBELL_WORDS,
            |word| self.doorbell(word),
            &mut look,
        ) & SUMMARY_FULL
            != 0
    }

    /// The owner polls the ring of `slot` from now on, and needs no doorbells for it. It must check
    /// for earlier records afterwards.
    pub(crate) fn start_polling(&self, slot: usize) {
        doorbell::start_polling(self.slot(slot).attention());
    }

    /// Requests doorbells for the ring of `slot` from now on. The owner must check for earlier
    /// records afterwards.
    pub(crate) fn stop_polling(&self, slot: usize) {
        doorbell::stop_polling(self.slot(slot).attention());
    }

    /// Announces that the owner is going to sleep. It must then check for all work again, and call
    /// either [`Segment::sleep`] or [`Segment::stay_awake`].
    pub(crate) fn fall_asleep(&self) {
        doorbell::fall_asleep(self.wake_word());
    }

    /// Revokes [`Segment::fall_asleep`].
    pub(crate) fn stay_awake(&self) {
        doorbell::stay_awake(self.wake_word());
    }

    /// Whether the owner has announced that it sleeps and has not been woken since.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        doorbell::is_asleep(self.wake_word())
    }

    /// Sleeps until woken or until the timeout.
    pub(crate) fn sleep(&self, timeout: Option<std::time::Duration>) {
        doorbell::sleep(self.wake_word(), timeout);
    }

    /// Wakes the sleeping thread from its own process.
    pub(crate) fn interrupt(&self) {
        doorbell::interrupt(self.wake_word());
    }

    /// The content of a slot as its sender declares it. It is not trusted.
    pub(crate) fn inspect(&self, index: usize) -> SlotContent {
        let slot = self.slot(index);
        let claim = slot.claim().load(Ordering::Acquire);
        if claim == 0 {
            return SlotContent::Free;
        }
        match slot.state().load(Ordering::Acquire) {
            state::SETTING_UP => SlotContent::Pending { claim },
            state::IN_USE => {
                let mut gid = [0; 16];
                self.header.read(slot.at + SlotHeader::GID, &mut gid);
                let sender = Address {
                    gid: Gid(gid),
                    id: ParticipantId(claim as u32),
                };
                let capacity = slot.capacity().load(Ordering::Relaxed) as usize;
                let plausible = sender.claim() == claim
                    && (MIN_RING..=MAX_RING).contains(&capacity)
                    && capacity.is_multiple_of(PAGE);
                if plausible {
                    SlotContent::InUse { sender, capacity }
                } else {
                    SlotContent::Nonsense
                }
            }
            state::GIVEN_UP => SlotContent::GivenUp,
            _ => SlotContent::Pending { claim },
        }
    }

    /// Maps the ring of a slot whose content was inspected.
    pub(crate) fn adopt_ring(&self, slot: usize, capacity: usize) -> std::io::Result<SharedMemory> {
        self.map_ring(slot, capacity)
    }

    /// Overwrites a word between the file's identification and the descriptors of most slots.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn scribble(&self, word: usize, value: u64) {
        const SLOTS_WRITTEN: usize = 8;
        const HEAD: usize = (AT_NETWORK - AT_WAKE) / 8;
        let at = match word % (HEAD + SLOTS_WRITTEN * SLOT_BYTES / 8) {
            head if head < HEAD => AT_WAKE + 8 * head,
            slots => AT_SLOTS + 8 * (slots - HEAD),
        };
        self.header.u64(at).store(value, Ordering::SeqCst);
    }

    /// Stops reading the ring of `slot`.
    pub(crate) fn refuse(&self, slot: usize) {
        self.slot(slot)
            .state()
            .store(state::REFUSED, Ordering::Release);
    }

    /// Frees a slot for another sender. The caller must not use its ring any more, and the sender
    /// must be dead or have given the slot up.
    pub(crate) fn free(&self, index: usize) {
        // If the memory cannot be released now, the next claimant releases it, or it is released
        // with the file.
        let _ = shared::discard(&self.file, ring_offset(index), SLOT_STRIDE);
        let slot = self.slot(index);
        slot.state().store(state::SETTING_UP, Ordering::Relaxed);
        slot.capacity().store(0, Ordering::Relaxed);
        slot.attention().store(doorbell::WANTED, Ordering::Relaxed);
        self.header.write(slot.at + SlotHeader::GID, &[0; 16]);
        slot.claim().store(0, Ordering::Release);
    }
}

const fn ring_offset(slot: usize) -> usize {
    HEADER_BYTES + slot * SLOT_STRIDE
}

/// The content of a slot, for the owner of the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotContent {
    Free,
    /// Being set up, or refused and not yet abandoned, if the claimant is alive.
    Pending {
        claim: u64,
    },
    InUse {
        sender: Address,
        capacity: usize,
    },
    /// Declared as a ring with invalid properties.
    Nonsense,
    /// Given up by its sender.
    GivenUp,
}

struct SlotHeader<'a> {
    header: &'a SharedMemory,
    at: usize,
}

impl<'a> SlotHeader<'a> {
    const GID: usize = 16;

    fn claim(&self) -> &'a AtomicU64 {
        self.header.u64(self.at)
    }

    fn state(&self) -> &'a AtomicU32 {
        self.header.u32(self.at + 8)
    }

    fn capacity(&self) -> &'a AtomicU32 {
        self.header.u32(self.at + 12)
    }

    #[inline]
    fn attention(&self) -> &'a AtomicU32 {
        self.header.u32(self.at + 32)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::process::layout::{AT_MAGIC, AT_VERSION};

    #[test]
    fn peers_learn_the_owners_network_settings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.device");
        let address = Address {
            gid: Gid([7; 16]),
            id: ParticipantId(1),
        };
        let segment = Segment::create(&path, address).unwrap();
        let mut options = NetworkOptions {
            seed: u64::MAX,
            latency: std::time::Duration::from_secs(60),
            jitter: std::time::Duration::from_secs(60),
            paths: 1024,
            // The longest texts of numbers between 0 and 1.
            loss: 1.234_567_890_123_456_7e-5,
            rnr: 1.234_567_890_123_456_7e-5,
            ..NetworkOptions::default()
        };
        options.reliability.timeout = options.latency;
        segment.declare_network(&options);
        let opened = Segment::open(&path, address).unwrap().unwrap();
        assert_eq!(opened.network().unwrap(), options);
        let nonsense = b"paths=0\0";
        segment
            .file
            .write_all_at(nonsense, AT_NETWORK as u64)
            .unwrap();
        assert!(opened.network().unwrap_err().to_string().contains("paths"));
    }

    #[test]
    fn damaged_and_foreign_version_segments_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.device");
        let address = Address {
            gid: Gid([7; 16]),
            id: ParticipantId(1),
        };
        let refused = || Segment::open(&path, address).unwrap_err().to_string();
        assert!(Segment::open(&path, address).unwrap().is_none());
        std::fs::write(&path, b"short").unwrap();
        assert!(refused().contains("too short"), "{}", refused());
        std::fs::remove_file(&path).unwrap();

        let segment = Segment::create(&path, address).unwrap();
        assert!(Segment::open(&path, address).unwrap().is_some());
        let whole = segment.file.metadata().unwrap().len();
        for (at, complaint) in [
            (AT_MAGIC, "magic"),
            (AT_VERSION, "layout \"254\""),
            (AT_SLOT_COUNT, "layout \"1278 slots\""),
            (AT_GID, "another owner"),
            (AT_PARTICIPANT, "another owner"),
        ] {
            let mut byte = [0];
            segment.file.read_exact_at(&mut byte, at as u64).unwrap();
            segment.file.write_all_at(&[254], at as u64).unwrap();
            let error = refused();
            assert!(error.contains(complaint), "{error}");
            assert!(error.contains("1.device"), "{error}");
            segment.file.write_all_at(&byte, at as u64).unwrap();
        }
        segment.file.set_len(whole - 1).unwrap();
        assert!(refused().contains("too short"), "{}", refused());
        segment.file.set_len(whole).unwrap();
        assert!(Segment::open(&path, address).unwrap().is_some());
    }
}
