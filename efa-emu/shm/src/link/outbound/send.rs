//! Requests of the device into rings.

use efa_capture::{CapturePoint, Direction};
use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_device_model::fault;
use efa_device_model::link::{
    HostSegment, Link, LinkBusy, LocalData, Operation, RequestHeader, Token,
};
use efa_device_model::network::Transmission;

use super::bulk::{Bulk, BulkStage};
use super::out_ring::{Pending, list, request_record};
use super::routes::NoRoute;
use super::state::Outbound;
use crate::identity::config::RdmaPath;
use crate::link::egress::{Arrival, Egress, egress_of};
use crate::link::memory;
use crate::link::tap::{LinkTap, now};
use efa_lock_free::record::{self, Answer, Record, RecordKind};

/// Longest RDMA write that travels in one record like a send. Beyond, one copy by the target costs
/// less than two through the ring.
const SHORT_WRITE: u32 = 8 << 10;

impl Link for Outbound {
    #[inline(always)]
    fn try_send(
        &mut self,
        to: Gid,
        token: Token,
        header: &RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let index = match self
            .routes
            .find(to, header.destination_qpn, &mut self.rings)
        {
            Ok(index) => index,
            Err(NoRoute::Busy) => return Err(LinkBusy),
            Err(NoRoute::Failed(status)) => {
                self.completed.push_back((token, Answer::Status(status)));
                return Ok(());
            }
        };
        // Rare cases get a copy of the header, so that the compiler can keep it in registers on the
        // message path.
        let is_packet = header.operation == Operation::Connected;
        let is_message = header.operation == Operation::Send;
        if !(is_message || is_packet) || self.shapes || self.is_tapped() {
            return self.send_other(index, to, token, *header, data);
        }
        let mut record = Record::whole(RecordKind::Data, header, header.length);
        // If packets may be lost, or are captured, acknowledgements are packets.
        if is_packet {
            record = record.acknowledged(true);
        }
        self.send_whole(index, token, &record, Pending::Request(token), data)
    }
}

/// The time at which a request is about to leave, if a capture needs it. It must be read before:
/// the answer may arrive before this process runs again.
#[inline]
fn leaving(tap: Option<&LinkTap>) -> Option<CapturePoint> {
    tap.map(|_| now(Direction::Outbound))
}

impl Outbound {
    /// Sends a record with all data of a request.
    #[inline(always)]
    fn send_whole(
        &mut self,
        index: usize,
        token: Token,
        record: &Record,
        pending: Pending,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let ring = &mut self.rings[index];
        let pushed = ring.producer.push(record, pending, |memory, at| {
            memory::gather(memory, at, data);
        });
        if pushed.is_err() {
            return self.cannot_send(index, token, record.length());
        }
        list(&mut self.waiting, ring, index);
        Ok(())
    }

    /// A ring has no room for a record of this length: now, or never.
    #[cold]
    fn cannot_send(&mut self, index: usize, token: Token, length: usize) -> Result<(), LinkBusy> {
        // An empty ring has room for half of its capacity, independent of the position of its end.
        if 2 * length <= self.rings[index].producer.capacity() {
            return Err(LinkBusy);
        }
        self.completed
            .push_back((token, Answer::Status(Status::RemoteBadLength)));
        Ok(())
    }

