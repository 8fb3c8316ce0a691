//! The typed parser and the tables of fields are written separately; here they are held together.

use std::collections::{BTreeMap, BTreeSet};

use efa_core::wire::fields::{
    self, Array, FieldDescriptor, Kind, Presence, Value, Width, fields_of,
};
use efa_core::wire::{
    Connid, Header, Packet, PacketType, ParseError, Reason, Repr, ReqOptions, RmaIovs, RtaKind,
};
use proptest::prelude::*;

use crate::parts::{Parts, wire_types};
use crate::strategy::{parts, plausible_packet};

/// The values of a header as the typed parser has them, by the names of the tables.
#[derive(Default)]
struct Typed(BTreeMap<String, u64>);

impl Typed {
    fn of(header: &Header<'_>) -> Typed {
        let mut typed = Typed::default();
        match header {
            Header::Cts(repr) => {
                typed.connid(repr.connid);
                typed.put("send_id", repr.send_id.0);
                typed.put("recv_id", repr.recv_id.0);
                typed.put("recv_length", repr.recv_length);
            }
            Header::CtsData(repr) => {
                typed.connid(repr.connid);
                typed.put("recv_id", repr.recv_id.0);
                typed.put("seg_length", repr.seg_length);
                typed.put("seg_offset", repr.seg_offset);
            }
            Header::ReadRsp(repr) => {
                typed.connid(repr.connid);
                typed.put("recv_id", repr.recv_id.0);
                typed.put("send_id", repr.send_id.0);
                typed.put("seg_length", repr.seg_length);
            }
            Header::Eor(repr) => {
                typed.connid(repr.connid);
                typed.put("send_id", repr.send_id.0);
                typed.put("recv_id", repr.recv_id.0);
            }
            Header::AtomRsp(repr) => {
                typed.connid(repr.connid);
                typed.put("recv_id", repr.recv_id.0);
                typed.put("seg_length", repr.seg_length);
            }
            Header::Handshake(repr) => {
                typed.connid(repr.connid);
                typed.put("nextra_p3", repr.extra_info.as_slice().len() as u32 + 3);
                for (index, word) in repr.extra_info.as_slice().iter().enumerate() {
                    typed.put(&format!("extra_info[{index}]"), word.get());
                }
                if let Some(host_id) = repr.host_id {
                    typed.put("host_id", host_id);
                }
                if let Some(device_version) = repr.device_version {
                    typed.put("device_version", device_version);
                }
                if let Some(qp) = repr.user_recv_qp {
                    typed.put("user_recv_qp.qpn", qp.qpn);
                    typed.put("user_recv_qp.qkey", qp.qkey.0);
                }
                if let Some(p2p_supported) = repr.hmem_p2p {
                    typed.put("hmem_p2p.p2p_supported", p2p_supported);
                }
            }
            Header::Receipt(repr) => {
                typed.connid(repr.connid);
                typed.put("send_id", repr.send_id.0);
                typed.put("msg_id", repr.msg_id.0);
            }
            Header::ReadNack(repr) => {
                typed.connid(repr.connid);
                typed.put("send_id", repr.send_id.0);
                typed.put("recv_id", repr.recv_id.0);
            }
            Header::PeerError(repr) => {
                typed.connid(repr.connid);
                typed.put("op_id", repr.op_id);
                typed.put("ref_kind", repr.ref_kind.0);
                typed.put("prov_errno", repr.prov_errno);
            }
            Header::EagerRtm(repr) => {
                typed.options(&repr.options);
                typed.put("msg_id", repr.msg_id.0);
                typed.tag(repr.tag);
                if let Some(send_id) = repr.receipt {
                    typed.put("send_id", send_id.0);
                }
            }
            Header::MediumRtm(repr) => {
                typed.options(&repr.options);
                typed.put("msg_id", repr.msg_id.0);
                typed.put("msg_length", repr.msg_length);
                typed.put("seg_offset", repr.seg_offset);
                typed.tag(repr.tag);
                if let Some(send_id) = repr.receipt {
                    typed.put("send_id", send_id.0);
                }
            }
            Header::LongctsRtm(repr) => {
                typed.options(&repr.options);
                typed.put("msg_id", repr.msg_id.0);
                typed.put("msg_length", repr.msg_length);
                typed.put("send_id", repr.send_id.0);
                typed.put("credit_request", repr.credit_request);
                typed.tag(repr.tag);
            }
            Header::LongreadRtm(repr) => {
                typed.options(&repr.options);
                typed.put("msg_id", repr.msg_id.0);
                typed.put("msg_length", repr.msg_length);
                typed.put("send_id", repr.send_id.0);
                typed.iovs("read_iov", repr.read_iov);
                typed.tag(repr.tag);
            }
            Header::RuntreadRtm(repr) => {
                typed.options(&repr.options);
                typed.put("msg_id", repr.msg_id.0);
                typed.put("msg_length", repr.msg_length);
                typed.put("send_id", repr.send_id.0);
                typed.put("seg_offset", repr.seg_offset);
                typed.put("runt_length", repr.runt_length);
                typed.iovs("read_iov", repr.read_iov);
                typed.tag(repr.tag);
            }
            Header::RuntctsRtm(repr) => {
                typed.options(&repr.options);
                typed.put("msg_id", repr.msg_id.0);
                typed.put("msg_length", repr.msg_length);
                typed.put("send_id", repr.send_id.0);
                typed.put("credit_request", repr.credit_request);
                typed.put("seg_offset", repr.seg_offset);
                typed.put("runt_length", repr.runt_length);
                typed.tag(repr.tag);
            }
            Header::EagerRtw(repr) => {
                typed.options(&repr.options);
                typed.iovs("rma_iov", repr.rma_iov);
                if let Some(send_id) = repr.receipt {
                    typed.put("send_id", send_id.0);
                }
            }
            Header::LongctsRtw(repr) => {
                typed.options(&repr.options);
                typed.iovs("rma_iov", repr.rma_iov);
                typed.put("msg_length", repr.msg_length);
                typed.put("send_id", repr.send_id.0);
                typed.put("credit_request", repr.credit_request);
            }
            Header::LongreadRtw(repr) => {
                typed.options(&repr.options);
                typed.iovs("rma_iov", repr.rma_iov);
                typed.put("msg_length", repr.msg_length);
                typed.put("send_id", repr.send_id.0);
                typed.iovs("read_iov", repr.read_iov);
            }
            Header::RuntctsRtw(repr) => {
                typed.options(&repr.options);
                typed.iovs("rma_iov", repr.rma_iov);
                typed.put("msg_length", repr.msg_length);
                typed.put("send_id", repr.send_id.0);
                typed.put("credit_request", repr.credit_request);
                typed.put("seg_offset", repr.seg_offset);
                typed.put("runt_length", repr.runt_length);
            }
            Header::RuntreadRtw(repr) => {
                typed.options(&repr.options);
                typed.iovs("rma_iov", repr.rma_iov);
                typed.put("msg_length", repr.msg_length);
                typed.put("send_id", repr.send_id.0);
                typed.put("seg_offset", repr.seg_offset);
                typed.put("runt_length", repr.runt_length);
                typed.iovs("read_iov", repr.read_iov);
            }
            Header::Rtr(repr) => {
                typed.options(&repr.options);
                typed.iovs("rma_iov", repr.rma_iov);
                typed.put("msg_length", repr.msg_length);
                typed.put("recv_id", repr.recv_id.0);
                typed.put("recv_length", repr.recv_length);
            }
            Header::ReadRtr(repr) => typed.options(&repr.options),
            Header::Rta(repr) => {
                typed.options(&repr.options);
                typed.put("msg_id", repr.msg_id.0);
                typed.put("atomic_datatype", repr.atomic_datatype.0);
                typed.put("atomic_op", repr.atomic_op.0);
                typed.iovs("rma_iov", repr.rma_iov);
                match repr.kind {
                    RtaKind::Write => {}
                    RtaKind::Fetch(recv_id) | RtaKind::Compare(recv_id) => {
                        typed.put("recv_id", recv_id.0);
                    }
                    RtaKind::DcWrite(send_id) => typed.put("send_id", send_id.0),
                }
            }
        }
        typed
    }

