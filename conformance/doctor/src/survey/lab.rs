//! Queue pairs of one device or of two that exchange packets, and the operations of experiments on
//! them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use efa_core::nic::{Access, DeviceCaps, Status};
use efa_hw::{DeviceReport, HwDevice};
use efa_play::player::{HostDevice, RemoteAccess};

use super::error::SurveyError;
use super::side::{
    Connection, LocalSide, Memory, NicRequest, QpnReuse, Rdma, Reply, ReportedCompletion,
    RequestDestination, SideRequest, status_of,
};

/// The RNR retries that stock libfabric sets.
pub(super) const RETRIES: u8 = 3;

/// The sending side and the receiving side.
enum Link {
    Here(LocalSide),
    There(Connection),
}

/// A device that executes requests, in this process or on another host.
#[derive(Clone)]
struct Side(Rc<RefCell<Link>>);

/// The devices, and the attributes of the first one.
pub struct Lab {
    /// The device of the sending side, and that of the receiving side. They may be the same.
    sides: [Side; 2],
    name: String,
    pub(super) report: DeviceReport,
}

/// A queue pair in a separate protection domain.
pub(super) struct Nic {
    side: Side,
    id: usize,
    pub(super) gid: [u8; 16],
    qpn: u16,
    qkey: u32,
}

/// Two queue pairs.
pub(super) struct Pair {
    /// The sending side.
    pub(super) a: Nic,
    /// The receiving side.
    pub(super) b: Nic,
    /// The address of `b` for `a`.
    pub(super) to: RequestDestination,
}

fn unexpected(reply: &Reply) -> SurveyError {
    SurveyError::Answer {
        answer: format!("{reply:?}"),
    }
}

impl Side {
    fn new(link: Link) -> Self {
        Side(Rc::new(RefCell::new(link)))
    }

    fn ask(&self, ask: &SideRequest) -> Result<Reply, SurveyError> {
        match &mut *self.0.borrow_mut() {
            Link::Here(served) => Ok(served.answer(ask)?),
            Link::There(connection) => connection.answer(ask),
        }
    }

    fn report(&self) -> Result<(String, DeviceReport), SurveyError> {
        match self.ask(&SideRequest::Report)? {
            Reply::Report { name, limits } => Ok((name, limits)),
            other => Err(unexpected(&other)),
        }
    }

    fn open(&self, rnr_retry: u8, unsolicited: bool) -> Result<Nic, SurveyError> {
        let opened = self.ask(&SideRequest::Open {
            rnr_retry,
            unsolicited,
        })?;
        match opened {
            Reply::Opened {
                nic,
                gid,
                qpn,
                qkey,
            } => Ok(Nic {
                side: self.clone(),
                id: nic,
                gid,
                qpn,
                qkey,
            }),
            other => Err(unexpected(&other)),
        }
    }
}

impl Lab {
    /// Both sides on one device of this host.
    ///
    /// # Errors
    /// The device does not report its limits.
    pub fn here(device: HwDevice) -> Result<Lab, SurveyError> {
        let side = Side::new(Link::Here(LocalSide::new(device)));
        let (name, report) = side.report()?;
        let sides = [side.clone(), side];
        Ok(Lab {
            sides,
            name,
            report,
        })
    }

    /// The sending side on one host, the receiving side on another.
    ///
    /// # Errors
    /// A host cannot be reached, or the devices are of two generations, which have no common
    /// profile.
    pub fn between(places: [&HostDevice; 2], reach: &RemoteAccess) -> Result<Lab, SurveyError> {
        let mut sides = Vec::new();
        for place in places {
            reach.inspect(place).map_err(Box::new)?;
            sides.push(Side::new(Link::There(Connection::start(place, reach)?)));
        }
        let [a, b] = [sides[0].clone(), sides[1].clone()];
        let ((name, report), (other, limits)) = (a.report()?, b.report()?);
        if report.vendor_part_id != limits.vendor_part_id {
            return Err(SurveyError::Generations {
                places: Box::new(places.map(HostDevice::clone)),
                part_ids: [report.vendor_part_id, limits.vendor_part_id],
            });
        }
        Ok(Lab {
            name: format!(
                "{name} of {} to {other} of {}",
                places[0].host, places[1].host
            ),
            sides: [a, b],
            report,
        })
    }

    /// The name of the device, or the devices and their hosts.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The part id of the devices.
    pub fn part_id(&self) -> u32 {
        self.report.vendor_part_id
    }

    pub(super) fn has(&self, caps: DeviceCaps) -> bool {
        DeviceCaps::from_bits_retain(self.report.device_caps).contains(caps)
    }

    /// A queue pair of the sending side.
    pub(super) fn open(&self) -> Result<Nic, SurveyError> {
        self.sides[0].open(RETRIES, false)
    }

    /// A queue pair of the receiving side.
    pub(super) fn open_target(&self) -> Result<Nic, SurveyError> {
        self.sides[1].open(RETRIES, false)
    }

    /// Two queue pairs, of which the first has an address handle for the second.
    pub(super) fn pair(&self, rnr_retry: u8, unsolicited: bool) -> Result<Pair, SurveyError> {
        let a = self.sides[0].open(rnr_retry, unsolicited)?;
        let b = self.sides[1].open(rnr_retry, unsolicited)?;
        let to = RequestDestination {
            ahn: a.handle(b.gid)?,
            ..b.address()
        };
        Ok(Pair { a, b, to })
    }

