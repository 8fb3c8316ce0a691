//! Captures of the fabric's traffic.

use efa_capture::frame::FrameKind;
use efa_capture::{Direction, Reader};
use efa_core::nic::{Access, Domain, Doorbell, Nic, RdmaRequest, Status};
use efa_sim::{Action, CaptureConfig, Fault, HostConfig, Match, NicConfig, ScriptedPeer};

use super::{Pair, finished};

/// One frame of a capture: interface, direction, type, retransmitted, length of its data.
type Line = (u32, Direction, String, bool, usize);

fn lines(capture: &[u8]) -> (Vec<String>, Vec<Line>) {
    let mut reader = Reader::new(capture, "test").unwrap();
    let mut lines = Vec::new();
    while let Some(captured) = reader.next_frame().unwrap() {
        let frame = captured.frame.unwrap();
        let kind = match frame.header.kind {
            FrameKind::Response(status) => format!("{status:?}"),
            kind => format!("{:?}", kind.opcode()),
        };
        lines.push((
            captured.interface.0,
            captured.direction.unwrap(),
            kind,
            frame.header.retransmission,
            frame.payload.len(),
        ));
    }
    let names = reader.interfaces().iter();
    let names = names.map(|one| one.name.clone().unwrap()).collect();
    (names, lines)
}

const OUT: Direction = Direction::Outbound;
const IN: Direction = Direction::Inbound;

fn line(interface: u32, direction: Direction, kind: &str, repeated: bool, length: usize) -> Line {
    (interface, direction, kind.to_owned(), repeated, length)
}

#[test]
fn every_host_sees_its_frames() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    pair.alice.send(to, b"before the capture").unwrap();
    pair.fabric.run_until_idle();
    let config = CaptureConfig {
        acknowledgements: true,
    };
    let recording = pair.fabric.capture(Vec::new(), config).unwrap();
    pair.alice.send(to, b"hello").unwrap();
    pair.fabric.run_until_idle();
    // A host that joins later.
    let late = pair.fabric.add_host(HostConfig {
        name: Some("carol".to_owned()),
        ..HostConfig::default()
    });
    let mut carol = ScriptedPeer::open(&late, NicConfig::default()).unwrap();
    carol.send(to, b"late").unwrap();
    pair.fabric.run_until_idle();
    let (names, lines) = lines(&recording.finish().unwrap());
    assert_eq!(names, ["host0", "host1", "carol"]);
    assert_eq!(
        lines,
        [
            line(0, OUT, "Send", false, 5),
            line(1, IN, "Send", false, 5),
            line(1, OUT, "Ok", false, 0),
            line(0, IN, "Ok", false, 0),
            line(2, OUT, "Send", false, 4),
            line(1, IN, "Send", false, 4),
            line(1, OUT, "Ok", false, 0),
            line(2, IN, "Ok", false, 0),
        ]
    );
}

#[test]
fn lost_frames_appear_at_the_sender_repeats_marked() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    pair.fabric
        .install(Fault::new(Match::packet(64), Action::Drop).times(1));
    let refuse = Action::Answer(Status::RemoteRnr);
    pair.fabric
        .install(Fault::new(Match::packet(64), refuse).times(1));
    let recording = pair
        .fabric
        .capture(Vec::new(), CaptureConfig::default())
        .unwrap();
    pair.alice.send(to, &[64, 4]).unwrap();
    pair.fabric.run_until_idle();
    assert_eq!(finished(&mut pair.alice), [(0, Status::Ok)]);
    let (_, lines) = lines(&recording.finish().unwrap());
    assert_eq!(
        lines,
        [
            line(0, OUT, "Send", false, 2),
            line(0, OUT, "Send", true, 2),
            line(1, IN, "Send", true, 2),
            line(1, OUT, "RemoteRnr", false, 0),
            line(0, IN, "RemoteRnr", false, 0),
            line(0, OUT, "Send", true, 2),
            line(1, IN, "Send", true, 2),
        ]
    );
}

#[test]
fn rdma_is_cut_into_packets() {
    let mut pair = Pair::orderly();
    let to = pair.bob.address();
    let (local, remote) = (
        pair.alice.nic().host().allocate(20_000).unwrap(),
        pair.bob.nic().host().allocate(20_000).unwrap(),
    );
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let local_key = pair.alice.nic().register(local, access).unwrap().local_key;
    let remote_key = pair.bob.nic().register(remote, access).unwrap().remote_key;
    pair.bob.know(pair.alice.address().gid).unwrap();
    let request = RdmaRequest {
        destination: pair.alice.destination(to).unwrap(),
        local,
        local_key,
        remote_address: remote.address,
        remote_key,
        immediate: None,
        context: 1,
    };
    let recording = pair
        .fabric
        .capture(Vec::new(), CaptureConfig::default())
        .unwrap();
    pair.alice
        .nic()
        .post_read(&request, Doorbell::Ring)
        .unwrap();
    pair.fabric.run_until_idle();
    // The region does not allow it.
    pair.alice
        .nic()
        .post_write(&request, Doorbell::Ring)
        .unwrap();
    pair.fabric.run_until_idle();
    let (_, lines) = lines(&recording.finish().unwrap());
    let pieces = |interface, direction, kind| {
        [8928, 8928, 2144].map(|length| line(interface, direction, kind, false, length))
    };
    let expected: Vec<Line> = [
        vec![
            line(0, OUT, "RdmaReadRequest", false, 0),
            line(1, IN, "RdmaReadRequest", false, 0),
        ],
        pieces(1, OUT, "RdmaReadResponse").to_vec(),
        pieces(0, IN, "RdmaReadResponse").to_vec(),
        pieces(0, OUT, "RdmaWrite").to_vec(),
        pieces(1, IN, "RdmaWrite").to_vec(),
        vec![
            line(1, OUT, "RemoteBadAddress", false, 0),
            line(0, IN, "RemoteBadAddress", false, 0),
        ],
    ]
    .concat();
    assert_eq!(lines, expected);
}

#[test]
fn the_same_seed_gives_the_same_capture() {
    let capture = |seed| {
        let mut pair = Pair::new(efa_sim::FabricConfig::seeded(seed));
        let recording = pair
            .fabric
            .capture(Vec::new(), CaptureConfig::default())
            .unwrap();
        let to = pair.bob.address();
        for number in 0..100_u8 {
            pair.alice.send(to, &[number]).unwrap();
        }
        pair.fabric.run_until_idle();
        recording.finish().unwrap()
    };
    assert_eq!(capture(1), capture(1));
    assert_ne!(capture(1), capture(2));
}
