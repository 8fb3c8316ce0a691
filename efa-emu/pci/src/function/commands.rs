//! Execution of the admin queue's commands by the device model.

use std::sync::Arc;

use efa_core::address::{Ahn, Gid, Qkey};
use efa_core::nic::{Access, DeviceCaps};
use efa_device_model::device::queue::{
    CompletionRing, CompletionSize, ReceiveRing, RequestIdSize, RingError, SendRing, WqeSize,
};
use efa_device_model::device::{
    CqId, Error, Lkey, MemoryRegion, PdId, PortLink, QpChange, QpConfig, QpRings, QpState, Service,
};
use efa_shm::Engine;
use zerocopy::little_endian::U16;

use super::device::Function;
use super::doorbells::Doorbell;
use super::objects::QueuePair;
use crate::admin::{
    self, AdminStatus, AhMade, AsyncGroup, Completion, CqMade, CreateAh, CreateCq, CreateQp,
    DeregMr, DestroyAh, DestroyCq, DestroyQp, Feature, GetFeature, GetStats, ModifyMask, ModifyQp,
    Number, QpMade, QueryQp, RegMr, RegionMade, Request, SetFeature, StatisticsType,
};
use crate::memory::{NotMemory, PageList, PageListError, StitchError};

type CommandResult = Result<Completion, AdminStatus>;

const ILLEGAL: AdminStatus = AdminStatus::IllegalParameter;

impl From<NotMemory> for AdminStatus {
    fn from(_: NotMemory) -> Self {
        ILLEGAL
    }
}

impl From<PageListError> for AdminStatus {
    fn from(error: PageListError) -> Self {
        match error {
            PageListError::Stitch(StitchError::TooManyRuns | StitchError::System(_)) => {
                AdminStatus::NoResources
            }
            _ => ILLEGAL,
        }
    }
}

fn ring_error(error: RingError) -> AdminStatus {
    Error::from(error).into()
}

/// Flags of [`CreateQp`].
const REGISTERED_QUEUES: u8 = 0b011;
const UNSOLICITED_WRITE: u8 = 0b100;

impl Function {
    /// Executes a command.
    pub(super) fn carry_out(&mut self, request: Request) -> CommandResult {
        match request {
            Request::GetFeature(request) => self.get_feature(&request),
            Request::SetFeature(request) => self.set_feature(&request),
            Request::GetStats(request) => self.get_statistics(&request),
            Request::CreateEq(request) => {
                let eqn = self.notifier.create_eq(&request)?;
                Ok(Completion::of(&Number::of(eqn)))
            }
            Request::DestroyEq(request) => {
                self.notifier.destroy_eq(request.eqn.get())?;
                Ok(Completion::EMPTY)
            }
            Request::AllocUar(_) => {
                let uar = self.objects.alloc_uar()?;
                Ok(Completion::of(&Number::of(uar)))
            }
            Request::DeallocUar(request) => {
                self.objects.dealloc_uar(request.uar.get())?;
                Ok(Completion::EMPTY)
            }
            Request::AllocPd(_) => {
                let pd = self.engine()?.with_device(|device| device.alloc_pd())??;
                let number = u16::try_from(pd.0).map_err(|_| AdminStatus::NoResources)?;
                Ok(Completion::of(&Number::of(number)))
            }
            Request::DeallocPd(request) => {
                let pd = pd(request.pd);
                self.engine()?
                    .with_device(|device| device.dealloc_pd(pd))??;
                Ok(Completion::EMPTY)
            }
            Request::RegMr(request) => self.register(&request),
            Request::DeregMr(request) => self.deregister(&request),
            Request::CreateCq(request) => self.create_cq(&request),
            Request::DestroyCq(request) => self.destroy_cq(&request),
            Request::CreateQp(request) => self.create_qp(&request),
            Request::ModifyQp(request) => self.modify_qp(&request),
            Request::QueryQp(request) => self.query_qp(&request),
            Request::DestroyQp(request) => self.destroy_qp(&request),
            Request::CreateAh(request) => self.create_ah(&request),
            Request::DestroyAh(request) => self.destroy_ah(&request),
        }
    }

