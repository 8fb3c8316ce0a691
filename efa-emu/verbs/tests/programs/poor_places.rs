//! Machines without common features: `/dev/shm`, a writable home. Tests make them with namespaces.

use std::process::Command;

use efa_testing::programs::{Finished, needs, run, words};
use efa_testing::workspace::emulator;

/// `/dev` with some devices only.
const WITHOUT_SHM: &str = r#"
    mount -t tmpfs tmpfs "$PLACE"
    for device in null zero random urandom; do
        : >"$PLACE/$device"
        mount --bind "/dev/$device" "$PLACE/$device"
    done
    ln -s /proc/self/fd "$PLACE/fd"
    mount --rbind "$PLACE" /dev
    test ! -e /dev/shm
"#;

/// `/dev/shm` exists, but is read-only.
const READ_ONLY_SHM: &str = "mount -t tmpfs -o ro tmpfs /dev/shm";

const SMALL_SHM: &str = "mount -t tmpfs -o size=1m tmpfs /dev/shm";

const READ_ONLY_HOME: &str = r#"
    mount -t tmpfs tmpfs /dev/shm
    mount -t tmpfs -o ro tmpfs "$PLACE"
    export HOME=$PLACE
"#;

/// Runs a script, which has to succeed, on a machine that `setup` has changed; `PLACE` is an empty
/// directory. `None`, and a line with the reason, if the system permits no such machines.
#[track_caller]
fn on_a_machine(setup: &str, script: &str) -> Option<Finished> {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let machine = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(words("--user --map-root-user --mount --net sh -euc"))
            .arg(format!("ip link set lo up\n{script}"))
            .env("PLACE", &place)
            .env("TMPDIR", directory.path())
            .env_remove("XDG_RUNTIME_DIR");
        let path = std::env::var("PATH").unwrap_or_default();
        let programs = emulator();
        let programs = programs.parent().expect("a program is in a directory");
        command.env("PATH", format!("{}:{path}", programs.display()));
        run(command)
    };
    let made = machine(setup);
    if !made.status.success() {
        efa_testing::skip(format_args!(
            "the system permits no such machine: {}",
            made.stderr
        ));
        return None;
    }
    let outcome = machine(&format!("{setup}\n{script}"));
    Some(outcome.expect_success(setup))
}

/// Two programs of rdma-core communicate over SRD, between hosts of `run` and of `cluster`.
#[test]
fn devices_work_without_dev_shm() {
    needs!("ib_send_lat", "perftest");
    let script = r#"
        cd "$TMPDIR"
        test="ib_send_lat -c SRD -x 0 -n 10"
        efa-emu run -- $test >server 2>&1 & server=$!
        until grep -q ":4853 " /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done
        efa-emu run -- $test 127.0.0.1 | grep -c '^ *2  *10 '
        wait $server
        efa-emu cluster 2 --quiet -- sh -euc '
            ssh node0 '"$test"' >server 2>&1 & server=$!
            until grep -q ":4853 " /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done
            ssh node1 '"$test"' node0 | grep -c "^ *2  *10 "
            wait $server
        '
    "#;
    for setup in [WITHOUT_SHM, READ_ONLY_SHM] {
        let Some(outcome) = on_a_machine(setup, script) else {
            return;
        };
        assert_eq!(outcome.stdout, "1\n1\n", "{setup}: {}", outcome.stderr);
    }
}

/// The fabric is in another directory, and all programs of a run or a cluster use that directory,
/// whatever their `TMPDIR`. The hosts of a cluster have a `/dev/shm` of their own, which libfabric
/// uses.
#[test]
fn all_programs_agree_where_the_fabric_is() {
    needs!("fi_pingpong", "libfabric-bin");
    let script = r#"
        cd "$TMPDIR"
        listed='TMPDIR=/tmp XDG_RUNTIME_DIR=/tmp efa-emu ps'
        efa-emu run -- sh -c "$listed" 2>&1 | grep -c ^host-1
        efa-emu run -- efa-tap run --quiet --pcap tap.pcapng -- sh -c "$listed" | grep -c ^host-1
        efa-emu cluster 2 -- sh -euc '
            test="fi_pingpong -p efa -e rdm -I 10 -S 64"
            ssh node0 $test >server 2>&1 & server=$!
            until grep -q ":B9E8 " /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done
            ssh node1 $test node0 | grep -c "^64 "
            wait $server
            '"$listed"' | grep -c "^node[01] "
            ssh node1 "'"$listed"'" | grep -c "^node[01] "
        ' 2>said
        grep -c efa-emu: said || true
    "#;
    let Some(outcome) = on_a_machine(READ_ONLY_SHM, script) else {
        return;
    };
    assert_eq!(outcome.stdout, "1\n1\n1\n2\n2\n0\n", "{}", outcome.stderr);
}

