//! The Wireshark dissector and `efa-conformance check` find the same breaches in the same frames.
//!
//! Both implement the rules of `docs/rules.md`. The dissector judges each end of a conversation
//! separately, so both get captures of one host: the captures of the corpus, and copies of them
//! with frames lost, omitted, duplicated, exchanged and changed. Needs `tshark`; without it the
//! tests print a message and pass.

use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use efa_capture::frame::{Frame, FrameKind};
use efa_capture::{Direction, Interface, RecordedFrame, Writer};
use efa_check::capture::{Capture, CapturedPacket};
use efa_check::check::check;
use efa_testing::workspace::captures;
use efa_wire::Status;
use efa_wire::address::{Qkey, RawAddress};
use efa_wire::fields::fields_of;
use efa_wire::rules::{Judge, Rule};
use efa_wire::{
    Connid, EagerRtm, ExtraFeatures, Header, MsgId, OpeType, Packet, PacketType, PeerError,
    RawAddressHeader, RecvId, Repr, ReqOptions, Rtr, RtrKind,
};

use efa_wireshark::talk::{End, Talk};
use efa_wireshark::{Tshark, renamed, with_renamed_addresses};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::losses::{Loss, corpus, damaged, number};
use crate::numbers::{close_gap, next_number};

/// (frame, rule)
type Breaches = BTreeSet<(u64, String)>;

/// The frames that each host of a trace recorded.
fn views(path: &Path) -> Vec<Vec<CapturedPacket>> {
    let capture = Capture::load(path).unwrap();
    (0..capture.interfaces.len())
        .map(|interface| {
            let of_host = capture
                .frames
                .iter()
                .filter(|frame| frame.interface == interface);
            of_host.cloned().collect()
        })
        .collect()
}

/// A capture with these frames, and their interfaces.
fn pcapng(frames: &[CapturedPacket]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let count = frames.iter().map(|frame| frame.interface + 1).max();
    let interfaces: Vec<_> = (0..count.unwrap_or(1))
        .map(|index| {
            let interface = Interface::new(index.to_string(), "test", frames[0].source);
            writer.add_interface(&interface).unwrap()
        })
        .collect();
    for (number, captured) in frames.iter().enumerate() {
        let mut header = captured.header;
        header.payload_length = captured.payload.len() as u32;
        let frame = Frame {
            source: captured.source,
            destination: captured.destination,
            header,
            payload: &captured.payload,
        };
        let mut bytes = Vec::new();
        frame.emit(&mut bytes).unwrap();
        let recorded = RecordedFrame {
            time: Duration::from_micros(number as u64),
            direction: captured.direction,
            original_len: bytes.len(),
            bytes,
            comments: Vec::new(),
        };
        writer
            .add(interfaces[captured.interface], &recorded)
            .unwrap();
    }
    writer.finish(Duration::ZERO).unwrap()
}

/// Captures of one host each, joined into one that both tools read at once, because starting
/// `tshark` takes longer than most captures. Each has its own interface and GIDs, so that no two
/// share a conversation.
#[derive(Default)]
struct Joined {
    frames: Vec<CapturedPacket>,
    /// The index in `frames` at which each capture ends.
    ends: Vec<usize>,
}

impl Joined {
    fn of<'a>(captures: impl IntoIterator<Item = &'a [CapturedPacket]>) -> Joined {
        let mut joined = Joined::default();
        for frames in captures {
            joined.push(frames);
        }
        joined
    }

    fn push(&mut self, frames: &[CapturedPacket]) {
        let number = self.ends.len() as u16 + 1;
        for frame in frames {
            let mut frame = frame.clone();
            frame.interface = self.ends.len();
            frame.source = renamed(frame.source, number);
            frame.destination = renamed(frame.destination, number);
            frame.payload = with_renamed_addresses(&frame.payload, number);
            self.frames.push(frame);
        }
        self.ends.push(self.frames.len());
    }

    /// The breaches of each capture, with frames numbered as in that capture.
    fn of_each(&self, found: &Breaches) -> Vec<Breaches> {
        let mut each = vec![Breaches::new(); self.ends.len()];
        for (frame, rule) in found {
            let capture = self.ends.partition_point(|end| *end < *frame as usize);
            let begin = if capture == 0 {
                0
            } else {
                self.ends[capture - 1]
            };
            each[capture].insert((frame - begin as u64, rule.clone()));
        }
        each
    }

    fn by_check(&self) -> Vec<Breaches> {
        self.of_each(&found_by_check(&pcapng(&self.frames)))
    }

    fn by_dissector(&self, tshark: &Tshark) -> Vec<Breaches> {
        self.of_each(&found_by_dissector(tshark, &pcapng(&self.frames)))
    }
}

