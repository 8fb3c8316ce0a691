//! The cost of one packet from a hostile peer, for each packet type: the number of objects that the
//! engine visits in walks while it also has thousands of operations and peers unrelated to the
//! packet.

use efa_core::endpoint::*;
use efa_core::wire::fields::{Array, FieldKind, Width, forms, sections};
use efa_core::wire::{EagerRtm, ExtraFeatures, MsgId, Packet, PacketType};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::script::{MODERN, Script, config, memory, traits};

/// Receives, sends, messages that no receive has taken, and peers, of each.
const BYSTANDERS: usize = 2000;

/// Packets of each type.
const PACKETS: usize = 400;

/// The maximum cost of a packet: a fixed part, and a part for each object that the engine holds for
/// its sender, because a packet may end the conversation with its sender.
const MOST: usize = 24;
const MOST_FOR_EACH_OWN: usize = 4;

/// The engine among its bystanders.
struct EngineWithPeers {
    script: Script,
    hostile: PeerId,
    /// The objects of the bystanders.
    base: Usage,
    /// All 32-bit words of the packets that the engine sent to the hostile peer; some of them are
    /// ids.
    seen: Vec<u32>,
    next_msg_id: u32,
    random: SmallRng,
}

/// Everything that can belong to a peer.
fn total(usage: &Usage) -> usize {
    usage.peers
        + usage.outbound
        + usage.inbound
        + usage.unexpected
        + usage.deferred_packets
        + usage.packets
        + usage.assemblies
        + usage.owed
        + usage.waiting
}

impl EngineWithPeers {
    fn new() -> EngineWithPeers {
        let config = EndpointConfig {
            max_operations: 4 * BYSTANDERS,
            max_implicit_peers: 4,
            reorder_window: 64,
            ..config()
        };
        let mut script = Script::with(config, traits());
        let hostile = script.insert_peer();
        let honest = script.insert_other_peer();
        let address = script.dut.lookup_address(honest).unwrap();
        for number in 0..BYSTANDERS {
            let mut other = script.peer_address();
            other.qpn.0 = 100 + number as u16;
            script.dut.insert_address(other).unwrap();
            script
                .dut
                .recv(RecvArgs {
                    tag: Some(TagFilter::exact(1 << 40 | number as u64)),
                    ..RecvArgs::new(SourceFilter::Peer(honest), &[], number as u64)
                })
                .unwrap();
            let none = OperationFlags::empty();
            script.try_send(honest, 3000, none, 0).unwrap();
            script.progress();
            script.swallow_all();
            let mut source = script.source();
            source.qpn = address.qpn;
            let message = EagerRtm {
                msg_id: MsgId(number as u32),
                tag: Some(1 << 41 | number as u64),
                ..EagerRtm::default()
            };
            script.inject_from(source, &efa_core::wire::Repr::to_packet(&message, b"x"));
        }
        let mut engine = EngineWithPeers {
            base: script.dut.usage(),
            script,
            hostile,
            seen: vec![0],
            next_msg_id: 0,
            random: SmallRng::seed_from_u64(7),
        };
        assert_eq!(engine.base.unexpected, BYSTANDERS);
        assert_eq!(engine.base.outbound, BYSTANDERS);
        assert_eq!(engine.base.inbound, BYSTANDERS);
        engine.meet();
        engine
    }

    /// Consumes the packets that the engine sends.
    fn look(&mut self) {
        self.script.progress();
        while self.script.network.flights() > 0 {
            let bytes = self.script.network.swallow(0);
            let words = bytes.as_chunks().0.iter().copied();
            self.seen.extend(words.map(u32::from_le_bytes));
            self.script.progress();
        }
        let surplus = self.seen.len().saturating_sub(64);
        self.seen.drain(..surplus);
    }

    /// Makes the hostile peer's acquaintance, with an operation of each kind.
    fn meet(&mut self) {
        self.script
            .shake_hands(MODERN | ExtraFeatures::PEER_ERROR | ExtraFeatures::RDMA_READ);
        let none = OperationFlags::empty();
        for (length, flags) in [
            (3000, none),
            (1500, OperationFlags::DELIVERY_COMPLETE),
            (20_000, none),
        ] {
            let _ = self.script.try_send(self.hostile, length, flags, 1);
        }
        for tag in [None, Some(TagFilter { tag: 0, ignore: 3 })] {
            let receive = RecvArgs {
                source: SourceFilter::Peer(self.hostile),
                buffer: &[memory(0, 4000)],
                tag,
                flags: OperationFlags::COMPLETION,
                context: 2,
            };
            self.script.dut.recv(receive).unwrap();
        }
        self.look();
    }

    /// Forgets everything of the hostile peer.
    fn part(&mut self) {
        self.script.dut.remove_address(self.hostile).unwrap();
        let mut address = self.script.peer_address();
        for change in 0..=255 {
            address.qkey.0 = self.script.peer_address().qkey.0 ^ change;
            if let Some(peer) = self.script.dut.find_address(&address) {
                self.script.dut.remove_address(peer).unwrap();
            }
        }
        self.look();
        while self.script.dut.poll_completion().is_some() {}
        while self.script.dut.poll_event().is_some() {}
        self.hostile = self.script.insert_peer();
        self.next_msg_id = 0;
        self.meet();
    }