    /// Sends a request that is neither a message nor a packet, or one that the network or a capture
    /// affects.
    #[cold]
    fn send_other(
        &mut self,
        index: usize,
        to: Gid,
        token: Token,
        header: RequestHeader,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let mut arrival = Arrival::default();
        if self.shapes {
            let stage = fault::Stage::Request;
            let request = Transmission::first(stage, self.own, to, &header);
            arrival = match egress_of(&self.network, &request) {
                Egress::Leaves(arrival) => arrival,
                lost => {
                    self.lose(lost, to, token, header, data);
                    return Ok(());
                }
            };
        }
        let is_datagram = header.operation == Operation::Datagram;
        let in_one_record = match header.operation {
            Operation::Send | Operation::Datagram | Operation::Connected => true,
            Operation::RdmaWrite => {
                header.length <= SHORT_WRITE || matches!(data, LocalData::Inline(_))
            }
            Operation::RdmaRead => false,
        };
        if !in_one_record {
            return self.send_bulk(index, to, token, header, arrival, data);
        }
        let record = request_record(RecordKind::Data, &header, header.length, arrival);
        let pending = match is_datagram {
            true => Pending::Datagram,
            false => Pending::Request(token),
        };
        let leaves = leaving(self.tap.as_deref());
        self.send_whole(index, token, &record, pending, data)?;
        if let Some(moment) = leaves {
            self.tap_sent(moment, to, token, record, data);
        }
        if is_datagram {
            self.completed
                .push_back((token, Answer::Status(Status::Ok)));
        }
        Ok(())
    }

    /// Records that a request leaves which never arrives.
    #[cold]
    fn lose(
        &mut self,
        egress: Egress,
        to: Gid,
        token: Token,
        header: RequestHeader,
        data: LocalData<'_>,
    ) {
        if let Some(moment) = leaving(self.tap.as_deref()) {
            let record = Record::whole(RecordKind::Data, &header, header.length);
            self.tap_sent(moment, to, token, record, data);
        }
        match egress {
            Egress::Fails(at) => self.failing.add(at, token),
            Egress::Vanishes | Egress::Leaves(_) => {
                self.completed
                    .push_back((token, Answer::Status(Status::Ok)));
            }
        }
    }

    #[cold]
    fn tap_sent(
        &mut self,
        moment: CapturePoint,
        to: Gid,
        token: Token,
        record: Record,
        data: LocalData<'_>,
    ) {
        if let Some(tap) = &mut self.tap {
            tap.sent(moment, to, token, &record, data);
        }
    }

    /// Sends an RDMA request that needs more than one step.
    #[cold]
    fn send_bulk(
        &mut self,
        index: usize,
        to: Gid,
        token: Token,
        header: RequestHeader,
        arrival: Arrival,
        data: LocalData<'_>,
    ) -> Result<(), LinkBusy> {
        let own = self.routes.peers().own_address();
        let ring = &mut self.rings[index];
        if self.bulks.is_full() {
            return Err(LinkBusy);
        }
        // The data of a read returns through the ring. To itself, a device has one ring for both
        // directions: the data would wait after the request for room, and the request for the data.
        let is_to_itself = ring.peer.address() == own;
        let segments: &[HostSegment] = match data {
            LocalData::Segments(segments) => segments,
            LocalData::Inline(_) | LocalData::Packet { .. } => &[],
        };
        let (list_bytes, length) = record::segments_to_bytes(segments);
        let record = request_record(RecordKind::Direct, &header, length as u32, arrival);
        let name = self.bulks.insert(Bulk {
            token,
            header,
            ring: index,
            arrival,
            stage: BulkStage::through_rings(header.operation),
        });
        let leaves = leaving(self.tap.as_deref());
        let through_rings = !is_to_itself && (self.rdma == RdmaPath::Rings || ring.rings_only)
            || segments.len() > record::MAX_SEGMENTS;
        if through_rings {
            self.working.push_back(name);
        } else {
            let pushed = ring
                .producer
                .push(&record, Pending::Bulk(name), |memory, at| {
                    memory.write(at, &list_bytes[..length]);
                });
            let Ok(position) = pushed else {
                self.bulks.remove(name);
                return Err(LinkBusy);
            };
            if let Some(bulk) = self.bulks.get_mut(name) {
                bulk.stage = BulkStage::Direct(position);
            }
            list(&mut self.waiting, ring, index);
        }
        if let Some(moment) = leaves {
            self.tap_sent(moment, to, token, record, data);
        }
        Ok(())
    }
}
