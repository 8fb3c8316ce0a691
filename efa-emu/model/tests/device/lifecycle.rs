//! Creation and destruction of objects: limits, use counts, flushes, and stale completions.

use efa_core::address::{Ahn, Gid, Qpn};
use efa_core::nic::{Access, Status};
use efa_device_model::device::queue::{RequestIdSize, WqeSize};
use efa_device_model::device::{
    Device, Error, Lkey, MemoryRegion, PdId, QpChange, QpConfig, QpState, Service,
};
use efa_device_model::link::Token;
use efa_device_model::profile::Profile;

use crate::harness::{Host, MEMORY, MEMORY_SIZE, Net, Rdma, RdmaOperation, Setup, gid};

#[test]
fn late_answers_miss_successors_with_the_same_number() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    for wr_id in 0..4 {
        net.hosts[1].post_recv(wr_id, &[(0, 8)]);
        net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
    }
    net.transmit(0);
    let late: Vec<_> = net.packets.drain(..).collect();
    assert_eq!(late.len(), 4);
    net.hosts[0].recreate_qp();
    // The successor's requests use the same slots in the device.
    for wr_id in 10..14 {
        net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
    }
    net.transmit(0);
    let current: Vec<_> = net.packets.drain(..).collect();
    for mut packet in late {
        let status = net.deliver(&mut packet);
        assert_eq!(status, Status::Ok);
        net.answer(&packet, status);
    }
    assert_eq!(net.hosts[0].poll(), None);
    for packet in &current {
        net.answer(packet, Status::RemoteAbort);
    }
    for wr_id in 10..14 {
        assert_eq!(net.hosts[0].outcome(), Some((wr_id, Status::RemoteAbort)));
    }
}

#[test]
fn leftover_completions_are_not_the_successors() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    for wr_id in 0..4 {
        net.hosts[1].post_recv(wr_id, &[(0, 8)]);
        net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
    }
    net.settle();
    for host in 0..2 {
        net.hosts[host].recreate_qp();
    }
    for wr_id in 10..14 {
        net.hosts[1].post_recv(wr_id, &[(0, 8)]);
        net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
    }
    assert_eq!(net.hosts[0].poll(), None);
    assert_eq!(net.hosts[0].completions.stale(), 4);
    net.settle();
    for wr_id in 10..14 {
        assert_eq!(net.hosts[0].outcome(), Some((wr_id, Status::Ok)));
        assert_eq!(net.hosts[1].outcome(), Some((wr_id, Status::Ok)));
    }
}

#[test]
fn duplicate_answers_and_forged_tokens_are_ignored() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    net.hosts[0].post_send(1, to, &[(0, 8)]);
    net.transmit(0);
    let packet = net.packets.pop_front().unwrap();
    net.answer(&packet, Status::Ok);
    net.answer(&packet, Status::RemoteAbort);
    for token in [u64::MAX, 1 << 32, 77] {
        net.hosts[0]
            .device
            .complete(net.now, Token(token), Status::Ok);
        assert_eq!(net.hosts[0].device.local_memory(Token(token)), None);
    }
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::Ok)));
    assert_eq!(net.hosts[0].poll(), None);
}

#[test]
fn an_answer_to_an_earlier_attempt_is_ignored() {
    let (mut net, to) = Net::pair_with_address(Setup::with(|setup| setup.rnr_retry = Some(7)));
    net.hosts[0].post_send(1, to, &[(0, 8)]);
    net.transmit(0);
    let first = net.packets.pop_front().unwrap();
    net.answer(&first, Status::RemoteRnr);
    net.answer(&first, Status::Ok);
    assert!(net.advance());
    net.transmit(0);
    net.answer(&first, Status::Ok);
    assert_eq!(net.hosts[0].poll(), None);
    let second = net.packets.pop_front().unwrap();
    assert_eq!((first.header.retries, second.header.retries), (0, 1));
    assert_eq!(first.header.sequence, second.header.sequence);
    assert_ne!(first.token, second.token);
    net.answer(&second, Status::Ok);
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::Ok)));
}

