//! Clients that write queues and doorbells themselves, correctly and incorrectly.

use std::sync::atomic::{AtomicU64, Ordering};

use efa_core::nic::Status;
use efa_device_model::device::queue::{RingMemory, WqeSize};
use efa_device_model::device::{DeviceEvent, QpState};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{SendData, SendOpcode};
use proptest::prelude::*;

use crate::harness::{MEMORY, Net, QKEY, Setup};

/// Stores a word like a client that has mapped the ring.
fn store<const N: usize>(memory: &RingMemory<N>, offset: usize, value: u64) {
    assert!(offset.is_multiple_of(8) && offset < memory.len());
    // SAFETY: the word is inside the ring's memory, aligned, and alive as long as `memory`; all
    // access to it is atomic.
    let word = unsafe { AtomicU64::from_ptr(memory.as_ptr().add(offset).cast()) };
    word.store(value, Ordering::Relaxed);
}

fn load<const N: usize>(memory: &RingMemory<N>, offset: usize) -> u64 {
    assert!(offset.is_multiple_of(8) && offset < memory.len());
    // SAFETY: as in `store`.
    let word = unsafe { AtomicU64::from_ptr(memory.as_ptr().add(offset).cast()) };
    word.load(Ordering::Relaxed)
}

/// Overwrites one byte of a ring.
pub(crate) fn corrupt<const N: usize>(memory: &RingMemory<N>, offset: usize, value: u8) {
    let word = offset / 8 * 8;
    let mut bytes = load(memory, word).to_le_bytes();
    bytes[offset % 8] = value;
    store(memory, word, u64::from_le_bytes(bytes));
}

