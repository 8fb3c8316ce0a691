//! The rendezvous of tag matching in a capture: the packets of each, and violations of the rules.
//!
//! Packets do not show whether messages have tags. An ordinary packet may look like a request of a
//! rendezvous. So a request is not reported until the peer reads from its memory with its key, or
//! returns it as FIN.

use std::collections::VecDeque;

use efa_capture::Direction;
use efa_wire::address::Gid;
use efa_wire::infiniband::{Aeth, RcOpcode, Reth, Rvh, SHORTEST_MTU, Tmh};
use efa_wire::rules::{self, Rule};
use foldhash::{HashMap, HashSet};

use crate::roce::{ConnectedPacket, Step, Transport};
use crate::stream::{Acknowledged, Arrival, Stream, distance};

/// The maximum number of stored requests of one host to another, because a capture may contain any
/// number.
const MOST_REQUESTS: usize = 1024;

/// The maximum number of stored reads, for one rendezvous and for all hosts.
const MOST_READS: usize = 1024;

/// A read never has more packets than this.
const LONGEST_READ: u32 = 1 << 22;

/// A packet, as described in findings.
#[derive(Clone, Debug)]
pub(crate) struct PacketSummary {
    pub(crate) number: u64,
    pub(crate) kind: String,
    pub(crate) interface: usize,
    pub(crate) source: Gid,
    pub(crate) is_arrival: bool,
}

impl PacketSummary {
    fn of(packet: &ConnectedPacket) -> PacketSummary {
        PacketSummary {
            number: packet.number,
            kind: packet.kind(),
            interface: packet.interface,
            source: packet.source,
            is_arrival: packet.direction == Some(Direction::Inbound),
        }
    }
}

/// A violation of a rule.
#[derive(Debug)]
pub(crate) struct Breach {
    pub(crate) rule: &'static Rule,
    pub(crate) packet: PacketSummary,
    pub(crate) text: String,
}

/// The result for a packet.
#[derive(Default, Debug)]
pub(crate) struct PacketResult {
    pub(crate) step: Option<Step>,
    /// Violations by this packet, or by earlier ones that it proves.
    pub(crate) breaches: Vec<Breach>,
    /// The number of further violations whose proof is missing from the capture.
    pub(crate) unproven: u64,
    /// Whether one of the two hosts is known to send messages with tags to the other.
    pub(crate) is_tagged: bool,
}

/// A stream of requests: from a host to a queue pair of another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct StreamKey {
    source: Gid,
    destination: Gid,
    qpn: u32,
}

/// The state of a stream of requests.
#[derive(Debug, Default)]
struct Connection {
    stream: Stream,
    /// Acknowledgements in this stream. They count the messages of the other direction.
    acknowledged: Option<Acknowledged>,
    /// Whether rendezvous have shown that its messages have tags.
    is_tagged: bool,
    /// FINs without a request in this stream. The next packet shows whether a packet is missing
    /// from the capture.
    suspected: Vec<Breach>,
    /// The same for rendezvous whose data was not read. An acknowledgement shows whether the
    /// reader's first packets are missing from the capture.
    unread: Vec<(Breach, StreamKey)>,
    /// The number of its first packet.
    since: u64,
    /// The last read of a rendezvous: the packet of its request, and the read's number.
    last_read: Option<(u64, u32)>,
}

/// A read of a rendezvous accesses a part of its memory.
#[derive(Debug)]
struct Read {
    number: u64,
    way: StreamKey,
    psn: u32,
    /// The most packets of its data.
    packets: u32,
    address: u64,
    length: u32,
    is_answered: bool,
}

impl Read {
    /// The number of bytes that it reads of a range, and whether it reads other bytes.
    fn of(&self, rvh: &Rvh) -> (u64, bool) {
        let (begin, end) = (rvh.address.get(), end_of(rvh));
        let last = u128::from(self.address) + u128::from(self.length);
        let shared = last.min(end).saturating_sub(self.address.max(begin).into());
        (shared as u64, self.address < begin || last > end)
    }
}

fn end_of(rvh: &Rvh) -> u128 {
    u128::from(rvh.address.get()) + u128::from(rvh.length.get())
}

#[derive(Debug)]
struct FinishPacket {
    packet: PacketSummary,
    way: StreamKey,
    psn: u32,
    is_proven: bool,
}

