//! Checking of reliable connections: rendezvous, and which messages have tags.

use std::collections::BTreeSet;

use efa_capture::Direction;
use efa_wire::address::Gid;
use efa_wire::rules::Evidence;
use foldhash::{HashMap, HashSet};

use super::report::{Finding, Findings, LocatedFinding, Report};
use crate::rendezvous::{Breach, Rendezvous};
use crate::roce::ConnectedPacket;

/// The state of checking reliable connections.
#[derive(Default)]
pub(super) struct Tagged {
    rendezvous: Rendezvous,
    /// Hosts whose own sends are in the capture.
    captured: HashSet<Gid>,
    /// Number of packets between two hosts, and whether their messages have tags.
    packets: HashMap<(usize, Gid, Gid), (u64, bool)>,
    breaches: Vec<(Breach, u64)>,
    unproven: u64,
}

/// Violations that are kept until the end of the capture, when the captured hosts are known.
const MOST_BREACHES: usize = 1 << 16;

impl Tagged {
    pub(super) fn take(&mut self, packet: &ConnectedPacket) {
        let (one, other) = (packet.source, packet.destination);
        let is_arrival = packet.direction == Some(Direction::Inbound);
        if packet.direction == Some(Direction::Outbound) {
            self.captured.insert(one);
        }
        // A host that sends to itself has both the sent and the received copy.
        if one == other && is_arrival {
            return;
        }
        let followed = self.rendezvous.follow(packet);
        let ends = (packet.interface, one.min(other), one.max(other));
        let (packets, is_tagged) = self.packets.entry(ends).or_default();
        *packets += 1;
        *is_tagged |= followed.is_tagged;
        self.unproven += followed.unproven;
        let room = MOST_BREACHES - self.breaches.len();
        let breaches = followed.breaches.into_iter().take(room);
        let found = breaches.map(|breach| (breach, packet.number));
        self.breaches.extend(found);
    }

    /// Ends the capture. The interfaces in `lossy` did not capture all frames.
    pub(super) fn close(self, report: &mut Report, lossy: &BTreeSet<usize>) {
        for (packets, is_tagged) in self.packets.values() {
            match is_tagged {
                true => report.checked.tagged += *packets,
                false => report.checked.not_judged.untagged += *packets,
            }
        }
        let mut findings = Findings::default();
        for (Breach { rule, packet, text }, at) in self.breaches {
            // It is checked at its sender, if that is in the capture.
            if packet.is_arrival && self.captured.contains(&packet.source) {
                continue;
            }
            let finding = Finding {
                rule,
                severity: rule.severity,
                packet: packet.number,
                kind: packet.kind,
                interface: packet.interface,
                text,
            };
            findings.add(LocatedFinding { finding, at });
        }
        let is_proven = |evidence, interface: usize| {
            evidence == Evidence::Packet || !lossy.contains(&interface)
        };
        let suspected = self.rendezvous.suspected() as u64;
        report.checked.unproven += self.unproven + suspected + findings.retain(is_proven);
        report.findings.append(findings);
    }
}
