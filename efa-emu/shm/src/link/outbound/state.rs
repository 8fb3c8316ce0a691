//! The sending half of a device's link.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;
use efa_device_model::fault::Delay;
use efa_device_model::link::Token;
use efa_device_model::network::{EventQueue, Network};

use super::bulk::{BulkName, BulkTable};
use super::out_ring::{OutRing, Pending, PullName};
use super::routes::Routes;
use crate::fabric::capture_files::{CaptureFiles, RequestedCaptures};
use crate::identity::config::{HostConfig, RdmaPath};
use crate::link::peer::Peers;
use crate::link::tap::LinkTap;
use efa_lock_free::record::Answer;

/// The sending half of a device's link.
pub(crate) struct Outbound {
    pub(super) routes: Routes,
    pub(super) rings: slab::Slab<OutRing>,
    /// Rings with records that are not answered.
    pub(super) waiting: Vec<usize>,
    pub(super) own: Gid,
    pub(super) network: Network,
    /// The network does anything at all to requests.
    pub(super) shapes: bool,
    pub(super) rdma: RdmaPath,
    pub(super) bulks: BulkTable,
    /// Requests that their receivers store, and reads that they serve, by ring and number of the
    /// record.
    pub(super) deferred: HashMap<(usize, u64), Pending>,
    /// Bulk requests that have something to send.
    pub(super) working: VecDeque<BulkName>,
    /// Requests with their outcome, to be handed to the device.
    pub(super) completed: VecDeque<(Token, Answer)>,
    /// Answers to data for peers' reads.
    pub(super) read_data: Vec<(PullName, Status)>,
    /// Answers that were read and need individual handling: empty between calls.
    pub(super) others: Vec<(u64, Pending, Answer)>,
    /// Requests that the network loses until they fail.
    pub(super) failing: EventQueue<Token>,
    pub(super) tap: Option<Box<LinkTap>>,
}

impl Outbound {
    pub(crate) fn new(config: &HostConfig, peers: Peers, nobody: Status) -> Outbound {
        let own = peers.own_address();
        let network = config.network.network(peers.fabric().inverted_gid_bits());
        Outbound {
            own: own.gid,
            shapes: !network.config.is_perfect(),
            network,
            rdma: config.rdma,
            routes: Routes::new(peers, config.ring_bytes, nobody),
            rings: slab::Slab::new(),
            waiting: Vec::new(),
            bulks: BulkTable::default(),
            deferred: HashMap::new(),
            working: VecDeque::new(),
            completed: VecDeque::new(),
            read_data: Vec::new(),
            others: Vec::new(),
            failing: EventQueue::default(),
            tap: None,
        }
    }

    /// Whether outcomes wait for [`Outbound::next_completed`].
    #[inline(always)]
    pub(crate) fn has_completed(&self) -> bool {
        !(self.completed.is_empty() & self.failing.is_empty())
    }

    #[inline(always)]
    pub(crate) fn is_tapped(&self) -> bool {
        self.tap.is_some()
    }

    /// The capture of the device, if there is one.
    #[inline]
    pub(crate) fn tap(&mut self) -> Option<&mut LinkTap> {
        self.tap.as_deref_mut()
    }

    /// Records into exactly these captures from now on.
    pub(crate) fn record(&mut self, requested: &RequestedCaptures, mtu: u32) {
        let own = self.routes.peers().own_address().gid;
        let mut tap = self.tap.take().unwrap_or_else(|| {
            let files = CaptureFiles::default();
            Box::new(LinkTap::new(files, own, mtu))
        });
        tap.files().follow(requested);
        if tap.files().is_empty() {
            tap.close();
        } else {
            self.tap = Some(tap);
        }
    }

    pub(crate) fn peers(&mut self) -> &mut Peers {
        self.routes.peers()
    }

    /// Whether any record is without an answer.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.deferred.is_empty()
    }

    /// Whether records in rings are without answers.
    #[inline(always)]
    pub(crate) fn has_unanswered(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether it has packets to send, or completions for the device that need no answer of a peer.
    #[inline(always)]
    pub(crate) fn has_work(&self) -> bool {
        !self.working.is_empty() | self.has_completed()
    }

    /// The time at which the next request fails, on the monotonic clock.
    #[inline]
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.failing.next_time()
    }

    /// The time that a rule adds to the command with this number of the device's admin queue.
    pub(crate) fn command_delay(&self, number: u64, delay: Delay) -> Duration {
        self.network.command_delay(number, delay)
    }

    /// The network of a queue pair's answers; this device's own if the queue pair was destroyed.
    pub(crate) fn network_of(&mut self, gid: Gid, qpn: Qpn) -> Network {
        match self.routes.find(gid, qpn, &mut self.rings) {
            Ok(ring) => self.rings[ring].peer.network.clone(),
            Err(_) => self.network.clone(),
        }
    }

    /// Leaves all rings. Records that are still in them have left this device and arrive: the peers
    /// detect that the sender has left after they have read them, as after the end of a process.
    pub(crate) fn close(&mut self) {
        for ring in self.rings.drain() {
            if ring.producer.is_settled() {
                ring.producer.abandon(|_, _, _| {});
            }
        }
        if let Some(tap) = self.tap.take() {
            tap.close();
        }
    }
}