#[test]
fn the_error_state_flushes_in_posting_order() {
    let mut net = Net::new(&[Setup::default(), Setup::default(), Setup::default()]);
    let one = net.address(0, 1);
    let two = net.address(0, 2);
    for wr_id in 20..23 {
        net.hosts[0].post_recv(wr_id, &[(0, 8), (8, 8)]);
    }
    // With the link, with the link for a retry, waiting for a busy link, and unread.
    net.hosts[0].post_send(0, one, &[(0, 8)]);
    net.transmit(0);
    let packet = net.packets.pop_front().unwrap();
    net.busy.insert(gid(2));
    net.hosts[0].post_send(1, two, &[(0, 8)]);
    net.hosts[0].post_send(2, one, &[(0, 8)]);
    net.transmit(0);
    net.hosts[0].post_send(3, one, &[(0, 8)]);
    net.hosts[0].set_state(QpState::Error);
    net.answer(&packet, Status::Ok);
    for wr_id in [0, 1, 2, 3, 20, 21, 22] {
        assert_eq!(net.hosts[0].outcome(), Some((wr_id, Status::Flushed)));
    }
    assert_eq!(net.hosts[0].poll(), None);
    net.busy.clear();
    net.packets.clear();
    assert_eq!(net.transmit(0), 0);
}

#[test]
fn posts_to_a_failed_queue_pair_are_flushed() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    net.hosts[0].post_send(1, to, &[(0, 8)]);
    let ring = net.hosts[0].client.send.ring().clone();
    crate::hostile::corrupt(ring.memory(), 3, 0);
    net.settle();
    assert_eq!(
        net.hosts[0].outcome(),
        Some((1, Status::LocalQpInternalError))
    );
    // The user-space half has not been notified yet.
    net.hosts[0].post_send(2, to, &[(0, 8)]);
    net.hosts[0].post_recv(3, &[(0, 8)]);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((2, Status::Flushed)));
    assert_eq!(net.hosts[0].outcome(), Some((3, Status::Flushed)));
}

#[test]
fn reset_starts_over_without_completions() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    net.hosts[0].post_recv(1, &[(0, 8)]);
    net.hosts[0].post_send(2, to, &[(0, 8)]);
    net.transmit(0);
    net.hosts[0].set_state(QpState::Reset);
    net.settle();
    assert_eq!(net.hosts[0].poll(), None);
    net.hosts[0].ready();
    net.hosts[1].post_recv(3, &[(0, 8)]);
    net.hosts[0].post_send(4, to, &[(0, 8)]);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((4, Status::Ok)));
    assert_eq!(net.hosts[0].poll(), None);
}

#[test]
fn a_drained_send_queue_defers_until_restarted() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    net.hosts[0].set_state(QpState::SendQueueDrained);
    net.hosts[1].post_recv(1, &[(0, 8)]);
    net.hosts[0].post_send(1, to, &[(0, 8)]);
    net.settle();
    assert_eq!(net.hosts[0].poll(), None);
    net.hosts[0].set_state(QpState::ReadyToSend);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::Ok)));
}

#[test]
fn destroying_a_handle_fails_its_deferred_requests() {
    let mut net = Net::new(&[Setup::default(), Setup::default()]);
    let to = net.address(0, 1);
    net.busy.insert(gid(1));
    for wr_id in 0..3 {
        net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
    }
    net.transmit(0);
    let host = &mut net.hosts[0];
    host.device.destroy_ah(host.pd, Ahn(to.ahn)).unwrap();
    for wr_id in 0..3 {
        assert_eq!(host.outcome(), Some((wr_id, Status::LocalInvalidAh)));
    }
    net.busy.clear();
    assert_eq!(net.transmit(0), 0);
    // The queue pair has room for a full queue again.
    let to = net.address(0, 1);
    for wr_id in 0..16 {
        net.hosts[1].post_recv(wr_id, &[(0, 8)]);
        net.hosts[0].post_send(wr_id, to, &[(0, 8)]);
    }
    assert_eq!(net.transmit(0), 16);
}

