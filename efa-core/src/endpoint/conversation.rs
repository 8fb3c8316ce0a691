//! What an endpoint keeps about one peer that it talks to.

use core::time::Duration;
use std::collections::VecDeque;

use crate::address::{Qkey, Qpn};
use crate::wire::{ExtraFeatures, Handshake, MsgId};

use crate::endpoint::api::error::Failure;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::ids::{OutboundId, ReceiveId};
use crate::endpoint::posting::work::Work;
use crate::endpoint::quota::admission::Waiting;
use crate::endpoint::receiving::reorder::ReorderWindow;

/// The state of the conversation with one peer.
pub(crate) struct PeerState {
    /// The id of the next message or atomic to the peer.
    pub(crate) next_msg_id: MsgId,
    /// Memory of its packets that wait, in bytes.
    pub(crate) held_bytes: usize,
    /// Its requests that are pending, and answers to it that wait to be sent.
    pub(crate) served: usize,
    /// Its operations that are carried out here, and those that wait for it.
    pub(crate) operations: usize,
    pub(crate) waiting: VecDeque<Waiting>,
    /// What came from the peer before its turn.
    pub(crate) window: ReorderWindow,
    /// Our HANDSHAKE.
    pub(crate) handshake_sent: bool,
    /// The peer's HANDSHAKE.
    pub(crate) features: Option<PeerFeatures>,
    /// The packet that was to provoke it could not be sent.
    pub(crate) handshake_failure: Option<Failure>,
    /// Transfers whose data cannot be read, until the peer's HANDSHAKE says whether it knows READ_NACK.
    pub(crate) await_features: Vec<ReceiveId>,
    /// Operations that may send CTSDATA when the peer's HANDSHAKE has come.
    pub(crate) await_data: Vec<OutboundId>,
    /// A request was sent, so the peer's HANDSHAKE can be expected.
    pub(crate) request_sent: bool,
    /// Messages to the peer of which it reads a part by RDMA, and their bytes in packets.
    pub(crate) reads_in_flight: u32,
    pub(crate) runt_in_flight: u64,
    /// The conversation cannot go on; packets of the peer are dropped.
    pub(crate) failed: bool,
    /// The wait after receiver-not-ready answers.
    pub(crate) backoff: Option<Backoff>,
    /// The length of the last such wait; zero once a packet got through.
    pub(crate) last_wait: Duration,
    /// What is to be done for the peer when the wait is over.
    pub(crate) parked: VecDeque<Work>,
}

/// A wait in which nothing is sent to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backoff {
    /// Its end.
    pub(crate) until: Instant,
}

/// What a peer said about itself in its HANDSHAKE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeerFeatures {
    /// Extra features and requests 0 to 63.
    pub(crate) extra: ExtraFeatures,
    /// PCI part id of its device; libfabric before 1.20 does not send it.
    pub(crate) device_version: Option<u32>,
    /// A queue pair that takes messages without headers, and nothing else (request 7).
    pub(crate) user_recv_qp: Option<(Qpn, Qkey)>,
}

impl From<&Handshake> for PeerFeatures {
    fn from(handshake: &Handshake) -> Self {
        let extra = handshake.extra_info.features();
        let user_recv_qp = handshake
            .user_recv_qp
            .filter(|_| extra.contains(ExtraFeatures::USER_RECV_QP));
        PeerFeatures {
            extra,
            device_version: handshake.device_version,
            user_recv_qp: user_recv_qp
                .and_then(|qp| Some((Qpn(u16::try_from(qp.qpn).ok()?), qp.qkey))),
        }
    }
}

impl PeerState {
    /// The state at the start of a conversation.
    pub(crate) fn new(first_msg_id: MsgId) -> Self {
        PeerState {
            next_msg_id: first_msg_id,
            held_bytes: 0,
            served: 0,
            operations: 0,
            waiting: VecDeque::new(),
            window: ReorderWindow::new(first_msg_id),
            handshake_sent: false,
            features: None,
            handshake_failure: None,
            await_features: Vec::new(),
            await_data: Vec::new(),
            request_sent: false,
            reads_in_flight: 0,
            runt_in_flight: 0,
            failed: false,
            backoff: None,
            last_wait: Duration::ZERO,
            parked: VecDeque::new(),
        }
    }

    /// Whether the peer said that it has a feature or makes a request.
    pub(crate) fn has(&self, feature: ExtraFeatures) -> bool {
        self.features
            .is_some_and(|features| features.extra.contains(feature))
    }
}
