//! Whatever a capture of correct traffic has lost, `check` reports no error in the rest.
//!
//! `EFA_LOSSES` sets the number of random losses for each trace of the corpus, `EFA_LOSS_SEED` the
//! first of their seeds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use efa_capture::Direction;
use efa_capture::frame::FrameKind;
use efa_capture::frame::header::FIRST_TAPPED_SEQUENCE;
use efa_check::capture::{Capture, CapturedPacket};
use efa_check::check::check;
use efa_testing::workspace::traces;
use efa_wire::fields::fields_of;
use efa_wire::rules::Severity;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// The number of frames that `editcap -d` compares each frame with.
const EDITCAP_WINDOW: usize = 4;

/// The loss or change of a capture. Several are applied in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Loss {
    /// Nothing is lost, but the clocks of two hosts differ.
    Clocks,
    /// One direction: `tcpdump -Q` at one host, or a display filter for one conversation.
    Direction,
    /// The capture of one host.
    Host,
    /// Some frames, which the capture counts as dropped.
    Frames,
    /// The directions, as in the classic format; sometimes the interfaces too.
    Flags,
    /// The frames before a given time.
    Beginning,
    /// The frames after a given time.
    End,
    /// Some frames, which nothing counts; a queue pair's requests show it, because one between two
    /// others is among them.
    Uncounted,
    /// Times finer than microseconds, milliseconds or seconds.
    Times,
    /// Equal frames that follow each other closely: `editcap -d`.
    Duplicates,
    /// The ends of long packets.
    Bytes,
}

const LOSSES: [Loss; 11] = [
    Loss::Direction,
    Loss::Host,
    Loss::Frames,
    Loss::Flags,
    Loss::Times,
    Loss::Duplicates,
    Loss::Beginning,
    Loss::End,
    Loss::Uncounted,
    Loss::Bytes,
    Loss::Clocks,
];

/// Appends another run of the same programs on the same queue pairs.
fn run_again(capture: &mut Capture, rng: &mut StdRng) {
    let connids = rng.random_range(1..u32::MAX);
    let frames = capture.frames.iter();
    let (number, time) = frames.fold((0, Duration::ZERO), |(number, time), frame| {
        (frame.number.max(number), frame.time.max(time))
    });
    let mut again = capture.frames.clone();
    for frame in &mut again {
        frame.number += number;
        frame.time += time + Duration::from_millis(1);
        frame.header.qkey.0 ^= connids;
        if frame.header.kind != FrameKind::Send {
            continue;
        }
        let fields = fields_of(&frame.payload).into_iter().flatten();
        let places: Vec<_> = fields
            .filter(|field| matches!(field.descriptor.name, "connid" | "raw_addr.connid"))
            .map(|field| field.offset)
            .collect();
        for place in places {
            if let Some(bytes) = frame.payload[place..].first_chunk_mut::<4>() {
                *bytes = (u32::from_le_bytes(*bytes) ^ connids).to_le_bytes();
            }
        }
    }
    // If one run ends too early and the next begins too late, the two may look like one.
    match rng.random_range(0..3) {
        0 => cut(&mut capture.frames, Loss::End, rng),
        1 => cut(&mut again, Loss::Beginning, rng),
        _ => {}
    }
    capture.frames.append(&mut again);
}

fn cut(frames: &mut Vec<CapturedPacket>, end: Loss, rng: &mut StdRng) {
    let at = rng.random_range(0..=frames.len());
    match end {
        Loss::Beginning => drop(frames.drain(..at)),
        _ => frames.truncate(at),
    }
}

