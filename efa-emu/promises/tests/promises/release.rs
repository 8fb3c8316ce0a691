//! Peers of other releases of libfabric: our engine over a device that changes its packets to those
//! of the release, and that reports packets which the release would not understand.
//!
//! A release neither announces an unknown feature nor sees that others do, so the feature is
//! removed from the HANDSHAKE packets in both directions; the engine's choices follow from that.
//! Other differences are rewritten: the fields of HANDSHAKE, the length of EOR and of the raw
//! address, and connection ids that the release lacks. Libfabric 2.6, and 2.1 other than as a
//! zero-copy receiver, differ from 2.7, which has all our features, in that they lack PEER_ERROR.
//! Timing is not modelled: libfabric 1.11 sends CTSDATA, and 1.11 and 1.17 read, before the
//! HANDSHAKE of their peer has arrived.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use efa_core::address::RawAddress;
use efa_core::nic::{
    BufferId, Completion, CompletionKind, Domain, Doorbell, Nic, NicError, PolledNic, SendRequest,
    Status,
};
use efa_core::wire::{
    ExtraFeatures, ExtraInfo, Handshake, Header, Packet, RawAddressHeader, Repr, UserRecvQp,
};
use efa_sim::{SimDomain, SimNic, SimQueuePair};

/// The release of a program's endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Release {
    Ours,
    /// libfabric 1.11: its only extra feature is RDMA read.
    V1_11,
    /// libfabric 1.17, which has no READ_NACK and no RDMA write.
    V1_17,
    /// libfabric 1.17 as a zero-copy receiver, which requests headers of constant length.
    V1_17Constant,
    /// libfabric 2.1 as a zero-copy receiver, with a queue pair for messages without headers.
    V2_1ZeroCopy,
    /// libfabric 2.6, which has no PEER_ERROR.
    V2_6,
    /// libfabric 2.7.
    V2_7,
}

/// Numbers of packet types.
const CTS: u8 = 3;
const CTSDATA: u8 = 4;
const READRSP: u8 = 5;
const EOR: u8 = 7;
const ATOMRSP: u8 = 8;
const HANDSHAKE: u8 = 9;
const READ_NACK: u8 = 11;
const PEER_ERROR: u8 = 12;
const FIRST_REQUEST: u8 = 64;

/// Flags of requests.
const RAW_ADDRESS: u16 = 1;
const ANSWERS_NACK: u16 = 1 << 13;
const CONNID: u16 = 1 << 15;

impl Release {
    /// Whether it handles a failed registration for an RDMA read.
    pub(crate) fn has_read_nack(self) -> bool {
        self.known().contains(ExtraFeatures::READ_NACK)
    }

    pub(crate) fn has_delivery_complete(self) -> bool {
        self.known().contains(ExtraFeatures::DELIVERY_COMPLETE)
    }

    /// Whether its packets distinguish it from an earlier owner of its queue pair number.
    pub(crate) fn has_connection_ids(self) -> bool {
        self.known().contains(ExtraFeatures::CONNID_HEADER)
    }

    /// Whether it reports aborted messages, and understands such reports.
    pub(crate) fn has_peer_error(self) -> bool {
        self.known().contains(ExtraFeatures::PEER_ERROR)
    }

    fn known(self) -> ExtraFeatures {
        match self {
            Release::Ours | Release::V2_7 => ExtraFeatures::all(),
            Release::V2_1ZeroCopy | Release::V2_6 => {
                ExtraFeatures::all() - ExtraFeatures::PEER_ERROR
            }
            Release::V1_11 => ExtraFeatures::RDMA_READ,
            Release::V1_17 | Release::V1_17Constant => {
                ExtraFeatures::RDMA_READ
                    | ExtraFeatures::DELIVERY_COMPLETE
                    | ExtraFeatures::CONSTANT_HEADER_LENGTH
                    | ExtraFeatures::CONNID_HEADER
                    | ExtraFeatures::RUNTING_READ
            }
        }
    }