/// A request of a rendezvous, and its state.
#[derive(Debug)]
struct Request {
    number: u64,
    way: StreamKey,
    psn: u32,
    tmh: Tmh,
    rvh: Rvh,
    reads: Vec<Read>,
    finish: Option<FinishPacket>,
}

impl Request {
    fn is_copied_by(&self, tmh: &Tmh, rvh: &Rvh) -> bool {
        let Tmh { data, tag, .. } = self.tmh;
        self.rvh == *rvh && (data, tag) == (tmh.data, tmh.tag)
    }

    /// The number of bytes that were read, assuming that none was read twice; and a read beyond the
    /// memory.
    fn is_read(&self) -> (u64, Option<&Read>) {
        let parts = self.reads.iter().map(|read| read.of(&self.rvh));
        let bytes = parts.filter(|(_, is_beyond)| !is_beyond);
        let beyond = self.reads.iter().find(|read| read.of(&self.rvh).1);
        (bytes.map(|(bytes, _)| bytes).sum(), beyond)
    }
}

/// The requests of one host to another.
#[derive(Debug, Default)]
struct Exchange {
    requests: VecDeque<Request>,
    has_forgotten: bool,
}

/// The traffic at one interface.
#[derive(Debug, Default)]
struct View {
    connections: HashMap<StreamKey, Connection>,
    /// By the requesting and the reading host.
    exchanges: HashMap<(Gid, Gid), Exchange>,
    /// Senders and receivers of packets with truncated headers.
    cut: HashSet<(Gid, Gid)>,
    tagged: HashSet<(Gid, Gid)>,
}

/// The rendezvous of a capture.
#[derive(Default)]
pub(crate) struct Rendezvous {
    /// A host's packets to itself occur twice, at the sender and at the receiver.
    views: HashMap<(usize, bool), View>,
    /// Reads of any memory: the data of a rendezvous may be read over another device.
    reads: VecDeque<(u64, u64, u32)>,
}

impl Rendezvous {
    /// The number of violations that are not proven yet.
    pub(crate) fn suspected(&self) -> usize {
        let connections = self.views.values().flat_map(|it| it.connections.values());
        connections
            .map(|it| it.suspected.len() + it.unread.len())
            .sum()
    }

    /// Processes the next packet.
    pub(crate) fn follow(&mut self, packet: &ConnectedPacket) -> PacketResult {
        let is_arrival = packet.direction == Some(Direction::Inbound);
        let is_own_arrival = is_arrival && packet.source == packet.destination;
        let view = self.views.entry((packet.interface, is_own_arrival));
        let view = view.or_default();
        let ends = (packet.source, packet.destination);
        let mut followed = PacketResult::default();
        match packet.transport() {
            Some(transport) => {
                let way = StreamKey {
                    source: packet.source,
                    destination: packet.destination,
                    qpn: transport.destination,
                };
                let mut step = PacketContext {
                    view,
                    reads: &mut self.reads,
                    packet,
                    way,
                    followed: &mut followed,
                };
                match transport.opcode.is_response() {
                    true => step.response(&transport),
                    false => step.request(&transport),
                }
            }
            None if packet.packet.len() < packet.length => drop(view.cut.insert(ends)),
            None => {}
        }
        let back = (packet.destination, packet.source);
        followed.is_tagged = view.tagged.contains(&ends) || view.tagged.contains(&back);
        followed
    }
}

/// A packet with its state.
struct PacketContext<'f> {
    view: &'f mut View,
    reads: &'f mut VecDeque<(u64, u64, u32)>,
    packet: &'f ConnectedPacket,
    way: StreamKey,
    followed: &'f mut PacketResult,
}