#[test]
fn read_data_outlives_neither_memory_nor_queue_pair() {
    for deregistered in [true, false] {
        let (mut net, to) = Net::pair_with_address(Setup::default());
        let rdma = Rdma {
            kind: RdmaOperation::Read,
            local: (0, 8),
            remote: MEMORY,
            rkey: net.hosts[1].keys.rkey.0,
        };
        net.hosts[1].bytes(0, 8).fill(1);
        net.hosts[0].post_rdma(1, to, rdma);
        net.transmit(0);
        let mut packet = net.packets.pop_front().unwrap();
        let status = net.deliver(&mut packet);
        let mut ended = None;
        if deregistered {
            let lkey = net.hosts[0].keys.lkey;
            net.hosts[0].device.deregister_memory(lkey).unwrap();
            ended = Some((1, Status::LocalInvalidLkey));
        } else {
            net.hosts[0].recreate_qp();
        }
        net.answer(&packet, status);
        assert_eq!(net.hosts[0].outcome(), ended);
        assert_eq!(net.hosts[0].bytes(0, 8), [0; 8]);
    }
}

#[test]
fn deferred_requests_do_not_outlive_their_memory() {
    for (what, kind) in [
        ("send", None),
        ("read", Some(RdmaOperation::Read)),
        ("write", Some(RdmaOperation::Write(Some(9)))),
    ] {
        for is_retried in [false, true] {
            let (mut net, to) =
                Net::pair_with_address(Setup::with(|setup| setup.rnr_retry = Some(3)));
            let rkey = net.hosts[1].keys.rkey.0;
            net.busy.extend((!is_retried).then_some(gid(1)));
            match kind {
                None => net.hosts[0].post_send(1, to, &[(0, 8)]),
                Some(kind) => {
                    let rdma = Rdma {
                        kind,
                        local: (0, 8),
                        remote: MEMORY,
                        rkey,
                    };
                    net.hosts[0].post_rdma(1, to, rdma);
                }
            }
            net.transmit(0);
            if is_retried {
                let packet = net.packets.pop_front().unwrap();
                net.answer(&packet, Status::RemoteRnr);
            }
            // A request without data, after the failing one.
            net.hosts[0].post_send(2, to, &[(0, 0)]);
            let Host {
                device, pd, keys, ..
            } = &mut net.hosts[0];
            device.deregister_memory(keys.lkey).unwrap();
            // The memory is registered again, for another purpose.
            let again = MemoryRegion {
                address: MEMORY,
                iova: MEMORY,
                ..region(MEMORY_SIZE, Access::all())
            };
            device.register_memory(*pd, again).unwrap();
            net.busy.clear();
            net.transmit(0);
            net.advance();
            net.transmit(0);
            let lengths: Vec<u32> = net.packets.iter().map(|one| one.header.length).collect();
            assert_eq!(lengths, [0], "{what}, retried: {is_retried}");
            assert_eq!(net.hosts[0].outcome(), Some((1, Status::LocalInvalidLkey)));
            assert_eq!(net.hosts[0].outcome(), None);
            let packet = net.packets.pop_front().unwrap();
            net.answer(&packet, Status::Ok);
            assert_eq!(net.hosts[0].outcome(), Some((2, Status::Ok)));
            assert!(!net.hosts[0].device.has_unsent());
        }
    }
}

#[test]
fn requests_with_the_link_can_be_listed() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    let qpn = net.hosts[0].client.qpn;
    net.hosts[0].post_send(1, to, &[(0, 8)]);
    assert_eq!(net.hosts[0].device.outstanding(qpn).count(), 0);
    net.transmit(0);
    let listed: Vec<_> = net.hosts[0].device.outstanding(qpn).collect();
    assert_eq!(listed, [net.packets[0].token]);
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().errno()
}

fn region(length: u64, access: Access) -> MemoryRegion {
    MemoryRegion::new(0x1000, length, access)
}

