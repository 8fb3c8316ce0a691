//! Datagram endpoints: each message is a packet of the device, without the protocol.

use efa_core::endpoint::{
    CompletionEntry, CompletionFlags, Domain, EndpointError, Errno, ErrorEntry, Failure, IoVec,
    PeerId,
};
use efa_core::nic::{
    Access, Completion, CompletionKind, Destination, Domain as _, Doorbell, LocalKey, NicError,
    QueuePair as _, Region, SendRequest, Source, Status, UserSlice,
};
use efa_hw::{HwDomain, HwQueuePair};
use slab::Slab;

use crate::capabilities::DATAGRAM_PREFIX;
use crate::ffi::result::Result;
use crate::state::route::Route;
use crate::state::tables::Tables;

/// Completions that are read from the device per poll.
const BATCH: usize = 64;

/// An enabled datagram endpoint.
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) queue_pair: HwQueuePair,
    pub(crate) route: Route,
    /// Sends and receives that the device has, by their context in it.
    posted: Slab<PostedRequest>,
}

/// A send or a receive that the device has.
#[derive(Debug)]
pub(crate) struct PostedRequest {
    /// The application's, or [`INJECTED`](crate::state::route::INJECTED).
    context: u64,
    /// A success is reported.
    reports: bool,
    /// Bytes of a message that is sent.
    length: usize,
    /// The destination.
    peer: Option<PeerId>,
    /// Registrations for this operation alone.
    leases: Vec<Region>,
}

impl PostedRequest {
    /// A receive, whose success is reported if `reports`.
    pub(crate) fn receive(context: u64, reports: bool) -> PostedRequest {
        PostedRequest {
            context,
            reports,
            length: 0,
            peer: None,
            leases: Vec::new(),
        }
    }

    /// A send to a peer.
    pub(crate) fn send(context: u64, reports: bool, peer: PeerId) -> PostedRequest {
        PostedRequest {
            peer: Some(peer),
            ..PostedRequest::receive(context, reports)
        }
    }
}

/// The number for an error of the device.
fn errno(error: NicError) -> Errno {
    EndpointError::from(error).errno()
}

impl Datagrams {
    /// The endpoint of a queue pair. `route` is the destination of its completions.
    pub(crate) fn new(queue_pair: HwQueuePair, route: Route) -> Datagrams {
        Datagrams {
            queue_pair,
            route,
            posted: Slab::new(),
        }
    }

    /// Sends the datagram after the prefix of `data`. The bytes are copied, so the application's
    /// memory need not be registered and can be reused immediately.
    ///
    /// # Errors
    /// `FI_EINVAL` if the first segment has no room for the prefix or the rest is longer than a
    /// packet, as in stock libfabric; `FI_EAGAIN` while the queue is full.
    pub(crate) fn send(
        &mut self,
        nic: &mut HwDomain,
        destination: Destination,
        data: &[IoVec],
        immediate: Option<u32>,
        posted: PostedRequest,
    ) -> Result<usize> {
        check_prefix(data)?;
        let mut segments = data.iter().map(|segment| segment.memory);
        let lengths = segments.clone().map(|memory| memory.length);
        let total = lengths.fold(0, usize::saturating_add);
        if total - DATAGRAM_PREFIX > nic.attributes().mtu {
            return Err(Errno::EINVAL);
        }
        let buffer = nic.acquire_buffer().ok_or(Errno::EAGAIN)?;
        let context = self.posted.insert(PostedRequest {
            length: total,
            ..posted
        });
        let request = SendRequest {
            destination,
            buffer,
            header_length: total - DATAGRAM_PREFIX,
            payload: None,
            immediate,
            context: context as u64,
        };
        let mut copied = 0;
        let mut skipped = DATAGRAM_PREFIX;
        let sent = segments
            .try_for_each(|memory| {
                let source =
                    UserSlice::new(memory.address + skipped as u64, memory.length - skipped);
                let at = copied;
                copied += source.length;
                skipped = 0;
                nic.copy_from_user(buffer, at, source)
            })
            .and_then(|()| self.queue_pair.post_send(nic, &request, Doorbell::Ring));
        sent.map(|()| 0).map_err(|error| {
            self.posted.remove(context);
            nic.release_buffer(buffer);
            errno(error)
        })
    }

