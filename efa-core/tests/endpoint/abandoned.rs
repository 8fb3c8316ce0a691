//! Operations that one side aborts: the notification of the other side, and the handling of
//! messages whose remaining packets will not come.

use efa_core::endpoint::*;
use efa_core::nic::{Access, DeviceCaps, Status};
use efa_core::wire::{
    Cts, EagerRtm, ExtraFeatures, Header, LongctsRtm, LongctsRtw, LongreadRtm, LongreadRtw,
    MediumRtm, MsgId, OpeType, PeerError, Repr, RmaIov, RmaIovs, Rtr, RuntreadRtm, SendId,
};
use efa_testing::nic::MEMORY;

use crate::script::{
    MODERN, Script, announced, config, config_with, memory, peer_memory, sum, traits, traits_with,
};

const ABORTED: Failure = Failure {
    errno: Errno::ECANCELED,
    provider: ProviderError::PeerAborted,
};

/// A script whose peer has announced these features in addition to the usual ones.
fn connected_to(more: ExtraFeatures) -> (Script, PeerId) {
    announced(config(), traits(), MODERN | more)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subprotocol {
    Eager,
    Medium,
    LongCts,
    LongRead,
    RuntingRead,
}

impl Subprotocol {
    pub(crate) const ALL: [Subprotocol; 5] = [
        Subprotocol::Eager,
        Subprotocol::Medium,
        Subprotocol::LongCts,
        Subprotocol::LongRead,
        Subprotocol::RuntingRead,
    ];

    /// Length and flags of a message that the endpoint sends with the subprotocol, and that waits
    /// for something.
    pub(crate) fn message(self) -> (usize, OperationFlags) {
        match self {
            Subprotocol::Eager => (100, OperationFlags::DELIVERY_COMPLETE),
            Subprotocol::Medium => (1900, OperationFlags::DELIVERY_COMPLETE),
            Subprotocol::LongCts => (3000, OperationFlags::empty()),
            Subprotocol::LongRead | Subprotocol::RuntingRead => (20_000, OperationFlags::empty()),
        }
    }

    /// The settings of an endpoint that sends its messages so.
    pub(crate) fn config(self) -> EndpointConfig {
        EndpointConfig {
            runt_size: match self {
                Subprotocol::RuntingRead => 1500,
                _ => 0,
            },
            ..config()
        }
    }
}

/// The features, in addition to the usual ones, of a peer that sends and accepts PEER_ERROR.
pub(crate) const PEER_ERRORS: ExtraFeatures = ExtraFeatures::PEER_ERROR
    .union(ExtraFeatures::RDMA_READ)
    .union(ExtraFeatures::RUNTING_READ);

/// Ids that name no operation of the endpoint.
const UNKNOWN: [u32; 4] = [PeerError::NO_OP, 0, 0x0010_0000, u32::MAX];

/// Memory of the peer.
const REMOTE: [RemoteIoVec; 1] = [peer_memory(0x7000, 3000, 5)];

fn peers(peers: usize) -> Usage {
    Usage {
        peers,
        ..Usage::default()
    }
}

impl Script {
    /// The peer aborts its side of a message. `side` is the peer's role in the message.
    fn abandon(&mut self, msg_id: u32, op_id: u32, side: OpeType) {
        self.send(
            &PeerError {
                msg_id: MsgId(msg_id),
                op_id,
                emitter_ope_type: side,
                prov_errno: 7,
                connid: self.connid(),
                ..PeerError::default()
            },
            &[],
        );
    }

    /// The endpoint notifies the peer that it has aborted a message. `side` is the endpoint's role
    /// in it. Returns message, operation and reason.
    fn expect_abandoned(&mut self, side: OpeType) -> (u32, u32, u32) {
        let error = self.expect_header::<PeerError>();
        assert_eq!(error.emitter_ope_type, side);
        assert_eq!(error.connid.map(|connid| connid.0), Some(0x1111_1111));
        (error.msg_id.0, error.op_id, error.prov_errno)
    }

    /// Takes the request of a message that the endpoint sends. Returns its ids; 0 for a request
    /// without an operation.
    fn expect_request(&mut self) -> (u32, u32) {
        self.expect(|packet| match &packet.header {
            Header::EagerRtm(EagerRtm {
                msg_id, receipt, ..
            }) => (msg_id.0, receipt.map_or(0, |id| id.0)),
            Header::MediumRtm(MediumRtm {
                msg_id, receipt, ..
            }) => (msg_id.0, receipt.map_or(0, |id| id.0)),
            Header::LongctsRtm(long) => (long.msg_id.0, long.send_id.0),
            Header::LongreadRtm(long) => (long.msg_id.0, long.send_id.0),
            Header::RuntreadRtm(runt) => (runt.msg_id.0, runt.send_id.0),
            other => panic!("{other:?}"),
        })
    }

    /// The first packet of an untagged message of 4000 bytes, or of 100 if it is eager.
    pub(crate) fn begin(&mut self, subprotocol: Subprotocol, msg_id: u32) {
        let options = self.by_connid();
        let (msg_id, msg_length, send_id) = (MsgId(msg_id), 4000, SendId(77));
        let remote = |length| RmaIovs::new(&[RmaIov::new(0x5000, length, 9)]).unwrap();
        let bytes = match subprotocol {
            Subprotocol::Eager => EagerRtm {
                msg_id,
                options,
                ..EagerRtm::default()
            }
            .to_packet(&[7; 100]),
            Subprotocol::Medium => MediumRtm {
                msg_id,
                msg_length,
                options,
                ..MediumRtm::default()
            }
            .to_packet(&[7; 100]),
            Subprotocol::LongCts => LongctsRtm {
                msg_id,
                msg_length,
                send_id,
                options,
                ..LongctsRtm::default()
            }
            .to_packet(&[7; 100]),
            Subprotocol::LongRead => LongreadRtm {
                msg_id,
                msg_length,
                send_id,
                read_iov: remote(4000),
                options,
                ..LongreadRtm::default()
            }
            .to_packet(&[]),
            Subprotocol::RuntingRead => RuntreadRtm {
                msg_id,
                msg_length,
                send_id,
                runt_length: 600,
                read_iov: remote(4000),
                options,
                ..RuntreadRtm::default()
            }
            .to_packet(&[7; 100]),
        };
        self.inject(&bytes);
    }

    /// All state of messages and operations has been released.
    fn expect_nothing_left(&mut self) {
        self.expect_no_completion();
        self.expect_silence();
        assert_eq!(self.dut.usage(), peers(self.dut.usage().peers));
    }

    /// A segment of 100 bytes of an untagged message of 300.
    fn segment(&mut self, msg_id: u32, seg_offset: u64) {
        self.send(
            &MediumRtm {
                msg_id: MsgId(msg_id),
                msg_length: 300,
                seg_offset,
                options: self.by_connid(),
                ..MediumRtm::default()
            },
            &[7; 100],
        );
    }

    /// A long-read message, whose read the device refuses.
    fn refuse_read(&mut self) {
        self.recv(0, 4000, 7);
        self.send(
            &LongreadRtm {
                msg_id: MsgId(0),
                msg_length: 4000,
                send_id: SendId(77),
                read_iov: RmaIovs::new(&[RmaIov::new(0x5000, 4000, 9)]).unwrap(),
                options: self.by_connid(),
                ..LongreadRtm::default()
            },
            &[],
        );
        self.progress();
        assert_eq!(self.network.flights(), 1, "the read");
        self.network.fail(0, Status::RemoteBadAddress);
        self.progress();
        let failure = self.error().failure;
        assert_eq!(failure, Failure::from(Status::RemoteBadAddress));
    }

    /// Writes memory of the peer, in windows. Returns the operation's id.
    fn write_in_windows(&mut self, peer: PeerId) -> u32 {
        self.write(peer, memory(0, 3000), &REMOTE, 1).unwrap();
        self.expect_header::<LongctsRtw>().send_id.0
    }

    /// The peer writes memory of the endpoint, in windows. Returns the operation's id.
    fn be_written_in_windows(&mut self) -> u32 {
        let region = self.dut.register(memory(0, 4096).memory, Access::all());
        let key = region.unwrap().remote_key.0;
        let long = LongctsRtw {
            msg_length: 3000,
            send_id: SendId(77),
            rma_iov: RmaIovs::new(&[RmaIov::new(MEMORY, 3000, key)]).unwrap(),
            options: self.by_connid(),
            ..LongctsRtw::default()
        };
        self.send(&long, &[1; 100]);
        self.expect_header::<Cts>().recv_id.0
    }

    /// Posts a receive for a claimed message, which fails.
    fn fail_to_receive(&mut self, claim: ClaimId, context: u64) -> ErrorEntry {
        let args = ClaimedRecvArgs {
            claim,
            buffer: &[memory(0, 300)],
            flags: OperationFlags::COMPLETION,
            context,
        };
        self.dut.recv_claimed(args).unwrap();
        self.error()
    }

    /// The device reports that the peer's queue pair does not exist any more.
    fn peer_ends(&mut self, peer: PeerId) {
        self.try_send(peer, 8, OperationFlags::empty(), 99).unwrap();
        self.progress();
        self.network.fail(0, Status::RemoteBadDestQpn);
        self.progress();
        assert_eq!(self.error().context, 99);
        self.progress();
    }
}

// The endpoint receives the message, and its sender gives it up.

#[test]
fn unmatched_messages_are_dropped_in_every_subprotocol() {
    for subprotocol in Subprotocol::ALL {
        for op_id in UNKNOWN {
            let (mut script, _) = connected_to(PEER_ERRORS);
            script.begin(subprotocol, 0);
            assert_eq!(script.dut.usage().unexpected, 1);
            script.abandon(0, op_id, OpeType::TXE);
            script.expect_nothing_left();
            // Once more, and the next message.
            script.abandon(0, op_id, OpeType::TXE);
            script.recv(0, 4000, 7);
            script.begin(Subprotocol::Eager, 1);
            assert_eq!(script.completion().length, 100);
            script.expect_nothing_left();
        }
    }
}

#[test]
fn matched_messages_fail_their_receive_in_every_subprotocol() {
    for subprotocol in Subprotocol::ALL {
        for op_id in UNKNOWN {
            let (mut script, _) = connected_to(PEER_ERRORS);
            script.recv(0, 4000, 7);
            script.begin(subprotocol, 0);
            script.progress();
            match subprotocol {
                // It is complete.
                Subprotocol::Eager => {
                    script.abandon(0, op_id, OpeType::TXE);
                    assert_eq!(script.completion().context, 7);
                    script.expect_nothing_left();
                    continue;
                }
                Subprotocol::Medium => {}
                Subprotocol::LongCts => {
                    script.expect_header::<Cts>();
                }
                // The device writes the receive's memory until the read has ended.
                Subprotocol::LongRead | Subprotocol::RuntingRead => {
                    assert_eq!(script.network.flights(), 1, "the read");
                    script.abandon(0, op_id, OpeType::TXE);
                    script.dut.progress(script.now);
                    assert_eq!(script.dut.poll_completion(), None);
                    script.network.fail(0, Status::RemoteBadAddress);
                    script.progress();
                }
            }
            script.abandon(0, op_id, OpeType::TXE);
            let entry = script.error();
            assert_eq!((entry.context, entry.failure), (7, ABORTED));
            script.expect_nothing_left();
            assert_eq!(script.dut.poll_event(), None);
        }
    }
}

#[test]
fn claimed_messages_fail_their_receive_in_every_subprotocol() {
    for subprotocol in Subprotocol::ALL {
        let (mut script, _) = connected_to(PEER_ERRORS);
        script.begin(subprotocol, 0);
        let (claim, _) = script.dut.claim(SourceFilter::Any, None).unwrap();
        script.abandon(0, PeerError::NO_OP, OpeType::TXE);
        assert_eq!(script.dut.usage().deferred_packets, 0);
        let entry = script.fail_to_receive(claim, 8);
        assert_eq!((entry.context, entry.failure), (8, ABORTED));
        script.expect_nothing_left();
    }
}

/// Messages for a multi-receive buffer wait where one peer may have one at a time.
#[test]
fn deferred_messages_fail_in_every_subprotocol() {
    for subprotocol in Subprotocol::ALL {
        let config = config_with(|config| config.remote_operations = 1);
        let (mut script, _) = announced(config, traits(), MODERN | PEER_ERRORS);
        for msg_id in [0, 1] {
            let subprotocol = [Subprotocol::LongCts, subprotocol][msg_id as usize];
            script.begin(subprotocol, msg_id);
        }
        let args = MultiRecvArgs {
            source: SourceFilter::Any,
            buffer: memory(0, 9000),
            min_free: 500,
            context: 7,
        };
        script.dut.multi_recv(args).unwrap();
        assert_eq!(script.dut.usage().waiting, 1);
        script.expect_header::<Cts>();
        // The one that waits, and then the other, which makes room.
        for msg_id in [1, 0] {
            script.abandon(msg_id, PeerError::NO_OP, OpeType::TXE);
        }
        script.progress();
        for _ in 0..2 {
            assert_eq!(script.error().failure, ABORTED, "{subprotocol:?}");
        }
        let usage = script.dut.usage();
        assert_eq!((usage.waiting, usage.deferred_packets), (0, 0), "{usage:?}");
        script.expect_silence();
    }
}

#[test]
fn naming_a_windowed_receive_ends_it() {
    let (mut script, _) = connected_to(PEER_ERRORS);
    script.recv(0, 4096, 7);
    script.begin(Subprotocol::LongCts, 0);
    let recv_id = script.expect_header::<Cts>().recv_id;
    script.abandon(0, recv_id.0, OpeType::TXE);
    assert_eq!(script.error().failure, ABORTED);
    script.expect_nothing_left();
}

/// Ids are used again: the message decides.
#[test]
fn an_operation_of_another_message_is_not_touched() {
    let (mut script, peer) = connected_to(PEER_ERRORS);
    let mut recv_ids = Vec::new();
    for msg_id in [0, 1] {
        script.recv(0, 4096, msg_id.into());
        script.begin(Subprotocol::LongCts, msg_id);
        recv_ids.push(script.expect_header::<Cts>().recv_id.0);
    }
    script.abandon(0, recv_ids[1], OpeType::TXE);
    assert_eq!(script.error().context, 0);
    // A message that has ended, or never was.
    script.abandon(0, recv_ids[1], OpeType::TXE);
    script.expect_no_completion();
    assert_eq!(script.dut.usage().inbound, 1);

    let mut send_ids = Vec::new();
    for context in [2, 3] {
        let none = OperationFlags::empty();
        script.try_send(peer, 3000, none, context).unwrap();
        send_ids.push(script.expect_request().1);
    }
    while script.network.flights() > 0 {
        script.network.swallow(0);
    }
    script.progress();
    script.abandon(0, send_ids[1], OpeType::RXE);
    assert_eq!(script.error().context, 2);
    script.abandon(0, send_ids[1], OpeType::RXE);
    script.expect_refusal(PacketError::StaleOperation { id: send_ids[1] });
    // The sides are not taken for each other.
    script.abandon(1, send_ids[1], OpeType::TXE);
    assert_eq!(script.error().context, 1, "the receive of message 1");
    script.abandon(1, PeerError::NO_OP, OpeType::TXE);
    script.expect_no_completion();
    assert_eq!(script.dut.usage().outbound, 1);
}

#[test]
fn an_abandoned_missing_message_does_not_block_others() {
    for ordered in [true, false] {
        let config = config_with(|config| config.ordered = ordered);
        let (mut script, _) = announced(config, traits(), MODERN | PEER_ERRORS);
        script.recv(0, 100, 7);
        script.begin(Subprotocol::Eager, 2);
        // Notifications about two messages in the wrong order, a duplicate, and one about a message
        // far ahead.
        for msg_id in [1, 1, 200, 0] {
            script.abandon(msg_id, PeerError::NO_OP, OpeType::TXE);
        }
        assert_eq!(script.completion().length, 100);
        script.expect_nothing_left();
        // Further packets of these messages are refused.
        script.begin(Subprotocol::Medium, 1);
        script.begin(Subprotocol::Medium, 200);
        let refused = [script.refusal(), script.refusal()];
        let of = |msg_id| PacketError::AlreadyProcessed { msg_id };
        assert_eq!(refused, [of(1), of(200)]);
        for msg_id in 3..202 {
            if msg_id != 200 {
                script.recv(0, 100, 8);
                script.begin(Subprotocol::Eager, msg_id);
                assert_eq!(script.completion().context, 8, "message {msg_id}");
            }
        }
        script.expect_nothing_left();
    }
}

/// A part of a message waits for its turn when the sender gives the message up.
#[test]
fn an_out_of_order_message_is_dropped_unmatched() {
    let (mut script, _) = connected_to(PEER_ERRORS);
    script.recv(0, 4000, 7);
    for msg_id in [1, 100] {
        script.begin(Subprotocol::Medium, msg_id);
        script.begin(Subprotocol::Medium, msg_id);
    }
    assert_eq!(script.dut.usage().deferred_packets, 4);
    script.abandon(1, PeerError::NO_OP, OpeType::TXE);
    assert_eq!(script.dut.usage().deferred_packets, 2);
    script.abandon(100, PeerError::NO_OP, OpeType::TXE);
    assert_eq!(script.dut.usage().deferred_packets, 0);
    script.begin(Subprotocol::Eager, 2);
    script.expect_no_completion();
    script.begin(Subprotocol::Eager, 0);
    assert_eq!(script.completion().context, 7, "of message 0");
    assert_eq!(script.dut.usage().unexpected, 1, "message 2");
    assert_eq!(script.dut.poll_event(), None);
}

#[test]
fn messages_beyond_the_window_are_refused_without_disconnecting() {
    let (mut script, _) = connected_to(PEER_ERRORS);
    let msg_id = config().reorder_window;
    script.abandon(msg_id, PeerError::NO_OP, OpeType::TXE);
    let expected = 0;
    script.expect_refusal(PacketError::BeyondWindow { msg_id, expected });
    script.recv(0, 100, 7);
    script.begin(Subprotocol::Eager, 0);
    assert_eq!(script.completion().context, 7);
}

// The endpoint sends the message, and its receiver gives it up.

/// Starts to send a message. Returns its ids.
fn start(script: &mut Script, peer: PeerId, subprotocol: Subprotocol) -> (u32, u32) {
    let (length, flags) = subprotocol.message();
    script.try_send(peer, length, flags, 1).unwrap();
    let ids = script.expect_request();
    script.swallow_all();
    ids
}

/// A script that sends messages with this subprotocol.
fn sender(subprotocol: Subprotocol, features: ExtraFeatures) -> (Script, PeerId) {
    announced(subprotocol.config(), traits(), MODERN | features)
}

#[test]
fn sends_fail_with_the_receivers_reason_everywhere() {
    const OF_PEER: Failure = Failure {
        errno: Errno::ECANCELED,
        provider: ProviderError::RemoteBadAddress,
    };
    for subprotocol in Subprotocol::ALL {
        for known in [true, false] {
            let (mut script, peer) = sender(subprotocol, PEER_ERRORS);
            let (msg_id, send_id) = start(&mut script, peer, subprotocol);
            let op_id = if known { send_id } else { PeerError::NO_OP };
            script.abandon(msg_id, op_id, OpeType::RXE);
            let entry = script.error();
            assert_eq!((entry.context, entry.failure), (1, OF_PEER));
            script.expect_nothing_left();
            script.abandon(msg_id, op_id, OpeType::RXE);
            script.expect_refusal(PacketError::StaleOperation { id: op_id });
            // The next one is not affected.
            script.send_message(peer, 8, 2);
            assert_eq!(script.expect_request().0, msg_id + 1);
            assert_eq!(script.completion().context, 2);
            script.expect_nothing_left();
        }
    }
}

/// A PEER_ERROR for a send that has already failed, and one with an unknown error code.
#[test]
fn a_send_that_has_failed_keeps_its_failure() {
    let (mut script, peer) = sender(Subprotocol::RuntingRead, PEER_ERRORS);
    script.send_message(peer, 20_000, 1);
    script.progress();
    assert_eq!(script.network.flights(), 2, "two segments");
    script.network.fail(0, Status::RemoteBadLength);
    script.progress();
    script.abandon(0, PeerError::NO_OP, OpeType::RXE);
    script.expect_no_completion();
    script.network.swallow(0);
    script.progress();
    let failure = Failure::from(Status::RemoteBadLength);
    assert_eq!(script.error().failure, failure);
    script.expect_nothing_left();

    let (msg_id, _) = start(&mut script, peer, Subprotocol::LongCts);
    let error = PeerError {
        msg_id: MsgId(msg_id),
        op_id: PeerError::NO_OP,
        emitter_ope_type: OpeType::RXE,
        prov_errno: 999_999,
        connid: script.connid(),
        ..PeerError::default()
    };
    script.send(&error, &[]);
    assert_eq!(script.error().failure, ABORTED);
}

// Operations that are no messages.

#[test]
fn named_writes_reads_atomics_continue_with_an_event() {
    let (mut script, peer) = connected_to(ExtraFeatures::PEER_ERROR);
    let send_id = script.write_in_windows(peer);
    script.read(peer, memory(0, 3000), &REMOTE, 2).unwrap();
    let recv_id = script.expect_header::<Rtr>().recv_id.0;
    let (operand, remote) = ([memory(0, 8)], [peer_memory(0x7000, 8, 5)]);
    let atomic = AtomicArgs {
        flags: OperationFlags::COMPLETION | OperationFlags::DELIVERY_COMPLETE,
        context: 3,
        ..sum(peer, &operand, &remote)
    };
    script.dut.atomic(atomic).unwrap();
    let (msg_id, atomic_id) = script.expect(|packet| match packet.header {
        Header::Rta(rta) => match rta.kind {
            efa_core::wire::RtaKind::DcWrite(id) => (rta.msg_id.0, id.0),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    });
    let written = script.be_written_in_windows();
    let usage = script.dut.usage();
    for (msg_id, id, side) in [
        (0, send_id, OpeType::RXE),
        (0, recv_id, OpeType::TXE),
        (msg_id, atomic_id, OpeType::RXE),
        (0, written, OpeType::TXE),
    ] {
        script.abandon(msg_id, id, side);
        script.expect_refusal(PacketError::NoMessage { id });
        script.expect_no_completion();
    }
    // Nor is an atomic found by its message id.
    script.abandon(msg_id, PeerError::NO_OP, OpeType::RXE);
    let id = PeerError::NO_OP;
    script.expect_refusal(PacketError::StaleOperation { id });
    assert_eq!(script.dut.usage(), usage);
}

/// The packet names the peer's write, and the message decides, wherever that is.
#[test]
fn messages_are_abandoned_despite_an_unknown_operation() {
    let (mut script, _) = connected_to(PEER_ERRORS);
    let id = script.be_written_in_windows();
    let written = script.dut.usage();
    let given_up = |script: &mut Script, msg_id| {
        script.abandon(msg_id, id, OpeType::TXE);
        script.progress();
        assert_eq!(script.dut.poll_event(), None, "message {msg_id}");
    };
    // No receive matches it.
    script.begin(Subprotocol::Medium, 0);
    given_up(&mut script, 0);
    assert_eq!(script.dut.usage(), written);
    // A receive has.
    script.recv(0, 4000, 7);
    script.begin(Subprotocol::Medium, 1);
    given_up(&mut script, 1);
    assert_eq!(script.error().failure, ABORTED);
    // It waits for its turn.
    script.begin(Subprotocol::Medium, 3);
    given_up(&mut script, 3);
    assert_eq!(script.dut.usage(), written);
    // Messages that have ended, or have not arrived, are unknown: the latter may still arrive.
    for msg_id in [0, 1, 3, 2, 4, config().reorder_window + 2] {
        script.abandon(msg_id, id, OpeType::TXE);
        script.expect_refusal(PacketError::NoMessage { id });
    }
    for msg_id in [2, 4] {
        script.recv(0, 100, 8);
        script.begin(Subprotocol::Eager, msg_id);
        assert_eq!(script.completion().context, 8, "message {msg_id}");
    }
    assert_eq!(script.dut.usage(), written);
}

#[test]
fn sends_are_abandoned_despite_an_unknown_operation() {
    let (mut script, peer) = connected_to(ExtraFeatures::PEER_ERROR);
    let id = script.write_in_windows(peer);
    let (msg_id, _) = start(&mut script, peer, Subprotocol::LongCts);
    script.abandon(msg_id, id, OpeType::RXE);
    assert_eq!(script.error().context, 1);
    assert_eq!(script.dut.poll_event(), None);
    script.abandon(msg_id, id, OpeType::RXE);
    script.expect_refusal(PacketError::NoMessage { id });
    script.expect_no_completion();
    assert_eq!(script.dut.usage().outbound, 1, "the write");
}

#[test]
fn an_unknown_side_is_refused() {
    let (mut script, _) = connected_to(PEER_ERRORS);
    script.recv(0, 4000, 7);
    script.begin(Subprotocol::Medium, 0);
    for side in [0, 3, u32::MAX] {
        script.abandon(0, PeerError::NO_OP, OpeType(side));
        script.expect_refusal(PacketError::UnsupportedType);
    }
    script.expect_no_completion();
}

// The PEER_ERROR packets that the peer receives.

#[test]
fn read_failure_is_sent_to_capable_peers() {
    let (mut script, _) = connected_to(ExtraFeatures::PEER_ERROR);
    script.refuse_read();
    let code = ProviderError::RemoteBadAddress.code();
    assert_eq!(script.expect_abandoned(OpeType::RXE), (0, 77, code));
    script.expect_nothing_left();

    let (mut script, _) = connected_to(ExtraFeatures::empty());
    script.refuse_read();
    script.expect_nothing_left();
}

#[test]
fn broken_off_messages_are_reported_and_order_continues() {
    let code = ProviderError::RemoteBadStatus.code();
    for subprotocol in Subprotocol::ALL {
        for understands in [true, false] {
            let features = match understands {
                true => PEER_ERRORS,
                false => PEER_ERRORS - ExtraFeatures::PEER_ERROR,
            };
            let (mut script, peer) = sender(subprotocol, features);
            let mut op_id = PeerError::NO_OP;
            if subprotocol == Subprotocol::LongCts {
                let (_, send_id) = start(&mut script, peer, subprotocol);
                op_id = 99;
                script.grant(SendId(send_id), op_id, 500);
            } else {
                let length = match subprotocol {
                    Subprotocol::Eager => 100,
                    Subprotocol::Medium => 1900,
                    _ => 20_000,
                };
                let none = OperationFlags::empty();
                script.try_send(peer, length, none, 1).unwrap();
            }
            script.progress();
            // Whether the peer has the last packet is not known.
            while script.network.flights() > 1 {
                script.network.swallow(0);
            }
            script.network.fail(0, Status::RemoteBadStatus);
            script.progress();
            let failure = Failure::from(Status::RemoteBadStatus);
            assert_eq!(script.error().failure, failure, "{subprotocol:?}");
            match understands {
                true => {
                    let reported = script.expect_abandoned(OpeType::TXE);
                    assert_eq!(reported, (0, op_id, code), "{subprotocol:?}");
                    assert_eq!(script.dut.poll_event(), None);
                    let none = OperationFlags::empty();
                    script.try_send(peer, 8, none, 2).unwrap();
                    assert_eq!(script.expect_request().0, 1);
                    assert_eq!(script.completion().context, 2);
                }
                // The peer may wait forever.
                false => assert_eq!(
                    script.dut.poll_event(),
                    Some(Event::SendingFailed { peer, failure })
                ),
            }
            script.expect_nothing_left();
        }
    }
}

/// The endpoint aborts a message. The PEER_ERROR about it arrives or is lost.
#[test]
fn an_unreportable_break_ends_sending_to_the_peer() {
    let none = OperationFlags::empty();
    // `None` if the packet arrives. The last status is that of a peer that has ended.
    for status in [
        None,
        Some(Status::RemoteBadStatus),
        Some(Status::RemoteBadLength),
        Some(Status::RemoteBadDestQpn),
    ] {
        let (mut script, peer) = connected_to(PEER_ERRORS);
        script.try_send(peer, 100, none, 1).unwrap();
        script.progress();
        script.network.fail(0, Status::RemoteBadStatus);
        script.progress();
        assert_eq!(script.error().context, 1);
        let Some(status) = status else {
            script.expect_abandoned(OpeType::TXE);
            assert_eq!(script.dut.poll_event(), None);
            script.try_send(peer, 8, none, 2).unwrap();
            assert_eq!(script.expect_request().0, 1);
            continue;
        };
        assert_eq!(script.network.flights(), 1, "PEER_ERROR");
        script.network.fail(0, status);
        script.progress();
        let failure = Failure::from(status);
        let event = Event::SendingFailed { peer, failure };
        assert_eq!(script.dut.poll_event(), Some(event));
        let next = script.try_send(peer, 8, none, 2);
        assert_eq!(next, Err(EndpointError::PeerFailed(peer)));
    }
    // One about a message that the endpoint receives keeps none of its own back.
    let (mut script, peer) = connected_to(PEER_ERRORS);
    script.refuse_read();
    assert_eq!(script.network.flights(), 1, "PEER_ERROR");
    script.network.fail(0, Status::RemoteBadStatus);
    script.progress();
    let event = script.dut.poll_event();
    assert!(matches!(event, Some(Event::ControlSendFailed { .. })));
    script.try_send(peer, 8, none, 2).unwrap();
    assert_eq!(script.expect_request().0, 0);
}

/// The peer's half of such an operation is left as it is.
#[test]
fn failed_writes_are_not_reported_to_peers() {
    let (mut script, peer) = connected_to(PEER_ERRORS);
    // Ours in windows: the data is lost.
    let bare = traits_with(|traits| traits.caps = DeviceCaps::empty());
    let (mut other, other_peer) = crate::script::connected_with(config(), bare);
    other.shake_hands(MODERN | ExtraFeatures::PEER_ERROR);
    for (script, peer) in [(&mut script, peer), (&mut other, other_peer)] {
        script.write(peer, memory(0, 3000), &REMOTE, 1).unwrap();
        let long = script.expect(|packet| match packet.header {
            Header::LongctsRtw(long) => Some(long.send_id),
            Header::LongreadRtw(_) => None,
            other => panic!("{other:?}"),
        });
        let Some(send_id) = long else { continue };
        script.grant(send_id, 99, 500);
        script.network.fail(0, Status::RemoteBadStatus);
        script.progress();
        assert_eq!(script.error().context, 1);
        script.expect_silence();
    }
    // The peer's: its data cannot be read.
    let region = script.dut.register(memory(0, 4096).memory, Access::all());
    let long = LongreadRtw {
        msg_length: 3000,
        send_id: SendId(77),
        rma_iov: RmaIovs::new(&[RmaIov::new(MEMORY, 3000, region.unwrap().remote_key.0)]).unwrap(),
        read_iov: RmaIovs::new(&[RmaIov::new(0x5000, 3000, 9)]).unwrap(),
        options: script.by_connid(),
    };
    script.send(&long, &[]);
    assert_eq!(script.network.flights(), 1, "the read");
    script.network.fail(0, Status::RemoteBadAddress);
    script.progress();
    assert!(matches!(
        script.dut.poll_event(),
        Some(Event::RemoteOperationFailed { .. })
    ));
    script.expect_silence();
}

/// A peer whose HANDSHAKE has not arrived, and messages to it that were lost.
fn lose_before_handshake() -> (Script, PeerId) {
    let (mut script, peer) = lose_two_before_handshake(config());
    assert_eq!(script.dut.usage().owed, 2);
    assert_eq!(script.dut.poll_event(), None);
    (script, peer)
}

fn lose_two_before_handshake(config: EndpointConfig) -> (Script, PeerId) {
    let mut script = Script::with(config, traits());
    let peer = script.insert_peer();
    for context in [1, 2] {
        let none = OperationFlags::empty();
        script.try_send(peer, 100, none, context).unwrap();
        script.progress();
        script.network.fail(0, Status::RemoteBadStatus);
        script.progress();
        assert_eq!(script.error().context, context);
    }
    script.expect_silence();
    (script, peer)
}

#[test]
fn reports_before_the_handshake_are_deferred() {
    let (mut script, _) = lose_before_handshake();
    script.shake_hands(MODERN | ExtraFeatures::PEER_ERROR);
    script.expect_handshake();
    for msg_id in [0, 1] {
        let reported = script.expect_abandoned(OpeType::TXE);
        let code = ProviderError::RemoteBadStatus.code();
        assert_eq!(reported, (msg_id, PeerError::NO_OP, code));
    }
    script.expect_nothing_left();
}

#[test]
fn deferred_reports_go_with_incapable_or_removed_peers() {
    let (mut script, peer) = lose_before_handshake();
    script.shake_hands(MODERN);
    script.expect_handshake();
    let failure = Failure::from(Status::RemoteBadStatus);
    let event = Event::SendingFailed { peer, failure };
    assert_eq!(script.dut.poll_event(), Some(event));
    script.expect_nothing_left();

    let (mut script, peer) = lose_before_handshake();
    script.peer_ends(peer);
    script.expect_nothing_left();

    let (mut script, peer) = lose_before_handshake();
    script.dut.remove_address(peer).unwrap();
    script.expect_nothing_left();
    assert_eq!(script.dut.poll_event(), None);
}

#[test]
fn local_failures_before_handshake_keep_the_peer() {
    let config = config_with(|config| config.peer_operations = 1);
    let (mut script, peer) = lose_two_before_handshake(config);
    let failure = Failure::from(Status::RemoteBadStatus);
    let event = Event::SendingFailed { peer, failure };
    assert_eq!(script.dut.poll_event(), Some(event));
    assert_eq!(script.dut.usage().owed, 1);
    // The peer's messages are received, and it is notified of the one lost message that fitted the
    // quota.
    script.shake_hands(MODERN | ExtraFeatures::PEER_ERROR);
    script.expect_handshake();
    let (msg_id, ..) = script.expect_abandoned(OpeType::TXE);
    assert_eq!(msg_id, 0);
    script.recv(0, 100, 7);
    script.begin(Subprotocol::Eager, 0);
    assert_eq!(script.completion().context, 7);
    script.expect_nothing_left();
}

#[test]
fn an_endpoint_notifies_itself_without_a_handshake() {
    let mut script = Script::new();
    let own = script.dut.address();
    let itself = script.dut.insert_address(own).unwrap();
    script.send_message(itself, 100, 1);
    script.progress();
    script.network.fail(0, Status::RemoteBadStatus);
    script.progress();
    assert_eq!(script.error().context, 1);
    let code = ProviderError::RemoteBadStatus.code();
    let reported = script.expect_abandoned(OpeType::TXE);
    assert_eq!(reported, (0, PeerError::NO_OP, code));
}

/// A part of a message that arrives and a part that the device cannot deliver.
#[test]
fn ids_of_undelivered_messages_are_reused() {
    for (delivered, reported) in [(1, true), (0, false)] {
        let (mut script, peer) = sender(Subprotocol::Medium, PEER_ERRORS);
        script.send_message(peer, 1900, 1);
        script.progress();
        for _ in 0..delivered {
            script.network.swallow(0);
        }
        while script.network.flights() > 0 {
            script.network.fail(0, Status::RemoteBadLength);
        }
        script.progress();
        assert_eq!(script.error().context, 1);
        if reported {
            let (msg_id, ..) = script.expect_abandoned(OpeType::TXE);
            assert_eq!(msg_id, 0);
        }
        script.send_message(peer, 8, 2);
        assert_eq!(script.expect_request().0, u32::from(reported));
        script.expect_silence();
    }
}

// The peer that ends.

#[test]
fn unfinishable_messages_are_dropped_and_whole_ones_remain() {
    let (mut script, peer) = connected_to(ExtraFeatures::empty());
    for offset in [0, 100, 200] {
        script.segment(0, offset);
    }
    script.segment(1, 0);
    // A message after one that has not arrived.
    script.segment(3, 0);
    let usage = script.dut.usage();
    assert_eq!((usage.unexpected, usage.deferred_packets), (2, 5));
    script.peer_ends(peer);
    let usage = script.dut.usage();
    assert_eq!(
        (usage.unexpected, usage.deferred_packets),
        (1, 3),
        "{usage:?}"
    );
    script.recv(0, 300, 7);
    let entry = script.completion();
    assert_eq!((entry.context, entry.length), (7, 300));
    // The next receive is for somebody else's message.
    script.recv(0, 300, 8);
    script.expect_no_completion();
    assert_eq!(script.dut.usage().assemblies, 0);
}

#[test]
fn an_unfinishable_claimed_message_fails_its_receive() {
    let (mut script, peer) = connected_to(ExtraFeatures::empty());
    script.segment(0, 0);
    let (claim, _) = script.dut.claim(SourceFilter::Any, None).unwrap();
    script.peer_ends(peer);
    assert_eq!(script.dut.usage().deferred_packets, 0);
    let entry = script.fail_to_receive(claim, 8);
    let failure = Failure::from(Status::RemoteBadDestQpn);
    assert_eq!((entry.context, entry.failure), (8, failure));
}