    /// A value for a field: one that the engine knows, a boundary value, or a random one.
    fn value(&mut self, name: &str) -> u64 {
        let choice = self.random.random_range(0..8);
        match (name, choice) {
            (_, 0) => 0,
            (_, 1) => u64::MAX,
            ("msg_id", 2..=5) => {
                self.next_msg_id += 1;
                u64::from(self.next_msg_id - 1)
            }
            ("msg_id", _) => u64::from(self.next_msg_id) + self.random.random_range(0..80),
            ("tag", _) => self.random.random_range(0..4),
            ("msg_length" | "seg_offset" | "recv_length" | "rma_iov.len" | "runt_length", _) => {
                self.random.random_range(0..4000)
            }
            ("emitter_ope_type", _) => self.random.random_range(0..4),
            _ => self.seen[self.random.random_range(0..self.seen.len())].into(),
        }
    }

    /// A packet of a type, along the tables of fields.
    fn packet(&mut self, packet_type: PacketType) -> Vec<u8> {
        let choice: u16 = self.random.random();
        let mut flags = match packet_type {
            PacketType::Handshake => choice & 0x800f,
            packet_type if packet_type.is_req() => choice & 0x8003,
            _ => choice & 0x8000,
        };
        flags |= packet_type.implied_flags().bits();
        let entries = self.random.random_range(0..3);
        // Sometimes in the name of another owner of the queue pair, each time another one.
        let change = self.random.random_range(0..8) * u32::from(choice as u8) / 7;
        let mut address = self.script.peer_address();
        address.qkey.0 ^= change & 0xff;
        let mut packet = Vec::new();
        for section in sections(packet_type) {
            let rounds = if section.array.is_some() { entries } else { 1 };
            for _ in 0..rounds {
                for field in section.fields {
                    if !field.presence.holds(packet_type, flags) {
                        continue;
                    }
                    let number = match (field.kind, field.name) {
                        (FieldKind::PacketType, _) => packet_type.code().into(),
                        (FieldKind::Flags, _) => flags.into(),
                        (_, "version") => 4,
                        (FieldKind::Count(Array::ExtraInfo), _) => entries as u64 + 3,
                        (FieldKind::Count(_), _) => entries as u64,
                        (FieldKind::RawAddressSize, _) => 32,
                        (FieldKind::Padding, _) => 0,
                        (_, "raw_addr.qpn") => address.qpn.0.into(),
                        (_, "connid" | "raw_addr.connid" | "raw_addr.qkey") => {
                            address.qkey.0.into()
                        }
                        (_, "seg_length") => 100,
                        (_, name) => self.value(name),
                    };
                    match field.width {
                        Width::Fixed(16) => packet.extend_from_slice(&address.gid.0),
                        Width::Fixed(width) => {
                            packet.extend_from_slice(&number.to_le_bytes()[..width]);
                        }
                        Width::Rest if !forms(packet_type).is_empty() => {}
                        Width::Rest => packet.resize(packet.len() + 100, 7),
                        Width::RawAddressSurplus => {}
                    }
                }
            }
        }
        packet
    }

    /// Sends a packet. Returns its cost, and the number of objects that the engine held for the
    /// hostile peer.
    fn cost(&mut self, packet: &[u8]) -> (usize, usize) {
        let own = total(&self.script.dut.usage()).saturating_sub(total(&self.base));
        let before = steps_in_walks();
        self.script.inject(packet);
        let steps = steps_in_walks() - before;
        self.look();
        (steps, own)
    }
}

#[test]
fn packet_costs_do_not_grow_with_peers() {
    let mut engine = EngineWithPeers::new();
    for packet_type in PacketType::ALL {
        let mut whole = 0;
        let mut most = 0;
        for number in 0..PACKETS {
            if number % 20 == 0 {
                engine.part();
            }
            let packet = engine.packet(*packet_type);
            whole += usize::from(Packet::parse(&packet).is_ok());
            let (steps, own) = engine.cost(&packet);
            let bound = MOST + MOST_FOR_EACH_OWN * own;
            assert!(
                steps <= bound,
                "{packet_type:?}: {steps} steps with {own}: {packet:?}"
            );
            most = most.max(steps);
        }
        if packet_type.has_header() {
            assert!(
                whole > PACKETS / 4,
                "{packet_type:?}: {whole} packets parse"
            );
        }
        println!("{packet_type:?}: at most {most} steps, {whole} packets parse");
    }
    // The hostile peer has not touched them.
    engine.part();
    let usage = engine.script.dut.usage();
    assert!(
        usage.unexpected == BYSTANDERS && usage.outbound >= BYSTANDERS,
        "{usage:?}"
    );
}

/// The counter notices a walk over the objects of all peers: this call makes one on purpose.
#[test]
fn of_a_walk_over_everything_are_counted() {
    let mut engine = EngineWithPeers::new();
    let before = steps_in_walks();
    assert!(!engine.script.dut.cancel_context(u64::MAX));
    assert!(steps_in_walks() - before >= BYSTANDERS);
}
