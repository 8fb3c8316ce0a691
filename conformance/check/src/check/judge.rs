//! Judging frames one by one, each as part of its conversation.

use std::collections::{BTreeSet, HashMap, HashSet};

use efa_capture::Direction;
use efa_capture::frame::Kind;
use efa_wire::address::Gid;
use efa_wire::rules;
use efa_wire::{Packet, ParseError};

use super::content::Content;
use super::conversation::{Conversation, FrameContext, PacketFrame};
use super::copies::Copies;
use super::device::Named;
use super::follow::Follower;
use super::format;
use super::node::{Node, View};
use super::order::{InOrder, OutOfOrder};
use super::packet::Reading;
use super::report::{Checked, Report};
use crate::capture::{Capture, CapturedPacket, UserRecvQps};

/// Judges a capture, frame by frame.
#[derive(Default)]
pub struct Judge {
    order: InOrder,
    user_recv: UserRecvQps,
    conversations: HashMap<View, Conversation>,
    /// Queue pairs whose first request is in the capture.
    born: HashSet<(bool, Node)>,
    /// Hosts whose own sends are in the capture.
    captured: HashSet<Gid>,
    copies: Copies,
    report: Report,
    lossy: BTreeSet<usize>,
}

impl Judge {
    /// A judge without frames so far.
    pub fn new() -> Judge {
        Judge::default()
    }

    /// Takes the next frame of the capture. Frames need not be in the order of time.
    ///
    /// # Errors
    /// If later frames had to be judged already, because too much is between them and this one.
    pub fn frame(&mut self, frame: CapturedPacket) -> Result<(), OutOfOrder> {
        self.knows(&frame);
        if let Some(frame) = self.order.push(frame)? {
            self.judge(&frame);
        }
        Ok(())
    }

    /// Learns whose sends are in the capture, before the first of them is judged.
    fn knows(&mut self, frame: &CapturedPacket) {
        if frame.direction == Some(Direction::Outbound) {
            self.captured.insert(frame.source);
        }
    }

    /// Tells that an interface did not capture all frames, so that missing ones prove nothing.
    pub fn lossy(&mut self, interface: usize) {
        self.lossy.insert(interface);
    }

    /// Ends the capture and returns the findings.
    pub fn finish(mut self) -> Checked {
        while let Some(frame) = self.order.pop() {
            self.judge(&frame);
        }
        let mut views: Vec<_> = self.conversations.into_iter().collect();
        views.sort_by_key(|(view, _)| *view);
        for (_, mut conversation) in views {
            conversation.close(&mut self.report);
        }
        self.report.finish(&self.lossy)
    }

    fn judge(&mut self, frame: &CapturedPacket) {
        let header = &frame.header;
        let is_headerless = self.user_recv.follow(frame);
        let from = Node {
            gid: frame.source,
            qpn: header.source_qpn.0,
        };
        let to = Node {
            gid: frame.destination,
            qpn: header.destination_qpn.0,
        };
        let is_arrival = frame.direction == Some(Direction::Inbound);
        // An endpoint that talks to itself knows both what it sends and what arrives.
        if matches!(header.kind, Kind::Datagram) || is_headerless || from == to && is_arrival {
            return;
        }
        let (near, far) = match frame.direction {
            Some(Direction::Outbound) => (from, to),
            Some(Direction::Inbound) => (to, from),
            None => (from.min(to), from.max(to)),
        };
        let has_direction = frame.direction.is_some();
        let is_answer = matches!(header.kind, Kind::Response(_) | Kind::RdmaReadResponse(_));
        if header.sequence == 0 && !header.retransmission && !is_answer && !is_arrival {
            self.born.insert((has_direction, from));
        }
        let view = View {
            has_direction,
            near,
            far,
        };
        let conversation = self
            .conversations
            .entry(view)
            .or_insert_with(|| Conversation::new(near, far));
        let place = FrameContext {
            number: frame.number,
            interface: frame.interface,
            is_judged: !is_arrival || !self.captured.contains(&frame.source),
            is_own: !is_arrival,
        };
        let (me, you) = conversation.ends(from);
        let is_repetition = match header.kind {
            Kind::Response(status) => {
                return conversation.request_ends(you, header.sequence, status);
            }
            Kind::RdmaReadResponse(rdma) => return conversation.read_data(header, &rdma, you),
            Kind::RdmaWrite(rdma) if rdma.offset > 0 => false,
            _ => {
                let requests = &mut conversation.sides[me].requests;
                requests.is_repetition(header.sequence, header.retransmission)
            }
        };
        let report = &mut self.report;
        match header.kind {
            Kind::RdmaReadRequest(rdma) if !is_repetition => {
                conversation.read_begins(report, place, header, &rdma, (me, you));
            }
            Kind::RdmaWrite(rdma) if !is_repetition => {
                conversation.write(report, place, header, &rdma, (me, you));
            }
            Kind::Send => {
                let parsed = Packet::parse(&frame.payload);
                if !has_header(frame, &parsed) {
                    return conversation.torn();
                }
                let content = Content::of(frame, parsed.as_ref().ok());
                if let Some(text) = self.copies.difference(frame, &content) {
                    let rule = &rules::COPIES_AGREE;
                    let seen = FrameContext {
                        is_judged: true,
                        ..place
                    };
                    conversation.breach(report, seen, frame.kind(), rule, text);
                }
                let is_from_birth = self.born.contains(&(has_direction, near));
                let sent = Sent {
                    frame,
                    parsed,
                    content,
                    is_repetition,
                    is_from_birth,
                };
                judge_packet(conversation, report, place, sent);
            }
            _ => {}
        }
    }
}