fn load(capture: &[u8]) -> Capture {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(capture).unwrap();
    Capture::load(file.path()).unwrap()
}

fn found_by_check(capture: &[u8]) -> Breaches {
    let findings = check(&load(capture)).findings;
    findings
        .iter()
        .map(|finding| (finding.packet, finding.rule.id.to_owned()))
        .collect()
}

fn found_by_dissector(tshark: &Tshark, capture: &[u8]) -> Breaches {
    let mut breaches = Breaches::new();
    for (number, shown) in (1..).zip(tshark.dissect_twice(capture)) {
        breaches.extend(shown.broken_rules().map(|rule| (number, rule)));
    }
    breaches
}

/// The indices of the packets that may be changed. Two sorts are left out: the first packet of a
/// conversation, because it tells the dissector whether the capture includes the beginning, and
/// packets that were sent more than once, because the dissector judges the first attempt and the
/// checker the last.
fn changeable(frames: &[CapturedPacket]) -> Vec<usize> {
    let failed: HashSet<_> = frames
        .iter()
        .filter(|frame| matches!(frame.header.kind, FrameKind::Response(_)))
        .map(|frame| (frame.destination, frame.header.sequence))
        .collect();
    let mut known = HashSet::new();
    let mut places = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        let ends = [
            (frame.source, frame.header.source_qpn),
            (frame.destination, frame.header.destination_qpn),
        ];
        let pair = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        let is_packet = frame.rdm().is_some_and(|packet| packet.len() >= 4);
        let is_first = is_packet && known.insert(pair);
        let is_repeated =
            frame.header.retransmission || failed.contains(&(frame.source, frame.header.sequence));
        if is_packet && !is_first && !is_repeated {
            places.push(at);
        }
    }
    places
}

/// Makes one change to a capture.
fn mutate(frames: &mut Vec<CapturedPacket>, rng: &mut StdRng) -> String {
    let packets = changeable(frames);
    let at = packets[rng.random_range(0..packets.len())];
    match rng.random_range(0..10) {
        0 => {
            let removed = frames.remove(at);
            if rng.random_bool(0.2) {
                return format!("frame {} lost", at + 1);
            }
            close_gap(frames, &removed);
            format!("frame {} omitted", at + 1)
        }
        1 => {
            let mut again = frames[at].clone();
            again.header.sequence = next_number(frames, &again);
            frames.push(again);
            format!("frame {} again at the end", at + 1)
        }
        2 => {
            let other = packets[rng.random_range(0..packets.len())];
            frames.swap(at, other);
            format!("frames {} and {} exchanged", at + 1, other + 1)
        }
        3 => {
            frames[at].header.qkey.0 ^= 1;
            format!("frame {} with another Q-key", at + 1)
        }
        _ => change_field(frames, at, rng),
    }
}

