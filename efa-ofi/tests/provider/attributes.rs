//! Each attribute of an info as a hint (`fi_getinfo`), for applications of each version of the
//! interface: an offered value is granted, less is granted and kept, more is refused.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use crate::common::c::*;
use crate::common::{Libfabric, STOCK, with_provider, with_provider_in};

const NO_DATA: c_int = -libc::ENODATA;

/// All versions of the interface up to the machine's libfabric.
fn versions() -> impl Iterator<Item = u32> {
    (0..=17).map(|minor| 1 << 16 | minor)
}

/// An attribute of hints and infos: its name, and how it is read and written.
struct Attribute {
    name: &'static str,
    get: fn(&fi_info) -> u64,
    set: fn(&mut fi_info, u64),
}

/// Attributes of the parts of an info, as `part: field as type`.
macro_rules! attributes {
    ($($part:ident: $($field:ident as $type:ty),*;)*) => {
        [$($(Attribute {
            name: concat!(stringify!($part), ".", stringify!($field)),
            // SAFETY: infos and hints have all attributes.
            get: |info| unsafe { (*info.$part).$field as u64 },
            // SAFETY: as above.
            set: |info, value| unsafe { (*info.$part).$field = value as $type },
        },)*)*]
    };
}

/// Sizes and numbers: a smaller request is satisfied by a larger offer.
const SIZES: &[Attribute] = &attributes! {
    ep_attr: protocol_version as u32, max_msg_size as usize, max_order_raw_size as usize,
        max_order_war_size as usize, max_order_waw_size as usize, tx_ctx_cnt as usize,
        rx_ctx_cnt as usize, auth_key_size as usize;
    tx_attr: inject_size as usize, size as usize, iov_limit as usize, rma_iov_limit as usize;
    rx_attr: total_buffered_recv as usize, size as usize, iov_limit as usize;
    domain_attr: mr_key_size as usize, cq_data_size as usize, cq_cnt as usize, ep_cnt as usize,
        tx_ctx_cnt as usize, rx_ctx_cnt as usize, max_ep_tx_ctx as usize, max_ep_rx_ctx as usize,
        max_ep_stx_ctx as usize, max_ep_srx_ctx as usize, cntr_cnt as usize,
        mr_iov_limit as usize, auth_key_size as usize, max_err_data as usize, mr_cnt as usize;
};

/// Sets of bits: each offered bit may be requested.
const SETS: &[Attribute] = &attributes! {
    tx_attr: caps as u64, msg_order as u64, comp_order as u64;
    rx_attr: caps as u64, msg_order as u64, comp_order as u64;
    domain_attr: caps as u64;
};

/// Attributes with the values that there are. 0 leaves the choice to the provider.
const CHOICES: &[(Attribute, &[u64])] = &{
    let [ep_type, protocol] = attributes! { ep_attr: type_ as fi_ep_type, protocol as u32; };
    let [threading, control, data, resources, vectors] = attributes! {
        domain_attr: threading as fi_threading, control_progress as fi_progress,
            data_progress as fi_progress, resource_mgmt as fi_resource_mgmt,
            av_type as fi_av_type;
    };
    [
        (ep_type, &[FI_EP_RDM as u64] as &[u64]),
        (protocol, &[FI_PROTO_EFA as u64]),
        (threading, &[1, 2, 3, 4, 5]),
        (control, &[1, 2]),
        (data, &[1, 2]),
        (resources, &[1, 2]),
        (vectors, &[1, 2]),
    ]
};

impl Attribute {
    /// The result for an application that requests a value of this attribute.
    fn request(&self, libfabric: &Libfabric, version: u32, value: u64) -> Result<u64, c_int> {
        read(
            libfabric,
            libfabric.info_of(version, |hints| (self.set)(hints, value)),
            |info| (self.get)(info),
        )
    }
}

/// Reads something of an info, and frees it.
fn read<T>(
    libfabric: &Libfabric,
    info: Result<*mut fi_info, c_int>,
    read: impl FnOnce(&fi_info) -> T,
) -> Result<T, c_int> {
    let info = info?;
    // SAFETY: the info is valid until it is freed, and it is not used afterwards.
    unsafe {
        let found = read(&*info);
        (libfabric.freeinfo)(info);
        Ok(found)
    }
}

