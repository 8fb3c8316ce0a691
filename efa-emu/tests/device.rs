//! Two devices, joined by a link that keeps requests until the test lets them through.

use std::collections::VecDeque;
use std::time::Duration;

use efa_core::address::{Ahn, Gid, Qkey, Qpn};
use efa_core::nic::{Access, Status};
use efa_emu::device::queue::{Buffer, WqeSize};
use efa_emu::device::{
    CqId, Device, MemoryRegion, PdId, QpChange, QpConfig, QpState, RegionKeys, Service,
};
use efa_emu::link::{HostSegment, Link, LinkBusy, LocalData, RequestHeader, Token, Transfer};
use efa_emu::profile::Profile;
use efa_emu::provider::{
    CompletionQueue, QueueOwner, RecvQueue, RecvQueueConfig, Retired, SendData, SendOpcode,
    SendQueue, SendQueueConfig, SendRequest, UdAddress, WorkCompletion,
};

const MEMORY: u64 = 0x10_0000;
const MEMORY_SIZE: usize = 1 << 20;
const NOW: Duration = Duration::ZERO;

/// A request on its way; sends and writes carry a copy of their data.
struct Packet {
    to: Gid,
    token: Token,
    header: RequestHeader,
    data: Vec<u8>,
}

/// One host: a device, its memory and one queue pair.
struct Host {
    device: Device,
    memory: Vec<u8>,
    pd: PdId,
    cq: CqId,
    qpn: Qpn,
    keys: RegionKeys,
    send: SendQueue,
    recv: RecvQueue,
    completions: CompletionQueue,
}

struct Queues<'a> {
    qpn: Qpn,
    send: &'a mut SendQueue,
    recv: &'a mut RecvQueue,
}

impl QueueOwner for Queues<'_> {
    fn retire_send(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        assert_eq!(qpn, self.qpn);
        self.send.retire(request_id)
    }
    fn retire_recv(&mut self, qpn: Qpn, request_id: u16) -> Retired {
        assert_eq!(qpn, self.qpn);
        self.recv.retire(request_id)
    }
    fn owns(&mut self, qpn: Qpn) -> bool {
        qpn == self.qpn
    }
}

struct Wire<'a> {
    memory: &'a [u8],
    packets: &'a mut VecDeque<Packet>,
}

impl Link for Wire<'_> {
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let mut copy = Vec::new();
        match data {
            LocalData::Inline(bytes) => copy.extend_from_slice(bytes),
            LocalData::Segments(segments) => {
                for segment in segments.iter().filter(|segment| segment.length > 0) {
                    copy.extend_from_slice(&self.memory[range(segment)]);
                }
            }
        }
        self.packets.push_back(Packet {
            to,
            token,
            header: *header,
            data: copy,
        });
        Ok(())
    }
}

fn range(segment: &HostSegment) -> std::ops::Range<usize> {
    let start = (segment.address - MEMORY) as usize;
    start..start + segment.length as usize
}

struct Copy<'a> {
    data: &'a mut Vec<u8>,
    memory: &'a mut [u8],
}

impl Transfer for Copy<'_> {
    fn fetch(&mut self, offset: u32, to: HostSegment) -> Result<(), Status> {
        let from = offset as usize..(offset + to.length) as usize;
        self.memory[range(&to)].copy_from_slice(&self.data[from]);
        Ok(())
    }
    fn store(&mut self, offset: u32, from: HostSegment) -> Result<(), Status> {
        assert_eq!(offset, 0);
        self.data.extend_from_slice(&self.memory[range(&from)]);
        Ok(())
    }
    fn fill(&mut self, to: u64, bytes: &[u8]) -> Result<(), Status> {
        let start = (to - MEMORY) as usize;
        self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

fn gid(host: u8) -> Gid {
    Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host])
}

const QKEY: Qkey = Qkey(0x1122_3344);

