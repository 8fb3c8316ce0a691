//! Correct traffic with a packet of each type from one endpoint to the other.

use efa_wire::{Header, LongctsRtw, LongreadRtw, Packet};

use super::*;

const TAG: u64 = 0x1122_3344_5566_7788;
const SEND_ID: u32 = 0x2a1;
const RECV_ID: u32 = 0x3b2;

/// Whether the endpoints know each other when the packet is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerKnowledge {
    Known,
    /// The packet introduces its sender.
    Stranger,
}

impl PeerKnowledge {
    pub(super) const ALL: [PeerKnowledge; 2] = [PeerKnowledge::Known, PeerKnowledge::Stranger];
}

/// Traffic with a packet of this type, and the index of its first frame. The sender of an answer is
/// known at that time.
pub(super) fn traffic(
    packet_type: PacketType,
    knowledge: PeerKnowledge,
) -> Option<(Builder, usize)> {
    let mut play = Play {
        b: Builder::new(),
        next: 0,
        tag: packet_type.is_tagged().then_some(TAG),
    };
    match (knowledge, packet_type.is_req()) {
        (PeerKnowledge::Known, _) => {
            play.b.send(A, B, &eager(0, Some(A), None), b"first");
            play.next = 1;
            play.exchange_handshakes();
            let begun_by = begun_by(packet_type);
            play.request(begun_by, A.known());
            play.rest(begun_by, packet_type);
        }
        (PeerKnowledge::Stranger, true) => {
            play.request(packet_type, A.unknown());
            play.exchange_handshakes();
            play.rest(packet_type, packet_type);
        }
        (PeerKnowledge::Stranger, false) => return None,
    }
    play.proof();
    let is_it = |frame: &CapturedPacket| {
        let mut sent = frame.payload.iter();
        let is_of_type = sent.next() == Some(&packet_type.code());
        // The first eager message introduces the two to each other.
        is_of_type && (knowledge == PeerKnowledge::Stranger || frame.number > 2)
    };
    let subject = play.b.capture.frames.iter().position(is_it);
    Some((play.b, subject.expect("the traffic has such a packet")))
}

/// The header and the data of the first packet of message 1, or of another request.
pub(in super::super) fn first_packet(
    packet_type: PacketType,
    options: ReqOptions,
) -> (Header, Vec<u8>) {
    let (b, tag) = (Builder::new(), None);
    let mut play = Play { b, next: 1, tag };
    play.request(packet_type, options);
    let sent = &play.b.capture.frames[0].payload;
    let packet = Packet::parse(sent).unwrap();
    (packet.header, packet.payload.of(sent).to_vec())
}

/// The type of the request whose operation has such a packet.
fn begun_by(packet_type: PacketType) -> PacketType {
    match packet_type {
        PacketType::Cts | PacketType::CtsData => PacketType::LongctsMsgRtm,
        PacketType::ReadRsp => PacketType::LongctsRtr,
        PacketType::AtomRsp => PacketType::FetchRta,
        PacketType::Receipt => PacketType::DcEagerMsgRtm,
        PacketType::PeerError => PacketType::MediumMsgRtm,
        PacketType::Eor | PacketType::ReadNack | PacketType::Handshake => {
            PacketType::LongreadMsgRtm
        }
        request => request,
    }
}

fn target() -> RmaIovs {
    let iov = [
        RmaIov::new(0x7f00_1234_5000, 60, 0x61),
        RmaIov::new(0x7f00_2345_6000, 240, 0x72),
    ];
    RmaIovs::new(&iov).unwrap()
}

fn short_target() -> RmaIovs {
    RmaIovs::new(&[RmaIov::new(0x7f00_1234_5000, 24, 0x61)]).unwrap()
}

fn source() -> [RmaIov; 2] {
    [
        RmaIov::new(0x7f00_3456_7000, 220, 0x83),
        RmaIov::new(0x7f00_4567_8000, 80, 0x94),
    ]
}

struct Play {
    b: Builder,
    /// The next message number of A.
    next: u32,
    tag: Option<u64>,
}

impl Play {
    fn exchange_handshakes(&mut self) {
        let full = Handshake {
            host_id: Some(0x0123_4567_89ab_cdef),
            hmem_p2p: Some(1),
            ..B.handshake(all())
        };
        self.b.send(B, A, &full, b"");
        self.b.send(A, B, &A.handshake(all()), b"");
    }

    fn msg_id(&mut self) -> MsgId {
        self.next += 1;
        MsgId(self.next - 1)
    }

    /// The number of A's last message, 0 if there is none.
    fn last(&self) -> u32 {
        self.next.saturating_sub(1)
    }

