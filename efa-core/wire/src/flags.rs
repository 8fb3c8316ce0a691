//! The flag bits of the base header and the capability bits of the handshake.
//!
//! Unknown bits are kept (`from_bits_retain`): a later version of the protocol may use them.

use super::packet_type::PacketType;

bitflags::bitflags! {
    /// The flags that every packet type may carry (spec table 1.4). Types without flags of their
    /// own use just these.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct UniversalFlags: u16 {
        /// The sender's connection id is in the header.
        const CONNID_HDR = 0x8000;
        const _ = !0;
    }

    /// Flags of request packets (spec table 3.1).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct ReqFlags: u16 {
        /// The optional raw address header is present.
        const RAW_ADDR_HDR = 0x1;
        /// The optional CQ data header is present.
        const CQ_DATA_HDR = 0x2;
        /// Two-sided communication. Stock libfabric sets it on every RTM, tagged ones included, and
        /// 1.11.0 relies on it.
        const MSG = 0x4;
        /// Tagged two-sided communication.
        const TAGGED = 0x8;
        /// Emulated read or write. The spec defines it, stock libfabric never sets it.
        const RMA = 0x10;
        /// Emulated atomic. Stock libfabric sets it on every RTA, and 1.11.0 relies on it.
        const ATOMIC = 0x20;
        /// A LONGCTS RTM that answers READ_NACK and repeats the message id of the refused request.
        /// Stock libfabric since 1.20.0; the spec does not list it.
        const READ_NACK = 0x2000;
        /// The optional connid header is present.
        const CONNID_HDR = 0x8000;
        const _ = !0;
    }

    /// Flags of CTS (spec section 3.2, below table 3.6).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct CtsFlags: u16 {
        /// The window belongs to an emulated long-CTS read. Only libfabric 1.11.0 depends on it.
        const EMULATED_READ = 0x80;
        /// The sender's connection id is in the header.
        const CONNID_HDR = 0x8000;
        const _ = !0;
    }

    /// Flags of HANDSHAKE (spec table 2.3): each announces an optional field, in the order of the
    /// packet connid, host id, device version, user receive QP, HMEM p2p.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct HandshakeFlags: u16 {
        /// The host id follows.
        const HOST_ID_HDR = 0x1;
        /// The device version follows.
        const DEVICE_VERSION_HDR = 0x2;
        /// A second queue pair for headerless messages follows. Stock libfabric 1.22.0 to 2.5.1;
        /// the spec does not list it.
        const USER_RECV_QP_HDR = 0x4;
        /// Whether the device can reach the peer's accelerator memory follows. Since libfabric
        /// 2.7.0 and in patch releases of 2.6.
        const HMEM_P2P_HDR = 0x8;
        /// The sender's connection id is the first optional field.
        const CONNID_HDR = 0x8000;
        const _ = !0;
    }

    /// The first word of `extra_info` in HANDSHAKE: extra features and requests (spec table 2.1).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct ExtraFeatures: u64 {
        /// Feature 0: RDMA read, and with it the long-read subprotocols (spec section 4.1).
        const RDMA_READ = 1 << 0;
        /// Feature 1: delivery complete (spec section 4.2).
        const DELIVERY_COMPLETE = 1 << 1;
        /// Request 2: keep the length of packet headers constant (spec section 4.3).
        const CONSTANT_HEADER_LENGTH = 1 << 2;
        /// Request 3: put the connection id into packet headers (spec section 4.4).
        const CONNID_HEADER = 1 << 3;
        /// Feature 4: runting read (spec section 4.5).
        const RUNTING_READ = 1 << 4;
        /// Feature 5: RDMA write (spec section 4.6).
        const RDMA_WRITE = 1 << 5;
        /// Feature 6: READ_NACK (spec section 4.7).
        const READ_NACK = 1 << 6;
        /// Request 7: send without headers to a second queue pair. Stock libfabric since 1.22.0;
        /// the spec does not list it.
        const USER_RECV_QP = 1 << 7;
        /// Feature 8: an RDMA write with immediate takes no receive. Stock libfabric since 2.1.0;
        /// the spec does not list it.
        const UNSOLICITED_WRITE_RECV = 1 << 8;
        /// Feature 9: PEER_ERROR. Stock libfabric since 2.7.0; the spec does not list it.
        const PEER_ERROR = 1 << 9;
        const _ = !0;
    }
}

impl ReqFlags {
    /// The bits that announce optional headers.
    pub const OPTIONAL_HEADERS: ReqFlags = ReqFlags::RAW_ADDR_HDR
        .union(ReqFlags::CQ_DATA_HDR)
        .union(ReqFlags::CONNID_HDR);
}

impl HandshakeFlags {
    /// The bits that announce optional fields.
    pub const OPTIONAL_FIELDS: HandshakeFlags = HandshakeFlags::CONNID_HDR
        .union(HandshakeFlags::HOST_ID_HDR)
        .union(HandshakeFlags::DEVICE_VERSION_HDR)
        .union(HandshakeFlags::USER_RECV_QP_HDR)
        .union(HandshakeFlags::HMEM_P2P_HDR);
}

impl ExtraFeatures {
    /// Returns whether an endpoint that announced these features takes packets of a type.
    pub const fn permit(self, packet_type: PacketType) -> bool {
        let needed = packet_type.needs_any_of();
        needed.is_empty() || self.intersects(needed)
    }
}
