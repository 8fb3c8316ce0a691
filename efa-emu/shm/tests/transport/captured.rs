//! Captures of the traffic between two hosts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use efa_capture::frame::FrameKind;
use efa_capture::{Direction, Interface, Reader, WHOLE_FRAMES};
use efa_core::nic::Status;
use efa_device_model::fault::{Action, Fault, Match};
use efa_device_model::provider::SendData;
use efa_shm::{CaptureScope, Host, RdmaPath};
use efa_testing::engine::{Client, config, fabric};
use efa_testing::patience::Wait;

/// A summary of a frame: its type, sequence number, whether it is a retransmission, and payload.
type FrameSummary = (String, u32, bool, Option<Vec<u8>>);

fn frames(path: &Path) -> Vec<(Direction, FrameSummary)> {
    let mut reader = Reader::open(path).unwrap();
    let mut found = Vec::new();
    while let Some(captured) = reader.next_frame().unwrap() {
        let frame = captured.frame.unwrap();
        let header = &frame.header;
        let what = match header.kind {
            FrameKind::Send => "send".to_owned(),
            FrameKind::RdmaReadRequest(rdma) => format!("read of {}", rdma.total_length),
            FrameKind::RdmaReadResponse(rdma) => format!("read data at {}", rdma.offset),
            FrameKind::RdmaWrite(rdma) => format!("write at {}", rdma.offset),
            FrameKind::Response(status) => format!("status {status:?}"),
            ref other => panic!("{other:?}"),
        };
        let payload = header.payload_captured.then(|| frame.payload.to_vec());
        let seen = (what, header.sequence, header.retransmission, payload);
        found.push((captured.direction.unwrap(), seen));
    }
    let counts = reader.interfaces()[0].counts.unwrap();
    assert_eq!((counts.seen, counts.dropped), (found.len() as u64, 0));
    found
}

fn interface(host: &str) -> Interface {
    Interface::new(host, "efa2", Default::default())
}

/// Records a host while the participation lives, into the file, which remains.
fn capture(root: &Path, host: &str, recorded: CaptureScope, snaplen: u32) -> (Host, PathBuf) {
    let recorder = fabric(root).enter_host(Some(host), None, 1).unwrap();
    let file = recorder
        .request_capture(recorded, &interface(host), snaplen)
        .unwrap();
    let kept = root.join(format!("{host}-{recorded:?}.pcapng"));
    std::fs::hard_link(&file, &kept).unwrap();
    (recorder, kept)
}

/// The recorder is notified when the device starts to record: from then on the capture is complete.
#[test]
fn a_device_confirms_each_recorder() {
    let root = tempfile::tempdir().unwrap();
    let mut alpha = Client::open(root.path(), &config("alpha"));
    let mut beta = Client::open(root.path(), &config("beta"));
    let (recorder, kept) = capture(root.path(), "alpha", CaptureScope::Host, WHOLE_FRAMES);
    let wait = Wait::start();
    while !recorder.devices_not_recording().unwrap().is_empty() {
        wait.check(|| "the device does not answer".into());
        alpha.engine.progress();
    }
    let to = alpha.connect(beta.address());
    beta.connect(alpha.address());
    let memory = beta.register(vec![0; 64]);
    beta.post_recv(0, memory.buffer(0, 64));
    assert!(alpha.post_send(0, to, SendData::Inline(&[b"first"])));
    beta.wait_ok();
    alpha.wait_ok();
    drop((alpha, beta, recorder));
    let recorded = frames(&kept);
    assert_eq!(recorded[0].1.3.as_deref(), Some(&b"first"[..]));
}

/// A host that starts while a recorder is attached to the fabric is recorded from its first frame
/// on, unless the recorder is stopped.
#[test]
fn new_hosts_wait_for_recorders() {
    const SHORT: Duration = Duration::from_millis(20);
    let root = tempfile::tempdir().unwrap();
    let fabric = fabric(root.path());
    let enter = |name| fabric.enter_host(Some(name), None, 1).unwrap();
    let is_recorded = |host: &Host| {
        let missing = fabric.wait_for_recorders([host], SHORT).unwrap();
        missing.is_none()
    };
    assert!(is_recorded(&enter("alpha")));

    let recorder = fabric.announce_recorder().unwrap();
    let second = fabric.announce_recorder().unwrap();
    let beta = enter("beta");
    assert!(!is_recorded(&beta));
    // The recorder enters the host and requests a capture.
    let inside = enter("beta");
    assert!(!is_recorded(&beta));
    inside
        .request_capture(CaptureScope::Host, &interface("beta"), WHOLE_FRAMES)
        .unwrap();
    assert!(is_recorded(&beta));

    let gamma = enter("gamma");
    assert!(!is_recorded(&gamma));
    drop(recorder);
    assert!(!is_recorded(&gamma));
    drop(second);
    assert!(is_recorded(&gamma));
    drop((beta, inside, gamma));
    assert!(!fabric.directory().exists());
}

