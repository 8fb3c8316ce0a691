//! The text form of rules: TOML, with errors that name the position and the remedy.

use std::fmt;
use std::str::FromStr;

use efa_core::address::Qpn;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::names;
use super::rule::{
    Action, Delay, Errno, Fault, HostName, Match, PacketTypes, Point, PortSpeed, Queues,
};
use crate::device::{LinkSpeed, NoSuchSpeed};
use crate::duration;
use crate::link::Operation;

/// A rule that cannot be armed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}{key}: {problem}")]
pub struct FaultError {
    /// The file and the rule in it, with a separator at the end; empty for a single rule.
    place: String,
    /// The key.
    key: String,
    /// The problem with its value, and the remedy.
    problem: String,
}

impl FaultError {
    fn new(key: &str, problem: impl Into<String>) -> Self {
        FaultError {
            place: String::new(),
            key: key.to_owned(),
            problem: problem.into(),
        }
    }

    fn at(mut self, place: String) -> Self {
        self.place = place;
        self
    }
}

/// Reads the rules of a file: an array of tables `[[fault]]`. `name` is the file's name in errors.
pub fn parse_file(name: &str, text: &str) -> Result<Vec<Fault>, FaultError> {
    let in_file = |error: FaultError| error.at(format!("{name}: "));
    let mut file: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| {
            1 + text[..span.start.min(text.len())].matches('\n').count()
        });
        let problem = error.message().trim().replace('\n', ", ");
        FaultError::new(&format!("line {line}"), problem).at(format!("{name}: "))
    })?;
    let rules = match file.remove("fault") {
        Some(toml::Value::Array(rules)) => rules,
        _ => {
            let problem = "there is none: write each rule as a table [[fault]]";
            return Err(in_file(FaultError::new("fault", problem)));
        }
    };
    if let Some(key) = file.keys().next() {
        let problem = "is not known: a file of faults has tables [[fault]] and nothing else";
        return Err(in_file(FaultError::new(key, problem)));
    }
    let numbered = rules.into_iter().enumerate();
    numbered
        .map(|(index, rule)| {
            let label = match rule.get("label").and_then(toml::Value::as_str) {
                Some(label) => format!(" ({label:?})"),
                None => String::new(),
            };
            read(rule).map_err(|error| error.at(format!("{name}: fault {}{label}: ", index + 1)))
        })
        .collect()
}

/// The text form of an action.
fn form(action: &str) -> Option<&'static str> {
    Some(match action {
        "hold" => r#""hold""#,
        "drop" => r#""drop""#,
        "lose" => r#""lose""#,
        "duplicate" => r#""duplicate""#,
        "repeat" => r#""repeat""#,
        "hold-packets" => "{ hold-packets = 3 }",
        "release" => r#"{ release = "LABEL" }"#,
        "delay" => r#"{ delay = "5ms" }"#,
        "status" => r#"{ status = "remote-abort" }"#,
        "not-ready" => "{ not-ready = 4 }",
        "fail" => r#"{ fail = "ENOMEM" }"#,
        "qpn" => "{ qpn = 77 }",
        "cut" => r#"{ cut = ["HOST", "HOST"] }"#,
        "heal" => r#"{ heal = ["HOST", "HOST"] }"#,
        "kill" => r#"{ kill = "HOST" }"#,
        "remove" => r#"{ remove = "HOST" }"#,
        "restore" => r#"{ restore = "HOST" }"#,
        "port-down" => r#"{ port-down = "HOST" }"#,
        "port-up" => r#"{ port-up = "HOST" }"#,
        "port-speed" => r#"{ port-speed = { host = "HOST", gbps = 200 } }"#,
        "qp-error" => r#"{ qp-error = { host = "HOST", qpn = 77 } }"#,
        "cq-error" => r#"{ cq-error = { host = "HOST", qpn = 77 } }"#,
        _ => return None,
    })
}

