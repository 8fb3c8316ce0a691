//! The ways in which the data of a request is copied, as the device's [`Transfer`]s.

use efa_core::nic::Status;

use crate::link::memory::{self, CopyError, Direction, Window};
use crate::link::outbound::{BulkName, Outbound, PullName, PushError};
use crate::transport::ring::Consumer;
use crate::transport::segment::Address;
use efa_device_model::link::{HostSegment, Transfer};
use efa_lock_free::record::Answer;
use efa_lock_free::ring::{Incoming, Payload};

/// The data of a send, in the ring.
pub(super) struct MessageFromRing<'a> {
    pub(super) consumer: &'a Consumer,
    pub(super) payload: Payload,
}

impl Transfer for MessageFromRing<'_> {
    #[inline(always)]
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        let (memory, at) = self
            .consumer
            .payload(self.payload, offset, to.length)
            .ok_or(Status::RemoteAbort)?;
        memory::copy_out(memory, at, to);
        Ok(())
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        memory::fill(to, bytes);
        Ok(())
    }
}

/// The data of a datagram, or of an RDMA write or a part of one, in the ring.
pub(super) struct FromRing<'a> {
    pub(super) consumer: &'a Consumer,
    pub(super) incoming: &'a Incoming,
    /// The memory of the data of a complete RDMA write.
    pub(super) whole: Option<HostSegment>,
    /// Whether the device has acknowledged it; `None` if it may not.
    pub(super) acknowledged: Option<bool>,
}

impl<'a> FromRing<'a> {
    /// The data of a record without acknowledgement.
    pub(super) fn new(consumer: &'a Consumer, incoming: &'a Incoming) -> FromRing<'a> {
        FromRing {
            consumer,
            incoming,
            whole: None,
            acknowledged: None,
        }
    }
}

impl Transfer for FromRing<'_> {
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        let record = &self.incoming.record;
        let window = Window {
            offset: record.offset(),
            length: record.payload(),
        };
        if let Some((start, part)) = window.part_of(offset, to) {
            let (memory, at) = self
                .consumer
                .payload(
                    self.incoming.payload(),
                    start - record.offset(),
                    part.length,
                )
                .ok_or(Status::RemoteAbort)?;
            memory::copy_out(memory, at, part);
        }
        self.whole = Some(to).filter(|_| offset == 0);
        Ok(())
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        memory::fill(to, bytes);
        Ok(())
    }

    fn peek(&mut self, offset: u32, into: &mut [u8]) -> Result<(), Status> {
        let place = self
            .consumer
            .payload(self.incoming.payload(), offset, into.len() as u32);
        let (memory, at) = place.ok_or(Status::RemoteAbort)?;
        memory.read(at, into);
        Ok(())
    }

    fn acknowledge(&mut self) -> bool {
        if let Some(acknowledged) = &mut self.acknowledged {
            *acknowledged = true;
        }
        self.acknowledged.is_some()
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Status> {
        Ok(memory::update(at, change))
    }

    fn is_last(&self) -> bool {
        self.incoming.record.is_last()
    }
}

/// The result of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CopyOutcome {
    /// The device's status is used.
    Done,
    /// The initiator gets this answer, independent of the device's status.
    Instead(Answer),
}

/// This process copies between its memory and the initiator's, one window of the data at a time.
pub(super) struct BetweenProcesses<'a> {
    pub(super) pid: i32,
    pub(super) theirs: &'a [HostSegment],
    pub(super) window: Window,
    pub(super) is_last: bool,
    pub(super) outcome: CopyOutcome,
    /// This process's side of the data.
    pub(super) whole: Option<HostSegment>,
}

impl BetweenProcesses<'_> {
    fn copy(&mut self, direction: Direction, offset: u32, own: HostSegment) -> Result<(), Status> {
        self.whole = Some(own).filter(|_| offset == 0);
        let Some((start, part)) = self.window.part_of(offset, own) else {
            return Ok(());
        };
        memory::copy_between(self.pid, direction, part, self.theirs, start).map_err(|error| {
            match error {
                CopyError::Forbidden => self.outcome = CopyOutcome::Instead(Answer::UseRings),
                // The fault is in the initiator's memory, so its status is a local error there.
                CopyError::PeerFault => {
                    self.outcome = CopyOutcome::Instead(Answer::Status(Status::LocalInvalidLkey));
                }
                CopyError::Gone | CopyError::OwnFault => {}
            }
            error.status()
        })
    }
}

impl Transfer for BetweenProcesses<'_> {
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        self.copy(Direction::FromPeer, offset, to)
    }

    fn store(&mut self, offset: u32, from: HostSegment) -> Result<(), Status> {
        self.copy(Direction::ToPeer, offset, from)
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        memory::fill(to, bytes);
        Ok(())
    }

    fn is_last(&self) -> bool {
        self.is_last
    }

    fn is_deferred(&self) -> bool {
        self.outcome == CopyOutcome::Instead(Answer::UseRings)
    }
}

/// The data of a read, which returns through the ring to the initiator, one window at a time.
pub(super) struct IntoRing<'a> {
    pub(super) outbound: &'a mut Outbound,
    pub(super) to: Address,
    pub(super) read: BulkName,
    pub(super) pull: PullName,
    pub(super) total: u32,
    pub(super) window: Window,
    pub(super) is_last: bool,
    /// This process's side of the data.
    pub(super) whole: Option<HostSegment>,
    /// Whether the window's data was sent.
    pub(super) pushed: Result<bool, PushError>,
}

impl Transfer for IntoRing<'_> {
    fn store(&mut self, offset: u32, from: HostSegment) -> Result<(), Status> {
        self.whole = Some(from).filter(|_| offset == 0);
        let Some((start, part)) = self.window.part_of(offset, from) else {
            return Ok(());
        };
        let window = Window {
            offset: start,
            length: part.length,
        };
        let pushed = self.outbound.push_read_data(
            self.to,
            self.read,
            self.total,
            window,
            self.pull,
            |memory, at| memory::store_into(memory, at, part),
        );
        self.pushed = pushed.map(|()| true);
        pushed.map_err(|_| Status::RemoteAbort)
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        memory::fill(to, bytes);
        Ok(())
    }

    fn is_last(&self) -> bool {
        self.is_last
    }

    fn is_deferred(&self) -> bool {
        self.pushed == Err(PushError::Full)
    }
}
