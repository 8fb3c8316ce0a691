//! What the provider offers, and how it answers hints (`fi_getinfo`).

use std::ffi::{CStr, CString, c_char, c_void};
use std::net::Ipv6Addr;

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::endpoint::{AtomicKind, Errno, IOV_LIMIT, atomic_limits};
use efa_core::nic::{Device as _, NicAttributes, QueuePairConfig};
use efa_core::wire::{AtomicDatatype, AtomicOp};
use efa_hw::HwDevice;

use crate::border::{self, ENODATA, Result};
use crate::domain::Domain;
use crate::fabric::Fabric;
use crate::ffi::*;
use crate::fork;
use crate::host::{Host, Part, explain};
use crate::nic;
use crate::zero_copy;

/// The name of the fabric: all EFA devices that can reach each other.
const FABRIC: &CStr = c"efa";

/// What follows the device's name in the name of a domain, as in those of libfabric's own efa provider.
const DOMAIN_SUFFIX: &str = "-rdm";

/// Sends that an endpoint takes until some complete, and receive buffers of a packet each, on a device that can do so many.
const TX_SIZE: usize = 1024;
const RX_SIZE: usize = 2048;

/// The largest message in bytes.
pub(crate) const MAX_MESSAGE: usize = u64::MAX as usize;

/// The longest message that is copied within the call (`fi_inject`), in bytes, with each of the stock releases as a peer.
pub(crate) const INJECT_SIZE: usize = 8192;

const MESSAGES: u64 = FI_MSG | FI_TAGGED;
const ONE_SIDED: u64 = FI_RMA | FI_ATOMIC;
const SENDING: u64 = FI_SEND | FI_RECV;
const ACCESSING: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const SECONDARY: u64 =
    FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;

/// Everything that an application may ask for.
pub(crate) const CAPS: u64 = MESSAGES | ONE_SIDED | SENDING | ACCESSING | SECONDARY;
const TX_CAPS: u64 = MESSAGES | ONE_SIDED | FI_SEND | FI_READ | FI_WRITE;
const RX_CAPS: u64 = MESSAGES
    | ONE_SIDED
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_DIRECTED_RECV;

const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

/// Flags that operations may have by default.
pub(crate) const TX_OP_FLAGS: u64 =
    FI_INJECT | FI_COMPLETION | FI_TRANSMIT_COMPLETE | FI_INJECT_COMPLETE | FI_DELIVERY_COMPLETE;
pub(crate) const RX_OP_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;

/// Messages are matched in the order in which they were sent, and atomics are carried out in theirs. MPICH uses atomics for
/// its windows only if they are ordered.
const MSG_ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

/// What an application has to do about memory that peers access. Other memory need not be registered.
const MR_MODE: u64 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

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
    let host = Host::find().ok_or(ENODATA)?;
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
    let asked = unsafe { Asked::new(hints) }?;
    asked.check()?;
    let names = HwDevice::names().map_err(|error| refuse(&error.to_string()))?;
    fork::prepare()?;
    let mut first: *mut fi_info = std::ptr::null_mut();
    let mut last: *mut fi_info = std::ptr::null_mut();
    for name in names {
        if asked.device.as_ref().is_some_and(|device| *device != name) {
            continue;
        }
        let device = match HwDevice::shared(&name) {
            Ok(device) => device,
            Err(error) => {
                explain(
                    Part::Core,
                    &format!("device {name} is not offered: {error}"),
                );
                continue;
            }
        };
        if let Some(wanted) = &asked.domain
            && *wanted != domain_name(&name)
        {
            explain(
                Part::Core,
                &format!(
                    "domain {} is not the one asked for, {wanted}",
                    domain_name(&name)
                ),
            );
            continue;
        }
        let (tx_size, rx_size) = queue_sizes(&device.attributes());
        if asked.tx_size > tx_size || asked.rx_size > rx_size {
            explain(
                Part::Core,
                &format!(
                    "device {name} has transmit queues of {tx_size} and receive queues of {rx_size} at most"
                ),
            );
            continue;
        }
        let info = host.allocate_info();
        // SAFETY: what libfabric has allocated is valid, with its attributes.
        let Some(filled) = (unsafe { info.as_mut() }) else {
            return Err(Errno::ENOMEM);
        };
        asked.fill(filled, version, &device, destination.or(asked.destination));
        match last.is_null() {
            true => first = info,
            // SAFETY: it was allocated in a round before.
            false => unsafe { (*last).next = info },
        }
        last = info;
    }
    match first.is_null() {
        true => Err(refuse("no EFA device that the hints permit")),
        false => Ok(first),
    }
}