impl PacketContext<'_> {
    fn connection(&mut self) -> &mut Connection {
        self.view.connections.entry(self.way).or_default()
    }

    /// The exchange with the requests of the packet's sender.
    fn own(&mut self) -> &mut Exchange {
        let ends = (self.way.source, self.way.destination);
        self.view.exchanges.entry(ends).or_default()
    }

    /// The exchange with the requests of the packet's receiver.
    fn peers(&mut self) -> Option<&mut Exchange> {
        let ends = (self.way.destination, self.way.source);
        self.view.exchanges.get_mut(&ends)
    }

    fn breaks(&mut self, rule: &'static Rule, text: String) {
        let packet = PacketSummary::of(self.packet);
        self.followed.breaches.push(Breach { rule, packet, text });
    }

    fn response(&mut self, transport: &Transport<'_>) {
        let (opcode, psn) = (transport.opcode, transport.psn);
        let syndrome = transport.aeth.map(|aeth: Aeth| aeth.syndrome);
        if opcode == RcOpcode::Acknowledge
            && let Some(aeth) = transport.aeth
            && aeth.syndrome < Aeth::NOT_READY
        {
            let [a, b, c] = aeth.messages;
            let messages = u32::from_be_bytes([0, a, b, c]);
            let known = &mut self.connection().acknowledged;
            Acknowledged::take(known, psn, messages);
            return self.confirm_unread();
        }
        let is_refused = opcode == RcOpcode::Acknowledge && syndrome == Some(Aeth::ACCESS_REFUSED);
        if opcode == RcOpcode::Acknowledge && !is_refused {
            return;
        }
        let ends = (self.way.source, self.way.destination);
        let exchange = self.view.exchanges.get_mut(&ends);
        let requests = exchange.map(|exchange| exchange.requests.iter_mut().rev());
        for request in requests.into_iter().flatten() {
            let is_its = |read: &&mut Read| {
                let packets = 0..read.packets.cast_signed();
                packets.contains(&distance(read.psn, psn))
            };
            let Some(read) = request.reads.iter_mut().rev().find(is_its) else {
                continue;
            };
            self.followed.step = Some(Step::Answer(request.number));
            let is_inside = !read.of(&request.rvh).1;
            let was_answered = read.is_answered;
            read.is_answered |= opcode.ends_read() || is_refused;
            let (number, read) = (request.number, read.number);
            if was_answered {
                return;
            }
            match &request.finish {
                None if is_refused && is_inside => {
                    let text = format!(
                        "the read of packet {read} is refused, and packet {number} has asked for it"
                    );
                    self.breaks(&rules::RENDEZVOUS_MEMORY, text);
                }
                Some(finish) if opcode.ends_read() && finish.is_proven && is_inside => {
                    let (number, packet) = (self.packet.number, finish.packet.clone());
                    let text =
                        format!("the data that packet {read} reads has come in packet {number}");
                    let rule = &rules::RENDEZVOUS_FIN_EARLY;
                    self.followed.breaches.push(Breach { rule, packet, text });
                }
                _ => {}
            }
            return;
        }
    }

    fn request(&mut self, transport: &Transport<'_>) {
        let opcode = transport.opcode;
        let read = transport.reth.filter(|_| opcode == RcOpcode::ReadRequest);
        let most = read.map_or(1, |reth| packets_of(reth.length.get()));
        let stream = &mut self.connection().stream;
        match stream.take(transport.psn, most, opcode.ends_request()) {
            Arrival::New => self.confirm(),
            Arrival::Restart => {
                let way = self.way;
                let number = self.packet.number;
                let connection = self.connection();
                (connection.is_tagged, connection.since) = (false, number);
                let suspected = std::mem::take(&mut connection.suspected);
                self.followed.unproven += suspected.len() as u64;
                self.own().requests.retain(|request| request.way != way);
            }
            Arrival::Again => return self.again(transport),
        }
        self.bound(transport.psn);
        if let Some(reth) = read {
            return self.read(transport.psn, reth);
        }
        if opcode.begins_message() {
            self.message(transport);
        }
    }

    /// The data of the previous read ends before this request.
    fn bound(&mut self, psn: u32) {
        let Some((number, of)) = self.connection().last_read.take() else {
            return;
        };
        let requests = self.peers().into_iter().flat_map(|it| &mut it.requests);
        let mut reads = requests
            .filter(|it| it.number == number)
            .flat_map(|it| &mut it.reads);
        let between = distance(of, psn).cast_unsigned();
        if let Some(read) = reads.find(|read| read.psn == of)
            && between > 0
        {
            read.packets = read.packets.min(between);
        }
    }

    /// A packet with the expected number shows that no earlier one is missing.
    fn confirm(&mut self) {
        let connection = self.connection();
        let suspected = std::mem::take(&mut connection.suspected);
        match connection.stream.is_whole() {
            true => self.followed.breaches.extend(suspected),
            false => self.followed.unproven += suspected.len() as u64,
        }
    }

    /// An acknowledgement contains the number of the connection's messages.
    fn confirm_unread(&mut self) {
        let unread = std::mem::take(&mut self.connection().unread);
        for (breach, reading) in unread {
            let acknowledged = self.connection().acknowledged;
            let reading = self.view.connections.get(&reading);
            let has_all = reading.is_some_and(|reading| {
                reading.stream.is_whole() && reading.stream.has_begun(acknowledged.as_ref())
            });
            match has_all {
                true => self.followed.breaches.push(breach),
                false => self.followed.unproven += 1,
            }
        }
    }

    /// A retransmitted packet has the same role as before.
    fn again(&mut self, transport: &Transport<'_>) {
        let (way, psn) = (self.way, transport.psn);
        let is_request = |request: &Request| (request.way, request.psn) == (way, psn);
        if self.own().requests.iter().any(is_request) {
            return;
        }
        let steps = self.peers().into_iter().flat_map(|it| &it.requests);
        let step = steps.rev().find_map(|request| {
            let is_read = |read: &Read| (read.way, read.psn) == (way, psn);
            let finish = request.finish.as_ref();
            if finish.is_some_and(|finish| (finish.way, finish.psn) == (way, psn)) {
                return Some(Step::Finish(request.number));
            }
            let mut reads = request.reads.iter();
            let is_read = reads.any(is_read);
            is_read.then_some(Step::Read(request.number))
        });
        self.followed.step = step;
        // A new queue pair may have started with a number that was used before.
        if step.is_none()
            && transport.opcode.begins_message()
            && Message::of(transport).has_rendezvous()
        {
            self.connection().stream.tear();
        }
    }

    fn read(&mut self, psn: u32, reth: Reth) {
        let (number, way) = (self.packet.number, self.way);
        let (address, key, length) = (reth.address.get(), reth.key, reth.length.get());
        let read = Read {
            number,
            way,
            psn,
            packets: packets_of(length),
            address,
            length,
            is_answered: false,
        };
        if self.reads.len() == MOST_READS {
            self.reads.pop_front();
        }
        self.reads.push_back((number, address, length));
        let Some(exchange) = self.peers() else { return };
        let requests = exchange.requests.iter_mut();
        let mut of_memory: Vec<&mut Request> = requests
            .filter(|request| request.rvh.key == key && read.of(&request.rvh).0 > 0)
            .collect();
        // The first open request that was not read, otherwise the last one.
        let is_unread = |request: &&mut Request| {
            let (bytes, _) = request.is_read();
            request.finish.is_none() && bytes < u64::from(request.rvh.length.get())
        };
        let at = of_memory.iter().position(is_unread);
        let open = || of_memory.iter().rposition(|it| it.finish.is_none());
        let at = at.or_else(open).or(of_memory.len().checked_sub(1));
        let Some(request) = at.map(|at| &mut *of_memory[at]) else {
            return;
        };
        let (of, is_beyond) = (request.number, read.of(&request.rvh).1);
        let (is_late, request_way) = (request.finish.is_some(), request.way);
        let text = request
            .finish
            .as_ref()
            .map(|finish| format!("packet {} has ended the rendezvous", finish.packet.number));
        if !is_late && request.reads.len() < MOST_READS {
            request.reads.push(read);
        }
        self.followed.step = Some(Step::Read(of));
        self.connection().last_read = Some((of, psn));
        if let Some(text) = text.filter(|_| !is_beyond) {
            self.breaks(&rules::RENDEZVOUS_READ_LATE, text);
        }
        if !is_beyond {
            self.mark_tagged(request_way);
        }
    }

    fn mark_tagged(&mut self, way: StreamKey) {
        self.view.tagged.insert((way.source, way.destination));
        let connection = self.view.connections.entry(way).or_default();
        connection.is_tagged = true;
    }

    fn message(&mut self, transport: &Transport<'_>) {
        let first = transport.payload.first();
        let headers = first.map_or(1, |operation| Tmh::headers_length(*operation));
        if transport.payload.len() < headers.min(transport.payload_length) {
            return self.connection().stream.tear();
        }
        let message = Message::of(transport);
        if let Message::Rendezvous { tmh, rvh } = message {
            let (number, way, psn) = (self.packet.number, self.way, transport.psn);
            let exchange = self.own();
            if exchange.requests.len() == MOST_REQUESTS {
                let oldest = exchange.requests.pop_front();
                exchange.has_forgotten |= oldest.is_some_and(|it| it.finish.is_none());
            }
            exchange.requests.push_back(Request {
                number,
                way,
                psn,
                tmh,
                rvh,
                reads: Vec::new(),
                finish: None,
            });
            return;
        }
        if let Message::Finish { tmh, rvh } = message {
            self.finish(transport.psn, &tmh, &rvh);
            return;
        }
        if !self.connection().is_tagged {
            return;
        }
        match message {
            Message::Short { operation } => {
                let bytes = transport.payload_length;
                let text = format!("operation {operation} with {bytes} of {headers} bytes");
                self.breaks(&rules::TAG_HEADER_WHOLE, text);
            }
            Message::Unknown { operation } => {
                let text = format!("operation {operation}");
                self.breaks(&rules::TAG_OPERATION, text);
            }
            _ => {}
        }
    }

    fn finish(&mut self, psn: u32, tmh: &Tmh, rvh: &Rvh) {
        let requests = |exchange: &Exchange| {
            let requests = exchange.requests.iter();
            let mut open = requests.filter(|it| it.is_copied_by(tmh, rvh));
            let open = open.find(|it| it.finish.is_none());
            open.map(|request| (request.number, request.way))
        };
        match self.peers().map(|exchange| requests(exchange)) {
            Some(Some((number, way))) => {
                self.mark_tagged(way);
                self.ends(number, way, psn);
            }
            Some(None) => self.ends_nothing(psn, tmh, rvh),
            None => {}
        }
    }

    /// Handles the FIN for the request in packet `number`.
    fn ends(&mut self, number: u64, way: StreamKey, psn: u32) {
        let (packet, reader) = (PacketSummary::of(self.packet), self.way);
        let is_proven = self.is_proven(way);
        let oldest = (self.reads.len() == MOST_READS).then(|| self.reads[0].0);
        let reads = std::mem::take(self.reads);
        let exchange = self.peers();
        let requests = exchange.into_iter().flat_map(|it| &mut it.requests);
        let mut broken = None;
        for request in requests.filter(|it| it.number == number) {
            let finish = FinishPacket {
                packet: packet.clone(),
                way: reader,
                psn,
                is_proven,
            };
            request.finish = Some(finish);
            let length = u64::from(request.rvh.length.get());
            let (bytes, beyond) = request.is_read();
            let asks = format!("packet {number} asks for {length} bytes");
            let is_elsewhere = reads.iter().any(|(at, address, bytes)| {
                let begin = request.rvh.address.get();
                let end = u128::from(*address) + u128::from(*bytes);
                *at > number
                    && u128::from(begin) < end
                    && u128::from(*address) < end_of(&request.rvh)
            });
            let is_known = request.reads.len() < MOST_READS;
            broken = match beyond {
                _ if bytes >= length || !is_known => None,
                Some(read) => Some((
                    &rules::RENDEZVOUS_READ_RANGE,
                    format!(
                        "{asks}, packet {} reads {} of other places",
                        read.number, read.length
                    ),
                )),
                None if bytes > 0 => Some((
                    &rules::RENDEZVOUS_PART_READ,
                    format!("{asks}, of which {bytes} were read"),
                )),
                None if is_elsewhere || oldest.is_some_and(|oldest| oldest > number) => None,
                None => Some((
                    &rules::RENDEZVOUS_FIN_EARLY,
                    format!("{asks}, none of which was read"),
                )),
            };
        }
        *self.reads = reads;
        self.followed.step = Some(Step::Finish(number));
        let Some((rule, text)) = broken else { return };
        let breach = Breach { rule, packet, text };
        let asking = self.view.connections.get(&way);
        let acknowledged = asking.and_then(|it| it.acknowledged);
        let reading = self.connection();
        let has_begun = reading.stream.has_begun(acknowledged.as_ref());
        if !is_proven {
            self.followed.unproven += 1;
        } else if reading.since < number || has_begun {
            self.followed.breaches.push(breach);
        } else {
            let asking = self.view.connections.entry(way).or_default();
            asking.unread.push((breach, reader));
        }
    }

    /// Handles a FIN without an open request.
    fn ends_nothing(&mut self, psn: u32, tmh: &Tmh, rvh: &Rvh) {
        let (way, packet) = (self.way, PacketSummary::of(self.packet));
        let Some(exchange) = self.peers() else { return };
        let has_forgotten = exchange.has_forgotten;
        let requests = || exchange.requests.iter().rev();
        let of_memory = |it: &&Request| it.rvh.key == rvh.key && it.rvh.address == rvh.address;
        let ended = |it: &&Request| it.finish.is_some() && it.is_copied_by(tmh, rvh);
        let open = |it: &&Request| it.finish.is_none() && of_memory(it);
        let answers = |it: &&Request| it.finish.as_ref().is_some_and(|it| it.way == way);
        let (found, text) = if let Some(request) = requests().find(ended) {
            let by = request.finish.as_ref().map_or(0, |it| it.packet.number);
            let number = request.number;
            let text = format!("packet {by} has ended the rendezvous of packet {number}");
            (request, text)
        } else if let Some(request) = requests().find(open) {
            let number = request.number;
            (
                request,
                format!("it is not a copy of the request, packet {number}"),
            )
        } else if let Some(request) = requests().find(answers) {
            (request, "no packet has asked for it".to_owned())
        } else {
            return;
        };
        let (number, of) = (found.number, found.way);
        if !has_forgotten && self.is_proven(of) {
            // One mistake violates one rule only.
            let requests = self.peers().into_iter().flat_map(|it| &mut it.requests);
            let open = requests.filter(|it| it.number == number && it.finish.is_none());
            for request in open {
                request.finish = Some(FinishPacket {
                    packet: packet.clone(),
                    way,
                    psn,
                    is_proven: false,
                });
            }
            let rule = &rules::RENDEZVOUS_FIN_NAMES_REQUEST;
            let asking = self.view.connections.entry(of).or_default();
            asking.suspected.push(Breach { rule, packet, text });
        } else {
            self.followed.unproven += 1;
        }
    }

    /// Whether the capture has all packets of the two ends: those of the request's stream, and
    /// those of this packet's stream.
    fn is_proven(&self, requests: StreamKey) -> bool {
        let (one, other) = (self.way.source, self.way.destination);
        let is_cut = self.view.cut.contains(&(one, other)) || self.view.cut.contains(&(other, one));
        let asking = self.view.connections.get(&requests);
        let reading = self.view.connections.get(&self.way);
        let (Some(asking), Some(reading)) = (asking, reading) else {
            return false;
        };
        let is_whole = asking.stream.is_whole() && reading.stream.is_whole();
        !is_cut && is_whole && asking.stream.has_begun(reading.acknowledged.as_ref())
    }
}

