//! A queue pair, which posts through the function tables of the verbs.

use crate::completion_queue::CompletionQueue;
use crate::device::{HwDevice, PORT};
use crate::domain::HwDomain;
use crate::efadv::{self, QpInitAttr};
use crate::error::OpenError;
use crate::loaded;
use crate::protection_domain::ProtectionDomain;
use crate::work_request::{Rdma, UserReceive, WorkRequestId};
use efa_core::address::{Qkey, Qpn, RawAddress};
use efa_core::nic::{
    BufferId, CompletionQueueId, Destination, DeviceCaps, Doorbell, LocalKey, NicAttributes,
    NicError, QueuePair, QueuePairConfig, RdmaRequest, SendRequest, Status, UserSlice,
};
use efa_verbs_sys as ffi;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The most receives that are posted with one doorbell.
const RECEIVES_AT_ONCE: usize = 16;

/// The most segments of memory of a receive. Devices support fewer.
const MAX_PIECES: usize = 4;

/// Inline data of a queue pair's work requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inline {
    /// The bytes of a packet that a send work request includes, at most
    /// [`HwDevice::max_inline_size`]. `None` is the size for entries of 64 bytes. With more the
    /// entries have 128 bytes, and the device has room for half as many.
    pub size: Option<usize>,
    /// Whether work requests of RDMA writes include up to `size` bytes of data, if the memory
    /// belongs to the domain or was added with [`HwDomain::allow_user`]. Such a write needs no
    /// local key, and its memory may change after the call. Writes that wait for a doorbell
    /// ([`Doorbell::Defer`]) are excluded. Entries have 128 bytes.
    pub writes: bool,
}

/// The service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// Delivers each packet, in any order.
    Srd(Inline),
    /// Sends each packet once: a datagram.
    Ud,
}

/// One queue pair of an EFA device: SRD, or for datagrams (UD).
#[derive(Debug)]
pub struct HwQueuePair {
    // The first field, because the queue pair has to be destroyed before the objects that it uses.
    verbs: VerbsQueuePair,
    send: SendCalls,
    _cq: Arc<CompletionQueue>,
    _pd: Arc<ProtectionDomain>,
    completion_queue: CompletionQueueId,
    /// Its index in the domain.
    slot: u16,
    /// As [`Outstanding::generation`](crate::work_request::Outstanding::generation).
    generation: u16,
    attributes: NicAttributes,
    /// As [`Inline::writes`].
    inline_writes: bool,
    address: RawAddress,
    /// Deferred requests, which wait for the next doorbell, with their data.
    deferred: Vec<(Prepared, Parts)>,
    doorbells: u64,
    receive_doorbells: u64,
}

// SAFETY: libibverbs allows calls from any thread, and `&mut self` excludes concurrent calls.
unsafe impl Send for HwQueuePair {}

/// A checked work request, without its data. The address of the data is passed to the library,
/// which would force the whole request into memory.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    id: WorkRequestId,
    destination: Destination,
    operation: Operation,
    /// Whether the bytes are copied into the work request.
    inline: bool,
}

/// The data of a work request.
#[derive(Clone, Copy, Debug)]
struct Parts {
    entries: [ffi::ibv_sge; 2],
    /// The number of used entries.
    count: usize,
}

