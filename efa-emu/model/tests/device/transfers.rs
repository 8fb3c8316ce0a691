//! Transfer of data to the right memory, and the reports on both sides.

use efa_core::address::{Ahn, Qpn};
use efa_core::nic::{DeviceCaps, Status};
use efa_device_model::device::Service;
use efa_device_model::device::queue::WqeSize;
use efa_device_model::profile::Profile;
use efa_device_model::provider::{SendData, SendOpcode, WcFlags, WcOpcode};

use crate::harness::{MEMORY, Net, Rdma, RdmaOperation, Setup, gid};

#[test]
fn a_send_is_scattered_and_reports_its_sender() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    net.hosts[0].bytes(0, 3).copy_from_slice(b"hel");
    net.hosts[0].bytes(50, 2).copy_from_slice(b"lo");
    net.hosts[1].post_recv(77, &[(0, 1), (100, 2), (200, 50)]);
    net.hosts[0].post_send(42, to, &[(0, 3), (50, 2)]);
    net.settle();

    let sent = net.hosts[0].poll().unwrap();
    assert_eq!((sent.wr_id, sent.status()), (42, Some(Status::Ok)));
    assert_eq!((sent.opcode(), sent.qp_num()), (WcOpcode::Send, Qpn(100)));
    assert_eq!(net.hosts[0].poll(), None);
    let received = net.hosts[1].poll().unwrap();
    assert_eq!((received.wr_id, received.status()), (77, Some(Status::Ok)));
    assert_eq!(
        (received.opcode(), received.byte_len()),
        (WcOpcode::Recv, 5)
    );
    assert_eq!((received.qp_num(), received.src_qp()), (Qpn(101), Qpn(100)));
    assert_eq!((received.ahn(), received.sgid()), (Some(Ahn(0)), None));
    assert_eq!(
        (received.immediate(), received.flags()),
        (None, WcFlags::empty())
    );
    let host = &mut net.hosts[1];
    assert_eq!(host.bytes(0, 2), b"h\0");
    assert_eq!(host.bytes(100, 3), b"el\0");
    assert_eq!(host.bytes(200, 3), b"lo\0");
}

/// The entries of a turn are sent at once. The remaining ones, and those announced meanwhile, are
/// sent in order in the next turn.
#[test]
fn a_doorbell_that_is_served_gets_one_turn() {
    const POSTED: u64 = 20;
    const TURN: usize = 16;
    let (mut net, to) = Net::pair_with_address(Setup::with(|setup| setup.send_entries = 32));
    let buffers = [net.hosts[0].buffer(0, 8)];
    let post = |net: &mut Net, wr_id| {
        let (client, data) = (&mut net.hosts[0].client, SendData::Buffers(&buffers));
        client.post(wr_id, to, SendOpcode::Send, data).unwrap();
    };
    (0..POSTED).for_each(|wr_id| post(&mut net, wr_id));
    net.serve_doorbell(0);
    assert_eq!(net.packets.len(), TURN);
    post(&mut net, POSTED);
    net.serve_doorbell(0);
    assert_eq!(net.packets.len(), TURN, "its turn comes");
    assert!(net.hosts[0].device.has_unsent());
    net.transmit(0);
    let sent = net.packets.iter().map(|packet| packet.header.sequence);
    assert!(sent.eq(0..=POSTED as u32));
    assert!(!net.hosts[0].device.has_unsent());
    post(&mut net, POSTED + 1);
    net.serve_doorbell(0);
    assert_eq!(net.packets.len() as u64, POSTED + 2);
}

#[test]
fn capable_devices_name_unknown_senders_by_gid() {
    let with = Setup::default();
    let mut without = Setup::default();
    without.profile.caps.remove(DeviceCaps::CQ_WITH_SGID);
    for (setup, reported) in [(with, Some(gid(0))), (without, None)] {
        let mut net = Net::new(&[setup.clone(), setup]);
        let to = net.address(0, 1);
        net.hosts[1].post_recv(1, &[(0, 100)]);
        net.hosts[0].post_send(1, to, &[(0, 10)]);
        net.settle();
        let received = net.hosts[1].poll().unwrap();
        assert_eq!((received.ahn(), received.sgid()), (None, reported));
        // The sender of the next message is known.
        let ahn = net.know(1, 0);
        net.hosts[1].post_recv(2, &[(0, 100)]);
        net.hosts[0].post_send(2, to, &[(0, 10)]);
        net.settle();
        let received = net.hosts[1].poll().unwrap();
        assert_eq!((received.ahn(), received.sgid()), (Some(ahn), None));
    }
}

