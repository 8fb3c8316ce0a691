//! Options and flags of endpoints through the C interface.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{
    MAX_MSG_SIZE, Options, SHARED_MEMORY_PERMITTED, STOCK, Side, control, with_pair,
    with_provider_in, with_side,
};

const EINVAL: c_int = -libc::EINVAL;

/// Options of libfabric 2 and of its efa provider, which the machine's headers lack.
const CUDA_API_PERMITTED: c_int = 10;
const INJECT_MSG_SIZE: c_int = 16;
const INJECT_ATOMIC_SIZE: c_int = 19;
const EFA_RNR_RETRY: c_int = -0xefa_0000;
const EFA_EMULATED_READ: c_int = EFA_RNR_RETRY + 1;
const EFA_EMULATED_WRITE: c_int = EFA_RNR_RETRY + 2;
const EFA_EMULATED_ATOMICS: c_int = EFA_RNR_RETRY + 3;
const EFA_USE_DEVICE_RDMA: c_int = EFA_RNR_RETRY + 4;
const EFA_SENDRECV_IN_ORDER: c_int = EFA_RNR_RETRY + 5;
const EFA_WRITE_IN_ORDER: c_int = EFA_RNR_RETRY + 6;

fn set<T>(side: &Side, option: c_int, value: T) -> c_int {
    side.set(option, value)
}

/// Returns an option, which is to have the size of `T`.
fn get<T: Default>(side: &Side, option: c_int) -> Result<T, c_int> {
    let (mut value, mut length) = (T::default(), size_of::<T>());
    // SAFETY: the endpoint is open, and there is room for as many bytes as is said.
    let status = unsafe {
        let getopt = (*(*side.endpoint).ops).getopt.expect("complete");
        let value = (&raw mut value).cast();
        getopt(side.endpoint.cast(), 0, option, value, &mut length)
    };
    match status {
        0 => {
            assert_eq!(length, size_of::<T>(), "option {option}");
            Ok(value)
        }
        error => Err(error),
    }
}

#[test]
fn options_of_the_efa_provider_are_supported() {
    with_side(&Options::USUAL, |side| {
        for (option, limit) in (MAX_MSG_SIZE..=INJECT_ATOMIC_SIZE).zip([
            usize::MAX,
            usize::MAX,
            usize::MAX,
            usize::MAX,
            8192,
            8192,
            8192,
            8192,
        ]) {
            assert_eq!(get::<usize>(side, option), Ok(limit));
            assert_eq!(set(side, option, 100_usize), 0);
            assert_eq!(get::<usize>(side, option), Ok(100));
            assert_eq!(set(side, option, 100_u32), EINVAL, "another size");
        }
        assert_eq!(set(side, INJECT_MSG_SIZE, 8193_usize), EINVAL);
        assert_eq!(get::<usize>(side, EFA_RNR_RETRY), Ok(3));
        assert_eq!(set(side, EFA_RNR_RETRY, 8_usize), EINVAL);
        assert_eq!(set(side, EFA_RNR_RETRY, 7_usize), 0);
        assert_eq!(get::<usize>(side, EFA_RNR_RETRY), Ok(7));
        let [transmit, receive] = [FI_OPT_TX_SIZE as c_int, FI_OPT_RX_SIZE as c_int];
        for (option, size) in [(transmit, 1024), (receive, 2048)] {
            // The value in the info, which is all that the device has.
            assert_eq!(get::<usize>(side, option), Ok(size));
            assert_eq!(set(side, option, size + 1), EINVAL);
            assert_eq!(set(side, option, 0_usize), EINVAL);
            assert_eq!(set(side, option, 100_u32), EINVAL, "another size");
            assert_eq!(set(side, option, size / 2), 0);
            assert_eq!(get::<usize>(side, option), Ok(size / 2));
        }
        let p2p = FI_OPT_FI_HMEM_P2P as c_int;
        assert_eq!(get::<c_int>(side, p2p), Ok(FI_HMEM_P2P_ENABLED as c_int));
        assert_eq!(
            set(side, p2p, FI_HMEM_P2P_REQUIRED as c_int),
            -libc::EOPNOTSUPP
        );
        assert_eq!(set(side, p2p, FI_HMEM_P2P_DISABLED as c_int), 0);
        assert_eq!(get::<c_int>(side, p2p), Ok(FI_HMEM_P2P_DISABLED as c_int));
        assert_eq!(set(side, p2p, 4 as c_int), EINVAL);
        assert_eq!(set(side, CUDA_API_PERMITTED, false), 0);
        assert_eq!(set(side, SHARED_MEMORY_PERMITTED, false), 0);
        for option in [EFA_SENDRECV_IN_ORDER, EFA_WRITE_IN_ORDER] {
            assert_eq!(set(side, option, true), -libc::EOPNOTSUPP);
            assert_eq!(set(side, option, false), 0);
        }
        assert_eq!(get::<bool>(side, EFA_EMULATED_ATOMICS), Ok(true));
        if set(side, EFA_USE_DEVICE_RDMA, true) == 0 {
            assert_eq!(get::<bool>(side, EFA_EMULATED_READ), Ok(false));
        }
        assert_eq!(set(side, EFA_USE_DEVICE_RDMA, false), 0);
        assert_eq!(get::<bool>(side, EFA_EMULATED_READ), Ok(true));
        assert_eq!(get::<bool>(side, EFA_EMULATED_WRITE), Ok(true));
        let unknown = -libc::ENOPROTOOPT;
        assert_eq!(set(side, 99, 0_usize), unknown);
        assert_eq!(get::<usize>(side, 99), Err(unknown));
        assert_eq!(get::<usize>(side, EFA_SENDRECV_IN_ORDER), Err(unknown));
        side.enable();
        let late = -(FI_EOPBADSTATE as c_int);
        assert_eq!(set(side, EFA_RNR_RETRY, 1_usize), late);
        assert_eq!(set(side, EFA_USE_DEVICE_RDMA, false), late);
        assert_eq!(set(side, transmit, 1_usize), late);
        assert_eq!(set(side, receive, 1_usize), late);
        assert_eq!(get::<usize>(side, transmit), Ok(512));
        assert_eq!(set(side, SHARED_MEMORY_PERMITTED, false), late);
        assert_eq!(get::<usize>(side, EFA_RNR_RETRY), Ok(7));
    });
}

