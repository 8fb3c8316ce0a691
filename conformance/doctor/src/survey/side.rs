//! One side of the experiments: queue pairs of one device that execute requests. The side is in
//! this process, or on another host, where `efa-conformance survey --side` answers each line of
//! JSON with one.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use efa_core::address::{Ahn, Gid, Qkey, Qpn};
use efa_core::nic::{
    Access, Completion, CompletionKind, Destination, Domain as _, Doorbell, LocalKey, Nic as _,
    PolledNic as _, QueuePair as _, QueuePairConfig, RdmaRequest, Region, RemoteKey, SendRequest,
    Status, UserSlice,
};
use efa_hw::{DeviceReport, HwDevice, HwNic, NicConfig};
use efa_play::answers::{self, Conversation, NoAnswer};
use efa_play::player::{HostDevice, RemoteAccess};
use serde::{Deserialize, Serialize};

use super::error::{SideError, SurveyError};

/// The longest wait for a completion. A device that retries gives up after seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for a side on another host to answer.
const ANSWER: Duration = Duration::from_secs(90);
/// The number of times that queue pairs are created and destroyed.
const ROUNDS: usize = 4;

/// The destination of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RequestDestination {
    pub(super) ahn: u16,
    pub(super) qpn: u16,
    pub(super) qkey: u32,
}

impl From<RequestDestination> for Destination {
    fn from(to: RequestDestination) -> Self {
        Destination {
            ahn: Ahn(to.ahn),
            qpn: Qpn(to.qpn),
            qkey: Qkey(to.qkey),
        }
    }
}

/// Registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Its number within its queue pair.
    id: usize,
    pub(super) address: u64,
    pub(super) length: usize,
    pub(super) local_key: u32,
    pub(super) remote_key: u64,
}

/// A read of remote memory into local memory, or a write in the opposite direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Rdma {
    pub(super) to: RequestDestination,
    pub(super) local: Memory,
    pub(super) remote_address: u64,
    pub(super) remote_key: u64,
    pub(super) immediate: Option<u32>,
}

/// A completion of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ReportedCompletion {
    status: u8,
    pub(super) context: u64,
    pub(super) kind: ReportedKind,
}

impl ReportedCompletion {
    pub(super) fn status(&self) -> Result<Status, SurveyError> {
        status_of(self.status)
    }
}

/// The type of a completion, and its fields.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum ReportedKind {
    /// A request of this queue pair completed.
    Request,
    /// A packet arrived.
    Receive {
        length: usize,
        immediate: Option<u32>,
        ahn: Option<u16>,
        gid: Option<[u8; 16]>,
    },
    /// A write with immediate data arrived.
    Written { took_receive: bool, immediate: u32 },
}

/// The number of times that the next queue pair got the number that a policy predicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct QpnReuse {
    pub(super) rounds: usize,
    pub(super) lowest: usize,
    pub(super) last: usize,
    pub(super) first: usize,
    pub(super) following: usize,
}

/// A request to a side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum SideRequest {
    /// The device's name and limits.
    Report,
    /// Create a queue pair in a separate protection domain.
    Open { rnr_retry: u8, unsolicited: bool },
    /// Destroy it.
    Close { nic: usize },
    /// Use it.
    Use { nic: usize, request: NicRequest },
    /// Determine the order in which queue pair numbers are reused.
    Reuse,
}

/// A request to a queue pair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum NicRequest {
    /// Create an address handle.
    Handle { gid: [u8; 16] },
    /// Destroy it.
    Forget { ahn: u16 },
    /// Allocate memory, and register it for this access.
    Memory { length: usize, access: u32 },
    /// Register the same memory again.
    Again { memory: Memory, access: u32 },
    /// Deregister memory.
    Deregister { memory: Memory },
    /// Post a receive.
    Receive,
    /// Send a packet: this many bytes of a packet buffer, and memory under any key.
    Send {
        to: RequestDestination,
        length: usize,
        payload: Option<Memory>,
        immediate: Option<u32>,
        context: u64,
    },
    /// Send packets of a few bytes together, with their numbers as immediate data and as contexts.
    SendNumbered { to: RequestDestination, count: u64 },
    /// Send a packet of a few bytes, and wait for its completion.
    SendAndWait { to: RequestDestination },
    /// Read remote memory.
    Read { request: Rdma },
    /// Write remote memory.
    Write { request: Rdma },
    /// Wait for this many completions.
    Wait { count: usize },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Nothing,
    Report {
        name: String,
        limits: DeviceReport,
    },
    Opened {
        nic: usize,
        gid: [u8; 16],
        qpn: u16,
        qkey: u32,
    },
    Handle(u16),
    Memory(Memory),
    Done(Vec<ReportedCompletion>),
    /// A status, and the duration in nanoseconds.
    Took(u8, u64),
    Reuse(QpnReuse),
}

