//! Hints of applications (`fi_getinfo`).

use std::ffi::{CStr, c_char, c_void};

use efa_core::address::{Gid, RawAddress};
use efa_core::endpoint::Errno;

use crate::capabilities::{DOMAIN_CAPS, ENDPOINT_TYPES, EndpointType, FABRIC, MR_MODE, is_target};
use crate::ffi::host::log_info;
use crate::ffi::object::object;
use crate::ffi::result::{ENODATA, Result};
use crate::ffi::*;
use crate::info::nic;
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

/// # Errors
/// `FI_ENODATA` if a value other than 0, which means any, is requested and not offered.
fn one_of(what: &str, requested: u32, offered: &[u32]) -> Result<()> {
    match requested == 0 || offered.contains(&requested) {
        true => Ok(()),
        false => Err(refuse(&format!(
            "{what} {requested} is not supported, {offered:?} are"
        ))),
    }
}

/// An address of this provider, if there is one.
///
/// # Errors
/// `FI_ENODATA` for another length.
///
/// # Safety
/// `address` is null or has `length` bytes.
unsafe fn address(what: &str, address: *const c_void, length: usize) -> Result<Option<RawAddress>> {
    if address.is_null() {
        return Ok(None);
    }
    if length != RawAddress::LEN {
        return Err(refuse(&format!(
            "{what} address of {length} bytes: those of this provider have {}",
            RawAddress::LEN
        )));
    }
    // SAFETY: by the caller's contract; of any alignment.
    let bytes = unsafe { address.cast::<[u8; RawAddress::LEN]>().read_unaligned() };
    Ok(Some(RawAddress::from_bytes(&bytes)))
}

/// The requested attributes. Zero and `None` mean anything.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    pub(crate) caps: u64,
    /// The mode bits that the application accepts; without hints, all.
    mode: Option<u64>,
    /// The device that has this GID.
    pub(crate) source: Option<Gid>,
    pub(crate) destination: Option<RawAddress>,
    addr_format: u32,
    /// Missing attributes are zero.
    pub(crate) ep: fi_ep_attr,
    pub(crate) tx: fi_tx_attr,
    pub(crate) rx: fi_rx_attr,
    pub(crate) domain: fi_domain_attr,
    pub(crate) tx_msg_order: Option<u64>,
    pub(crate) rx_msg_order: Option<u64>,
    pub(crate) mr_mode: Option<u64>,
    pub(crate) domain_name: Option<String>,
    fabric_name: Option<String>,
    pub(crate) fabric: *mut fid_fabric,
    /// The name of a domain that is open already.
    pub(crate) open_domain: Option<String>,
    pub(crate) nic: nic::NicHints,
    /// A connection.
    handle: fid_t,
}

