//! The memory of programs.

use efa_core::endpoint::{Endpoint, IoVec};
use efa_core::nic::{Access, Region, UserSlice};

use super::{MEMORY, World};
use crate::model::{ProgramId, pattern};
use crate::plan::Buffer;
use crate::release::ReleaseNic;

impl World {
    pub(super) fn allocate(&mut self, at: ProgramId, length: usize) -> u64 {
        let program = &mut self.programs[at];
        let address = program.memory.address + program.used;
        program.used += length.next_multiple_of(8) as u64;
        assert!(program.used <= MEMORY as u64, "MEMORY is too small");
        address
    }

    pub(super) fn fill(&self, at: ProgramId, address: u64, bytes: &[u8]) {
        let host = &self.programs[at].host;
        host.write(address, bytes).expect("allocated memory");
    }

    pub(super) fn bytes(&self, at: ProgramId, address: u64, length: usize) -> Vec<u8> {
        let host = &self.programs[at].host;
        host.read(UserSlice { address, length })
            .expect("allocated memory")
    }

    pub(super) fn word(&self, at: ProgramId, offset: u64) -> u64 {
        let bytes = self.bytes(at, self.programs[at].memory.address + offset, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    pub(super) fn pieces(
        &self,
        at: ProgramId,
        address: u64,
        length: usize,
        buffer: Buffer,
    ) -> Vec<IoVec> {
        let region = buffer.registered.then_some(self.programs[at].region);
        let part = length.div_ceil(buffer.pieces.max(1)).max(1);
        let mut pieces: Vec<IoVec> = (0..length)
            .step_by(part)
            .map(|start| IoVec {
                memory: UserSlice::new(address + start as u64, part.min(length - start)),
                region,
            })
            .collect();
        if pieces.is_empty() {
            pieces.push(IoVec {
                memory: UserSlice { address, length: 0 },
                region,
            });
        }
        pieces
    }
}

/// Registers the memory of a program. A staged failure may be intended for another registration.
pub(super) fn register(
    endpoint: &mut Endpoint<ReleaseNic>,
    memory: UserSlice,
) -> Result<Region, String> {
    (0..20)
        .find_map(|_| endpoint.register(memory, Access::all()).ok())
        .ok_or("the program's memory cannot be registered".into())
}

/// The initial target of an atomic on memory of its own, its operand and its comparand.
pub(super) fn combined(number: usize, length: usize) -> [Vec<u8>; 3] {
    [1, 2, 3].map(|part| pattern(3 * number + part, length))
}
