//! The effect of the network options of `efa-emu run` on unmodified programs.

use crate::rig::{Rig, Side, Software};
use crate::with_each;

/// The order in which 40 sends of `a` complete that are sent together, however long a busy machine
/// takes to post them.
fn completions(a: Side, b: Side) -> Vec<u64> {
    let mut rig = Rig::new([a, b]);
    rig.fault(r#"label = "all", when = { packet = "EAGER_TAGRTM", sender = "a" }, then = "hold""#);
    let arrive: Vec<_> = (0..40).map(|tag| rig.trecv(1, tag, 64)).collect();
    let sent: Vec<_> = (0..40).map(|tag| rig.tsend(0, 1, tag, 64)).collect();
    rig.await_applied("all", 40);
    rig.release("all");
    rig.wait_ok(&arrive);
    rig.wait_ok(&sent);
    let order = rig.order().iter().filter(|token| sent.contains(token));
    let order = order.copied().collect();
    rig.end();
    order
}

/// The most of 780 pairs. Undisturbed sends complete in order, but no device guarantees that: on a
/// busy machine one completed after the four that followed it. With the options below there are 170
/// and more.
const FEW: usize = 40;
const MANY: usize = 100;

/// The number of pairs of sends that complete in another order than they were posted in.
fn inversions(order: &[u64]) -> usize {
    let later = |at: usize| order[at..].iter().filter(move |&&token| token < order[at]);
    (0..order.len()).map(|at| later(at).count()).sum()
}

#[test]
fn answers_take_the_network_too() {
    with_each(|software| {
        let side = |name| Side::new(name, software);
        let order = completions(side("a"), side("b"));
        assert!(inversions(&order) < FEW, "nothing is disturbed: {order:?}");
        // The packets of `a` arrive in order, the responses of `b` do not.
        for (option, value) in [("--jitter", "200ms"), ("--paths", "16"), ("--loss", "0.3")] {
            let b = side("b").option(option, value);
            let b = b.option("--latency", "250ms").option("--seed", "7");
            // Retransmissions are later than a busy machine's longest pause of the sender.
            let b = b.option("--retransmit-timeout", "500ms");
            let order = completions(side("a"), b);
            assert!(inversions(&order) > MANY, "{option}: {order:?}");
        }
    });
}

#[test]
fn latency_delays_answers() {
    with_each(|software| {
        let far = Side::new("b", software).option("--latency", "1s");
        let mut rig = Rig::new([Side::new("a", software), far, Side::new("c", software)]);
        let arrive = [rig.trecv(1, 1, 64), rig.trecv(2, 1, 64)];
        let sent = [rig.tsend(0, 1, 1, 64), rig.tsend(0, 2, 1, 64)];
        rig.wait_ok(&sent);
        rig.wait_ok(&arrive);
        let place = |token| rig.order().iter().position(|other| *other == token);
        assert!(place(sent[1]) < place(sent[0]), "{:?}", rig.order());
    });
}

#[test]
fn refusals_are_repeated_by_the_device() {
    with_each(|software| {
        let a = Side::new("a", software)
            .option("--rnr", "0.5")
            .option("--seed", "3");
        let mut rig = Rig::new([a, Side::new("b", software)]);
        rig.fault(
            r#"label = "again", when = { packet = "EAGER_TAGRTM", sender = "a", repeated = true }, then = { delay = "0ns" }"#,
        );
        let arrive: Vec<_> = (0..40).map(|tag| rig.trecv(1, tag, 64)).collect();
        for tag in 0..40 {
            rig.tsend(0, 1, tag, 64);
        }
        rig.wait_ok(&arrive);
        let again = rig.armed("again").seen;
        assert!((10..=80).contains(&again), "{again}");
        rig.end();
    });
}

#[test]
fn numbers_are_reused_by_the_chosen_policy() {
    let next = |software: Software, policy: &str| {
        let mut rig = Rig::new([Side::new("a", software).option("--qpn-reuse", policy)]);
        let first = rig.qpn(0);
        rig.close(0);
        rig.open(0);
        let numbers = (first, rig.qpn(0));
        rig.end();
        numbers
    };
    with_each(|software| {
        let (first, second) = next(software, "lowest");
        assert_eq!(first, second);
        let (first, second) = next(software, "oldest");
        assert_ne!(first, second);
    });
}
