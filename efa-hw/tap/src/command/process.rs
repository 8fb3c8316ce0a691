//! A recording process: its ring and its objects.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use efa_capture::InterfaceId;
use efa_commands::Failure;
use efa_core::address::Gid;
use efa_options::capture_output::Store;
use memmap2::MmapRaw;
use zerocopy::FromBytes as _;

use super::frames::{Device, FrameTruncation, Frames};
use crate::exchange::{
    ALIGNMENT, DATA, MAGIC, OBJECTS, ObjectRecord, RING, Record, RingHeader, kind, object,
};

/// The maximum number of records that are read from a process per turn.
const BATCH: usize = 1 << 16;

/// The rings in a directory.
pub(super) struct Rings;

/// A ring's file.
pub(super) struct RingFile {
    pub(super) pid: u32,
    pub(super) path: PathBuf,
}

impl Rings {
    pub(super) fn in_directory(directory: &Path) -> impl Iterator<Item = RingFile> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let name = entry.file_name();
            let (pid, _) = name.to_str()?.strip_suffix(RING)?.split_once('-')?;
            Some(RingFile {
                pid: pid.parse().ok()?,
                path: entry.path(),
            })
        })
    }
}

/// A mapped ring. Another process writes its contents, which are checked.
struct MappedRing {
    map: MmapRaw,
    capacity: u64,
}

impl MappedRing {
    fn open(path: &Path) -> io::Result<MappedRing> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let map = MmapRaw::map_raw(&file)?;
        let damaged = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} is not a ring of this version of efa-tap",
                    path.display()
                ),
            )
        };
        if map.len() < DATA {
            return Err(damaged());
        }
        let mut mapped = MappedRing { map, capacity: 0 };
        let header = mapped.header();
        let (magic, capacity) = (header.magic, header.capacity);
        let fits = capacity.is_power_of_two() && capacity == (mapped.map.len() - DATA) as u64;
        if magic != MAGIC || !fits {
            return Err(damaged());
        }
        mapped.capacity = capacity;
        Ok(mapped)
    }

    fn header(&self) -> &RingHeader {
        // SAFETY: the mapping is longer; words that others change are atomic.
        unsafe { &*self.map.as_ptr().cast::<RingHeader>() }
    }

    /// The first word of the record at this position.
    fn word(&self, position: u64) -> &AtomicU64 {
        let at = DATA + (position & (self.capacity - 1)) as usize;
        // SAFETY: positions are multiples of 8 within the mapping.
        unsafe { &*self.map.as_ptr().add(at).cast::<AtomicU64>() }
    }

    /// Copies a record, and zeroes it in the ring.
    fn take(&self, position: u64, length: usize, into: &mut Vec<u8>) {
        let at = DATA + (position & (self.capacity - 1)) as usize;
        into.clear();
        // SAFETY: the caller has checked that the record ends within the mapping, and its writer
        // has published it.
        unsafe {
            let from = self.map.as_mut_ptr().add(at);
            into.extend_from_slice(std::slice::from_raw_parts(from, length));
            from.write_bytes(0, length);
        }
    }
}

/// Starts or ends the recording of a process.
pub(super) fn set_recording(ring: &Path, on: bool) -> io::Result<()> {
    let mapped = MappedRing::open(ring)?;
    let turned = |switch: u32| ((switch % 2 == 1) != on).then(|| switch.wrapping_add(1));
    let order = Ordering::Relaxed;
    // The update fails if the switch already has the requested state.
    let _ = mapped.header().switch.fetch_update(order, order, turned);
    Ok(())
}

/// A process of the run.
pub(super) struct Process {
    ring: MappedRing,
    /// The number of bytes read. The ring also contains it, but there the process could change it.
    taken: u64,
    /// Whether the ring is invalid and no longer read.
    is_damaged: bool,
    objects: File,
    /// Objects that the records up to here do not refer to yet.
    entries: VecDeque<ObjectRecord>,
    /// Bytes of an incomplete object record.
    rest: Vec<u8>,
    frames: Frames,
    /// The last interface, for which lost records are counted.
    interface: Option<InterfaceId>,
    /// Records that are missing for a reason other than a full ring.
    lost: u64,
}

impl Process {
    pub(super) fn open(ring: &Path, cut: FrameTruncation) -> Result<Process, Failure> {
        let path = ring.to_string_lossy();
        let objects = path.strip_suffix(RING).unwrap_or(&path).to_owned() + OBJECTS;
        Ok(Process {
            ring: MappedRing::open(ring)?,
            taken: 0,
            is_damaged: false,
            objects: File::open(objects)?,
            entries: VecDeque::new(),
            rest: Vec::new(),
            frames: Frames::new(cut),
            interface: None,
            lost: 0,
        })
    }

