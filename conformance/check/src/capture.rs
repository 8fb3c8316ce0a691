//! Captures of the emulated wire.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use efa_capture::frame::{self, Frame, OUTER_LEN, Repr};
use efa_capture::{Direction, ReadError, Reader};
use efa_wire::address::{Gid, Qpn};
use efa_wire::{Header, Packet, PacketType};
use foldhash::HashSet;

use crate::roce::ConnectedPacket;

/// The offset of the UDP checksum in an IPv6 packet: the two bytes before the transport header.
const CHECKSUM: std::ops::Range<usize> = OUTER_LEN - 16..OUTER_LEN - 14;

/// A capture whose frames are all in memory.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The file.
    pub path: PathBuf,
    /// The hosts' names, by interface.
    pub interfaces: Vec<String>,
    /// The frames, in file order.
    pub frames: Vec<CapturedPacket>,
    /// Damage of the file that does not prevent reading it.
    pub damage: Vec<String>,
    /// Indices of the interfaces that lost frames.
    pub lossy: Vec<usize>,
}

/// One frame of a capture.
#[derive(Clone, Debug)]
pub struct CapturedPacket {
    /// The frame's number in the capture, from 1 as in Wireshark.
    pub number: u64,
    /// Index of the interface that recorded it.
    pub interface: usize,
    /// The time since the Unix epoch or the start of a simulation.
    pub time: Duration,
    /// The direction at the interface.
    pub direction: Option<Direction>,
    /// Comments.
    pub comments: Vec<String>,
    /// The sender's GID.
    pub source: Gid,
    /// The receiver's GID.
    pub destination: Gid,
    /// The transport header.
    pub header: Repr,
    /// Whether it is sent to a queue pair that receives messages without the RDM header, according
    /// to an earlier HANDSHAKE.
    pub headerless: bool,
    /// The bytes after the transport header.
    pub payload: Vec<u8>,
    /// Number of payload bytes at the end that the capture's snap length cut off. They are replaced
    /// by zeros.
    pub cut_off: usize,
}

impl CapturedPacket {
    /// Returns its RDM packet, if it is a send with the RDM header.
    pub fn rdm(&self) -> Option<&[u8]> {
        let is_packet = matches!(self.header.kind, frame::FrameKind::Send) && !self.headerless;
        is_packet.then_some(&self.payload[..])
    }

    /// Returns the captured part of the payload.
    pub fn there(&self) -> &[u8] {
        &self.payload[..self.payload.len() - self.cut_off]
    }

    /// Returns the type of its RDM packet, if the type is assigned.
    pub fn packet_type(&self) -> Option<PacketType> {
        self.rdm().and_then(|_| PacketType::peek(self.there()))
    }

    /// Returns the name of the RDM packet's type, or of the transport's operation.
    pub fn kind(&self) -> String {
        match (self.rdm(), self.packet_type()) {
            (Some(_), Some(packet_type)) => packet_type.to_string(),
            (Some(_), None) => match self.there().first() {
                Some(code) => format!("packet of unassigned type {code}"),
                None => "empty packet".into(),
            },
            (None, _) if self.headerless => "message without header".into(),
            (None, _) => self.header.kind.opcode().to_string(),
        }
    }
}

/// The queue pairs that receive messages without the RDM header, according to the frames of a
/// capture so far.
#[derive(Default)]
pub(crate) struct UserRecvQps(HashSet<(Gid, Qpn)>);

