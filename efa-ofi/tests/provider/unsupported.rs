//! Features that EFA or this provider lacks, through the C interface.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{Options, Side, control, with_provider};

const REFUSED: c_int = -libc::ENOSYS;

#[test]
fn triggered_work_fences_and_multicast_are_refused() {
    let name = "unsupported::triggered_work_fences_and_multicast_are_refused";
    with_provider(name, |libfabric| {
        for caps in [
            FI_TRIGGER,
            FI_FENCE,
            FI_MULTICAST,
            FI_NAMED_RX_CTX,
            FI_SHARED_AV,
        ] {
            let offered = libfabric.info(|hints| hints.caps = FI_MSG | caps);
            assert_eq!(offered.err(), Some(-libc::ENODATA), "{caps:#x}");
        }
        let side = Side::open(libfabric, &Options::default());
        side.enable();
        let to = side.insert(&side.name());
        let message = fi_msg {
            addr: to,
            ..fi_msg::default()
        };
        for flags in [FI_TRIGGER, FI_FENCE, FI_MULTICAST] {
            let sent = call!(side.endpoint => msg.sendmsg(&message, flags));
            assert_eq!(sent, -(FI_EBADFLAGS as isize), "{flags:#x}");
        }
        let mut work = [0_u64; 32];
        let queued = control(side.domain, FI_QUEUE_WORK, &mut work);
        assert_eq!(queued, REFUSED);
        side.close(libfabric);
    });
}

#[test]
fn other_kinds_of_endpoints_are_not_offered() {
    let name = "unsupported::other_kinds_of_endpoints_are_not_offered";
    with_provider(name, |libfabric| {
        // SAFETY: hints come with all attributes.
        let offered = libfabric.info(|hints| unsafe { (*hints.ep_attr).type_ = FI_EP_MSG });
        assert_eq!(offered.err(), Some(-libc::ENODATA));
        let side = Side::open(libfabric, &Options::default());
        // SAFETY: an info that was given has all attributes, and is the test's own.
        unsafe { (*(*side.info).ep_attr).type_ = FI_EP_MSG };
        let mut endpoint = null_mut();
        let status = call!(side.domain => ops.endpoint(side.info, &mut endpoint, null_mut()));
        assert_eq!((status, endpoint), (-libc::EINVAL, null_mut()));
        side.close(libfabric);
    });
}

#[test]
fn connections_are_refused() {
    with_provider("unsupported::connections_are_refused", |libfabric| {
        let side = Side::open(libfabric, &Options::default());
        let (endpoint, mut passive) = (side.endpoint, null_mut());
        let no = null_mut();
        let opened = call!(side.fabric => ops.passive_ep(side.info, &mut passive, no));
        assert_eq!((opened, passive), (REFUSED, null_mut()));
        let name: *const c_void = side.info.cast();
        assert_eq!(call!(endpoint => cm.connect(name, name, 0)), REFUSED);
        assert_eq!(call!(endpoint => cm.accept(name, 0)), REFUSED);
        assert_eq!(call!(endpoint => cm.shutdown(0)), REFUSED);
        let mut length = 0;
        assert_eq!(call!(endpoint => cm.getpeer(no, &mut length)), REFUSED);
        let mut group = null_mut();
        assert_eq!(call!(endpoint => cm.join(name, 0, &mut group, no)), REFUSED);
        side.close(libfabric);
    });
}

#[test]
fn scalable_endpoints_and_shared_contexts_are_refused() {
    let name = "unsupported::scalable_endpoints_and_shared_contexts_are_refused";
    with_provider(name, |libfabric| {
        let side = Side::open(libfabric, &Options::default());
        let (domain, endpoint, no) = (side.domain, side.endpoint, null_mut());
        let (mut context, mut shared) = (null_mut(), null_mut());
        let scalable = call!(domain => ops.scalable_ep(side.info, &mut context, no));
        let transmit = call!(endpoint => ops.tx_ctx(0, null_mut(), &mut context, no));
        let receive = call!(endpoint => ops.rx_ctx(0, null_mut(), &mut context, no));
        let sends = call!(domain => ops.stx_ctx(null_mut(), &mut shared, no));
        let receives = call!(domain => ops.srx_ctx(null_mut(), &mut context, no));
        assert_eq!([scalable, transmit, receive, sends, receives], [REFUSED; 5]);
        assert!(context.is_null() && shared.is_null());
        side.close(libfabric);
    });
}

#[test]
fn vectors_shared_between_processes_are_refused() {
    let name = "unsupported::vectors_shared_between_processes_are_refused";
    with_provider(name, |libfabric| {
        let side = Side::open(libfabric, &Options::default());
        let open = |name: *const c_char, flags, rx_ctx_bits| {
            let mut attributes = fi_av_attr {
                name,
                flags,
                rx_ctx_bits,
                ..fi_av_attr::default()
            };
            let mut vector = null_mut();
            let status =
                call!(side.domain => ops.av_open(&mut attributes, &mut vector, null_mut()));
            assert!(vector.is_null());
            status
        };
        assert_eq!(open(c"shared".as_ptr(), 0, 0), REFUSED);
        assert_eq!(open(std::ptr::null(), FI_EVENT, 0), REFUSED);
        assert_eq!(open(std::ptr::null(), 0, 1), REFUSED);
        side.close(libfabric);
    });
}

#[test]
fn memory_of_gpus_is_refused() {
    with_provider("unsupported::memory_of_gpus_is_refused", |libfabric| {
        let offered = libfabric.info(|hints| hints.caps |= FI_HMEM);
        assert_eq!(offered.err(), Some(-libc::ENODATA));
        let side = Side::open(libfabric, &Options::default());
        let mut memory = [0_u8; 64];
        let piece = iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: 64,
        };
        for iface in [FI_HMEM_CUDA, FI_HMEM_ROCR, FI_HMEM_ZE] {
            let attributes = fi_mr_attr {
                mr_iov: &piece,
                iov_count: 1,
                access: FI_RECV,
                iface,
                ..fi_mr_attr::default()
            };
            let mut region = null_mut();
            // SAFETY: the domain is open, and the attributes are valid.
            let status = unsafe {
                let regattr = (*(*side.domain).mr).regattr.expect("complete");
                regattr(side.domain.cast(), &attributes, 0, &mut region)
            };
            assert_eq!((status, region), (REFUSED, null_mut()));
        }
        side.close(libfabric);
    });
}

#[test]
fn libfabric_describes_the_offer() {
    with_provider("unsupported::libfabric_describes_the_offer", |libfabric| {
        let side = Side::open(libfabric, &Options::default());
        // SAFETY: the library is loaded, and this is the function's type; the info is valid.
        let text = unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"fi_tostr".as_ptr());
            let found = match found.is_null() {
                false => found,
                true => {
                    let library = libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW);
                    libc::dlsym(library, c"fi_tostr".as_ptr())
                }
            };
            type ToString = unsafe extern "C" fn(*const c_void, u32) -> *mut c_char;
            let tostr = std::mem::transmute::<*mut c_void, ToString>(found);
            CStr::from_ptr(tostr(side.info.cast(), FI_TYPE_INFO)).to_string_lossy()
        };
        for expected in [
            "prov_name: efa_rs",
            "type: FI_EP_RDM",
            "protocol: FI_PROTO_EFA",
            "addr_format: FI_ADDR_EFA",
            "FI_TAGGED",
            "data_progress: FI_PROGRESS_MANUAL",
            "threading: FI_THREAD_SAFE",
            "fi_device_attr:",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        side.close(libfabric);
    });
}