#[test]
fn sizes_are_granted_up_to_the_offer() {
    with_provider(|libfabric| {
        for version in versions() {
            for attribute in SIZES {
                let what = format!("{} for {version:#x}", attribute.name);
                let request = |value| attribute.request(libfabric, version, value);
                let offer = request(0).expect("there is a device");
                assert_eq!(request(offer), Ok(offer), "{what}");
                for less in [1, offer / 2].into_iter().filter(|less| *less <= offer) {
                    let granted = request(less).expect("less than there is");
                    assert!((less..=offer).contains(&granted), "{what}: {granted}");
                }
                let limit = match attribute.name {
                    "ep_attr.protocol_version" => u64::from(u32::MAX),
                    // `FI_SHARED_CONTEXT`, where it is a number of contexts.
                    _ => u64::MAX,
                };
                for more in [offer.saturating_add(1), limit] {
                    if more > offer {
                        assert_eq!(request(more), Err(NO_DATA), "{what}: {more}");
                    }
                }
            }
        }
    });
}

#[test]
fn each_offered_bit_is_granted_and_no_other() {
    with_provider(|libfabric| {
        for version in versions() {
            for attribute in SETS {
                let what = format!("{} for {version:#x}", attribute.name);
                // Without hints the whole offer is returned.
                let offer = match attribute.name {
                    "tx_attr.msg_order" | "rx_attr.msg_order" => {
                        FI_ORDER_SAS | 0xf << FI_ORDER_ATOMIC_RAR.trailing_zeros()
                    }
                    "tx_attr.caps" | "rx_attr.caps" => {
                        let both = read(libfabric, libfabric.info_of(version, |_| {}), |info| {
                            info.caps
                        });
                        both.expect("there is a device")
                    }
                    _ => attribute
                        .request(libfabric, version, 0)
                        .expect("there is a device"),
                };
                // Collective operations are offered on request only.
                let offer = match attribute.name {
                    "caps" | "tx_attr.caps" | "rx_attr.caps" => offer | FI_COLLECTIVE,
                    _ => offer,
                };
                for bit in (0..64).map(|bit| 1_u64 << bit) {
                    let granted = attribute.request(libfabric, version, bit);
                    match offer & bit {
                        0 => assert_eq!(granted, Err(NO_DATA), "{what}: {bit:#x}"),
                        _ => assert!(granted.is_ok(), "{what}: {bit:#x}"),
                    }
                }
            }
        }
    });
}

#[test]
fn choices_are_kept() {
    with_provider(|libfabric| {
        for version in versions() {
            for (attribute, values) in CHOICES {
                for value in (1..12).chain(values.iter().copied()) {
                    let granted = attribute.request(libfabric, version, value);
                    let what = format!("{} {value} for {version:#x}", attribute.name);
                    match values.contains(&value) {
                        true => assert_eq!(granted, Ok(value), "{what}"),
                        false => assert_eq!(granted, Err(NO_DATA), "{what}"),
                    }
                }
            }
        }
    });
}

