//! The data of a fault rule.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Status;
use serde::{Deserialize, Serialize};

use super::AdminCommand;
use crate::device::LinkSpeed;
use crate::link::Operation;

/// A staged fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fault {
    /// A label by which held frames are released; need not be unique.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// The events that it applies to. `None`: the action is done once, when the rule is armed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Match>,
    /// The action.
    pub then: Action,
}

impl Fault {
    /// Applies `then` to every event that matches.
    pub fn new(when: Match, then: Action) -> Self {
        Fault {
            label: String::new(),
            when: Some(when),
            then,
        }
    }

    /// Does `then` once, when the rule is armed.
    pub fn at_once(then: Action) -> Self {
        Fault {
            label: String::new(),
            when: None,
            then,
        }
    }

    /// Sets the label.
    pub fn labelled(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// Does not apply to the first `skip` matching events.
    pub fn skip(mut self, skip: u64) -> Self {
        if let Some(when) = &mut self.when {
            when.nth = Some(skip.saturating_add(1));
            when.every.get_or_insert(1);
        }
        self
    }

    /// Applies the action at most `times` times.
    pub fn times(mut self, times: u64) -> Self {
        if let Some(when) = &mut self.when {
            when.count = Some(times);
        }
        self
    }

    /// Applies the action to the `n`-th matching event only, counting from 1.
    pub fn nth(self, n: u64) -> Self {
        self.skip(n.saturating_sub(1)).times(1)
    }
}

/// The point of the fabric at which an event happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// A request arrives at the responder. Normally the device executes it now, and for a send
    /// writes the receive completion.
    #[default]
    Request,
    /// The answer to a request arrives at the initiator. Normally its device writes the send
    /// completion now.
    Answer,
    /// A program registers memory.
    Registration,
    /// A program creates a queue pair.
    QueuePair,
    /// A driver submits a command to the admin queue of a device at PCI level.
    Command,
}

impl Point {
    pub(super) fn is_default(&self) -> bool {
        *self == Point::Request
    }
}

/// The events that a fault applies to. A field that is `None` or empty matches everything. The
/// fields always describe the request, also at the point [`Point::Answer`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Match {
    /// The point of the event.
    #[serde(skip_serializing_if = "Point::is_default")]
    pub on: Point,
    /// Operation of the request.
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "super::text::operation"
    )]
    pub operation: Option<Operation>,
    /// The first byte of the RDM packet in a send (spec table 1.2), 64 for EAGER_MSGRTM.
    #[serde(skip_serializing_if = "PacketTypes::is_any")]
    pub packet: PacketTypes,
    /// The message id of the RDM packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msg_id: Option<u32>,
    /// The initiating host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<HostName>,
    /// The responding host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<HostName>,
    /// The initiator's queue pair.
    #[serde(skip_serializing_if = "Option::is_none", with = "super::text::qpn")]
    pub source_qpn: Option<Qpn>,
    /// The responder's queue pair.
    #[serde(skip_serializing_if = "Option::is_none", with = "super::text::qpn")]
    pub destination_qpn: Option<Qpn>,
    /// Fewest bytes of data, or of memory to register.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_length: Option<u64>,
    /// Most bytes of data, or of memory to register.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u64>,
    /// The outcome (answers only).
    #[serde(skip_serializing_if = "Option::is_none", with = "super::text::status")]
    pub status: Option<Status>,
    /// Whether the request is a retransmission or a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<bool>,
    /// The command (commands of an admin queue only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<AdminCommand>,
    /// The host of the program or device (registrations, queue pairs and commands only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostName>,
    /// The first matching event that the fault applies to, counting from 1. Without `every` and
    /// `count` it is the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// From the first event on, the fault applies to every this many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// The fault applies to at most this many events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl Match {
    /// The named hosts. While one of them does not exist, nothing matches.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        [&self.sender, &self.receiver, &self.host]
            .into_iter()
            .flatten()
    }

    /// Matches every event at a point.
    pub fn any(on: Point) -> Self {
        Match {
            on,
            ..Match::default()
        }
    }

    /// Matches every send of an RDM packet of this type.
    pub fn packet(rdm_packet_type: u8) -> Self {
        Match {
            packet: PacketTypes(vec![rdm_packet_type]),
            ..Match::default()
        }
    }

    /// Whether the fault applies to the matching event with this number, counting from 1.
    pub(super) fn selects(&self, number: u64) -> bool {
        let first = self.nth.unwrap_or(1).max(1);
        let every = self.every.unwrap_or(1).max(1);
        let alone = self.nth.is_some() && self.every.is_none();
        let count = self.count.unwrap_or(if alone { 1 } else { u64::MAX });
        number >= first
            && (number - first).is_multiple_of(every)
            && (number - first) / every < count
    }
}

/// RDM packet types by their codes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PacketTypes(pub Vec<u8>);

impl PacketTypes {
    /// Whether every event matches, even one without an RDM packet.
    pub fn is_any(&self) -> bool {
        self.0.is_empty()
    }
}

