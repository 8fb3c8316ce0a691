//! Staged faults between processes, as stock libfabric and the protocol engine meet them.
//!
//! Needs the other programs of the workspace (`cargo build --workspace`): without them the tests fail.
//! Those of stock libfabric say so and are skipped if none with the efa provider is installed.

mod command;
mod documented;
mod known_failures;
mod network;
mod primitives;
mod rig;
mod transfers;

use std::thread;

use rig::{Software, can_run};

/// Runs a test with stock libfabric and with the engine at once, as far as they are there.
fn with_each(test: impl Fn(Software) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for software in [Software::Stock, Software::Engine] {
            if can_run(software) {
                let name = format!("{software:?}");
                let builder = thread::Builder::new().name(name);
                builder.spawn_scoped(scope, move || test(software)).unwrap();
            }
        }
    });
}
