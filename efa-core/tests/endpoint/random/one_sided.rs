//! One-sided operations of the random workload.

use efa_core::endpoint::*;
use efa_core::nic::UserSlice;
use efa_core::wire::{AtomicDatatype, AtomicOp};
use rand::Rng;

use super::{Pending, World, byte};
use efa_testing::nic::MEMORY;

/// A one-sided operation of the workload. Its context is its number behind [`ONE_SIDED`].
pub(super) struct OneSided {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) length: usize,
    pub(super) kind: OneSidedKind,
    /// The local memory, and the target's.
    pub(super) local: u64,
    pub(super) remote: u64,
    pub(super) cq_data: Option<u64>,
    pub(super) flags: OperationFlags,
    pub(super) started: bool,
    pub(super) reported: bool,
    pub(super) announced: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OneSidedKind {
    Write,
    Read,
    /// Adds 1 to a counter of the target.
    Add,
    /// Likewise, and fetches the old value.
    FetchAdd,
    /// Puts its number + 1 into a word of the target if that is still 0, and fetches the old value.
    Claim,
}

impl OneSidedKind {
    pub(super) fn is_atomic(self) -> bool {
        !matches!(self, OneSidedKind::Write | OneSidedKind::Read)
    }
}

pub(super) const ONE_SIDED: u64 = 1 << 32;
/// The counter that all atomics on a host change: the first 8 bytes of its memory.
pub(super) const COUNTER: u64 = MEMORY;

/// The word that compare atomics claim.
pub(super) const CLAIMED: u64 = MEMORY + 8;
impl World {
    pub(super) fn new_one_sided(&mut self) {
        let number = self.one_sided.len();
        let from = self.rng.random_range(0..self.hosts.len());
        let to = self.rng.random_range(0..self.hosts.len());
        let kind = [
            OneSidedKind::Write,
            OneSidedKind::Write,
            OneSidedKind::Read,
            OneSidedKind::Read,
            OneSidedKind::Add,
            OneSidedKind::FetchAdd,
            OneSidedKind::Claim,
        ][self.rng.random_range(0..7)];
        let is_atomic = kind.is_atomic();
        let length = match self.rng.random_range(0..3) {
            _ if is_atomic => 8,
            0 => self.rng.random_range(0..16),
            1 => self.rng.random_range(200..1200),
            _ => self.rng.random_range(2000..8000),
        };
        // Disjoint memory for every operation: nothing orders them among each other.
        let local = self.allocate(from, length.max(24));
        let remote = match kind {
            OneSidedKind::Write | OneSidedKind::Read => self.allocate(to, length),
            OneSidedKind::Add | OneSidedKind::FetchAdd => COUNTER,
            OneSidedKind::Claim => CLAIMED,
        };
        let bytes: Vec<u8> = (0..length).map(|index| byte(number, index)).collect();
        match kind {
            OneSidedKind::Write => self.network.fill(from, local, &bytes),
            OneSidedKind::Read => self.network.fill(to, remote, &bytes),
            OneSidedKind::Add | OneSidedKind::FetchAdd => {
                self.network.fill(from, local, &1_u64.to_le_bytes());
            }
            OneSidedKind::Claim => {
                let claim = number as u64 + 1;
                self.network.fill(from, local, &claim.to_le_bytes());
            }
        }
        let mut flags = OperationFlags::COMPLETION;
        if self.rng.random_range(0..4) == 0 {
            flags |= OperationFlags::DELIVERY_COMPLETE;
        }
        let with_data = kind == OneSidedKind::Write && self.rng.random();
        self.one_sided.push(OneSided {
            from,
            to,
            length,
            kind,
            local,
            remote,
            cq_data: with_data.then_some(ONE_SIDED - 1 - number as u64),
            flags,
            started: false,
            reported: false,
            announced: false,
        });
        self.hosts[from]
            .pending
            .push_back(Pending::OneSided(number));
    }

    pub(super) fn start_one_sided(&mut self, number: usize) -> Result<(), EndpointError> {
        let operation = &self.one_sided[number];
        let target_key = self.hosts[operation.to].region.remote_key;
        let host = &mut self.hosts[operation.from];
        let region = (number.is_multiple_of(2)).then_some(host.region);
        let piece = |address, length| IoVec {
            memory: UserSlice { address, length },
            region,
        };
        let cut = if number.is_multiple_of(5) {
            operation.length / 3
        } else {
            0
        };
        let local = [
            piece(operation.local, cut),
            piece(operation.local + cut as u64, operation.length - cut),
        ];
        let remote_piece = |address, length| RemoteIoVec {
            address,
            length,
            key: target_key,
        };
        let length = operation.length as u64;
        let cut = if number.is_multiple_of(7) {
            length / 4
        } else {
            0
        };
        let remote = [
            remote_piece(operation.remote, cut),
            remote_piece(operation.remote + cut, length - cut),
        ];
        // Pieces of no bytes are left out now and then: a write with one piece fits the device.
        let local = if number.is_multiple_of(5) {
            &local[..]
        } else {
            &local[1..]
        };
        let remote = if number.is_multiple_of(7) {
            &remote[..]
        } else {
            &remote[1..]
        };
        let context = ONE_SIDED + number as u64;
        let peer = host.peers[operation.to];
        let flags = operation.flags;
        match operation.kind {
            OneSidedKind::Write => host.endpoint.write(WriteArgs {
                peer,
                data: local,
                remote,
                cq_data: operation.cq_data,
                flags,
                context,
            }),
            OneSidedKind::Read => host.endpoint.read(ReadArgs {
                peer,
                buffer: local,
                remote,
                flags,
                context,
            }),
            OneSidedKind::Add | OneSidedKind::FetchAdd | OneSidedKind::Claim => {
                let result = [piece(operation.local + 8, 8)];
                let comparand = [piece(operation.local + 16, 8)];
                let (operation_code, kind) = match operation.kind {
                    OneSidedKind::Claim => (
                        AtomicOp::CSWAP,
                        AtomicKind::Compare {
                            result: &result,
                            comparand: &comparand,
                        },
                    ),
                    OneSidedKind::FetchAdd => {
                        (AtomicOp::SUM, AtomicKind::Fetch { result: &result })
                    }
                    _ => (AtomicOp::SUM, AtomicKind::Write),
                };
                host.endpoint.atomic(AtomicArgs {
                    peer,
                    datatype: AtomicDatatype::UINT64,
                    operation: operation_code,
                    operand: &[piece(operation.local, 8)],
                    kind,
                    remote: &[remote_piece(operation.remote, 8)],
                    flags,
                    context,
                })
            }
        }
    }

