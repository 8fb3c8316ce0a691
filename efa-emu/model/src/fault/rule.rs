//! The model: plain data with a text form.

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
    /// A name by which what it holds is released; need not be unique.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// Which events it is about. `None`: it is done once, when it is armed.
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

    /// Does `then` when it is armed.
    pub fn at_once(then: Action) -> Self {
        Fault {
            label: String::new(),
            when: None,
            then,
        }
    }

    /// Gives it a label.
    pub fn labelled(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// Leaves the first `skip` matching events alone.
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

/// Where in the fabric something happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// A request arrives at the responder. Without a fault its device serves it now, which for a
    /// send makes the receive completion.
    #[default]
    Request,
    /// The answer to a request arrives at the initiator. Without a fault its device writes the send
    /// completion now.
    Answer,
    /// A program registers memory.
    Registration,
    /// A program makes a queue pair.
    QueuePair,
    /// A driver gives a command to the admin queue of a device at PCI level.
    Command,
}

impl Point {
    pub(super) fn is_default(&self) -> bool {
        *self == Point::Request
    }
}

/// Which events a fault is about. A field that is `None` or empty matches everything. The fields
/// always describe the request, also at the point [`Point::Answer`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Match {
    /// Where it happens.
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
    /// The host that made the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<HostName>,
    /// The host that serves it.
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
    /// Whether the request was on the wire before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<bool>,
    /// The command (commands of an admin queue only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<AdminCommand>,
    /// The host of the program or device (registrations, queue pairs and commands only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostName>,
    /// The first matching event that the fault applies to, counting from 1. Alone it is the only
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// From the first one on, every so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// The fault applies to at most this many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl Match {
    /// The hosts that are named. While one of them is not there, nothing matches.
    pub fn hosts(&self) -> impl Iterator<Item = &HostName> {
        [&self.sender, &self.receiver, &self.host]
            .into_iter()
            .flatten()
    }

    /// Every event at a point.
    pub fn any(on: Point) -> Self {
        Match {
            on,
            ..Match::default()
        }
    }

    /// Every send of an RDM packet of one type.
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
    /// Whether every event matches, even one that carries no RDM packet.
    pub fn is_any(&self) -> bool {
        self.0.is_empty()
    }
}

/// A host by the name that `efa-emu run --host` gave it, which stands for all its devices, or one
/// of its devices, by its name or its GID.
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

/// Action of a rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Keep the frame until it is released. The reliability layer waits for it patiently.
    Hold,
    /// Keep the frame until so many later ones of the same pair of queue pairs have passed, or
    /// until it is released.
    HoldPackets(u32),
    /// Release what the faults with this label hold. The event itself goes on first.
    Release(String),
    /// Add this to the frame's latency, or to the time that a command takes.
    Delay(Delay),
    /// Lose the frame once; the reliability layer sends the request again.
    Drop,
    /// Lose the request for good: it ends with [`Status::LocalUnresponsiveRemote`] after the
    /// reliability layer has given up. A command is neither carried out nor completed.
    Lose,
    /// Write the completion that the frame makes a second time: that of the receive for a request,
    /// that of the send for an answer.
    Duplicate,
    /// Hand the packet to the responder's device twice. Requests that carry no packet, as RDMA, do
    /// not match.
    Repeat,
    /// For a request: the responder's device does not see it, and this is the answer.
    /// For an answer: replace the status. The initiating device takes a status that no peer can
    /// give, such as [`Status::Flushed`], for [`Status::RemoteBadStatus`].
    #[serde(rename = "status", with = "super::text::one_status")]
    Answer(Status),
    /// Answer "receiver not ready" to the request, and to its retries, so many times in all.
    NotReady(u32),
    /// Fail the memory registration, or the command.
    Fail(Errno),
    /// Give the queue pair this number, if it is free.
    #[serde(with = "super::text::one_qpn")]
    Qpn(Qpn),
    /// Lose all frames between two hosts until they are healed.
    Cut([HostName; 2]),
    /// End the cuts of two hosts.
    Heal([HostName; 2]),
    /// End a host: its processes are killed, or it loses power.
    Kill(HostName),
    /// Remove a device, or all of a host, under the programs that use it.
    Remove(HostName),
    /// Give a host a device back that was removed, or all of them.
    Restore(HostName),
    /// Take the link of a device's port, or of all of a host, until it is given back.
    PortDown(HostName),
    /// Give a device's port, or all of a host, its link back.
    PortUp(HostName),
    /// Give the link of a device's port, or of all of a host, another speed.
    PortSpeed(PortSpeed),
    /// Fail queue pairs, as the device fails those whose queues or doorbells make no sense.
    QpError(Queues),
    /// Lose the next entry of completion queues, as of those that are full.
    CqError(Queues),
}

impl Action {
    /// Whether it is done beside the event instead of to it.
    pub fn is_trigger(&self) -> bool {
        self.fate().is_none()
    }

    /// Whether it happens to hosts, or to their devices.
    pub fn is_about_hosts(&self) -> bool {
        self.is_trigger() && !matches!(self, Action::Release(_))
    }

    /// Whether it stays in force until another action ends it.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            Action::Cut(_) | Action::PortDown(_) | Action::PortSpeed(_)
        )
    }

    /// Whether it ends what `other` has put in force.
    pub fn ends(&self, other: &Action) -> bool {
        match (self, other) {
            (Action::Heal([a, b]), Action::Cut([x, y])) => (x, y) == (a, b) || (x, y) == (b, a),
            (Action::PortUp(up), Action::PortDown(down)) => up == down,
            (Action::PortSpeed(new), Action::PortSpeed(old)) => new.host == old.host,
            _ => false,
        }
    }
}

/// The speed of ports' links. It changes nothing but what programs are told of it.
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
    /// The queue pair, or that of the completion queues; `None` stands for all.
    pub qpn: Option<Qpn>,
}

/// A time to be added, drawn anew for each frame if the bounds differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delay {
    /// The shortest.
    pub least: Duration,
    /// The longest.
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