#[test]
fn operation_flags_can_be_changed() {
    let options = Options::USUAL.with(|options| options.queue_flags = FI_SELECTIVE_COMPLETION);
    with_pair(&options, |pair| {
        let endpoint = pair.left.endpoint;
        let get = |direction| {
            let mut flags = direction;
            assert_eq!(control(endpoint, FI_GETOPSFLAG, &mut flags), 0);
            flags
        };
        let set = |mut flags: u64| control(endpoint, FI_SETOPSFLAG, &mut flags);
        assert_eq!((get(FI_TRANSMIT), get(FI_RECV)), (0, 0));
        let (data, no) = (b"1234", null_mut());
        let send = |context: *mut c_void| {
            let data = data.as_ptr().cast();
            pair.start(|| call!(endpoint => tagged.send(data, 4, no, pair.to_right, 1, context)));
        };
        let [mut first, mut second] = [0_u64; 2];
        // Without the flag there is no completion, and with it one.
        send((&raw mut first).cast());
        assert_eq!(set(FI_TRANSMIT | FI_COMPLETION), 0);
        assert_eq!((get(FI_TRANSMIT), get(FI_RECV)), (FI_COMPLETION, 0));
        let context = (&raw mut second).cast();
        send(context);
        assert_eq!(pair.left_completion().0.op_context, context);
        assert_eq!(set(FI_TRANSMIT | FI_DELIVERY_COMPLETE), 0);
        assert_eq!(set(FI_RECV | FI_COMPLETION), 0);
        assert_eq!(get(FI_RECV), FI_COMPLETION);
        assert_eq!(get(FI_TRANSMIT), FI_DELIVERY_COMPLETE);
        assert_eq!(set(FI_COMPLETION), EINVAL, "no direction");
        assert_eq!(set(FI_TRANSMIT | FI_RECV), EINVAL, "both directions");
        let unknown = set(FI_TRANSMIT | 1 << 50);
        assert_eq!(unknown, -(FI_EBADFLAGS as c_int));
        let mut alias = fi_alias::default();
        assert_eq!(control(endpoint, FI_ALIAS, &mut alias), -libc::ENOSYS);
    });
}

#[test]
fn multi_receive_buffers_first_end_at_a_packet() {
    with_provider_in(&[STOCK], |libfabric| {
        let [ours, stock] = [c"efa_rs", c"efa"].map(|provider| {
            let options = Options::USUAL.with(|options| options.provider = provider);
            let side = Side::open(libfabric, &options);
            let length = side.option(FI_OPT_MIN_MULTI_RECV);
            side.close(libfabric);
            length
        });
        assert_eq!(ours, stock);
    });
}
