//! Nanoseconds of a message through the device and its user-space half, over a link without cost.
//! The baseline is a message through a crossbeam channel in the same thread: the least possible
//! cost of passing on 64 bytes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use efa_testing::device::BareLink;

/// One line of the result.
struct Row {
    name: &'static str,
    /// One operation.
    work: Box<dyn FnMut()>,
}

fn row(name: &'static str, work: fn(&mut BareLink, u64)) -> Row {
    let mut link = BareLink::default();
    let mut wr_id = 0;
    Row {
        name,
        work: Box::new(move || {
            wr_id += 1;
            work(&mut link, black_box(wr_id));
        }),
    }
}

/// The median of many rounds, each short enough to fit between two interruptions.
fn nanoseconds(work: &mut dyn FnMut()) -> f64 {
    const ROUNDS: usize = 501;
    const REPEATS: u32 = 500;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..REPEATS {
                work();
            }
            start.elapsed().as_nanos() as f64 / f64::from(REPEATS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    let (sender, receiver) = crossbeam_channel::bounded::<[u8; 64]>(64);
    let peer = Row {
        name: "crossbeam channel, 64 bytes (peer)",
        work: Box::new(move || {
            sender.try_send(black_box([7; 64])).expect("room");
            black_box(receiver.try_recv().expect("a message"));
        }),
    };
    // A message is two posts, four steps of two devices and two polls.
    let mut rows = [
        peer,
        row("send and receive, 64 bytes", BareLink::message),
        row("RDMA write, 64 bytes", BareLink::write),
        row("idle turn", |link, _| link.idle()),
    ];
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for row in &mut rows {
        criterion.bench_function(&format!("device/{}", row.name), |bencher| {
            bencher.iter(&mut row.work);
        });
    }
    criterion.final_summary();

    // `cargo test --benches` only checks that it runs.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    println!("{:36} {:>9} {:>8}", "device", "ns", "of peer");
    let mut peer = None;
    for row in &mut rows {
        let time = nanoseconds(&mut row.work);
        let ratio = time / *peer.get_or_insert(time);
        println!("{:36} {time:>9.2} {ratio:>7.2}x", row.name);
    }
}
