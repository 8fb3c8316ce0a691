//! Finding the device, features, resets and interrupts.

use efa_device_model::fault::{Action, HostName};
use efa_device_model::profile::Profile;
use efa_pci::admin::Feature;
use efa_pci::function::{Bars, Register};
use efa_pci::vfio::message::{Command, DeviceInfo, irq, region};
use zerocopy::FromBytes;

use super::fake::{ADMIN_VECTOR, Driver, FAILED, driver};
use super::guest::{FABRIC, Guest, open_engine};

#[test]
fn the_driver_finds_each_generation() {
    for name in ["efa0", "efa1", "efa2", "efa3"] {
        let (_root, mut driver) = driver(name);
        let profile = Profile::by_name(name).unwrap();
        assert_eq!(
            driver.read_region(region::CONFIG, 0, 4).unwrap(),
            [0x0f, 0x1d, profile.part_id as u8, 0xef]
        );
        for feature in [1, 2, 3, 4, 5, 7, 9] {
            assert!(driver.feature(feature).is_ok(), "{name} {feature}");
        }
        for feature in [0, 6, 8, 10, 255] {
            assert_eq!(driver.feature(feature), Err(3), "{name} {feature}");
        }
        let attributes = driver.feature(Feature::Device as u8).unwrap();
        assert_eq!(attributes[24..28], profile.hw_version.to_le_bytes());
        assert!(driver.interrupts(ADMIN_VECTOR) > 0);
        driver.leave();
    }
}

#[test]
fn a_generation_that_no_driver_knows_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let profile = Profile::by_name("efa4").unwrap().clone();
    let fabric = efa_shm::Fabric::open_below(root.path(), "test").unwrap();
    let config = efa_shm::HostConfig::new("test", "vm");
    let opened = efa_pci::function::Function::new(move || {
        efa_shm::Engine::open_in(&fabric, &config, profile.clone())
    });
    let error = opened.err().expect("refused").to_string();
    assert!(error.contains("efa4") && error.contains("efa3"), "{error}");
}

#[test]
fn the_function_has_regions_and_vectors() {
    let root = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(root.path(), "vm");
    let (body, _) = guest
        .request(Command::DeviceInfo, &[&[0; 16]], &[])
        .unwrap();
    let info = DeviceInfo::read_from_bytes(&body).unwrap();
    assert_eq!(
        (info.flags.get(), info.regions.get(), info.irqs.get()),
        (3, 9, 5)
    );
    let lengths = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|region| guest.region(region).0.length.get());
    assert_eq!(lengths, [16 << 10, 0, 64 << 20, 0, 16 << 20, 0, 0, 4096, 0]);
    let mappable = [0, 2, 4, 7].map(|region| guest.region(region).1.is_some());
    assert_eq!(mappable, [false, true, false, false]);
    for (kind, count) in [(0, 0), (1, 0), (irq::MSIX, 32), (4, 0)] {
        let mut requested = [0; 16];
        requested[8] = kind as u8;
        let (body, _) = guest.request(Command::IrqInfo, &[&requested], &[]).unwrap();
        assert_eq!(body[12], count, "{kind}");
    }
}

#[test]
fn a_masked_admin_queue_does_not_interrupt() {
    let (_root, mut driver) = driver("efa2");
    driver.interrupts(ADMIN_VECTOR);
    driver.feature(1).unwrap();
    assert!(driver.interrupts(ADMIN_VECTOR) > 0);
    driver.set(Register::InterruptMask, 1);
    // An interrupt may have been repeated before.
    driver.interrupts(ADMIN_VECTOR);
    driver.feature(1).unwrap();
    assert_eq!(driver.interrupts(ADMIN_VECTOR), 0);
}

#[test]
fn the_device_shows_that_it_lives() {
    let (_root, driver) = driver("efa2");
    driver.interrupts(ADMIN_VECTOR);
    // An interrupt of a command may be repeated before.
    while driver.bytes(driver.async_events, 8) != [4, 0, 0, 0, 1, 0, 0, 0] {
        driver.wait_for_interrupt(ADMIN_VECTOR);
    }
}

#[test]
fn a_reset_takes_everything_back() {
    let (_root, mut driver) = driver("efa2");
    let gid = driver.gid();
    let eqn = driver.create_eq().0;
    let endpoint = super::fake::Endpoint::new(
        &mut driver,
        efa_device_model::device::queue::WqeSize::Bytes64,
        Some(eqn),
    );
    let handle = endpoint.made.handle.get();
    for by_bus in [false, true] {
        match by_bus {
            true => drop(driver.request(Command::Reset, &[], &[]).unwrap()),
            false => driver.reset(),
        }
        driver.start();
        assert_eq!(driver.gid(), gid, "it is the same device");
        let gone = Driver::modify_request(handle, 3, 6, efa_pci::admin::ModifyMask::empty());
        assert_eq!(driver.command(2, &gone), Err(5));
        assert_eq!((driver.pd, driver.uar), (0, 0), "the numbers begin again");
    }
}

