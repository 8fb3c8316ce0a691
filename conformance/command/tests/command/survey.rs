//! `survey` measures the actual behaviour of the emulated device, and the emulator reproduces what
//! a survey has measured.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use efa_doctor::survey;
use efa_testing::workspace::{conformance, efa_conformance, efa_emu, expect, root};

/// `survey` on an emulated host with these options, on a fabric of its own.
fn survey_on(fabric: &str, options: &[&str], arguments: &[&str]) -> Command {
    let fabric = format!("survey-{fabric}-{}", std::process::id());
    let mut command: Command = efa_emu(&["run", "--quiet", "--fabric", &fabric]);
    command
        .args(options)
        .arg("--")
        .arg(conformance())
        .arg("survey")
        .args(arguments);
    command
}

/// The answer to an experiment.
#[track_caller]
fn answer<'a>(text: &'a str, experiment: &str) -> &'a str {
    let mut lines = text.lines();
    let line = lines.find(|line| {
        line[11..]
            .trim_start()
            .starts_with(&format!("{experiment} "))
    });
    line.unwrap_or_else(|| panic!("{experiment}: {text}"))
}

/// Every answer is the assumed one, except times, which a busy machine makes longer.
#[track_caller]
fn all_as_assumed(command: Command, texts: &[&str]) {
    let text = expect(command, 0, texts);
    assert_eq!(
        text.lines().count(),
        survey::EXPERIMENTS.len() + lines_around(&text),
        "{text}"
    );
    let others = text
        .lines()
        .filter(|line| !line.contains(" not-ready-wait "));
    let others: Vec<_> = others
        .filter(|line| line.starts_with("DIFFERENT"))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// The first line, the summary, and the name of the file if one was written.
fn lines_around(text: &str) -> usize {
    2 + usize::from(text.contains("\nwrote "))
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}

/// The model behaves as it documents, and its survey is a profile with which it behaves the same
/// again.
#[test]
fn a_survey_of_each_profile_gives_that_profile() {
    let directory = tempfile::tempdir().unwrap();
    for profile in ["efa0", "efa1", "efa2", "efa3"] {
        let file = path(directory.path(), &format!("{profile}.toml"));
        let survey = survey_on(profile, &["--profile", profile], &["-o", &file]);
        all_as_assumed(survey, &[]);
        // Compared with the built-in profile, and with the file.
        let again = survey_on(profile, &["--profile", &file], &["--against", profile]);
        all_as_assumed(again, &[]);
        let again = survey_on(profile, &["--profile", &file], &["--against", &file]);
        all_as_assumed(again, &[]);
    }
}

/// Each answer that a profile can contain follows the profile: none only depends on the part id.
#[test]
fn survey_learns_the_values_of_another_profile() {
    let directory = tempfile::tempdir().unwrap();
    let changed = path(directory.path(), "changed.toml");
    let text = "name = \"changed\"\nbase = \"efa2\"\nhw_version = 0xefff\nfirmware = \"9.8.7.6\"\n\
                mtu = 4096\nmax_sq_wr = 2048\nmax_rq_wr = 8192\nmax_sq_sge = 1\nmax_rq_sge = 2\n\
                inline_size = 16\nmax_rdma_size = 1048576\nmax_qp = 512\nmax_cq = 100\nmax_cqe = 4096\n\
                max_mr = 1000\nmax_mr_size = 1073741824\nmax_pd = 99\nmax_ah = 77\ncomp_vectors = 3\n\
                device_caps = 15\nqpn_reuse = \"oldest\"\nrnr_first_us = 20000\nrnr_longest_us = 20000\n\
                [statuses]\nunknown_queue_pair = 8\nwrong_qkey = 12\nunknown_key = 11\noutside_region = 14\n\
                forbidden_access = 18\nunknown_peer = 9\n";
    std::fs::write(&changed, text).unwrap();
    let measured = path(directory.path(), "measured.toml");
    let survey = survey_on("changed", &["--profile", &changed], &["-o", &measured]);
    let text = expect(survey, 0, &[]);
    for (experiment, expected) in [
        ("hw-ver", "61439"),
        ("fw-ver", "9.8.7.6"),
        ("max-msg-sz", "4096"),
        ("max-sq-wr", "2048"),
        ("max-rq-wr", "8192"),
        ("max-rq-sge", "2"),
        ("inline-buf-size", "16"),
        ("max-rdma-size", "1048576"),
        ("max-qp", "512"),
        ("max-cq", "100"),
        ("max-cqe", "4096"),
        ("max-mr", "1000"),
        ("max-mr-size", "1073741824"),
        ("max-pd", "99"),
        ("max-ah", "77"),
        ("comp-vectors", "3"),
        ("device-caps", "15"),
        ("qpn-reuse", "oldest"),
        ("unknown-queue-pair", "status 8 "),
        ("wrong-qkey", "status 12 "),
        ("unknown-key", "status 11 "),
        ("stale-key", "status 11 "),
        ("outside-region", "status 14 "),
        ("forbidden-access", "status 18 "),
        ("unknown-peer", "status 9 "),
        ("unsolicited-write", "the device has no unsolicited writes"),
    ] {
        let line = answer(&text, experiment);
        assert!(
            line.starts_with("DIFFERENT") && line.contains(expected),
            "{line}"
        );
    }
    assert!(
        answer(&text, "not-ready-wait").starts_with("DIFFERENT"),
        "{text}"
    );
    // The time is longer on a busy machine, and never shorter.
    let learned: toml::Table = std::fs::read_to_string(&measured).unwrap().parse().unwrap();
    let wait = learned["rnr_first_us"].as_integer().unwrap();
    assert!((20_000..2_000_000).contains(&wait), "{wait}");
    // The measured profile equals the changed one in everything that can be measured.
    for (one, other) in [(&measured, &changed), (&changed, &measured)] {
        let survey = survey_on("changed", &["--profile", one], &["--against", other]);
        all_as_assumed(survey, &[]);
    }
}

/// Answers that depend on the host instead of the profile are measured too.
#[test]
fn answers_are_of_the_device_as_it_is() {
    for (fabric, options, experiment, expected) in [
        (
            "served",
            &["--serve-unknown-peers"][..],
            "unknown-peer",
            "status 0 ",
        ),
        ("random", &["--qpn-reuse", "random"], "qpn-reuse", "random"),
        (
            "paths",
            &["--paths", "16", "--latency", "50us"],
            "arrival-order",
            "not in order",
        ),
    ] {
        let text = expect(survey_on(fabric, options, &["--only", experiment]), 0, &[]);
        assert!(answer(&text, experiment).contains(expected), "{text}");
    }
}

/// `survey` with its sides on two hosts of a cluster that has these options.
fn survey_between(fabric: &str, cluster: &[&str], arguments: &[&str]) -> Command {
    let fabric = format!("survey-{fabric}-{}", std::process::id());
    let own = conformance();
    let path = format!(
        "{}:{}",
        own.parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command: Command = efa_emu(&["cluster", "2", "--quiet", "--fabric", &fabric]);
    command.env("PATH", path).args(cluster).arg("--");
    command.arg(own).args(["survey", "--rsh", "efa-emu rsh"]);
    command.args(arguments);
    command
}

const SIDES: [&str; 4] = ["--at", "a=node0", "--at", "b=node1"];

/// Both sides behave as on one host, and the profile is the same.
#[test]
fn a_survey_between_two_hosts_gives_the_profile() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(directory.path(), "between.toml");
    let profile = path(directory.path(), "changed.toml");
    let text = "name = \"changed\"\nbase = \"efa2\"\nqpn_reuse = \"oldest\"\n[statuses]\nwrong_qkey = 12\n\
                unknown_key = 11\nforbidden_access = 18\nunknown_peer = 9\n";
    std::fs::write(&profile, text).unwrap();
    let output = [&SIDES[..], &["-o", &file, "--against", &profile]].concat();
    let survey = survey_between("profile", &["--profile", &profile], &output);
    let sides = "rdmap0s0 of node0 to rdmap0s0 of node1, part id 0xefa2";
    all_as_assumed(survey, &[sides]);
    let learned: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    assert_eq!(
        learned["statuses"]["forbidden_access"].as_integer(),
        Some(18)
    );
    assert_eq!(learned["qpn_reuse"].as_str(), Some("oldest"));
}

/// Requests to the other side reach the other host.
#[test]
fn survey_sides_run_on_the_named_hosts() {
    let directory = tempfile::tempdir().unwrap();
    let faults = path(directory.path(), "faults.toml");
    let rule = "[[fault]]\nwhen = { on = \"request\", sender = \"node1\", receiver = \"node0\" }\n\
                then = { status = \"remote-abort\" }\n";
    std::fs::write(&faults, rule).unwrap();
    let refused = |sides: &[&str]| {
        let only = ["--only", "stale-key", "--only", "qpn-reuse"];
        let survey = survey_between("sides", &["--faults", &faults], &[sides, &only].concat());
        answer(&expect(survey, 0, &[]), "stale-key").contains("status 8 ")
    };
    assert!(refused(&["--at", "a=node1", "--at", "b=node0"]));
    assert!(!refused(&SIDES));
}

#[test]
fn a_lost_or_unfit_side_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let file = path(directory.path(), name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        file
    };
    // The side ends after its second answer.
    let lost = script(
        "lost",
        "case \"$1 $EFA_EMU_HOST\" in place*|*node0) exec efa-conformance \"$@\";; esac\n\
         efa-conformance \"$@\" | { sed -u 2q; kill -KILL $$; }",
    );
    let only = ["--only", "not-ready", "--only", "known-sender"];
    let words = [&only[..], &["--remote-program", &lost]].concat();
    let command = survey_between("lost", &[], &[&SIDES[..], &words].concat());
    expect(command, 1, &["the connection to node1 ended"]);
    // The name of each host is its generation.
    let fabric = format!("survey-unfit-{}", std::process::id());
    let emulator = efa_testing::workspace::emulator();
    let shell = script(
        "shell",
        &format!(
            "host=$1; shift; exec {} run --quiet --fabric {fabric} --host $host --profile $host -- sh -c \"$*\"",
            emulator.display()
        ),
    );
    let program = conformance().display().to_string();
    let words = [
        "survey", "--at", "a=efa1", "--at", "b=efa2", "--rsh", &shell,
    ];
    let mut command = efa_conformance(&words);
    command.args(["--remote-program", &program]);
    expect(command, 2, &["a profile is of one generation"]);
    for wrong in [&["--at", "a=node0"][..], &["--at", "a=x", "--at", "c=y"]] {
        let words = [&["survey"], wrong].concat();
        expect(efa_conformance(&words), 2, &["name both"]);
    }
}

#[test]
fn mistakes_are_reported_with_the_valid_values() {
    for (arguments, expected) in [
        (&["--only", "everything"][..], "--list"),
        (&["--against", "efa9"], "efa0, efa1"),
        (&["--device", "mlx5_0"], "mlx5_0"),
    ] {
        expect(survey_on("mistakes", &[], arguments), 2, &[expected]);
    }
    let missing = efa_emu(&["run", "--profile", "none.toml", "--", "true"]);
    expect(missing, 2, &["none.toml"]);
}

#[test]
fn the_checklist_is_made_from_the_experiments() {
    let page = std::fs::read_to_string(root().join("docs/hardware-checklist.md")).unwrap();
    let printed = efa_conformance(&["survey", "--list"]).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(printed, survey::checklist());
    assert!(
        page.contains(&printed),
        "docs/hardware-checklist.md: its table is what `efa-conformance survey --list` prints:\n{printed}"
    );
}
