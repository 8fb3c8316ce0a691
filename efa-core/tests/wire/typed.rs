//! The values of a typed header by the names of the field tables, written out by hand: what the walk
//! along the tables has to find.

use std::collections::BTreeMap;

use efa_core::wire::{Connid, Header, ReqOptions, RmaIovs, RtaKind};

/// The values of a header as the typed parser has them, by the names of the tables.
#[derive(Default)]
pub(crate) struct Typed(pub(crate) BTreeMap<String, u64>);

impl Typed {
    pub(crate) fn of(header: &Header) -> Typed {
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
                typed.put("nextra_p3", repr.extra_info.nextra_p3());
                for (index, word) in repr.extra_info.words().enumerate() {
                    typed.put(&format!("extra_info[{index}]"), word);
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

    fn iovs(&mut self, name: &str, iovs: RmaIovs) {
        self.put(&format!("{name}_count"), iovs.len() as u64);
        for (index, iov) in iovs.iter().enumerate() {
            self.put(&format!("{name}[{index}].addr"), iov.addr());
            self.put(&format!("{name}[{index}].len"), iov.len());
            self.put(&format!("{name}[{index}].key"), iov.key());
        }
    }
}
