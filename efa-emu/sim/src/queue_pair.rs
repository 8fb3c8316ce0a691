//! An SRD queue pair of a simulated host.

use efa_core::address::RawAddress;
use efa_core::nic::{
    BufferId, CompletionQueueId, Destination, DeviceCaps, Doorbell, LocalKey, NicAttributes,
    NicError, QueuePair, QueuePairConfig, RdmaRequest, SendRequest, UserSlice,
};

use super::domain::{Posted, SimDomain};
use super::objects::{DeviceQueuePair, REQUEST_IDS};
use efa_device_model::device::queue::{Buffer, WqeSize};
use efa_device_model::device::{QpChange, QpConfig, QpState, Service};
use efa_device_model::provider::{
    self, RecvQueue, RecvQueueConfig, SendData, SendFlags, SendOpcode, SendQueue, SendQueueConfig,
    UdAddress,
};

/// The client's side of the queues of one queue pair.
pub(super) struct Queues {
    pub(super) send: SendQueue,
    pub(super) recv: RecvQueue,
}

/// One queue pair of a simulated host. When it is closed or dropped, its number becomes free.
/// Packets still in flight to it then find no queue pair, or the next owner of the number.
pub struct SimQueuePair {
    attributes: NicAttributes,
    address: RawAddress,
    completion_queue: CompletionQueueId,
    on_device: DeviceQueuePair,
    doorbells: u64,
    /// Whether requests were posted without a doorbell.
    is_deferred: bool,
}

impl SimQueuePair {
    pub(super) fn create(
        domain: &mut SimDomain,
        completion_queue: CompletionQueueId,
        config: &QueuePairConfig,
        service: Service,
    ) -> Result<Self, NicError> {
        let depth = |what, depth: usize| {
            u32::try_from(depth).map_err(|_| NicError::invalid(what, depth as u64))
        };
        let send_entries = depth("send queue depth", config.send_queue_depth)?;
        let receives = depth("receive queue depth", config.recv_queue_depth)?;
        let cq = domain.completion_queue(completion_queue)?.clone();
        let mut on_device = DeviceQueuePair::reserve(&domain.objects, &cq)?;
        let rings = on_device.create(|pd, cq| QpConfig {
            service,
            pd,
            send_cq: cq,
            recv_cq: cq,
            send_entries,
            wqe_size: WqeSize::Bytes64,
            recv_descriptors: RecvQueue::descriptors(receives, 1),
            unsolicited_write_recv: config.unsolicited_write_recv,
            request_ids: REQUEST_IDS,
        })?;
        let incarnation = &domain.objects.incarnation;
        let qkey = config.qkey.unwrap_or_else(|| incarnation.random_qkey());
        let profile = &domain.profile;
        let rnr_retry = service == Service::Srd && profile.caps.contains(DeviceCaps::RNR_RETRY);
        on_device.bring_up(qkey, rnr_retry.then_some(config.rnr_retry))?;

        let generation = incarnation.next_generation();
        let mut send = SendQueue::new(
            rings.send,
            SendQueueConfig {
                max_sge: profile.max_sq_sge,
                max_rdma_sge: profile.max_rdma_sge,
                max_inline: profile.inline_size,
                inline_write: false,
                signal_all: true,
                unsignaled: false,
                request_ids: REQUEST_IDS,
                generation,
            },
        );
        send.set_state(QpState::ReadyToSend);
        let recv = RecvQueueConfig {
            max_sge: 1,
            generation,
        };
        let mut recv = RecvQueue::new(rings.recv, recv);
        recv.set_state(QpState::ReadyToSend);
        let address = RawAddress::new(incarnation.host().gid(), on_device.qpn(), qkey);
        let mut attributes = NicAttributes {
            send_queue_depth: send.depth(),
            recv_queue_depth: recv.depth(),
            ..efa_core::nic::Domain::attributes(domain).clone()
        };
        if !config.unsolicited_write_recv {
            attributes.caps -= DeviceCaps::UNSOLICITED_WRITE_RECV;
        }
        domain.add_queues(address.qpn, Queues { send, recv });
        Ok(SimQueuePair {
            attributes,
            address,
            completion_queue,
            on_device,
            doorbells: 0,
            is_deferred: false,
        })
    }

