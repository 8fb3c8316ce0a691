//! Chooses the subprotocol of an operation. All functions are pure.
//!
//! The thresholds and the order of the tests are those of stock libfabric 2.x (two-sided
//! operations, writes and reads alike), except that the baseline protocols serve a peer without a
//! feature if they suffice (spec section 2.1, case a).

use core::fmt;

use crate::address::{Qkey, Qpn};
use crate::nic::Access;
use crate::wire::{AtomicDatatype, ExtraFeatures, PacketType};

use crate::endpoint::peers::handshake::PeerFeatures;

/// The capabilities of the endpoint's own side, and its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalCapabilities {
    /// Whether the device supports RDMA read and the settings allow it.
    pub(crate) rdma_read: bool,
    /// Whether the device supports RDMA write and the settings allow it.
    pub(crate) rdma_write: bool,
    /// Whether the device accepts writes with immediate data without a receive.
    pub(crate) unsolicited_write_recv: bool,
    /// PCI part id of the device.
    pub(crate) part_id: u32,
    pub(crate) handshake_before_messages: bool,
    pub(crate) max_medium_size: u64,
    pub(crate) min_read_message_size: u64,
    pub(crate) min_read_write_size: u64,
}

/// The part id of the device's first generation, whose RDMA read does not work with other
/// generations.
const FIRST_GENERATION: u32 = 0xEFA0;

impl LocalCapabilities {
    /// The same without RDMA: for an operation whose memory the device refused to register.
    pub(crate) fn without_rdma(self) -> LocalCapabilities {
        LocalCapabilities {
            rdma_read: false,
            rdma_write: false,
            ..self
        }
    }

    /// Returns whether the two devices can read from each other: both support it, and both are of
    /// the first generation or neither is (stock libfabric since 2.0). A peer that does not state
    /// its device (before 1.20) is assumed to match.
    fn can_read(&self, peer: &PeerFeatures) -> bool {
        self.obstacle_to_read(peer).is_none()
    }

    /// The reason why the two devices cannot read from each other, if they cannot.
    fn obstacle_to_read(&self, peer: &PeerFeatures) -> Option<&'static str> {
        let same_generation = peer.device_version.is_none_or(|version| {
            (version == FIRST_GENERATION) == (self.part_id == FIRST_GENERATION)
        });
        if !self.rdma_read {
            Some("no RDMA read by the own device, or not for this memory")
        } else if !peer.extra.contains(ExtraFeatures::RDMA_READ) {
            Some("the peer does not announce RDMA read")
        } else if !same_generation {
            Some("one of the devices is of the first generation")
        } else {
            None
        }
    }

    /// The reason why an operation of at least the size for RDMA read is sent by packets.
    fn reason_for_packets(&self, peer: Option<&PeerFeatures>) -> &'static str {
        match peer {
            None => "the peer's HANDSHAKE has not arrived",
            Some(peer) => self
                .obstacle_to_read(peer)
                .unwrap_or("the length is below the limit for RDMA"),
        }
    }
}

/// A message to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageQuery {
    /// Its length in bytes.
    pub(crate) length: u64,
    /// The largest message in bytes that fits a single packet, with the headers that it would have.
    pub(crate) eager_capacity: u64,
    /// Bytes that may travel ahead of an RDMA read to this peer now.
    pub(crate) runt_budget: u64,
    pub(crate) delivery_complete: bool,
    /// Whether the data is copied during the call. It then fits a single packet.
    pub(crate) inject: bool,
    pub(crate) tagged: bool,
}

/// How a message travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MessageProtocol {
    Eager,
    Medium,
    LongCts,
    LongRead,
    /// As [`MessageProtocol::LongRead`], with this many bytes in packets.
    RuntRead(u64),
    /// Without a header, to this queue pair of a zero-copy receiver.
    Headerless(Qpn, Qkey),
}

impl MessageProtocol {
    /// Returns whether the peer reads the message by RDMA, which requires registered memory.
    pub(crate) fn is_read_by_peer(self) -> bool {
        matches!(
            self,
            MessageProtocol::LongRead | MessageProtocol::RuntRead(_)
        )
    }
}

