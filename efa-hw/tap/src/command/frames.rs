//! Makes frames of the emulated wire from the requests and completions of a process.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::time::Duration;

use efa_capture::frame::header::FIRST_TAPPED_SEQUENCE;
use efa_capture::frame::{Frame, MAX_PAYLOAD, OUTER_LEN, Repr};
use efa_capture::{
    CapturePoint, CaptureTap, Direction, FollowedFrame, Interface, InterfaceId, Recorder, Route,
};
use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::Status;
use efa_core::wire::Packet;
use efa_device_model::link::{Operation, RemoteRange, RequestHeader};
use efa_options::capture_output::Store;

use crate::exchange::{ObjectRecord, Record, flag, kind};

/// The maximum number of requests of a queue pair that are stored until they complete. No send
/// queue is longer.
const MOST_REQUESTS: usize = 1 << 14;

/// The data that is excluded from frames.
#[derive(Clone, Copy)]
pub(super) struct FrameTruncation {
    /// The bytes of a frame that are kept.
    pub(super) snaplen: u32,
    /// Whether user data is excluded.
    pub(super) headers_only: bool,
}

/// A device of a process.
pub(super) struct Device {
    gid: Gid,
    mtu: usize,
    pub(super) interface: InterfaceId,
}

impl Device {
    /// Declares the device in the capture, which several processes may have opened: the first one
    /// of the machine by the machine's name, others with their number.
    pub(super) fn declare(
        entry: &ObjectRecord,
        store: &mut Store,
        devices: &mut Vec<Gid>,
    ) -> io::Result<Device> {
        let gid = Gid(entry.gid);
        let index = devices.iter().position(|known| *known == gid);
        let index = index.unwrap_or_else(|| {
            devices.push(gid);
            devices.len() - 1
        });
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let machine = match name.trim() {
            "" => "localhost",
            name => name,
        };
        let length = entry.name.iter().position(|byte| *byte == 0);
        let name = &entry.name[..length.unwrap_or(entry.name.len())];
        let interface = store.declare(&Interface::new(
            match index {
                0 => machine.to_owned(),
                _ => format!("{machine}:{index}"),
            },
            String::from_utf8_lossy(name).into_owned(),
            gid,
        ))?;
        Ok(Device {
            gid,
            mtu: entry.number as usize,
            interface,
        })
    }
}

/// A request that has not failed, and whose data was not read.
struct Request {
    wr_id: u64,
    route: Route,
    header: RequestHeader,
}

#[derive(Default)]
struct QueuePair {
    requests: VecDeque<Request>,
    /// The number of requests that arrived from others.
    arrived: u32,
}

/// Collects the frames of one record.
struct Collector {
    cut: FrameTruncation,
    /// The bytes of the payload that are known.
    known: usize,
    frames: Vec<FollowedFrame>,
}

impl CaptureTap for Collector {
    fn frame(&mut self, _: InterfaceId, time: Duration, direction: Direction, frame: &Frame<'_>) {
        let mut kept = self.known.min(frame.payload.len());
        if self.cut.headers_only {
            kept = kept.min(end_of_headers(frame));
        }
        let snaplen = match kept < frame.payload.len() {
            true => (OUTER_LEN + frame.header.header_len() + kept) as u32,
            false => u32::MAX,
        };
        let snaplen = snaplen.min(self.cut.snaplen);
        self.frames
            .extend(FollowedFrame::new(time, direction, frame, snaplen));
    }

    fn raw(&mut self, _: InterfaceId, _: Duration, _: Direction, _: &[u8]) {
        // Only connections have such frames, and EFA does not support them.
    }
}

/// The offset of the user's data in a payload; 0 if it is not an RDM packet.
fn end_of_headers(frame: &Frame<'_>) -> usize {
    let packet = frame.rdm_packet().map(Packet::parse);
    packet
        .and_then(Result::ok)
        .map_or(0, |packet| packet.payload.offset)
}

