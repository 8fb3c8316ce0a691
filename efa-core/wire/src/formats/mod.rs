//! Every format: its declaration, followed by packets as literal bytes.
//!
//! Lengths and offsets that describe a whole message or write (`msg_length`, `seg_offset`,
//! `runt_length`) are the sender's claims: parsing does not compare them with each other, with the
//! iovs or with the payload.
//!
//! Most formats of packets that are not requests have a word that holds the sender's connid if the
//! flag CONNID_HDR is set, and is padding otherwise (`multiuse` in the spec's tables). Here it is
//! `connid: Option<Connid>`, and the flag follows from it.

mod cts;
mod eager;
mod handshake;
mod long;
mod medium;
mod notice;
mod of_types;
mod response;
mod rta;
mod rtr;
mod rtw;
mod runt;
mod unsent;

pub use cts::{Cts, CtsData};
pub use eager::EagerRtm;
pub use handshake::{Handshake, UserRecvQp};
pub use long::{LongctsRtm, LongreadRtm};
pub use medium::MediumRtm;
pub(crate) use notice::PEER_ERROR_FORMS;
pub use notice::{Eor, PeerError, ReadNack, Receipt};
pub use response::{AtomRsp, ReadRsp};
pub use rta::{Rta, RtaKind};
pub use rtr::{Rtr, RtrKind};
pub use rtw::{EagerRtw, LongctsRtw, LongreadRtw};
pub use runt::RuntreadRtm;
pub(crate) use unsent::{ReadRtr, RuntctsRtm, RuntctsRtw, RuntreadRtw};

/// All literals of the formats. A type without any fails a test of [`literal`](super::literal).
#[cfg(test)]
pub(crate) fn literals() -> Vec<super::literal::Literal> {
    [
        cts::literals(),
        eager::literals(),
        handshake::literals(),
        long::literals(),
        medium::literals(),
        notice::literals(),
        response::literals(),
        rta::literals(),
        rtr::literals(),
        rtw::literals(),
        runt::literals(),
        unsent::literals(),
    ]
    .concat()
}