/// Gives a field of the packet in frame `at` a different value.
fn change_field(frames: &mut [CapturedPacket], at: usize, rng: &mut StdRng) -> String {
    let fields: Vec<_> = fields_of(&frames[at].payload)
        .into_iter()
        .flatten()
        .map(|field| (field.name(), field.offset, field.bytes.len()))
        .filter(|(name, _, length)| (1..=8).contains(length) && name.name != "data")
        .collect();
    let (name, offset, length) = &fields[rng.random_range(0..fields.len())];
    let bytes = &mut frames[at].payload[*offset..offset + length];
    let mut value = [0; 8];
    value[..*length].copy_from_slice(bytes);
    let value = u64::from_le_bytes(value);
    let changed = match rng.random_range(0..5) {
        0 => value.wrapping_add(1),
        1 => value.wrapping_sub(1),
        2 => value ^ 1 << rng.random_range(0..8 * length),
        3 => 0,
        _ => rng.random_range(0..20),
    };
    bytes.copy_from_slice(&changed.to_le_bytes()[..*length]);
    format!("frame {}: {name} is {changed} instead of {value}", at + 1)
}

/// The differences between the two sets of breaches.
fn disagreement(by_dissector: &Breaches, by_check: &Breaches) -> Option<String> {
    let shared = |breaches: &Breaches| -> Breaches {
        let is_shared = |id: &str| Rule::find(id).is_some_and(|rule| rule.judge == Judge::Both);
        let both = breaches.iter().filter(|(_, rule)| is_shared(rule));
        both.cloned().collect()
    };
    let (dissector, check) = (shared(by_dissector), shared(by_check));
    (dissector != check).then(|| {
        format!(
            "only the dissector: {:?}, only the checker: {:?}",
            dissector.difference(&check).collect::<Vec<_>>(),
            check.difference(&dissector).collect::<Vec<_>>()
        )
    })
}

#[test]
fn dissector_and_checker_agree_on_the_corpus() {
    let Some(tshark) = Tshark::find() else { return };
    let mut names = Vec::new();
    let mut joined = Joined::default();
    let of_tests = corpus()
        .into_iter()
        .filter(|path| path.parent().is_some_and(|it| it.ends_with("captures")));
    for path in captures().into_iter().chain(of_tests).chain(kept()) {
        for (host, view) in views(&path).iter().enumerate() {
            let sent = view
                .iter()
                .filter(|it| it.direction == Some(Direction::Outbound));
            let senders: BTreeSet<_> = sent.map(|frame| frame.source).collect();
            // Cooked captures have one interface.
            if senders.len() > 1 {
                continue;
            }
            names.push(format!("{} host {host}", path.display()));
            joined.push(view);
        }
    }
    let (by_dissector, by_check) = (joined.by_dissector(&tshark), joined.by_check());
    for (name, found) in names.iter().zip(by_dissector.iter().zip(&by_check)) {
        assert_eq!(disagreement(found.0, found.1), None, "{name}");
    }
}

/// Captures of mistakes, and of unusual forms.
fn kept() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures/kept");
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn frame_numbers_are_those_of_wireshark() {
    let Some(tshark) = Tshark::find() else { return };
    let compare = |path: &Path| {
        let frames = Capture::load(path).unwrap().frames;
        let numbers: Vec<_> = frames.iter().map(|it| it.number.to_string()).collect();
        let arguments = ["-Y", "efa", "-T", "fields", "-e", "frame.number"];
        let shown = tshark.run(&std::fs::read(path).unwrap(), &arguments);
        let shown: Vec<_> = shown.lines().collect();
        assert_eq!(shown, numbers, "{}", path.display());
    };
    // Each file is a start of Wireshark, which is one thread.
    let kept = kept();
    let (some, others) = kept.split_at(kept.len() / 2);
    std::thread::scope(|scope| {
        scope.spawn(|| some.iter().for_each(|path| compare(path)));
        others.iter().for_each(|path| compare(path));
    });
}

/// A joined capture gets the same verdict as it does alone, so tests may join captures.
#[test]
fn joined_captures_are_judged_as_single_ones() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(5);
    let mut changed = Vec::new();
    for name in ["long-cts", "runting-read", "delivery-complete"] {
        for mut view in views(&efa_testing::workspace::traces().join(format!("{name}.pcapng"))) {
            mutate(&mut view, &mut rng);
            changed.push(view);
        }
    }
    let joined = Joined::of(changed.iter().map(Vec::as_slice));
    let single: Vec<_> = changed.iter().map(|frames| pcapng(frames)).collect();
    let by_check: Vec<_> = single.iter().map(|one| found_by_check(one)).collect();
    assert_eq!(joined.by_check(), by_check);
    let by_dissector: Vec<_> = single
        .iter()
        .map(|one| found_by_dissector(&tshark, one))
        .collect();
    assert_eq!(joined.by_dissector(&tshark), by_dissector);
    assert!(by_check.iter().any(|found| !found.is_empty()));
}