/// Drops frames of one recorder, among them one between two others of the same queue pair.
fn drop_uncounted(frames: &mut Vec<CapturedPacket>, rng: &mut StdRng) {
    let is_sent = |frame: &CapturedPacket| {
        let is_answer = matches!(
            frame.header.kind,
            FrameKind::Response(_) | FrameKind::RdmaReadResponse(_) | FrameKind::Datagram
        );
        let is_numbered = frame.header.sequence < FIRST_TAPPED_SEQUENCE;
        frame.direction != Some(Direction::Inbound) && !is_answer && is_numbered
    };
    let sent: Vec<_> = frames.iter().filter(|frame| is_sent(frame)).collect();
    let Some(&example) = sent.choose(rng) else {
        return;
    };
    // Without directions it is not known who recorded a frame.
    let has_direction = example.direction.is_some();
    let interface = example.interface;
    let is_of_recorder = |frame: &CapturedPacket| {
        frame.direction.is_some() == has_direction
            && (frame.interface == interface || !has_direction)
    };
    let ends = (example.source, example.header.source_qpn);
    let is_of_sender =
        |frame: &CapturedPacket| is_sent(frame) && ends == (frame.source, frame.header.source_qpn);
    let numbers = sent
        .iter()
        .filter(|frame| is_of_recorder(frame) && is_of_sender(frame));
    let numbers: BTreeSet<u32> = numbers.map(|frame| frame.header.sequence).collect();
    let numbers: Vec<u32> = numbers.into_iter().collect();
    let Some((before, [number, after])) = numbers
        .array_windows()
        .map(|[before, number, after]| (*before, [*number, *after]))
        .collect::<Vec<_>>()
        .choose(rng)
        .copied()
    else {
        return;
    };
    let share = rng.random_range(0.0..0.5);
    frames.retain(|frame| {
        if !is_of_recorder(frame) {
            return true;
        }
        match is_of_sender(frame) {
            true if frame.header.sequence == number => false,
            true if [before, after].contains(&frame.header.sequence) => true,
            _ => !rng.random_bool(share),
        }
    });
}

/// Compares what tools that remove duplicates compare. They ignore directions.
fn is_same(one: &CapturedPacket, other: &CapturedPacket) -> bool {
    one.source == other.source
        && one.destination == other.destination
        && one.header == other.header
        && one.payload == other.payload
}

/// `keeps_interfaces`: that each clock has an interface of its own is not lost.
fn lose(capture: &mut Capture, loss: Loss, keeps_interfaces: bool, rng: &mut StdRng) {
    let interfaces: BTreeSet<usize> = capture.frames.iter().map(|frame| frame.interface).collect();
    let interfaces: Vec<usize> = interfaces.into_iter().collect();
    let Some(&host) = interfaces.choose(rng) else {
        return;
    };
    let frames = &mut capture.frames;
    match loss {
        Loss::Direction => {
            let directions = [Direction::Inbound, Direction::Outbound];
            let direction = directions.choose(rng).copied();
            let example = &frames[rng.random_range(0..frames.len())];
            let pair = [example.source, example.destination];
            let is_one_conversation = rng.random_bool(0.3);
            let is_every_host = rng.random_bool(0.2);
            frames.retain(|frame| {
                let is_of_pair = pair.contains(&frame.source) && pair.contains(&frame.destination);
                (frame.interface != host && !is_every_host)
                    || frame.direction != direction
                    || is_one_conversation && !is_of_pair
            });
        }
        Loss::Host => frames.retain(|frame| frame.interface != host),
        Loss::Frames => {
            let share = rng.random_range(0.0..0.5);
            let lossy = &mut capture.lossy;
            frames.retain(|frame| {
                let is_lost = rng.random_bool(share);
                if is_lost && !lossy.contains(&frame.interface) {
                    lossy.push(frame.interface);
                }
                !is_lost
            });
        }
        Loss::Flags => {
            let is_every_host = rng.random_bool(0.7);
            // The classic format has one interface.
            let is_one_interface = is_every_host && rng.random_bool(0.5) && !keeps_interfaces;
            for frame in frames {
                if is_every_host || frame.interface == host {
                    frame.direction = None;
                }
                if is_one_interface {
                    frame.interface = 0;
                }
            }
            if is_one_interface && !capture.lossy.is_empty() {
                capture.lossy = vec![0];
            }
        }
        Loss::Times => {
            let unit = *[1000, 1_000_000, 1_000_000_000].choose(rng).unwrap();
            for frame in frames {
                let time = frame.time.as_nanos() as u64;
                frame.time = Duration::from_nanos(time / unit * unit);
            }
        }
        Loss::Duplicates => {
            let window = match rng.random_bool(0.5) {
                true => EDITCAP_WINDOW,
                false => rng.random_range(0..200),
            };
            let mut at = 0;
            while at < frames.len() {
                let before = &frames[at.saturating_sub(window)..at];
                if before.iter().any(|other| is_same(other, &frames[at])) {
                    frames.remove(at);
                } else {
                    at += 1;
                }
            }
        }
        Loss::Beginning | Loss::End => cut(frames, loss, rng),
        Loss::Uncounted => drop_uncounted(frames, rng),
        Loss::Bytes => {
            let most = rng.random_range(0..400);
            for frame in frames {
                let length = frame.payload.len();
                frame.cut_off = frame.cut_off.max(length.saturating_sub(most));
                frame.payload[length.min(most)..].fill(0);
            }
        }
        Loss::Clocks => {
            let ahead = Duration::from_nanos(rng.random_range(0..5_000_000));
            for frame in frames.iter_mut().filter(|frame| frame.interface == host) {
                frame.time += ahead;
            }
            frames.sort_by_key(|frame| (frame.time, frame.number));
        }
    }
}

