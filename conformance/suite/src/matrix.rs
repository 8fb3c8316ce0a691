//! The page about the coverage of a corpus: packet types by release and by role.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use efa_capture::frame;
use efa_core::nic::Status;
use efa_core::rules;
use efa_core::wire::{ExtraFeatures, Family, PacketType};
use efa_play::libfabric::Version;
use efa_play::scenario::{EndpointSpec, Scenario, Software};
use efa_play::trace::Trace;
use efa_replay::replay::frames::sent_requests;
use efa_replay::replay::operations::{Operations, number};

const INTRODUCTION: &str = "\
# Traces

Recordings of stock libfabric over emulated devices, not edited: `NAME.pcapng` is the capture of both
ends of all hosts, `NAME.toml` beside it the [scenario](../docs/scenarios.md) that was played.
`efa-conformance record` made them; those in `releases/` come from `scripts/corpus`. What stock
libfabric cannot be made to send is written by hand, packet by packet: `written/NAME.toml`
(`written/atomics-*` by `scripts/atomics`).
[docs/conformance.md](../docs/conformance.md) says what is done with them.

This page is generated: `efa-conformance list traces --matrix > traces/README.md`.
";

/// The reason why a type is in no trace of any release.
fn why_nowhere(packet_type: PacketType) -> Option<&'static str> {
    use PacketType as T;
    match packet_type {
        T::Rts | T::Connack => Some("left over from protocol v3; no release sends it"),
        T::RmaContext => Some("never leaves memory"),
        T::PeerError => Some("no release up to 2.6.0 knows it"),
        T::ReadRtr | T::RuntctsMsgRtm | T::RuntctsTagRtm | T::RuntctsRtw | T::RuntreadRtw => {
            Some("defined, but no release sends it")
        }
        _ => None,
    }
}

/// The reason why a release does not send a type that others send.
fn why_not(packet_type: PacketType, release: Version) -> Option<&'static str> {
    use PacketType as T;
    let old = Version {
        major: 1,
        minor: 12,
    };
    let is_late = packet_type.is_delivery_complete()
        || matches!(
            packet_type,
            T::Receipt | T::RuntreadMsgRtm | T::RuntreadTagRtm
        );
    (is_late && release < old).then_some("not known to this release")
}

/// Cases that a corpus should contain, independent of the packets that they need.
struct WantedCases {
    name: &'static str,
    is_in: fn(&Trace) -> bool,
    /// The missing part, and the reason.
    why: &'static str,
}

/// The number of messages that stock receivers store while an earlier one is missing.
const STOCK_WINDOW: u64 = 16384;

const KINDS: [WantedCases; 12] = [
    WantedCases {
        name: "operations of one endpoint with different ids",
        is_in: has_different_ids,
        why: "",
    },
    WantedCases {
        name: "memory of 2 to 4 pieces",
        is_in: |trace| {
            let counts = ["rma_iov_count", "read_iov_count"];
            has_packet(trace, |packet| {
                counts
                    .iter()
                    .any(|count| number(packet, count).unwrap_or(0) > 1)
            })
        },
        why: "by hand only: the buffers of a scenario's applications have one piece",
    },
    WantedCases {
        name: "completion data",
        is_in: |trace| has_packet(trace, |packet| number(packet, "cq_data").is_some()),
        why: "",
    },
    WantedCases {
        name: "a HANDSHAKE that its receiver is not ready for",
        is_in: |trace| {
            refusals(trace).any(|(place, status)| {
                let packet_type = trace.capture.frames[place].packet_type();
                status == Status::RemoteRnr && packet_type == Some(PacketType::Handshake)
            })
        },
        why: "",
    },
    WantedCases {
        name: "a request that a device refuses for good, or to a peer that is gone",
        is_in: |trace| refusals(trace).any(|(_, status)| status != Status::RemoteRnr),
        why: "what follows in the same direction is left out: messages behind a lost one are not delivered",
    },
    WantedCases {
        name: "a read that is refused (READ_NACK)",
        is_in: |trace| {
            has_packet(trace, |packet| {
                PacketType::peek(packet) == Some(PacketType::ReadNack)
            })
        },
        why: "by hand only: in recordings the memory can be registered",
    },
    WantedCases {
        name: "immediate data with a posted receive",
        is_in: |trace| immediate(trace) && !announces(trace, ExtraFeatures::UNSOLICITED_WRITE_RECV),
        why: "",
    },
    WantedCases {
        name: "immediate data without a receive",
        is_in: |trace| immediate(trace) && announces(trace, ExtraFeatures::UNSOLICITED_WRITE_RECV),
        why: "",
    },
    WantedCases {
        name: "packets of an earlier owner of the queue pair number",
        is_in: |trace| trace.scenario.breaks.contains(&rules::CONNID_TRUE.id),
        why: "by hand only: the endpoints of a scenario live as long as it is played; with whole processes: \
              `dead-process.toml` (docs/faults.md)",
    },
    WantedCases {
        name: "messages without header, to a user receive queue pair",
        is_in: |trace| trace.capture.frames.iter().any(|frame| frame.headerless),
        why: "no release before 2.1 receives them, and 2.5 is the last of these that does",
    },
    WantedCases {
        name: "a message beyond the receive window",
        is_in: |trace| {
            has_packet(trace, |packet| {
                let is_message =
                    PacketType::peek(packet).is_some_and(|it| it.family() == Family::Rtm);
                is_message && number(packet, "msg_id").unwrap_or(0) > STOCK_WINDOW
            })
        },
        why: "by hand only: 16,384 messages would have to be withheld; with whole processes: \
              `window-overflow.toml` (docs/faults.md)",
    },
    WantedCases {
        name: "msg_id wraps",
        is_in: |_| false,
        why: "ids begin at 0 and have 32 bits: no trace gets there",
    },
];

