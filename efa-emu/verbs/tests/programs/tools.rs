//! rdma-core's tools over the emulated device.

use efa_testing::programs::{TestFabric, needs, run, succeed};
use efa_testing::workspace::emulator;

#[test]
fn ibv_devices_lists_the_device() {
    needs!("ibv_devices", "ibverbs-utils");
    let fabric = TestFabric::new();
    let list = succeed(fabric.host(&["ibv_devices"]), "ibv_devices");
    assert!(list.stdout.contains("rdmap0s0"), "{}", list.stdout);
    assert!(
        list.stdout.contains("00efa0fffe"),
        "no GUID in {}",
        list.stdout
    );
    assert_eq!(list.stderr, "", "the libraries are silent");
}

/// Once it is removed, no program on its host can open it until it is returned; the next host with
/// the name has it again as well.
#[test]
fn a_removed_device_returns_with_its_host() {
    needs!("ibv_devinfo", "ibverbs-utils");
    let fabric = TestFabric::new();
    let on_host = |program: &[&str]| {
        run(fabric.run(&[&["--quiet", "--host", "own", "--"], program].concat()))
    };
    let emulator = emulator();
    let (emulator, name) = (emulator.display(), fabric.name());
    let script = format!("{emulator} fault --fabric {name} remove own && exec ibv_devinfo");
    let removed = on_host(&["sh", "-c", &script]);
    assert_ne!(removed.code(), 0, "{removed:?}");
    let restore = format!("`efa-emu fault --fabric {name} restore own`");
    removed.expect_stderr(&["device own was removed from its host", &restore]);
    let script = format!(
        "{emulator} fault --fabric {name} remove own
         ibv_devinfo 2>/dev/null && exit 1
         {emulator} fault --fabric {name} restore own && exec ibv_devinfo"
    );
    let back = on_host(&["sh", "-c", &script]).expect_success("it was given back");
    assert!(back.stdout.contains("PORT_ACTIVE"), "{back:?}");
    for _ in 0..2 {
        let back = on_host(&["ibv_devinfo"]).expect_success("it is back");
        assert!(back.stdout.contains("PORT_ACTIVE"), "{back:?}");
    }
}
