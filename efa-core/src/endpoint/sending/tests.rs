use super::results::RejectReason;
use super::*;
use crate::endpoint::base::ids::Id;
use crate::endpoint::base::steps;
use crate::endpoint::{CompletionFlags, Errno, Failure, IoVec, ProviderError};
use crate::nic::{LocalKey, Region, RemoteKey, UserSlice};
use crate::wire::{
    Connid, Cts, CtsData, Header, LongctsRtm, MediumRtm, MsgId, ReadRsp, RecvId, ReqFlags,
    ReqOptions, RmaIov, RmaIovs, SendId,
};

const FAILURE: Failure = Failure::new(Errno::EIO, ProviderError::None);
const CONNID: Connid = Connid(77);

fn peer(number: u32) -> PeerId {
    PeerId::new(number, 0)
}

fn sending() -> Sending {
    let headers = HeaderSettings {
        mtu: 1000,
        credits: 4,
    };
    Sending::new(3, headers)
}

fn report() -> Option<Report> {
    Some(Report {
        context: 5,
        flags: CompletionFlags::MSG | CompletionFlags::SEND,
        success: true,
    })
}

fn head() -> MessageHead {
    MessageHead {
        msg_id: MsgId(9),
        tag: Some(3),
        delivery_complete: false,
        options: ReqOptions::default(),
    }
}

fn source(length: usize) -> Iov {
    Iov::One(IoVec {
        memory: UserSlice::new(1000, length),
        region: Some(Region {
            local_key: LocalKey(1),
            remote_key: RemoteKey(2),
        }),
    })
}

fn bulk(length: u64, stream: Stream) -> Bulk {
    Bulk::new(source(length as usize), length, stream)
}

fn start(sending: &mut Sending, length: u64, awaited: AwaitedPacket, bulk: Bulk) -> OutboundId {
    let started = sending.start_bulk(peer(1), report(), length, awaited, bulk);
    started.unwrap()
}

/// Posts the next packet.
fn post(sending: &mut Sending, id: OutboundId) -> (Header, usize) {
    match sending.next(id, 1000, CONNID, None) {
        Some(NextRequest::Packet(packet)) => {
            sending.packet_posted(id, &packet);
            (packet.header, packet.size)
        }
        _ => panic!("no packet is due"),
    }
}

/// Posts the next packet, which has this format.
fn post_header<T>(sending: &mut Sending, id: OutboundId) -> (T, usize)
where
    T: TryFrom<Header, Error = Header> + core::fmt::Debug,
{
    let (header, size) = post(sending, id);
    (T::try_from(header).unwrap(), size)
}

/// Starts to send a message in segments.
fn start_medium(sending: &mut Sending, length: u64, awaited: AwaitedPacket) -> OutboundId {
    let stream = Stream::Medium(head(), segment_size(length, 900));
    start(sending, length, awaited, bulk(length, stream))
}

fn cts(recv_id: u32, length: u64) -> Cts {
    Cts {
        recv_id: RecvId(recv_id),
        recv_length: length,
        ..Cts::default()
    }
}

#[test]
fn medium_segments_cover_the_message_exactly() {
    let mut sending = sending();
    let id = start_medium(&mut sending, 2000, AwaitedPacket::Nothing);
    let mut offset = 0;
    while sending.due(id) == PendingPost::Post {
        let (header, size) = post_header::<MediumRtm>(&mut sending, id);
        assert_eq!((header.seg_offset, header.msg_length), (offset, 2000));
        offset += size as u64;
    }
    assert_eq!(offset, 2000);
    for _ in 0..3 {
        assert!(sending.take_ended(id).is_none());
        sending.done(id);
    }
    let ended = sending.take_ended(id).unwrap();
    assert_eq!(ended.lost, None);
    assert_eq!(
        (ended.peer, ended.length, ended.failure),
        (peer(1), 2000, None)
    );
    assert_eq!(sending.len(), 0);
}

