//! All limits of a device, including those that an engine does not need.

use std::ffi::CStr;

use efa_verbs_sys as ffi;

use crate::device::{HwDevice, PORT};
use crate::efadv::DeviceAttr;
use crate::error::OpenError;
use crate::loaded;

/// The identity and the limits of a device, with the names of the verbs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(
    missing_docs,
    reason = "the names are those of ibv_device_attr, ibv_port_attr and efadv_device_attr"
)]
pub struct DeviceReport {
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub fw_ver: String,
    pub device_caps: u32,
    pub max_msg_sz: u32,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u32,
    pub max_rq_sge: u32,
    pub max_sge_rd: u32,
    pub inline_buf_size: u32,
    pub max_rdma_size: u32,
    pub max_qp: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mr_size: u64,
    pub max_pd: u32,
    pub max_ah: u32,
    pub comp_vectors: u32,
}

impl HwDevice {
    /// Queries the device for its identity and limits.
    ///
    /// # Errors
    /// [`OpenError::Verbs`] with the failed call.
    pub fn report(&self) -> Result<DeviceReport, OpenError> {
        let mut efa = DeviceAttr::default();
        // SAFETY: the device is open and `efa` has the length that is passed with it.
        let result = unsafe {
            loaded::efadv_query_device(self.context(), &mut efa, size_of::<DeviceAttr>() as u32)
        };
        self.check("efadv_query_device", result)?;
        let mut device = ffi::ibv_device_attr::default();
        // SAFETY: the device is open and `device` is a whole `ibv_device_attr`.
        let result = unsafe { loaded::ibv_query_device(self.context(), &mut device) };
        self.check("ibv_query_device", result)?;
        let mut port = ffi::ibv_port_attr::default();
        // SAFETY: as where the device is opened: the function fills the first members.
        let result = unsafe {
            loaded::ibv_query_port(self.context(), PORT, std::ptr::from_mut(&mut port).cast())
        };
        self.check("ibv_query_port", result)?;
        // SAFETY: the library writes a string that ends with zero, and the field was zeroed before.
        let firmware = unsafe { CStr::from_ptr(device.fw_ver.as_ptr()) };
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        Ok(DeviceReport {
            vendor_part_id: device.vendor_part_id,
            hw_ver: device.hw_ver,
            fw_ver: firmware.to_string_lossy().into_owned(),
            device_caps: efa.device_caps,
            max_msg_sz: port.max_msg_sz,
            max_sq_wr: efa.max_sq_wr,
            max_rq_wr: efa.max_rq_wr,
            max_sq_sge: efa.max_sq_sge.into(),
            max_rq_sge: efa.max_rq_sge.into(),
            max_sge_rd: number(device.max_sge_rd),
            inline_buf_size: efa.inline_buf_size.into(),
            max_rdma_size: efa.max_rdma_size,
            max_qp: number(device.max_qp),
            max_cq: number(device.max_cq),
            max_cqe: number(device.max_cqe),
            max_mr: number(device.max_mr),
            max_mr_size: device.max_mr_size,
            max_pd: number(device.max_pd),
            max_ah: number(device.max_ah),
            // SAFETY: the device is open.
            comp_vectors: number(unsafe { (*self.context()).num_comp_vectors }),
        })
    }
}
