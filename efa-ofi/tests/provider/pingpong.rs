//! Stock programs over the provider: `fi_info` and `fi_pingpong` of the machine's libfabric, which
//! loads the plug-in. Other releases and datagrams are in the group `efa_rs` of `interop`.

use efa_testing::programs::{Dialogue, Program, TestFabric, needs};

const PACKAGE: &str = "libfabric-bin";

/// The number of sizes of messages that the program has.
const SIZES: usize = 46;

/// The directory of the plug-in.
const PLUG_INS: &str = concat!(env!("OUT_DIR"), "/plug-in");

/// Two programs, over these providers, send each other messages of all sizes and check each byte.
#[track_caller]
fn converse(server: &str, client: &str, mode: &str) {
    needs!("fi_pingpong", PACKAGE);
    let program = |provider| {
        let words = ["fi_pingpong", "-p", provider, "-e", "rdm", "-m", mode];
        [&words[..], &["-S", "all", "-c", "-I", "5"]].concat()
    };
    let (fabric, arguments) = (TestFabric::new(), program(server));
    let mut dialogue = Dialogue::new(&fabric, &arguments, "-B", "-P");
    dialogue.client_arguments = Some(program(client));
    let environment = [
        ("FI_PROVIDER_PATH", PLUG_INS),
        ("FI_EFA_ENABLE_SHM_TRANSFER", "0"),
    ];
    dialogue.environment = &environment;
    for outcome in dialogue.run(&[], &[]) {
        let rows = outcome.stdout.lines().filter(|line| {
            // A row: its size, the number of messages, and as many acknowledged.
            let mut words = line.split_whitespace().skip(1);
            words.next() == Some("5") && words.next() == Some("=5")
        });
        assert_eq!(rows.count(), SIZES, "{}", outcome.stdout);
    }
}

#[test]
fn fi_info_shows_the_provider() {
    needs!("fi_info", PACKAGE);
    let fabric = TestFabric::new();
    let mut command = fabric.host(&["fi_info", "-v", "-p", "efa_rs"]);
    command.env("FI_PROVIDER_PATH", PLUG_INS);
    let shown = Program::start(command).wait().expect_success("fi_info");
    for expected in [
        "prov_name: efa_rs",
        "name: efa",
        "name: rdmap0s0-rdm",
        "type: FI_EP_RDM",
        "name: rdmap0s0-dgrm",
        "type: FI_EP_DGRAM",
        "protocol: FI_PROTO_EFA",
        "addr_format: FI_ADDR_EFA",
        "FI_TAGGED",
        "data_progress: FI_PROGRESS_MANUAL",
        "threading: FI_THREAD_SAFE",
        "fi_device_attr:",
    ] {
        assert!(
            shown.stdout.contains(expected),
            "{expected} is not in\n{}",
            shown.stdout
        );
    }
}

#[test]
fn hints_that_cannot_be_met_are_explained() {
    needs!("fi_info", PACKAGE);
    let fabric = TestFabric::new();
    let mut command = fabric.host(&["fi_info", "-p", "efa_rs", "-t", "FI_EP_MSG"]);
    command.env("FI_PROVIDER_PATH", PLUG_INS);
    command.env("FI_LOG_LEVEL", "info");
    let outcome = Program::start(command).wait();
    assert!(!outcome.status.success());
    let expected = "endpoint type 1 is not supported, [3, 2] are";
    assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
}

#[test]
fn two_of_them_send_tagged_and_untagged_messages() {
    converse("efa_rs", "efa_rs", "tagged");
    converse("efa_rs", "efa_rs", "msg");
}

#[test]
fn stock_libfabric_is_a_peer_in_both_directions() {
    converse("efa_rs", "efa", "tagged");
    converse("efa", "efa_rs", "msg");
}
