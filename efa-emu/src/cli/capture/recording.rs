//! Recording a fabric: one capture of all its hosts, with an interface for each.
//!
//! The recording process takes part in every host of the fabric and asks its devices to record into a
//! file, from which it moves the frames into the capture. When it ends, even by a kill, the devices
//! stop recording.
//!
//! The capture's first byte is written when all devices record, so that whoever waits for it misses
//! nothing that happens afterwards. Hosts that come later wait for the recorder before they begin.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use efa_core::address::Gid;
use efa_emu::capture::{FollowedFrame, Follower, Interface, InterfaceId, Writer};
use efa_emu::transport::{DeviceName, Fabric, Host, HostStatus, Recorder};

use super::filter::{Filter, Seen};
use crate::cli::Failure;

/// A host's file lies in memory: after this many bytes another one is begun.
const LONGEST_FILE: u64 = 16 << 20;

/// Files that devices of processes that were stopped may still write into. If there are more, the
/// oldest is given up, since they lie in memory.
const MOST_RETIRED: usize = 8;

/// How long devices have to begin recording; a process that was stopped never does.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time between two looks at whether they have.
const PAUSE: Duration = Duration::from_millis(10);

/// Why a recording fails.
pub(in crate::cli) enum Trouble {
    Output(io::Error),
    Fabric(Failure),
}

impl<E: std::error::Error> From<E> for Trouble {
    fn from(error: E) -> Self {
        Trouble::Fabric(error.into())
    }
}

/// A host that is recorded.
struct Recorded {
    host: Host,
    interface: Interface,
    id: InterfaceId,
    current: Follower,
    /// Files that devices may still write into, the oldest first.
    retired: VecDeque<Follower>,
    /// Frames that the files before those lack.
    dropped: u64,
}

/// A recording that goes on.
pub(in crate::cli) struct Recording {
    fabric: Fabric,
    /// Makes new hosts wait for this process.
    _recorder: Recorder,
    writer: Writer<Box<dyn Write>>,
    filter: Filter,
    hosts: HashMap<Gid, Recorded>,
    /// What the capture declares, in its order. Interfaces stay declared after their hosts have gone,
    /// and are used again if they come back.
    interfaces: Vec<Interface>,
    frames: Vec<(InterfaceId, FollowedFrame)>,
}

impl Recording {
    /// Prepares to record what passes the filter.
    pub(in crate::cli) fn begin(
        fabric: &str,
        sink: Box<dyn Write>,
        filter: Filter,
    ) -> Result<Recording, Failure> {
        let fabric = Fabric::open(fabric)?;
        Ok(Recording {
            _recorder: fabric.announce_recorder()?,
            fabric,
            writer: Writer::new(sink)?,
            filter,
            hosts: HashMap::new(),
            interfaces: Vec::new(),
            frames: Vec::new(),
        })
    }

    /// From now on records what passes this filter.
    pub(in crate::cli) fn set_filter(&mut self, filter: Filter) {
        self.filter = filter;
    }