fn has_packet(trace: &Trace, is_it: impl Fn(&[u8]) -> bool) -> bool {
    let frames = &trace.capture.frames;
    sent_requests(trace).any(|place| frames[place].rdm().is_some_and(&is_it))
}

/// Whether an endpoint's packets of one type have different operation ids. In all packets of a
/// type, an id is either the sender's or the receiver's.
fn has_different_ids(trace: &Trace) -> bool {
    let mut first = BTreeMap::new();
    sent_requests(trace).any(|place| {
        let frame = &trace.capture.frames[place];
        ["send_id", "recv_id"].into_iter().any(|field| {
            let value = frame.rdm().and_then(|packet| number(packet, field));
            let key = (frame.interface, frame.packet_type(), field);
            value.is_some_and(|value| *first.entry(key).or_insert(value) != value)
        })
    })
}

fn refusals(trace: &Trace) -> impl Iterator<Item = (usize, Status)> + '_ {
    trace
        .refused
        .iter()
        .map(|(place, status)| (*place, *status))
}

fn immediate(trace: &Trace) -> bool {
    let mut frames = trace.capture.frames.iter();
    frames.any(|frame| frame.header.immediate.is_some() && !frame.headerless)
}

fn announces(trace: &Trace, feature: ExtraFeatures) -> bool {
    has_packet(trace, |packet| {
        let word = number(packet, "extra_info").unwrap_or(0);
        PacketType::peek(packet) == Some(PacketType::Handshake)
            && ExtraFeatures::from_bits_retain(word).contains(feature)
    })
}

/// The numbers of traces of each type, recorded and written by hand.
fn kinds(page: &mut String, traces: &[Trace], unexplained: &mut Vec<String>) {
    page.push_str(
        "\n## Kinds of cases\n\nRecorded: of which release, and in how many traces it has a part.\n\n\
         | kind | recorded | by hand | what is missing, and why |\n|---|---|---|---|\n",
    );
    for kind in &KINDS {
        let with = traces.iter().filter(|trace| (kind.is_in)(trace));
        let (by_hand, recorded): (Vec<_>, Vec<_>) = with.partition(|t| t.scenario.is_written());
        if recorded.is_empty() && by_hand.is_empty() && kind.why.is_empty() {
            unexplained.push(kind.name.to_owned());
        }
        let WantedCases { name, why, .. } = kind;
        // Writing to a String cannot fail.
        let by_hand = by_hand.len();
        let _ = writeln!(
            page,
            "| {name} | {} | {by_hand} | {why} |",
            by_release(&recorded)
        );
    }
    let mut pairs = BTreeSet::new();
    for trace in traces {
        for place in sent_requests(trace) {
            let Some(packet) = trace.capture.frames[place].rdm() else {
                continue;
            };
            if let Some(pair) = number(packet, "atomic_op").zip(number(packet, "atomic_datatype")) {
                pairs.insert(pair);
            }
        }
    }
    let of = |pairs: &BTreeSet<(u64, u64)>, second: bool| {
        let values = pairs
            .iter()
            .map(|pair| if second { pair.1 } else { pair.0 });
        values.collect::<BTreeSet<_>>().len()
    };
    let _ = writeln!(
        page,
        "\nAtomics: {} pairs of an operation and a datatype, of {} operations and {} datatypes; most in \
         `written/atomics-*`, which `scripts/atomics` writes with results that it works out. No stock release \
         carries out all operations on 128-bit integers (row 42 of [docs/deviations.md](../docs/deviations.md)). \
         Complex numbers of doubles and long doubles are by hand only: each release says that it does not support \
         them, and ends as their target (row 36). Missing are floats of 8 and 16 bits: they lie beyond the tables \
         of each release, and neither its requesters nor its targets take them.",
        pairs.len(),
        of(&pairs, false),
        of(&pairs, true)
    );
}

