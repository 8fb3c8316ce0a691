//! Operations that take answers: windows, reads, acknowledgements.

use std::collections::HashMap;

use efa_core::wire::{Header, PacketType, ReqFlags, RmaIovs, Rta, RtaKind};

use super::sequence::Pieces;
use super::{
    ANSWER_NAMES_REQUEST, CTS_POSITIVE, CTS_WINDOW, CTSDATA_NAMES_CTS, Findings, IOV_LENGTH,
    MESSAGE_WHOLE, Node, ONE_ANSWER, Observed, SEGMENT_BOUNDS, SEGMENT_OVERLAP,
};

/// How an operation that a sender announced will end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// By the last byte of data.
    Data,
    /// By a RECEIPT.
    Receipt,
    /// By an EOR, or by a READ_NACK and then data.
    Eor,
}

/// An operation with data on its way. The ids that name it may be given to others while it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct TransferId(usize);

/// Data on its way from `send_id` of one endpoint to `recv_id` of another.
struct Transfer {
    source: Node,
    destination: Node,
    request: u64,
    packet_type: PacketType,
    length: u64,
    pieces: Pieces,
    /// Bytes that may be sent: in the request, and by each window.
    allowed: u64,
    /// Windows of which not all was sent when the next one came.
    recv_id: Option<u32>,
    ending: Ending,
    is_acknowledged: bool,
}

impl Transfer {
    fn is_sent(&self) -> bool {
        self.pieces.total() >= self.length
    }

    /// Whether nothing more is to come from its sender.
    fn is_over(&self) -> bool {
        self.is_acknowledged || self.ending == Ending::Data && self.is_sent()
    }

    fn check_window(&self, observed: &Observed<'_>, findings: &mut Findings) {
        let sent = self.pieces.total();
        if sent > self.allowed {
            let text = format!(
                "{sent} bytes of the operation of packet {} are sent, only {} are allowed so far",
                self.request, self.allowed
            );
            findings.at(CTS_WINDOW, observed, text);
        }
    }

    /// What can be said when nothing more comes.
    fn end(&self, findings: &mut Findings) {
        // A capture may end in the middle of a message that nobody has received yet; once it was
        // received, windows have been opened.
        if self.ending != Ending::Eor && self.recv_id.is_some() && !self.is_sent() {
            let text = format!("{} of {} bytes were sent", self.pieces.total(), self.length);
            findings.add(MESSAGE_WHOLE, self.request, self.packet_type, text);
        }
    }
}

#[derive(Default)]
pub(super) struct Transfers {
    transfers: HashMap<TransferId, Transfer>,
    /// How many there were.
    begun: usize,
    /// What (source of the data, destination, send_id) named last.
    sends: HashMap<(Node, Node, u32), TransferId>,
    /// What (source of the data, destination, recv_id) named last.
    receives: HashMap<(Node, Node, u32), TransferId>,
    /// Reads and fetching atomics that wait for their answer, by (requester, responder, recv_id).
    requests: HashMap<(Node, Node, u32), Read>,
}

struct Read {
    request: u64,
    length: u64,
    first_window: u64,
    /// Data that overtook the READRSP.
    early: Pieces,
}

