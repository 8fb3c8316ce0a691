//! Attributes of the device and its port.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use efa_device_model::device::PortLink;
use efa_device_model::device::connected::{
    MAX_RD_ATOMIC, MAX_RENDEZVOUS_HEADER, MAX_SRQ, MAX_TAG_OPERATIONS, MAX_TAGS, MAX_WR,
};
use efa_device_model::limits::MAX_SGE;

use crate::abi::{
    COMPAT_PORT_ATTR_SIZE, IBV_ATOMIC_HCA, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SRQ_RESIZE,
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_SYSFS_ROCE_V2, IBV_LINK_LAYER_ETHERNET,
    IBV_PORT_ACTIVE, IBV_PORT_DOWN, IBV_TM_CAP_RC, PHYS_STATE_DISABLED, PHYS_STATE_LINK_UP,
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr,
    ibv_tm_caps,
};
use crate::ffi::errno::{self, Errno};
use crate::ffi::structures::{write, write_sized, zeroed};
use crate::objects::context::Context;
use crate::registry::CONTEXTS;

/// The device's only port.
const PORT: u32 = 1;

/// The default partition, with full membership.
const DEFAULT_PKEY: u16 = 0xffff;

/// Memory of 4 KiB and more can be registered, with any alignment.
const PAGE_SIZES: u64 = !0xfff;

/// `IBV_MTU_4096`: the largest value of an enumeration that has none for the device's MTU.
const MTU_4096: c_int = 5;

fn device_attributes(context: &Context) -> ibv_device_attr {
    let profile = &context.device.profile;
    // SAFETY: the structure consists of integers.
    let mut attributes: ibv_device_attr = unsafe { zeroed() };
    let room = attributes.fw_ver.len() - 1;
    for (slot, byte) in attributes.fw_ver[..room]
        .iter_mut()
        .zip(profile.firmware.bytes())
    {
        *slot = byte as c_char;
    }
    attributes.node_guid = context.device.guid();
    attributes.max_mr_size = profile.max_mr_size;
    attributes.page_size_cap = PAGE_SIZES;
    attributes.vendor_id = profile.vendor_id;
    attributes.vendor_part_id = profile.part_id;
    attributes.hw_ver = profile.hw_version;
    attributes.max_qp = profile.max_qp as c_int;
    attributes.max_qp_wr = profile.max_sq_wr.min(profile.max_rq_wr) as c_int;
    attributes.max_sge = profile.max_sq_sge.min(profile.max_rq_sge) as c_int;
    attributes.max_sge_rd = profile.max_sge_rd() as c_int;
    attributes.max_cq = profile.max_cq as c_int;
    attributes.max_cqe = profile.max_cqe as c_int;
    attributes.max_mr = profile.max_mr as c_int;
    attributes.max_pd = profile.max_pd as c_int;
    attributes.max_ah = profile.max_ah as c_int;
    attributes.max_pkeys = 1;
    attributes.phys_port_cnt = 1;
    if profile.connected {
        put_connected_limits(&mut attributes);
    }
    attributes
}

/// Further attributes of a device with connected queue pairs. The limits of queue pairs are those
/// of datagrams; connected queue pairs have larger ones.
fn put_connected_limits(attributes: &mut ibv_device_attr) {
    attributes.sys_image_guid = attributes.node_guid;
    attributes.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE;
    attributes.max_qp_rd_atom = MAX_RD_ATOMIC.into();
    attributes.max_qp_init_rd_atom = MAX_RD_ATOMIC.into();
    attributes.max_res_rd_atom = attributes.max_qp.saturating_mul(MAX_RD_ATOMIC.into());
    attributes.atomic_cap = IBV_ATOMIC_HCA;
    attributes.max_srq = MAX_SRQ as c_int;
    attributes.max_srq_wr = MAX_WR as c_int;
    attributes.max_srq_sge = MAX_SGE as c_int;
}

/// The device's capabilities of tag matching.
fn tag_matching(context: &Context) -> ibv_tm_caps {
    match context.device.profile.connected {
        false => ibv_tm_caps::default(),
        true => ibv_tm_caps {
            max_rndv_hdr_size: MAX_RENDEZVOUS_HEADER,
            max_num_tags: MAX_TAGS,
            flags: IBV_TM_CAP_RC,
            max_ops: MAX_TAG_OPERATIONS,
            max_sge: MAX_SGE as u32,
        },
    }
}

