//! The function in the view of its guest: reads and writes of regions, and resets.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use efa_device_model::device::Error;
use efa_device_model::fault::AdminCommand;
use efa_device_model::profile::Profile;
use efa_shm::{CommandOutcome, Engine, FabricError, HostConfig};
use zerocopy::IntoBytes;

use super::admin_queue::AdminRing;
use super::bars::Bars;
use super::config_space::ConfigSpace;
use super::doorbells::Doorbell;
use super::late_completions::LateCompletions;
use super::notifier::Notifier;
use super::objects::Objects;
use super::registers::{DeviceStatus, QueueShape, ReadResponse, Register, SplitAddress, value};
use super::send_queues::SendQueues;
use crate::admin::{AdminStatus, AsyncGroup, Completion, ENTRY, Head, Request, RequestId};
use crate::memory::GuestMemory;

/// Interval of keep-alive events.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why a function cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The fabric refuses the device.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The kernel's driver does not support the generation.
    #[error("no kernel driver knows a device of profile {0}: use one of efa0 to efa3")]
    UnknownGeneration(String),
    /// The system has no memory for send queues.
    #[error("cannot make the memory of send queues: {0}")]
    System(#[from] std::io::Error),
}

/// The last PCI device id in the driver's table, up to Linux 7.2.
const LAST_PART: u32 = 0xefa3;

/// Maximum number of registers that a driver may read before it starts a queue. It reads nine. A
/// driver that does not get the responses reads the status repeatedly, for three seconds.
const READS: u32 = 20;

/// The notice to the user after more reads.
const UNSEEN: &str = "the guest's driver does not see what the device writes: start QEMU with memory that it shares \
                      (-object memory-backend-memfd,id=mem,size=4G,share=on -machine memory-backend=mem); on a busy \
                      machine add \"x-no-posted-writes\":true to the device";

/// Prints a notice for the user.
type NoticeSink = Box<dyn Fn(&str) + Send>;

/// Opens the device in its fabric.
type Opener = Box<dyn FnMut() -> Result<Engine, FabricError> + Send>;

/// A PCI function that is an EFA device, a member of a fabric.
///
/// Each reset opens a new device in the fabric: for peers the old device ends, like that of a
/// process that exits.
pub struct Function {
    open: Opener,
    profile: Profile,
    pub(super) memory: Arc<GuestMemory>,
    pub(super) notifier: Arc<Notifier>,
    engine: Option<Engine>,
    pub(super) objects: Objects,
    pub(super) send_queues: SendQueues,
    config_space: ConfigSpace,
    status: DeviceStatus,
    read_response: SplitAddress,
    requests_at: SplitAddress,
    completions_at: SplitAddress,
    async_events_at: SplitAddress,
    requests: Option<AdminRing>,
    completions: Option<AdminRing>,
    /// Number of commands since the function was opened.
    commands: u64,
    late: LateCompletions,
    /// Number of registers read since the bus reset, or since a queue was started.
    reads: u32,
    notices: NoticeSink,
}

impl Function {
    /// Opens the device of the host in `config`.
    ///
    /// # Errors
    /// As [`Engine::open`]; and [`OpenError::UnknownGeneration`].
    pub fn open(config: HostConfig) -> Result<Function, OpenError> {
        Function::new(move || Engine::open(&config))
    }

    /// As [`Function::open`], for a device that `open` opens now and at each reset.
    pub fn new(
        open: impl FnMut() -> Result<Engine, FabricError> + Send + 'static,
    ) -> Result<Function, OpenError> {
        let mut open: Opener = Box::new(open);
        let memory = Arc::new(GuestMemory::default());
        let notifier = Arc::new(Notifier::new(Arc::clone(&memory)));
        let engine = opened(&mut open, &notifier)?;
        let profile = engine.profile().clone();
        if profile.part_id > LAST_PART {
            return Err(OpenError::UnknownGeneration(profile.name.to_owned()));
        }
        Ok(Function {
            config_space: ConfigSpace::new(&profile),
            send_queues: SendQueues::new()?,
            engine: Some(engine),
            objects: Objects::default(),
            status: DeviceStatus::READY,
            read_response: SplitAddress::default(),
            requests_at: SplitAddress::default(),
            completions_at: SplitAddress::default(),
            async_events_at: SplitAddress::default(),
            requests: None,
            completions: None,
            commands: 0,
            late: LateCompletions::default(),
            reads: 0,
            notices: Box::new(|_| ()),
            open,
            profile,
            memory,
            notifier,
        })
    }

