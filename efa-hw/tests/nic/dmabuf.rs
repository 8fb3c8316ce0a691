//! Memory behind a dma-buf. On kernels without `/dev/udmabuf` a memfd replaces it: the emulated
//! device accepts both, the kernel's driver only a dma-buf.

use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use efa_hw::Dmabuf;
use efa_testing::udmabuf;

use super::*;

const PAGE: usize = 4096;
const LENGTH: usize = 16 * PAGE;
/// An address that this process does not use.
const ADDRESS: u64 = 0x7777_0000_0000;

/// Memory with a descriptor, and a dma-buf of the same memory if the kernel supports that.
fn memory() -> (std::fs::File, Option<OwnedFd>) {
    // SAFETY: a string with an end; the result is a new descriptor, or -1.
    let memory = unsafe {
        libc::memfd_create(
            c"dmabuf".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        )
    };
    assert!(memory >= 0);
    // SAFETY: a new descriptor.
    let memory = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(memory) });
    memory.set_len(LENGTH as u64).unwrap();
    let dmabuf = udmabuf(&memory, LENGTH);
    if dmabuf.is_none() {
        efa_testing::skip(
            "a dma-buf of the kernel's, since /dev/udmabuf cannot be used; a memfd stands for one",
        );
    }
    (memory, dmabuf)
}

fn bytes_at(memory: &std::fs::File, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read_exact_at(&mut bytes, offset as u64).unwrap();
    bytes
}

/// All paths of data: gathered after a header, read by RDMA, written by RDMA.
fn exchange(device: &HwDevice, memory: &std::fs::File, descriptor: BorrowedFd<'_>) {
    let (mut a, mut b) = (open(device), open(device));
    b.create_address_handle(a.address().gid).unwrap();
    let to = destination(&mut a, &b);
    let offset = 2 * PAGE + 100;
    let dmabuf = Dmabuf {
        descriptor,
        offset: offset as u64,
        length: 8192,
        address: ADDRESS + 100,
    };
    let all = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = a.register_dmabuf(&dmabuf, all).unwrap();
    memory
        .write_all_at(&[0x77; 4000], offset as u64 + 10)
        .unwrap();

    post_receive(&mut b);
    let buffer = a.acquire_buffer().unwrap();
    a.buffer_mut(buffer)[..4].copy_from_slice(b"head");
    let payload = UserSlice::new(ADDRESS + 110, 4000);
    let request = SendRequest {
        payload: Some((payload, region.local_key)),
        ..packet(to, buffer, 4, 1)
    };
    a.post_send(&request, Doorbell::Ring).unwrap();
    let mut expected = b"head".to_vec();
    expected.extend([0x77; 4000]);
    let received = wait(&mut [&mut b], 1);
    expect_received(&b, &received[0], &expected, None);
    expect_sent(&wait(&mut [&mut a], 1)[0], 1, Status::Ok);

    let caps = device.attributes().caps;
    if caps.contains(DeviceCaps::RDMA_READ | DeviceCaps::RDMA_WRITE) {
        let remote = b.allocate(8192).unwrap();
        b.write_user(remote.address, &[0x33; 8192]).unwrap();
        let everything = all | Access::REMOTE_WRITE;
        let remote_region = b.register(remote, everything).unwrap();
        let rdma = RdmaRequest {
            destination: to,
            local: UserSlice::new(ADDRESS + 100, 5000),
            local_key: region.local_key,
            remote_address: remote.address,
            remote_key: remote_region.remote_key,
            immediate: None,
            context: 2,
        };
        a.post_read(&rdma, Doorbell::Ring).unwrap();
        assert_eq!(wait(&mut [&mut a, &mut b], 1)[0].status, Status::Ok);
        assert_eq!(bytes_at(memory, offset, 5000), [0x33; 5000]);
        assert_ne!(
            bytes_at(memory, offset + 5000, 1),
            [0x33],
            "no more than that"
        );
        memory.write_all_at(&[0x44; 5000], offset as u64).unwrap();
        a.post_write(&rdma, Doorbell::Ring).unwrap();
        assert_eq!(wait(&mut [&mut a, &mut b], 1)[0].status, Status::Ok);
        let written = b.read(remote).unwrap();
        assert!(written[..5000] == [0x44; 5000] && written[5000..] == [0x33; 3192]);
    }
    a.deregister(region).unwrap();
    a.deregister(region).unwrap_err();
}

#[test]
fn dmabuf_memory_is_sent_read_and_written() {
    with_device(|device| {
        let (memory, dmabuf) = memory();
        match &dmabuf {
            Some(dmabuf) => exchange(&device, &memory, dmabuf.as_fd()),
            None => exchange(&device, &memory, memory.as_fd()),
        }
    });
}

#[test]
fn failed_registrations_have_verb_and_errno() {
    with_device(|device| {
        let mut nic = open(&device);
        let (memory, dmabuf) = memory();
        let good = dmabuf
            .as_ref()
            .map_or(memory.as_fd(), |dmabuf| dmabuf.as_fd());
        let other = std::fs::File::open("/dev/null").unwrap();
        let request = |descriptor, offset, length, address| Dmabuf {
            descriptor,
            offset,
            length,
            address,
        };
        for (dmabuf, errno, what) in [
            (
                request(other.as_fd(), 0, PAGE, ADDRESS),
                libc::EINVAL,
                "no dma-buf",
            ),
            (
                request(good, 0, LENGTH + 1, ADDRESS),
                libc::EINVAL,
                "beyond its end",
            ),
            (
                request(good, 100, PAGE, ADDRESS),
                libc::EINVAL,
                "another place in the page",
            ),
        ] {
            let error = nic
                .register_dmabuf(&dmabuf, Access::LOCAL_WRITE)
                .unwrap_err();
            let expected = NicError::Device {
                call: "ibv_reg_dmabuf_mr",
                errno,
            };
            assert_eq!(error, expected, "{what}");
            let text = error.to_string();
            assert!(
                text.starts_with("ibv_reg_dmabuf_mr failed: Invalid argument"),
                "{text}"
            );
        }
    });
}
