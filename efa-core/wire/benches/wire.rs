//! Nanoseconds and allocations of parsing and emitting packets.
//!
//! The peer is smoltcp's TCP header: the same kind of code (views over a byte slice and a plain
//! struct of 20 to 40 bytes of header) by other people, without its checksum. Both are measured in
//! the same run, and the last column is the ratio.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use efa_testing::heap::{self, CountingHeap};
use efa_wire::address::{Gid, Qkey, Qpn, RawAddress};
use efa_wire::{
    Connid, CtsData, EagerRtm, ExtraFeatures, Handshake, MsgId, Packet, RecvId, Repr, ReqOptions,
};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress, Ipv6Address, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, TcpTimestampRepr,
};

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

/// One line of the result.
struct Row<'a> {
    name: &'static str,
    /// Does it once.
    work: Box<dyn FnMut() + 'a>,
}

fn parse_row<'a>(name: &'static str, packet: &'a [u8]) -> Row<'a> {
    Row {
        name,
        work: Box::new(move || {
            let _ = black_box(Packet::parse(black_box(packet)));
        }),
    }
}

fn emit_row<'a>(name: &'static str, header: &'a (impl Repr + 'a)) -> Row<'a> {
    let mut buffer = [0; 256];
    Row {
        name,
        work: Box::new(move || {
            let _ = black_box(black_box(header).emit(&mut buffer));
            black_box(&mut buffer);
        }),
    }
}

const IPS: (IpAddress, IpAddress) = (
    IpAddress::Ipv6(Ipv6Address::LOCALHOST),
    IpAddress::Ipv6(Ipv6Address::LOCALHOST),
);

fn peer_header(payload: &[u8]) -> TcpRepr<'_> {
    TcpRepr {
        src_port: 1,
        dst_port: 2,
        control: TcpControl::Psh,
        seq_number: TcpSeqNumber(3),
        ack_number: Some(TcpSeqNumber(4)),
        window_len: 5,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: Some(TcpTimestampRepr::new(6, 7)),
        payload,
    }
}

fn peer_packet(payload: &[u8]) -> Vec<u8> {
    let header = peer_header(payload);
    let mut packet = vec![0; header.buffer_len()];
    header.emit(
        &mut TcpPacket::new_unchecked(&mut packet),
        &IPS.0,
        &IPS.1,
        &ChecksumCapabilities::ignored(),
    );
    packet
}

fn peer_rows<'a>(packet: &'a [u8]) -> (Row<'a>, Row<'a>) {
    let parse = Row {
        name: "parse  smoltcp TCP (peer)",
        work: Box::new(move || {
            let parsed = TcpPacket::new_checked(black_box(packet)).and_then(|packet| {
                TcpRepr::parse(&packet, &IPS.0, &IPS.1, &ChecksumCapabilities::ignored())
                    .map(|header| black_box(header).src_port)
            });
            let _ = black_box(parsed);
        }),
    };
    let header = peer_header(&[]);
    let mut buffer = [0; 256];
    let emit = Row {
        name: "emit   smoltcp TCP (peer)",
        work: Box::new(move || {
            black_box(&header).emit(
                &mut TcpPacket::new_unchecked(&mut buffer[..32]),
                &IPS.0,
                &IPS.1,
                &ChecksumCapabilities::ignored(),
            );
            black_box(&mut buffer);
        }),
    };
    (parse, emit)
}

/// Nanoseconds of one `work`: the median of several batches.
fn nanoseconds(work: &mut dyn FnMut()) -> f64 {
    const BATCH: u32 = 100_000;
    const BATCHES: usize = 31;
    let mut times: Vec<Duration> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                work();
            }
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[BATCHES / 2].as_secs_f64() * 1e9 / f64::from(BATCH)
}

fn main() {
    let eager = EagerRtm {
        tag: Some(0x1234),
        ..EagerRtm::new(MsgId(7), ReqOptions::with_connid(Connid(0x1234_5678)))
    };
    let first_eager = EagerRtm {
        options: ReqOptions::with_raw_address(RawAddress {
            gid: Gid([0xfe; 16]),
            qpn: Qpn(7),
            qkey: Qkey(8),
        }),
        ..eager
    };
    let payload = [0xAA; 64];
    let ctsdata = CtsData {
        recv_id: RecvId(9),
        seg_length: payload.len() as u64,
        seg_offset: 1 << 20,
        connid: Some(Connid(0x1234_5678)),
        ..CtsData::default()
    };
    let features = ExtraFeatures::RDMA_READ | ExtraFeatures::CONNID_HEADER;
    let handshake = Handshake {
        extra_info: features.into(),
        connid: Some(Connid(0x1234_5678)),
        host_id: Some(1),
        device_version: Some(0xefa1),
        ..Handshake::default()
    };

    let eager_packet = eager.to_packet(&payload);
    let first_eager_packet = first_eager.to_packet(&payload);
    let ctsdata_packet = ctsdata.to_packet(&payload);
    let handshake_packet = handshake.to_packet(&[]);
    let peer_packet = peer_packet(&payload);
    let (peer_parse, peer_emit) = peer_rows(&peer_packet);

    // In each group the peer comes first.
    let mut groups = [
        vec![
            peer_parse,
            parse_row("parse  EAGER_TAGRTM, connid", &eager_packet),
            parse_row("parse  EAGER_TAGRTM, raw address", &first_eager_packet),
            parse_row("parse  CTSDATA", &ctsdata_packet),
            parse_row("parse  HANDSHAKE", &handshake_packet),
        ],
        vec![
            peer_emit,
            emit_row("emit   EAGER_TAGRTM, connid", &eager),
            emit_row("emit   EAGER_TAGRTM, raw address", &first_eager),
            emit_row("emit   CTSDATA", &ctsdata),
            emit_row("emit   HANDSHAKE", &handshake),
        ],
    ];

    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for row in groups.iter_mut().flatten() {
        criterion.bench_function(&format!("wire/{}", row.name), |bencher| {
            bencher.iter(&mut row.work);
        });
    }
    criterion.final_summary();

    // Without this argument the program runs under `cargo test`, which only checks that it works.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!(
        "{:34} {:>9} {:>12} {:>8}",
        "wire", "ns", "allocations", "of peer"
    );
    for group in &mut groups {
        let mut peer = None;
        for row in group {
            let allocations = heap::allocations_of(&mut row.work);
            let time = nanoseconds(&mut row.work);
            let ratio = time / *peer.get_or_insert(time);
            println!(
                "{:34} {time:>9.2} {allocations:>12} {ratio:>7.2}x",
                row.name
            );
        }
    }
}