impl UserRecvQps {
    /// Updates the set from a frame; returns whether the frame is sent to such a queue pair.
    pub(crate) fn follow(&mut self, frame: &CapturedPacket) -> bool {
        if frame.header.kind != frame::FrameKind::Send {
            return false;
        }
        let (from, to) = (frame.header.source_qpn, frame.header.destination_qpn);
        if !self.0.is_empty() {
            // Such a queue pair only receives, so the sender is a new queue pair with the same
            // number.
            self.0.remove(&(frame.source, from));
            if self.0.contains(&(frame.destination, to)) {
                return true;
            }
        }
        if frame.cut_off == 0
            && PacketType::peek(&frame.payload) == Some(PacketType::Handshake)
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

/// A captured item: a frame of the emulated wire, or a packet of a reliable connection.
pub enum CapturedItem {
    /// A frame of the emulated wire.
    Frame(Box<CapturedPacket>),
    /// A packet of a reliable connection.
    Connected(ConnectedPacket),
}

/// Reads a capture frame by frame, in file order.
pub struct Frames<R: Read> {
    reader: Reader<R>,
    /// Whether RDMA data is copied as well.
    with_rdma_data: bool,
    /// A frame whose memory is used again.
    spare: Option<Box<CapturedPacket>>,
    damage: Vec<String>,
    damaged: u64,
    foreign: u64,
}

/// Minimum capacity of a payload in bytes, so that an allocation can be reused for most other
/// payloads.
const SMALL: usize = 128;
/// The number of damaged frames that are reported one by one.
const MOST_DAMAGE: usize = 20;

impl Frames<BufReader<File>> {
    /// Opens a capture file.
    ///
    /// # Errors
    /// If the file is not a capture.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Ok(Frames::new(Reader::open(path)?))
    }
}

impl<R: Read> Frames<R> {
    /// Reads the remaining frames of a reader.
    pub fn new(reader: Reader<R>) -> Self {
        Frames {
            reader,
            with_rdma_data: true,
            spare: None,
            damage: Vec::new(),
            damaged: 0,
            foreign: 0,
        }
    }

    /// Excludes RDMA data.
    #[must_use]
    pub fn without_rdma_data(mut self) -> Self {
        self.with_rdma_data = false;
        self
    }

    /// Uses the memory of a frame for the next one.
    pub fn reuse(&mut self, frame: Option<Box<CapturedPacket>>) {
        self.spare = frame.or(self.spare.take());
    }

    /// Returns the next frame of the emulated wire. Frames of other protocols, including reliable
    /// connections, are counted. Unreadable frames are damage.
    ///
    /// # Errors
    /// If reading the file fails.
    pub fn next_frame(&mut self) -> Result<Option<Box<CapturedPacket>>, ReadError> {
        loop {
            match self.next_item()? {
                Some(CapturedItem::Frame(frame)) => return Ok(Some(frame)),
                Some(CapturedItem::Connected(_)) => self.foreign += 1,
                None => return Ok(None),
            }
        }
    }

