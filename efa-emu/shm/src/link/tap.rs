//! The events that a device's links report to its capture.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use efa_core::address::Gid;
use efa_core::nic::Status;

use super::memory;
use crate::fabric::capture_files::CaptureFiles;
use efa_capture::{CapturePoint, Direction, InterfaceId, Recorder, RequestData, Route};
use efa_device_model::link::{HostSegment, LocalData, Operation, RequestHeader, Token};
use efa_lock_free::record::Record;

/// A request of this device that is not answered.
#[derive(Clone, Copy, Debug)]
struct UnansweredRequest {
    to: Gid,
    path: u16,
    header: RequestHeader,
}

/// Records outgoing and incoming frames of one device.
#[derive(Debug)]
pub(crate) struct LinkTap {
    recorder: Recorder<CaptureFiles>,
    own: Gid,
    sent: HashMap<Token, UnansweredRequest>,
}

/// This moment, for a frame in this direction.
pub(crate) fn now(direction: Direction) -> CapturePoint {
    // A clock before 1970 is not worth an error.
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    CapturePoint {
        interface: InterfaceId::FIRST,
        time: time.unwrap_or(Duration::ZERO),
        direction,
    }
}

/// Registered memory that contains a request's data, or a part of it, somewhere.
struct RegisteredData<'a>(LocalData<'a>);

impl RequestData for RegisteredData<'_> {
    fn read(&mut self, offset: u32, into: &mut [u8]) -> bool {
        memory::copy_in(self.0, offset, into)
    }
}

impl LinkTap {
    /// Records into `files`; `mtu` is the device's.
    pub(crate) fn new(files: CaptureFiles, own: Gid, mtu: u32) -> LinkTap {
        LinkTap {
            recorder: Recorder::new(files, mtu as usize),
            own,
            sent: HashMap::new(),
        }
    }

    fn outbound(&self, to: Gid, path: u16) -> Route {
        Route {
            source: self.own,
            destination: to,
            path,
        }
    }

    fn inbound(&self, from: Gid, path: u16) -> Route {
        Route {
            source: from,
            destination: self.own,
            path,
        }
    }

    /// A request left, at `moment`: the receiver may have answered it by now.
    pub(crate) fn sent(
        &mut self,
        moment: CapturePoint,
        to: Gid,
        token: Token,
        record: &Record,
        data: LocalData<'_>,
    ) {
        let header = record.header();
        let path = record.path();
        // The outcome of a connection's packet is in other packets.
        if header.operation != Operation::Connected {
            self.sent
                .insert(token, UnansweredRequest { to, path, header });
        }
        let route = self.outbound(to, path);
        let mut data = RegisteredData(data);
        self.recorder
            .request(moment, route, &header, header.retries > 0, &mut data);
    }

    /// Records that the outcome of a request arrived. `memory` now contains a read's data. An
    /// outcome that this host's link determined was on no wire and is not recorded.
    pub(crate) fn completed(
        &mut self,
        token: Token,
        status: Status,
        memory: Option<&[HostSegment]>,
    ) {
        let Some(UnansweredRequest { to, path, header }) = self.sent.remove(&token) else {
            return;
        };
        let route = self.inbound(to, path);
        let moment = now(Direction::Inbound);
        match (status, memory) {
            (Status::Ok, Some(memory)) if header.operation == Operation::RdmaRead => {
                let mut data = RegisteredData(LocalData::Segments(memory));
                self.recorder.read_data(moment, route, &header, &mut data);
            }
            (Status::Ok, _) => {}
            (Status::LocalUnreachableRemote | Status::LocalUnresponsiveRemote, _) => {}
            _ => self.recorder.status(moment, route, &header, status),
        }
    }

    /// A request arrives.
    pub(crate) fn received(&mut self, from: Gid, record: &Record, data: &mut dyn RequestData) {
        let route = self.inbound(from, record.path());
        let header = record.header();
        let moment = now(Direction::Inbound);
        self.recorder
            .request(moment, route, &header, header.retries > 0, data);
    }

    /// As [`LinkTap::received`], with data that is in registered memory by now.
    pub(crate) fn received_into(&mut self, from: Gid, record: &Record, memory: HostSegment) {
        let memory = [memory];
        let mut data = RegisteredData(LocalData::Segments(&memory));
        self.received(from, record, &mut data);
    }

    /// Records that the data of a peer's read leaves.
    pub(crate) fn read_data_sent(&mut self, to: Gid, record: &Record, memory: HostSegment) {
        let route = self.outbound(to, record.path());
        let memory = [memory];
        let mut data = RegisteredData(LocalData::Segments(&memory));
        self.recorder
            .read_data(now(Direction::Outbound), route, &record.header(), &mut data);
    }

    /// A peer's request is answered. Only failures are recorded.
    pub(crate) fn answered(&mut self, to: Gid, record: &Record, status: Status) {
        if status != Status::Ok {
            let route = self.outbound(to, record.path());
            self.recorder
                .status(now(Direction::Outbound), route, &record.header(), status);
        }
    }

    /// The files that are recorded into.
    pub(crate) fn files(&mut self) -> &mut CaptureFiles {
        self.recorder.tap_mut()
    }

    /// Ends the device's part of the capture.
    pub(crate) fn close(self) {
        self.recorder.into_tap().close();
    }
}