/// Every capture of the corpus, and the captures of `tests/captures`, for which `check` once
/// reported false errors; the longest first.
pub(crate) fn corpus() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories: Vec<PathBuf> = ["", "releases", "written"]
        .map(|directory| traces().join(directory))
        .into();
    directories.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures"));
    for directory in directories {
        let entries = std::fs::read_dir(directory).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_capture = |path: &PathBuf| {
            let extension = path.extension();
            extension.is_some_and(|it| it == "pcapng" || it == "pcap")
        };
        found.extend(paths.filter(is_capture));
    }
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().len()));
    found
}

/// The number in an environment variable, if it is set.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// A damaged copy of a capture, and which of `losses` it suffered.
pub(crate) fn damaged(capture: &Capture, seed: u64, losses: &[Loss]) -> (Capture, String) {
    // The seed depends on the trace too, so that each one loses something else.
    let name = capture.path.file_stem().unwrap().as_encoded_bytes();
    let of_trace = name.iter().fold(seed, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    let mut rng = StdRng::seed_from_u64(of_trace);
    let mut damaged = capture.clone();
    let mut what = Vec::new();
    if rng.random_bool(0.25) {
        run_again(&mut damaged, &mut rng);
        what.push("run again".to_owned());
    }
    let mut losses: Vec<Loss> = (0..rng.random_range(1..4))
        .map(|_| *losses.choose(&mut rng).unwrap())
        .collect();
    losses.sort_unstable();
    // Two clocks on one interface look like one clock if no packet was captured twice.
    let has_two_clocks = losses.contains(&Loss::Clocks);
    let has_one_direction = losses.contains(&Loss::Direction);
    for loss in losses {
        let keeps_interfaces = has_two_clocks && has_one_direction;
        lose(&mut damaged, loss, keeps_interfaces, &mut rng);
        what.push(format!("{loss:?}"));
    }
    // Frames are numbered as in a file of the frames that remain.
    for (at, frame) in damaged.frames.iter_mut().enumerate() {
        frame.number = at as u64 + 1;
    }
    (damaged, what.join(", "))
}

/// The errors in a damaged copy of a capture that the complete one does not have, and its losses.
fn errors_after_losses(capture: &Capture, seed: u64) -> Option<String> {
    let (damaged, what) = damaged(capture, seed, &LOSSES);
    let errors: Vec<String> = check(&damaged)
        .worse_than(Severity::Warning)
        .map(ToString::to_string)
        .collect();
    let (first, others) = errors.split_first()?;
    Some(format!("{what}: {first} (and {} others)", others.len()))
}

#[test]
fn no_loss_of_information_adds_an_error() {
    let rounds = number("EFA_LOSSES").unwrap_or(50);
    let first = number("EFA_LOSS_SEED").unwrap_or(0);
    let paths = corpus();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let judged = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let capture = Capture::load(path).unwrap();
                    assert_eq!(
                        check(&capture).at_least(Severity::Error),
                        0,
                        "{}",
                        path.display()
                    );
                    let name = path.file_stem().unwrap().display();
                    for seed in first..first + rounds {
                        judged.fetch_add(1, Ordering::Relaxed);
                        if let Some(errors) = errors_after_losses(&capture, seed) {
                            let text = format!("{name}, EFA_LOSS_SEED={seed}: {errors}");
                            wrong.lock().unwrap().push(text);
                        }
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let shown = wrong.iter().take(40).map(String::as_str);
    assert!(
        wrong.is_empty(),
        "{} of {} captures have errors:\n{}",
        wrong.len(),
        judged.into_inner(),
        shown.collect::<Vec<_>>().join("\n")
    );
}
