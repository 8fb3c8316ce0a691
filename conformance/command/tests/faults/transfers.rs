//! A transfer for each packet type of the protocol.

use efa_play::application::Token;
use efa_play::operation::SendMode;
use efa_play::scenario::Settings;

use crate::rig::{COMPARE, FETCH, Region, Rig, Side, Software, UPDATE};

/// Two endpoints that use the same packet types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransferKind {
    /// On devices without RDMA: all data is sent in packets.
    Packets,
    /// On devices with RDMA read: long messages and writes are fetched.
    Reads,
    /// As `Reads`, with the beginning of a long message in packets.
    Runts,
}

impl TransferKind {
    pub(crate) const ALL: [TransferKind; 3] = [
        TransferKind::Packets,
        TransferKind::Reads,
        TransferKind::Runts,
    ];

    /// The packet types of transfers between such endpoints, except HANDSHAKE.
    pub(crate) fn packets(self) -> &'static [&'static str] {
        match self {
            TransferKind::Packets => &[
                "EAGER_MSGRTM",
                "EAGER_TAGRTM",
                "MEDIUM_MSGRTM",
                "MEDIUM_TAGRTM",
                "LONGCTS_MSGRTM",
                "LONGCTS_TAGRTM",
                "CTS",
                "CTSDATA",
                "DC_EAGER_MSGRTM",
                "DC_EAGER_TAGRTM",
                "DC_MEDIUM_MSGRTM",
                "DC_MEDIUM_TAGRTM",
                "DC_LONGCTS_MSGRTM",
                "DC_LONGCTS_TAGRTM",
                "RECEIPT",
                "EAGER_RTW",
                "LONGCTS_RTW",
                "DC_EAGER_RTW",
                "DC_LONGCTS_RTW",
                "SHORT_RTR",
                "LONGCTS_RTR",
                "READRSP",
                "WRITE_RTA",
                "DC_WRITE_RTA",
                "FETCH_RTA",
                "COMPARE_RTA",
                "ATOMRSP",
            ],
            TransferKind::Reads => &["LONGREAD_MSGRTM", "LONGREAD_TAGRTM", "LONGREAD_RTW", "EOR"],
            TransferKind::Runts => &["RUNTREAD_MSGRTM", "RUNTREAD_TAGRTM"],
        }
    }

    /// Endpoints on hosts `a` and `b` that know each other's features.
    pub(crate) fn rig(self, software: Software) -> Rig {
        let mut rig = Rig::new(["a", "b"].map(|name| {
            // Stock uses the RDMA read of 0xefa1 only with this setting.
            let side = Side::new(name, software).env("FI_EFA_USE_DEVICE_RDMA", "1");
            match self {
                TransferKind::Packets => Side::new(name, software).profile("efa0"),
                TransferKind::Reads => side.profile("efa1"),
                TransferKind::Runts => side
                    .profile("efa1")
                    .env("FI_EFA_INTER_MIN_READ_MESSAGE_SIZE", "16384")
                    .env("FI_EFA_RUNT_SIZE", "12288")
                    .settings(Settings {
                        min_read_message_size: Some(16384),
                        runt_size: Some(12288),
                        ..Settings::default()
                    }),
            }
        }));
        rig.exchange_handshakes();
        rig
    }
}

/// A transfer in progress from the first endpoint to the second.
pub(crate) struct Transfer {
    /// Its operations.
    pub(crate) tokens: Vec<Token>,
    written: Option<Region>,
}

impl Transfer {
    /// Starts the transfer that uses a packet type.
    pub(crate) fn start(rig: &mut Rig, packet: &str) -> Transfer {
        let is_complete = packet.starts_with("DC_") || packet == "RECEIPT";
        let mut length = if packet.contains("LONG") || packet.starts_with("CTS") {
            900_000
        } else if packet.contains("MEDIUM") || packet.starts_with("RUNT") {
            40_000
        } else {
            64
        };
        if packet.starts_with("LONGREAD") || packet == "EOR" {
            length = 2_000_000;
        }
        let mut written = None;
        let tokens = match packet.rsplit('_').next() {
            Some("MSGRTM") => {
                let mode = if is_complete {
                    SendMode::DeliveryComplete
                } else {
                    SendMode::Normal
                };
                vec![rig.recv(1, length), rig.send(0, 1, length, mode)]
            }
            Some("RTW") => {
                let region = written.insert(rig.register(1, length));
                vec![rig.write(0, region, is_complete)]
            }
            Some("RTR" | "READRSP") => {
                let region = rig.register(1, length);
                vec![rig.read(0, &region)]
            }
            Some("RTA" | "ATOMRSP") => {
                let region = rig.register(1, 64);
                let action = match packet {
                    "COMPARE_RTA" => COMPARE,
                    "FETCH_RTA" | "ATOMRSP" => FETCH,
                    _ => UPDATE,
                };
                vec![rig.atomic(0, &region, action, is_complete)]
            }
            // Tagged messages, and the packets that belong to them.
            _ if is_complete => vec![rig.trecv(1, 1, length), rig.tsend_dc(0, 1, 1, length)],
            _ => vec![rig.trecv(1, 1, length), rig.tsend(0, 1, 1, length)],
        };
        Transfer { tokens, written }
    }

    /// Waits for the end of the transfer.
    pub(crate) fn finish(self, rig: &mut Rig) {
        rig.wait_ok(&self.tokens);
        if let Some(region) = self.written {
            rig.wait_written(&region);
        }
    }
}