    /// The reason why it could not receive a packet.
    fn objection(self, bytes: &[u8]) -> Option<&'static str> {
        // Bytes without a base header are not a packet of any release.
        let [packet_type, _, low, high, ..] = *bytes else {
            return (self != Release::Ours).then_some("it has no base header");
        };
        let flags = u16::from_le_bytes([low, high]);
        let is_request = packet_type >= FIRST_REQUEST;
        let is_message = matches!(packet_type, 64..=69 | 128 | 129 | 133..=138 | 145..);
        match self {
            Release::Ours => None,
            _ if packet_type == PEER_ERROR && !self.has_peer_error() => {
                Some("it does not know PEER_ERROR")
            }
            Release::V2_7 if packet_type == PEER_ERROR => peer_error_objection(bytes),
            Release::V1_11 => match packet_type {
                CTS..=READRSP | EOR..=HANDSHAKE | 64..=76 | 128..=130 => {
                    let would_be_data = is_request || packet_type == CTSDATA;
                    (would_be_data && flags & (CONNID | ANSWERS_NACK) != 0)
                        .then_some("it would take the connection id for data")
                }
                _ => Some("it does not know the type"),
            },
            Release::V1_17 | Release::V1_17Constant if packet_type == READ_NACK => {
                Some("it does not know READ_NACK")
            }
            Release::V1_17 | Release::V1_17Constant if is_request && flags & ANSWERS_NACK != 0 => {
                Some("it never refused to read")
            }
            Release::V1_17Constant if is_request && flags & RAW_ADDRESS == 0 => {
                Some("its headers have no constant length")
            }
            Release::V2_1ZeroCopy if is_message => {
                Some("a zero-copy receiver has no receives for it")
            }
            Release::V1_17
            | Release::V1_17Constant
            | Release::V2_1ZeroCopy
            | Release::V2_6
            | Release::V2_7 => None,
        }
    }

    /// A HANDSHAKE as the release sends it, or as it reads it.
    fn handshake(self, bytes: &[u8], user_recv_qp: Option<UserRecvQp>, own: bool) -> Vec<u8> {
        let Ok(Packet {
            header: Header::Handshake(handshake),
            ..
        }) = Packet::parse(bytes)
        else {
            return bytes.to_vec();
        };
        let mut features = handshake.extra_info.features() & self.known();
        if own && self == Release::V1_17Constant {
            features |= ExtraFeatures::CONSTANT_HEADER_LENGTH;
        }
        if user_recv_qp.is_some() {
            features |= ExtraFeatures::USER_RECV_QP;
        }
        let extra_info = ExtraInfo::from(features);
        match self {
            Release::V1_11 => Handshake {
                extra_info,
                ..Handshake::default()
            },
            Release::V1_17 | Release::V1_17Constant => Handshake {
                extra_info,
                connid: handshake.connid,
                ..Handshake::default()
            },
            Release::Ours | Release::V2_1ZeroCopy | Release::V2_6 | Release::V2_7 => Handshake {
                extra_info,
                user_recv_qp: user_recv_qp.or(handshake.user_recv_qp),
                ..handshake
            },
        }
        .to_packet(&[])
    }

    /// The first bytes of a packet as the release sends them.
    fn sent(self, bytes: &[u8], address: RawAddress, user: Option<UserRecvQp>) -> Vec<u8> {
        let mut sent = bytes.to_vec();
        match (self, bytes.first()) {
            (Release::Ours, _) | (_, None) => {}
            (_, Some(&HANDSHAKE)) => sent = self.handshake(bytes, user, true),
            (Release::V1_11, Some(&(CTS | READRSP | ATOMRSP))) => {
                sent[3] &= !(CONNID >> 8) as u8;
                sent[4..8].fill(0);
            }
            (Release::V1_11, Some(&EOR)) => {
                sent[3] &= !(CONNID >> 8) as u8;
                sent.truncate(12);
            }
            (Release::V1_11, Some(FIRST_REQUEST..)) => {
                // Four bytes fewer than since 1.13; none of them is used.
                let mut header = RawAddressHeader::STOCK_SIZE.to_le_bytes().to_vec();
                header.extend(address.to_bytes());
                let found = sent.windows(header.len()).position(|part| part == header);
                if let Some(at) = found {
                    sent[at] = 32;
                    sent.drain(at + 36..at + 40);
                }
            }
            _ => {}
        }
        sent
    }
}

