//! Group `machines`: the fabrics of two to four machines, connected by bridges (`efa-emu bridge`,
//! docs/machines.md).
//!
//! Machines are namespaces of this one ([`network`]). Cells of other groups run between two of
//! them: those of `libfabric` as between two hosts behind a remote shell, those of `engine` with
//! each endpoint on a separate machine. The other cells test the network between the machines:
//! limits, losses, partitions, and killed bridges.

mod breaking;
mod clusters;
mod jobs;
mod limits;
mod network;

use std::str::FromStr as _;

use efa_play::player::{HostDevice, Launcher, Recording, RemoteAccess, RemoteShell};

use self::limits::{GROUP, START};
use self::network::Machines;
use super::harness::{Bench, Cell, CellResult, CellsError, Hosts, Lab, NotMeasured};
use super::{engine, libfabric, table};

pub(super) fn cells(lab: &Lab) -> Result<Vec<Cell>, CellsError> {
    let mut cells = breaking::cells();
    cells.extend(clusters::cells());
    cells.extend(jobs::cells());
    let mut between_hosts = table::cells("libfabric", libfabric::FILE)?;
    between_hosts.extend(libfabric::cells(lab)?);
    for cell in between_hosts {
        let name = format!("libfabric {}", cell.name());
        let limit = START + cell.limit();
        cells.push(Cell::new(GROUP, name, limit, move |bench| {
            on_two_hosts(bench, &cell)
        }));
    }
    for cell in engine::cells(lab)? {
        let name = format!("engine {}", cell.name());
        let limit = START + cell.limit();
        cells.push(Cell::new(GROUP, name, limit, move |bench| {
            with_a_machine_for_each_endpoint(bench, &cell)
        }));
    }
    Ok(cells)
}

/// Runs a cell between the hosts of two machines, as `interop --at a=m0 --at b=m1 --rsh ...` does.
fn on_two_hosts(bench: &Bench, cell: &Cell) -> CellResult {
    let machines = Machines::joined(bench, 2)?;
    let place = |machine: usize| HostDevice {
        host: machines.name(machine).to_owned(),
        device: None,
    };
    let shell = machines.shell_of_hosts()?.display().to_string();
    let reach = RemoteAccess {
        shell: RemoteShell::from_str(&shell).map_err(NotMeasured::failed)?,
        program: bench.lab().launcher.efa_conformance.display().to_string(),
        limit: START,
    };
    let hosts = Hosts::ask(reach, [place(0), place(1)], Some(&Recording::AsTheHostDoes));
    let lab = bench
        .lab()
        .clone()
        .with_hosts(Some(hosts.map_err(NotMeasured::failed)?));
    cell.run_within(bench, &lab)
}

/// Runs a cell with each endpoint on a separate machine.
fn with_a_machine_for_each_endpoint(bench: &Bench, cell: &Cell) -> CellResult {
    let machines = Machines::joined(bench, 2)?;
    let mut lab = bench.lab().clone();
    lab.launcher = Launcher {
        efa_emu: machines.emulator(&engine::HOSTS)?,
        ..lab.launcher
    };
    cell.run_within(bench, &lab)
}