/// Replaces Rust types in an error by the bounds of the number.
fn in_figures(problem: &str) -> String {
    [
        ("u16", "65535"),
        ("u32", "4294967295"),
        ("u64", "9223372036854775807"),
    ]
    .into_iter()
    .fold(problem.to_owned(), |problem, (rust, most)| {
        let expected = format!("expected a number from 0 to {most}");
        problem.replace(&format!("expected {rust}"), &expected)
    })
}

fn read(rule: toml::Value) -> Result<Fault, FaultError> {
    let fault: Fault = serde_path_to_error::deserialize(rule).map_err(|error| {
        let key = match error.path().to_string() {
            path if path == "." => "the rule".to_owned(),
            path => path,
        };
        let problem = error.inner().message().trim().replace('\n', ", ");
        let form = key.strip_prefix("then.").and_then(form);
        match form {
            // Our own messages name the expected form already.
            Some(form) if problem.contains("invalid type") || problem.contains("found") => {
                FaultError::new(
                    &key,
                    format!("cannot be read like this: write then = {form}"),
                )
            }
            _ => FaultError::new(&key, in_figures(&problem)),
        }
    })?;
    fault.check()?;
    Ok(fault)
}

impl FromStr for Fault {
    type Err = FaultError;

    /// Parses one rule: a TOML inline table, with or without its braces.
    fn from_str(text: &str) -> Result<Self, FaultError> {
        let text = text.trim();
        let braces = if text.starts_with('{') {
            ["", ""]
        } else {
            ["{", "}"]
        };
        let document = format!("fault = {}{text}{}", braces[0], braces[1]);
        let mut table: toml::Table = document.parse().map_err(|error: toml::de::Error| {
            let problem = error.message().trim().replace('\n', ", ");
            FaultError::new(
                "the rule",
                format!(
                    "is not readable ({problem}): write it like \
                     when = {{ packet = \"HANDSHAKE\" }}, then = \"hold\""
                ),
            )
        })?;
        read(
            table
                .remove("fault")
                .unwrap_or(toml::Value::Table(toml::Table::new())),
        )
    }
}

impl fmt::Display for Fault {
    /// Formats the rule as an inline table that [`Fault::from_str`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = toml::Value::try_from(self).map_err(|_| fmt::Error)?;
        write!(f, "{value}")
    }
}

impl Fault {
    /// Rejects combinations that have no meaning.
    fn check(&self) -> Result<(), FaultError> {
        self.then.check()?;
        let Some(when) = &self.when else {
            return if self.then.is_trigger() {
                Ok(())
            } else {
                Err(FaultError::new(
                    "when",
                    "is missing: say which events this is about; only release, cut, heal, kill, remove, \
                     restore, port-down, port-up, port-speed, qp-error and cq-error can do without",
                ))
            };
        };
        when.check()?;
        let fits = match &self.then {
            then if then.is_trigger() => true,
            Action::Fail(_) => matches!(when.on, Point::Registration | Point::Command),
            Action::Qpn(_) => when.on == Point::QueuePair,
            Action::NotReady(_) | Action::Repeat => when.on == Point::Request,
            Action::Delay(_) | Action::Lose if when.on == Point::Command => true,
            _ => matches!(when.on, Point::Request | Point::Answer),
        };
        if !fits {
            return Err(FaultError::new(
                "then",
                "does not go with when.on: `fail` is for \"registration\" and \"command\", `qpn` for \
                 \"queue-pair\", `delay` and `lose` for \"command\", \"request\" and \"answer\", `not-ready` \
                 and `repeat` for \"request\", everything else for \"request\" or \"answer\"",
            ));
        }
        match &self.then {
            Action::NotReady(0) | Action::HoldPackets(0) => {
                Err(FaultError::new("then", "0 is not possible: use 1 or more"))
            }
            _ => Ok(()),
        }
    }
}

impl Action {
    fn check(&self) -> Result<(), FaultError> {
        match self {
            Action::Cut([one, other]) | Action::Heal([one, other]) if one == other => {
                let problem = format!("names \"{one}\" twice: name two hosts");
                Err(FaultError::new("then", problem))
            }
            _ => Ok(()),
        }
    }
}