impl Transfers {
    /// `goes_on`: the packet belongs to a message that an earlier one began.
    pub(super) fn sent(&mut self, observed: &Observed<'_>, goes_on: bool, findings: &mut Findings) {
        let payload = observed.packet.payload.length as u64;
        match &observed.packet.header {
            Header::EagerRtm(h) => {
                if let Some(id) = h.receipt {
                    self.announce(observed, id.0, payload, payload, Ending::Receipt);
                }
            }
            // The message's first packet announced its operation.
            Header::MediumRtm(_) if goes_on => {}
            Header::MediumRtm(h) => {
                if let Some(id) = h.receipt {
                    self.announce(observed, id.0, h.msg_length, h.msg_length, Ending::Receipt);
                }
            }
            Header::LongctsRtm(h) => {
                check_room(observed, h.msg_length, findings);
                let ending = receipt_if(h.delivery_complete);
                self.announce(observed, h.send_id.0, h.msg_length, payload, ending);
            }
            Header::LongreadRtm(h) => {
                check_iov(observed, h.read_iov, h.msg_length, "read_iov", findings);
                self.announce(observed, h.send_id.0, h.msg_length, 0, Ending::Eor);
            }
            Header::RuntreadRtm(h) => {
                check_iov(observed, h.read_iov, h.msg_length, "read_iov", findings);
                let runt = h.runt_length;
                if !goes_on {
                    self.announce(observed, h.send_id.0, h.msg_length, runt, Ending::Eor);
                }
            }
            Header::EagerRtw(h) => {
                check_iov(observed, h.rma_iov, payload, "rma_iov", findings);
                if let Some(id) = h.receipt {
                    self.announce(observed, id.0, payload, payload, Ending::Receipt);
                }
            }
            Header::LongctsRtw(h) => {
                check_room(observed, h.msg_length, findings);
                check_iov(observed, h.rma_iov, h.msg_length, "rma_iov", findings);
                let ending = receipt_if(h.delivery_complete);
                self.announce(observed, h.send_id.0, h.msg_length, payload, ending);
            }
            Header::LongreadRtw(h) => {
                check_iov(observed, h.rma_iov, h.msg_length, "rma_iov", findings);
                check_iov(observed, h.read_iov, h.msg_length, "read_iov", findings);
                self.announce(observed, h.send_id.0, h.msg_length, 0, Ending::Eor);
            }
            Header::Rtr(h) => {
                check_iov(observed, h.rma_iov, h.msg_length, "rma_iov", findings);
                let read = Read {
                    request: observed.number,
                    length: h.msg_length,
                    first_window: h.recv_length.into(),
                    early: Pieces::default(),
                };
                let key = (observed.from, observed.to, h.recv_id.0);
                self.requests.insert(key, read);
                // The id is used again: what an earlier operation got by it is over.
                self.receives
                    .remove(&(observed.to, observed.from, h.recv_id.0));
            }
            Header::Rta(h) => self.atomic(observed, h, findings),
            Header::ReadRsp(h) => {
                self.read_response(observed, h.recv_id.0, h.send_id.0, payload, findings);
            }
            Header::AtomRsp(h) => {
                let key = (observed.to, observed.from, h.recv_id.0);
                if self.requests.remove(&key).is_none() {
                    unknown(observed, "recv_id", h.recv_id.0, findings);
                }
            }
            Header::Cts(h) => {
                self.window(observed, h.send_id.0, h.recv_id.0, h.recv_length, findings);
            }
            Header::CtsData(h) => {
                self.data(observed, h.recv_id.0, h.seg_offset, payload, findings);
            }
            Header::Eor(h) => self.acknowledge(observed, h.send_id.0, Ending::Eor, findings),
            Header::Receipt(h) => {
                self.acknowledge(observed, h.send_id.0, Ending::Receipt, findings);
            }
            Header::ReadNack(h) => {
                let key = (observed.to, observed.from, h.send_id.0);
                if !self.sends.contains_key(&key) {
                    unknown(observed, "send_id", h.send_id.0, findings);
                }
            }
            _ => {}
        }
    }

    /// A request gave its operation an id.
    fn announce(
        &mut self,
        observed: &Observed<'_>,
        send_id: u32,
        length: u64,
        in_request: u64,
        ending: Ending,
    ) {
        let key = (observed.from, observed.to, send_id);
        let packet_type = observed.packet.base.packet_type;
        // The answer to a READ_NACK goes on with the operation of the refused request.
        if let Header::LongctsRtm(h) = &observed.packet.header
            && h.options.flags.contains(ReqFlags::READ_NACK)
            && let Some(known) = self.of_send_id(key)
            && !known.is_acknowledged
            && known.length == length
        {
            known.packet_type = packet_type;
            return;
        }
        let mut pieces = Pieces::default();
        pieces.add(0, in_request.min(length));
        let transfer = Transfer {
            source: observed.from,
            destination: observed.to,
            request: observed.number,
            packet_type,
            length,
            pieces,
            allowed: in_request.min(length),
            recv_id: None,
            ending,
            is_acknowledged: false,
        };
        self.begin(send_id, transfer);
    }

