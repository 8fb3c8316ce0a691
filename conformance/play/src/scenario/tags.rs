//! Scenarios of hardware tag matching: two ends of a reliable connection; one of them, `b`, has a
//! shared receive queue that matches tags. Their steps are calls of verbs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::error::{Result, ScenarioError, Source, suggest};

/// A scenario of tag matching.
#[derive(Clone, Debug)]
pub struct TagScenario {
    /// Its name: its file's name without the extension.
    pub name: String,
    pub path: PathBuf,
    pub description: String,
    /// The sections of the document that it covers.
    pub spec: Vec<String>,
    pub connection: ConnectionSpec,
    pub steps: Vec<TagStep>,
}

/// The parameters of a connection.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionSpec {
    /// Payload bytes of a packet.
    pub mtu: u32,
    /// The size of the list of tags.
    pub tags: u32,
}

/// One of the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// It has a private receive queue.
    A,
    /// It matches tags.
    B,
}

impl End {
    /// 0 or 1.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Its name in scenarios.
    pub fn name(self) -> &'static str {
        ["a", "b"][self.index()]
    }
}

/// A step, and the line on which it begins.
#[derive(Clone, Debug)]
pub struct TagStep {
    pub line: usize,
    pub action: TagAction,
}

/// The action of a step.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum TagAction {
    Receive {
        at: End,
        id: String,
        /// Bytes of memory.
        length: usize,
    },
    /// `b` adds a tag to its list.
    Add {
        /// The name of the receive and of the operation.
        id: String,
        tag: u64,
        /// The bits of it that are compared; all by default.
        mask: Option<u64>,
        /// Bytes of memory.
        length: usize,
        /// The number of handled unexpected messages, if the operation reports it.
        handled: Option<u32>,
        /// Whether a success is reported too.
        #[serde(default)]
        signaled: bool,
    },
    /// `b` deletes a tag.
    Delete {
        id: String,
        /// The name of the tag to delete.
        of: String,
        handled: Option<u32>,
    },
    /// `b` reports unexpected messages.
    Sync { id: String, handled: u32 },
    Send {
        at: End,
        id: String,
        message: Message,
        /// The status of its work request; success by default.
        status: Option<String>,
    },
    /// `b` reads the data of a rendezvous.
    Read {
        id: String,
        /// The message that requested the rendezvous.
        of: String,
        /// The offset in the data at which the read begins.
        #[serde(default)]
        offset: usize,
        /// Bytes that are read; the rest of the data by default.
        length: Option<usize>,
        status: Option<String>,
    },
    /// These completions arrive, in this order.
    See { at: End, completions: Vec<Expected> },
}

/// A message.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Message {
    /// A message whose header marks it as untagged.
    NoTag {
        /// The value of its tag field nevertheless.
        #[serde(default)]
        tag: u64,
        /// The sender's own data.
        #[serde(default)]
        data: u32,
        /// The bytes after its header.
        length: usize,
    },
    /// A message with its data.
    Eager {
        tag: u64,
        /// The sender's own data.
        #[serde(default)]
        data: u32,
        /// The bytes after its header.
        length: usize,
    },
    Rendezvous {
        tag: u64,
        /// The sender's own data.
        #[serde(default)]
        data: u32,
        /// The length of the data to be read.
        length: usize,
        /// The message whose data is used again.
        again: Option<String>,
        /// The bytes after its headers.
        #[serde(default)]
        more: usize,
    },
    /// The end of a rendezvous.
    Finish {
        /// The message that requested it.
        of: String,
    },
    Plain {
        bytes: Vec<u8>,
    },
}

/// An expected completion.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The receive or operation that completes.
    pub id: String,
    /// Its opcode: an `ibv_wc_opcode` without `IBV_WC_`.
    pub is: String,
    /// Its status likewise, by default `SUCCESS`.
    pub status: Option<String>,
    /// Its flags likewise.
    #[serde(default)]
    pub flags: Vec<String>,
    pub length: Option<u32>,
    pub tag: Option<u64>,
    pub data: Option<u32>,
    /// The message whose data is in the memory: the bytes after the headers in a tagged buffer; the
    /// complete message in a plain receive, and in a tagged buffer that was too small for a
    /// rendezvous.
    pub holds: Option<String>,
    /// The request of the rendezvous whose end message is in the memory.
    pub ends: Option<String>,
}

