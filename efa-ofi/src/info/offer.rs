//! The infos that applications get (`fi_getinfo`).

use std::ffi::{CString, c_char, c_void};

use efa_core::address::{Qkey, Qpn, RawAddress};
use efa_core::endpoint::{Errno, IOV_LIMIT};
use efa_core::nic::Device as _;
use efa_hw::HwDevice;

use crate::capabilities::{
    DOMAIN_CAPS, FABRIC, INJECT_SIZE, MAX_MESSAGE, MR_MODE, MSG_ORDER, RX_CAPS, TX_CAPS, VERSION,
    domain_name, granted, largest_atomic, queue_sizes, traffic_class,
};
use crate::ffi::host::{Host, log_info};
use crate::ffi::object::first_open;
use crate::ffi::result::{ENODATA, Result};
use crate::ffi::*;
use crate::fork;
use crate::info::hints::{Hints, refuse, text};
use crate::info::nic;
use crate::objects::address_vector::address_of;
use crate::objects::domain::Domain;
use crate::objects::fabric::Fabric;
use crate::objects::zero_copy;

/// Returns a list of what there is for these hints.
///
/// # Errors
/// `FI_ENODATA` if there is nothing; why is in libfabric's log at level `info`.
///
/// # Safety
/// The strings and the hints are valid or null.
pub(crate) unsafe fn offer(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
) -> Result<*mut fi_info> {
    let host = Host::get().ok_or(ENODATA)?;
    // SAFETY: by the caller's contract.
    let hints = unsafe { hints.as_ref() };
    // SAFETY: likewise.
    let node = unsafe { text(node) };
    // SAFETY: likewise.
    let service = unsafe { text(service) };
    let destination = match &node {
        Some(node) if flags & FI_SOURCE == 0 => Some(address_of(node, service.as_deref())?),
        _ => None,
    };
    // SAFETY: attributes of hints are valid or null, as those are.
    let wanted = unsafe { Hints::new(hints) }?;
    wanted.check()?;
    let names = HwDevice::names().map_err(|error| refuse(&error.to_string()))?;
    fork::prepare()?;
    let mut first: *mut fi_info = std::ptr::null_mut();
    let mut last: *mut fi_info = std::ptr::null_mut();
    for name in names {
        if wanted.device.as_ref().is_some_and(|device| *device != name) {
            continue;
        }
        let device = match HwDevice::shared(&name) {
            Ok(device) => device,
            Err(error) => {
                log_info!(Core, "device {name} is not offered: {error}");
                continue;
            }
        };
        if let Some(domain) = &wanted.domain_name
            && *domain != domain_name(&name)
        {
            log_info!(
                Core,
                "domain {} is not the one asked for, {domain}",
                domain_name(&name)
            );
            continue;
        }
        let (tx_size, rx_size) = queue_sizes(&device.attributes());
        if wanted.tx.size > tx_size || wanted.rx.size > rx_size {
            log_info!(
                Core,
                "device {name} has transmit queues of {tx_size} and receive queues of {rx_size} at most"
            );
            continue;
        }
        let allocated = host.allocate_info();
        // SAFETY: what libfabric has allocated is valid, with its attributes.
        let Some(filled) = (unsafe { allocated.as_mut() }) else {
            return Err(Errno::ENOMEM);
        };
        fill(filled, &wanted, version, &device, destination);
        match last.is_null() {
            true => first = allocated,
            // SAFETY: it was allocated in a round before.
            false => unsafe { (*last).next = allocated },
        }
        last = allocated;
    }
    match first.is_null() {
        true => Err(refuse("no EFA device that the hints permit")),
        false => Ok(first),
    }
}

