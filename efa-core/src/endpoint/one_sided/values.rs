//! The values of an atomic, old and new: carrying it out on memory of the application.

use crate::endpoint::api::error::{Errno, Failure, ProviderError};
use crate::endpoint::memory::packet::ReceivedPacket;
use crate::nic::{Access, Domain, Nic, UserSlice};
use crate::wire::{AtomicOp, Payload, Rta, RtaKind};

use super::{ExposedRegions, OneSided, arithmetic};

/// Bytes of the largest element: a complex number of two long doubles.
const LARGEST_ELEMENT: usize = 32;

const BAD_TYPE: Failure = Failure::new(Errno::EINVAL, ProviderError::InvalidDatatype);
const BAD_MEMORY: Failure = Failure::new(Errno::EINVAL, ProviderError::RmaAddress);

/// The values of the last atomic, and the memory for them, which the next one uses again.
#[derive(Default)]
pub(super) struct AtomicValues {
    /// The old values, followed by the operands and the comparands of the request.
    bytes: Vec<u8>,
    /// The number of bytes of the old values.
    old: usize,
}

impl OneSided {
    /// Carries out an atomic whose operands are `payload` of `packet`. Afterwards
    /// [`OneSided::old_values`] returns the old values, at most `limit` bytes. Each element is
    /// changed separately: the application or other peers may change the memory meanwhile.
    ///
    /// # Errors
    /// The request is inconsistent, or names memory that the peer may not access.
    pub(crate) fn carry_out<N: Nic>(
        &mut self,
        nic: &mut N,
        packet: &ReceivedPacket,
        payload: Payload,
        rta: &Rta,
        limit: usize,
    ) -> Result<(), Failure> {
        let OneSided {
            exposed, values, ..
        } = self;
        values.carry_out(exposed, nic, packet, payload, rta, limit)
    }

    /// The values that the memory of the last atomic had before it.
    pub(crate) fn old_values(&self) -> &[u8] {
        let AtomicValues { bytes, old } = &self.values;
        &bytes[..*old]
    }
}

