//! Hostile guests and vfio-user clients: each invalid action is refused, and has no effect on the
//! device or on others.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use efa_core::nic::Status;
use efa_device_model::device::queue::WqeSize;
use efa_pci::function::{Bars, Register};
use efa_pci::vfio::message::{Command, DmaMap, Header, RegionAccess, SetIrqs, irq, region};
use efa_pci::vfio::{Stream, StreamError, serve_connection};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::fake::{Driver, Endpoint, FAILED, Memory, driver};
use super::guest::{Guest, LENGTH, MEMORY, PAGE, function, header, set_irqs};

#[test]
fn admin_queues_outside_memory_need_a_reset() {
    let (_root, mut driver) = driver("efa2");
    for base in [
        0,
        MEMORY - 64,
        MEMORY + LENGTH - PAGE + 2048 + 64,
        u64::MAX - 63,
        1 << 63,
    ] {
        for (low, start) in [
            (Register::AdminBaseLow, Register::AdminCapabilities),
            (
                Register::CompletionBaseLow,
                Register::CompletionCapabilities,
            ),
        ] {
            driver.set_address(low, base);
            driver.set(start, 64 << 16 | 32);
            assert_eq!(driver.status() & FAILED, FAILED, "{base:#x}");
            driver.set(Register::AdminDoorbell, 1);
            driver.set(Register::Control, 1);
            driver.set(Register::Control, 0);
            assert_eq!(driver.status(), 0x11);
        }
    }
    driver.start();
}

#[test]
fn impossible_shapes_of_admin_queues_break_the_device() {
    let (_root, mut driver) = driver("efa2");
    for shape in [0, 32, 64 << 16, 64 << 16 | 33, 32 << 16 | 32, u32::MAX] {
        for start in [
            Register::AdminCapabilities,
            Register::CompletionCapabilities,
            Register::AsyncCapabilities,
        ] {
            driver.set(start, shape);
            assert_eq!(driver.status() & FAILED, FAILED, "{shape:#x}");
            driver.reset();
        }
    }
    driver.start();
}

#[test]
fn excessive_admin_doorbells_break_the_device() {
    let (_root, mut driver) = driver("efa2");
    let next = u32::from(driver.next);
    driver.set(Register::AdminDoorbell, next + 33);
    assert_eq!(driver.status() & FAILED, FAILED);
    driver.reset();
    driver.start();
    assert!(driver.feature(1).is_ok());
}

#[test]
fn register_answers_outside_memory_break_the_device() {
    let (_root, mut driver) = driver("efa2");
    for address in [0, 4, MEMORY + LENGTH, u64::MAX, MEMORY + 1] {
        driver.set_address(Register::ReadResponseLow, address);
        driver.set(Register::ReadRequest, 1);
        assert_eq!(driver.status() & FAILED, FAILED, "{address:#x}");
        driver.reset();
    }
}

#[test]
fn memory_that_is_taken_away_is_not_reached() {
    let (_root, mut driver) = driver("efa2");
    driver.unmap(MEMORY, LENGTH);
    let next = u32::from(driver.next);
    driver.set(Register::AdminDoorbell, next + 1);
    assert_eq!(driver.status() & FAILED, FAILED);
    driver.map(MEMORY, LENGTH, 0).unwrap();
    driver.reset();
    driver.start();
}

#[test]
fn a_command_of_the_wrong_lap_is_malformed() {
    let (_root, mut driver) = driver("efa2");
    // The flags equal the driver's phase, plus one bit that changes the command.
    let mut entry = [0u8; 64];
    entry[3] = 1;
    for _ in driver.next..32 {
        driver.feature(1).unwrap();
    }
    assert_eq!(driver.command(11, &entry), Err(4));
    assert!(driver.feature(1).is_ok());
}

#[test]
fn unused_doorbells_have_no_effect() {
    let (_root, mut driver) = driver("efa2");
    for offset in [0, 4, 8, 4096, 8 << 20, (8 << 20) + 4, (16 << 20) - 4] {
        driver.write(Bars::Doorbells, offset, u32::MAX);
    }
    driver.set(Register::EventDoorbell, u32::MAX);
    assert!(driver.feature(1).is_ok());
}

