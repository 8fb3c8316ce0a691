use super::*;
use crate::endpoint::base::ids::Id;

fn peer(number: u32) -> PeerId {
    PeerId::new(number, 0)
}

/// Admits all operations for which there is room, and runs them.
fn admit(quota: &mut Quota<&'static str>) -> Vec<(usize, &'static str)> {
    quota.review();
    let admitted: Vec<_> = core::iter::from_fn(|| quota.next_admitted()).collect();
    for (peer, _) in &admitted {
        quota.begin_operation(*peer);
    }
    let by_number = |(peer, name): (PeerId, _)| (peer.index(), name);
    admitted.into_iter().map(by_number).collect()
}

#[test]
fn pending_requests_and_answers_count_against_the_share() {
    let mut quota = Quota::<()>::new(2, 9);
    let (one, other) = (peer(0), peer(1));
    assert!(quota.begin_request(one));
    assert!(quota.begin_answer(one));
    assert!(!quota.begin_request(one));
    assert!(!quota.begin_answer(one));
    assert!(quota.begin_request(other));
    assert_eq!((quota.pending(), quota.answers()), (3, 1));
    quota.end_answer(one);
    assert_eq!((quota.pending(), quota.answers()), (2, 0));
    assert!(quota.begin_request(one));
    assert!(!quota.is_idle(one));
    quota.end_request(one);
    quota.end_request(one);
    assert!(quota.is_idle(one));
    assert!(!quota.is_idle(other));
}

#[test]
fn a_busy_peer_leaves_room_for_the_next() {
    let mut quota = Quota::<()>::new(9, 8);
    let mut fill = |peer| {
        let mut count = 0;
        while quota.admits(peer) {
            quota.begin_operation(peer);
            count += 1;
        }
        count
    };
    assert_eq!([0, 1, 2].map(|number| fill(peer(number))), [4, 2, 1]);
}

#[test]
fn peers_take_turns_and_keep_their_order() {
    let mut quota = Quota::new(9, 3);
    let (a, b) = (peer(0), peer(1));
    for name in ["a1", "a2", "a3"] {
        quota.defer(a, name);
    }
    // There is room, but other operations of the peer wait.
    assert!(!quota.admits(a));
    assert!(quota.admits(b));
    quota.defer(b, "b1");
    assert_eq!(quota.waiting(), 4);
    quota.begin_operation(a);
    quota.begin_operation(b);
    assert!(admit(&mut quota).is_empty());
    assert!(quota.end_operation(a));
    // A review is already queued.
    assert!(!quota.end_operation(b));
    let order = [(0, "a1"), (1, "b1"), (0, "a2"), (0, "a3")];
    assert_eq!(admit(&mut quota), order);
    assert_eq!(quota.waiting(), 0);
    assert!(!quota.end_operation(a));
}

#[test]
fn a_leaving_peers_work_returns_without_reordering() {
    let mut quota = Quota::new(9, 1);
    quota.defer(peer(0), "gone");
    quota.defer(peer(1), "stays");
    assert_eq!(quota.withdraw(peer(0)), ["gone"]);
    assert!(quota.withdraw(peer(0)).is_empty());
    assert!(quota.is_idle(peer(0)));
    assert_eq!(quota.waiting(), 1);
    assert_eq!(admit(&mut quota), [(1, "stays")]);
    assert!(!quota.end_operation(peer(1)));
    assert!(quota.is_idle(peer(1)));
}
