//! The user-space half of one queue pair.

use efa_core::address::Qpn;
use efa_device_model::device::queue::{Buffer, WqeSize};
use efa_device_model::device::{Error, QpRings, QpState};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{
    QueueOwner, RecvQueue, RecvQueueConfig, Retired, SendData, SendFlags, SendOpcode, SendQueue,
    SendQueueConfig, SendRequest, UdAddress,
};

use super::host::RdmaOperation;

/// Both queues of one queue pair on the client's side. They treat completions of other queue pairs
/// as stale.
pub struct ClientQueues {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The send queue. Every request is signalled.
    pub send: SendQueue,
    /// The receive queue.
    pub recv: RecvQueue,
}

impl ClientQueues {
    /// The queues in `rings`, with the limits of `profile`. `generation` distinguishes them from
    /// the queues of an earlier queue pair with the same number.
    pub fn new(
        qpn: Qpn,
        rings: QpRings,
        profile: &Profile,
        wqe_size: WqeSize,
        generation: u32,
    ) -> Self {
        ClientQueues {
            qpn,
            send: SendQueue::new(
                rings.send,
                SendQueueConfig {
                    max_sge: profile.max_sq_sge,
                    max_rdma_sge: profile.max_rdma_sge,
                    max_inline: wqe_size.inline_capacity() as u32,
                    inline_write: wqe_size == WqeSize::Bytes128,
                    signal_all: true,
                    unsignaled: false,
                    request_ids: profile.longest_request_ids(),
                    generation,
                },
            ),
            recv: RecvQueue::new(
                rings.recv,
                RecvQueueConfig {
                    max_sge: profile.max_rq_sge,
                    generation,
                },
            ),
        }
    }

    /// Sets a new state of the queue pair for both queues.
    pub fn set_state(&mut self, state: QpState) {
        self.send.set_state(state);
        self.recv.set_state(state);
    }

    /// Posts a request other than RDMA and writes the doorbell, without notifying the device.
    ///
    /// # Errors
    /// If the queue is full, or the request is not valid.
    pub fn post(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        opcode: SendOpcode,
        data: SendData<'_>,
    ) -> Result<(), Error> {
        let flags = match data {
            SendData::Inline(_) => SendFlags::INLINE.bits(),
            SendData::Buffers(_) => 0,
        };
        self.send.post(&SendRequest {
            wr_id,
            opcode,
            flags,
            to,
            data,
        })
    }

    /// Posts an RDMA request and writes the doorbell, without notifying the device. `remote` is an
    /// address and its key.
    pub fn post_rdma(
        &mut self,
        wr_id: u64,
        to: UdAddress,
        kind: RdmaOperation,
        local: Buffer,
        (address, rkey): (u64, u32),
    ) {
        let send = &mut self.send;
        send.start();
        match kind {
            RdmaOperation::Read => send.rdma_read(wr_id, 0, rkey, address),
            RdmaOperation::Write(immediate) => send.rdma_write(wr_id, 0, rkey, address, immediate),
        }
        send.set_ud_addr(to);
        send.set_sge_list(&[local]);
        send.complete().expect("a valid request");
    }
}

impl QueueOwner for ClientQueues {
    fn retire_send(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match self.owns(qpn) {
            true => self.send.retire(request_id),
            false => Retired::Stale,
        }
    }

    fn retire_recv(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        match self.owns(qpn) {
            true => self.recv.retire(request_id),
            false => Retired::Stale,
        }
    }

    fn owns(&mut self, qpn: Qpn) -> bool {
        qpn == self.qpn
    }
}
