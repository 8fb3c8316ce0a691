//! Group `perftest`: the InfiniBand performance tests of two releases, between two hosts.
//!
//! Tests that a release does not support on EFA have no cell. 4.5 uses RDMA and inline data only with the
//! part ids 0xefa0 and 0xefa1, and refuses RDMA writes and events (`-e`) over SRD on all devices. Over UD both
//! releases post unsignaled requests, which the device does not take, without `-Q 1`. 25.01's write latency
//! test writes inline by default, for which its queue pair has no room, without `-I 0`.

use std::time::Duration;

use super::harness::dialogue::converse;
use super::harness::{Bench, Cell, CellResult, Lab, Unmet};

const GROUP: &str = "perftest";
const LIMIT: Duration = Duration::from_secs(180);

/// A release, and the generation of the device on which it runs.
#[derive(Clone, Copy)]
struct Release {
    version: &'static str,
    /// Its name for `scripts/userland`; `None` is the machine's own release.
    userland: Option<&'static str>,
    profile: &'static str,
}

const OLD: Release = Release {
    version: "4.5",
    userland: None,
    profile: "efa1",
};

const NEW: Release = Release {
    version: "25.01",
    userland: Some("debian13"),
    profile: "efa2",
};

/// Program and options of each test; all run with `-x 0` (the only GID).
const OLD_TESTS: &[&str] = &[
    "ib_send_lat -c SRD -n 1000",
    "ib_send_lat -c SRD -n 1000 -I 32",
    "ib_send_bw -c SRD -n 1000",
    "ib_send_bw -c SRD -n 1000 -a",
    "ib_send_bw -c SRD -n 300 -b -q 4",
    "ib_read_lat -c SRD -n 1000",
    "ib_read_bw -c SRD -n 1000",
    "ib_send_lat -c UD -n 1000",
    "ib_send_bw -c UD -n 1000 -Q 1",
];

const NEW_TESTS: &[&str] = &[
    "ib_send_lat -c SRD -n 1000",
    "ib_send_lat -c SRD -n 1000 -I 32",
    "ib_send_lat -c SRD -n 1000 -e",
    "ib_send_bw -c SRD -n 1000",
    "ib_send_bw -c SRD -n 1000 -a",
    "ib_send_bw -c SRD -n 300 -b -q 4",
    "ib_send_bw -c SRD -n 1000 -e",
    "ib_read_lat -c SRD -n 1000",
    "ib_read_lat -c SRD -n 1000 -e",
    "ib_read_bw -c SRD -n 1000",
    "ib_read_bw -c SRD -n 1000 -e",
    "ib_write_lat -c SRD -n 200 -I 0",
    "ib_write_bw -c SRD -n 1000",
    "ib_write_bw -c SRD -n 1000 -s 1048576",
    "ib_send_lat -c UD -n 1000",
    "ib_send_lat -c UD -n 1000 -e",
    "ib_send_bw -c UD -n 1000 -Q 1",
];

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let tests = |release: Release, tests: &'static [&str]| {
        tests.iter().map(move |test| {
            let name = format!("{} {test}", release.version);
            Cell::new(GROUP, name, LIMIT, move |bench| run(bench, release, test))
        })
    };
    let faulty = Cell::new(
        GROUP,
        "25.01 ib_write_bw, the tenth write aborted",
        LIMIT,
        write_is_aborted,
    )
    .emulated_only("a fault is staged");
    Ok(tests(OLD, OLD_TESTS)
        .chain(tests(NEW, NEW_TESTS))
        .chain([faulty])
        .collect())
}

/// A fault rule aborts a write, and the program reports it.
fn write_is_aborted(bench: &Bench) -> CellResult {
    const RULE: &str = r#"
[[fault]]
when = { operation = "write", nth = 10 }
then = { status = "remote-abort" }
"#;
    // As rdma-core shows the device's status 8: `IBV_WC_REM_ABORT_ERR` and the vendor's error.
    const EXPECTED: &str = "Failed status 16: wr_id 0 syndrom 0x8";
    let rules = bench.directory().join("rules.toml");
    std::fs::write(&rules, RULE)
        .map_err(|error| Unmet::Failed(format!("cannot write {}: {error}", rules.display())))?;
    let userland = bench.userland("debian13")?;
    let hosts = ["server", "client"].map(|name| {
        let host = bench.host(name).userland(&userland).profile(NEW.profile);
        match name {
            "server" => host.option("--faults", &rules),
            _ => host,
        }
    });
    let words = "ib_write_bw -c SRD -n 100 -x 0";
    let program: Vec<_> = words.split_whitespace().collect();
    match converse(&hosts[0], &hosts[1], &program) {
        Ok(_) => Err(Unmet::Failed("nothing failed".into())),
        Err(Unmet::Failed(text)) if text.contains(EXPECTED) => Ok(EXPECTED.to_owned()),
        Err(other) => Err(other),
    }
}

fn run(bench: &Bench, release: Release, test: &str) -> CellResult {
    let mut program: Vec<&str> = test.split_whitespace().collect();
    let (mut server, mut client) = (bench.host("server"), bench.host("client"));
    match release.userland {
        Some(name) => {
            let userland = bench.userland(name)?;
            (server, client) = (server.userland(&userland), client.userland(&userland));
        }
        None => bench.needs(program[0], "perftest")?,
    }
    program.extend(["-x", "0"]);
    let hosts = [server, client].map(|host| host.profile(release.profile));
    let [_, client] = converse(&hosts[0], &hosts[1], &program)?;
    measured(&client.stdout)
        .ok_or_else(|| Unmet::Failed(format!("no results in\n{}", client.stdout)))
}

/// The last row of the table of results, with the names of its columns that matter.
fn measured(stdout: &str) -> Option<String> {
    let mut lines = stdout
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let header = lines.next()?;
    let row = lines
        .take_while(|line| !line.starts_with("--"))
        .filter(|line| !line.trim().is_empty())
        .last()?;
    let values: Vec<&str> = row.split_whitespace().collect();
    let [bytes, iterations, ..] = values[..] else {
        return None;
    };
    // Latency: minimum, maximum, typical. Bandwidth: peak, average, messages.
    let what = match header.contains("t_typical") {
        true => format!("typically {} us", values.get(4)?),
        false => format!("{} MiB/s, {} million/s", values.get(3)?, values.get(4)?),
    };
    Some(format!("{bytes} bytes, {iterations} times: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_from_the_last_row() {
        let latency = "\
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
 2       1000          0.28           108.39       0.32              0.44
---------------------------------------------------------------------------------------
";
        assert_eq!(
            measured(latency).as_deref(),
            Some("2 bytes, 1000 times: typically 0.32 us")
        );
        let bandwidth = "\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 2          1000             0.50                0.40                  0.2
 4096       1000             435.33             249.01                 0.063748
---------------------------------------------------------------------------------------
";
        assert_eq!(
            measured(bandwidth).as_deref(),
            Some("4096 bytes, 1000 times: 249.01 MiB/s, 0.063748 million/s")
        );
        assert_eq!(measured("Couldn't post send\n"), None);
        assert_eq!(measured(" #bytes #iterations t_typical\n"), None);
    }
}