/// The number of these recordings in which each release participates.
fn by_release(recorded: &[&Trace]) -> String {
    let mut counts: BTreeMap<Version, usize> = BTreeMap::new();
    for trace in recorded {
        let releases = trace.scenario.endpoints.iter();
        let releases: BTreeSet<Version> = releases.filter_map(|it| it.version).collect();
        for release in releases {
            *counts.entry(release).or_default() += 1;
        }
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(release, count)| format!("{release}: {count}"))
        .collect();
    match counts.is_empty() {
        true => "none".into(),
        false => counts.join(", "),
    }
}

/// Counts of traces.
#[derive(Default)]
struct Counts {
    /// By packet type, then by release and whether it sends or receives.
    cells: BTreeMap<String, BTreeMap<(Version, bool), BTreeSet<String>>>,
    releases: BTreeSet<Version>,
    /// Recordings by the type of a packet whose receiver is not ready.
    not_ready: BTreeMap<&'static str, BTreeSet<String>>,
    /// Traces that are written by hand, by the packets that scripted endpoints send or receive.
    written: BTreeMap<(String, bool), BTreeSet<String>>,
}

impl Counts {
    /// Counts a trace.
    fn count(&mut self, trace: &Trace) {
        let scenario = &trace.scenario;
        let endpoint = |at: usize| &scenario.endpoints[at];
        let operations = Operations::of(trace);
        for place in sent_requests(trace) {
            let frame = &trace.capture.frames[place];
            let sender = trace.endpoint_of[frame.interface];
            let Some(packet_type) = frame.packet_type() else {
                continue;
            };
            self.add(packet_type.name(), endpoint(sender), true, scenario);
            if let Some(receiver) = operations.receiver(place) {
                self.add(packet_type.name(), endpoint(receiver), false, scenario);
            }
        }
        for (place, _) in refusals(trace).filter(|(_, status)| *status == Status::RemoteRnr) {
            if let Some(packet_type) = trace.capture.frames[place].packet_type() {
                let traces = self.not_ready.entry(packet_type.name()).or_default();
                traces.insert(scenario.name.clone());
            }
        }
        for frame in &trace.capture.frames {
            let at = trace.endpoint_of[frame.interface];
            let what = match frame.header.kind {
                frame::FrameKind::RdmaReadRequest(_) => "RDMA read",
                frame::FrameKind::RdmaWrite(_) if frame.header.immediate.is_some() => {
                    "RDMA write with immediate"
                }
                frame::FrameKind::RdmaWrite(_) => "RDMA write",
                _ => continue,
            };
            let sends = frame.direction == Some(efa_capture::Direction::Outbound);
            self.add(what, endpoint(at), sends, scenario);
        }
    }

    /// Adds a packet that the endpoint `by` sends or receives.
    fn add(&mut self, what: &str, by: &EndpointSpec, sends: bool, trace: &Scenario) {
        let name = trace.name.clone();
        if trace.is_written() {
            if by.software == Software::Script {
                let traces = self.written.entry((what.to_owned(), sends)).or_default();
                traces.insert(name);
            }
            return;
        }
        let Some(release) = by.version else { return };
        self.releases.insert(release);
        let cells = self.cells.entry(what.to_owned()).or_default();
        let traces = cells.entry((release, sends)).or_default();
        traces.insert(name);
    }