/// The sizes of the transmit and the receive queue of an endpoint on a device with these limits.
pub(crate) fn queue_sizes(limits: &NicAttributes) -> (usize, usize) {
    (
        TX_SIZE.min(limits.send_queue_depth),
        RX_SIZE.min(limits.recv_queue_depth),
    )
}

/// The longest operand of an atomic, in bytes.
fn largest_atomic(limits: &NicAttributes) -> usize {
    let bytes = atomic_limits(
        limits,
        AtomicDatatype::UINT8,
        AtomicOp::SUM,
        AtomicKind::Write,
    );
    bytes.map_or(0, |limits| limits.count)
}

/// The device whose domain has this name.
pub(crate) fn device_of(domain: &str) -> &str {
    domain.strip_suffix(DOMAIN_SUFFIX).unwrap_or(domain)
}

fn domain_name(device: &str) -> String {
    format!("{device}{DOMAIN_SUFFIX}")
}

/// Explains why the hints cannot be met.
fn refuse(reason: &str) -> Errno {
    explain(Part::Core, reason);
    ENODATA
}

/// # Safety
/// The pointer is null or leads to a string.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    (!pointer.is_null()).then(|| {
        // SAFETY: by the caller's contract.
        let text = unsafe { CStr::from_ptr(pointer) };
        text.to_string_lossy().into_owned()
    })
}

/// The address that a node and a service name: an address as `fi_tostr` and this provider write it, or a GID and a queue
/// pair number.
pub(crate) fn address_of(node: &str, service: Option<&str>) -> Result<RawAddress> {
    if let Ok(address) = node.parse() {
        return Ok(address);
    }
    let gid: Ipv6Addr = node.parse().map_err(|_| {
        refuse(&format!(
            "`{node}` is neither a GID nor an address such as [fe80::1]:2/0x00000003"
        ))
    })?;
    let qpn = service.unwrap_or("0");
    let qpn = qpn
        .parse()
        .map_err(|_| refuse(&format!("service `{qpn}` is no queue pair number")))?;
    Ok(RawAddress {
        gid: Gid::from(gid),
        qpn: Qpn(qpn),
        qkey: Qkey(0),
    })
}

/// What the hints ask for. Zero and `None` mean anything.
#[derive(Debug, Default)]
struct Asked {
    caps: u64,
    destination: Option<RawAddress>,
    addr_format: u32,
    ep_type: u32,
    protocol: u32,
    max_msg_size: usize,
    tx_op_flags: u64,
    tx_msg_order: Option<u64>,
    inject_size: usize,
    tx_size: usize,
    tx_iov_limit: usize,
    rma_iov_limit: usize,
    rx_op_flags: u64,
    rx_msg_order: Option<u64>,
    rx_size: usize,
    rx_iov_limit: usize,
    mr_mode: Option<u64>,
    threading: u32,
    control_progress: u32,
    data_progress: u32,
    resource_mgmt: u32,
    av_type: u32,
    cq_data_size: usize,
    mr_key_size: usize,
    /// Of the domain, and of sends.
    traffic_classes: [u32; 2],
    domain_caps: u64,
    domain: Option<String>,
    fabric: Option<String>,
    /// The device of a domain that is open already.
    device: Option<String>,
}

