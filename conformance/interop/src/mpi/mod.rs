//! Group `mpi`: MPI libraries over libfabric, with its efa provider and with the engine, and over
//! UCX, two to eight ranks on one to four emulated hosts. Most cells are in
//! `conformance/interop/cells/mpi.toml`; this module has those that show a fault, and the jobs for
//! other groups.

mod endless;
mod faults;
mod library;
mod parts;
mod segments;

pub(super) use self::endless::Job;
pub(super) use self::faults::cells;
pub(super) use self::library::{
    DEBIAN_OPENMPI, Installation, Layout, Library, MPICH, OPENMPI, Transport,
};
pub(super) use self::parts::{PARTS, checks_of};
pub(super) use self::segments::Segments;

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Two ranks have this report over efa, and that one over efa_rs; whether they are accepted.
    fn is_accepted(efa: &str, ours: &str) -> bool {
        let directory = tempfile::tempdir().unwrap();
        for (name, report) in [("efa", efa), ("efa_rs", ours)] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            for rank in ["0", "1"] {
                std::fs::write(directory.path().join(name).join(rank), report).unwrap();
            }
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mpi/compare_reports.py");
        let mut python = Command::new("python3");
        python.args([script, "efa", "efa_rs"]);
        let output = python.current_dir(directory.path()).output().unwrap();
        output.status.success()
    }

    #[test]
    fn tests_that_only_efa_rs_fails_are_found() {
        let failing = "FAIL: testRevoke (test_ulfm.TestULFMSelf.testRevoke)\n\
                       ERROR: testGet (test_rma.TestRMA.testGet)\n\
                       Ran 2079 tests in 259.594s\n\n\
                       FAILED (failures=1, errors=1, skipped=122, expected failures=3)\n";
        let working = "Ran 2079 tests in 259.594s\n\nOK (skipped=122)\n";
        assert!(is_accepted(failing, failing) && is_accepted(failing, working));
        assert!(!is_accepted(working, failing));
        let other = failing.replace("ERROR", "PASS");
        assert!(!is_accepted(failing, &other));
        let incomplete = failing.split("Ran").next().unwrap();
        assert!(!is_accepted(failing, incomplete));
        let fewer = working.replace("2079", "2078");
        assert!(!is_accepted(working, &fewer));
        let few = working.replace("2079", "1999");
        assert!(!is_accepted(&few, &few));
    }
}
