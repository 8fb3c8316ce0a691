//! The device in an info (`fi_info.nic`).
//!
//! The object belongs to its info: libfabric copies it with the command `FI_DUP` and closes it with
//! the info.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use efa_core::endpoint::Errno;
use efa_core::nic::Device as _;
use efa_hw::{DeviceReport, HwDevice};

use crate::ffi::object::{Object, close, object};
use crate::ffi::result::{ENOSYS, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::info::hints::text;

/// Amazon's number among the vendors of PCI devices.
const VENDOR: &CStr = c"0x1d0f";
const NETWORK: &CStr = c"Ethernet";
/// The kernel's driver.
const DRIVER: &CStr = c"efa";

/// A device's description (`fid_nic`), with the structures that it points to.
#[repr(C)]
pub(crate) struct Nic {
    c: fid_nic,
    /// Targets of the attributes' pointers.
    texts: Texts,
}

#[derive(Clone)]
struct Texts {
    name: CString,
    part: CString,
    version: CString,
    firmware: CString,
    address: CString,
    mtu: usize,
}

// SAFETY: `#[repr(C)]`, and `fid_nic` begins with a `fid`; no other type has these operations.
unsafe impl Object for Nic {
    const CLASS: u32 = FI_CLASS_NIC;
    const IS_MEMORY: bool = true;
    const OPERATIONS: &'static Table<fi_ops> = &FID;
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<Nic>),
    control: Some(control),
    tostr: Some(tostr),
    ..unsupported::FID
});

/// Describes a device for an info, which frees it.
pub(crate) fn describe(device: &HwDevice, report: &DeviceReport) -> *mut fid_nic {
    Nic::new(Texts::of(device, report)).give().cast()
}

impl Texts {
    fn of(device: &HwDevice, report: &DeviceReport) -> Texts {
        let text = |text: String| CString::new(text).unwrap_or_default();
        Texts {
            name: text(device.name().to_owned()),
            part: text(format!("{:#x}", report.vendor_part_id)),
            version: text(format!("{:#x}", report.hw_ver)),
            firmware: text(report.fw_ver.clone()),
            address: text(device.gid().to_string()),
            mtu: device.attributes().mtu,
        }
    }
}

/// The description of a device in hints: its texts must equal the device's.
#[derive(Debug, Default)]
pub(crate) struct NicHints {
    texts: Vec<(&'static str, String)>,
    mtu: usize,
    speed: usize,
}

impl NicHints {
    /// # Safety
    /// The description is null or valid, with all that it leads to.
    pub(crate) unsafe fn new(nic: *const fid_nic) -> NicHints {
        // SAFETY: by the caller's contract.
        let Some(nic) = (unsafe { nic.as_ref() }) else {
            return NicHints::default();
        };
        // SAFETY: as above.
        let (device, link) = unsafe {
            let device = nic.device_attr.as_ref().copied().unwrap_or_default();
            let link = nic.link_attr.as_ref().copied().unwrap_or_default();
            (device, link)
        };
        let texts = [
            ("name", device.name),
            ("device_id", device.device_id),
            ("device_version", device.device_version),
            ("vendor_id", device.vendor_id),
            ("driver", device.driver),
            ("firmware", device.firmware),
            ("address", link.address),
            ("network_type", link.network_type),
        ];
        let texts = texts.into_iter();
        NicHints {
            texts: texts
                // SAFETY: as above.
                .filter_map(|(what, requested)| Some((what, unsafe { text(requested) }?)))
                .collect(),
            mtu: link.mtu,
            speed: link.speed,
        }
    }

