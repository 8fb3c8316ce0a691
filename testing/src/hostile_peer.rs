//! One endpoint between an honest peer and a hostile one. The hostile peer's packets, the
//! application's calls and the order of events all come from a string of bytes, so that a fuzzer
//! can search for a string that breaks an invariant:
//!
//! * nothing panics, and no resource exceeds the limits in the settings;
//! * every operation is reported at most once, and memory without an operation stays unchanged;
//! * the honest peer's messages arrive exactly once and intact, whatever the hostile peer does;
//! * after the hostile peer was removed, it uses no resources any more.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use efa_core::endpoint::*;
use efa_core::nic::{Access, DeviceCaps, Nic, RemoteKey, Source, Status, UserSlice};
use efa_core::wire::*;

use crate::choices::Choices;
use crate::nic::{DeviceTraits, MEMORY, Network, NetworkNic};
use crate::pattern;

const MTU: usize = 256;
const MEMORY_SIZE: usize = 64 << 10;
/// Memory whose key the hostile peer knows.
const EXPOSED: u64 = MEMORY;
const EXPOSED_SIZE: usize = 4096;
/// Memory that no operation uses.
const UNTOUCHED: u64 = EXPOSED + EXPOSED_SIZE as u64;
const UNTOUCHED_SIZE: usize = 4096;
/// Buffers of operations with the hostile peer.
const HOSTILE: u64 = UNTOUCHED + UNTOUCHED_SIZE as u64;
const HOSTILE_SIZE: usize = 8192;
/// Buffers of operations with the honest peer, one slot per message.
const HONEST: u64 = HOSTILE + HOSTILE_SIZE as u64;
const SLOT: usize = 1024;
const MAX_HONEST: usize = 20;
/// The first tag of the honest peer's messages, and the first context of their receives. Each
/// message has its own tag, because ordering may be disabled.
const HONEST_TAG: u64 = 0x4040;
const HONEST_CONTEXT: u64 = 1 << 40;

const DUT: usize = 0;
const PEER: usize = 1;
const ATTACKER: usize = 2;

/// Operations of the application, excluding the bystanders.
const OPERATIONS: usize = 512;
/// Unmatched receives from the honest peer, in some runs: the cost of the hostile peer's packets
/// must not depend on them.
const BYSTANDERS: usize = 2000;
/// The first tag of the bystanders.
const BYSTANDER_TAG: u64 = 1 << 50;
/// The most list steps of the engine in one call of `progress`. A batch of 8 packets costs a
/// constant each; one of them may remove the hostile peer, which costs as much as its resources.
/// Only builds with debug assertions count the steps.
#[cfg(debug_assertions)]
const MOST_STEPS: usize =
    8 * 16 + 512 + REMOTE_OPERATIONS + 7 * PEER_OPERATIONS + 2 * DEFERRED_BYTES / 256;
/// The limit of concurrent operations of all peers.
const REMOTE_OPERATIONS: usize = 12;
/// The limit of concurrent requests of one peer.
const PEER_OPERATIONS: usize = 24;
const DEFERRED_BYTES: usize = 64 << 10;
const RECV_DEPTH: usize = 32;
const SEND_DEPTH: usize = 16;

/// A length near one of the limits, or any.
fn length(choices: &mut Choices<'_>) -> u64 {
    match choices.byte() {
        0 => 0,
        1 => 1,
        2 => MTU as u64,
        3 => u64::MAX,
        4 => u64::MAX - 100,
        5 => 1 << 32,
        6 => choices.word().into(),
        other => u64::from(other) * 16,
    }
}

/// The messages with the honest peer in one direction.
#[derive(Default)]
struct Conversation {
    sent: usize,
    received: usize,
}

/// The endpoint under test and everything around it.
struct HostileRun<'a> {
    /// The bytes that determine the whole run.
    choices: Choices<'a>,
    network: Network,
    dut: Endpoint<NetworkNic>,
    peer: Endpoint<NetworkNic>,
    attacker: NetworkNic,
    now: Instant,
    /// Ids at the endpoint under test.
    honest: PeerId,
    hostile: Option<PeerId>,
    dut_at_peer: PeerId,
    exposed: RemoteKey,
    /// Messages from the honest peer, and to it.
    incoming: Conversation,
    outgoing: Conversation,
    /// 32-bit words of the packets that the endpoint sent to the hostile peer, which include ids.
    seen: Vec<u32>,
    next_msg_id: u32,
    last: Vec<u8>,
    contexts: BTreeMap<u64, bool>,
    next_context: u64,
    receives: Vec<ReceiveId>,
    bystanders: Vec<ReceiveId>,
    claims: Vec<ClaimId>,
    multi_contexts: BTreeSet<u64>,
    /// Contexts of injected operations. Only their failures are reported.
    silent_contexts: BTreeSet<u64>,
}