#[test]
fn handles_of_other_domains_leave_senders_unknown() {
    let mut net = Net::new(&[Setup::default(), Setup::default()]);
    let to = net.address(0, 1);
    let other = net.hosts[1].device.alloc_pd().unwrap();
    net.hosts[1].device.create_ah(other, gid(0)).unwrap();
    net.hosts[1].post_recv(1, &[(0, 100)]);
    net.hosts[0].post_send(1, to, &[(0, 10)]);
    net.settle();
    assert_eq!(net.hosts[1].poll().unwrap().ahn(), None);
}

#[test]
fn immediates_and_inline_data_arrive() {
    for (wqe_size, length) in [(WqeSize::Bytes64, 32), (WqeSize::Bytes128, 80)] {
        let (mut net, to) = Net::pair_with_address(Setup::with(|setup| setup.wqe_size = wqe_size));
        let bytes: Vec<u8> = (0..length).collect();
        net.hosts[1].post_recv(1, &[(0, 100)]);
        let parts: Vec<&[u8]> = bytes.chunks(7).collect();
        let opcode = SendOpcode::SendWithImmediate(0xdead_beef);
        net.hosts[0].post(9, to, opcode, SendData::Inline(&parts));
        net.settle();
        assert_eq!(net.hosts[0].outcome(), Some((9, Status::Ok)));
        let received = net.hosts[1].poll().unwrap();
        assert_eq!(received.immediate(), Some(0xdead_beef));
        assert_eq!(received.flags(), WcFlags::WITH_IMMEDIATE);
        assert_eq!(received.byte_len(), u32::from(length));
        assert_eq!(net.hosts[1].bytes(0, bytes.len()), bytes);
    }
}

#[test]
fn empty_messages_complete_with_length_zero() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    for wr_id in 0..3 {
        net.hosts[1].post_recv(wr_id, &[]);
    }
    net.hosts[0].post_send(0, to, &[(0, 0)]);
    net.hosts[0].post_send(1, to, &[]);
    net.hosts[0].post(2, to, SendOpcode::Send, SendData::Inline(&[]));
    net.settle();
    for wr_id in 0..3 {
        assert_eq!(net.hosts[0].outcome(), Some((wr_id, Status::Ok)));
        let received = net.hosts[1].poll().unwrap();
        assert_eq!((received.wr_id, received.byte_len()), (wr_id, 0));
    }
}

#[test]
fn the_largest_packet_passes() {
    let mtu = Profile::default().mtu;
    let (mut net, to) = Net::pair_with_address(Setup::default());
    for (position, byte) in net.hosts[0].memory[..mtu as usize].iter_mut().enumerate() {
        *byte = position as u8;
    }
    net.hosts[1].post_recv(1, &[(1, mtu)]);
    net.hosts[0].post_send(1, to, &[(0, mtu)]);
    net.settle();
    assert_eq!(net.hosts[1].poll().unwrap().byte_len(), mtu);
    let sent = net.hosts[0].memory[..mtu as usize].to_vec();
    assert_eq!(net.hosts[1].bytes(1, mtu as usize), sent);
}

#[test]
fn datagrams_follow_a_global_route_header() {
    let (mut net, to) = Net::pair_with_address(Setup::with(|setup| setup.service = Service::Ud));
    net.hosts[0].bytes(0, 4).copy_from_slice(b"data");
    // The header ends inside the second buffer.
    net.hosts[1].post_recv(5, &[(0, 30), (1000, 12), (2000, 100)]);
    net.hosts[0].post_send(6, to, &[(0, 4)]);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((6, Status::Ok)));
    let received = net.hosts[1].poll().unwrap();
    assert_eq!((received.wr_id, received.byte_len()), (5, 44));
    let host = &mut net.hosts[1];
    let mut header = host.bytes(0, 30).to_vec();
    header.extend_from_slice(host.bytes(1000, 10));
    assert_eq!(header[..8], [0x60, 0, 0, 0, 0, 4, 0x1b, 255]);
    assert_eq!(header[8..24], gid(0).0);
    assert_eq!(header[24..], gid(1).0);
    assert_eq!(host.bytes(1010, 2), b"da");
    assert_eq!(host.bytes(2000, 3), b"ta\0");
}