impl Asked {
    /// # Errors
    /// `FI_ENODATA` for a fabric or a domain that is not an open one of this provider.
    ///
    /// # Safety
    /// Attributes, strings and objects of the hints are valid or null.
    unsafe fn new(hints: Option<&fi_info>) -> Result<Asked> {
        let Some(hints) = hints else {
            return Ok(Asked::default());
        };
        let has_destination = hints.addr_format == FI_ADDR_EFA
            && hints.dest_addrlen == RawAddress::LEN
            && !hints.dest_addr.is_null();
        let mut asked = Asked {
            caps: hints.caps,
            addr_format: hints.addr_format,
            destination: has_destination.then(|| {
                // SAFETY: by the caller's contract an address of this length, of any alignment.
                let bytes = unsafe {
                    hints
                        .dest_addr
                        .cast::<[u8; RawAddress::LEN]>()
                        .read_unaligned()
                };
                RawAddress::from_bytes(&bytes)
            }),
            ..Asked::default()
        };
        // SAFETY: by the caller's contract, here and below.
        if let Some(attr) = unsafe { hints.ep_attr.as_ref() } {
            asked.ep_type = attr.type_;
            asked.protocol = attr.protocol;
            asked.max_msg_size = attr.max_msg_size;
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { hints.tx_attr.as_ref() } {
            asked.caps |= attr.caps;
            asked.tx_op_flags = attr.op_flags;
            asked.tx_msg_order = Some(attr.msg_order);
            asked.inject_size = attr.inject_size;
            asked.tx_size = attr.size;
            asked.tx_iov_limit = attr.iov_limit;
            asked.rma_iov_limit = attr.rma_iov_limit;
            asked.traffic_classes[1] = attr.tclass;
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { hints.rx_attr.as_ref() } {
            asked.caps |= attr.caps;
            asked.rx_op_flags = attr.op_flags;
            asked.rx_msg_order = Some(attr.msg_order);
            asked.rx_size = attr.size;
            asked.rx_iov_limit = attr.iov_limit;
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { hints.domain_attr.as_ref() } {
            asked.mr_mode = Some(attr.mr_mode as u64);
            asked.threading = attr.threading;
            asked.control_progress = attr.control_progress;
            asked.data_progress = attr.data_progress;
            asked.resource_mgmt = attr.resource_mgmt;
            asked.av_type = attr.av_type;
            asked.cq_data_size = attr.cq_data_size;
            asked.mr_key_size = attr.mr_key_size;
            asked.traffic_classes[0] = attr.tclass;
            asked.domain_caps = attr.caps;
            // SAFETY: as above.
            asked.domain = unsafe { text(attr.name) };
            if !attr.domain.is_null() {
                // SAFETY: as above.
                let domain = unsafe { border::object::<Domain>(attr.domain.cast()) };
                let domain =
                    domain.map_err(|_| refuse("the domain is not one of this provider"))?;
                asked.device = Some(domain.device.clone());
            }
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { hints.fabric_attr.as_ref() } {
            // SAFETY: as above.
            asked.fabric = unsafe { text(attr.name) };
            // SAFETY: as above.
            let fabric = || unsafe { border::object::<Fabric>(attr.fabric.cast()) };
            if !attr.fabric.is_null() && fabric().is_err() {
                return Err(refuse("the fabric is not one of this provider"));
            }
        }
        Ok(asked)
    }

    /// # Errors
    /// `FI_ENODATA` if something is asked for that no device of this provider has.
    fn check(&self) -> Result<()> {
        let subset = |what: &str, asked: u64, offered: u64| match asked & !offered {
            0 => Ok(()),
            more => Err(refuse(&format!(
                "{what}: {more:#x} of {asked:#x} are not supported, {offered:#x} are"
            ))),
        };
        let at_most = |what: &str, asked: usize, limit: usize| match asked > limit {
            false => Ok(()),
            true => Err(refuse(&format!(
                "{what} {asked} is asked for, {limit} is the limit"
            ))),
        };
        let one_of = |what: &str, asked: u32, offered: &[u32]| match asked == 0
            || offered.contains(&asked)
        {
            true => Ok(()),
            false => Err(refuse(&format!(
                "{what} {asked} is not supported, {offered:?} are"
            ))),
        };
        subset("capabilities", self.caps, CAPS)?;
        subset("capabilities of the domain", self.domain_caps, DOMAIN_CAPS)?;
        one_of("address format", self.addr_format, &[FI_ADDR_EFA])?;
        one_of("endpoint type", self.ep_type, &[FI_EP_RDM])?;
        one_of("protocol", self.protocol, &[FI_PROTO_EFA])?;
        subset("operation flags of sends", self.tx_op_flags, TX_OP_FLAGS)?;
        subset("operation flags of receives", self.rx_op_flags, RX_OP_FLAGS)?;
        subset(
            "message order",
            self.tx_msg_order.unwrap_or(0) | self.rx_msg_order.unwrap_or(0),
            MSG_ORDER,
        )?;
        at_most("inject size", self.inject_size, INJECT_SIZE)?;
        at_most("size of the transmit queue", self.tx_size, TX_SIZE)?;
        at_most("size of the receive queue", self.rx_size, RX_SIZE)?;
        at_most("pieces of a send", self.tx_iov_limit, IOV_LIMIT)?;
        at_most("pieces of a receive", self.rx_iov_limit, IOV_LIMIT)?;
        at_most("pieces of remote memory", self.rma_iov_limit, IOV_LIMIT)?;
        at_most("size of completion data", self.cq_data_size, 8)?;
        one_of(
            "progress of control",
            self.control_progress,
            &[FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL],
        )?;
        one_of(
            "progress of data",
            self.data_progress,
            &[FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL],
        )?;
        if let Some(mode) = self.mr_mode
            && self.caps & ONE_SIDED != 0
            && mode != FI_MR_BASIC as u64
            && mode & MR_MODE != MR_MODE
        {
            return Err(refuse(&format!(
                "memory registration mode {mode:#x}: one-sided operations need {MR_MODE:#x} (virtual addresses, allocated memory, keys of the provider)"
            )));
        }
        if let Some(fabric) = &self.fabric
            && fabric.as_bytes() != FABRIC.to_bytes()
        {
            return Err(refuse(&format!(
                "fabric {fabric} is asked for; there is {}",
                FABRIC.to_string_lossy()
            )));
        }
        Ok(())
    }

    fn fill(
        &self,
        info: &mut fi_info,
        version: u32,
        device: &HwDevice,
        destination: Option<RawAddress>,
    ) {
        let caps = granted(self.caps);
        info.caps = caps;
        info.mode = 0;
        info.addr_format = FI_ADDR_EFA;
        let own = RawAddress {
            gid: device.gid(),
            qpn: Qpn(0),
            qkey: Qkey(0),
        };
        (info.src_addr, info.src_addrlen) = allocate_bytes(&own.to_bytes());
        if let Some(destination) = destination {
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
        tx.op_flags = self.tx_op_flags;
        // Who has hints gets no more than is asked for, as from libfabric's efa provider.
        tx.msg_order = self.tx_msg_order.unwrap_or(MSG_ORDER);
        tx.inject_size = INJECT_SIZE;
        tx.size = or(self.tx_size, tx_size);
        tx.iov_limit = IOV_LIMIT;
        tx.rma_iov_limit = IOV_LIMIT;
        rx.caps = caps & RX_CAPS;
        rx.op_flags = self.rx_op_flags;
        rx.msg_order = self.rx_msg_order.unwrap_or(MSG_ORDER);
        rx.size = or(self.rx_size, rx_size);
        rx.iov_limit = IOV_LIMIT;
        domain.name = allocate_text(&domain_name(device.name()));
        let is_of_device = |domain: &Domain| domain.device == device.name();
        domain.domain = border::first_open::<Domain>(is_of_device).cast();
        domain.threading = match self.threading {
            FI_THREAD_UNSPEC => FI_THREAD_SAFE,
            asked => asked,
        };
        // Automatic progress takes a thread: on request only. There is one for both.
        let progress = match [self.control_progress, self.data_progress] {
            models if models.contains(&FI_PROGRESS_AUTO) => FI_PROGRESS_AUTO,
            _ => FI_PROGRESS_MANUAL,
        };
        domain.control_progress = progress;
        domain.data_progress = progress;
        domain.resource_mgmt = match self.resource_mgmt {
            FI_RM_UNSPEC => FI_RM_ENABLED,
            asked => asked,
        };
        domain.av_type = match self.av_type {
            FI_AV_UNSPEC => FI_AV_TABLE,
            asked => asked,
        };
        domain.mr_mode = match self.mr_mode {
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
        [domain.tclass, tx.tclass] = self.traffic_classes.map(traffic_class);
        fabric.name = allocate_text(&FABRIC.to_string_lossy());
        fabric.fabric = border::first_open::<Fabric>(|_| true).cast();
        fabric.prov_version = crate::entry::VERSION;
        fabric.api_version = version;
    }
}

/// The capabilities of an endpoint whose application asks for these. What is asked for without a direction has all of its
/// directions. Secondary capabilities are there on request only.
fn granted(asked: u64) -> u64 {
    if asked == 0 {
        return CAPS;
    }
    let directions = |kind: u64, directions: u64| {
        if asked & kind != 0 && asked & directions == 0 {
            directions
        } else {
            0
        }
    };
    asked
        | FI_LOCAL_COMM
        | FI_REMOTE_COMM
        | directions(MESSAGES, SENDING)
        | directions(ONE_SIDED, ACCESSING)
}

/// The traffic class that is granted to who asks for this one: as from stock, none instead of those that the device does not
/// tell apart.
fn traffic_class(asked: u32) -> u32 {
    match asked {
        FI_TC_BEST_EFFORT | FI_TC_LOW_LATENCY => asked,
        _ => FI_TC_UNSPEC,
    }
}

/// The service level of an endpoint's packets, for the traffic classes of its domain and of its sends.
pub(crate) fn service_level(domain: u32, sends: u32) -> u8 {
    let class = match sends {
        FI_TC_UNSPEC => domain,
        class => class,
    };
    match class {
        FI_TC_LOW_LATENCY => QueuePairConfig::LOW_LATENCY,
        _ => 0,
    }
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
