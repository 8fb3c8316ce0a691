//! Names and values in the text form of rules.

use efa_core::nic::Status;
use efa_core::wire::PacketType;

use crate::link::Operation;

/// An unknown name in a rule, with the known ones.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum UnknownName {
    #[error("{name:?} is not a status of the device: use one of {}", statuses().join(", "))]
    Status { name: String },
    #[error("{name:?} is not an operation: use send, datagram, read or write")]
    Operation { name: String },
    #[error(
        "{name:?} is not an RDM packet type: use a name of the protocol such as \"EAGER_MSGRTM\", \
         \"CTS\" or \"HANDSHAKE\", or the type's number"
    )]
    PacketType { name: String },
    #[error(
        "{name:?} is not an error number: use {}, or a number from 1 to 4095",
        ERRNOS.map(|(name, _)| name).join(", ")
    )]
    Errno { name: String },
}

fn statuses() -> Vec<String> {
    Status::ALL.into_iter().map(of_status).collect()
}

/// Converts the name of a Rust enum's variant to lower case with hyphens.
fn kebab(camel: &str) -> String {
    let mut name = String::new();
    for c in camel.chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// `remote-rnr` for [`Status::RemoteRnr`].
pub(super) fn of_status(status: Status) -> String {
    kebab(&format!("{status:?}"))
}

pub(super) fn status(name: &str) -> Result<Status, UnknownName> {
    let find = |status: &Status| of_status(*status) == name;
    let found = Status::ALL.into_iter().find(find);
    found.ok_or_else(|| UnknownName::Status { name: name.into() })
}

const OPERATIONS: [(&str, Operation); 5] = [
    ("send", Operation::Send),
    ("datagram", Operation::Datagram),
    ("read", Operation::RdmaRead),
    ("write", Operation::RdmaWrite),
    ("connected", Operation::Connected),
];

pub(super) fn of_operation(operation: Operation) -> &'static str {
    let (name, _) = OPERATIONS
        .into_iter()
        .find(|(_, other)| *other == operation)
        .expect("every operation has a name");
    name
}

pub(super) fn operation(name: &str) -> Result<Operation, UnknownName> {
    let find = |(known, _): &(&str, Operation)| *known == name;
    let found = OPERATIONS.into_iter().find(find);
    found
        .map(|(_, operation)| operation)
        .ok_or_else(|| UnknownName::Operation { name: name.into() })
}

/// The name of a packet type's code, or the code in decimal if it has no name.
pub(super) fn of_packet_type(code: u8) -> String {
    PacketType::from_code(code).map_or_else(|| code.to_string(), |known| known.name().to_owned())
}

pub(super) fn packet_type(name: &str) -> Result<u8, UnknownName> {
    if let Ok(code) = name.parse() {
        return Ok(code);
    }
    (0..=u8::MAX)
        .find(|code| PacketType::from_code(*code).is_some_and(|known| known.name() == name))
        .ok_or_else(|| UnknownName::PacketType { name: name.into() })
}

const ERRNOS: [(&str, i32); 8] = [
    ("ENOMEM", libc::ENOMEM),
    ("EINVAL", libc::EINVAL),
    ("EAGAIN", libc::EAGAIN),
    ("EFAULT", libc::EFAULT),
    ("EPERM", libc::EPERM),
    ("EACCES", libc::EACCES),
    ("ENOSPC", libc::ENOSPC),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
];

pub(super) fn of_errno(errno: i32) -> String {
    let known = ERRNOS.into_iter().find(|(_, value)| *value == errno);
    known.map_or_else(|| errno.to_string(), |(name, _)| name.to_owned())
}

pub(super) fn errno(name: &str) -> Result<i32, UnknownName> {
    let known = ERRNOS.into_iter().find(|(known, _)| *known == name);
    known
        .map(|(_, value)| value)
        .or_else(|| name.parse().ok().filter(|value| (1..4096).contains(value)))
        .ok_or_else(|| UnknownName::Errno { name: name.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_go_both_ways() {
        assert_eq!(of_status(Status::RemoteRnr), "remote-rnr");
        for value in Status::ALL {
            assert_eq!(status(&of_status(value)), Ok(value));
        }
        for (_, value) in OPERATIONS {
            assert_eq!(operation(of_operation(value)), Ok(value));
        }
        for code in 0..=u8::MAX {
            assert_eq!(packet_type(&of_packet_type(code)), Ok(code));
        }
        assert_eq!(packet_type("HANDSHAKE"), Ok(9));
        assert_eq!(errno("ENOMEM"), Ok(libc::ENOMEM));
        assert_eq!(errno(&of_errno(1000)), Ok(1000));
    }

    #[test]
    fn errors_name_the_value_and_the_valid_names() {
        for (error, expected) in [
            (status("rnr").unwrap_err(), "remote-rnr"),
            (operation("get").unwrap_err(), "read"),
            (packet_type("RTX").unwrap_err(), "EAGER_MSGRTM"),
            (errno("EWHAT").unwrap_err(), "ENOMEM"),
        ] {
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