#[test]
fn data_is_sent_up_to_the_granted_window() {
    let mut sending = sending();
    let stream = Stream::LongCts(RequestHead::Message(head()));
    let long = Bulk {
        allowed: 0,
        ..bulk(5000, stream)
    };
    let id = start(&mut sending, 5000, AwaitedPacket::Nothing, long);
    let (header, first) = post_header::<LongctsRtm>(&mut sending, id);
    assert_eq!(
        (header.credit_request, header.send_id),
        (4, SendId(id.to_wire()))
    );
    assert_eq!(sending.due(id), PendingPost::Nothing);
    let left = 5000 - first as u64;
    assert_eq!(
        sending.granted(peer(2), id, &cts(8, 10)),
        Err(RejectReason::NoOperation)
    );
    assert_eq!(
        sending.granted(peer(1), id, &cts(8, 0)),
        Err(RejectReason::Sizes)
    );
    assert_eq!(
        sending.granted(peer(1), id, &cts(8, left + 1)),
        Err(RejectReason::Sizes)
    );
    assert_eq!(sending.granted(peer(1), id, &cts(8, 10)), Ok(()));
    assert!(sending.enqueue(id));
    assert!(!sending.enqueue(id));
    assert_eq!(sending.due(id), PendingPost::Data(peer(1)));
    let (data, size) = post_header::<CtsData>(&mut sending, id);
    assert_eq!(
        (data.recv_id, data.seg_offset, size),
        (RecvId(8), first as u64, 10)
    );
    assert_eq!(sending.due(id), PendingPost::Nothing);
    assert!(sending.granted(peer(1), id, &cts(8, left - 10)).is_ok());
}

#[test]
fn a_refused_read_continues_in_windows_after_runt() {
    let mut sending = sending();
    let remote = RmaIovs::first_of([RmaIov::new(1000, 2000, 2)]);
    let stream = Stream::Runt(head(), segment_size(300, 900), remote);
    let runt = Bulk {
        to_move: 300,
        allowed: 300,
        runt: Some(300),
        ..bulk(2000, stream)
    };
    let id = start(&mut sending, 2000, AwaitedPacket::Eor, runt);
    // The peer cannot have found out yet that it cannot read the rest.
    assert_eq!(sending.nacked(peer(1), id), Err(RejectReason::Sizes));
    assert!(matches!(
        post(&mut sending, id),
        (Header::RuntreadRtm(_), 300)
    ));
    assert_eq!(sending.nacked(peer(2), id), Err(RejectReason::NoOperation));
    assert_eq!(sending.nacked(peer(1), id), Ok(Some(300)));
    assert_eq!(sending.nacked(peer(1), id), Err(RejectReason::NoOperation));
    let (answer, size) = post_header::<LongctsRtm>(&mut sending, id);
    assert_eq!(size, 0);
    assert!(answer.options.flags.contains(ReqFlags::READ_NACK));
    assert_eq!(answer.msg_id, MsgId(9));
    assert!(sending.granted(peer(1), id, &cts(8, 1700)).is_ok());
    let (data, _) = post_header::<CtsData>(&mut sending, id);
    assert_eq!(data.seg_offset, 300);
}

#[test]
fn eor_ends_read_operations_and_their_registrations() {
    let mut sending = sending();
    let remote = RmaIovs::first_of([RmaIov::new(1000, 2000, 2)]);
    let stream = Stream::LongRead(RequestHead::Message(head()), remote);
    let read = Bulk {
        to_move: 0,
        allowed: 0,
        own_regions: Some(Box::new([])),
        runt: Some(0),
        ..bulk(2000, stream)
    };
    let id = start(&mut sending, 2000, AwaitedPacket::Eor, read);
    assert!(matches!(
        post(&mut sending, id),
        (Header::LongreadRtm(_), 0)
    ));
    // EOR may overtake the completion of the request.
    let wrong = sending.acknowledged(peer(1), id, AwaitedPacket::Receipt);
    assert_eq!(wrong, Err(RejectReason::NoOperation));
    assert!(
        sending
            .acknowledged(peer(1), id, AwaitedPacket::Eor)
            .is_ok()
    );
    assert!(sending.take_ended(id).is_none());
    sending.done(id);
    let resources = sending.take_ended(id).unwrap().resources;
    assert!(resources.own_regions.is_some());
    assert_eq!(resources.runt, Some(0));
}

