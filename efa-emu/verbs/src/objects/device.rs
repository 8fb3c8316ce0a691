//! The devices of this process: the devices of its host if `efa-emu run` started it, else none.

use core::ffi::{CStr, c_char};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

use efa_core::address::Gid;
use efa_device_model::profile::Profile;
use efa_device_model::sysfs::{self, ENV_SYSFS_PATH, Rail};
use efa_shm::HostConfig;

use crate::abi::{
    IBV_NODE_CA, IBV_NODE_UNSPECIFIED, IBV_TRANSPORT_IB, IBV_TRANSPORT_UNSPECIFIED, ibv_device,
    verbs_device, verbs_device_ops,
};
use crate::ffi::errno::Errno;

/// The root of sysfs: the value of the environment, else `/sys`.
pub(crate) fn sysfs_root() -> &'static CStr {
    static ROOT: OnceLock<CString> = OnceLock::new();
    ROOT.get_or_init(|| {
        let named = std::env::var_os(ENV_SYSFS_PATH).unwrap_or_else(|| "/sys".into());
        let mut bytes = named.into_vec();
        while bytes.len() > 1 && bytes.ends_with(b"/") {
            bytes.pop();
        }
        CString::new(bytes).expect("an environment variable has no zero byte")
    })
}

/// The driver operations for libraries of other vendors.
static OPS: DriverOps = DriverOps(verbs_device_ops {
    name: c"efa".as_ptr(),
    driver: [core::ptr::null(); 8],
});

#[repr(transparent)]
struct DriverOps(verbs_device_ops);

// SAFETY: never written; its pointers are null or to a constant.
unsafe impl Sync for DriverOps {}

/// A device of this process's host.
pub(crate) struct Device {
    c: verbs_device,
    /// The host of the device, and the device's index.
    pub(crate) config: HostConfig,
    /// The device's generation.
    pub(crate) profile: Profile,
    /// The GID of the port.
    pub(crate) gid: Gid,
}

// SAFETY: the C structure is never written after it was made; its pointers are null or to
// constants.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The devices; none if the environment names no host.
    pub(crate) fn all() -> &'static [Device] {
        static DEVICES: OnceLock<Box<[Device]>> = OnceLock::new();
        DEVICES.get_or_init(|| Device::from_environment().unwrap_or_default())
    }

    /// The device behind a program's pointer.
    pub(crate) fn find(pointer: *const ibv_device) -> Result<&'static Device, Errno> {
        Device::all()
            .iter()
            .find(|device| core::ptr::eq(&raw const device.c.device, pointer))
            .ok_or(Errno::NODEV)
    }

    /// The index in the list of the device whose character device has this name.
    pub(crate) fn with_node(name: &[u8]) -> Option<u32> {
        // The name is `uverbs0`, `uverbs1`, ...; no memory is allocated here.
        let index = name.strip_prefix(b"uverbs").and_then(|index| match index {
            [digit @ b'0'..=b'9'] => Some(digit - b'0'),
            [ten @ b'1'..=b'9', digit @ b'0'..=b'9'] => Some((ten - b'0') * 10 + digit - b'0'),
            _ => None,
        });
        index
            .filter(|index| usize::from(*index) < Device::all().len())
            .map(u32::from)
    }

    fn from_environment() -> Option<Box<[Device]>> {
        let config = HostConfig::from_env().ok()?;
        // `efa-emu run` has checked it before.
        let profile = Profile::named(&config.profile).ok()?;
        let rails = Rail::all(config.gids.len() as u32);
        let devices = rails
            .zip(&config.gids)
            .zip(0..)
            .map(|((rail, gid), device)| {
                let config = HostConfig {
                    device,
                    ..config.clone()
                };
                Device::new(config, rail, profile.clone(), *gid)
            });
        devices.collect()
    }

    fn new(config: HostConfig, rail: Rail, profile: Profile, gid: Gid) -> Option<Device> {
        let root = Path::new(OsStr::from_bytes(sysfs_root().to_bytes()));
        let (node_type, transport_type) = match profile.connected {
            true => (IBV_NODE_CA, IBV_TRANSPORT_IB),
            false => (IBV_NODE_UNSPECIFIED, IBV_TRANSPORT_UNSPECIFIED),
        };
        let device = ibv_device {
            ops: [core::ptr::null(); 2],
            node_type,
            transport_type,
            name: c_field(Path::new(&rail.device_name()))?,
            dev_name: c_field(Path::new(&rail.uverbs_name()))?,
            dev_path: c_field(&rail.verbs_class_path(root))?,
            ibdev_path: c_field(&rail.infiniband_class_path(root))?,
        };
        let c = verbs_device {
            device,
            ops: &raw const OPS.0,
            refcount: 1,
            entry: [core::ptr::null(); 2],
            sysfs: core::ptr::null(),
            core_support: 0,
        };
        Some(Device {
            c,
            config,
            profile,
            gid,
        })
    }

    /// The program's pointer. Programs must not write through it.
    pub(crate) fn c_pointer(&self) -> *mut ibv_device {
        (&raw const self.c).cast_mut().cast()
    }

    /// The device's name, in the form for programs.
    pub(crate) fn name(&self) -> *const c_char {
        self.c.device.name.as_ptr()
    }

    /// The node GUID, big endian.
    pub(crate) fn guid(&self) -> u64 {
        sysfs::node_guid(self.gid).to_be()
    }
}

/// The text as a fixed-size field, or `None` if it does not fit with its final zero.
fn c_field<const SIZE: usize>(text: &Path) -> Option<[c_char; SIZE]> {
    let text = CString::new(text.as_os_str().as_bytes()).ok()?;
    let mut field = [0; SIZE];
    let bytes = text.as_bytes_with_nul();
    for (slot, byte) in field.get_mut(..bytes.len())?.iter_mut().zip(bytes) {
        *slot = *byte as c_char;
    }
    Some(field)
}
