use super::*;
use crate::endpoint::base::ids::Id;
use crate::endpoint::base::steps;
use crate::endpoint::memory::iov::Iov;
use crate::endpoint::{SourceFilter, TagFilter};
use crate::nic::UserSlice;
use crate::wire::SendId;

fn peer(number: u32) -> PeerId {
    PeerId::new(number, 0)
}

fn receiving() -> Receiving {
    let config = EndpointConfig {
        max_operations: 4,
        ..EndpointConfig::default()
    };
    Receiving::new(&config, SeededHasher::new(1))
}

fn any(tag: u64) -> Filter {
    Filter {
        source: SourceFilter::Any,
        tag: TagFilter::exact(tag),
    }
}

/// A tagged receive of 100 bytes.
fn tagged(context: u64, filter: Filter) -> NewReceive {
    let memory = UserSlice::new(1000, 100);
    NewReceive {
        context,
        report_success: true,
        tagged: true,
        filter,
        target: Iov::One(IoVec::new(memory)),
    }
}

/// How the end of a message that a receive matches is reported.
fn ending() -> TransferEnding {
    TransferEnding {
        context: 1,
        report_success: true,
        flags: receive_flags(true, None),
        tag: 7,
        cq_data: None,
        recipient: ReportRecipient::Starter,
        part: None,
    }
}

fn transfer(peer: PeerId, ending: TransferEnding) -> Transfer {
    Transfer::new(peer, MsgId(0), 1, Iov::NONE, ending)
}

/// Matches a message of 100 bytes with a receive. Returns the transfer.
fn matched(receiving: &mut Receiving) -> InboundId {
    let id = receiving.post(tagged(1, any(7))).unwrap();
    receiving.posted.match_message(peer(1), Some(7)).unwrap();
    let transfer = receiving.activate(id.slot(), peer(1), MsgId(5), 100, (Some(7), None));
    transfer.unwrap()
}

#[test]
fn a_segmented_message_takes_over_its_receive() {
    let mut receiving = receiving();
    let first = receiving.post(tagged(1, any(7))).unwrap();
    let second = receiving.post(tagged(2, any(7))).unwrap();
    let found = receiving.posted.match_message(peer(1), Some(7)).unwrap();
    assert_eq!((found.slot, found.stays), (first.slot(), false));
    let id = receiving.activate(found.slot, peer(1), MsgId(5), 60, (Some(7), Some(9)));
    assert_eq!(receiving.len(), 2);
    // A receive that has matched a message cannot be cancelled.
    assert!(receiving.posted.withdraw(first).is_none());
    assert_eq!(receiving.posted.withdraw(second).unwrap().0, 2);
    assert!(receiving.posted.withdraw(second).is_none());
    let ended = receiving.finish(id.unwrap()).unwrap();
    assert_eq!((ended.length, ended.capacity), (60, 100));
    let TransferEnding {
        context,
        tag,
        cq_data,
        ..
    } = ended.ending;
    assert_eq!((context, tag, cq_data), (1, 7, Some(9)));
    assert_eq!(receiving.len(), 0);
}

#[test]
fn the_operation_limit_leaves_room_for_peers() {
    let mut receiving = receiving();
    let own = receiving.start(transfer(peer(1), ending())).unwrap();
    for context in 0..3 {
        assert!(receiving.post(tagged(context, any(1))).is_some());
    }
    assert!(receiving.is_full());
    assert!(receiving.post(tagged(4, any(1))).is_none());
    assert!(receiving.start(transfer(peer(1), ending())).is_none());
    let write = TransferEnding {
        recipient: ReportRecipient::Target(crate::wire::PacketType::LongctsRtw),
        ..ending()
    };
    let id = receiving.start(transfer(peer(1), write)).unwrap();
    assert!(receiving.finish(id).is_some());
    assert!(receiving.is_full());
    assert!(receiving.finish(own).is_some());
    assert!(receiving.post(tagged(4, any(1))).is_some());
}