impl Parts {
    #[inline(always)]
    fn as_slice(&self) -> &[ffi::ibv_sge] {
        &self.entries[..self.count]
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Send(Option<u32>),
    Read {
        key: u32,
        address: u64,
    },
    Write {
        key: u32,
        address: u64,
        immediate: Option<u32>,
    },
}

/// The work request builder of the queue pair.
///
/// rdma-core declares these as inline functions over the table, so the table is the interface.
#[derive(Clone, Copy, Debug)]
struct SendCalls {
    qp: NonNull<ffi::ibv_qp_ex>,
    start: unsafe extern "C" fn(*mut ffi::ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut ffi::ibv_qp_ex) -> i32,
    send: unsafe extern "C" fn(*mut ffi::ibv_qp_ex),
    send_imm: unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32),
    read: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64)>,
    write: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64)>,
    write_imm: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64, u32)>,
    set_ud_addr: unsafe extern "C" fn(*mut ffi::ibv_qp_ex, *mut ffi::ibv_ah, u32, u32),
    set_inline_data_list:
        unsafe extern "C" fn(*mut ffi::ibv_qp_ex, usize, *const ffi::ibv_data_buf),
    set_sge_list: unsafe extern "C" fn(*mut ffi::ibv_qp_ex, usize, *const ffi::ibv_sge),
}

impl SendCalls {
    fn of(qp: NonNull<ffi::ibv_qp_ex>) -> Option<SendCalls> {
        // SAFETY: the queue pair is alive, and its table does not change after creation.
        let table = unsafe { qp.as_ref() };
        Some(SendCalls {
            qp,
            start: table.wr_start?,
            complete: table.wr_complete?,
            send: table.wr_send?,
            send_imm: table.wr_send_imm?,
            read: table.wr_rdma_read,
            write: table.wr_rdma_write,
            write_imm: table.wr_rdma_write_imm,
            set_ud_addr: table.wr_set_ud_addr?,
            set_inline_data_list: table.wr_set_inline_data_list?,
            set_sge_list: table.wr_set_sge_list?,
        })
    }
}

/// One work request under construction.
pub(crate) struct Session<'a>(&'a SendCalls);

impl Session<'_> {
    fn qp(&self) -> *mut ffi::ibv_qp_ex {
        self.0.qp.as_ptr()
    }

    /// Starts a send, with immediate data if given.
    #[inline]
    pub(crate) fn send(&self, immediate: Option<u32>) {
        // SAFETY: the queue pair is alive and a session is open.
        unsafe {
            match immediate {
                None => (self.0.send)(self.qp()),
                Some(immediate) => (self.0.send_imm)(self.qp(), immediate.to_be()),
            }
        }
    }

    /// Starts an RDMA read. On a device without RDMA read nothing is built, and completing the
    /// session fails.
    pub(crate) fn read(&self, key: u32, address: u64) {
        if let Some(read) = self.0.read {
            // SAFETY: as in `send`.
            unsafe { read(self.qp(), key, address) };
        }
    }

    /// Starts an RDMA write, with immediate data if given. On a device without RDMA write, as
    /// `read`.
    pub(crate) fn write(&self, key: u32, address: u64, immediate: Option<u32>) {
        match (immediate, self.0.write, self.0.write_imm) {
            // SAFETY: as in `send`.
            (None, Some(write), _) => unsafe { write(self.qp(), key, address) },
            // SAFETY: as in `send`.
            (Some(immediate), _, Some(write)) => unsafe {
                write(self.qp(), key, address, immediate.to_be());
            },
            _ => {}
        }
    }

    /// Sets registered memory as the request's data.
    #[inline]
    pub(crate) fn gather(&self, entries: &[ffi::ibv_sge]) {
        // SAFETY: as in `send`; the device copies the entries.
        unsafe { (self.0.set_sge_list)(self.qp(), entries.len(), entries.as_ptr()) };
    }

    /// Copies bytes into the work request as its data: at most two segments.
    pub(crate) fn inline(&self, entries: &[ffi::ibv_sge]) {
        let empty = ffi::ibv_data_buf {
            addr: null_mut(),
            length: 0,
        };
        let mut pieces = [empty; 2];
        let count = entries.len().min(pieces.len());
        for (piece, entry) in pieces.iter_mut().zip(entries) {
            piece.addr = entry.addr as usize as *mut _;
            piece.length = entry.length as usize;
        }
        // SAFETY: as in `send`; the segments refer to memory that the domain may read, which is
        // copied immediately.
        unsafe { (self.0.set_inline_data_list)(self.qp(), count, pieces.as_ptr()) };
    }
}

