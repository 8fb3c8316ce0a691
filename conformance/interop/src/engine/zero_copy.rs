//! Zero-copy receivers: stock endpoints that receive into the application's buffers.
//!
//! Stock libfabric does so if the application promises short messages and asks for nothing that needs
//! matching. On the wire there are three generations of such receivers; see [`Generation`].

use efa_core::wire::{ExtraFeatures, Header, PacketType, Repr};
use efa_device_model::profile::Profile;
use efa_play::libfabric::Version;

use super::capture::{NOT_READY, packets};
use super::play::{CELL, Played, Tally, play};
use super::release::{Fetched, Release};
use super::script::{ENGINE, REGISTERED, STOCK, Script, unsolicited_write_recv};
use super::{GROUP, LIMIT};
use crate::harness::{Bench, Cell, CellResult, Unmet};

/// The other stock endpoint of the cells without the engine.
pub(super) const PEER: &str = "peer";
const PROFILE: &str = "efa2";
const CAPABILITIES: &str = r#"["msg", "rma", "source"]"#;
/// The kinds of packets that carry messages with headers.
const MESSAGES: &[&str] = &[
    "EAGER_MSGRTM",
    "MEDIUM_MSGRTM",
    "LONGCTS_MSGRTM",
    "DC_EAGER_MSGRTM",
];
/// The kind of packets that carry messages without headers.
pub(in super::super) const HEADERLESS: &str = "message without header";

/// How zero-copy receivers announce themselves to their peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Generation {
    /// Not at all: peers are expected to wait for the HANDSHAKE and to send the shortest header after it.
    /// Buffers are posted on the endpoint's queue pair, with room for the header in front.
    Unannounced,
    /// By asking for a constant header length (extra request 2); buffers are posted in the same way.
    ConstantHeader,
    /// By naming a second queue pair (extra request 7), which takes messages without a header.
    UserRecvQp,
}

impl Generation {
    fn of(version: Version) -> Self {
        const fn since(major: u16, minor: u16) -> Version {
            Version { major, minor }
        }
        if version < since(1, 12) {
            Generation::Unannounced
        } else if version < since(1, 22) {
            Generation::ConstantHeader
        } else {
            Generation::UserRecvQp
        }
    }

    /// The largest message that applications promise. It has to fit into a packet, before 2.x together
    /// with the longest header.
    fn promised(self, mtu: usize) -> usize {
        match self {
            Generation::Unannounced | Generation::ConstantHeader => 8192,
            Generation::UserRecvQp => mtu,
        }
    }

    /// The largest message that `sender` sends to such a receiver.
    fn largest(self, sender: &str, mtu: usize) -> usize {
        /// Stock libfabric leaves room for the header of an EAGER_MSGRTM with a connection id, even
        /// where there is none.
        const HEADER: usize = 16;
        match self {
            Generation::UserRecvQp if sender != ENGINE => mtu - HEADER,
            _ => self.promised(mtu),
        }
    }

    /// The environment that the release needs if `arriving` packets arrive that are not messages.
    fn environment(self, arriving: &'static str) -> Vec<(&'static str, &'static str)> {
        match self {
            // The number of buffers of its own that 1.11 posts, once. Later packets use up buffers of the
            // application.
            Generation::Unannounced => vec![("FI_EFA_ZCPY_RX_SEED", arriving)],
            Generation::ConstantHeader | Generation::UserRecvQp => Vec::new(),
        }
    }
}

/// The fault of 1.11 with messages that it sends with a prefix.
const PREFIX_SENT: &str = "1.11 takes the prefix in front of a message for part of it, and sends as \
                           many bytes from behind the message's buffer";

pub(super) fn cells(release: &'static Release) -> Vec<Cell> {
    let name = release.name;
    vec![
        Cell::new(
            GROUP,
            format!("messages to zero-copy receiver {name}"),
            LIMIT,
            move |bench| to_receiver(bench, release, ENGINE),
        ),
        Cell::new(
            GROUP,
            format!("messages from zero-copy receiver {name}"),
            LIMIT,
            move |bench| from_receiver(bench, release),
        ),
        Cell::new(
            GROUP,
            format!("{name} to zero-copy receiver {name}"),
            LIMIT,
            move |bench| to_receiver(bench, release, PEER),
        ),
    ]
}

/// A message of a cell.
struct Message {
    id: String,
    /// The kind of step.
    step: &'static str,
    length: usize,
    data: Option<u32>,
}