/// Whether the capture has the whole header of a packet.
fn has_header(frame: &CapturedPacket, parsed: &Result<Packet, ParseError>) -> bool {
    let header_ends = parsed.as_ref().map(|packet| packet.payload.offset);
    frame.cut_off == 0 || header_ends.is_ok_and(|end| end <= frame.there().len())
}

/// A packet that was sent.
struct Sent<'f> {
    frame: &'f CapturedPacket,
    parsed: Result<Packet, ParseError>,
    content: Content,
    /// The device repeats it.
    is_repetition: bool,
    /// The capture has all packets that the near end has sent since it was created.
    is_from_birth: bool,
}

/// Judges a packet.
fn judge_packet(
    conversation: &mut Conversation,
    report: &mut Report,
    place: FrameContext,
    sent: Sent<'_>,
) {
    let Sent {
        frame,
        parsed,
        content,
        is_repetition,
        is_from_birth,
    } = sent;
    let header = &frame.header;
    if !header.payload_captured {
        return conversation.torn();
    }
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return conversation.malformed(report, place, frame.kind(), &error),
    };
    let from = Node {
        gid: frame.source,
        qpn: header.source_qpn.0,
    };
    let reading = Reading::of(&parsed);
    for (rule, text) in format::breaches(&reading) {
        conversation.breach(report, place, reading.packet_type, rule, text);
    }
    let (me, _) = conversation.ends(from);
    let requests = &mut conversation.sides[me].requests;
    let raw_connid = reading.raw_address().map(|address| address.qkey.0);
    let named = Named {
        connid: raw_connid.or(reading.connid),
        qkey: header.qkey,
    };
    let is_resent = requests.is_resent(header.sequence, frame.number, content, named);
    let outer = PacketFrame {
        from,
        qkey: header.qkey,
        sequence: header.sequence,
        retransmission: header.retransmission,
        is_from_birth,
    };
    let repeats = is_repetition || is_resent;
    let Some((me, you)) = conversation.packet(report, place, &outer, &reading, repeats) else {
        return;
    };
    let mut follower = Follower {
        conversation,
        report,
        place,
        reading,
        sequence: header.sequence,
        me,
        you,
    };
    follower.follow();
}

/// Judges a capture that is in memory.
pub fn check(capture: &Capture) -> Checked {
    let mut frames: Vec<&CapturedPacket> = capture.frames.iter().collect();
    frames.sort_by_key(|frame| (frame.time, frame.number));
    let mut judge = Judge::new();
    for &interface in &capture.lossy {
        judge.lossy(interface);
    }
    for &frame in &frames {
        judge.knows(frame);
    }
    for frame in frames {
        judge.judge(frame);
    }
    judge.finish()
}
