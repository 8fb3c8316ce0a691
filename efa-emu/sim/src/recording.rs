//! Captures of a fabric's traffic.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use efa_core::nic::Status;

use super::config::HostConfig;
use super::fabric::Fabric;
use super::tap::{TapId, TappedFrame};
use efa_capture::{CapturePoint, InterfaceId, Recorder, Route, Writer};
use efa_device_model::fault::Stage;
use efa_device_model::link::Operation;

/// A running capture; see [`Fabric::capture`].
pub struct Recording<W: Write> {
    fabric: Fabric,
    tap: TapId,
    state: Rc<RefCell<RecordingState<W>>>,
}

/// The options of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CaptureConfig {
    /// Also record the answers that only report the success of a send or write.
    pub acknowledgements: bool,
}

struct RecordingState<W: Write> {
    recorder: Recorder<Writer<W>>,
    /// The capture's interface of each host, by host number.
    interfaces: Vec<InterfaceId>,
    config: CaptureConfig,
    /// The reason why an interface could not be declared.
    error: Option<io::Error>,
}

impl<W: Write + 'static> Recording<W> {
    pub(super) fn start(fabric: &Fabric, sink: W, config: CaptureConfig) -> io::Result<Self> {
        let writer = Writer::new(sink)?;
        let mtu = fabric.largest_mtu();
        let state = Rc::new(RefCell::new(RecordingState {
            recorder: Recorder::new(writer, mtu),
            interfaces: Vec::new(),
            config,
            error: None,
        }));
        let shared = Rc::clone(&state);
        let tap = fabric.add_tap(move |frame| shared.borrow_mut().record(frame));
        Ok(Recording {
            fabric: fabric.clone(),
            tap,
            state,
        })
    }

    /// Ends the capture and returns the sink, or the first error of writing to it.
    pub fn finish(self) -> io::Result<W> {
        self.fabric.remove_tap(self.tap);
        let state = Rc::into_inner(self.state)
            .expect("only the tap shared the recorder, and it is gone")
            .into_inner();
        if let Some(error) = state.error {
            return Err(error);
        }
        state.recorder.into_tap().finish(self.fabric.now())
    }
}

impl<W: Write> RecordingState<W> {
    fn record(&mut self, tapped: &TappedFrame<'_>) {
        if self.error.is_some() {
            return;
        }
        while let Some(interface) = tapped.interfaces.get(self.interfaces.len()) {
            match self.recorder.tap_mut().add_interface(interface) {
                Ok(id) => self.interfaces.push(id),
                Err(error) => {
                    self.error = Some(error);
                    return;
                }
            }
        }
        let moment = CapturePoint {
            interface: self.interfaces[tapped.host.index()],
            time: tapped.time,
            direction: tapped.direction,
        };
        let frame = &tapped.frame;
        let (source, destination) = match frame.stage {
            Stage::Request => (frame.initiator, frame.responder),
            Stage::Answer => (frame.responder, frame.initiator),
        };
        let route = Route {
            source,
            destination,
            path: tapped.path,
        };
        let (header, mut data) = (frame.header, frame.data);
        let recorder = &mut self.recorder;
        match (frame.stage, frame.status) {
            (Stage::Request, _) => {
                recorder.request(moment, route, header, frame.is_repeated(), &mut data);
            }
            (Stage::Answer, Some(Status::Ok)) if header.operation == Operation::RdmaRead => {
                recorder.read_data(moment, route, header, &mut data);
            }
            (Stage::Answer, Some(status)) => {
                if status != Status::Ok || self.config.acknowledgements {
                    recorder.status(moment, route, header, status);
                }
            }
            (Stage::Answer, None) => {}
        }
    }
}

impl Fabric {
    /// Captures all traffic from now on into `sink`, as pcapng with an interface per host.
    pub fn capture<W: Write + 'static>(
        &self,
        sink: W,
        config: CaptureConfig,
    ) -> io::Result<Recording<W>> {
        Recording::start(self, sink, config)
    }

    fn largest_mtu(&self) -> usize {
        let world = self.0.borrow();
        let mtus = world.hosts.iter().map(|host| host.config.profile.mtu);
        mtus.max().unwrap_or(HostConfig::default().profile.mtu) as usize
    }
}