/// The bytes of the completion entry at this counter.
fn completion(net: &Net, host: usize, counter: usize) -> [u8; 32] {
    let ring = net.hosts[host].completions.ring();
    let words: [u64; 4] =
        std::array::from_fn(|word| load(ring.memory(), counter * 32 + word * 8).to_le());
    let mut bytes = [0; 32];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// All bytes of a 64-bit id are returned where the device supports them, however the request ends.
/// On older generations the bytes of the upper part are reserved, in the request and in the
/// completion.
#[test]
fn upper_request_id_bits_return_where_supported() {
    const ID: [u8; 8] = [0x02, 0x01, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6];
    // The operation byte of a request, and its status.
    let cases = [
        (0x80, Status::Ok),
        (0x83, Status::LocalUnsupportedOp),
        (0x81, Status::LocalBadLength),
        (0x00, Status::LocalQpInternalError),
    ];
    for profile in Profile::all() {
        for (kind, status) in cases {
            let (mut net, to) =
                Net::pair_with_address(Setup::with(|setup| setup.profile = profile.clone()));
            net.hosts[1].post_recv(1, &[(0, 8)]);
            let host = &mut net.hosts[0];
            let buffers = [host.buffer(0, 4), host.buffer(4, 4)];
            let data = SendData::Buffers(&buffers);
            host.client.post(9, to, SendOpcode::Send, data).unwrap();
            let ring = host.client.send.ring().clone();
            for (place, byte) in [0, 1, 26, 27, 28, 29, 30, 31].into_iter().zip(ID) {
                corrupt(ring.memory(), place, byte);
            }
            corrupt(ring.memory(), 2, kind);
            net.hosts[0].doorbell();
            net.settle();
            let mut expected = [0; 32];
            expected[..2].copy_from_slice(&ID[..2]);
            expected[2] = status.code();
            // The operation of an unreadable entry is unknown.
            expected[3] = 0x03;
            expected[4..6].copy_from_slice(&net.hosts[0].client.qpn.0.to_le_bytes());
            if profile.name == "efa4" {
                expected[6..12].copy_from_slice(&ID[2..]);
            }
            let context = format!("{} {status:?}", profile.name);
            assert_eq!(completion(&net, 0, 0), expected, "{context}");
        }
    }
}

/// With a table and generations such a completion is stale. With 64-bit ids it cannot be
/// distinguished from one of the queue pair that now has the number (rdma-core of August 2026
/// checks the generation of 16-bit ids only).
#[test]
fn late_completions_hit_successors_with_64_bit_ids() {
    for profile in Profile::all() {
        let (mut net, to) =
            Net::pair_with_address(Setup::with(|setup| setup.profile = profile.clone()));
        net.hosts[1].post_recv(1, &[(0, 8)]);
        net.hosts[0].post_send(u64::MAX - 6, to, &[(0, 8)]);
        net.settle();
        net.hosts[0].recreate_qp();
        let late = match profile.name {
            "efa4" => Some((u64::MAX - 6, Status::Ok)),
            _ => None,
        };
        assert_eq!(net.hosts[0].outcome(), late, "{}", profile.name);
        assert_eq!(net.hosts[0].client.send.outstanding(), 0);
        // The queue has the same room as before.
        for wr_id in 0..16 {
            net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
        }
    }
}

/// The accesses of a client with direct access, which calls the library only to create objects.
#[test]
fn clients_may_write_queues_and_doorbells_directly() {
    for wqe_size in [WqeSize::Bytes64, WqeSize::Bytes128] {
        let (mut net, to) = Net::pair_with_address(Setup {
            wqe_size,
            send_entries: 4,
            recv_descriptors: 4,
            ..Setup::default()
        });
        for host in &mut net.hosts {
            host.device.watch_qp(host.client.qpn, true).unwrap();
        }
        for round in 0..10u16 {
            // Receive descriptor: address; request id, length, lkey with first and last.
            let receive = net.hosts[1].client.recv.ring().clone();
            let at = usize::from(round % 4) * 16;
            store(receive.memory(), at, MEMORY + 1000);
            let lkey = u64::from(net.hosts[1].keys.lkey.0 | 0xc000_0000);
            let second = u64::from(round) | 64 << 16 | lkey << 32;
            store(receive.memory(), at + 8, second);
            receive.doorbell().write(u32::from(round + 1));

            // Work request: send with completion, one buffer.
            let send = net.hosts[0].client.send.ring().clone();
            let at = usize::from(round % 4) * wqe_size.bytes();
            let phase = u64::from(round / 4 % 2);
            let control = 0x80 << 16 | (0x1c | phase) << 24;
            let first = 0x4000 | u64::from(round) | control | u64::from(to.qpn.0) << 32 | 1 << 48;
            store(send.memory(), at, first);
            store(send.memory(), at + 8, u64::from(to.ahn) << 32);
            store(send.memory(), at + 16, u64::from(QKEY.0));
            store(send.memory(), at + 24, 0);
            let lkey = u64::from(net.hosts[0].keys.lkey.0);
            store(send.memory(), at + 32, 5 | lkey << 32);
            store(send.memory(), at + 40, MEMORY);
            net.hosts[0].bytes(0, 5).copy_from_slice(b"bytes");
            let doorbell = send.direct_doorbell().unwrap().doorbell();
            let qpn = net.hosts[0].client.qpn;
            // A client may be stopped before it stores the doorbell: then the device looks for
            // written entries. The device may see the old value of the doorbell after that, and the
            // new one with the next request.
            let is_early = round % 3 > 0;
            if is_early {
                net.hosts[0].device.find_written_entries(qpn);
                net.settle();
                assert_eq!(net.hosts[0].device.read_watched_doorbells(), round % 3 == 2);
            }
            let sent = net.hosts[0].device.counters().tx_pkts;
            assert_eq!(sent, u64::from(round) + u64::from(is_early));
            doorbell.write(u32::from(round + 1));
            if round % 3 != 1 {
                assert!(net.hosts[0].device.read_watched_doorbells());
                assert!(!net.hosts[0].device.read_watched_doorbells());
            }
            net.settle();
            assert_eq!(net.hosts[0].device.counters().tx_pkts, u64::from(round) + 1);
            for host in 0..2 {
                let ring = net.hosts[host].completions.ring().clone();
                let head = load(ring.memory(), usize::from(round % 64) * 32);
                assert_eq!(head as u16, if host == 0 { 0x4000 | round } else { round });
                assert_eq!((head >> 16) as u8, Status::Ok.code());
                let queue = if host == 0 { 1 } else { 2 };
                assert_eq!((head >> 24) as u8 & 0b111, 1 | queue << 1);
            }
            assert_eq!(net.hosts[1].bytes(1000, 5), b"bytes");
        }
    }
}

#[test]
fn a_doorbell_beyond_the_ring_fails_its_pair() {
    let mut net = Net::pair(Setup::default());
    let qpn = net.hosts[0].client.qpn;
    net.hosts[0].client.send.ring().doorbell().write(17);
    net.hosts[0].doorbell();
    let attributes = net.hosts[0].device.query_qp(qpn).unwrap();
    assert_eq!(attributes.state, QpState::Error);
    let events: Vec<_> = net.hosts[0].device.take_events().collect();
    assert_eq!(events, [DeviceEvent::QpFatal(qpn)]);

    let to = net.address(0, 1);
    net.hosts[1].client.recv.ring().doorbell().write(65);
    net.hosts[0].set_state(QpState::Reset);
    net.hosts[0].ready();
    net.hosts[0].post_send(1, to, &[(0, 1)]);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::RemoteAbort)));
    let attributes = net.hosts[1].device.query_qp(net.hosts[1].client.qpn);
    assert_eq!(attributes.unwrap().state, QpState::Error);
}