/// The reason why [`message`] chose `protocol`, for the log.
pub(crate) fn why_message(
    local: &LocalCapabilities,
    peer: Option<&PeerFeatures>,
    query: &MessageQuery,
    protocol: MessageProtocol,
) -> &'static str {
    match protocol {
        MessageProtocol::Headerless(..) => "the peer is a zero-copy receiver",
        MessageProtocol::RuntRead(_) => "RDMA read, and the peer has room for a runt",
        MessageProtocol::LongRead if query.delivery_complete => "RDMA read, with delivery complete",
        MessageProtocol::LongRead => "RDMA read, and no room for a runt or no support for it",
        MessageProtocol::Eager => "fits one packet",
        _ if query.length >= local.min_read_message_size => local.reason_for_packets(peer),
        MessageProtocol::Medium => "at most the size of a medium message",
        MessageProtocol::LongCts => "below the limit for RDMA read",
    }
}

/// The reason why [`write`] chose `protocol`, for the log.
pub(crate) fn why_write(
    local: &LocalCapabilities,
    peer: Option<&PeerFeatures>,
    query: &WriteQuery,
    protocol: WriteProtocol,
) -> &'static str {
    match protocol {
        WriteProtocol::Direct => "both devices support RDMA write",
        WriteProtocol::LongRead => "RDMA read, but no RDMA write",
        WriteProtocol::Eager if query.inject => "injected",
        _ if query.length == 0 => "no data",
        _ if !local.rdma_write => "no RDMA write by the own device, or not for this memory",
        _ if query.fits_rdma == FitsRdma::No => "not one RDMA request",
        _ if peer.is_some_and(|peer| !peer.peer_to_peer) => {
            "the peer's device does not reach its memory"
        }
        WriteProtocol::Eager | WriteProtocol::LongCts => "the peer does not announce RDMA write",
    }
}

/// The reason why [`read`] chose `protocol`, for the log.
pub(crate) fn why_read(
    local: &LocalCapabilities,
    peer: Option<&PeerFeatures>,
    length: u64,
    protocol: ReadProtocol,
) -> &'static str {
    match protocol {
        ReadProtocol::Direct => "both devices support RDMA read",
        _ if length == 0 => "no data",
        _ if peer.is_some_and(|peer| !peer.peer_to_peer) => {
            "the peer's device does not reach its memory"
        }
        _ => local.reason_for_packets(peer),
    }
}

/// The reason why no protocol can carry out an operation, or none before the HANDSHAKE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoProtocol {
    /// The choice depends on the peer's handshake, which has not arrived.
    AwaitHandshake,
    /// The peer lacks the feature.
    Unsupported(&'static str),
}

impl fmt::Display for NoProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoProtocol::AwaitHandshake => f.write_str("the peer's HANDSHAKE has not arrived"),
            NoProtocol::Unsupported(what) => write!(f, "unsupported: {what}"),
        }
    }
}

/// Chooses the subprotocol of a message. `peer` is `None` before its handshake. A message that
/// could be read by RDMA does not wait for the handshake; it is sent as long-CTS.
#[inline]
pub(crate) fn message(
    local: &LocalCapabilities,
    peer: Option<&PeerFeatures>,
    query: &MessageQuery,
) -> Result<MessageProtocol, NoProtocol> {
    let MessageQuery { length, .. } = *query;
    if let Some((qpn, qkey)) = peer.and_then(|peer| peer.user_recv_qp) {
        // A zero-copy receiver refuses all other messages.
        return match query.tagged {
            true => Err(NoProtocol::Unsupported(
                "tagged messages to a zero-copy receiver",
            )),
            false => Ok(MessageProtocol::Headerless(qpn, qkey)),
        };
    }
    if local.handshake_before_messages && peer.is_none() {
        return Err(NoProtocol::AwaitHandshake);
    }
    if query.inject {
        return Ok(MessageProtocol::Eager);
    }
    if let Some(peer) = peer
        && length > 0
        && length >= local.min_read_message_size
        && local.can_read(peer)
    {
        // EOR implies delivery, so there is no DC type. But if the runt is the whole message, no
        // EOR follows.
        let runts = peer.extra.contains(ExtraFeatures::RUNTING_READ) && !query.delivery_complete;
        return Ok(match query.runt_budget.min(length) {
            runt if runts && runt > 0 => MessageProtocol::RuntRead(runt),
            _ => MessageProtocol::LongRead,
        });
    }
    if query.delivery_complete {
        require(peer, PacketType::DcEagerMsgRtm)?;
    }
    Ok(if length <= query.eager_capacity {
        MessageProtocol::Eager
    } else if length <= local.max_medium_size {
        MessageProtocol::Medium
    } else {
        MessageProtocol::LongCts
    })
}