    /// The number of doorbells of the send queue.
    pub fn doorbells(&self) -> u64 {
        self.doorbells
    }

    /// Puts the queue pair into the error state: all outstanding requests complete with
    /// [`Status::Flushed`](efa_core::nic::Status::Flushed), and none can be posted any more.
    pub fn fail(&mut self, domain: &mut SimDomain) -> Result<(), NicError> {
        self.on_device.modify(&QpChange {
            state: Some(QpState::Error),
            ..QpChange::default()
        })?;
        let queues = domain.queues(self.address.qpn)?;
        queues.send.set_state(QpState::Error);
        queues.recv.set_state(QpState::Error);
        Ok(())
    }

    fn rung(&mut self, domain: &mut SimDomain, doorbell: Doorbell) -> Result<(), NicError> {
        match doorbell {
            Doorbell::Ring => self.ring(domain),
            Doorbell::Defer => {
                self.is_deferred = true;
                Ok(())
            }
        }
    }

    /// Rings the doorbell of the send queue.
    fn ring(&mut self, domain: &mut SimDomain) -> Result<(), NicError> {
        let qpn = self.address.qpn;
        self.doorbells += 1;
        self.is_deferred = false;
        domain.queues(qpn)?.send.publish();
        let incarnation = &domain.objects.incarnation;
        incarnation.with_host(|host| host.device.read_send_doorbell(qpn))?;
        incarnation.drive();
        Ok(())
    }

    fn post_rdma(
        &mut self,
        domain: &mut SimDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
        begin: impl FnOnce(&mut SendQueue, u64, u32, u64),
    ) -> Result<(), NicError> {
        domain.objects.incarnation.check_alive()?;
        let rkey = u32::try_from(request.remote_key.0)
            .map_err(|_| NicError::invalid("remote key", request.remote_key.0))?;
        let local = user_buffer(request.local, request.local_key)?;
        let wr_id = domain.posted.insert(Posted {
            queue_pair: self.address.qpn,
            context: request.context,
            buffer: None,
        });
        let posted = domain.queues(self.address.qpn).and_then(|queues| {
            let queue = &mut queues.send;
            queue.start();
            begin(queue, wr_id as u64, rkey, request.remote_address);
            queue.set_ud_addr(peer(&request.destination));
            queue.set_sge_list(&[local]);
            Ok(queue.finish()?)
        });
        if let Err(error) = posted {
            domain.posted.remove(wr_id);
            return Err(error);
        }
        self.rung(domain, doorbell)
    }
}

impl QueuePair for SimQueuePair {
    type Domain = SimDomain;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn address(&self) -> RawAddress {
        self.address
    }

    fn completion_queue(&self) -> CompletionQueueId {
        self.completion_queue
    }

    fn post_send(
        &mut self,
        domain: &mut SimDomain,
        request: &SendRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        domain.objects.incarnation.check_alive()?;
        let length = request.header_length;
        domain.buffers.range_mut(request.buffer, 0, length)?;
        let mut parts = [Buffer::default(); 2];
        let mut count = 0;
        if length > 0 || request.payload.is_none() {
            parts[0] = domain.buffers.describe(request.buffer, length);
            count = 1;
        }
        if let Some((slice, key)) = request.payload {
            parts[count] = user_buffer(slice, key)?;
            count += 1;
        }
        let qpn = self.address.qpn;
        let wr_id = domain.posted.insert(Posted {
            queue_pair: qpn,
            context: request.context,
            buffer: Some(request.buffer),
        });
        let opcode = match request.immediate {
            Some(immediate) => SendOpcode::SendWithImmediate(immediate),
            None => SendOpcode::Send,
        };
        let posted = domain.queues(qpn).and_then(|queues| {
            Ok(queues.send.write(&provider::SendRequest {
                wr_id: wr_id as u64,
                opcode,
                flags: SendFlags::SIGNALED.bits(),
                to: peer(&request.destination),
                data: SendData::Buffers(&parts[..count]),
            })?)
        });
        if let Err(error) = posted {
            domain.posted.remove(wr_id);
            return Err(error);
        }
        let buffers = &mut domain.buffers;
        domain
            .objects
            .incarnation
            .with_memory(|memory| buffers.lend_to_send(request.buffer, qpn, memory));
        self.rung(domain, doorbell)
    }

