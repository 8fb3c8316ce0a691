//! `examples/eager.c`, a driver in C over plain verbs: built as its README says, and tested by the
//! suite.
//!
//! Needs `efa-emu` beside the program (`cargo build --workspace`), a C compiler and rdma-core's
//! headers; without compiler or headers the tests print a message.

use std::process::Command;

use efa_testing::workspace::{conformance, efa_conformance_on_host, expect, root};

/// The traces of eager messages and handshakes.
const EAGER: [&str; 13] = [
    "burst-before-handshake",
    "cq-data",
    "eager-tagged",
    "eager-untagged",
    "handshake-raw-address",
    "inject",
    "ping-pong",
    "truncation",
    "two-senders",
    "unexpected-tagged",
    "unexpected-untagged",
    "unknown-sender",
    "zero-length",
];
/// Traces of other subprotocols, and the program's message about what it does not support.
const OTHERS: [(&str, &str); 5] = [
    ("delivery-complete", "delivery complete"),
    ("long-cts", "long messages"),
    ("medium-untagged", "packets of type"),
    ("read-emulated", " read :"),
    ("write-emulated", " register :"),
];

/// The README's commands: one compiles, the other runs the program.
fn commands() -> [String; 2] {
    let path = root().join("conformance/examples/README.md");
    let text = std::fs::read_to_string(path).unwrap();
    let block = text.split("```").nth(1).unwrap();
    let lines: Vec<&str> = block.trim().lines().collect();
    let [compile, run] = lines[..] else {
        panic!("{lines:?}");
    };
    [compile.to_owned(), run.to_owned()]
}

#[test]
fn it_is_short() {
    let path = root().join("conformance/examples/eager.c");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.lines().count() < 300);
    assert!(text.lines().all(|line| line.len() <= 100));
}

