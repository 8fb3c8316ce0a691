//! Finds and opens an EFA device.

use crate::efadv::DeviceAttr;
use crate::error::{self, OpenError};
use crate::loaded;
use crate::open_devices::OpenDevices;
use efa_core::address::Gid;
use efa_core::nic::{DeviceCaps, NicAttributes};
use efa_verbs_sys as ffi;
use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// EFA devices have one port, and its number is 1.
pub(crate) const PORT: u8 = 1;

/// The device to open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum DeviceName {
    /// The first EFA device in the list.
    #[default]
    First,
    /// The device with this name, such as `efa_0` or `rdmap0s6`.
    Named(String),
}

/// A handle of an open EFA device: clones share the device.
#[derive(Clone, Debug)]
pub struct HwDevice(Arc<OpenedDevice>);

/// An open device, with its limits.
#[derive(Debug)]
struct OpenedDevice {
    context: NonNull<ffi::ibv_context>,
    name: String,
    gid: Gid,
    attributes: NicAttributes,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_completions: usize,
    /// The largest inline data of a send work request. Beyond `attributes.inline_size` its entry
    /// has 128 bytes.
    max_inline_size: usize,
}

// SAFETY: libibverbs allows every call on a context from any thread.
unsafe impl Send for OpenedDevice {}
// SAFETY: as above; the other fields are plain data that never change.
unsafe impl Sync for OpenedDevice {}

impl HwDevice {
    /// Returns the names of the machine's RDMA devices, whether they are EFA devices or not.
    ///
    /// # Errors
    /// [`OpenError`] if the libraries or their list of devices are not available.
    pub fn names() -> Result<Vec<String>, OpenError> {
        loaded::load()?;
        Ok(DeviceList::get()?.devices().map(device_name).collect())
    }

    /// Opens an EFA device and reads its limits. See also [`HwDevice::shared`].
    ///
    /// # Errors
    /// [`OpenError`] names the call that failed, or the existing devices.
    pub fn open(wanted: &DeviceName) -> Result<HwDevice, OpenError> {
        loaded::load()?;
        let list = DeviceList::get()?;
        let names: Vec<String> = list.devices().map(device_name).collect();
        if let DeviceName::Named(wanted) = wanted
            && !names.contains(wanted)
        {
            return Err(OpenError::NoSuchDevice {
                wanted: wanted.clone(),
                found: names,
            });
        }
        for (device, name) in list.devices().zip(&names) {
            if matches!(wanted, DeviceName::Named(wanted) if wanted != name) {
                continue;
            }
            // SAFETY: `device` is an entry of a list that is still alive.
            let context = NonNull::new(unsafe { loaded::ibv_open_device(device) })
                .ok_or_else(|| not_opened(device, name))?;
            match Self::query(context, name) {
                Ok(Some(opened)) => {
                    tracing::info!(device = name, gid = %opened.gid, "device opened");
                    return Ok(HwDevice(Arc::new(opened)));
                }
                Ok(None) => {
                    tracing::debug!(device = name, "device passed over: it is not EFA");
                    close(context);
                }
                Err(error) => {
                    close(context);
                    return Err(error);
                }
            }
        }
        let found = names.len();
        let names = if found == 0 {
            String::new()
        } else {
            format!(" ({})", names.join(", "))
        };
        Err(OpenError::NoDevice { found, names })
    }

    /// Returns the device with this name that this function has opened before, as long as a handle
    /// of it exists, or opens it. All users in a process share one context to avoid its costs:
    /// memory for doorbells, and for the emulated device a thread and rings. A removed device stays
    /// shared until its last handle is dropped. After a fork the child opens devices again.
    ///
    /// # Errors
    /// As [`HwDevice::open`].
    pub fn shared(name: &str) -> Result<HwDevice, OpenError> {
        static OPEN: OpenDevices<OpenedDevice> = OpenDevices::new();
        let open = || Ok(HwDevice::open(&DeviceName::Named(name.to_owned()))?.0);
        OPEN.get_or_open(name, open).map(HwDevice)
    }