    fn put(&mut self, name: &str, value: impl Into<u64>) {
        let previous = self.0.insert(name.to_owned(), value.into());
        assert_eq!(previous, None, "{name} twice");
    }

    fn connid(&mut self, connid: Option<Connid>) {
        if let Some(connid) = connid {
            self.put("connid", connid.0);
        }
    }

    fn tag(&mut self, tag: Option<u64>) {
        if let Some(tag) = tag {
            self.put("tag", tag);
        }
    }

    fn options(&mut self, options: &ReqOptions) {
        if let Some(header) = options.raw_address {
            self.put("raw_addr.size", header.size());
            self.put("raw_addr.qpn", header.address().qpn.0);
            self.put("raw_addr.connid", header.address().qkey.0);
            // A map of numbers has no place for a GID: its last 8 bytes stand for it.
            let gid = header.address().gid.0;
            let tail = gid.last_chunk().expect("16 bytes");
            self.put("raw_addr.gid", u64::from_be_bytes(*tail));
        }
        if let Some(cq_data) = options.cq_data {
            self.put("cq_data", cq_data);
        }
        self.connid(options.connid);
    }

    fn iovs(&mut self, name: &str, iovs: RmaIovs<'_>) {
        self.put(&format!("{name}_count"), iovs.len() as u64);
        for (index, iov) in iovs.iter().enumerate() {
            self.put(&format!("{name}[{index}].addr"), iov.addr());
            self.put(&format!("{name}[{index}].len"), iov.len());
            self.put(&format!("{name}[{index}].key"), iov.key());
        }
    }
}

