//! One SRD queue pair as a [`Nic`].

use crate::address_book::AddressBook;
use crate::buffers::PacketBuffers;
use crate::device::HwDevice;
use crate::error::OpenError;
use crate::memory::AddressSpace;
use crate::queues::{Queues, Session, last_nic_error};
use efa_core::address::{Ahn, Gid, Qkey, RawAddress};
use efa_core::nic::{
    Access, BufferId, Completion, CompletionKind, Destination, DeviceCaps, LocalKey, Nic,
    NicAttributes, NicError, RdmaRequest, Region, RemoteKey, SendRequest, UserSlice,
};
use ibverbs_sys as ffi;
use slab::Slab;
use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// How large a queue pair is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Work requests that the send queue holds, at most the device's `send_queue_depth`.
    pub send_queue_depth: usize,
    /// Receives that the receive queue holds, at most the device's `recv_queue_depth`.
    pub recv_queue_depth: usize,
    /// Packet buffers, shared by sends and receives.
    pub packet_buffers: u32,
    /// The Q-key; a random one if `None`. Its upper bit must be clear: the rest is privileged.
    pub qkey: Option<Qkey>,
    /// Receiver-not-ready retries of the device before a send completes with
    /// [`efa_core::nic::Status::RemoteRnr`]: 0 to 6, or 7 for ever. Stock libfabric sets 3.
    pub rnr_retry: u8,
    /// Peers' writes with immediate data take no receive, where the device can do that. Senders must
    /// be told, because stock libfabric wants both sides to agree.
    pub unsolicited_write_recv: bool,
}

impl Default for NicConfig {
    fn default() -> Self {
        NicConfig {
            send_queue_depth: 512,
            recv_queue_depth: 512,
            packet_buffers: 2048,
            qkey: None,
            rnr_retry: 3,
            unsolicited_write_recv: true,
        }
    }
}

/// An RDMA request in flight.
#[derive(Clone, Copy, Debug)]
struct Rdma {
    is_read: bool,
    context: u64,
}

/// Marks the `wr_id` of receives; the low bits are the buffer.
const RECV: u64 = 1 << 63;
/// Marks the `wr_id` of sends; the low bits are the buffer, which also keeps the context. Without a
/// mark it is an RDMA request, and the low bits are its key.
const SEND: u64 = 1 << 62;

/// One SRD queue pair of an EFA device.
#[derive(Debug)]
pub struct HwNic {
    // Fields drop in this order, which is the order in which verbs objects may be destroyed.
    address_book: AddressBook,
    queues: Queues,
    regions: HashMap<LocalKey, MemoryRegion>,
    buffers_region: MemoryRegion,
    buffers: PacketBuffers,
    address_space: AddressSpace,
    pd: ProtectionDomain,
    device: Arc<HwDevice>,
    attributes: NicAttributes,
    address: RawAddress,
    rdma: Slab<Rdma>,
    sends_posted: usize,
    receives_posted: usize,
}

// SAFETY: libibverbs allows calls from any thread, and `&mut self` keeps them apart.
unsafe impl Send for HwNic {}

impl HwNic {
    /// Creates the queue pair and brings it to ready-to-send.
    ///
    /// # Errors
    /// [`OpenError::Config`] if a depth is beyond the device's limit, [`OpenError::Verbs`] with the
    /// failed call otherwise.
    pub fn open(device: Arc<HwDevice>, config: NicConfig) -> Result<HwNic, OpenError> {
        let limits = device.attributes();
        for (what, value, limit) in [
            (
                "send queue depth",
                config.send_queue_depth,
                limits.send_queue_depth,
            ),
            (
                "receive queue depth",
                config.recv_queue_depth,
                limits.recv_queue_depth,
            ),
        ] {
            if value == 0 || value > limit {
                return Err(OpenError::Config { what, value, limit });
            }
        }
        let mut attributes = limits.clone();
        attributes.send_queue_depth = config.send_queue_depth;
        attributes.recv_queue_depth = config.recv_queue_depth;
        if !config.unsolicited_write_recv {
            attributes.caps -= DeviceCaps::UNSOLICITED_WRITE_RECV;
        }

        let pd = ProtectionDomain::alloc(&device)?;
        let memory_error = |error: NicError| OpenError::Verbs {
            call: "packet buffer allocation",
            device: device.name().to_owned(),
            source: io::Error::new(io::ErrorKind::OutOfMemory, error),
        };
        let buffers =
            PacketBuffers::new(config.packet_buffers, attributes.mtu).map_err(memory_error)?;
        let buffers_region = pd
            .register(buffers.memory().slice(), Access::LOCAL_WRITE)
            .map_err(|_| device.last_error("ibv_reg_mr"))?;
        let qkey = config
            .qkey
            .unwrap_or_else(|| Qkey(rand::random::<u32>() & 0x7FFF_FFFF));
        let queues = Queues::create(&device, &pd, &config, attributes.caps, qkey)?;
        let address = RawAddress {
            gid: device.gid(),
            qpn: queues.qpn(),
            qkey,
        };
        Ok(HwNic {
            address_book: AddressBook::default(),
            queues,
            regions: HashMap::new(),
            buffers_region,
            buffers,
            address_space: AddressSpace::default(),
            pd,
            device,
            attributes,
            address,
            rdma: Slab::with_capacity(config.send_queue_depth),
            sends_posted: 0,
            receives_posted: 0,
        })
    }