    /// The order in which queue pair numbers are reused.
    pub(super) fn reuse(&self) -> Result<QpnReuse, SurveyError> {
        match self.sides[0].ask(&SideRequest::Reuse)? {
            Reply::Reuse(reuse) => Ok(reuse),
            other => Err(unexpected(&other)),
        }
    }
}

impl Nic {
    fn ask(&self, request: NicRequest) -> Result<Reply, SurveyError> {
        let nic = self.id;
        self.side.ask(&SideRequest::Use { nic, request })
    }

    fn done(&self, request: NicRequest) -> Result<(), SurveyError> {
        match self.ask(request)? {
            Reply::Nothing => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Its queue pair number and Q-key, without an address handle.
    pub(super) fn address(&self) -> RequestDestination {
        RequestDestination {
            ahn: 0,
            qpn: self.qpn,
            qkey: self.qkey,
        }
    }

    pub(super) fn handle(&self, gid: [u8; 16]) -> Result<u16, SurveyError> {
        match self.ask(NicRequest::Handle { gid })? {
            Reply::Handle(ahn) => Ok(ahn),
            other => Err(unexpected(&other)),
        }
    }

    /// Destroys an address handle.
    pub(super) fn forget(&self, ahn: u16) -> Result<(), SurveyError> {
        self.done(NicRequest::Forget { ahn })
    }

    /// Registers new memory of this length.
    pub(super) fn memory(&self, length: usize, access: Access) -> Result<Memory, SurveyError> {
        let access = access.bits();
        match self.ask(NicRequest::Memory { length, access })? {
            Reply::Memory(memory) => Ok(memory),
            other => Err(unexpected(&other)),
        }
    }

    /// Registers memory again.
    pub(super) fn again(&self, memory: Memory, access: Access) -> Result<Memory, SurveyError> {
        let access = access.bits();
        match self.ask(NicRequest::Again { memory, access })? {
            Reply::Memory(memory) => Ok(memory),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn deregister(&self, memory: Memory) -> Result<(), SurveyError> {
        self.done(NicRequest::Deregister { memory })
    }

    pub(super) fn receive(&self) -> Result<(), SurveyError> {
        self.done(NicRequest::Receive)
    }

    /// Posts a send of this many bytes.
    pub(super) fn send(
        &self,
        to: RequestDestination,
        length: usize,
        immediate: Option<u32>,
        context: u64,
    ) -> Result<(), SurveyError> {
        self.done(NicRequest::Send {
            to,
            length,
            payload: None,
            immediate,
            context,
        })
    }

    /// Posts sends of a few bytes together, with their numbers as immediate data and as contexts.
    pub(super) fn send_numbered(
        &self,
        to: RequestDestination,
        count: u64,
    ) -> Result<(), SurveyError> {
        self.done(NicRequest::SendNumbered { to, count })
    }

    /// Posts a send of memory under any key.
    pub(super) fn send_memory(
        &self,
        to: RequestDestination,
        payload: Memory,
    ) -> Result<(), SurveyError> {
        self.done(NicRequest::Send {
            to,
            length: 8,
            payload: Some(payload),
            immediate: None,
            context: 0,
        })
    }

    /// Waits for this many completions.
    fn wait(&self, count: usize) -> Result<Vec<ReportedCompletion>, SurveyError> {
        match self.ask(NicRequest::Wait { count })? {
            Reply::Done(done) if done.len() >= count => Ok(done),
            other => Err(unexpected(&other)),
        }
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // If the side has ended, so has the queue pair.
        let _ = self.side.ask(&SideRequest::Close { nic: self.id });
    }
}

impl Pair {
    /// Waits until each side has this many completions.
    pub(super) fn wait(
        &self,
        at_a: usize,
        at_b: usize,
    ) -> Result<(Vec<ReportedCompletion>, Vec<ReportedCompletion>), SurveyError> {
        Ok((self.a.wait(at_a)?, self.b.wait(at_b)?))
    }

    /// Sends a few bytes, and waits for the completion. Returns its status, and its duration on its
    /// host.
    pub(super) fn timed_send(&self) -> Result<(Status, Duration), SurveyError> {
        match self.a.ask(NicRequest::SendAndWait { to: self.to })? {
            Reply::Took(status, took) => Ok((status_of(status)?, Duration::from_nanos(took))),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a few bytes, and waits for the completion.
    pub(super) fn send_status(&self) -> Result<Status, SurveyError> {
        Ok(self.timed_send()?.0)
    }

    /// Creates an address handle for the first side on the second, without which RDMA may be
    /// refused.
    pub(super) fn introduce(&self) -> Result<(), SurveyError> {
        self.b.handle(self.a.gid).map(drop)
    }

    /// A read of remote memory into local memory, or a write in the opposite direction.
    pub(super) fn rdma(&self, local: &Memory, remote: &Memory, immediate: Option<u32>) -> Rdma {
        Rdma {
            to: self.to,
            local: *local,
            remote_address: remote.address,
            remote_key: remote.remote_key,
            immediate,
        }
    }

    /// Posts an RDMA read, and waits for its completion.
    pub(super) fn read(&self, request: Rdma) -> Result<Status, SurveyError> {
        self.a.done(NicRequest::Read { request })?;
        self.a.wait(1)?[0].status()
    }

    /// Posts an RDMA write, and waits for its completion and for `at_b` completions of the other
    /// side.
    pub(super) fn write(
        &self,
        request: Rdma,
        at_b: usize,
    ) -> Result<(Status, Vec<ReportedCompletion>), SurveyError> {
        self.a.done(NicRequest::Write { request })?;
        let (at_a, at_b) = self.wait(1, at_b)?;
        Ok((at_a[0].status()?, at_b))
    }
}
