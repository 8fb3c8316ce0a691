//! Findings explained: what was seen, what is required, what a right sender would have sent.

use std::fmt;

use efa_wire::rules::Rule;

use super::report::Finding;

impl Finding {
    /// The frames to look at: the finding's own, and those that its text names.
    pub fn frames(&self) -> Vec<u64> {
        let mut frames = vec![self.packet];
        let mut words = self.text.split(' ').peekable();
        while let Some(word) = words.next() {
            let number = words.peek().and_then(|next| {
                let digits = next.trim_end_matches(|c: char| !c.is_ascii_digit());
                digits.parse().ok()
            });
            if let ("packet", Some(number)) = (word.trim_start_matches('('), number) {
                frames.push(number);
            }
        }
        frames.sort_unstable();
        frames.dedup();
        frames
    }

    /// The finding explained, in at most ten lines.
    pub fn explanation(&self) -> Explanation<'_> {
        Explanation(self)
    }
}

/// Displays a finding with its explanation, see [`Finding::explanation`].
#[derive(Clone, Copy, Debug)]
pub struct Explanation<'f>(&'f Finding);

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation(finding) = self;
        let rule = finding.rule;
        writeln!(
            f,
            "{}: packet {} ({}): {}",
            finding.severity, finding.packet, finding.kind, rule.breach
        )?;
        writeln!(f, "  seen       {}", finding.text)?;
        writeln!(f, "  rule       {}: {}", rule.id, rule.meaning)?;
        writeln!(f, "  statement  {} ({})", rule.statement, rule.source)?;
        if finding.severity < rule.severity {
            writeln!(
                f,
                "  proof      the capture does not prove it, so it is no {}",
                rule.severity
            )?;
        }
        writeln!(f, "  right      {}", right(rule))?;
        let frames = finding.frames();
        let frames: Vec<_> = frames.iter().map(u64::to_string).collect();
        write!(f, "  look at    frame.number in {{{}}}", frames.join(", "))
    }
}

/// What who follows the rule would have done.
fn right(rule: &Rule) -> &'static str {
    of_packets(rule.id)
        .or_else(|| of_messages(rule.id))
        .or_else(|| of_answers(rule.id))
        .or_else(|| of_tag_matching(rule.id))
        .unwrap_or("what the rule says")
}

/// Rules of packets, identities and features.
fn of_packets(id: &str) -> Option<&'static str> {
    Some(match id {
        "copies-agree" => {
            "the same bytes at both ends: look at the network, or at who wrote the capture"
        }
        "packet-form" => {
            "a packet with every field that its type and flags announce, at its offset, and no array longer than four"
        }
        "not-rdm" => {
            "nothing else: another protocol is no mistake; capture the queue pairs that you mean"
        }
        "iov-length" => "an iov whose lengths add up to the data's, in the request itself",
        "req-flags" => {
            "the flags of the type only: MSG in RTM, TAGGED if there is a tag, ATOMIC in RTA, and the bits of the headers that are there"
        }
        "cq-data-place" => {
            "the request without completion data, since reads and atomics complete nothing at the target"
        }
        "atomic-operand" => {
            "an operation and datatype of libfabric that the packet type is for, and iovs of whole elements"
        }
        "handshake-form" => {
            "a HANDSHAKE with one to four words, and the field of the user receive queue pair if its bit is set"
        }
        "raw-address-true" => {
            "its own GID, queue pair number and Q-key, as `fi_getname` gives them"
        }
        "raw-address-first" => {
            "the raw address in every request until the peer's HANDSHAKE has been processed"
        }
        "raw-address-last" => {
            "the connid instead of the raw address, once the HANDSHAKE has been processed"
        }
        "constant-header" => {
            "the raw address in every request to this peer, which asked for headers of constant length"
        }
        "one-identity" => "either the raw address or the connid",
        "connid-true" => "the connid of its own raw address: the Q-key of its queue pair",
        "connid-unasked" => "no connid in requests and CTSDATA to a peer without feature bit 3",
        "connid-fresh" => "a connid, and so a Q-key, drawn anew for each queue pair",
        "late-packet" => {
            "the same: the packet was on its way when the queue pair number was given out again; the receiver drops it"
        }
        "qkey-true" => "the Q-key of the receiver's raw address",
        "handshake-once" => "no second HANDSHAKE: one for each peer, whatever it receives later",
        "handshake-answer" => {
            "a HANDSHAKE in answer to the peer's first packet, before anything else"
        }
        "device-version" => {
            "a HANDSHAKE with flag 0x2 and the device version, which 2.x reads in any case"
        }
        "feature-announced" => {
            "a packet of the baseline in its place: long-CTS for long read and runting read, no DC, no READ_NACK and PEER_ERROR"
        }
        "feature-early" => "the same packet after the peer's HANDSHAKE, if that has the feature",
        "feature-lacked" => "a packet of the baseline, after waiting for the HANDSHAKE",
        "rdma-announced" => {
            "the read or write by packets: READ or WRITE by the device needs the peer's feature bit 0 or 5"
        }
        "unsolicited-write" => {
            "the write by packets with completion data, unless bit 8 is the same on both sides"
        }
        "user-recv-qp" => "the message to the queue pair that the HANDSHAKE names, without header",
        _ => return None,
    })
}

