//! Messages of vfio-user, version 0.0.

use zerocopy::little_endian::{U16, U32, U64};

use crate::layout::{layout, numbered};

layout! {
    /// The head of every message.
    pub Header, from 0 to 16;
    0 id: U16, "the answer repeats it";
    2 command: U16, "which command it is";
    4 size: U32, "bytes of the message with this header";
    8 flags: U32, "bits 3:0 0 command, 1 answer; bit 4 no answer is wanted; bit 5 an error";
    12 error: U32, "an errno, of an answer that is an error";
}

impl Header {
    /// The length in bytes.
    pub const LENGTH: usize = size_of::<Header>();
    /// The type bits of `flags`.
    pub const KIND: u32 = 0xf;
    /// The type of a reply, in `flags`.
    pub const ANSWER: u32 = 1;
    /// No reply is requested, in `flags`.
    pub const NO_ANSWER: u32 = 1 << 4;
    /// The reply is an error, in `flags`.
    pub const ERROR: u32 = 1 << 5;
}

numbered! {
    /// The commands to a device.
    pub Command, u16;
    /// [`Version`] and a JSON text.
    Version = 1;
    /// [`DmaMap`]: memory of the guest.
    DmaMap = 2;
    /// [`DmaUnmap`].
    DmaUnmap = 3;
    /// [`DeviceInfo`].
    DeviceInfo = 4;
    /// [`RegionInfo`].
    RegionInfo = 5;
    /// [`IrqInfo`].
    IrqInfo = 7;
    /// [`SetIrqs`], with eventfds.
    SetIrqs = 8;
    /// [`RegionAccess`].
    RegionRead = 9;
    /// [`RegionAccess`] and bytes.
    RegionWrite = 10;
    /// No data.
    Reset = 13;
}

layout! {
    /// The data of [`Command::Version`].
    pub Version, from 0 to 4;
    0 major: U16, "0";
    2 minor: U16, "0";
}

/// The device's capabilities, which it sends with its version.
pub const CAPABILITIES: &[u8] =
    b"{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":65536,\"pgsizes\":4096,\"max_dma_maps\":65535}}\0";

layout! {
    /// The data of [`Command::DmaMap`]: `vfio_iommu_type1_dma_map`.
    pub DmaMap, from 0 to 32;
    0 argument_size: U32, "bytes of this structure";
    4 flags: U32, "bit 0 the device may read, bit 1 it may write";
    8 offset: U64, "where the memory begins in the file";
    16 address: U64, "its address in the guest";
    24 length: U64, "bytes";
}

impl DmaMap {
    /// The device may read.
    pub const READ: u32 = 1 << 0;
    /// The device may write.
    pub const WRITE: u32 = 1 << 1;
}

layout! {
    /// The data of [`Command::DmaUnmap`]: `vfio_iommu_type1_dma_unmap`.
    pub DmaUnmap, from 0 to 24;
    0 argument_size: U32, "bytes of this structure";
    4 flags: U32, "bit 1: all there is";
    8 address: U64, "its address in the guest";
    16 length: U64, "bytes";
}

impl DmaUnmap {
    /// All memory.
    pub const ALL: u32 = 1 << 1;
}

layout! {
    /// The data of [`Command::DeviceInfo`]: `vfio_device_info`.
    pub DeviceInfo, from 0 to 16;
    0 argument_size: U32, "bytes of this structure";
    4 flags: U32, "bit 0 it can be reset, bit 1 PCI";
    8 regions: U32, "regions";
    12 irqs: U32, "kinds of interrupts";
}

layout! {
    /// The data of [`Command::RegionInfo`]: `vfio_region_info`.
    pub RegionInfo, from 0 to 32;
    0 argument_size: U32, "bytes of this structure";
    4 flags: U32, "bit 0 read, bit 1 write, bit 2 it can be mapped";
    8 region: U32, "the region";
    12 capabilities: U32, "0";
    16 length: U64, "bytes of the region, 0 if there is none";
    24 offset: U64, "where it begins in the file";
}

