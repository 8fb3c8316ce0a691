//! The rules that traffic is judged by, each declared once.
//!
//! Everything that judges captures takes its rules from here: `efa-conformance check`, the expert
//! information of the Wireshark dissector, and the tables of `docs/rules.md`. The dissector's table
//! and the documentation are generated text, which a test compares with this list
//! (`conformance/check/tests/check/rules_generated.rs`).

use core::fmt;

/// The severity of a breach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Allowed, but worth a look.
    Note,
    /// Works, but only as long as the peer is forgiving; or an operation failed.
    Warning,
    /// A defect: a peer that follows the protocol fails, hangs or takes wrong data.
    Error,
}

impl Severity {
    /// All severities, the mildest first.
    pub const ALL: [Severity; 3] = [Severity::Note, Severity::Warning, Severity::Error];

    /// The name in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The judges that apply a rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Judge {
    /// The checker and the dissector, with the same result.
    Both,
    /// The checker only: the rule needs more than a single pass over the packets.
    Checker,
    /// The dissector only: worth showing, but no defect of an implementation.
    Dissector,
    /// A replay only: it needs the scenario to know the packets that should have been sent.
    Replay,
}

/// Evidence that a capture needs to prove a breach.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Evidence {
    /// The packet alone.
    Packet,
    /// All packets between the two endpoints, in both directions, since the start of the operation
    /// or message that the packet belongs to. A capture that lacks frames proves nothing.
    History,
    /// All packets that the sender of the packet has sent and received since it was created.
    Sender,
    /// All earlier packets between the two endpoints.
    Beginning,
}

/// The dissector's group for a breach.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Group {
    /// The bytes cannot be parsed as the declared format.
    Malformed,
    /// The packet alone violates the protocol.
    Protocol,
    /// The packet contradicts earlier packets.
    Sequence,
}

crate::enumerated! {
    /// A chapter of the list.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Chapter {
        /// The header of the emulated wire, and the device.
        Transport,
        /// The bytes of one packet.
        Packets,
        /// Addresses and connection ids.
        Identity,
        /// Handshakes and extra features.
        Handshake,
        /// Messages and the parts that they travel in.
        Messages,
        /// Answers, windows and the ids in them.
        Answers,
        /// Messages with tags and rendezvous of reliable connections.
        TagMatching,
        /// The requests of the applications, and their results.
        Applications,
    }
}

impl Chapter {
    /// The heading.
    pub const fn title(self) -> &'static str {
        match self {
            Chapter::Transport => "Transport header",
            Chapter::Packets => "Packets",
            Chapter::Identity => "Addresses and connection ids",
            Chapter::Handshake => "Handshake and features",
            Chapter::Messages => "Messages and their parts",
            Chapter::Answers => "Answers and windows",
            Chapter::TagMatching => "Hardware tag matching",
            Chapter::Applications => "What applications ask for and get",
        }
    }
}

/// A rule that traffic is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The name, which stays the same; a Wireshark filter `efa_rdm.rule.ID` (`efa.rule.ID` in
    /// [`Chapter::Transport`], `efa_tm.rule.ID` in [`Chapter::TagMatching`]).
    pub id: &'static str,
    /// The chapter of the list that it is in.
    pub chapter: Chapter,
    /// The worst that a breach is reported as. A judge that cannot prove the breach reports a note.
    pub severity: Severity,
    /// The statement that it enforces: `v4/SECTION/NAME` for the protocol document, `stock/NAME`
    /// for behaviour or requirements of stock libfabric beyond it, `device/NAME` for the device and
    /// the emulated wire, `ofi/NAME` for guarantees of libfabric's interface to applications,
    /// `tm/NAME` for the document on hardware tag matching.
    pub statement: &'static str,
    /// The source of the statement, as Markdown.
    pub source: &'static str,
    /// The judges that apply it.
    pub judge: Judge,
    /// Evidence that a capture needs to prove a breach.
    pub evidence: Evidence,
    /// The dissector's group.
    pub group: Group,
    /// The mistake in a packet that breaks it, in a few words.
    pub breach: &'static str,
    /// The requirement, and the consequence of breaking it; Markdown.
    pub meaning: &'static str,
    /// The behaviour of a sender that follows the rule.
    pub right: &'static str,
}