/// Names of `ibv_wc_opcode`.
pub const OPCODES: [(&str, u32); 9] = [
    ("SEND", 0),
    ("RDMA_READ", 2),
    ("RECV", 128),
    ("RECV_RDMA_WITH_IMM", 129),
    ("TM_ADD", 130),
    ("TM_DEL", 131),
    ("TM_SYNC", 132),
    ("TM_RECV", 133),
    ("TM_NO_TAG", 134),
];

/// Names of `ibv_wc_status`.
pub const STATUSES: [(&str, u32); 10] = [
    ("SUCCESS", 0),
    ("LOC_LEN_ERR", 1),
    ("LOC_PROT_ERR", 4),
    ("WR_FLUSH_ERR", 5),
    ("REM_INV_REQ_ERR", 9),
    ("REM_ACCESS_ERR", 10),
    ("RETRY_EXC_ERR", 12),
    ("RNR_RETRY_EXC_ERR", 13),
    ("TM_ERR", 22),
    ("TM_RNDV_INCOMPLETE", 23),
];

/// Names of `ibv_wc_flags`.
pub const FLAGS: [(&str, u32); 3] = [
    ("TM_SYNC_REQ", 1 << 4),
    ("TM_MATCH", 1 << 5),
    ("TM_DATA_VALID", 1 << 6),
];

/// The number of a name.
pub fn number(names: &[(&str, u32)], name: &str) -> Option<u32> {
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, number)| *number)
}

/// The name of a number, or the number.
pub fn name(names: &[(&str, u32)], number: u32) -> String {
    let found = names.iter().find(|(_, known)| *known == number);
    found.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    description: String,
    spec: Vec<String>,
    connection: ConnectionSpec,
    step: Vec<Spanned<toml::Table>>,
}

impl TagScenario {
    /// Whether a file looks like a scenario of tag matching.
    pub fn is_one(path: &Path) -> bool {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.trim() == "[connection]")
    }

    /// Reads and checks a scenario.
    ///
    /// # Errors
    /// With file, line, key and remedy.
    pub fn load(path: &Path) -> Result<TagScenario> {
        let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::Unreadable {
            file: path.to_owned(),
            source,
        })?;
        TagScenario::parse(path, &text)
    }

    /// Checks the text of a scenario; `path` is only used in messages.
    ///
    /// # Errors
    /// As [`TagScenario::load`].
    pub fn parse(path: &Path, text: &str) -> Result<TagScenario> {
        let source = Source::new(path, text);
        let file: File = toml::from_str(text).map_err(|error| source.toml(&error))?;
        let mtu = file.connection.mtu;
        if !(256..=4096).contains(&mtu) || !mtu.is_power_of_two() {
            return Err(source.error(
                source.line(text.find("[connection]").unwrap_or(0)),
                "mtu",
                format!("`{mtu}` is not a path MTU"),
                "give 256, 512, 1024, 2048 or 4096",
            ));
        }
        let mut names = Names {
            source: &source,
            line: 0,
            known: BTreeMap::new(),
        };
        let mut steps = Vec::new();
        for table in file.step {
            names.line = source.line(table.span().start);
            let read = toml::Value::Table(table.into_inner()).try_into();
            let action = read.map_err(|error: toml::de::Error| {
                source.explain(names.line, "do", error.message())
            })?;
            names.check(&action)?;
            steps.push(TagStep {
                line: names.line,
                action,
            });
        }
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        Ok(TagScenario {
            name: stem.to_string_lossy().into_owned(),
            path: path.to_owned(),
            description: file.description.trim().to_owned(),
            spec: file.spec,
            connection: file.connection,
            steps,
        })
    }
}

/// The type of object that a name refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NamedKind {
    Receive,
    Tag,
    Rendezvous,
    Message,
    Operation,
}

/// The names in a scenario, collected while its steps are read.
struct Names<'s> {
    source: &'s Source<'s>,
    line: usize,
    known: BTreeMap<String, NamedKind>,
}

