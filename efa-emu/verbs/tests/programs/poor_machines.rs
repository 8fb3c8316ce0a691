//! Machines with few permissions: containers with the filters of Docker and Kubernetes, without
//! namespaces or `/proc`, with limits. On each, a command works, or is refused in one line that
//! names the remedy.

use std::process::Command;
use std::thread;

use efa_commands::ports::free_port;

use efa_testing::programs::{Finished, TestFabric, forbid_with, needs, run, started_by, words};
use efa_testing::workspace::{efa_emu, emulator};

/// A machine, or the feature that it lacks.
struct Machine {
    name: &'static str,
    /// The refused system calls, by the error with which they fail.
    refused_calls: &'static [(i32, &'static [libc::c_long])],
    /// The words before a command that start it there.
    start: &'static [&'static str],
    /// The refused uses, with words of the line that reports them.
    refused: &'static [(Use, &'static str)],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// A program of `run` lists its device.
    Run,
    /// A program of `run` reads `/sys`.
    Sysfs,
    /// Stock programs on two hosts of a cluster exchange messages.
    Cluster,
    /// Open MPI starts ranks on the hosts of a cluster.
    Job,
}

const USES: [Use; 4] = [Use::Run, Use::Sysfs, Use::Cluster, Use::Job];

/// The system calls that Docker's list (moby, profiles/seccomp/default.json) permits with
/// `CAP_SYS_ADMIN`, `CAP_SYS_PTRACE` or `CAP_SYS_NICE` only, or not at all, among the calls of the
/// tested programs.
const DOCKER: &[libc::c_long] = &[
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_sethostname,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_mbind,
    libc::SYS_move_pages,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_open_by_handle_at,
];

/// The further system calls that the list of containerd (contrib/seccomp/seccomp_default.go, before
/// 1.6) refuses, which Kubernetes calls RuntimeDefault. Without `rseq`, which the threads of this
/// test need.
const CONTAINERD: &[libc::c_long] = &[
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_close_range,
    libc::SYS_epoll_pwait2,
    libc::SYS_membarrier,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_name_to_handle_at,
];

const NO_NAMESPACES: &[(Use, &str)] = &[(Use::Sysfs, "the system has to permit mount namespaces")];

/// Libraries and programs find their own files and their descriptors by `/proc`.
const NO_PROC: &[(Use, &str)] = &[
    (Use::Run, "Is /proc mounted?"),
    (Use::Sysfs, "Is /proc mounted?"),
    (Use::Cluster, "Is /proc mounted?"),
    (Use::Job, "Is /proc mounted?"),
];

const MACHINES: [Machine; 9] = [
    Machine {
        name: "Docker",
        refused_calls: &[(libc::EPERM, DOCKER), (libc::ENOSYS, &[libc::SYS_clone3])],
        start: &[],
        refused: NO_NAMESPACES,
    },
    Machine {
        name: "Kubernetes",
        refused_calls: &[
            (libc::EPERM, DOCKER),
            (libc::EPERM, CONTAINERD),
            (libc::ENOSYS, &[libc::SYS_clone3]),
        ],
        start: &[],
        refused: NO_NAMESPACES,
    },
    Machine::of(
        "no user namespaces",
        &[
            "unshare",
            "--user",
            "--map-root-user",
            "sh",
            "-euc",
            "echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-sys_admin --inh-caps=-all \"$@\"",
            "sh",
        ],
        NO_NAMESPACES,
    ),
    Machine::of(
        "no /proc",
        &[
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-euc",
            "mount -t tmpfs tmpfs /proc; exec \"$@\"",
            "sh",
        ],
        NO_PROC,
    ),
    Machine::of(
        "64 KiB of locked memory",
        &["prlimit", "--memlock=65536"],
        &[],
    ),
    Machine::of("32 descriptors", &["prlimit", "--nofile=32"], &[]),
    Machine::of(
        "Turkish",
        &["env", "LANG=tr_TR.UTF-8", "LC_ALL=tr_TR.UTF-8"],
        &[],
    ),
    Machine::of("one processor", &["taskset", "--cpu-list", "0"], &[]),
    Machine::of("no environment but PATH", &["env", "-i", PATH], &[]),
];

/// The directories of programs on every machine.
const PATH: &str = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