/// A status of the device.
pub(super) fn status_of(code: u8) -> Result<Status, SurveyError> {
    Status::from_code(code).ok_or(SurveyError::Status(code))
}

/// A queue pair, and the memory that was registered for it.
struct Opened {
    nic: HwNic,
    memories: Vec<(UserSlice, Option<Region>)>,
}

/// A side in this process.
pub(super) struct LocalSide {
    device: HwDevice,
    /// The queue pairs by their numbers; `None` if closed.
    opened: Vec<Option<Opened>>,
}

impl LocalSide {
    pub(super) fn new(device: HwDevice) -> Self {
        LocalSide {
            device,
            opened: Vec::new(),
        }
    }

    /// Executes a request.
    ///
    /// # Errors
    /// The reason why it cannot be executed.
    pub(super) fn answer(&mut self, ask: &SideRequest) -> Result<Reply, SideError> {
        match *ask {
            SideRequest::Report => {
                let report = self.device.report()?;
                Ok(Reply::Report {
                    name: self.device.name().to_owned(),
                    limits: report,
                })
            }
            SideRequest::Open {
                rnr_retry,
                unsolicited,
            } => self.open(rnr_retry, unsolicited),
            SideRequest::Close { nic } => {
                if let Some(place) = self.opened.get_mut(nic) {
                    *place = None;
                }
                Ok(Reply::Nothing)
            }
            SideRequest::Reuse => self.reuse().map(Reply::Reuse),
            SideRequest::Use { nic, ref request } => {
                let opened = self.opened.get_mut(nic).and_then(Option::as_mut);
                opened.ok_or(SideError::NoQueuePair)?.answer(request)
            }
        }
    }

    fn small(config: NicConfig) -> NicConfig {
        NicConfig {
            send_queue_depth: 128,
            recv_queue_depth: 128,
            packet_buffers: 512,
            ..config
        }
    }

    fn open(&mut self, rnr_retry: u8, unsolicited: bool) -> Result<Reply, SideError> {
        let config = Self::small(NicConfig {
            rnr_retry,
            unsolicited_write_recv: unsolicited,
            ..NicConfig::default()
        });
        let nic = self.device.open_nic(config)?;
        let address = nic.address();
        let memories = Vec::new();
        self.opened.push(Some(Opened { nic, memories }));
        Ok(Reply::Opened {
            nic: self.opened.len() - 1,
            gid: address.gid.0,
            qpn: address.qpn.0,
            qkey: address.qkey.0,
        })
    }

    /// Creates four queue pairs, destroys three of them, and compares the next number with the
    /// policies; several times.
    fn reuse(&self) -> Result<QpnReuse, SideError> {
        let mut found = QpnReuse {
            rounds: ROUNDS,
            ..QpnReuse::default()
        };
        let mut nic = self.device.open_nic(Self::small(NicConfig::default()))?;
        let queue = nic.queue_pair().completion_queue();
        let config = QueuePairConfig {
            send_queue_depth: 16,
            recv_queue_depth: 16,
            qkey: None,
            rnr_retry: 3,
            unsolicited_write_recv: false,
            service_level: 0,
        };
        for _ in 0..ROUNDS {
            let mut made = Vec::new();
            for _ in 0..4 {
                made.push(nic.create_queue_pair(queue, &config)?);
            }
            let numbers: Vec<Qpn> = made.iter().map(|pair| pair.address().qpn).collect();
            let kept = made.pop();
            // The middle number is freed last, so that each policy predicts another number.
            let order = [
                made.pop(),
                (!made.is_empty()).then(|| made.remove(0)),
                made.pop(),
            ];
            for pair in order.into_iter().flatten() {
                pair.close(&mut nic);
            }
            let next = nic.create_queue_pair(queue, &config)?;
            let number = next.address().qpn;
            found.lowest +=
                usize::from(Some(&number) == numbers[..3].iter().min_by_key(|qpn| qpn.0));
            found.first += usize::from(number == numbers[2]);
            found.last += usize::from(number == numbers[1]);
            found.following += usize::from(number.0 == numbers[3].0.wrapping_add(1));
            next.close(&mut nic);
            kept.into_iter().for_each(|pair| pair.close(&mut nic));
        }
        Ok(found)
    }
}

