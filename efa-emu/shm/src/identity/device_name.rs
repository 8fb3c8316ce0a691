//! Names of devices.
//!
//! A fabric's members are devices: each has a GID, a table of queue pair numbers and the segments
//! of the processes that have opened it. A host is a group of devices, which share its name and
//! nothing else: between two devices of a host there is the same network as between two hosts. The
//! only device of a host has the host's name; if there are several, they are `HOST:0`, `HOST:1` and
//! so on.

use std::fmt;

/// Between the name of a host and the index of a device; no host has it in its name.
const SEPARATOR: char = ':';

/// Identifies a device by its host and its index there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceName {
    host: String,
    index: u32,
    devices: u32,
}

impl DeviceName {
    /// Maximum number of devices of a host, which is that of the largest instances.
    pub const MOST: u32 = 32;

    /// The device with this index, from 0, of a host with `devices` devices.
    pub fn new(host: &str, index: u32, devices: u32) -> DeviceName {
        DeviceName {
            host: host.to_owned(),
            index,
            devices,
        }
    }

    /// Parses a displayed name. The name does not contain the number of the host's devices if there
    /// are several; the result has the smallest possible number.
    pub fn parse(text: &str) -> Option<DeviceName> {
        let Some((host, index)) = text.split_once(SEPARATOR) else {
            return Some(DeviceName::new(text, 0, 1));
        };
        let index = index.parse().ok().filter(|index| *index < Self::MOST)?;
        Some(DeviceName::new(host, index, (index + 1).max(2)))
    }

    /// The host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The index of the device in its host, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The number of devices of the host.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Returns whether `text` names this device or its host.
    pub fn is_meant_by(&self, text: &str) -> bool {
        self.host == text || *self == *text
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.devices {
            0 | 1 => f.pad(&self.host),
            _ => f.pad(&format!("{}{SEPARATOR}{}", self.host, self.index)),
        }
    }
}

impl PartialEq<str> for DeviceName {
    fn eq(&self, text: &str) -> bool {
        match text.split_once(SEPARATOR) {
            None => self.devices <= 1 && self.host == text,
            Some((host, index)) => self.host == host && index.parse() == Ok(self.index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_device_is_named_like_its_host() {
        let only = DeviceName::new("alpha", 0, 1);
        assert_eq!(only.to_string(), "alpha");
        assert_eq!(DeviceName::parse("alpha"), Some(only.clone()));
        assert!(only.is_meant_by("alpha") && only.is_meant_by("alpha:0"));
        assert!(!only.is_meant_by("alpha:1") && !only.is_meant_by("alph"));
    }

    #[test]
    fn several_devices_have_an_index_behind_it() {
        let second = DeviceName::new("alpha", 1, 4);
        assert_eq!(second.to_string(), "alpha:1");
        assert_eq!(format!("{second:9}|"), "alpha:1  |");
        assert!(second.is_meant_by("alpha") && second.is_meant_by("alpha:1"));
        for other in ["alpha:0", "alpha:", "alpha:x", "alph", "alpha1", "beta:1"] {
            assert!(!second.is_meant_by(other), "{other}");
        }
        let parsed = DeviceName::parse("alpha:1").unwrap();
        assert_eq!((parsed.index(), parsed.host()), (1, "alpha"));
        assert_eq!(DeviceName::parse("alpha:0").unwrap().to_string(), "alpha:0");
        for bad in ["alpha:32", "alpha:", "alpha:x", "alpha:-1"] {
            assert_eq!(DeviceName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn devices_are_in_the_order_of_their_numbers() {
        let mut names = [10, 9, 1].map(|index| DeviceName::new("alpha", index, 12));
        names.sort();
        assert_eq!(names.map(|name| name.index()), [1, 9, 10]);
    }
}