impl Match {
    fn check(&self) -> Result<(), FaultError> {
        let is_frame = matches!(self.on, Point::Request | Point::Answer);
        let of_frames = [
            ("operation", self.operation.is_some()),
            ("packet", !self.packet.is_any()),
            ("msg-id", self.msg_id.is_some()),
            ("sender", self.sender.is_some()),
            ("receiver", self.receiver.is_some()),
            ("source-qpn", self.source_qpn.is_some()),
            ("destination-qpn", self.destination_qpn.is_some()),
            ("status", self.status.is_some()),
            ("repeated", self.repeated.is_some()),
        ];
        for (key, is_given) in of_frames {
            if is_given && !is_frame {
                let problem = "is only known for requests and answers: use `host` instead";
                return Err(FaultError::new(&format!("when.{key}"), problem));
            }
        }
        if self.command.is_some() && self.on != Point::Command {
            let problem = "is only known for commands: add on = \"command\"";
            return Err(FaultError::new("when.command", problem));
        }
        if is_frame && self.host.is_some() {
            let problem =
                "is for registrations, queue pairs and commands: use `sender` or `receiver`";
            return Err(FaultError::new("when.host", problem));
        }
        if self.status.is_some() && self.on != Point::Answer {
            let problem = "is only known for answers: add on = \"answer\"";
            return Err(FaultError::new("when.status", problem));
        }
        let carries_packet = self.operation.is_none_or(|of| of == Operation::Send);
        if !carries_packet && (!self.packet.is_any() || self.msg_id.is_some()) {
            let problem = "carries no RDM packet: leave out `packet` and `msg-id`, or `operation`";
            return Err(FaultError::new("when.operation", problem));
        }
        if let (Some(least), Some(most)) = (self.min_length, self.max_length)
            && least > most
        {
            let problem = format!("{least} is more than max-length, {most}: nothing matches");
            return Err(FaultError::new("when.min-length", problem));
        }
        for (key, value) in [
            ("nth", self.nth),
            ("every", self.every),
            ("count", self.count),
        ] {
            if value == Some(0) {
                let problem = "0 is not possible: count from 1";
                return Err(FaultError::new(&format!("when.{key}"), problem));
            }
        }
        Ok(())
    }
}

/// The text form of an optional value.
macro_rules! optional_text {
    ($module:ident, $type:ty, $to:expr, $from:expr) => {
        pub(super) mod $module {
            use super::*;

            pub(in crate::fault) fn serialize<S: Serializer>(
                value: &Option<$type>,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                let to: fn($type) -> String = $to;
                value.map(to).serialize(serializer)
            }

            pub(in crate::fault) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Option<$type>, D::Error> {
                let from: fn(&str) -> Result<$type, names::UnknownName> = $from;
                let text = String::deserialize(deserializer)?;
                from(&text).map(Some).map_err(D::Error::custom)
            }
        }
    };
}

optional_text!(
    operation,
    crate::link::Operation,
    |operation| names::of_operation(operation).to_owned(),
    names::operation
);
optional_text!(
    status,
    efa_core::nic::Status,
    names::of_status,
    names::status
);

pub(super) mod qpn {
    use super::*;

    pub(in crate::fault) fn serialize<S: Serializer>(
        value: &Option<Qpn>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(|qpn| qpn.0).serialize(serializer)
    }

    pub(in crate::fault) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Qpn>, D::Error> {
        u16::deserialize(deserializer).map(|number| Some(Qpn(number)))
    }
}

pub(super) mod one_qpn {
    use super::*;

    pub(in crate::fault) fn serialize<S: Serializer>(
        value: &Qpn,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.0.serialize(serializer)
    }

    pub(in crate::fault) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Qpn, D::Error> {
        u16::deserialize(deserializer).map(Qpn)
    }
}

pub(super) mod one_status {
    use efa_core::nic::Status;

