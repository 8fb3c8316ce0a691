//! One primitive for staged faults: *when* a frame matches, *then* do something to it.
//!
//! Most failures that EFA programs have met are of the form 'event X overtakes event Y' or 'an
//! identity was reused'. A [`Fault`] names frames (their stage, operation, RDM packet type, hosts and
//! queue pairs, and which occurrence) and holds, delays, drops or answers them. It is evaluated
//! before the network's own randomness, each time a frame is put on the wire, retransmissions
//! included.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;

use crate::link::{Operation, RequestHeader};

/// Which half of a request's life a frame belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// The request on its way to the responder.
    Request,
    /// The responder's answer, which completes the request at the initiator.
    Answer,
}

/// A frame as a fault sees it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Request or answer. The fields below always describe the request.
    pub stage: Stage,
    /// The GID of the host that made the request.
    pub initiator: Gid,
    /// The GID of the host that serves it.
    pub responder: Gid,
    /// The request.
    pub header: &'a RequestHeader,
    /// How often this request was put on the wire before because a frame was lost, 0 for the first
    /// time.
    pub retransmissions: u32,
    /// The request goes again because the receiver was not ready.
    pub rnr_retry: bool,
    /// The outcome; `Some` exactly for answers.
    pub status: Option<Status>,
    /// The data of a send or write; empty for a read.
    pub data: &'a [u8],
}

impl Frame<'_> {
    /// Whether the request was on the wire before.
    pub fn is_repeated(&self) -> bool {
        self.retransmissions > 0 || self.rnr_retry
    }

    /// The type byte of the RDM packet that a send carries.
    pub fn rdm_packet_type(&self) -> Option<u8> {
        match self.header.operation {
            Operation::Send => self.data.first().copied(),
            Operation::Datagram | Operation::RdmaRead | Operation::RdmaWrite => None,
        }
    }
}

/// A condition of a [`Match`] that no field expresses.
pub type Condition = Rc<dyn Fn(&Frame<'_>) -> bool>;

/// Which frames a fault is about. A field that is `None` matches everything.
#[derive(Clone)]
pub struct Match {
    /// Requests or answers.
    pub stage: Stage,
    /// What is asked of the responder.
    pub operation: Option<Operation>,
    /// The first byte of the RDM packet in a send (spec table 1.2), 64 for EAGER_MSGRTM.
    pub rdm_packet_type: Option<u8>,
    /// The host that made the request.
    pub initiator: Option<Gid>,
    /// The host that serves it.
    pub responder: Option<Gid>,
    /// The initiator's queue pair.
    pub source_qpn: Option<Qpn>,
    /// The responder's queue pair.
    pub destination_qpn: Option<Qpn>,
    /// Anything else.
    pub condition: Option<Condition>,
}

impl Match {
    /// Every frame of a stage.
    pub const fn any(stage: Stage) -> Self {
        Match {
            stage,
            operation: None,
            rdm_packet_type: None,
            initiator: None,
            responder: None,
            source_qpn: None,
            destination_qpn: None,
            condition: None,
        }
    }

    /// Every send of an RDM packet of one type.
    pub const fn packet(rdm_packet_type: u8) -> Self {
        let mut any = Match::any(Stage::Request);
        any.rdm_packet_type = Some(rdm_packet_type);
        any
    }

    fn matches(&self, frame: &Frame<'_>) -> bool {
        fn is<T: PartialEq>(wanted: Option<T>, actual: T) -> bool {
            wanted.is_none_or(|wanted| wanted == actual)
        }
        self.stage == frame.stage
            && is(self.operation, frame.header.operation)
            && (self.rdm_packet_type.is_none() || self.rdm_packet_type == frame.rdm_packet_type())
            && is(self.initiator, frame.initiator)
            && is(self.responder, frame.responder)
            && is(self.source_qpn, frame.header.source_qpn)
            && is(self.destination_qpn, frame.header.destination_qpn)
            && self.condition.as_ref().is_none_or(|holds| holds(frame))
    }
}

impl fmt::Debug for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Match")
            .field("stage", &self.stage)
            .field("operation", &self.operation)
            .field("rdm_packet_type", &self.rdm_packet_type)
            .field("initiator", &self.initiator)
            .field("responder", &self.responder)
            .field("source_qpn", &self.source_qpn)
            .field("destination_qpn", &self.destination_qpn)
            .field("condition", &self.condition.is_some())
            .finish()
    }
}

/// What happens to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Keep it until it is released. The reliability layer waits for it patiently.
    Hold,
    /// Add this to its latency.
    Delay(Duration),
    /// Lose it once; the reliability layer sends it again.
    Drop,
    /// For a request: the responder's device does not see it, and this is the answer.
    /// For an answer: replace the status. The initiating device takes a status that no peer can
    /// give, such as [`Status::Flushed`], for [`Status::RemoteBadStatus`].
    Answer(Status),
}

