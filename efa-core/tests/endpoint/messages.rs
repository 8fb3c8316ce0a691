//! Messages between two endpoints, and the packets on the wire.

use efa_core::endpoint::*;
use efa_core::nic::UserSlice;
use efa_core::wire::{Header, Packet, PacketType};

use efa_testing::nic::{DeviceTraits, MEMORY, Network, NetworkNic};

pub(crate) fn endpoint(network: &Network, host: u8, qpn: u16, qkey: u32) -> Endpoint<NetworkNic> {
    let nic = network.open(host, qpn, qkey, DeviceTraits::default());
    Endpoint::new(nic, EndpointConfig::default()).unwrap()
}

pub(crate) fn memory(address: u64, length: usize) -> IoVec {
    IoVec::new(UserSlice { address, length })
}

fn send(endpoint: &mut Endpoint<NetworkNic>, peer: PeerId, data: IoVec, context: u64) {
    endpoint
        .send(SendArgs::new(peer, &[data], context))
        .unwrap();
}

fn recv(endpoint: &mut Endpoint<NetworkNic>, buffer: IoVec, context: u64) -> ReceiveId {
    endpoint
        .recv(RecvArgs::new(SourceFilter::Any, &[buffer], context))
        .unwrap()
}

fn settle(network: &Network, endpoints: &mut [&mut Endpoint<NetworkNic>]) {
    for _ in 0..100 {
        network.deliver_all();
        for endpoint in endpoints.iter_mut() {
            endpoint.progress(Instant::START);
        }
        if network.flights() == 0 {
            return;
        }
    }
    panic!("the endpoints do not come to rest");
}

#[test]
fn one_message_arrives_with_handshakes_both_ways() {
    let network = Network::default();
    let mut a = endpoint(&network, 1, 10, 0x1111);
    let mut b = endpoint(&network, 2, 20, 0x2222);
    let to_b = a.insert_address(b.address()).unwrap();
    network.fill(0, MEMORY, b"hello, world");
    recv(&mut b, memory(MEMORY + 64, 32), 7);
    send(&mut a, to_b, memory(MEMORY, 12), 5);

    let flights = network.in_flight();
    let packet = Packet::parse(&flights[0].bytes).unwrap();
    assert_eq!(packet.base.packet_type, PacketType::EagerMsgRtm);
    let options = packet.header.req_options().unwrap();
    assert_eq!(options.raw_address.unwrap().address(), a.address());
    assert_eq!(options.connid, None);

    settle(&network, &mut [&mut a, &mut b]);
    let to_a = b.find_address(&a.address()).unwrap();
    assert_eq!(
        b.poll_completion().unwrap().unwrap(),
        CompletionEntry {
            context: 7,
            flags: CompletionFlags::MSG | CompletionFlags::RECV,
            length: 12,
            data: 0,
            tag: 0,
            source: Some(to_a),
            buffer: 0,
        }
    );
    assert_eq!(network.memory(1, MEMORY + 64, 12), b"hello, world");
    assert_eq!(
        a.poll_completion().unwrap().unwrap(),
        CompletionEntry {
            context: 5,
            flags: CompletionFlags::MSG | CompletionFlags::SEND,
            length: 12,
            data: 0,
            tag: 0,
            source: None,
            buffer: 0,
        }
    );
    assert!(!a.has_packets_in_flight() && !b.has_packets_in_flight());

    // After the handshake the connection id takes the place of the address.
    send(&mut a, to_b, memory(MEMORY, 12), 6);
    let flights = network.in_flight();
    let packet = Packet::parse(&flights[0].bytes).unwrap();
    let Header::EagerRtm(eager) = packet.header else {
        panic!("{:?}", packet.header);
    };
    assert_eq!(eager.msg_id.0, 1);
    assert_eq!(eager.options.raw_address, None);
    assert_eq!(eager.options.connid.map(|connid| connid.0), Some(0x1111));
}
