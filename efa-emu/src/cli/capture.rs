//! `efa-emu capture`: records a fabric while it runs.
//!
//! The command takes part in every host of the fabric and asks its devices to record into a file,
//! from which it moves the frames into one capture with an interface per host. When it ends, even by
//! a kill, the devices stop recording.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use efa_core::address::Gid;
use efa_emu::capture::{FollowedFrame, Follower, Interface, InterfaceId, Writer};
use efa_emu::transport::{DEFAULT_FABRIC, Fabric, Host, HostStatus};

use super::Failure;
use super::signals::Signals;

/// Time between two looks at the fabric and at what the devices have recorded.
const TICK: Duration = Duration::from_millis(100);

/// A host's file lies in memory: after this many bytes another one is begun.
const LONGEST_FILE: u64 = 16 << 20;

/// For how long devices may go on writing into a file after another one was begun. They look for
/// a new one about ten times a second.
const CHANGEOVER: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct CaptureArguments {
    /// The fabric to record.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_FABRIC)]
    fabric: String,
    /// Write to this file (pcapng) instead of standard output, which may be piped into
    /// `wireshark -k -i -`.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
}

impl CaptureArguments {
    pub(super) fn execute(self) -> Result<ExitCode, Failure> {
        let sink = self.sink()?;
        let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        let mut recording = Recording::begin(&self.fabric, sink)?;
        let outcome = loop {
            let ended = signals.wait_for(TICK).is_some();
            if let Err(error) = recording.turn() {
                break Err(error);
            }
            if ended {
                break Ok(());
            }
        };
        match outcome.and_then(|()| recording.end()) {
            Ok(summary) => {
                eprintln!("efa-emu: {summary}");
                Ok(ExitCode::SUCCESS)
            }
            // Whoever read the capture has seen enough.
            Err(Trouble::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            Err(Trouble::Output(error)) => {
                let target = self
                    .write
                    .as_deref()
                    .unwrap_or(Path::new("standard output"));
                Err(Failure(format!(
                    "cannot write to {}: {error}",
                    target.display()
                )))
            }
            Err(Trouble::Fabric(reason)) => Err(reason),
        }
    }

    fn sink(&self) -> Result<Box<dyn Write>, Failure> {
        match &self.write {
            Some(path) => match File::create(path) {
                Ok(file) => Ok(Box::new(BufWriter::new(file))),
                Err(error) => Err(Failure(format!(
                    "cannot create {}: {error}",
                    path.display()
                ))),
            },
            None if io::stdout().is_terminal() => Err(Failure(
                "a capture is no text for a terminal: name a file with -w, or pipe it into \
                 `wireshark -k -i -`"
                    .to_owned(),
            )),
            None => Ok(Box::new(BufWriter::new(io::stdout()))),
        }
    }
}

/// Why a recording ends.
enum Trouble {
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
    /// Files that devices may still write into, and until when.
    retired: Vec<(Follower, Instant)>,
    /// Frames that the files before those lack.
    dropped: u64,
}

struct Recording {
    fabric: Fabric,
    writer: Writer<Box<dyn Write>>,
    hosts: HashMap<Gid, Recorded>,
    /// Interfaces stay declared after their hosts have gone, and are used again if they come back.
    interfaces: HashMap<(String, Gid), InterfaceId>,
    frames: Vec<(InterfaceId, FollowedFrame)>,
}

impl Recording {
    fn begin(fabric: &str, sink: Box<dyn Write>) -> Result<Recording, Failure> {
        let fabric = Fabric::open(fabric)?;
        let mut writer = Writer::new(sink)?;
        // A reader at the other end of a pipe waits for the start of the capture.
        writer.flush()?;
        Ok(Recording {
            fabric,
            writer,
            hosts: HashMap::new(),
            interfaces: HashMap::new(),
            frames: Vec::new(),
        })
    }

    /// Follows the fabric's changes, and moves what was recorded into the capture.
    fn turn(&mut self) -> Result<(), Trouble> {
        let hosts = self.fabric.hosts()?;
        self.join_new(&hosts)?;
        for recorded in self.hosts.values_mut() {
            recorded.read(&mut self.frames)?;
            recorded.drop_retired()?;
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
                .enter_host(Some(&status.name), Some(status.gid), queue_pairs)?;
            let interface = Interface {
                host: status.name.clone(),
                profile: String::new(),
                gid: status.gid,
            };
            let file = host.request_capture(&interface)?;
            let id = self.declare(&interface)?;
            let recorded = Recorded {
                host,
                interface,
                id,
                current: Follower::open(&file)?,
                retired: Vec::new(),
                dropped: 0,
            };
            self.hosts.insert(status.gid, recorded);
        }
        Ok(())
    }

    fn declare(&mut self, interface: &Interface) -> Result<InterfaceId, Trouble> {
        let key = (interface.host.clone(), interface.gid);
        if let Some(id) = self.interfaces.get(&key) {
            return Ok(*id);
        }
        let id = self
            .writer
            .add_interface(interface)
            .map_err(Trouble::Output)?;
        self.interfaces.insert(key, id);
        Ok(id)
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
            self.writer
                .copy(interface, &frame)
                .map_err(Trouble::Output)?;
        }
        self.writer.flush().map_err(Trouble::Output)
    }

    fn end(mut self) -> Result<String, Trouble> {
        for (_, recorded) in std::mem::take(&mut self.hosts) {
            recorded.finish(&mut self.frames, &mut self.writer)?;
        }
        self.write_frames()?;
        let counts = self.interfaces.values().map(|id| self.writer.counts(*id));
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
        for (follower, _) in &mut self.retired {
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
        self.retired.push((previous, Instant::now() + CHANGEOVER));
        Ok(())
    }

    /// Gives up files that no device writes into any more.
    fn drop_retired(&mut self) -> io::Result<()> {
        let now = Instant::now();
        for (follower, _) in self.retired.extract_if(.., |(_, until)| *until < now) {
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
        for (follower, _) in &self.retired {
            dropped += follower.dropped()?;
        }
        writer.add_dropped(self.id, dropped);
        Ok(())
    }
}

/// Whether nobody but this process takes part in the host.
fn is_deserted(host: &HostStatus) -> bool {
    let own = std::process::id() as i32;
    host.participants
        .iter()
        .all(|participant| participant.pid == own)
}
