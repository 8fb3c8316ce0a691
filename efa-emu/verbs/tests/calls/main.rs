//! The verbs as a program calls them: through the C ABI of the preloaded libraries.
//!
//! Each test starts itself again on an emulated host (`efa-emu run`), where its body runs.

mod arguments;
mod async_events;
mod bounds;
mod comp_counters;
mod connected;
mod copies;
mod counters;
mod direct;
mod ends;
mod events;
mod exchange;
mod handles;
mod memory;
mod node;
mod objects;
mod older;
mod rails;
mod steady;

use efa_testing::programs::{Program, TestFabric};

/// Runs `body` in a process on an emulated host with this profile: the calling test, started again.
#[track_caller]
fn on_emulated_host(profile: &str, body: impl FnOnce()) {
    on_emulated_host_with(&["--profile", profile], body);
}

/// As [`on_emulated_host`], with these options of `efa-emu run`.
#[track_caller]
fn on_emulated_host_with(options: &[&str], body: impl FnOnce()) {
    if std::env::var_os("EFA_EMU_HOST").is_some() {
        return body();
    }
    let test = efa_testing::test_name(&body);
    let program = std::env::current_exe().expect("a test program knows its path");
    let program = program.to_str().expect("the path is text");
    let fabric = TestFabric::new();
    let command = ["--", program, "--exact", test, "--nocapture"];
    let outcome = Program::start(fabric.run(&[options, &command].concat()))
        .wait()
        .expect_success(test);
    assert!(
        outcome.stdout.contains("1 passed"),
        "{test} did not run: {}",
        outcome.stdout
    );
}
