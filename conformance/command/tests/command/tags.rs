//! Traces of tag matching, in the simulator and over verbs.

use efa_testing::workspace::{
    conformance, efa_conformance, efa_conformance_on_host, expect, traces,
};

#[test]
fn tag_matching_is_played_on_both_backends() {
    let directory = traces().join("tag-matching").display().to_string();
    let fabric = format!("tags-{}", std::process::id());
    let options = ["--profile", "tm", "--fabric", &fabric];
    let arguments = ["run", &directory, "--backend", "all", "--seeds", "2"];
    let expected = [
        "PASS  list                             emu ",
        "PASS  pyverbs-rendezvous               hw ",
        "same outcome under 2 seeds",
        "12 passed, 0 codec only, 0 skipped, 0 unsupported, 0 known, 0 failed",
    ];
    let text = expect(efa_conformance_on_host(&options, &arguments), 0, &expected);
    assert!(!text.contains("0 packets compared"), "{text}");
}

/// An EFA device matches no tags; then no case is reported as passed.
#[test]
fn tag_matching_needs_its_device() {
    let trace = traces()
        .join("tag-matching/list.pcapng")
        .display()
        .to_string();
    let fabric = format!("no-tags-{}", std::process::id());
    let arguments = ["run", &trace, "--backend", "hw"];
    let expected = [
        "unsupported: no device matches tags",
        "--profile tm",
        "0 passed",
    ];
    let command = efa_conformance_on_host(&["--fabric", &fabric], &arguments);
    expect(command, 0, &expected);
    let other = traces().join("eager-tagged.pcapng").display().to_string();
    let mut command = efa_conformance_on_host(
        &["--profile", "tm", "--fabric", &fabric],
        &["run", &other, "--backend", "hw"],
    );
    command.arg("--dut").arg("core");
    expect(command, 2, &["no EFA device"]);
}

/// Cases that are left out are reported with the reason, and counted.
#[test]
fn tag_matching_is_left_out_with_a_reason() {
    let names = ["eager-tagged.pcapng", "tag-matching/list.pcapng"];
    let [eager, list] = names.map(|name| traces().join(name).display().to_string());
    let fabric = format!("tags-left-out-{}", std::process::id());
    let dut = format!("exec:'{}' drive core", conformance().display());
    let words = ["run", &eager, &list, "--backend", "hw", "--dut", &dut];
    let expected = [
        "SKIP  list                             hw   device as all: in tag matching devices are under test",
        "2 passed, 0 codec only, 1 skipped, 0 unsupported, 0 known, 0 failed",
    ];
    let command = efa_conformance_on_host(&["--fabric", &fabric], &words);
    expect(command, 0, &expected);
}

#[test]
fn tag_matching_is_listed() {
    let directory = traces().join("tag-matching").display().to_string();
    let expected = ["list                             What a device does with its list of tags"];
    expect(efa_conformance(&["list", &directory]), 0, &expected);
    let expected = [r#""name":"written""#];
    expect(
        efa_conformance(&["list", &directory, "--json"]),
        0,
        &expected,
    );
}