#[test]
fn a_doorbell_beyond_the_ring_fails_its_pair() {
    let (root, mut a) = driver("efa2");
    let mut b = Driver::probe(root.path(), "b");
    let mut good = Endpoint::new(&mut a, WqeSize::Bytes64, None);
    let bad = Endpoint::new(&mut a, WqeSize::Bytes64, None);
    let mut peer = Endpoint::new(&mut b, WqeSize::Bytes64, None);
    let (of_a, of_b) = (Memory::new(&mut a), Memory::new(&mut b));
    a.write(Bars::Doorbells, bad.made.send_doorbell.get().into(), 65);
    a.write(
        Bars::Doorbells,
        bad.made.recv_doorbell.get().into(),
        u32::MAX,
    );
    let to_b = peer.address(a.address(b.gid()));
    peer.post_recv(&mut b, 1, of_b.buffer(0, 64));
    let data = [of_a.buffer(0, 8)];
    let data = efa_device_model::provider::SendData::Buffers(&data);
    good.post_send(&mut a, 1, to_b, data);
    assert_eq!(good.completion().status(), Some(Status::Ok));
    assert_eq!(peer.completion().byte_len(), 8);
}

#[test]
fn messages_of_wrong_lengths_end_the_connection() {
    let root = tempfile::tempdir().unwrap();
    let mut function = function(root.path(), "vm");
    let header = |size: u32| {
        let mut header = header(1, 9);
        header.size = size.into();
        header.as_bytes().to_vec()
    };
    let cases = [
        (header(0), "length"),
        (header(15), "length"),
        (header(u32::MAX), "length"),
        (header(70_000), "length"),
        (header(20), "cut"),
        (header(16)[..7].to_vec(), "cut"),
    ];
    for (bytes, expected) in cases {
        let (client, server) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &client, &bytes).unwrap();
        drop(client);
        let found = match serve_connection(&mut function, server) {
            Err(StreamError::Length(_)) => "length",
            Err(StreamError::Cut) => "cut",
            other => panic!("{other:?}"),
        };
        assert_eq!(found, expected, "{bytes:?}");
    }
}

#[test]
fn refused_messages_do_not_spoil_the_next() {
    let root = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(root.path(), "vm");
    let long = [0xff; 3000];
    for command in [
        Command::DmaMap,
        Command::RegionInfo,
        Command::IrqInfo,
        Command::SetIrqs,
        Command::RegionRead,
        Command::RegionWrite,
    ] {
        for length in [0, 1, 15, 19, 3000] {
            let _ = guest.request(command, &[&long[..length]], &[]);
        }
    }
    assert_eq!(
        guest.read_region(region::CONFIG, 0, 2).unwrap(),
        [0x0f, 0x1d]
    );
}

#[test]
fn unknown_commands_are_answered_with_an_error() {
    let root = tempfile::tempdir().unwrap();
    let guest = Guest::new(root.path(), "vm");
    for command in [0, 6, 11, 12, 14, 15, 16, 0xffff] {
        guest
            .stream()
            .send(header(7, command), &[&[0; 40]], &[])
            .unwrap();
        let answer = guest.stream().receive().unwrap().unwrap();
        let flags = Header::ANSWER | Header::ERROR;
        assert_eq!(
            (answer.header.flags.get(), answer.header.id.get()),
            (flags, 7)
        );
        assert_eq!(answer.header.error.get(), libc::ENOSYS as u32, "{command}");
    }
}

#[test]
fn accesses_outside_of_regions_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(root.path(), "vm");
    for (region, offset, count) in [
        (0, 16 << 10, 1),
        (0, u64::MAX, 1),
        (0, u64::MAX - 3, 4),
        (region::CONFIG, 4093, 4),
        (1, 0, 4),
        (8, 0, 4),
        (9, 0, 4),
        (u32::MAX, 0, 4),
        (2, 0, (64 << 10) + 1),
        (2, 0, u32::MAX),
    ] {
        let read = guest.read_region(region, offset, count);
        assert_eq!(
            read,
            Err(libc::EINVAL as u32),
            "{region} {offset:#x} {count}"
        );
    }
    assert_eq!(guest.write_region(8, 0, &[0; 4]), Err(libc::EINVAL as u32));
    // The announced length exceeds the data.
    let access = RegionAccess {
        offset: 0.into(),
        region: 0.into(),
        count: 8.into(),
    };
    let body = [access.as_bytes(), &[0; 4][..]];
    let written = guest.request(Command::RegionWrite, &body, &[]).unwrap_err();
    assert_eq!(written, libc::EINVAL as u32);
}

