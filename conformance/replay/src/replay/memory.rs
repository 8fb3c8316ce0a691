//! Registered memory in a replay, and RDMA reads of it.

use efa_capture::frame::{FrameKind, Rdma};
use efa_core::nic::Status;
use efa_core::rules;
use efa_play::application::RequestError;
use efa_play::operation::{EndpointIndex, Payload, Remote};
use efa_play::runner::{self, Comparison};

use super::backend::Backend;
use super::frames::{MOST_MEMORY, fetched};
use super::session::{Replay, Stopped};
use crate::compare::{BoundRegion, Finding, iov_entry};

impl<'t, B: Backend> Replay<'t, B> {
    /// Binds memory of `owner` to the memory that the trace's endpoint registered in step `id`.
    pub(super) fn bind(
        &mut self,
        owner: EndpointIndex,
        id: &'t str,
        actual: Remote,
        length: usize,
    ) -> Result<(), Stopped> {
        let Some(&recorded) = self.trace.regions.get(id) else {
            return self.problem(format!(
                "the trace does not say where `{id}` was registered; record it again"
            ));
        };
        self.bindings.bind_region(BoundRegion {
            owner,
            length: length as u64,
            recorded,
            actual,
        });
        Ok(())
    }

    /// Registers memory of a scripted endpoint.
    pub(super) fn register(
        &mut self,
        at: EndpointIndex,
        id: &'t str,
        payload: Payload,
    ) -> Result<Option<Remote>, Stopped> {
        let peer = self.peers.iter_mut().find(|peer| peer.endpoint() == at);
        match peer.map(|peer| peer.register(&payload.bytes())) {
            Some(Ok(remote)) => {
                self.bind(at, id, remote, payload.length)?;
                return Ok(Some(remote));
            }
            Some(Err(error)) => self.problem(format!("`{id}` cannot be registered: {error}"))?,
            None => {}
        }
        Ok(None)
    }

    /// Compares memory of the endpoint under test with a message.
    pub(super) fn compare_memory(&mut self, comparison: Comparison<'t>) -> Result<(), Stopped> {
        let Comparison {
            region,
            token,
            offset,
            payload,
            ..
        } = comparison;
        match self.subject.check(token, offset, payload) {
            Ok(None) => Ok(()),
            Ok(Some(difference)) => self.problem(runner::differs(&comparison, difference)),
            Err(RequestError::Unsupported(text)) => Err(self.unsupported(text)),
            Err(error) => self.problem(format!("memory `{region}` cannot be checked: {error}")),
        }
    }

    /// Makes a scripted endpoint execute a recorded read; `false` if its queue is full.
    pub(super) fn read(&mut self, place: usize, frame: usize, rdma: Rdma) -> Result<bool, Stopped> {
        let remote = self.located(frame, rdma, "reads")?;
        if u64::from(rdma.total_length) > MOST_MEMORY {
            let asks = format!("asks for {} bytes", rdma.total_length);
            return Err(self.unplayable(frame, format!("{asks}; the limit is {MOST_MEMORY}")));
        }
        let length = rdma.total_length as usize;
        let posted = self.peers[place].read(frame, remote, length);
        posted.map_err(|error| self.unplayable(frame, format!("cannot be played: {error}")))
    }

    /// The memory of a recorded request.
    fn located(&mut self, frame: usize, rdma: Rdma, does: &str) -> Result<Remote, Stopped> {
        let recorded = Remote {
            address: rdma.remote.address,
            key: rdma.remote.key.into(),
        };
        let located = self.bindings.locate(self.dut, recorded);
        located.ok_or_else(|| {
            let address = recorded.address;
            let what =
                format!("{does} {address:#x}, which the endpoint under test has not offered");
            self.unplayable(frame, what)
        })
    }

    fn unplayable(&mut self, frame: usize, problem: String) -> Stopped {
        let frame = &self.trace.capture.frames[frame];
        let (number, kind) = (frame.number, frame.kind());
        self.stop(format!("packet {number} ({kind}) of the trace {problem}"))
    }

