//! From a destination (GID and QPN) to the ring of the process that has the queue pair.

use std::sync::Arc;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;
use hashbrown::HashMap;
use slab::Slab;

use crate::fabric::paths::table_path;
use crate::fabric::usage::{self, UsageStep};
use crate::identity::qpn::{HostTable, TableIndex};
use crate::link::peer::{Peer, Peers};
use crate::process::warning::Warning;
use crate::transport::ring::{ClaimedSlot, Producer};
use crate::transport::segment::Address;
use efa_lock_free::qpn::QpnAllocation;

/// Destinations that are remembered; the memory is cleared when it would grow beyond.
const REMEMBERED: usize = 1 << 16;

/// A ring to a peer, from the sender's side.
pub(crate) trait OutgoingRing {
    /// The value that returns with the answer to a record.
    type Token;

    /// A ring that was just set up.
    fn new(producer: Producer<Self::Token>, peer: Arc<Peer>) -> Self;
}

/// The reason why a request has no ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRoute {
    /// The receiver has no slot free at the moment.
    Busy,
    /// No process has the queue pair, or the host cannot be reached.
    Failed(Status),
}

/// A destination that was found, valid as long as the queue pair number does not change hands.
#[derive(Clone)]
struct Route {
    table: Arc<HostTable>,
    /// The position of the queue pair number in the table.
    place: TableIndex,
    allocation: QpnAllocation,
    ring: usize,
}

impl Route {
    #[inline(always)]
    fn is_valid(&self) -> bool {
        // A removed host has no queue pair numbers.
        self.table.allocation_at(self.place) == Some(self.allocation)
    }
}

/// Finds and remembers routes.
pub(crate) struct Routes {
    peers: Peers,
    ring_bytes: usize,
    /// Devices of other machines are out of reach.
    local_only: bool,
    /// The status of a request to a queue pair number without owner.
    nobody: Status,
    /// Hosts that were reached, with their tables; `None` for removed ones.
    hosts: HashMap<Gid, Option<Arc<HostTable>>>,
    rings: HashMap<Address, usize>,
    routes: HashMap<(Gid, Qpn), Route>,
    last: Option<((Gid, Qpn), Route)>,
    /// A ring was set up, or a table mapped, since the peers were last checked.
    pub(crate) has_grown: bool,
}

impl Routes {
    pub(crate) fn new(peers: Peers, ring_bytes: usize, nobody: Status) -> Routes {
        Routes {
            peers,
            ring_bytes,
            local_only: false,
            nobody,
            hosts: HashMap::new(),
            rings: HashMap::new(),
            routes: HashMap::new(),
            last: None,
            has_grown: false,
        }
    }

    /// The same, but only to devices of this machine: a process that carries requests from another
    /// machine must not route them to a third one.
    pub(crate) fn within_this_machine(mut self) -> Routes {
        self.local_only = true;
        self
    }

    pub(crate) fn nobody(&self) -> Status {
        self.nobody
    }

    pub(crate) fn peers(&mut self) -> &mut Peers {
        &mut self.peers
    }

    /// The ring for a destination, set up if need be.
    #[inline(always)]
    pub(crate) fn find<R: OutgoingRing>(
        &mut self,
        gid: Gid,
        qpn: Qpn,
        rings: &mut Slab<R>,
    ) -> Result<usize, NoRoute> {
        let key = (gid, qpn);
        if let Some((last, route)) = &self.last
            && *last == key
            && route.is_valid()
        {
            return Ok(route.ring);
        }
        self.find_other(key, rings)
            .inspect_err(|reason| trace_no_route(key, *reason))
    }

    #[cold]
    fn find_other<R: OutgoingRing>(
        &mut self,
        key: (Gid, Qpn),
        rings: &mut Slab<R>,
    ) -> Result<usize, NoRoute> {
        let (gid, qpn) = key;
        if let Some(route) = self.routes.get(&key)
            && route.is_valid()
        {
            let ring = route.ring;
            self.last = Some((key, route.clone()));
            return Ok(ring);
        }
        let table = self.host(gid)?;
        if self.local_only && table.is_remote() {
            return Err(NoRoute::Failed(Status::LocalUnreachableRemote));
        }
        let nobody = NoRoute::Failed(self.nobody);
        let place = table.place(qpn).ok_or(nobody)?;
        let allocation = table.allocation_at(place).ok_or(nobody)?;
        let id = allocation.owner();
        let ring = self.ring_to(Address { gid, id }, rings)?;
        let route = Route {
            table,
            place,
            allocation,
            ring,
        };
        if self.routes.len() >= REMEMBERED {
            self.routes.clear();
        }
        self.routes.insert(key, route.clone());
        self.last = Some((key, route));
        Ok(ring)
    }