/// Files of a killed recorder delay no device, and are removed.
#[test]
fn the_dead_record_nothing() {
    let root = tempfile::tempdir().unwrap();
    let fabric = fabric(root.path());
    let host = fabric.enter_host(Some("alpha"), None, 1).unwrap();
    let recorders = fabric.directory().join("recorders");
    std::fs::create_dir(&recorders).unwrap();
    std::fs::write(recorders.join("1.lock"), "").unwrap();
    let missing = fabric.wait_for_recorders([&host], Duration::ZERO);
    assert!(missing.unwrap().is_none());
    assert!(!recorders.exists());
    drop(host);
    assert!(!fabric.directory().exists());
}

#[test]
fn both_hosts_record_the_same_from_their_sides() {
    for rdma in [RdmaPath::Auto, RdmaPath::Rings] {
        let root = tempfile::tempdir().unwrap();
        let captures = ["alpha", "beta"]
            .map(|host| capture(root.path(), host, CaptureScope::Host, WHOLE_FRAMES));
        let mut configs = ["alpha", "beta"].map(config);
        for config in &mut configs {
            config.rdma = rdma;
        }
        let mut alpha = Client::open(root.path(), &configs[0]);
        let mut beta = Client::open(root.path(), &configs[1]);
        let to = alpha.connect(beta.address());
        beta.connect(alpha.address());
        let local = alpha.register((0..20_000u32).map(|at| at as u8).collect());
        let remote = beta.register(vec![9; 20_000]);
        let there = (remote.address(), remote.keys.rkey.0);

        // Refused once or more often, then accepted.
        assert!(alpha.post_send(0, to, SendData::Inline(&[b"hello"])));
        while alpha
            .engine
            .with_device(|device| device.counters().retrans_pkts)
            .unwrap()
            == 0
        {
            alpha.engine.progress();
            beta.engine.progress();
        }
        beta.post_recv(0, remote.buffer(0, 64));
        beta.wait_ok();
        alpha.wait_ok();
        alpha.post_write(1, to, local.buffer(0, 20_000), there, None);
        alpha.wait_ok();
        alpha.post_read(2, to, local.buffer(0, 9000), there);
        alpha.wait_ok();
        alpha.post_read(3, to, local.buffer(0, 100), (there.0, !there.1));
        assert_eq!(alpha.wait().status(), Some(Status::RemoteBadAddress));
        drop((alpha, beta));

        let [from_alpha, from_beta] = captures.map(|(_, path)| frames(&path));
        let other = |direction| match direction {
            Direction::Inbound => Direction::Outbound,
            Direction::Outbound => Direction::Inbound,
        };
        // The order within each direction of one request is the same on both sides; the order
        // between directions differs.
        let sorted = |frames: &[(Direction, FrameSummary)], turn: bool| {
            let mut frames: Vec<_> = frames
                .iter()
                .map(|(direction, seen)| {
                    let direction = if turn { other(*direction) } else { *direction };
                    (direction == Direction::Inbound, seen.clone())
                })
                .collect();
            frames.sort();
            frames
        };
        assert_eq!(
            sorted(&from_alpha, false),
            sorted(&from_beta, true),
            "{rdma:?}"
        );

        let hello: Vec<_> = from_beta.iter().filter(|(_, seen)| seen.1 == 0).collect();
        assert!(hello.len() >= 3, "{hello:?}");
        assert_eq!(
            hello[0].1,
            ("send".to_owned(), 0, false, Some(b"hello".to_vec()))
        );
        assert_eq!(hello[1].1.0, "status RemoteRnr");
        assert_eq!(
            hello.last().unwrap().1,
            ("send".to_owned(), 0, true, Some(b"hello".to_vec()))
        );
        let of = |sequence: u32| {
            from_alpha
                .iter()
                .filter(|(_, seen)| seen.1 == sequence)
                .map(|(_, seen)| (seen.0.as_str(), seen.3.as_ref().map(Vec::len)))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(1),
            [
                ("write at 0", Some(8928)),
                ("write at 8928", Some(8928)),
                ("write at 17856", Some(2144)),
            ]
        );
        assert_eq!(
            of(2),
            [
                ("read of 9000", Some(0)),
                ("read data at 0", Some(8928)),
                ("read data at 8928", Some(72)),
            ]
        );
        assert_eq!(
            of(3),
            [
                ("read of 100", Some(0)),
                ("status RemoteBadAddress", Some(0))
            ]
        );
    }
}