impl Hints {
    /// # Errors
    /// `FI_ENODATA` for a fabric or a domain that is not an open one of this provider, and for an
    /// address that is not a valid one.
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
            mode: Some(hints.mode),
            source: None,
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
            // SAFETY: as above.
            fabric_name: unsafe { text(fabric.name) },
            fabric: fabric.fabric,
            open_domain: None,
            // SAFETY: as above.
            nic: unsafe { nic::NicHints::new(hints.nic) },
            handle: hints.handle,
        };
        // SAFETY: as above.
        wanted.destination =
            unsafe { address("destination", hints.dest_addr, hints.dest_addrlen) }?;
        // SAFETY: as above.
        let source = unsafe { address("source", hints.src_addr, hints.src_addrlen) }?;
        if source.is_some_and(|source| source.qpn.0 != 0) {
            return Err(refuse(
                "the device chooses queue pair numbers: that of a source is 0",
            ));
        }
        wanted.source = source.map(|source| source.gid);
        if !wanted.domain.domain.is_null() {
            // SAFETY: by the caller's contract.
            let domain = unsafe { object::<Domain>(wanted.domain.domain.cast()) };
            let domain = domain.map_err(|_| refuse("the domain is not one of this provider"))?;
            wanted.open_domain = Some(domain.name.clone());
        }
        // SAFETY: as above.
        if !fabric.fabric.is_null() && unsafe { object::<Fabric>(fabric.fabric.cast()) }.is_err() {
            return Err(refuse("the fabric is not one of this provider"));
        }
        Ok(wanted)
    }

    /// Returns whether `caps` are available with the application's registration of memory: those
    /// that let peers access memory need more than the others. `version` is the interface's.
    pub(crate) fn registers_for(&self, caps: u64, version: u32) -> bool {
        match self.mr_mode {
            None => true,
            // Before interface 1.5, 0 left it to the provider.
            Some(0) if version < (1 << 16 | 5) => true,
            Some(mode) => {
                !is_target(caps) || mode == FI_MR_BASIC as u64 || mode & MR_MODE == MR_MODE
            }
        }
    }

    /// The types of endpoints that the hints permit.
    ///
    /// # Errors
    /// `FI_ENODATA` if the requested type does not exist.
    pub(crate) fn endpoint_types(&self) -> Result<Vec<&'static EndpointType>> {
        let numbers = ENDPOINT_TYPES.map(|of| of.number);
        one_of("endpoint type", self.ep.type_, &numbers)?;
        let all = ENDPOINT_TYPES.into_iter();
        Ok(all
            .filter(|of| [FI_EP_UNSPEC, of.number].contains(&self.ep.type_))
            .collect())
    }

    /// Checks hints for endpoints of a type. `version` is the version of the interface that the
    /// application uses.
    ///
    /// # Errors
    /// `FI_ENODATA` if a request exceeds every device of this provider.
    pub(crate) fn check(&self, version: u32, of: &EndpointType) -> Result<()> {
        let subset = |what: &str, requested: u64, offered: u64| match requested & !offered {
            0 => Ok(()),
            more => Err(refuse(&format!(
                "{what}: {more:#x} of {requested:#x} are not supported, {offered:#x} are"
            ))),
        };
        subset("capabilities", self.caps, of.caps)?;
        let lacking = of.mode & !self.mode.unwrap_or(u64::MAX);
        if lacking != 0 {
            return Err(refuse(&format!(
                "endpoints of type {} need the application's mode {lacking:#x}",
                of.number
            )));
        }
        subset("capabilities of the domain", self.domain.caps, DOMAIN_CAPS)?;
        one_of("address format", self.addr_format, &[FI_ADDR_EFA])?;
        one_of("protocol", self.ep.protocol, &[FI_PROTO_EFA])?;
        subset("operation flags of sends", self.tx.op_flags, of.tx_op_flags)?;
        subset(
            "operation flags of receives",
            self.rx.op_flags,
            of.rx_op_flags,
        )?;
        subset(
            "message order",
            self.tx_msg_order.unwrap_or(0) | self.rx_msg_order.unwrap_or(0),
            of.msg_order,
        )?;
        let order = self.tx.comp_order | self.rx.comp_order;
        subset("order of completions", order, FI_ORDER_NONE)?;
        let progress = [FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL];
        let domain = &self.domain;
        one_of("progress of control", domain.control_progress, &progress)?;
        one_of("progress of data", domain.data_progress, &progress)?;
        let rm = [FI_RM_DISABLED, FI_RM_ENABLED];
        one_of("resource management", domain.resource_mgmt, &rm)?;
        let vectors = [FI_AV_MAP, FI_AV_TABLE];
        one_of("type of address vectors", domain.av_type, &vectors)?;
        let threading = [
            FI_THREAD_SAFE,
            FI_THREAD_FID,
            FI_THREAD_DOMAIN,
            FI_THREAD_COMPLETION,
            FI_THREAD_ENDPOINT,
        ];
        one_of("threading", domain.threading, &threading)?;
        if !self.handle.is_null() {
            return Err(refuse("there are no connections"));
        }
        if !self.registers_for(self.caps, version) {
            return Err(refuse(&format!(
                "memory registration mode {:#x}: one-sided operations of peers need {MR_MODE:#x} \
                 (virtual addresses, allocated memory, keys of the provider)",
                self.mr_mode.unwrap_or(0)
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
