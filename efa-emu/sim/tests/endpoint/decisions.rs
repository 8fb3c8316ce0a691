//! The `tracing` events that show decisions of the engine.

use efa_core::endpoint::EndpointConfig;
use efa_core::nic::Status;
use efa_core::wire::PacketType;
use efa_sim::{Action, Fault, Match, NicConfig};
use efa_testing::events::Events;

use crate::rig::{Rig, config, orderly};

#[test]
fn each_subprotocol_is_shown_with_its_reason() {
    let events = Events::of(|| {
        let mut rig = Rig::pair(orderly(), "efa2", &config());
        let (server, _) = rig.exchange_handshakes(0, 1);
        for length in [64, 18_000, 60_000, 150_000] {
            rig.program(1).recv(0, 200_000, 1);
            rig.start_operation(0, |program| program.send(server, 0, length, 2));
            rig.settle();
        }
        let target = rig.program(1).remote(0, 200_000);
        rig.start_operation(0, |program| program.read(server, 0, target, 3));
        rig.settle();
    });
    events.once(&[
        "message to send peer=0 msg_id=2 subprotocol=Medium length=18000",
        "reason=\"at most the size of a medium message\"",
    ]);
    events.once(&[
        "subprotocol=LongCts length=60000",
        "reason=\"below the limit for RDMA read\"",
    ]);
    events.once(&["subprotocol=LongRead length=150000", "reason=\"RDMA read,"]);
    events.once(&[
        "read peer=0 subprotocol=Direct length=200000",
        "reason=\"both devices support RDMA read\"",
    ]);
    let handshakes = events.with(&["HANDSHAKE received peer=0", "RDMA_READ"]);
    assert_eq!(handshakes.len(), 2, "one of each side");
    // Eager messages in order need no decision, so there is no event about them.
    assert_eq!(events.with(&["subprotocol=Eager"]), [] as [&str; 0]);
}

#[test]
fn devices_without_rdma_are_the_reason_for_packets() {
    let events = Events::of(|| {
        let mut rig = Rig::pair(orderly(), "efa0", &config());
        let (server, _) = rig.exchange_handshakes(0, 1);
        let target = rig.program(1).remote(0, 100);
        rig.start_operation(0, |program| {
            program.write(server, 0, target, Default::default(), 1)
        });
        rig.settle();
    });
    events.once(&[
        "write peer=0 subprotocol=Eager length=100",
        "no RDMA write by the own device",
    ]);
}

#[test]
fn rnr_retries_are_shown_with_attempt_and_wait() {
    let events = Events::of(|| {
        let nic = NicConfig {
            rnr_retry: 0,
            ..NicConfig::default()
        };
        let mut rig = Rig::pair(orderly(), "efa2", &config());
        let client = rig.add("efa2", &config(), nic);
        let (server, _) = rig.exchange_handshakes(client, 1);
        let eager = Match::packet(PacketType::EagerMsgRtm.code());
        let refuse = Fault::new(eager, Action::Answer(Status::RemoteRnr));
        rig.fabric.install(refuse.times(2));
        rig.program(1).recv(0, 8, 1);
        rig.start_operation(client, |program| program.send(server, 0, 8, 2));
        rig.settle();
        assert_eq!(rig.program(1).contexts(), [1]);
    });
    let engine = "efa_core::endpoint::posting";
    let first =
        "RNR: the packet is posted again peer=0 packet_type=EAGER_MSGRTM msg_id=1 attempt=1";
    events.once(&[engine, first, "again_in=0ns"]);
    let second = events.with(&[engine, "attempt=2", "again_in="]);
    assert_eq!(second.len(), 1, "{second:?}");
    assert!(!second[0].contains("again_in=0ns"), "{second:?}");
}

#[test]
fn retries_of_the_device_are_shown_too() {
    let events = Events::of(|| {
        let mut rig = Rig::pair(orderly(), "efa2", &config());
        let (server, _) = rig.exchange_handshakes(0, 1);
        let eager = Match::packet(PacketType::EagerMsgRtm.code());
        let refuse = Fault::new(eager, Action::Answer(Status::RemoteRnr));
        rig.fabric.install(refuse.times(1));
        rig.program(1).recv(0, 8, 1);
        rig.start_operation(0, |program| program.send(server, 0, 8, 2));
        rig.settle();
    });
    let device = "efa_device_model::device";
    events.once(&[
        device,
        "RNR: the request is sent again",
        "attempt=1",
        "ahn=",
    ]);
}

#[test]
fn dropped_packets_are_logged_with_sender_and_reason() {
    let events = Events::of(|| {
        let mut rig = Rig::pair(orderly(), "efa2", &config());
        let (server, _) = rig.exchange_handshakes(0, 1);
        let eager = Match::packet(PacketType::EagerMsgRtm.code());
        rig.fabric
            .install(Fault::new(eager, Action::Repeat).times(1));
        rig.program(1).recv(0, 8, 1);
        rig.start_operation(0, |program| program.send(server, 0, 8, 2));
        rig.settle();
    });
    events.once(&["packet dropped peer=0 packet_type=EAGER_MSGRTM", "reason="]);
}

#[test]
fn given_up_peers_are_logged_with_the_reason() {
    let events = Events::of(|| {
        let mut rig = Rig::pair(orderly(), "efa2", &config());
        let frugal = EndpointConfig {
            deferred_bytes: 0,
            peer_deferred_bytes: 0,
            ..config()
        };
        let server = rig.add("efa2", &frugal, NicConfig::default());
        let (there, _) = rig.exchange_handshakes(0, server);
        // No receive is posted, and there is no memory for an unexpected message.
        rig.start_operation(0, |program| program.send(there, 0, 8, 1));
        rig.settle();
    });
    events.once(&["WARN", "peer given up peer=0 reason="]);
}
