//! RDMA against regions with all kinds of access: a refused operation changes no byte.

use std::ptr::null_mut;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::exchange::{ALL_OPS, build};
use crate::{on_emulated_host, on_emulated_host_with};
use efa_testing::verbs::*;
use efa_verbs_abi::*;

/// Memory of the target; regions are parts of it.
const ARENA: usize = 8192;
/// Memory of the initiator, all of it one region.
const LOCAL: usize = 512;
const OPERATIONS: u32 = 4000;

/// A part of the arena, with the access that peers have.
struct ArenaRegion {
    start: usize,
    length: usize,
    access: u32,
    rkey: u32,
    live: bool,
}

impl ArenaRegion {
    /// Whether the device permits an operation of `needed` access on `range` of the arena.
    fn permits(&self, rkey: u32, needed: u32, start: i64, length: usize) -> bool {
        let (first, end) = (self.start as i64, (self.start + self.length) as i64);
        self.live
            && rkey == self.rkey
            && self.access & needed != 0
            && start >= first
            && start + length as i64 <= end
    }
}

#[test]
fn keys_access_and_bounds_hold() {
    on_emulated_host("efa2", || {
        let mut random = SmallRng::seed_from_u64(11);
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(16);
        let pair = endpoint.srd(queue, ALL_OPS);
        let mut arena: Vec<u8> = (0..ARENA).map(|_| random.random()).collect();
        let mut local: Vec<u8> = (0..LOCAL).map(|_| random.random()).collect();
        let own = endpoint.register(&mut local, IBV_ACCESS_LOCAL_WRITE);
        let (read, write) = (IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE);
        let layout = [
            (1000, 700, read),
            (1700, 513, IBV_ACCESS_LOCAL_WRITE | write),
            (3000, 1, IBV_ACCESS_LOCAL_WRITE | read | write),
            (4096, 2048, IBV_ACCESS_LOCAL_WRITE | read | write),
            (5000, 100, IBV_ACCESS_LOCAL_WRITE),
            (6500, 600, IBV_ACCESS_LOCAL_WRITE | read | write),
        ];
        let mut regions = Vec::new();
        let mut parts: Vec<ArenaRegion> = layout
            .into_iter()
            .map(|(start, length, access)| {
                let region = endpoint.register(&mut arena[start..start + length], access);
                regions.push(region);
                // SAFETY: a live region.
                let rkey = unsafe { (*region).rkey };
                ArenaRegion {
                    start,
                    length,
                    access,
                    rkey,
                    live: true,
                }
            })
            .collect();
        assert_eq!(ibv_dereg_mr(regions[5]), 0);
        parts[5].live = false;
        let (mut expected_arena, mut expected_local) = (arena.clone(), local.clone());
        let base = arena.as_mut_ptr().expose_provenance() as u64;

        let mut served = 0;
        for number in 0..OPERATIONS {
            let part = &parts[random.random_range(0..parts.len())];
            let length = random.random_range(1..=LOCAL);
            let start = part.start as i64 + random.random_range(-20..part.length as i64 + 20);
            let rkey = match random.random_range(0..4) {
                0 => part.rkey ^ 1 << random.random_range(0..32),
                _ => part.rkey,
            };
            let reads = random.random();
            let piece = sge(own, 0, length as u32);
            let address = base.wrapping_add_signed(start);
            // SAFETY: live objects, and addresses that may be wrong, as the device has to notice.
            unsafe {
                build(pair, number.into(), |builders| {
                    match reads {
                        true => (*builders).wr_rdma_read.unwrap()(builders, rkey, address),
                        false => (*builders).wr_rdma_write.unwrap()(builders, rkey, address),
                    }
                    let (to, qpn) = (endpoint.handle, (*pair).qp_num);
                    (*builders).wr_set_ud_addr.unwrap()(builders, to, qpn, QKEY);
                    let ibv_sge { addr, length, lkey } = piece;
                    (*builders).wr_set_sge.unwrap()(builders, lkey, addr, length);
                })
            }
            let found = wait_for(queue, 1)[0];
            // Another region may have the key that results from a changed bit.
            let needed = if reads { read } else { write };
            let permitted = parts
                .iter()
                .any(|part| part.permits(rkey, needed, start, length));
            let outcome = if permitted { (0, 0) } else { (7, 10) };
            assert_eq!(
                (found.vendor_err, found.status),
                outcome,
                "{number}: {length} bytes at {start} with key {rkey:#x}, reading {reads}"
            );
            if permitted {
                served += 1;
                let range = start as usize..start as usize + length;
                match reads {
                    true => expected_local[..length].copy_from_slice(&expected_arena[range]),
                    false => expected_arena[range].copy_from_slice(&expected_local[..length]),
                }
            }
            assert!(arena == expected_arena, "{number}: the target's memory");
            assert!(local == expected_local, "{number}: the initiator's memory");
        }
        assert!(
            (OPERATIONS / 10..OPERATIONS * 9 / 10).contains(&served),
            "{served} served"
        );
    });
}

/// `--serve-unknown-peers` of the responder's host turns status 14 off.
#[test]
fn unknown_peers_are_served_if_requested() {
    for option in [None, Some("--serve-unknown-peers")] {
        // Both processes run the same body, which finds its role in the environment.
        let mut options = vec!["--profile", "efa2"];
        options.extend(option);
        on_emulated_host_with(&options, || {
            let served = std::env::var("EFA_EMU_UNKNOWN_PEERS").unwrap() == "serve";
            let outcome = if served { (0, 0) } else { (14, 11) };
            let endpoint = Endpoint::new();
            let queue = endpoint.cq(16);
            let pair = endpoint.srd(queue, ALL_OPS);
            let mut memory = [0u8; 16];
            let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
            let to = sge(region, 0, 16);
            // A device without address handles.
            let context = open();
            let pd = ibv_alloc_pd(context);
            let target = Endpoint {
                context,
                pd,
                handle: null_mut(),
                gid: endpoint.gid,
            };
            let target_pair = target.srd(target.cq(16), 0);
            let mut remote = [7u8; 16];
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
            let remote = target.register(&mut remote, access);
            // SAFETY: live objects, used as a correct program does.
            unsafe {
                let (qpn, there) = ((*target_pair).qp_num, &*remote);
                let address = there.addr.addr() as u64;
                build(pair, 1, |builders| {
                    (*builders).wr_rdma_read.unwrap()(builders, there.rkey, address);
                    (*builders).wr_set_ud_addr.unwrap()(builders, endpoint.handle, qpn, QKEY);
                    (*builders).wr_set_sge.unwrap()(builders, to.lkey, to.addr, to.length);
                })
            }
            let found = wait_for(queue, 1)[0];
            assert_eq!((found.vendor_err, found.status), outcome);
            assert_eq!(memory, [if served { 7 } else { 0 }; 16]);
        });
    }
}