impl HwQueuePair {
    /// Creates the queue pair and moves it to ready-to-send.
    pub(crate) fn create(
        domain: &mut HwDomain,
        completion_queue: CompletionQueueId,
        config: &QueuePairConfig,
        service: Service,
    ) -> Result<HwQueuePair, OpenError> {
        let inline = match service {
            Service::Srd(inline) => inline,
            Service::Ud => Inline::default(),
        };
        let device = domain.device().clone();
        let limits = device.limits();
        let inline_size = inline.size.unwrap_or(limits.inline_size);
        if inline_size > device.max_inline_size() {
            return Err(OpenError::Config {
                what: "inline size",
                value: inline_size,
                limit: device.max_inline_size(),
            });
        }
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
        attributes.inline_size = inline_size;
        if !config.unsolicited_write_recv {
            attributes.caps -= DeviceCaps::UNSOLICITED_WRITE_RECV;
        }
        if service == Service::Ud {
            // These are only for SRD queue pairs.
            attributes.caps = DeviceCaps::empty();
        }
        let cq = domain.completion_queue(completion_queue)?.clone();
        let pd = domain.protection_domain().clone();

        let caps = attributes.caps;
        let mut operations = ffi::IBV_QP_EX_WITH_SEND | ffi::IBV_QP_EX_WITH_SEND_WITH_IMM;
        if caps.contains(DeviceCaps::RDMA_READ) {
            operations |= ffi::IBV_QP_EX_WITH_RDMA_READ;
        }
        if caps.contains(DeviceCaps::RDMA_WRITE) {
            operations |= ffi::IBV_QP_EX_WITH_RDMA_WRITE | ffi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        }
        let mut attr = ffi::ibv_qp_init_attr_ex {
            send_cq: cq.as_cq(),
            recv_cq: cq.as_cq(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: config.send_queue_depth as u32,
                max_recv_wr: config.recv_queue_depth as u32,
                max_send_sge: device.max_send_sge(),
                max_recv_sge: match service {
                    Service::Srd(_) => 1,
                    Service::Ud => device.max_recv_sge(),
                },
                max_inline_data: inline_size as u32,
            },
            qp_type: match service {
                Service::Srd(_) => ffi::ibv_qp_type::IBV_QPT_DRIVER,
                Service::Ud => ffi::ibv_qp_type::IBV_QPT_UD,
            },
            sq_sig_all: 1,
            comp_mask: ffi::IBV_QP_INIT_ATTR_PD | ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: pd.as_ptr(),
            send_ops_flags: u64::from(operations),
            ..Default::default()
        };
        let mut efa_attr = efa_attributes(caps, inline, config.service_level);
        // SAFETY: device, domain and queue are alive, both structures are complete.
        let (call, verbs) = unsafe {
            let context = device.context();
            let size = size_of::<QpInitAttr>() as u32;
            match service {
                Service::Srd(_) => (
                    "efadv_create_qp_ex",
                    loaded::efadv_create_qp_ex(context, &mut attr, &mut efa_attr, size),
                ),
                Service::Ud => ("ibv_create_qp_ex", create_qp_ex(context, &mut attr)),
            }
        };
        let verbs = NonNull::new(verbs).map(VerbsQueuePair);
        let verbs = verbs.ok_or_else(|| device.last_error(call))?;
        // SAFETY: the queue pair is alive.
        let send = NonNull::new(unsafe { loaded::ibv_qp_to_qp_ex(verbs.0.as_ptr()) })
            .and_then(SendCalls::of)
            .ok_or_else(|| device.last_error("ibv_qp_to_qp_ex"))?;
        let qkey = config
            .qkey
            .unwrap_or_else(|| Qkey(rand::random::<u32>() & 0x7FFF_FFFF));
        let rnr_retry = caps
            .contains(DeviceCaps::RNR_RETRY)
            .then_some(config.rnr_retry);
        bring_up(&device, verbs.0, rnr_retry, qkey)?;
        // SAFETY: the queue pair is alive. EFA numbers have 16 bits.
        let qpn = Qpn(unsafe { verbs.0.as_ref() }.qp_num as u16);
        let slot = domain.add_queue_pair(qpn)?;
        let generation = domain.outstanding(slot)?.generation;
        Ok(HwQueuePair {
            verbs,
            send,
            _cq: cq,
            _pd: pd,
            completion_queue,
            slot,
            generation,
            attributes,
            inline_writes: inline.writes,
            address: RawAddress {
                gid: device.gid(),
                qpn,
                qkey,
            },
            deferred: Vec::new(),
            doorbells: 0,
            receive_doorbells: 0,
        })
    }

