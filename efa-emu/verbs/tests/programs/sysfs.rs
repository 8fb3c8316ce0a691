//! `--sysfs`: programs that read `/sys` and `/dev` themselves find the emulated devices there, and
//! all files of the machine.

use std::process::Command;

use efa_testing::programs::{Finished, TestFabric, needs, run, started_by};
use efa_testing::workspace::{efa_emu, emulator};

/// Runs the command; `None`, and a line with the reason, if the system permits no mount namespaces.
fn run_if_permitted(command: Command) -> Option<Finished> {
    let outcome = run(command);
    if outcome.code() == 2 && outcome.stderr.contains("--sysfs") {
        efa_testing::skip(&outcome.stderr);
        return None;
    }
    Some(outcome)
}

/// The same command without the right to mount, as a user other than root.
fn without_rights(command: Command) -> Command {
    started_by(&["setpriv", "--bounding-set", "-sys_admin"], command)
}

/// The files of two devices that a monitoring program reads.
const LOOKS: &str = r#"
    cd /sys/class/infiniband
    echo *
    for device in *; do
        cat $device/ports/1/state $device/device/vendor
        basename $(readlink $device/device/driver)
        address=$(basename $(readlink -f $device/device))
        test -d /sys/bus/pci/devices/$address/infiniband/$device
    done
    echo /sys/class/infiniband_verbs/uverbs*
    for node in /dev/infiniband/*; do test -c $node && echo $node; done
"#;

const SEEN: &str = "rdmap16s27 rdmap20s27\n4: ACTIVE\n0x1d0f\nefa\n4: ACTIVE\n0x1d0f\nefa\n\
                    /sys/class/infiniband_verbs/uverbs0 /sys/class/infiniband_verbs/uverbs1\n\
                    /dev/infiniband/uverbs0\n/dev/infiniband/uverbs1\n";

#[test]
fn devices_are_where_monitoring_programs_look() {
    needs!("setpriv", "util-linux");
    let fabric = TestFabric::new();
    let looks = || fabric.run(&["--sysfs", "--devices", "2", "--", "sh", "-euc", LOOKS]);
    for command in [without_rights(looks()), looks()] {
        let Some(outcome) = run_if_permitted(command) else {
            return;
        };
        let outcome = outcome.expect_success("it looks at /sys and /dev");
        assert_eq!(outcome.stdout, SEEN);
        // Programs that read these files leave no mark, so the run reports nothing.
        assert_eq!(outcome.stderr, "");
    }
}

/// The terminal's device makes terminals in the directory where it was opened.
#[test]
fn programs_get_terminals() {
    needs!("script", "bsdutils");
    let terminal = "script -qec 'test -t 1 && echo typed' /dev/null </dev/null";
    let of_run = TestFabric::new().run(&["--sysfs", "--quiet", "--", "sh", "-c", terminal]);
    let fabric = TestFabric::new();
    let mut of_host = efa_emu(&["cluster", "1", "--fabric", fabric.name(), "--quiet"]);
    of_host.args(["--", "ssh", "node0", terminal]);
    for command in [of_run, of_host] {
        let Some(outcome) = run_if_permitted(command) else {
            return;
        };
        let outcome = outcome.expect_success("it has a terminal");
        assert_eq!(outcome.stdout, "typed\r\n");
    }
}

/// The other files of the machine are unchanged, inside and outside.
#[test]
fn other_files_of_the_machine_are_unchanged() {
    let fabric = TestFabric::new();
    let script = "ls /sys /sys/class/net /sys/class /sys/bus/pci/devices /sys/devices /dev 2>/dev/null; \
                  cat /sys/class/net/lo/mtu; echo x >/dev/null; ls /dev/shm";
    let listing = |outcome: Finished| {
        let lines = outcome.stdout.lines().map(str::to_owned);
        // Runs of other tests change /dev/shm.
        lines
            .take_while(|line| line != "mtu of lo")
            .collect::<Vec<_>>()
    };
    let script = script.replace("cat /sys", "echo mtu of lo; cat /sys");
    let words = ["sh", "-c", &script];
    let plain = run(fabric.run(&[&["--quiet", "--"], &words[..]].concat()));
    let Some(seen) = run_if_permitted(fabric.run(&[&["--sysfs", "--"], &words[..]].concat()))
    else {
        return;
    };
    assert!(seen.stdout.contains("mtu of lo\n65536\n"), "{seen:?}");
    let (plain, seen) = (listing(plain), listing(seen));
    let missing: Vec<_> = plain.iter().filter(|line| !seen.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let added: Vec<_> = seen.iter().filter(|line| !plain.contains(line)).collect();
    let ours = [
        "infiniband",
        "infiniband_verbs",
        "0000:00:00.0",
        "pci0000:00",
    ];
    assert!(
        added.iter().all(|line| ours.contains(&line.as_str())),
        "{added:?}"
    );
    assert!(added.iter().any(|line| *line == "infiniband"), "{added:?}");
}

/// The files are the ones that `run` updates.
#[test]
fn the_state_of_a_port_is_followed() {
    let fabric = TestFabric::new();
    let script = format!(
        "cd /sys/class/infiniband/*/ports/1
         {emulator} fault --fabric {fabric} port-down own >/dev/null
         until grep -q DOWN state; do sleep 0.02; done
         {emulator} fault --fabric {fabric} port-up own >/dev/null
         until grep -q ACTIVE state; do sleep 0.02; done",
        emulator = emulator().display(),
        fabric = fabric.name(),
    );
    let words = ["--sysfs", "--host", "own", "--", "sh", "-euc", &script];
    if let Some(outcome) = run_if_permitted(fabric.run(&words)) {
        outcome.expect_success("it waits for the states");
    }
}

