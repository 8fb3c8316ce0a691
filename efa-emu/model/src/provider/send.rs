//! Posting sends and RDMA requests: the classic call and the builder session.

use std::sync::Arc;

use efa_core::address::{Qkey, Qpn};

use super::request_ids::{RequestIds, Retired};
use crate::device::queue::{
    Buffer, EntryHead, RemoteBuffer, RequestIdSize, SendRing, WqeOperation, WqeSize,
};
use crate::device::{Error, QpState};

bitflags::bitflags! {
    /// Send flags, as `ibv_send_flags`. The device has no others.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Requests a completion.
        const SIGNALED = 1 << 1;
        /// Copies the data into the work request (classic call only).
        const INLINE = 1 << 3;
    }

    /// Flags that are allowed only for datagrams of a device with connected queue pairs. They have
    /// no effect: a datagram never waits for reads, and always wakes the receiver.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct OtherFlags: u32 {
        const FENCE = 1 << 0;
        const SOLICITED = 1 << 2;
    }
}

/// The limits of a send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendQueueConfig {
    /// Gather entries of a send.
    pub max_sge: u32,
    /// Local entries of an RDMA request.
    pub max_rdma_sge: u32,
    /// Inline bytes of a send.
    pub max_inline: u32,
    /// Writes may have inline data (128-byte work requests only).
    pub inline_write: bool,
    /// Every work request is signaled, independent of its flags.
    pub signal_all: bool,
    /// Requests of the classic call need not be signaled, contrary to EFA. Request ids have 16 bits
    /// then.
    pub unsignaled: bool,
    /// The size of request ids, as chosen when the queue pair was created.
    pub request_ids: RequestIdSize,
    /// The generation in request ids of 16 bits. It must differ from that of the last queue pair
    /// with the same number.
    pub generation: u32,
}

/// The peer of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdAddress {
    /// Raw address handle number.
    pub ahn: u16,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The Q-key of the peer's queue pair.
    pub qkey: Qkey,
}

/// The operations of the classic call, which has no RDMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOpcode {
    /// A send.
    Send,
    /// A send with immediate data.
    SendWithImmediate(u32),
}

/// The arguments of the classic call. They are not stored: the request is written into the ring.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub opcode: SendOpcode,
    /// Flags as the application passed them. Bits that are not in [`SendFlags`] are refused.
    pub flags: u32,
    /// The peer.
    pub to: UdAddress,
    /// The data.
    pub data: SendData<'a>,
}

/// The data of a [`SendRequest`].
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory.
    Buffers(&'a [Buffer]),
    /// Bytes to copy.
    Inline(&'a [&'a [u8]]),
}

/// A builder session between `start` and `complete` or `abort`.
struct Session {
    /// The producer counter at the start of the session.
    producer: u16,
    /// The request ids used, to be returned if nothing is posted.
    taken: Vec<u64>,
    /// The request that the setters modify. Its data is in the ring already.
    current: Option<CurrentRequest>,
    /// The first error. After an error no request of the session is posted.
    error: Option<Error>,
}

impl Session {
    /// The request that the setters modify. A setter without one fails the session.
    fn current(&mut self) -> Option<&mut CurrentRequest> {
        if self.error.is_some() {
            return None;
        }
        if self.current.is_none() {
            self.error = Some(Error::invalid("setter without a request", 0u64));
        }
        self.current.as_mut()
    }
}

/// The ring's next entry, while its data is written.
struct NextEntry<'a> {
    ring: &'a SendRing,
    config: &'a SendQueueConfig,
    counter: u16,
}

impl NextEntry<'_> {
    #[inline(always)]
    fn gather(&self, head: &mut EntryHead, buffers: &[Buffer]) -> Result<(), Error> {
        if buffers.len() > self.config.max_sge as usize {
            return Err(Error::invalid(
                "number of gather entries",
                buffers.len() as u64,
            ));
        }
        self.ring.write_buffers(self.counter, head, buffers);
        Ok(())
    }

    /// Returns the number of bytes.
    fn copy_inline(&self, head: &mut EntryHead, parts: &[&[u8]]) -> Result<usize, Error> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length <= self.config.max_inline as usize
            && self.ring.write_inline(self.counter, head, parts)
        {
            return Ok(length);
        }
        Err(Error::invalid("inline length", length as u64))
    }
}

/// A request of the session: the head of the ring's next entry.
#[derive(Clone, Copy)]
struct CurrentRequest {
    head: EntryHead,
    /// The peer's memory, for an RDMA request.
    remote: Option<RemoteBuffer>,
}

/// The send queue of a queue pair on its client's side.
pub struct SendQueue {
    ring: Arc<SendRing>,
    ids: RequestIds,
    config: SendQueueConfig,
    /// The counter of the next entry.
    producer: u16,
    state: QpState,
    session: Session,
}