    fn get_feature(&self, request: &GetFeature) -> CommandResult {
        let (profile, gid) = (self.profile(), self.engine()?.gid());
        Ok(match Feature::of(request.feature) {
            Some(Feature::Device) => {
                let link = PortLink::default();
                Completion::of(&admin::device_attributes(profile, gid, link))
            }
            Some(Feature::AsyncEvents) => {
                Completion::of(&admin::async_events(self.notifier.groups()))
            }
            Some(Feature::Network) => Completion::of(&admin::network(profile, gid)),
            Some(Feature::Queues) => Completion::of(&admin::queue_attributes(profile)),
            Some(Feature::HardwareHints) => Completion::of(&admin::hardware_hints()),
            Some(Feature::EventQueues) => Completion::of(&admin::event_queues(profile)),
            Some(Feature::WideQueues) => Completion::of(&admin::wide_queue_attributes()),
            Some(Feature::HostInfo) | None => return Err(AdminStatus::Unsupported),
        })
    }

    fn set_feature(&mut self, request: &SetFeature) -> CommandResult {
        match Feature::of(request.feature) {
            Some(Feature::AsyncEvents) => {
                let groups = request.groups.get();
                if groups & !AsyncGroup::ALL != 0 {
                    return Err(AdminStatus::Unsupported);
                }
                self.notifier.set_groups(groups);
            }
            Some(Feature::HostInfo) => self.note_guest(request)?,
            _ => return Err(AdminStatus::Unsupported),
        }
        Ok(Completion::EMPTY)
    }

    /// Logs the guest's kernel version.
    fn note_guest(&self, request: &SetFeature) -> Result<(), AdminStatus> {
        /// Offset of the kernel's `LINUX_VERSION_CODE` in `efa_admin_host_info`.
        const VERSION: u64 = 164;
        let mut version = [0; 4];
        let address = request.buffer.address.get();
        self.memory
            .read(address.checked_add(VERSION).ok_or(ILLEGAL)?, &mut version)?;
        let [patch, minor, major, _] = version;
        tracing::info!("the guest's driver is of Linux {major}.{minor}.{patch}");
        Ok(())
    }

    fn get_statistics(&self, request: &GetStats) -> CommandResult {
        let engine = self.engine()?;
        if request.scope != 0 {
            return Err(AdminStatus::Unsupported);
        }
        let statistics = engine.with_device(|device| device.statistics())?;
        let port = &statistics.port;
        Ok(match StatisticsType::of(request.statistics) {
            Some(StatisticsType::Basic) => Completion::of(&admin::basic(port)),
            Some(StatisticsType::Messages) => Completion::of(&admin::messages(port)),
            Some(StatisticsType::RdmaRead) => Completion::of(&admin::reads(port)),
            Some(StatisticsType::RdmaWrite) => Completion::of(&admin::writes(port)),
            Some(StatisticsType::Network) => Completion::of(&admin::network_statistics(port)),
            None => return Err(AdminStatus::Unsupported),
        })
    }

    fn register(&mut self, request: &RegMr) -> CommandResult {
        let shift = u32::from(request.flags & RegMr::PAGE_SHIFT);
        if request.flags & RegMr::PHYSICAL != 0 {
            return Err(AdminStatus::Unsupported);
        }
        if !(12..32).contains(&shift) {
            return Err(ILLEGAL);
        }
        let access = access(request.permissions).ok_or(ILLEGAL)?;
        let (length, iova, size) = (request.length.get(), request.iova.get(), 1u64 << shift);
        let in_page = iova % size;
        let mut region = MemoryRegion {
            address: in_page,
            length,
            iova,
            access,
        };
        let owner = pd(request.pd);
        // Checked before any page is mapped.
        let engine = self.engine()?;
        engine.with_device(|device| device.check_region(owner, &region))??;
        let pages = PageList {
            count: (in_page + length).div_ceil(size),
            size,
        };
        let is_writable = access.contains(Access::LOCAL_WRITE);
        let stitched = pages.stitch(&self.memory, request, is_writable)?;
        region.address = stitched.address() + in_page;
        let keys = engine.register_memory(owner, region)?;
        self.objects.regions.insert(keys.lkey.0, stitched);
        Ok(Completion::of(&RegionMade {
            lkey: keys.lkey.0.into(),
            rkey: keys.rkey.0.into(),
            interconnects: [0; 8],
        }))
    }

