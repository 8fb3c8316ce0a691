//! Zero-copy receivers: stock endpoints that receive into the application's buffers.
//!
//! Stock libfabric does so if the application promises short messages and uses no feature that
//! needs matching. There are three generations of such receivers on the wire; see [`Generation`].

use efa_core::wire::{ExtraFeatures, Header, PacketType, Repr};

use super::capture::{NOT_READY, packets};
use super::play::{PacketTally, Played, play_script};
use super::script::{ENGINE, REGISTERED, STOCK, Script, StockEndpoint, fetch, variables};
use super::{GROUP, LIMIT, subprotocol};
use crate::exchange::{HEADERLESS, mtu};
use crate::harness::{Bench, Cell, CellResult};
use crate::libfabric::release::Release;
use efa_play::libfabric::Version;

/// The second stock endpoint, for cells without the engine.
pub(super) const PEER: &str = "peer";
const PROFILE: &str = "efa2";
/// The types of packets with messages and headers.
const MESSAGES: &[&str] = &[
    "EAGER_MSGRTM",
    "MEDIUM_MSGRTM",
    "LONGCTS_MSGRTM",
    "DC_EAGER_MSGRTM",
];
/// How zero-copy receivers announce themselves to their peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Generation {
    /// Not at all: peers must wait for the HANDSHAKE and send the shortest header after it. Buffers
    /// are posted on the endpoint's queue pair, with room for the header in front.
    Unannounced,
    /// By requesting a constant header length (extra request 2). Buffers are posted in the same
    /// way.
    ConstantHeader,
    /// By announcing a second queue pair (extra request 7) for messages without a header.
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

    /// The largest message that applications promise. It must fit into a packet, before 2.x
    /// together with the longest header.
    fn promised(self, mtu: usize) -> usize {
        match self {
            Generation::Unannounced | Generation::ConstantHeader => 8192,
            Generation::UserRecvQp => mtu,
        }
    }

    /// The largest message that `sender` sends to such a receiver.
    fn largest(self, sender: &str, mtu: usize) -> usize {
        /// Stock libfabric reserves room for the header of an EAGER_MSGRTM with a connection id,
        /// even if there is no header.
        const HEADER: usize = 16;
        match self {
            Generation::UserRecvQp if sender != ENGINE => mtu - HEADER,
            _ => self.promised(mtu),
        }
    }

    /// The environment for a release that receives `arriving` packets that are not messages.
    fn environment(self, arriving: &'static str) -> Vec<(&'static str, &'static str)> {
        match self {
            // The number of internal buffers that 1.11 posts, once. Later packets use buffers of
            // the application.
            Generation::Unannounced => vec![("FI_EFA_ZCPY_RX_SEED", arriving)],
            Generation::ConstantHeader | Generation::UserRecvQp => Vec::new(),
        }
    }
}

pub(super) fn cells(release: &'static Release) -> Vec<Cell> {
    let name = release.full_name;
    let cell = |what: String, run: fn(&Bench, &Release) -> CellResult| {
        Cell::new(GROUP, what, LIMIT, move |bench| run(bench, release))
    };
    vec![
        cell(
            format!("messages to zero-copy receiver {name}"),
            |bench, release| to_receiver(bench, release, ENGINE),
        ),
        cell(
            format!("messages from zero-copy receiver {name}"),
            from_receiver,
        ),
        cell(
            format!("{name} to zero-copy receiver {name}"),
            |bench, release| to_receiver(bench, release, PEER),
        ),
    ]
}

/// A message of a cell.
struct Message {
    id: String,
    /// The kind of step.
    step: &'static str,
    length: usize,
    /// A further key, after a comma.
    data: &'static str,
}

impl Message {
    fn new(what: &str, step: &'static str, length: usize) -> Self {
        Message {
            id: format!("{what}-{length}"),
            step,
            length,
            data: "",
        }
    }
}

fn messages(generation: Generation, sender: &str, mtu: usize) -> Vec<Message> {
    let largest = generation.largest(sender, mtu);
    let lengths = [0, 1, 64, 4096, 8191, largest].into_iter();
    let mut messages: Vec<Message> = lengths
        .map(|length| Message::new("message", "send", length))
        .collect();
    messages.push(Message::new("injected", "inject", 32));
    // Completion data lengthens the header, and delivery complete changes its type. Earlier
    // generations have no room for either.
    if generation == Generation::UserRecvQp {
        messages.push(Message {
            data: ", data = 0x12345678",
            ..Message::new("data", "send", 64)
        });
        messages.push(Message::new("delivered", "send-dc", 4096));
    }
    messages
}

const SEND: &str =
    r#"{ do = "{step}", at = "{from}", id = "{id}", to = "{to}", length = {length}{data} },"#;
const RECEIVE: &str = r#"{ do = "recv", at = "{to}", id = "{id}-arrives", length = {capacity}, expect = { message = "{id}" } },"#;
const WAIT: &str = r#"{ do = "wait", for = ["{id}", "{id}-arrives"] },"#;
const SETTLE: &str = r#"{ do = "settle" },"#;

/// A write by the peer, after which both sides have each other's HANDSHAKE without a message.
const GREETING: &str = r#"
{ do = "register", at = "{to}", id = "target", length = 8, seed = 1000, access = ["remote-read", "remote-write"] },
{ do = "write", at = "{from}", id = "greeting", to = "{to}", region = "target", length = 8 },
{ do = "wait", for = ["greeting"] },
{ do = "settle" },"#;

