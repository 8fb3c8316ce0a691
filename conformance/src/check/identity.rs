//! Who sends, and what the two sides know of each other.

use std::collections::{HashMap, HashSet};

use efa_core::address::Qkey;
use efa_core::wire::{Category, Connid, ExtraFeatures, Header, PacketType, ReqFlags};

use super::{
    CONNID_TRUE, FEATURE_ANNOUNCED, FEATURE_EARLY, Findings, HANDSHAKE_ANSWER, HANDSHAKE_ONCE,
    Node, ONE_IDENTITY, Observed, QKEY_TRUE, RAW_ADDRESS_FIRST, RAW_ADDRESS_LAST, RAW_ADDRESS_TRUE,
    REQ_FLAGS,
};

/// What one endpoint knows of another, and what it told it.
#[derive(Default)]
struct Knowledge {
    /// Features of the peer, once its HANDSHAKE arrived here.
    features: Option<ExtraFeatures>,
    /// The packet with which the peer first reached us.
    first_heard: Option<u64>,
    /// Our HANDSHAKE to it.
    handshake: Option<u64>,
    /// Our first packet to it, other than a HANDSHAKE, after it had reached us.
    went_on: Option<(u64, PacketType)>,
}

impl Knowledge {
    /// What can be said when nothing more comes.
    fn end(&self, own: Node, peer: Node, findings: &mut Findings) {
        if let (Some(heard), Some((went_on, kind)), None) =
            (self.first_heard, self.went_on, self.handshake)
        {
            let text =
                format!("{own} heard from {peer} in packet {heard} and never sent it a HANDSHAKE");
            findings.add(HANDSHAKE_ANSWER, went_on, kind, text);
        }
    }
}

#[derive(Default)]
pub(super) struct Identities {
    /// By (who knows, of whom).
    knowledge: HashMap<(Node, Node), Knowledge>,
    /// The connection id of each endpoint as it told a peer, by (who told it, to whom).
    connids: HashMap<(Node, Node), Told>,
}

/// The connection id that an endpoint told.
#[derive(Default)]
struct Told {
    /// The connection id, and the first packet that has it.
    current: Option<(u32, u64)>,
    /// Those of the endpoints that had the queue pair before.
    former: HashSet<u32>,
}

impl Identities {
    /// Whether the packet shows that another endpoint has taken over its sender's queue pair: a raw
    /// address with a new connection id. All numbers are given out anew then, by both sides.
    pub(super) fn takes_over(&mut self, observed: &Observed<'_>) -> bool {
        let Some(Qkey(connid)) = observed.packet.raw_address().map(|address| address.qkey) else {
            return false;
        };
        let told = self
            .connids
            .entry((observed.from, observed.to))
            .or_default();
        match told.current {
            Some((current, _)) if current != connid && !told.former.contains(&connid) => {
                told.former.insert(current);
                told.current = Some((connid, observed.number));
                true
            }
            _ => false,
        }
    }

    /// Forgets what two endpoints know of each other.
    pub(super) fn forget(&mut self, one: Node, other: Node, findings: &mut Findings) {
        for (own, peer) in [(one, other), (other, one)] {
            if let Some(knowledge) = self.knowledge.remove(&(own, peer)) {
                knowledge.end(own, peer, findings);
            }
        }
    }

    pub(super) fn sent(&mut self, observed: &Observed<'_>, findings: &mut Findings) {
        let packet_type = observed.packet.base.packet_type;
        self.check_connid(observed, findings);
        self.check_qkey(observed, findings);
        check_flags(observed, findings);
        self.check_feature(observed, findings);
        self.check_options(observed, findings);
        let own = self
            .knowledge
            .entry((observed.from, observed.to))
            .or_default();
        if packet_type == PacketType::Handshake {
            if let Some(first) = own.handshake {
                let text = format!("packet {first} was this endpoint's HANDSHAKE to the peer");
                findings.at(HANDSHAKE_ONCE, observed, text);
            }
            own.handshake.get_or_insert(observed.number);
        } else if own.first_heard.is_some() {
            own.went_on.get_or_insert((observed.number, packet_type));
        }
    }

    pub(super) fn received(&mut self, observed: &Observed<'_>) {
        let own = self
            .knowledge
            .entry((observed.to, observed.from))
            .or_default();
        own.first_heard.get_or_insert(observed.number);
        if let Header::Handshake(handshake) = &observed.packet.header {
            own.features.get_or_insert(handshake.extra_info.features());
        }
    }

    pub(super) fn end(&mut self, findings: &mut Findings) {
        for ((own, peer), knowledge) in &self.knowledge {
            knowledge.end(*own, *peer, findings);
        }
    }