#[test]
fn each_host_of_a_cluster_has_its_own() {
    let fabric = TestFabric::new();
    let script = "for host in node0 node1; do
                      ssh $host 'cat /sys/class/infiniband/*/ports/1/gids/0; test -c /dev/infiniband/uverbs0'
                  done";
    let cluster = |options: &[&str]| {
        let mut command = efa_emu(&["cluster", "2", "--fabric", fabric.name()]);
        command.args(options).args(["--", "sh", "-euc", script]);
        command
    };
    let refused = run(cluster(&["--sysfs", "--no-namespaces"]));
    assert_eq!(refused.code(), 2, "{refused:?}");
    if run_if_permitted(cluster(&["--sysfs"])).is_none() {
        return;
    }
    // With and without the option.
    for options in [&["--sysfs"][..], &[]] {
        let outcome = run(cluster(options)).expect_success("both hosts look");
        let gids: Vec<_> = outcome.stdout.lines().collect();
        assert!(
            gids.len() == 2 && gids[0] != gids[1] && gids[0].starts_with("fe80:"),
            "{gids:?}"
        );
    }
}

/// A root directory with everything but `/sys`.
const WITHOUT_SYS: &str = r#"
    mount -t tmpfs tmpfs "$PLACE"
    for file in /*; do
        if [ -L "$file" ]; then
            cp -a "$file" "$PLACE/"
        elif [ -d "$file" ] && [ "$file" != /sys ]; then
            mkdir "$PLACE$file"
            mount --rbind "$file" "$PLACE$file"
        fi
    done
    mkdir "$PLACE/old"
    cd "$PLACE"
    pivot_root . old
    umount -l old
    exec "$@"
"#;

#[test]
fn a_cluster_without_sys_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let cluster = |options: &[&str]| {
        let fabric = TestFabric::new();
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount", "sh", "-euc"])
            .args([WITHOUT_SYS, "sh"])
            .env("PLACE", place.path())
            .arg(emulator())
            .args(["cluster", "2", "--fabric", fabric.name()])
            .args(options)
            .args(["--", "ssh", "node1", "ibv_devices | grep -c rdmap"]);
        run(command)
    };
    needs!("ibv_devices", "ibverbs-utils");
    let plain = cluster(&[]);
    if plain.stderr.contains("unshare: ") || plain.stderr.contains("permits no user namespaces") {
        return efa_testing::skip(&plain.stderr);
    }
    let lack = "the devices are not in /sys and /dev of the hosts: ";
    let plain = plain.expect_success("without /sys");
    assert_eq!(plain.stdout, "1\n");
    assert_eq!(plain.stderr.matches(lack).count(), 1, "{plain:?}");
    let refused = cluster(&["--sysfs"]);
    refused.expect_refusal(&[&format!("efa-emu: --sysfs: {lack}")]);
}

#[test]
fn namespaces_that_are_not_permitted_are_named() {
    needs!("setpriv", "util-linux");
    let fabric = TestFabric::new();
    let run_there = without_rights(fabric.run(&["--sysfs", "--", "true"]));
    let script = "echo 0 >/proc/sys/user/max_user_namespaces; exec \"$@\"";
    let user = ["unshare", "--user", "--map-root-user", "sh", "-euc", script];
    let outcome = run(started_by(&[&user[..], &["sh"]].concat(), run_there));
    if outcome.stderr.starts_with("unshare: ") || outcome.stderr.contains("max_user_namespaces") {
        return efa_testing::skip(&outcome.stderr);
    }
    outcome.expect_refusal(&["efa-emu: --sysfs: cannot show the devices in /sys and /dev"]);
}
