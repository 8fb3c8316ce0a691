//! Commands for connected queue pairs and shared receive queues, and their clients' posts.

use efa_core::address::Qpn;

use super::attributes::{ConnectionAttributes, ConnectionMask};
use super::completion::{ConnectedCompletion, ConnectedFlags, WcOperation, WcStatus};
use super::pair::{ConnectedConfig, Pair};
use super::receives::{RecvWr, SharedQueue, SrqAttributes, SrqConfig, SrqId};
use super::requester::{Purpose, SendWr};
use super::tags::{CountTooHigh, Deletion, TaggedBuffer};
use crate::counters::Command;
use crate::device::error::Error;
use crate::device::ids::CqId;
use crate::device::queue::CompletionEntry;
use crate::device::queue_pair::QpState;
use crate::device::state::Device;
use crate::limits::{MAX_MESSAGE, MAX_SGE};

/// The most work requests of a queue.
pub const MAX_WR: u32 = 1 << 14;

/// The most shared receive queues.
pub const MAX_SRQ: u32 = 1 << 10;

/// The most tags of a shared receive queue.
pub const MAX_TAGS: u32 = 1 << 12;

/// Maximum number of outstanding operations on a tag list. Each is executed immediately.
pub const MAX_TAG_OPERATIONS: u32 = 1 << 12;

/// An operation on the list of tags of a shared receive queue.
#[derive(Clone, Debug)]
pub struct TagRequest {
    /// The program's id of the operation.
    pub wr_id: u64,
    /// Whether success is reported.
    pub is_signaled: bool,
    /// The number of unexpected messages that the program has handled, if it reports it.
    pub handled: Option<u32>,
    /// The operation.
    pub operation: TagRequestOperation,
}

/// An operation on a list of tags.
#[derive(Clone, Debug)]
pub enum TagRequestOperation {
    /// Adds a tag.
    Add(TaggedBuffer),
    /// Deletes the tag with this handle.
    Delete(u32),
    /// No change: only the number of unexpected messages is reported.
    Sync,
}

impl Device {
    fn check_connected(&self) -> Result<(), Error> {
        match self.profile.connected {
            true => Ok(()),
            false => Err(Error::Unsupported("connected queue pairs")),
        }
    }

    /// Creates a connected queue pair with the number that the caller chose.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device's profile has none; [`Error::Busy`] if another queue
    /// pair has the number; [`Error::Invalid`] for sizes above the device's limits.
    pub fn create_connected_qp(&mut self, qpn: Qpn, config: ConnectedConfig) -> Result<(), Error> {
        self.command(Command::CreateQp, |device| {
            device.check_connected()?;
            device.check_pd(config.pd)?;
            for (what, value, most) in [
                ("send queue depth", config.max_send_wr, MAX_WR),
                ("receive queue depth", config.max_recv_wr, MAX_WR),
                ("scatter entries", config.max_recv_sge, MAX_SGE as u32),
            ] {
                if value > most {
                    return Err(Error::invalid(what, value));
                }
            }
            if device.qps.get(qpn).is_some() || device.connected.pairs.get(qpn).is_some() {
                return Err(Error::Busy("queue pair number"));
            }
            let live = device.qps.live() as usize + device.connected.pairs.live() as usize;
            if live >= device.profile.max_qp as usize {
                return Err(Error::Exhausted("queue pair"));
            }
            if let Some(id) = config.shared {
                device.shared_queue(id)?;
            }
            device.cqs.attach(config.send_cq)?;
            if let Err(error) = device.cqs.attach(config.recv_cq) {
                device.cqs.detach(config.send_cq);
                return Err(error);
            }
            if let Some(id) = config.shared {
                device.shared_queue(id)?.users += 1;
            }
            device.retain_pd(config.pd);
            tracing::info!(gid = %device.gid, %qpn, "connected queue pair made");
            let connection = device.connected.next_connection();
            let pair = Pair::new(qpn, config, connection);
            device.connected.pairs.insert(qpn, pair);
            Ok(())
        })
    }

