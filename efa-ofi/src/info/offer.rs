//! The infos for applications (`fi_getinfo`).

use std::ffi::{CString, c_char, c_void};

use efa_core::address::{Qkey, Qpn, RawAddress};
use efa_core::endpoint::Errno;
use efa_hw::{DeviceReport, HwDevice};

use crate::capabilities::{
    ACCESSING, DOMAIN_CAPS, EndpointType, FABRIC, MR_MODE, ONE_SIDED, RX_CAPS, TX_CAPS, VERSION,
    tag_format, traffic_class,
};
use crate::ffi::host::{Host, log_info};
use crate::ffi::object::first_open;
use crate::ffi::result::{ENODATA, Result};
use crate::ffi::*;
use crate::fork;
use crate::info::hints::{Hints, refuse, text};
use crate::info::limits::Limits;
use crate::info::nic;
use crate::objects::address_vector::address_of;
use crate::objects::domain::Domain;
use crate::objects::fabric::Fabric;
use crate::objects::zero_copy;

/// The flag by which layers of libfabric request a core provider (`OFI_CORE_PROV_ONLY`).
///
/// Layers are not offered datagrams. libfabric lists the infos that `ofi_rxd` derives from them
/// before a plug-in's own infos, so an application that requests this provider and reliable
/// messages would get `ofi_rxd`'s protocol.
const FOR_LAYER: u64 = 1 << 59;