#[test]
fn limits_are_enomem() {
    let profile = Profile {
        max_pd: 1,
        max_cq: 1,
        max_qp: 1,
        max_mr: 1,
        max_ah: 1,
        ..Profile::default()
    };
    let mut device = Device::new(profile, gid(0));
    let pd = device.alloc_pd().unwrap();
    assert_eq!(errno(device.alloc_pd()), libc::ENOMEM);
    let (cq, _) = device.create_cq(1, RequestIdSize::Bits16).unwrap();
    assert_eq!(
        errno(device.create_cq(1, RequestIdSize::Bits16).map(|_| ())),
        libc::ENOMEM
    );
    let memory = region(1, Access::empty());
    device.register_memory(pd, memory).unwrap();
    assert_eq!(errno(device.register_memory(pd, memory)), libc::ENOMEM);
    device.create_ah(pd, gid(1)).unwrap();
    device.create_ah(pd, gid(1)).unwrap();
    assert_eq!(errno(device.create_ah(pd, gid(2))), libc::ENOMEM);
    let config = QpConfig {
        service: Service::Srd,
        pd,
        send_cq: cq,
        recv_cq: cq,
        send_entries: 0,
        wqe_size: WqeSize::Bytes64,
        recv_descriptors: 0,
        unsolicited_write_recv: false,
        request_ids: RequestIdSize::Bits16,
    };
    device.create_qp(Qpn(1), config).unwrap();
    assert_eq!(
        errno(device.create_qp(Qpn(1), config).map(|_| ())),
        libc::EBUSY
    );
    assert_eq!(
        errno(device.create_qp(Qpn(2), config).map(|_| ())),
        libc::ENOMEM
    );
}

#[test]
fn used_objects_are_ebusy_and_missing_ones_enoent() {
    let mut net = Net::pair(Setup::default());
    let host = &mut net.hosts[0];
    let (pd, cq, qpn, lkey) = (host.pd, host.cq, host.client.qpn, host.keys.lkey);
    let device = &mut host.device;
    assert_eq!(errno(device.destroy_cq(cq)), libc::EBUSY);
    assert_eq!(errno(device.dealloc_pd(pd)), libc::EBUSY);
    device.destroy_qp(qpn).unwrap();
    device.destroy_cq(cq).unwrap();
    assert_eq!(errno(device.dealloc_pd(pd)), libc::EBUSY);
    device.deregister_memory(lkey).unwrap();
    assert_eq!(errno(device.dealloc_pd(pd)), libc::EBUSY);
    let ahn = device.create_ah(pd, gid(1)).unwrap();
    device.destroy_ah(pd, ahn).unwrap();
    device.destroy_ah(pd, ahn).unwrap();
    device.dealloc_pd(pd).unwrap();

    assert_eq!(errno(device.destroy_qp(qpn)), libc::ENOENT);
    assert_eq!(errno(device.query_qp(qpn)), libc::ENOENT);
    assert_eq!(
        errno(device.modify_qp(qpn, &QpChange::default())),
        libc::ENOENT
    );
    assert_eq!(errno(device.read_send_doorbell(qpn)), libc::ENOENT);
    assert_eq!(errno(device.watch_qp(qpn, true)), libc::ENOENT);
    assert_eq!(errno(device.destroy_cq(cq)), libc::ENOENT);
    assert_eq!(errno(device.arm_cq(cq)), libc::ENOENT);
    assert_eq!(errno(device.watch_cq(cq, true)), libc::ENOENT);
    assert_eq!(errno(device.deregister_memory(lkey)), libc::ENOENT);
    assert_eq!(
        errno(device.deregister_memory(Lkey(u32::MAX))),
        libc::ENOENT
    );
    assert_eq!(errno(device.destroy_ah(pd, ahn)), libc::ENOENT);
    assert_eq!(errno(device.dealloc_pd(pd)), libc::ENOENT);
    assert_eq!(errno(device.create_ah(pd, gid(1))), libc::ENOENT);
    let memory = region(1, Access::empty());
    assert_eq!(
        errno(device.register_memory(PdId(99), memory)),
        libc::ENOENT
    );
}