    use super::*;

    pub(in crate::fault) fn serialize<S: Serializer>(
        value: &Status,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        names::of_status(*value).serialize(serializer)
    }

    pub(in crate::fault) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Status, D::Error> {
        let text = String::deserialize(deserializer)?;
        names::status(&text).map_err(D::Error::custom)
    }
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a packet type, or a list of them, as text"
)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for PacketTypes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = match OneOrMany::deserialize(deserializer)? {
            OneOrMany::One(name) => vec![name],
            OneOrMany::Many(names) => names,
        };
        if names.is_empty() {
            return Err(D::Error::custom(
                "an empty list matches nothing: name a packet type, or leave the key out",
            ));
        }
        let codes: Result<_, _> = names.iter().map(|name| names::packet_type(name)).collect();
        codes.map(PacketTypes).map_err(D::Error::custom)
    }
}

impl Serialize for PacketTypes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => names::of_packet_type(*one).serialize(serializer),
            many => serializer.collect_seq(many.iter().map(|code| names::of_packet_type(*code))),
        }
    }
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a duration such as \"5ms\", or two of them [shortest, longest]"
)]
enum OneOrTwo {
    One(String),
    Two([String; 2]),
}

#[derive(Deserialize, Serialize)]
#[serde(
    untagged,
    expecting = "expected a host as text, or { host = \"HOST\", qpn = 77 }"
)]
enum AllOrOne {
    All(HostName),
    One(OneQueuePair),
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct OneQueuePair {
    host: HostName,
    qpn: u16,
}

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match AllOrOne::deserialize(deserializer)? {
            AllOrOne::All(host) => Queues { host, qpn: None },
            AllOrOne::One(OneQueuePair { host, qpn }) => Queues {
                host,
                qpn: Some(Qpn(qpn)),
            },
        })
    }
}

impl Serialize for Queues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let host = self.host.clone();
        match self.qpn {
            None => AllOrOne::All(host),
            Some(Qpn(qpn)) => AllOrOne::One(OneQueuePair { host, qpn }),
        }
        .serialize(serializer)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct HostAndSpeed {
    host: HostName,
    gbps: u32,
}

impl<'de> Deserialize<'de> for PortSpeed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let HostAndSpeed { host, gbps } = HostAndSpeed::deserialize(deserializer)?;
        let speed = LinkSpeed::of_gbps(gbps)
            .ok_or_else(|| D::Error::custom(NoSuchSpeed(gbps.to_string())))?;
        Ok(PortSpeed { host, speed })
    }
}

impl Serialize for PortSpeed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        HostAndSpeed {
            host: self.host.clone(),
            gbps: self.speed.gbps.into(),
        }
        .serialize(serializer)
    }
}

fn text_of(duration: std::time::Duration) -> String {
    format!("{}ns", duration.as_nanos())
}

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let [least, most] = match OneOrTwo::deserialize(deserializer)? {
            OneOrTwo::One(both) => [both.clone(), both],
            OneOrTwo::Two(bounds) => bounds,
        };
        let read = |text: &str| {
            duration::parse(text)
                .ok_or_else(|| D::Error::custom(format!("{text:?} is not {}", duration::EXPECTED)))
        };
        let delay = Delay {
            least: read(&least)?,
            most: read(&most)?,
        };
        if delay.least > delay.most {
            return Err(D::Error::custom(format!(
                "[{least:?}, {most:?}] is the wrong way round: the shortest comes first"
            )));
        }
        Ok(delay)
    }
}

impl Serialize for Delay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.least == self.most {
            text_of(self.least).serialize(serializer)
        } else {
            [text_of(self.least), text_of(self.most)].serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Errno {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        names::errno(&name).map(Errno).map_err(D::Error::custom)
    }
}

impl Serialize for Errno {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        names::of_errno(self.0).serialize(serializer)
    }
}

impl FromStr for HostName {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(HostName::from(text.to_owned()))
    }
}

#[cfg(test)]
mod tests;