fn port_link(context: &Context) -> PortLink {
    let hardware = context.hardware();
    let link = hardware.and_then(|hardware| hardware.with_device(|device| device.port()));
    // A forked child has no device.
    link.unwrap_or_default()
}

fn port_attributes(context: &Context) -> ibv_port_attr {
    let PortLink { is_down, speed } = port_link(context);
    let (state, phys_state) = match is_down {
        true => (IBV_PORT_DOWN, PHYS_STATE_DISABLED),
        false => (IBV_PORT_ACTIVE, PHYS_STATE_LINK_UP),
    };
    let profile = &context.device.profile;
    // A device with connected queue pairs is a RoCE device.
    let (lmc, link_layer) = match profile.connected {
        true => (0, IBV_LINK_LAYER_ETHERNET),
        false => (1, 0),
    };
    ibv_port_attr {
        state,
        max_mtu: MTU_4096,
        active_mtu: MTU_4096,
        gid_tbl_len: 1,
        max_msg_sz: profile.max_msg_sz(),
        pkey_tbl_len: 1,
        lmc,
        link_layer,
        max_vl_num: 1,
        active_width: speed.width_code(),
        active_speed: speed.rate_code,
        active_speed_ex: speed.rate_code.into(),
        phys_state,
        ..ibv_port_attr::default()
    }
}

fn check_port(port: u32) -> Result<(), Errno> {
    match port {
        PORT => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// The context, if its device is present.
fn present(context: *mut ibv_context) -> Result<Arc<Context>, Errno> {
    let context = CONTEXTS.get(context)?;
    context.check_present()?;
    Ok(context)
}

/// The context, if the port and the table index exist.
fn entry(context: *mut ibv_context, port: u32, index: u32) -> Result<Arc<Context>, Errno> {
    let context = present(context)?;
    check_port(port)?;
    match index {
        0 => Ok(context),
        _ => Err(Errno::INVAL),
    }
}

fn gid_row(context: &Context) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid {
            raw: context.device.gid.0,
        },
        gid_index: 0,
        port_num: PORT,
        gid_type: match context.device.profile.connected {
            true => IBV_GID_TYPE_ROCE_V2,
            false => IBV_GID_TYPE_IB,
        },
        ndev_ifindex: 0,
    }
}

/// Writes the device's attributes.
///
/// Returns 0 or an errno: `EINVAL` for an unknown context or null attributes, `EIO` after the
/// device was removed.
///
/// # Safety
/// `attributes` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attributes: *mut ibv_device_attr,
) -> c_int {
    errno::status(present(context).and_then(|context| {
        // SAFETY: valid by contract.
        unsafe { write(attributes, device_attributes(&context)) }
    }))
}

/// Writes the device's attributes and one extension, the number of ports: EFA reports no other.
/// Slot of `verbs_context`.
///
/// Returns 0 or an errno as [`ibv_query_device`]; `EINVAL` also for input with a `comp_mask`, or a
/// structure that is shorter than `ibv_device_attr`.
///
/// # Safety
/// `attributes` is null or valid for writes of `size` bytes; `input` is null or a structure that
/// starts with 32 bits of `comp_mask`.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attributes: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    errno::status(present(context).and_then(|context| {
        // SAFETY: valid by contract.
        if !input.is_null() && unsafe { input.cast::<u32>().read() } != 0 {
            return Err(Errno::INVAL);
        }
        let extended = ibv_device_attr_ex {
            orig_attr: device_attributes(&context),
            comp_mask: 0,
            unreported: [0; 28],
            tm_caps: tag_matching(&context),
            unreported_either: [0; 7],
            phys_port_cnt_ex: 1,
        };
        // SAFETY: valid by contract.
        unsafe { write_sized(attributes, &extended, size, size_of::<ibv_device_attr>()) }
    }))
}

/// Writes the attributes of the port; `size` is the size of the caller's structure. Slot of
/// `verbs_context`.
///
/// Returns 0 or an errno: `EINVAL` for an unknown context or port or null attributes, `EIO` after
/// the device was removed.
///
/// # Safety
/// `attributes` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    errno::status(present(context).and_then(|context| {
        check_port(port.into())?;
        // SAFETY: valid by contract.
        unsafe { write_sized(attributes, &port_attributes(&context), size, 0) }
    }))
}

