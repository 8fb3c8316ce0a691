//! The existing devices, for a process that enters one.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use efa_core::address::Gid;

use super::paths::{directories, table_path};
use crate::error::FabricError;
use crate::identity::device_name::DeviceName;
use crate::identity::qpn::HostTable;

/// An existing device.
#[derive(Clone)]
pub(crate) struct KnownDevice {
    pub(super) name: DeviceName,
    pub(super) gid: Gid,
    pub(super) directory: PathBuf,
    pub(super) table: Arc<HostTable>,
}

impl KnownDevice {
    /// Reads the contents of a device's directory; `None` if it has no table.
    pub(super) fn read(directory: PathBuf, gid: Gid) -> Result<Option<KnownDevice>, FabricError> {
        let table = HostTable::open(&table_path(&directory), gid)?;
        Ok(table.map(|table| KnownDevice {
            name: table.name(),
            gid,
            directory,
            table: Arc::new(table),
        }))
    }

    pub(super) fn is(&self, name: &DeviceName) -> bool {
        (self.name.host(), self.name.index()) == (name.host(), name.index())
    }
}

/// The existing devices.
#[derive(Default)]
pub(crate) struct KnownDevices {
    /// By host and index.
    devices: BTreeMap<(String, u32), KnownDevice>,
    by_gid: HashMap<Gid, (String, u32)>,
}

impl KnownDevices {
    /// All devices of a fabric. The registry is locked.
    pub(crate) fn read(hosts: &Path) -> Result<KnownDevices, FabricError> {
        let mut known = KnownDevices::default();
        for (gid, directory) in directories(hosts)? {
            if let Some(device) = KnownDevice::read(directory, gid)? {
                known.insert(device);
            }
        }
        Ok(known)
    }

    pub(super) fn insert(&mut self, device: KnownDevice) {
        let key = (device.name.host().to_owned(), device.name.index());
        self.by_gid.insert(device.gid, key.clone());
        self.devices.insert(key, device);
    }

    pub(super) fn named(&self, name: &DeviceName) -> Option<&KnownDevice> {
        self.devices.get(&(name.host().to_owned(), name.index()))
    }

    pub(super) fn with_gid(&self, gid: Gid) -> Option<&KnownDevice> {
        self.devices.get(self.by_gid.get(&gid)?)
    }

    /// The number of devices with which a host was created, if any of them exists.
    pub(super) fn devices_of(&self, host: &str) -> Option<u32> {
        let mut from = self.devices.range((host.to_owned(), 0)..);
        let (_, device) = from.next().filter(|((of, _), _)| of == host)?;
        Some(device.name.devices())
    }
}
