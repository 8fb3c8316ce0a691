//! Containers of one pod: they share `/dev/shm` and the network, but each numbers its processes by
//! itself and sees no others in `/proc`.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{Dialogue, Program, TestFabric, files_with, installed, started_by};
use efa_testing::patience::Wait;

const PACKAGE: &str = "libfabric-bin";

/// Starts a program in a pid namespace of its own. Without root this needs a user namespace.
const CONTAINER: [&str; 6] = [
    "unshare",
    "--user",
    "--map-current-user",
    "--pid",
    "--mount-proc",
    "--kill-child",
];

/// Returns whether this system lets the test make containers and has the program; prints why not.
fn can_run(program: &str) -> bool {
    if installed(program, PACKAGE).is_none() {
        return false;
    }
    let [unshare, options @ ..] = CONTAINER;
    let made = Command::new(unshare).args(options).arg("true").output();
    match made {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            println!("skipped: no pid namespaces here: {}", reason.trim());
            false
        }
        Err(error) => {
            println!("skipped: {unshare} does not start: {error}");
            false
        }
    }
}

fn pingpong<'a>(fabric: &'a TestFabric, arguments: &[&'a str]) -> Dialogue<'a> {
    let program = ["fi_pingpong", "-p", "efa", "-e", "rdm"];
    let mut dialogue = Dialogue::new(fabric, &[&program, arguments].concat(), "-B", "-P");
    dialogue.launcher = &CONTAINER;
    dialogue
}

/// 1 MiB travels by RDMA read. Neither process has a number by which the other could reach its
/// memory, so the data has to take the rings.
#[test]
fn rdma_works_between_pid_namespaces() {
    if !can_run("fi_pingpong") {
        return;
    }
    let fabric = TestFabric::new();
    pingpong(&fabric, &["-c", "-I", "3"]).run(&[], &[]);
}

/// `efa-emu run` cleans up behind dead programs. Programs of other containers are not dead because
/// they are not in this container's `/proc`.
#[test]
fn a_new_run_leaves_other_containers_their_shared_memory() {
    if !can_run("fi_pingpong") {
        return;
    }
    let fabric = TestFabric::new();
    let endless = pingpong(&fabric, &["-I", "100000000", "-S", "64"]);
    let server = endless.server(&["--host", "a"]);
    let client = endless.client(&["--host", "b"]);
    let objects = shared_memory_of_two_hosts(&fabric);

    let newcomer = started_by(&CONTAINER, TestFabric::new().host(&["true"]));
    Program::start(newcomer)
        .wait()
        .expect_success("efa-emu run");
    for object in &objects {
        assert!(
            Path::new("/dev/shm").join(object).exists(),
            "{object} of a live program was removed"
        );
    }

    // Both are killed with their containers, and leave their objects to whoever comes next.
    drop((server, client));
    fabric.host(&["true"]).status().expect("efa-emu run starts");
    for object in &objects {
        assert!(
            !Path::new("/dev/shm").join(object).exists(),
            "{object} of a dead program stays"
        );
    }
}

/// The names of libfabric's shared memory objects, once both hosts have one and talk.
fn shared_memory_of_two_hosts(fabric: &TestFabric) -> BTreeSet<String> {
    let wait = Wait::start();
    loop {
        let gids = fabric.gids_with_queue_pairs();
        let objects: Vec<_> = gids
            .iter()
            .map(|gid| files_with(Path::new("/dev/shm"), gid))
            .collect();
        if objects.len() == 2 && objects.iter().all(|of_host| !of_host.is_empty()) {
            return objects.into_iter().flatten().collect();
        }
        wait.pause(|| format!("no endpoints:\n{}", fabric.ps()));
    }
}
