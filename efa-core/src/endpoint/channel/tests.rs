//! Tests of the channel's parts together, on a device that delivers nothing.

use super::*;
use crate::address::{Gid, Qkey, Qpn};
use crate::endpoint::Endpoint;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::IoVec;
use crate::endpoint::base::ids::Id;
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::endpoint::memory::registration::Registered;
use crate::endpoint::peers::handshake::PeerFeatures;
use crate::endpoint::posting::AbandonedMessage;
use crate::endpoint::sending::Loss;
use crate::endpoint::sending::choice::NoProtocol;
use crate::nic::fake::{FakeNic, fake_nic};
use crate::nic::{Access, Domain as _, NicError, UserSlice};
use crate::wire::{ExtraFeatures, Header, MsgId, OpeType, Packet, PeerError, RtaKind, SendId};

const FAILURE: Failure = Failure::new(Errno::EIO, ProviderError::None);

/// The error of a broken device.
const BROKEN: NicError = NicError::Device {
    call: "the fake device",
    errno: 5,
};

/// The channel of an endpoint with these settings and one peer, whose queue pair has the number 7.
/// The device has 8 packet buffers, of which 4 are posted receives.
fn channel(config: EndpointConfig) -> (Channel<FakeNic>, PeerId) {
    let config = EndpointConfig {
        recv_buffers: 4,
        ..config
    };
    let mut endpoint = Endpoint::new(fake_nic(8), config).unwrap();
    let address = RawAddress::new(Gid([3; 16]), Qpn(7), Qkey(9));
    let peer = endpoint.insert_address(address).unwrap();
    (endpoint.channel, peer)
}

fn usual() -> (Channel<FakeNic>, PeerId) {
    channel(EndpointConfig::default())
}

/// The packets in the device, all for the peer.
fn posted(channel: &Channel<FakeNic>) -> Vec<Header> {
    let packets = channel.posting.nic().carrier.packets.iter();
    packets
        .map(|(bytes, qpn)| {
            assert_eq!(*qpn, Qpn(7));
            Packet::parse(bytes).unwrap().header
        })
        .collect()
}

fn events(channel: &mut Channel<FakeNic>) -> Vec<Event> {
    core::iter::from_fn(|| channel.reports.next_event()).collect()
}

#[test]
fn an_empty_atomic_replaces_a_lost_message() {
    let (mut channel, peer) = usual();
    for _ in 0..2 {
        channel.request_posted(peer);
    }
    let first = MsgId(channel.config.first_msg_id);
    channel.request_lost(peer, first, FAILURE, Loss::NotDelivered);
    assert_eq!(channel.posting.next_work(), Some(Work::Fill(peer)));
    channel.fill_gaps(peer).unwrap();
    let [Header::Rta(fill)] = posted(&channel)[..] else {
        panic!("{:?}", posted(&channel));
    };
    assert_eq!((fill.kind, fill.msg_id), (RtaKind::Write, first));
    assert!(fill.rma_iov.is_empty());
    // Filled once.
    channel.fill_gaps(peer).unwrap();
    assert_eq!(posted(&channel).len(), 1);
}

#[test]
fn an_unfillable_gap_ends_the_sequence() {
    let (mut channel, peer) = usual();
    for _ in 0..2 {
        channel.request_posted(peer);
    }
    let first = MsgId(channel.config.first_msg_id);
    channel.request_lost(peer, first, FAILURE, Loss::NotDelivered);
    channel.posting.nic_mut().carrier.refuse_packets = Some(BROKEN);
    channel.fill_gaps(peer).unwrap();
    assert!(matches!(
        events(&mut channel)[..],
        [Event::SendingFailed { .. }]
    ));
    assert!(channel.peers.check_sequence(peer).is_err());
}

#[test]
fn an_unreportable_abandoned_message_ends_the_sequence() {
    for side in [OpeType::TXE, OpeType::RXE] {
        let (mut channel, peer) = usual();
        channel.request_posted(peer);
        let what = AbandonedMessage {
            msg_id: MsgId(channel.config.first_msg_id),
            op_id: PeerError::NO_OP,
            side,
        };
        channel.posting.nic_mut().carrier.refuse_packets = Some(NicError::QueueFull);
        let sent = channel.send_peer_error(peer, what, 0);
        assert!(matches!(sent, Err(EndpointError::TryAgain)), "{sent:?}");
        assert!(channel.peers.check_sequence(peer).is_ok());
        channel.posting.nic_mut().carrier.refuse_packets = Some(BROKEN);
        channel.send_peer_error(peer, what, 0).unwrap();
        let is_broken = channel.peers.check_sequence(peer).is_err();
        assert_eq!(is_broken, side == OpeType::TXE);
    }
}

