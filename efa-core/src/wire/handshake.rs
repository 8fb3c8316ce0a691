//! HANDSHAKE: an endpoint's capabilities (spec section 2.1).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Cursor, Repr, Writer, sealed};
use super::error::{ParseError, Reason};
use super::flags::HandshakeFlags;
use super::ids::Connid;
use super::iov::ExtraInfo;
use super::packet_type::PacketType;
use crate::address::Qkey;

/// HANDSHAKE (spec table 2.2).
///
/// Each optional field takes 8 bytes, in this order, and no space if it is absent. What a later
/// version of the protocol adds behind them is kept as the packet's payload.
///
/// | offset | size | field |
/// |---|---|---|
/// | 4 | 4 | nextra_p3: number of capability words plus 3 |
/// | 8 | 8 each | extra_info |
/// | then | 4 + 4 | connid and padding |
/// | then | 8 | host_id |
/// | then | 4 + 4 | device_version and reserved |
/// | then | 4 + 4 | QPN and Q-key of the user receive QP |
/// | then | 1 + 7 | p2p_supported and reserved |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handshake {
    /// The capabilities.
    pub extra_info: ExtraInfo,
    /// The sender's connection id.
    pub connid: Option<Connid>,
    /// Identifies the sender's host.
    pub host_id: Option<u64>,
    /// The sender's device: its PCI part id, such as 0xEFA1. The spec calls it optional, but
    /// receivers of libfabric 1.20.0 and later read it without looking whether it is there: send it.
    pub device_version: Option<u32>,
    /// A second queue pair that takes messages without headers. Stock libfabric 1.22.0 to 2.5.1; the
    /// spec does not describe it.
    pub user_recv_qp: Option<UserRecvQp>,
    /// Whether the device can reach all of the sender's buffers, those in accelerators included. Only
    /// on the development branch after libfabric 2.6.0; the spec does not describe it.
    pub hmem_p2p: Option<bool>,
    /// Flags beyond those that say which fields are present.
    pub flags: HandshakeFlags,
}

/// The queue pair that [`Handshake::user_recv_qp`] names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UserRecvQp {
    /// Queue pair number; 32 bits in this field.
    pub qpn: u32,
    /// Its Q-key.
    pub qkey: Qkey,
}

/// A value and four bytes that mean nothing.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPadded {
    value: U32,
    padding: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawUserRecvQp {
    qpn: U32,
    qkey: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHmemP2p {
    p2p_supported: u8,
    reserved: [u8; 7],
}

impl Handshake {
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Handshake, ParseError> {
        let offset = cursor.offset();
        let nextra_p3 = cursor.take::<U32>()?.get();
        let Some(count) = nextra_p3.checked_sub(3) else {
            let reason = Reason::NextraBelowThree { value: nextra_p3 };
            return Err(cursor.error("nextra_p3", offset, reason));
        };
        if count as usize > ExtraInfo::MAX {
            return Err(cursor.error("nextra_p3", offset, Reason::too_many_words(count)));
        }
        let words: &[U64] = cursor.take_slice(count as usize)?;
        // There is nothing to refuse: the count was checked before the words were read.
        let extra_info = ExtraInfo::from_wire(words).unwrap_or_default();

        let flags = HandshakeFlags::from_bits_retain(cursor.flags());
        let connid = if flags.contains(HandshakeFlags::CONNID_HDR) {
            let raw: &RawPadded = cursor.take()?;
            Some(Connid(raw.value.get()))
        } else {
            None
        };
        let host_id = if flags.contains(HandshakeFlags::HOST_ID_HDR) {
            Some(cursor.take::<U64>()?.get())
        } else {
            None
        };
        let device_version = if flags.contains(HandshakeFlags::DEVICE_VERSION_HDR) {
            let raw: &RawPadded = cursor.take()?;
            Some(raw.value.get())
        } else {
            None
        };
        let user_recv_qp = if flags.contains(HandshakeFlags::USER_RECV_QP_HDR) {
            let raw: &RawUserRecvQp = cursor.take()?;
            Some(UserRecvQp {
                qpn: raw.qpn.get(),
                qkey: Qkey(raw.qkey.get()),
            })
        } else {
            None
        };
        let hmem_p2p = if flags.contains(HandshakeFlags::HMEM_P2P_HDR) {
            let raw: &RawHmemP2p = cursor.take()?;
            Some(raw.p2p_supported != 0)
        } else {
            None
        };
        Ok(Handshake {
            extra_info,
            connid,
            host_id,
            device_version,
            user_recv_qp,
            hmem_p2p,
            flags: flags.difference(HandshakeFlags::OPTIONAL_FIELDS),
        })
    }
}

impl Repr for Handshake {
    fn packet_type(&self) -> PacketType {
        PacketType::Handshake
    }

    fn wire_flags(&self) -> u16 {
        let mut flags = self.flags;
        flags.set(HandshakeFlags::CONNID_HDR, self.connid.is_some());
        flags.set(HandshakeFlags::HOST_ID_HDR, self.host_id.is_some());
        flags.set(
            HandshakeFlags::DEVICE_VERSION_HDR,
            self.device_version.is_some(),
        );
        flags.set(
            HandshakeFlags::USER_RECV_QP_HDR,
            self.user_recv_qp.is_some(),
        );
        flags.set(HandshakeFlags::HMEM_P2P_HDR, self.hmem_p2p.is_some());
        flags.bits()
    }

    fn header_len(&self) -> usize {
        let optional_fields = usize::from(self.connid.is_some())
            + usize::from(self.host_id.is_some())
            + usize::from(self.device_version.is_some())
            + usize::from(self.user_recv_qp.is_some())
            + usize::from(self.hmem_p2p.is_some());
        8 + self.extra_info.wire_len() + 8 * optional_fields
    }
}

impl sealed::Fields for Handshake {
    fn write_fields(&self, writer: &mut Writer<'_>) {
        writer.put(&U32::new(self.extra_info.nextra_p3()));
        let kept = self.extra_info.kept();
        writer.put(kept);
        writer.put_zeroes(self.extra_info.wire_len() - size_of_val(kept));
        if let Some(connid) = self.connid {
            writer.put(&RawPadded {
                value: U32::new(connid.0),
                padding: U32::ZERO,
            });
        }
        if let Some(host_id) = self.host_id {
            writer.put(&U64::new(host_id));
        }
        if let Some(device_version) = self.device_version {
            writer.put(&RawPadded {
                value: U32::new(device_version),
                padding: U32::ZERO,
            });
        }
        if let Some(qp) = self.user_recv_qp {
            writer.put(&RawUserRecvQp {
                qpn: U32::new(qp.qpn),
                qkey: U32::new(qp.qkey.0),
            });
        }
        if let Some(p2p_supported) = self.hmem_p2p {
            writer.put(&RawHmemP2p {
                p2p_supported: p2p_supported.into(),
                reserved: [0; 7],
            });
        }
    }
}