/// Turns an operation id into one of libfabric 2.7's form: the index in bits 21:0, a generation
/// above it. Different ids stay different.
fn tagged(id: u32) -> u32 {
    let index = id & 0x003f_ffff;
    id ^ (index.wrapping_mul(37).wrapping_add(5) & 0xff) << 22
}

/// The same frames with other operation ids.
fn with_tagged_ids(frames: &[CapturedPacket]) -> Vec<CapturedPacket> {
    let mut frames = frames.to_vec();
    for frame in &mut frames {
        if frame.rdm().is_none() {
            continue;
        }
        let ids: Vec<usize> = fields_of(&frame.payload)
            .into_iter()
            .flatten()
            .filter(|field| matches!(field.name().name, "send_id" | "recv_id"))
            .map(|field| field.offset)
            .collect();
        for at in ids {
            let bytes = frame.payload[at..].first_chunk_mut::<4>().unwrap();
            *bytes = tagged(u32::from_le_bytes(*bytes)).to_le_bytes();
        }
    }
    frames
}

/// An endpoint may choose any form of operation ids: with the ids of libfabric 2.7, both tools
/// report the same of a capture as with dense ids, whether the capture is correct or not.
#[test]
fn operation_ids_mean_nothing_to_dissector_and_checker() {
    let Some(tshark) = Tshark::find() else { return };
    let mut rng = StdRng::seed_from_u64(27);
    let mut named = BTreeSet::new();
    let (mut before, mut after, mut names) = (Joined::default(), Joined::default(), Vec::new());
    for name in [
        "delivery-complete",
        "long-cts",
        "long-read",
        "read-emulated",
        "runting-read",
        "write-emulated",
        "releases/atomic-compare-2.5-2.5",
        "releases/atomic-dc-2.5-2.5",
        "releases/atomic-fetch-2.5-2.5",
        "releases/write-dc-2.5-2.5",
        "releases/write-read-1.17-1.17",
    ] {
        let path = efa_testing::workspace::traces().join(format!("{name}.pcapng"));
        for view in views(&path) {
            for is_wrong in [false, true] {
                let mut dense = view.clone();
                let what = match is_wrong {
                    true => mutate(&mut dense, &mut rng),
                    false => "as it is".to_owned(),
                };
                let other = with_tagged_ids(&dense);
                for (before, after) in dense.iter().zip(&other) {
                    if before.payload != after.payload {
                        named.extend(before.packet_type());
                    }
                }
                before.push(&dense);
                after.push(&other);
                names.push(format!("{name}: {what}"));
            }
        }
    }
    let by_check = before.by_check();
    let judged = [
        (&by_check, after.by_check()),
        (&before.by_dissector(&tshark), after.by_dissector(&tshark)),
    ];
    for (before, after) in judged {
        for (name, (before, after)) in names.iter().zip(before.iter().zip(&after)) {
            assert_eq!(after, before, "{name}");
        }
    }
    let breached: usize = by_check.iter().map(BTreeSet::len).sum();
    assert!(breached > 10, "{breached}");
    // Every type that has an operation id, except READ_NACK and PEER_ERROR, which no release sent
    // in these captures.
    assert!(named.len() >= 19, "{named:?}");
}