#[test]
fn rdma_writes_are_cut_at_the_limit() {
    let mut sending = sending();
    let remote = RmaIovs::first_of([RmaIov::new(9000, 250, 2)]);
    let write = bulk(250, Stream::RdmaWrite(remote, Some(4)));
    let id = start(&mut sending, 250, AwaitedPacket::Nothing, write);
    let mut lengths = Vec::new();
    while sending.due(id) == PendingPost::Post {
        let Some(NextRequest::Write(part, Some(4))) = sending.next(id, 100, CONNID, None) else {
            panic!("another request");
        };
        lengths.push(part.local.length);
        sending.write_posted(id, part.local.length as u64);
    }
    assert_eq!(lengths, [100, 100, 50]);
}

#[test]
fn failed_operations_post_nothing_and_await_the_device() {
    let mut sending = sending();
    let id = start_medium(&mut sending, 2000, AwaitedPacket::Receipt);
    post(&mut sending, id);
    sending.fail(id, FAILURE);
    assert_eq!(sending.due(id), PendingPost::Nothing);
    assert!(!sending.enqueue(id));
    assert!(sending.take_ended(id).is_none());
    sending.done(id);
    assert_eq!(sending.take_ended(id).unwrap().failure, Some(FAILURE));
}

#[test]
fn the_operation_limit_leaves_room_for_peer_reads() {
    let mut sending = sending();
    let stream = Stream::ReadResponse(RecvId(4));
    sending.reserve();
    for _ in 0..2 {
        let one = Outbound::one_packet(peer(1), None, report().unwrap(), 8, AwaitedPacket::Receipt);
        assert!(sending.start(one).is_some());
    }
    assert!(sending.is_full());
    let refused = sending.start_bulk(
        peer(1),
        report(),
        8,
        AwaitedPacket::Nothing,
        bulk(8, stream),
    );
    assert!(refused.is_err());
    let id = sending
        .start_bulk(peer(1), None, 8, AwaitedPacket::Nothing, bulk(8, stream))
        .unwrap();
    assert_eq!(sending.peers_reads(|_| true), [id]);
    let (response, size) = post_header::<ReadRsp>(&mut sending, id);
    assert_eq!(size, 8);
    assert_eq!(response.connid, Some(CONNID));
    sending.done(id);
    assert!(sending.take_ended(id).unwrap().report.is_none());
    assert!(sending.is_full());
    sending.free();
    assert!(!sending.is_full());
}

#[test]
fn peer_removal_costs_its_own_operations_only() {
    let mut sending = Sending::new(
        1000,
        HeaderSettings {
            mtu: 1000,
            credits: 4,
        },
    );
    let mut ids = Vec::new();
    for number in 0..1000 {
        let one = Outbound::one_packet(
            peer(number % 500),
            None,
            report().unwrap(),
            8,
            AwaitedPacket::Receipt,
        );
        ids.push(sending.start(one).unwrap());
    }
    let (steps, found) = steps::counted(|| sending.with_peer(peer(7)));
    assert_eq!((steps, &found[..]), (2, &[ids[7], ids[507]][..]));
    for id in found {
        assert!(sending.discard(id).is_some());
    }
    assert!(sending.with_peer(peer(7)).is_empty());
}

#[test]
fn failed_messages_report_whether_the_peer_has_parts() {
    for (first_arrives, loss, expected) in [
        (false, Loss::NotDelivered, Loss::NotDelivered),
        (false, Loss::Unknown, Loss::Unknown),
        (true, Loss::NotDelivered, Loss::Unknown),
    ] {
        let mut sending = sending();
        let id = start_medium(&mut sending, 1500, AwaitedPacket::Nothing);
        let sequenced = [0; 2].map(|_| match sending.next(id, 1000, CONNID, None) {
            Some(NextRequest::Packet(packet)) => {
                sending.packet_posted(id, &packet);
                packet.sequenced
            }
            _ => panic!("no packet is due"),
        });
        assert_eq!(sequenced, [Some(MsgId(9)), None]);
        match first_arrives {
            true => sending.done(id),
            false => sending.lost(id, FAILURE, Loss::NotDelivered),
        }
        sending.lost(id, FAILURE, loss);
        let ended = sending.take_ended(id).unwrap();
        assert_eq!(ended.lost, Some((MsgId(9), expected)));
    }
}
