//! Group `python`: the PyPI package `efa`, which binds libibverbs and libefa and looks up all functions at
//! run time.

use std::time::Duration;

use super::harness::dialogue::converse;
use super::harness::{Bench, Cell, CellResult, Lab};

const LIMIT: Duration = Duration::from_secs(90);

/// Its name in the repository.
const PROGRAM: &str = "conformance/interop/python/efa_verbs.py";

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let name = "efa queries, messages, RDMA, refusals";
    Ok(vec![Cell::new("python", name, LIMIT, verbs)])
}

fn verbs(bench: &Bench) -> CellResult {
    let userland = bench.userland("pypi-efa")?;
    let program = bench.data(PROGRAM);
    let [server, client] = ["server", "client"].map(|name| {
        let host = bench.host(name).profile("efa2");
        host.userland(&userland)
    });
    let [_, client] = converse(&server, &client, &["python", &program])?;
    Ok(client.stdout.trim().to_owned())
}
