//! The cost of a matched message with 1, 100 and 10,000 posted receives: with the software half
//! alone, and with the device's tag list.
//!
//! One thread runs two devices, the network between them, and the software half. The baseline is
//! the same message into a plain receive, without tags; the rest is the cost of matching. The
//! device's list holds the oldest receives up to its limit. Messages match the oldest receive or
//! the newest, which is posted again each time.
//!
//! Instructions are counted by callgrind, as the difference between a long and a short run. `cargo
//! bench -p efa-device-model --bench tags -- instructions` counts only them.

use std::process::{Command, ExitCode};
use std::time::Instant;

use efa_core::address::Qpn;
use efa_device_model::device::connected::{
    BufferList, MAX_TAGS, SendOperation, SrqId, TMH, TagHeader, TagOperation, TagRequest,
};
use efa_device_model::provider::{TagMatcher, TagReceive};

use efa_testing::callgrind::Profile;
use efa_testing::device::net::codes::{MATCH, TAGGED};
use efa_testing::device::net::{Net, NetworkEffects, request};

/// Bytes of a message behind its header.
const LENGTH: usize = 64;

/// Messages of a short run, and the additional ones of a long run.
const FEW: u64 = 500;
const MORE: u64 = 2000;

const POSTED: [u64; 3] = [1, 100, 10_000];

/// Which part matches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Matching {
    Nobody,
    Software,
    Offload,
}

const MATCHINGS: [(&str, Matching); 3] = [
    ("plain", Matching::Nobody),
    ("software", Matching::Software),
    ("offload", Matching::Offload),
];

/// The receive that the messages match.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Oldest,
    Newest,
}

const WHICH: [(&str, Target); 2] = [("oldest", Target::Oldest), ("newest", Target::Newest)];

struct Receiver {
    net: Net,
    srq: SrqId,
    matcher: TagMatcher<()>,
    buffers: BufferList,
}

impl Receiver {
    fn new(way: Matching, posted: u64) -> Receiver {
        let calm = NetworkEffects {
            longest: 1,
            ..NetworkEffects::default()
        };
        let tags = (way != Matching::Nobody).then_some(MAX_TAGS);
        let (net, srq) = Net::receiver(1, calm, 1, 16, tags);
        let buffers = net.hosts[0].list(0, 256);
        let prefix = match way {
            Matching::Offload => MAX_TAGS as usize,
            _ => 0,
        };
        let mut receiver = Receiver {
            net,
            srq,
            matcher: TagMatcher::new(prefix),
            buffers,
        };
        for _ in 0..4 {
            receiver.post_plain();
        }
        if way != Matching::Nobody {
            (0..posted).for_each(|tag| receiver.post(tag));
        }
        receiver
    }

    fn post_plain(&mut self) {
        let posted = self.net.hosts[0].receive_shared(self.srq, 0, 0, 256);
        posted.expect("room");
    }

    fn post(&mut self, tag: u64) {
        let receive = TagReceive {
            id: tag,
            buffers: self.buffers.clone(),
            tag,
            mask: u64::MAX,
        };
        let (device, srq) = (&mut self.net.hosts[0].device, self.srq);
        let mut post = |request: &TagRequest| device.post_tag_request(srq, request);
        let found = self.matcher.post(receive, &mut post).expect("room");
        assert!(found.is_none());
    }