/// A write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WriteQuery {
    /// Its length in bytes.
    pub(crate) length: u64,
    /// The largest write in bytes that fits a single packet, with the headers that it would have.
    pub(crate) eager_capacity: u64,
    pub(crate) delivery_complete: bool,
    /// Whether the data is copied during the call. It then fits a single packet.
    pub(crate) inject: bool,
    /// Whether the device can carry it out by itself.
    pub(crate) fits_rdma: FitsRdma,
}

/// Whether the device can carry out a write by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FitsRdma {
    /// It has no CQ data.
    Plain,
    /// Its CQ data has 32 bits, and it is one RDMA request.
    WithImmediate,
    /// Its CQ data has more than 32 bits, or it is more than one RDMA request.
    No,
}

/// How a write travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteProtocol {
    /// By the device (spec section 4.6).
    Direct,
    Eager,
    LongCts,
    LongRead,
}

impl WriteProtocol {
    /// The access to register the memory for, if registration is required.
    pub(crate) fn registration(self) -> Option<Access> {
        match self {
            WriteProtocol::Direct => Some(Access::empty()),
            WriteProtocol::LongRead => Some(Access::REMOTE_READ),
            WriteProtocol::Eager | WriteProtocol::LongCts => None,
        }
    }
}

/// Chooses the subprotocol of a write. It waits for the peer's handshake, as in stock libfabric
/// since 2.0, because the device may be able to carry it out by itself.
pub(crate) fn write(
    local: &LocalCapabilities,
    peer: Option<&PeerFeatures>,
    query: &WriteQuery,
) -> Result<WriteProtocol, NoProtocol> {
    if query.inject {
        return Ok(WriteProtocol::Eager);
    }
    let Some(peer) = peer else {
        return Err(NoProtocol::AwaitHandshake);
    };
    let same_immediates =
        local.unsolicited_write_recv == peer.extra.contains(ExtraFeatures::UNSOLICITED_WRITE_RECV);
    let fits = match query.fits_rdma {
        FitsRdma::Plain => true,
        FitsRdma::WithImmediate => same_immediates,
        FitsRdma::No => false,
    };
    if fits
        && query.length > 0
        && local.rdma_write
        && peer.extra.contains(ExtraFeatures::RDMA_WRITE)
        && peer.peer_to_peer
    {
        return Ok(WriteProtocol::Direct);
    }
    if query.length > 0 && query.length >= local.min_read_write_size && local.can_read(peer) {
        return Ok(WriteProtocol::LongRead);
    }
    if query.delivery_complete {
        require(Some(peer), PacketType::DcEagerRtw)?;
    }
    Ok(if query.length <= query.eager_capacity {
        WriteProtocol::Eager
    } else {
        WriteProtocol::LongCts
    })
}

/// How a read travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadProtocol {
    /// By the device (spec section 4.1).
    Direct,
    /// In one READRSP.
    Short,
    /// In READRSP and CTSDATA.
    LongCts,
}

/// Chooses the subprotocol of a read of `length` bytes. One READRSP holds up to `capacity` bytes.
/// The read waits for the peer's handshake as a write does.
pub(crate) fn read(
    local: &LocalCapabilities,
    peer: Option<&PeerFeatures>,
    length: u64,
    capacity: u64,
) -> Result<ReadProtocol, NoProtocol> {
    match peer {
        None => Err(NoProtocol::AwaitHandshake),
        // A peer can refuse to read local memory into its memory (READ_NACK), but not a read by
        // this endpoint.
        Some(peer) if length > 0 && local.can_read(peer) && peer.peer_to_peer => {
            Ok(ReadProtocol::Direct)
        }
        // Strictly less, as in every stock libfabric.
        Some(_) if length < capacity => Ok(ReadProtocol::Short),
        Some(_) => Ok(ReadProtocol::LongCts),
    }
}

/// An atomic to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AtomicQuery {
    pub(crate) datatype: AtomicDatatype,
    pub(crate) is_compare: bool,
    /// The number of pieces of the target's memory.
    pub(crate) remote_pieces: usize,
    pub(crate) delivery_complete: bool,
}