    fn written(&self, what: &str, sends: bool) -> usize {
        let traces = self.written.get(&(what.to_owned(), sends));
        traces.map_or(0, BTreeSet::len)
    }

    fn cell(&self, what: &str, release: Version, sends: bool) -> usize {
        let cells = self.cells.get(what);
        cells
            .and_then(|cells| cells.get(&(release, sends)))
            .map_or(0, BTreeSet::len)
    }
}

/// The page about `traces`, and the traces that are missing without a reason.
pub fn render(traces: &[Trace]) -> (String, Vec<String>) {
    let mut counts = Counts::default();
    let mut with_distinct_ids = 0;
    let mut profiles: BTreeMap<String, usize> = BTreeMap::new();
    for trace in traces {
        let scenario = &trace.scenario;
        counts.count(trace);
        if scenario.is_written() {
            continue;
        }
        with_distinct_ids += usize::from(has_different_ids(trace));
        let profiles_of = scenario.endpoints.iter().map(|it| it.profile.as_deref());
        let generations: BTreeSet<_> = profiles_of.map(|it| it.unwrap_or("efa2")).collect();
        let generations = Vec::from_iter(generations).join(" and ");
        *profiles.entry(generations).or_default() += 1;
    }
    let written = traces.iter().filter(|trace| trace.scenario.is_written());
    let by_hand = written.count();
    let mut page = String::from(INTRODUCTION);
    let mut unexplained = Vec::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        page,
        "\n{} recordings; in {with_distinct_ids} of them operations of one endpoint have different \
         ids. {by_hand} traces are written by hand.\n",
        traces.len() - by_hand
    );
    let generations: Vec<String> = profiles
        .iter()
        .map(|(names, count)| format!("{names}: {count}"))
        .collect();
    let _ = writeln!(page, "By device generation: {}.\n", generations.join(", "));
    packet_types(&mut page, &counts, &mut unexplained);
    kinds(&mut page, traces, &mut unexplained);
    page.push_str("\n## The traces\n\n| trace | what it shows |\n|---|---|\n");
    for trace in traces {
        let description = trace.scenario.description.replace('\n', " ");
        let _ = writeln!(page, "| {} | {} |", trace.scenario.name, description.trim());
    }
    (page, unexplained)
}

/// The table of packet types, and those that no trace has.
fn packet_types(page: &mut String, counts: &Counts, unexplained: &mut Vec<String>) {
    page.push_str(
        "## Packet types by release\n\nThe number of traces in which the release sends the type / in \
         which it receives it. Written by hand: in how many a scripted endpoint sends it / it is sent \
         to one. Not ready: in how many recordings a receiver is not ready for it, and gets it later.\n\n\
         | type |",
    );
    for release in &counts.releases {
        let _ = write!(page, " {release} |");
    }
    page.push_str(" by hand | not ready |\n|---|");
    page.push_str(&"---|".repeat(counts.releases.len() + 2));
    page.push('\n');
    let names = PacketType::ALL.iter().map(|t| (t.name(), Some(*t)));
    let others = ["RDMA read", "RDMA write", "RDMA write with immediate"];
    let mut missing = Vec::new();
    for (name, packet_type) in names.chain(others.map(|name| (name, None))) {
        let by_hand = (counts.written(name, true), counts.written(name, false));
        if !counts.cells.contains_key(name) && by_hand == (0, 0) {
            let why = packet_type.and_then(why_nowhere);
            if why.is_none() {
                unexplained.push(name.to_owned());
            }
            missing.push((name, why.unwrap_or("not recorded yet")));
            continue;
        }
        let _ = write!(page, "| {name} |");
        for &release in &counts.releases {
            let sends = counts.cell(name, release, true);
            let receives = counts.cell(name, release, false);
            let why = packet_type.and_then(|packet_type| why_not(packet_type, release));
            match (sends, receives, why) {
                (0, 0, Some(_)) => page.push_str(" not known |"),
                _ => {
                    let _ = write!(page, " {sends} / {receives} |");
                }
            }
        }
        let not_ready = counts.not_ready.get(name).map_or(0, BTreeSet::len);
        let _ = writeln!(page, " {} / {} | {not_ready} |", by_hand.0, by_hand.1);
    }
    page.push_str("\n## What no trace has\n\n| type | why |\n|---|---|\n");
    for (name, why) in missing {
        let _ = writeln!(page, "| {name} | {why} |");
    }
}
