//! Memory as a device sees it: behind descriptors, beyond its limits, and unmapped.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::time::Duration;

use efa_testing::udmabuf;
use libc::{EBADF, EINVAL, ENOMEM, EOPNOTSUPP};

use crate::on_emulated_host;
use efa_testing::verbs::*;
use efa_verbs_abi::*;

const PAGE: usize = 4096;
const ON_DEMAND: c_int = 1 << 6;

fn map(length: usize, protection: c_int, descriptor: Option<&OwnedFd>) -> *mut c_void {
    let flags = match descriptor {
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        Some(_) => libc::MAP_SHARED,
    };
    let descriptor = descriptor.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: a new mapping.
    let memory = unsafe { libc::mmap(null_mut(), length, protection, flags, descriptor, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory
}

fn memfd(length: usize) -> OwnedFd {
    // SAFETY: a name on the stack; the descriptor is new.
    let descriptor = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags))
    };
    resize(&descriptor, length);
    descriptor
}

fn resize(file: &OwnedFd, length: usize) {
    // SAFETY: takes no pointers.
    let status = unsafe { libc::ftruncate(file.as_raw_fd(), length as i64) };
    assert_eq!(status, 0);
}

/// Sends 5 bytes from `from` to `to`. `by_itself`: the device processes the send before the program
/// polls; else the polls do.
fn exchange(endpoint: &Endpoint, from: ibv_sge, to: ibv_sge, by_itself: bool) {
    let queue = endpoint.cq(16);
    let pair = endpoint.srd(queue, 0);
    assert_eq!(post_recv(pair, 1, &mut [to]), 0);
    send(endpoint, pair, pair, 2, &mut [from]);
    if by_itself {
        std::thread::sleep(Duration::from_millis(50));
    }
    for completion in wait_for(queue, 2) {
        assert_eq!(completion.status, 0);
    }
    assert_eq!(ibv_destroy_qp(pair), 0);
    assert_eq!(ibv_destroy_cq(queue), 0);
}

fn place(address: u64, region: *mut ibv_mr) -> ibv_sge {
    ibv_sge {
        addr: address,
        length: 5,
        // SAFETY: a live region.
        lkey: unsafe { (*region).lkey },
    }
}

#[test]
fn behind_a_descriptor_is_registered() {
    on_emulated_host("efa2", || {
        const IOVA: u64 = 0x7000_0000;
        let endpoint = Endpoint::new();
        let mut hello = *b"hello";
        let source = endpoint.register(&mut hello, 0);
        let memory = memfd(2 * PAGE);
        let seen = map(2 * PAGE, libc::PROT_READ, Some(&memory)).cast::<u8>();
        let dmabuf = udmabuf(&memory, 2 * PAGE);
        if dmabuf.is_none() {
            eprintln!("no dma-buf was tried: there is no /dev/udmabuf");
        }
        let access = IBV_ACCESS_LOCAL_WRITE as c_int;
        let register = |descriptor: c_int, offset, length, iova, access| {
            ibv_reg_dmabuf_mr(endpoint.pd, offset, length, iova, descriptor, access)
        };
        for (number, descriptor) in [Some(&memory), dmabuf.as_ref()]
            .into_iter()
            .flatten()
            .enumerate()
        {
            let descriptor = descriptor.as_raw_fd();
            let offset = PAGE as u64 + 100;
            let region = register(descriptor, offset, 100, IOVA + 100, access);
            assert!(!region.is_null(), "errno {}", errno());
            // SAFETY: a live region.
            let address = unsafe { (*region).addr };
            assert_eq!(address.addr() as u64, offset, "as in rdma-core");
            let to = place(IOVA + 100 + 10 * number as u64, region);
            let from = place(hello.as_ptr().addr() as u64, source);
            exchange(&endpoint, from, to, false);
            let arrived = seen.wrapping_add(offset as usize + 10 * number);
            // SAFETY: inside the mapping, which is not changed meanwhile.
            assert_eq!(&unsafe { arrived.cast::<[u8; 5]>().read() }, b"hello");
            assert_eq!(ibv_dereg_mr(region), 0);
        }
        let other = std::fs::File::open("/dev/null").unwrap();
        let memory = memory.as_raw_fd();
        for (descriptor, offset, length, expected, what) in [
            (-1, 0, 64, EBADF, "no descriptor"),
            (1000, 0, 64, EBADF, "no open descriptor"),
            (other.as_raw_fd(), 0, 64, EINVAL, "no memory"),
            (memory, 0, 2 * PAGE + 1, EINVAL, "more than there is"),
            (memory, u64::MAX - 4095, PAGE, EINVAL, "a wrapped end"),
            (memory, 0, 0, EINVAL, "nothing"),
            (memory, 100, 64, EINVAL, "another place in its page"),
        ] {
            let answer = register(descriptor, offset, length, 0, access);
            expect_null(answer, expected, what);
        }
        let answer = register(memory, 0, 64, 0, ON_DEMAND);
        expect_null(answer, EOPNOTSUPP, "on demand");
    });
}

