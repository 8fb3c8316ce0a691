//! The messages of the driver protocol, declared once: operations, reports and settings have the
//! types that scenarios and applications use.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::line::{Bytes, Line, printable};
use crate::application::{OperationRequest, Report, Started, Token};
use crate::libfabric::Version;
use crate::operation::pattern::Difference;
use crate::operation::{EndpointIndex, Payload, Remote};
use crate::scenario::{Capability, EndpointSpec, Settings};

/// A command to a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// The first line. Answer: `hello`.
    Hello {
        /// The version of this protocol.
        version: u32,
    },
    /// Open an endpoint; an earlier one has been closed. Answer: `opened`.
    Open(EndpointOptions),
    /// Put a peer into the address vector. Answer: `done`.
    Insert {
        /// The peer's number in all that follows.
        peer: EndpointIndex,
        /// Its raw address: 32 bytes in the layout of section 1.4 of the protocol.
        address: Bytes,
    },
    /// Take a peer out of the address vector. Answer: `done`.
    Remove {
        /// The peer's number.
        peer: EndpointIndex,
    },
    /// Start an operation. Answer: `started`, or `again`; for `register` it is `registered`.
    Start {
        /// The operation's name in its completion, or the memory's.
        id: Token,
        /// The operation.
        operation: OperationRequest,
        /// Compare the data of a receive, a read or an atomic with the message of this seed.
        #[serde(skip_serializing_if = "Option::is_none")]
        expect: Option<u64>,
    },
    /// Compare registered memory with a message. Answer: `checked`.
    Check {
        /// The memory.
        id: Token,
        /// The offset in the memory, in bytes.
        offset: usize,
        /// The bytes that have to be there.
        payload: Payload,
    },
    /// Show registered memory. Answer: `memory`.
    Dump {
        /// The memory.
        id: Token,
    },
    /// Make progress once. Answer: `done`, after the completions that there are.
    Poll {},
    /// Make progress, and report completions as they come, until `pause`. Answer: `done`, at once.
    Progress {},
    /// Stop making progress. Answer: `done`, after which no completion follows.
    Pause {},
    /// Close the endpoint, with everything that is outstanding; nothing of it is reported any more.
    /// Answer: `done`.
    Close {},
}

impl Line for Command {}

impl Command {
    /// The answers that it has besides `refused` and `unsupported`, as a message names them.
    pub fn answers(&self) -> &'static str {
        match self {
            Command::Hello { .. } => "`hello`",
            Command::Open(_) => "`opened`",
            Command::Start { operation, .. } => match operation {
                OperationRequest::Register { .. } => "`registered` or `again`",
                _ => "`started` or `again`",
            },
            Command::Check { .. } => "`checked`",
            Command::Dump { .. } => "`memory`",
            Command::Insert { .. }
            | Command::Remove { .. }
            | Command::Poll {}
            | Command::Progress {}
            | Command::Pause {}
            | Command::Close {} => "`done`",
        }
    }
}

/// A message of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// Answers `hello`.
    Hello {
        /// The version of this protocol that the program speaks.
        version: u32,
        /// The tested software.
        software: Identity,
    },
    /// The endpoint is open, and has posted its receive buffers or will when it first makes
    /// progress.
    Opened {
        /// Its raw address.
        address: Bytes,
    },
    /// The command was carried out.
    Done {},
    /// The operation was started; a completion follows, except for sends whose mode is `inject`.
    Started {},
    /// The memory is registered.
    Registered(Remote),
    /// Resources are short: nothing was started. The same command comes again, after progress.
    Again {},
    /// The comparison was made.
    Checked {
        /// The first byte that differs; without it, all are right.
        #[serde(skip_serializing_if = "Option::is_none")]
        difference: Option<Difference>,
    },
    /// The memory.
    Memory {
        /// All of it.
        bytes: Bytes,
    },
    /// The command failed. The case fails, with this text.
    Refused {
        /// Why.
        text: String,
    },
    /// The program, or the software that it tests, does not support this. The case ends as
    /// unsupported.
    Unsupported {
        /// The unsupported feature.
        text: String,
    },
    /// An operation completed, or a peer wrote to this endpoint's memory with data. No answer.
    Completed(Report),
    /// A part of the capture of the program's device; the parts are in order. No answer. Not
    /// printed by programs, but after their end by the recorder under which `run --at` starts them.
    Captured {
        /// Bytes of a pcapng file.
        bytes: Bytes,
    },
    /// An error outside of any operation. No answer; the case fails.
    Reported {
        /// The error.
        text: String,
    },
}

