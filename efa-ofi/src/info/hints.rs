//! Hints of applications (`fi_getinfo`).

use std::ffi::{CStr, c_char};

use efa_core::address::RawAddress;
use efa_core::endpoint::{Errno, IOV_LIMIT};

use crate::capabilities::{
    CAPS, DOMAIN_CAPS, FABRIC, INJECT_SIZE, MR_MODE, MSG_ORDER, ONE_SIDED, RX_OP_FLAGS, RX_SIZE,
    TX_OP_FLAGS, TX_SIZE,
};
use crate::ffi::host::log_info;
use crate::ffi::object::object;
use crate::ffi::result::{ENODATA, Result};
use crate::ffi::*;
use crate::objects::domain::Domain;
use crate::objects::fabric::Fabric;

/// Explains why the hints cannot be met.
pub(crate) fn refuse(reason: &str) -> Errno {
    log_info!(Core, "{reason}");
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
    addr_format: u32,
    /// Attributes that are not there are zero.
    ep: fi_ep_attr,
    pub(crate) tx: fi_tx_attr,
    pub(crate) rx: fi_rx_attr,
    pub(crate) domain: fi_domain_attr,
    pub(crate) tx_msg_order: Option<u64>,
    pub(crate) rx_msg_order: Option<u64>,
    pub(crate) mr_mode: Option<u64>,
    pub(crate) domain_name: Option<String>,
    fabric_name: Option<String>,
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
        // SAFETY: by the caller's contract.
        let (ep, tx, rx, domain, fabric) = unsafe {
            (
                hints.ep_attr.as_ref().copied(),
                hints.tx_attr.as_ref().copied(),
                hints.rx_attr.as_ref().copied(),
                hints.domain_attr.as_ref().copied(),
                hints.fabric_attr.as_ref().copied().unwrap_or_default(),
            )
        };
        let mut wanted = Hints {
            caps: hints.caps
                | tx.map_or(0, |attributes| attributes.caps)
                | rx.map_or(0, |attributes| attributes.caps),
            destination: None,
            addr_format: hints.addr_format,
            ep: ep.unwrap_or_default(),
            tx: tx.unwrap_or_default(),
            rx: rx.unwrap_or_default(),
            domain: domain.unwrap_or_default(),
            tx_msg_order: tx.map(|attributes| attributes.msg_order),
            rx_msg_order: rx.map(|attributes| attributes.msg_order),
            mr_mode: domain.map(|attributes| attributes.mr_mode as u64),
            // SAFETY: by the caller's contract.
            domain_name: domain.and_then(|attributes| unsafe { text(attributes.name) }),
            // SAFETY: likewise.
            fabric_name: unsafe { text(fabric.name) },
            device: None,
        };
        if hints.addr_format == FI_ADDR_EFA
            && hints.dest_addrlen == RawAddress::LEN
            && !hints.dest_addr.is_null()
        {
            let bytes = hints.dest_addr.cast::<[u8; RawAddress::LEN]>();
            // SAFETY: by the caller's contract an address of this length, of any alignment.
            let bytes = unsafe { bytes.read_unaligned() };
            wanted.destination = Some(RawAddress::from_bytes(&bytes));
        }
        if !wanted.domain.domain.is_null() {
            // SAFETY: by the caller's contract.
            let domain = unsafe { object::<Domain>(wanted.domain.domain.cast()) };
            let domain = domain.map_err(|_| refuse("the domain is not one of this provider"))?;
            wanted.device = Some(domain.device.clone());
        }
        // SAFETY: likewise.
        if !fabric.fabric.is_null() && unsafe { object::<Fabric>(fabric.fabric.cast()) }.is_err() {
            return Err(refuse("the fabric is not one of this provider"));
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
        subset("capabilities of the domain", self.domain.caps, DOMAIN_CAPS)?;
        one_of("address format", self.addr_format, &[FI_ADDR_EFA])?;
        one_of("endpoint type", self.ep.type_, &[FI_EP_RDM])?;
        one_of("protocol", self.ep.protocol, &[FI_PROTO_EFA])?;
        subset("operation flags of sends", self.tx.op_flags, TX_OP_FLAGS)?;
        subset("operation flags of receives", self.rx.op_flags, RX_OP_FLAGS)?;
        subset(
            "message order",
            self.tx_msg_order.unwrap_or(0) | self.rx_msg_order.unwrap_or(0),
            MSG_ORDER,
        )?;
        at_most("inject size", self.tx.inject_size, INJECT_SIZE)?;
        at_most("size of the transmit queue", self.tx.size, TX_SIZE)?;
        at_most("size of the receive queue", self.rx.size, RX_SIZE)?;
        at_most("pieces of a send", self.tx.iov_limit, IOV_LIMIT)?;
        at_most("pieces of a receive", self.rx.iov_limit, IOV_LIMIT)?;
        at_most("pieces of remote memory", self.tx.rma_iov_limit, IOV_LIMIT)?;
        at_most("size of completion data", self.domain.cq_data_size, 8)?;
        let progress = [FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL];
        let domain = &self.domain;
        one_of("progress of control", domain.control_progress, &progress)?;
        one_of("progress of data", domain.data_progress, &progress)?;
        if let Some(mode) = self.mr_mode
            && self.caps & ONE_SIDED != 0
            && mode != FI_MR_BASIC as u64
            && mode & MR_MODE != MR_MODE
        {
            return Err(refuse(&format!(
                "memory registration mode {mode:#x}: one-sided operations need {MR_MODE:#x} \
                 (virtual addresses, allocated memory, keys of the provider)"
            )));
        }
        if let Some(fabric) = &self.fabric_name
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