    /// Posts a receive for a datagram with its prefix.
    ///
    /// # Errors
    /// `FI_EINVAL` if the first segment has no room for the prefix, or there are more segments than
    /// the device supports; `FI_EAGAIN` while the queue is full.
    pub(crate) fn receive(
        &mut self,
        nic: &mut HwDomain,
        buffer: &[IoVec],
        mut posted: PostedRequest,
    ) -> Result<usize> {
        check_prefix(buffer)?;
        let empty = UserSlice::new(0, 0);
        let mut pieces = [(empty, LocalKey(0)); efa_core::endpoint::IOV_LIMIT];
        let mut leases = Vec::new();
        let mut registered = Ok(());
        for (piece, segment) in pieces.iter_mut().zip(buffer) {
            let region = match segment.region {
                Some(region) => region,
                None => match nic.lease(segment.memory, Access::LOCAL_WRITE) {
                    Ok(region) => {
                        leases.push(region);
                        region
                    }
                    Err(error) => {
                        registered = Err(error);
                        break;
                    }
                },
            };
            *piece = (segment.memory, region.local_key);
        }
        posted.leases = leases;
        let context = self.posted.insert(posted);
        let result = registered.and_then(|()| {
            let pieces = &pieces[..buffer.len()];
            self.queue_pair
                .post_scattered_recv(nic, pieces, context as u64)
        });
        result.map(|()| 0).map_err(|error| {
            end_leases(nic, self.posted.remove(context).leases);
            errno(error)
        })
    }

    /// Reports the completions of the device. Returns their number.
    pub(crate) fn progress(
        &mut self,
        core: &mut Domain<HwDomain>,
        tables: &mut Tables,
        batch: &mut Vec<Completion>,
    ) -> usize {
        let queue = self.queue_pair.completion_queue();
        let taken = core.nic_mut().poll(queue, batch, BATCH);
        for completion in batch.drain(..) {
            self.finish(core, tables, &completion);
        }
        taken
    }

    fn finish(
        &mut self,
        core: &mut Domain<HwDomain>,
        tables: &mut Tables,
        completion: &Completion,
    ) {
        let (direction, received) = match completion.kind {
            CompletionKind::Send { buffer } => {
                core.nic_mut().release_buffer(buffer);
                (CompletionFlags::SEND, None)
            }
            CompletionKind::RecvUser {
                length,
                source,
                immediate,
            } => (CompletionFlags::RECV, Some((length, source, immediate))),
            _ => return,
        };
        let Some(posted) = self.posted.try_remove(completion.context as usize) else {
            return;
        };
        let mut entry = CompletionEntry {
            context: posted.context,
            flags: CompletionFlags::MSG | direction,
            length: posted.length as u64,
            data: 0,
            tag: 0,
            source: posted.peer,
            buffer: 0,
        };
        if let Some((length, source, immediate)) = received {
            entry.length = length as u64;
            entry.source = sender(core, &source, completion.status);
            if let Some(immediate) = immediate {
                entry.flags |= CompletionFlags::REMOTE_CQ_DATA;
                entry.data = immediate.into();
            }
        }
        end_leases(core.nic_mut(), posted.leases);
        let result = match completion.status {
            Status::Ok if !posted.reports => return,
            Status::Ok => Ok(entry),
            status => {
                let failure = Failure::from(status);
                let CompletionEntry {
                    context,
                    flags,
                    source,
                    ..
                } = entry;
                Err(ErrorEntry::without_data(context, flags, source, failure))
            }
        };
        self.route.report(tables, &result);
    }

    /// Destroys the queue pair and its posted requests.
    pub(crate) fn close(self, nic: &mut HwDomain) {
        self.queue_pair.close(nic);
        for (_, posted) in self.posted {
            end_leases(nic, posted.leases);
        }
    }
}

/// The sender of a datagram, if it is in the address vector.
fn sender(core: &mut Domain<HwDomain>, source: &Source, status: Status) -> Option<PeerId> {
    match status {
        Status::Ok => core.identify(source),
        _ => None,
    }
}

/// # Errors
/// `FI_EINVAL` if the first segment has no room for the prefix.
fn check_prefix(segments: &[IoVec]) -> Result<()> {
    let first = segments.first();
    match first.is_some_and(|first| first.memory.length >= DATAGRAM_PREFIX) {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

fn end_leases(nic: &mut HwDomain, leases: Vec<Region>) {
    for region in leases {
        // The device may keep a registration that it fails to release; the operation has ended in
        // any case.
        let _ = nic.end_lease(region);
    }
}
