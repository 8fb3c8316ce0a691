//! The configuration space: the header, PCI Express and MSI-X.

use efa_device_model::profile::Profile;

use super::bars::{Bars, MSIX_PENDING, MSIX_TABLE, MSIX_VECTORS};

/// The length of the space in bytes.
const LENGTH: usize = 4096;

/// Amazon's vendor id.
const VENDOR: u16 = 0x1d0f;
/// Ethernet controller, like the device on EC2.
const CLASS: u32 = 0x02_0000;

const EXPRESS: u8 = 0x40;
const MSIX: u8 = 0x80;

/// The writable bytes, with a mask of their writable bits.
const WRITABLE: [(usize, u8); 9] = [
    (0x04, 0x46),                    // memory, bus master, parity
    (0x05, 0x05),                    // system errors, no interrupts by pin
    (0x0c, 0xff),                    // cache line
    (0x3c, 0xff),                    // interrupt line
    (EXPRESS as usize + 0x08, 0xff), // device control
    (EXPRESS as usize + 0x09, 0x7f),
    (EXPRESS as usize + 0x10, 0xff), // link control
    (EXPRESS as usize + 0x28, 0x1f), // device control 2
    (MSIX as usize + 0x03, 0xc0),    // MSI-X on, masked
];

/// The configuration space. Undefined bytes read as 0.
pub struct ConfigSpace {
    bytes: Box<[u8; LENGTH]>,
}

impl ConfigSpace {
    /// The configuration space of a device of this generation.
    pub fn new(profile: &Profile) -> ConfigSpace {
        let mut space = ConfigSpace {
            bytes: Box::new([0; LENGTH]),
        };
        space.put(0x00, &VENDOR.to_le_bytes());
        space.put(0x02, &(profile.part_id as u16).to_le_bytes());
        // The capability list exists.
        space.put(0x06, &[0x10, 0x00]);
        space.put(0x09, &CLASS.to_le_bytes()[..3]);
        for bar in [Bars::Registers, Bars::SendQueues, Bars::Doorbells] {
            space.put(0x10 + 4 * bar as usize, &bar.bits().to_le_bytes());
        }
        space.put(0x2c, &VENDOR.to_le_bytes());
        space.put(0x2e, &(profile.hw_version as u16).to_le_bytes());
        space.put(0x34, &[EXPRESS]);
        // PCI Express endpoint, version 2, one lane.
        space.put(EXPRESS.into(), &[0x10, MSIX, 0x02, 0x00]);
        // Function level reset, payloads of 128 bytes.
        space.put(EXPRESS as usize + 0x04, &(0x1000_8000u32).to_le_bytes());
        space.put(EXPRESS as usize + 0x0c, &(0x0000_0011u32).to_le_bytes());
        space.put(EXPRESS as usize + 0x12, &(0x0011u16).to_le_bytes());
        space.put(MSIX.into(), &[0x11, 0x00]);
        space.put(MSIX as usize + 0x02, &(MSIX_VECTORS - 1).to_le_bytes());
        let tables = Bars::Registers as u32;
        space.put(MSIX as usize + 0x04, &(MSIX_TABLE | tables).to_le_bytes());
        space.put(MSIX as usize + 0x08, &(MSIX_PENDING | tables).to_le_bytes());
        space
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Length in bytes.
    pub const fn length() -> u64 {
        LENGTH as u64
    }

    /// Reads bytes. Those beyond the end are 0.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        let from = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.bytes.get(offset..));
        for (to, from) in into.iter_mut().zip(from.unwrap_or_default()) {
            *to = *from;
        }
    }

    /// Writes the writable bits. Base addresses are read-only: the VFIO client emulates them.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (writable, mask) in WRITABLE {
            let at = (writable as u64).checked_sub(offset);
            if let Some(value) = at.and_then(|at| bytes.get(at as usize)) {
                let byte = &mut self.bytes[writable];
                *byte = *byte & !mask | value & mask;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(name: &str) -> ConfigSpace {
        ConfigSpace::new(Profile::by_name(name).unwrap())
    }

    fn bytes<const N: usize>(space: &ConfigSpace, offset: u64) -> [u8; N] {
        let mut bytes = [0xee; N];
        space.read(offset, &mut bytes);
        bytes
    }

    #[test]
    fn the_header_is_that_of_an_efa_device() {
        let space = space("efa1");
        #[rustfmt::skip]
        let header = [
            0x0f, 0x1d, 0xa1, 0xef, // Amazon, EFA
            0x00, 0x00, 0x10, 0x00, // command, status
            0x00, 0x00, 0x00, 0x02, // class
            0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, // registers: 32 bits
            0x00, 0x00, 0x00, 0x00,
            0x0c, 0x00, 0x00, 0x00, // send queues: 64 bits, prefetchable
            0x00, 0x00, 0x00, 0x00,
            0x04, 0x00, 0x00, 0x00, // doorbells: 64 bits
            0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00,
            0x0f, 0x1d, 0xa1, 0xef, // subsystem
        ];
        assert_eq!(bytes(&space, 0), header);
        assert_eq!(bytes(&space, 0x34), [0x40]);
    }

    #[test]
    fn capabilities_are_a_list() {
        let space = space("efa3");
        let mut at = bytes::<1>(&space, 0x34)[0];
        let mut found = Vec::new();
        while at != 0 {
            let [id, next] = bytes(&space, at.into());
            found.push(id);
            at = next;
        }
        assert_eq!(found, [0x10, 0x11]);
        assert_eq!(
            bytes(&space, 0x82),
            [31, 0, 0x00, 0x20, 0, 0, 0x00, 0x30, 0, 0]
        );
    }

    #[test]
    fn only_controls_can_be_written() {
        let mut space = space("efa1");
        let before = bytes::<256>(&space, 0);
        space.write(0, &[0xff; 256]);
        space.write(4090, &[0xff; 16]);
        space.write(u64::MAX - 3, &[0xff; 16]);
        let after = bytes::<256>(&space, 0);
        for (index, (before, after)) in before.iter().zip(after).enumerate() {
            // Command, cache line, interrupt line, PCI Express controls, MSI-X control.
            let writable = match index {
                0x04 => 0x46,
                0x05 => 0x05,
                0x0c | 0x3c | 0x48 | 0x50 => 0xff,
                0x49 => 0x7f,
                0x68 => 0x1f,
                0x83 => 0xc0,
                _ => 0,
            };
            assert_eq!(before | writable, after, "{index:#x}");
        }
        assert_eq!(bytes(&space, 4094), [0, 0, 0, 0]);
        assert_eq!(bytes(&space, u64::MAX), [0, 0]);
    }
}