/// Each combination of the fields of `ibv_reg_mr_ex`: 0, or the errno.
#[test]
fn a_mask_selects_the_attributes_of_a_registration() {
    on_emulated_host("efa2", || {
        const IOVA: u64 = IBV_REG_MR_MASK_IOVA;
        const ADDR: u64 = IBV_REG_MR_MASK_ADDR;
        const FD: u64 = IBV_REG_MR_MASK_FD;
        const OFFSET: u64 = IBV_REG_MR_MASK_FD_OFFSET;
        const BUF: u64 = IBV_REG_MR_MASK_BUF;
        const DMAH: u64 = 1 << 4;
        let endpoint = Endpoint::new();
        let memory = memfd(2 * PAGE);
        let mut buffer = null_mut();
        // SAFETY: a live domain, and room for a pointer.
        let start = unsafe { ibv_alloc_buf(endpoint.pd, PAGE, &raw mut buffer) };
        assert!(!start.is_null());
        for (mask, expected) in [
            (ADDR, 0),
            (ADDR | IOVA, 0),
            (FD | OFFSET | IOVA, 0),
            (BUF | ADDR, 0),
            (BUF | ADDR | IOVA, 0),
            (0, EINVAL),
            (IOVA, EINVAL),
            (ADDR | OFFSET, EINVAL),
            (FD | IOVA, EINVAL),
            (FD | OFFSET, EINVAL),
            (FD | OFFSET | IOVA | ADDR, EINVAL),
            (BUF, EINVAL),
            (BUF | ADDR | FD, EINVAL),
            (ADDR | DMAH, EOPNOTSUPP),
        ] {
            let mut request = ibv_mr_init_attr {
                length: 64,
                access: IBV_ACCESS_LOCAL_WRITE as c_int,
                comp_mask: mask,
                iova: 0x7000_0000,
                addr: start,
                fd: memory.as_raw_fd(),
                fd_offset: PAGE as u64,
                dmah: null_mut(),
                buf: buffer,
            };
            // SAFETY: a live domain, and a request on the stack.
            unsafe {
                let region = ibv_reg_mr_ex(endpoint.pd, &raw mut request);
                match expected {
                    0 => {
                        assert!(!region.is_null(), "{mask:#x}: errno {}", errno());
                        let address = match mask & FD {
                            0 => start.addr(),
                            _ => PAGE,
                        };
                        assert_eq!((*region).addr.addr(), address);
                        assert_eq!(ibv_dereg_mr(region), 0);
                    }
                    expected => expect_null(region, expected, &format!("{mask:#x}")),
                }
            }
        }
    });
}

