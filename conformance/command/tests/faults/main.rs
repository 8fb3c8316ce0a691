//! Faults between processes, with stock libfabric and with the protocol engine.
//!
//! Needs the other programs of the workspace (`cargo build --workspace`): without them the tests
//! fail. If no libfabric with the efa provider is installed, its part is skipped with a message.

mod command;
mod documented;
mod known_failures;
mod primitives;
mod rig;
mod transfers;

use std::thread;

use rig::{Software, can_run};

/// Runs a test with stock libfabric, if it is available, and with the engine at the same time.
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
