//! libFuzzer on the target in the environment variable `EFA_FUZZ_TARGET`. `scripts/fuzz` builds and
//! runs it.

#![no_main]

use std::sync::OnceLock;

use efa_fuzz::{Target, target};

static TARGET: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var("EFA_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let known: Vec<_> = efa_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("EFA_FUZZ_TARGET is {name:?}: choose one of {known:?}");
        std::process::exit(2);
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET.get_or_init(chosen)(bytes));