    /// Compares the data that a scripted endpoint has read with the trace's.
    pub(super) fn has_read(
        &mut self,
        frame: usize,
        result: Result<Vec<u8>, Status>,
    ) -> Result<(), Stopped> {
        let captured = &self.trace.capture.frames[frame];
        let FrameKind::RdmaReadRequest(rdma) = captured.header.kind else {
            return Ok(());
        };
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(status) if self.trace.refused.get(&frame) == Some(&status) => return Ok(()),
            Err(status) => {
                // The endpoint under test offered memory that it does not have.
                let text = format!(
                    "packet {} (RDMA_READ_REQUEST) of the trace was refused: {}",
                    captured.number,
                    status.describe()
                );
                return self.add([Finding::of(&rules::REQUEST_AS_ASKED, text)]);
            }
        };
        let wanted = fetched(
            self.trace,
            self.dut,
            Some(captured),
            rdma.remote.address,
            bytes.len(),
        );
        self.verdict.compared += 1;
        match wanted.iter().zip(&bytes).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => {
                let text = format!(
                    "expected {:#04x} at byte {at}, actual {:#04x}",
                    wanted[at], bytes[at]
                );
                self.add([Finding {
                    packet: Some(captured.number),
                    packet_type: "RDMA_READ_REQUEST".into(),
                    field: "data".into(),
                    ..Finding::of(&rules::DATA_AS_GIVEN, text)
                }])
            }
        }
    }

    /// Makes a scripted endpoint execute a recorded write; `false` if its queue is full.
    pub(super) fn write(
        &mut self,
        place: usize,
        frame: usize,
        rdma: Rdma,
    ) -> Result<bool, Stopped> {
        let remote = self.located(frame, rdma, "writes to")?;
        let (bytes, immediate) = written(self.trace, frame);
        let posted = self.peers[place].write(remote, &bytes, immediate);
        posted.map_err(|error| self.unplayable(frame, format!("cannot be played: {error}")))
    }

    /// Compares memory of a scripted endpoint with a message. Only RDMA of the endpoint under test
    /// writes there; data in packets is compared when they arrive.
    pub(super) fn compare_scripted_memory(
        &mut self,
        comparison: Comparison<'t>,
    ) -> Result<(), Stopped> {
        let Comparison {
            at,
            region,
            offset,
            payload,
            ..
        } = comparison;
        let Some(remote) = self
            .tracker
            .region(region)
            .filter(|_| self.rdma.writes_to(at))
        else {
            return Ok(());
        };
        let wanted = payload.bytes();
        let place = remote.address.wrapping_add(offset as u64);
        let peer = self.peers.iter_mut().find(|peer| peer.endpoint() == at);
        let Some(Ok(found)) = peer.map(|peer| peer.dump(place, wanted.len())) else {
            return Ok(());
        };
        match wanted.iter().zip(&found).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => self.problem(runner::differs(
                &comparison,
                format_args!(
                    "byte {at} is {:#04x} instead of {:#04x}",
                    found[at], wanted[at]
                ),
            )),
        }
    }

    /// Registers memory that a scripted endpoint is about to offer for reading.
    pub(super) fn offer_memory(&mut self, place: usize, packet: &[u8]) -> Result<(), Stopped> {
        let at = self.peers[place].endpoint();
        let mut index = 0;
        while let Some(entry) = iov_entry(packet, "read_iov", Some(index)) {
            index += 1;
            if self.bindings.locate(at, entry.remote).is_some() {
                continue;
            }
            let length = entry.length.min(MOST_MEMORY) as usize;
            let bytes = fetched(self.trace, at, None, entry.remote.address, length);
            match self.peers[place].register(&bytes) {
                Ok(actual) => self.bindings.bind_region(BoundRegion {
                    owner: at,
                    length: entry.length,
                    recorded: entry.remote,
                    actual,
                }),
                Err(error) => self.problem(format!("memory cannot be offered: {error}"))?,
            }
        }
        Ok(())
    }
}

/// The data of the RDMA write that begins with `first`, from all its frames, and its immediate.
fn written(trace: &efa_play::trace::Trace, first: usize) -> (Vec<u8>, Option<u32>) {
    let head = &trace.capture.frames[first];
    let mut bytes = Vec::new();
    let mut immediate = None;
    for frame in &trace.capture.frames[first..] {
        let FrameKind::RdmaWrite(rdma) = frame.header.kind else {
            continue;
        };
        let is_part = frame.interface == head.interface
            && frame.direction == head.direction
            && frame.header.source_qpn == head.header.source_qpn
            && frame.header.sequence == head.header.sequence
            && !frame.header.retransmission;
        if is_part {
            let end = (rdma.offset as usize + frame.payload.len()).min(MOST_MEMORY as usize);
            bytes.resize(bytes.len().max(end), 0);
            let start = end - frame.payload.len().min(end);
            bytes[start..end].copy_from_slice(&frame.payload[..end - start]);
            immediate = immediate.or(frame.header.immediate);
        }
    }
    (bytes, immediate)
}