fn messages(generation: Generation, sender: &str, mtu: usize) -> Vec<Message> {
    let message = |what: &str, step, length, data| Message {
        id: format!("{what}-{length}"),
        step,
        length,
        data,
    };
    let largest = generation.largest(sender, mtu);
    let mut messages: Vec<Message> = [0, 1, 64, 4096, 8191, largest]
        .into_iter()
        .map(|length| message("message", "send", length, None))
        .collect();
    messages.push(message("injected", "inject", 32, None));
    // Completion data lengthens the header, and delivery complete changes its type. Earlier generations have
    // no room for either.
    if generation == Generation::UserRecvQp {
        messages.push(message("data", "send", 64, Some(0x1234_5678)));
        messages.push(message("delivered", "send-dc", 4096, None));
    }
    messages
}

impl Script {
    fn send_message(&mut self, from: &str, to: &str, message: &Message) {
        let Message {
            id,
            step,
            length,
            data,
        } = message;
        let data = data.map_or(String::new(), |data| format!("\ndata = {data}"));
        let keys = format!("id = \"{id}\"\nto = \"{to}\"\nlength = {length}{data}");
        self.step(from, step, &keys);
    }

    /// Exchanges HANDSHAKEs without a message.
    fn greet_by_write(&mut self) {
        self.target(8);
        let to = format!("to = \"{STOCK}\"\nregion = \"target\"\nlength = 8");
        self.step(PEER, "write", &format!("id = \"greeting\"\n{to}"));
        self.wait(r#""greeting""#);
        self.settle();
    }

    /// Posts a buffer of `capacity` bytes for a message.
    fn receive_message(&mut self, at: &str, message: &Message, capacity: usize) {
        let id = &message.id;
        let keys = format!(
            "id = \"{id}-arrives\"\nlength = {capacity}\nexpect = {{ message = \"{id}\" }}"
        );
        self.step(at, "recv", &keys);
    }

    fn await_message(&mut self, message: &Message) {
        let id = &message.id;
        self.wait(&format!(r#""{id}", "{id}-arrives""#));
    }
}

fn stock(
    script: &mut Script,
    name: &str,
    release: &Release,
    fetched: &Fetched,
    arriving: &'static str,
) {
    let generation = Generation::of(release.version);
    let promise = format!("{REGISTERED}\nmax_message = {}", generation.promised(mtu()));
    let environment = generation.environment(arriving);
    let release = (release, fetched);
    script.stock(name, release, PROFILE, CAPABILITIES, &environment, &promise);
}

/// Bytes in a packet.
fn mtu() -> usize {
    Profile::by_name(PROFILE).map_or(0, |profile| profile.mtu as usize)
}

/// `sender`, the engine or another stock endpoint, sends messages of all sizes to a zero-copy receiver.
fn to_receiver(bench: &Bench, release: &Release, sender: &'static str) -> CellResult {
    let fetched = release.fetch(bench)?;
    let generation = Generation::of(release.version);
    let what = format!(
        "{sender} to a zero-copy receiver, libfabric {}",
        release.name
    );
    let mut script = Script::new(&what, sender, STOCK);
    match (sender, generation) {
        (ENGINE, _) => {
            let unsolicited = unsolicited_write_recv(release.unsolicited);
            let settings = [unsolicited, "handshake_before_messages = true"];
            script.engine(ENGINE, PROFILE, CAPABILITIES, &settings);
        }
        // In this mode 1.11 sends wrong bytes (see `PREFIX_SENT`).
        (_, Generation::Unannounced) => {
            let stock = (release, &fetched);
            script.stock(PEER, stock, PROFILE, CAPABILITIES, &[], REGISTERED);
        }
        _ => stock(&mut script, PEER, release, &fetched, "0"),
    }
    // Two packets arrive that are not messages: the one that provokes its HANDSHAKE, and the sender's HANDSHAKE.
    stock(&mut script, STOCK, release, &fetched, "2");
    if sender == PEER && generation == Generation::Unannounced {
        script.greet_by_write();
    }

    // No receive is posted when this message arrives.
    let early = Message {
        id: "early".into(),
        step: "send",
        length: 64,
        data: None,
    };
    let capacity = generation.promised(mtu());
    script.send_message(sender, STOCK, &early);
    script.settle();
    script.receive_message(STOCK, &early, capacity);
    script.await_message(&early);
    script.settle();
    let messages = messages(generation, sender, mtu());
    for message in &messages {
        script.receive_message(STOCK, message, capacity);
    }
    if generation == Generation::ConstantHeader {
        // As no receive was posted, the provider has posted a buffer of its own. A message that arrives there
        // matches only receives that are posted later.
        let copied = Message {
            id: "copied".into(),
            ..early
        };
        script.send_message(sender, STOCK, &copied);
        script.settle();
        script.receive_message(STOCK, &copied, capacity);
        script.await_message(&copied);
    }
    for message in &messages {
        script.send_message(sender, STOCK, message);
        script.await_message(message);
    }
    if generation == Generation::UserRecvQp {
        script.write(4096, false, true);
    }
    let played = play(bench, &fetched, &script.finish())?;

    let mut tally = Tally::default();
    tally.seen.push(format!("{} messages", messages.len()));
    tally.announced(&played, generation);
    match generation {
        Generation::Unannounced => {
            tally.headers(&played, sender, 8);
        }
        Generation::ConstantHeader => {
            tally.headers(&played, sender, 48);
        }
        Generation::UserRecvQp => {
            tally.require(&played, sender, &[HEADERLESS]);
            tally.forbid(&played, sender, MESSAGES);
        }
    }
    // A stock sender may keep the early message until the peer has posted a receive.
    if sender == ENGINE && generation != Generation::ConstantHeader {
        tally.require(&played, STOCK, &[NOT_READY]);
    }
    played.judge(tally.seen, tally.missing)
}

/// A zero-copy receiver sends to the engine, which does not receive in this way.
fn from_receiver(bench: &Bench, release: &Release) -> CellResult {
    let fetched = release.fetch(bench)?;
    let generation = Generation::of(release.version);
    let what = format!(
        "a zero-copy receiver, libfabric {}, to the engine",
        release.name
    );
    let mut script = Script::new(&what, STOCK, ENGINE);
    let settings = [unsolicited_write_recv(release.unsolicited)];
    script.engine(ENGINE, PROFILE, CAPABILITIES, &settings);
    // One packet arrives that is not a message: the engine's HANDSHAKE.
    stock(&mut script, STOCK, release, &fetched, "1");
    let messages = messages(generation, STOCK, mtu());
    for message in &messages {
        script.receive_message(ENGINE, message, 2 * mtu());
        script.send_message(STOCK, ENGINE, message);
        script.await_message(message);
    }
    let played = play(bench, &fetched, &script.finish())?;
    let mut tally = Tally::default();
    tally.seen.push(format!("{} messages", messages.len()));
    tally.announced(&played, generation);
    tally.require(&played, STOCK, &["EAGER_MSGRTM"]);
    tally.forbid(&played, STOCK, &[HEADERLESS]);
    excuse(bench, generation, played, tally)
}

/// Recognizes the known fault of 1.11, which sends too much in this mode.
fn excuse(bench: &Bench, generation: Generation, played: Played, tally: Tally) -> CellResult {
    let result = played.judge(tally.seen, tally.missing);
    match (generation, result) {
        (Generation::Unannounced, Err(Unmet::Failed(text))) if text.contains(LENGTH_OF_64) => {
            Err(Unmet::Known {
                reason: PREFIX_SENT.into(),
                capture: bench.capture(CELL),
            })
        }
        (Generation::Unannounced, Ok(_)) => Err(Unmet::Failed(format!(
            "this works, but is listed as a fault of stock libfabric: {PREFIX_SENT}"
        ))),
        (_, result) => result,
    }
}

/// How a message of 64 bytes arrives if the prefix of 72 bytes is counted.
const LENGTH_OF_64: &str = "length: expected 64, actual 136";

impl Tally {
    /// The receiver's HANDSHAKE must announce what its generation announces.
    fn announced(&mut self, played: &Played, generation: Generation) {
        let (what, feature) = match generation {
            Generation::Unannounced => return,
            Generation::ConstantHeader => (
                "constant header length",
                ExtraFeatures::CONSTANT_HEADER_LENGTH,
            ),
            Generation::UserRecvQp => ("user receive QP", ExtraFeatures::USER_RECV_QP),
        };
        let is_announced = packets(&played.capture, STOCK).any(|packet| match packet.header {
            Header::Handshake(handshake) => {
                handshake.extra_info.features().contains(feature)
                    && (generation != Generation::UserRecvQp || handshake.user_recv_qp.is_some())
            }
            _ => false,
        });
        if is_announced {
            self.seen.push(format!("asks for {what}"));
        } else {
            self.missing
                .push(format!("{STOCK} does not ask for {what}"));
        }
    }

    /// All messages must have headers of `length` bytes.
    fn headers(&mut self, played: &Played, sender: &str, length: usize) {
        let found: Vec<usize> = packets(&played.capture, sender)
            .filter(|packet| packet.base.packet_type == PacketType::EagerMsgRtm)
            .map(|packet| packet.header.header_len())
            .collect();
        if found.is_empty() || found.iter().any(|found| *found != length) {
            let expected = format!("{sender} sent messages with headers of {found:?} bytes");
            self.missing.push(format!("{expected}, not of {length}"));
        } else {
            let count = found.len();
            self.seen.push(format!(
                "{count} EAGER_MSGRTM with headers of {length} bytes"
            ));
        }
    }
}