    fn host(&mut self, gid: Gid) -> Result<Arc<HostTable>, NoRoute> {
        let known = self.hosts.get(&gid);
        if let Some(Some(table)) = known
            && !table.is_retired()
        {
            return Ok(Arc::clone(table));
        }
        let path = table_path(&self.peers.fabric().host_directory(gid));
        match HostTable::open(&path, gid) {
            Ok(Some(table)) => {
                let table = Arc::new(table);
                self.hosts.insert(gid, Some(Arc::clone(&table)));
                self.has_grown = true;
                Ok(table)
            }
            // A host that existed before is assumed to exist still, without any queue pair: an
            // emulated host ends with its last process, a real one seldom does.
            Ok(None) if known.is_some() => Err(NoRoute::Failed(self.nobody)),
            Ok(None) => Err(NoRoute::Failed(Status::LocalUnreachableRemote)),
            Err(error) => {
                Warning::UnreachableHost
                    .warn_once(format_args!("cannot reach the host {gid}: {error}"));
                Err(NoRoute::Failed(Status::LocalUnreachableRemote))
            }
        }
    }

    /// The ring to a process, set up if need be.
    pub(crate) fn ring_to<R: OutgoingRing>(
        &mut self,
        to: Address,
        rings: &mut Slab<R>,
    ) -> Result<usize, NoRoute> {
        if let Some(index) = self.rings.get(&to) {
            return Ok(*index);
        }
        let unreachable = |error: &dyn std::fmt::Display| {
            let gid = to.gid;
            Warning::UnreachableProcess.warn_once(format_args!(
                "cannot reach a process of the host {gid}: {error}"
            ));
            NoRoute::Failed(Status::LocalUnreachableRemote)
        };
        let peer = match self.peers.find(to) {
            Ok(Some(peer)) => peer,
            Ok(None) => return Err(NoRoute::Failed(self.nobody)),
            Err(error) => return Err(unreachable(&error)),
        };
        let own = self.peers.own_address();
        match peer.segment.claim_ring(own, self.ring_bytes) {
            Ok(Some((slot, memory))) => {
                usage::mark(UsageStep::Sent);
                tracing::debug!(peer = %to.gid, process = ?to.id, slot, "ring to a process set up");
                let claimed = ClaimedSlot {
                    segment: Arc::clone(&peer.segment),
                    slot,
                };
                let index = rings.insert(R::new(Producer::new(claimed, memory), peer));
                self.rings.insert(to, index);
                self.has_grown = true;
                Ok(index)
            }
            Ok(None) => Err(NoRoute::Busy),
            Err(error) => Err(unreachable(&error)),
        }
    }

    /// Unmaps the tables of removed hosts. The first [`REMEMBERED`] of them stay known.
    pub(crate) fn forget_gone_hosts(&mut self) {
        let is_gone =
            |table: &Option<Arc<HostTable>>| table.as_ref().is_some_and(|table| table.is_retired());
        for table in self.hosts.values_mut().filter(|table| is_gone(table)) {
            *table = None;
        }
        if self.hosts.len() > REMEMBERED {
            self.hosts.retain(|_, table| table.is_some());
        }
        self.last = None;
        self.routes.retain(|_, route| !route.table.is_retired());
    }

    /// The ring to a process, if there is one.
    pub(crate) fn known_ring(&self, to: Address) -> Option<usize> {
        self.rings.get(&to).copied()
    }

    /// Forgets everything that leads to the ring to `to`.
    pub(crate) fn forget_ring(&mut self, to: Address) {
        self.rings.remove(&to);
        self.last = None;
        self.routes
            .retain(|(gid, _), route| *gid != to.gid || route.allocation.owner() != to.id);
    }
}

#[cold]
fn trace_no_route((gid, qpn): (Gid, Qpn), reason: NoRoute) {
    tracing::debug!(peer = %gid, peer_qpn = %qpn, ?reason, "no way to a queue pair");
}