#[test]
fn parts_of_a_library_buffer_are_registered() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let access = IBV_ACCESS_LOCAL_WRITE as c_int;
        // SAFETY: live objects, and memory of the buffer; wrong ones on purpose, which the library
        // notices.
        unsafe {
            let other = ibv_alloc_pd(endpoint.context);
            let mut buffer = null_mut();
            let start = ibv_alloc_buf(endpoint.pd, 2 * PAGE, &raw mut buffer);
            assert!(!start.is_null() && !buffer.is_null());
            assert_eq!(start.addr() % PAGE, 0);
            start.cast::<u8>().write_bytes(7, 2 * PAGE);
            let register = |pd, offset, length| {
                ibv_reg_buf_mr(pd, buffer, start.byte_add(offset), length, access)
            };
            let [first, second] = [0, PAGE].map(|offset| register(endpoint.pd, offset, PAGE));
            assert!(!first.is_null() && !second.is_null());
            assert_ne!((*first).lkey, (*second).lkey);
            start.cast::<[u8; 5]>().write(*b"hello");
            let from = place(start.addr() as u64, first);
            let to = place((start.addr() + PAGE) as u64, second);
            exchange(&endpoint, from, to, false);
            assert_eq!(&start.byte_add(PAGE).cast::<[u8; 5]>().read(), b"hello");
            for region in [first, second] {
                assert_eq!(ibv_dereg_mr(region), 0);
            }
            for (pd, offset, length) in [
                (other, 0, PAGE),
                (endpoint.pd, 0, 2 * PAGE + 1),
                (endpoint.pd, PAGE, PAGE + 1),
                (endpoint.pd, 2 * PAGE + 1, 0),
            ] {
                let answer = register(pd, offset, length);
                expect_null(answer, EINVAL, "outside of the buffer");
            }
            let before = start.byte_sub(1);
            let region = ibv_reg_buf_mr(endpoint.pd, buffer, before, 1, access);
            expect_null(region, EINVAL, "memory before the buffer");
            assert_eq!(ibv_export_buf_dmabuf_fd(buffer), -1);
            assert_eq!(errno(), libc::ENODATA);
            ibv_free_buf(buffer);
            let region = ibv_reg_buf_mr(endpoint.pd, buffer, start, PAGE, access);
            expect_null(region, EINVAL, "a buffer that was freed");
            let answer = ibv_alloc_buf(endpoint.pd, usize::MAX - 4 * PAGE, &raw mut buffer);
            expect_null(answer, ENOMEM, "more memory than there is");
        }
    });
}

/// Kibibytes of this process's memory, page tables included.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let value = |name: &str| -> u64 {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.trim()
            .strip_suffix(" kB")
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    value("VmRSS:") + value("VmPTE:")
}

#[test]
fn beyond_the_limits_is_refused_before_paging_in() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let before = resident();
        let (read, write) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        let remote = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) as c_int;
        for (length, protection, access, what) in [
            (96 << 30, read, 0, "all pages"),
            ((4 << 30) + PAGE, write, remote, "pages for remote write"),
        ] {
            let memory = map(length, protection, None);
            let region = ibv_reg_mr(endpoint.pd, memory, length, access);
            expect_null(region, ENOMEM, what);
            // SAFETY: the mapping of above.
            assert_eq!(unsafe { libc::munmap(memory, length) }, 0);
        }
        let more = resident().saturating_sub(before);
        assert!(more < 4096, "{more} KiB were brought in");
    });
}

#[test]
fn unmapped_while_registered_does_not_crash() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let mut hello = *b"hello";
        let source = endpoint.register(&mut hello, IBV_ACCESS_LOCAL_WRITE);
        let own = place(hello.as_ptr().addr() as u64, source);
        let access = IBV_ACCESS_LOCAL_WRITE as c_int;
        let register = |memory| {
            let region = ibv_reg_mr(endpoint.pd, memory, PAGE, access);
            assert!(!region.is_null(), "errno {}", errno());
            region
        };
        let write = libc::PROT_READ | libc::PROT_WRITE;
        for by_itself in [false, true] {
            // An unmapped page, and a page beyond the end of its file.
            for of_file in [false, true] {
                for is_target in [true, false] {
                    let file = of_file.then(|| memfd(PAGE));
                    let memory = map(PAGE, write, file.as_ref());
                    let region = register(memory);
                    match &file {
                        Some(file) => resize(file, 0),
                        // SAFETY: the mapping of above.
                        None => assert_eq!(unsafe { libc::munmap(memory, PAGE) }, 0),
                    }
                    let gone = place(memory.addr() as u64, region);
                    match is_target {
                        true => exchange(&endpoint, own, gone, by_itself),
                        false => exchange(&endpoint, gone, own, by_itself),
                    }
                    assert_eq!(ibv_dereg_mr(region), 0);
                }
            }
        }
    });
}

/// Faults of the program's own accesses reach the program.
#[test]
fn unmapped_still_crashes_a_touching_program() {
    on_emulated_host("efa2", || {
        let endpoint = Endpoint::new();
        let memory = map(PAGE, libc::PROT_READ | libc::PROT_WRITE, None);
        let region = ibv_reg_mr(endpoint.pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE as c_int);
        assert!(!region.is_null());
        // SAFETY: the mapping of above.
        assert_eq!(unsafe { libc::munmap(memory, PAGE) }, 0);
        let child = fork(|| {
            // SAFETY: it is not there, and the child does nothing else.
            unsafe { memory.cast::<u8>().write_volatile(1) };
            false
        });
        let status = child.wait();
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    });
}
