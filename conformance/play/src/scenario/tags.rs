//! Scenarios of hardware tag matching: two ends of a reliable connection; one of them, `b`, has a
//! shared receive queue that matches tags. Their steps are calls of verbs.

use std::collections::BTreeMap;
use std::path::Path;

use efa_device_model::device::connected::{ConnectedFlags, WcOperation, WcStatus};
use serde::{Deserialize, Deserializer};

use super::error::{Result, Source, read, suggest};
use super::keys::{Keys, RawTable};
use crate::operation::names;

/// A scenario of tag matching.
#[derive(Clone, Debug)]
pub struct TagScenario {
    /// Its name: its file's name without the extension.
    pub name: String,
    /// What it shows, in a sentence for lists.
    pub description: String,
    /// The sections of the document that it covers.
    pub spec: Vec<String>,
    /// The parameters of the connection between the two ends.
    pub connection: ConnectionSpec,
    /// The steps, in the order in which they are played.
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
    /// The line of the file, counted from 1.
    pub line: usize,
    /// What is done in it.
    pub action: TagAction,
}

/// The action of a step, which `do` names in lower case.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum TagAction {
    /// An end posts an untagged receive.
    Receive {
        /// The end that posts it.
        at: End,
        /// The name of the receive.
        id: String,
        /// Bytes of memory.
        length: usize,
    },
    /// `b` adds a tag to its list.
    Add {
        /// The name of the receive and of the operation.
        id: String,
        /// The tag that it matches.
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
        /// The name of the operation.
        id: String,
        /// The name of the tag to delete.
        of: String,
        /// The number of handled unexpected messages, if the operation reports it.
        handled: Option<u32>,
    },
    /// `b` reports unexpected messages.
    Sync {
        /// The name of the operation.
        id: String,
        /// The number of unexpected messages that `b` has handled until then.
        handled: u32,
    },
    /// An end sends a message.
    Send {
        /// The end that sends it.
        at: End,
        /// The name of the send.
        id: String,
        /// What it sends.
        message: TagMessage,
        /// The status of its work request; success by default.
        status: Option<WcStatus>,
    },
    /// `b` reads the data of a rendezvous.
    Read {
        /// The name of the read.
        id: String,
        /// The message that requested the rendezvous.
        of: String,
        /// The offset in the data at which the read begins.
        #[serde(default)]
        offset: usize,
        /// Bytes that are read; the rest of the data by default.
        length: Option<usize>,
        /// The status of its work request; success by default.
        status: Option<WcStatus>,
    },
    /// These completions arrive, in this order.
    See {
        /// The end whose completion queue they arrive in.
        at: End,
        /// What they contain.
        completions: Vec<Expected>,
    },
}