impl Opened {
    fn answer(&mut self, ask: &NicRequest) -> Result<Reply, SideError> {
        match *ask {
            NicRequest::Handle { gid } => {
                let ahn = self.nic.create_address_handle(Gid(gid))?;
                return Ok(Reply::Handle(ahn.0));
            }
            NicRequest::Forget { ahn } => self.nic.destroy_address_handle(Ahn(ahn))?,
            NicRequest::Memory { length, access } => {
                let slice = self.nic.allocate(length)?;
                self.memories.push((slice, None));
                return self.register(self.memories.len() - 1, access);
            }
            NicRequest::Again { memory, access } => return self.register(memory.id, access),
            NicRequest::Deregister { memory } => {
                let (_, region) = self.memory(memory.id)?;
                if let Some(region) = region.take() {
                    self.nic.deregister(region)?;
                }
            }
            NicRequest::Receive => {
                let buffer = self.nic.acquire_buffer().ok_or(SideError::NoBuffer)?;
                self.nic.post_recv(buffer)?;
            }
            NicRequest::Send {
                to,
                length,
                payload,
                immediate,
                context,
            } => self.send(to, length, payload, immediate, context)?,
            NicRequest::SendNumbered { to, count } => {
                for number in 0..count {
                    self.send(to, 8, None, Some(number as u32), number)?;
                }
            }
            NicRequest::SendAndWait { to } => {
                let started = Instant::now();
                self.send(to, 8, None, None, 0)?;
                let done = self.wait(1)?;
                let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
                return Ok(Reply::Took(done[0].status, took));
            }
            NicRequest::Read { request } => {
                let request = self.rdma(&request);
                self.nic.post_read(&request, Doorbell::Ring)?;
            }
            NicRequest::Write { request } => {
                let request = self.rdma(&request);
                self.nic.post_write(&request, Doorbell::Ring)?;
            }
            NicRequest::Wait { count } => return self.wait(count).map(Reply::Done),
        }
        Ok(Reply::Nothing)
    }

    fn memory(&mut self, id: usize) -> Result<&mut (UserSlice, Option<Region>), SideError> {
        self.memories.get_mut(id).ok_or(SideError::NoMemory)
    }

    fn register(&mut self, id: usize, access: u32) -> Result<Reply, SideError> {
        let (slice, _) = *self.memory(id)?;
        let access = Access::from_bits_truncate(access);
        let region = self.nic.register(slice, access)?;
        *self.memory(id)? = (slice, Some(region));
        Ok(Reply::Memory(Memory {
            id,
            address: slice.address,
            length: slice.length,
            local_key: region.local_key.0,
            remote_key: region.remote_key.0,
        }))
    }

    fn send(
        &mut self,
        to: RequestDestination,
        length: usize,
        payload: Option<Memory>,
        immediate: Option<u32>,
        context: u64,
    ) -> Result<(), SideError> {
        let buffer = self.nic.acquire_buffer().ok_or(SideError::NoBuffer)?;
        let bytes = self.nic.buffer_mut(buffer);
        let bytes = bytes.get_mut(..length).ok_or(SideError::TooLong)?;
        bytes.fill(0);
        let request = SendRequest {
            destination: to.into(),
            buffer,
            header_length: length,
            payload: payload.map(|memory| {
                let slice = UserSlice::new(memory.address, memory.length);
                (slice, LocalKey(memory.local_key))
            }),
            immediate,
            context,
        };
        Ok(self.nic.post_send(&request, Doorbell::Ring)?)
    }