/// A request that arrives so late that another operation has its send_id by then.
#[test]
fn dissector_and_checker_separate_operations_by_send_id() {
    let Some(tshark) = Tshark::find() else { return };
    let path = captures()
        .into_iter()
        .find(|path| path.ends_with("delivery-complete.pcapng"));
    for mut view in views(&path.unwrap()) {
        let is = |code: u8| move |frame: &CapturedPacket| frame.rdm().is_some_and(|p| p[0] == code);
        let request = view.iter().position(is(PacketType::DcEagerMsgRtm.code()));
        let data = view.iter().rposition(is(PacketType::CtsData.code()));
        // The operation that has the send_id by then sends more data after it.
        view.swap(request.unwrap(), data.unwrap() - 1);
        let capture = pcapng(&view);
        let found = (
            found_by_dissector(&tshark, &capture),
            found_by_check(&capture),
        );
        assert_eq!(disagreement(&found.0, &found.1), None);
        let names_nothing = |(_, rule): &(u64, String)| rule == "ctsdata-names-cts";
        assert!(found.0.iter().any(names_nothing), "{:?}", found.0);
    }
}

/// Frames that A records of a conversation with B. Frames 1 to 3 are the HANDSHAKEs and B's first
/// message.
fn acquainted() -> Talk {
    let mut talk = Talk::new();
    message(&mut talk, 0, b"first");
    talk.handshake(End::A, ExtraFeatures::all());
    talk.handshake(End::B, ExtraFeatures::all());
    talk
}

fn gives_up(talk: &mut Talk, from: End, side: OpeType, msg_id: u32, op_id: u32) {
    talk.packet(from, &from.peer_error(msg_id, op_id, side), b"");
}

fn piece(talk: &mut Talk, msg_id: u32, offset: u64) {
    talk.packet(End::B, &End::B.medium(msg_id, offset), &[0; 100]);
}

/// A message from B.
fn message(talk: &mut Talk, msg_id: u32, data: &[u8]) {
    let message = EagerRtm::new(MsgId(msg_id), End::B.unknown());
    talk.packet(End::B, &message, data);
}

/// Correct and wrong PEER_ERRORs, with packets of their messages before and after them.
#[test]
fn dissector_and_checker_follow_abandoned_messages() {
    let Some(tshark) = Tshark::find() else { return };
    let none = PeerError::NO_OP;
    let read = Rtr {
        kind: RtrKind::Longcts,
        msg_length: 10,
        recv_id: RecvId(9),
        recv_length: 10,
        ..Rtr::default()
    };
    type Case<'a> = (&'a dyn Fn(&mut Talk), &'a [(u64, &'a str)]);
    let cases: &[Case<'_>] = &[
        (&|talk| (0..2).for_each(|at| piece(talk, 1, 100 * at)), &[]),
        (&|talk| message(talk, 1, b""), &[]),
        (
            &|talk| (0..2).for_each(|_| piece(talk, 1, 0)),
            &[(6, "segment-overlap")],
        ),
        (
            &|talk| (0..2).for_each(|_| message(talk, 1, b"")),
            &[(6, "msg-id-once")],
        ),
        (&|talk| gives_up(talk, End::B, OpeType::TXE, 1, none), &[]),
        (&|talk| gives_up(talk, End::B, OpeType::RXE, 1, none), &[]),
        (
            &|talk| gives_up(talk, End::B, OpeType(3), 1, none),
            &[(5, "peer-error-message")],
        ),
        (
            &|talk| gives_up(talk, End::B, OpeType(0), 1, none),
            &[(5, "peer-error-message")],
        ),
        // A has no message 0, and operation 9 is a read.
        (
            &|talk| {
                talk.packet(End::B, &read, b"");
                gives_up(talk, End::A, OpeType::TXE, 0, 9);
                gives_up(talk, End::A, OpeType::TXE, 0, none);
            },
            &[(6, "peer-error-message")],
        ),
        // A has message 0.
        (
            &|talk| {
                talk.packet(End::B, &read, b"");
                talk.packet(End::A, &EagerRtm::default(), b"");
                gives_up(talk, End::A, OpeType::TXE, 0, 9);
            },
            &[],
        ),
    ];
    let mut joined = Joined::default();
    for (then, _) in cases {
        let mut talk = acquainted();
        gives_up(&mut talk, End::B, OpeType::TXE, 1, none);
        then(&mut talk);
        joined.push(&load(&talk.capture()).frames);
    }
    let (by_dissector, by_check) = (joined.by_dissector(&tshark), joined.by_check());
    for (number, (_, expected)) in cases.iter().enumerate() {
        let found = (&by_dissector[number], &by_check[number]);
        assert_eq!(disagreement(found.0, found.1), None, "case {number}");
        let wanted = ["peer-error-message", "msg-id-once", "segment-overlap"];
        let by_check = found.1.iter().map(|(frame, rule)| (*frame, rule.as_str()));
        let by_check: Vec<_> = by_check.filter(|(_, rule)| wanted.contains(rule)).collect();
        assert_eq!(by_check, *expected, "case {number}");
    }
}