    /// Sets the function that prints notices about problems outside of the device.
    pub fn on_notice(&mut self, notices: impl Fn(&str) + Send + 'static) {
        self.notices = Box::new(notices);
    }

    /// The memory of the guest.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The interrupts and events for the guest.
    pub fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// The generation of the device.
    pub(super) fn profile(&self) -> &Profile {
        &self.profile
    }

    pub(super) fn engine(&self) -> Result<&Engine, AdminStatus> {
        self.engine.as_ref().ok_or(AdminStatus::Unknown)
    }

    /// The file of a region that guests access without traps.
    pub fn mappable(&self, bar: Bars) -> Option<BorrowedFd<'_>> {
        (bar == Bars::SendQueues).then(|| self.send_queues.file().as_fd())
    }

    /// Reads the configuration space.
    pub fn read_config(&self, offset: u64, into: &mut [u8]) {
        self.config_space.read(offset, into);
    }

    /// Writes the configuration space.
    pub fn write_config(&mut self, offset: u64, bytes: &[u8]) {
        self.config_space.write(offset, bytes);
    }

    /// Reads a region. Doorbells and undefined registers are 0.
    pub fn read(&self, bar: Bars, offset: u64, into: &mut [u8]) {
        into.fill(0);
        let Bars::Registers = bar else { return };
        for (index, part) in (0u64..).zip(into.chunks_mut(4)) {
            if let Some(register) = Register::at(offset.saturating_add(4 * index)) {
                let value = value(register, self.status()).to_le_bytes();
                part.copy_from_slice(&value[..part.len()]);
            }
        }
    }

    /// Writes words of 4 bytes to a region. Shorter writes are ignored.
    pub fn write(&mut self, bar: Bars, offset: u64, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks();
        for (index, word) in (0u64..).zip(words) {
            let (at, value) = (offset.saturating_add(4 * index), u32::from_le_bytes(*word));
            match bar {
                Bars::Registers => {
                    if let Some(register) = Register::at(at) {
                        self.write_register(register, value);
                    }
                }
                Bars::Doorbells => {
                    if let Some(doorbell) = Doorbell::at(at) {
                        self.ring(doorbell, value);
                    }
                }
                // The region is mapped. Writes by messages are not supported.
                Bars::SendQueues => {}
            }
        }
    }

    /// Sends a keep-alive event. To be called at every [`KEEP_ALIVE_INTERVAL`].
    pub fn send_keep_alive(&self) {
        self.notifier.repeat_interrupts();
        self.notifier.report_async(AsyncGroup::KeepAlive);
    }

    /// Destroys all objects of the guest, and returns to the initial state.
    pub fn reset(&mut self) {
        self.start_over(DeviceStatus::READY);
        self.config_space = ConfigSpace::new(&self.profile);
        self.reads = 0;
    }

    fn status(&self) -> DeviceStatus {
        match self.notifier.has_failed() {
            true => DeviceStatus::READY | DeviceStatus::FAILED,
            false => self.status,
        }
    }

    fn fail(&mut self, why: &str) {
        tracing::warn!(why, "the guest's driver has broken the device");
        // A driver resets only a device that is ready.
        self.status = DeviceStatus::READY | DeviceStatus::FAILED;
        self.requests = None;
    }

    fn start_over(&mut self, status: DeviceStatus) {
        self.requests = None;
        self.completions = None;
        self.late = LateCompletions::default();
        self.read_response = SplitAddress::default();
        self.requests_at = SplitAddress::default();
        self.completions_at = SplitAddress::default();
        self.async_events_at = SplitAddress::default();
        self.status = status;
        if let Some(engine) = self.engine.take() {
            // Copies from or to regions finish, or the device was removed.
            let _ = engine.quiesce();
        }
        // The old device raises no more events. Its earlier ones, including a failure, are
        // discarded.
        self.notifier.reset();
        let objects = std::mem::take(&mut self.objects);
        for (_, pair) in objects.queue_pairs {
            if let Some(place) = pair.send_queue {
                self.send_queues.give_back(place);
            }
        }
        match opened(&mut self.open, &self.notifier) {
            Ok(engine) => self.engine = Some(engine),
            Err(error) => {
                tracing::error!(%error, "the device cannot be opened again");
                self.status = DeviceStatus::FAILED;
            }
        }
    }

    fn write_register(&mut self, register: Register, value: u32) {
        match register {
            Register::AdminBaseLow => self.requests_at.set_low(value),
            Register::AdminBaseHigh => self.requests_at.set_high(value),
            Register::CompletionBaseLow => self.completions_at.set_low(value),
            Register::CompletionBaseHigh => self.completions_at.set_high(value),
            Register::AsyncBaseLow => self.async_events_at.set_low(value),
            Register::AsyncBaseHigh => self.async_events_at.set_high(value),
            Register::ReadResponseLow => self.read_response.set_low(value),
            Register::ReadResponseHigh => self.read_response.set_high(value),
            Register::AdminCapabilities => {
                self.reads = 0;
                let shape = QueueShape::of_requests(value);
                self.requests = self.admin_ring(self.requests_at, shape);
            }
            Register::CompletionCapabilities => {
                let shape = QueueShape::of_answers(value);
                self.completions = self.admin_ring(self.completions_at, shape);
                self.notifier
                    .set_admin_vector(shape.map_or(0, |shape| shape.vector));
            }
            Register::AsyncCapabilities => match QueueShape::of_answers(value) {
                Some(shape) => self
                    .notifier
                    .start_async_events(self.async_events_at.0, shape),
                None => self.fail("a queue of asynchronous events of an impossible shape"),
            },
            Register::AdminDoorbell => self.serve_requests(value as u16),
            Register::InterruptMask => self.notifier.mask(value & 1 != 0),
            Register::Control => self.control(value),
            Register::ReadRequest => self.answer_read(value),
            Register::EventDoorbell => {
                const ARM: u32 = 1 << 31;
                if value & ARM != 0 {
                    self.notifier.arm(value as u16);
                }
            }
            Register::Version
            | Register::ControllerVersion
            | Register::Capabilities
            | Register::AsyncDoorbell
            | Register::Status => {}
        }
    }

    fn admin_ring(&mut self, base: SplitAddress, shape: Option<QueueShape>) -> Option<AdminRing> {
        let ring = shape.and_then(|shape| AdminRing::new(&self.memory, base.0, shape).ok());
        if ring.is_none() {
            self.fail("an admin queue of an impossible shape, or not in memory");
        }
        ring
    }

    fn control(&mut self, value: u32) {
        const RESET: u32 = 1 << 0;
        if value & RESET != 0 {
            self.start_over(DeviceStatus::READY | DeviceStatus::RESETTING);
        } else if self.status.contains(DeviceStatus::RESETTING) {
            self.status = DeviceStatus::READY | DeviceStatus::RESET_FINISHED;
        }
    }

    fn answer_read(&mut self, request: u32) {
        self.reads = self.reads.saturating_add(1);
        if self.reads == READS {
            (self.notices)(UNSEEN);
        }
        let offset = (request >> 16) as u16;
        // An undefined register reads as the driver's error value.
        let value = match Register::at(offset.into()) {
            Some(register) => value(register, self.status()),
            None => u32::MAX,
        };
        let response = ReadResponse {
            id: (request as u16).into(),
            offset: offset.into(),
            value: value.into(),
        };
        let address = self.read_response.0;
        if self
            .memory
            .publish(address, response.as_bytes(), 0)
            .is_err()
        {
            self.fail("the place of register values is not memory");
        }
    }

    fn serve_requests(&mut self, producer: u16) {
        let (Some(mut requests), Some(_)) = (self.requests, self.completions) else {
            return;
        };
        let Some(waiting) = requests.waiting(producer) else {
            return self.fail("more commands than the admin queue has room for");
        };
        for _ in 0..waiting {
            let phase = requests.phase();
            let Ok(entry) = requests.take(&self.memory) else {
                return self.fail("the admin queue is not memory");
            };
            self.serve_request(&entry, phase);
            if self.requests.is_none() {
                return;
            }
        }
        self.requests = Some(requests);
    }

    fn serve_request(&mut self, entry: &[u8; ENTRY], phase: bool) {
        let request = match entry[3] & Head::PHASE == u8::from(phase) {
            true => Request::parse(entry),
            false => Err(AdminStatus::MalformedRequest),
        };
        let decision = match request {
            Ok(request) => self.command_outcome(request.command()),
            Err(_) => CommandOutcome::Served,
        };
        let outcome = match decision {
            CommandOutcome::Served | CommandOutcome::Late(_) => {
                request.and_then(|request| self.carry_out(request))
            }
            CommandOutcome::Fails(errno) => Err(Error::Staged(errno).into()),
            CommandOutcome::Lost => return,
        };
        if let Err(status) = outcome {
            tracing::debug!(opcode = entry[2], ?status, "a command was refused");
        }
        let id = RequestId::of(entry);
        match decision {
            CommandOutcome::Late(time) if !self.late.is_full() => {
                self.late.add(Instant::now() + time, id, outcome)
            }
            _ => self.complete(id, outcome),
        }
    }

    /// The effect of staged faults on a command. A removed device refuses commands anyway.
    fn command_outcome(&mut self, command: AdminCommand) -> CommandOutcome {
        self.commands += 1;
        let decided = self
            .engine
            .as_ref()
            .and_then(|engine| engine.command_outcome(command, self.commands).ok());
        decided.unwrap_or(CommandOutcome::Served)
    }

    fn complete(&mut self, id: RequestId, outcome: Result<Completion, AdminStatus>) {
        let Some(completions) = &mut self.completions else {
            return;
        };
        let entry = Completion::entry(id, outcome, completions.phase());
        match completions.put(&self.memory, &entry) {
            Ok(()) => self.notifier.report_completion(),
            Err(_) => self.fail("the queue of completions is not memory"),
        }
    }

    /// The time of the next completion that a staged fault delays.
    pub fn next_completion(&self) -> Option<Instant> {
        self.late.next()
    }

    /// Writes the delayed completions that are due. To be called at [`Function::next_completion`].
    pub fn complete_late(&mut self) {
        while let Some((id, outcome)) = self.late.take(Instant::now()) {
            self.complete(id, outcome);
        }
    }

    fn ring(&mut self, doorbell: Doorbell, value: u32) {
        let Some(engine) = &self.engine else { return };
        match doorbell {
            Doorbell::Send(handle) => {
                if let Ok(pair) = self.objects.queue_pair(handle) {
                    pair.rings.send.doorbell().write(value);
                    // If the doorbell cannot be rung, the queue pair has ended.
                    let _ = engine.process_send_doorbell(pair.qpn);
                }
            }
            Doorbell::Receive(handle) => {
                if let Ok(pair) = self.objects.queue_pair(handle) {
                    pair.rings.recv.doorbell().write(value);
                }
            }
            Doorbell::Completion(cq) => {
                let ring = u16::try_from(cq)
                    .ok()
                    .and_then(|cq| self.objects.completion_queues.get(&cq));
                if let Some(ring) = ring {
                    ring.doorbell().write(value);
                    let _ = engine.arm_cq(efa_device_model::device::CqId(cq));
                }
            }
        }
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        // Stops the device before the memory of regions and queues is released.
        if let Some(engine) = self.engine.take() {
            let _ = engine.quiesce();
        }
    }
}

fn opened(open: &mut Opener, notifier: &Arc<Notifier>) -> Result<Engine, FabricError> {
    let engine = open()?;
    let notified = Arc::clone(notifier);
    engine.set_event_handler(Some(Box::new(move |event| notified.notify(event))))?;
    Ok(engine)
}