impl Line for Event {}

impl From<Started> for Event {
    fn from(started: Started) -> Self {
        match started {
            Started::Operation => Event::Started {},
            Started::Region(remote) => Event::Registered(remote),
        }
    }
}

#[expect(
    clippy::result_large_err,
    reason = "an event is handed back, it is no error"
)]
impl Event {
    /// Whether it answers a command. The others come besides.
    pub fn is_answer(&self) -> bool {
        !matches!(
            self,
            Event::Completed(_) | Event::Reported { .. } | Event::Captured { .. }
        )
    }

    /// The event with control characters in its texts escaped, because messages quote them on
    /// terminals.
    #[must_use]
    pub fn printable(mut self) -> Self {
        let mut texts: Vec<&mut String> = Vec::new();
        match &mut self {
            Event::Hello { software, .. } => {
                texts.push(&mut software.name);
                texts.extend(&mut software.release);
                texts.extend(&mut software.path);
                texts.extend(&mut software.commit);
            }
            Event::Refused { text } | Event::Unsupported { text } | Event::Reported { text } => {
                texts.push(text);
            }
            Event::Completed(report) => {
                texts.extend(report.failure.as_mut().map(|failure| &mut failure.text));
            }
            _ => {}
        }
        for text in texts {
            *text = printable(text);
        }
        self
    }

    /// Returns the result of starting an operation, or the event itself if it is another one.
    pub fn into_started(self) -> Result<Started, Event> {
        match self {
            Event::Started {} => Ok(Started::Operation),
            Event::Registered(remote) => Ok(Started::Region(remote)),
            other => Err(other),
        }
    }
}

/// A program's description of the software that it tests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Such as `libfabric`.
    pub name: String,
    /// Its release.
    pub release: Option<String>,
    /// The file it was loaded from.
    pub path: Option<String>,
    /// The commit it was built from.
    pub commit: Option<String>,
}

impl Identity {
    /// The known properties, by name.
    pub fn properties(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("name", Some(self.name.as_str())),
            ("release", self.release.as_deref()),
            ("path", self.path.as_deref()),
            ("commit", self.commit.as_deref()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }

    /// All that is known, in a line.
    pub fn details(&self) -> String {
        let mut text = self.to_string();
        if let Some(commit) = &self.commit {
            text += &format!(", commit {commit}");
        }
        if let Some(path) = &self.path {
            text += &format!(", {path}");
        }
        text
    }

    /// The release's first two numbers, if it has them.
    pub fn version(&self) -> Option<Version> {
        let release = self.release.as_deref()?;
        let mut numbers = release.split('.');
        let short = format!("{}.{}", numbers.next()?, numbers.next()?);
        short.parse().ok()
    }
}

/// Name and release.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.release {
            Some(release) => write!(f, " {release}"),
            None => Ok(()),
        }
    }
}

/// The parameters with which an endpoint is opened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EndpointOptions {
    /// The version of libfabric's interface that the application requests. Releases derive defaults
    /// from it.
    pub api: Version,
    /// The capabilities that the application uses. With `source` completions name the sender, with
    /// `directed-recv` receives do.
    pub capabilities: Vec<Capability>,
    /// The application registers every buffer itself (`FI_MR_LOCAL`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub register_local: bool,
    /// The application promises to send and receive no message above this many bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_message: Option<usize>,
    /// The name of the device; otherwise the first EFA device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// How the recorded endpoint was set up to choose its subprotocols, for implementations that
    /// can be set up so.
    #[serde(
        rename = "hints",
        default,
        skip_serializing_if = "Settings::is_default"
    )]
    pub settings: Settings,
}

impl EndpointOptions {
    /// Returns whether the application requests `capability`.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

impl From<&EndpointSpec> for EndpointOptions {
    fn from(endpoint: &EndpointSpec) -> Self {
        EndpointOptions {
            api: endpoint.api,
            capabilities: endpoint.capabilities.clone(),
            register_local: endpoint.register_local,
            max_message: endpoint.max_message,
            device: None,
            settings: endpoint.settings.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
