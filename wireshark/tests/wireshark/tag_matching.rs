//! Tag matching over RoCE v2: the fields after Wireshark's own.

use std::collections::BTreeSet;

use efa_core::rules::{Chapter, RULES};
use efa_core::wire::infiniband::{RcOpcode, Tmh};
use efa_wireshark::connected::{Connected, WHOLE, captured, misuses, right_talk};
use efa_wireshark::{DissectedFrame, Tshark};

/// The value of a field of `efa_tm`, if the frame has it.
fn value(shown: &DissectedFrame, name: &str) -> Option<String> {
    let name = format!("efa_tm.{name}");
    shown.has(&name).then(|| shown.one(&name).to_owned())
}

#[test]
fn headers_have_the_declared_values() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Connected::default();
    talk.rendezvous(
        0,
        Tmh::RENDEZVOUS,
        0x1_0000_0005,
        0xffff_8000_0010_0000,
        3000,
    );
    talk.tagged(0, Tmh::EAGER, 7, b"data");
    let shown = tshark.dissect(&talk.capture(&[1]));
    let [request, eager] = [0, 2].map(|at| &shown[at]);
    for (name, expected) in [
        ("tmh.operation", "1"),
        ("tmh.data", "0x0000da7a"),
        ("tmh.tag", "0x0000000100000005"),
        ("rvh.address", "0xffff800000100000"),
        ("rvh.key", "0x00000077"),
        ("rvh.length", "3000"),
    ] {
        assert_eq!(value(request, name).as_deref(), Some(expected), "{name}");
    }
    assert_eq!(value(eager, "tmh.operation").as_deref(), Some("3"));
    assert_eq!(value(eager, "rvh.key"), None);
    assert!(request.has("infiniband.bth.psn"), "Wireshark's own fields");
}

/// Its sender is wrong: only the last packet of a message is shorter than the path MTU.
#[test]
fn a_first_packet_that_ends_in_the_headers_has_none() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Connected::default();
    for bytes in [0, 1, 15] {
        talk.tagged(0, Tmh::RENDEZVOUS, 6, &vec![1; bytes]);
    }
    for packet in talk.packets.iter_mut().filter(|packet| packet.from == 0) {
        packet.bytes[0] = RcOpcode::SendFirst as u8;
    }
    for shown in tshark.dissect(&talk.capture(&[1])) {
        assert!(shown.has("infiniband.bth.psn") && !shown.has("_ws.lua.error"));
        assert_eq!(shown.fields("efa_tm").count(), 0);
    }
}

#[test]
fn packets_of_a_rendezvous_name_each_other() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Connected::default();
    let packets = talk.whole_rendezvous(5, 0x10_0000, 3000);
    let [request, read, data, finish] = packets.map(|at| (at + 1).to_string());
    let last_data = (packets[2] + 3).to_string();
    let shown = tshark.dissect_twice(&talk.capture(&[1]));
    let links = |at: usize| {
        ["request_in", "read_in", "answer_in", "finish_in"].map(|name| value(&shown[at], name))
    };
    let some = |frame: &String| Some(frame.clone());
    let [of_request, of_read, of_data, of_finish] = packets.map(links);
    assert_eq!(of_request, [None, some(&read), None, some(&finish)]);
    assert_eq!(
        of_read,
        [some(&request), None, some(&last_data), some(&finish)]
    );
    assert_eq!(
        of_data,
        [some(&request), some(&read), None, some(&finish)],
        "{data}"
    );
    assert_eq!(of_finish, [some(&request), some(&read), None, None]);
}

#[test]
fn filters_find_a_rendezvous_and_its_rules() {
    let Some(tshark) = Tshark::find() else { return };
    let frames = |capture: &[u8], filter: &str| {
        let text = tshark.run(
            capture,
            &["-2", "-Y", filter, "-T", "fields", "-e", "frame.number"],
        );
        text.lines()
            .map(|line| line.parse().unwrap())
            .collect::<Vec<usize>>()
    };
    let misuses = misuses();
    let talks: Vec<(&Connected, &[usize])> = misuses
        .iter()
        .map(|(_, talk, ..)| (talk, &[1][..]))
        .collect();
    let capture = captured(&talks, WHOLE);
    let mut first = 0;
    let mut by_rule = std::collections::BTreeMap::<_, Vec<_>>::new();
    for (_, talk, rule, at) in &misuses {
        by_rule.entry(*rule).or_default().push(first + at + 1);
        first += talk.frames(&[1]);
    }
    for (rule, expected) in &by_rule {
        assert_eq!(
            frames(&capture, &format!("efa_tm.rule.{rule}")),
            *expected,
            "{rule}"
        );
    }
    let of_chapter = RULES
        .iter()
        .filter(|rule| rule.chapter == Chapter::TagMatching);
    let ids: BTreeSet<_> = of_chapter.map(|rule| rule.id).collect();
    assert_eq!(by_rule.into_keys().collect::<BTreeSet<_>>(), ids);
    let right = right_talk().capture(&[1]);
    assert!(frames(&right, "_ws.expert && efa_tm.rendezvous").is_empty());
    assert_eq!(
        frames(&right, "efa_tm.rendezvous == 0").len(),
        6,
        "request, read, data, FIN"
    );
}

#[test]
fn plain_messages_are_left_to_wireshark() {
    let Some(tshark) = Tshark::find() else { return };
    let mut talk = Connected::default();
    talk.send(0, b"plain");
    talk.send(1, &[4; 100]);
    let psn = talk.read(1, 0x10_0000, 64);
    talk.data(0, psn, 64);
    for shown in tshark.dissect(&talk.capture(&[0])) {
        assert_eq!(shown.fields("efa_tm").count(), 0);
        assert!(shown.has("infiniband.bth.psn"));
    }
}