    /// The device that the queue pair is on.
    pub fn device(&self) -> &Arc<HwDevice> {
        &self.device
    }

    /// Makes `length` bytes of zeroed memory for transfers, owned by the nic.
    ///
    /// # Errors
    /// [`NicError::Exhausted`] if there is no memory.
    pub fn allocate_user(&mut self, length: usize) -> Result<UserSlice, NicError> {
        self.address_space.allocate(length)
    }

    /// Copies `bytes` to user memory.
    ///
    /// # Errors
    /// [`NicError::MemoryFault`] if not all of it is known to the nic.
    pub fn write_user(&mut self, address: u64, bytes: &[u8]) -> Result<(), NicError> {
        let target = self.address_space.resolve(UserSlice {
            address,
            length: bytes.len(),
        })?;
        // SAFETY: `resolve` found the whole target in memory that is allocated here or that the
        // caller of `allow_user` vouched for; `copy` allows overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    /// Copies user memory out.
    ///
    /// # Errors
    /// [`NicError::MemoryFault`] if not all of it is known to the nic.
    pub fn read_user(&self, source: UserSlice) -> Result<Vec<u8>, NicError> {
        let from = self.address_space.resolve(source)?;
        let mut bytes = vec![0; source.length];
        // SAFETY: as in `write_user`.
        unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(bytes)
    }

    /// Lets operations use memory that the caller owns.
    ///
    /// # Errors
    /// [`NicError::MemoryFault`] if it is empty or overlaps memory that the nic already knows.
    ///
    /// # Safety
    /// The memory is readable and writable, and stays so, and is not referenced by Rust references
    /// while operations on it are outstanding, until [`HwNic::revoke_user`] or the end of the nic.
    pub unsafe fn allow_user(&mut self, memory: UserSlice) -> Result<(), NicError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.address_space.allow(memory) }
    }

    /// Forgets the memory that [`HwNic::allow_user`] made known at `address`.
    pub fn revoke_user(&mut self, address: u64) {
        self.address_space.revoke(address);
    }

    /// Queues one work request; `build` names the operation and its data.
    #[inline(always)]
    fn post(
        &mut self,
        destination: Destination,
        work_request_id: u64,
        build: impl FnOnce(&Session),
    ) -> Result<(), NicError> {
        let handle = self.address_book.handle(destination.ahn)?;
        if self.sends_posted + self.rdma.len() > self.attributes.send_queue_depth {
            return Err(NicError::QueueFull);
        }
        // SAFETY: `handle` is alive in the address book, the queue pair in `queues`.
        unsafe {
            self.queues
                .post(work_request_id, handle, destination, build)
        }
    }

    /// Queues an RDMA operation; `build` names it, given the checked remote key.
    fn post_rdma(
        &mut self,
        request: &RdmaRequest,
        is_read: bool,
        build: impl FnOnce(&Session, u32),
    ) -> Result<(), NicError> {
        let length = u32::try_from(request.local.length)
            .ok()
            .filter(|length| *length as usize <= self.attributes.max_rdma_size)
            .ok_or(NicError::Invalid {
                what: "RDMA length",
                value: request.local.length as u64,
            })?;
        let remote_key = u32::try_from(request.remote_key.0).map_err(|_| NicError::Invalid {
            what: "remote key",
            value: request.remote_key.0,
        })?;
        let key = self.rdma.insert(Rdma {
            is_read,
            context: request.context,
        });
        let result = self.post(request.destination, key as u64, |session| {
            build(session, remote_key);
            session.gather(&[sge(request.local.address, length, request.local_key)]);
        });
        result.inspect_err(|_| {
            self.rdma.remove(key);
        })
    }
}