/// A duplicated packet is recorded twice and answered once: here the second copy finds no receive,
/// and no completion reports that.
#[test]
fn a_second_copy_is_recorded_without_an_answer() {
    let root = tempfile::tempdir().unwrap();
    let (_recorder, kept) = capture(root.path(), "beta", CaptureScope::Host, WHOLE_FRAMES);
    let repeat = Fault::new(Match::default(), Action::Repeat);
    fabric(root.path()).arm(&repeat).unwrap();
    let mut alpha = Client::open(root.path(), &config("alpha"));
    let mut beta = Client::open(root.path(), &config("beta"));
    let to = alpha.connect(beta.address());
    beta.connect(alpha.address());
    let memory = beta.register(vec![0; 64]);
    beta.post_recv(0, memory.buffer(0, 64));
    assert!(alpha.post_send(0, to, SendData::Inline(&[b"first"])));
    beta.wait_ok();
    alpha.wait_ok();
    drop((alpha, beta));
    let recorded = frames(&kept);
    let copies: Vec<_> = recorded
        .iter()
        .map(|(direction, (what, .., data))| (*direction, what.as_str(), data.as_deref()))
        .collect();
    let copy = (Direction::Inbound, "send", Some(&b"first"[..]));
    assert_eq!(copies, [copy, copy]);
}

/// A run is recorded only by the processes that it started, and a snap length shortens each frame
/// but not its recorded length.
#[test]
fn runs_record_their_processes_up_to_snap_length() {
    const SNAPLEN: u32 = 128;
    let root = tempfile::tempdir().unwrap();
    let (run, of_run) = capture(root.path(), "alpha", CaptureScope::Run, SNAPLEN);
    let (_recorder, of_host) = capture(root.path(), "alpha", CaptureScope::Host, WHOLE_FRAMES);
    let mut inside = config("alpha");
    inside.run = vec![run.participant()];
    let mut own = Client::open(root.path(), &inside);
    let mut other = Client::open(root.path(), &config("alpha"));
    let mut beta = Client::open(root.path(), &config("beta"));
    let to_beta = [own.connect(beta.address()), other.connect(beta.address())];
    let memory = beta.register(vec![0; 2000]);
    for (client, (to, text)) in [&mut own, &mut other]
        .into_iter()
        .zip(to_beta.into_iter().zip([1, 2]))
    {
        beta.connect(client.address());
        beta.post_recv(0, memory.buffer(0, 1000));
        let local = client.register(vec![text; 1000]);
        assert!(client.post_send(0, to, SendData::Buffers(&[local.buffer(0, 1000)])));
        beta.wait_ok();
        client.wait_ok();
    }
    drop((own, other, beta));
    let frames = frames(&of_host);
    let sent: Vec<_> = frames
        .iter()
        .map(|(_, seen)| seen.3.clone().unwrap())
        .collect();
    assert_eq!(sent, [vec![1; 1000], vec![2; 1000]]);

    let mut reader = Reader::open(&of_run).unwrap();
    let captured = reader.next_frame().unwrap().unwrap();
    // The reader returns the IPv6 packet, without the 14 bytes of the Ethernet header.
    assert_eq!(captured.bytes.len(), SNAPLEN as usize - 14);
    assert!(captured.original_len > 1000);
    let frame = captured.frame.unwrap();
    assert_eq!(frame.header.payload_length, 1000);
    let there = frame.payload;
    assert!(
        there.len() < 128 && there.iter().all(|byte| *byte == 1),
        "{there:?}"
    );
    assert!(
        reader.next_frame().unwrap().is_none(),
        "the other process is not of the run"
    );
}