/// Fills an info in for a device.
fn fill(
    info: &mut fi_info,
    hints: &Hints,
    version: u32,
    device: &HwDevice,
    destination: Option<RawAddress>,
) {
    let caps = granted(hints.caps);
    info.caps = caps;
    info.mode = 0;
    info.addr_format = FI_ADDR_EFA;
    let own = RawAddress {
        gid: device.gid(),
        qpn: Qpn(0),
        qkey: Qkey(0),
    };
    (info.src_addr, info.src_addrlen) = allocate_bytes(&own.to_bytes());
    if let Some(destination) = destination.or(hints.destination) {
        (info.dest_addr, info.dest_addrlen) = allocate_bytes(&destination.to_bytes());
    }
    let report = device.report();
    if let Ok(report) = &report {
        info.nic = nic::describe(device, report);
    }
    let (tx_size, rx_size) = queue_sizes(&device.attributes());
    // SAFETY: libfabric has allocated all attributes, or none of them for lack of memory.
    let (Some(ep), Some(tx), Some(rx), Some(domain), Some(fabric)) = (unsafe {
        (
            info.ep_attr.as_mut(),
            info.tx_attr.as_mut(),
            info.rx_attr.as_mut(),
            info.domain_attr.as_mut(),
            info.fabric_attr.as_mut(),
        )
    }) else {
        return;
    };
    let or = |asked: usize, default: usize| if asked == 0 { default } else { asked };
    ep.type_ = FI_EP_RDM;
    ep.protocol = FI_PROTO_EFA;
    ep.protocol_version = 4;
    ep.max_msg_size = MAX_MESSAGE;
    ep.mem_tag_format = u64::MAX;
    // An atomic has one packet.
    let ordered = largest_atomic(&device.attributes());
    ep.max_order_raw_size = ordered;
    ep.max_order_war_size = ordered;
    ep.max_order_waw_size = ordered;
    ep.tx_ctx_cnt = 1;
    ep.rx_ctx_cnt = 1;
    tx.caps = caps & TX_CAPS;
    tx.op_flags = hints.tx.op_flags;
    // Who has hints gets no more than is asked for, as from libfabric's efa provider.
    tx.msg_order = hints.tx_msg_order.unwrap_or(MSG_ORDER);
    tx.inject_size = INJECT_SIZE;
    tx.size = or(hints.tx.size, tx_size);
    tx.iov_limit = IOV_LIMIT;
    tx.rma_iov_limit = IOV_LIMIT;
    rx.caps = caps & RX_CAPS;
    rx.op_flags = hints.rx.op_flags;
    rx.msg_order = hints.rx_msg_order.unwrap_or(MSG_ORDER);
    rx.size = or(hints.rx.size, rx_size);
    rx.iov_limit = IOV_LIMIT;
    domain.name = allocate_text(&domain_name(device.name()));
    let is_of_device = |domain: &Domain| domain.device == device.name();
    domain.domain = first_open::<Domain>(is_of_device).cast();
    domain.threading = match hints.domain.threading {
        FI_THREAD_UNSPEC => FI_THREAD_SAFE,
        asked => asked,
    };
    // Automatic progress takes a thread: on request only. There is one for both.
    let progress = match [hints.domain.control_progress, hints.domain.data_progress] {
        models if models.contains(&FI_PROGRESS_AUTO) => FI_PROGRESS_AUTO,
        _ => FI_PROGRESS_MANUAL,
    };
    domain.control_progress = progress;
    domain.data_progress = progress;
    domain.resource_mgmt = match hints.domain.resource_mgmt {
        FI_RM_UNSPEC => FI_RM_ENABLED,
        asked => asked,
    };
    domain.av_type = match hints.domain.av_type {
        FI_AV_UNSPEC => FI_AV_TABLE,
        asked => asked,
    };
    domain.mr_mode = match hints.mr_mode {
        Some(mode) if mode == FI_MR_BASIC as u64 => FI_MR_BASIC as i32,
        // Never more than the application says that it does.
        Some(mode) if zero_copy::is_possible(caps, tx.msg_order | rx.msg_order) => {
            (mode & (MR_MODE | FI_MR_LOCAL)) as i32
        }
        Some(mode) => (mode & MR_MODE) as i32,
        // Before interface 1.5 there was no other mode with addresses.
        None if version < (1 << 16 | 5) => FI_MR_BASIC as i32,
        None => MR_MODE as i32,
    };
    domain.mr_key_size = size_of::<u64>();
    domain.cq_data_size = size_of::<u64>();
    domain.cq_cnt = 1024;
    // Each has a queue pair.
    domain.ep_cnt = report.map_or(1, |report| report.max_qp as usize);
    domain.tx_ctx_cnt = 1024;
    domain.rx_ctx_cnt = 1024;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.mr_iov_limit = 1;
    domain.mr_cnt = 65_536;
    domain.caps = DOMAIN_CAPS;
    [domain.tclass, tx.tclass] = [hints.domain.tclass, hints.tx.tclass].map(traffic_class);
    fabric.name = allocate_text(&FABRIC.to_string_lossy());
    fabric.fabric = first_open::<Fabric>(|_| true).cast();
    fabric.prov_version = VERSION;
    fabric.api_version = version;
}

/// A copy that `free` ends.
fn allocate_text(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: a string is copied.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// A copy that `free` ends, and its length; nothing if there is no memory.
fn allocate_bytes(bytes: &[u8]) -> (*mut c_void, usize) {
    // SAFETY: no memory of Rust's is involved.
    let memory = unsafe { libc::malloc(bytes.len()) };
    if memory.is_null() {
        return (memory, 0);
    }
    // SAFETY: there is room for as many bytes as were asked for.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
    (memory, bytes.len())
}
