//! Properties of packet types that follow from the tables of their formats.

use crate::address::RawAddress;
use crate::codec::RawAddressHeader;
use crate::descriptor::{FieldKind, Section, Width};
use crate::message::Transfer;
use crate::packet_type::{Family, PacketType};

impl PacketType {
    /// How the data of a message or write travels whose requests have this type. `None` for all
    /// other types, and for those that no release sends.
    pub const fn transfer(self) -> Option<Transfer> {
        if !self.has_header() || !matches!(self.family(), Family::Rtm | Family::Rtw) {
            return None;
        }
        let is_segment = self.has_field("seg_offset");
        Some(match (is_segment, self.has_field("read_iov_count")) {
            (false, false) if self.has_field("credit_request") => Transfer::LongCts,
            (false, false) => Transfer::Eager,
            (true, false) => Transfer::Medium,
            (false, true) => Transfer::LongRead,
            (true, true) => Transfer::RuntRead,
        })
    }

    /// Bytes of the header of a packet of this type with these flags of the base header and with
    /// `entries` entries in each array. A raw address has the size that stock libfabric gives it.
    pub const fn header_len(self, flags: u16, entries: usize) -> usize {
        let sections = self.sections();
        let (mut bytes, mut section) = (0, 0);
        while section < sections.len() {
            let Section { array, fields } = *sections[section];
            let times = if array.is_some() { entries } else { 1 };
            let mut field = 0;
            while field < fields.len() {
                if fields[field].presence.holds(self, flags) {
                    bytes += times * of_headers(fields[field].width);
                }
                field += 1;
            }
            section += 1;
        }
        bytes
    }

    /// Returns whether packets of this type may have the field of this name.
    const fn has_field(self, name: &str) -> bool {
        let sections = self.sections();
        let mut section = 0;
        while section < sections.len() {
            let fields = sections[section].fields;
            let mut field = 0;
            while field < fields.len() {
                if fields[field].presence.is_of(self) && is_same(fields[field].name, name) {
                    return true;
                }
                field += 1;
            }
            section += 1;
        }
        false
    }

    /// Returns whether application data may follow the headers.
    ///
    /// Packets of the other types end with their headers. Neither stock receivers nor
    /// [`Packet::parse`](crate::Packet::parse) enforce that: further bytes are kept as the payload.
    pub const fn carries_data(self) -> bool {
        let sections = self.sections();
        match sections[sections.len() - 1].fields {
            [last, ..] => matches!(last.kind, FieldKind::Data),
            [] => false,
        }
    }
}

/// Bytes of a field in a header whose raw address has the size that stock libfabric gives it.
const fn of_headers(width: Width) -> usize {
    match width {
        Width::Fixed(width) => width,
        Width::RawAddressSurplus => RawAddressHeader::STOCK_SIZE as usize - RawAddress::LEN,
        Width::Rest => 0,
    }
}

/// `==` for constants.
const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut same = a.len() == b.len();
    let mut at = 0;
    while same && at < a.len() {
        same = a[at] == b[at];
        at += 1;
    }
    same
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Gid, Qkey, Qpn};
    use crate::codec::{Repr, ReqOptions, RmaIov, RmaIovs};
    use crate::flags::{ReqFlags, UniversalFlags};
    use crate::formats::{AtomRsp, CtsData, LongctsRtw};
    use crate::ids::Connid;

    #[test]
    fn header_lengths_are_those_of_headers() {
        let connid = Some(Connid(1));
        let data = CtsData {
            connid,
            ..CtsData::default()
        };
        let flags = UniversalFlags::CONNID_HDR.bits();
        assert_eq!(PacketType::CtsData.header_len(flags, 0), data.header_len());
        let response = AtomRsp {
            connid,
            ..AtomRsp::default()
        };
        // The connection id takes the place of padding.
        for flags in [0, flags] {
            let length = PacketType::AtomRsp.header_len(flags, 0);
            assert_eq!(length, response.header_len());
        }
        let (gid, qpn, qkey) = (Gid([1; 16]), Qpn(2), Qkey(3));
        let address = RawAddress { gid, qpn, qkey };
        let write = LongctsRtw {
            rma_iov: RmaIovs::new(&[RmaIov::NONE; RmaIovs::MAX]).unwrap(),
            options: ReqOptions {
                raw_address: Some(RawAddressHeader::new(address)),
                cq_data: Some(4),
                ..ReqOptions::default()
            },
            ..LongctsRtw::default()
        };
        let flags = (ReqFlags::RAW_ADDR_HDR | ReqFlags::CQ_DATA_HDR).bits();
        let length = PacketType::LongctsRtw.header_len(flags, RmaIovs::MAX);
        assert_eq!(length, write.header_len());
        assert_eq!(length, 24 + 4 * 24 + 40 + 8);
    }
}
