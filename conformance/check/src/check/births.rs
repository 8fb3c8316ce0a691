//! Queue pairs that begin anew.

use foldhash::HashMap;

use super::content::Content;
use super::node::Node;

/// The first packet of each queue pair, by which a new queue pair of the same number is recognised:
/// sequence numbers begin at 0 with each.
#[derive(Debug, Default)]
pub(super) struct Births {
    first: HashMap<(bool, Node), First>,
    /// Whether any number was used again.
    has_later: bool,
}

#[derive(Debug)]
struct First {
    packet: Content,
    connid: Option<u32>,
    birth: Birth,
}

/// Which of the queue pairs that have had the same number.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Birth {
    /// How many had the number before.
    pub(super) generation: u32,
    /// Whether its first packet names the same connection id as the first of the one before.
    pub(super) keeps_connid: bool,
}

impl Births {
    /// Takes a packet that says `connid` of its sender, sent by a captured host or seen where it
    /// arrived. Another sighting of the same packet is no birth.
    pub(super) fn of(
        &mut self,
        from: Node,
        is_arrival: bool,
        sequence: u32,
        packet: &Content,
        connid: Option<u32>,
    ) -> Birth {
        let key = (is_arrival, from);
        if sequence > 0 && !self.has_later {
            return Birth::default();
        }
        if sequence > 0 {
            return self.first.get(&key).map(|it| it.birth).unwrap_or_default();
        }
        let first = self.first.entry(key).or_insert_with(|| First {
            packet: packet.clone(),
            connid,
            birth: Birth::default(),
        });
        if first.packet.differs_from(packet) {
            first.birth.generation += 1;
            self.has_later = true;
            first.birth.keeps_connid = connid.is_some() && connid == first.connid;
            first.packet = packet.clone();
            first.connid = connid;
        }
        first.birth
    }
}
