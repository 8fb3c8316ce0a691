//! Hosts and a network between them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use efa_core::address::{Ahn, Gid};
use efa_core::nic::Status;
use efa_device_model::device::Device;
use efa_device_model::link::{Link, LinkBusy, LocalData, RequestHeader, Token};
use efa_device_model::provider::UdAddress;
pub(crate) use efa_testing::addresses::gid;
use efa_testing::device::{Copier, range};
pub(crate) use efa_testing::device::{Host, MEMORY, MEMORY_SIZE, QKEY, Rdma, RdmaOperation, Setup};

/// A request in the network. Sends and writes contain a copy of their data.
pub(crate) struct Packet {
    pub(crate) from: usize,
    pub(crate) to: Gid,
    pub(crate) token: Token,
    pub(crate) header: RequestHeader,
    pub(crate) data: Vec<u8>,
}

/// The hosts, and the packets between them.
pub(crate) struct Net {
    pub(crate) hosts: Vec<Host>,
    pub(crate) packets: VecDeque<Packet>,
    /// Destinations for which the link is busy.
    pub(crate) busy: BTreeSet<Gid>,
    /// Number of offers that the link still refuses, for any destination.
    pub(crate) refusals: usize,
    pub(crate) now: Duration,
}

impl Net {
    pub(crate) fn new(setups: &[Setup]) -> Net {
        Net {
            hosts: setups
                .iter()
                .enumerate()
                .map(|(number, setup)| Host::new(number, setup))
                .collect(),
            packets: VecDeque::new(),
            busy: BTreeSet::new(),
            refusals: 0,
            now: Duration::ZERO,
        }
    }

    /// Two equal hosts. Each has the other in its address book.
    pub(crate) fn pair(setup: Setup) -> Net {
        let mut net = Net::new(&[setup.clone(), setup]);
        net.know(0, 1);
        net.know(1, 0);
        net
    }

    /// As [`Net::pair`], with the address of host 1 for host 0.
    pub(crate) fn pair_with_address(setup: Setup) -> (Net, UdAddress) {
        let mut net = Net::pair(setup);
        let to = net.address(0, 1);
        (net, to)
    }

    /// Adds `whom` to the address book of `host`.
    pub(crate) fn know(&mut self, host: usize, whom: usize) -> Ahn {
        let host = &mut self.hosts[host];
        host.device.create_ah(host.pd, gid(whom)).unwrap()
    }

    /// The address of host `to`'s queue pair for host `from`, in whose address book it is.
    pub(crate) fn address(&mut self, from: usize, to: usize) -> UdAddress {
        UdAddress {
            ahn: self.know(from, to).0,
            qpn: self.hosts[to].client.qpn,
            qkey: QKEY,
        }
    }

    /// A host's device, and its link.
    fn wire(&mut self, host: usize) -> (&mut Device, Wire<'_>) {
        let Host { device, memory, .. } = &mut self.hosts[host];
        let wire = Wire {
            from: host,
            memory,
            packets: &mut self.packets,
            busy: &self.busy,
            refusals: &mut self.refusals,
        };
        (device, wire)
    }

    pub(crate) fn transmit(&mut self, host: usize) -> usize {
        let now = self.now;
        let (device, mut wire) = self.wire(host);
        device.transmit(now, &mut wire)
    }

    /// Makes a host's device serve the doorbell of its send queue at once.
    pub(crate) fn serve_doorbell(&mut self, host: usize) {
        let qpn = self.hosts[host].client.qpn;
        let (device, mut wire) = self.wire(host);
        device.serve_send_doorbell(qpn, &mut wire).unwrap();
    }

    /// Delivers one request to its responder. The answer is returned to the caller only.
    pub(crate) fn deliver(&mut self, packet: &mut Packet) -> Status {
        let from = gid(packet.from);
        let to = usize::from(packet.to.0[15]);
        let Some(host) = self.hosts.get_mut(to) else {
            return Status::LocalUnreachableRemote;
        };
        let mut transfer = Copier {
            data: &mut packet.data,
            memory: &mut host.memory,
            acknowledged: None,
        };
        let status = host.device.deliver(from, &packet.header, &mut transfer);
        assert!(packet.data.len() <= packet.header.length as usize);
        status
    }

    /// Returns an answer to the initiator, with the data of a read.
    pub(crate) fn answer(&mut self, packet: &Packet, mut status: Status) {
        let host = &mut self.hosts[packet.from];
        let read = packet.header.operation == efa_device_model::link::Operation::RdmaRead;
        if read && status == Status::Ok {
            match host.device.local_memory(packet.token) {
                Some(segments) => {
                    let mut rest = &packet.data[..];
                    for segment in segments.iter().filter(|segment| segment.length > 0) {
                        let (part, behind) = rest.split_at(segment.length as usize);
                        host.memory[range(segment)].copy_from_slice(part);
                        rest = behind;
                    }
                }
                None => status = Status::LocalInvalidLkey,
            }
        }
        host.device.complete(self.now, packet.token, status);
    }

    /// Delivers everything until nothing is left at this time.
    pub(crate) fn settle(&mut self) {
        loop {
            for host in 0..self.hosts.len() {
                self.transmit(host);
            }
            let Some(mut packet) = self.packets.pop_front() else {
                return;
            };
            let status = self.deliver(&mut packet);
            self.answer(&packet, status);
        }
    }

    /// Advances the time to the next timeout of any device; false if there is none.
    pub(crate) fn advance(&mut self) -> bool {
        let next = self
            .hosts
            .iter()
            .filter_map(|host| host.device.next_timeout())
            .min();
        if let Some(next) = next {
            self.now = self.now.max(next);
        }
        next.is_some()
    }
}

struct Wire<'a> {
    from: usize,
    memory: &'a [u8],
    packets: &'a mut VecDeque<Packet>,
    busy: &'a BTreeSet<Gid>,
    refusals: &'a mut usize,
}

impl Link for Wire<'_> {
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        if *self.refusals > 0 {
            *self.refusals -= 1;
            return Err(LinkBusy);
        }
        if self.busy.contains(&to) {
            return Err(LinkBusy);
        }
        let mut copy = Vec::new();
        if header.operation != efa_device_model::link::Operation::RdmaRead {
            match data {
                LocalData::Inline(bytes) => copy.extend_from_slice(bytes),
                LocalData::Packet { .. } => panic!("these queue pairs are not connected"),
                LocalData::Segments(segments) => {
                    for segment in segments.iter().filter(|segment| segment.length > 0) {
                        copy.extend_from_slice(&self.memory[range(segment)]);
                    }
                }
            }
            assert_eq!(copy.len(), header.length as usize);
        }
        self.packets.push_back(Packet {
            from: self.from,
            to,
            token,
            header: *header,
            data: copy,
        });
        Ok(())
    }
}