/// Checks that an atomic can be sent. Any peer may be stock libfabric, because no feature
/// distinguishes implementations.
pub(crate) fn atomic(peer: Option<&PeerFeatures>, query: &AtomicQuery) -> Result<(), NoProtocol> {
    // Stock libfabric has no handlers for these types, and does not check for one before the call
    // (deviation 36).
    if let AtomicDatatype::DOUBLE_COMPLEX
    | AtomicDatatype::LONG_DOUBLE
    | AtomicDatatype::LONG_DOUBLE_COMPLEX = query.datatype
    {
        return Err(NoProtocol::Unsupported(
            "atomics on double complex and long doubles, which crash targets that run stock libfabric",
        ));
    }
    // Stock libfabric uses the operand of the first piece for all pieces (deviation 33).
    if query.is_compare && query.remote_pieces > 1 {
        return Err(NoProtocol::Unsupported(
            "compare with more than one piece of remote memory",
        ));
    }
    if query.delivery_complete {
        require(peer, PacketType::DcWriteRta)?;
    }
    Ok(())
}

/// Checks that the peer accepts packets of a type with delivery complete.
fn require(peer: Option<&PeerFeatures>, packet_type: PacketType) -> Result<(), NoProtocol> {
    match peer {
        None => Err(NoProtocol::AwaitHandshake),
        Some(peer) if peer.extra.permit(packet_type) => Ok(()),
        Some(_) => Err(NoProtocol::Unsupported("delivery complete")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: LocalCapabilities = LocalCapabilities {
        rdma_read: true,
        rdma_write: true,
        unsolicited_write_recv: true,
        part_id: 0xEFA1,
        handshake_before_messages: false,
        max_medium_size: 65_536,
        min_read_message_size: 1 << 20,
        min_read_write_size: 65_536,
    };

    const NO_READ: LocalCapabilities = LocalCapabilities {
        rdma_read: false,
        ..LOCAL
    };

    fn peer(extra: ExtraFeatures, device_version: Option<u32>) -> Option<PeerFeatures> {
        Some(PeerFeatures {
            extra,
            device_version,
            user_recv_qp: None,
            peer_to_peer: true,
        })
    }

    #[test]
    fn table_of_messages() {
        use MessageProtocol::*;
        use NoProtocol::*;
        let baseline = peer(ExtraFeatures::empty(), None);
        let dc = peer(ExtraFeatures::DELIVERY_COMPLETE, Some(0xEFA1));
        let reads = peer(ExtraFeatures::RDMA_READ, Some(0xEFA2));
        let old_reads = peer(ExtraFeatures::RDMA_READ, None);
        let first = peer(ExtraFeatures::RDMA_READ, Some(0xEFA0));
        let runts = peer(
            ExtraFeatures::RDMA_READ | ExtraFeatures::RUNTING_READ,
            Some(0xEFA1),
        );
        let only_runts = peer(ExtraFeatures::RUNTING_READ, Some(0xEFA1));
        const MIB: u64 = 1 << 20;
        #[rustfmt::skip]
        let table = [
            // local    peer      length    runt  dc     expected
            (&LOCAL,   None,       0,         0,   false, Ok(Eager)),
            (&LOCAL,   None,       8000,      0,   false, Ok(Eager)),
            (&LOCAL,   None,       8001,      0,   false, Ok(Medium)),
            (&LOCAL,   None,       65_536,    0,   false, Ok(Medium)),
            (&LOCAL,   None,       65_537,    0,   false, Ok(LongCts)),
            (&LOCAL,   None,       MIB,       0,   false, Ok(LongCts)),
            (&LOCAL,   baseline,   MIB,       0,   false, Ok(LongCts)),
            (&LOCAL,   reads,      MIB - 1,   0,   false, Ok(LongCts)),
            (&LOCAL,   reads,      MIB,       0,   false, Ok(LongRead)),
            (&LOCAL,   old_reads,  MIB,       0,   false, Ok(LongRead)),
            (&LOCAL,   reads,      MIB,       0,   true, Ok(LongRead)),
            (&NO_READ, reads,      MIB,       0,   false, Ok(LongCts)),
            (&LOCAL,   first,      MIB,       0,   false, Ok(LongCts)),
            (&LOCAL,   runts,      MIB,       0,   false, Ok(LongRead)),
            (&LOCAL,   runts,      MIB,       300, false, Ok(RuntRead(300))),
            (&LOCAL,   runts,      MIB,   2 * MIB, false, Ok(RuntRead(MIB))),
            (&LOCAL,   runts,      MIB,       300, true, Ok(LongRead)),
            (&LOCAL,   reads,      MIB,       300, false, Ok(LongRead)),
            (&LOCAL,   only_runts, MIB,       300, false, Ok(LongCts)),
            (&LOCAL,   dc,         8000,      0,   true, Ok(Eager)),
            (&LOCAL,   dc,         8001,      0,   true, Ok(Medium)),
            (&LOCAL,   dc,         65_537,    0,   true, Ok(LongCts)),
            (&LOCAL,   None,       8,         0,   true, Err(AwaitHandshake)),
            (&LOCAL,   baseline,   8,         0,   true, Err(Unsupported("delivery complete"))),
        ];
        for (local, peer, length, runt_budget, delivery_complete, expected) in table {
            let query = MessageQuery {
                length,
                eager_capacity: 8000,
                runt_budget,
                delivery_complete,
                inject: false,
                tagged: false,
            };
            assert_eq!(
                message(local, peer.as_ref(), &query),
                expected,
                "{query:?} to {peer:?}"
            );
            let inject = MessageQuery {
                inject: true,
                ..query
            };
            assert_eq!(message(local, peer.as_ref(), &inject), Ok(Eager));
        }
    }

    #[test]
    fn only_zero_copy_receivers_get_headerless_messages() {
        let queue_pair = (Qpn(9), Qkey(8));
        let receiver = PeerFeatures {
            extra: ExtraFeatures::RDMA_READ,
            device_version: None,
            user_recv_qp: Some(queue_pair),
            peer_to_peer: true,
        };
        let query = |length, tagged| MessageQuery {
            length,
            eager_capacity: 8000,
            runt_budget: 0,
            delivery_complete: false,
            inject: false,
            tagged,
        };
        for length in [0, 8001, 1 << 20] {
            assert_eq!(
                message(&LOCAL, Some(&receiver), &query(length, false)),
                Ok(MessageProtocol::Headerless(queue_pair.0, queue_pair.1))
            );
            let refused = message(&LOCAL, Some(&receiver), &query(length, true));
            assert!(matches!(refused, Err(NoProtocol::Unsupported(_))));
        }
    }

    #[test]
    fn memory_unreachable_by_device_uses_software_protocols() {
        let all = ExtraFeatures::RDMA_READ | ExtraFeatures::RDMA_WRITE;
        let query = |length| WriteQuery {
            length,
            eager_capacity: 8000,
            delivery_complete: false,
            inject: false,
            fits_rdma: FitsRdma::Plain,
        };
        for (peer_to_peer, writes, reads) in [
            (
                true,
                [WriteProtocol::Direct, WriteProtocol::Direct],
                ReadProtocol::Direct,
            ),
            // The peer reads a long write into its memory, or answers that it cannot.
            (
                false,
                [WriteProtocol::Eager, WriteProtocol::LongRead],
                ReadProtocol::LongCts,
            ),
        ] {
            let peer = PeerFeatures {
                peer_to_peer,
                ..peer(all, Some(0xEFA2)).unwrap()
            };
            let chosen = [100, 65_536].map(|length| write(&LOCAL, Some(&peer), &query(length)));
            assert_eq!(chosen, writes.map(Ok));
            assert_eq!(read(&LOCAL, Some(&peer), 65_536, 1000), Ok(reads));
        }
    }

    #[test]
    fn atomics_that_crash_stock_targets_are_refused() {
        let query = AtomicQuery {
            datatype: AtomicDatatype::DOUBLE,
            is_compare: true,
            remote_pieces: 1,
            delivery_complete: false,
        };
        assert_eq!(atomic(None, &query), Ok(()));
        let two_pieces = AtomicQuery {
            remote_pieces: 2,
            ..query
        };
        assert!(matches!(
            atomic(None, &two_pieces),
            Err(NoProtocol::Unsupported(_))
        ));
        let fetch = AtomicQuery {
            is_compare: false,
            ..two_pieces
        };
        assert_eq!(atomic(None, &fetch), Ok(()));
        for datatype in [
            AtomicDatatype::DOUBLE_COMPLEX,
            AtomicDatatype::LONG_DOUBLE,
            AtomicDatatype::LONG_DOUBLE_COMPLEX,
        ] {
            let refused = atomic(None, &AtomicQuery { datatype, ..fetch });
            assert!(matches!(refused, Err(NoProtocol::Unsupported(_))));
        }
    }

    #[test]
    fn table_of_writes() {
        use FitsRdma::*;
        use NoProtocol::*;
        use WriteProtocol::*;
        let baseline = peer(ExtraFeatures::empty(), None);
        let reads = peer(ExtraFeatures::RDMA_READ, Some(0xEFA1));
        let writes = peer(
            ExtraFeatures::RDMA_READ | ExtraFeatures::RDMA_WRITE,
            Some(0xEFA2),
        );
        let unsolicited = peer(
            ExtraFeatures::RDMA_WRITE | ExtraFeatures::UNSOLICITED_WRITE_RECV,
            Some(0xEFA2),
        );
        #[rustfmt::skip]
        let table = [
            // local    peer         length  dc     fits           expected
            (&LOCAL,   None,        100,    false, Plain,         Err(AwaitHandshake)),
            (&LOCAL,   baseline,    0,      false, Plain,         Ok(Eager)),
            (&LOCAL,   baseline,    8000,   false, Plain,         Ok(Eager)),
            (&LOCAL,   baseline,    8001,   false, Plain,         Ok(LongCts)),
            (&LOCAL,   baseline,    8001,   true,  Plain,         Err(Unsupported("delivery complete"))),
            (&LOCAL,   baseline,    65_536, false, Plain,         Ok(LongCts)),
            (&LOCAL,   reads,       65_535, false, Plain,         Ok(LongCts)),
            (&LOCAL,   reads,       65_536, false, Plain,         Ok(LongRead)),
            (&LOCAL,   reads,       65_536, true,  Plain,         Ok(LongRead)),
            (&NO_READ, reads,       65_536, false, Plain,         Ok(LongCts)),
            (&LOCAL,   writes,      1,      false, Plain,         Ok(Direct)),
            (&LOCAL,   writes,      0,      false, Plain,         Ok(Eager)),
            (&LOCAL,   writes,      65_536, true,  Plain,         Ok(Direct)),
            (&LOCAL,   writes,      100,    false, No,            Ok(Eager)),
            (&LOCAL,   writes,      100,    false, WithImmediate, Ok(Eager)),
            (&LOCAL,   unsolicited, 100,    false, WithImmediate, Ok(Direct)),
        ];
        for (local, peer, length, delivery_complete, fits_rdma, expected) in table {
            let query = WriteQuery {
                length,
                eager_capacity: 8000,
                delivery_complete,
                inject: false,
                fits_rdma,
            };
            assert_eq!(
                write(local, peer.as_ref(), &query),
                expected,
                "{query:?} to {peer:?}"
            );
        }
    }

    #[test]
    fn table_of_reads() {
        use ReadProtocol::*;
        let baseline = peer(ExtraFeatures::empty(), None);
        let reads = peer(ExtraFeatures::RDMA_READ, Some(0xEFA1));
        for (local, peer, length, expected) in [
            (&LOCAL, None, 100, Err(NoProtocol::AwaitHandshake)),
            (&LOCAL, baseline, 0, Ok(Short)),
            (&LOCAL, baseline, 999, Ok(Short)),
            (&LOCAL, baseline, 1000, Ok(LongCts)),
            (&LOCAL, reads, 1, Ok(Direct)),
            (&LOCAL, reads, 0, Ok(Short)),
            (&NO_READ, reads, 1, Ok(Short)),
        ] {
            assert_eq!(
                read(local, peer.as_ref(), length, 1000),
                expected,
                "{length} from {peer:?}"
            );
        }
    }

    #[test]
    fn first_generation_devices_read_only_each_other() {
        let local = |part_id| LocalCapabilities { part_id, ..LOCAL };
        let peer = |version| PeerFeatures {
            extra: ExtraFeatures::RDMA_READ,
            device_version: Some(version),
            user_recv_qp: None,
            peer_to_peer: true,
        };
        for (own, others, expected) in [
            (0xEFA0, 0xEFA0, true),
            (0xEFA0, 0xEFA1, false),
            (0xEFA1, 0xEFA0, false),
            (0xEFA1, 0xEFA2, true),
        ] {
            assert_eq!(
                local(own).can_read(&peer(others)),
                expected,
                "{own:#x} and {others:#x}"
            );
        }
    }
}