#[test]
fn arguments_out_of_range_are_refused() {
    let mut device = Device::new(Profile::default(), gid(0));
    let pd = device.alloc_pd().unwrap();
    let (cq, ring) = device.create_cq(5, RequestIdSize::Bits16).unwrap();
    assert_eq!(ring.entries(), 8);
    for entries in [0, 32769] {
        assert_eq!(
            errno(device.create_cq(entries, RequestIdSize::Bits16).map(|_| ())),
            libc::EINVAL
        );
    }
    assert_eq!(errno(device.create_ah(pd, Gid::default())), libc::EINVAL);

    let good = QpConfig {
        service: Service::Srd,
        pd,
        send_cq: cq,
        recv_cq: cq,
        send_entries: 4096,
        wqe_size: WqeSize::Bytes64,
        recv_descriptors: 32768,
        unsolicited_write_recv: true,
        request_ids: RequestIdSize::Bits16,
    };
    let mut wrong = [good; 4];
    wrong[0].send_entries = 8192;
    wrong[1].send_entries = 3;
    wrong[2].recv_descriptors = 65536;
    wrong[3].recv_descriptors = 5;
    for config in wrong {
        assert_eq!(
            errno(device.create_qp(Qpn(1), config).map(|_| ())),
            libc::EINVAL
        );
    }
    // The refused ones have left nothing behind.
    device.create_qp(Qpn(1), good).unwrap();
    device.destroy_qp(Qpn(1)).unwrap();
    device.destroy_cq(cq).unwrap();
    device.dealloc_pd(pd).unwrap();
}

/// A queue pair with 64-bit ids needs a device and a completion queue that support them.
#[test]
fn long_request_ids_need_both_queues() {
    use RequestIdSize::{Bits16, Bits64};
    for profile in Profile::all() {
        let mut device = Device::new(profile.clone(), gid(0));
        let pd = device.alloc_pd().unwrap();
        let queues = [Bits16, Bits64].map(|ids| device.create_cq(4, ids).map(|(cq, _)| cq));
        if profile.name != "efa4" {
            assert_eq!(errno(queues[1]), libc::EOPNOTSUPP, "{}", profile.name);
        }
        for (of_queue, ids, refused) in [
            (0, Bits16, None),
            (0, Bits64, Some(libc::EINVAL)),
            (1, Bits16, None),
            (1, Bits64, None),
        ] {
            let Ok(send_cq) = queues[of_queue] else {
                continue;
            };
            let config = QpConfig {
                service: Service::Srd,
                pd,
                send_cq,
                // Receives have 16-bit ids, independent of the queue.
                recv_cq: queues[0].unwrap(),
                send_entries: 1,
                wqe_size: WqeSize::Bytes64,
                recv_descriptors: 1,
                unsolicited_write_recv: false,
                request_ids: ids,
            };
            let refused = match profile.name {
                "efa4" => refused,
                _ => refused.map(|_| libc::EOPNOTSUPP),
            };
            let made = device.create_qp(Qpn(1), config).map(|_| ());
            assert_eq!(made.as_ref().err().map(|error| error.errno()), refused);
            if made.is_ok() {
                assert_eq!(device.query_qp(Qpn(1)).unwrap().config, config);
                device.destroy_qp(Qpn(1)).unwrap();
            }
        }
    }
}

#[test]
fn regions_are_checked_like_the_kernel_does() {
    let mut device = Device::new(Profile::default(), gid(0));
    let pd = device.alloc_pd().unwrap();
    let good = region(0x2000, Access::all());
    device.register_memory(pd, good).unwrap();
    let wrong = [
        region(0, Access::empty()),
        region(Profile::default().max_mr_size + 1, Access::empty()),
        region(1, Access::REMOTE_WRITE),
        MemoryRegion {
            address: u64::MAX - 10,
            iova: u64::MAX - 10,
            ..good
        },
        MemoryRegion {
            iova: u64::MAX - 0xffe,
            ..good
        },
        MemoryRegion {
            iova: 0x1001,
            ..good
        },
    ];
    for memory in wrong {
        let result = device.register_memory(pd, memory);
        assert_eq!(errno(result), libc::EINVAL, "{memory:?}");
    }
    let old = Profile::by_name("efa0").unwrap().clone();
    let mut device = Device::new(old, gid(0));
    let pd = device.alloc_pd().unwrap();
    for access in [
        Access::REMOTE_READ,
        Access::REMOTE_WRITE | Access::LOCAL_WRITE,
    ] {
        let result = device.register_memory(pd, region(1, access));
        assert_eq!(errno(result), libc::EOPNOTSUPP);
    }
}

#[test]
fn a_device_may_move_to_another_thread() {
    fn check<T: Send>() {}
    check::<Device>();
}
