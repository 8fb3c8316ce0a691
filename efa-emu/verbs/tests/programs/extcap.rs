//! Fabrics as interfaces of Wireshark: the answers of `efa-emu extcap`, and a live capture by
//! `tshark`.

use std::path::Path;
use std::process::Command;

use efa_testing::programs::{Dialogue, Finished, Program, TestFabric, needs, run, succeed, words};
use efa_testing::workspace::{efa_emu, root};

fn extcap(arguments: &[&str]) -> Finished {
    let mut command = efa_emu(&["extcap"]);
    command.args(arguments);
    run(command)
}

#[test]
fn a_running_fabric_is_a_wireshark_interface() {
    let fabric = TestFabric::new();
    let interface = format!("efa-emu-{}", fabric.name());
    let ask = |arguments: &[&str]| {
        let arguments = [&["--extcap-interface", &interface], arguments].concat();
        extcap(&arguments).expect_success("extcap").stdout
    };
    let list = || extcap(&["--extcap-interfaces", "--extcap-version=4.0"]).expect_success("extcap");
    assert!(!list().stdout.contains(&interface));
    let sleepers = ["alpha", "beta"].map(|host| fabric.sleeper(host));
    let sentence = format!(
        "interface {{value={interface}}}{{display=EFA fabric {}: alpha, beta}}",
        fabric.name()
    );
    let interfaces = list().stdout;
    assert!(
        interfaces.lines().any(|line| line == sentence),
        "{interfaces}"
    );
    let always = "interface {value=efa-emu-default}";
    assert!(interfaces.contains(always), "{interfaces}");
    assert!(interfaces.contains("control {number=0}{type=selector}{display=Host}"));
    assert!(interfaces.contains("control {number=1}{type=string}{display=QPN}"));

    let options = ask(&["--extcap-config"]);
    for host in ["alpha", "beta"] {
        let value = format!("value {{arg=0}}{{value={host}}}");
        assert!(options.contains(&value), "{options}");
    }
    assert!(options.contains("{call=--qpn}"), "{options}");
    let answer = ask(&["--extcap-dlts"]);
    assert_eq!(answer, "dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    assert_eq!(ask(&["--extcap-capture-filter", "host alpha and rdm"]), "");
    let reason = ask(&["--extcap-capture-filter", "tcp port 80"]);
    assert!(reason.contains("\"tcp\""), "{reason}");
    drop(sleepers);
}

#[test]
fn unknown_extcap_queries_are_refused() {
    for (arguments, remedy) in [
        (&[][..], "--extcap-interfaces"),
        (&["--extcap-interface", "eth0", "--extcap-dlts"], "\"eth0\""),
        (&["--extcap-interface", "efa-emu-x", "--capture"], "--fifo"),
        (&["--extcap-interface", "efa-emu-x"], "--capture"),
        (
            &words("--extcap-interface efa-emu-x --capture --fifo /no/pipe"),
            "/no/pipe",
        ),
    ] {
        let outcome = extcap(arguments);
        assert_eq!(outcome.code(), 2, "{arguments:?}");
        outcome.expect_stderr(&[remedy]);
    }
}

/// A program with `home` as the user's home directory.
fn in_home(mut command: Command, home: &Path) -> Command {
    command
        .env("HOME", home)
        .env("XDG_CONFIG_HOME", home)
        .env("TMPDIR", home);
    command
}

/// `tshark` lists the fabric and shows a stock program's packets while it runs.
#[test]
fn tshark_captures_a_running_fabric() {
    needs!("fi_pingpong", "libfabric-bin");
    needs!("tshark", "tshark");
    let fabric = TestFabric::new();
    let interface = format!("efa-emu-{}", fabric.name());
    let sleepers = ["alpha", "beta"].map(|host| fabric.sleeper(host));
    let home = tempfile::tempdir().unwrap();
    let install = efa_emu(&["wireshark", "install", "--interfaces-only"]);
    succeed(in_home(install, home.path()), "efa-emu wireshark install");
    let tshark = |arguments: &[&str]| {
        let mut command = Command::new("tshark");
        command.args(arguments);
        Program::start(in_home(command, home.path()))
    };
    let list = tshark(&["-D"]).wait().expect_success("tshark -D").stdout;
    assert!(list.contains(&interface), "{list}");
    let dissector = root().join("wireshark/efa.lua");
    let script = format!("lua_script:{}", dissector.display());
    let options = ["-X", &script, "-i", &interface, "-f", "host beta and rdm"];
    let fields = words("-l -T fields -e frame.interface_name -e _ws.col.Info");
    let capture = tshark(&[&options[..], &fields].concat());
    fabric.wait_for_captures(2);
    let dialogue = Dialogue::pingpong(&fabric, "-I 10 -S 4096");
    dialogue.run(&["--host", "alpha"], &["--host", "beta"]);
    for sleeper in sleepers {
        sleeper.signal(libc::SIGTERM);
        sleeper.wait();
    }
    // The recorder leaves the fabric after its hosts, with all their frames.
    fabric.wait_for_captures(0);
    // tshark drops the unread content of the pipe when it is interrupted.
    capture.wait_for_output(|text| text.matches("EAGER_MSGRTM").count() >= 10);
    capture.signal(libc::SIGINT);
    let outcome = capture.wait().expect_success("tshark");
    for line in outcome.stdout.lines() {
        assert!(line.starts_with("beta\t"), "{line}");
    }
    assert!(!fabric.directory().exists());
}