#[test]
fn a_direct_doorbell_beyond_the_ring_fails_too() {
    for (value, state) in [(16, QpState::ReadyToSend), (17, QpState::Error)] {
        let mut net = Net::pair(Setup::default());
        let qpn = net.hosts[0].client.qpn;
        net.hosts[0].device.watch_qp(qpn, true).unwrap();
        let ring = net.hosts[0].client.send.ring().clone();
        ring.direct_doorbell().unwrap().doorbell().write(value);
        assert!(net.hosts[0].device.read_watched_doorbells());
        let attributes = net.hosts[0].device.query_qp(qpn).unwrap();
        assert_eq!(attributes.state, state);
    }
}

/// Entries from before a reset have the phase of the first lap, and must not be taken for new ones.
#[test]
fn a_reset_discards_entries_without_a_doorbell() {
    let mut net = Net::pair(Setup::default());
    let (to, qpn) = (net.address(0, 1), net.hosts[0].client.qpn);
    for wr_id in 0..3 {
        net.hosts[0].post_send(wr_id, to, &[(0, 1)]);
    }
    net.hosts[0].device.watch_qp(qpn, true).unwrap();
    net.hosts[0].set_state(QpState::Reset);
    net.hosts[0].ready();
    net.packets.clear();
    net.hosts[0].device.find_written_entries(qpn);
    net.hosts[0].device.read_watched_doorbells();
    net.transmit(0);
    assert_eq!(net.packets.len(), 0);
    let attributes = net.hosts[0].device.query_qp(qpn).unwrap();
    assert_eq!(attributes.state, QpState::ReadyToSend);
    net.hosts[0].post_send(9, to, &[(0, 1)]);
    net.transmit(0);
    assert_eq!(net.packets.len(), 1, "calls are as good as before");
}

#[test]
fn posting_without_polling_is_throttled() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    net.hosts[0].post_send(1, to, &[(0, 1)]);
    let ring = net.hosts[0].client.send.ring().clone();
    let entry: [u64; 8] = std::array::from_fn(|word| load(ring.memory(), word * 8));
    // As many entries again as the queue is long stay in the ring.
    for counter in 0..32u16 {
        for (word, value) in entry.into_iter().enumerate() {
            store(
                ring.memory(),
                usize::from(counter % 16) * 64 + word * 8,
                value,
            );
        }
        ring.doorbell().write(u32::from(counter + 1));
        net.hosts[0].doorbell();
        net.transmit(0);
        assert_eq!(net.packets.len(), 16.min(usize::from(counter) + 1));
    }
    // Each answer makes room for one more.
    let packet = net.packets.pop_front().unwrap();
    net.answer(&packet, Status::Ok);
    net.transmit(0);
    assert_eq!(net.packets.len(), 16);
}

