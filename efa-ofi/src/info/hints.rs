//! What applications ask for (`fi_getinfo`).

use std::ffi::{CStr, c_char};

use efa_core::address::RawAddress;
use efa_core::endpoint::{Errno, IOV_LIMIT};

use crate::capabilities::{
    CAPS, DOMAIN_CAPS, FABRIC, INJECT_SIZE, MR_MODE, MSG_ORDER, ONE_SIDED, RX_OP_FLAGS, RX_SIZE,
    TX_OP_FLAGS, TX_SIZE,
};
use crate::ffi::host::{Subsystem, info};
use crate::ffi::object::object;
use crate::ffi::result::{ENODATA, Result};
use crate::ffi::*;
use crate::objects::domain::Domain;
use crate::objects::fabric::Fabric;

/// Explains why the hints cannot be met.
pub(crate) fn refuse(reason: &str) -> Errno {
    info(Subsystem::Core, reason);
    ENODATA
}

/// # Safety
/// The pointer is null or leads to a string.
pub(crate) unsafe fn text(pointer: *const c_char) -> Option<String> {
    (!pointer.is_null()).then(|| {
        // SAFETY: by the caller's contract.
        let text = unsafe { CStr::from_ptr(pointer) };
        text.to_string_lossy().into_owned()
    })
}

/// What the hints ask for. Zero and `None` mean anything.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    pub(crate) caps: u64,
    pub(crate) destination: Option<RawAddress>,
    pub(crate) addr_format: u32,
    pub(crate) ep_type: u32,
    pub(crate) protocol: u32,
    pub(crate) max_msg_size: usize,
    pub(crate) tx_op_flags: u64,
    pub(crate) tx_msg_order: Option<u64>,
    pub(crate) inject_size: usize,
    pub(crate) tx_size: usize,
    pub(crate) tx_iov_limit: usize,
    pub(crate) rma_iov_limit: usize,
    pub(crate) rx_op_flags: u64,
    pub(crate) rx_msg_order: Option<u64>,
    pub(crate) rx_size: usize,
    pub(crate) rx_iov_limit: usize,
    pub(crate) mr_mode: Option<u64>,
    pub(crate) threading: u32,
    pub(crate) control_progress: u32,
    pub(crate) data_progress: u32,
    pub(crate) resource_mgmt: u32,
    pub(crate) av_type: u32,
    pub(crate) cq_data_size: usize,
    pub(crate) mr_key_size: usize,
    /// Of the domain, and of sends.
    pub(crate) traffic_classes: [u32; 2],
    pub(crate) domain_caps: u64,
    pub(crate) domain: Option<String>,
    pub(crate) fabric: Option<String>,
    /// The device of a domain that is open already.
    pub(crate) device: Option<String>,
}

impl Hints {
    /// # Errors
    /// `FI_ENODATA` for a fabric or a domain that is not an open one of this provider.
    ///
    /// # Safety
    /// Attributes, strings and objects of the hints are valid or null.
    pub(crate) unsafe fn new(hints: Option<&fi_info>) -> Result<Hints> {
        let Some(hints) = hints else {
            return Ok(Hints::default());
        };
        let has_destination = hints.addr_format == FI_ADDR_EFA
            && hints.dest_addrlen == RawAddress::LEN
            && !hints.dest_addr.is_null();
        let mut wanted = Hints {
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
            ..Hints::default()
        };
        // SAFETY: by the caller's contract, here and below.
        if let Some(attr) = unsafe { hints.ep_attr.as_ref() } {
            wanted.ep_type = attr.type_;
            wanted.protocol = attr.protocol;
            wanted.max_msg_size = attr.max_msg_size;
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { hints.tx_attr.as_ref() } {
            wanted.caps |= attr.caps;
            wanted.tx_op_flags = attr.op_flags;
            wanted.tx_msg_order = Some(attr.msg_order);
            wanted.inject_size = attr.inject_size;
            wanted.tx_size = attr.size;
            wanted.tx_iov_limit = attr.iov_limit;
            wanted.rma_iov_limit = attr.rma_iov_limit;
            wanted.traffic_classes[1] = attr.tclass;
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { hints.rx_attr.as_ref() } {
            wanted.caps |= attr.caps;
            wanted.rx_op_flags = attr.op_flags;
            wanted.rx_msg_order = Some(attr.msg_order);
            wanted.rx_size = attr.size;
            wanted.rx_iov_limit = attr.iov_limit;
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { hints.domain_attr.as_ref() } {
            wanted.mr_mode = Some(attr.mr_mode as u64);
            wanted.threading = attr.threading;
            wanted.control_progress = attr.control_progress;
            wanted.data_progress = attr.data_progress;
            wanted.resource_mgmt = attr.resource_mgmt;
            wanted.av_type = attr.av_type;
            wanted.cq_data_size = attr.cq_data_size;
            wanted.mr_key_size = attr.mr_key_size;
            wanted.traffic_classes[0] = attr.tclass;
            wanted.domain_caps = attr.caps;
            // SAFETY: as above.
            wanted.domain = unsafe { text(attr.name) };
            if !attr.domain.is_null() {
                // SAFETY: as above.
                let domain = unsafe { object::<Domain>(attr.domain.cast()) };
                let domain =
                    domain.map_err(|_| refuse("the domain is not one of this provider"))?;
                wanted.device = Some(domain.device.clone());
            }
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { hints.fabric_attr.as_ref() } {
            // SAFETY: as above.
            wanted.fabric = unsafe { text(attr.name) };
            // SAFETY: as above.
            let fabric = || unsafe { object::<Fabric>(attr.fabric.cast()) };
            if !attr.fabric.is_null() && fabric().is_err() {
                return Err(refuse("the fabric is not one of this provider"));
            }
        }
        Ok(wanted)
    }

    /// # Errors
    /// `FI_ENODATA` if something is asked for that no device of this provider has.
    pub(crate) fn check(&self) -> Result<()> {
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
}