/// Packets that a device refused are sent again: unchanged, with another header, or with other
/// content.
#[test]
fn dissector_and_checker_recognize_retransmissions() {
    let Some(tshark) = Tshark::find() else { return };
    let mut again = BTreeSet::new();
    let (mut joined, mut cases) = (Joined::default(), Vec::new());
    for name in ["not-ready-eager-2.5", "abort-1.17", "not-ready-medium-2.5"] {
        let path = efa_testing::workspace::traces().join(format!("releases/{name}.pcapng"));
        for view in views(&path) {
            for change in ["none", "header", "content", "status"] {
                let mut frames = view.clone();
                let changed = change_resent(&mut frames, change);
                joined.push(&frames);
                cases.push((name, change, changed));
            }
        }
    }
    let (by_dissector, by_check) = (joined.by_dissector(&tshark), joined.by_check());
    for ((name, change, changed), (by_dissector, by_check)) in
        cases.into_iter().zip(by_dissector.iter().zip(&by_check))
    {
        let about = format!("{name}, {change}");
        assert_eq!(disagreement(by_dissector, by_check), None, "{about}");
        let is_known = |rule: &str| by_check.iter().any(|(_, found)| found == rule);
        if let Some(number) = changed {
            let rules = by_check.iter().filter(|(packet, _)| *packet == number);
            let rules: BTreeSet<_> = rules.map(|(_, rule)| rule.as_str()).collect();
            match change {
                "content" => assert!(!rules.is_empty(), "{about}"),
                _ => assert_eq!(rules, BTreeSet::new(), "{about}"),
            }
            again.insert(change);
        }
        if change == "none" {
            let is_wrong = is_known("msg-id-once") || is_known("segment-overlap");
            assert!(!is_wrong, "{about}");
        }
    }
    assert_eq!(
        again,
        BTreeSet::from(["content", "header", "none", "status"])
    );
}

/// Changes the first packet that is sent again as a new request because its receiver was not ready.
/// Returns its number, if there is one.
fn change_resent(frames: &mut [CapturedPacket], change: &str) -> Option<u64> {
    let place = (0..frames.len()).find(|&place| {
        let frame = &frames[place];
        let is_resent = frames[..place].iter().any(|earlier| {
            earlier.payload == frame.payload && earlier.header.sequence != frame.header.sequence
        });
        let is_message = matches!(
            frame.packet_type(),
            Some(PacketType::EagerMsgRtm | PacketType::MediumMsgRtm)
        );
        let has_data = Packet::parse(&frame.payload).is_ok_and(|it| it.payload.length > 0);
        is_message && has_data && is_resent && frame.direction == Some(Direction::Outbound)
    })?;
    let (source, payload) = (frames[place].source, frames[place].payload.clone());
    match change {
        "header" => {
            let packet = Packet::parse(&payload).ok()?;
            let other = |options: &mut ReqOptions| {
                let connid = options.sender_connid().unwrap_or(Connid(7));
                match options.raw_address.take() {
                    Some(_) => options.connid = Some(connid),
                    None => {
                        let address = RawAddress {
                            gid: source,
                            qpn: frames[place].header.source_qpn,
                            qkey: Qkey(connid.0),
                        };
                        options.raw_address = Some(RawAddressHeader::new(address));
                        options.connid = None;
                    }
                }
            };
            let header: Header = match packet.header {
                Header::EagerRtm(mut header) => {
                    other(&mut header.options);
                    header.into()
                }
                Header::MediumRtm(mut header) => {
                    other(&mut header.options);
                    header.into()
                }
                _ => return None,
            };
            frames[place].payload = header.to_packet(packet.payload.of(&payload));
        }
        "content" => *frames[place].payload.last_mut()? ^= 1,
        // The device gives up and does not wait: the packet may still be sent again.
        "status" => {
            for frame in frames.iter_mut() {
                if frame.header.kind == FrameKind::Response(Status::RemoteRnr) {
                    frame.header.kind = FrameKind::Response(Status::RemoteAbort);
                }
            }
        }
        _ => {}
    }
    Some(place as u64 + 1)
}