#[test]
fn unreceived_datagrams_are_lost_without_an_error() {
    let (mut net, to) = Net::pair_with_address(Setup::with(|setup| setup.service = Service::Ud));
    net.hosts[0].post_send(6, to, &[(0, 4)]);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((6, Status::Ok)));
    assert_eq!(net.hosts[1].poll(), None);
    assert_eq!(net.hosts[1].device.counters().rx_drops, 1);
}

fn rdma(net: &Net, kind: RdmaOperation, local: (u64, u32), remote: u64) -> Rdma {
    Rdma {
        kind,
        local,
        remote: MEMORY + remote,
        rkey: net.hosts[1].keys.rkey.0,
    }
}

#[test]
fn rdma_reads_need_no_action_of_the_peer() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    net.hosts[1].bytes(1000, 6).copy_from_slice(b"remote");
    let request = rdma(&net, RdmaOperation::Read, (10, 6), 1000);
    net.hosts[0].post_rdma(1, to, request);
    net.settle();
    let completion = net.hosts[0].poll().unwrap();
    assert_eq!(completion.opcode(), WcOpcode::RdmaRead);
    assert_eq!(
        (completion.wr_id, completion.status()),
        (1, Some(Status::Ok))
    );
    assert_eq!(net.hosts[0].bytes(9, 8), b"\0remote\0");
    assert_eq!(net.hosts[1].poll(), None);
    assert_eq!(net.hosts[0].device.counters().rdma_read_bytes, 6);
    assert_eq!(net.hosts[1].device.counters().rdma_read_resp_bytes, 6);
}

#[test]
fn only_immediates_make_rdma_writes_visible() {
    let (mut net, to) = Net::pair_with_address(Setup::default());
    net.hosts[0].bytes(0, 5).copy_from_slice(b"write");
    let silent = rdma(&net, RdmaOperation::Write(None), (0, 5), 1000);
    net.hosts[0].post_rdma(1, to, silent);
    net.settle();
    assert_eq!(net.hosts[1].bytes(999, 7), b"\0write\0");
    assert_eq!(net.hosts[1].poll(), None);

    net.hosts[1].post_recv(7, &[(0, 1)]);
    let loud = rdma(&net, RdmaOperation::Write(Some(99)), (0, 70_000), 2000);
    net.hosts[0].post_rdma(2, to, loud);
    net.settle();
    assert_eq!(net.hosts[0].outcome(), Some((1, Status::Ok)));
    assert_eq!(net.hosts[0].poll().unwrap().opcode(), WcOpcode::RdmaWrite);
    let received = net.hosts[1].poll().unwrap();
    assert_eq!(received.opcode(), WcOpcode::RecvRdmaWithImmediate);
    assert_eq!((received.wr_id, received.immediate()), (7, Some(99)));
    assert_eq!(
        (received.byte_len(), received.is_unsolicited()),
        (70_000, false)
    );
    assert_eq!(
        (received.src_qp(), received.ahn()),
        (Qpn(100), Some(Ahn(0)))
    );
}

#[test]
fn an_unsolicited_write_consumes_no_receive() {
    let (mut net, to) =
        Net::pair_with_address(Setup::with(|setup| setup.unsolicited_write_recv = true));
    net.hosts[1].post_recv(7, &[(0, 100)]);
    let request = rdma(&net, RdmaOperation::Write(Some(1)), (0, 5), 1000);
    net.hosts[0].post_rdma(1, to, request);
    net.settle();
    let received = net.hosts[1].poll().unwrap();
    assert_eq!((received.wr_id, received.is_unsolicited()), (0, true));
    // The receive was not consumed.
    net.hosts[0].post_send(2, to, &[(0, 1)]);
    net.settle();
    assert_eq!(net.hosts[1].outcome(), Some((7, Status::Ok)));
}

