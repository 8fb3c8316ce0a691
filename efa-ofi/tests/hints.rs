//! How hints are answered (`fi_getinfo`), through the C interface.

mod common;

use common::c::*;
use common::{Libfabric, with_provider};

const ACCESS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

#[test]
fn what_is_asked_for_without_a_direction_has_all_of_its_own() {
    let name = "what_is_asked_for_without_a_direction_has_all_of_its_own";
    with_provider(name, |libfabric| {
        let cases = [
            (FI_MSG, FI_SEND | FI_RECV),
            (FI_TAGGED | FI_SEND, FI_SEND),
            (FI_RMA, ACCESS),
            (FI_ATOMIC | FI_REMOTE_READ, FI_REMOTE_READ),
            // The direction of one kind says nothing of the other, as MPICH asks.
            (FI_TAGGED | FI_RMA | FI_READ, FI_SEND | FI_RECV | FI_READ),
            (FI_MSG | FI_ATOMIC | FI_RECV, FI_RECV | ACCESS),
        ];
        for (asked, directions) in cases {
            let info = libfabric.info(|hints| hints.caps = asked);
            let info = info.expect("there is a device");
            // SAFETY: the info is valid, with all attributes, until it is freed.
            unsafe {
                let granted = (*info).caps & (FI_SEND | FI_RECV | ACCESS);
                assert_eq!(granted, directions, "{asked:#x}");
                let (tx, rx) = ((*(*info).tx_attr).caps, (*(*info).rx_attr).caps);
                let sends = FI_SEND | FI_READ | FI_WRITE;
                assert_eq!(tx & (FI_SEND | FI_RECV | ACCESS), directions & sends);
                assert_eq!(rx & (FI_SEND | FI_RECV | ACCESS), directions & !sends);
                (libfabric.freeinfo)(info);
            }
        }
    });
}

#[test]
fn the_version_is_numbered_as_those_of_libfabrics_own_providers() {
    let name = "the_version_is_numbered_as_those_of_libfabrics_own_providers";
    with_provider(name, |libfabric| {
        let info = libfabric.info(|_| {}).expect("there is a device");
        // Open MPI refuses efa providers before this one, and compares the first three letters of the name.
        let oldest = 112 << 16;
        // SAFETY: the info is valid, with all attributes, until it is freed.
        unsafe {
            let fabric = &*(*info).fabric_attr;
            assert!(fabric.prov_version >= oldest, "{:#x}", fabric.prov_version);
            (libfabric.freeinfo)(info);
        }
    });
}

/// The answer to hints that ask for this order in both directions. It is granted in both.
fn ordered(libfabric: &Libfabric, wanted: u64) -> *mut fi_info {
    let info = libfabric.info(|hints| {
        // SAFETY: hints have all attributes.
        unsafe {
            (*hints.tx_attr).msg_order = wanted;
            (*hints.rx_attr).msg_order = wanted;
        }
    });
    let info = info.expect("there is a device");
    // SAFETY: the info is valid, with all attributes, until it is freed.
    let granted = unsafe { ((*(*info).tx_attr).msg_order, (*(*info).rx_attr).msg_order) };
    assert_eq!(granted, (wanted, wanted));
    info
}

#[test]
fn messages_are_ordered_for_who_asks_for_it() {
    with_provider("messages_are_ordered_for_who_asks_for_it", |libfabric| {
        for wanted in [0, FI_ORDER_SAS] {
            let info = ordered(libfabric, wanted);
            // SAFETY: nobody uses the info any more.
            unsafe { (libfabric.freeinfo)(info) };
        }
    });
}

#[test]
fn atomics_are_carried_out_in_order() {
    with_provider("atomics_are_carried_out_in_order", |libfabric| {
        let wanted = FI_ORDER_SAS
            | FI_ORDER_ATOMIC_RAR
            | FI_ORDER_ATOMIC_RAW
            | FI_ORDER_ATOMIC_WAR
            | FI_ORDER_ATOMIC_WAW;
        // Intel MPI insists on it, and MPICH uses no atomics otherwise.
        let info = ordered(libfabric, wanted);
        // SAFETY: the info is valid, with all attributes, until it is freed.
        unsafe {
            let ep = &*(*info).ep_attr;
            let sizes = [
                ep.max_order_raw_size,
                ep.max_order_war_size,
                ep.max_order_waw_size,
            ];
            // An atomic of that many bytes fits a packet.
            assert!(
                sizes.iter().all(|size| (8000..9000).contains(size)),
                "{sizes:?}"
            );
            (libfabric.freeinfo)(info);
        }
    });
}