    /// Reads identity and limits; `None` if the device is not EFA.
    fn query(
        context: NonNull<ffi::ibv_context>,
        name: &str,
    ) -> Result<Option<OpenedDevice>, OpenError> {
        let mut efa = DeviceAttr::default();
        // SAFETY: `context` is open and `efa` has the length that is passed with it.
        let result = unsafe {
            loaded::efadv_query_device(context.as_ptr(), &mut efa, size_of::<DeviceAttr>() as u32)
        };
        if result != 0 {
            return Ok(None);
        }
        let mut device = ffi::ibv_device_attr::default();
        // SAFETY: `context` is open and `device` is a whole `ibv_device_attr`.
        let result = unsafe { loaded::ibv_query_device(context.as_ptr(), &mut device) };
        check("ibv_query_device", name, result)?;
        let mut port = ffi::ibv_port_attr::default();
        // SAFETY: the exported symbol fills the first members of `ibv_port_attr`, which are the
        // whole `_compat_ibv_port_attr`; `max_msg_sz` and `gid_tbl_len` are among them.
        let result = unsafe {
            loaded::ibv_query_port(context.as_ptr(), PORT, std::ptr::from_mut(&mut port).cast())
        };
        check("ibv_query_port", name, result)?;
        let mut gid = ffi::ibv_gid::default();
        // SAFETY: `context` is open and `gid` is a whole `ibv_gid`.
        let result = unsafe { loaded::ibv_query_gid(context.as_ptr(), PORT, 0, &mut gid) };
        check("ibv_query_gid", name, result)?;
        // SAFETY: every bit pattern is valid for the byte view of the union.
        let gid = Gid(unsafe { gid.raw });
        Ok(Some(OpenedDevice {
            context,
            name: name.to_owned(),
            gid,
            attributes: NicAttributes {
                caps: DeviceCaps::from_bits_retain(efa.device_caps),
                mtu: port.max_msg_sz as usize,
                max_rdma_size: efa.max_rdma_size as usize,
                send_queue_depth: efa.max_sq_wr as usize,
                recv_queue_depth: efa.max_rq_wr as usize,
                inline_size: usize::from(efa.inline_buf_size),
                vendor_part_id: device.vendor_part_id,
                host_id: host_id(),
            },
            max_inline_size: efa.inline_buf_size.max(efa.inline_buf_size_ex).into(),
            max_send_sge: u32::from(efa.max_sq_sge),
            max_recv_sge: u32::from(efa.max_rq_sge),
            max_completions: usize::try_from(device.max_cqe).unwrap_or(1).max(1),
        }))
    }

    /// The device's name, such as `rdmap0s6`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The port's GID.
    pub fn gid(&self) -> Gid {
        self.0.gid
    }

    /// The device's capabilities and limits.
    pub(crate) fn limits(&self) -> &NicAttributes {
        &self.0.attributes
    }

    /// The bytes of a packet that a send work request can include, if its entry in the queue has
    /// 128 bytes instead of 64 (see [`NicConfig::inline_size`](crate::NicConfig::inline_size)). On
    /// devices without such entries it equals the `inline_size` of the device's attributes.
    pub fn max_inline_size(&self) -> usize {
        self.0.max_inline_size
    }

    /// The largest number of completions that a queue can hold.
    pub(crate) fn max_completions(&self) -> usize {
        self.0.max_completions
    }

    /// The largest number of gather entries of a send work request.
    pub(crate) fn max_send_sge(&self) -> u32 {
        self.0.max_send_sge
    }

    /// The largest number of memory segments of a receive.
    pub fn max_recv_sge(&self) -> u32 {
        self.0.max_recv_sge
    }

    pub(crate) fn context(&self) -> *mut ffi::ibv_context {
        self.0.context.as_ptr()
    }

    /// The error of a failed call on this device, from errno.
    pub(crate) fn last_error(&self, call: &'static str) -> OpenError {
        verbs_error(call, &self.0.name)
    }

