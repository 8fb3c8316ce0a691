//! Turns requests, their data and their answers into the frames of a capture.

use std::time::Duration;

use efa_wire::Status;
use efa_wire::address::Gid;

use super::{CaptureTap, Direction, InterfaceId};
use crate::frame::{self, Frame, Repr};
use efa_device_model::link::{Operation, RequestHeader};

/// The time and place at which a frame was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturePoint {
    /// The interface that saw it.
    pub interface: InterfaceId,
    /// Time since the Unix epoch, or since the start of the simulation.
    pub time: Duration,
    /// Whether the interface's host sent or received it.
    pub direction: Direction,
}

/// The ends and the path of frames in the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The GID of the host that sends them.
    pub source: Gid,
    /// The GID of the host that receives them.
    pub destination: Gid,
    /// The number of the frames' path.
    pub path: u16,
}

/// The data of a request, to be copied into frames.
pub trait RequestData {
    /// Fills `into` with the data's bytes from `offset` on. Returns whether that succeeded; if not,
    /// the frame is recorded without its payload.
    fn read(&mut self, offset: u32, into: &mut [u8]) -> bool;
}

impl RequestData for &[u8] {
    fn read(&mut self, offset: u32, into: &mut [u8]) -> bool {
        let bytes = self
            .get(offset as usize..)
            .and_then(|bytes| bytes.get(..into.len()));
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
}

impl<F: FnMut(u32, &mut [u8]) -> bool> RequestData for F {
    fn read(&mut self, offset: u32, into: &mut [u8]) -> bool {
        self(offset, into)
    }
}

/// Makes frames of requests, of their data and of their answers, and passes them to a tap.
#[derive(Debug)]
pub struct Recorder<T> {
    tap: T,
    mtu: usize,
    longest_rdma: u32,
    payload: Vec<u8>,
}

impl<T: CaptureTap> Recorder<T> {
    /// RDMA operations longer than this many bytes are recorded without their data, unless
    /// [`Self::with_longest_rdma`] sets another limit.
    pub const LONGEST_RDMA: u32 = 16 << 20;

    /// Records into `tap`. RDMA data is cut into frames of `mtu` bytes.
    pub fn new(tap: T, mtu: usize) -> Self {
        let mtu = mtu.clamp(1, frame::MAX_PAYLOAD);
        Recorder {
            tap,
            mtu,
            longest_rdma: Self::LONGEST_RDMA,
            payload: Vec::new(),
        }
    }

    /// Records RDMA operations of more than `longest` bytes as one frame without data.
    pub fn with_longest_rdma(mut self, longest: u32) -> Self {
        self.longest_rdma = longest;
        self
    }

    /// The tap.
    pub fn tap(&self) -> &T {
        &self.tap
    }

    /// The tap, to change it.
    pub fn tap_mut(&mut self) -> &mut T {
        &mut self.tap
    }

    /// Returns the tap.
    pub fn into_tap(self) -> T {
        self.tap
    }

    /// Records a request that leaves the initiator: the frames of a send, datagram or RDMA write
    /// with their data, or the request of an RDMA read. `retransmission` marks later attempts.
    pub fn request(
        &mut self,
        moment: CapturePoint,
        route: Route,
        request: &RequestHeader,
        retransmission: bool,
        data: &mut dyn RequestData,
    ) {
        let of_piece = |offset, length| {
            let last = offset + length == request.length || length == 0;
            let mut header = Repr::of_request(request, offset, length);
            header.retransmission = retransmission;
            // As on InfiniBand, the last frame of a write carries the immediate data.
            header.immediate = header.immediate.filter(|_| last);
            header
        };
        match request.operation {
            Operation::RdmaRead => {
                self.piece(moment, route, of_piece(0, 0), 0, data);
            }
            Operation::Send | Operation::Datagram => {
                self.piece(moment, route, of_piece(0, request.length), 0, data);
            }
            Operation::RdmaWrite => self.pieces(moment, route, request, &of_piece, data),
            Operation::Connected => self.packet(moment, route, request.length, data),
        }
    }

    /// Records the data of an RDMA read that leaves the responder. The route begins at the
    /// responder.
    pub fn read_data(
        &mut self,
        moment: CapturePoint,
        route: Route,
        request: &RequestHeader,
        data: &mut dyn RequestData,
    ) {
        let of_piece = |offset, length| Repr::of_read_data(request, offset, length);
        self.pieces(moment, route, request, &of_piece, data);
    }

    /// Records the answer that ends a request. The route begins at the responder.
    pub fn status(
        &mut self,
        moment: CapturePoint,
        route: Route,
        request: &RequestHeader,
        status: Status,
    ) {
        let mut none: &[u8] = &[];
        self.piece(
            moment,
            route,
            Repr::of_status(request, status),
            0,
            &mut none,
        );
    }

    /// Records a packet of a reliable connection, which has different headers.
    fn packet(
        &mut self,
        moment: CapturePoint,
        route: Route,
        length: u32,
        data: &mut dyn RequestData,
    ) {
        let length = (length as usize).min(frame::LONGEST_PACKET);
        self.payload.resize(length, 0);
        if !data.read(0, &mut self.payload) {
            return;
        }
        let Route {
            source,
            destination,
            path,
        } = route;
        let bytes = frame::roce_frame(source, destination, path, &self.payload);
        self.tap
            .raw(moment.interface, moment.time, moment.direction, &bytes);
    }

    fn pieces(
        &mut self,
        moment: CapturePoint,
        route: Route,
        request: &RequestHeader,
        of_piece: &dyn Fn(u32, u32) -> Repr,
        data: &mut dyn RequestData,
    ) {
        let total = request.length;
        if total > self.longest_rdma {
            let header = Repr {
                payload_captured: false,
                ..of_piece(0, total)
            };
            return self.piece(moment, route, header, 0, data);
        }
        let mut offset = 0;
        loop {
            let length = (total - offset).min(self.mtu as u32);
            self.piece(moment, route, of_piece(offset, length), offset, data);
            offset += length;
            if offset == total {
                break;
            }
        }
    }

    fn piece(
        &mut self,
        moment: CapturePoint,
        route: Route,
        mut header: Repr,
        offset: u32,
        data: &mut dyn RequestData,
    ) {
        header.path = route.path;
        header.payload_captured &= header.payload_length as usize <= frame::MAX_PAYLOAD;
        if header.payload_captured {
            self.payload.resize(header.payload_length as usize, 0);
            header.payload_captured = data.read(offset, &mut self.payload);
        }
        let frame = Frame {
            source: route.source,
            destination: route.destination,
            header,
            payload: &self.payload[..header.captured_len()],
        };
        self.tap
            .frame(moment.interface, moment.time, moment.direction, &frame);
    }
}