impl SendQueue {
    /// A send queue on an empty ring. The inline limits are reduced to the capacity of the ring's
    /// entries.
    pub fn new(ring: Arc<SendRing>, mut config: SendQueueConfig) -> Self {
        let capacity = ring.wqe_size().inline_capacity() as u32;
        config.max_inline = config.max_inline.min(capacity);
        config.inline_write &= ring.wqe_size() == WqeSize::Bytes128;
        let ids = RequestIds::new(ring.entries(), config.request_ids, config.generation);
        SendQueue {
            session: Session {
                producer: 0,
                taken: Vec::with_capacity(ids.depth().min(256)),
                current: None,
                error: None,
            },
            ids,
            ring,
            config,
            producer: 0,
            state: QpState::Reset,
        }
    }

    /// The most outstanding work requests.
    pub fn depth(&self) -> usize {
        self.ids.depth()
    }

    /// The number of outstanding work requests.
    pub fn outstanding(&self) -> usize {
        self.ids.outstanding()
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<SendRing> {
        &self.ring
    }

    /// The limits.
    pub fn config(&self) -> &SendQueueConfig {
        &self.config
    }

    /// Notes a change of the queue pair's state. [`QpState::Reset`] empties the queue.
    pub fn set_state(&mut self, state: QpState) {
        self.state = state;
        if state == QpState::Reset {
            self.producer = 0;
            self.ids.restart();
            self.start();
        }
    }

    /// Publishes all entries written so far.
    #[inline]
    pub fn publish(&self) {
        self.ring.doorbell().write(u32::from(self.producer));
    }

    /// As [`RequestIds::retire`].
    #[inline]
    pub fn retire(&mut self, request_id: u16) -> Retired {
        self.ids.retire(request_id)
    }

    #[inline(always)]
    fn validate(&self, flags: u32) -> Result<(), Error> {
        if !matches!(self.state, QpState::ReadyToSend | QpState::SendQueueDrained) {
            return Err(Error::invalid("queue pair state", self.state as u64));
        }
        let Some(known) = SendFlags::from_bits(flags) else {
            return Err(Error::invalid("send flags", flags));
        };
        if !self.config.signal_all && !known.contains(SendFlags::SIGNALED) {
            return Err(Error::invalid("unsignaled send flags", flags));
        }
        if self.ids.is_full() {
            return Err(Error::QueueFull("send"));
        }
        Ok(())
    }

    /// Completes the entry at the producer counter.
    #[inline(always)]
    fn push(&mut self, head: &EntryHead) {
        self.ring.write_head(self.producer, head);
        self.producer = self.producer.wrapping_add(1);
    }

    /// Writes one work request into the ring, without the doorbell. The caller must call
    /// [`SendQueue::publish`] after the last one, even if a later one was refused.
    #[inline(always)]
    pub fn write(&mut self, request: &SendRequest<'_>) -> Result<(), Error> {
        let is_signaled = match self.validate(request.flags) {
            Ok(()) => true,
            Err(refused) => self.validate_unlike_efa(request.flags, refused)?,
        };
        let immediate = match request.opcode {
            SendOpcode::Send => None,
            SendOpcode::SendWithImmediate(immediate) => Some(immediate),
        };
        let mut head = EntryHead::new(WqeOperation::Send, immediate);
        head.set_destination(request.to.ahn, request.to.qpn, request.to.qkey);
        let entry = NextEntry {
            ring: &self.ring,
            config: &self.config,
            counter: self.producer,
        };
        match request.data {
            SendData::Buffers(buffers) => entry.gather(&mut head, buffers)?,
            SendData::Inline(parts) => {
                entry.copy_inline(&mut head, parts)?;
            }
        }
        let Some(request_id) = self.ids.take_place(request.wr_id, is_signaled) else {
            return self.push_without_place(head, request.wr_id, is_signaled);
        };
        self.push(&head.with_request_id(request_id));
        Ok(())
    }

    /// Checks flags that an EFA refuses. Returns whether the request is signaled. The argument is
    /// only the flags, because a reference would force every request into memory.
    #[cold]
    fn validate_unlike_efa(&self, flags: u32, refused: Error) -> Result<bool, Error> {
        if !self.config.unsignaled {
            return Err(refused);
        }
        let signaled = SendFlags::SIGNALED.bits();
        self.validate(flags & !OtherFlags::all().bits() | signaled)?;
        Ok(self.config.signal_all || flags & signaled != 0)
    }

    /// The end of [`SendQueue::write`] if the table of request ids has no free index, as always
    /// with 64-bit ids.
    #[cold]
    fn push_without_place(
        &mut self,
        head: EntryHead,
        wr_id: u64,
        is_signaled: bool,
    ) -> Result<(), Error> {
        let request_id = self.ids.take_without_place(wr_id, is_signaled);
        let request_id = request_id.ok_or(Error::QueueFull("send"))?;
        self.push(&head.with_long_request_id(request_id));
        Ok(())
    }

    /// Posts one work request.
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), Error> {
        self.write(request)?;
        self.publish();
        Ok(())
    }