    /// As [`Frames::next_frame`], and packets of reliable connections.
    ///
    /// # Errors
    /// If reading the file fails.
    pub fn next_item(&mut self) -> Result<Option<CapturedItem>, ReadError> {
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
                // The checksum shows that the packet was changed; the fields will show where.
                Err(error @ frame::Error::Checksum { .. }) => {
                    damage(&error);
                    repaired.extend_from_slice(captured.bytes);
                    // Zero means "no checksum".
                    repaired[CHECKSUM].fill(0);
                    match Frame::parse_packet(&repaired, captured.original_len) {
                        Ok(frame) => frame,
                        Err(error) => {
                            damage(&error);
                            continue;
                        }
                    }
                }
                Err(frame::Error::Foreign { .. }) => {
                    let found = frame::roce_packet(captured.bytes, captured.original_len);
                    if let Some(found) = found {
                        return Ok(Some(CapturedItem::Connected(ConnectedPacket {
                            number,
                            interface: captured.interface.0 as usize,
                            time: captured.time,
                            direction: captured.direction,
                            comments: captured.comments.iter().map(|c| c.to_string()).collect(),
                            source: found.source,
                            destination: found.destination,
                            packet: found.packet.to_vec(),
                            length: found.length,
                        })));
                    }
                    self.foreign += 1;
                    continue;
                }
                Err(error) => {
                    damage(&error);
                    continue;
                }
            };
            let is_rdma = frame.header.kind.rdma().is_some();
            let spare = self.spare.take();
            let (mut comments, mut payload) = (Vec::new(), Vec::new());
            let place = spare.map(|mut spare| {
                comments = std::mem::take(&mut spare.comments);
                payload = std::mem::take(&mut spare.payload);
                spare
            });
            comments.clear();
            comments.extend(captured.comments.iter().map(ToString::to_string));
            let length = match is_rdma && !self.with_rdma_data {
                true => 0,
                false => frame.header.captured_len(),
            };
            // A holder of many frames counts their bytes.
            if payload.capacity() > 2 * length.max(SMALL) {
                payload = Vec::new();
            }
            payload.clear();
            let mut cut_off = 0;
            if length > 0 {
                payload.reserve_exact(length.max(SMALL));
                payload.extend_from_slice(frame.payload);
                cut_off = length - payload.len();
                payload.resize(length, 0);
            }
            let read = CapturedPacket {
                number,
                interface: captured.interface.0 as usize,
                time: captured.time,
                direction: captured.direction,
                comments,
                source: frame.source,
                destination: frame.destination,
                headerless: false,
                header: frame.header,
                payload,
                cut_off,
            };
            let frame = match place {
                Some(mut place) => {
                    *place = read;
                    place
                }
                None => Box::new(read),
            };
            return Ok(Some(CapturedItem::Frame(frame)));
        }
        Ok(None)
    }

    /// Returns the names of the interfaces, after the last frame.
    pub fn interfaces(&self) -> Vec<String> {
        let names = self.reader.interfaces().iter().enumerate();
        names
            .map(|(index, interface)| {
                let name = interface.name.clone();
                name.unwrap_or_else(|| format!("interface {index}"))
            })
            .collect()
    }

    /// Returns the number of frames of other protocols than the emulated wire, so far.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Returns the number of blocks of the file without known frames, so far.
    pub fn skipped_blocks(&self) -> u64 {
        self.reader.skipped_blocks()
    }

    /// Returns the indices of the interfaces that lost frames, after the last frame.
    pub fn lossy(&self) -> Vec<usize> {
        let interfaces = self.reader.interfaces().iter().enumerate();
        interfaces
            .filter(|(_, interface)| interface.counts.is_some_and(|counts| counts.dropped > 0))
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns the damage that did not prevent reading the file, after the last frame.
    pub fn damage(&self) -> Vec<String> {
        let mut damage = self.damage.clone();
        let more = self.damaged - self.damage.len() as u64;
        if more > 0 {
            damage.push(format!("{more} more frames are damaged"));
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
    /// Reads a whole capture. Frames that are not of the emulated wire are skipped.
    pub fn load(path: &Path) -> Result<Self, ReadError> {
        let mut source = Frames::open(path)?;
        let mut frames = Vec::new();
        let mut user_recv = UserRecvQps::default();
        while let Some(mut frame) = source.next_frame()? {
            frame.headerless = user_recv.follow(&frame);
            frames.push(*frame);
        }
        Ok(Capture {
            path: path.to_owned(),
            interfaces: source.interfaces(),
            frames,
            damage: source.damage(),
            lossy: source.lossy(),
        })
    }

    /// Returns each sent frame once: the outbound ones, or all if no direction is known.
    pub fn sent(&self) -> impl Iterator<Item = &CapturedPacket> {
        self.frames
            .iter()
            .filter(|frame| frame.direction != Some(Direction::Inbound))
    }
}

#[cfg(test)]
mod tests {
    use efa_wire::address::Qkey;
    use efa_wire::{ExtraFeatures, Handshake, Repr as _, UserRecvQp};

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
                source_qpn: Qpn(from),
                destination_qpn: Qpn(to),
                ..Repr::new(frame::FrameKind::Send, payload.len())
            },
            payload: payload.to_vec(),
            cut_off: 0,
        }
    }

    #[test]
    fn handshake_names_the_headerless_queue_pair() {
        let handshake = Handshake {
            extra_info: ExtraFeatures::USER_RECV_QP.into(),
            user_recv_qp: Some(UserRecvQp {
                qpn: 7,
                qkey: Qkey(0),
            }),
            ..Handshake::default()
        };
        let handshake = &handshake.to_packet(b"");
        let mut known = UserRecvQps::default();
        let message = send(SENDER, 1, RECEIVER, 7, b"nothing but data");
        assert!(!known.follow(&message));
        assert!(!known.follow(&send(RECEIVER, 2, SENDER, 1, handshake)));
        assert!(known.follow(&message));
        assert!(!known.follow(&send(SENDER, 1, RECEIVER, 2, b"")));
        // A queue pair of another host, and a later one with the same number.
        assert!(!known.follow(&send(RECEIVER, 2, SENDER, 7, b"")));
        assert!(!known.follow(&send(RECEIVER, 7, SENDER, 1, b"")));
        assert!(!known.follow(&message));
    }
}
