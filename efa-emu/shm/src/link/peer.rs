//! Other processes of the fabric, from the view of this process.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Weak};

use crate::error::FabricError;
use crate::fabric::directory::Fabric;
use crate::fabric::paths::{device_path, lock_path};
use crate::process::lock::Liveness;
use crate::process::warning::Warning;
use crate::transport::ring::Consumer;
use crate::transport::segment::{Address, Segment};
use efa_device_model::network::Network;

/// A process that sends to this one, or that this one sends to.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) segment: Arc<Segment>,
    /// The network of its frames.
    pub(crate) network: Network,
    liveness: Liveness,
}

impl Peer {
    pub(crate) fn address(&self) -> Address {
        self.segment.address()
    }

    /// The process in this process's pid namespace, 0 if it has no number there; `None` once it has
    /// ended. One system call.
    ///
    /// If the answer is `Some`, the number belonged to the peer, and to the program that opened the
    /// device, at the time of the call: the lock is released when the process executes another
    /// program or ends, and the number becomes free only after that.
    pub(crate) fn process(&self) -> Option<i32> {
        self.liveness.process()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.process().is_some()
    }
}

/// Refuses the ring of a process in a slot of this process's segment.
pub(crate) fn refuse_slot(own: &Segment, slot: usize, reason: &dyn Display) {
    Warning::RefusedRing.warn_once(format_args!("refusing what a process sends: {reason}"));
    own.refuse(slot);
}

/// Finds peers and shares their state.
#[derive(Debug)]
pub(crate) struct Peers {
    fabric: Fabric,
    own: Arc<Segment>,
    known: HashMap<Address, Weak<Peer>>,
    /// Size of `known` at which entries of vanished peers are dropped.
    sweep_at: usize,
    has_bridges: bool,
}

impl Peers {
    pub(crate) fn new(fabric: Fabric, own: Arc<Segment>) -> Peers {
        Peers {
            fabric,
            own,
            known: HashMap::new(),
            sweep_at: 64,
            has_bridges: false,
        }
    }

    pub(crate) fn own_address(&self) -> Address {
        self.own.address()
    }

    /// Whether a peer on another machine was found.
    pub(crate) fn has_bridges(&self) -> bool {
        self.has_bridges
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The peer whose ring is in a slot of this process's segment, and the reader of the ring.
    /// `sender` and `capacity` are the slot's content. Returns `None` if the peer has already died,
    /// after which the slot is free, or if its ring is refused.
    pub(crate) fn adopt_ring(
        &mut self,
        slot: usize,
        sender: Address,
        capacity: usize,
    ) -> Option<(Arc<Peer>, Consumer)> {
        match self.open_ring(slot, sender, capacity) {
            Ok(Some(opened)) => return Some(opened),
            Ok(None) => self.own.free(slot),
            Err(error) => refuse_slot(&self.own, slot, &error),
        }
        None
    }

    fn open_ring(
        &mut self,
        slot: usize,
        sender: Address,
        capacity: usize,
    ) -> Result<Option<(Arc<Peer>, Consumer)>, FabricError> {
        let Some(peer) = self.find(sender)? else {
            return Ok(None);
        };
        let memory = self.own.adopt_ring(slot, capacity).map_err(|error| {
            let own = self.own.address();
            let path = device_path(&self.fabric.host_directory(own.gid), own.id);
            FabricError::io("map a ring of", &path)(error)
        })?;
        Ok(Some((peer, Consumer::new(memory))))
    }

    /// The peer with this address; `None` if the process does not exist, or has not opened a
    /// device.
    pub(crate) fn find(&mut self, address: Address) -> Result<Option<Arc<Peer>>, FabricError> {
        if let Some(peer) = self.known.get(&address).and_then(Weak::upgrade) {
            return Ok(Some(peer));
        }
        let host = self.fabric.host_directory(address.gid);
        let path = lock_path(&host, address.id);
        let Some(liveness) = Liveness::open(&path).map_err(FabricError::io("open", &path))? else {
            return Ok(None);
        };
        let segment = if address == self.own.address() {
            Some(Arc::clone(&self.own))
        } else {
            Segment::open(&device_path(&host, address.id), address)?.map(Arc::new)
        };
        let Some(segment) = segment else {
            return Ok(None);
        };
        let network = segment.network()?;
        let network = network.network(self.fabric.inverted_gid_bits());
        let peer = Arc::new(Peer {
            segment,
            network,
            liveness,
        });
        if !peer.is_alive() {
            return Ok(None);
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, peer| peer.strong_count() > 0);
            self.sweep_at = 2 * self.known.len().max(32);
        }
        self.has_bridges |= peer.segment.has_doorbell_page();
        self.known.insert(address, Arc::downgrade(&peer));
        Ok(Some(peer))
    }
}