/// The same from the walk along the tables.
fn walked(packet: &[u8]) -> BTreeMap<String, u64> {
    let base = ["type", "version", "flags"];
    fields_of(packet)
        .expect("an assigned type")
        .filter(|field| !base.contains(&field.descriptor.name))
        .filter_map(|field| {
            let value = match field.value {
                Value::Unsigned(number) => number,
                Value::Gid(gid) => u64::from_be_bytes(*gid.0.last_chunk().expect("16 bytes")),
                Value::Bytes(_) => return None,
            };
            // The typed parser reads this byte as a truth value.
            let is_truth = field.descriptor.name == "hmem_p2p.p2p_supported";
            Some((
                field.name().to_string(),
                if is_truth {
                    u64::from(value != 0)
                } else {
                    value
                },
            ))
        })
        .collect()
}

fn check(bytes: &[u8]) {
    match Packet::parse(bytes) {
        Ok(packet) => {
            assert_eq!(Typed::of(&packet.header).0, walked(bytes), "{packet:?}");
            let data = fields_of(bytes)
                .into_iter()
                .flatten()
                .find(|field| matches!(field.descriptor.kind, Kind::Data | Kind::Unknown));
            assert_eq!(packet.payload, data.map_or(&[][..], |field| field.bytes));
            let has_data = data.is_some_and(|field| field.descriptor.kind == Kind::Data);
            assert!(!has_data || packet.base.packet_type.carries_data());
        }
        Err(error) => check_error(bytes, &error),
    }
}

/// An error names a field that the tables have in that place.
fn check_error(bytes: &[u8], error: &ParseError) {
    let Some(mut walk) = fields_of(bytes) else {
        assert_eq!(error.field, "type");
        return;
    };
    let here = walk
        .by_ref()
        .find(|field| field.descriptor.name == error.field && field.offset == error.offset);
    if let Reason::Truncated { needed, available } = error.reason {
        walk.by_ref().for_each(drop);
        let missing = walk.missing().expect("a field is missing");
        assert_eq!(here, None);
        assert_eq!(
            (
                missing.descriptor.name,
                missing.offset,
                missing.needed,
                missing.available
            ),
            (error.field, error.offset, needed, available)
        );
    } else {
        assert!(here.is_some(), "{error}");
    }
}

#[test]
fn on_full_packets_and_all_their_truncations() {
    for packet_type in wire_types() {
        let parts = Parts::full(packet_type);
        let packet = parts.header().to_packet(&parts.payload);
        for length in 1..=packet.len() {
            check(&packet[..length]);
        }
    }
}