fn config(choices: &mut Choices<'_>) -> EndpointConfig {
    EndpointConfig {
        recv_buffers: RECV_DEPTH,
        poll_batch: 8,
        max_operations: OPERATIONS,
        remote_operations: REMOTE_OPERATIONS,
        peer_operations: PEER_OPERATIONS,
        reorder_window: 64,
        deferred_bytes: DEFERRED_BYTES,
        peer_deferred_bytes: DEFERRED_BYTES / 4,
        max_implicit_peers: 4,
        first_msg_id: if choices.flag() { 0 } else { u32::MAX - 2 },
        max_medium_size: 600,
        min_read_message_size: if choices.flag() { 700 } else { 4000 },
        min_read_write_size: 700,
        runt_size: if choices.flag() { 300 } else { 0 },
        read_segment_size: 500,
        cts_window_packets: 2,
        max_events: 8,
        ordered: choices.flag(),
        ..EndpointConfig::default()
    }
}

/// The length of the honest message with this number: eager, medium, long.
fn honest_length(number: usize) -> usize {
    [40, 400, 1000][number % 3]
}

/// Executes the run that `bytes` determine.
pub fn run(bytes: &[u8]) {
    let mut all = HostileRun::new(bytes);
    let mut commands = 0;
    // The number of commands is bounded, so that no run takes long.
    while !all.choices.0.is_empty() && commands < 600 {
        all.command();
        all.check_limits();
        commands += 1;
    }
    all.end();
}

