//! One endpoint under test, and a peer that the test plays packet by packet.

use core::fmt::Debug;

use efa_core::address::RawAddress;
use efa_core::endpoint::*;
use efa_core::nic::{DeviceCaps, RemoteKey, Source, UserSlice};
use efa_core::wire::{
    AtomicDatatype, AtomicOp, Connid, Cts, CtsData, EagerRtm, ExtraFeatures, Handshake, Header,
    MediumRtm, MsgId, Packet, RecvId, Repr, ReqOptions, SendId,
};

use efa_testing::nic::{DeviceTraits, MEMORY, Network, NetworkNic};

pub(crate) fn memory(offset: u64, length: usize) -> IoVec {
    IoVec::new(UserSlice::new(MEMORY + offset, length))
}

/// Memory of the peer.
pub(crate) const fn peer_memory(address: u64, length: u64, key: u64) -> RemoteIoVec {
    RemoteIoVec::new(address, length, RemoteKey(key))
}

/// An atomic that adds numbers of 64 bits.
pub(crate) fn sum<'a>(
    peer: PeerId,
    operand: &'a [IoVec],
    remote: &'a [RemoteIoVec],
) -> AtomicArgs<'a> {
    AtomicArgs {
        peer,
        datatype: AtomicDatatype::UINT64,
        operation: AtomicOp::SUM,
        operand,
        kind: AtomicKind::Write,
        remote,
        flags: OperationFlags::COMPLETION,
        context: 1,
    }
}

/// The endpoint under test is device 0. The peer is device 1, which is driven only by the script.
pub(crate) struct Script {
    pub(crate) network: Network,
    pub(crate) dut: Endpoint<NetworkNic>,
    peer: NetworkNic,
    pub(crate) now: Instant,
}

pub(crate) fn config() -> EndpointConfig {
    EndpointConfig {
        max_medium_size: 2000,
        min_read_message_size: 10_000,
        min_read_write_size: 3000,
        cts_window_packets: 2,
        ..EndpointConfig::default()
    }
}

pub(crate) fn traits() -> DeviceTraits {
    DeviceTraits {
        caps: DeviceCaps::RDMA_READ | DeviceCaps::RDMA_WRITE,
        part_id: 0xEFA1,
        ..DeviceTraits::default()
    }
}

/// The usual configuration with a change.
pub(crate) fn config_with(change: impl FnOnce(&mut EndpointConfig)) -> EndpointConfig {
    let mut config = config();
    change(&mut config);
    config
}

/// The usual device with a change.
pub(crate) fn traits_with(change: impl FnOnce(&mut DeviceTraits)) -> DeviceTraits {
    let mut traits = traits();
    change(&mut traits);
    traits
}

impl Script {
    pub(crate) fn new() -> Self {
        Script::with(config(), traits())
    }

    pub(crate) fn with(config: EndpointConfig, traits: DeviceTraits) -> Self {
        let network = Network::default();
        let nic = network.open(1, 10, 0x1111_1111, traits.clone());
        let peer = network.open(2, 20, 0x2222_2222, traits);
        Script {
            dut: Endpoint::new(nic, config).unwrap(),
            peer,
            network,
            now: Instant::START,
        }
    }

    pub(crate) fn peer_address(&self) -> RawAddress {
        use efa_core::nic::Nic;
        self.peer.address()
    }

    pub(crate) fn insert_peer(&mut self) -> PeerId {
        let address = self.peer_address();
        self.dut.insert_address(address).unwrap()
    }

    /// Another endpoint of the peer's host, which sends nothing.
    pub(crate) fn insert_other_peer(&mut self) -> PeerId {
        let mut address = self.peer_address();
        address.qpn.0 += 1;
        self.dut.insert_address(address).unwrap()
    }

    pub(crate) fn progress(&mut self) {
        while self.dut.progress(self.now) > 0 {}
    }

    /// How the device names the peer as the sender of a packet: by the AHN if the peer's host is in
    /// the address book.
    pub(crate) fn source(&self) -> Source {
        let address = self.peer_address();
        Source {
            ahn: self.network.ahn(0, address.gid),
            qpn: address.qpn,
            gid: None,
        }
    }

