//! The copies of a device between a packet and its host's memory.

use efa_core::nic::Status;
use efa_device_model::link::{HostSegment, Transfer};

use super::MEMORY;

/// The place of a segment in a host's memory.
pub fn range(segment: &HostSegment) -> std::ops::Range<usize> {
    let start = (segment.address - MEMORY) as usize;
    start..start + segment.length as usize
}

/// A packet's data, and the memory that starts at [`MEMORY`].
pub struct Copier<'a> {
    /// The data; what is read is appended.
    pub data: &'a mut Vec<u8>,
    /// The memory of the host.
    pub memory: &'a mut [u8],
    /// Whether the device has acknowledged the packet, if the link returns acknowledgements.
    pub acknowledged: Option<bool>,
}

impl Transfer for Copier<'_> {
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        let from = offset as usize..(offset + to.length) as usize;
        self.memory[range(&to)].copy_from_slice(&self.data[from]);
        Ok(())
    }

    fn store(&mut self, offset: u32, from: HostSegment) -> Result<(), Status> {
        assert_eq!(offset as usize, self.data.len());
        self.data.extend_from_slice(&self.memory[range(&from)]);
        Ok(())
    }

    fn acknowledge(&mut self) -> bool {
        if let Some(acknowledged) = &mut self.acknowledged {
            *acknowledged = true;
        }
        self.acknowledged.is_some()
    }

    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        let start = (to - MEMORY) as usize;
        self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn peek(&mut self, offset: u32, into: &mut [u8]) -> Result<(), Status> {
        let start = offset as usize;
        into.copy_from_slice(&self.data[start..start + into.len()]);
        Ok(())
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Status> {
        let start = (at - MEMORY) as usize;
        let word: &mut [u8; 8] = (&mut self.memory[start..start + 8]).try_into().unwrap();
        let before = u64::from_ne_bytes(*word);
        *word = change(before).to_ne_bytes();
        Ok(before)
    }
}
