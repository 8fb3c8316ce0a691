//! Parts of raw addresses in packet fields.

use efa_core::address::{Gid, RawAddress};
use efa_core::wire::fields::Value;

use super::policy::AddressPart;

/// A part of a raw address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Address {
    Gid(Gid),
    Number(u64),
}

impl Address {
    pub(super) fn of(part: AddressPart, address: RawAddress) -> Self {
        match part {
            AddressPart::Gid => Address::Gid(address.gid),
            AddressPart::Qpn => Address::Number(address.qpn.0.into()),
            AddressPart::Connid => Address::Number(address.qkey.0.into()),
        }
    }

    pub(super) fn as_value(self) -> Value<'static> {
        match self {
            Address::Gid(gid) => Value::Gid(gid),
            Address::Number(number) => Value::Unsigned(number),
        }
    }

    pub(super) fn write(self, place: &mut [u8]) {
        match self {
            Address::Gid(gid) => place.copy_from_slice(&gid.0),
            Address::Number(number) => {
                let width = place.len();
                place.copy_from_slice(&number.to_le_bytes()[..width]);
            }
        }
    }
}
