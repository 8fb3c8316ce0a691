//! The behaviour of the kernel's driver and rdma-core, as far as the device sees it.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use efa_core::address::{Gid, Qkey, Qpn};
use efa_device_model::device::QpRings;
use efa_device_model::device::queue::{
    Buffer, CompletionRing, CompletionSize, ReceiveRing, SendRing, WqeSize,
};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{Completion, CompletionQueue, SendData, SendOpcode, UdAddress};
use efa_pci::admin::{
    AhMade, AllocPd, AllocUar, CqMade, CreateAh, CreateCq, CreateEq, CreateQp, DeregMr, DestroyCq,
    DestroyQp, ENTRY, Feature, GetFeature, GetStats, Head, ModifyMask, ModifyQp, Number, QpMade,
    RegMr, RegionMade, SetFeature,
};
use efa_pci::function::{Bars, Register};
use efa_shm::HostConfig;
use efa_testing::device::{ClientQueues, QKEY, RdmaOperation};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::guest::{FABRIC, Guest, PAGE, function_of};

/// Number of entries of the driver's admin queues.
const ADMIN_DEPTH: u32 = 32;
const ASYNC_DEPTH: u32 = 16;

/// The vector of the admin queue.
pub(crate) const ADMIN_VECTOR: u32 = 0;
/// The status bit of a failed device.
pub(crate) const FAILED: u32 = 1 << 5;

/// The vector of the event queue.
pub(crate) const EVENT_VECTOR: u32 = 1;

/// Offset and phase of the entry with this counter in an admin queue.
fn place(counter: u16) -> (u64, u8) {
    let index = u64::from(counter) % u64::from(ADMIN_DEPTH);
    let phase = (u32::from(counter) / ADMIN_DEPTH + 1) as u8 & 1;
    (index * ENTRY as u64, phase)
}

/// The only guest of a fabric, with a device of this generation and a driver that is ready.
pub(crate) fn driver(generation: &str) -> (tempfile::TempDir, Driver) {
    let root = tempfile::tempdir().unwrap();
    let config = HostConfig::new(FABRIC, "vm");
    let function = function_of(root.path(), config, Profile::by_name(generation).unwrap());
    (root, Driver::ready(Guest::with(function)))
}

/// A driver that has found its device.
pub(crate) struct Driver {
    guest: Guest,
    reads: u16,
    read_response: u64,
    requests: u64,
    completions: u64,
    pub(crate) async_events: u64,
    /// Counter of the next command.
    pub(crate) next: u16,
    /// Counter of the next completion.
    completed: u16,
    pub(crate) pd: u16,
    pub(crate) uar: u16,
}

impl Deref for Driver {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

impl Driver {
    /// A guest with the device of a host below `root`, whose driver is ready.
    pub(crate) fn probe(root: &Path, host: &str) -> Driver {
        Driver::ready(Guest::new(root, host))
    }

    /// A driver that has found the device of this guest.
    pub(crate) fn ready(guest: Guest) -> Driver {
        let mut driver = Driver::new(guest);
        driver.start();
        driver
    }

    /// A driver that has not accessed the device.
    pub(crate) fn new(mut guest: Guest) -> Driver {
        let read_response = guest.take(PAGE);
        Driver {
            reads: 0,
            read_response,
            requests: guest.take(PAGE),
            completions: guest.take(PAGE),
            async_events: guest.take(PAGE),
            guest,
            next: 0,
            completed: 0,
            pd: 0,
            uar: 0,
        }
    }

    /// All steps of the kernel's driver before the first program opens the device.
    pub(crate) fn start(&mut self) {
        self.reset();
        assert!(self.read(Register::Version) >= 0x0001);
        assert!(self.read(Register::ControllerVersion) >= 1);
        self.guest.set_vector(ADMIN_VECTOR);
        self.guest.set_vector(EVENT_VECTOR);
        self.set(Register::InterruptMask, 1);
        self.start_queues();
        self.set(Register::InterruptMask, 0);
        let mut groups = SetFeature::new_zeroed();
        groups.feature = Feature::AsyncEvents as u8;
        groups.groups = (1 << 4).into();
        self.command(12, &groups).unwrap();
        self.pd = self.number(14, &AllocPd::new_zeroed());
        self.uar = self.number(16, &AllocUar::new_zeroed());
    }

