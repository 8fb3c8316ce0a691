//! Containers of one pod share `/dev/shm` and the network, but each numbers its own processes and
//! sees no others in `/proc`. Containers may also be allowed few system calls.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use efa_testing::patience::Wait;
use efa_testing::programs::{
    Dialogue, TestFabric, files_with, forbid, installed, needs, run, started_by, succeed, words,
};
use efa_testing::workspace::emulator;

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

/// Returns whether this system permits the containers of the test and has the program; prints the
/// reason if not.
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
            efa_testing::skip(format_args!("no pid namespaces here: {}", reason.trim()));
            false
        }
        Err(error) => {
            efa_testing::skip(format_args!("{unshare} does not start: {error}"));
            false
        }
    }
}

/// A dialogue of `fi_pingpong`, each program in a container.
fn pingpong_of_containers<'a>(fabric: &'a TestFabric, options: &'a str) -> Dialogue<'a> {
    let mut dialogue = Dialogue::pingpong(fabric, options);
    dialogue.launcher = &CONTAINER;
    dialogue
}

/// No user namespaces, no file systems, and no system calls by which a process accesses another
/// one's memory: 1 MiB by RDMA read uses the rings.
#[test]
fn a_kernel_that_permits_little_is_enough() {
    needs!("fi_pingpong", PACKAGE);
    forbid(&[
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_ptrace,
        libc::SYS_pidfd_getfd,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_fsopen,
    ]);
    // SAFETY: names no memory.
    let read = unsafe {
        let own = libc::getpid();
        libc::process_vm_readv(own, std::ptr::null(), 0, std::ptr::null(), 0, 0)
    };
    let error = std::io::Error::last_os_error();
    assert_eq!((read, error.raw_os_error()), (-1, Some(libc::ENOSYS)));
    let fabric = TestFabric::new();
    Dialogue::pingpong(&fabric, "-c -I 3").run(&[], &[]);
}

/// 1 MiB is transferred by RDMA read. Neither process has a process id by which the other could
/// access its memory, so the data uses the rings.
#[test]
fn rdma_works_between_pid_namespaces() {
    if !can_run("fi_pingpong") {
        return;
    }
    let fabric = TestFabric::new();
    pingpong_of_containers(&fabric, "-c -I 3").run(&[], &[]);
}

/// A container of an image: a root directory with only the files of some programs, the files that
/// engines add to each container, and the directory of the emulator, mounted at another path as
/// with `-v`. The words of `INSIDE` run there without the outer environment.
const IMAGE: &str = r#"
    image=$1 emulator=$2
    mkdir -p "$image/bin" "$image/dev" "$image/opt/efa" "$image/proc" "$image/sys" "$image/tmp"
    for program in ibv_devinfo ibv_devices sh env; do
        path=$(command -v $program)
        cp --dereference $path "$image/bin"
        for library in $(ldd $path "$emulator" | grep -o '/[^ ]*\.so[^ ]*'); do
            cp --parents --dereference --update $library "$image"
        done
    done
    [ "$ROOT" = chroot ] || mount --bind "$image" "$image"
    for directory in dev proc sys; do mount --rbind /$directory "$image/$directory"; done
    mount --bind "${emulator%/*}" "$image/opt/efa"
    exec env -i PATH="$PATH" unshare --root "$image" sh -euc "$INSIDE"
"#;

/// With the emulator inside of the container the device is present, in a list and in `/sys`. If the
/// emulator is started outside, the run reports that no program used the device, whatever the
/// container keeps of its environment.
#[test]
fn programs_of_an_image_see_the_device() {
    if !can_run("ibv_devinfo") {
        return;
    }
    let image = tempfile::tempdir().unwrap();
    let rooted = |root: &str, inside: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount"])
            .args(["sh", "-euc", IMAGE, "sh"])
            .args([image.path(), &emulator()])
            .envs([("ROOT", root), ("INSIDE", inside)]);
        command
    };
    let container = |inside: &str| rooted("mounted", inside);
    let fabric = TestFabric::new();
    let name = fabric.name();
    let inside = format!(
        "/opt/efa/efa-emu run --fabric {name} -- ibv_devinfo
         /opt/efa/efa-emu run --fabric {name} --sysfs -- sh -c 'read state </sys/class/infiniband/rdmap0s0/ports/1/state
             echo state $state'"
    );
    let seen = succeed(container(&inside), "inside");
    let printed = words(&seen.stdout).join(" ");
    for expected in [
        "hca_id: rdmap0s0",
        "vendor_part_id: 61346",
        "state 4: ACTIVE",
    ] {
        assert!(printed.contains(expected), "{expected} is not in {seen:?}");
    }
    assert_eq!(seen.stderr, "");

    let outside = started_by(
        &[emulator().to_str().unwrap(), "run", "--fabric", name, "--"],
        container("ibv_devices"),
    );
    let unseen = run(outside);
    assert!(!unseen.stdout.contains("rdmap0s0"), "{unseen:?}");
    unseen.expect_stderr(&["no process was seen to ask for devices"]);

    let inside = format!("/opt/efa/efa-emu run --fabric {name} --sysfs -- true");
    let refused = run(rooted("chroot", &inside));
    refused.expect_refusal(&["--sysfs", "in a chroot, bind the directory to itself"]);
}

/// `efa-emu run` removes the files of dead programs. Programs of other containers are not dead
/// because they are not in this container's `/proc`.
#[test]
fn a_run_keeps_other_containers_shared_memory() {
    if !can_run("fi_pingpong") {
        return;
    }
    let fabric = TestFabric::new();
    let endless = pingpong_of_containers(&fabric, "-I 100000000 -S 64");
    let server = endless.server(&["--host", "a"]);
    let client = endless.client(&["--host", "b"]);
    let objects = shared_memory_of_two_hosts(&fabric);

    let newcomer = started_by(&CONTAINER, TestFabric::new().host(&["true"]));
    succeed(newcomer, "efa-emu run");
    for object in &objects {
        assert!(
            Path::new("/dev/shm").join(object).exists(),
            "{object} of a live program was removed"
        );
    }

    // Both are killed with their containers, which the kernel does some time after the containers'
    // end, and leave their objects to the next run.
    drop((server, client));
    let wait = Wait::start();
    while !fabric.gids_with_queue_pairs().is_empty() {
        wait.pause(|| format!("they live:\n{}", fabric.ps()));
    }
    // Nothing is removed while a fabric of this user cannot be read, such as a fabric that is being
    // removed.
    let stays = || {
        let mut objects = objects.iter();
        objects.any(|object| Path::new("/dev/shm").join(object).exists())
    };
    while stays() {
        fabric.host(&["true"]).status().expect("efa-emu run starts");
        wait.check(|| "objects of dead programs stay".into());
    }
}

/// The names of libfabric's shared memory objects, once both hosts have one and communicate.
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