/// A staged fault.
#[derive(Clone, Debug)]
pub struct Fault {
    when: Match,
    skip: u64,
    times: u64,
    action: Action,
}

impl Fault {
    /// Applies `action` to every frame that matches.
    pub const fn new(when: Match, action: Action) -> Self {
        Fault {
            when,
            skip: 0,
            times: u64::MAX,
            action,
        }
    }

    /// Leaves the first `skip` matching frames alone.
    pub const fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Applies the action at most `times` times.
    pub const fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Applies the action to the `n`-th matching frame only, counting from 1.
    pub const fn nth(self, n: u64) -> Self {
        self.skip(n.saturating_sub(1)).times(1)
    }
}

/// Names an installed fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FaultId(pub(super) u32);

/// All installed faults, in the order of installation.
#[derive(Debug, Default)]
pub(super) struct Faults {
    installed: Vec<Installed>,
    next: u32,
}

#[derive(Debug)]
struct Installed {
    id: FaultId,
    fault: Fault,
    seen: u64,
    applied: u64,
}

impl Faults {
    pub(super) fn install(&mut self, fault: Fault) -> FaultId {
        let id = FaultId(self.next);
        self.next += 1;
        self.installed.push(Installed {
            id,
            fault,
            seen: 0,
            applied: 0,
        });
        id
    }

    pub(super) fn remove(&mut self, id: FaultId) {
        self.installed.retain(|installed| installed.id != id);
    }

    /// How often a fault was applied; 0 after it was removed.
    pub(super) fn applied(&self, id: FaultId) -> u64 {
        let of = |installed: &&Installed| installed.id == id;
        self.installed.iter().find(of).map_or(0, |i| i.applied)
    }

    /// The first fault that wants this frame. Faults behind it do not count the frame.
    pub(super) fn apply(&mut self, frame: &Frame<'_>) -> Option<(FaultId, Action)> {
        for installed in &mut self.installed {
            if installed.applied == installed.fault.times || !installed.fault.when.matches(frame) {
                continue;
            }
            installed.seen += 1;
            if installed.seen > installed.fault.skip {
                installed.applied += 1;
                return Some((installed.id, installed.fault.action));
            }
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.installed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use efa_core::address::Qkey;

    use super::*;

    const HEADER: RequestHeader = RequestHeader {
        operation: Operation::Send,
        source_qpn: Qpn(1),
        destination_qpn: Qpn(2),
        qkey: Qkey(3),
        sequence: 0,
        immediate: None,
        remote: None,
        length: 4,
    };

    fn frame(data: &[u8]) -> Frame<'_> {
        Frame {
            stage: Stage::Request,
            initiator: Gid([1; 16]),
            responder: Gid([2; 16]),
            header: &HEADER,
            retransmissions: 0,
            rnr_retry: false,
            status: None,
            data,
        }
    }

    #[test]
    fn the_nth_occurrence_is_chosen() {
        let mut faults = Faults::default();
        let id = faults.install(Fault::new(Match::packet(64), Action::Drop).nth(2));
        let (eager, other) = (frame(&[64, 4, 0, 0]), frame(&[9, 4, 0, 0]));
        let hits = [eager, other, eager, eager].map(|frame| faults.apply(&frame).is_some());
        assert_eq!(hits, [false, false, true, false]);
        assert_eq!(faults.applied(id), 1);
        faults.remove(id);
        assert!(faults.is_empty());
    }

    #[test]
    fn every_field_of_a_match_is_looked_at() {
        let base = || Match::any(Stage::Request);
        let matching = Match {
            operation: Some(Operation::Send),
            initiator: Some(Gid([1; 16])),
            responder: Some(Gid([2; 16])),
            source_qpn: Some(Qpn(1)),
            destination_qpn: Some(Qpn(2)),
            condition: Some(Rc::new(|frame| frame.data.len() == 2)),
            ..base()
        };
        assert!(matching.matches(&frame(&[64, 4])));
        let others = [
            Match::any(Stage::Answer),
            Match {
                operation: Some(Operation::RdmaRead),
                ..base()
            },
            Match {
                initiator: Some(Gid([2; 16])),
                ..base()
            },
            Match {
                responder: Some(Gid([1; 16])),
                ..base()
            },
            Match {
                source_qpn: Some(Qpn(2)),
                ..base()
            },
            Match {
                destination_qpn: Some(Qpn(1)),
                ..base()
            },
            Match {
                condition: Some(Rc::new(|_| false)),
                ..base()
            },
            Match::packet(65),
        ];
        for other in others {
            assert!(!other.matches(&frame(&[64, 4])), "{other:?}");
        }
    }
}
