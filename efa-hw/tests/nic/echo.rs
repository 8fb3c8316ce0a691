//! The example `echo`, with server and client on separate emulated hosts.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use efa_testing::workspace::{built, efa_emu};

/// The example on an emulated host of this test's own fabric.
fn echo(arguments: &[&str]) -> Command {
    let fabric = format!("echo-{}", std::process::id());
    let mut command = efa_emu(&["run", "--fabric", &fabric, "--"]);
    command.arg(built("examples/echo")).args(arguments);
    command
}

#[test]
fn the_server_returns_each_message() {
    let mut server = echo(&[]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut address = String::new();
    let output = server.stdout.take().expect("its output is a pipe");
    BufReader::new(output).read_line(&mut address).unwrap();
    // The second client is another endpoint.
    for text in ["how are you?", "and now?"] {
        let client = echo(&[address.trim(), text]).output().expect("it starts");
        let printed = String::from_utf8_lossy(&client.stdout);
        assert!(client.status.success(), "{client:?}");
        assert_eq!(printed, format!("{text}\n"));
    }
    assert_eq!(server.try_wait().unwrap(), None, "the server goes on");
    // `efa-emu run` passes the signal to the server.
    let stopped = Command::new("kill").arg(server.id().to_string()).status();
    assert!(stopped.expect("kill starts").success());
    server.wait().unwrap();
}