    pub(super) fn on_one_sided(&mut self, host: usize, number: usize, entry: &CompletionEntry) {
        let operation = &mut self.one_sided[number];
        assert_eq!((operation.from, operation.reported), (host, false));
        operation.reported = true;
        assert_eq!(entry.length, operation.length as u64);
        let flags = match operation.kind {
            OneSidedKind::Write => CompletionFlags::RMA | CompletionFlags::WRITE,
            OneSidedKind::Read => CompletionFlags::RMA | CompletionFlags::READ,
            OneSidedKind::Add => CompletionFlags::ATOMIC | CompletionFlags::WRITE,
            OneSidedKind::FetchAdd | OneSidedKind::Claim => {
                CompletionFlags::ATOMIC | CompletionFlags::READ
            }
        };
        assert_eq!(entry.flags, flags);
        match operation.kind {
            OneSidedKind::Write if operation.flags.contains(OperationFlags::DELIVERY_COMPLETE) => {
                self.check_written(number);
            }
            OneSidedKind::Read => {
                let found = self.network.memory(host, operation.local, operation.length);
                for (index, found) in found.iter().enumerate() {
                    assert_eq!(*found, byte(number, index), "read {number} byte {index}");
                }
            }
            OneSidedKind::FetchAdd | OneSidedKind::Claim => {
                let found = self.network.memory(host, operation.local + 8, 8);
                let old = u64::from_le_bytes(found.try_into().unwrap());
                let target = &mut self.hosts[operation.to];
                if operation.kind == OneSidedKind::FetchAdd {
                    target.fetched.push(old);
                } else {
                    target.claims.push(old);
                }
            }
            OneSidedKind::Write | OneSidedKind::Add => {}
        }
    }

    pub(super) fn check_written(&self, number: usize) {
        let operation = &self.one_sided[number];
        let found = self
            .network
            .memory(operation.to, operation.remote, operation.length);
        for (index, found) in found.iter().enumerate() {
            assert_eq!(*found, byte(number, index), "write {number} byte {index}");
        }
    }

    /// The target of a write heard of it by its CQ data.
    pub(super) fn on_announced(&mut self, host: usize, entry: &CompletionEntry) {
        let number = (ONE_SIDED - 1 - entry.data) as usize;
        let operation = &mut self.one_sided[number];
        assert_eq!((operation.to, operation.announced), (host, false));
        operation.announced = true;
        assert_eq!(entry.data, operation.cq_data.unwrap());
        assert_eq!(entry.length, operation.length as u64);
        assert_eq!(entry.source, Some(self.hosts[host].peers[operation.from]));
        self.check_written(number);
    }

    /// Every operation was reported once, to its target too if that was asked for, and did its work.
    pub(super) fn check_one_sided(&mut self) {
        for (number, operation) in self.one_sided.iter().enumerate() {
            assert!(operation.started && operation.reported, "{number}");
            assert_eq!(operation.announced, operation.cq_data.is_some(), "{number}");
            if operation.kind == OneSidedKind::Write {
                self.check_written(number);
            }
        }
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let adds = self.one_sided.iter().filter(|operation| {
                let adds = operation.kind.is_atomic() && operation.kind != OneSidedKind::Claim;
                adds && operation.to == index
            });
            let total = adds.count() as u64;
            let counter = self.network.memory(index, COUNTER, 8);
            assert_eq!(u64::from_le_bytes(counter.try_into().unwrap()), total);
            // Each saw the counter at a different moment.
            host.fetched.sort_unstable();
            host.fetched
                .windows(2)
                .for_each(|pair| assert!(pair[0] < pair[1]));
            assert!(host.fetched.iter().all(|old| *old < total));
            // The first one found 0, all others what the first one put there.
            let claimed = self.network.memory(index, CLAIMED, 8);
            let claimed = u64::from_le_bytes(claimed.try_into().unwrap());
            host.claims.sort_unstable();
            let (first, others) = host.claims.split_first().unwrap_or((&0, &[]));
            assert_eq!(*first, 0);
            assert!(others.iter().all(|old| *old == claimed), "{others:?}");
        }
    }
}