    /// Moves recorded data to the store. Returns whether there was any.
    pub(super) fn turn(
        &mut self,
        store: &mut Store,
        devices: &mut Vec<Gid>,
    ) -> Result<bool, Failure> {
        // All records before the head refer to objects that were recorded before.
        let header = self.ring.header();
        let head = header.head.load(Ordering::Acquire);
        self.read_objects()?;
        let begun = self.taken;
        let mut bytes = Vec::new();
        for _ in 0..BATCH {
            if self.taken >= head || self.is_damaged {
                break;
            }
            let word = self.ring.word(self.taken).load(Ordering::Acquire);
            // The record is not published yet. If its writer was killed, it never will be.
            if word == 0 {
                break;
            }
            let length = u64::from(word as u32);
            let until_end = self.ring.capacity - (self.taken & (self.ring.capacity - 1));
            if !length.is_multiple_of(ALIGNMENT as u64) || length == 0 || length > until_end {
                // The rest is lost: the process has overwritten the ring.
                self.is_damaged = true;
                break;
            }
            self.ring.take(self.taken, length as usize, &mut bytes);
            self.apply_objects(self.taken, store, devices)?;
            self.record(&bytes, store);
            self.taken += length;
            let tail = &self.ring.header().tail;
            tail.store(self.taken, Ordering::Release);
        }
        // A device without traffic also gets an interface.
        self.apply_objects(self.taken, store, devices)?;
        Ok(self.taken > begun)
    }

    fn read_objects(&mut self) -> io::Result<()> {
        self.objects.read_to_end(&mut self.rest)?;
        let whole = self.rest.len() / size_of::<ObjectRecord>() * size_of::<ObjectRecord>();
        for bytes in self.rest[..whole].chunks_exact(size_of::<ObjectRecord>()) {
            self.entries
                .extend(ObjectRecord::read_from_bytes(bytes).ok());
        }
        self.rest.drain(..whole);
        Ok(())
    }

    /// Applies the objects that existed when the record at this position was made.
    fn apply_objects(
        &mut self,
        position: u64,
        store: &mut Store,
        devices: &mut Vec<Gid>,
    ) -> io::Result<()> {
        while let Some(entry) = self.entries.front()
            && entry.position <= position
        {
            let entry = *entry;
            self.entries.pop_front();
            match entry.kind {
                object::DEVICE => {
                    let device = Device::declare(&entry, store, devices)?;
                    self.interface = Some(device.interface);
                    self.frames.add_device(entry.device, device);
                }
                object::HANDLE => self.frames.add_handle(&entry),
                object::QUEUE_PAIR => self.frames.add_queue_pair(&entry),
                _ => {}
            }
        }
        Ok(())
    }

    fn record(&mut self, bytes: &[u8], store: &mut Store) {
        // Padding at the end of the ring may be shorter than a record.
        let is_void = bytes.get(4) == Some(&kind::VOID);
        if let Ok((record, data)) = Record::read_from_prefix(bytes)
            && !is_void
        {
            let data = data.get(..record.recorded as usize).unwrap_or_default();
            match self.frames.record(&record, data) {
                Some((interface, frames)) => store.add(interface, frames),
                None => self.lost += 1,
            }
        }
    }

    /// Counts the missing records.
    pub(super) fn finish(self, store: &mut Store) {
        let header = self.ring.header();
        // A killed process leaves an incomplete record, after which the data is unknown.
        let unread = header.head.load(Ordering::Relaxed) > self.taken;
        let dropped = header.dropped.load(Ordering::Relaxed) + self.lost + u64::from(unread);
        if let Some(interface) = self.interface
            && dropped > 0
        {
            store.add_dropped(interface, dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use efa_options::capture_output::CaptureOptions;

    use super::*;

    /// A ring of one process that starts with these words.
    fn ring(directory: &Path, head: u64, words: &[u64]) -> PathBuf {
        const CAPACITY: usize = 1 << 16;
        let mut bytes = vec![0; DATA + CAPACITY];
        let mut put =
            |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, MAGIC);
        put(8, CAPACITY as u64);
        put(std::mem::offset_of!(RingHeader, head), head);
        for (index, word) in words.iter().enumerate() {
            put(DATA + 8 * index, *word);
        }
        let path = directory.join(format!("1-0{RING}"));
        fs::write(&path, bytes).unwrap();
        fs::write(directory.join(format!("1-0{OBJECTS}")), "").unwrap();
        path
    }

    fn read(head: u64, words: &[u64]) -> (u64, bool) {
        let directory = tempfile::tempdir().unwrap();
        let capture = directory.path().join("capture");
        let options: CaptureOptions = Options::parse_from(["test"]).options;
        let mut store = Store::create(&capture, &options).unwrap();
        let cut = FrameTruncation {
            snaplen: u32::MAX,
            headers_only: false,
        };
        let mut process = Process::open(&ring(directory.path(), head, words), cut).unwrap();
        process.turn(&mut store, &mut Vec::new()).unwrap();
        (process.taken, process.is_damaged)
    }

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        options: CaptureOptions,
    }

    const VOID: u64 = (kind::VOID as u64) << 32;

    #[test]
    fn records_are_read_up_to_an_unpublished_one() {
        assert_eq!(read(24, &[VOID | 8, VOID | 16, 0]), (24, false));
        assert_eq!(read(32, &[VOID | 8, VOID | 16, 0, 0]), (24, false));
        assert_eq!(read(8, &[VOID | 8, VOID | 16]), (8, false));
    }

    #[test]
    fn lengths_that_make_no_sense_end_the_reading() {
        for length in [1, 12, 1 << 17, u64::from(u32::MAX)] {
            assert_eq!(read(1 << 20, &[VOID | 8, VOID | length]), (8, true));
        }
        // A record that claims more data than it has.
        assert_eq!(read(96, &[u64::from(kind::SEND) << 32 | 96]), (96, false));
    }
}