    /// Whether a queue pair is a connected one.
    pub fn is_connected_qp(&self, qpn: Qpn) -> bool {
        self.connected.pairs.get(qpn).is_some()
    }

    /// The completion queues of a connected queue pair.
    pub(in crate::device) fn connected_completion_queues(&self, qpn: Qpn) -> Vec<CqId> {
        let pair = self.connected.pairs.get(qpn);
        pair.map_or_else(Vec::new, |pair| {
            vec![pair.config.send_cq, pair.receive_cq(&self.connected.shared)]
        })
    }

    /// Changes a connected queue pair, according to the verbs. A change to [`QpState::Error`]
    /// flushes all outstanding requests, one to [`QpState::Reset`] drops them.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a change that is not allowed; [`Error::Unsupported`] for path
    /// migration.
    pub fn modify_connected_qp(
        &mut self,
        qpn: Qpn,
        to: &ConnectionAttributes,
        mask: ConnectionMask,
    ) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let pair = device.connected.pairs.get_mut(qpn);
            let pair = pair.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
            let before = pair.attributes.state;
            let mut attributes = pair.attributes;
            attributes.change(to, mask)?;
            match attributes.state {
                QpState::Error => {
                    device.fail_connected(qpn, None);
                    return Ok(());
                }
                QpState::Reset => {
                    device.drop_incoming(qpn);
                    let connection = device.connected.next_connection();
                    let pair = device.connected.pairs.get_mut(qpn);
                    let pair = pair.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
                    let (is_scheduled, frames) = (pair.is_scheduled, pair.sent_counts.frames);
                    let tick_at = pair.tick_at;
                    *pair = Pair::new(qpn, pair.config, connection);
                    (pair.is_scheduled, pair.sent_counts.frames) = (is_scheduled, frames);
                    pair.tick_at = tick_at;
                    return Ok(());
                }
                QpState::ReadyToReceive if before == QpState::Init => {
                    pair.responder.expected = attributes.rq_psn;
                }
                QpState::ReadyToSend if before == QpState::ReadyToReceive => {
                    pair.requester.begin(attributes.sq_psn);
                }
                _ => {}
            }
            pair.attributes = attributes;
            device.schedule_connected(qpn);
            Ok(())
        })
    }

    /// The attributes of a connected queue pair.
    pub fn query_connected_qp(&self, qpn: Qpn) -> Result<ConnectionAttributes, Error> {
        self.check_present()?;
        let pair = self.connected.pairs.get(qpn);
        let pair = pair.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        Ok(pair.attributes)
    }

    /// Destroys a connected queue pair. Its outstanding requests are dropped without completions.
    pub(in crate::device) fn destroy_connected_qp(&mut self, qpn: Qpn) -> Result<(), Error> {
        self.drop_incoming(qpn);
        let pair = self.connected.pairs.remove(qpn);
        let pair = pair.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        self.cqs.detach(pair.config.send_cq);
        self.cqs.detach(pair.config.recv_cq);
        if let Some(queue) = pair
            .config
            .shared
            .and_then(|id| self.connected.shared.get_mut(id.0 as usize))
        {
            queue.users -= 1;
        }
        self.release_pd(pair.config.pd);
        self.initiator.remove_qp(qpn);
        Ok(())
    }

    /// Posts a work request to the send queue of a connected queue pair. In the error state it is
    /// flushed.
    ///
    /// # Errors
    /// [`Error::Invalid`] before the queue pair is ready to send, and for a message that is too
    /// long; [`Error::QueueFull`].
    #[inline(always)]
    pub fn post_connected_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), Error> {
        let found = self.connected_pair(qpn);
        let (pair, mut around) = found.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        let state = pair.attributes.state;
        if !pair.sends() && state != QpState::Error {
            return Err(Error::invalid("queue pair state", state as u64));
        }
        let length = wr.payload.length();
        if length > u64::from(MAX_MESSAGE) || wr.operation.is_atomic() && length < 8 {
            return Err(Error::invalid("message length", length));
        }
        if pair.requester.posted() >= pair.config.max_send_wr.max(1) as usize {
            return Err(Error::QueueFull("send"));
        }
        let mtu = pair.attributes.mtu();
        pair.requester.push(wr, Purpose::Program, mtu);
        if state == QpState::Error {
            pair.requester.flush();
            pair.complete_ended(&mut around);
        } else {
            pair.schedule(&mut around);
        }
        Ok(())
    }

    /// Checks that `count` work requests fit into the send queue of a connected queue pair.
    ///
    /// # Errors
    /// [`Error::QueueFull`]; [`Error::NotFound`].
    pub fn check_connected_room(&self, qpn: Qpn, count: usize) -> Result<(), Error> {
        let pair = self.connected.pairs.get(qpn);
        let pair = pair.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        let depth = pair.config.max_send_wr.max(1) as usize;
        match pair.requester.posted() + count > depth {
            true => Err(Error::QueueFull("send")),
            false => Ok(()),
        }
    }

    /// Posts a receive to a connected queue pair without a shared receive queue. In the error state
    /// it is flushed.
    ///
    /// # Errors
    /// [`Error::Invalid`] in the reset state, for a queue pair with a shared receive queue, and for
    /// too many buffers; [`Error::QueueFull`].
    #[inline]
    pub fn post_connected_recv(&mut self, qpn: Qpn, receive: RecvWr) -> Result<(), Error> {
        let pair = self.connected.pairs.get_mut(qpn);
        let pair = pair.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        let state = pair.attributes.state;
        if pair.config.shared.is_some() || state == QpState::Reset {
            return Err(Error::invalid("queue pair state", state as u64));
        }
        let wr_id = receive.wr_id;
        pair.receives.post(receive)?;
        if state == QpState::Error {
            pair.receives.clear();
            let status = WcStatus::Flushed;
            let completion = pair.completion(wr_id, WcOperation::Recv, status);
            let entry = CompletionEntry::of_connected(&completion);
            self.cqs.write(pair.config.recv_cq, &entry);
        }
        Ok(())
    }

    /// Drops the message that is being received, with its receive.
    fn drop_incoming(&mut self, qpn: Qpn) {
        if let Some((pair, mut around)) = self.connected_pair(qpn) {
            pair.abort_incoming(&mut around);
        }
    }

    fn shared_queue(&mut self, id: SrqId) -> Result<&mut SharedQueue, Error> {
        let queue = self.connected.shared.get_mut(id.0 as usize);
        queue.ok_or_else(|| Error::not_found("shared receive queue", id.0))
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device's profile has none; [`Error::Invalid`] for sizes above
    /// the device's limits; [`Error::Exhausted`].
    pub fn create_srq(&mut self, config: SrqConfig) -> Result<SrqId, Error> {
        self.command(Command::Other, |device| {
            device.check_connected()?;
            device.check_pd(config.pd)?;
            let tags = config.tags.map_or(0, |tags| tags.max_tags);
            for (what, value, most) in [
                ("receives", config.max_wr, MAX_WR),
                ("scatter entries", config.max_sge, MAX_SGE as u32),
                ("tags", tags, MAX_TAGS),
            ] {
                if value > most {
                    return Err(Error::invalid(what, value));
                }
            }
            if device.connected.shared.len() >= MAX_SRQ as usize {
                return Err(Error::Exhausted("shared receive queue"));
            }
            if let Some(tags) = config.tags {
                device.cqs.attach(tags.cq)?;
            }
            device.retain_pd(config.pd);
            let queue = SharedQueue::new(config);
            Ok(SrqId(device.connected.shared.insert(queue) as u32))
        })
    }

    /// Changes the limit of a shared receive queue, or if `max_wr` is `Some`, its size.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit above the size, a size above the device's limit, or one that
    /// is too small for the posted receives.
    pub fn modify_srq(
        &mut self,
        id: SrqId,
        limit: Option<u32>,
        max_wr: Option<u32>,
    ) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let queue = device.shared_queue(id)?;
            let depth = max_wr.unwrap_or(queue.receives.depth());
            if depth == 0 || depth > MAX_WR || depth < queue.receives.len() {
                return Err(Error::invalid("size of a shared receive queue", depth));
            }
            let wanted = limit.unwrap_or(queue.limit);
            if wanted > depth {
                return Err(Error::invalid("limit of a shared receive queue", wanted));
            }
            queue.receives.set_depth(depth);
            queue.limit = wanted;
            Ok(())
        })
    }

    /// The attributes of a shared receive queue.
    pub fn query_srq(&mut self, id: SrqId) -> Result<SrqAttributes, Error> {
        self.check_present()?;
        Ok(self.shared_queue(id)?.attributes())
    }

    /// Destroys a shared receive queue. Receives that are posted to it do not complete.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs receive from it.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            if device.shared_queue(id)?.users > 0 {
                return Err(Error::Busy("shared receive queue"));
            }
            let queue = device.connected.shared.remove(id.0 as usize);
            if let Some(tags) = queue.config.tags {
                device.cqs.detach(tags.cq);
            }
            device.release_pd(queue.config.pd);
            Ok(())
        })
    }

    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] for too many buffers; [`Error::QueueFull`].
    pub fn post_srq_recv(&mut self, id: SrqId, receive: RecvWr) -> Result<(), Error> {
        self.shared_queue(id)?.receives.post(receive)
    }

    /// Executes an operation on the tag list of a shared receive queue. Returns the handle of an
    /// added tag.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a queue without tag matching, too many buffers, and a handle that was
    /// never returned; [`Error::QueueFull`] if the list is full. A failure because of an earlier
    /// event, such as a message that has matched the tag, is reported in the completion instead. An
    /// operation that completes with an error has no effect; if it adds a tag, the tag is dropped.
    pub fn post_tag_request(&mut self, id: SrqId, request: &TagRequest) -> Result<u32, Error> {
        let queue = self.shared_queue(id)?;
        let no_tags = Error::invalid("shared receive queue without tags", id.0);
        let cq = queue.config.tags.ok_or(no_tags)?.cq;
        let tags = queue.tags.as_mut().ok_or(no_tags)?;
        match request.operation {
            TagRequestOperation::Add(_) => tags.check_room()?,
            TagRequestOperation::Delete(handle) => tags.check_handle(handle)?,
            TagRequestOperation::Sync => {}
        }
        let counted = match request.handled {
            Some(handled) => tags.sync(handled),
            None => Ok(()),
        };
        let mut status = match counted {
            Ok(()) => WcStatus::Success,
            Err(CountTooHigh) => WcStatus::TagMatching,
        };
        let is_refused = counted.is_err();
        let mut handle = 0;
        let operation = match &request.operation {
            TagRequestOperation::Add(buffer) => {
                handle = match is_refused {
                    true => tags.take_handle(),
                    false => tags.add(buffer.clone())?,
                };
                WcOperation::TagAdd
            }
            TagRequestOperation::Delete(handle) => {
                if !is_refused && tags.delete(*handle)? == Deletion::Gone {
                    status = WcStatus::TagMatching;
                }
                WcOperation::TagDelete
            }
            TagRequestOperation::Sync => WcOperation::TagSync,
        };
        let flags = match tags.needs_sync() {
            true => ConnectedFlags::TM_SYNC_REQ,
            false => ConnectedFlags::empty(),
        };
        if request.is_signaled || status != WcStatus::Success {
            let completion = ConnectedCompletion {
                wr_id: request.wr_id,
                status,
                operation,
                flags,
                qpn: Qpn(0),
                peer_qpn: Qpn(0),
                length: 0,
                data: 0,
                tag: 0,
            };
            let entry = CompletionEntry::of_connected(&completion);
            self.cqs.write(cq, &entry);
        }
        Ok(handle)
    }
}
