//! The `tracing` events that show decisions of the engine.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use efa_core::endpoint::EndpointConfig;
use efa_core::nic::Status;
use efa_core::wire::PacketType;
use efa_sim::{Action, Fault, Match, NicConfig};
use tracing_subscriber::fmt;

use crate::rig::{Rig, config, orderly};

/// The output of a subscriber.
#[derive(Clone, Default)]
struct LogLines(Arc<Mutex<Vec<u8>>>);

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a scenario, and returns the lines of a subscriber for all events.
fn watch(scenario: impl FnOnce()) -> Vec<String> {
    let lines = LogLines::default();
    let written = lines.clone();
    let subscriber = fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .without_time()
        .with_writer(move || lines.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, scenario);
    let bytes = written.0.lock().unwrap();
    let text = std::str::from_utf8(&bytes).unwrap();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// The lines that contain all of these texts.
fn with<'a>(lines: &'a [String], texts: &[&str]) -> Vec<&'a str> {
    let has_all = |line: &&str| texts.iter().all(|text| line.contains(text));
    lines.iter().map(String::as_str).filter(has_all).collect()
}

#[track_caller]
fn once(lines: &[String], texts: &[&str]) {
    let found = with(lines, texts);
    assert_eq!(found.len(), 1, "{texts:?} in {}", lines.join("\n"));
}

#[test]
fn each_subprotocol_is_shown_with_its_reason() {
    let lines = watch(|| {
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
    once(
        &lines,
        &[
            "message to send peer=0 msg_id=2 subprotocol=Medium length=18000",
            "reason=\"at most the size of a medium message\"",
        ],
    );
    once(
        &lines,
        &[
            "subprotocol=LongCts length=60000",
            "reason=\"below the limit for RDMA read\"",
        ],
    );
    once(
        &lines,
        &["subprotocol=LongRead length=150000", "reason=\"RDMA read,"],
    );
    once(
        &lines,
        &[
            "read peer=0 subprotocol=Direct length=200000",
            "reason=\"both devices support RDMA read\"",
        ],
    );
    let handshakes = with(&lines, &["HANDSHAKE received peer=0", "RDMA_READ"]);
    assert_eq!(handshakes.len(), 2, "one of each side");
    // Eager messages in order need no decision, so there is no event about them.
    assert_eq!(with(&lines, &["subprotocol=Eager"]), [] as [&str; 0]);
}

#[test]
fn devices_without_rdma_are_the_reason_for_packets() {
    let lines = watch(|| {
        let mut rig = Rig::pair(orderly(), "efa0", &config());
        let (server, _) = rig.exchange_handshakes(0, 1);
        let target = rig.program(1).remote(0, 100);
        rig.start_operation(0, |program| {
            program.write(server, 0, target, Default::default(), 1)
        });
        rig.settle();
    });
    once(
        &lines,
        &[
            "write peer=0 subprotocol=Eager length=100",
            "no RDMA write by the own device",
        ],
    );
}

#[test]
fn rnr_retries_are_shown_with_attempt_and_wait() {
    let lines = watch(|| {
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
    once(&lines, &[engine, first, "again_in=0ns"]);
    let second = with(&lines, &[engine, "attempt=2", "again_in="]);
    assert_eq!(second.len(), 1, "{lines:?}");
    assert!(!second[0].contains("again_in=0ns"), "{second:?}");
}

#[test]
fn retries_of_the_device_are_shown_too() {
    let lines = watch(|| {
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
    once(
        &lines,
        &[
            device,
            "RNR: the request is sent again",
            "attempt=1",
            "ahn=",
        ],
    );
}

#[test]
fn dropped_packets_are_logged_with_sender_and_reason() {
    let lines = watch(|| {
        let mut rig = Rig::pair(orderly(), "efa2", &config());
        let (server, _) = rig.exchange_handshakes(0, 1);
        let eager = Match::packet(PacketType::EagerMsgRtm.code());
        rig.fabric
            .install(Fault::new(eager, Action::Repeat).times(1));
        rig.program(1).recv(0, 8, 1);
        rig.start_operation(0, |program| program.send(server, 0, 8, 2));
        rig.settle();
    });
    once(
        &lines,
        &["packet dropped peer=0 packet_type=EAGER_MSGRTM", "reason="],
    );
}

#[test]
fn given_up_peers_are_logged_with_the_reason() {
    let lines = watch(|| {
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
    once(&lines, &["WARN", "peer given up peer=0 reason="]);
}