    /// The peer sends bytes.
    pub(crate) fn inject(&mut self, bytes: &[u8]) {
        let source = self.source();
        self.inject_from(source, bytes);
    }

    pub(crate) fn inject_from(&mut self, source: Source, bytes: &[u8]) {
        assert!(self.network.inject(0, source, bytes), "no receive buffer");
        self.progress();
    }

    /// The peer sends a packet.
    pub(crate) fn send(&mut self, header: &impl Repr, payload: &[u8]) {
        self.inject(&header.to_packet(payload));
    }

    /// The peer's handshake.
    pub(crate) fn shake_hands(&mut self, features: ExtraFeatures) {
        self.send(
            &Handshake {
                extra_info: features.into(),
                connid: self.connid(),
                device_version: Some(0xEFA1),
                ..Handshake::default()
            },
            &[],
        );
    }

    pub(crate) fn connid(&self) -> Option<Connid> {
        Some(self.peer_address().qkey.into())
    }

    pub(crate) fn raw_address(&self) -> ReqOptions {
        ReqOptions::with_raw_address(self.peer_address())
    }

    /// The headers of a peer that has its HANDSHAKE: the connection id instead of the address.
    pub(crate) fn by_connid(&self) -> ReqOptions {
        ReqOptions::with_connid(self.peer_address().qkey.into())
    }

    pub(crate) fn eager(&self, msg_id: u32) -> EagerRtm {
        EagerRtm::new(MsgId(msg_id), self.raw_address())
    }

    /// A segment of a message of `msg_length` bytes.
    pub(crate) fn medium(&self, msg_id: u32, msg_length: u64, seg_offset: u64) -> MediumRtm {
        MediumRtm {
            msg_id: MsgId(msg_id),
            msg_length,
            seg_offset,
            options: self.raw_address(),
            ..MediumRtm::default()
        }
    }

    /// A CTS for the endpoint's operation `send_id`.
    pub(crate) fn cts(&self, send_id: SendId, recv_id: u32, recv_length: u64) -> Cts {
        Cts {
            connid: self.connid(),
            send_id,
            recv_id: RecvId(recv_id),
            recv_length,
            ..Cts::default()
        }
    }

    /// The peer grants data of the endpoint's operation `send_id`.
    pub(crate) fn grant(&mut self, send_id: SendId, recv_id: u32, recv_length: u64) {
        self.send(&self.cts(send_id, recv_id, recv_length), &[]);
    }

    /// Data for the endpoint's operation `recv_id`.
    pub(crate) fn data(&self, recv_id: RecvId, seg_offset: u64, seg_length: u64) -> CtsData {
        CtsData {
            recv_id,
            seg_length,
            seg_offset,
            connid: self.connid(),
            ..CtsData::default()
        }
    }

    /// The peer sends data that the endpoint has granted.
    pub(crate) fn send_data(&mut self, recv_id: RecvId, seg_offset: u64, payload: &[u8]) {
        self.send(
            &self.data(recv_id, seg_offset, payload.len() as u64),
            payload,
        );
    }

    /// Takes the oldest packet that the endpoint sent.
    pub(crate) fn sent(&mut self) -> Vec<u8> {
        self.progress();
        assert!(self.network.flights() > 0, "nothing was sent");
        let bytes = self.network.swallow(0);
        self.progress();
        bytes
    }

    /// Takes all packets in flight, and those that follow them.
    pub(crate) fn swallow_all(&mut self) {
        while self.network.flights() > 0 {
            self.sent();
        }
    }

    /// Takes the oldest packet that the endpoint sent, which must parse, and passes it to `look`.
    pub(crate) fn expect<R>(&mut self, look: impl FnOnce(&Packet) -> R) -> R {
        let bytes = self.sent();
        look(&Packet::parse(&bytes).unwrap())
    }

    /// Takes the oldest packet that the endpoint sent, which has this format.
    pub(crate) fn expect_header<T: TryFrom<Header, Error = Header> + Debug>(&mut self) -> T {
        let header = self.expect(|packet| packet.header);
        T::try_from(header).unwrap()
    }

    /// As [`Script::expect_header`], with the length of the payload.
    pub(crate) fn expect_carrying<T>(&mut self) -> (T, u64)
    where
        T: TryFrom<Header, Error = Header> + Debug,
    {
        let (header, payload) = self.expect(|packet| (packet.header, packet.payload.length));
        (T::try_from(header).unwrap(), payload as u64)
    }