/// A host by its name in `efa-emu run --host`, which includes all its devices, or one device by its
/// name or its GID.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum HostName {
    /// By GID, written as an IPv6 address.
    Gid(Gid),
    /// By name.
    Name(String),
}

impl From<String> for HostName {
    fn from(text: String) -> Self {
        match text.parse::<Ipv6Addr>() {
            Ok(address) => HostName::Gid(Gid::from(address)),
            Err(_) => HostName::Name(text),
        }
    }
}

impl From<HostName> for String {
    fn from(host: HostName) -> String {
        host.to_string()
    }
}

impl From<Gid> for HostName {
    fn from(gid: Gid) -> Self {
        HostName::Gid(gid)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::Gid(gid) => gid.fmt(f),
            HostName::Name(name) => name.fmt(f),
        }
    }
}

/// The action of a rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Defer the frame until it is released. No time-out of the reliability layer applies to it.
    Hold,
    /// Defer the frame until this many later frames between the same queue pairs have passed, or
    /// until it is released.
    HoldPackets(u32),
    /// Release the frames that faults with this label hold. The matching event itself is handled
    /// first.
    Release(String),
    /// Add this to the frame's latency, or to the duration of a command.
    Delay(Delay),
    /// Lose the frame once; the reliability layer retransmits it.
    Drop,
    /// Lose the request permanently: it completes with [`Status::LocalUnresponsiveRemote`] after
    /// the reliability layer has given up. A command is neither executed nor completed.
    Lose,
    /// Write the completion for the frame twice: the receive completion for a request, the send
    /// completion for an answer.
    Duplicate,
    /// Deliver the packet to the responder's device twice. Requests without a packet, such as RDMA,
    /// do not match.
    Repeat,
    /// For a request: the responder's device does not get it, and this is the answer. For an
    /// answer: replace the status. The initiating device reports a status that no peer can send,
    /// such as [`Status::Flushed`], as [`Status::RemoteBadStatus`].
    #[serde(rename = "status", with = "super::text::one_status")]
    Answer(Status),
    /// Answer the request and its retries with RNR, this many times in total.
    NotReady(u32),
    /// Fail the memory registration or the command.
    Fail(Errno),
    /// Give the queue pair this number, if it is free.
    #[serde(with = "super::text::one_qpn")]
    Qpn(Qpn),
    /// Lose all frames between two hosts until a `Heal`.
    Cut([HostName; 2]),
    /// End the cuts of two hosts.
    Heal([HostName; 2]),
    /// Kill a host's processes, as a power failure would.
    Kill(HostName),
    /// Remove a device, or all devices of a host, while programs use them.
    Remove(HostName),
    /// Restore a removed device, or all devices of a host.
    Restore(HostName),
    /// Set the link of a device's port, or of all ports of a host, down.
    PortDown(HostName),
    /// Set the link of a device's port, or of all ports of a host, up.
    PortUp(HostName),
    /// Set the link speed of a device's port, or of all ports of a host.
    PortSpeed(PortSpeed),
    /// Fail queue pairs, as the device does if their queues or doorbells are invalid.
    QpError(Queues),
    /// Lose the next entry of completion queues, as on an overflow.
    CqError(Queues),
}

impl Action {
    /// Whether the action happens in addition to the event, and does not change its outcome.
    pub fn is_trigger(&self) -> bool {
        self.outcome().is_none()
    }

    /// Whether the action applies to hosts or to their devices.
    pub fn is_about_hosts(&self) -> bool {
        self.is_trigger() && !matches!(self, Action::Release(_))
    }

    /// Whether the action stays in force until another action ends it.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            Action::Cut(_) | Action::PortDown(_) | Action::PortSpeed(_)
        )
    }

    /// Whether this action ends the effect of `other`.
    pub fn ends(&self, other: &Action) -> bool {
        match (self, other) {
            (Action::Heal([a, b]), Action::Cut([x, y])) => (x, y) == (a, b) || (x, y) == (b, a),
            (Action::PortUp(up), Action::PortDown(down)) => up == down,
            (Action::PortSpeed(new), Action::PortSpeed(old)) => new.host == old.host,
            _ => false,
        }
    }
}

/// The link speed of ports. It only changes what programs can query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpeed {
    /// The host or device.
    pub host: HostName,
    /// The speed.
    pub speed: LinkSpeed,
}

/// Queues of a host or device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queues {
    /// The host or device.
    pub host: HostName,
    /// The queue pair, or the one that uses the completion queues; `None` for all.
    pub qpn: Option<Qpn>,
}

/// A delay. If the bounds differ, it is drawn for each frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delay {
    /// The shortest delay.
    pub least: Duration,
    /// The longest delay.
    pub most: Duration,
}

impl From<Duration> for Delay {
    fn from(delay: Duration) -> Self {
        Delay {
            least: delay,
            most: delay,
        }
    }
}

/// An error number of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);