    fn begin(&mut self, send_id: u32, transfer: Transfer) -> TransferId {
        let id = TransferId(self.begun);
        self.begun += 1;
        let key = (transfer.source, transfer.destination, send_id);
        self.sends.insert(key, id);
        self.transfers.insert(id, transfer);
        id
    }

    /// What (source of the data, destination, send_id) names.
    fn of_send_id(&mut self, key: (Node, Node, u32)) -> Option<&mut Transfer> {
        self.transfers.get_mut(self.sends.get(&key)?)
    }

    fn atomic(&mut self, observed: &Observed<'_>, rta: &Rta, findings: &mut Findings) {
        let payload = observed.packet.payload.length as u64;
        let operand = match rta.kind {
            RtaKind::Compare(_) => payload / 2,
            _ => payload,
        };
        check_iov(observed, rta.rma_iov, operand, "rma_iov", findings);
        match rta.kind {
            RtaKind::Write => {}
            RtaKind::Fetch(id) | RtaKind::Compare(id) => {
                let read = Read {
                    request: observed.number,
                    length: operand,
                    first_window: operand,
                    early: Pieces::default(),
                };
                self.requests
                    .insert((observed.from, observed.to, id.0), read);
            }
            RtaKind::DcWrite(id) => {
                self.announce(observed, id.0, payload, payload, Ending::Receipt);
            }
        }
    }

    /// A responder begins to answer a read: from here on it is the source of the data.
    fn read_response(
        &mut self,
        observed: &Observed<'_>,
        recv_id: u32,
        send_id: u32,
        payload: u64,
        findings: &mut Findings,
    ) {
        let Some(read) = self.requests.remove(&(observed.to, observed.from, recv_id)) else {
            unknown(observed, "recv_id", recv_id, findings);
            return;
        };
        let mut pieces = read.early;
        if payload > read.length {
            let text = format!(
                "it has {payload} bytes, packet {} asked for {}",
                read.request, read.length
            );
            findings.at(SEGMENT_BOUNDS, observed, text);
        }
        if !pieces.add(0, payload.min(read.length)) {
            let text = format!("bytes 0 to {payload} overlap bytes sent before");
            findings.at(SEGMENT_OVERLAP, observed, text);
        }
        let transfer = Transfer {
            source: observed.from,
            destination: observed.to,
            request: observed.number,
            packet_type: observed.packet.base.packet_type,
            length: read.length,
            pieces,
            allowed: read.first_window.min(read.length),
            recv_id: Some(recv_id),
            ending: Ending::Data,
            is_acknowledged: false,
        };
        transfer.check_window(observed, findings);
        let id = self.begin(send_id, transfer);
        self.receives
            .insert((observed.from, observed.to, recv_id), id);
    }

    fn window(
        &mut self,
        observed: &Observed<'_>,
        send_id: u32,
        recv_id: u32,
        length: u64,
        findings: &mut Findings,
    ) {
        if length == 0 {
            findings.at(CTS_POSITIVE, observed, "its recv_length is 0".into());
        }
        let (source, destination) = (observed.to, observed.from);
        let id = self.sends.get(&(source, destination, send_id)).copied();
        let transfer = id.and_then(|id| Some((id, self.transfers.get_mut(&id)?)));
        let Some((id, transfer)) = transfer.filter(|(_, transfer)| !transfer.is_over()) else {
            unknown(observed, "send_id", send_id, findings);
            return;
        };
        // Stock libfabric opens the next window when the last one is used up; what is on its way
        // may not have been captured in that order, so only the sum is judged.
        transfer.allowed = transfer.allowed.saturating_add(length);
        if transfer.allowed > transfer.length {
            let text = format!(
                "the windows add up to {} bytes, but the message of packet {} has {}",
                transfer.allowed, transfer.request, transfer.length
            );
            findings.at(CTS_WINDOW, observed, text);
        }
        if let Some(known) = transfer.recv_id
            && known != recv_id
        {
            let text = format!("its recv_id is {recv_id}, an earlier packet named {known}");
            findings.at(ANSWER_NAMES_REQUEST, observed, text);
        }
        transfer.recv_id = Some(recv_id);
        self.receives.insert((source, destination, recv_id), id);
    }

