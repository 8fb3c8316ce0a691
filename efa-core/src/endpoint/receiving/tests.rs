use super::*;
use crate::endpoint::base::ids::Id;
use crate::endpoint::base::steps;
use crate::endpoint::{Errno, ProviderError, SourceFilter, TagFilter};
use crate::nic::{LocalKey, Region, RemoteKey, UserSlice};
use crate::wire::RmaIov;

const FAILURE: Failure = Failure::new(Errno::EIO, ProviderError::None);

fn peer(number: u32) -> PeerId {
    PeerId::new(number, 0)
}

fn receiving() -> Receiving {
    let config = EndpointConfig {
        max_operations: 4,
        ..EndpointConfig::default()
    };
    Receiving::new(&config, Mixer::new(1))
}

fn piece(length: usize) -> IoVec {
    IoVec {
        memory: UserSlice {
            address: 1000,
            length,
        },
        region: Some(Region {
            local_key: LocalKey(1),
            remote_key: RemoteKey(2),
        }),
    }
}

fn any(tag: u64) -> Filter {
    Filter {
        source: SourceFilter::Any,
        tag: TagFilter::exact(tag),
    }
}

/// A tagged receive of 100 bytes.
fn tagged(context: u64, filter: Filter) -> NewReceive {
    NewReceive {
        context,
        report_success: true,
        tagged: true,
        filter,
        target: Iov::One(piece(100)),
    }
}

/// A packet that waits.
fn held(number: u32) -> HeldId {
    HeldId::new(number, 0)
}

fn segmented(msg_id: u32) -> UnexpectedMessage {
    UnexpectedMessage {
        msg_id: MsgId(msg_id),
        length: 30,
        cq_data: None,
        segmented: true,
        head: held(msg_id),
    }
}

#[test]
fn a_message_goes_to_the_oldest_receive_and_takes_it_over() {
    let mut receiving = receiving();
    let first = receiving.post(tagged(1, any(7))).unwrap();
    let second = receiving.post(tagged(2, any(7))).unwrap();
    assert_eq!(receiving.match_message(peer(1), Some(8)), None);
    assert_eq!(receiving.match_message(peer(1), None), None);
    let found = receiving.match_message(peer(1), Some(7)).unwrap();
    assert_eq!((found.receive, found.stays), (first, false));
    receiving.activate(first, peer(1), MsgId(5), 60, (Some(7), Some(9)));
    let transfer = receiving.transfer(first).unwrap();
    assert_eq!((transfer.length, transfer.capacity), (60, 100));
    let Ending {
        context,
        tag,
        cq_data,
        ..
    } = transfer.ending;
    assert_eq!((context, tag, cq_data), (1, 7, Some(9)));
    // A receive that has taken a message cannot be cancelled.
    assert!(receiving.withdraw(first).is_none());
    assert_eq!(receiving.withdraw(second).unwrap().0, 2);
    assert!(receiving.withdraw(second).is_none());
    assert_eq!(receiving.len(), 1);
}

#[test]
fn the_application_has_as_many_operations_as_it_may_and_peers_have_room_beside_them() {
    let mut receiving = receiving();
    for context in 0..4 {
        assert!(receiving.post(tagged(context, any(1))).is_some());
    }
    assert!(receiving.is_full());
    assert!(receiving.post(tagged(4, any(1))).is_none());
    let mut ending = Claim {
        links: PeerLinks::NONE,
        peer: peer(1),
        tagged: false,
        tag: 0,
        message: segmented(1),
    }
    .ending();
    let transfer = |ending| Transfer::new(peer(1), MsgId(0), 1, Iov::NONE, ending);
    assert!(receiving.start(transfer(ending)).is_none());
    ending.audience = Audience::Target(crate::wire::PacketType::LongctsRtw);
    let id = receiving.start(transfer(ending)).unwrap();
    assert!(receiving.finish(id).is_some());
    assert!(receiving.is_full());
}

#[test]
fn segments_follow_their_message_wherever_it_goes() {
    let mut receiving = receiving();
    let (peer, id) = (peer(1), MsgId(3));
    assert_eq!(receiving.segment(peer, id), Segment::Unknown);
    let message = segmented(3);
    let first = message.head;
    receiving.keep(peer, Some(7), message);
    assert_eq!(receiving.segment(peer, id), Segment::Kept(first));
    let second = held(8);
    receiving.add_segment(peer, id, second);
    // Claimed: further packets go to the claim.
    let claim = receiving.claim(true, &any(7)).unwrap();
    assert_eq!(receiving.segment(peer, id), Segment::Kept(second));
    assert!(receiving.first_unexpected(true, &any(7)).is_none());
    // Received: further packets go to the receive.
    let claim = receiving.take_claim(claim).unwrap();
    let transfer = Transfer::new(peer, id, 30, Iov::NONE, claim.ending());
    let receive = receiving.start(transfer).unwrap();
    receiving.assemble(receive);
    assert_eq!(receiving.segment(peer, id), Segment::Receive(receive));
    assert!(receiving.finish(receive).is_some());
    assert_eq!(receiving.segment(peer, id), Segment::Unknown);
    assert_eq!(receiving.assemblies_len(), 0);
}