#[test]
fn malformed_receive_chains_fail_the_queue_pair() {
    // The bytes with the first (0x40) and last (0x80) bits of the receive's two descriptors.
    for (first, second) in [
        (0x80, 0x80),
        (0, 0x80),
        (0x40, 0),
        (0x40, 0x40),
        (0x40, 0xc0),
    ] {
        let (mut net, to) = Net::pair_with_address(Setup::default());
        net.hosts[1].post_recv(1, &[(0, 8), (8, 8)]);
        let ring = net.hosts[1].client.recv.ring().clone();
        corrupt(ring.memory(), 15, first);
        corrupt(ring.memory(), 31, second);
        net.hosts[0].post_send(1, to, &[(0, 1)]);
        net.settle();
        let outcome = net.hosts[0].outcome();
        let context = format!("{first:#x} {second:#x}");
        assert_eq!(outcome, Some((1, Status::RemoteAbort)), "{context}");
        let attributes = net.hosts[1].device.query_qp(net.hosts[1].client.qpn);
        assert_eq!(attributes.unwrap().state, QpState::Error, "{context}");
    }
}

#[test]
fn completion_queue_overrun_loses_only_completions() {
    let (mut net, to) = Net::pair_with_address(Setup::with(|setup| setup.cq_entries = 4));
    for wr_id in 0..12 {
        net.hosts[1].post_recv(wr_id, &[(0, 8)]);
        net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
    }
    net.settle();
    let mut seen = Vec::new();
    while let Some((wr_id, status)) = net.hosts[0].outcome() {
        assert_eq!(status, Status::Ok);
        seen.push(wr_id);
    }
    // The entries that fit. The overrun is reported once.
    assert_eq!(seen, [0, 1, 2, 3]);
    for host in &mut net.hosts {
        let events: Vec<_> = host.device.take_events().collect();
        assert_eq!(events, [DeviceEvent::CqError(host.cq)]);
        assert_eq!(host.device.statistics().diagnostics.cq_overruns, 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any bytes in the rings and doorbells: no panic, and every sent packet is within the device's
    /// limits.
    #[test]
    fn random_rings_do_no_harm(
        wide in any::<bool>(),
        long_request_ids in any::<bool>(),
        words in prop::collection::vec((any::<u16>(), any::<u64>(), 0u8..4), 1..200),
        doorbells in prop::collection::vec((any::<bool>(), any::<u8>()), 1..20),
    ) {
        let wqe_size = if wide { WqeSize::Bytes128 } else { WqeSize::Bytes64 };
        let profile = Profile { long_request_ids, ..Profile::default() };
        let mut net = Net::pair(Setup { wqe_size, profile, ..Setup::default() });
        for (place, mut word, likely) in words {
            let send = net.hosts[0].client.send.ring().clone();
            let receive = net.hosts[1].client.recv.ring().clone();
            let offset = usize::from(place) * 8;
            let in_send = offset % send.memory().len();
            // Make it likely that requests get further than the first check.
            match (likely, in_send % wqe_size.bytes()) {
                (1.., 0) => word = word & 0x0003_0065_0033_ffff | 0x1c80_0000 | 0x65 << 32,
                (1.., 8) => word &= 0xffff,
                (1.., 16) => word = u64::from(QKEY.0),
                (1.., _) => {
                    word = word & 0xff | u64::from(net.hosts[0].keys.lkey.0) << 32;
                    if likely > 2 {
                        word = MEMORY + (word & 0xff);
                    }
                }
                _ => {}
            }
            store(send.memory(), in_send, word);
            store(receive.memory(), offset % receive.memory().len(), word);
        }
        for (which, value) in doorbells {
            if which {
                net.hosts[0].client.send.ring().doorbell().write(u32::from(value));
                net.hosts[0].doorbell();
            } else {
                net.hosts[1].client.recv.ring().doorbell().write(u32::from(value));
            }
            net.settle();
            net.advance();
            net.settle();
            while net.hosts[0].poll().is_some() {}
            while net.hosts[1].poll().is_some() {}
        }
    }
}