    /// The number of doorbells of the send queue so far.
    pub fn doorbells(&self) -> u64 {
        self.doorbells
    }

    /// The number of doorbells of the receive queue so far.
    pub fn receive_doorbells(&self) -> u64 {
        self.receive_doorbells
    }

    /// As [`QueuePair::post_user_recv`], into several segments of memory: for datagrams at most
    /// [`HwDevice::max_recv_sge`], otherwise one.
    ///
    /// # Errors
    /// [`NicError::QueueFull`], or another error of the call.
    pub fn post_scattered_recv(
        &mut self,
        domain: &mut HwDomain,
        pieces: &[(UserSlice, LocalKey)],
        context: u64,
    ) -> Result<(), NicError> {
        let mut entries = [sge(0, 0, LocalKey(0)); MAX_PIECES];
        let unknown = |what, value| NicError::Invalid { what, value };
        if pieces.len() > MAX_PIECES {
            return Err(unknown("pieces of a receive", pieces.len() as u64));
        }
        for (entry, (memory, key)) in entries.iter_mut().zip(pieces) {
            let length = u32::try_from(memory.length)
                .map_err(|_| unknown("length of a receive", memory.length as u64))?;
            *entry = sge(memory.address, length, *key);
        }
        let slot = self.slot;
        if domain.outstanding(slot)?.receives >= self.attributes.recv_queue_depth {
            return Err(NicError::QueueFull);
        }
        let place = domain.user_receives.insert(UserReceive { slot, context });
        let mut request = ffi::ibv_recv_wr {
            wr_id: WorkRequestId::user_recv(slot, place).0,
            next: null_mut(),
            sg_list: entries.as_mut_ptr(),
            num_sge: pieces.len() as i32,
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive, its context's table has `post_recv`, and the library
        // copies request and entry. The device writes only to memory that the key covers.
        let status = unsafe {
            let context = self.verbs.0.as_ref().context;
            match (*context).ops.post_recv {
                Some(post_recv) => post_recv(self.verbs.0.as_ptr(), &mut request, &mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        self.receive_doorbells += 1;
        if status != 0 {
            domain.user_receives.remove(place);
            return Err(match status {
                libc::ENOMEM => NicError::QueueFull,
                errno => NicError::Device {
                    call: "ibv_post_recv",
                    errno: errno.abs(),
                },
            });
        }
        domain.outstanding(slot)?.receives += 1;
        Ok(())
    }

    /// Posts up to [`RECEIVES_AT_ONCE`] buffers to the receive queue, from the last one on, with
    /// one doorbell. Returns their number, and the error of the refused ones.
    #[inline]
    fn post_receives(
        &mut self,
        domain: &mut HwDomain,
        buffers: &[BufferId],
    ) -> (usize, Result<(), NicError>) {
        let posted = match domain.outstanding(self.slot) {
            Ok(outstanding) => outstanding.receives,
            Err(error) => return (0, Err(error)),
        };
        let room = self.attributes.recv_queue_depth.saturating_sub(posted);
        let mut result = match room < buffers.len() {
            true => Err(NicError::QueueFull),
            false => Ok(()),
        };
        let mut requests = [const { MaybeUninit::<ffi::ibv_recv_wr>::uninit() }; RECEIVES_AT_ONCE];
        let mut entries = [const { MaybeUninit::<ffi::ibv_sge>::uninit() }; RECEIVES_AT_ONCE];
        let first = requests.as_mut_ptr().cast::<ffi::ibv_recv_wr>();
        let length = domain.buffers.size() as u32;
        let mut count = 0;
        let lent = buffers.iter().rev().take(room.min(RECEIVES_AT_ONCE));
        for (buffer, entry) in lent.clone().zip(&mut entries) {
            let (address, key) = match domain.buffers.lend(*buffer, self.slot, 0) {
                Ok(lent) => lent,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            let request = ffi::ibv_recv_wr {
                wr_id: WorkRequestId::recv(self.slot, *buffer).0,
                next: first.wrapping_add(count + 1),
                sg_list: entry.write(sge(address, length, key)),
                num_sge: 1,
            };
            // SAFETY: there are as many requests as entries, and `count` is the index of this
            // entry.
            unsafe { first.add(count).write(request) };
            count += 1;
        }
        if count == 0 {
            return (0, result);
        }
        let mut bad = null_mut();
        // SAFETY: the requests up to `count` were written; the last one ends the list. The queue
        // pair is alive, its context's table has `post_recv`, the library copies requests and
        // entries, and the buffers belong to the domain.
        let status = unsafe {
            (*first.add(count - 1)).next = null_mut();
            let context = self.verbs.0.as_ref().context;
            match (*context).ops.post_recv {
                Some(post_recv) => post_recv(self.verbs.0.as_ptr(), first, &mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        self.receive_doorbells += 1;
        if status != 0 {
            result = match status {
                libc::ENOMEM => Err(NicError::QueueFull),
                errno => Err(NicError::Device {
                    call: "ibv_post_recv",
                    errno: errno.abs(),
                }),
            };
            // The device accepted the requests before the bad one.
            let offset = bad.addr().wrapping_sub(first.addr());
            let taken = match bad.is_null() {
                true => 0,
                false => (offset / size_of::<ffi::ibv_recv_wr>()).min(count),
            };
            for buffer in lent.take(count).skip(taken) {
                domain.buffers.take_back(*buffer);
            }
            count = taken;
        }
        if let Ok(outstanding) = domain.outstanding(self.slot) {
            outstanding.receives += count;
        }
        (count, result)
    }

    /// Passes a request to the device, or defers it until the next doorbell. `prepared` creates the
    /// request only after this decision, so that a request that is passed on immediately stays in
    /// registers.
    #[inline(always)]
    fn post(
        &mut self,
        domain: &mut HwDomain,
        destination: Destination,
        parts: &Parts,
        doorbell: Doorbell,
        prepared: impl Fn(&Self) -> Prepared,
    ) -> Result<(), NicError> {
        let handle = domain.address_book.handle(destination.ahn)?;
        let outstanding = domain.outstanding(self.slot)?;
        if outstanding.sends == self.attributes.send_queue_depth {
            return Err(NicError::QueueFull);
        }
        if doorbell == Doorbell::Defer || !self.deferred.is_empty() {
            outstanding.sends += 1;
            self.defer(domain, prepared(self), parts, doorbell);
            return Ok(());
        }
        let request = prepared(self);
        self.doorbells += 1;
        let qp = self.send.qp.as_ptr();
        let result = unsafe {
            // SAFETY: the queue pair is alive, and `&mut self` makes this its only session.
            (self.send.start)(qp);
            // SAFETY: `handle` is alive in the address book, and a session is open.
            self.build(request, parts.as_slice(), handle);
            // SAFETY: a session is open.
            (self.send.complete)(qp)
        };
        match result {
            0 => {
                outstanding.sends += 1;
                Ok(())
            }
            libc::ENOMEM => Err(NicError::QueueFull),
            errno => Err(NicError::Device {
                call: "ibv_wr_complete",
                errno: errno.abs(),
            }),
        }
    }

    /// Adds a request to the open session.
    ///
    /// # Safety
    /// A session is open, and `handle` is alive.
    #[inline(always)]
    unsafe fn build(&self, request: Prepared, parts: &[ffi::ibv_sge], handle: *mut ffi::ibv_ah) {
        let qp = self.send.qp.as_ptr();
        let session = Session(&self.send);
        // SAFETY: the builder reads these two members when the operation starts.
        unsafe {
            (*qp).wr_id = request.id.0;
            (*qp).wr_flags = 0;
        }
        match request.operation {
            Operation::Send(immediate) => session.send(immediate),
            Operation::Read { key, address } => session.read(key, address),
            Operation::Write {
                key,
                address,
                immediate,
            } => session.write(key, address, immediate),
        }
        match request.inline {
            true => session.inline(parts),
            false => session.gather(parts),
        }
        let Destination { qpn, qkey, .. } = request.destination;
        // SAFETY: the caller guarantees that `handle` is alive.
        unsafe { (self.send.set_ud_addr)(qp, handle, u32::from(qpn.0), qkey.0) };
    }

    /// Defers a request, and passes all deferred ones to the device if the doorbell is to be rung.
    #[cold]
    fn defer(
        &mut self,
        domain: &mut HwDomain,
        request: Prepared,
        parts: &Parts,
        doorbell: Doorbell,
    ) {
        // The bytes could move before the doorbell. With keys the device checks that.
        let inline = false;
        self.deferred.push((Prepared { inline, ..request }, *parts));
        if doorbell == Doorbell::Ring {
            self.flush(domain);
        }
    }

    /// Returns whether a write of this memory includes its data in the work request.
    fn is_inlined(&self, domain: &HwDomain, local: UserSlice) -> bool {
        self.inline_writes
            && local.length <= self.attributes.inline_size
            && domain.can_access(local)
    }

    /// Queues an RDMA operation, which `operation` makes from the checked remote key.
    fn post_rdma(
        &mut self,
        domain: &mut HwDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
        is_read: bool,
        operation: impl FnOnce(u32) -> Operation,
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
        let key = domain.rdma.insert(Rdma {
            slot: self.slot,
            is_read,
            context: request.context,
        });
        let prepared = Prepared {
            id: WorkRequestId::rdma(self.slot, self.generation, key),
            destination: request.destination,
            operation: operation(remote_key),
            inline: !is_read && self.is_inlined(domain, request.local),
        };
        let parts = Parts {
            entries: [
                sge(request.local.address, length, request.local_key),
                sge(0, 0, request.local_key),
            ],
            count: 1,
        };
        let result = self.post(domain, request.destination, &parts, doorbell, |_| prepared);
        result.inspect_err(|_| {
            domain.rdma.remove(key);
        })
    }
}

impl QueuePair for HwQueuePair {
    type Domain = HwDomain;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn address(&self) -> RawAddress {
        self.address
    }

    #[inline]
    fn completion_queue(&self) -> CompletionQueueId {
        self.completion_queue
    }

    #[inline(always)]
    fn post_send(
        &mut self,
        domain: &mut HwDomain,
        request: &SendRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        let payload_length = request.payload.map_or(0, |(slice, _)| slice.length);
        let length = request.header_length.saturating_add(payload_length);
        if request.header_length > domain.buffers.size() || length > self.attributes.mtu {
            return Err(NicError::Invalid {
                what: "packet length",
                value: length as u64,
            });
        }
        let buffers = &mut domain.buffers;
        let (address, key) = buffers.lend(request.buffer, self.slot, request.context)?;
        let header = sge(address, request.header_length as u32, key);
        let (payload, count) = match request.payload {
            None => (sge(0, 0, key), 1),
            Some((slice, key)) => (sge(slice.address, slice.length as u32, key), 2),
        };
        let parts = Parts {
            entries: [header, payload],
            count,
        };
        let prepared = |queue_pair: &Self| Prepared {
            id: WorkRequestId::send(queue_pair.slot, queue_pair.generation, request.buffer),
            destination: request.destination,
            operation: Operation::Send(request.immediate),
            inline: count == 1 && length <= queue_pair.attributes.inline_size,
        };
        match self.post(domain, request.destination, &parts, doorbell, prepared) {
            Ok(()) => Ok(()),
            Err(error) => {
                domain.buffers.take_back(request.buffer);
                Err(error)
            }
        }
    }

    fn post_read(
        &mut self,
        domain: &mut HwDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        if !self.attributes.caps.contains(DeviceCaps::RDMA_READ) {
            return Err(NicError::Unsupported("RDMA read"));
        }
        let address = request.remote_address;
        self.post_rdma(domain, request, doorbell, true, |key| Operation::Read {
            key,
            address,
        })
    }

    fn post_write(
        &mut self,
        domain: &mut HwDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        if !self.attributes.caps.contains(DeviceCaps::RDMA_WRITE) {
            return Err(NicError::Unsupported("RDMA write"));
        }
        let (address, immediate) = (request.remote_address, request.immediate);
        self.post_rdma(domain, request, doorbell, false, |key| Operation::Write {
            key,
            address,
            immediate,
        })
    }

    fn flush(&mut self, domain: &mut HwDomain) {
        if self.deferred.is_empty() {
            return;
        }
        let mut deferred = std::mem::take(&mut self.deferred);
        // An address handle may have been destroyed since its request was posted.
        deferred.retain(|(request, _)| {
            let is_known = domain.address_book.handle(request.destination.ahn).is_ok();
            if !is_known {
                domain.fail(self.completion_queue, request.id, Status::LocalInvalidAh);
            }
            is_known
        });
        self.doorbells += 1;
        let qp = self.send.qp.as_ptr();
        let result = unsafe {
            // SAFETY: the queue pair is alive, and `&mut self` makes this its only session.
            (self.send.start)(qp);
            for (request, parts) in &deferred {
                if let Ok(handle) = domain.address_book.handle(request.destination.ahn) {
                    // SAFETY: `handle` is alive in the address book, and a session is open.
                    self.build(*request, parts.as_slice(), handle);
                }
            }
            // SAFETY: a session is open.
            (self.send.complete)(qp)
        };
        if result != 0 {
            // The device accepted none of the batch.
            for (request, _) in &deferred {
                let status = Status::LocalQpInternalError;
                domain.fail(self.completion_queue, request.id, status);
            }
        }
        deferred.clear();
        self.deferred = deferred;
    }

    #[inline]
    fn post_recv(&mut self, domain: &mut HwDomain, buffer: BufferId) -> Result<(), NicError> {
        self.post_receives(domain, &[buffer]).1
    }

    #[inline]
    fn post_recvs(
        &mut self,
        domain: &mut HwDomain,
        buffers: &mut Vec<BufferId>,
    ) -> Result<(), NicError> {
        while !buffers.is_empty() {
            let first = buffers.len().saturating_sub(RECEIVES_AT_ONCE);
            let (count, result) = self.post_receives(domain, &buffers[first..]);
            buffers.truncate(buffers.len() - count);
            result?;
        }
        Ok(())
    }

    fn post_user_recv(
        &mut self,
        domain: &mut HwDomain,
        memory: UserSlice,
        key: LocalKey,
        context: u64,
    ) -> Result<(), NicError> {
        self.post_scattered_recv(domain, &[(memory, key)], context)
    }

    fn close(self, domain: &mut HwDomain) {
        let HwQueuePair { verbs, slot, .. } = self;
        drop(verbs);
        domain.remove_queue_pair(slot);
    }
}

fn sge(address: u64, length: u32, key: LocalKey) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: address,
        length,
        lkey: key.0,
    }
}

/// The attributes of a queue pair for libefa.
fn efa_attributes(caps: DeviceCaps, inline: Inline, service_level: u8) -> QpInitAttr {
    let flags = [
        (
            caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV),
            efadv::QP_FLAGS_UNSOLICITED_WRITE_RECV,
        ),
        (inline.writes, efadv::QP_FLAGS_INLINE_WRITE),
    ];
    let flags = flags.into_iter();
    QpInitAttr {
        driver_qp_type: efadv::QP_DRIVER_TYPE_SRD,
        flags: flags
            .filter_map(|(is_wanted, flag)| is_wanted.then_some(flag))
            .sum(),
        sl: service_level,
        ..QpInitAttr::default()
    }
}

/// `ibv_create_qp_ex`, an inline function of the header. Null, as after a failure, if the library
/// does not have it.
///
/// # Safety
/// The context is open, and the attributes are complete.
pub(crate) unsafe fn create_qp_ex(
    context: *mut ffi::ibv_context,
    attr: &mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    match loaded::around!(context, create_qp_ex) {
        // SAFETY: by the caller's contract.
        Some(call) => unsafe { call(context, attr) },
        None => null_mut(),
    }
}

/// A queue pair, destroyed when dropped.
#[derive(Debug)]
struct VerbsQueuePair(NonNull<ffi::ibv_qp>);

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        // SAFETY: its owner does not use the queue pair afterwards.
        unsafe { loaded::ibv_destroy_qp(self.0.as_ptr()) };
    }
}

/// Moves a queue pair from RESET through INIT and RTR to RTS.
fn bring_up(
    device: &HwDevice,
    qp: NonNull<ffi::ibv_qp>,
    rnr_retry: Option<u8>,
    qkey: Qkey,
) -> Result<(), OpenError> {
    use ffi::ibv_qp_attr_mask as Mask;
    let mut attr = ffi::ibv_qp_attr {
        qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
        qkey: qkey.0,
        port_num: PORT,
        ..Default::default()
    };
    let init = Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_PKEY_INDEX.0
        | Mask::IBV_QP_PORT.0
        | Mask::IBV_QP_QKEY.0;
    // SAFETY: the queue pair is alive and `attr` has every member that the mask names.
    let result = unsafe { loaded::ibv_modify_qp(qp.as_ptr(), &mut attr, init as i32) };
    device.check("ibv_modify_qp(INIT)", result)?;

    attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTR;
    // SAFETY: as above.
    let result =
        unsafe { loaded::ibv_modify_qp(qp.as_ptr(), &mut attr, Mask::IBV_QP_STATE.0 as i32) };
    device.check("ibv_modify_qp(RTR)", result)?;

    attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTS;
    attr.rnr_retry = rnr_retry.unwrap_or(0);
    let mut ready = Mask::IBV_QP_STATE.0 | Mask::IBV_QP_SQ_PSN.0;
    if rnr_retry.is_some() {
        ready |= Mask::IBV_QP_RNR_RETRY.0;
    }
    // SAFETY: as above.
    let result = unsafe { loaded::ibv_modify_qp(qp.as_ptr(), &mut attr, ready as i32) };
    device.check("ibv_modify_qp(RTS)", result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_level_is_the_byte_after_flags() {
        let level = QueuePairConfig::LOW_LATENCY;
        let asked = efa_attributes(DeviceCaps::all(), Inline::default(), level);
        // SAFETY: the structure has no padding: 8 + 4 + 2 + 1 + 1 bytes.
        let bytes: [u8; 16] = unsafe { std::mem::transmute(asked) };
        // No extensions, an SRD queue pair, unsolicited writes, the service level, zero.
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0]);
    }
}