    /// Receives a message with this tag.
    fn receive(&mut self, tag: u64) {
        let header = TagHeader {
            operation: TagOperation::Eager,
            data: 0,
            tag,
        };
        let sender = &mut self.net.hosts[1];
        sender.memory[..TMH].copy_from_slice(&header.to_bytes());
        let list = sender.list(0, TMH + LENGTH);
        self.net
            .post(1, Qpn(5), request(0, SendOperation::Send(None), list));
        self.net.settle();
        while self.net.hosts[1].poll().is_some() {}
        let entry = self.net.hosts[0].poll().expect("a message");
        assert_eq!(entry.status(), 0);
        let (device, srq) = (&mut self.net.hosts[0].device, self.srq);
        let mut post = |request: &TagRequest| device.post_tag_request(srq, request);
        let is_tagged = entry.connected_operation() == TAGGED;
        match entry.connected_flags() & MATCH != 0 {
            true => {
                let known = self.matcher.matched(entry.connected_wr_id(), &mut post);
                assert!(known.expect("room").is_some());
            }
            false => {
                if is_tagged {
                    let taken = self.matcher.unexpected(tag, (), &mut post);
                    assert_eq!(
                        taken.expect("room").map(|(receive, ())| receive.id),
                        Some(tag)
                    );
                    self.matcher.settle(&mut post).expect("in step");
                }
                self.post_plain();
            }
        }
    }
}

/// Nanoseconds per message, with `count` messages.
fn messages(way: Matching, which: Target, posted: u64, count: u64) -> f64 {
    let mut receiver = Receiver::new(way, posted);
    let start = Instant::now();
    for round in 0..count {
        let tag = match which {
            Target::Oldest => round,
            Target::Newest => posted - 1,
        };
        receiver.receive(tag);
        if way != Matching::Nobody {
            let again = match which {
                Target::Oldest => round + posted,
                Target::Newest => tag,
            };
            receiver.post(again);
        }
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    let found = table.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

/// Instructions per message.
fn instructions(way: &str, which: &str, posted: u64) -> Result<f64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let counted = |count: u64| {
        let numbers = [posted, count].map(|number| number.to_string());
        let profile = Profile::record(|words| {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg(&own);
            command.args(["messages", way, which]).args(&numbers);
            Ok::<_, String>(command)
        });
        profile.map(|profile| profile.total())
    };
    let few = counted(FEW)?;
    let difference = counted(FEW + MORE)?.saturating_sub(few);
    Ok(difference as f64 / MORE as f64)
}

/// The minimum of some runs: other load on the machine only makes them longer.
fn nanoseconds(way: Matching, which: Target, posted: u64) -> f64 {
    const RUNS: usize = 9;
    let runs = [0.0; RUNS].map(|_: f64| messages(way, which, posted, FEW + MORE));
    runs.into_iter().fold(f64::INFINITY, f64::min)
}

fn report(with_time: bool) -> Result<(), String> {
    println!("a message of {LENGTH} bytes with a tag, both sides, and its receive posted again");
    println!(
        "{:<9} {:>7} {:<7} {:>13} {:>9} {:>9}",
        "matched", "posted", "taken", "instructions", "of plain", "ns"
    );
    let plain = instructions("plain", "oldest", 1)?;
    for (name, way) in MATCHINGS {
        for posted in POSTED {
            for (taken, which) in WHICH {
                if way == Matching::Nobody && (posted > 1 || which == Target::Newest)
                    || posted == 1 && which == Target::Newest
                {
                    continue;
                }
                let count = instructions(name, taken, posted)?;
                let time = match with_time {
                    true => format!("{:.0}", nanoseconds(way, which, posted)),
                    false => "-".to_owned(),
                };
                let ratio = count / plain;
                println!("{name:<9} {posted:>7} {taken:<7} {count:>13.0} {ratio:>8.2}x {time:>9}");
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["messages", way, which, posted, count] = words[..]
        && let (Some(way), Some(which)) = (find(&MATCHINGS, way), find(&WHICH, which))
        && let (Ok(posted), Ok(count)) = (posted.parse(), count.parse())
    {
        println!("{}", messages(way, which, posted, count));
        return ExitCode::SUCCESS;
    }
    // `cargo test --benches` only checks that it starts.
    if words.contains(&"--test") {
        return ExitCode::SUCCESS;
    }
    match report(!words.contains(&"instructions")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("tags: {message}");
            ExitCode::from(2)
        }
    }
}