/// [`query_port`] for clients that do not use the slot and have a shorter structure.
///
/// Returns as [`query_port`].
///
/// # Safety
/// `attributes` is null or valid for writes of [`COMPAT_PORT_ATTR_SIZE`] bytes.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: passed on.
    unsafe { query_port(context, port, attributes, COMPAT_PORT_ATTR_SIZE) }
}

/// Writes the port's speed to `*speed`, in units of 100 Mbit/s.
///
/// Returns 0 or an errno as [`query_port`].
///
/// # Safety
/// `speed` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    errno::status(present(context).and_then(|context| {
        check_port(port)?;
        // SAFETY: valid by contract.
        unsafe { write(speed, 10 * u64::from(port_link(&context).speed.gbps)) }
    }))
}

/// Writes the only GID of the port to `*gid`.
///
/// Returns 0, or -1 with `errno`: `EINVAL` for an unknown context, port or index, or a null `gid`;
/// `EIO` after the device was removed.
///
/// # Safety
/// `gid` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    errno::zero_or_minus_one(entry(context, port.into(), index).and_then(|context| {
        // SAFETY: valid by contract.
        unsafe { write(gid, gid_row(&context).gid) }
    }))
}

/// Writes a row of the GID table; `size` is the size of the caller's structure.
///
/// Returns 0 or an errno: as [`ibv_query_gid`], and `EOPNOTSUPP` for flags.
///
/// # Safety
/// `row` is null or valid for writes of `size` bytes.
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    row: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    errno::status(entry(context, port, index).and_then(|context| match flags {
        // SAFETY: valid by contract.
        0 => unsafe { write_sized(row, &gid_row(&context), size, 0) },
        _ => Err(Errno::OPNOTSUPP),
    }))
}

/// Writes the GID tables of all ports, one row, if there is room.
///
/// Returns the number of rows, or a negative errno: `EINVAL` for an unknown context, null `rows` or
/// no room, `EOPNOTSUPP` for flags.
///
/// # Safety
/// `rows` is null or valid for writes of `max_rows` rows of `row_size` bytes.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    rows: *mut ibv_gid_entry,
    max_rows: usize,
    flags: u32,
    row_size: usize,
) -> isize {
    let result = CONTEXTS
        .get(context)
        .and_then(|context| match (flags, max_rows) {
            (0, 0) => Err(Errno::INVAL),
            // SAFETY: there is room for one row by contract.
            (0, _) => unsafe { write_sized(rows, &gid_row(&context), row_size, 0) },
            _ => Err(Errno::OPNOTSUPP),
        });
    result.map_or_else(|errno| -(errno.number() as isize), |()| 1)
}

/// Writes the type of a GID. GIDs of EFA have the type of InfiniBand, because the port has no
/// Ethernet network device; GIDs of a device with connected queue pairs have the type RoCE v2.
///
/// Returns 0, or -1 with `errno` as [`ibv_query_gid`].
///
/// # Safety
/// `gid_type` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    gid_type: *mut c_int,
) -> c_int {
    errno::zero_or_minus_one(entry(context, port.into(), index).and_then(|context| {
        let of_sysfs = match context.device.profile.connected {
            true => IBV_GID_TYPE_SYSFS_ROCE_V2,
            false => IBV_GID_TYPE_IB as c_int,
        };
        // SAFETY: valid by contract.
        unsafe { write(gid_type, of_sysfs) }
    }))
}

/// Writes the only partition key of the port to `*pkey`, big endian.
///
/// Returns 0, or -1 with `errno` as [`ibv_query_gid`].
///
/// # Safety
/// `pkey` is null or valid for a write.
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    errno::zero_or_minus_one(entry(context, port.into(), index).and_then(|_| {
        // SAFETY: valid by contract.
        unsafe { write(pkey, DEFAULT_PKEY.to_be()) }
    }))
}

/// Returns the index of a partition key (big endian), or -1 with `errno`: `EINVAL` for an unknown
/// key, port or context, `EIO` after the device was removed.
pub(crate) extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    let found = entry(context, port.into(), 0);
    errno::zero_or_minus_one(found.and_then(|_| match pkey == DEFAULT_PKEY.to_be() {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }))
}