    /// Resets the device like the driver, and checks that it is ready.
    pub(crate) fn reset(&mut self) {
        self.set_response_address();
        assert_eq!(self.read(Register::Status) & 1, 1, "ready");
        self.set(Register::Control, 1);
        self.set_response_address();
        assert_eq!(self.read(Register::Status) & 8, 8, "in reset");
        self.set(Register::Control, 0);
        assert_eq!(self.read(Register::Status) & 8, 0, "reset");
        self.next = 0;
        self.completed = 0;
    }

    fn set_response_address(&mut self) {
        self.set_address(Register::ReadResponseLow, self.read_response);
    }

    pub(crate) fn start_queues(&mut self) {
        self.set_address(Register::AdminBaseLow, self.requests);
        self.set(Register::AdminCapabilities, 64 << 16 | ADMIN_DEPTH);
        self.set_address(Register::CompletionBaseLow, self.completions);
        self.set(
            Register::CompletionCapabilities,
            ADMIN_VECTOR << 24 | 64 << 16 | ADMIN_DEPTH,
        );
        self.set_address(Register::AsyncBaseLow, self.async_events);
        self.set(
            Register::AsyncCapabilities,
            ADMIN_VECTOR << 24 | 64 << 16 | ASYNC_DEPTH,
        );
    }

    /// Writes a register.
    pub(crate) fn set(&mut self, register: Register, value: u32) {
        self.guest.write(Bars::Registers, register as u64, value);
    }

    /// Writes an address to the register of its low half, and the one of its high half behind it.
    pub(crate) fn set_address(&mut self, low: Register, address: u64) {
        let high = Register::at(low as u64 + 4).expect("the high half follows");
        self.set(low, address as u32);
        self.set(high, (address >> 32) as u32);
    }

    /// Reads a register by way of memory.
    pub(crate) fn read(&mut self, register: Register) -> u32 {
        self.reads += 1;
        self.set(
            Register::ReadRequest,
            (register as u32) << 16 | u32::from(self.reads),
        );
        let response = self.bytes(self.read_response, 8);
        assert_eq!(response[..2], self.reads.to_le_bytes());
        assert_eq!(response[2..4], (register as u16).to_le_bytes());
        u32::from_le_bytes(response[4..].try_into().unwrap())
    }