/// Returns a list of the infos that match these hints.
///
/// # Errors
/// `FI_ENODATA` if none matches; libfabric's log has the reason at level `info`.
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
    // SAFETY: as above.
    let node = unsafe { text(node) };
    // SAFETY: as above.
    let service = unsafe { text(service) };
    // A service without a node is a port of other providers.
    let (source, destination) = match &node {
        None => (None, None),
        Some(node) if flags & FI_SOURCE == 0 => (None, Some(address_of(node, service.as_deref())?)),
        Some(node) => (Some(address_of(node, None)?.gid), None),
    };
    // SAFETY: attributes of hints are valid or null, as those are.
    let wanted = unsafe { Hints::new(hints) }?;
    let mut types = wanted.endpoint_types()?;
    if flags & FOR_LAYER != 0 && types.iter().any(|of| of.is_datagram()) {
        return Err(refuse("datagrams are for applications, not for layers"));
    }
    types.retain(|of| wanted.check(version, of).is_ok());
    if types.is_empty() {
        return Err(ENODATA);
    }
    let names = HwDevice::names().map_err(|error| refuse(&error.to_string()))?;
    fork::prepare()?;
    let mut first: *mut fi_info = std::ptr::null_mut();
    let mut last: *mut fi_info = std::ptr::null_mut();
    let offers = types
        .iter()
        .flat_map(|of| names.iter().map(|name| (*of, name)));
    for (of, name) in offers {
        let domain_name = of.domain_name(name);
        if wanted
            .open_domain
            .as_ref()
            .is_some_and(|domain| *domain != domain_name)
        {
            continue;
        }
        let device = match HwDevice::shared(name) {
            Ok(device) => device,
            Err(error) => {
                log_info!(Core, "device {name} is not offered: {error}");
                continue;
            }
        };
        if let Some(domain) = &wanted.domain_name
            && *domain != domain_name
        {
            log_info!(
                Core,
                "domain {domain_name} is not the one asked for, {domain}"
            );
            continue;
        }
        if let Some(gid) = [source, wanted.source]
            .into_iter()
            .flatten()
            .find(|gid| *gid != device.gid())
        {
            log_info!(Core, "device {name} has not the address {gid}");
            continue;
        }
        let report = device.report().ok();
        let limits = Limits::of(&device, report.as_ref(), of);
        if let Some((what, requested, limit)) = limits.exceeded_by(&wanted) {
            log_info!(
                Core,
                "device {name}: {what} {requested} is asked for, {limit} is the limit"
            );
            continue;
        }
        if let Some(reason) = wanted.nic.not_met_by(&device, report.as_ref()) {
            log_info!(Core, "device {name}: {reason}");
            continue;
        }
        let allocated = host.allocate_info();
        // SAFETY: an info that libfabric has allocated is valid, with its attributes.
        let Some(filled) = (unsafe { allocated.as_mut() }) else {
            return Err(Errno::ENOMEM);
        };
        let offered = (of, &device, report.as_ref(), &limits);
        fill(filled, &wanted, version, offered, destination);
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

/// Fills an info in for endpoints of a type on a device.
fn fill(
    info: &mut fi_info,
    hints: &Hints,
    version: u32,
    (of, device, report, limits): (&EndpointType, &HwDevice, Option<&DeviceReport>, &Limits),
    destination: Option<RawAddress>,
) {
    let caps = of.granted(hints.caps);
    let caps = match hints.registers_for(caps, version) {
        true => caps,
        // No capability was requested.
        false => caps & !(ONE_SIDED | ACCESSING),
    };
    info.caps = caps;
    info.mode = of.mode;
    info.addr_format = FI_ADDR_EFA;
    let own = RawAddress::new(device.gid(), Qpn(0), Qkey(0));
    (info.src_addr, info.src_addrlen) = allocate_bytes(&own.to_bytes());
    if let Some(destination) = destination.or(hints.destination) {
        (info.dest_addr, info.dest_addrlen) = allocate_bytes(&destination.to_bytes());
    }
    if let Some(report) = report {
        info.nic = nic::describe(device, report);
    }
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
    let or = |requested: usize, default: usize| if requested == 0 { default } else { requested };
    *ep = fi_ep_attr {
        type_: of.number,
        protocol: FI_PROTO_EFA,
        mem_tag_format: match of.is_datagram() {
            true => 0,
            false => tag_format(caps),
        },
        ..limits.ep
    };
    *tx = fi_tx_attr {
        caps: caps & TX_CAPS,
        mode: of.mode,
        op_flags: hints.tx.op_flags,
        // With hints, only the requested order is offered, as by libfabric's efa provider.
        msg_order: hints.tx_msg_order.unwrap_or(of.msg_order),
        size: or(hints.tx.size, limits.tx.size),
        tclass: traffic_class(hints.tx.tclass),
        ..limits.tx
    };
    *rx = fi_rx_attr {
        caps: caps & RX_CAPS,
        mode: of.mode,
        op_flags: hints.rx.op_flags,
        msg_order: hints.rx_msg_order.unwrap_or(of.msg_order),
        size: or(hints.rx.size, limits.rx.size),
        ..limits.rx
    };
    let domain_name = of.domain_name(device.name());
    let is_same = |domain: &Domain| domain.name == domain_name;
    // Automatic progress needs a thread, so it is only offered on request. Control and data
    // progress share one thread.
    let progress = match [hints.domain.control_progress, hints.domain.data_progress] {
        models if models.contains(&FI_PROGRESS_AUTO) => FI_PROGRESS_AUTO,
        _ => FI_PROGRESS_MANUAL,
    };
    let or_default =
        |requested: u32, default: u32| if requested == 0 { default } else { requested };
    *domain = fi_domain_attr {
        name: allocate_text(&domain_name),
        domain: match hints.domain.domain.is_null() {
            true => first_open::<Domain>(is_same).cast(),
            false => hints.domain.domain,
        },
        threading: or_default(hints.domain.threading, FI_THREAD_SAFE),
        control_progress: progress,
        data_progress: progress,
        resource_mgmt: or_default(hints.domain.resource_mgmt, FI_RM_ENABLED),
        av_type: or_default(hints.domain.av_type, FI_AV_TABLE),
        mr_mode: match hints.mr_mode {
            Some(mode) if mode == FI_MR_BASIC as u64 => FI_MR_BASIC as i32,
            // Before interface 1.5 this was the only mode with virtual addresses.
            Some(0) | None if version < (1 << 16 | 5) => FI_MR_BASIC as i32,
            // Only modes that the application declared.
            Some(mode) if zero_copy::is_possible(caps, tx.msg_order | rx.msg_order) => {
                (mode & (MR_MODE | FI_MR_LOCAL)) as i32
            }
            Some(mode) => (mode & MR_MODE) as i32,
            None => MR_MODE as i32,
        },
        caps: DOMAIN_CAPS,
        tclass: traffic_class(hints.domain.tclass),
        ..limits.domain
    };
    fabric.name = allocate_text(&FABRIC.to_string_lossy());
    fabric.fabric = match hints.fabric.is_null() {
        true => first_open::<Fabric>(|_| true).cast(),
        false => hints.fabric,
    };
    fabric.prov_version = VERSION;
    fabric.api_version = version;
}

/// A copy that `free` ends.
fn allocate_text(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: a string is copied.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// A copy that `free` releases, and its length; empty if the allocation fails.
fn allocate_bytes(bytes: &[u8]) -> (*mut c_void, usize) {
    // SAFETY: no memory of Rust's is involved.
    let memory = unsafe { libc::malloc(bytes.len()) };
    if memory.is_null() {
        return (memory, 0);
    }
    // SAFETY: there is room for the requested number of bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
    (memory, bytes.len())
}