/// Like a packet that fills a gap, it limits how far the ids run ahead.
#[test]
fn an_abandoned_message_is_outstanding_until_reported() {
    for side in [OpeType::TXE, OpeType::RXE] {
        let (mut channel, peer) = usual();
        channel.request_posted(peer);
        let msg_id = MsgId(channel.config.first_msg_id);
        channel.peers.arrived(peer, Some(msg_id));
        let what = AbandonedMessage {
            msg_id,
            op_id: PeerError::NO_OP,
            side,
        };
        channel.send_peer_error(peer, what, 0).unwrap();
        let sequence = &channel.peers.state(peer).unwrap().sequence;
        assert_eq!(sequence.is_idle(), side == OpeType::RXE);
    }
}

#[test]
fn an_unposted_packet_returns_its_buffer() {
    let (mut channel, peer) = usual();
    let free = channel.posting.nic().free_buffers();
    let handshake = channel.handshake;
    // A full queue is not an error: the packet is sent later.
    channel.posting.nic_mut().carrier.refuse_packets = Some(NicError::QueueFull);
    let sent = channel.send_control(peer, &handshake);
    assert!(matches!(sent, Err(EndpointError::TryAgain)), "{sent:?}");
    assert!(events(&mut channel).is_empty());
    channel.posting.nic_mut().carrier.refuse_packets = Some(BROKEN);
    channel.send_control(peer, &handshake).unwrap();
    assert!(matches!(
        events(&mut channel)[..],
        [Event::ControlSendFailed { .. }]
    ));
    assert_eq!(channel.posting.nic().free_buffers(), free);
    // A packet to a peer that no longer exists is not needed.
    let stranger = PeerId::new(99, 0);
    channel.send_control(stranger, &handshake).unwrap();
    assert!(events(&mut channel).is_empty());
    assert_eq!(channel.posting.nic().free_buffers(), free);
    assert_eq!(channel.reports.statistics.packets_sent, 0);
}

#[test]
fn an_empty_write_requests_the_handshake_once() {
    let (mut channel, peer) = usual();
    for _ in 0..2 {
        let refused = channel.no_protocol(peer, NoProtocol::AwaitHandshake);
        assert!(matches!(refused, EndpointError::TryAgain));
    }
    let [Header::EagerRtw(write)] = posted(&channel)[..] else {
        panic!("{:?}", posted(&channel));
    };
    assert!(write.rma_iov.is_empty() && write.receipt.is_none());
    let address = write.options.raw_address.map(|header| header.address());
    assert_eq!(address, Some(channel.address));
}

#[test]
fn a_failed_handshake_request_is_reported_next() {
    let (mut channel, peer) = usual();
    let state = channel.peers.state_mut(peer).unwrap();
    state.handshake.provocation_lost(FAILURE);
    let refused = channel.no_protocol(peer, NoProtocol::AwaitHandshake);
    assert!(matches!(
        refused,
        EndpointError::Unreachable {
            failure: FAILURE,
            ..
        }
    ));
    // The next operation tries again.
    let refused = channel.no_protocol(peer, NoProtocol::AwaitHandshake);
    assert!(matches!(refused, EndpointError::TryAgain));
    assert_eq!(posted(&channel).len(), 1);
}

#[test]
fn an_excessive_peer_is_given_up_once() {
    let (mut channel, peer) = channel(EndpointConfig {
        peer_operations: 1,
        ..EndpointConfig::default()
    });
    channel.queue_receipt(peer, SendId(1), MsgId(0));
    assert!(matches!(
        channel.posting.next_work(),
        Some(Work::Receipt { .. })
    ));
    for _ in 0..2 {
        assert!(!channel.begin_request(peer, PacketType::LongctsRtw));
    }
    assert_eq!(channel.posting.next_work(), Some(Work::GiveUp));
    assert_eq!(channel.posting.next_work(), None);
    let events = events(&mut channel);
    let [Event::PeerFailed { failure, .. }] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(channel.next_given_up(), Some((peer, failure)));
    assert_eq!(channel.next_given_up(), None);
}