/// Rules of messages and their parts.
fn of_messages(id: &str) -> Option<&'static str> {
    Some(match id {
        "msg-id-first" => {
            "message 0 first: numbers begin anew with each peer, and with each of its endpoints"
        }
        "msg-id-once" => {
            "the next number for another message, or the same bytes again for the same one"
        }
        "msg-id-again" => "the same: a number that never arrived may be given to another message",
        "msg-id-gap" => {
            "every number, in its turn; a message that is given up is told by PEER_ERROR, if the peer knows that"
        }
        "msg-id-refused" => {
            "the refused packet again, as often as needed, before other messages to this peer"
        }
        "segment-bounds" => "segments between 0 and the length that the message states",
        "segment-overlap" => "each byte once: the next segment begins where the last one ended",
        "segment-agreement" => {
            "the same length, tag, send_id and runt_length in every packet of the message"
        }
        "runt-length" => {
            "in every segment the number of bytes that all segments of the message carry together"
        }
        "cq-data-agreement" => {
            "the same completion data in every packet of the message, or in none"
        }
        "message-whole" => "the missing segments",
        _ => return None,
    })
}

/// Rules of answers and windows.
fn of_answers(id: &str) -> Option<&'static str> {
    Some(match id {
        "answer-names-request" => {
            "the id that the request has, in the field of that name; and no second answer after the last one"
        }
        "ctsdata-names-cts" => "the recv_id of the CTS, or of the RTR, that asked for the data",
        "id-in-use" => "an id that names no operation which still waits for an answer",
        "cts-positive" => "a window of at least one byte, or none at all",
        "cts-window" => "a CTS for no more than is left, and CTSDATA for no more than was granted",
        "cts-early" => "the CTS after all data of the window before has arrived",
        "cts-read-flag" => "flag 0x80 in windows of emulated reads, and in no others",
        "ctsdata-early" => "the CTSDATA after the peer's HANDSHAKE",
        "receipt-early" => "the RECEIPT after the last byte has been delivered",
        "receipt-message" => "the msg_id of the message that send_id names",
        "eor-early" => "the EOR after all segments have arrived and all RDMA reads have ended",
        "read-nack" => {
            "READ_NACK once, for a read that is not acknowledged; then a LONGCTS_RTM with flag 0x2000, the same msg_id and no data"
        }
        "nack-runt" => "the READ_NACK after the last segment of the runt",
        "answer-length" => "as many bytes as the request asked for",
        "one-answer" => "one EOR or RECEIPT for each operation",
        "answer-missing" => "the answer, before those to requests that came later",
        "peer-error-message" => {
            "the number of a message that is under way, and side 1 (it sends the data) or 2 (it receives it)"
        }
        _ => return None,
    })
}

/// Rules of tag matching.
fn of_tag_matching(id: &str) -> Option<&'static str> {
    Some(match id {
        "tag-header-whole" => "all 16 bytes of the TMH, and of the RVH where one belongs",
        "tag-operation" => "0 no tag, 1 request of a rendezvous, 2 its end, 3 eager",
        "rendezvous-memory" => {
            "address and key of memory that is registered with remote read, until FIN has come"
        }
        "rendezvous-read-range" => "reads between the RVH's address and its length behind it",
        "rendezvous-part-read" => "the same, if the receive was shorter than the message",
        "rendezvous-read-late" => "all reads before the FIN, unless they are for something else",
        "rendezvous-fin-early" => "the FIN after the last byte of the read's data has come",
        "rendezvous-fin-names-request" => {
            "one FIN for each request: its TMH and RVH, with operation 2"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use efa_wire::rules::{RULES, Severity};

    use super::*;

    fn finding(rule: &'static Rule, text: &str) -> Finding {
        Finding {
            rule,
            severity: Severity::Note,
            packet: 9,
            kind: "CTS".into(),
            interface: 0,
            text: text.into(),
        }
    }

    #[test]
    fn every_rule_is_explained_in_ten_lines() {
        for rule in RULES.iter().filter(|rule| rule.is_checked()) {
            assert_ne!(right(rule), "what the rule says", "{}", rule.id);
            let explanation = finding(rule, "text").explanation().to_string();
            assert!(explanation.lines().count() <= 10, "{explanation}");
        }
    }

    #[test]
    fn explanations_name_the_frames_of_the_text() {
        let frames = |text| finding(&RULES[0], text).frames();
        assert_eq!(frames("of packet 8, in packet 12."), [8, 9, 12]);
        assert_eq!(frames("none of its memory was read (packet 7)"), [7, 9]);
        assert_eq!(frames("packet lost 3, a packet"), [9]);
    }
}
