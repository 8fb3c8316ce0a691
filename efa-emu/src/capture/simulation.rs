//! Captures of the deterministic network.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Write};
use std::rc::Rc;

use efa_core::address::Gid;
use efa_core::nic::Status;

use super::{Direction, Interface, InterfaceId, Moment, Recorder, Route, Writer};
use crate::link::Operation;
use crate::sim::{self, Fabric, HostId, Stage, TappedFrame};

/// Records what all hosts of a simulated fabric send and receive, from [`SimulationCapture::start`]
/// to [`SimulationCapture::finish`]. Times are virtual.
///
/// The fabric shows requests and answers and not the data of RDMA reads, so the frames that answer
/// a read tell how long the data was without having it. That a request succeeded is recorded for
/// reads, which answer with data; for the others it is implicit.
pub struct SimulationCapture<W: Write> {
    fabric: Fabric,
    inner: Rc<RefCell<Inner<W>>>,
}

struct Inner<W: Write> {
    recorder: Recorder<Writer<W>>,
    names: Box<dyn FnMut(HostId, Gid) -> Interface>,
    interfaces: HashMap<HostId, InterfaceId>,
    error: Option<io::Error>,
}

impl<W: Write + 'static> SimulationCapture<W> {
    /// Begins a capture, in place of the fabric's tap. `names` describes each host when it sends or
    /// receives its first frame. RDMA data is cut into frames of `mtu` bytes.
    pub fn start(
        fabric: &Fabric,
        sink: W,
        mtu: usize,
        names: impl FnMut(HostId, Gid) -> Interface + 'static,
    ) -> io::Result<Self> {
        let inner = Rc::new(RefCell::new(Inner {
            recorder: Recorder::new(Writer::new(sink)?, mtu),
            names: Box::new(names),
            interfaces: HashMap::new(),
            error: None,
        }));
        let tap = Rc::clone(&inner);
        fabric.set_tap(move |frame| tap.borrow_mut().frame(frame));
        Ok(SimulationCapture {
            fabric: fabric.clone(),
            inner,
        })
    }

    /// Ends the capture and gives the sink back. Fails with the first error that the sink made.
    pub fn finish(self) -> io::Result<W> {
        self.fabric.set_tap(|_| {});
        let inner = Rc::into_inner(self.inner).expect("the fabric's tap had the only other handle");
        let inner = inner.into_inner();
        match inner.error {
            Some(error) => Err(error),
            None => inner.recorder.into_tap().finish(self.fabric.now()),
        }
    }
}

impl<W: Write> Inner<W> {
    fn frame(&mut self, tapped: &TappedFrame<'_>) {
        let frame = &tapped.frame;
        let there = Route {
            source: frame.initiator,
            destination: frame.responder,
            path: tapped.path,
        };
        let back = Route {
            source: there.destination,
            destination: there.source,
            ..there
        };
        let route = if frame.stage == Stage::Request {
            there
        } else {
            back
        };
        let (direction, own_gid) = match tapped.direction {
            sim::Direction::Sent => (Direction::Outbound, route.source),
            sim::Direction::Received => (Direction::Inbound, route.destination),
        };
        let Some(interface) = self.interface(tapped.host, own_gid) else {
            return;
        };
        let moment = Moment {
            interface,
            time: tapped.time,
            direction,
        };
        let header = frame.header;
        match frame.status {
            None => {
                let mut data = frame.data;
                let again = frame.retransmissions > 0;
                self.recorder
                    .request(moment, route, header, again, &mut data);
            }
            Some(Status::Ok) if header.operation == Operation::RdmaRead => {
                let mut unknown = |_: u32, _: &mut [u8]| false;
                self.recorder.read_data(moment, route, header, &mut unknown);
            }
            Some(Status::Ok) => {}
            Some(status) => self.recorder.status(moment, route, header, status),
        }
    }

    fn interface(&mut self, host: HostId, gid: Gid) -> Option<InterfaceId> {
        if let Some(interface) = self.interfaces.get(&host) {
            return Some(*interface);
        }
        if self.error.is_some() {
            return None;
        }
        let description = (self.names)(host, gid);
        match self.recorder.tap_mut().add_interface(&description) {
            Ok(interface) => {
                self.interfaces.insert(host, interface);
                Some(interface)
            }
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}