    /// What the capture declares: the hosts that were seen so far, those that have gone included.
    pub(in crate::cli) fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Begins the capture as soon as all devices record. Returns the processes whose devices do not
    /// within [`PATIENCE`].
    pub(in crate::cli) fn start(&mut self) -> Result<Vec<i32>, Trouble> {
        let started = Instant::now();
        loop {
            let hosts = self.fabric.hosts()?;
            self.join_new(&hosts)?;
            let mut missing = Vec::new();
            for recorded in self.hosts.values() {
                missing.extend(recorded.host.devices_not_recording()?);
            }
            if missing.is_empty() || started.elapsed() > PATIENCE {
                // A reader at the other end of a pipe waits for this.
                self.writer.flush().map_err(Trouble::Output)?;
                return Ok(missing);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Follows the fabric's changes, and moves what was recorded into the capture.
    pub(in crate::cli) fn turn(&mut self) -> Result<(), Trouble> {
        let hosts = self.fabric.hosts()?;
        self.join_new(&hosts)?;
        for recorded in self.hosts.values_mut() {
            recorded.read(&mut self.frames)?;
            recorded.drop_retired(&mut self.frames)?;
            recorded.change_file()?;
        }
        self.leave_deserted(&hosts)?;
        self.write_frames()
    }

    fn join_new(&mut self, hosts: &[HostStatus]) -> Result<(), Trouble> {
        for status in hosts.iter().filter(|status| !is_deserted(status)) {
            if self.hosts.contains_key(&status.gid) {
                continue;
            }
            let queue_pairs = 1;
            let host = self
                .fabric
                .enter_device(&status.name, Some(status.gid), queue_pairs)?;
            let interface = Interface {
                host: status.name.to_string(),
                profile: status.profile.clone().unwrap_or_default(),
                gid: status.gid,
            };
            let file = host.request_capture(&interface)?;
            let id = self.declare(&interface)?;
            let recorded = Recorded {
                host,
                interface,
                id,
                current: Follower::open(&file)?,
                retired: VecDeque::new(),
                dropped: 0,
            };
            self.hosts.insert(status.gid, recorded);
        }
        Ok(())
    }

    fn declare(&mut self, interface: &Interface) -> Result<InterfaceId, Trouble> {
        let known = self.interfaces.iter().position(|known| known == interface);
        if let Some(index) = known {
            return Ok(InterfaceId(index as u32));
        }
        self.interfaces.push(interface.clone());
        self.writer
            .add_interface(interface)
            .map_err(Trouble::Output)
    }

    /// Leaves hosts in which nobody else takes part any more, so that they end.
    fn leave_deserted(&mut self, hosts: &[HostStatus]) -> Result<(), Trouble> {
        for status in hosts.iter().filter(|status| is_deserted(status)) {
            if let Some(recorded) = self.hosts.remove(&status.gid) {
                recorded.finish(&mut self.frames, &mut self.writer)?;
            }
        }
        Ok(())
    }

    /// Writes what was read in the order of time, as far as it is known by now.
    fn write_frames(&mut self) -> Result<(), Trouble> {
        self.frames.sort_by_key(|(_, frame)| frame.time);
        for (interface, frame) in self.frames.drain(..) {
            let host = &self.interfaces[interface.0 as usize].host;
            if !passes(&self.filter, host, &frame) {
                continue;
            }
            self.writer
                .copy(interface, &frame)
                .map_err(Trouble::Output)?;
        }
        self.writer.flush().map_err(Trouble::Output)
    }

    /// Ends the capture; what there was, as a line for the user.
    pub(in crate::cli) fn end(mut self) -> Result<String, Trouble> {
        for (_, recorded) in std::mem::take(&mut self.hosts) {
            recorded.finish(&mut self.frames, &mut self.writer)?;
        }
        self.write_frames()?;
        let ids = (0..self.interfaces.len()).map(|index| InterfaceId(index as u32));
        let counts = ids.map(|id| self.writer.counts(id));
        let (seen, dropped) = counts.fold((0, 0), |(seen, dropped), counts| {
            (seen + counts.seen, dropped + counts.dropped)
        });
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        self.writer.finish(now).map_err(Trouble::Output)?;
        let hosts = self.interfaces.len();
        Ok(format!(
            "{} frames of {hosts} hosts, {dropped} dropped",
            seen - dropped
        ))
    }
}

impl Recorded {
    fn read(&mut self, frames: &mut Vec<(InterfaceId, FollowedFrame)>) -> io::Result<()> {
        let mut new = Vec::new();
        for follower in &mut self.retired {
            follower.read(&mut new)?;
        }
        self.current.read(&mut new)?;
        frames.extend(new.into_iter().map(|frame| (self.id, frame)));
        Ok(())
    }

    /// Begins another file if this one has become long.
    fn change_file(&mut self) -> Result<(), Trouble> {
        if self.current.offset() < LONGEST_FILE {
            return Ok(());
        }
        let file = self.host.request_capture(&self.interface)?;
        let previous = std::mem::replace(&mut self.current, Follower::open(&file)?);
        self.retired.push_back(previous);
        Ok(())
    }

    /// Gives up files that no device writes into any more, after a last look at them.
    fn drop_retired(
        &mut self,
        frames: &mut Vec<(InterfaceId, FollowedFrame)>,
    ) -> Result<(), Trouble> {
        if self.retired.is_empty() {
            return Ok(());
        }
        let kept = if self.host.devices_not_recording()?.is_empty() {
            self.read(frames)?;
            0
        } else {
            MOST_RETIRED
        };
        let given_up = self.retired.len().saturating_sub(kept);
        for follower in self.retired.drain(..given_up) {
            self.dropped += follower.dropped()?;
        }
        Ok(())
    }

    /// Takes what is left.
    fn finish(
        mut self,
        frames: &mut Vec<(InterfaceId, FollowedFrame)>,
        writer: &mut Writer<Box<dyn Write>>,
    ) -> io::Result<()> {
        self.read(frames)?;
        let mut dropped = self.dropped + self.current.dropped()?;
        for follower in &self.retired {
            dropped += follower.dropped()?;
        }
        writer.add_dropped(self.id, dropped);
        Ok(())
    }
}

/// Whether the frame is recorded. What is not of the emulated wire passes the empty filter only.
fn passes(filter: &Filter, host: &str, frame: &FollowedFrame) -> bool {
    if *filter == Filter::All {
        return true;
    }
    let Some((device, (direction, frame))) = DeviceName::parse(host).zip(frame.parse()) else {
        return false;
    };
    filter.accepts(&Seen {
        device: &device,
        direction,
        frame: &frame,
    })
}

/// Whether nobody but this process takes part in the host.
fn is_deserted(host: &HostStatus) -> bool {
    let own = std::process::id() as i32;
    host.participants
        .iter()
        .all(|participant| participant.pid == own)
}