/// A host without enough room is not started, and another directory can be chosen.
#[test]
fn a_small_dev_shm_is_refused() {
    let script = r#"
        mkdir "$TMPDIR/fabrics"
        for command in "run" "cluster 1"; do
            if efa-emu $command -- true; then echo "$command runs"; fi
            EFA_EMU_FABRICS=$TMPDIR/fabrics efa-emu $command --quiet -- true
        done
        if EFA_EMU_FABRICS=fabrics efa-emu run -- true; then echo "a relative path is taken"; fi
    "#;
    let Some(outcome) = on_a_machine(SMALL_SHM, script) else {
        return;
    };
    assert_eq!(outcome.stdout, "", "{}", outcome.stderr);
    let refused = "efa-emu: 1 host takes 2 MiB of /dev/shm, and 1 MiB are free there";
    let lines: Vec<_> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[..2].iter().all(|line| line.starts_with(refused)));
    assert!(lines[2].contains("EFA_EMU_FABRICS is \"fabrics\""));
}

/// As in a container that the run starts: it has a `/dev/shm` of its own, in which its programs
/// make their own fabric.
#[test]
fn programs_on_another_fabric_are_reported() {
    needs!("ib_send_lat", "perftest");
    let script = r#"
        cd "$TMPDIR"
        efa-emu run -- unshare --mount sh -euc '
            mount -t tmpfs tmpfs /dev/shm
            test="ib_send_lat -c SRD -x 0 -n 10"
            $test >server 2>&1 & server=$!
            until grep -q ":4853 " /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done
            $test 127.0.0.1 | grep -c "^ *2  *10 "
            wait $server
        '
    "#;
    let Some(outcome) = on_a_machine("", script) else {
        return;
    };
    assert_eq!(outcome.stdout, "1\n", "{}", outcome.stderr);
    outcome.expect_stderr(&[
        "ib_send_lat used the device on a fabric without the run's hosts: /dev/shm is another directory",
        "EFA_EMU_FABRICS",
    ]);
}

/// libfabric's efa provider needs it, and its messages do not help.
#[test]
fn programs_falling_back_without_dev_shm_are_reported() {
    needs!("fi_pingpong", "libfabric-bin");
    let script = r#"
        cd "$TMPDIR"
        pair="fi_pingpong -p efa -e rdm & server=\$!
            until fi_pingpong -p efa -e rdm 127.0.0.1 || ! kill -0 \$server; do sleep 0.05; done
            wait \$server"
        if efa-emu run -- sh -c "$pair" 2>said; then echo works; else echo fails; fi
        grep -c "efa-emu: nothing was sent over the device, .* /dev/shm is not there" said
        efa-emu run -- fi_info -p efa 2>&1 >info | grep -c shm || true
        # Whoever has chosen another provider is told of the choice.
        # Under its own name, fi_info would count as a program that only lists devices.
        cp "$(command -v fi_info)" another
        FI_PROVIDER=tcp efa-emu run -- ./another 2>&1 >info |
            grep -c "efa-emu: nothing was sent over the device, though another saw it: FI_PROVIDER=efa permits"
    "#;
    let Some(outcome) = on_a_machine(WITHOUT_SHM, script) else {
        return;
    };
    assert_eq!(outcome.stdout, "fails\n1\n0\n1\n", "{}", outcome.stderr);
}

#[test]
fn an_unwritable_home_matters_only_to_wireshark() {
    needs!("fi_info", "libfabric-bin");
    let script = r#"
        efa-emu run -- fi_info -p efa | sed -n 1p
        efa-emu cluster 1 -- ssh node0 fi_info -p efa | sed -n 1p
        if efa-emu wireshark install; then echo installed; else echo "status $?"; fi
    "#;
    let Some(outcome) = on_a_machine(READ_ONLY_HOME, script) else {
        return;
    };
    assert_eq!(
        outcome.stdout, "provider: efa\nprovider: efa\nstatus 2\n",
        "{}",
        outcome.stderr
    );
    outcome.expect_stderr(&["cannot create", "/place/", "HOME"]);
}
