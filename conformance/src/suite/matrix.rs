//! The page about the coverage of a corpus: packet types by release and by role.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use efa_core::wire::PacketType;
use efa_emu::frame::Kind;

use crate::libfabric::Version;
use crate::replay::operations::{Operations, number};
use crate::replay::script::sent_requests;
use crate::scenario::{EndpointSpec, Scenario, Software};
use crate::trace::Trace;

const INTRODUCTION: &str = "\
# Traces

Recordings of stock libfabric over emulated devices, not edited: `NAME.pcapng` is the capture of both
ends of all hosts, `NAME.toml` beside it the [scenario](../docs/scenarios.md) that was played.
`efa-conformance record` made them; those in `releases/` come from `scripts/corpus`. What stock
libfabric cannot be made to send is written by hand, packet by packet: `written/NAME.toml`.
[docs/conformance.md](../docs/conformance.md) says what is done with them.

This page is generated: `efa-conformance list traces --matrix > traces/README.md`.
";

/// The reason why a type is in no trace of any release.
fn why_nowhere(packet_type: PacketType) -> Option<&'static str> {
    use PacketType as T;
    match packet_type {
        T::Rts | T::Connack => Some("left over from protocol v3; no release sends it"),
        T::RmaContext => Some("never leaves memory"),
        T::PeerError => Some("no release up to 2.5.1 knows it"),
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

/// Counts of traces.
#[derive(Default)]
struct Counts {
    /// By what is sent, then by release and whether it sends or receives.
    cells: BTreeMap<String, BTreeMap<(Version, bool), BTreeSet<String>>>,
    releases: BTreeSet<Version>,
    /// Traces that are written by hand, by what scripted endpoints send, or what is sent to them.
    written: BTreeMap<(String, bool), BTreeSet<String>>,
}

impl Counts {
    /// `by` is the endpoint that sends or receives.
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

/// The page about `traces`. The second value names what is missing without a reason.
pub fn render(traces: &[Trace]) -> (String, Vec<String>) {
    let mut counts = Counts::default();
    let mut with_distinct_ids = 0;
    let mut profiles: BTreeMap<String, usize> = BTreeMap::new();
    for trace in traces {
        let scenario = &trace.scenario;
        let endpoint = |at: usize| &scenario.endpoints[at];
        let operations = Operations::of(trace);
        let mut ids = BTreeSet::new();
        for place in sent_requests(trace) {
            let frame = &trace.capture.frames[place];
            let sender = trace.endpoint_of[frame.interface];
            let Some(packet_type) = frame.packet_type() else {
                continue;
            };
            for field in ["send_id", "recv_id"] {
                ids.extend(number(&frame.payload, field));
            }
            counts.add(packet_type.name(), endpoint(sender), true, scenario);
            if let Some(receiver) = operations.receiver(place) {
                counts.add(packet_type.name(), endpoint(receiver), false, scenario);
            }
        }
        for frame in &trace.capture.frames {
            let at = trace.endpoint_of[frame.interface];
            let what = match frame.header.kind {
                Kind::RdmaReadRequest(_) => "RDMA read",
                Kind::RdmaWrite(_) if frame.header.immediate.is_some() => {
                    "RDMA write with immediate"
                }
                Kind::RdmaWrite(_) => "RDMA write",
                _ => continue,
            };
            let sends = frame.direction == Some(efa_emu::capture::Direction::Outbound);
            counts.add(what, endpoint(at), sends, scenario);
        }
        if scenario.is_written() {
            continue;
        }
        with_distinct_ids += usize::from(ids.iter().any(|id| *id > 0));
        let mut generations: Vec<&str> = trace
            .scenario
            .endpoints
            .iter()
            .map(|endpoint| endpoint.profile.as_deref().unwrap_or("efa2"))
            .collect();
        generations.sort_unstable();
        generations.dedup();
        *profiles.entry(generations.join(" and ")).or_default() += 1;
    }
    let by_hand = traces
        .iter()
        .filter(|trace| trace.scenario.is_written())
        .count();
    let mut page = String::from(INTRODUCTION);
    let mut unexplained = Vec::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        page,
        "\n{} recordings; in {with_distinct_ids} of them operations have different ids at the same \
         time. {by_hand} traces are written by hand.\n",
        traces.len() - by_hand
    );
    let generations: Vec<String> = profiles
        .iter()
        .map(|(names, count)| format!("{names}: {count}"))
        .collect();
    let _ = writeln!(page, "By device generation: {}.\n", generations.join(", "));
    page.push_str(
        "## Packet types by release\n\nThe number of traces in which the release sends the type / in \
         which it receives it. Written by hand: in how many a scripted endpoint sends it / it is sent \
         to one.\n\n| type |",
    );
    for release in &counts.releases {
        let _ = write!(page, " {release} |");
    }
    page.push_str(" by hand |\n|---|");
    page.push_str(&"---|".repeat(counts.releases.len() + 1));
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
            let (sends, receives) = (
                counts.cell(name, release, true),
                counts.cell(name, release, false),
            );
            let why = packet_type.and_then(|packet_type| why_not(packet_type, release));
            match (sends, receives, why) {
                (0, 0, Some(_)) => page.push_str(" not known |"),
                _ => {
                    let _ = write!(page, " {sends} / {receives} |");
                }
            }
        }
        let _ = writeln!(page, " {} / {} |", by_hand.0, by_hand.1);
    }
    page.push_str("\n## What no trace has\n\n| type | why |\n|---|---|\n");
    for (name, why) in missing {
        let _ = writeln!(page, "| {name} | {why} |");
    }
    page.push_str("\n## The traces\n\n| trace | what it shows |\n|---|---|\n");
    for trace in traces {
        let description = trace.scenario.description.replace('\n', " ");
        let _ = writeln!(page, "| {} | {} |", trace.scenario.name, description.trim());
    }
    (page, unexplained)
}