layout! {
    /// The data of [`Command::IrqInfo`]: `vfio_irq_info`.
    pub IrqInfo, from 0 to 16;
    0 argument_size: U32, "bytes of this structure";
    4 flags: U32, "bit 0 eventfds";
    8 kind: U32, "the kind of interrupts";
    12 count: U32, "interrupts of the kind";
}

layout! {
    /// The data of [`Command::SetIrqs`]: `vfio_irq_set`.
    pub SetIrqs, from 0 to 20;
    0 argument_size: U32, "bytes of this structure with what follows";
    4 flags: U32, "bit 0 nothing follows, 1 a byte for each, 2 descriptors; 3 mask, 4 unmask, 5 trigger";
    8 kind: U32, "the kind of interrupts";
    12 start: U32, "the first one";
    16 count: U32, "how many";
}

impl SetIrqs {
    /// No data follows.
    pub const NOTHING: u32 = 1 << 0;
    /// The message has file descriptors.
    pub const EVENTFDS: u32 = 1 << 2;
    /// Sets the trigger's eventfds, or triggers the interrupts.
    pub const TRIGGER: u32 = 1 << 5;
}

layout! {
    /// The data of [`Command::RegionRead`] and [`Command::RegionWrite`].
    pub RegionAccess, from 0 to 16;
    0 offset: U64, "where in the region";
    8 region: U32, "the region";
    12 count: U32, "bytes";
}

/// The numbers of regions: `VFIO_PCI_*_REGION_INDEX`. The first six are base address registers.
pub mod region {
    /// The configuration space.
    pub const CONFIG: u32 = 7;
    /// Number of regions of a PCI device.
    pub const COUNT: u32 = 9;
}

/// The types of interrupts: `VFIO_PCI_*_IRQ_INDEX`.
pub mod irq {
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// Errors of the bus.
    pub const ERROR: u32 = 3;
    /// Number of interrupt types of a PCI device.
    pub const COUNT: u32 = 5;
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn the_header_has_these_bytes() {
        let header = Header {
            id: 0x0201.into(),
            command: (Command::RegionWrite as u16).into(),
            size: 0x24.into(),
            flags: (Header::ANSWER | Header::ERROR).into(),
            error: 22.into(),
        };
        let bytes = [1, 2, 10, 0, 0x24, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0];
        assert_eq!(header.as_bytes(), bytes);
    }

    #[test]
    fn a_map_has_these_bytes() {
        let bytes: [u8; 32] = std::array::from_fn(|index| index as u8);
        let map = DmaMap::read_from_bytes(&bytes).unwrap();
        assert_eq!(
            (map.argument_size.get(), map.flags.get()),
            (0x0302_0100, 0x0706_0504)
        );
        assert_eq!(map.offset.get(), 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(map.address.get(), 0x1716_1514_1312_1110);
        assert_eq!(map.length.get(), 0x1f1e_1d1c_1b1a_1918);
    }

    #[test]
    fn accesses_and_interrupts_have_these_bytes() {
        let bytes: [u8; 20] = std::array::from_fn(|index| index as u8);
        let access = RegionAccess::read_from_prefix(&bytes).unwrap().0;
        assert_eq!(access.offset.get(), 0x0706_0504_0302_0100);
        assert_eq!(
            (access.region.get(), access.count.get()),
            (0x0b0a_0908, 0x0f0e_0d0c)
        );
        let set = SetIrqs::read_from_bytes(&bytes).unwrap();
        assert_eq!(
            (set.kind.get(), set.start.get()),
            (0x0b0a_0908, 0x0f0e_0d0c)
        );
        assert_eq!(set.count.get(), 0x1312_1110);
    }

    #[test]
    fn commands_have_numbers() {
        let known: Vec<u16> = (0..=20)
            .filter(|number| Command::of(*number).is_some())
            .collect();
        assert_eq!(known, [1, 2, 3, 4, 5, 7, 8, 9, 10, 13]);
    }
}