#[test]
fn registration_is_demanded_of_targets_only() {
    with_provider(|libfabric| {
        let needed = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        let basic = FI_MR_BASIC as u64;
        // All sets of the six modes that matter, and needed ones with others.
        let modes = (0..1 << 7).filter(|mode| mode & FI_MR_RAW == 0);
        let modes = modes.chain([needed | FI_MR_HMEM, needed | 1 << 20]);
        let modes: Vec<u64> = modes.collect();
        let target = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let all = [
            (FI_MSG | FI_TAGGED, false),
            (FI_RMA | FI_READ | FI_WRITE, false),
            (FI_ATOMIC | FI_WRITE, false),
            (FI_RMA, true),
            (FI_ATOMIC | FI_WRITE | FI_REMOTE_WRITE, true),
            (FI_MSG | FI_RMA | target, true),
        ];
        for version in [1 << 16, 1 << 16 | 4, 1 << 16 | 5, 1 << 16 | 17] {
            for (caps, is_target) in all {
                for mode in &modes {
                    let info = libfabric.info_of(version, |hints| {
                        hints.caps = caps;
                        // SAFETY: hints have all attributes.
                        unsafe { (*hints.domain_attr).mr_mode = *mode as c_int };
                    });
                    // SAFETY: infos have all attributes.
                    let granted = read(libfabric, info, |info| unsafe {
                        (*info.domain_attr).mr_mode as u64
                    });
                    let what = format!("{mode:#x} with {caps:#x} for {version:#x}");
                    let is_old = version < (1 << 16 | 5);
                    let is_enough = *mode == basic || mode & needed == needed;
                    let is_left_open = *mode == 0 && is_old;
                    match granted {
                        Err(error) => {
                            assert_eq!(error, NO_DATA, "{what}");
                            assert!(is_target && !is_enough && !is_left_open, "{what}");
                        }
                        Ok(granted) if is_left_open => assert_eq!(granted, basic, "{what}"),
                        Ok(granted) => {
                            assert!(!is_target || is_enough, "{what}");
                            assert_eq!(granted & !mode, 0, "{what}: more than was offered");
                        }
                    }
                }
            }
            // An application without requests gets no more than the offer.
            for (mode, one_sided) in [(0, version < (1 << 16 | 5)), (needed, true)] {
                let info = libfabric.info_of(version, |hints| {
                    // SAFETY: hints have all attributes.
                    unsafe { (*hints.domain_attr).mr_mode = mode as c_int };
                });
                let caps = read(libfabric, info, |info| info.caps).expect("there is a device");
                assert_eq!(caps & (FI_RMA | FI_ATOMIC) != 0, one_sided, "{version:#x}");
            }
        }
    });
}

/// A copy of bytes that libfabric frees.
fn copy(bytes: &[u8]) -> *mut c_void {
    // SAFETY: there is room for as many bytes as are copied.
    unsafe {
        let memory = libc::malloc(bytes.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len());
        memory
    }
}

#[test]
fn sources_choose_the_device() {
    with_provider(|libfabric| {
        let own = read(libfabric, libfabric.info(|_| {}), |info| {
            // SAFETY: an address has `length` bytes.
            unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) }
                .to_vec()
        });
        let own = own.expect("there is a device");
        let with = |bytes: &[u8], format| {
            let info = libfabric.info(|hints| {
                hints.addr_format = format;
                hints.src_addr = copy(bytes);
                hints.src_addrlen = bytes.len();
            });
            read(libfabric, info, |_| ())
        };
        assert_eq!(with(&own, FI_ADDR_EFA), Ok(()));
        assert_eq!(with(&own, FI_FORMAT_UNSPEC), Ok(()));
        assert_eq!(with(&own, FI_SOCKADDR_IN6), Err(NO_DATA));
        assert_eq!(with(&own[..16], FI_SOCKADDR_IN), Err(NO_DATA));
        assert_eq!(with(&own[..16], FI_ADDR_EFA), Err(NO_DATA));
        for (changed, what) in [(15, "a GID"), (16, "a queue pair number")] {
            let mut other = own.clone();
            other[changed] ^= 1;
            assert_eq!(with(&other, FI_ADDR_EFA), Err(NO_DATA), "{what}");
        }
        // The same as texts.
        let mut gid = [0; 16];
        gid.copy_from_slice(&own[..16]);
        let mut near = gid;
        near[15] ^= 1;
        let [gid, near] = [gid, near].map(|gid| {
            let text = std::net::Ipv6Addr::from(gid).to_string();
            std::ffi::CString::new(text).expect("no zeros")
        });
        let named = |node: *const c_char, service: *const c_char, flags| {
            let mut info = null_mut();
            // SAFETY: the strings are null or valid.
            let status = unsafe {
                (libfabric.getinfo)(1 << 16 | 17, node, service, flags, null(), &mut info)
            };
            match status {
                0 => read(libfabric, Ok(info), |info| info.dest_addrlen),
                error => Err(error),
            }
        };
        let (ip, port) = (c"127.0.0.1", c"47592".as_ptr());
        assert_eq!(named(gid.as_ptr(), null(), FI_SOURCE), Ok(0));
        assert_eq!(named(gid.as_ptr(), port, FI_SOURCE), Ok(0));
        assert_eq!(named(null(), port, FI_SOURCE), Ok(0), "a port of others");
        assert_eq!(named(near.as_ptr(), null(), FI_SOURCE), Err(NO_DATA));
        assert_eq!(named(ip.as_ptr(), port, FI_SOURCE), Err(NO_DATA));
        assert_eq!(named(near.as_ptr(), null(), 0), Ok(32), "a destination");
    });
}