    fn data(
        &mut self,
        observed: &Observed<'_>,
        recv_id: u32,
        offset: u64,
        payload: u64,
        findings: &mut Findings,
    ) {
        let (source, destination) = (observed.from, observed.to);
        let transfer = self
            .receives
            .get(&(source, destination, recv_id))
            .and_then(|id| self.transfers.get_mut(id));
        let Some(transfer) = transfer else {
            if let Some(read) = self.requests.get_mut(&(destination, source, recv_id)) {
                let end = offset.saturating_add(payload);
                if end > read.length {
                    let text = format!(
                        "{payload} bytes from {offset} on do not fit into a read of {}",
                        read.length
                    );
                    findings.at(SEGMENT_BOUNDS, observed, text);
                } else if !read.early.add(offset, end) {
                    let text = format!("bytes {offset} to {end} overlap bytes sent before");
                    findings.at(SEGMENT_OVERLAP, observed, text);
                }
                return;
            }
            let text = format!("no CTS, RTR or READRSP announced recv_id {recv_id}");
            findings.at(CTSDATA_NAMES_CTS, observed, text);
            return;
        };
        match offset.checked_add(payload) {
            Some(end) if end <= transfer.length => {
                if !transfer.pieces.add(offset, end) {
                    let text = format!("bytes {offset} to {end} overlap bytes sent before");
                    findings.at(SEGMENT_OVERLAP, observed, text);
                }
            }
            _ => {
                let text = format!(
                    "{payload} bytes from {offset} on do not fit into a message of {}",
                    transfer.length
                );
                findings.at(SEGMENT_BOUNDS, observed, text);
            }
        }
        transfer.check_window(observed, findings);
    }

    fn acknowledge(
        &mut self,
        observed: &Observed<'_>,
        send_id: u32,
        ending: Ending,
        findings: &mut Findings,
    ) {
        let key = (observed.to, observed.from, send_id);
        match self.of_send_id(key) {
            Some(transfer) if transfer.ending == ending => {
                if transfer.is_acknowledged {
                    let text = format!(
                        "the operation of packet {} was acknowledged before",
                        transfer.request
                    );
                    findings.at(ONE_ANSWER, observed, text);
                }
                transfer.is_acknowledged = true;
            }
            _ => unknown(observed, "send_id", send_id, findings),
        }
    }

    /// Judges the operations of two endpoints so far, and forgets them.
    pub(super) fn forget(&mut self, one: Node, other: Node, findings: &mut Findings) {
        let are_theirs =
            |source, destination| [(one, other), (other, one)].contains(&(source, destination));
        let theirs = self
            .transfers
            .extract_if(|_, transfer| are_theirs(transfer.source, transfer.destination));
        for (_, transfer) in theirs {
            transfer.end(findings);
        }
        self.sends.retain(|key, _| !are_theirs(key.0, key.1));
        self.receives.retain(|key, _| !are_theirs(key.0, key.1));
        self.requests.retain(|key, _| !are_theirs(key.0, key.1));
    }

    pub(super) fn end(&mut self, findings: &mut Findings) {
        for transfer in self.transfers.values() {
            transfer.end(findings);
        }
    }
}

fn receipt_if(delivery_complete: bool) -> Ending {
    if delivery_complete {
        Ending::Receipt
    } else {
        Ending::Data
    }
}

fn unknown(observed: &Observed<'_>, field: &str, id: u32, findings: &mut Findings) {
    let text = format!(
        "{} has announced no operation with {field} {id}",
        observed.to
    );
    findings.at(ANSWER_NAMES_REQUEST, observed, text);
}

/// The first data of a message in windows lies within it.
fn check_room(observed: &Observed<'_>, length: u64, findings: &mut Findings) {
    let payload = observed.packet.payload.length;
    if payload as u64 > length {
        let text = format!("it has {payload} bytes of a message of {length}");
        findings.at(SEGMENT_BOUNDS, observed, text);
    }
}

fn check_iov(
    observed: &Observed<'_>,
    iov: RmaIovs,
    length: u64,
    name: &str,
    findings: &mut Findings,
) {
    if iov.total_len() != Some(length) {
        let total = iov
            .total_len()
            .map_or_else(|| "more than 2^64".into(), |total| total.to_string());
        let text = format!("`{name}` describes {total} bytes, the data has {length}");
        findings.at(IOV_LENGTH, observed, text);
    }
}
