//! A queue pair of the verbs: its creation, its states, and its receive queue.

use crate::completion_queue::CompletionQueue;
use crate::device::{HwDevice, PORT};
use crate::efadv::{self, QpInitAttr};
use crate::error::{OpenError, refused};
use crate::loaded;
use crate::protection_domain::ProtectionDomain;
use efa_core::address::{Qkey, Qpn};
use efa_core::nic::{DeviceCaps, NicAttributes, NicError, QueuePairConfig};
use efa_verbs_sys as ffi;
use std::ptr::{NonNull, null_mut};

/// Inline data of a queue pair's work requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inline {
    /// The bytes of a packet that a send work request includes, at most
    /// [`HwDevice::max_inline_size`]. `None` is the size for entries of 64 bytes. With more the
    /// entries have 128 bytes, and the device has room for half as many.
    pub size: Option<usize>,
    /// Whether work requests of RDMA writes include up to `size` bytes of data, if the memory
    /// belongs to the domain or was added with
    /// [`HwDomain::allow_user`](crate::HwDomain::allow_user). Such a write needs no local key, and
    /// its memory may change after the call. Writes that wait for a doorbell
    /// ([`Doorbell::Defer`](efa_core::nic::Doorbell::Defer)) are excluded. Entries have 128 bytes.
    pub writes: bool,
}

/// The service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// Delivers each packet, in any order.
    Srd(Inline),
    /// Sends each packet once: a datagram.
    Ud,
}

impl Service {
    /// The inline data of the queue pair's work requests.
    pub(super) fn inline(self) -> Inline {
        match self {
            Service::Srd(inline) => inline,
            Service::Ud => Inline::default(),
        }
    }
}

/// The attributes of a queue pair with this configuration, if the device has room for it.
pub(super) fn granted(
    device: &HwDevice,
    config: &QueuePairConfig,
    service: Service,
) -> Result<NicAttributes, OpenError> {
    let limits = device.limits();
    let inline_size = service.inline().size.unwrap_or(limits.inline_size);
    if inline_size > device.max_inline_size() {
        return Err(OpenError::Config {
            what: "inline size",
            value: inline_size,
            limit: device.max_inline_size(),
        });
    }
    for (what, value, limit) in [
        (
            "send queue depth",
            config.send_queue_depth,
            limits.send_queue_depth,
        ),
        (
            "receive queue depth",
            config.recv_queue_depth,
            limits.recv_queue_depth,
        ),
    ] {
        if value == 0 || value > limit {
            return Err(OpenError::Config { what, value, limit });
        }
    }
    let mut attributes = limits.clone();
    attributes.send_queue_depth = config.send_queue_depth;
    attributes.recv_queue_depth = config.recv_queue_depth;
    attributes.inline_size = inline_size;
    if !config.unsolicited_write_recv {
        attributes.caps -= DeviceCaps::UNSOLICITED_WRITE_RECV;
    }
    if service == Service::Ud {
        // These are only for SRD queue pairs.
        attributes.caps = DeviceCaps::empty();
    }
    Ok(attributes)
}

/// A queue pair, destroyed when dropped.
#[derive(Debug)]
pub(super) struct VerbsQueuePair(NonNull<ffi::ibv_qp>);