#[test]
fn a_device_can_send_to_itself() {
    let mut net = Net::new(&[Setup::default()]);
    let to = net.address(0, 0);
    net.hosts[0].bytes(0, 4).copy_from_slice(b"self");
    net.hosts[0].post_recv(1, &[(1000, 10)]);
    net.hosts[0].post_send(2, to, &[(0, 4)]);
    net.settle();
    let mut outcomes = [net.hosts[0].outcome(), net.hosts[0].outcome()];
    outcomes.sort_by_key(|outcome| outcome.map(|(wr_id, _)| wr_id));
    assert_eq!(outcomes, [Some((1, Status::Ok)), Some((2, Status::Ok))]);
    assert_eq!(net.hosts[0].bytes(1000, 4), b"self");
}

#[test]
fn rings_wrap_many_times() {
    let (mut net, to) = Net::pair_with_address(Setup {
        send_entries: 4,
        recv_descriptors: 8,
        cq_entries: 8,
        ..Setup::default()
    });
    // 16-bit counters wrap as well.
    for round in 0..66_000u64 {
        let length = (round % 3) as usize + 1;
        net.hosts[0]
            .bytes(0, 8)
            .copy_from_slice(&round.to_le_bytes());
        let parts = [(100, 8), (200, 0), (300, 0)];
        net.hosts[1].post_recv(round, &parts[..length]);
        net.hosts[0].post_send(round, to, &[(0, 8)]);
        net.settle();
        assert_eq!(net.hosts[0].outcome(), Some((round, Status::Ok)));
        assert_eq!(net.hosts[1].outcome(), Some((round, Status::Ok)));
        assert_eq!(net.hosts[1].bytes(100, 8), round.to_le_bytes());
    }
}

#[test]
fn a_busy_destination_does_not_hold_up_another() {
    let mut net = Net::new(&[Setup::default(), Setup::default(), Setup::default()]);
    let one = net.address(0, 1);
    let two = net.address(0, 2);
    net.busy.insert(gid(1));
    for wr_id in 0..3 {
        net.hosts[1].post_recv(wr_id, &[(wr_id * 8, 8)]);
        net.hosts[2].post_recv(wr_id, &[(wr_id * 8, 8)]);
        net.hosts[0].bytes(wr_id * 8, 8).fill(wr_id as u8 + 1);
        net.hosts[0].post_send(10 + wr_id, one, &[(wr_id * 8, 8)]);
        net.hosts[0].post_send(20 + wr_id, two, &[(wr_id * 8, 8)]);
    }
    net.settle();
    for wr_id in 20..23 {
        assert_eq!(net.hosts[0].outcome(), Some((wr_id, Status::Ok)));
    }
    assert_eq!(net.hosts[0].poll(), None);
    assert!(net.hosts[0].device.has_unsent());
    net.busy.clear();
    net.settle();
    for wr_id in 10..13 {
        assert_eq!(net.hosts[0].outcome(), Some((wr_id, Status::Ok)));
    }
    // Offered in the order of posting.
    for wr_id in 0..3 {
        assert_eq!(net.hosts[1].outcome(), Some((wr_id, Status::Ok)));
        assert_eq!(net.hosts[1].bytes(wr_id * 8, 1), [wr_id as u8 + 1]);
    }
    assert!(!net.hosts[0].device.has_unsent());
    assert_eq!(net.hosts[0].device.statistics().diagnostics.full_queues, 3);
}

#[test]
fn requests_keep_their_order_despite_link_refusals() {
    for refusals in 0..8 {
        let (mut net, to) = Net::pair_with_address(Setup::default());
        net.refusals = refusals;
        for wr_id in 0..6 {
            net.hosts[0].post_send(wr_id, to, &[(0, 1)]);
            if wr_id % 2 == 1 {
                net.transmit(0);
            }
        }
        for _ in 0..8 {
            net.transmit(0);
        }
        let sequence: Vec<u32> = net.packets.iter().map(|p| p.header.sequence).collect();
        assert_eq!(sequence, [0, 1, 2, 3, 4, 5], "{refusals} refusals");
    }
}