impl Rule {
    /// The rule with this id.
    pub fn find(id: &str) -> Option<&'static Rule> {
        RULES.iter().find(|rule| rule.id == id)
    }

    /// Returns whether the checker judges it.
    pub const fn is_checked(&self) -> bool {
        matches!(self.judge, Judge::Both | Judge::Checker)
    }

    /// Returns whether a run of the suite judges it: the checker's rules, and those that take a
    /// scenario. Endpoints of scenarios have no reliable connections.
    pub const fn is_run(&self) -> bool {
        let is_judged = self.is_checked() || matches!(self.judge, Judge::Replay);
        is_judged && !matches!(self.chapter, Chapter::TagMatching)
    }

    /// Returns whether the dissector judges it.
    pub const fn is_dissected(&self) -> bool {
        matches!(self.judge, Judge::Both | Judge::Dissector)
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.id == other.id
    }
}

impl Eq for Rule {}

/// Declares the rules, chapter by chapter:
/// `NAME: severity, judge, evidence, group, "id", "statement", "source", "breach", "meaning", "right";`
macro_rules! rules {
    ($($chapter:ident {
        $($name:ident: $severity:ident, $judge:ident, $evidence:ident, $group:ident,
            $id:literal, $statement:literal, $source:literal, $breach:literal, $meaning:literal, $right:literal;)*
    })*) => {
        $($(
            #[doc = $meaning]
            pub const $name: Rule = Rule {
                id: $id,
                chapter: Chapter::$chapter,
                severity: Severity::$severity,
                statement: $statement,
                source: $source,
                judge: Judge::$judge,
                evidence: Evidence::$evidence,
                group: Group::$group,
                breach: $breach,
                meaning: $meaning,
                right: $right,
            };
        )*)*

        /// All rules, by chapter.
        pub const RULES: &[Rule] = &[$($($name,)*)*];
    };
}

