//! A few cells of the interoperability table as tests: each generation of stock libfabric, verbs,
//! MPI. `make interop` runs all cells, every night.
//!
//! Needs the other programs of the workspace (`cargo build --workspace`) and, for releases that
//! this machine lacks, their packages (`scripts/userland`); without a package, its tests print a
//! message.

use std::path::Path;

use efa_commands::installation::Installation;
use efa_interop::{Lab, NotMeasured, Outcome, Selection};
use efa_play::player::Launcher;
use efa_testing::patience::Wait;
use efa_testing::programs::Program;
use efa_testing::workspace;

/// Runs the named cells of a group; each must work.
fn all_work(group: &str, names: &[&str]) {
    let launcher = Launcher {
        efa_emu: workspace::emulator(),
        efa_conformance: workspace::conformance(),
        fabric: format!("interop-tests-{}", std::process::id()),
    };
    let installation = Installation::of_this_program().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::new(&installation, launcher, Selection::default()).unwrap();
    let lab = lab.in_directory(directory.path().to_owned());
    for name in names {
        let cells = efa_interop::select(&lab, Some(group), Some(name)).unwrap();
        let cell = cells.iter().find(|cell| cell.name() == *name).unwrap();
        let row = cell.run(&lab);
        match &row.outcome {
            Outcome::Passed { .. } => println!("{row}"),
            Outcome::NotMeasured(NotMeasured::Skipped(reason)) => {
                efa_testing::skip(format_args!("{name}: {reason}"))
            }
            Outcome::NotMeasured(_) => panic!("{row}"),
        }
    }
}

/// Tests with the group and the names of cells. Pages name some of these functions.
macro_rules! cells {
    ($($(#[$doc:meta])* fn $name:ident() => $group:literal, $($cell:literal),+;)*) => {
        $($(#[$doc])*
        #[test]
        fn $name() {
            all_work($group, &[$($cell),+]);
        })*
    };
}

// Datagrams are those of 2.1: earlier releases crash by chance (docs/findings.md, 17).
cells! {
    fn tools_of_debian_11() => "libfabric",
        "1.11 fi_info",
        "1.11 fi_pingpong rdm";
    fn tools_of_debian_12() => "libfabric",
        "1.17 fi_info",
        "1.17 fi_pingpong rdm";
    fn tools_of_debian_13() => "libfabric",
        "2.1 fi_info",
        "2.1 fi_pingpong rdm -f efa",
        "2.1 fi_pingpong rdm -f efa-direct";
    fn datagrams_of_debian_13() => "libfabric",
        "2.1 fi_pingpong dgram -f efa";
    fn older_releases_cannot_sleep() => "libfabric",
        "1.17 fi_cq_sread -f efa",
        "2.5 fi_cq_sread -f efa-direct";
    fn the_oldest_and_the_newest_release() => "libfabric",
        "1.11 -> 2.5: data",
        "2.5 -> 1.11: data",
        "1.11 -> 2.5: atomics";
    fn tools_of_rdma_core() => "rdma_core",
        "ibv_devices 44",
        "ibv_devices 56.1",
        "ibv_devinfo -v 56.1",
        "ibv_ud_pingpong -e 44",
        "ibv_ud_pingpong -e 56.1";
    fn perftest_by_events() => "perftest",
        "25.01 ib_send_lat -c SRD -n 1000 -e",
        "25.01 ib_read_lat -c SRD -n 1000 -e",
        "25.01 ib_write_bw -c SRD -n 1000",
        "25.01 ib_write_bw, the tenth write aborted";
    fn mpi_over_libfabric_and_ucx() => "mpi",
        "mpich-5.0.2 efa mpi4py 2 ranks 2 hosts",
        "openmpi-4.1.4 efa mpi4py 2 ranks 2 hosts",
        "openmpi-5.0.11 ucx-srd mpi4py 2 ranks 2 hosts";
    fn the_engine_and_stock_zero_copy_receivers() => "engine",
        "messages to zero-copy receiver 1.17.0",
        "messages to zero-copy receiver 2.1.0",
        "messages from zero-copy receiver 2.5.1";
    /// Kills at random moments, in a short form; `efa-conformance interop --group kill` has the
    /// long one.
    fn the_network_outlives_twenty_kills() => "kill",
        "kill-20 fi_pingpong";
}

/// The names of processes in a directory.
fn processes_in(directory: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.map(|process| process.path()).filter(|process| {
        let current = std::fs::read_link(process.join("cwd"));
        current.is_ok_and(|current| current.starts_with(directory))
    });
    let names = processes.filter_map(|process| std::fs::read_to_string(process.join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

/// The launcher's daemon on the other machine is in a session of its own.
#[test]
fn ranks_on_machines_end_with_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let cell = "mpi openmpi-4.1.4 efa C 2 ranks 2 machines";
    let words = ["interop", "--group", "machines", "--filter", cell];
    let mut command = workspace::efa_conformance(&words);
    command.arg("--directory").arg(directory.path());
    let program = Program::start(command);
    let wait = Wait::start();
    let ranks = |name: &String| name == "program";
    while processes_in(directory.path())
        .into_iter()
        .filter(ranks)
        .count()
        < 2
    {
        if program.said().contains("SKIP") {
            efa_testing::skip(program.said());
            return;
        }
        wait.pause(|| format!("no ranks: {}", program.said()));
    }
    program.signal(libc::SIGTERM);
    assert_eq!(program.wait().code(), 128 + libc::SIGTERM);
    let wait = Wait::start();
    while !processes_in(directory.path()).is_empty() {
        wait.pause(|| format!("left: {:?}", processes_in(directory.path())));
    }
}
