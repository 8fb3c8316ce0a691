//! How hints are answered (`fi_getinfo`), through the C interface.

use std::ffi::c_int;
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{Libfabric, Options, Side, with_provider};

const ACCESS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

#[test]
fn capabilities_without_direction_get_both() {
    with_provider(|libfabric| {
        let cases = [
            (FI_MSG, FI_SEND | FI_RECV),
            (FI_TAGGED | FI_SEND, FI_SEND),
            (FI_RMA, ACCESS),
            (FI_ATOMIC | FI_REMOTE_READ, FI_REMOTE_READ),
            // The direction of one kind does not restrict the other, as MPICH requests it.
            (FI_TAGGED | FI_RMA | FI_READ, FI_SEND | FI_RECV | FI_READ),
            (FI_MSG | FI_ATOMIC | FI_RECV, FI_RECV | ACCESS),
        ];
        for (requested, directions) in cases {
            let info = libfabric.info(|hints| hints.caps = requested);
            let info = info.expect("there is a device");
            // SAFETY: the info is valid, with all attributes, until it is freed.
            unsafe {
                let granted = (*info).caps & (FI_SEND | FI_RECV | ACCESS);
                assert_eq!(granted, directions, "{requested:#x}");
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
fn the_version_follows_libfabrics_numbering() {
    with_provider(|libfabric| {
        let info = libfabric.info(|_| {}).expect("there is a device");
        // Open MPI refuses efa providers before this one, and compares the first three letters of
        // the name.
        let oldest = 112 << 16;
        // SAFETY: the info is valid, with all attributes, until it is freed.
        unsafe {
            let fabric = &*(*info).fabric_attr;
            assert!(fabric.prov_version >= oldest, "{:#x}", fabric.prov_version);
            (libfabric.freeinfo)(info);
        }
    });
}

/// The answer to hints with this order in both directions. It is granted in both.
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
    with_provider(|libfabric| {
        for wanted in [0, FI_ORDER_SAS] {
            let info = ordered(libfabric, wanted);
            // SAFETY: the info is not used any more.
            unsafe { (libfabric.freeinfo)(info) };
        }
    });
}

#[test]
fn atomics_are_carried_out_in_order() {
    with_provider(|libfabric| {
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

#[test]
fn unknown_hints_are_refused_or_ignored() {
    with_provider(|libfabric| {
        // Requests that are refused: capabilities of the endpoint and of the domain.
        for bit in 0..64 {
            let (wanted, offered) = (1 << bit, libfabric.info(|hints| hints.caps = 1 << bit));
            let known = FI_MSG
                | FI_TAGGED
                | FI_RMA
                | FI_ATOMIC
                | FI_SEND
                | FI_RECV
                | ACCESS
                | FI_MULTI_RECV
                | FI_SOURCE
                | FI_DIRECTED_RECV
                | FI_COLLECTIVE
                | FI_LOCAL_COMM
                | FI_REMOTE_COMM;
            assert_eq!(offered.is_ok(), wanted & known != 0, "{wanted:#x}");
            // SAFETY: hints have all attributes.
            let domain = libfabric.info(|hints| unsafe { (*hints.domain_attr).caps = wanted });
            let known = FI_LOCAL_COMM | FI_REMOTE_COMM;
            assert_eq!(domain.is_ok(), wanted & known != 0, "{wanted:#x}");
            for info in [offered, domain].into_iter().flatten() {
                // SAFETY: the info is not used any more.
                unsafe { (libfabric.freeinfo)(info) };
            }
        }
        // Both can be requested of the domain together.
        let both = libfabric.info(|hints| {
            // SAFETY: hints have all attributes.
            unsafe { (*hints.domain_attr).caps = FI_LOCAL_COMM | FI_REMOTE_COMM };
        });
        // SAFETY: the info is not used any more.
        unsafe { (libfabric.freeinfo)(both.expect("the domain has both")) };
        // The modes that an application accepts are not requests: the answer has the needed ones.
        // Modes of later releases, and `FI_MR_XPU_DESC` of 2.7, are among them.
        const XPU_DESC: c_int = 1 << 12;
        let needed = (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY) as c_int;
        for more in [0, XPU_DESC, 1 << 30, !(FI_MR_BASIC as c_int)] {
            let info = libfabric.info(|hints| {
                hints.mode = u64::MAX;
                hints.caps = FI_MSG | FI_TAGGED | FI_RMA;
                // SAFETY: hints have all attributes.
                unsafe { (*hints.domain_attr).mr_mode = needed | more };
            });
            let info = info.expect("nothing is asked for that there is not");
            // SAFETY: the info is valid, with all attributes, until it is freed.
            unsafe {
                assert_eq!((*info).mode, 0);
                assert_eq!((*(*info).domain_attr).mr_mode, needed, "{more:#x}");
                (libfabric.freeinfo)(info);
            }
        }
    });
}

#[test]
fn traffic_classes_are_wishes() {
    with_provider(|libfabric| {
        let (low, best, none) = (FI_TC_LOW_LATENCY, FI_TC_BEST_EFFORT, FI_TC_UNSPEC);
        // The same results as from stock 2.7, which distinguishes two of them.
        for (requested, granted) in [
            (none, none),
            (best, best),
            (low, low),
            (FI_TC_BULK_DATA, none),
            (FI_TC_DSCP | 46, none),
            (u32::MAX, none),
        ] {
            for (domain, sends) in [(requested, none), (none, requested)] {
                let info = libfabric.info(|hints| {
                    // SAFETY: hints have all attributes.
                    unsafe {
                        (*hints.domain_attr).tclass = domain;
                        (*hints.tx_attr).tclass = sends;
                    }
                });
                let info = info.expect("none is refused");
                // SAFETY: the info is valid, with all attributes, until it is freed.
                let found = unsafe {
                    let found = ((*(*info).domain_attr).tclass, (*(*info).tx_attr).tclass);
                    (libfabric.freeinfo)(info);
                    found
                };
                let of = |class| if class == none { none } else { granted };
                assert_eq!(found, (of(domain), of(sends)), "{requested:#x}");
            }
        }
    });
}

#[test]
fn an_info_names_what_was_opened_first() {
    with_provider(|libfabric| {
        // SAFETY: an info is valid, with all attributes, until it is freed.
        let opened = |info: *mut fi_info| unsafe {
            let found = ((*(*info).fabric_attr).fabric, (*(*info).domain_attr).domain);
            (libfabric.freeinfo)(info);
            found
        };
        let open = || opened(libfabric.info(|_| {}).expect("there is a device"));
        assert_eq!(open(), (null_mut(), null_mut()));
        let first = Side::open(libfabric, &Options::USUAL);
        let second = Side::open(libfabric, &Options::USUAL);
        assert_eq!(open(), (first.fabric, first.domain));
        // Hints may name any of those that are open, and nothing else.
        let with = |fabric, domain| {
            libfabric.info(|hints| {
                // SAFETY: hints have all attributes.
                unsafe {
                    (*hints.fabric_attr).fabric = fabric;
                    (*hints.domain_attr).domain = domain;
                }
            })
        };
        let info = with(second.fabric, second.domain).expect("it is open");
        assert_eq!(opened(info), (second.fabric, second.domain));
        assert_eq!(with(second.domain.cast(), null_mut()), Err(-libc::ENODATA));
        assert_eq!(with(null_mut(), second.fabric.cast()), Err(-libc::ENODATA));
        let (fabric, domain) = (first.fabric, first.domain);
        first.close(libfabric);
        assert_eq!(open(), (second.fabric, second.domain));
        assert_eq!(with(fabric, null_mut()), Err(-libc::ENODATA), "closed");
        assert_eq!(with(null_mut(), domain), Err(-libc::ENODATA), "closed");
        second.close(libfabric);
        assert_eq!(open(), (null_mut(), null_mut()));
    });
}
