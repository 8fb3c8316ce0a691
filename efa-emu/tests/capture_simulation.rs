//! A capture of the deterministic network: every frame at both ends, the same bytes for a seed.

use efa_core::nic::{Completion, Destination, Nic, SendRequest, Status};
use efa_emu::capture::{Direction, Interface, Reader, SimulationCapture};
use efa_emu::frame::Kind;
use efa_emu::sim::{Action, Fabric, FabricConfig, Fault, HostConfig, Match, NicConfig, Stage};

/// Alice sends `packets` to Bob, who has room for `receives` of them.
fn run(seed: u64, packets: u32, receives: u32, faults: impl FnOnce(&Fabric)) -> Vec<u8> {
    let fabric = Fabric::new(FabricConfig::seeded(seed));
    let mut alice = fabric
        .add_host(HostConfig::default())
        .open(NicConfig::default())
        .unwrap();
    let mut bob = fabric
        .add_host(HostConfig::default())
        .open(NicConfig::default())
        .unwrap();
    let capture = SimulationCapture::start(&fabric, Vec::new(), 8928, |host, gid| Interface {
        host: format!("host{}", host.index()),
        profile: "sim".into(),
        gid,
    })
    .unwrap();
    faults(&fabric);
    for _ in 0..receives {
        let buffer = bob.acquire_buffer().unwrap();
        bob.post_recv(buffer).unwrap();
    }
    let to = bob.local_address();
    let ahn = alice.create_address_handle(to.gid).unwrap();
    for number in 0..packets {
        let buffer = alice.acquire_buffer().unwrap();
        alice.buffer_mut(buffer)[..4].copy_from_slice(&number.to_le_bytes());
        alice
            .post_send(&SendRequest {
                destination: Destination {
                    ahn,
                    qpn: to.qpn,
                    qkey: to.qkey,
                },
                buffer,
                header_length: 4,
                payload: None,
                immediate: None,
                context: number.into(),
            })
            .unwrap();
    }
    fabric.run_until_idle();
    let mut completions: Vec<Completion> = Vec::new();
    while alice.poll(&mut completions, 64) > 0 {}
    assert_eq!(completions.len(), packets as usize);
    capture.finish().unwrap()
}

struct Seen {
    host: u32,
    direction: Direction,
    payload: Vec<u8>,
    kind: Kind,
    sequence: u32,
    retransmission: bool,
}

fn read(capture: &[u8]) -> Vec<Seen> {
    let mut reader = Reader::new(capture, "simulation").unwrap();
    let mut seen = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let parsed = frame.frame.unwrap();
        seen.push(Seen {
            host: frame.interface.0,
            direction: frame.direction.unwrap(),
            payload: parsed.payload.to_vec(),
            kind: parsed.header.kind,
            sequence: parsed.header.sequence,
            retransmission: parsed.header.retransmission,
        });
    }
    let names: Vec<_> = reader
        .interfaces()
        .iter()
        .filter_map(|i| i.name.as_deref())
        .collect();
    assert_eq!(names, ["host0", "host1"]);
    seen
}

#[test]
fn both_ends_see_every_packet_and_a_seed_gives_the_same_bytes() {
    let capture = run(7, 20, 20, |_| {});
    let seen = read(&capture);
    for (host, direction) in [(0, Direction::Outbound), (1, Direction::Inbound)] {
        let at_host: Vec<_> = seen.iter().filter(|frame| frame.host == host).collect();
        assert!(at_host.iter().all(|frame| frame.direction == direction));
        assert!(at_host.iter().all(|frame| frame.kind == Kind::Send));
        let mut packets: Vec<_> = at_host.iter().map(|frame| frame.payload.clone()).collect();
        packets.sort();
        let mut sent: Vec<_> = (0..20_u32)
            .map(|number| number.to_le_bytes().to_vec())
            .collect();
        sent.sort();
        assert_eq!(packets, sent);
    }
    assert_eq!(capture, run(7, 20, 20, |_| {}));
    assert_ne!(capture, run(8, 20, 20, |_| {}));
}

#[test]
fn errors_and_retransmissions_are_in_the_capture() {
    let refused = read(&run(1, 1, 0, |_| {}));
    let answers: Vec<_> = refused
        .iter()
        .filter(|frame| frame.kind == Kind::Response(Status::RemoteRnr))
        .map(|frame| (frame.host, frame.direction, frame.sequence))
        .collect();
    assert!(answers.contains(&(1, Direction::Outbound, 0)));
    assert!(answers.contains(&(0, Direction::Inbound, 0)));

    let lost = read(&run(1, 1, 1, |fabric| {
        let any = Match::any(Stage::Request);
        fabric.install(Fault::new(any, Action::Drop).nth(1));
    }));
    let sends: Vec<_> = lost
        .iter()
        .map(|frame| (frame.host, frame.retransmission))
        .collect();
    assert_eq!(sends, [(0, false), (0, true), (1, true)]);
}
