//! The volume of data between hosts, from captures.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use efa_capture::frame::{FrameKind, RocePacket, roce_packet};
use efa_capture::{Direction, Reader};

use super::not_measured::{NotMeasured, failed};

/// Volume of frames from a host to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Volume {
    /// SRD sends.
    pub(crate) sends: u64,
    /// UD sends.
    pub(crate) datagrams: u64,
    /// Frames with data of RDMA reads, sent by the responder.
    pub(crate) reads: u64,
    /// Frames with data of RDMA writes.
    pub(crate) writes: u64,
    /// Packets of reliable connections.
    pub(crate) connected: u64,
    /// Bytes of data in all these frames, for packets of connections including their headers.
    pub(crate) bytes: u64,
}

impl Volume {
    pub(crate) fn frames(&self) -> u64 {
        self.sends + self.datagrams + self.reads + self.writes + self.connected
    }

    /// The volumes that each host of a capture sent to others, by host name.
    pub(crate) fn of_hosts(capture: &Path) -> Result<BTreeMap<String, Self>, NotMeasured> {
        let mut hosts: BTreeMap<String, Self> = BTreeMap::new();
        for (device, volume) in Self::of_devices(capture)? {
            let host = device
                .split_once(':')
                .map_or(device.as_str(), |(host, _)| host);
            *hosts.entry(host.to_owned()).or_default() += volume;
        }
        Ok(hosts)
    }

    /// The volumes that each device of a capture sent to others, by host name, followed by the
    /// index of the device (`node0:1`) if the host has several.
    pub(crate) fn of_devices(capture: &Path) -> Result<BTreeMap<String, Self>, NotMeasured> {
        let mut reader = Reader::open(capture).map_err(NotMeasured::failed)?;
        let mut volumes: Vec<Self> = Vec::new();
        while let Some(captured) = reader.next_frame().map_err(NotMeasured::failed)? {
            let roce = roce_packet(captured.bytes, captured.original_len);
            let device = captured.interface.0 as usize;
            if volumes.len() <= device {
                volumes.resize(device + 1, Volume::default());
            }
            let volume = &mut volumes[device];
            let is_outbound = captured.direction == Some(Direction::Outbound);
            if let Some(RocePacket {
                source,
                destination,
                packet,
                ..
            }) = roce
            {
                if is_outbound && source != destination {
                    volume.connected += 1;
                    volume.bytes += packet.len() as u64;
                }
                continue;
            }
            let frame = captured.frame.map_err(|error| {
                failed!("{}: frame {}: {error}", capture.display(), captured.number)
            })?;
            if !is_outbound || frame.source == frame.destination {
                continue;
            }
            match frame.header.kind {
                FrameKind::Send => volume.sends += 1,
                FrameKind::Datagram => volume.datagrams += 1,
                FrameKind::RdmaReadResponse(_) => volume.reads += 1,
                FrameKind::RdmaWrite(_) => volume.writes += 1,
                FrameKind::RdmaReadRequest(_) | FrameKind::Response(_) => continue,
            }
            volume.bytes += frame.payload.len() as u64;
        }
        let interfaces = reader.interfaces();
        volumes.resize(interfaces.len(), Volume::default());
        let mut by_name = BTreeMap::new();
        for (index, (interface, volume)) in interfaces.iter().zip(volumes).enumerate() {
            let name = interface.name.clone();
            let name = name.unwrap_or_else(|| format!("interface {index}"));
            *by_name.entry(name).or_default() += volume;
        }
        Ok(by_name)
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
        self.connected += other.connected;
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
            (self.connected, "packets of connections"),
        ] {
            if count > 0 {
                write!(f, "{count} {name}, ")?;
            }
        }
        write!(f, "{} KiB between hosts", self.bytes / 1024)
    }
}
