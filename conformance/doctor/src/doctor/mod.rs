//! Examines whether a machine is fit for EFA. The findings describe its parts, errors and remedies.
//!
//! [`examine`] checks a [`Machine`]. All files that it reads are below a root, so that tests, and a
//! person with the files of another machine, can examine another directory. Libraries and devices
//! of the running system are examined in a separate process ([`probe`]), because a broken library
//! may crash the process that loads it.

mod device;
mod driver;
mod finding;
mod instance;
mod libraries;
mod machine;
mod metadata;
mod peer;
pub mod probe;
mod process;

use efa_play::drive::EndpointOptions;
use efa_play::libfabric::Version;
use efa_play::scenario::{Capability, Settings};

pub use finding::{CHECKS, Finding, Level, worst};
pub use machine::Machine;
pub use peer::reach;

/// Examines a machine. The findings are in the order of [`CHECKS`].
pub fn examine(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let metadata = metadata::ask(machine);
    let instance = instance::examine(machine, metadata.as_ref(), &mut findings);
    machine.examine_system(&mut findings);
    metadata::examine(metadata.as_ref(), &mut findings);
    let devices = device::find(machine);
    device::examine(machine, instance, &devices, &mut findings);
    driver::examine(machine, instance, &devices, &mut findings);
    device::examine_open(machine, instance, &devices, &mut findings);
    device::examine_permissions(machine, &devices, &mut findings);
    process::examine(machine, &mut findings);
    driver::examine_accelerators(machine, &devices, &mut findings);
    libraries::examine(machine, &mut findings);
    let place = |finding: &Finding| CHECKS.iter().position(|(name, _)| *name == finding.check);
    findings.sort_by_key(place);
    findings
}

/// The endpoint of an application that sends and receives messages.
fn messages() -> EndpointOptions {
    EndpointOptions {
        api: Version::BASELINE_API,
        capabilities: vec![Capability::Msg, Capability::Tagged, Capability::Source],
        register_local: false,
        max_message: None,
        device: None,
        settings: Settings::default(),
    }
}