impl<'a> HostileRun<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let mut choices = Choices(bytes);
        let network = Network::default();
        let caps = match choices.below(3) {
            0 => DeviceCaps::empty(),
            1 => DeviceCaps::RDMA_READ,
            _ => DeviceCaps::RDMA_READ | DeviceCaps::RDMA_WRITE,
        };
        let traits = DeviceTraits {
            mtu: MTU,
            send_depth: SEND_DEPTH,
            recv_depth: RECV_DEPTH,
            memory: MEMORY_SIZE,
            caps,
            part_id: 0xEFA1,
            max_regions: if choices.flag() { 2 } else { 100 },
        };
        let mut config = config(&mut choices);
        // They are slow, so not every run has them.
        let bystanders = if bytes.len().is_multiple_of(8) {
            BYSTANDERS
        } else {
            0
        };
        config.max_operations += bystanders;
        let dut = network.open(1, 10, 0x1111, traits.clone());
        let peer = network.open(2, 20, 0x2222, traits.clone());
        let attacker = network.open(3, 30, 0x3333, traits);
        let mut dut = Endpoint::new(dut, config.clone()).expect("valid settings");
        let mut peer = Endpoint::new(peer, config).expect("valid settings");
        let honest = dut.insert_address(peer.address()).expect("room");
        let dut_at_peer = peer.insert_address(dut.address()).expect("room");
        let hostile = dut.insert_address(attacker.address()).ok();
        let exposed = UserSlice::new(EXPOSED, EXPOSED_SIZE);
        let exposed = dut.register(exposed, Access::all()).expect("room");
        network.fill(DUT, UNTOUCHED, &pattern(UNTOUCHED_SIZE, 99));
        let next_msg_id = dut.config().first_msg_id;
        let mut all = HostileRun {
            choices,
            network,
            dut,
            peer,
            attacker,
            now: Instant::START,
            honest,
            hostile,
            dut_at_peer,
            exposed: exposed.remote_key,
            incoming: Conversation::default(),
            outgoing: Conversation::default(),
            seen: vec![0],
            next_msg_id,
            last: Vec::new(),
            contexts: BTreeMap::new(),
            next_context: 1,
            receives: Vec::new(),
            bystanders: Vec::new(),
            claims: Vec::new(),
            multi_contexts: BTreeSet::new(),
            silent_contexts: BTreeSet::new(),
        };
        if all.choices.flag() {
            all.shake_hands();
        }
        (0..bystanders).for_each(|number| all.post_bystander(number));
        all
    }

    fn post_bystander(&mut self, number: usize) {
        let context = self.context();
        self.contexts.insert(context, false);
        let receive = self.dut.recv(RecvArgs {
            tag: Some(TagFilter::exact(BYSTANDER_TAG + number as u64)),
            ..RecvArgs::new(SourceFilter::Peer(self.honest), &[], context)
        });
        self.bystanders.push(receive.expect("there is room"));
    }

    fn command(&mut self) {
        match self.choices.byte() % 20 {
            0..=6 => {
                let packet = self.packet();
                self.inject(packet);
            }
            7 => {
                let length = self.choices.below(64);
                let mut packet: Vec<u8> = (0..length).map(|_| self.choices.byte()).collect();
                if let Some(version) = packet.get_mut(1) {
                    *version = PROTOCOL_VERSION;
                }
                self.inject(packet);
            }
            8 => {
                // Repeats the packet: limits must hold however often it comes.
                let times = self.choices.below(120);
                for turn in 0..times {
                    let packet = self.last.clone();
                    self.inject(packet);
                    if turn % 8 == 7 {
                        self.progress();
                    }
                }
            }
            9 | 10 => self.travel(),
            11 => self.operation(),
            12 => self.receive(),
            13 => self.exchange(),
            14 => {
                let wait = u64::from(self.choices.byte()) * 10;
                self.now = self.now + Duration::from_micros(wait);
                self.progress();
            }
            15 if self.choices.below(8) == 0 => self.replace_hostile(),
            16 => self.look(),
            17 => self.shake_hands(),
            _ => self.progress(),
        }
    }

    fn progress(&mut self) {
        #[cfg(debug_assertions)]
        let before = steps_in_walks();
        self.dut.progress(self.now);
        #[cfg(debug_assertions)]
        {
            let steps = steps_in_walks() - before;
            assert!(steps <= MOST_STEPS, "{steps} steps, {:?}", self.dut.usage());
        }
        self.collect();
        self.peer.progress(self.now);
        self.collect_peer();
    }

    fn source(&self) -> Source {
        let address = self.attacker.address();
        Source {
            ahn: self.network.ahn(DUT, address.gid),
            qpn: address.qpn,
            gid: None,
        }
    }

    fn inject(&mut self, packet: Vec<u8>) {
        if packet.len() > MTU {
            return;
        }
        let source = self.source();
        self.network.inject(DUT, source, &packet);
        self.last = packet;
    }

    fn connid(&self) -> Option<Connid> {
        Some(self.attacker.address().qkey.into())
    }

    fn shake_hands(&mut self) {
        let features = ExtraFeatures::from_bits_retain(match self.choices.byte() {
            0 => 0,
            1 => u64::MAX,
            // A peer that supports READ_NACK (bit 6) also supports PEER_ERROR (bit 9).
            other => u64::from(other) | 0x100 | u64::from(other & 0x40) << 3,
        });
        let device_version = if self.choices.flag() { 0xEFA1 } else { 0xEFA0 };
        let packet = Handshake {
            extra_info: features.into(),
            connid: self.connid(),
            device_version: Some(device_version),
            user_recv_qp: features
                .contains(ExtraFeatures::USER_RECV_QP)
                .then_some(UserRecvQp {
                    qpn: 77,
                    qkey: efa_core::address::Qkey(7),
                }),
            ..Handshake::default()
        }
        .to_packet(&[]);
        self.inject(packet);
    }

    /// An id that the endpoint may know, or any other.
    fn id(&mut self) -> u32 {
        match self.choices.byte() {
            255 => self.choices.word(),
            index => self.seen[usize::from(index) % self.seen.len()],
        }
    }

    fn msg_id(&mut self) -> MsgId {
        let id = match self.choices.byte() {
            0..160 => {
                let id = self.next_msg_id;
                self.next_msg_id = id.wrapping_add(1);
                id
            }
            160..240 => {
                let ahead = self.choices.below(70) as u32;
                self.next_msg_id.wrapping_sub(4).wrapping_add(ahead)
            }
            _ => self.choices.word(),
        };
        MsgId(id)
    }

    fn options(&mut self) -> ReqOptions {
        let choice = self.choices.byte();
        let mut address = self.attacker.address();
        ReqOptions {
            raw_address: (choice & 1 == 1).then(|| {
                if choice & 0x30 == 0x30 {
                    address.qkey.0 ^= u32::from(choice);
                }
                RawAddressHeader::new(address)
            }),
            cq_data: (choice & 2 == 2).then_some(0x1234_5678_9abc),
            connid: (choice & 4 == 4).then_some(Connid(0x3333)),
            flags: if choice & 0x80 == 0x80 {
                ReqFlags::READ_NACK
            } else {
                ReqFlags::empty()
            },
        }
    }

    fn pieces(&mut self, length: u64) -> Vec<RmaIov> {
        let key = self.exposed.0;
        match self.choices.byte() {
            0 => Vec::new(),
            1 => vec![RmaIov::new(EXPOSED, length, key + 1)],
            2 => vec![RmaIov::new(UNTOUCHED, length, key)],
            3 => vec![RmaIov::new(u64::MAX - 10, length, key)],
            4 => vec![RmaIov::new(EXPOSED, u64::MAX, key); 4],
            5..40 => {
                let part = length / 3;
                vec![
                    RmaIov::new(EXPOSED, part, key),
                    RmaIov::new(EXPOSED + 2000, 0, key),
                    RmaIov::new(EXPOSED + 1000, length - part, key),
                ]
            }
            _ => vec![RmaIov::new(EXPOSED + 8, length, key)],
        }
    }

    /// A valid packet, with field values that the endpoint may know.
    fn packet(&mut self) -> Vec<u8> {
        let kind = self.choices.below(18);
        let (msg_id, options) = (self.msg_id(), self.options());
        let msg_length = length(&mut self.choices);
        let seg_offset = match self.choices.byte() {
            0..128 => 0,
            128..200 => 150,
            _ => length(&mut self.choices),
        };
        let payload = pattern(self.choices.below(MTU - 60), kind as u8);
        let (send_id, recv_id) = (SendId(self.id()), RecvId(self.id()));
        let connid = match self.choices.byte() {
            0 => None,
            1 => Some(Connid(0x9999)),
            _ => self.connid(),
        };
        let shape = self.choices.byte();
        let tag = (shape & 1 == 1).then_some(u64::from(shape >> 6));
        let receipt = (shape & 2 == 2).then_some(send_id);
        let delivery_complete = shape & 2 == 2;
        let pieces = self.pieces(match kind {
            5 | 9 => payload.len() as u64,
            _ => msg_length,
        });
        let iovs = RmaIovs::new(&pieces).unwrap_or(RmaIovs::EMPTY);
        let seg_length = payload.len() as u64;
        match kind {
            0 => EagerRtm {
                msg_id,
                tag,
                receipt,
                options,
            }
            .to_packet(&payload),
            1 => MediumRtm {
                msg_id,
                msg_length,
                seg_offset,
                tag,
                receipt,
                options,
            }
            .to_packet(&payload),
            2 => LongctsRtm {
                msg_id,
                msg_length,
                send_id,
                credit_request: shape.into(),
                tag,
                delivery_complete,
                options,
            }
            .to_packet(&payload),
            3 => LongreadRtm {
                msg_id,
                msg_length,
                send_id,
                tag,
                read_iov: iovs,
                options,
            }
            .to_packet(&[]),
            4 => RuntreadRtm {
                msg_id,
                msg_length,
                send_id,
                seg_offset,
                runt_length: length(&mut self.choices),
                tag,
                read_iov: iovs,
                options,
            }
            .to_packet(&payload),
            5 => EagerRtw {
                rma_iov: iovs,
                receipt,
                options,
            }
            .to_packet(&payload),
            6 => LongctsRtw {
                rma_iov: iovs,
                msg_length,
                send_id,
                credit_request: 1,
                delivery_complete,
                options,
            }
            .to_packet(&payload),
            7 => LongreadRtw {
                rma_iov: iovs,
                msg_length,
                send_id,
                read_iov: iovs,
                options,
            }
            .to_packet(&[]),
            8 => Rtr {
                kind: if shape & 4 == 4 {
                    RtrKind::Short
                } else {
                    RtrKind::Longcts
                },
                rma_iov: iovs,
                msg_length,
                recv_id,
                recv_length: length(&mut self.choices) as u32,
                options,
            }
            .to_packet(&[]),
            9 => Rta {
                kind: match shape & 3 {
                    0 => RtaKind::Write,
                    1 => RtaKind::Fetch(recv_id),
                    2 => RtaKind::Compare(recv_id),
                    _ => RtaKind::DcWrite(send_id),
                },
                msg_id,
                atomic_datatype: AtomicDatatype((shape >> 2).into()),
                atomic_op: AtomicOp(self.choices.below(21) as u32),
                rma_iov: iovs,
                options,
            }
            .to_packet(&payload),
            10 => Cts {
                connid,
                send_id,
                recv_id,
                recv_length: msg_length,
                ..Cts::default()
            }
            .to_packet(&[]),
            11 => CtsData {
                recv_id,
                seg_length,
                seg_offset,
                connid,
                ..CtsData::default()
            }
            .to_packet(&payload),
            12 => ReadRsp {
                connid,
                recv_id,
                send_id,
                seg_length,
                ..ReadRsp::default()
            }
            .to_packet(&payload),
            13 => Eor {
                send_id,
                recv_id,
                connid,
                ..Eor::default()
            }
            .to_packet(&[]),
            14 => AtomRsp {
                connid,
                recv_id,
                seg_length,
                ..AtomRsp::default()
            }
            .to_packet(&payload),
            15 => Receipt {
                send_id,
                msg_id,
                connid,
                ..Receipt::default()
            }
            .to_packet(&[]),
            16 => ReadNack {
                send_id,
                recv_id,
                connid,
                ..ReadNack::default()
            }
            .to_packet(&[]),
            _ => self.peer_error(msg_id, shape),
        }
    }

    /// A PEER_ERROR of either side for known or unknown operations and messages, with the right
    /// length or any other.
    fn peer_error(&mut self, msg_id: MsgId, shape: u8) -> Vec<u8> {
        let error = PeerError {
            msg_id: match shape & 3 {
                0 => MsgId(self.id()),
                _ => msg_id,
            },
            op_id: match shape & 12 {
                0 => PeerError::NO_OP,
                _ => self.id(),
            },
            emitter_ope_type: OpeType(u32::from(shape >> 4) % 4),
            prov_errno: self.choices.word(),
            connid: self.connid(),
            ..PeerError::default()
        };
        let mut bytes = error.to_packet(&[]);
        if shape >= 0xc0 {
            bytes.resize(4 + self.choices.below(61), shape);
        }
        bytes
    }

    /// Delivers or fails a packet or request in flight.
    fn travel(&mut self) {
        let count = self.network.flights();
        if count == 0 {
            return;
        }
        let index = self.choices.below(count);
        let to = self.network.destination(index);
        if to != Some(ATTACKER) {
            self.network.deliver(index);
            return self.progress();
        }
        match self.choices.byte() {
            0..10 => self.network.fail(index, Status::RemoteRnr),
            10 => self.network.fail(index, Status::RemoteBadDestQpn),
            11 => self.network.fail(index, Status::RemoteAbort),
            12 => self.network.fail(index, Status::RemoteBadAddress),
            13 => self.network.fail(index, Status::LocalUnresponsiveRemote),
            14 => self.network.repeat_completion(index),
            _ => {
                let bytes = self.network.swallow(index);
                for word in bytes.chunks_exact(4).skip(1).take(16) {
                    let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    if !self.seen.contains(&word) {
                        self.seen.push(word);
                    }
                }
                if self.seen.len() > 64 {
                    self.seen.drain(..16);
                }
            }
        }
        self.progress();
    }

    fn context(&mut self) -> u64 {
        let context = self.next_context;
        self.next_context += 1;
        context
    }

    /// Starts an operation with the hostile peer.
    fn operation(&mut self) {
        let Some(peer) = self.hostile else { return };
        // Leaves room for the other peers.
        if self.dut.usage().outbound >= OPERATIONS / 8 {
            return;
        }
        let length = [0, 8, 200, 500, 1000, 3000][self.choices.below(6)];
        let kind = self.choices.below(6);
        let shape = self.choices.byte();
        let mut flags = OperationFlags::COMPLETION;
        if shape & 1 == 1 {
            flags |= OperationFlags::DELIVERY_COMPLETE;
        }
        if shape & 2 == 2 && length < 80 {
            flags |= OperationFlags::INJECT;
        }
        let context = self.context();
        let memory = |offset: u64, length| IoVec::new(UserSlice::new(HOSTILE + offset, length));
        let whole = [memory(0, length)];
        let remote = [RemoteIoVec::new(0x1000, length as u64, RemoteKey(9))];
        let started = match kind {
            0 | 1 => self.dut.send(SendArgs {
                peer,
                data: &whole,
                tag: (shape & 4 == 4).then_some(3),
                cq_data: (shape & 8 == 8).then_some(5),
                flags,
                context,
            }),
            2 => self.dut.write(WriteArgs {
                peer,
                data: &whole,
                remote: &remote,
                cq_data: (shape & 8 == 8).then_some(5),
                flags,
                context,
            }),
            3 => self.dut.read(ReadArgs {
                peer,
                buffer: &whole,
                remote: &remote,
                flags,
                context,
            }),
            _ => {
                let (result, comparand) = ([memory(16, 8)], [memory(32, 8)]);
                self.dut.atomic(AtomicArgs {
                    peer,
                    datatype: AtomicDatatype::UINT64,
                    operation: if kind == 5 {
                        AtomicOp::CSWAP
                    } else {
                        AtomicOp::SUM
                    },
                    operand: &[memory(0, 8)],
                    kind: match (kind, shape & 4) {
                        (5, _) => AtomicKind::Compare {
                            result: &result,
                            comparand: &comparand,
                        },
                        (_, 4) => AtomicKind::Fetch { result: &result },
                        _ => AtomicKind::Write,
                    },
                    remote: &[RemoteIoVec {
                        length: 8,
                        ..remote[0]
                    }],
                    flags,
                    context,
                })
            }
        };
        if started.is_ok() {
            self.contexts.insert(context, false);
            if flags.contains(OperationFlags::INJECT) {
                self.silent_contexts.insert(context);
            }
        }
    }

    /// Posts a receive that the hostile peer's messages may match.
    fn receive(&mut self) {
        if self.dut.usage().inbound - self.bystanders.len() >= OPERATIONS / 8 {
            return;
        }
        let shape = self.choices.byte();
        let length = [16, 300, 2000, 6000][usize::from(shape & 3)];
        let context = self.context();
        let buffer = IoVec::new(UserSlice::new(HOSTILE, length));
        let source = match self.hostile {
            Some(peer) if shape & 4 == 4 => SourceFilter::Peer(peer),
            _ => SourceFilter::Any,
        };
        let posted = if shape & 0x38 == 0x38 {
            self.multi_contexts.insert(context);
            self.dut.multi_recv(MultiRecvArgs {
                source,
                // Each message takes at least a byte.
                buffer: IoVec::new(UserSlice::new(HOSTILE, 64)),
                min_free: 10,
                context,
            })
        } else {
            self.dut.recv(RecvArgs {
                source,
                buffer: &[buffer],
                // Never the honest peer's tag.
                tag: (shape & 8 == 8).then_some(TagFilter { tag: 0, ignore: 3 }),
                flags: OperationFlags::COMPLETION,
                context,
            })
        };
        if let Ok(id) = posted {
            self.receives.push(id);
            self.contexts.insert(context, false);
        }
    }

    /// Exchanges messages in both directions between the endpoint and its honest peer.
    fn exchange(&mut self) {
        let number = self.incoming.sent;
        if number == MAX_HONEST {
            return;
        }
        let slot = |side: u64| UserSlice {
            address: HONEST + side * (MAX_HONEST * SLOT) as u64 + (number * SLOT) as u64,
            length: SLOT,
        };
        let length = honest_length(number);
        let data = UserSlice { length, ..slot(1) };
        self.network
            .fill(DUT, data.address, &pattern(length, number as u8));
        self.network
            .fill(PEER, data.address, &pattern(length, number as u8 + 100));
        for host in [DUT, PEER] {
            let (endpoint, peer) = match host {
                DUT => (&mut self.dut, self.honest),
                _ => (&mut self.peer, self.dut_at_peer),
            };
            endpoint
                .recv(RecvArgs {
                    source: SourceFilter::Peer(peer),
                    buffer: &[IoVec::new(slot(0))],
                    tag: Some(TagFilter::exact(HONEST_TAG + number as u64)),
                    flags: OperationFlags::COMPLETION,
                    context: HONEST_CONTEXT + number as u64,
                })
                .expect("the hostile peer leaves room for receives");
        }
        self.incoming.sent += 1;
        for host in [DUT, PEER] {
            for turn in 0.. {
                let (endpoint, peer) = match host {
                    DUT => (&mut self.dut, self.honest),
                    _ => (&mut self.peer, self.dut_at_peer),
                };
                let sent = endpoint.send(SendArgs {
                    tag: Some(HONEST_TAG + number as u64),
                    flags: OperationFlags::empty(),
                    ..SendArgs::new(peer, &[IoVec::new(data)], 0)
                });
                match sent {
                    Ok(()) => break,
                    Err(EndpointError::TryAgain) => self.let_pass(),
                    Err(error) => panic!("host {host} cannot send: {error}"),
                }
                assert!(turn < 1000, "host {host} can never send");
            }
        }
        self.outgoing.sent += 1;
    }

    /// Delivers everything in flight, and advances the time.
    fn let_pass(&mut self) {
        while self.network.flights() > 0 {
            match self.network.destination(0) {
                Some(ATTACKER) => {
                    self.network.swallow(0);
                }
                _ => {
                    self.network.deliver(0);
                }
            }
        }
        self.progress();
        let timeouts = [self.dut.next_timeout(), self.peer.next_timeout()];
        let next = timeouts.into_iter().flatten().min();
        self.now = self.now.max(next.unwrap_or(self.now)) + Duration::from_micros(1);
    }

    fn replace_hostile(&mut self) {
        match self.hostile.take() {
            Some(peer) => self.dut.remove_address(peer).expect("it is there"),
            None => self.hostile = self.dut.insert_address(self.attacker.address()).ok(),
        }
    }

    fn look(&mut self) {
        let shape = self.choices.byte();
        let tag = (shape & 1 == 1).then_some(TagFilter { tag: 0, ignore: 3 });
        match shape >> 1 & 7 {
            0 => {
                let index = usize::from(shape >> 4);
                if let Some(id) = self.receives.get(index) {
                    self.dut.cancel(*id);
                }
            }
            1 => {
                self.dut.peek(SourceFilter::Any, tag);
            }
            2 | 3 => {
                if let Some((claim, info)) = self.dut.claim(SourceFilter::Any, tag) {
                    assert_ne!(info.source, self.honest, "its tag does not match");
                    self.claims.push(claim);
                }
            }
            4 | 5 => {
                if let Some(claim) = self.claims.pop() {
                    let context = self.context();
                    let buffer = UserSlice::new(HOSTILE, 300);
                    let received = self.dut.recv_claimed(ClaimedRecvArgs {
                        claim,
                        buffer: &[IoVec::new(buffer)],
                        flags: OperationFlags::COMPLETION,
                        context,
                    });
                    match received {
                        Ok(_) => {
                            self.contexts.insert(context, false);
                        }
                        Err(EndpointError::TryAgain) => self.claims.push(claim),
                        Err(_) => {}
                    }
                }
            }
            _ => {
                if let Some(claim) = self.claims.pop()
                    && self.dut.discard(claim) == Err(EndpointError::TryAgain)
                {
                    self.claims.push(claim);
                }
            }
        }
    }

    fn collect(&mut self) {
        while let Some(completion) = self.dut.poll_completion() {
            let (context, failure) = match completion {
                Ok(entry) => (entry.context, None),
                Err(entry) => (entry.context, Some(entry.failure)),
            };
            if context >= HONEST_CONTEXT {
                let number = (context - HONEST_CONTEXT) as usize;
                assert_eq!(failure, None, "the honest peer's message {number}");
                self.check_message(DUT, number);
                continue;
            }
            // Context 0: sends to the honest peer, which must not fail, and peers' writes.
            assert!(context != 0 || failure.is_none(), "{failure:?}");
            if context == 0 || self.multi_contexts.contains(&context) {
                continue;
            }
            match self.contexts.get_mut(&context) {
                Some(reported) if !*reported => *reported = true,
                Some(_) => panic!("operation {context} was reported twice"),
                None => panic!("nobody started operation {context}"),
            }
        }
        if self.choices.0.len().is_multiple_of(3) {
            while let Some(event) = self.dut.poll_event() {
                if let Event::PeerFailed { peer, .. } = event {
                    assert_ne!(peer, self.honest, "the honest peer was given up");
                }
            }
        }
    }

    fn collect_peer(&mut self) {
        while let Some(completion) = self.peer.poll_completion() {
            let entry = completion.expect("nothing of the honest peer fails");
            if entry.context >= HONEST_CONTEXT {
                self.check_message(PEER, (entry.context - HONEST_CONTEXT) as usize);
            }
        }
    }

    /// Checks a message of the honest conversation, in the order of numbers.
    fn check_message(&mut self, host: usize, number: usize) {
        let (conversation, salt) = match host {
            DUT => (&mut self.incoming, 100),
            _ => (&mut self.outgoing, 0),
        };
        conversation.received += 1;
        let length = honest_length(number);
        let found = self
            .network
            .memory(host, HONEST + (number * SLOT) as u64, length);
        assert!(
            found == pattern(length, (number + salt) as u8),
            "message {number} at host {host} is damaged"
        );
    }

    fn check_limits(&self) {
        let usage = self.dut.usage();
        let limit = DEFERRED_BYTES / MTU + RECV_DEPTH;
        assert!(
            usage.deferred_packets <= limit.max(DEFERRED_BYTES / 128 + RECV_DEPTH),
            "{usage:?}"
        );
        let operations = self.dut.config().max_operations + REMOTE_OPERATIONS;
        assert!(usage.outbound <= operations, "{usage:?}");
        assert!(usage.inbound <= operations, "{usage:?}");
        assert!(usage.waiting <= usage.deferred_packets, "{usage:?}");
        assert!(
            usage.assemblies <= usage.deferred_packets + usage.inbound,
            "{usage:?}"
        );
        // The hostile queue pair may pose as several peers. Packets for a removed one are dropped
        // with the next call.
        assert!(usage.owed <= PEER_OPERATIONS * 7, "{usage:?}");
        assert!(usage.peers <= 6, "{usage:?}");
    }

    fn end(mut self) {
        // The honest peer's messages must arrive although the hostile peer is still connected.
        for _ in 0..2000 {
            let done = |conversation: &Conversation, sent| conversation.received == sent;
            if done(&self.incoming, self.incoming.sent) && done(&self.outgoing, self.incoming.sent)
            {
                break;
            }
            self.let_pass();
        }
        let received = (self.incoming.received, self.outgoing.received);
        let sent = self.incoming.sent;
        assert_eq!(received, (sent, sent), "{:?}", self.dut.usage());
        // A packet in flight may introduce its sender once more.
        for _ in 0..20 {
            self.let_pass();
        }
        let mut address = self.attacker.address();
        for change in 0..=255 {
            address.qkey.0 = 0x3333 ^ change;
            if let Some(peer) = self.dut.find_address(&address) {
                self.dut.remove_address(peer).expect("it is there");
            }
        }
        let receives = core::mem::take(&mut self.receives);
        let bystanders = core::mem::take(&mut self.bystanders);
        for id in receives.into_iter().chain(bystanders) {
            self.dut.cancel(id);
        }
        for _ in 0..200 {
            self.let_pass();
        }
        let expected = Usage {
            peers: 1,
            ..Usage::default()
        };
        assert_eq!(self.dut.usage(), expected);
        assert!(!self.dut.has_packets_in_flight());
        for (context, reported) in &self.contexts {
            assert!(
                *reported
                    || self.multi_contexts.contains(context)
                    || self.silent_contexts.contains(context),
                "operation {context} was never reported"
            );
        }
        assert_eq!(self.network.receives_posted(DUT), RECV_DEPTH);
        assert_eq!(self.dut.nic().free_buffers(), SEND_DEPTH);
        assert_eq!(self.network.regions(DUT), 1);
        let untouched = self.network.memory(DUT, UNTOUCHED, UNTOUCHED_SIZE);
        assert!(
            untouched == pattern(UNTOUCHED_SIZE, 99),
            "foreign memory was changed"
        );
    }
}
