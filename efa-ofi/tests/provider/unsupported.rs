//! Features that EFA or this provider lacks, through the C interface. Calls that are refused
//! whatever their arguments are stand in `newest`, and hints in `hints` and `attributes`.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{Options, piece, with_side};

const REFUSED: c_int = -libc::ENOSYS;

#[test]
fn other_kinds_of_endpoints_are_not_opened() {
    with_side(&Options::USUAL, |side| {
        // SAFETY: an info that was given has all attributes, and is the test's own.
        unsafe { (*(*side.info).ep_attr).type_ = FI_EP_MSG };
        let mut endpoint = null_mut();
        let status = call!(side.domain => ops.endpoint(side.info, &mut endpoint, null_mut()));
        assert_eq!((status, endpoint), (-libc::EINVAL, null_mut()));
    });
}

#[test]
fn vectors_shared_between_processes_are_refused() {
    with_side(&Options::USUAL, |side| {
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
    });
}

#[test]
fn memory_of_gpus_is_refused() {
    with_side(&Options::USUAL, |side| {
        let mut memory = [0_u8; 64];
        let piece = piece(memory.as_mut_ptr(), 64);
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
    });
}
