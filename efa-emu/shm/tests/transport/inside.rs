//! Several devices in one process.

use efa_core::address::Qkey;
use efa_core::nic::Status;
use efa_device_model::device::Service;
use efa_device_model::provider::{SendData, WcOpcode};
use efa_shm::RdmaPath;
use efa_testing::engine::{Client, config, fabric};
use efa_testing::pattern;

#[test]
fn messages_go_between_hosts_and_within_one() {
    let root = tempfile::tempdir().unwrap();
    let mut alpha = Client::open(root.path(), &config("alpha"));
    let mut beta = Client::open(root.path(), &config("beta"));
    let mut second = Client::open(root.path(), &config("alpha"));
    assert_eq!(alpha.engine.gid(), second.engine.gid());
    assert_ne!(alpha.address().qpn, second.address().qpn);
    let memory = beta.register(vec![0; 3 * 8928]);
    let source = alpha.register(pattern(8928, 1));
    let others = second.register(pattern(8928, 2));
    let to = alpha.connect(beta.address());
    let to_second = second.connect(beta.address());
    let back = beta.connect(alpha.address());
    for index in 0..3 {
        beta.post_recv(index, memory.buffer(index as usize * 8928, 8928));
    }
    assert!(alpha.post_send(7, to, SendData::Buffers(&[source.buffer(0, 8928)])));
    let received = beta.wait_ok();
    assert_eq!((received.wr_id, received.byte_len()), (0, 8928));
    assert_eq!(received.opcode(), WcOpcode::Recv);
    assert_eq!(received.src_qp(), alpha.address().qpn);
    assert_eq!(received.ahn().map(|ahn| ahn.0), Some(back.ahn));
    assert_eq!(memory.bytes[..8928], source.bytes[..]);
    assert_eq!(alpha.wait_ok().wr_id, 7);

    assert!(second.post_send(8, to_second, SendData::Buffers(&[others.buffer(5, 100)])));
    assert_eq!(beta.wait_ok().byte_len(), 100);
    assert_eq!(memory.bytes[8928..9028], others.bytes[5..105]);
    assert_eq!(second.wait_ok().wr_id, 8);

    // To itself.
    let to_self = beta.connect(beta.address());
    assert!(beta.post_send(9, to_self, SendData::Inline(&[b"echo"])));
    let mut seen = [beta.wait_ok(), beta.wait_ok()];
    seen.sort_by_key(|completion| completion.wr_id);
    assert_eq!((seen[0].wr_id, seen[0].byte_len()), (2, 4));
    assert_eq!(seen[1].wr_id, 9);
    assert_eq!(&memory.bytes[2 * 8928..2 * 8928 + 4], b"echo");
}

/// Requests of `alpha` that the device of `beta` refuses, or accepts after a retry. At the end,
/// `beta` is closed.
pub(crate) fn see_refusals(alpha: &mut Client, mut beta: Client) {
    let to = alpha.connect(beta.address());
    let inline: SendData<'_> = SendData::Inline(&[b"hello"]);

    let mut wrong_key = to;
    wrong_key.qkey = Qkey(!to.qkey.0);
    assert!(alpha.post_send(1, wrong_key, inline));
    assert_eq!(alpha.wait().status(), Some(Status::RemoteBadDestQpn));

    let mut no_such_qp = to;
    no_such_qp.qpn.0 += 1;
    assert!(alpha.post_send(2, no_such_qp, inline));
    assert_eq!(alpha.wait().status(), Some(Status::RemoteBadDestQpn));

    let mut nowhere = beta.address();
    nowhere.gid.0[15] ^= 0x55;
    let nowhere = alpha.connect(nowhere);
    assert!(alpha.post_send(3, nowhere, inline));
    assert_eq!(alpha.wait().status(), Some(Status::LocalUnreachableRemote));

    // Receiver not ready at first: the device retries until a receive is posted.
    assert!(alpha.post_send(4, to, inline));
    for _ in 0..100 {
        assert_eq!(alpha.poll(), None);
        beta.engine.progress();
    }
    let memory = beta.register(vec![0; 64]);
    beta.post_recv(0, memory.buffer(0, 64));
    assert_eq!(beta.wait_ok().byte_len(), 5);
    assert_eq!(alpha.wait_ok().wr_id, 4);

    beta.destroy_qp();
    assert!(alpha.post_send(5, to, inline));
    assert_eq!(alpha.wait().status(), Some(Status::RemoteBadDestQpn));
    drop(beta);
    assert!(alpha.post_send(6, to, inline));
    assert_eq!(alpha.wait().status(), Some(Status::RemoteBadDestQpn));
}