#[test]
fn segments_follow_their_message_to_its_transfer() {
    let mut receiving = receiving();
    let (peer, id) = (peer(1), MsgId(3));
    receiving
        .unexpected
        .defer(peer, Some(7), UnexpectedMessage::segmented(3));
    let (_, _, message) = receiving.unexpected.take(true, &any(7)).unwrap();
    let transfer = Transfer::new(peer, message.msg_id, 30, Iov::NONE, ending());
    let transfer = receiving.start(transfer).unwrap();
    receiving.assemble(transfer);
    let segment = receiving.unexpected.segment(peer, id);
    assert_eq!(segment, Segment::Transfer(transfer));
    assert!(receiving.finish(transfer).is_some());
    assert_eq!(receiving.unexpected.segment(peer, id), Segment::Unknown);
    assert_eq!(receiving.unexpected.assemblies_len(), 0);
}

#[test]
fn packets_reach_only_transfers_of_their_sender() {
    let mut receiving = receiving();
    let id = matched(&mut receiving);
    let recv_id = crate::wire::RecvId(id.to_wire());
    assert!(receiving.transfers.named_by(peer(2), recv_id).is_none());
    let named = receiving.transfers.named_by(peer(1), recv_id);
    assert_eq!(named.map(|(id, _)| id), Some(id));
    receiving.finish(id).unwrap();
    assert!(receiving.transfers.named_by(peer(1), recv_id).is_none());
}

#[test]
fn only_the_refused_peer_answers_a_nack() {
    let mut receiving = receiving();
    let id = matched(&mut receiving);
    let answer = LongctsRtm {
        msg_id: MsgId(5),
        msg_length: 100,
        send_id: SendId(8),
        ..LongctsRtm::default()
    };
    let step = |receiving: &Receiving| receiving.transfers.get(id).unwrap().next_action();
    assert_eq!(receiving.nack_answered(peer(1), &answer), None);
    assert_eq!(receiving.refuse_read(id, 0), Some(peer(1)));
    assert_eq!(step(&receiving), NextAction::Refuse);
    assert_eq!(receiving.nack_answered(peer(1), &answer), None);
    receiving.transfers.get_mut(id).unwrap().nacked();
    assert_eq!(receiving.nack_answered(peer(2), &answer), None);
    assert_eq!(receiving.nack_answered(peer(1), &answer), Some(id));
    assert_eq!(step(&receiving), NextAction::Grant);
}

/// A queue pair that states another connection id in each packet makes the engine remove a peer for
/// each.
#[test]
fn peer_removal_costs_its_own_operations_only() {
    const OTHERS: u32 = 1000;
    let config = EndpointConfig {
        max_operations: 10_000,
        ..EndpointConfig::default()
    };
    let mut receiving = Receiving::new(&config, SeededHasher::new(7));
    let from = |number, tag| Filter {
        source: SourceFilter::Peer(peer(number)),
        ..any(tag)
    };
    // Each has one of everything: a receive, a transfer, an unexpected message, a claim.
    for number in 0..OTHERS {
        assert!(receiving.post(tagged(0, any(1))).is_some());
        assert!(receiving.post(tagged(0, from(number, 2))).is_some());
        for tag in [3, 4] {
            let message = UnexpectedMessage::segmented(1);
            receiving.unexpected.defer(peer(number), Some(tag), message);
        }
        assert!(receiving.start(transfer(peer(number), ending())).is_some());
        let filter = from(number, 4);
        assert!(receiving.unexpected.claim(true, &filter).is_some());
    }
    let (steps, ()) = steps::counted(|| {
        let gone = peer(500);
        let [receive] = receiving.posted.naming(gone)[..] else {
            panic!("one receive");
        };
        assert!(receiving.posted.withdraw(receive).is_some());
        let [transfer] = receiving.transfers.with_peer(gone)[..] else {
            panic!("one transfer");
        };
        assert!(receiving.finish(transfer).is_some());
        assert_eq!(receiving.unexpected.take_all_of(gone).len(), 2);
    });
    assert_eq!(steps, 4);
    assert_eq!(receiving.unexpected.claims_len(), OTHERS as usize - 1);
}