/// Makes frames of a process's records.
pub(super) struct Frames {
    devices: HashMap<u32, Device>,
    /// GIDs by the addresses of handles.
    handles: HashMap<u64, Gid>,
    /// GIDs by devices and numbers of handles.
    by_number: HashMap<(u32, u32), Gid>,
    queue_pairs: HashMap<(u32, u32), QueuePair>,
    collector: Collector,
}

impl Frames {
    pub(super) fn new(cut: FrameTruncation) -> Frames {
        Frames {
            devices: HashMap::new(),
            handles: HashMap::new(),
            by_number: HashMap::new(),
            queue_pairs: HashMap::new(),
            collector: Collector {
                cut,
                known: 0,
                frames: Vec::new(),
            },
        }
    }

    pub(super) fn add_device(&mut self, number: u32, device: Device) {
        self.devices.insert(number, device);
    }

    pub(super) fn add_handle(&mut self, entry: &ObjectRecord) {
        let gid = Gid(entry.gid);
        self.handles.insert(entry.handle, gid);
        self.by_number.insert((entry.device, entry.number), gid);
    }

    pub(super) fn add_queue_pair(&mut self, entry: &ObjectRecord) {
        self.queue_pairs
            .insert((entry.device, entry.number), QueuePair::default());
    }

    /// The frames of a record, and their interface. `None` if the record refers to an unknown
    /// device.
    pub(super) fn record(
        &mut self,
        record: &Record,
        data: &[u8],
    ) -> Option<(InterfaceId, &mut Vec<FollowedFrame>)> {
        let device = self.devices.get(&record.device)?;
        let (interface, own, mtu) = (device.interface, device.gid, device.mtu);
        match record.kind {
            kind::SEND | kind::DATAGRAM | kind::READ | kind::WRITE => {
                self.posted(record, data, own, mtu);
            }
            kind::RECEIVED | kind::RECEIVED_DATAGRAM | kind::RECEIVED_WRITE => {
                self.received(record, data, own, mtu);
            }
            kind::COMPLETED => self.completed(record, data, mtu),
            _ => return None,
        }
        Some((interface, &mut self.collector.frames))
    }

    fn posted(&mut self, record: &Record, data: &[u8], own: Gid, mtu: usize) {
        let route = Route {
            source: own,
            destination: self
                .handles
                .get(&record.handle)
                .copied()
                .unwrap_or_default(),
            path: 0,
        };
        let header = RequestHeader {
            operation: match record.kind {
                kind::DATAGRAM => Operation::Datagram,
                kind::READ => Operation::RdmaRead,
                kind::WRITE => Operation::RdmaWrite,
                _ => Operation::Send,
            },
            source_qpn: Qpn(record.qpn as u16),
            destination_qpn: Qpn(record.peer_qpn as u16),
            sequence: record.sequence,
            remote: matches!(record.kind, kind::READ | kind::WRITE)
                .then_some(RemoteRange::new(record.remote_address, record.remote_key)),
            ..header_of(record)
        };
        self.request(
            moment(record, Direction::Outbound),
            route,
            &header,
            data,
            mtu,
        );
        let key = (record.device, record.qpn);
        let requests = &mut self.queue_pairs.entry(key).or_default().requests;
        requests.push_back(Request {
            wr_id: record.wr_id,
            route,
            header,
        });
        if requests.len() > MOST_REQUESTS {
            requests.pop_front();
        }
    }

    fn received(&mut self, record: &Record, data: &[u8], own: Gid, mtu: usize) {
        let pair = self.queue_pairs.entry((record.device, record.qpn));
        let arrived = &mut pair.or_default().arrived;
        let sequence = FIRST_TAPPED_SEQUENCE | *arrived;
        *arrived = arrived.wrapping_add(1);
        let route = Route {
            source: self.sender(record, data),
            destination: own,
            path: 0,
        };
        let header = RequestHeader {
            operation: match record.kind {
                kind::RECEIVED_DATAGRAM => Operation::Datagram,
                kind::RECEIVED_WRITE => Operation::RdmaWrite,
                _ => Operation::Send,
            },
            source_qpn: Qpn(record.peer_qpn as u16),
            destination_qpn: Qpn(record.qpn as u16),
            sequence,
            ..header_of(record)
        };
        let moment = moment(record, Direction::Inbound);
        if record.kind == kind::RECEIVED_WRITE {
            // The device reports that there was a write, its length, and its immediate data.
            let frame = Frame {
                source: route.source,
                destination: route.destination,
                header: Repr {
                    payload_captured: false,
                    ..Repr::of_request(&header, 0, record.data_length)
                },
                payload: &[],
            };
            let collector = &mut self.collector;
            collector.frame(moment.interface, moment.time, moment.direction, &frame);
            return;
        }
        self.request(moment, route, &header, data, mtu);
    }

