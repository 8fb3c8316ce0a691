//! New queue pairs with a reused number.

use super::content::Content;
use super::node::NodeId;

/// The first packet of each queue pair, to recognise a new queue pair with the same number: each
/// starts its sequence numbers at 0.
#[derive(Debug, Default)]
pub(super) struct QpGenerations {
    /// By queue pair, at its own host and at the receiving hosts.
    first: Vec<Option<FirstPacket>>,
    /// Whether any number was reused.
    has_later: bool,
}

#[derive(Debug)]
struct FirstPacket {
    packet: Content,
    connid: Option<u32>,
    qp_generation: QpGeneration,
}

/// The queue pair, of those with the same number, that a packet belongs to.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct QpGeneration {
    /// The number of earlier queue pairs with this number.
    pub(super) generation: u32,
    /// Whether its first packet contains the same connection id as that of the previous queue pair.
    pub(super) keeps_connid: bool,
}

impl QpGenerations {
    /// Handles a packet with the sender's connection id `connid`, captured at a captured sender or
    /// on arrival. A second sighting of the same packet does not count as a new queue pair.
    pub(super) fn of(
        &mut self,
        from: NodeId,
        is_arrival: bool,
        sequence: u32,
        packet: &Content,
        connid: Option<u32>,
    ) -> QpGeneration {
        if sequence > 0 && !self.has_later {
            return QpGeneration::default();
        }
        if sequence > 0 {
            let first = self.first.get(from.index(is_arrival));
            return first
                .and_then(Option::as_ref)
                .map_or_else(QpGeneration::default, |it| it.qp_generation);
        }
        let at = from.index(is_arrival);
        if self.first.len() <= at {
            self.first.resize_with(at + 1, || None);
        }
        let first = self.first[at].get_or_insert_with(|| FirstPacket {
            packet: packet.clone(),
            connid,
            qp_generation: QpGeneration::default(),
        });
        if first.packet.differs_from(packet) {
            first.qp_generation.generation += 1;
            self.has_later = true;
            first.qp_generation.keeps_connid = connid.is_some() && connid == first.connid;
            first.packet = packet.clone();
            first.connid = connid;
        }
        first.qp_generation
    }
}