    /// The device's status, read directly from the register.
    pub(crate) fn status(&mut self) -> u32 {
        let region = Bars::Registers as u32;
        let bytes = self
            .read_region(region, Register::Status as u64, 4)
            .unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Submits a command and returns its completion, or its status.
    pub(crate) fn command(
        &mut self,
        opcode: u8,
        command: &(impl IntoBytes + Immutable + ?Sized),
    ) -> Result<[u8; ENTRY], u8> {
        let id = self.give(opcode, command);
        let (completed, outcome) = self.take_completion().expect("the completion is there");
        assert_eq!(completed, id);
        outcome
    }

    /// Submits a command and returns its id.
    pub(crate) fn give(
        &mut self,
        opcode: u8,
        command: &(impl IntoBytes + Immutable + ?Sized),
    ) -> u16 {
        let (index, phase) = place(self.next);
        let id = 0x800 | self.next;
        let mut entry = [0; ENTRY];
        let bytes = command.as_bytes();
        entry[..bytes.len()].copy_from_slice(bytes);
        entry[..2].copy_from_slice(&id.to_le_bytes());
        entry[2] = opcode;
        entry[3] |= phase;
        self.put(self.requests + index, &entry);
        self.next += 1;
        let next = self.next;
        self.set(Register::AdminDoorbell, next.into());
        id
    }

    /// The next completion, if any: the command's id, and the entry or its status.
    pub(crate) fn take_completion(&mut self) -> Option<(u16, Result<[u8; ENTRY], u8>)> {
        let (index, phase) = place(self.completed);
        let entry = self.bytes(self.completions + index, ENTRY);
        let entry: [u8; ENTRY] = entry.try_into().unwrap();
        if entry[3] & 1 != phase {
            return None;
        }
        self.completed += 1;
        let outcome = match entry[2] {
            0 => Ok(entry),
            status => Err(status),
        };
        Some((u16::from_le_bytes([entry[0], entry[1]]), outcome))
    }

    /// As [`Driver::command`], and returns the completion's data.
    pub(crate) fn make<T: FromBytes + KnownLayout + Immutable>(
        &mut self,
        opcode: u8,
        command: &(impl IntoBytes + Immutable),
    ) -> Result<T, u8> {
        let completion = self.command(opcode, command)?;
        Ok(T::read_from_prefix(&completion[8..]).unwrap().0)
    }

    /// As [`Driver::make`], for the number of an object.
    pub(crate) fn number(&mut self, opcode: u8, command: &(impl IntoBytes + Immutable)) -> u16 {
        self.make::<Number>(opcode, command).unwrap().number.get()
    }

    /// The bytes of a feature, or the status of the query.
    pub(crate) fn feature(&mut self, feature: u8) -> Result<Vec<u8>, u8> {
        let mut request = GetFeature::new_zeroed();
        request.feature = feature;
        Ok(self.command(11, &request)?[8..].to_vec())
    }

    /// The values of this type of statistics.
    pub(crate) fn statistics(&mut self, statistics: u8) -> Vec<u64> {
        let mut request = GetStats::new_zeroed();
        request.statistics = statistics;
        let completion = self.command(13, &request).unwrap();
        let (words, _) = completion[8..].as_chunks();
        words.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    pub(crate) fn gid(&mut self) -> Gid {
        let network = self.feature(Feature::Network as u8).unwrap();
        Gid(network[..16].try_into().unwrap())
    }

    /// Creates an event queue with the vector [`EVENT_VECTOR`].
    pub(crate) fn create_eq(&mut self) -> (u16, u64) {
        let base = self.take(PAGE);
        let mut request = CreateEq::new_zeroed();
        request.depth = 256.into();
        request.vector = EVENT_VECTOR as u8;
        request.entry = 4;
        request.base = base.into();
        request.events = 1.into();
        let eqn = self.number(18, &request);
        self.arm(eqn);
        (eqn, base)
    }

    /// Requests an interrupt for the next entry of an event queue.
    pub(crate) fn arm(&mut self, eqn: u16) {
        self.set(Register::EventDoorbell, 1 << 31 | u32::from(eqn));
    }

    /// A command to create a completion queue.
    pub(crate) fn cq_request(&mut self, size: CompletionSize, eqn: Option<u16>) -> CreateCq {
        let mut request = CreateCq::new_zeroed();
        request.depth = (PAGE as u16 / size.bytes() as u16).into();
        request.entry = size.bytes() as u8 / 4;
        request.base = self.take(PAGE).into();
        request.sub_queues = 1.into();
        request.uar = self.uar.into();
        if let Some(eqn) = eqn {
            request.flags = CreateCq::INTERRUPTS;
            request.eqn = eqn.into();
        }
        request
    }

    /// A command to create a queue pair with 64 requests and 128 descriptors.
    pub(crate) fn qp_request(&mut self, cq: u16, wqe: WqeSize) -> CreateQp {
        let mut request = CreateQp::new_zeroed();
        request.pd = self.pd.into();
        request.service = 2;
        request.recv_base = self.take(PAGE).into();
        request.send_cq = u32::from(cq).into();
        request.recv_cq = u32::from(cq).into();
        request.send_bytes = (64 * wqe.bytes() as u32).into();
        request.send_depth = 60.into();
        request.recv_bytes = 2048.into();
        request.recv_depth = 42.into();
        request.uar = self.uar.into();
        request
    }

    /// A command to change a queue pair's state.
    pub(crate) fn modify_request(handle: u32, from: u32, to: u32, more: ModifyMask) -> ModifyQp {
        let mut request = ModifyQp::new_zeroed();
        request.mask = (ModifyMask::STATE | ModifyMask::CURRENT_STATE | more)
            .bits()
            .into();
        request.handle = handle.into();
        request.state = to.into();
        request.current_state = from.into();
        request.qkey = QKEY.0.into();
        request
    }

    /// Brings a queue pair from RESET to RTS, with the driver's attributes.
    pub(crate) fn bring_up(&mut self, handle: u32) {
        for (from, to, more) in [
            (0, 1, ModifyMask::QKEY),
            (1, 2, ModifyMask::empty()),
            (2, 3, ModifyMask::SQ_PSN),
        ] {
            self.command(2, &Driver::modify_request(handle, from, to, more))
                .unwrap();
        }
    }

    /// Creates an address handle.
    pub(crate) fn address(&mut self, gid: Gid) -> u16 {
        let mut request = CreateAh::new_zeroed();
        request.gid = gid.0;
        request.pd = self.pd.into();
        self.make::<AhMade>(5, &request).unwrap().ah.get()
    }

    /// Registers pages of the guest at an address of a program, with all access rights.
    pub(crate) fn register(
        &mut self,
        pages: &[u64],
        length: u64,
        iova: u64,
    ) -> Result<RegionMade, u8> {
        let mut request = RegMr::new_zeroed();
        request.pd = self.pd.into();
        request.length = length.into();
        request.iova = iova.into();
        request.flags = 12;
        request.permissions = 0b111;
        if let [a, b, c, d] = *pages {
            request.pages = [a, b, c, d].map(Into::into);
        } else {
            let list = self.take(8 * pages.len() as u64);
            let addresses: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
            self.put(list, addresses.as_slice());
            request.head.flags = Head::CONTROL_BUFFER;
            let length = addresses.len() as u64;
            request.pages[0] = (length | list << 32).into();
            request.pages[1] = (list >> 32).into();
        }
        self.make(7, &request)
    }

    pub(crate) fn deregister(&mut self, lkey: u32) -> Result<(), u8> {
        let mut request = DeregMr::new_zeroed();
        request.lkey = lkey.into();
        self.command(8, &request).map(drop)
    }

    /// Ends the connection, after which the device has finished all work.
    pub(crate) fn leave(self) {
        self.guest.leave().unwrap();
    }
}

/// Memory of a program in the guest. Every other page belongs to another program.
pub(crate) struct Memory {
    pages: Vec<u64>,
    pub(crate) iova: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Memory {
    /// The address in the program.
    const IOVA: u64 = 0x7f12_3456_7000;

    /// Memory of 8 pages.
    pub(crate) fn new(driver: &mut Driver) -> Memory {
        // No two consecutive pages are adjacent.
        let first = driver.take(16 * PAGE);
        let pages: Vec<u64> = [3, 1, 7, 5, 0, 11, 9, 14]
            .map(|page| first + page * PAGE)
            .to_vec();
        let length = pages.len() as u64 * PAGE;
        let keys = driver.register(&pages, length, Memory::IOVA).unwrap();
        Memory {
            pages,
            iova: Memory::IOVA,
            lkey: keys.lkey.get(),
            rkey: keys.rkey.get(),
        }
    }

    /// A buffer in the memory.
    pub(crate) fn buffer(&self, offset: u64, length: u32) -> Buffer {
        Buffer::new(self.iova + offset, length, self.lkey)
    }

    fn parts(&self, offset: u64, length: usize) -> impl Iterator<Item = (u64, usize)> {
        (offset..offset + length as u64)
            .enumerate()
            .map(|(index, at)| {
                let page = self.pages[(at / PAGE) as usize];
                (page + at % PAGE, index)
            })
    }

    pub(crate) fn put(&self, driver: &Driver, offset: u64, bytes: &[u8]) {
        for (address, index) in self.parts(offset, bytes.len()) {
            driver.put(address, &bytes[index..=index]);
        }
    }

    pub(crate) fn bytes(&self, driver: &Driver, offset: u64, length: usize) -> Vec<u8> {
        self.parts(offset, length)
            .map(|(address, _)| driver.bytes(address, 1)[0])
            .collect()
    }
}

/// A queue pair of a guest, with the client's halves of its queues.
pub(crate) struct Endpoint {
    pub(crate) made: QpMade,
    pub(crate) cq: u16,
    cq_doorbell: u32,
    queues: ClientQueues,
    completions: CompletionQueue,
}

impl Endpoint {
    /// A queue pair that is ready to send.
    pub(crate) fn new(driver: &mut Driver, wqe: WqeSize, eqn: Option<u16>) -> Endpoint {
        let request = driver.cq_request(CompletionSize::Bytes32, eqn);
        let cq = driver.make::<CqMade>(9, &request).unwrap();
        assert_eq!(cq.depth, request.depth);
        let depth = request.depth.get().into();
        let lent = driver.lend(request.base.get(), PAGE);
        let ring = CompletionRing::over(lent, depth, CompletionSize::Bytes32).unwrap();
        let request = driver.qp_request(cq.cq.get(), wqe);
        let made = driver.make::<QpMade>(1, &request).unwrap();
        let (bytes, place) = (request.send_bytes.get(), made.send_queue.get());
        let lent = driver.send_queues.lend(place.into(), bytes.into());
        let recv = driver.lend(request.recv_base.get(), 2048);
        let rings = QpRings {
            send: Arc::new(SendRing::over(lent, 64, wqe).unwrap()),
            recv: Arc::new(ReceiveRing::over(recv, 128).unwrap()),
        };
        let mut endpoint = Endpoint {
            made,
            cq: cq.cq.get(),
            cq_doorbell: cq.doorbell.get(),
            queues: ClientQueues::new(Qpn(made.qpn.get()), rings, &Profile::default(), wqe, 0),
            completions: CompletionQueue::new(Arc::new(ring)),
        };
        driver.bring_up(made.handle.get());
        endpoint
            .queues
            .set_state(efa_device_model::device::QpState::ReadyToSend);
        endpoint
    }

    /// The address for peers, whose handle for its host is `ahn`.
    pub(crate) fn address(&self, ahn: u16) -> UdAddress {
        UdAddress {
            ahn,
            qpn: self.queues.qpn,
            qkey: Qkey(QKEY.0),
        }
    }

    pub(crate) fn post_recv(&mut self, driver: &mut Driver, wr_id: u64, buffer: Buffer) {
        self.queues.recv.post(wr_id, &[buffer]).unwrap();
        let counter = self.queues.recv.ring().doorbell().read();
        driver.write(
            Bars::Doorbells,
            self.made.recv_doorbell.get().into(),
            counter,
        );
    }

    pub(crate) fn post_send(
        &mut self,
        driver: &mut Driver,
        wr_id: u64,
        to: UdAddress,
        data: SendData<'_>,
    ) {
        self.queues.post(wr_id, to, SendOpcode::Send, data).unwrap();
        self.ring(driver);
    }

    pub(crate) fn post_rdma(
        &mut self,
        driver: &mut Driver,
        wr_id: u64,
        to: UdAddress,
        kind: RdmaOperation,
        local: Buffer,
        remote: (u64, u32),
    ) {
        self.queues.post_rdma(wr_id, to, kind, local, remote);
        self.ring(driver);
    }

    fn ring(&self, driver: &mut Driver) {
        let counter = self.queues.send.ring().doorbell().read();
        driver.write(
            Bars::Doorbells,
            self.made.send_doorbell.get().into(),
            counter,
        );
    }

    /// Requests an event of the completion queue.
    pub(crate) fn request_event(&mut self, driver: &mut Driver) {
        self.completions.event_received();
        self.completions.request_notification();
        let value = self.completions.ring().doorbell().read();
        driver.write(Bars::Doorbells, self.cq_doorbell.into(), value);
    }

    pub(crate) fn poll(&mut self) -> Option<Completion> {
        self.completions.next(&mut self.queues)
    }

    /// Waits for the next completion.
    pub(crate) fn completion(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn destroy(self, driver: &mut Driver) {
        let mut pair = DestroyQp::new_zeroed();
        pair.handle = self.made.handle;
        driver.command(4, &pair).unwrap();
        let mut queue = DestroyCq::new_zeroed();
        queue.cq = self.cq.into();
        driver.command(10, &queue).unwrap();
    }
}