    /// Sends the packets of a request.
    fn request(&mut self, packet_type: PacketType, options: ReqOptions) {
        use PacketType as T;
        let is_dc = packet_type.is_delivery_complete();
        let (send_id, recv_id) = (SendId(SEND_ID), RecvId(RECV_ID));
        let receipt = is_dc.then_some(send_id);
        let tag = packet_type.is_tagged().then_some(TAG);
        let with_data = ReqOptions {
            cq_data: Some(0x0102_0304_0506_0708),
            ..options
        };
        let read_iov = RmaIovs::new(&source()).unwrap();
        match packet_type {
            T::EagerMsgRtm | T::EagerTagRtm | T::DcEagerMsgRtm | T::DcEagerTagRtm => {
                let request = EagerRtm {
                    msg_id: self.msg_id(),
                    receipt,
                    tag,
                    options: with_data,
                };
                self.b.send(A, B, &request, b"eager");
            }
            T::MediumMsgRtm | T::MediumTagRtm | T::DcMediumMsgRtm | T::DcMediumTagRtm => {
                let msg_id = self.msg_id();
                for seg_offset in [100, 0, 200] {
                    let request = MediumRtm {
                        msg_id,
                        msg_length: 300,
                        seg_offset,
                        receipt,
                        tag,
                        options: with_data,
                    };
                    self.b.send(A, B, &request, &[5; 100]);
                }
            }
            T::LongctsMsgRtm | T::LongctsTagRtm | T::DcLongctsMsgRtm | T::DcLongctsTagRtm => {
                let request = LongctsRtm {
                    msg_id: self.msg_id(),
                    msg_length: 300,
                    send_id,
                    credit_request: 32,
                    tag,
                    delivery_complete: is_dc,
                    options: with_data,
                };
                self.b.send(A, B, &request, &[5; 100]);
            }
            T::LongreadMsgRtm | T::LongreadTagRtm => {
                let request = LongreadRtm {
                    msg_id: self.msg_id(),
                    msg_length: 300,
                    send_id,
                    tag,
                    read_iov,
                    options: with_data,
                };
                self.b.send(A, B, &request, b"");
            }
            T::RuntreadMsgRtm | T::RuntreadTagRtm => {
                let msg_id = self.msg_id();
                for seg_offset in [100, 0] {
                    let request = RuntreadRtm {
                        msg_id,
                        msg_length: 300,
                        send_id,
                        seg_offset,
                        runt_length: 200,
                        tag,
                        read_iov,
                        options: with_data,
                    };
                    self.b.send(A, B, &request, &[5; 100]);
                }
            }
            T::EagerRtw | T::DcEagerRtw => {
                let request = EagerRtw {
                    rma_iov: target(),
                    receipt,
                    options: with_data,
                };
                self.b.send(A, B, &request, &[5; 300]);
            }
            T::LongctsRtw | T::DcLongctsRtw => {
                let request = LongctsRtw {
                    msg_length: 300,
                    send_id,
                    credit_request: 32,
                    rma_iov: target(),
                    delivery_complete: is_dc,
                    options: with_data,
                };
                self.b.send(A, B, &request, &[5; 100]);
            }
            T::LongreadRtw => {
                let request = LongreadRtw {
                    msg_length: 300,
                    send_id,
                    rma_iov: target(),
                    read_iov,
                    options: with_data,
                };
                self.b.send(A, B, &request, b"");
            }
            T::ShortRtr | T::LongctsRtr => {
                let is_short = packet_type == T::ShortRtr;
                let request = Rtr {
                    kind: if is_short {
                        RtrKind::Short
                    } else {
                        RtrKind::Longcts
                    },
                    rma_iov: target(),
                    msg_length: 300,
                    recv_id,
                    recv_length: if is_short { 300 } else { 200 },
                    options,
                };
                self.b.send(A, B, &request, b"");
            }
            T::WriteRta | T::FetchRta | T::CompareRta | T::DcWriteRta => {
                let kind = match packet_type {
                    T::FetchRta => RtaKind::Fetch(recv_id),
                    T::CompareRta => RtaKind::Compare(recv_id),
                    T::DcWriteRta => RtaKind::DcWrite(send_id),
                    _ => RtaKind::Write,
                };
                self.atomic(kind, options);
            }
            _ => unreachable!("no request"),
        }
    }

    /// Sends an atomic on three elements of eight bytes.
    fn atomic(&mut self, kind: RtaKind, options: ReqOptions) {
        let is_compare = matches!(kind, RtaKind::Compare(_));
        let request = Rta {
            kind,
            msg_id: self.msg_id(),
            atomic_datatype: AtomicDatatype(6),
            atomic_op: AtomicOp(if is_compare { 12 } else { 2 }),
            rma_iov: short_target(),
            options,
        };
        let operand = if is_compare { 48 } else { 24 };
        self.b.send(A, B, &request, &vec![5; operand]);
    }