    fn deregister(&mut self, request: &DeregMr) -> CommandResult {
        let lkey = request.lkey.get();
        self.engine()?.deregister_memory(Lkey(lkey))?;
        self.objects.regions.remove(&lkey);
        Ok(Completion::EMPTY)
    }

    fn create_cq(&mut self, request: &CreateCq) -> CommandResult {
        self.objects.check_uar(request.uar.get())?;
        if request.flags & CreateCq::VIRTUAL != 0 {
            return Err(AdminStatus::Unsupported);
        }
        let eqn = match request.flags & CreateCq::INTERRUPTS {
            0 => None,
            _ => Some(request.eqn.get()),
        };
        if eqn.is_some_and(|eqn| !self.notifier.has_eq(eqn)) || request.sub_queues.get() != 1 {
            return Err(ILLEGAL);
        }
        let has_gid = request.entry & CreateCq::SOURCE_GID != 0;
        let size = match request.entry & CreateCq::WORDS {
            4 if !has_gid => CompletionSize::Bytes16,
            8 => CompletionSize::Bytes32,
            _ => return Err(ILLEGAL),
        };
        if has_gid && !self.profile().caps.contains(DeviceCaps::CQ_WITH_SGID) {
            return Err(AdminStatus::Unsupported);
        }
        let depth = u32::from(request.depth.get());
        // Queues begin on separate pages, so there is space after one short entry.
        let bytes = (depth as usize * size.bytes()).max(CompletionRing::ENTRY_SIZE);
        let lent = self.memory.lend(request.base.get(), bytes as u64)?;
        let ring = CompletionRing::over(lent, depth, size).map_err(ring_error)?;
        let ring = Arc::new(ring);
        let shared = Arc::clone(&ring);
        let engine = self.engine()?;
        let cq =
            engine.with_device(|device| device.create_cq_over(shared, RequestIdSize::Bits16))??;
        let offset = Doorbell::Completion(cq.0).offset();
        let (Some(doorbell), Ok(number)) = (offset, u16::try_from(cq.0)) else {
            engine.with_device(|device| device.destroy_cq(cq))??;
            return Err(AdminStatus::NoResources);
        };
        self.objects.completion_queues.insert(number, ring);
        if let Some(eqn) = eqn {
            self.notifier.attach(cq.0, eqn);
        }
        Ok(Completion::of(&CqMade {
            cq: number.into(),
            depth: request.depth,
            doorbell: doorbell.into(),
            flags: CqMade::HAS_DOORBELL,
        }))
    }

    fn destroy_cq(&mut self, request: &DestroyCq) -> CommandResult {
        let cq = request.cq.get();
        let id = CqId(cq.into());
        self.engine()?
            .with_device(|device| device.destroy_cq(id))??;
        self.objects.completion_queues.remove(&cq);
        self.notifier.detach(cq.into());
        Ok(Completion::EMPTY)
    }