    /// The reason why a device does not match the request; `None` if it does.
    pub(crate) fn not_met_by(
        &self,
        device: &HwDevice,
        report: Option<&DeviceReport>,
    ) -> Option<String> {
        let Some(report) = report else {
            return (!self.texts.is_empty()).then(|| "it has no description".to_owned());
        };
        let found = Texts::of(device, report);
        let other = self.texts.iter().find_map(|(what, requested)| {
            let found = match *what {
                "name" => &found.name,
                "device_id" => &found.part,
                "device_version" => &found.version,
                "vendor_id" => VENDOR,
                "driver" => DRIVER,
                "firmware" => &found.firmware,
                "address" => &found.address,
                _ => NETWORK,
            };
            let is_other = found.to_bytes() != requested.as_bytes();
            is_other.then(|| format!("{what} `{requested}` is asked for, it is {found:?}"))
        });
        let limits = [("mtu", self.mtu, found.mtu), ("speed", self.speed, 0)];
        let more = limits
            .into_iter()
            .find(|(_, requested, limit)| requested > limit);
        other.or_else(|| {
            more.map(|(what, requested, limit)| {
                format!("{what} {requested} is asked for, it is {limit}")
            })
        })
    }
}

impl Nic {
    fn new(texts: Texts) -> Nic {
        let pointer = |text: &CStr| text.as_ptr().cast_mut();
        let device = Box::new(fi_device_attr {
            name: pointer(&texts.name),
            device_id: pointer(&texts.part),
            device_version: pointer(&texts.version),
            vendor_id: pointer(VENDOR),
            driver: pointer(DRIVER),
            firmware: pointer(&texts.firmware),
        });
        let bus = Box::<fi_bus_attr>::default();
        let link = Box::new(fi_link_attr {
            address: pointer(&texts.address),
            mtu: texts.mtu,
            // The device does not report a speed.
            speed: 0,
            state: FI_LINK_UP,
            network_type: pointer(NETWORK),
        });
        Nic {
            c: fid_nic {
                device_attr: Box::into_raw(device),
                bus_attr: Box::into_raw(bus),
                link_attr: Box::into_raw(link),
                ..fid_nic::default()
            },
            texts,
        }
    }

    /// The description in words, as in `fi_info -v`.
    fn describe(&self) -> String {
        let Texts {
            name,
            part,
            version,
            firmware,
            address,
            mtu,
        } = &self.texts;
        let text = |text: &CStr| text.to_string_lossy().into_owned();
        format!(
            "    nic:\n        fi_device_attr:\n            name: {}\n            device_id: {}\n            \
             device_version: {}\n            vendor_id: {}\n            driver: {}\n            firmware: {}\n        \
             fi_link_attr:\n            address: {}\n            mtu: {mtu}\n            network_type: {}\n",
            text(name),
            text(part),
            text(version),
            text(VENDOR),
            text(DRIVER),
            text(firmware),
            text(address),
            text(NETWORK),
        )
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: `new` has made boxes of all three, and nothing else frees them.
        unsafe {
            drop(Box::from_raw(self.c.device_attr));
            drop(Box::from_raw(self.c.bus_attr));
            drop(Box::from_raw(self.c.link_attr));
        }
    }
}

/// Copies the description (`fi_control` with `FI_DUP`).
///
/// # Returns
/// 0; `-FI_EINVAL` for a wrong object and without argument, `-FI_ENOSYS` for other commands.
///
/// # Safety
/// `argument` is null or valid for a write of a pointer.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: by the caller's contract.
        let nic: &Nic = unsafe { object(fid.cast()) }?;
        if u32::try_from(command) != Ok(FI_DUP) {
            return Err(ENOSYS);
        }
        // SAFETY: as above.
        let to = unsafe { argument.cast::<*mut fid_nic>().as_mut() }.ok_or(Errno::EINVAL)?;
        *to = Nic::new(nic.texts.clone()).give().cast();
        Ok(())
    })
}

/// Appends the description to a text, as far as there is room (`fi_tostr`).
///
/// # Returns
/// 0, or `-FI_EINVAL` for a wrong object and without buffer.
///
/// # Safety
/// The buffer is null, or has `length` bytes and a string in them.
unsafe extern "C" fn tostr(fid: *const fid, buffer: *mut c_char, length: usize) -> c_int {
    status(|| {
        // SAFETY: by the caller's contract.
        let nic: &Nic = unsafe { object(fid.cast()) }?;
        if buffer.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as above.
        let used = unsafe { libc::strnlen(buffer, length) };
        let text = nic.describe();
        let count = text.len().min(length.saturating_sub(used + 1));
        if count > 0 {
            // SAFETY: there is room for that many bytes and an end after the used ones.
            unsafe {
                let to = buffer.add(used);
                std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), count);
                to.add(count).write(0);
            }
        }
        Ok(())
    })
}
