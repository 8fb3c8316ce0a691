//! Capture filters: which frames of a fabric are recorded.
//!
//! ```text
//! filter  = all { "or" all }
//! all     = term { "and" term }
//! term    = "not" term | "(" filter ")" | test
//! test    = "host" NAME | "gid" ADDRESS | "qpn" NUMBER | "type" NAME-OR-NUMBER
//!         | "inbound" | "outbound" | "rdm" | "rdma"
//! ```

use std::net::Ipv6Addr;

use efa_capture::Direction;
use efa_capture::frame::Frame;
use efa_shm::DeviceName;
use efa_wire::PacketType;
use efa_wire::address::{Gid, Qpn};

/// The most nested parentheses and negations: more than a user writes, and few enough for the
/// stack.
const DEEPEST: usize = 64;

/// The fields of a frame that a filter tests.
pub(crate) struct FilteredFrame<'a> {
    /// The device that recorded it.
    pub(crate) device: &'a DeviceName,
    /// Whether the device sent or received it.
    pub(crate) direction: Direction,
    pub(crate) frame: &'a Frame<'a>,
}

/// Decides which frames are recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Filter {
    /// All frames.
    #[default]
    All,
    /// Frames that this host, or this one of its devices, sent or received.
    Host(String),
    /// Frames from or to this device.
    Gid(Gid),
    /// Frames from or to a queue pair of this number.
    Qpn(Qpn),
    /// RDM packets with this type code.
    Type(u8),
    /// The copy that the receiver, or the sender, recorded.
    Direction(Direction),
    /// Frames that carry an RDM packet.
    Rdm,
    /// Frames of RDMA operations of the device.
    Rdma,
    /// Frames that the filter rejects.
    Not(Box<Filter>),
    /// Frames that pass both.
    Both(Box<Filter>, Box<Filter>),
    /// Frames that pass at least one.
    Either(Box<Filter>, Box<Filter>),
}

/// The first words of tests.
const TESTS: &str = "host, gid, qpn, type, inbound, outbound, rdm or rdma";

/// The reason why a text is not a filter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilterError {
    /// The word at which a test has ended.
    #[error("expected `and` or `or` instead of {0:?}")]
    NoOperator(String),
    /// The word that is no test.
    #[error("expected {TESTS} instead of {0:?}")]
    NoTest(String),
    /// The text ends after an operator or an opening parenthesis, or is empty.
    #[error("it ends where {TESTS} is expected")]
    Incomplete,
    /// The nesting is deeper than the parser permits.
    #[error("more than {DEEPEST} `not` and parentheses within each other")]
    TooDeep,
    /// An opening parenthesis has no counterpart.
    #[error("a closing parenthesis is missing")]
    Unclosed,
    /// The text ends after a test that takes a value.
    #[error("`{test}` needs {what} behind it")]
    NoValue {
        /// The word of the test.
        test: &'static str,
        /// A description of the value.
        what: &'static str,
    },
    /// The value of a test cannot be read.
    #[error("`{test}` needs {what}, not {value:?}")]
    Value {
        /// The word of the test.
        test: &'static str,
        /// A description of the value.
        what: &'static str,
        /// The text instead of the value.
        value: String,
    },
}

/// A text of a command line is not a filter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("capture filter {text:?}: {reason}")]
pub struct CaptureFilterError {
    /// The text that was given for a filter.
    pub(crate) text: String,
    /// What is wrong with it.
    pub(crate) reason: FilterError,
}