impl Machine {
    const fn of(
        name: &'static str,
        start: &'static [&'static str],
        refused: &'static [(Use, &'static str)],
    ) -> Machine {
        Machine {
            name,
            refused_calls: &[],
            start,
            refused,
        }
    }

    /// Runs the words of the emulator on the machine. Only the calling thread is on it.
    fn run(&self, words: &[&str]) -> Finished {
        run(started_by(self.start, efa_emu(words)))
    }

    fn check(&self, used: Use) {
        let fabric = TestFabric::new();
        let on = ["--fabric", fabric.name(), "--quiet", "--"];
        let port = free_port().expect("a free port");
        let messages = format!(
            "program='fi_pingpong -p efa -e rdm -I 10 -S 64'
            ssh node0 $program -B {port} >/dev/null & server=$!
            for attempt in $(seq 200); do
                if ssh node1 $program -P {port} 127.1.0.1 2>/dev/null | grep '^64 '; then break; fi
                kill -0 $server
                sleep 0.05
            done | grep -c '^64 '
            wait $server"
        );
        let listed = "ibv_devices | grep -c rdmap";
        let state = "cat /sys/class/infiniband/*/ports/1/state";
        let ranks = ["mpirun.openmpi", "-n", "2", "sh", "-c", listed];
        let (start, program, expected): (_, &[&str], _) = match used {
            Use::Run => ("run", &["sh", "-c", listed], "1\n"),
            Use::Sysfs => ("run --sysfs", &["sh", "-c", state], "4: ACTIVE\n"),
            Use::Cluster => ("cluster 2", &["sh", "-euc", &messages], "1\n"),
            Use::Job => ("cluster 2", &ranks, "1\n1\n"),
        };
        let outcome = self.run(&[&words(start), &on[..], program].concat());
        let name = self.name;
        let mut refused = self.refused.iter();
        match refused.find(|(refused, _)| *refused == used) {
            None => assert_eq!(
                (outcome.code(), outcome.stdout.as_str()),
                (0, expected),
                "{name}, {used:?}: {}",
                outcome.stderr
            ),
            Some((_, reason)) => {
                assert_eq!(outcome.code(), 2, "{name}, {used:?}: {outcome:?}");
                outcome.expect_refusal(&[reason]);
            }
        }
    }
}

#[test]
fn poor_machines_work_or_are_refused_by_name() {
    needs!("ibv_devices", "ibverbs-utils");
    needs!("fi_pingpong", "libfabric-bin");
    needs!("mpirun.openmpi", "openmpi-bin");
    let possible = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "true"])
        .status();
    if !possible.is_ok_and(|status| status.success()) {
        return efa_testing::skip("no user namespaces, by which the test makes machines");
    }
    thread::scope(|scope| {
        for machine in &MACHINES {
            // A filter applies to the thread that sets it.
            scope.spawn(move || {
                for (error, calls) in machine.refused_calls {
                    forbid_with(*error, calls);
                }
                USES.into_iter().for_each(|used| machine.check(used));
            });
        }
    });
}

/// A control group with a shell that has moved there and the shell's descendants as its only
/// processes; `LIMIT` limits their number, or their memory, in the file of `FILES` for the version
/// of the groups.
const GROUP: &str = r#"
    for root in /sys/fs/cgroup/pids /sys/fs/cgroup/memory /sys/fs/cgroup; do
        group=$root/efa-test-$$
        if mkdir $group 2>/dev/null; then
            for file in $FILES; do
                if [ -e $group/$file ] && echo $LIMIT 2>/dev/null >$group/$file; then break 2; fi
            done
            rmdir $group
        fi
        group=
    done
    [ "$group" ] || { echo no such control group; exit 0; }
    sh -c 'echo $$ >$0/cgroup.procs && exec "$@"' $group "$@" && status=0 || status=$?
    until rmdir $group; do sleep 0.05; done
    exit $status
"#;

#[test]
fn too_narrow_control_groups_are_refused_by_name() {
    const PROCESSES: &str = "pids.max";
    const MEMORY: &str = "memory.max memory.limit_in_bytes";
    let too_many = "the system permits no more processes: raise `ulimit -u`";
    for (files, limit, command, reason) in [
        (PROCESSES, "1", "run", too_many),
        (PROCESSES, "1", "cluster 1", too_many),
        (PROCESSES, "2", "cluster 3", too_many),
        (MEMORY, "256M", "cluster 8", "8 hosts take 656 MiB, and 25"),
    ] {
        let fabric = TestFabric::new();
        let mut there = Command::new("sh");
        there
            .args(["-euc", GROUP, "sh"])
            .envs([("LIMIT", limit), ("FILES", files)])
            .arg(emulator())
            .args(command.split(' '))
            .args(["--fabric", fabric.name(), "--", "true"]);
        let outcome = run(there);
        if outcome.stdout.starts_with("no such control group") {
            return efa_testing::skip("only root can make a control group");
        }
        outcome.expect_refusal(&[reason]);
    }
}