#[test]
fn dissector_and_checker_agree_on_mutated_captures() {
    let Some(tshark) = Tshark::find() else { return };
    let views: Vec<_> = captures()
        .iter()
        .flat_map(|path| views(path).into_iter().map(|view| (path.clone(), view)))
        // Long captures take long, and contain nothing that short ones lack.
        .filter(|(_, view)| !changeable(view).is_empty() && view.len() < 200)
        .collect();
    let mut rng = StdRng::seed_from_u64(seed());
    let mut broken = BTreeSet::new();
    let mut disagreements = Vec::new();
    let mut left = mutations();
    while left > 0 {
        let (mut joined, mut changes) = (Joined::default(), Vec::new());
        for _ in 0..left.min(JOINED) {
            let (path, mut frames) = views[rng.random_range(0..views.len())].clone();
            let change = mutate(&mut frames, &mut rng);
            let name = path.file_name().unwrap_or_default().display();
            changes.push(format!("{name}: {change}"));
            joined.push(&frames);
        }
        left -= changes.len();
        let (by_dissector, by_check) = (joined.by_dissector(&tshark), joined.by_check());
        for (change, found) in changes.iter().zip(by_dissector.iter().zip(&by_check)) {
            broken.extend(found.1.iter().map(|(_, rule)| rule.clone()));
            if let Some(text) = disagreement(found.0, found.1) {
                disagreements.push(format!("{change}: {text}"));
            }
        }
    }
    assert!(
        disagreements.is_empty(),
        "{} of {}, seed {}:\n{}",
        disagreements.len(),
        mutations(),
        seed(),
        disagreements.join("\n")
    );
    // The changes do break rules.
    assert!(broken.len() > 8, "only {broken:?} were broken");
}

/// Mutations that one of the two judges once took for a breach: trace, host, change, and a breach
/// of which the capture has no proof.
#[test]
fn dissector_and_checker_agree_where_they_once_differed() {
    let Some(tshark) = Tshark::find() else { return };
    type Change = fn(&mut Vec<CapturedPacket>);
    type Case = (&'static str, usize, Change, (u64, &'static str));
    let cases: [Case; 4] = [
        // A request without address arrives before the first packet of its sender.
        (
            "two-senders",
            0,
            |frames| frames.swap(1, 3),
            (2, "raw-address-first"),
        ),
        // EOR for a runting read of no memory.
        (
            "runting-read",
            1,
            |frames| {
                let fields = fields_of(&frames[3].payload).into_iter().flatten();
                let mut fields = fields.filter(|field| field.name().name == "read_iov_count");
                let at = fields.next().unwrap().offset;
                frames[3].payload[at] = 0;
            },
            (11, "answer-names-request"),
        ),
        // Both have no known beginning.
        (
            "medium-untagged",
            1,
            |frames| frames[3].payload[0] = PacketType::PeerError.code(),
            (4, "peer-error-message"),
        ),
        (
            "two-senders",
            1,
            |frames| frames[1].payload[0] = PacketType::ReadNack.code(),
            (2, "feature-early"),
        ),
    ];
    let mut joined = Joined::default();
    for (name, host, change, ..) in &cases {
        let path = efa_testing::workspace::traces().join(format!("{name}.pcapng"));
        let mut view = views(&path).swap_remove(*host);
        change(&mut view);
        joined.push(&view);
    }
    let (by_dissector, by_check) = (joined.by_dissector(&tshark), joined.by_check());
    for ((name, _, _, (frame, rule)), found) in
        cases.into_iter().zip(by_dissector.iter().zip(&by_check))
    {
        assert_eq!(disagreement(found.0, found.1), None, "{name}");
        let breach = (frame, rule.to_owned());
        assert!(!found.1.contains(&breach), "{name}: {found:?}");
    }
}

