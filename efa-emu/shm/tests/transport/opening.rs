//! Resources that opening a device leaves in the process.

use efa_device_model::profile::Profile;
use efa_shm::{Engine, Fabric};
use efa_testing::engine::{FABRIC, config};

/// The size and alignment of the memory that glibc's allocator maps for a new thread (an arena).
const ARENA: usize = 64 << 20;

/// The addresses of the allocator's arenas in this process.
fn arenas() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains(" rw-p 00000000 00:00 0"))
        .map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap())
        .filter(|address| address % ARENA == 0)
        .collect()
}

/// Monitors of registered memory overwrite the code of `mmap` and `munmap` after the device is
/// open. A thread of the device that is inside one of them at that moment crashes the program.
#[test]
fn an_opened_device_has_mapped_its_threads_memory() {
    let root = tempfile::tempdir().unwrap();
    let fabric = Fabric::open_below(root.path(), FABRIC).unwrap();
    let profile = Profile::by_name(Profile::DEFAULT).unwrap();
    let mut engines = Vec::new();
    // glibc gives each of this many threads its own arena, even with one processor.
    for host in 0..6 {
        let config = config(&format!("host-{host}"));
        engines.push(Engine::open_in(&fabric, &config, profile.clone()).unwrap());
        let opened = arenas();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(arenas(), opened, "after the device {host}");
    }
    assert!(!arenas().is_empty(), "the allocator is not glibc's");
}
