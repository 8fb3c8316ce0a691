//! The output of `efa-emu` with `--json`: the documented fields, with the values of the fabric.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use efa_testing::json::assert_documented;
use efa_testing::programs::{Dialogue, TestFabric, needs, run, succeed, words};
use efa_testing::workspace::efa_emu;
use serde_json::Value;

#[track_caller]
fn printed(arguments: &[&str]) -> Value {
    let outcome = run(efa_emu(arguments));
    let text = outcome.expect_success("a command with --json").stdout;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn profiles() {
    let profiles = printed(&["profiles", "--json"]);
    assert_documented("efa-emu profiles", std::slice::from_ref(&profiles), &[]);
    let of = |name: &str| {
        let mut all = profiles.as_array().unwrap().iter();
        all.find(|profile| profile["name"] == name).unwrap().clone()
    };
    assert_eq!(of("efa2")["is_default"], true);
    assert_eq!(of("efa0")["is_default"], false);
    let attributes = of("efa1")["attributes"].as_array().unwrap().clone();
    let part = attributes
        .iter()
        .find(|attribute| attribute["name"] == "vendor_part_id");
    assert_eq!(part.unwrap()["value"], "0xefa1");
    let one = printed(&["profiles", "efa3", "--json"]);
    assert_eq!(one.as_array().unwrap().len(), 1);
}

#[test]
fn rules() {
    let fabric = TestFabric::new();
    let _host = fabric.sleeper("alpha");
    let fault = |arguments: &[&str]| {
        let all = [&["fault", "--fabric", fabric.name()], arguments].concat();
        succeed(efa_emu(&all), "fault")
    };
    let list = ["fault", "--fabric", fabric.name(), "list", "--json"];
    assert_eq!(printed(&list), Value::Array(Vec::new()));
    fault(&[
        "add",
        "label = \"late\", when = { packet = \"HANDSHAKE\" }, then = \"hold\"",
    ]);
    let rules = printed(&list);
    assert_documented("efa-emu fault list", std::slice::from_ref(&rules), &[]);
    assert_eq!(rules[0]["label"], "late");
    assert_eq!(rules[0]["held"], 0);
    // The printed rules can be added again.
    fault(&["clear"]);
    fault(&["add", rules[0]["rule"].as_str().unwrap()]);
    assert_eq!(printed(&list), rules);
}

/// While two programs communicate, and wait for a receive that one of them posts late.
#[test]
fn hosts_and_their_counters() {
    needs!("ib_send_bw", "perftest");
    let fabric = TestFabric::new();
    let arguments = words("ib_send_bw -c SRD -x 0 --run_infinitely -D 1");
    let dialogue = Dialogue::new(&fabric, &arguments, "-p", "-p");
    let server = dialogue.server(&["--host", "server"]);
    let client = dialogue.client(&["--host", "client", "--rnr", "0.1"]);
    let mut follow = efa_emu(&["stats", "--fabric", fabric.name(), "--host", "client"])
        .args(["--follow", "--interval", "100ms", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = |stats: &Value| stats[0]["port_hw_counters"]["tx_pkts"].as_u64();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let mut looks: Vec<Value> = Vec::new();
    while looks.last().and_then(sent).unwrap_or(0) < 1000 {
        looks.push(serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
    }
    let values: Vec<_> = looks.iter().map(sent).collect();
    assert!(
        values.is_sorted() && values.first() < values.last(),
        "{values:?}"
    );
    drop(lines);
    // The reader has closed the pipe.
    assert!(follow.wait().unwrap().success());

    let stats = printed(&["stats", "--fabric", fabric.name(), "--json"]);
    assert_documented("efa-emu stats", &[stats.clone(), looks.pop().unwrap()], &[]);
    assert_eq!(stats[0]["host"], "client");
    assert_eq!(stats.as_array().unwrap().len(), 2);

    let ps = printed(&["ps", "--fabric", fabric.name(), "--json"]);
    assert_documented("efa-emu ps", std::slice::from_ref(&ps), &[]);
    let device = &ps[1];
    let answer = (&device["host"], &device["device"]);
    assert_eq!(answer, (&"server".into(), &0.into()));
    assert_eq!(device["profile"], "efa2");
    let processes = device["processes"].as_array().unwrap();
    let open: Vec<_> = processes
        .iter()
        .filter(|process| process["has_device"] == true)
        .collect();
    assert_eq!((processes.len(), open.len()), (2, 1), "{ps:#}");
    assert_eq!(open[0]["queue_pairs"].as_array().unwrap().len(), 1);
    for program in [client, server] {
        program.signal(libc::SIGKILL);
        program.wait();
    }
}