/// The reason why libfabric 2.7 would not receive a PEER_ERROR. The engine judges its content.
fn peer_error_objection(bytes: &[u8]) -> Option<&'static str> {
    let [_, _, _, _, _, _, _, _, _, _, _, _, emitter, 0, 0, 0, ..] = *bytes else {
        return Some("it has no such side");
    };
    match (bytes.len(), emitter) {
        (24, 1 | 2) => None,
        (24, _) => Some("it has no such side"),
        _ => Some("its PEER_ERROR has 24 bytes"),
    }
}

/// The device of a program of some release.
pub(crate) struct ReleaseNic {
    nic: SimNic,
    release: Release,
    user_recv_qp: Option<UserRecvQp>,
    /// The engine's own bytes of buffers that were rewritten for the wire.
    originals: HashMap<BufferId, Vec<u8>>,
    objection: Option<String>,
}

impl ReleaseNic {
    pub(crate) fn new(nic: SimNic, release: Release, user_recv_qp: Option<UserRecvQp>) -> Self {
        ReleaseNic {
            nic,
            release,
            user_recv_qp,
            originals: HashMap::new(),
            objection: None,
        }
    }

    pub(crate) fn sim(&self) -> &SimNic {
        &self.nic
    }

    /// The release's complaint about a packet.
    pub(crate) fn objection(&self) -> Option<&str> {
        self.objection.as_deref()
    }

    fn restore(&mut self, buffer: BufferId) {
        if let Some(original) = self.originals.remove(&buffer) {
            self.nic.buffer_mut(buffer)[..original.len()].copy_from_slice(&original);
        }
    }

    /// Handles an arrived packet. Returns its length for the engine.
    fn receive(&mut self, buffer: BufferId, length: usize) -> usize {
        let bytes = &self.nic.buffer(buffer)[..length];
        if let Some(why) = self.release.objection(bytes) {
            let (release, packet_type) = (self.release, bytes.first());
            let text = format!("{release:?} got a packet of type {packet_type:?}: {why}");
            self.objection.get_or_insert(text);
        }
        if self.release == Release::Ours || bytes.first() != Some(&HANDSHAKE) {
            return length;
        }
        let read = self.release.handshake(bytes, None, false);
        self.nic.buffer_mut(buffer)[..read.len()].copy_from_slice(&read);
        read.len()
    }
}

impl Deref for ReleaseNic {
    type Target = SimDomain;

    fn deref(&self) -> &SimDomain {
        &self.nic
    }
}

impl DerefMut for ReleaseNic {
    fn deref_mut(&mut self) -> &mut SimDomain {
        &mut self.nic
    }
}

impl Nic for ReleaseNic {
    type Domain = SimDomain;

    fn queue_pair(&self) -> &SimQueuePair {
        self.nic.queue_pair()
    }

    fn parts(&mut self) -> (&mut SimDomain, &mut SimQueuePair) {
        self.nic.parts()
    }

    fn post_send(&mut self, request: &SendRequest, doorbell: Doorbell) -> Result<(), NicError> {
        let bytes = &self.nic.buffer(request.buffer)[..request.header_length];
        // Only messages without headers have immediate data.
        if self.release == Release::Ours || request.immediate.is_some() {
            return self.nic.post_send(request, doorbell);
        }
        let original = bytes.to_vec();
        let address = self.nic.address();
        let sent = self.release.sent(&original, address, self.user_recv_qp);
        self.nic.buffer_mut(request.buffer)[..sent.len()].copy_from_slice(&sent);
        self.originals.insert(request.buffer, original);
        let request = SendRequest {
            header_length: sent.len(),
            ..*request
        };
        self.nic
            .post_send(&request, doorbell)
            .inspect_err(|_| self.restore(request.buffer))
    }
}

impl PolledNic for ReleaseNic {
    fn poll(&mut self, completions: &mut Vec<Completion>, limit: usize) -> usize {
        let first = completions.len();
        let count = self.nic.poll(completions, limit);
        for completion in &mut completions[first..] {
            match &mut completion.kind {
                // It may be posted again.
                CompletionKind::Send { buffer } => self.restore(*buffer),
                CompletionKind::Recv { buffer, length, .. } if completion.status == Status::Ok => {
                    *length = self.receive(*buffer, *length);
                }
                _ => {}
            }
        }
        count
    }
}
