//! The volume of data between hosts, from captures.

use std::fmt;
use std::path::Path;

use efa_emu::capture::{Direction, Reader};
use efa_emu::frame::Kind;

use crate::harness::Unmet;

/// Frames that left a host for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Volume {
    /// SRD sends.
    pub(super) sends: u64,
    /// UD sends.
    pub(super) datagrams: u64,
    /// Frames with data of RDMA reads, sent by the responder.
    pub(super) reads: u64,
    /// Frames with data of RDMA writes.
    pub(super) writes: u64,
    /// Bytes of data in all these frames.
    pub(super) bytes: u64,
}

impl Volume {
    /// The volumes that the hosts of a capture sent to others, in the order of its interfaces.
    pub(super) fn of_hosts(capture: &Path) -> Result<Vec<Self>, Unmet> {
        let mut reader = Reader::open(capture).map_err(Unmet::failed)?;
        let mut volumes = Vec::new();
        while let Some(captured) = reader.next_frame().map_err(Unmet::failed)? {
            let frame = captured.frame.map_err(|error| {
                Unmet::Failed(format!(
                    "{}: frame {}: {error}",
                    capture.display(),
                    captured.number
                ))
            })?;
            if captured.direction != Some(Direction::Outbound) || frame.source == frame.destination
            {
                continue;
            }
            let host = captured.interface.0 as usize;
            if volumes.len() <= host {
                volumes.resize(host + 1, Volume::default());
            }
            let volume = &mut volumes[host];
            match frame.header.kind {
                Kind::Send => volume.sends += 1,
                Kind::Datagram => volume.datagrams += 1,
                Kind::RdmaReadResponse(_) => volume.reads += 1,
                Kind::RdmaWrite(_) => volume.writes += 1,
                Kind::RdmaReadRequest(_) | Kind::Response(_) => continue,
            }
            volume.bytes += frame.payload.len() as u64;
        }
        volumes.resize(reader.interfaces().len(), Volume::default());
        Ok(volumes)
    }
}

impl std::iter::Sum for Volume {
    fn sum<I: Iterator<Item = Volume>>(volumes: I) -> Volume {
        volumes.fold(Volume::default(), |mut sum, volume| {
            sum += volume;
            sum
        })
    }
}

impl std::ops::AddAssign for Volume {
    fn add_assign(&mut self, other: Volume) {
        self.sends += other.sends;
        self.datagrams += other.datagrams;
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes += other.bytes;
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, name) in [
            (self.sends, "sends"),
            (self.datagrams, "datagrams"),
            (self.reads, "read frames"),
            (self.writes, "write frames"),
        ] {
            if count > 0 {
                write!(f, "{count} {name}, ")?;
            }
        }
        write!(f, "{} KiB between hosts", self.bytes / 1024)
    }
}