impl AtomicValues {
    fn carry_out<N: Nic>(
        &mut self,
        exposed: &ExposedRegions,
        nic: &mut N,
        packet: &ReceivedPacket,
        payload: Payload,
        rta: &Rta,
        limit: usize,
    ) -> Result<(), Failure> {
        let is_compare = matches!(rta.kind, RtaKind::Compare(_));
        let size = arithmetic::check(rta.atomic_datatype, rta.atomic_op, is_compare)
            .map_err(|_| BAD_TYPE)?;
        let total = rta.rma_iov.total_len().unwrap_or(u64::MAX);
        let operands = if is_compare { 2 } else { 1 };
        if total.checked_mul(operands) != Some(payload.length as u64)
            || total > limit as u64
            || rta
                .rma_iov
                .iter()
                .any(|piece| piece.len() % size as u64 != 0)
        {
            return Err(Failure::SIZE_MISMATCH);
        }
        let total = total as usize;
        let access = match rta.atomic_op {
            AtomicOp::ATOMIC_READ => Access::REMOTE_READ,
            _ => Access::REMOTE_WRITE,
        };
        let target = exposed.memory(&rta.rma_iov, access).ok_or(BAD_MEMORY)?;
        let came = packet.bytes(nic).get(payload.offset..).unwrap_or_default();
        self.old = total;
        self.bytes.clear();
        self.bytes.resize(total, 0);
        self.bytes.extend_from_slice(came);
        let (old, came) = self.bytes.split_at_mut(total);
        let (operand, comparand) = came.split_at(total);
        let pieces = target.as_slice().iter();
        let addresses = pieces.flat_map(|piece| {
            let UserSlice { address, length } = piece.memory;
            (address..address + length as u64).step_by(size)
        });
        for (address, at) in addresses.zip((0..total).step_by(size)) {
            let element = at..at + size;
            let old = &mut old[element.clone()];
            nic.read_user(address, old)
                .map_err(|_| Failure::COPY_FAILED)?;
            if rta.atomic_op == AtomicOp::ATOMIC_READ {
                continue;
            }
            let comparand = comparand.get(element.clone()).unwrap_or_default();
            let mut new = [0; LARGEST_ELEMENT];
            let new = &mut new[..size];
            loop {
                arithmetic::apply(
                    rta.atomic_datatype,
                    rta.atomic_op,
                    old,
                    &operand[element.clone()],
                    comparand,
                    new,
                );
                // A failed exchange has loaded the current element.
                if nic
                    .exchange_user(address, old, new)
                    .map_err(|_| Failure::COPY_FAILED)?
                {
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::fake::{FakeNic, fake_nic};
    use crate::wire::{AtomicDatatype, MsgId, RecvId, ReqOptions, RmaIov, RmaIovs};

    const ALL: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_WRITE);

    /// A device with `memory` from address 0 on, which peers may access so.
    fn exposed(memory: &[u8], access: Access) -> (OneSided, FakeNic, u64) {
        let mut nic = fake_nic(1);
        nic.carrier.memory = memory.to_vec();
        let mut one_sided = OneSided::default();
        let memory = UserSlice::new(0, memory.len());
        let region = one_sided.exposed.register(&mut *nic, memory, access);
        (one_sided, nic, region.unwrap().remote_key.0)
    }

    /// An atomic on 16-bit integers at these pieces of memory, by address and length.
    fn request(kind: RtaKind, operation: AtomicOp, key: u64, pieces: &[(u64, u64)]) -> Rta {
        let pieces = pieces.iter();
        Rta {
            kind,
            msg_id: MsgId(0),
            atomic_datatype: AtomicDatatype::UINT16,
            atomic_op: operation,
            rma_iov: RmaIovs::first_of(pieces.map(|(at, length)| RmaIov::new(*at, *length, key))),
            options: ReqOptions::default(),
        }
    }

    /// Carries out a request with these operands, which follow 3 other bytes of the packet.
    fn carry_out(
        one_sided: &mut OneSided,
        nic: &mut FakeNic,
        rta: &Rta,
        operands: &[u8],
        limit: usize,
    ) -> Result<(), Failure> {
        let mut bytes = vec![0xee; 3];
        bytes.extend_from_slice(operands);
        let payload = Payload {
            offset: 3,
            length: operands.len(),
        };
        let packet = ReceivedPacket::copied(bytes.into(), 3 + operands.len());
        one_sided.carry_out(nic, &packet, payload, rta, limit)
    }

    #[test]
    fn elements_change_and_old_values_return() {
        let (mut one_sided, mut nic, key) = exposed(&[1, 0, 2, 0, 3, 0, 4, 0], ALL);
        let rta = request(
            RtaKind::Fetch(RecvId(1)),
            AtomicOp::SUM,
            key,
            &[(6, 2), (0, 4)],
        );
        let operands = [10, 1, 20, 0, 30, 0];
        carry_out(&mut one_sided, &mut nic, &rta, &operands, 6).unwrap();
        assert_eq!(nic.carrier.memory, [21, 0, 32, 0, 3, 0, 14, 1]);
        assert_eq!(one_sided.old_values(), [4, 0, 1, 0, 2, 0]);
        // The memory for values is reused, and contains nothing of the last atomic.
        let rta = request(
            RtaKind::Fetch(RecvId(1)),
            AtomicOp::ATOMIC_READ,
            key,
            &[(4, 2)],
        );
        carry_out(&mut one_sided, &mut nic, &rta, &[9, 9], 6).unwrap();
        assert_eq!(nic.carrier.memory, [21, 0, 32, 0, 3, 0, 14, 1]);
        assert_eq!(one_sided.old_values(), [3, 0]);
    }

    #[test]
    fn each_swap_compares_its_own_comparand() {
        let (mut one_sided, mut nic, key) = exposed(&[1, 0, 2, 0], ALL);
        let rta = request(RtaKind::Compare(RecvId(1)), AtomicOp::CSWAP, key, &[(0, 4)]);
        let operands = [7, 7, 8, 8, 9, 0, 2, 0];
        carry_out(&mut one_sided, &mut nic, &rta, &operands, 4).unwrap();
        assert_eq!(nic.carrier.memory, [1, 0, 8, 8]);
        assert_eq!(one_sided.old_values(), [1, 0, 2, 0]);
    }

    #[test]
    fn sizes_that_contradict_each_other_change_nothing() {
        let (mut one_sided, mut nic, key) = exposed(&[1, 0, 2, 0], ALL);
        let sum = |length| request(RtaKind::Write, AtomicOp::SUM, key, &[(0, length)]);
        for (length, operands, limit) in [(4, 2, 4), (3, 3, 4), (4, 4, 3)] {
            let operands = vec![1; operands];
            let result = carry_out(&mut one_sided, &mut nic, &sum(length), &operands, limit);
            assert_eq!(result, Err(Failure::SIZE_MISMATCH), "{length} {limit}");
        }
        // A comparand is missing.
        let swap = request(RtaKind::Compare(RecvId(1)), AtomicOp::CSWAP, key, &[(0, 4)]);
        let result = carry_out(&mut one_sided, &mut nic, &swap, &[1; 4], 4);
        assert_eq!(result, Err(Failure::SIZE_MISMATCH));
        assert_eq!(nic.carrier.memory, [1, 0, 2, 0]);
    }

    #[test]
    fn accesses_respect_permissions_and_bounds() {
        let (mut one_sided, mut nic, key) = exposed(&[1, 0, 2, 0], Access::REMOTE_READ);
        let fetch = |operation, at| {
            let kind = RtaKind::Fetch(RecvId(1));
            request(kind, operation, key, &[(at, 2)])
        };
        let mut result = |rta: Rta| carry_out(&mut one_sided, &mut nic, &rta, &[1; 2], 4);
        assert_eq!(result(fetch(AtomicOp::SUM, 0)), Err(BAD_MEMORY));
        assert_eq!(result(fetch(AtomicOp::ATOMIC_READ, 3)), Err(BAD_MEMORY));
        assert_eq!(result(fetch(AtomicOp::ATOMIC_READ, 2)), Ok(()));
        // An operation that does not exist.
        assert_eq!(result(fetch(AtomicOp(200), 0)), Err(BAD_TYPE));
    }
}