#[test]
fn it_passes_eager_cases_in_every_role() {
    let conformance = conformance();
    let programs = conformance.parent().unwrap();
    let [compile, run] = commands();
    let directory = tempfile::tempdir().unwrap();
    let shell = |command: &str| {
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new("sh")
            .args(["-ec", command])
            .current_dir(directory.path())
            .env("PATH", format!("{}:{path}", programs.display()))
            .output()
            .unwrap()
    };
    // The README's commands expect a checkout.
    for name in ["conformance", "traces"] {
        std::os::unix::fs::symlink(root().join(name), directory.path().join(name)).unwrap();
    }
    let output = shell(&compile);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("efadv.h: No such file") || said.contains("cc: not found") {
        return efa_testing::skip(format_args!(
            "no C compiler, or rdma-core's headers are not installed: {said}"
        ));
    }
    assert!(output.status.success() && said.is_empty(), "{said}");
    let traces = EAGER
        .iter()
        .chain(OTHERS.iter().map(|(name, _)| name))
        .map(|name| format!(" traces/{name}.pcapng"))
        .collect::<String>();
    // Some traces in place of the whole corpus.
    let (before, behind) = run.split_once("efa-conformance run").unwrap();
    let run = format!("{before}efa-conformance run{traces}{behind} --json results.json");
    let output = shell(&run);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let results = std::fs::read(directory.path().join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_slice(&results).unwrap();
    assert_eq!(results["under_test"]["name"], "eager.c");
    let cases = results["cases"].as_array().unwrap();
    let of = |name: &str| -> Vec<&serde_json::Value> {
        cases.iter().filter(|case| case["trace"] == name).collect()
    };
    for name in EAGER {
        let cases = of(name);
        assert!(cases.len() >= 2, "{name}");
        for case in cases {
            assert_eq!(case["result"], "passed", "{case}");
        }
    }
    for (name, reason) in OTHERS {
        let cases = of(name);
        assert!(cases.len() >= 2, "{name}");
        for case in &cases {
            assert_eq!(case["result"], "unsupported", "{case}");
        }
        let named = cases.iter().any(|case| {
            case["reason"]
                .as_str()
                .is_some_and(|text| text.contains(reason))
        });
        assert!(named, "{name}: {reason}: {cases:?}");
    }
}

/// The report of a case in which the example does something wrong when a receive completes: a
/// statement before `complete`, and an option of the compiler. `under`: the command that runs it,
/// if any; `patience`: its answer time in seconds. What only the application sees is the last rung
/// of the ladder, after the case's packets.
fn expect_last_rung(fault: &str, option: &str, under: &str, patience: &str, texts: &[&str]) {
    let source = root().join("conformance/examples/eager.c");
    let source = std::fs::read_to_string(source).unwrap();
    let before = "complete(receive, message), *to";
    assert_eq!(source.matches(before).count(), 1);
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let faulty = source.replace(before, &format!("{fault}, {before}"));
    std::fs::write(at("faulty.c"), faulty).unwrap();
    let compile = "cc -g -o faulty faulty.c -libverbs -lefa";
    let compiled = Command::new("sh")
        .args(["-c", &format!("{compile} {option}")])
        .current_dir(directory.path())
        .output()
        .unwrap();
    if !compiled.status.success() {
        let said = String::from_utf8_lossy(&compiled.stderr);
        return efa_testing::skip(format_args!("{compile} {option}: {said}"));
    }
    let mut run = efa_conformance_on_host(&[], &["run"]);
    run.arg(root().join("traces/eager-tagged.pcapng"));
    run.args(["--backend", "hw", "--answer-time", patience, "--dut"]);
    run.arg(format!("exec:{under} {}", at("faulty").display()));
    run.arg("--html").arg(at("report.html"));
    run.arg("--captures").arg(at("captures"));
    let printed = expect(run, 1, texts);
    assert!(printed.contains("1 passed, "), "{printed}");
    let page = std::fs::read_to_string(at("report.html")).unwrap();
    // The failed case comes first.
    let ladder = page.split("\"ladder diagram\"").nth(1).unwrap();
    let (ladder, _) = ladder.split_once("</svg>").unwrap();
    let (rungs, last) = ladder.rsplit_once("<rect").unwrap();
    assert!(rungs.contains("EAGER_TAGRTM"), "{ladder}");
    let begin: String = texts[0].chars().take(40).collect();
    assert!(last.contains("✗") && last.contains(&begin), "{ladder}");
}

#[test]
fn a_sanitiser_crash_is_the_last_rung() {
    let texts = [
        "polling failed: the process of endpoint `b` ended early (exit status: 1)",
        "AddressSanitizer: heap-use-after-free",
        " in complete",
    ];
    expect_last_rung(
        "free(message->bytes)",
        "-fsanitize=address",
        "",
        "60",
        &texts,
    );
}

/// The program answers everything: only its exit status says that something was wrong.
#[test]
fn what_valgrind_finds_is_the_last_rung() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return efa_testing::skip("valgrind is not installed");
    }
    let manual = std::fs::read_to_string(root().join("docs/driver.md")).unwrap();
    let (_, options) = manual.split_once("With valgrind: `").unwrap();
    let (options, _) = options.split_once('`').unwrap();
    let texts = [
        "the process of endpoint `b` answered everything, but when its input had ended it ended with \
         exit status: 9",
        "Invalid read of size 1",
        ": progress (faulty.c:",
    ];
    let under = format!("valgrind {options}");
    expect_last_rung("free(message->bytes)", "-O0", &under, "60", &texts);
}

#[test]
fn wrong_bytes_are_the_last_rung() {
    let text = "`question-arrives`: bytes: expected those of the message, actual byte 7 is ";
    expect_last_rung("message->bytes[7] ^= 1", "-O2", "", "60", &[text]);
}

#[test]
fn a_hang_is_the_last_rung() {
    let text =
        "polling failed: the process of endpoint `b` did not answer `{\"poll\":{}}` within 5s";
    // It ends when its input does: the suite waits five seconds for one that does not.
    let fault = "({ while (getchar() != EOF); exit(0); })";
    expect_last_rung(fault, "-O2", "", "5", &[text]);
}