impl Host {
    fn new(number: u8, service: Service) -> Host {
        let mut device = Device::new(Profile::default(), gid(number));
        let pd = device.alloc_pd().unwrap();
        let keys = device
            .register_memory(
                pd,
                MemoryRegion {
                    address: MEMORY,
                    length: MEMORY_SIZE as u64,
                    iova: MEMORY,
                    access: Access::all(),
                },
            )
            .unwrap();
        let (cq, ring) = device.create_cq(64).unwrap();
        let qpn = Qpn(u16::from(number) + 100);
        let rings = device
            .create_qp(
                qpn,
                QpConfig {
                    service,
                    pd,
                    send_cq: cq,
                    recv_cq: cq,
                    send_entries: 16,
                    wqe_size: WqeSize::Bytes64,
                    recv_descriptors: 64,
                    unsolicited_write_recv: false,
                },
            )
            .unwrap();
        let mut host = Host {
            device,
            memory: vec![0; MEMORY_SIZE],
            pd,
            cq,
            qpn,
            keys,
            send: SendQueue::new(
                rings.send,
                SendQueueConfig {
                    max_sge: 2,
                    max_rdma_sge: 1,
                    max_inline: 32,
                    inline_write: false,
                    signal_all: true,
                    generation: 1,
                },
            ),
            recv: RecvQueue::new(
                rings.recv,
                RecvQueueConfig {
                    max_sge: 3,
                    generation: 1,
                },
            ),
            completions: CompletionQueue::new(ring),
        };
        let mut change = QpChange {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(QKEY),
            ..QpChange::default()
        };
        host.modify(&change);
        change = QpChange {
            state: Some(QpState::ReadyToReceive),
            ..QpChange::default()
        };
        host.modify(&change);
        change = QpChange {
            state: Some(QpState::ReadyToSend),
            sq_psn: Some(0),
            ..QpChange::default()
        };
        host.modify(&change);
        host
    }

    fn modify(&mut self, change: &QpChange) {
        self.device.modify_qp(self.qpn, change).unwrap();
        self.send.set_state(change.state.unwrap());
        self.recv.set_state(change.state.unwrap());
    }

    fn buffer(&self, offset: u64, length: u32) -> Buffer {
        Buffer {
            address: MEMORY + offset,
            length,
            lkey: self.keys.lkey.0,
        }
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        self.completions.next(&mut Queues {
            qpn: self.qpn,
            send: &mut self.send,
            recv: &mut self.recv,
        })
    }
}

/// Lets `from`'s requests through to `to` and the answers back.
fn exchange(from: &mut Host, to: &mut Host) {
    let mut packets = VecDeque::new();
    from.device.ring_send_doorbell(from.qpn).unwrap();
    from.device.transmit(
        NOW,
        &mut Wire {
            memory: &from.memory,
            packets: &mut packets,
        },
    );
    for mut packet in packets {
        assert_eq!(packet.to, to.device.gid());
        let status = to.device.deliver(
            from.device.gid(),
            &packet.header,
            &mut Copy {
                data: &mut packet.data,
                memory: &mut to.memory,
            },
        );
        from.device.complete(NOW, packet.token, status);
    }
}

#[test]
fn a_send_arrives_and_both_sides_complete() {
    let (mut a, mut b) = (Host::new(1, Service::Srd), Host::new(2, Service::Srd));
    let ahn = a.device.create_ah(a.pd, gid(2)).unwrap();
    assert_eq!(ahn, Ahn(0));
    let buffers = [b.buffer(0, 3), b.buffer(100, 100)];
    b.recv.post(77, &buffers).unwrap();
    a.memory[..5].copy_from_slice(b"hello");
    let buffer = [a.buffer(0, 5)];
    a.send
        .post(&SendRequest {
            wr_id: 42,
            opcode: SendOpcode::SendWithImmediate(9),
            flags: 0,
            to: UdAddress {
                ahn: ahn.0,
                qpn: b.qpn,
                qkey: QKEY,
            },
            data: SendData::Buffers(&buffer),
        })
        .unwrap();
    exchange(&mut a, &mut b);
    let sent = a.poll().unwrap();
    assert_eq!((sent.wr_id, sent.status()), (42, Some(Status::Ok)));
    assert!(a.poll().is_none());
    let received = b.poll().unwrap();
    assert_eq!((received.wr_id, received.status()), (77, Some(Status::Ok)));
    assert_eq!(received.byte_len, 5);
    assert_eq!(received.immediate, Some(9));
    assert_eq!((received.src_qp, received.ahn), (a.qpn, None));
    assert_eq!(received.sgid, Some(gid(1)));
    assert_eq!(
        (&b.memory[..3], &b.memory[100..102]),
        (&b"hel"[..], &b"lo"[..])
    );
    assert_eq!(b.device.destroy_cq(b.cq).unwrap_err().errno(), libc::EBUSY);
}