#[test]
fn descriptions_choose_the_device() {
    with_provider(|libfabric| {
        let info = libfabric.info(|_| {}).expect("there is a device");
        // SAFETY: the info is valid until it is freed; its description has all parts.
        unsafe {
            let nic = *(*info).nic;
            // Without operations it is the test's own, which libfabric does not close.
            let request = |change: &dyn Fn(&mut fi_device_attr, &mut fi_link_attr)| {
                let (mut device, mut link) = (*nic.device_attr, *nic.link_attr);
                change(&mut device, &mut link);
                let mut nic = fid_nic {
                    device_attr: &mut device,
                    link_attr: &mut link,
                    ..fid_nic::default()
                };
                let mut answer = null_mut();
                let hints = (libfabric.dupinfo)(null());
                (*(*hints).fabric_attr).prov_name = libc::strdup(c"efa_rs".as_ptr());
                (*hints).nic = &mut nic;
                let status =
                    (libfabric.getinfo)(1 << 16 | 17, null(), null(), 0, hints, &mut answer);
                (*hints).nic = null_mut();
                (libfabric.freeinfo)(hints);
                (libfabric.freeinfo)(answer);
                status
            };
            let other = c"other".as_ptr().cast_mut();
            assert_eq!(request(&|_, _| {}), 0);
            assert_eq!(request(&|device, _| *device = fi_device_attr::default()), 0);
            assert_eq!(request(&|device, _| device.name = other), NO_DATA);
            assert_eq!(request(&|device, _| device.device_id = other), NO_DATA);
            assert_eq!(request(&|device, _| device.device_version = other), NO_DATA);
            assert_eq!(request(&|device, _| device.vendor_id = other), NO_DATA);
            assert_eq!(request(&|device, _| device.driver = other), NO_DATA);
            assert_eq!(request(&|device, _| device.firmware = other), NO_DATA);
            assert_eq!(request(&|_, link| link.address = other), NO_DATA);
            assert_eq!(request(&|_, link| link.network_type = other), NO_DATA);
            assert_eq!(request(&|_, link| link.mtu += 1), NO_DATA);
            assert_eq!(request(&|_, link| link.speed = 1), NO_DATA);
            (libfabric.freeinfo)(info);
        }
    });
}

/// Attributes of which stock 1.17 grants more than it supports.
const UNCHECKED_BY_STOCK: [&str; 11] = [
    "ep_attr.max_order_raw_size",
    "domain_attr.mr_key_size",
    "domain_attr.cq_cnt",
    "domain_attr.ep_cnt",
    "domain_attr.tx_ctx_cnt",
    "domain_attr.rx_ctx_cnt",
    "domain_attr.max_ep_tx_ctx",
    "domain_attr.max_ep_rx_ctx",
    "domain_attr.max_ep_stx_ctx",
    "domain_attr.max_ep_srx_ctx",
    "domain_attr.auth_key_size",
];

#[test]
fn stock_refuses_more_of_most_attributes_too() {
    with_provider_in(&[STOCK], |libfabric| {
        let request = |provider: &std::ffi::CStr, attribute: &Attribute, value| {
            let info = libfabric.info(|hints| {
                hints.caps = FI_RMA;
                (attribute.set)(hints, value);
                // SAFETY: hints have all attributes; the name is a copy of libc's.
                unsafe {
                    let name = &mut (*hints.fabric_attr).prov_name;
                    libc::free(name.cast());
                    *name = libc::strdup(provider.as_ptr());
                }
            });
            read(libfabric, info, |info| (attribute.get)(info))
        };
        let mut differ = Vec::new();
        for attribute in SIZES {
            let [ours, stock] = [c"efa_rs", c"efa"].map(|provider| {
                let offer = request(provider, attribute, 0).expect("there is a device");
                match offer {
                    u64::MAX => None,
                    offer => Some(request(provider, attribute, offer + 1).is_err()),
                }
            });
            if ours.is_some() && stock == Some(false) {
                differ.push(attribute.name);
            }
        }
        assert_eq!(differ, UNCHECKED_BY_STOCK);
    });
}
