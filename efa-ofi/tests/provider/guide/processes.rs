//! Collective operations among processes, each on a host of its own.

use std::path::Path;

use super::{PLUG_INS, TestFabric, compile};
use efa_testing::programs::{Finished, Program};

/// Not a power of two, so that the trees have branches that end early.
const MEMBERS: usize = 5;

/// Numbers of operations (`enum fi_collective_op`).
const ALLREDUCE: usize = 3;
const GATHER: usize = 8;

/// Runs all members, with these arguments besides their own.
fn run_members(program: &Path, arguments: &[usize]) -> Vec<Finished> {
    let addresses = tempfile::tempdir().expect("a directory");
    let fabric = TestFabric::new();
    let members = [0, 1, 2, 3, 4].map(|rank: usize| {
        let numbers = [rank, MEMBERS].map(|number| number.to_string());
        let more: Vec<String> = arguments.iter().map(usize::to_string).collect();
        let mut words = vec![program.to_str().expect("text"), "efa_rs"];
        words.extend(numbers.iter().map(String::as_str));
        words.push(addresses.path().to_str().expect("text"));
        words.extend(more.iter().map(String::as_str));
        let mut command = fabric.run(&[&["--quiet", "--"], &words[..]].concat());
        command
            .env("FI_PROVIDER", "efa_rs")
            .env("FI_PROVIDER_PATH", PLUG_INS);
        Program::start(command)
    });
    members.map(Program::wait).into()
}

#[test]
fn processes_get_every_element_of_collectives() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = compile("member", directory.path());
    for outcome in run_members(&program, &[]) {
        assert_eq!(outcome.expect_success("a member").stdout, "27 operations\n");
    }
}

#[test]
fn no_member_waits_for_a_dead_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = compile("member", directory.path());
    // The root of trees, a leaf, and a member in between. The others do not need the data that the
    // root of a gather operation lacks.
    let cases = [(ALLREDUCE, 0), (ALLREDUCE, 4), (GATHER, 3)];
    let program = &program;
    std::thread::scope(|scope| {
        let runs = cases.map(|(operation, victim)| {
            scope.spawn(move || run_members(program, &[operation, victim]))
        });
        for ((operation, victim), run) in cases.into_iter().zip(runs) {
            let outcomes = run.join().expect("the members end");
            for (rank, outcome) in outcomes.into_iter().enumerate() {
                if rank == victim {
                    assert!(!outcome.status.success());
                    continue;
                }
                let printed = outcome.expect_success("a member").stdout;
                let case = format!("operation {operation} without {victim}: {rank} has {printed}");
                // Then a barrier fails in any case.
                let is_right = match operation {
                    GATHER if rank != 0 => printed.ends_with("\nfailed\n"),
                    _ => printed == "failed\nfailed\n",
                };
                assert!(is_right, "{case}");
            }
        }
    });
}