    pub(crate) fn expect_handshake(&mut self) {
        let packet_type = self.expect(|packet| packet.base.packet_type);
        assert_eq!(packet_type, efa_core::wire::PacketType::Handshake);
    }

    /// The endpoint sent nothing.
    pub(crate) fn expect_silence(&mut self) {
        self.progress();
        assert_eq!(self.network.flights(), 0, "{:?}", self.network.in_flight());
    }

    pub(crate) fn recv(&mut self, offset: u64, length: usize, context: u64) -> ReceiveId {
        let buffer = memory(offset, length);
        let posted = self.post_recv(SourceFilter::Any, None, buffer, context);
        posted.unwrap()
    }

    pub(crate) fn post_recv(
        &mut self,
        source: SourceFilter,
        tag: Option<u64>,
        buffer: IoVec,
        context: u64,
    ) -> Result<ReceiveId, EndpointError> {
        self.dut.recv(RecvArgs {
            tag: tag.map(TagFilter::exact),
            ..RecvArgs::new(source, &[buffer], context)
        })
    }

    pub(crate) fn read(
        &mut self,
        peer: PeerId,
        buffer: IoVec,
        remote: &[RemoteIoVec],
        context: u64,
    ) -> Result<(), EndpointError> {
        self.dut.read(ReadArgs {
            peer,
            buffer: &[buffer],
            remote,
            flags: OperationFlags::COMPLETION,
            context,
        })
    }

    pub(crate) fn write(
        &mut self,
        peer: PeerId,
        data: IoVec,
        remote: &[RemoteIoVec],
        context: u64,
    ) -> Result<(), EndpointError> {
        self.dut.write(WriteArgs {
            peer,
            data: &[data],
            remote,
            cq_data: None,
            flags: OperationFlags::COMPLETION,
            context,
        })
    }

    pub(crate) fn try_send(
        &mut self,
        peer: PeerId,
        length: usize,
        flags: OperationFlags,
        context: u64,
    ) -> Result<(), EndpointError> {
        self.dut.send(SendArgs {
            flags: flags | OperationFlags::COMPLETION,
            ..SendArgs::new(peer, &[memory(0, length)], context)
        })
    }

    /// Starts to send an untagged message.
    pub(crate) fn send_message(&mut self, peer: PeerId, length: usize, context: u64) {
        let sent = self.try_send(peer, length, OperationFlags::empty(), context);
        sent.unwrap();
    }

    pub(crate) fn completion(&mut self) -> CompletionEntry {
        match self.dut.poll_completion() {
            Some(Ok(entry)) => entry,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn error(&mut self) -> ErrorEntry {
        match self.dut.poll_completion() {
            Some(Err(entry)) => entry,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn expect_no_completion(&mut self) {
        self.progress();
        assert_eq!(self.dut.poll_completion(), None);
    }

    /// The endpoint refused a packet for this reason.
    #[track_caller]
    pub(crate) fn expect_refusal(&mut self, reason: PacketError) {
        assert_eq!(self.refusal(), reason);
    }

    pub(crate) fn refusal(&mut self) -> PacketError {
        match self.dut.poll_event() {
            Some(Event::PacketRefused { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }
}

/// The features that a modern peer announces.
pub(crate) const MODERN: ExtraFeatures = ExtraFeatures::DELIVERY_COMPLETE
    .union(ExtraFeatures::CONNID_HEADER)
    .union(ExtraFeatures::READ_NACK);

/// A script whose handshakes are over.
pub(crate) fn connected() -> (Script, PeerId) {
    connected_with(config(), traits())
}

pub(crate) fn connected_with(config: EndpointConfig, traits: DeviceTraits) -> (Script, PeerId) {
    announced(config, traits, MODERN)
}

/// A script whose handshakes are over, with a peer that announced these features.
pub(crate) fn announced(
    config: EndpointConfig,
    traits: DeviceTraits,
    features: ExtraFeatures,
) -> (Script, PeerId) {
    let mut script = Script::with(config, traits);
    let peer = script.insert_peer();
    script.shake_hands(features);
    script.expect_handshake();
    (script, peer)
}