/// A message.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TagMessage {
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
        /// The tag that the receiver's list is searched for.
        tag: u64,
        /// The sender's own data.
        #[serde(default)]
        data: u32,
        /// The bytes after its header.
        length: usize,
    },
    /// A request to read the data from the memory of the sender.
    Rendezvous {
        /// The tag that the receiver's list is searched for.
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
    /// A message without a header of tag matching.
    Plain {
        /// The whole message.
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
    pub is: WcOperation,
    /// Its status likewise, by default `SUCCESS`.
    pub status: Option<WcStatus>,
    /// Its flags likewise.
    #[serde(default)]
    pub flags: Vec<Flag>,
    /// Its length in bytes, if that is to be compared.
    pub length: Option<u32>,
    /// Its tag, if that is to be compared.
    pub tag: Option<u64>,
    /// The sender's own data, if that is to be compared.
    pub data: Option<u32>,
    /// The message whose data is in the memory: the bytes after the headers in a tagged buffer; the
    /// complete message in a plain receive, and in a tagged buffer that was too small for a
    /// rendezvous.
    pub holds: Option<String>,
    /// The request of the rendezvous whose end message is in the memory.
    pub ends: Option<String>,
}

/// A flag of a completion.
#[derive(Clone, Copy, Debug)]
pub struct Flag(pub ConnectedFlags);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let flags = ConnectedFlags::all() - ConnectedFlags::SOLICITED;
        names::read(flags.iter_names(), from).map(Flag)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    description: String,
    spec: Vec<String>,
    connection: RawTable,
    step: Vec<RawTable>,
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
        TagScenario::parse(path, &read(path)?)
    }

    /// Checks the text of a scenario; `path` is only used in messages.
    ///
    /// # Errors
    /// As [`TagScenario::load`].
    pub fn parse(path: &Path, text: &str) -> Result<TagScenario> {
        let source = Source::new(path, text);
        let file: File = toml::from_str(text).map_err(|error| source.toml(&error))?;
        let mut keys = Keys::new(&source, "the connection", file.connection);
        let connection: ConnectionSpec = keys.rest()?;
        let mtu = connection.mtu;
        if !(256..=4096).contains(&mtu) || !mtu.is_power_of_two() {
            let remedy = "give 256, 512, 1024, 2048 or 4096";
            return Err(keys.error("mtu", format!("`{mtu}` is not a path MTU"), remedy));
        }
        let mut reader = TagSteps::default();
        let steps = file.step.into_iter();
        let steps = steps.map(|raw| reader.step(&source, raw));
        let steps = steps.collect::<Result<_>>()?;
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        Ok(TagScenario {
            name: stem.to_string_lossy().into_owned(),
            description: file.description.trim().to_owned(),
            spec: file.spec,
            connection,
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

/// Reads steps; tracks the names of earlier ones.
#[derive(Default)]
struct TagSteps {
    known: BTreeMap<String, NamedKind>,
}

impl TagSteps {
    /// Names of earlier steps are looked up before the step has its own.
    fn step(&mut self, source: &Source<'_>, raw: RawTable) -> Result<TagStep> {
        use NamedKind::{Message as Plain, Operation, Receive, Rendezvous, Tag};
        let mut keys = Keys::new(source, "the step", raw);
        let action = keys.variant()?;
        match &action {
            TagAction::Receive { id, .. } => self.id(&keys, id, Receive)?,
            TagAction::Add { id, .. } => self.id(&keys, id, Tag)?,
            TagAction::Delete { id, of, .. } => {
                self.earlier(&keys, ["of", "of"], [of], &[Tag])?;
                self.id(&keys, id, Operation)?;
            }
            TagAction::Sync { id, .. } => self.id(&keys, id, Operation)?,
            TagAction::Send { id, message, .. } => {
                let named = match message {
                    TagMessage::Rendezvous { again, .. } => {
                        self.earlier(&keys, ["message", "again"], again, &[Rendezvous])?;
                        Rendezvous
                    }
                    TagMessage::Finish { of } => {
                        self.earlier(&keys, ["message", "of"], [of], &[Rendezvous])?;
                        Plain
                    }
                    _ => Plain,
                };
                self.id(&keys, id, named)?;
            }
            TagAction::Read { id, of, .. } => {
                self.earlier(&keys, ["of", "of"], [of], &[Rendezvous])?;
                self.id(&keys, id, Operation)?;
            }
            TagAction::See { completions, .. } => {
                for seen in completions {
                    for (key, name, of) in [
                        ("id", Some(&seen.id), &[Receive, Tag, Operation][..]),
                        ("holds", seen.holds.as_ref(), &[Plain, Rendezvous]),
                        ("ends", seen.ends.as_ref(), &[Rendezvous]),
                    ] {
                        self.earlier(&keys, ["completions", key], name, of)?;
                    }
                }
            }
        }
        let line = keys.line;
        Ok(TagStep { line, action })
    }

    /// Takes the step's own name.
    fn id(&mut self, keys: &Keys<'_>, id: &str, named: NamedKind) -> Result<()> {
        match self.known.insert(id.to_owned(), named) {
            None => Ok(()),
            Some(_) => Err(keys.error(
                "id",
                format!("`{id}` is the name of an earlier step, too"),
                "give each step a name of its own",
            )),
        }
    }

    /// Refuses names that are not of earlier steps of these sorts. They are the value of a key, or
    /// of one in it.
    fn earlier<'n>(
        &self,
        keys: &Keys<'_>,
        [outer, inner]: [&str; 2],
        names: impl IntoIterator<Item = &'n String>,
        of: &[NamedKind],
    ) -> Result<()> {
        for name in names {
            if self.known.get(name).is_some_and(|named| of.contains(named)) {
                continue;
            }
            let usable = self.known.iter().filter(|(_, named)| of.contains(named));
            let remedy = suggest(name, usable.map(|(id, _)| id.as_str()));
            let problem = format!("no earlier step of the right sort has the name `{name}`");
            let line = keys.line_of(outer);
            return Err(keys.source.error(line, inner, problem, remedy));
        }
        Ok(())
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
                "tags.toml:7: do: unknown step `ad`; did you mean `add`?",
            ),
            (
                "do = \"add\"\nid = \"one\"\ntag = 1",
                "tags.toml:6: length: `add` needs this key; add `length = ...`",
            ),
            (
                &format!("{add}[[step]]\ndo = \"delete\"\nid = \"two\"\nof = \"ome\""),
                "tags.toml:14: of: no earlier step of the right sort has the name `ome`; did you mean `one`?",
            ),
            (
                &format!("{add}[[step]]\n{add}"),
                "tags.toml:13: id: `one` is the name of an earlier step, too; give each step a name of its own",
            ),
            (
                &format!(
                    "{add}[[step]]\ndo = \"see\"\nat = \"b\"\ncompletions = [{{ id = \"one\", is = \"TM_RECEIVE\" }}]"
                ),
                "tags.toml:14: is: `TM_RECEIVE` is not known; did you mean `TM_RECV`?",
            ),
            (
                &format!("{add}masc = 1"),
                "tags.toml:11: masc: unknown key; did you mean `mask`?",
            ),
            (
                &format!("{add}message = {{}}"),
                "tags.toml:11: message: `add` does not take this key; it takes `id`, `tag`, `mask`, \
                 `length`, `handled`, `signaled`",
            ),
            (
                "do = \"send\"\nat = \"a\"\nid = \"one\"\nmessage = { type = \"egaer\" }",
                "tags.toml:10: type: `egaer` is not known; did you mean `eager`?",
            ),
        ];
        for (steps, expected) in cases {
            assert_eq!(problem(steps), expected);
        }
    }
}