    /// Turns a verbs call's result, 0 or a positive errno, into a `Result`.
    pub(crate) fn check(&self, call: &'static str, result: i32) -> Result<(), OpenError> {
        check(call, &self.0.name, result)
    }
}

impl Drop for OpenedDevice {
    fn drop(&mut self) {
        close(self.context);
    }
}

/// Closes a context without objects.
fn close(context: NonNull<ffi::ibv_context>) {
    // SAFETY: the context was opened by `HwDevice::open`, and its owner calls this once. A failure
    // leaks the context; `drop` cannot report it.
    unsafe { loaded::ibv_close_device(context.as_ptr()) };
}

pub(crate) fn check(call: &'static str, name: &str, result: i32) -> Result<(), OpenError> {
    match result {
        0 => Ok(()),
        errno => {
            let source = io::Error::from_raw_os_error(errno.abs());
            Err(error::failed(call, name, source))
        }
    }
}

/// The reason why a device could not be opened, from errno.
pub(crate) fn not_opened(device: *mut ffi::ibv_device, name: &str) -> OpenError {
    let source = io::Error::last_os_error();
    if source.kind() != io::ErrorKind::PermissionDenied {
        return error::failed("ibv_open_device", name, source);
    }
    tracing::debug!(device = name, error = %source, "no permission to open the device");
    // SAFETY: `device` is an entry of a living list. The name of its file is a C string within it.
    let file = unsafe { CStr::from_ptr((*device).dev_name.as_ptr()) };
    OpenError::Permission {
        device: name.to_owned(),
        file: Path::new("/dev/infiniband").join(file.to_string_lossy().as_ref()),
        source,
    }
}

pub(crate) fn verbs_error(call: &'static str, name: &str) -> OpenError {
    error::failed(call, name, io::Error::last_os_error())
}

/// The list of the machine's RDMA devices.
pub(crate) struct DeviceList {
    first: NonNull<*mut ffi::ibv_device>,
    length: usize,
}

impl DeviceList {
    pub(crate) fn get() -> Result<DeviceList, OpenError> {
        let mut length = 0;
        // SAFETY: `length` is a valid place for the count.
        let first = NonNull::new(unsafe { loaded::ibv_get_device_list(&mut length) })
            .ok_or_else(|| OpenError::DeviceList(io::Error::last_os_error()))?;
        Ok(DeviceList {
            first,
            length: usize::try_from(length).unwrap_or(0),
        })
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = *mut ffi::ibv_device> + '_ {
        // SAFETY: the list has `length` entries and is valid as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.length) }
            .iter()
            .copied()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list is the result of `ibv_get_device_list`; open contexts keep their
        // devices.
        unsafe { loaded::ibv_free_device_list(self.first.as_ptr()) };
    }
}

pub(crate) fn device_name(device: *mut ffi::ibv_device) -> String {
    // SAFETY: `device` is an entry of a living list; its name is a C string within it.
    unsafe { CStr::from_ptr(loaded::ibv_get_device_name(device)) }
        .to_string_lossy()
        .into_owned()
}

/// The EC2 instance's identifier, which stock libfabric sends as `host_id`; 0 elsewhere.
fn host_id() -> u64 {
    std::fs::read_to_string("/sys/devices/virtual/dmi/id/board_asset_tag")
        .ok()
        .and_then(|tag| parse_asset_tag(&tag))
        .unwrap_or(0)
}

/// `i-` and 17 hexadecimal digits, of which the last 16 are the identifier.
fn parse_asset_tag(tag: &str) -> Option<u64> {
    let digits = tag.trim_end().strip_prefix("i-")?;
    if digits.len() != 17 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(&digits[1..], 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asset_tags_give_their_last_sixteen_digits() {
        assert_eq!(
            parse_asset_tag("i-0123456789abcdef0\n"),
            Some(0x1234_5678_9abc_def0)
        );
        assert_eq!(parse_asset_tag("i-1234"), None);
        assert_eq!(parse_asset_tag("Not Specified"), None);
        assert_eq!(parse_asset_tag("i-0123456789abcdeg0"), None);
    }
}