#[test]
fn refusals_are_returned() {
    let root = tempfile::tempdir().unwrap();
    let mut alpha = Client::open(root.path(), &config("alpha"));
    let beta = Client::open(root.path(), &config("beta"));
    see_refusals(&mut alpha, beta);
    let gid = alpha.engine.gid();
    drop(alpha);
    let hosts = fabric(root.path()).hosts().unwrap();
    assert!(hosts.is_empty(), "{gid} and the other are gone: {hosts:?}");
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// The mappings of files below `root` in this process, and its descriptors of such files.
fn held_below(root: &std::path::Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let text = root.to_str().unwrap();
    let mapped = maps.lines().filter(|line| line.contains(text)).count();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    mapped + open.filter(|file| file.starts_with(root)).count()
}

#[test]
fn hosts_that_are_gone_leave_no_mappings() {
    /// Less than what the closed hosts would hold if each left one mapping or descriptor.
    const SLACK: usize = 20;
    let root = tempfile::tempdir().unwrap();
    let mut survivor = Client::open(root.path(), &config("survivor"));
    let memory = survivor.register(vec![0; 64]);
    let alone = held_below(root.path());
    let mut gone = Vec::new();
    loop {
        let guest_name = format!("guest-{}", gone.len());
        let mut guest = Client::open(root.path(), &config(&guest_name));
        let theirs = guest.register(vec![0; 64]);
        let (to, back) = (
            survivor.connect(guest.address()),
            guest.connect(survivor.address()),
        );
        survivor.post_recv(1, memory.buffer(0, 64));
        guest.post_recv(2, theirs.buffer(0, 64));
        assert!(survivor.post_send(3, to, SendData::Inline(&[b"x"])));
        assert!(guest.post_send(4, back, SendData::Inline(&[b"x"])));
        for _ in 0..2 {
            guest.wait_ok();
            survivor.wait_ok();
        }
        drop(guest);
        gone.push(to);
        // Files of the last hosts remain until the next scan of the peers.
        let held = held_below(root.path());
        if gone.len() > 2 * SLACK && held <= alone + SLACK {
            break;
        }
        assert!(gone.len() < 10 * SLACK, "{held} after {} hosts", gone.len());
    }
    // The closed hosts are remembered.
    for to in gone {
        assert!(survivor.post_send(5, to, SendData::Inline(&[b"x"])));
        let refused = survivor.wait().status();
        assert_eq!(refused, Some(Status::RemoteBadDestQpn));
    }
}

#[test]
fn a_queue_pair_number_that_moved_is_followed() {
    let root = tempfile::tempdir().unwrap();
    let mut sender = Client::open(root.path(), &config("alpha"));
    let mut lowest = config("beta");
    lowest.network.qpn_reuse = efa_device_model::qpn_policy::QpnPolicy::Lowest;
    let mut first = Client::open(root.path(), &lowest);
    let keeper = Client::open(root.path(), &lowest);
    let address = first.address();
    let to = sender.connect(address);
    let memory = first.register(vec![0; 64]);
    first.post_recv(0, memory.buffer(0, 64));
    assert!(sender.post_send(1, to, SendData::Inline(&[b"first"])));
    first.wait_ok();
    sender.wait_ok();
    let qkey = address.qkey;
    drop(first);
    // A device of another process on the same host gets the same number, and here the same Q-key.
    let mut second = Client::open_with(root.path(), &lowest, qkey, Service::Srd, |_| {});
    assert_eq!(second.address(), address);
    let memory = second.register(vec![0; 64]);
    second.post_recv(0, memory.buffer(0, 64));
    assert!(sender.post_send(2, to, SendData::Inline(&[b"second"])));
    second.wait_ok();
    sender.wait_ok();
    assert_eq!(&memory.bytes[..6], b"second");
    drop(keeper);
}

/// More data than a ring has room for.
#[test]
fn a_device_reaches_its_own_memory_by_rdma() {
    const LENGTH: usize = 3 << 20;
    for rdma in [RdmaPath::Auto, RdmaPath::Rings] {
        let root = tempfile::tempdir().unwrap();
        let mut own = config("alpha");
        own.rdma = rdma;
        let mut alpha = Client::open(root.path(), &own);
        let to = alpha.connect(alpha.address());
        let local = alpha.register(vec![0; LENGTH]);
        let remote = alpha.register(pattern(LENGTH, 3));
        let there = (remote.address(), remote.keys.rkey.0);
        alpha.post_read(1, to, local.buffer(0, LENGTH), there);
        assert_eq!(alpha.wait_ok().wr_id, 1);
        assert_eq!(local.bytes, remote.bytes, "read {rdma:?}");
        let source = alpha.register(pattern(LENGTH, 4));
        alpha.post_write(2, to, source.buffer(0, LENGTH), there, None);
        assert_eq!(alpha.wait_ok().wr_id, 2);
        assert_eq!(source.bytes, remote.bytes, "write {rdma:?}");
    }
}

/// Reads and writes memory of `beta`, which knows `alpha`, and checks that keys and bounds count.
pub(crate) fn see_rdma(alpha: &mut Client, beta: &mut Client, case: &str) {
    let to = alpha.connect(beta.address());
    let local = alpha.register(vec![0; 3 << 20]);
    let source = alpha.register(pattern(3 << 20, 4));
    let remote = beta.register(pattern(3 << 20, 3));
    let there = (remote.address(), remote.keys.rkey.0);
    for (wr_id, length) in (0..).zip([0, 1, 64, 8192, 8193, 16384, 70_000, 3 << 20]) {
        alpha.post_read(wr_id, to, local.buffer(0, length), there);
        assert_eq!(alpha.wait_ok().wr_id, wr_id);
        let (found, expected) = (&local.bytes[..length], &remote.bytes[..length]);
        assert_eq!(found, expected, "read {length} {case}");
        alpha.post_write(wr_id, to, source.buffer(0, length), there, None);
        assert_eq!(alpha.wait_ok().wr_id, wr_id);
        let (found, expected) = (&remote.bytes[..length], &source.bytes[..length]);
        assert_eq!(found, expected, "write {length} {case}");
    }
    // With immediate data: one completion at the target, after all data.
    let small = beta.register(vec![0; 64]);
    beta.post_recv(77, small.buffer(0, 64));
    alpha.post_write(1, to, local.buffer(0, 3 << 20), there, Some(0xabcd));
    let arrived = beta.wait_ok();
    assert_eq!((arrived.wr_id, arrived.immediate()), (77, Some(0xabcd)));
    assert_eq!(arrived.byte_len(), 3 << 20);
    assert_eq!(arrived.opcode(), WcOpcode::RecvRdmaWithImmediate);
    assert_eq!(local.bytes, remote.bytes);
    assert!(beta.glance().is_none());
    alpha.wait_ok();

    // Wrong keys and bounds: the memory does not change.
    let before = remote.bytes.clone();
    let refused = Some(Status::RemoteBadAddress);
    for there in [
        (remote.address(), !remote.keys.rkey.0),
        (remote.address() + 1, remote.keys.rkey.0),
        (remote.address() - 1, remote.keys.rkey.0),
    ] {
        alpha.post_write(1, to, source.buffer(0, 3 << 20), there, None);
        assert_eq!(alpha.wait().status(), refused, "{case}");
        alpha.post_read(2, to, local.buffer(0, 3 << 20), there);
        assert_eq!(alpha.wait().status(), refused, "{case}");
    }
    assert_eq!(before, remote.bytes);
    beta.deregister(remote.keys.lkey);
    alpha.post_read(3, to, local.buffer(0, 8), there);
    assert_eq!(alpha.wait().status(), refused, "{case}");
}

#[test]
fn rdma_moves_data_both_ways_and_checks_keys() {
    for rdma in [RdmaPath::Auto, RdmaPath::Rings] {
        let root = tempfile::tempdir().unwrap();
        let mut alpha_config = config("alpha");
        alpha_config.rdma = rdma;
        let mut alpha = Client::open(root.path(), &alpha_config);
        let mut beta = Client::open(root.path(), &config("beta"));
        let to = alpha.connect(beta.address());
        // The target refuses, because it has no address handle for the initiator.
        let local = alpha.register(vec![0; 100]);
        let remote = beta.register(vec![0; 100]);
        let there = (remote.address(), remote.keys.rkey.0);
        alpha.post_read(1, to, local.buffer(0, 100), there);
        let refused = alpha.wait().status();
        assert_eq!(refused, Some(Status::RemoteUnknownPeer), "{rdma:?}");
        beta.connect(alpha.address());
        see_rdma(&mut alpha, &mut beta, &format!("{rdma:?}"));
    }
}