    fn create_qp(&mut self, request: &CreateQp) -> CommandResult {
        self.objects.check_uar(request.uar.get())?;
        let service = match request.service {
            1 => Service::Ud,
            2 => Service::Srd,
            _ => return Err(ILLEGAL),
        };
        if request.flags & REGISTERED_QUEUES != 0 {
            return Err(AdminStatus::Unsupported);
        }
        let (send_entries, wqe_size) = send_shape(request)?;
        let descriptors = request.recv_bytes.get() / ReceiveRing::ENTRY_SIZE as u32;
        let config = QpConfig {
            service,
            pd: pd(request.pd),
            send_cq: CqId(request.send_cq.get()),
            recv_cq: CqId(request.recv_cq.get()),
            send_entries,
            wqe_size,
            recv_descriptors: descriptors,
            unsolicited_write_recv: request.flags & UNSOLICITED_WRITE != 0,
            request_ids: RequestIdSize::Bits16,
        };
        let recv = match descriptors {
            0 => ReceiveRing::new(0),
            _ => {
                let bytes = request.recv_bytes.get();
                let lent = self.memory.lend(request.recv_base.get(), bytes.into())?;
                ReceiveRing::over(lent, descriptors)
            }
        };
        let recv = Arc::new(recv.map_err(ring_error)?);
        let (send_queue, send) = self.send_ring(request.send_bytes.get(), &config)?;
        let rings = QpRings { send, recv };
        let made = self.make_qp(config, rings, send_queue);
        if made.is_err()
            && let Some(send_queue) = send_queue
        {
            self.send_queues.give_back(send_queue);
        }
        made
    }

    /// The send queue of a queue pair, and its offset in the region of send queues.
    fn send_ring(
        &mut self,
        bytes: u32,
        config: &QpConfig,
    ) -> Result<(Option<u32>, Arc<SendRing>), AdminStatus> {
        let (entries, size) = (config.send_entries, config.wqe_size);
        if entries == 0 {
            let ring = SendRing::new(0, size).map_err(ring_error)?;
            return Ok((None, Arc::new(ring)));
        }
        let taken = self.send_queues.take(bytes);
        let (place, lent) = taken.ok_or(AdminStatus::NoResources)?;
        match SendRing::over(lent, entries, size) {
            Ok(ring) => Ok((Some(place), Arc::new(ring))),
            Err(error) => {
                self.send_queues.give_back(place);
                Err(ring_error(error))
            }
        }
    }

    fn make_qp(
        &mut self,
        config: QpConfig,
        rings: QpRings,
        send_queue: Option<u32>,
    ) -> CommandResult {
        let handle = self.objects.queue_pairs.vacant_key() as u32;
        let offsets = [Doorbell::Send(handle), Doorbell::Receive(handle)].map(Doorbell::offset);
        let [Some(send_doorbell), Some(recv_doorbell)] = offsets else {
            return Err(AdminStatus::NoResources);
        };
        let (qpn, rings) = self.engine()?.create_qp_over(config, Some(rings))?;
        self.objects.queue_pairs.insert(QueuePair {
            qpn,
            rings,
            send_queue,
        });
        Ok(Completion::of(&QpMade {
            handle: handle.into(),
            qpn: qpn.0.into(),
            reserved: U16::ZERO,
            send_sub_queue: QpMade::SUB_QUEUE,
            recv_sub_queue: QpMade::SUB_QUEUE,
            send_doorbell: send_doorbell.into(),
            recv_doorbell: recv_doorbell.into(),
            send_queue: send_queue.unwrap_or(0).into(),
        }))
    }

    fn modify_qp(&mut self, request: &ModifyQp) -> CommandResult {
        let qpn = self.objects.queue_pair(request.handle.get())?.qpn;
        let (change, believed) = change(request)?;
        let engine = self.engine()?;
        if let Some(believed) = believed {
            let attributes = engine.with_device(|device| device.query_qp(qpn))??;
            if attributes.state != believed {
                return Err(ILLEGAL);
            }
        }
        engine.modify_qp(qpn, &change)?;
        Ok(Completion::EMPTY)
    }

    fn query_qp(&self, request: &QueryQp) -> CommandResult {
        let qpn = self.objects.queue_pair(request.handle.get())?.qpn;
        let attributes = self
            .engine()?
            .with_device(|device| device.query_qp(qpn))??;
        Ok(Completion::of(&admin::QpState {
            state: admin::state_number(attributes.state).into(),
            qkey: attributes.qkey.0.into(),
            sq_psn: attributes.sq_psn.into(),
            is_draining: 0,
            rnr_retry: attributes.rnr_retry,
            reserved: U16::ZERO,
        }))
    }