impl Filter {
    /// Parses a filter. An empty text yields the filter that accepts all frames.
    ///
    /// # Errors
    /// A wrong word, or a missing one.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut words = Words {
            words: spaced.split_whitespace().collect(),
            next: 0,
            depth: 0,
        };
        if words.words.is_empty() {
            return Ok(Filter::All);
        }
        let filter = words.filter()?;
        match words.take() {
            None => Ok(filter),
            Some(word) => Err(FilterError::NoOperator(word.to_owned())),
        }
    }

    /// A filter for frames that pass both.
    pub fn and(self, other: Filter) -> Filter {
        match (self, other) {
            (Filter::All, filter) | (filter, Filter::All) => filter,
            (one, other) => Filter::Both(Box::new(one), Box::new(other)),
        }
    }

    /// Whether the filter accepts the frame.
    pub(crate) fn accepts(&self, seen: &FilteredFrame<'_>) -> bool {
        let header = &seen.frame.header;
        match self {
            Filter::All => true,
            Filter::Host(name) => seen.device.is_meant_by(name),
            Filter::Gid(gid) => [seen.frame.source, seen.frame.destination].contains(gid),
            Filter::Qpn(qpn) => [header.source_qpn, header.destination_qpn].contains(qpn),
            Filter::Type(code) => {
                let packet = seen.frame.rdm_packet();
                packet.and_then(|packet| packet.first()) == Some(code)
            }
            Filter::Direction(direction) => seen.direction == *direction,
            Filter::Rdm => seen.frame.rdm_packet().is_some(),
            Filter::Rdma => header.kind.rdma().is_some(),
            Filter::Not(filter) => !filter.accepts(seen),
            Filter::Both(one, other) => one.accepts(seen) && other.accepts(seen),
            Filter::Either(one, other) => one.accepts(seen) || other.accepts(seen),
        }
    }
}

/// Parses a capture filter of a command line.
pub fn parse_filter(text: &str) -> Result<Filter, CaptureFilterError> {
    Filter::parse(text).map_err(|reason| CaptureFilterError {
        text: text.to_owned(),
        reason,
    })
}

struct Words<'a> {
    words: Vec<&'a str>,
    next: usize,
    depth: usize,
}

impl<'a> Words<'a> {
    fn take(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.next).copied();
        self.next += 1;
        word
    }

    /// Consumes the next word if it is this one.
    fn accept(&mut self, word: &str) -> bool {
        let is_next = self.words.get(self.next) == Some(&word);
        self.next += usize::from(is_next);
        is_next
    }

    fn filter(&mut self) -> Result<Filter, FilterError> {
        let mut filter = self.all()?;
        while self.accept("or") {
            filter = Filter::Either(Box::new(filter), Box::new(self.all()?));
        }
        Ok(filter)
    }

    fn all(&mut self) -> Result<Filter, FilterError> {
        let mut filter = self.term()?;
        while self.accept("and") {
            filter = Filter::Both(Box::new(filter), Box::new(self.term()?));
        }
        Ok(filter)
    }

    fn term(&mut self) -> Result<Filter, FilterError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(FilterError::TooDeep);
        }
        let filter = if self.accept("not") {
            Filter::Not(Box::new(self.term()?))
        } else if self.accept("(") {
            let filter = self.filter()?;
            if !self.accept(")") {
                return Err(FilterError::Unclosed);
            }
            filter
        } else {
            self.test()?
        };
        self.depth -= 1;
        Ok(filter)
    }

    fn test(&mut self) -> Result<Filter, FilterError> {
        let test = self.take().ok_or(FilterError::Incomplete)?;
        Ok(match test {
            "inbound" => Filter::Direction(Direction::Inbound),
            "outbound" => Filter::Direction(Direction::Outbound),
            "rdm" => Filter::Rdm,
            "rdma" => Filter::Rdma,
            "host" => Filter::Host(self.value("host", "a host's name")?.to_owned()),
            "gid" => {
                let what = "an address such as fe80::1";
                let word = self.value("gid", what)?;
                let address: Ipv6Addr = word.parse().map_err(|_| unfit("gid", what, word))?;
                Filter::Gid(Gid(address.octets()))
            }
            "qpn" => {
                let what = "a number from 0 to 65535";
                let word = self.value("qpn", what)?;
                Filter::Qpn(Qpn(word.parse().map_err(|_| unfit("qpn", what, word))?))
            }
            "type" => {
                let what = "a packet type such as CTS or 3";
                let word = self.value("type", what)?;
                let named = PacketType::ALL
                    .iter()
                    .find(|packet_type| packet_type.name().eq_ignore_ascii_case(word));
                match named {
                    Some(packet_type) => Filter::Type(packet_type.code()),
                    None => Filter::Type(word.parse().map_err(|_| unfit("type", what, word))?),
                }
            }
            word => return Err(FilterError::NoTest(word.to_owned())),
        })
    }

    fn value(&mut self, test: &'static str, what: &'static str) -> Result<&'a str, FilterError> {
        self.take().ok_or(FilterError::NoValue { test, what })
    }
}