    /// The packets after a request, to the end of its operation. `shown` may be a packet that only
    /// some such operations have.
    fn rest(&mut self, begun_by: PacketType, shown: PacketType) {
        use PacketType as T;
        match begun_by {
            T::LongreadMsgRtm | T::LongreadTagRtm | T::LongreadRtw => match shown {
                T::ReadNack => self.refused_read(),
                _ => self.read(0),
            },
            T::RuntreadMsgRtm | T::RuntreadTagRtm => self.read(200),
            T::LongctsMsgRtm | T::LongctsTagRtm | T::LongctsRtw => self.windows(),
            T::DcLongctsMsgRtm | T::DcLongctsTagRtm | T::DcLongctsRtw => {
                self.windows();
                self.b.send(B, A, &B.receipt(SEND_ID, self.last()), b"");
            }
            T::ShortRtr => self.read_response(300),
            T::LongctsRtr => {
                self.read_response(100);
                self.b.send(B, A, &B.data(RECV_ID, 100, 100), &[5; 100]);
                let window = Cts {
                    flags: CtsFlags::EMULATED_READ,
                    ..A.cts(0x4c3, RECV_ID, 100)
                };
                self.b.send(A, B, &window, b"");
                self.b.send(B, A, &B.data(RECV_ID, 200, 100), &[5; 100]);
            }
            T::FetchRta | T::CompareRta => self.atomic_response(RECV_ID),
            _ if begun_by.is_delivery_complete() => {
                self.b.send(B, A, &B.receipt(SEND_ID, self.last()), b"");
            }
            T::MediumMsgRtm if shown == T::PeerError => {
                let msg_id = self.msg_id().0;
                // The message is aborted before it is sent.
                let lost = A.peer_error(msg_id, PeerError::NO_OP, OpeType::TXE);
                self.b.send(A, B, &lost, b"");
            }
            _ => {}
        }
    }

    /// The receiver reads the sender's memory from an offset on, and acknowledges that.
    fn read(&mut self, from: u64) {
        let [first, second] = source();
        let rest = first.len() - from;
        let first = RmaIov::new(first.addr() + from, rest, first.key());
        self.b.rdma_read(B, A, first, rest as u32);
        self.b.rdma_read(B, A, second, second.len() as u32);
        self.b.send(B, A, &B.eor(SEND_ID), b"");
    }

    /// The receiver cannot read, and gets the message in windows.
    fn refused_read(&mut self) {
        let nack = B.read_nack(SEND_ID, RECV_ID);
        self.b.send(B, A, &nack, b"");
        let mut again = A.long_cts(self.last(), 300, SEND_ID);
        again.options.flags = ReqFlags::READ_NACK;
        again.options.cq_data = Some(0x0102_0304_0506_0708);
        self.b.send(A, B, &again, b"");
        self.b.send(B, A, &B.cts(SEND_ID, RECV_ID, 300), b"");
        self.b.send(A, B, &A.data(RECV_ID, 0, 300), &[5; 300]);
    }

    /// Two windows after the first 100 bytes.
    fn windows(&mut self) {
        for offset in [100, 200] {
            self.b.send(B, A, &B.cts(SEND_ID, RECV_ID, 100), b"");
            self.b.send(A, B, &A.data(RECV_ID, offset, 100), &[5; 100]);
        }
    }

    fn read_response(&mut self, length: usize) {
        let response = B.read_rsp(RECV_ID, 0x4c3, length as u64);
        self.b.send(B, A, &response, &vec![5; length]);
    }

    fn atomic_response(&mut self, recv_id: u32) {
        let response = B.atom_rsp(recv_id, 24);
        self.b.send(B, A, &response, &[5; 24]);
    }

    /// Later packets that prove that missing answers and messages never arrive: requests with the
    /// same keys and the same tag are answered, and messages are sent in both directions.
    fn proof(&mut self) {
        let options = A.known();
        for number in 0..4 {
            let recv_id = 0x700 + number;
            self.atomic(RtaKind::Fetch(RecvId(recv_id)), options);
            self.atomic_response(recv_id);
            let send_id = 0x800 + number;
            let message = EagerRtm {
                msg_id: self.msg_id(),
                receipt: Some(SendId(send_id)),
                tag: self.tag,
                options,
            };
            self.b.send(A, B, &message, b"more");
            self.b.send(B, A, &B.receipt(send_id, self.last()), b"");
            let rtr = Rtr {
                kind: RtrKind::Short,
                rma_iov: target(),
                msg_length: 300,
                recv_id: RecvId(0x900 + number),
                recv_length: 300,
                options,
            };
            self.b.send(A, B, &rtr, b"");
            let response = B.read_rsp(0x900 + number, 0xa00 + number, 300);
            self.b.send(B, A, &response, &[5; 300]);
            self.b.send(B, A, &B.eager(number), b"back");
        }
    }
}