impl Names<'_> {
    fn add(&mut self, id: &str, named: NamedKind) -> Result<()> {
        match self.known.insert(id.to_owned(), named) {
            None => Ok(()),
            Some(_) => Err(self.source.error(
                self.line,
                "id",
                format!("`{id}` is the name of an earlier step, too"),
                "give each step a name of its own",
            )),
        }
    }

    fn need(&self, key: &str, id: &str, of: &[NamedKind]) -> Result<()> {
        if self.known.get(id).is_some_and(|named| of.contains(named)) {
            return Ok(());
        }
        let usable = self.known.iter().filter(|(_, named)| of.contains(named));
        let remedy = suggest(id, usable.map(|(id, _)| id.as_str()));
        let problem = format!("no earlier step of the right sort has the name `{id}`");
        Err(self.source.error(self.line, key, problem, remedy))
    }

    fn constant(&self, key: &str, names: &[(&str, u32)], name: &str) -> Result<()> {
        if number(names, name).is_some() {
            return Ok(());
        }
        let remedy = suggest(name, names.iter().map(|(name, _)| *name));
        let problem = format!("`{name}` is not known");
        Err(self.source.error(self.line, key, problem, remedy))
    }

    fn check(&mut self, action: &TagAction) -> Result<()> {
        let status = |names: &Self, status: &Option<String>| match status {
            Some(status) => names.constant("status", &STATUSES, status),
            None => Ok(()),
        };
        match action {
            TagAction::Receive { id, .. } => self.add(id, NamedKind::Receive),
            TagAction::Add { id, .. } => self.add(id, NamedKind::Tag),
            TagAction::Delete { id, of, .. } => {
                self.need("of", of, &[NamedKind::Tag])?;
                self.add(id, NamedKind::Operation)
            }
            TagAction::Sync { id, .. } => self.add(id, NamedKind::Operation),
            TagAction::Send {
                id,
                message,
                status: ends,
                ..
            } => {
                status(self, ends)?;
                match message {
                    Message::Finish { of } => self.need("of", of, &[NamedKind::Rendezvous])?,
                    Message::Rendezvous {
                        again: Some(of), ..
                    } => self.need("again", of, &[NamedKind::Rendezvous])?,
                    _ => {}
                }
                let is_rendezvous = matches!(message, Message::Rendezvous { .. });
                let named = match is_rendezvous {
                    true => NamedKind::Rendezvous,
                    false => NamedKind::Message,
                };
                self.add(id, named)
            }
            TagAction::Read {
                id,
                of,
                status: ends,
                ..
            } => {
                status(self, ends)?;
                self.need("of", of, &[NamedKind::Rendezvous])?;
                self.add(id, NamedKind::Operation)
            }
            TagAction::See { completions, .. } => {
                for expected in completions {
                    let of = [NamedKind::Receive, NamedKind::Tag, NamedKind::Operation];
                    self.need("id", &expected.id, &of)?;
                    self.constant("is", &OPCODES, &expected.is)?;
                    status(self, &expected.status)?;
                    for flag in &expected.flags {
                        self.constant("flags", &FLAGS, flag)?;
                    }
                    if let Some(message) = &expected.holds {
                        let of = [NamedKind::Message, NamedKind::Rendezvous];
                        self.need("holds", message, &of)?;
                    }
                    if let Some(request) = &expected.ends {
                        self.need("ends", request, &[NamedKind::Rendezvous])?;
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "description = \"\"\nspec = []\n[connection]\nmtu = 1024\ntags = 4\n";

    fn problem(steps: &str) -> String {
        let text = format!("{HEAD}[[step]]\n{steps}");
        let parsed = TagScenario::parse("tags.toml".as_ref(), &text);
        parsed.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_are_named_with_line_key_and_remedy() {
        let add = "do = \"add\"\nid = \"one\"\ntag = 1\nlength = 64\n";
        let cases = [
            (
                "do = \"ad\"\nid = \"one\"",
                "tags.toml:6: do: unknown step `ad`; did you mean `add`?",
            ),
            (
                "do = \"add\"\nid = \"one\"\ntag = 1",
                "tags.toml:6: length: this key is missing; add `length = ...`",
            ),
            (
                &format!("{add}[[step]]\ndo = \"delete\"\nid = \"two\"\nof = \"ome\""),
                "tags.toml:11: of: no earlier step of the right sort has the name `ome`; did you mean `one`?",
            ),
            (
                &format!("{add}[[step]]\n{add}"),
                "tags.toml:11: id: `one` is the name of an earlier step, too; give each step a name of its own",
            ),
            (
                &format!(
                    "{add}[[step]]\ndo = \"see\"\nat = \"b\"\ncompletions = [{{ id = \"one\", is = \"TM_RECEIVE\" }}]"
                ),
                "tags.toml:11: is: `TM_RECEIVE` is not known; did you mean `TM_RECV`?",
            ),
        ];
        for (steps, expected) in cases {
            assert_eq!(problem(steps), expected);
        }
    }
}