#[test]
fn all_messages_of_a_peer_are_found_claimed_ones_too_and_no_others() {
    let mut receiving = receiving();
    for (number, msg_id, tag) in [
        (1, 1, Some(7)),
        (1, 2, None),
        (2, 3, Some(7)),
        (1, 4, Some(9)),
    ] {
        let message = segmented(msg_id);
        receiving.keep(peer(number), tag, message);
    }
    receiving.claim(true, &any(9)).unwrap();
    let taken = receiving.take_all_of(peer(1));
    let ids: Vec<u32> = taken.iter().map(|message| message.msg_id.0).collect();
    assert_eq!(ids, [2, 1, 4]);
    assert_eq!((receiving.unexpected_len(), receiving.claims_len()), (1, 0));
    let (source, tag, message) = receiving.take_unexpected(true, &any(7)).unwrap();
    assert_eq!((source, tag, message.msg_id), (peer(2), 7, MsgId(3)));
}

#[test]
fn a_multi_receive_buffer_leaves_the_posted_receives_with_its_last_part() {
    let mut receiving = receiving();
    let filter = any(0);
    let receive = NewReceive {
        tagged: false,
        ..tagged(5, filter)
    };
    let id = receiving.post_multi(receive, piece(100), 50).unwrap();
    let found = receiving.match_message(peer(1), None).unwrap();
    assert_eq!((found.receive, found.stays), (id, true));
    let (target, ending) = receiving.next_part(id, 40, None).unwrap();
    assert_eq!((target.memory.address, target.memory.length), (1000, 40));
    assert!(ending.is_remote());
    assert!(receiving.match_message(peer(1), None).is_some());
    let (_, last) = receiving.next_part(id, 11, None).unwrap();
    assert_eq!(receiving.match_message(peer(1), None), None);
    assert!(receiving.withdraw(id).is_none());
    assert!(!receiving.end_part(last.part.unwrap()));
    assert!(receiving.end_part(ending.part.unwrap()));
}

/// Starts a transfer of 120 bytes into a buffer of 100, of which all but the first 10 bytes are
/// read.
fn read(receiving: &mut Receiving, remote_length: u64) -> ReceiveId {
    let id = receiving.post(tagged(1, any(7))).unwrap();
    receiving.match_message(peer(1), Some(7)).unwrap();
    receiving.activate(id, peer(1), MsgId(5), 120, (Some(7), None));
    let remote = RmaIovs::first_of([RmaIov::new(5000, remote_length, 3)]);
    let start = receiving.readable(id, SendId(6), &remote, 10);
    let target = Registered {
        pieces: receiving.target(id).unwrap().clone(),
        own_regions: None,
    };
    receiving.plan_reads(id, remote, 10, true, target);
    // Memory that is shorter than the message cannot be read.
    assert_eq!(start == ReadStart::Read, remote_length == 120);
    id
}

#[test]
fn reads_bring_what_fits_the_target_and_the_transfer_ends_with_the_last_of_them() {
    let mut receiving = receiving();
    let id = read(&mut receiving, 120);
    let arrival = receiving.arrived(id, 0, 10, false);
    assert!(matches!(arrival, Arrival::Copy { fits: 10, .. }));
    let mut lengths = Vec::new();
    while let Some((_, part)) = receiving.next_read(id, 60).unwrap() {
        assert_eq!(part.local.address - 1000, part.remote_address - 5000);
        lengths.push(part.local.length as u64);
        receiving.read_posted(id, part.local.length as u64);
    }
    assert_eq!(lengths, [60, 30]);
    assert_eq!(receiving.next_step(id), Step::Wait);
    assert!(receiving.read_done(id, 30));
    assert_eq!(receiving.next_step(id), Step::Wait);
    assert!(receiving.read_done(id, 60));
    assert_eq!(receiving.next_step(id), Step::Finish);
    let ended = receiving.finish(id).unwrap();
    assert_eq!((ended.eor, ended.receipt), (Some(SendId(6)), None));
    assert_eq!((ended.length, ended.capacity), (120, 100));
    assert!(!receiving.read_done(id, 0));
}

#[test]
fn a_failed_transfer_ends_when_the_device_is_done_with_its_memory() {
    let mut receiving = receiving();
    let id = read(&mut receiving, 120);
    receiving.read_posted(id, 90);
    receiving.abort(id, FAILURE);
    assert_eq!(receiving.next_step(id), Step::Wait);
    // No more reads are posted for it.
    assert!(matches!(receiving.next_read(id, 60), Ok(None)));
    assert!(receiving.read_done(id, 0));
    assert_eq!(receiving.next_step(id), Step::Finish);
    let ended = receiving.finish(id).unwrap();
    assert_eq!((ended.eor, ended.failure), (None, Some(FAILURE)));
}