    fn rdma(&self, request: &Rdma) -> RdmaRequest {
        RdmaRequest {
            destination: request.to.into(),
            local: UserSlice::new(request.local.address, request.local.length),
            local_key: LocalKey(request.local.local_key),
            remote_address: request.remote_address,
            remote_key: RemoteKey(request.remote_key),
            immediate: request.immediate,
            context: 0,
        }
    }

    /// Waits until there are this many completions, and returns all of them.
    fn wait(&mut self, count: usize) -> Result<Vec<ReportedCompletion>, SideError> {
        let started = Instant::now();
        let mut completions = Vec::new();
        while completions.len() < count {
            self.nic.poll(&mut completions, 64);
            if started.elapsed() > PATIENCE {
                return Err(SideError::Completions {
                    limit: PATIENCE,
                    found: completions.len(),
                    expected: count,
                });
            }
        }
        Ok(completions.iter().map(|done| self.done(done)).collect())
    }

    /// Describes a completion, and returns its buffer to the pool.
    fn done(&mut self, completion: &Completion) -> ReportedCompletion {
        let mut release = |buffer| self.nic.release_buffer(buffer);
        let kind = match completion.kind {
            CompletionKind::Send { buffer } => {
                release(buffer);
                ReportedKind::Request
            }
            CompletionKind::RdmaRead | CompletionKind::RdmaWrite => ReportedKind::Request,
            // User memory is never posted.
            CompletionKind::RecvUser { .. } => ReportedKind::Request,
            CompletionKind::Recv {
                buffer,
                length,
                source,
                immediate,
            } => {
                release(buffer);
                ReportedKind::Receive {
                    length,
                    immediate,
                    ahn: source.ahn.map(|ahn| ahn.0),
                    gid: source.gid.map(|gid| gid.0),
                }
            }
            CompletionKind::RecvRdmaWithImmediate {
                buffer, immediate, ..
            } => {
                buffer.into_iter().for_each(release);
                ReportedKind::Written {
                    took_receive: buffer.is_some(),
                    immediate,
                }
            }
        };
        ReportedCompletion {
            status: completion.status.code(),
            context: completion.context,
            kind,
        }
    }
}

/// Serves the requests of `input` until it ends.
///
/// # Errors
/// The streams fail, or a request cannot be parsed.
pub fn serve(device: HwDevice, input: impl BufRead, output: impl Write) -> io::Result<()> {
    let mut served = LocalSide::new(device);
    answers::serve(input, output, |ask| served.answer(&ask))
}

/// A side on another host.
pub(super) struct Connection {
    place: HostDevice,
    side: Conversation,
}

impl Connection {
    /// Starts the side.
    ///
    /// # Errors
    /// The remote shell cannot be started. Errors on the other host appear in the first answer.
    pub(super) fn start(place: &HostDevice, reach: &RemoteAccess) -> Result<Self, SurveyError> {
        let mut words = [reach.program.as_str(), "survey", "--side"]
            .map(str::to_owned)
            .to_vec();
        let device = place.device.iter();
        words.extend(device.flat_map(|name| ["--device".into(), name.clone()]));
        let side = Conversation::start(&mut reach.shell.command(&place.host, &words));
        let side = side.map_err(|source| SurveyError::Start {
            shell: reach.shell.to_string(),
            source,
        })?;
        let place = place.clone();
        Ok(Connection { place, side })
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// The request failed, or the connection has ended.
    pub(super) fn answer(&mut self, ask: &SideRequest) -> Result<Reply, SurveyError> {
        let place = || self.place.clone();
        let answer: Result<Result<Reply, String>, NoAnswer> = self.side.ask(ask, ANSWER);
        match answer {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(reason)) => Err(SurveyError::Remote {
                place: place(),
                reason,
            }),
            Err(NoAnswer::Ended(how)) => Err(SurveyError::Ended {
                place: place(),
                how,
            }),
            Err(source) => Err(SurveyError::NoAnswer {
                place: place(),
                source,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_side_are_sent_as_text() {
        let sent = serde_json::to_string(&Err::<Reply, _>(SideError::NoMemory)).unwrap();
        let received: Result<Reply, String> = serde_json::from_str(&sent).unwrap();
        assert_eq!(received, Err("there is no such memory".to_owned()));
    }
}