impl Nic for HwNic {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn local_address(&self) -> RawAddress {
        self.address
    }

    fn register(&mut self, memory: UserSlice, access: Access) -> Result<Region, NicError> {
        self.address_space.resolve(memory)?;
        let region = self.pd.register(memory, access)?;
        let keys = region.keys();
        self.regions.insert(keys.local_key, region);
        Ok(keys)
    }

    fn deregister(&mut self, region: Region) -> Result<(), NicError> {
        match self.regions.remove(&region.local_key) {
            Some(_) => Ok(()),
            None => Err(NicError::Invalid {
                what: "local key",
                value: u64::from(region.local_key.0),
            }),
        }
    }

    fn create_address_handle(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        // SAFETY: the protection domain lives as long as `self` and never changes.
        unsafe { self.address_book.create(self.pd.as_ptr(), gid) }
    }

    fn destroy_address_handle(&mut self, ahn: Ahn) -> Result<(), NicError> {
        self.address_book.destroy(ahn)
    }

    #[inline]
    fn acquire_buffer(&mut self) -> Option<BufferId> {
        self.buffers.acquire()
    }

    #[inline]
    fn release_buffer(&mut self, buffer: BufferId) {
        self.buffers.release(buffer);
    }

    #[inline]
    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    #[inline]
    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.buffers.bytes_mut(buffer)
    }

    #[inline]
    fn copy_from_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        source: UserSlice,
    ) -> Result<(), NicError> {
        let from = self.address_space.resolve(source)?;
        let invalid = NicError::Invalid {
            what: "packet buffer offset",
            value: offset as u64,
        };
        let target = offset
            .checked_add(source.length)
            .and_then(|end| self.buffers.bytes_mut(buffer).get_mut(offset..end))
            .ok_or(invalid)?;
        // SAFETY: `resolve` found the whole source; packet buffers are never user memory, so the
        // two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    #[inline]
    fn copy_to_user(
        &mut self,
        buffer: BufferId,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), NicError> {
        let target = self.address_space.resolve(UserSlice { address, length })?;
        let invalid = NicError::Invalid {
            what: "packet buffer offset",
            value: offset as u64,
        };
        let source = offset
            .checked_add(length)
            .and_then(|end| self.buffers.bytes(buffer).get(offset..end))
            .ok_or(invalid)?;
        // SAFETY: as in `copy_from_user`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    fn read_user(&mut self, address: u64, target: &mut [u8]) -> Result<(), NicError> {
        let from = self.address_space.resolve(UserSlice {
            address,
            length: target.len(),
        })?;
        // SAFETY: `resolve` found the whole source in memory that is allocated here or that the
        // caller of `allow_user` vouched for; `target` is a unique reference, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    fn write_user(&mut self, address: u64, source: &[u8]) -> Result<(), NicError> {
        HwNic::write_user(self, address, source)
    }

    #[inline(always)]
    fn post_send(&mut self, request: &SendRequest) -> Result<(), NicError> {
        let payload_length = request.payload.map_or(0, |(slice, _)| slice.length);
        let length = request.header_length.saturating_add(payload_length);
        if request.header_length > self.buffers.size() || length > self.attributes.mtu {
            return Err(NicError::Invalid {
                what: "packet length",
                value: length as u64,
            });
        }
        self.buffers.lend(request.buffer, request.context)?;
        self.sends_posted += 1;
        let header = sge(
            self.buffers.address(request.buffer),
            request.header_length as u32,
            self.buffers_region.keys().local_key,
        );
        let inline = length <= self.attributes.inline_size;
        let work_request_id = SEND | u64::from(request.buffer.0);
        let result = self.post(request.destination, work_request_id, |session| {
            session.send(request.immediate);
            match request.payload {
                None if inline => session.inline(&[header]),
                None => session.gather(&[header]),
                Some((slice, key)) => {
                    session.gather(&[header, sge(slice.address, slice.length as u32, key)]);
                }
            }
        });
        result.inspect_err(|_| {
            self.buffers.take_back(request.buffer);
            self.sends_posted -= 1;
        })
    }

    #[inline]
    fn post_recv(&mut self, buffer: BufferId) -> Result<(), NicError> {
        if self.receives_posted == self.attributes.recv_queue_depth {
            return Err(NicError::QueueFull);
        }
        self.buffers.lend(buffer, 0)?;
        let entry = sge(
            self.buffers.address(buffer),
            self.buffers.size() as u32,
            self.buffers_region.keys().local_key,
        );
        match self.queues.post_recv(RECV | u64::from(buffer.0), entry) {
            Ok(()) => {
                self.receives_posted += 1;
                Ok(())
            }
            Err(error) => {
                self.buffers.take_back(buffer);
                Err(error)
            }
        }
    }

    fn post_read(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        if !self.attributes.caps.contains(DeviceCaps::RDMA_READ) {
            return Err(NicError::Unsupported("RDMA read"));
        }
        self.post_rdma(request, true, |session, key| {
            session.read(key, request.remote_address);
        })
    }

    fn post_write(&mut self, request: &RdmaRequest) -> Result<(), NicError> {
        if !self.attributes.caps.contains(DeviceCaps::RDMA_WRITE) {
            return Err(NicError::Unsupported("RDMA write"));
        }
        self.post_rdma(request, false, |session, key| {
            session.write(key, request.remote_address, request.immediate);
        })
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize {
        let HwNic {
            queues,
            buffers,
            rdma,
            sends_posted,
            receives_posted,
            ..
        } = self;
        queues.poll(limit, |entry| {
            let status = entry.status();
            let wr_id = entry.wr_id();
            // Each kind is made where it stays.
            if wr_id & SEND != 0 {
                let buffer = BufferId(wr_id as u32);
                if let Some(context) = buffers.take_back(buffer) {
                    *sends_posted -= 1;
                    completions.push(Completion {
                        context,
                        status,
                        kind: CompletionKind::Send { buffer },
                    });
                }
                return;
            }
            if wr_id & RECV != 0 {
                let buffer = BufferId(wr_id as u32);
                if buffers.take_back(buffer).is_some() {
                    *receives_posted -= 1;
                    completions.push(Completion {
                        context: 0,
                        status,
                        kind: entry.receive(buffer, status),
                    });
                }
                return;
            }
            let (context, kind) = if entry.is_write_without_receive() {
                (0, entry.unsolicited_write())
            } else {
                let Some(Rdma { is_read, context }) = rdma.try_remove(wr_id as usize) else {
                    return;
                };
                let kind = match is_read {
                    true => CompletionKind::RdmaRead,
                    false => CompletionKind::RdmaWrite,
                };
                (context, kind)
            };
            completions.push(Completion {
                context,
                status,
                kind,
            });
        })
    }
}

fn sge(address: u64, length: u32, key: LocalKey) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: address,
        length,
        lkey: key.0,
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct ProtectionDomain(NonNull<ffi::ibv_pd>);

impl ProtectionDomain {
    pub(crate) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.0.as_ptr()
    }

    fn alloc(device: &HwDevice) -> Result<ProtectionDomain, OpenError> {
        // SAFETY: the device is open.
        NonNull::new(unsafe { ffi::ibv_alloc_pd(device.context()) })
            .map(ProtectionDomain)
            .ok_or_else(|| device.last_error("ibv_alloc_pd"))
    }

    fn register(&self, memory: UserSlice, access: Access) -> Result<MemoryRegion, NicError> {
        let start = memory.address as usize as *mut _;
        // SAFETY: the protection domain is alive; `AddressSpace` knows the memory, or it is the
        // nic's own.
        // `Access` has the bits of `ibv_access_flags`.
        let region =
            unsafe { ffi::ibv_reg_mr(self.0.as_ptr(), start, memory.length, access.bits() as i32) };
        NonNull::new(region)
            .map(MemoryRegion)
            .ok_or_else(|| last_nic_error("memory region"))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: every object in the domain was dropped before.
        unsafe { ffi::ibv_dealloc_pd(self.0.as_ptr()) };
    }
}

/// A memory registration.
#[derive(Debug)]
struct MemoryRegion(NonNull<ffi::ibv_mr>);

impl MemoryRegion {
    #[inline]
    fn keys(&self) -> Region {
        // SAFETY: the registration is alive until `self` is dropped.
        let region = unsafe { self.0.as_ref() };
        Region {
            local_key: LocalKey(region.lkey),
            remote_key: RemoteKey(u64::from(region.rkey)),
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: nobody else deregisters it.
        unsafe { ffi::ibv_dereg_mr(self.0.as_ptr()) };
    }
}
