//! Jobs whose hosts have several devices, by which libraries send at the same time. MPICH 5.0.2 of the wheel needs to be told
//! of PCI devices for that: `efa-emu/verbs/tests/programs/rails.rs` does.

use super::library::{Installation, Layout, Library, Transport};
use super::{GROUP, LIMIT, POINT_TO_POINT, checks_of};
use crate::harness::volume::Volume;
use crate::harness::{Bench, Cell, CellResult, Running, Unmet};

/// Hosts with four devices each.
const LAYOUT: Layout = Layout {
    ranks: 4,
    hosts: 2,
    devices: 4,
};

/// A library that stripes by itself, and what it has to be told.
struct Striping {
    library: Library,
    transport: Transport,
    environment: &'static [(&'static str, &'static str)],
}

const LIBRARIES: [Striping; 2] = [
    // By itself, large messages over two devices.
    Striping {
        library: Library::OpenMpi,
        transport: Transport::UcxSrd,
        environment: &[],
    },
    Striping {
        library: Library::OpenMpi,
        transport: Transport::UcxSrd,
        environment: &[("UCX_MAX_RNDV_RAILS", "4")],
    },
];

pub(super) fn cells() -> impl Iterator<Item = Cell> {
    LIBRARIES.into_iter().map(|striping| {
        let Layout {
            ranks,
            hosts,
            devices,
        } = LAYOUT;
        let mut name = format!(
            "{} {} C {ranks} ranks {hosts} hosts {devices} devices",
            striping.library.name(),
            striping.transport.name()
        );
        for (variable, value) in striping.environment {
            name += &format!(" {variable}={value}");
        }
        Cell::new(GROUP, name, LIMIT, move |bench| stripe(bench, &striping))
    })
}

/// Messages of many sizes pass around a ring of all ranks. On each host, at least two devices must have sent an eighth of
/// the data.
fn stripe(bench: &Bench, striping: &Striping) -> CellResult {
    let installation = Installation::find(bench, striping.library)?;
    let words = [
        installation.compile(bench, "exercise.c")?,
        POINT_TO_POINT.name.into(),
    ];
    let capture = bench.capture(POINT_TO_POINT.name);
    let mut job = installation.job(bench, striping.transport, LAYOUT, &words, &capture)?;
    job.envs(striping.environment.iter().copied());
    let finished = Running::start(bench, POINT_TO_POINT.name.into(), job)?.success()?;
    let checks = checks_of(&finished.stdout, POINT_TO_POINT.name)
        .ok_or_else(|| Unmet::Failed(format!("it printed {:?}", finished.stdout)))?;
    let devices = Volume::of_devices(&capture)?;
    let mut shares = Vec::new();
    for (host, sum) in Volume::of_hosts(&capture)? {
        let own = devices
            .iter()
            .filter(|(device, _)| device.starts_with(&format!("{host}:")));
        let used = own.filter(|(_, volume)| volume.bytes >= sum.bytes / 8);
        let used = used.count();
        if sum.bytes < POINT_TO_POINT.bytes || used < 2 {
            return Err(Unmet::Failed(format!(
                "{host} has sent {sum}, of which only {used} devices had an eighth: see {}",
                capture.display()
            )));
        }
        shares.push(format!("{host} by {used} devices {} MiB", sum.bytes >> 20));
    }
    // It has hundreds of megabytes, and is evaluated.
    let _ = std::fs::remove_file(&capture);
    Ok(format!("{checks} checks, {}", shares.join(", ")))
}