    fn post_read(
        &mut self,
        domain: &mut SimDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        if !self.attributes.caps.contains(DeviceCaps::RDMA_READ) {
            return Err(NicError::Unsupported("RDMA read"));
        }
        self.post_rdma(domain, request, doorbell, |queue, wr_id, rkey, address| {
            queue.rdma_read(wr_id, SendFlags::SIGNALED.bits(), rkey, address);
        })
    }

    fn post_write(
        &mut self,
        domain: &mut SimDomain,
        request: &RdmaRequest,
        doorbell: Doorbell,
    ) -> Result<(), NicError> {
        if !self.attributes.caps.contains(DeviceCaps::RDMA_WRITE) {
            return Err(NicError::Unsupported("RDMA write"));
        }
        self.post_rdma(domain, request, doorbell, |queue, wr_id, rkey, address| {
            let flags = SendFlags::SIGNALED.bits();
            queue.rdma_write(wr_id, flags, rkey, address, request.immediate);
        })
    }

    fn flush(&mut self, domain: &mut SimDomain) {
        if self.is_deferred {
            // The device of a host that is down completes nothing.
            let _ = self.ring(domain);
        }
    }

    fn post_recv(&mut self, domain: &mut SimDomain, buffer: BufferId) -> Result<(), NicError> {
        domain.objects.incarnation.check_alive()?;
        domain.buffers.check_owned(buffer)?;
        let whole = domain.buffers.describe(buffer, self.attributes.mtu);
        let qpn = self.address.qpn;
        domain.queues(qpn)?.recv.post(buffer.0.into(), &[whole])?;
        let buffers = &mut domain.buffers;
        domain
            .objects
            .incarnation
            .with_memory(|memory| buffers.lend_to_receive(buffer, qpn, memory));
        Ok(())
    }

    fn post_user_recv(
        &mut self,
        domain: &mut SimDomain,
        memory: UserSlice,
        key: LocalKey,
        context: u64,
    ) -> Result<(), NicError> {
        domain.objects.incarnation.check_alive()?;
        let buffer = user_buffer(memory, key)?;
        let qpn = self.address.qpn;
        let place = domain.posted.insert(Posted {
            queue_pair: qpn,
            context,
            buffer: None,
        });
        let posted = domain
            .queues(qpn)
            .and_then(|queues| Ok(queues.recv.post(user_receive(place), &[buffer])?));
        if posted.is_err() {
            domain.posted.remove(place);
        }
        posted
    }

    fn close(self, domain: &mut SimDomain) {
        let qpn = self.address.qpn;
        drop(self.on_device);
        domain.forget_queues(qpn);
    }
}

/// The bit that marks a receive into user memory. The other bits are its index among the posted
/// receives.
const USER_RECEIVE: u64 = 1 << 63;

fn user_receive(place: usize) -> u64 {
    USER_RECEIVE | place as u64
}

/// The index of a receive into user memory; `None` for one into a packet buffer.
pub(super) fn place_of_user_receive(wr_id: u64) -> Option<usize> {
    (wr_id & USER_RECEIVE != 0).then_some((wr_id & !USER_RECEIVE) as usize)
}

fn peer(destination: &Destination) -> UdAddress {
    UdAddress {
        ahn: destination.ahn.0,
        qpn: destination.qpn,
        qkey: destination.qkey,
    }
}

fn user_buffer(slice: UserSlice, key: LocalKey) -> Result<Buffer, NicError> {
    let length = u32::try_from(slice.length)
        .map_err(|_| NicError::invalid("length", slice.length as u64))?;
    Ok(Buffer::new(slice.address, length, key.0))
}