    /// Begins a builder session.
    pub fn start(&mut self) {
        self.session.producer = self.producer;
        self.session.taken.clear();
        self.session.current = None;
        self.session.error = None;
    }

    fn finish_current(&mut self) {
        if let Some(finished) = self.session.current.take() {
            self.push(&finished.head);
        }
    }

    /// Begins a work request of the session. Earlier requests are complete.
    fn begin(
        &mut self,
        wr_id: u64,
        flags: u32,
        operation: WqeOperation,
        immediate: Option<u32>,
        remote: Option<RemoteBuffer>,
    ) {
        if self.session.error.is_some() {
            return;
        }
        self.finish_current();
        let taken = self.validate(flags).and_then(|()| {
            let place = self.ids.take_place(wr_id, true).map(u64::from);
            let taken = place.or_else(|| self.ids.take_without_place(wr_id, true));
            taken.ok_or(Error::QueueFull("send"))
        });
        match taken {
            Ok(request_id) => {
                self.session.taken.push(request_id);
                if let Some(remote) = remote {
                    self.ring.write_remote(self.producer, remote);
                }
                let head = EntryHead::new(operation, immediate).with_long_request_id(request_id);
                self.session.current = Some(CurrentRequest { head, remote });
            }
            Err(error) => self.session.error = Some(error),
        }
    }

    /// Session: a send.
    pub fn send(&mut self, wr_id: u64, flags: u32) {
        self.begin(wr_id, flags, WqeOperation::Send, None, None);
    }

    /// Session: a send with immediate data.
    pub fn send_with_immediate(&mut self, wr_id: u64, flags: u32, immediate: u32) {
        self.begin(wr_id, flags, WqeOperation::Send, Some(immediate), None);
    }

    /// Session: an RDMA read of `rkey`'s memory at `address`; the length is that of the local side.
    pub fn rdma_read(&mut self, wr_id: u64, flags: u32, rkey: u32, address: u64) {
        let remote = RemoteBuffer {
            address,
            length: 0,
            rkey,
        };
        self.begin(wr_id, flags, WqeOperation::RdmaRead, None, Some(remote));
    }

    /// Session: an RDMA write, with immediate data if given.
    pub fn rdma_write(
        &mut self,
        wr_id: u64,
        flags: u32,
        rkey: u32,
        address: u64,
        immediate: Option<u32>,
    ) {
        let remote = RemoteBuffer {
            address,
            length: 0,
            rkey,
        };
        self.begin(
            wr_id,
            flags,
            WqeOperation::RdmaWrite,
            immediate,
            Some(remote),
        );
    }

    /// Session: the peer of the current request.
    pub fn set_ud_addr(&mut self, to: UdAddress) {
        if let Some(current) = self.session.current() {
            current.head.set_destination(to.ahn, to.qpn, to.qkey);
        }
    }

    /// Session: the local memory of the current request.
    pub fn set_sge_list(&mut self, buffers: &[Buffer]) {
        self.set_local(|entry, current| {
            let count = buffers.len();
            if current.remote.is_some() && count > entry.config.max_rdma_sge as usize {
                return Err(Error::invalid("number of local RDMA entries", count as u64));
            }
            entry.gather(&mut current.head, buffers)?;
            Ok(buffers.iter().map(|buffer| u64::from(buffer.length)).sum())
        });
    }

    /// Session: bytes to copy into the current request.
    pub fn set_inline_data_list(&mut self, parts: &[&[u8]]) {
        self.set_local(|entry, current| {
            let operation = current.head.operation();
            let allowed = match operation {
                WqeOperation::Send => true,
                WqeOperation::RdmaWrite => entry.config.inline_write,
                WqeOperation::RdmaRead => false,
            };
            if !allowed {
                let code = operation.code();
                return Err(Error::invalid("inline data for operation", code));
            }
            let copied = entry.copy_inline(&mut current.head, parts);
            copied.map(|length| length as u64)
        });
    }