#[test]
fn vectors_that_there_are_not_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(root.path(), "vm");
    let mut set = |kind: u32, start: u32, count: u32| {
        let set = set_irqs(SetIrqs::EVENTFDS, kind, start, count);
        guest
            .request(Command::SetIrqs, &[set.as_bytes()], &[])
            .map(drop)
    };
    assert_eq!(set(irq::MSIX, 0, 32), Ok(()));
    for (kind, start, count) in [
        (irq::MSIX, 32, 1),
        (irq::MSIX, 1, u32::MAX),
        (0, 0, 1),
        (5, 0, 1),
    ] {
        assert_eq!(set(kind, start, count), Err(libc::EINVAL as u32));
    }
}

#[test]
fn files_that_cannot_be_mapped_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut guest = Guest::new(root.path(), "vm");
    let (pipe, _) = std::io::pipe().unwrap();
    let empty = tempfile::tempfile().unwrap();
    for file in [pipe.as_fd(), empty.as_fd()] {
        let map = DmaMap {
            argument_size: 32.into(),
            flags: 3.into(),
            offset: 0.into(),
            address: (MEMORY + LENGTH).into(),
            length: PAGE.into(),
        };
        assert!(
            guest
                .request(Command::DmaMap, &[map.as_bytes()], &[file])
                .is_err()
        );
    }
    assert_eq!(guest.map(MEMORY, PAGE, 0), Err(libc::EEXIST as u32));
    assert_eq!(
        guest.map(MEMORY + LENGTH, PAGE, LENGTH),
        Err(libc::EINVAL as u32)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any entry gets a completion, and the device serves the next one.
    #[test]
    fn any_command_is_answered(entries in proptest::collection::vec(any_entry(), 1..60)) {
        let (_root, mut driver) = driver("efa2");
        let memory = Memory::new(&mut driver);
        let endpoint = Endpoint::new(&mut driver, WqeSize::Bytes64, None);
        prop_assert!(memory.lkey != 0 && endpoint.made.qpn.get() < 2048);
        for (opcode, entry) in entries {
            let _ = driver.command(opcode, &entry);
        }
        prop_assert!(driver.feature(1).is_ok());
    }

    /// After any data on the socket, the device serves the next client.
    #[test]
    fn any_stream_leaves_the_device_whole(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let root = tempfile::tempdir().unwrap();
        let mut function = function(root.path(), "vm");
        let (client, server) = UnixStream::pair().unwrap();
        let client_stream = Stream::from(client.try_clone().unwrap());
        // A valid header, so that the rest is parsed.
        let command = bytes.first().copied().unwrap_or(0) % 16;
        let mut header = header(1, command.into());
        header.flags = Header::NO_ANSWER.into();
        client_stream.send(header, &[&bytes], &[]).unwrap();
        std::io::Write::write_all(&mut &client, &bytes).unwrap();
        drop((client, client_stream));
        let _ = serve_connection(&mut function, server);
        let mut config = [0; 2];
        function.read_config(0, &mut config);
        prop_assert_eq!(config, [0x0f, 0x1d]);
    }
}

/// An opcode and an entry with many small numbers and memory addresses.
fn any_entry() -> impl Strategy<Value = (u8, [u8; 64])> {
    let word = prop_oneof![
        3 => 0u64..16,
        2 => (0..LENGTH / PAGE).prop_map(|page| MEMORY + page * PAGE),
        1 => any::<u64>(),
    ];
    let entry = proptest::collection::vec(word, 8).prop_map(|words| {
        let mut entry = [0; 64];
        for (slot, word) in entry.chunks_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        // The driver sets the phase.
        entry[3] = 0;
        entry
    });
    (0u8..24, entry)
}