/// A scenario in which one endpoint sends messages to another.
struct Exchange<'a> {
    script: Script<'a>,
    from: &'a str,
    to: &'a str,
    /// The size of receives.
    capacity: usize,
}

impl Exchange<'_> {
    fn steps(&mut self, message: &Message, steps: &[&str]) {
        let values = variables([
            ("from", self.from),
            ("to", self.to),
            ("capacity", &self.capacity.to_string()),
            ("id", &message.id),
            ("step", message.step),
            ("length", &message.length.to_string()),
            ("data", message.data),
        ]);
        for step in steps {
            self.script.steps(step, &values);
        }
    }
}

/// Adds the zero-copy receiver, which receives `arriving` packets that are not messages.
fn receiver(script: &mut Script, name: &str, release: &Release, arriving: &'static str) {
    let generation = Generation::of(release.version);
    let promise = format!(
        "{REGISTERED}, max_message = {}",
        generation.promised(mtu(PROFILE))
    );
    script.stock(&StockEndpoint {
        name,
        release,
        environment: generation.environment(arriving),
        keys: &promise,
    });
}

fn capabilities() -> [String; 3] {
    ["msg", "rma", "source"].map(str::to_owned)
}

/// `sender`, the engine or another stock endpoint, sends messages of all sizes to a zero-copy
/// receiver.
fn to_receiver(bench: &Bench, release: &Release, sender: &'static str) -> CellResult {
    let stock = fetch(bench, release)?;
    let generation = Generation::of(release.version);
    let what = format!(
        "{sender} to a zero-copy receiver, libfabric {}",
        release.full_name
    );
    let capabilities = capabilities();
    let mut script = Script::new(what, PROFILE, &capabilities);
    match (sender, generation) {
        (ENGINE, _) => {
            let settings = ["handshake_before_messages = true".to_owned()];
            script.engine(release.unsolicited, &settings);
        }
        // In this mode 1.11 sends wrong bytes: see `known.toml`.
        (_, Generation::Unannounced) => script.stock(&StockEndpoint {
            name: PEER,
            release,
            environment: Vec::new(),
            keys: REGISTERED,
        }),
        _ => receiver(&mut script, PEER, release, "0"),
    }
    // Two received packets are not messages: the one that requests its HANDSHAKE, and the sender's
    // HANDSHAKE.
    receiver(&mut script, STOCK, release, "2");
    let mut exchange = Exchange {
        script,
        from: sender,
        to: STOCK,
        capacity: generation.promised(mtu(PROFILE)),
    };
    let early = Message::new("early", "send", 64);
    if sender == PEER && generation == Generation::Unannounced {
        exchange.steps(&early, &[GREETING]);
    }
    // No receive is posted when this message arrives.
    exchange.steps(&early, &[SEND, SETTLE, RECEIVE, WAIT, SETTLE]);
    let messages = messages(generation, sender, mtu(PROFILE));
    for message in &messages {
        exchange.steps(message, &[RECEIVE]);
    }
    if generation == Generation::ConstantHeader {
        // Because no receive was posted, the provider has posted an internal buffer. A message in
        // it matches only receives that are posted later.
        let copied = Message::new("copied", "send", 64);
        exchange.steps(&copied, &[SEND, SETTLE, RECEIVE, WAIT]);
    }
    for message in &messages {
        exchange.steps(message, &[SEND, WAIT]);
    }
    if generation == Generation::UserRecvQp {
        let writes = subprotocol::writes_with_data(&mut exchange.script, [sender, STOCK], 4096);
        writes?;
    }
    let played = play_script(bench, &stock, &exchange.script.finish(), "")?;

    let mut tally = PacketTally::default();
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
    played.judge(tally)
}

/// A zero-copy receiver sends to the engine, which is not a zero-copy receiver.
fn from_receiver(bench: &Bench, release: &Release) -> CellResult {
    let stock = fetch(bench, release)?;
    let generation = Generation::of(release.version);
    let what = format!(
        "a zero-copy receiver, libfabric {}, to the engine",
        release.full_name
    );
    let capabilities = capabilities();
    let mut script = Script::new(what, PROFILE, &capabilities);
    script.engine(release.unsolicited, &[]);
    // One received packet is not a message: the engine's HANDSHAKE.
    receiver(&mut script, STOCK, release, "1");
    let mut exchange = Exchange {
        script,
        from: STOCK,
        to: ENGINE,
        capacity: 2 * mtu(PROFILE),
    };
    let messages = messages(generation, STOCK, mtu(PROFILE));
    for message in &messages {
        exchange.steps(message, &[RECEIVE, SEND, WAIT]);
    }
    let played = play_script(bench, &stock, &exchange.script.finish(), "")?;
    let mut tally = PacketTally::default();
    tally.seen.push(format!("{} messages", messages.len()));
    tally.announced(&played, generation);
    tally.require(&played, STOCK, &["EAGER_MSGRTM"]);
    tally.forbid(&played, STOCK, &[HEADERLESS]);
    played.judge(tally)
}

impl PacketTally {
    /// The receiver's HANDSHAKE must contain the announcement of its generation.
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
