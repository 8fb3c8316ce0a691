//! rdma-core's tools over the emulated device.

use efa_testing::programs::{Program, TestFabric, needs, run, succeed};
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

/// `-v` queries the GID's type through rdma-core's private interface.
#[test]
fn ibv_devinfo_shows_device_and_port() {
    needs!("ibv_devinfo", "ibverbs-utils");
    let fabric = TestFabric::new();
    let info = Program::start(fabric.run(&["--profile", "efa1", "--", "ibv_devinfo", "-v"]));
    let info = info.wait().expect_success("ibv_devinfo").stdout;
    let info = info.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "hca_id: rdmap0s0",
        "transport: unspecified (4)",
        "vendor_id: 0x1d0f",
        "vendor_part_id: 61345",
        "state: PORT_ACTIVE (4)",
        "max_msg_sz: 0x22e0",
        "link_layer: Unspecified",
        "GID[ 0]: fe80:0000:0000:0000:00ef:a0ff:fe",
    ] {
        assert!(info.contains(expected), "{expected} is not in\n{info}");
    }
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