    fn destroy_qp(&mut self, request: &DestroyQp) -> CommandResult {
        let handle = request.handle.get();
        let qpn = self.objects.queue_pair(handle)?.qpn;
        self.engine()?.destroy_qp(qpn)?;
        let pair = self.objects.queue_pairs.remove(handle as usize);
        if let Some(send_queue) = pair.send_queue {
            self.send_queues.give_back(send_queue);
        }
        Ok(Completion::EMPTY)
    }

    fn create_ah(&mut self, request: &CreateAh) -> CommandResult {
        let (owner, gid) = (pd(request.pd), Gid(request.gid));
        let engine = self.engine()?;
        let ahn = engine.with_device(|device| device.create_ah(owner, gid))??;
        Ok(Completion::of(&AhMade {
            ah: ahn.0.into(),
            reserved: U16::ZERO,
        }))
    }

    fn destroy_ah(&mut self, request: &DestroyAh) -> CommandResult {
        let (owner, ahn) = (pd(request.pd), Ahn(request.ah.get()));
        let engine: &Engine = self.engine()?;
        engine.with_device(|device| device.destroy_ah(owner, ahn))??;
        Ok(Completion::EMPTY)
    }
}

fn pd(number: U16) -> PdId {
    PdId(number.get().into())
}

fn access(permissions: u8) -> Option<Access> {
    const ALL: u8 = RegMr::LOCAL_WRITE | RegMr::REMOTE_WRITE | RegMr::REMOTE_READ;
    let mut access = Access::empty();
    access.set(Access::LOCAL_WRITE, permissions & RegMr::LOCAL_WRITE != 0);
    access.set(Access::REMOTE_WRITE, permissions & RegMr::REMOTE_WRITE != 0);
    access.set(Access::REMOTE_READ, permissions & RegMr::REMOTE_READ != 0);
    (permissions & !ALL == 0).then_some(access)
}

/// The number and size of a send queue's entries. The driver passes the ring's length in bytes,
/// with the depth rounded up to a power of two.
fn send_shape(request: &CreateQp) -> Result<(u32, WqeSize), AdminStatus> {
    let (bytes, depth) = (request.send_bytes.get(), request.send_depth.get());
    if bytes == 0 {
        return Ok((0, WqeSize::Bytes64));
    }
    let entries = depth.max(1).checked_next_power_of_two().ok_or(ILLEGAL)?;
    match (bytes / entries, bytes % entries) {
        (64, 0) => Ok((entries, WqeSize::Bytes64)),
        (128, 0) => Ok((entries, WqeSize::Bytes128)),
        _ => Err(ILLEGAL),
    }
}

/// The change in a command, and the expected current state. The driver always passes that, even
/// where the verbs do not allow it.
fn change(request: &ModifyQp) -> Result<(QpChange, Option<QpState>), AdminStatus> {
    let mask = ModifyMask::from_bits(request.mask.get()).ok_or(ILLEGAL)?;
    let has = |field| mask.contains(field);
    let state = |field, number: u32| match has(field) {
        true => admin::state_of(number).map(Some).ok_or(ILLEGAL),
        false => Ok(None),
    };
    let to = state(ModifyMask::STATE, request.state.get())?;
    // The driver checks partition key and port itself, and does not pass them.
    let is_init = to == Some(QpState::Init);
    let change = QpChange {
        state: to,
        current_state: None,
        pkey_index: is_init.then_some(0),
        port: is_init.then_some(1),
        qkey: has(ModifyMask::QKEY).then(|| Qkey(request.qkey.get())),
        sq_psn: has(ModifyMask::SQ_PSN).then(|| request.sq_psn.get()),
        rnr_retry: has(ModifyMask::RNR_RETRY).then_some(request.rnr_retry),
        drained_event: has(ModifyMask::DRAINED_EVENT) && request.drained_event != 0,
    };
    let believed = state(ModifyMask::CURRENT_STATE, request.current_state.get())?;
    Ok((change, believed))
}