fn unfit(test: &'static str, what: &'static str, word: &str) -> FilterError {
    FilterError::Value {
        test,
        what,
        value: word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use efa_capture::frame::{FrameKind, Repr};

    const SOURCE: Gid = Gid([1; 16]);
    const DESTINATION: Gid = Gid([2; 16]);

    /// Whether the filter accepts a CTS from queue pair 3 of one device to 4 of another, as the
    /// receiver `beta` recorded it.
    fn accepts(filter: &str) -> bool {
        let frame = Frame {
            source: SOURCE,
            destination: DESTINATION,
            header: Repr {
                source_qpn: Qpn(3),
                destination_qpn: Qpn(4),
                ..Repr::new(FrameKind::Send, 1)
            },
            payload: &[PacketType::Cts.code()],
        };
        let seen = FilteredFrame {
            device: &DeviceName::new("beta", 2, 4),
            direction: Direction::Inbound,
            frame: &frame,
        };
        Filter::parse(filter).unwrap().accepts(&seen)
    }

    #[test]
    fn tests_look_at_their_part_of_the_frame() {
        for (filter, expected) in [
            ("", true),
            ("host beta", true),
            ("host alpha", false),
            ("host beta:2", true),
            ("host beta:1", false),
            ("gid 101:101:101:101:101:101:101:101", true),
            ("gid 202:202:202:202:202:202:202:202", true),
            ("gid fe80::1", false),
            ("qpn 3", true),
            ("qpn 4", true),
            ("qpn 5", false),
            ("type CTS", true),
            ("type cts", true),
            ("type 3", true),
            ("type EOR", false),
            ("inbound", true),
            ("outbound", false),
            ("rdm", true),
            ("rdma", false),
        ] {
            assert_eq!(accepts(filter), expected, "{filter:?}");
        }
    }

    #[test]
    fn and_binds_more_tightly_than_or() {
        assert!(accepts("qpn 3 or qpn 5 and qpn 6"));
        assert!(!accepts("(qpn 3 or qpn 5) and qpn 6"));
        assert!(accepts("not qpn 5 and qpn 3"));
        assert!(!accepts("not (qpn 5 or qpn 3)"));
        assert!(accepts("not(not qpn 3)"));
    }

    #[test]
    fn filter_errors_name_the_word() {
        for (filter, reason) in [
            ("hosts a", "\"hosts\""),
            ("host", "a host's name"),
            ("qpn 65536", "\"65536\""),
            ("qpn x", "\"x\""),
            ("gid 10.0.0.1", "\"10.0.0.1\""),
            ("type NAK", "\"NAK\""),
            ("qpn 1 qpn 2", "\"qpn\""),
            ("(qpn 1", "closing parenthesis"),
            ("qpn 1)", "\")\""),
            ("qpn 1 and", "it ends"),
            (&"(".repeat(100), "within each other"),
            (&"not ".repeat(100_000), "within each other"),
        ] {
            let error = Filter::parse(filter).unwrap_err();
            assert!(error.to_string().contains(reason), "{filter:.20}: {error}");
        }
    }
}
