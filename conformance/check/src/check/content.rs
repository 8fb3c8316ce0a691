//! The content of a packet, by which copies and retransmissions are recognised.

use std::hash::{BuildHasher as _, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use efa_wire::fields::fields_of;
use efa_wire::{Packet, PacketType, ReqFlags};
use foldhash::fast::FixedState;

use crate::capture::CapturedPacket;

/// The maximum number of stored bytes of an unparsable packet.
const KEPT: usize = 512;
/// The offsets of the flags in the base header.
const FLAGS: std::ops::Range<usize> = 2..4;

/// The longest header that is stored in place: that of most packets after the handshakes.
const SHORT: usize = 62;

/// The bytes of a header. Long ones are shared between copies of the content.
#[derive(Clone, Debug)]
enum HeaderBytes {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(Arc<[u8]>),
}

impl Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            HeaderBytes::Short { length, bytes } => &bytes[..usize::from(*length)],
            HeaderBytes::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for HeaderBytes {
    fn from(header: &[u8]) -> HeaderBytes {
        if header.len() > SHORT {
            return HeaderBytes::Long(header.into());
        }
        let mut bytes = [0; SHORT];
        bytes[..header.len()].copy_from_slice(header);
        let length = header.len() as u8;
        HeaderBytes::Short { length, bytes }
    }
}

impl PartialEq for HeaderBytes {
    fn eq(&self, other: &HeaderBytes) -> bool {
        **self == **other
    }
}

impl Eq for HeaderBytes {}

impl Hash for HeaderBytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

/// A packet's header and a digest of its data.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Content {
    header: HeaderBytes,
    /// The length of the data in bytes.
    length: usize,
    /// `None` if a snap length truncated the data.
    digest: Option<u64>,
}

impl Content {
    /// The content of a packet, with its `parsed` form if there is one. If it equals `known`, the
    /// two share a long header.
    pub(super) fn of(
        frame: &CapturedPacket,
        parsed: Option<&Packet>,
        known: Option<&Content>,
    ) -> Content {
        let packet = &frame.payload;
        let header = parsed.map_or(packet.len().min(KEPT), |parsed| parsed.payload.offset);
        let (header, data) = packet.split_at(header);
        let digest = || {
            let mut hasher = FixedState::default().build_hasher();
            hasher.write(data);
            hasher.finish()
        };
        let known = known.map(|known| &known.header);
        let header = match known {
            Some(HeaderBytes::Long(known)) if **known == *header => {
                HeaderBytes::Long(known.clone())
            }
            _ => header.into(),
        };
        Content {
            header,
            length: data.len(),
            digest: (frame.cut_off == 0).then(digest),
        }
    }

    /// Whether two contents cannot be of the same packet. Only the lengths of truncated data are
    /// compared.
    pub(super) fn differs_from(&self, other: &Content) -> bool {
        let digests = self.digest.zip(other.digest);
        self.header != other.header
            || self.length != other.length
            || digests.is_some_and(|(one, other)| one != other)
    }

    /// A digest of the whole content.
    pub(super) fn identity(&self) -> u64 {
        FixedState::default().hash_one(self)
    }

    /// The bytes of the header.
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    /// The length of header and data in bytes.
    pub(super) fn packet_length(&self) -> usize {
        self.header.len() + self.length
    }

    /// The content without the headers that identify the sender. A sender that repeats a packet may
    /// have learned meanwhile that the peer has its raw address, and then sends its connection id
    /// instead.
    pub(super) fn without_sender(&self) -> Content {
        let mut header = Vec::with_capacity(self.header.len());
        let mut known_to = 0;
        for field in fields_of(&self.header).into_iter().flatten() {
            let name = field.descriptor.name;
            known_to = field.range().end;
            if name != "connid" && !name.starts_with("raw_addr.") {
                header.extend_from_slice(field.bytes);
            }
        }
        header.extend_from_slice(self.header.get(known_to..).unwrap_or_default());
        let packet_type = PacketType::peek(&self.header);
        let mut of_sender = ReqFlags::CONNID_HDR;
        if packet_type.is_some_and(PacketType::is_req) {
            of_sender |= ReqFlags::RAW_ADDR_HDR;
        }
        if let Some(flags) = header.get_mut(FLAGS) {
            for (byte, mask) in flags.iter_mut().zip(of_sender.bits().to_le_bytes()) {
                *byte &= !mask;
            }
        }
        Content {
            header: header[..].into(),
            ..*self
        }
    }
}