impl VerbsQueuePair {
    /// Creates the queue pair.
    pub(super) fn create(
        device: &HwDevice,
        cq: &CompletionQueue,
        pd: &ProtectionDomain,
        attributes: &NicAttributes,
        service: Service,
        service_level: u8,
    ) -> Result<VerbsQueuePair, OpenError> {
        let caps = attributes.caps;
        let mut operations = ffi::IBV_QP_EX_WITH_SEND | ffi::IBV_QP_EX_WITH_SEND_WITH_IMM;
        if caps.contains(DeviceCaps::RDMA_READ) {
            operations |= ffi::IBV_QP_EX_WITH_RDMA_READ;
        }
        if caps.contains(DeviceCaps::RDMA_WRITE) {
            operations |= ffi::IBV_QP_EX_WITH_RDMA_WRITE | ffi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        }
        let mut attr = ffi::ibv_qp_init_attr_ex {
            send_cq: cq.as_cq(),
            recv_cq: cq.as_cq(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: attributes.send_queue_depth as u32,
                max_recv_wr: attributes.recv_queue_depth as u32,
                max_send_sge: device.max_send_sge(),
                max_recv_sge: match service {
                    Service::Srd(_) => 1,
                    Service::Ud => device.max_recv_sge(),
                },
                max_inline_data: attributes.inline_size as u32,
            },
            qp_type: match service {
                Service::Srd(_) => ffi::ibv_qp_type::IBV_QPT_DRIVER,
                Service::Ud => ffi::ibv_qp_type::IBV_QPT_UD,
            },
            sq_sig_all: 1,
            comp_mask: ffi::IBV_QP_INIT_ATTR_PD | ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: pd.as_ptr(),
            send_ops_flags: u64::from(operations),
            ..Default::default()
        };
        let mut efa_attr = efa_attributes(caps, service.inline(), service_level);
        // SAFETY: device, domain and queue are alive, both structures are complete.
        let (call, verbs) = unsafe {
            let context = device.context();
            let size = size_of::<QpInitAttr>() as u32;
            match service {
                Service::Srd(_) => (
                    "efadv_create_qp_ex",
                    loaded::efadv_create_qp_ex(context, &mut attr, &mut efa_attr, size),
                ),
                Service::Ud => ("ibv_create_qp_ex", create_qp_ex(context, &mut attr)),
            }
        };
        let verbs = NonNull::new(verbs).map(VerbsQueuePair);
        verbs.ok_or_else(|| device.last_error(call))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_qp {
        self.0.as_ptr()
    }

    /// Its number. EFA numbers have 16 bits.
    pub(super) fn number(&self) -> Qpn {
        // SAFETY: the queue pair is alive.
        Qpn(unsafe { self.0.as_ref() }.qp_num as u16)
    }

    /// Moves the queue pair from RESET through INIT and RTR to RTS.
    pub(super) fn bring_up(
        &self,
        device: &HwDevice,
        rnr_retry: Option<u8>,
        qkey: Qkey,
    ) -> Result<(), OpenError> {
        use ffi::ibv_qp_attr_mask as Mask;
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            qkey: qkey.0,
            port_num: PORT,
            ..Default::default()
        };
        let init = Mask::IBV_QP_STATE.0
            | Mask::IBV_QP_PKEY_INDEX.0
            | Mask::IBV_QP_PORT.0
            | Mask::IBV_QP_QKEY.0;
        // SAFETY: the queue pair is alive and `attr` has every member that the mask names.
        let result = unsafe { loaded::ibv_modify_qp(self.as_ptr(), &mut attr, init as i32) };
        device.check("ibv_modify_qp(INIT)", result)?;

        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTR;
        // SAFETY: as above.
        let result =
            unsafe { loaded::ibv_modify_qp(self.as_ptr(), &mut attr, Mask::IBV_QP_STATE.0 as i32) };
        device.check("ibv_modify_qp(RTR)", result)?;

        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTS;
        attr.rnr_retry = rnr_retry.unwrap_or(0);
        let mut ready = Mask::IBV_QP_STATE.0 | Mask::IBV_QP_SQ_PSN.0;
        if rnr_retry.is_some() {
            ready |= Mask::IBV_QP_RNR_RETRY.0;
        }
        // SAFETY: as above.
        let result = unsafe { loaded::ibv_modify_qp(self.as_ptr(), &mut attr, ready as i32) };
        device.check("ibv_modify_qp(RTS)", result)
    }

    /// Posts a list of receives. After an error also returns the first that the device did not
    /// accept, or null.
    ///
    /// # Safety
    /// The list and its entries are complete.
    #[inline(always)]
    pub(super) unsafe fn post_recv(
        &self,
        first: *mut ffi::ibv_recv_wr,
    ) -> Result<(), (NicError, *mut ffi::ibv_recv_wr)> {
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive, its context's table has `post_recv`, and the library
        // copies requests and entries. The device writes only to memory that their keys cover.
        let status = unsafe {
            let context = self.0.as_ref().context;
            match (*context).ops.post_recv {
                Some(post_recv) => post_recv(self.as_ptr(), first, &mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        let error = match status {
            0 => return Ok(()),
            libc::ENOMEM => NicError::QueueFull,
            errno => refused("ibv_post_recv", errno),
        };
        Err((error, bad))
    }
}

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        tracing::debug!(qpn = %self.number(), "queue pair destroyed");
        // SAFETY: its owner does not use the queue pair afterwards.
        unsafe { loaded::ibv_destroy_qp(self.0.as_ptr()) };
    }
}

/// The attributes of a queue pair for libefa.
fn efa_attributes(caps: DeviceCaps, inline: Inline, service_level: u8) -> QpInitAttr {
    let flags = [
        (
            caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV),
            efadv::QP_FLAGS_UNSOLICITED_WRITE_RECV,
        ),
        (inline.writes, efadv::QP_FLAGS_INLINE_WRITE),
    ];
    let flags = flags.into_iter();
    QpInitAttr {
        driver_qp_type: efadv::QP_DRIVER_TYPE_SRD,
        flags: flags
            .filter_map(|(is_wanted, flag)| is_wanted.then_some(flag))
            .sum(),
        sl: service_level,
        ..QpInitAttr::default()
    }
}

/// `ibv_create_qp_ex`, an inline function of the header. Null, as after a failure, if the library
/// does not have it.
///
/// # Safety
/// The context is open, and the attributes are complete.
pub(crate) unsafe fn create_qp_ex(
    context: *mut ffi::ibv_context,
    attr: &mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    match loaded::around!(context, create_qp_ex) {
        // SAFETY: by the caller's contract.
        Some(call) => unsafe { call(context, attr) },
        None => null_mut(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_level_is_the_byte_after_flags() {
        let level = QueuePairConfig::LOW_LATENCY;
        let attributes = efa_attributes(DeviceCaps::all(), Inline::default(), level);
        // SAFETY: the structure has no padding: 8 + 4 + 2 + 1 + 1 bytes.
        let bytes: [u8; 16] = unsafe { std::mem::transmute(attributes) };
        // No extensions, an SRD queue pair, unsolicited writes, the service level, zero.
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0]);
    }
}