    fn check_qkey(&mut self, observed: &Observed<'_>, findings: &mut Findings) {
        let told = self.connids.get(&(observed.to, observed.from));
        let Some((connid, first)) = told.and_then(|told| told.current) else {
            return;
        };
        let Qkey(used) = observed.qkey;
        if connid != used {
            let text = format!(
                "it is sent to Q-key {used:#x}, but packet {first} shows that {} has {connid:#x}",
                observed.to
            );
            findings.at(QKEY_TRUE, observed, text);
        }
    }

    fn check_connid(&mut self, observed: &Observed<'_>, findings: &mut Findings) {
        let connid = observed.packet.header.connid();
        let raw = observed.packet.raw_address();
        for (connid, where_) in [
            (raw.map(|address| address.qkey.0), "raw_addr.connid"),
            (connid.map(|Connid(connid)| connid), "connid"),
        ] {
            let Some(connid) = connid else { continue };
            let told = self
                .connids
                .entry((observed.from, observed.to))
                .or_default();
            let (known, first) = *told.current.get_or_insert((connid, observed.number));
            if known != connid {
                let text = format!(
                    "`{where_}` is {connid:#x}, but packet {first} shows that {} has {known:#x}",
                    observed.from
                );
                findings.at(CONNID_TRUE, observed, text);
            }
        }
        if let Some(address) = raw {
            let named = Node {
                gid: address.gid,
                qpn: address.qpn.0,
            };
            if named != observed.from {
                let text = format!("it names {named}, but was sent by {}", observed.from);
                findings.at(RAW_ADDRESS_TRUE, observed, text);
            }
        }
    }

    fn check_options(&mut self, observed: &Observed<'_>, findings: &mut Findings) {
        let Some(options) = observed.packet.header.req_options() else {
            return;
        };
        let known = self.knowledge.get(&(observed.from, observed.to));
        let features = known.and_then(|knowledge| knowledge.features);
        match (options.raw_address, features) {
            (None, None) => {
                let text = format!("{} has received no HANDSHAKE yet", observed.from);
                findings.at(RAW_ADDRESS_FIRST, observed, text);
            }
            (Some(_), Some(features))
                if !features.contains(ExtraFeatures::CONSTANT_HEADER_LENGTH) =>
            {
                let text = format!("{} has received the HANDSHAKE", observed.from);
                findings.at(RAW_ADDRESS_LAST, observed, text);
            }
            _ => {}
        }
        if options.raw_address.is_some() && options.connid.is_some() {
            let text = "it has a raw address header and a connid header".into();
            findings.at(ONE_IDENTITY, observed, text);
        }
    }

    /// Packets that a peer without the feature cannot take.
    fn check_feature(&mut self, observed: &Observed<'_>, findings: &mut Findings) {
        let packet_type = observed.packet.base.packet_type;
        let (feature, name) = match packet_type {
            PacketType::LongreadMsgRtm | PacketType::LongreadTagRtm | PacketType::LongreadRtw => {
                (ExtraFeatures::RDMA_READ, "RDMA read")
            }
            PacketType::ReadNack => (ExtraFeatures::READ_NACK, "READ_NACK"),
            // A peer that reads by RDMA gets runts as well from libfabric up to 2.5.
            PacketType::RuntreadMsgRtm | PacketType::RuntreadTagRtm => (
                ExtraFeatures::RUNTING_READ.union(ExtraFeatures::RDMA_READ),
                "runting read",
            ),
            packet_type if packet_type.is_delivery_complete() => {
                (ExtraFeatures::DELIVERY_COMPLETE, "delivery complete")
            }
            _ => return,
        };
        let known = self.knowledge.get(&(observed.from, observed.to));
        match known.and_then(|knowledge| knowledge.features) {
            Some(features) if features.intersects(feature) => {}
            Some(_) => {
                let text = format!("{} has not announced {name}", observed.to);
                findings.at(FEATURE_ANNOUNCED, observed, text);
            }
            None => {
                let text = format!("{} has announced nothing yet, so not {name}", observed.to);
                findings.at(FEATURE_EARLY, observed, text);
            }
        }
    }
}

fn check_flags(observed: &Observed<'_>, findings: &mut Findings) {
    let packet_type = observed.packet.base.packet_type;
    if packet_type.category() != Category::Req {
        return;
    }
    let flags = ReqFlags::from_bits_retain(observed.packet.base.flags);
    let needed = match &observed.packet.header {
        Header::Rta(_) => ReqFlags::ATOMIC,
        Header::EagerRtm(_)
        | Header::MediumRtm(_)
        | Header::LongctsRtm(_)
        | Header::LongreadRtm(_)
        | Header::RuntreadRtm(_)
        | Header::RuntctsRtm(_) => match packet_type.is_tagged() {
            true => ReqFlags::MSG.union(ReqFlags::TAGGED),
            false => ReqFlags::MSG,
        },
        _ => return,
    };
    if !flags.contains(needed) {
        let text = format!(
            "its flags {:#06x} lack {:#06x}",
            flags.bits(),
            needed.bits()
        );
        findings.at(REQ_FLAGS, observed, text);
    }
}
