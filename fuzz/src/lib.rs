//! The fuzz targets: functions that take any bytes and panic if a guarantee is broken.
//!
//! `scripts/fuzz` runs them under libFuzzer, which searches for bytes that reach new code. The test
//! `replay` runs them on the corpora, which are in the repository.

mod bridge;
mod capture;
mod fault;
mod link;
mod pci;
mod scenario;
mod sequences;
mod tags;
mod victim;

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// All targets by name, as the directories of the corpora are called.
pub const TARGETS: [(&str, Target); 11] = [
    ("wire", efa_testing::wire_invariants::check),
    ("endpoint", efa_testing::hostile_peer::run),
    ("link", link::check),
    ("bridge", bridge::check),
    ("capture", capture::check),
    ("fault", fault::check),
    ("scenario", scenario::check),
    ("tags", tags::check),
    ("verbs", sequences::check),
    ("admin", pci::admin),
    ("vfio", pci::vfio),
];

/// The target with this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS
        .iter()
        .find_map(|(known, target)| (*known == name).then_some(*target))
}
