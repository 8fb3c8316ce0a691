//! The command line: exit status and messages.

use std::path::Path;

use efa_check::capture::Capture;
use efa_core::wire::fields::field_of;
use efa_testing::workspace::{efa_conformance, efa_conformance_on_host, expect, outcome, traces};

use crate::altered::AlteredTrace;
use crate::assert_has;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn remarks_fail_with_fail_on_note() {
    let trace = traces().join("releases/not-ready-eager-2.5.pcapng");
    let trace = trace.display().to_string();
    for (severity, status) in [("error", 0), ("note", 1)] {
        let command = efa_conformance(&["run", &trace, "--fail-on", severity]);
        expect(command, status, &[]);
    }
    let command = efa_conformance(&["run", &trace, "--each-event", "refuse"]);
    expect(command, 0, &["right with one event changed in "]);
}

/// Commands without any effect do not succeed.
#[test]
fn networks_of_the_emulator_need_the_emulator() {
    for options in [["--seeds", "3"], ["--each-event", "all"]] {
        let arguments = [&["run", "--backend", "hw"][..], &options[..]].concat();
        expect(efa_conformance(&arguments), 2, &["--backend all"]);
    }
}

#[test]
fn a_trace_passes_and_the_reports_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let report = |name: &str| directory.path().join(name).display().to_string();
    let trace = |name| traces().join(name);
    let mut command = efa_conformance(&["run"]);
    command.args(["eager-tagged.pcapng", "eager-untagged.pcapng"].map(trace));
    command.args("--filter eager- --backend emu --dut core --seeds 2".split(' '));
    command.args([
        "--junit",
        &report("junit.xml"),
        "--json",
        &report("report.json"),
    ]);
    command.args(["--html", &report("report.html")]);
    let texts = ["PASS  eager-tagged", "same outcome under 2 seeds"];
    let printed = expect(command, 0, &texts);
    assert!(
        printed.ends_with("4 passed, 0 codec only, 0 skipped, 0 unsupported, 0 known, 0 failed\n"),
        "{printed}"
    );
    // Standard output is not a terminal, so lines are plain.
    assert!(!printed.contains('\u{1b}'), "{printed}");

    let junit = std::fs::read_to_string(report("junit.xml")).unwrap();
    assert_has(&junit, &["<testsuite name=\"emu\" tests=\"4\""]);
    let json = std::fs::read_to_string(report("report.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["summary"]["passed"], 4);
    assert_eq!(json["cases"][0]["result"], "passed");
    let html = std::fs::read_to_string(report("report.html")).unwrap();
    // Four cases; each has one drawing, because it agrees with the recording.
    assert_eq!(html.matches(">as recorded<").count(), 4, "{html}");
    assert_has(&html, &["EAGER_TAGRTM msg_id 0"]);
    assert!(!html.contains("class=\"m\""), "{html}");
}

/// `eager-tagged` with another tag in its message.
fn other_tag() -> AlteredTrace {
    let trace = AlteredTrace::of("eager-tagged");
    trace.edit(|bytes, packets| {
        let tag = field_of(&bytes[packets[0]..], "tag").unwrap().offset;
        bytes[packets[0] + tag] ^= 0x01;
    });
    trace
}

/// The capture in this file, of which the output tells, with the message of the trace.
fn captured(printed: &str, kept: &Path) -> Capture {
    assert_has(printed, &[&format!("captured in {}", kept.display())]);
    let capture = Capture::load(kept).unwrap();
    let frames = &capture.frames;
    assert!(frames.iter().any(|frame| frame.kind() == "EAGER_TAGRTM"));
    capture
}

/// A failure leaves a capture, names the statement in the reports, and tells how to repeat it.
/// Failures of one cause are one line at the end.
#[test]
fn a_failure_is_kept_grouped_and_repeatable() {
    let AlteredTrace { directory, path } = other_tag();
    let file = |name: &str| directory.path().join(name);
    let mut command = efa_conformance(&["run"]);
    command.arg(&path).arg("--captures").arg(file("kept"));
    command.arg("--json").arg(file("report.json"));
    command.arg("--junit").arg(file("junit.xml"));
    command.arg("--html").arg(file("report.html"));
    // The checksum of the frame is wrong as well.
    let printed = expect(command, 1, &["checksum"]);
    let html = std::fs::read_to_string(file("report.html")).unwrap();
    // The engine's packet differs from the sender's, and is marked.
    let marked = ["v4/3.2/request-as-asked tag", ">in this run<"];
    assert_has(&html, &marked);
    assert!(!html.contains("http"), "{html}");
    let kept = file("kept").join("eager-tagged-a.pcapng");
    let capture = captured(&printed, &kept);
    assert_eq!(capture.interfaces.len(), 2);
    let (_, summary) = printed.split_once("failed, by the first thing").unwrap();
    let command = format!("efa-conformance run {} --backend emu", path.display());
    let cause = "  packet 1 (EAGER_TAGRTM), field `tag` (spec section 3.2, table 3.3; \
                 v4/3.2/request-as-asked): expected ";
    assert_has(summary, &[cause, &format!("{command}\n")]);
    let json = std::fs::read_to_string(file("report.json")).unwrap();
    // All reports contain the command, and the page has a relative link to the capture.
    let junit = std::fs::read_to_string(file("junit.xml")).unwrap();
    for report in [&json, &junit, &html] {
        // The second is of the command line.
        assert_has(report, &[&command, "--captures"]);
    }
    assert_has(&html, &["href=\"kept/eager-tagged-a.pcapng\""]);
    let [matrix, tree, failed] = ["<h2>Cases", "<h2>By section", "<h2>Failed"]
        .map(|heading| html.find(heading).expect(heading));
    assert!(matrix < tree && tree < failed);
    assert_has(&json, &[r#""statement": "v4/3.2/request-as-asked""#]);
    assert_has(&junit, &[r#"type="v4/3.2/request-as-asked""#]);
}

#[test]
fn over_verbs_a_failure_is_kept_too() {
    let AlteredTrace { directory, path } = other_tag();
    let kept = directory.path().join("kept");
    let fabric = format!("kept-{}", std::process::id());
    let printed = expect(
        efa_conformance_on_host(&["--fabric", &fabric], &["run", "--backend", "hw"])
            .arg("--captures")
            .args([&kept, &path]),
        1,
        &[],
    );
    let kept = kept.join("eager-tagged-a.pcapng");
    captured(&printed, &kept);
}

#[test]
fn results_of_several_runs_make_one_page() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let trace = traces().join("eager-tagged.pcapng").display().to_string();
    for (commit, results) in [("first", file("1.json")), ("second", file("2.json"))] {
        let words = ["run", &trace, "--commit", commit, "--json", &results];
        expect(efa_conformance(&words), 0, &[]);
    }
    let page = file("page.html");
    let command = efa_conformance(&["report", &file("1.json"), &file("2.json"), "--html", &page]);
    expect(command, 0, &["0 new failures, 0 mended"]);
    let html = std::fs::read_to_string(page).unwrap();
    let texts = [
        "<h2>Between the two runs</h2>",
        "commit first",
        "commit second",
    ];
    assert_has(&html, &texts);
    // A row with two endpoints for each of the two runs; each links to its own case.
    assert_eq!(
        html.matches("<th scope=\"row\">eager-tagged</th>").count(),
        1
    );
    for case in ["0-eager-tagged", "1-eager-tagged"] {
        for role in ["a", "b"] {
            let name = format!("{case}-core-emu-{role}\"");
            let (link, target) = (format!("href=\"#{name}"), format!("id=\"{name}"));
            assert_has(&html, &[&link, &target]);
        }
    }
}

#[test]
fn the_page_of_two_runs_shows_their_differences() {
    let AlteredTrace { directory, path } = other_tag();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let right = traces().join("eager-tagged.pcapng");
    for (trace, results, status) in [(&right, "right.json", 0), (&path, "wrong.json", 1)] {
        let mut command = efa_conformance(&["run", "--json", &file(results)]);
        command.arg(trace).arg("--captures").arg(file("kept"));
        expect(command, status, &[]);
    }
    for (runs, told, shown) in [
        (
            ["right.json", "wrong.json"],
            "2 new failures, 0 mended",
            "new failure",
        ),
        (
            ["wrong.json", "right.json"],
            "0 new failures, 2 mended",
            "mended",
        ),
    ] {
        let [before, after] = runs.map(file);
        let page = file("page.html");
        let command = efa_conformance(&["report", &before, &after, "--html", &page]);
        expect(command, 0, &[told]);
        let html = std::fs::read_to_string(page).unwrap();
        assert_eq!(
            html.matches(&format!(">{shown}</span>")).count(),
            2,
            "{html}"
        );
    }
}

#[test]
fn data_outside_the_packet_is_compared_too() {
    // The sequence number of the transport header; without its magic, it is no longer a frame of
    // the emulated wire.
    for (offset, texts) in [(16, &[][..]), (0, &["packet 1: "])] {
        let trace = AlteredTrace::of("eager-tagged");
        trace.edit(|bytes, packets| bytes[packets[0] - 32 + offset] ^= 0x01);
        expect(efa_conformance(&["run", trace.name()]), 1, texts);
    }
}

#[test]
fn check_names_the_rule_that_is_broken() {
    let traces = traces().join("ping-pong.pcapng").display().to_string();
    expect(
        efa_conformance(&["check", &traces]),
        0,
        &["10 packets in 2 conversations, 0 errors, 0 warnings"],
    );

    let trace = AlteredTrace::of("ping-pong");
    trace.edit(|bytes, packets| bytes[packets[0] + 1] = 3);
    let command = efa_conformance(&["check", trace.name()]);
    expect(command, 1, &["packet-form", "version"]);

    let command = efa_conformance(&["check", "--rules"]);
    expect(command, 0, &["handshake-once", "v4/2.1/handshake-once"]);
}

#[test]
fn check_reads_standard_input_and_prints_json() {
    let capture = std::fs::File::open(traces().join("ping-pong.pcapng")).unwrap();
    let output = efa_conformance(&["check", "-", "--json"])
        .stdin(capture)
        .output()
        .unwrap();
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(json["capture"], "-");
    assert_eq!(json["result"], "passed");
    assert_eq!(json["packets"], 10);
    assert_eq!(json["counts"]["error"], 0);
    assert_eq!(json["findings"], serde_json::json!([]));
}

#[test]
fn check_fails_from_the_given_severity_on() {
    // The capture ends before the message does. This proves nothing, so it is a note.
    let cut = AlteredTrace::of("long-cts");
    cut.keep(|frame| frame.number <= 12);
    for (fail_on, expected) in [("error", 0), ("warning", 0), ("note", 1)] {
        let command = efa_conformance(&["check", cut.name(), "--fail-on", fail_on]);
        expect(command, expected, &["note: packet"]);
    }
    let command = efa_conformance(&["check", cut.name(), "--fail-on", "nothing"]);
    expect(command, 2, &[]);
}

#[test]
fn check_reports_that_there_is_nothing_to_judge() {
    let empty = AlteredTrace::of("ping-pong");
    empty.keep(|_| false);
    let path = empty.name();
    expect(efa_conformance(&["check", path]), 2, &["nothing to judge"]);
    expect(efa_conformance(&["check", path, "--allow-empty"]), 0, &[]);
}

#[test]
fn show_prints_every_field() {
    let path = traces().join("eager-tagged.pcapng").display().to_string();
    let printed = expect(efa_conformance(&["show", &path]), 0, &[]);
    for line in [
        "# step 2: a sends tagged question of 100 bytes to b",
        "    type = 65 (EAGER_TAGRTM)",
        "    tag = 0x1237",
        "    raw_addr.size = 36",
        "    nextra_p3 = 4",
    ] {
        assert!(
            printed.lines().any(|printed| printed == line),
            "{line}\n{printed}"
        );
    }
}

#[test]
fn show_names_each_of_several_captures() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["eager-tagged.pcapng", "zero-length.pcapng"] {
        std::fs::copy(traces().join(name), directory.path().join(name)).unwrap();
    }
    let path = directory.path().display().to_string();
    let missing = directory
        .path()
        .join("missing.pcapng")
        .display()
        .to_string();
    let command = efa_conformance(&["show", &path, "--type", "HANDSHAKE"]);
    let printed = expect(command, 0, &[]);
    let headings: Vec<_> = printed
        .lines()
        .filter(|it| it.starts_with("capture "))
        .collect();
    assert_eq!(
        headings,
        [
            format!("capture {path}/eager-tagged.pcapng"),
            format!("capture {path}/zero-length.pcapng")
        ]
    );
    assert_has(&printed, &["HANDSHAKE"]);
    let packets = shown(&[&path, "--packets", "1"]);
    assert_eq!(packets.len(), 2);
    assert!(
        packets[1]["capture"]
            .as_str()
            .unwrap()
            .ends_with("zero-length.pcapng")
    );
    // An unreadable capture is named, and the others are shown.
    let command = efa_conformance(&["show", &missing, &path]);
    expect(command, 2, &["missing.pcapng", "EAGER_TAGRTM"]);
}

/// The output of `show --json`, line by line.
fn shown(arguments: &[&str]) -> Vec<serde_json::Value> {
    let mut command = efa_conformance(&[&["show", "--json"], arguments].concat());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn show_prints_json_for_programs() {
    let path = traces().join("eager-tagged.pcapng").display().to_string();
    let packets = shown(&[&path]);
    assert_eq!(packets.len(), 6);
    let first = &packets[0];
    assert_eq!(first["number"], 1);
    assert_eq!(first["time"], 0);
    assert_eq!(first["host"], "a");
    assert_eq!(first["direction"], "sends");
    assert_eq!(first["type"], "EAGER_TAGRTM");
    assert_eq!(first["fields"]["tag"], 0x1237);
    assert_eq!(first["fields"]["raw_addr.size"], 36);
    assert_eq!(first["fields"]["raw_addr.gid"], first["source"]["gid"]);
    let data = first["fields"]["data"].as_str().unwrap();
    assert_eq!(data.len(), 200);
    assert!(data.bytes().all(|digit| digit.is_ascii_hexdigit()));
}

#[test]
fn show_prints_only_the_selected_packets() {
    let path = traces().join("long-cts.pcapng").display().to_string();
    let all = shown(&[&path]);
    let count = |keep: &dyn Fn(&serde_json::Value) -> bool| all.iter().filter(|p| keep(p)).count();
    let of_type = |packet: &serde_json::Value, name: &str| packet["type"] == name;
    let cts = count(&|packet| of_type(packet, "CTS"));
    let data = count(&|packet| of_type(packet, "CTSDATA"));
    assert!(cts > 0 && data > cts);
    // A part of the name, in any case.
    assert_eq!(shown(&[&path, "--type", "ctsdata"]).len(), data);
    assert_eq!(
        shown(&[&path, "--type", "ctsdata", "--type", "handshake"]).len(),
        data + count(&|packet| of_type(packet, "HANDSHAKE"))
    );
    let at_b = shown(&[&path, "--host", "b"]);
    assert_eq!(at_b.len(), count(&|packet| packet["host"] == "b"));
    assert!(at_b.len() < all.len());
    let some = shown(&[&path, "--packets", "3-5"]);
    let numbers: Vec<u64> = some.iter().filter_map(|p| p["number"].as_u64()).collect();
    assert_eq!(numbers, [3, 4, 5]);
    assert_eq!(shown(&[&path, "--packets", "2"]).len(), 1);
    assert_eq!(shown(&[&path, "--packets", "3-"]).len(), all.len() - 2);
    let at = all
        .iter()
        .find(|packet| of_type(packet, "CTSDATA"))
        .unwrap();
    let offset = format!("seg_offset={}", at["fields"]["seg_offset"]);
    let picked = shown(&[&path, "--type", "CTSDATA", "--field", &offset]);
    assert!(!picked.is_empty() && picked.len() < data, "{picked:?}");
    // An entry of an array, in hexadecimal.
    let extra = |packet: &serde_json::Value| packet["fields"]["extra_info[0]"].as_u64();
    let wanted = all.iter().find_map(extra).unwrap();
    let option = format!("extra_info[0]={wanted:#x}");
    let found = shown(&[&path, "--field", &option]);
    assert_eq!(found.len(), count(&|packet| extra(packet) == Some(wanted)));
    assert!(!found.is_empty());
    // All of several fields must match.
    let none = shown(&[&path, "--field", &offset, "--field", "nextra_p3=4"]);
    assert_eq!(none.len(), 0);
}

#[test]
fn show_reads_standard_input() {
    let path = traces().join("eager-tagged.pcapng");
    let printed = expect(
        efa_conformance(&["show", "-", "--type", "HANDSHAKE"])
            .stdin(std::fs::File::open(path).unwrap()),
        0,
        &[],
    );
    assert!(
        printed.starts_with("packet ") || printed.starts_with("# "),
        "{printed}"
    );
    assert!(!printed.contains("EAGER_TAGRTM"), "{printed}");
}

#[test]
fn show_names_wrong_options_with_the_remedy() {
    let path = traces().join("eager-tagged.pcapng").display().to_string();
    for (option, value, said) in [
        ("--field", "msgid=1", "did you mean `msg_id`?"),
        ("--field", "msg_id", "msg_id=3"),
        ("--field", "msg_id=x", "`x` is not a number"),
        ("--packets", "5-3", "10-20"),
        ("--type", "RECEIPTS", "did you mean `RECEIPT`?"),
        (
            "--host",
            "c",
            "the capture has no host `c`; did you mean `a`?",
        ),
    ] {
        expect(efa_conformance(&["show", &path, option, value]), 2, &[said]);
    }
    let command = efa_conformance(&["show", &path, "--type", "RECEIPT"]);
    expect(command, 0, &["no packet is shown"]);
}

#[test]
fn list_describes_the_traces() {
    let command = efa_conformance(&["list", &traces().display().to_string()]);
    expect(command, 0, &["eager-tagged", "spec 3.2"]);
}

#[test]
fn usage_errors_exit_with_2_and_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, contents: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path.display().to_string()
    };
    let text = file("text.pcapng", b"no capture at all");
    let empty = file("empty.pcapng", b"");
    let orphan = directory.path().join("orphan.pcapng");
    std::fs::copy(traces().join("eager-tagged.pcapng"), &orphan).unwrap();
    let orphan = orphan.display().to_string();
    let typo = file(
        "typo.toml",
        &std::fs::read_to_string(traces().join("eager-tagged.toml"))
            .unwrap()
            .replace("length = 100", "lenght = 100")
            .into_bytes(),
    );
    let corpus = traces().display().to_string();
    let scenario = traces().join("eager-tagged.toml").display().to_string();
    let missing = "./no-such-efa-emu";
    let cases: [(&[&str], &[&str]); 17] = [
        (
            &["report", &text, "--html", "/dev/null"],
            &["text.pcapng is not a report", "--json FILE"],
        ),
        (
            &["report", "no-such-file", "--html", "/dev/null"],
            &["no-such-file: No such file"],
        ),
        (
            &["run", "no-such-directory"],
            &["no-such-directory", "neither"],
        ),
        (
            &["run", &corpus, "--filter", "no-such-trace"],
            &["no-such-trace", "list"],
        ),
        (
            &["run", &corpus, "--backend", "nothing"],
            &["nothing", "emu"],
        ),
        (&["run", &corpus, "--dut", "libfabric"], &["--backend hw"]),
        (
            &[
                "run",
                &corpus,
                "--dut",
                "libfabric",
                "--libfabric",
                "./no-such-library.so",
            ],
            &["efa-conformance: --libfabric ./no-such-library.so: No such file"],
        ),
        (&["run", &text], &["text.pcapng", "not a capture"]),
        (&["run", &orphan], &["orphan.toml is missing"]),
        (&["check", &text], &["text.pcapng", "not a capture"]),
        (&["show", &empty], &["empty"]),
        (&["show", "no-such-file"], &["no-such-file"]),
        (
            &["record", &typo, "-o", &text],
            &["typo.toml:33: lenght", "did you mean `length`?"],
        ),
        (
            &["record", &typo, "-o", &text, "--efa-emu", missing],
            &["typo.toml:33"],
        ),
        (
            &["record", &scenario, "-o", &text, "--efa-emu", missing],
            &["no-such-efa-emu"],
        ),
        (
            &["drive", "libfabric", "--libfabric", "./no-such-library.so"],
            &["no-such-library.so: cannot open", "No such file"],
        ),
        // Another library, which every system has.
        (
            &["drive", "libfabric", "--libfabric", "libm.so.6"],
            &["libm.so.6", "undefined symbol: fi_", "--libfabric PATH"],
        ),
    ];
    for (arguments, expected) in cases {
        expect(efa_conformance(arguments), 2, expected);
    }
}

#[test]
fn hw_backend_without_device_names_the_remedy() {
    let corpus = traces().display().to_string();
    let output = efa_conformance(&["run", &corpus, "--backend", "hw"]).output();
    let (status, printed) = outcome(&output.unwrap());
    if status == Some(0) {
        efa_testing::skip("this machine has an EFA device");
        return;
    }
    assert_eq!(status, Some(2), "{printed}");
    assert_has(&printed, &["efa-emu run --"]);
    let command = efa_conformance(&["run", &corpus, "--backend", "hw", "--jobs", "2"]);
    expect(
        command,
        2,
        &["2 jobs with verbs need emulated devices", "use --jobs 1"],
    );
}

#[test]
fn manual_pages_have_program_date_and_exit_statuses() {
    let share = tempfile::tempdir().unwrap();
    let mut pages = efa_conformance(&["pages", share.path().to_str().unwrap()]);
    expect(pages.env("SOURCE_DATE_EPOCH", "1700000000"), 0, &[]);
    let page = share.path().join("man/man1/efa-conformance-run.1");
    let page = std::fs::read_to_string(page).unwrap();
    let program = concat!("\"efa-conformance ", env!("CARGO_PKG_VERSION"), "\"");
    let title = format!(".TH efa-conformance-run 1 2023-11-14 {program} ");
    let texts = [&title, "\n.SH EXIT STATUS\n", "\n  1  something failed\n"];
    assert_has(&page, &texts);
}