/// The losses that the dissector can detect: it does not see how many frames were dropped.
const VISIBLE_LOSSES: [Loss; 7] = [
    Loss::Direction,
    Loss::Host,
    Loss::Flags,
    Loss::Duplicates,
    Loss::Beginning,
    Loss::End,
    Loss::Clocks,
];

/// Whether two endpoints have frames without directions, and none of them twice. The dissector does
/// not see interfaces, so it takes two clocks for one.
fn was_captured_once(frames: &[CapturedPacket]) -> bool {
    let (mut once, mut twice) = (HashSet::new(), HashSet::new());
    let mut seen = HashSet::new();
    for frame in frames.iter().filter(|frame| frame.direction.is_none()) {
        let header = &frame.header;
        // Other frames, and repetitions, have the number of another frame.
        if header.kind != FrameKind::Send || header.retransmission {
            continue;
        }
        let source = (frame.source, header.source_qpn);
        let destination = (frame.destination, header.destination_qpn);
        let pair = (source.min(destination), source.max(destination));
        once.insert(pair);
        if !seen.insert((source, destination, header.sequence, header.qkey)) {
            twice.insert(pair);
        }
    }
    once != twice
}

#[test]
fn the_dissector_reports_no_errors_after_losses() {
    let Some(tshark) = Tshark::find() else { return };
    let (mut names, mut joined) = (Vec::new(), Joined::default());
    // A third of the corpus, or all of it if more mutations were asked for.
    let step = if number("EFA_MUTATIONS").is_some() {
        1
    } else {
        3
    };
    for path in corpus().iter().step_by(step) {
        let whole = Capture::load(path).unwrap();
        for seed in [2 * seed(), 2 * seed() + 1] {
            let (damaged, what) = damaged(&whole, seed, &VISIBLE_LOSSES);
            let has_two_clocks = what.contains("Clocks") && what.contains("Direction");
            let has_no_order = has_two_clocks && was_captured_once(&damaged.frames);
            if has_no_order || damaged.frames.is_empty() {
                continue;
            }
            names.push(format!("{} without {what}", path.display()));
            joined.push(&damaged.frames);
        }
    }
    // tshark reads twice, as Wireshark does: missing frames are known only at the end of a capture.
    let arguments = ["-2", "-Y", "_ws.expert.severity == error", "-T", "fields"];
    let arguments = [&arguments[..], &["-e", "frame.number", "-e", "_ws.expert"]].concat();
    let mut blamed = BTreeSet::new();
    for line in tshark.run(&pcapng(&joined.frames), &arguments).lines() {
        let number: usize = line.split('\t').next().unwrap().parse().unwrap();
        let capture = joined.ends.partition_point(|end| *end < number);
        blamed.insert(format!("{}: {line}", names[capture]));
    }
    assert!(
        blamed.is_empty(),
        "{} frames of {}, seed {}: {blamed:#?}",
        blamed.len(),
        joined.frames.len(),
        seed()
    );
}

/// The most captures that are joined: the output of `tshark` for them is held in memory.
const JOINED: usize = 100;

/// The number of mutated captures: `EFA_MUTATIONS` divided by 100, or a number that takes a few
/// seconds.
fn mutations() -> usize {
    number("EFA_MUTATIONS").map_or(60, |wanted| wanted as usize / 100)
}

/// The seed of the random changes: `EFA_SEED`, or a constant.
fn seed() -> u64 {
    number("EFA_SEED").unwrap_or(1)
}