/// Messages that fail here, before and after the peer's HANDSHAKE. There is room for one answer.
#[test]
fn local_failures_do_not_give_up_peers() {
    for understands in [false, true] {
        let (mut channel, peer) = channel(EndpointConfig {
            peer_operations: 1,
            ..EndpointConfig::default()
        });
        channel.request_posted(peer);
        if understands {
            let state = channel.peers.state_mut(peer).unwrap();
            state.handshake.receive(PeerFeatures {
                extra: ExtraFeatures::PEER_ERROR,
                device_version: None,
                user_recv_qp: None,
                peer_to_peer: true,
            });
        }
        let what = AbandonedMessage {
            msg_id: MsgId(channel.config.first_msg_id),
            op_id: PeerError::NO_OP,
            side: OpeType::TXE,
        };
        channel.abandon(peer, what, FAILURE, Some(Loss::Unknown));
        assert_eq!(events(&mut channel), []);
        let received = AbandonedMessage {
            side: OpeType::RXE,
            ..what
        };
        channel.abandon(peer, received, FAILURE, None);
        assert_eq!(events(&mut channel), []);
        channel.abandon(peer, what, FAILURE, Some(Loss::Unknown));
        let failure = FAILURE;
        let event = Event::SendingFailed { peer, failure };
        assert_eq!(events(&mut channel), [event]);
        assert_eq!(channel.next_given_up(), None);
        assert!(channel.peers.check(peer).is_ok());
        let work = understands.then_some(Work::PeerError {
            peer,
            what,
            code: FAILURE.provider.code(),
        });
        assert_eq!(channel.posting.next_work(), work);
        assert_eq!(channel.posting.next_work(), None);
    }
}

#[test]
fn a_packet_beyond_its_peers_share_is_returned() {
    let length = 100;
    let (mut channel, peer) = channel(EndpointConfig {
        // Copies of packets of this length occupy 128 bytes.
        peer_deferred_bytes: 2 * 128,
        ..EndpointConfig::default()
    });
    let receive = |channel: &mut Channel<FakeNic>| {
        let buffer = channel.posting.nic_mut().acquire_buffer().unwrap();
        ReceivedPacket::in_buffer(buffer, length)
    };
    let mut chain = None;
    for _ in 0..2 {
        let packet = receive(&mut channel);
        chain = Some(channel.defer(peer, packet, chain).ok().unwrap());
    }
    let packet = receive(&mut channel);
    let back = channel.defer(peer, packet, chain).err().unwrap();
    assert_eq!(back.len(), length);
    channel.posting.release(back);
    channel.drop_deferred(peer, chain.unwrap());
    assert_eq!(channel.posting.deferred_len(), 0);
    assert_eq!(channel.peers.state(peer).unwrap().deferred_bytes, 0);
}

/// `count` pieces of memory that are not registered.
fn pieces(count: usize) -> Vec<IoVec> {
    let piece = IoVec {
        memory: UserSlice::new(0x1000, 8),
        region: None,
    };
    vec![piece; count]
}

#[test]
fn a_refused_registration_ends_the_earlier_ones() {
    let (mut channel, _) = usual();
    channel.posting.nic_mut().carrier.refuse_from_key = 3;
    let refused = channel.register_source(&pieces(3), Access::REMOTE_READ);
    assert!(refused.unwrap().is_none());
    assert!(channel.posting.nic().carrier.registered.is_empty());
}

#[test]
fn a_failed_deregistration_is_an_event() {
    let (mut channel, _) = usual();
    let registered = channel.register_source(&pieces(2), Access::REMOTE_READ);
    let Registered { own_regions, .. } = registered.unwrap().unwrap();
    assert_eq!(channel.posting.nic().carrier.registered, [1, 2]);
    channel.posting.nic_mut().carrier.refuse_deregister = Some(BROKEN);
    channel.deregister_own(own_regions);
    let events = events(&mut channel);
    let is_reported = |event: &Event| matches!(event, Event::DeregistrationFailed(_));
    assert_eq!(events.iter().filter(|event| is_reported(event)).count(), 2);
}
