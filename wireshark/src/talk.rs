//! Constructed conversations: captures from the view of one of two endpoints.

use std::time::Duration;

use efa_capture::frame::{Frame, FrameKind, Repr};
use efa_capture::{CaptureTap, Direction, Interface, InterfaceId, Writer};
use efa_core::address::{Qkey, Qpn, RawAddress};
use efa_core::nic::Status;
use efa_core::wire::{Connid, ExtraFeatures, Handshake, Repr as PacketRepr, ReqOptions};
use efa_testing::addresses::gid;

/// One of the two endpoints. The capture is that of `A`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The endpoint that recorded the capture.
    A,
    /// Its peer.
    B,
}

impl End {
    /// Its raw address.
    pub fn address(self) -> RawAddress {
        let last: u8 = if self == End::A { 1 } else { 2 };
        RawAddress {
            gid: gid(last.into()),
            qpn: Qpn(u16::from(last) * 10),
            qkey: Qkey(u32::from(last) * 0x1111),
        }
    }

    /// Its connection id, the same as its Q-key.
    pub fn connid(self) -> Connid {
        Connid(self.address().qkey.0)
    }

    fn other(self) -> End {
        if self == End::A { End::B } else { End::A }
    }

    /// The options of a request before the peer's handshake has come.
    pub fn unknown(self) -> ReqOptions {
        ReqOptions::with_raw_address(self.address())
    }

    /// The options of a request afterwards.
    pub fn known(self) -> ReqOptions {
        ReqOptions::with_connid(self.connid())
    }
}

/// A capture under construction, with a frame every microsecond.
pub struct Talk {
    writer: Writer<Vec<u8>>,
    interface: InterfaceId,
    frames: u32,
    sequence: [u32; 2],
}

impl Talk {
    /// Nothing was sent yet.
    #[expect(
        clippy::new_without_default,
        reason = "a test begins with what it says"
    )]
    pub fn new() -> Talk {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let interface = Interface {
            host: "a".into(),
            profile: "test".into(),
            gid: End::A.address().gid,
        };
        let interface = writer.add_interface(&interface).unwrap();
        Talk {
            writer,
            interface,
            frames: 0,
            sequence: [0; 2],
        }
    }

    /// Both ends have exchanged one message and a handshake each way.
    pub fn acquainted(features: ExtraFeatures) -> Talk {
        let mut talk = Talk::new();
        talk.handshake(End::B, features);
        talk.handshake(End::A, features);
        talk
    }

    /// Sends a HANDSHAKE with these features. Returns the number of its frame.
    pub fn handshake(&mut self, from: End, features: ExtraFeatures) -> u32 {
        let handshake = Handshake {
            extra_info: features.into(),
            connid: Some(from.connid()),
            device_version: Some(0xefa1),
            ..Handshake::default()
        };
        self.packet(from, &handshake, b"")
    }

    /// Sends a packet and returns the frame's number.
    pub fn packet(&mut self, from: End, header: &impl PacketRepr, data: &[u8]) -> u32 {
        self.bytes(from, &header.to_packet(data))
    }

    /// Sends any bytes as a packet.
    pub fn bytes(&mut self, from: End, packet: &[u8]) -> u32 {
        let sequence = self.next_sequence(from);
        self.request(from, FrameKind::Send, sequence, false, packet)
    }

    /// The number of the next request.
    pub fn next_sequence(&mut self, from: End) -> u32 {
        let next = &mut self.sequence[from as usize];
        *next += 1;
        *next - 1
    }

    /// A frame of a request, or of the data that answers one.
    pub fn request(
        &mut self,
        from: End,
        kind: FrameKind,
        sequence: u32,
        retransmission: bool,
        payload: &[u8],
    ) -> u32 {
        let header = Repr {
            sequence,
            retransmission,
            ..self.header(from, kind, payload.len())
        };
        self.frame(from, header, payload)
    }

    /// The header of the next frame, for a test to change.
    pub fn header(&self, from: End, kind: FrameKind, payload: usize) -> Repr {
        Repr {
            source_qpn: from.address().qpn,
            destination_qpn: from.other().address().qpn,
            qkey: from.other().address().qkey,
            sequence: self.sequence[from as usize],
            ..Repr::new(kind, payload)
        }
    }

    /// The device of `from` answers the request `sequence`. Returns the number of the frame.
    pub fn answer(&mut self, from: End, sequence: u32, status: Status) -> u32 {
        self.request(from, FrameKind::Response(status), sequence, false, b"")
    }

    /// Any frame. Returns its number.
    pub fn frame(&mut self, from: End, header: Repr, payload: &[u8]) -> u32 {
        let frame = Frame {
            source: from.address().gid,
            destination: from.other().address().gid,
            header,
            payload,
        };
        let direction = if from == End::A {
            Direction::Outbound
        } else {
            Direction::Inbound
        };
        self.frames += 1;
        let time = Duration::from_micros(self.frames.into());
        self.writer.frame(self.interface, time, direction, &frame);
        self.frames
    }

    /// The capture as a file.
    pub fn capture(self) -> Vec<u8> {
        self.writer.finish(Duration::ZERO).unwrap()
    }
}