    /// Writes the local data of the current request. `write` returns its length in bytes, or an
    /// error.
    #[inline(always)]
    fn set_local(
        &mut self,
        write: impl FnOnce(&NextEntry, &mut CurrentRequest) -> Result<u64, Error>,
    ) {
        let entry = NextEntry {
            ring: &self.ring,
            config: &self.config,
            counter: self.producer,
        };
        let Some(current) = self.session.current() else {
            return;
        };
        match write(&entry, current) {
            Ok(length) => {
                if let Some(remote) = &mut current.remote {
                    remote.length = length.try_into().unwrap_or(u32::MAX);
                    entry.ring.write_remote(entry.counter, *remote);
                }
            }
            Err(error) => self.session.error = Some(error),
        }
    }

    /// Ends the session: posts all requests, or none after an error.
    pub fn complete(&mut self) -> Result<(), Error> {
        self.finish()?;
        self.publish();
        Ok(())
    }

    /// Ends the session as [`SendQueue::complete`] does, but does not publish.
    pub fn finish(&mut self) -> Result<(), Error> {
        if let Some(error) = self.session.error {
            self.abort();
            return Err(error);
        }
        self.finish_current();
        self.session.taken.clear();
        Ok(())
    }

    /// Drops the session.
    pub fn abort(&mut self) {
        self.producer = self.session.producer;
        while let Some(request_id) = self.session.taken.pop() {
            self.ids.give_back(request_id);
        }
        self.start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::queue::{CompletionEntry, CompletionRing};
    use crate::provider::{CompletionQueue, QueueOwner};

    const QPN: Qpn = Qpn(3);
    const SIGNALED: u32 = 1 << 1;
    const SOLICITED_AND_FENCED: u32 = 1 << 2 | 1;

    struct TestQueueOwner(SendQueue);

    impl QueueOwner for TestQueueOwner {
        fn retire_send(&mut self, _: Qpn, request_id: u16) -> Retired {
            self.0.retire(request_id)
        }

        fn retire_recv(&mut self, _: Qpn, _: u16) -> Retired {
            Retired::Stale
        }

        fn owns(&mut self, _: Qpn) -> bool {
            true
        }
    }

    fn queue(unsignaled: bool) -> TestQueueOwner {
        let ring = Arc::new(SendRing::new(4, WqeSize::Bytes64).unwrap());
        let config = SendQueueConfig {
            max_sge: 2,
            max_rdma_sge: 1,
            max_inline: 32,
            inline_write: false,
            signal_all: false,
            unsignaled,
            request_ids: RequestIdSize::Bits16,
            generation: 5,
        };
        let mut queue = SendQueue::new(ring, config);
        queue.set_state(QpState::ReadyToSend);
        TestQueueOwner(queue)
    }

    fn post(owner: &mut TestQueueOwner, wr_id: u64, flags: u32) -> Result<(), i32> {
        let to = UdAddress {
            ahn: 0,
            qpn: QPN,
            qkey: Qkey(0),
        };
        let posted = owner.0.post(&SendRequest {
            wr_id,
            opcode: SendOpcode::Send,
            flags,
            to,
            data: SendData::Buffers(&[]),
        });
        posted.map_err(|error| error.errno())
    }

    #[test]
    fn successes_of_unsignaled_sends_are_not_reported() {
        let mut owner = queue(true);
        let ring = Arc::new(CompletionRing::new(16).unwrap());
        let mut completions = CompletionQueue::new(Arc::clone(&ring));
        let mut counter = 0;
        for lap in 0..3u64 {
            for (wr_id, flags) in [(1, 0), (2, SIGNALED), (3, SOLICITED_AND_FENCED), (4, 0)] {
                post(&mut owner, 10 * lap + wr_id, flags).unwrap();
            }
            assert_eq!(post(&mut owner, 5, 0), Err(12), "it is full");
            for index in 0..4u16 {
                let request = owner.0.ring().read(4 * lap as u16 + index).unwrap();
                // The last one fails.
                let status = u8::from(index == 3);
                let entry = CompletionEntry::of_send(QPN, RequestIdSize::Bits16, &request, status);
                ring.write(counter, &entry);
                counter += 1;
            }
            let mut reported = Vec::new();
            while let Some(completion) = completions.next(&mut owner) {
                reported.push(completion.wr_id);
            }
            assert_eq!(reported, [10 * lap + 2, 10 * lap + 4]);
            assert_eq!(owner.0.outstanding(), 0);
        }
    }

    #[test]
    fn an_efa_refuses_unsignaled_sends_and_other_flags() {
        let mut owner = queue(false);
        for flags in [0, SIGNALED | SOLICITED_AND_FENCED] {
            assert!(post(&mut owner, 1, flags).is_err(), "{flags}");
        }
        assert_eq!(post(&mut owner, 1, SIGNALED), Ok(()));
        let mut owner = queue(true);
        assert!(post(&mut owner, 1, 1 << 9).is_err(), "nobody has this flag");
    }
}