    /// The sender of a receive: from the completion, or else from the packet itself.
    fn sender(&self, record: &Record, data: &[u8]) -> Gid {
        if record.flags & flag::GID != 0 {
            return Gid(record.gid);
        }
        let number = (record.device, record.handle as u32 & 0xffff);
        let known = self.by_number.get(&number).copied();
        known.unwrap_or_else(|| {
            let mut whole = data.to_vec();
            whole.resize(record.data_length.min(MAX_PAYLOAD as u32) as usize, 0);
            let packet = Packet::parse(&whole).ok();
            let address = packet.and_then(|packet| packet.raw_address());
            address.map(|address| address.gid).unwrap_or_default()
        })
    }

    fn completed(&mut self, record: &Record, data: &[u8], mtu: usize) {
        let Some(pair) = self.queue_pairs.get_mut(&(record.device, record.qpn)) else {
            return;
        };
        // The success of an earlier one with the same id was not recorded.
        let place = pair
            .requests
            .iter()
            .rposition(|request| request.wr_id == record.wr_id);
        let Some(Request { route, header, .. }) =
            place.and_then(|place| pair.requests.remove(place))
        else {
            return;
        };
        let route = Route {
            source: route.destination,
            destination: route.source,
            ..route
        };
        let moment = moment(record, Direction::Inbound);
        let status = u8::try_from(record.status).ok().and_then(Status::from_code);
        match status {
            Some(Status::Ok) if header.operation == Operation::RdmaRead => {
                self.with_recorder(data, mtu, |recorder, data| {
                    recorder.read_data(moment, route, &header, data);
                });
            }
            Some(Status::Ok) => {}
            Some(status) => self.with_recorder(&[], mtu, |recorder, _| {
                recorder.status(moment, route, &header, status);
            }),
            // The status is unknown on the wire: the capture does not show how the request ended.
            None => {}
        }
    }

    fn request(
        &mut self,
        moment: CapturePoint,
        route: Route,
        header: &RequestHeader,
        data: &[u8],
        mtu: usize,
    ) {
        self.with_recorder(data, mtu, |recorder, data| {
            recorder.request(moment, route, header, false, data);
        });
    }

    /// Makes frames with this data by a recorder. The end of the data may be missing.
    fn with_recorder(
        &mut self,
        data: &[u8],
        mtu: usize,
        work: impl FnOnce(&mut Recorder<&mut Collector>, &mut dyn efa_capture::RequestData),
    ) {
        self.collector.known = data.len();
        let mut recorder = Recorder::new(&mut self.collector, mtu);
        let mut read = |offset: u32, into: &mut [u8]| {
            let there = data.get(offset as usize..).unwrap_or_default();
            let known = there.len().min(into.len());
            into[..known].copy_from_slice(&there[..known]);
            into[known..].fill(0);
            known > 0 || into.is_empty()
        };
        work(&mut recorder, &mut read);
    }
}

fn moment(record: &Record, direction: Direction) -> CapturePoint {
    CapturePoint {
        interface: InterfaceId::FIRST,
        time: Duration::from_nanos(record.time),
        direction,
    }
}

/// Common part of requests in both directions.
fn header_of(record: &Record) -> RequestHeader {
    RequestHeader {
        operation: Operation::Send,
        source_qpn: Qpn(0),
        destination_qpn: Qpn(0),
        qkey: Qkey(record.qkey),
        sequence: 0,
        retries: 0,
        immediate: (record.flags & flag::IMMEDIATE != 0).then_some(record.immediate),
        remote: None,
        length: record.data_length,
    }
}