#[test]
fn the_tables_are_consistent() {
    for packet_type in PacketType::ALL {
        let layout: Vec<_> = fields::layout(*packet_type).collect();
        let names: BTreeSet<_> = layout.iter().map(|field| field.descriptor.name).collect();
        assert_eq!(names.len(), layout.len(), "{packet_type} has a name twice");
        let base: Vec<_> = layout[..3]
            .iter()
            .map(|f| (f.descriptor.name, f.offset))
            .collect();
        assert_eq!(
            base,
            [("type", Some(0)), ("version", Some(1)), ("flags", Some(2))]
        );
        for field in &layout {
            let FieldDescriptor {
                name,
                width,
                description,
                ..
            } = *field.descriptor;
            assert!(!description.is_empty(), "{packet_type}.{name}");
            assert_eq!(fields::find(*packet_type, name), Some(field.descriptor));
            let is_last = name == layout[layout.len() - 1].descriptor.name;
            assert_eq!(width == Width::Rest, is_last, "{packet_type}.{name}");
            if let Some(Array::RmaIov | Array::ReadIov) = field.array {
                assert_eq!(width, Width::Fixed(8));
            }
        }
        for (field, next) in layout.iter().zip(&layout[1..]) {
            if let Presence::IfFlagElseNext(_) = field.descriptor.presence {
                assert_eq!(field.descriptor.width, next.descriptor.width);
                assert_eq!(field.offset, next.offset);
                assert_eq!(next.descriptor.kind, Kind::Padding);
            }
        }
        let carries_data = layout
            .last()
            .is_some_and(|f| f.descriptor.kind == Kind::Data);
        assert_eq!(carries_data, packet_type.carries_data(), "{packet_type}");
    }
}

#[test]
fn fixed_offsets_are_where_the_walk_finds_the_fields() {
    for packet_type in wire_types() {
        for connid in [None, Some(7)] {
            let parts = Parts {
                connid,
                ..Parts::full(packet_type)
            };
            let packet = parts.header().to_packet(&parts.payload);
            for field in fields_of(&packet).expect("an assigned type") {
                let line = fields::layout(packet_type)
                    .find(|line| line.descriptor == field.descriptor)
                    .expect("every field is in the layout");
                let first = field.index.is_none_or(|index| index == 0);
                if let (true, Some(offset)) = (first, line.offset) {
                    assert_eq!(offset, field.offset, "{packet_type} {}", field.name());
                }
            }
        }
    }
}

/// Offsets of mandatory fields as stock libfabric 1.17.0 to 2.6.0 have them in their structures.
#[test]
fn mandatory_offsets_are_those_of_stock_libfabric() {
    use PacketType as T;
    let offset = |packet_type, name: &str| {
        fields::layout(packet_type)
            .find(|field| field.descriptor.name == name)
            .unwrap_or_else(|| panic!("{packet_type} has no {name}"))
            .offset
    };
    for (packet_type, name, expected) in [
        (T::Cts, "send_id", 8),
        (T::Cts, "recv_id", 12),
        (T::Cts, "recv_length", 16),
        (T::CtsData, "seg_offset", 16),
        (T::CtsData, "connid", 24),
        (T::ReadRsp, "recv_id", 8),
        (T::ReadRsp, "send_id", 12),
        (T::ReadRsp, "seg_length", 16),
        (T::Eor, "connid", 12),
        (T::AtomRsp, "recv_id", 12),
        (T::Receipt, "msg_id", 8),
        (T::EagerTagRtm, "tag", 8),
        (T::MediumTagRtm, "tag", 24),
        (T::LongctsTagRtm, "tag", 24),
        (T::LongreadTagRtm, "read_iov_count", 20),
        (T::LongreadTagRtm, "tag", 24),
        (T::DcEagerTagRtm, "tag", 16),
        (T::DcMediumTagRtm, "msg_length", 16),
        (T::DcMediumTagRtm, "tag", 32),
        (T::RuntreadTagRtm, "runt_length", 32),
        (T::RuntreadTagRtm, "tag", 40),
        (T::RuntctsTagRtm, "tag", 40),
        (T::EagerRtw, "rma_iov.addr", 8),
        (T::DcEagerRtw, "rma_iov.addr", 16),
        (T::LongctsRtw, "rma_iov.addr", 24),
        (T::LongreadRtw, "rma_iov.addr", 24),
        (T::ShortRtr, "recv_length", 20),
        (T::LongctsRtr, "rma_iov.addr", 24),
        (T::FetchRta, "recv_id", 20),
        (T::DcWriteRta, "send_id", 20),
        (T::WriteRta, "rma_iov.addr", 24),
        (T::RuntctsRtw, "rma_iov.addr", 40),
        (T::RuntreadRtw, "rma_iov.addr", 40),
    ] {
        assert_eq!(
            offset(packet_type, name),
            Some(expected),
            "{packet_type}.{name}"
        );
    }
}

proptest! {
    #[test]
    fn on_any_header(parts in parts()) {
        check(&parts.header().to_packet(&parts.payload));
    }

    #[test]
    fn on_bytes_that_look_like_a_packet(bytes in plausible_packet()) {
        check(&bytes);
    }
}