rules! {
    Transport {
        TRANSPORT_FORM: Error, Dissector, Packet, Malformed,
            "transport-form", "device/transport-form", "[wire format](wire-format.md)",
            "The transport header is malformed",
            "Version, opcode or a length of the transport header is wrong.",
            "a transport header of a known version and opcode, with lengths that the frame has";
        DEVICE_ERROR: Warning, Dissector, Packet, Protocol,
            "device-error", "device/status", "stock",
            "The device reports an error",
            "A request failed; the status says why. Receiver not ready has its own rule.",
            "the same, if the request was right: the status says what the peer or the network has done";
        RECEIVER_NOT_READY: Note, Dissector, Packet, Protocol,
            "receiver-not-ready", "device/receiver-not-ready", "stock",
            "The receiver had no buffer",
            "The receiving queue pair had no buffer posted. The sender's device tries again as often as its queue pair allows, then libfabric does.",
            "the same; the receiver posts more buffers";
        RETRANSMISSION: Note, Dissector, History, Sequence,
            "retransmission", "device/retransmission", "[wire format](wire-format.md)",
            "Not the first attempt",
            "The frame is not the first attempt: it was lost, or the receiver was not ready.",
            "the same: devices repeat what was lost";
        COPIES_AGREE: Error, Checker, Packet, Protocol,
            "copies-agree", "device/unchanged", "EFA",
            "It arrived with other bytes than were sent",
            "What a host received is what the sender sent.",
            "the same bytes at both ends: look at the network, or at who wrote the capture";
    }
    Packets {
        PACKET_FORM: Error, Both, Packet, Malformed,
            "packet-form", "v4/1.3/packet-form", "1.3",
            "The packet is malformed",
            "A packet has an assigned type, version 4, all the fields that its type and flags announce, arrays that receivers have room for, and as much data as it says.",
            "a packet with every field that its type and flags announce, at its offset, and no array longer than four";
        NOT_RDM: Note, Checker, History, Protocol,
            "not-rdm", "v4/1.3/version", "1.3",
            "The two queue pairs do not speak the RDM protocol v4",
            "Two queue pairs that never sent each other an RDM packet speak another protocol over SRD, as UCX does. Nothing is judged between them.",
            "nothing else: another protocol is no mistake; capture the queue pairs that you mean";
        IOV_LENGTH: Error, Both, Packet, Malformed,
            "iov-length", "v4/3.3/iov-length", "3.3, 4.1",
            "The lengths of the iovs are not that of the data",
            "The lengths of `rma_iov` and `read_iov` add up to the length of the data that they describe.",
            "an iov whose lengths add up to the data's, in the request itself";
        REQ_FLAGS: Error, Both, Packet, Protocol,
            "req-flags", "v4/3.1/req-flags", "3.1, table 3.1",
            "Its flags do not fit the packet type",
            "RTM packets have the flag MSG, tagged ones TAGGED too, RTA packets ATOMIC, and no request has one of another kind: RMA is for RTW and RTR only, READ_NACK for LONGCTS_RTM. libfabric 1.11.0 tells messages from atomics by these flags.",
            "the flags of the type only: MSG in RTM, TAGGED if there is a tag, ATOMIC in RTA, and the bits of the headers that are there";
        UNKNOWN_FLAGS: Note, Dissector, Packet, Protocol,
            "unknown-flags", "v4/1.3/unknown-flags", "1.3, 3.1",
            "Flags or features that the protocol does not define",
            "Flags that the protocol does not define for the packet type, or features that it does not define.",
            "only flags and features that the protocol defines";
        TRAILING_BYTES: Note, Dissector, Packet, Protocol,
            "trailing-bytes", "v4/1.3/trailing-bytes", "1.3",
            "Bytes behind the end of the packet's format",
            "Bytes behind the end of the packet's format.",
            "nothing behind the packet";
        CQ_DATA_PLACE: Error, Checker, Packet, Protocol,
            "cq-data-place", "v4/3.1/cq-data", "3.1, table 3.1",
            "Completion data on a packet that completes nothing at the target",
            "Completion data comes with messages and writes, not with reads and atomics.",
            "the request without completion data, since reads and atomics complete nothing at the target";
        ATOMIC_OPERAND: Error, Checker, Packet, Protocol,
            "atomic-operand", "v4/3.3/atomic-operand", "3.3",
            "The atomic operation cannot be carried out",
            "Operation and datatype of an atomic are numbers of libfabric, the packet type is made for the operation, and each `rma_iov` holds whole elements. Stock receivers use both as an index without a check.",
            "an operation and datatype of libfabric that the packet type is for, and iovs of whole elements";
        HANDSHAKE_FORM: Error, Checker, Packet, Protocol,
            "handshake-form", "stock/handshake-form", "2.1.1, stock",
            "A handshake that overruns stock receivers",
            "A HANDSHAKE has at most four words of features, the room that libfabric 2.x has for them; and the feature \"user receive QP\" comes with its field, which 2.1 to 2.5 read without looking whether it is there.",
            "a HANDSHAKE with one to four words, and the field of the user receive queue pair if its bit is set";
    }
    Identity {
        RAW_ADDRESS_TRUE: Error, Both, Packet, Protocol,
            "raw-address-true", "v4/1.4/raw-address", "1.4, table 1.5",
            "The raw address is not the sender's",
            "The raw address in a request is that of its sender.",
            "its own GID, queue pair number and Q-key, as `fi_getname` gives them";
        RAW_ADDRESS_FIRST: Error, Both, Sender, Protocol,
            "raw-address-first", "v4/2.2/raw-address-first", "2.2",
            "No raw address before the handshake",
            "A request carries the raw address until its sender has received a HANDSHAKE: a receiver that does not know the sender drops it otherwise.",
            "the raw address in every request until the peer's HANDSHAKE has been processed";
        RAW_ADDRESS_LAST: Note, Checker, History, Protocol,
            "raw-address-last", "v4/2.2/raw-address-last", "2.2, 4.3",
            "A raw address from a sender that knows the handshake",
            "A request carries no raw address after its sender has processed the HANDSHAKE, which an earlier request without one proves, unless the peer asked for constant header length.",
            "the connid instead of the raw address, once the HANDSHAKE has been processed";
        CONSTANT_HEADER: Error, Checker, History, Protocol,
            "constant-header", "v4/4.3/constant-header", "4.3",
            "No raw address to a peer that wants headers of constant length",
            "Requests to a peer that asked for constant header length always carry the raw address: the receiver takes the bytes at a fixed offset for the message.",
            "the raw address in every request to this peer, which asked for headers of constant length";
        ONE_IDENTITY: Note, Both, Packet, Protocol,
            "one-identity", "stock/one-identity", "4.4, stock",
            "Both raw address and connid header",
            "A request names its sender by raw address or by connid, not by both; stock libfabric asserts that in debug builds.",
            "either the raw address or the connid";
        CONNID_TRUE: Error, Both, History, Protocol,
            "connid-true", "v4/4.4/connid", "4.4",
            "The connection id is of another endpoint",
            "The connid in a packet is that of the endpoint that sends it.",
            "the connid of its own raw address: the Q-key of its queue pair";
        CONNID_UNASKED: Warning, Checker, History, Protocol,
            "connid-unasked", "v4/4.4/connid-asked", "4.4",
            "A connid to a peer that did not ask for it",
            "REQ and CTSDATA packets carry a connid only to peers that announced connid: libfabric 1.13 and older take it for data.",
            "no connid in requests and CTSDATA to a peer without feature bit 3";
        CONNID_FRESH: Error, Both, History, Protocol,
            "connid-fresh", "v4/4.4/connid-fresh", "4.4",
            "A new endpoint has the connection id of the one before it",
            "An endpoint that gets the queue pair number of an earlier one has another connid. With the same one its peers go on with the numbers and ids of the earlier endpoint, and are not to blame. Seen where the sequence numbers of a queue pair begin anew.",
            "a connid, and so a Q-key, drawn anew for each queue pair";
        LATE_PACKET: Note, Both, History, Sequence,
            "late-packet", "v4/4.4/late-packet", "4.4",
            "From an endpoint that is gone",
            "The connid is that of an endpoint that had the queue pair before: the packet was under way when the queue pair number was given out again.",
            "the same: the packet was on its way when the queue pair number was given out again; the receiver drops it";
        QKEY_TRUE: Error, Both, History, Protocol,
            "qkey-true", "v4/1.4/qkey", "1.4",
            "The Q-key is not the receiver's",
            "Packets go to the Q-key that the receiver's raw address names.",
            "the Q-key of the receiver's raw address";
        QPN_REUSED: Note, Dissector, History, Sequence,
            "qpn-reused", "v4/4.4/qpn-reused", "4.4",
            "Another endpoint has taken over the queue pair number",
            "A raw address with another connection id: a new endpoint got the queue pair number of an earlier one.",
            "the same: queue pair numbers are given out again";
    }
    Handshake {
        HANDSHAKE_ONCE: Error, Both, History, Sequence,
            "handshake-once", "v4/2.1/handshake-once", "2.1",
            "A second handshake",
            "An endpoint sends each peer one HANDSHAKE.",
            "no second HANDSHAKE: one for each peer, whatever it receives later";
        HANDSHAKE_ANSWER: Error, Checker, Sender, Sequence,
            "handshake-answer", "v4/2.1/handshake-answer", "2.1",
            "It goes on without ever sending a handshake",
            "An endpoint that has processed a packet of a peer, which an answer proves, sends it a HANDSHAKE. Without such proof a note.",
            "a HANDSHAKE in answer to the peer's first packet, before anything else";
        DEVICE_VERSION: Warning, Both, History, Protocol,
            "device-version", "stock/device-version", "2.1.1, stock",
            "Handshake without device version",
            "A HANDSHAKE to libfabric 1.20 or later has the device version, which is read without looking whether it is there.",
            "a HANDSHAKE with flag 0x2 and the device version, which 2.x reads in any case";
        FEATURE_ANNOUNCED: Error, Both, History, Protocol,
            "feature-announced", "v4/2.1/feature-announced", "2.1, table 2.1",
            "A feature is used that the peer has not announced",
            "Packets of an extra feature go only to peers that announced it: long read, delivery complete, runting read, READ_NACK, PEER_ERROR.",
            "a packet of the baseline in its place: long-CTS for long read and runting read, no DC, no READ_NACK and PEER_ERROR";
        FEATURE_EARLY: Note, Both, Sender, Sequence,
            "feature-early", "v4/2.1/feature-early", "2.1",
            "A feature is used before the peer's handshake",
            "A packet of an extra feature before the peer's HANDSHAKE. libfabric 2.6.0 does that for delivery complete.",
            "the same packet after the peer's HANDSHAKE, if that has the feature";
        FEATURE_LACKED: Error, Checker, Sender, Protocol,
            "feature-lacked", "v4/2.1/feature-lacked", "2.1, table 2.1",
            "A feature was used before the peer's handshake, which lacks it",
            "Who uses an extra feature before the peer's HANDSHAKE must know by other means that the peer has it: a HANDSHAKE without it shows that the peer did not understand the packet.",
            "a packet of the baseline, after waiting for the HANDSHAKE";
        RDMA_ANNOUNCED: Error, Checker, History, Protocol,
            "rdma-announced", "v4/4.6/rdma-announced", "4.1, 4.6",
            "RDMA to a peer that has not announced it",
            "Direct RDMA reads and writes go only to peers that announced RDMA read or RDMA write.",
            "the read or write by packets: READ or WRITE by the device needs the peer's feature bit 0 or 5";
        UNSOLICITED_WRITE: Error, Checker, History, Protocol,
            "unsolicited-write", "stock/unsolicited-write", "stock",
            "RDMA write with immediate between unlike endpoints",
            "RDMA writes with immediate data need that both endpoints announced unsolicited write receive, or neither: the receiver's queue would be one buffer short or one too long.",
            "the write by packets with completion data, unless bit 8 is the same on both sides";
        USER_RECV_QP: Warning, Checker, History, Protocol,
            "user-recv-qp", "stock/user-recv-qp", "stock",
            "A message to the main queue pair of a zero-copy receiver",
            "Messages to a peer that announced a user receive queue pair go there, without header: libfabric 2.1 to 2.5 reject them on the main queue pair.",
            "the message to the queue pair that the HANDSHAKE names, without header";
    }
    Messages {
        MSG_ID_FIRST: Error, Checker, Sender, Sequence,
            "msg-id-first", "v4/3.2/msg-id-first", "3.2",
            "The first message is not number 0",
            "The msg_ids of the messages and atomics to a peer begin at 0. A receiver waits for 0 for ever. A note if few messages follow.",
            "message 0 first: numbers begin anew with each peer, and with each of its endpoints";
        MSG_ID_ONCE: Error, Both, History, Sequence,
            "msg-id-once", "v4/3.2/msg-id-once", "3.2",
            "The message id was used before",
            "Each message to a peer has its own msg_id. A packet that its receiver was not ready for, or that the device failed to send, may be sent again with the same content; only the headers that name the sender may differ.",
            "the next number for another message, or the same bytes again for the same one";
        MSG_ID_AGAIN: Note, Checker, History, Sequence,
            "msg-id-again", "v4/3.2/msg-id-again", "3.2",
            "The id of a message that never arrived is used for another",
            "After the device has failed to send a message for good, the peer still waits for its msg_id, and another message may have it.",
            "the same: a number that never arrived may be given to another message";
        MSG_ID_AHEAD: Note, Dissector, History, Sequence,
            "msg-id-ahead", "v4/3.2/msg-id-ahead", "3.2",
            "Earlier messages are missing so far",
            "The message came before its turn, and the receiver keeps it; normal on a network with many paths.",
            "the same: packets come in any order";
        MSG_ID_GAP: Error, Checker, Sender, Sequence,
            "msg-id-gap", "v4/3.2/msg-id-gap", "3.2",
            "Messages were never sent",
            "The msg_ids of the messages to a peer leave no gap: one that never closes stalls the conversation. A note if few messages follow.",
            "every number, in its turn; a message that is given up is told by PEER_ERROR, if the peer knows that";
        MSG_ID_WINDOW: Warning, Dissector, History, Sequence,
            "msg-id-window", "stock/msg-id-window", "stock",
            "Too far ahead of the messages that are missing",
            "So far ahead of the missing message (16384) that libfabric 1.17 aborts and 1.11 loses the message.",
            "the missing message first, before 16384 later ones";
        MSG_ID_REFUSED: Error, Checker, History, Sequence,
            "msg-id-refused", "v4/3.2/msg-id-refused", "3.2",
            "A refused message was left behind",
            "A message that the receiver was not ready for is sent again before its sender begins others: the peer waits for its msg_id, and hands over nothing behind it. A note if few messages follow, or if the device repeated it and another, equal repetition may have been removed from the capture (`editcap -d`).",
            "the refused packet again, as often as needed, before other messages to this peer";
        SEGMENT_BOUNDS: Error, Both, History, Protocol,
            "segment-bounds", "v4/3.2/segment-bounds", "3.2, tables 3.4, 3.7",
            "The data lies outside of the message",
            "A segment lies within its message.",
            "segments between 0 and the length that the message states";
        SEGMENT_OVERLAP: Error, Both, History, Sequence,
            "segment-overlap", "v4/3.2/segment-overlap", "3.2",
            "This part of the message was sent before",
            "Each byte of a message is sent once.",
            "each byte once: the next segment begins where the last one ended";
        SEGMENT_AGREEMENT: Error, Both, History, Sequence,
            "segment-agreement", "v4/3.2/segment-agreement", "3.2, table 3.4",
            "Not the message that it began as",
            "All packets of a message agree on its length, tag and send_id.",
            "the same length, tag, send_id and runt_length in every packet of the message";
        RUNT_LENGTH: Error, Checker, Beginning, Sequence,
            "runt-length", "v4/4.5/runt-length", "4.5",
            "Not as much data as `runt_length` says",
            "The segments of a runting read carry as many bytes as `runt_length` says. Reported when fewer were sent, the peer has read the rest from there on, and has acknowledged the message.",
            "in every segment the number of bytes that all segments of the message carry together";
        CQ_DATA_AGREEMENT: Error, Checker, History, Sequence,
            "cq-data-agreement", "v4/3.1/cq-data-agreement", "3.1",
            "Other completion data than the message's first packet",
            "All packets of a message carry the same completion data, or none: any of them may arrive first.",
            "the same completion data in every packet of the message, or in none";
        MESSAGE_WHOLE: Error, Checker, Sender, Sequence,
            "message-whole", "v4/3.2/message-whole", "3.2",
            "Parts of the message were never sent",
            "A message is sent to its end. A note if the capture may have ended before.",
            "the missing segments";
    }
    Answers {
        ANSWER_NAMES_REQUEST: Error, Both, Beginning, Sequence,
            "answer-names-request", "v4/3.2/answer-names-request", "3.2, 3.3, 4.1, 4.2, 4.7",
            "The id names no operation of the peer",
            "CTS, EOR, READ_NACK, RECEIPT, READRSP and ATOMRSP name an operation that the peer announced. Stock receivers use the id as an index without a check.",
            "the id that the request has, in the field of that name; and no second answer after the last one";
        CTSDATA_NAMES_CTS: Error, Both, Beginning, Sequence,
            "ctsdata-names-cts", "v4/3.2/ctsdata-recv-id", "3.2, table 3.7",
            "The data is for no operation of the peer",
            "CTSDATA names a receive operation that the peer announced.",
            "the recv_id of the CTS, or of the RTR, that asked for the data";
        ID_IN_USE: Error, Checker, History, Sequence,
            "id-in-use", "v4/3.2/operation-id", "3.2",
            "The id still names another operation",
            "A `send_id` or `recv_id` names one operation at a time: answers to the two cannot be told apart.",
            "an id that names no operation which still waits for an answer";
        CTS_POSITIVE: Error, Both, Packet, Protocol,
            "cts-positive", "v4/3.2/cts-positive", "3.2",
            "A window of no bytes",
            "A CTS, and the request of a long read, allow at least one byte.",
            "a window of at least one byte, or none at all";
        CTS_WINDOW: Error, Both, History, Sequence,
            "cts-window", "v4/3.2/cts-window", "3.2, table 3.6",
            "More data than was granted",
            "CTSDATA fills the window of each CTS exactly, and the windows add up to no more than the message. Reported when more was sent than granted, or more granted than there is.",
            "a CTS for no more than is left, and CTSDATA for no more than was granted";
        CTS_EARLY: Error, Checker, History, Sequence,
            "cts-early", "v4/3.2/cts-after-window", "3.2",
            "A window while the last one is not used up",
            "A receiver opens the next window after all data of the last one has arrived.",
            "the CTS after all data of the window before has arrived";
        CTS_READ_FLAG: Error, Both, History, Protocol,
            "cts-read-flag", "v4/3.2/cts-read-flag", "3.2, below table 3.6",
            "The flag for windows of emulated reads does not fit the operation",
            "A CTS has the flag 0x80 if it is a window of an emulated read, and only then. libfabric 1.11.0 looks for the id among the operations that the flag says.",
            "flag 0x80 in windows of emulated reads, and in no others";
        CTSDATA_EARLY: Warning, Checker, Sender, Sequence,
            "ctsdata-early", "stock/ctsdata-after-handshake", "stock",
            "CTSDATA before the peer's handshake",
            "CTSDATA waits for the HANDSHAKE, which alone says whether it may carry a connid. The document allows it at once, and libfabric 1.11 does that.",
            "the CTSDATA after the peer's HANDSHAKE";
        RECEIPT_EARLY: Error, Checker, Beginning, Sequence,
            "receipt-early", "v4/4.2/receipt-after-data", "4.2",
            "A receipt before all data has arrived",
            "A RECEIPT is sent when all data of the operation has arrived.",
            "the RECEIPT after the last byte has been delivered";
        RECEIPT_MESSAGE: Error, Checker, History, Sequence,
            "receipt-message", "v4/4.2/receipt-msg-id", "4.2",
            "A receipt for another message",
            "The RECEIPT of a message has its msg_id. Stock senders look at the send_id only.",
            "the msg_id of the message that send_id names";
        EOR_EARLY: Error, Checker, Beginning, Sequence,
            "eor-early", "v4/4.1/eor-after-read", "4.1",
            "An end of read before the read",
            "An EOR is sent after the RDMA reads have finished: the sender may change its memory then.",
            "the EOR after all segments have arrived and all RDMA reads have ended";
        READ_NACK: Error, Checker, Beginning, Sequence,
            "read-nack", "v4/4.7/read-nack", "4.7",
            "Not a refused read",
            "READ_NACK refuses a long read or a runting read, before its EOR; a LONGCTS_RTM with the flag READ_NACK answers one, and carries no data.",
            "READ_NACK once, for a read that is not acknowledged; then a LONGCTS_RTM with flag 0x2000, the same msg_id and no data";
        NACK_RUNT: Error, Checker, Beginning, Sequence,
            "nack-runt", "v4/4.7/nack-runt", "4.7",
            "Refused before the runt has arrived",
            "The READ_NACK of a runting read is sent when all of its RTM packets have been processed.",
            "the READ_NACK after the last segment of the runt";
        ANSWER_LENGTH: Error, Checker, History, Sequence,
            "answer-length", "v4/3.3/answer-length", "3.3",
            "Not as many bytes as were asked for",
            "ATOMRSP and the READRSP of a short read bring as many bytes as were asked for.",
            "as many bytes as the request asked for";
        ONE_ANSWER: Error, Both, History, Sequence,
            "one-answer", "v4/4.1/one-answer", "4.1, 4.2",
            "The operation was acknowledged before",
            "An operation is acknowledged by one EOR or RECEIPT.",
            "one EOR or RECEIPT for each operation";
        ANSWER_MISSING: Error, Checker, Beginning, Sequence,
            "answer-missing", "v4/3.2/answer", "3.2, 3.3, 4.1, 4.2",
            "An answer never came",
            "An endpoint answers each operation that needs it. An error if it answered operations that came later and had to wait for this one, or four others after it had read all of a message; otherwise a note, because the capture may have ended before, no receive was posted, or the request had a wrong key.",
            "the answer, before those to requests that came later";
        READ_REFUSED: Note, Dissector, Packet, Protocol,
            "read-refused", "v4/4.7/refused", "4.7",
            "The receiver cannot read by RDMA",
            "The receiver cannot register memory for an RDMA read, or cannot reach it; the sender goes on with long-CTS.",
            "the same: the receiver says what it cannot do";
        PEER_ERROR: Warning, Dissector, Packet, Protocol,
            "peer-error", "stock/peer-error", "stock",
            "The peer has given up its half of a message",
            "The peer has given up its half of a message.",
            "the same: an end that gives up says so";
        PEER_ERROR_MESSAGE: Warning, Both, Beginning, Sequence,
            "peer-error-message", "stock/peer-error-message", "stock",
            "Not about a message",
            "A PEER_ERROR says which side of a message sends it, and is about a message: if none of its msg_id is known, the operation that it names is no write, read or atomic.",
            "the number of a message that is under way, and side 1 (it sends the data) or 2 (it receives it)";
    }
    TagMatching {
        TAG_HEADER_WHOLE: Warning, Both, History, Malformed,
            "tag-header-whole", "tm/headers", "[tag matching](tag-matching.md)",
            "The message ends in its headers",
            "An eager message begins with a TMH, the request of a rendezvous and its end with TMH and RVH. Judged where a rendezvous has shown that messages have tags.",
            "all 16 bytes of the TMH, and of the RVH where one belongs";
        TAG_OPERATION: Warning, Both, History, Protocol,
            "tag-operation", "tm/operations", "[tag matching](tag-matching.md)",
            "No operation of tag matching",
            "The TMH has one of four operations. Judged where a rendezvous has shown that messages have tags.",
            "0 no tag, 1 request of a rendezvous, 2 its end, 3 eager";
        RENDEZVOUS_MEMORY: Error, Both, History, Protocol,
            "rendezvous-memory", "tm/registered-buffer", "[tag matching](tag-matching.md)",
            "The memory of a rendezvous cannot be read",
            "The RVH names registered memory that the peer may read, until the rendezvous is finished.",
            "address and key of memory that is registered with remote read, until FIN has come";
        RENDEZVOUS_READ_RANGE: Error, Both, Beginning, Sequence,
            "rendezvous-read-range", "tm/read-range", "[tag matching](tag-matching.md)",
            "More was read than the rendezvous has",
            "The receiver reads the bytes that the RVH names, and none behind them.",
            "reads between the RVH's address and its length behind it";
        RENDEZVOUS_PART_READ: Note, Both, History, Sequence,
            "rendezvous-part-read", "tm/read-whole", "[tag matching](tag-matching.md)",
            "Finished after a part was read",
            "Less was read than the RVH names before the rendezvous was finished: the receive was shorter, or the rest went another way.",
            "the same, if the receive was shorter than the message";
        RENDEZVOUS_READ_LATE: Note, Both, History, Sequence,
            "rendezvous-read-late", "tm/read-before-fin", "[tag matching](tag-matching.md)",
            "Read after the rendezvous was finished",
            "After FIN the sender may free the memory. A program may have given it to the peer for something else, too.",
            "all reads before the FIN, unless they are for something else";
        RENDEZVOUS_FIN_EARLY: Error, Both, Beginning, Sequence,
            "rendezvous-fin-early", "tm/fin-after-read", "[tag matching](tag-matching.md)",
            "Finished before the data was read",
            "FIN is sent after the data has been read by RDMA: the sender may free its memory then.",
            "the FIN after the last byte of the read's data has come";
        RENDEZVOUS_FIN_NAMES_REQUEST: Error, Both, Beginning, Sequence,
            "rendezvous-fin-names-request", "tm/fin-copies-request", "[tag matching](tag-matching.md)",
            "Not the end of an open rendezvous",
            "FIN has TMH and RVH of the request, but for the operation, and each rendezvous is finished once.",
            "one FIN for each request: its TMH and RVH, with operation 2";
    }
    Applications {
        REQUEST_AS_ASKED: Error, Replay, History, Protocol,
            "request-as-asked", "v4/3.2/request-as-asked", "3.1, 3.2, 3.3",
            "Not what the application asked for",
            "A request carries what its operation is about: length, tag, completion data, the operation of an atomic, place and key of the memory. Nothing is requested that no application asked for.",
            "one request for each operation, with what the application gave";
        DATA_AS_GIVEN: Error, Replay, History, Protocol,
            "data-as-given", "v4/3.1/data", "3.1",
            "Other bytes than the application's",
            "The data of a packet is that of its operation, from the offset on that it gives.",
            "the bytes of the application, from the offset that the packet gives";
        RDMA_AS_ASKED: Error, Replay, History, Sequence,
            "rdma-as-asked", "v4/4.1/rdma-as-asked", "4.1, 4.6",
            "Not the memory that the operation is about",
            "RDMA reads and writes move all bytes of their operation and no others, and immediate data is the completion data.",
            "reads and writes of the memory of the operation, each byte once";
        CONNID_GIVEN: Warning, Replay, History, Protocol,
            "connid-given", "v4/4.4/connid-given", "4.4",
            "No connid for a peer that asks for it",
            "Who knows connids puts its own into packets to peers that announced connid.",
            "its own connid in each packet to a peer that announced the feature";
        OUTCOME: Error, Replay, History, Sequence,
            "outcome", "ofi/outcome", "fi_cq(3)",
            "Not what the application should see",
            "Each operation completes once, with the bytes, length, tag, source, completion data and error that the scenario says; endpoints report nothing else.",
            "one completion for each operation, as the scenario says";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_statements_are_unique_and_well_formed() {
        let is_name = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        for (at, rule) in RULES.iter().enumerate() {
            let parts: Vec<&str> = rule.statement.split('/').collect();
            let is_statement = match parts[..] {
                ["v4", section, name] => {
                    section.bytes().all(|b| b.is_ascii_digit() || b == b'.') && is_name(name)
                }
                ["stock" | "device" | "ofi" | "tm", name] => is_name(name),
                _ => false,
            };
            assert!(is_statement, "{}", rule.statement);
            assert!(is_name(rule.id), "{}", rule.id);
            for other in &RULES[at + 1..] {
                assert_ne!(rule.id, other.id);
                assert_ne!(rule.statement, other.statement);
            }
            assert_eq!(Rule::find(rule.id), Some(rule));
        }
        assert_eq!(Rule::find("no-such-rule"), None);
    }

    #[test]
    fn severities_are_ordered() {
        assert!(Severity::Note < Severity::Warning && Severity::Warning < Severity::Error);
        assert_eq!(
            Severity::ALL.map(Severity::name),
            ["note", "warning", "error"]
        );
    }
}
