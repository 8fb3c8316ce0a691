//! A queue pair of a domain.

use super::builder::{Operation, PreparedRequest, ScatterGatherList, SendCalls, sge};
use super::verbs::{Service, VerbsQueuePair, granted};
use crate::completion_queue::CompletionQueue;
use crate::domain::HwDomain;
use crate::error::{OpenError, refused};
use crate::loaded;
use crate::protection_domain::ProtectionDomain;
use crate::work_request::{Rdma, UserReceive, WorkRequestId};
use efa_core::address::{Qkey, RawAddress};
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
    /// As
    /// [`OutstandingRequests::generation`](crate::work_request::OutstandingRequests::generation).
    generation: u16,
    attributes: NicAttributes,
    /// As [`Inline::writes`](super::Inline::writes).
    inline_writes: bool,
    address: RawAddress,
    /// Deferred requests, which wait for the next doorbell, with their data.
    deferred: Vec<(PreparedRequest, ScatterGatherList)>,
    doorbells: u64,
    receive_doorbells: u64,
}

// SAFETY: libibverbs allows calls from any thread, and `&mut self` excludes concurrent calls.
unsafe impl Send for HwQueuePair {}

impl HwQueuePair {
    /// Creates the queue pair and moves it to ready-to-send.
    pub(crate) fn create(
        domain: &mut HwDomain,
        completion_queue: CompletionQueueId,
        config: &QueuePairConfig,
        service: Service,
    ) -> Result<HwQueuePair, OpenError> {
        let device = domain.device().clone();
        let attributes = granted(&device, config, service)?;
        let cq = domain.completion_queue(completion_queue)?.clone();
        let pd = domain.protection_domain().clone();
        let level = config.service_level;
        let verbs = VerbsQueuePair::create(&device, &cq, &pd, &attributes, service, level)?;
        // SAFETY: the queue pair is alive.
        let send = NonNull::new(unsafe { loaded::ibv_qp_to_qp_ex(verbs.as_ptr()) })
            .and_then(SendCalls::of)
            .ok_or_else(|| device.last_error("ibv_qp_to_qp_ex"))?;
        let qkey = config
            .qkey
            .unwrap_or_else(|| Qkey(rand::random::<u32>() & 0x7FFF_FFFF));
        let has_retries = attributes.caps.contains(DeviceCaps::RNR_RETRY);
        verbs.bring_up(&device, has_retries.then_some(config.rnr_retry), qkey)?;
        let qpn = verbs.number();
        tracing::info!(gid = %device.gid(), %qpn, ?service, "queue pair ready to send");
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
            inline_writes: service.inline().writes,
            address: RawAddress::new(device.gid(), qpn, qkey),
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
    /// [`HwDevice::max_recv_sge`](crate::HwDevice::max_recv_sge), otherwise one.
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
        if pieces.len() > MAX_PIECES {
            return Err(NicError::invalid(
                "pieces of a receive",
                pieces.len() as u64,
            ));
        }
        for (entry, (memory, key)) in entries.iter_mut().zip(pieces) {
            let length = u32::try_from(memory.length)
                .map_err(|_| NicError::invalid("length of a receive", memory.length as u64))?;
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
        // SAFETY: the list is one request, and its entries were set.
        let result = unsafe { self.verbs.post_recv(&mut request) };
        self.receive_doorbells += 1;
        if let Err((error, _)) = result {
            domain.user_receives.remove(place);
            return Err(error);
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
        // SAFETY: the requests up to `count` were written; the last one ends the list. The buffers
        // belong to the domain.
        let posted = unsafe {
            (*first.add(count - 1)).next = null_mut();
            self.verbs.post_recv(first)
        };
        self.receive_doorbells += 1;
        if let Err((error, bad)) = posted {
            result = Err(error);
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
        parts: &ScatterGatherList,
        doorbell: Doorbell,
        prepared: impl Fn(&Self) -> PreparedRequest,
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
            self.send.build(request, parts.as_slice(), handle);
            // SAFETY: a session is open.
            (self.send.complete)(qp)
        };
        match result {
            0 => {
                outstanding.sends += 1;
                Ok(())
            }
            libc::ENOMEM => Err(NicError::QueueFull),
            errno => Err(refused("ibv_wr_complete", errno)),
        }
    }

    /// Defers a request, and passes all deferred ones to the device if the doorbell is to be rung.
    #[cold]
    fn defer(
        &mut self,
        domain: &mut HwDomain,
        request: PreparedRequest,
        parts: &ScatterGatherList,
        doorbell: Doorbell,
    ) {
        // The bytes could move before the doorbell. With keys the device checks that.
        let inline = false;
        self.deferred
            .push((PreparedRequest { inline, ..request }, *parts));
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
            .ok_or(NicError::invalid(
                "RDMA length",
                request.local.length as u64,
            ))?;
        let remote_key = u32::try_from(request.remote_key.0)
            .map_err(|_| NicError::invalid("remote key", request.remote_key.0))?;
        let key = domain.rdma.insert(Rdma {
            slot: self.slot,
            is_read,
            context: request.context,
        });
        let prepared = PreparedRequest {
            id: WorkRequestId::rdma(self.slot, self.generation, key),
            destination: request.destination,
            operation: operation(remote_key),
            inline: !is_read && self.is_inlined(domain, request.local),
        };
        let parts = ScatterGatherList {
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
            return Err(NicError::invalid("packet length", length as u64));
        }
        let buffers = &mut domain.buffers;
        let (address, key) = buffers.lend(request.buffer, self.slot, request.context)?;
        let header = sge(address, request.header_length as u32, key);
        let (payload, count) = match request.payload {
            None => (sge(0, 0, key), 1),
            Some((slice, key)) => (sge(slice.address, slice.length as u32, key), 2),
        };
        let parts = ScatterGatherList {
            entries: [header, payload],
            count,
        };
        let prepared = |queue_pair: &Self| PreparedRequest {
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
                    self.send.build(*request, parts.as_slice(), handle);
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