#[test]
fn a_message_in_windows_is_granted_what_it_lacks_and_owes_a_receipt() {
    let mut receiving = receiving();
    let id = receiving.post(tagged(1, any(7))).unwrap();
    receiving.match_message(peer(1), Some(7)).unwrap();
    receiving.activate(id, peer(1), MsgId(5), 100, (Some(7), None));
    receiving.windows_follow(id, SendId(6), true);
    assert!(receiving.arrived(id, 0, 30, false) != Arrival::Misfit);
    assert_eq!(receiving.next_step(id), Step::Grant);
    let window = receiving.next_window(id, 50).unwrap();
    assert_eq!((window.send_id, window.length), (SendId(6), 50));
    receiving.granted(id, 50);
    assert_eq!(receiving.arrived(id, 30, 51, true), Arrival::Misfit);
    assert!(receiving.arrived(id, 30, 50, true) != Arrival::Misfit);
    assert_eq!(receiving.next_step(id), Step::Grant);
    assert_eq!(receiving.next_window(id, 50).unwrap().length, 20);
    receiving.granted(id, 20);
    assert!(receiving.arrived(id, 80, 20, true) != Arrival::Misfit);
    assert_eq!(receiving.next_step(id), Step::Finish);
    let ended = receiving.finish(id).unwrap();
    assert_eq!(ended.receipt, Some((SendId(6), MsgId(5))));
    assert_eq!(receiving.arrived(id, 0, 0, true), Arrival::Misfit);
}

#[test]
fn the_answer_to_a_nack_finds_its_message_and_no_other_peers_packet_does() {
    let mut receiving = receiving();
    let id = receiving.post(tagged(1, any(7))).unwrap();
    receiving.match_message(peer(1), Some(7)).unwrap();
    receiving.activate(id, peer(1), MsgId(5), 100, (Some(7), None));
    let answer = LongctsRtm {
        msg_id: MsgId(5),
        msg_length: 100,
        send_id: SendId(8),
        ..LongctsRtm::default()
    };
    assert_eq!(receiving.nack_answered(peer(1), &answer), None);
    assert_eq!(receiving.refuse_read(id, 0), Some(peer(1)));
    assert_eq!(receiving.next_step(id), Step::Refuse);
    assert_eq!(receiving.nack_answered(peer(1), &answer), None);
    receiving.nacked(id);
    assert_eq!(receiving.nack_answered(peer(2), &answer), None);
    assert_eq!(receiving.nack_answered(peer(1), &answer), Some(id));
    assert_eq!(receiving.next_step(id), Step::Grant);
}

#[test]
fn remote_memory_that_ends_before_its_message_is_an_error() {
    let mut receiving = receiving();
    let id = read(&mut receiving, 10);
    assert!(receiving.next_read(id, 60).is_err());
}

/// A queue pair that states another connection id in each packet makes the engine remove a peer for
/// each.
#[test]
fn the_end_of_a_peer_costs_what_the_peer_has() {
    const OTHERS: u32 = 1000;
    let config = EndpointConfig {
        max_operations: 10_000,
        ..EndpointConfig::default()
    };
    let mut receiving = Receiving::new(&config, Mixer::new(7));
    let from = |number, tag| Filter {
        source: SourceFilter::Peer(peer(number)),
        ..any(tag)
    };
    // Each has one of everything: a receive, a transfer, an unexpected message, a claim.
    for number in 0..OTHERS {
        assert!(receiving.post(tagged(0, any(1))).is_some());
        assert!(receiving.post(tagged(0, from(number, 2))).is_some());
        for tag in [3, 4] {
            let message = segmented(1);
            receiving.keep(peer(number), Some(tag), message);
        }
        let claim = receiving.claim(true, &from(number, 4)).unwrap();
        let claim = receiving.take_claim(claim).unwrap();
        let transfer = Transfer::new(peer(number), MsgId(0), 1, Iov::NONE, claim.ending());
        assert!(receiving.start(transfer).is_some());
        receiving.keep(peer(number), Some(4), claim.message);
        assert!(receiving.claim(true, &from(number, 4)).is_some());
    }
    let (steps, ()) = steps::counted(|| {
        let gone = peer(500);
        let [receive] = receiving.posted_for(gone)[..] else {
            panic!("one receive");
        };
        assert!(receiving.withdraw(receive).is_some());
        let [transfer] = receiving.transfers_with(gone)[..] else {
            panic!("one transfer");
        };
        assert!(receiving.finish(transfer).is_some());
        assert_eq!(receiving.take_all_of(gone).len(), 2);
    });
    assert_eq!(steps, 4);
    assert_eq!(receiving.claims_len(), OTHERS as usize - 1);
}