/// The device needs a reset after it was restored. A reset before is not sufficient.
#[test]
fn a_restored_device_works_after_a_reset() {
    let (root, mut driver) = driver("efa2");
    // The host stays when the device is closed, as with `efa-emu run`.
    let _run = open_engine(root.path(), "vm");
    let gid = driver.gid();
    let fabric = efa_shm::Fabric::open_below(root.path(), FABRIC).unwrap();
    let host = || HostName::from("vm".to_owned());
    for _ in 0..2 {
        fabric.act(Action::Remove(host())).unwrap();
        while driver.status() & FAILED == 0 {
            std::thread::yield_now();
        }
        driver.set(Register::Control, 1);
        assert_eq!(driver.status() & FAILED, FAILED, "nothing to open");
        fabric.act(Action::Restore(host())).unwrap();
        assert_eq!(driver.status() & FAILED, FAILED, "nobody has reset it");
        driver.request(Command::Reset, &[], &[]).unwrap();
        assert_eq!(driver.status() & FAILED, 0);
        driver.start();
        assert_eq!(driver.gid(), gid);
    }
}

/// An event that the old device raises while it ends does not affect the new one. The event may
/// come earlier, so there are several rounds.
#[test]
fn a_failure_that_a_reset_meets_is_over() {
    let (root, mut driver) = driver("efa2");
    let _run = open_engine(root.path(), "vm");
    let fabric = efa_shm::Fabric::open_below(root.path(), FABRIC).unwrap();
    let host = || HostName::from("vm".to_owned());
    for _ in 0..100 {
        fabric.act(Action::Remove(host())).unwrap();
        fabric.act(Action::Restore(host())).unwrap();
        driver.set(Register::Control, 1);
        assert_eq!(driver.status() & FAILED, 0);
        driver.set(Register::Control, 0);
        driver.start();
    }
}

/// With memory that is not shared the driver reads all ones as the status, resets the device, and
/// waits until the reset bit is cleared.
#[test]
fn a_driver_that_sees_nothing_is_noted_once() {
    let root = tempfile::tempdir().unwrap();
    let mut function = super::guest::function(root.path(), "vm");
    let (sender, notices) = std::sync::mpsc::channel();
    function.on_notice(move |text| sender.send(text.to_owned()).unwrap());
    let (client, socket) = std::os::unix::net::UnixStream::pair().unwrap();
    std::thread::spawn(move || efa_pci::vfio::serve_connection(&mut function, socket));
    let mut guest = Guest::over(client);
    guest.unmap(super::guest::MEMORY, super::guest::LENGTH);
    let mut driver = Driver::new(guest);
    driver.set_address(Register::ReadResponseLow, 0);
    let look = (Register::Status as u32) << 16 | 1;
    for control in [1, 0] {
        driver.set(Register::ReadRequest, look);
        driver.set(Register::Control, control);
    }
    for _ in 0..30 {
        driver.set(Register::ReadRequest, look);
    }
    let notice = notices.recv().unwrap();
    assert!(
        notice.contains("share=on") && notice.contains("x-no-posted-writes"),
        "{notice}"
    );
    assert_eq!(driver.status() & FAILED, FAILED);
    // Now the driver sees the memory.
    driver
        .map(super::guest::MEMORY, super::guest::LENGTH, 0)
        .unwrap();
    for _ in 0..10 {
        driver.start();
    }
    drop(driver);
    assert!(notices.recv().is_err(), "nothing more is said");
}

#[test]
fn another_guest_may_connect_after_the_first() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut function = super::guest::function(root.path(), "vm");
    std::thread::spawn(move || efa_pci::vfio::Server::new(listener).run(&mut function));
    let mut vectors = Vec::new();
    for _ in 0..2 {
        let mut driver = Driver::ready(Guest::connect(&path));
        driver.feature(1).unwrap();
        vectors.push(driver.interrupts(ADMIN_VECTOR) > 0);
    }
    assert_eq!(vectors, [true, true]);
    // A client with invalid data does not block others.
    let mut noise = std::os::unix::net::UnixStream::connect(&path).unwrap();
    std::io::Write::write_all(&mut noise, b"GET / HTTP/1.0\r\n\r\n").unwrap();
    Driver::ready(Guest::connect(&path));
}

#[test]
fn registers_are_written_whole() {
    let (_root, mut driver) = driver("efa2");
    // Half a word does not reset the device.
    driver
        .write_region(0, Register::Control as u64, &[1, 0])
        .unwrap();
    assert!(driver.feature(1).is_ok());
    let status = driver
        .read_region(Bars::Registers as u32, Register::Status as u64, 4)
        .unwrap();
    assert_eq!(status, [0x11, 0, 0, 0]);
}