/// The most packets of a read's data.
fn packets_of(length: u32) -> u32 {
    length.div_ceil(SHORTEST_MTU).clamp(1, LONGEST_READ)
}

/// A message, by its tag matching header.
#[derive(Debug)]
enum Message {
    Rendezvous {
        tmh: Tmh,
        rvh: Rvh,
    },
    Finish {
        tmh: Tmh,
        rvh: Rvh,
    },
    /// Its headers are incomplete.
    Short {
        operation: u8,
    },
    /// An eager message, or one without a tag.
    Other,
    Unknown {
        operation: u8,
    },
}

impl Message {
    fn of(transport: &Transport<'_>) -> Message {
        let Some(&operation) = transport.payload.first() else {
            return Message::Other;
        };
        let needs = Tmh::headers_length(operation);
        if transport.opcode.is_whole_message() && transport.payload_length < needs {
            return Message::Short { operation };
        }
        let tmh = Tmh::read(transport.payload).filter(|tmh| tmh.reserved == [0; 3]);
        let rvh = transport.payload.get(Tmh::LENGTH..).and_then(Rvh::read);
        match (operation, tmh.zip(rvh)) {
            (Tmh::RENDEZVOUS, Some((tmh, rvh))) => Message::Rendezvous { tmh, rvh },
            (Tmh::FINISH, Some((tmh, rvh))) => Message::Finish { tmh, rvh },
            (0..=Tmh::EAGER, _) => Message::Other,
            _ => Message::Unknown { operation },
        }
    }

    fn has_rendezvous(&self) -> bool {
        matches!(self, Message::Rendezvous { .. } | Message::Finish { .. })
    }
}
