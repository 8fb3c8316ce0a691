//! Requests from their post to their end, over a device that completes nothing.

use super::retry::MAX_RETRIES;
use super::*;
use crate::address::{Ahn, Qkey, Qpn};
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::time::Instant;
use crate::endpoint::base::ids::{Id, PeerId};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::nic::Destination;
use crate::nic::fake::{FakeNic, fake_nic};
use crate::wire::{Eor, PacketType, RecvId, Repr, SendId};

const TO: Destination = Destination {
    ahn: Ahn(3),
    qpn: Qpn(7),
    qkey: Qkey(9),
};

fn peer() -> PeerId {
    PeerId::new(1, 0)
}

/// With 8 packet buffers, none of them for receives.
fn posting() -> Posting<FakeNic> {
    let config = EndpointConfig {
        backoff_first_micros: (50, 50),
        ..EndpointConfig::default()
    };
    Posting::new(fake_nic(8), &config, 0)
}

/// Posts the EOR of an operation. Returns its id and its bytes.
fn post(posting: &mut Posting<FakeNic>, operation: u32) -> (PacketId, Vec<u8>) {
    let header = Eor {
        send_id: SendId(operation),
        recv_id: RecvId(0),
        ..Eor::default()
    };
    let id = posting.in_flight.vacant().unwrap().id;
    let packet = posting.start_packet(&header).unwrap();
    posting
        .post(
            peer(),
            TO,
            PacketOwner::Control,
            PostedRequest::Packet(packet),
        )
        .unwrap();
    (id, header.to_packet(&[]))
}

fn last_posted(posting: &Posting<FakeNic>) -> &[u8] {
    &posting.nic().carrier.packets.last().unwrap().0
}

fn at(microseconds: u64) -> Instant {
    Instant(core::time::Duration::from_micros(microseconds))
}

#[test]
fn a_request_is_remembered_until_its_end() {
    let mut posting = posting();
    let (id, bytes) = post(&mut posting, 1);
    assert_eq!(last_posted(&posting), bytes);
    assert_eq!(posting.peer(id), Some(peer()));
    let Some(CompletedRequest {
        what: FinishedRequest::Packet(PacketType::Eor, Some(buffer)),
        ..
    }) = posting.take(id)
    else {
        panic!("it was an EOR in a buffer");
    };
    posting.recycle(buffer);
    assert_eq!(posting.nic().free_buffers(), 8);
    assert!(posting.take(id).is_none(), "a second completion");
    assert!(!posting.is_busy());
}

#[test]
fn a_batch_rings_one_doorbell() {
    let mut posting = posting();
    posting.begin_batch();
    post(&mut posting, 1);
    posting.end_batch(true);
    // The next request rings for both.
    assert_eq!(posting.nic().deferred, 1);
    post(&mut posting, 2);
    assert_eq!(posting.nic().deferred, 0);
    posting.begin_batch();
    post(&mut posting, 3);
    assert!(posting.is_deferring());
    posting.end_batch(false);
    assert_eq!(posting.nic().deferred, 0);
    assert!(!posting.is_deferring());
}

#[test]
fn packets_deferred_for_rnr_leave_buffers_for_others() {
    let mut posting = posting();
    posting.max_deferred_work_buffers = 1;
    let mut backoff = PeerBackoff::default();
    let (ids, bytes): (Vec<_>, Vec<_>) = (0..3).map(|number| post(&mut posting, number)).unzip();
    assert_eq!(posting.nic().free_buffers(), 5);
    // The first refusal of a packet causes an immediate retry, the second one a wait.
    for id in &ids {
        posting.rnr(*id, &mut backoff, at(0));
        assert_eq!(posting.next_work(), Some(Work::Retry(*id)));
    }
    for id in &ids {
        posting.rnr(*id, &mut backoff, at(0));
    }
    assert_eq!(posting.next_work(), None);
    assert_eq!(posting.nic().free_buffers(), 7, "one stays in its buffer");
    // After the wait they are posted with the same bytes, those in buffers first.
    let (until, _) = posting.next_over(at(1_000_000)).unwrap();
    posting.end_backoff(until, &mut backoff);
    for (id, bytes) in ids.iter().zip(&bytes) {
        assert_eq!(posting.next_work(), Some(Work::Retry(*id)));
        posting.retry_post(*id, TO).unwrap();
        assert_eq!(last_posted(&posting), bytes);
    }
    assert_eq!(posting.nic().free_buffers(), 5);
}

#[test]
fn a_packet_without_buffer_is_not_lost() {
    let mut posting = posting();
    posting.max_deferred_work_buffers = 0;
    let mut backoff = PeerBackoff::default();
    let (id, bytes) = post(&mut posting, 1);
    posting.defer_work(&mut backoff, Work::Retry(id));
    let nic = posting.nic_mut();
    let taken: Vec<_> = core::iter::from_fn(|| nic.acquire_buffer()).collect();
    let again = posting.retry_post(id, TO);
    assert!(matches!(again, Err(EndpointError::TryAgain)), "{again:?}");
    for buffer in taken {
        posting.nic_mut().release_buffer(buffer);
    }
    posting.retry_post(id, TO).unwrap();
    assert_eq!(last_posted(&posting), bytes);
}

#[test]
fn an_undelivered_packet_is_retried_a_few_times() {
    let mut posting = posting();
    let (id, _) = post(&mut posting, 1);
    for _ in 0..MAX_RETRIES {
        assert!(posting.retry(id));
        assert_eq!(posting.next_work(), Some(Work::Retry(id)));
    }
    assert!(!posting.retry(id));
    assert_eq!(posting.next_work(), None);
}

#[test]
fn unposted_work_is_returned_at_the_end() {
    let mut posting = posting();
    let (waiting, _) = post(&mut posting, 1);
    post(&mut posting, 2);
    assert!(posting.retry(waiting));
    let buffer = posting.nic_mut().acquire_buffer().unwrap();
    let received = ReceivedPacket::in_buffer(buffer, 64);
    assert!(posting.defer(received, None).is_ok());
    posting.release_buffers();
    assert_eq!(posting.nic().free_buffers(), 7, "the device has one");
}
