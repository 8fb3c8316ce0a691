//! Random programs on random fabrics, checked against libfabric's guarantees: each message arrives
//! once, with the right data, in the right order, or with the right error; nothing hangs, and
//! nothing is left over.
//!
//! In some runs all endpoints are ours. In the others some behave like libfabric 1.11, 1.17, 2.1,
//! 2.6 or 2.7 ([`release`]), including zero-copy receivers. There are messages that one side aborts
//! and the other side must be told of, windows so small that peers exceed them, memory that is
//! deregistered while peers use it, and room for so few operations of peers that most of them wait.
//!
//! A seed makes a [`plan`]: hosts, devices, settings, a network, and a list of steps. [`run`]
//! executes it in the simulator and checks all reports of the endpoints against a [`model`]. After
//! a failure, [`minimise`] removes the steps that the failure does not need.
//!
//! `EFA_SEEDS=n` runs the seeds 0 to n - 1; `EFA_SEED=n` runs one, `EFA_STEPS=1,5,7` only these of
//! its steps. Then the log of the fabric is printed as well.

mod combine;
mod minimise;
mod model;
mod plan;
mod release;
mod run;
mod user_queue_pair;
mod withdrawal;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::env;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use efa_capture::Direction;
use efa_core::wire::PacketType;
use efa_device_model::link::Operation;
use efa_sim::Fabric;
use plan::Plan;
use release::Release;
use run::RareEvents;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is `{text}`, not a number")))
}

/// Runs the seeds `0..count` on all processors, and returns the first failure.
fn first_failure(count: u64) -> Option<String> {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let search = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return None;
            }
            let plan = Plan::new(seed);
            let all: Vec<usize> = (0..plan.steps.len()).collect();
            if let Err(error) = minimise::attempt(&plan, &all, |_| {}) {
                stop.store(true, Ordering::Relaxed);
                return Some(minimise::report(&plan, error));
            }
        }
        None
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let searches: Vec<_> = (0..threads).map(|_| scope.spawn(search)).collect();
        let results = searches.into_iter().map(|search| search.join().unwrap());
        results.flatten().next()
    })
}

#[test]
fn random_programs_get_what_libfabric_promises() {
    minimise::quiet_panics();
    if let Some(seed) = number("EFA_SEED") {
        let mut plan = Plan::new(seed);
        plan.fabric.log = true;
        let steps = match env::var("EFA_STEPS") {
            Ok(list) => list
                .split(',')
                .map(|index| index.parse().expect("EFA_STEPS is a list of numbers"))
                .collect(),
            Err(_) => (0..plan.steps.len()).collect::<Vec<_>>(),
        };
        println!("{}", minimise::listing(&plan, &steps));
        let mut fabric = None;
        let result = minimise::attempt(&plan, &steps, |made| fabric = Some(made.clone()));
        if let Some(fabric) = fabric {
            println!("{}", fabric.log().text());
        }
        result.unwrap_or_else(|error| panic!("{error}"));
        return;
    }
    // A number that takes a few seconds in an unoptimised build; `make sim` runs 10,000.
    let count = number("EFA_SEEDS").unwrap_or(100);
    if let Some(report) = first_failure(count) {
        panic!("{report}");
    }
    println!("{count} seeds");
}

/// Runs some seeds with every step.
fn run_seeds(count: u64, mut prepare: impl FnMut(&Plan, &Fabric)) -> RareEvents {
    let mut met = RareEvents::default();
    for seed in 0..count {
        let plan = Plan::new(seed);
        let all: Vec<usize> = (0..plan.steps.len()).collect();
        let troubles = run::run(&plan, &all, |fabric| prepare(&plan, fabric));
        met += troubles.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    met
}

#[test]
fn a_seed_gives_the_same_run() {
    for seed in 0..10 {
        let mut plan = Plan::new(seed);
        plan.fabric.log = true;
        let all: Vec<usize> = (0..plan.steps.len()).collect();
        let [first, second] = [(), ()].map(|()| {
            let mut made = None;
            run::run(&plan, &all, |fabric| made = Some(fabric.clone())).unwrap();
            made.unwrap().log().text().to_owned()
        });
        assert!(first == second, "seed {seed}");
        assert!(first.lines().count() > 100, "seed {seed} has few events");
    }
}

#[test]
fn the_programs_use_every_packet_of_the_protocol() {
    let seen = Rc::new(RefCell::new(BTreeSet::new()));
    let (reads, writes) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    run_seeds(150, |plan, fabric| {
        // The first byte of a message without a header is not a type.
        let has_headers = !plan.has(Release::V2_1ZeroCopy);
        let types = Rc::clone(&seen);
        let (reads, writes) = (Rc::clone(&reads), Rc::clone(&writes));
        fabric.add_tap(move |frame| match frame.frame.header.operation {
            Operation::RdmaRead => reads.set(reads.get() + 1),
            Operation::RdmaWrite => writes.set(writes.get() + 1),
            _ if has_headers => types.borrow_mut().extend(frame.frame.rdm_packet_type()),
            _ => {}
        });
    });
    assert!(reads.get() > 0 && writes.get() > 0, "{reads:?} {writes:?}");
    let expected: BTreeSet<u8> = (3..=5)
        .chain(7..=12)
        .chain(64..=76)
        .chain(128..=130)
        .chain(133..=141)
        .chain(145..=146)
        .collect();
    let seen = seen.borrow();
    let missing: Vec<&u8> = expected.difference(&seen).collect();
    assert!(
        missing.is_empty(),
        "packet types that no program sent: {missing:?}"
    );
}

#[test]
fn the_programs_meet_every_trouble() {
    let most_losses = Rc::new(Cell::new(0));
    let errors_twice = Rc::new(Cell::new(0));
    let met = run_seeds(150, |plan, fabric| {
        let most = Rc::clone(&most_losses);
        fabric.add_tap(move |frame| most.set(most.get().max(frame.frame.lost)));
        if plan.aborts {
            let twice = Rc::clone(&errors_twice);
            let mut last = None;
            // The second copy arrives directly after the first.
            fabric.add_tap(move |frame| {
                let code = PacketType::PeerError.code();
                let is_error = frame.frame.rdm_packet_type() == Some(code);
                let is_arrival = is_error && frame.direction == Direction::Inbound;
                let this = is_arrival.then(|| (frame.time, frame.frame.data.to_vec()));
                twice.set(twice.get() + u32::from(is_arrival && this == last));
                last = this;
            });
        }
    });
    assert!(errors_twice.get() > 0);
    // With one more, its request fails.
    assert_eq!(most_losses.get(), 11);
    let RareEvents {
        overruns,
        orphans,
        lost,
        aborts: [by_sender, by_receiver],
        headerless,
        waits,
        refusals,
        copies,
    } = met;
    let counts = [
        overruns,
        orphans,
        lost,
        by_sender,
        by_receiver,
        headerless,
        waits,
        refusals,
        copies,
    ];
    assert!(counts.iter().all(|count| *count > 0), "{met:?}");
}
