//! Packets made along the tables of fields: of any type, with any of the optional parts.

use efa_wire::fields::{Array, FieldKind, Width, forms, sections};
use efa_wire::{Family, PacketType};

/// Every type that has a struct: a packet of another one is refused, whatever it consists of.
pub(crate) fn typed() -> impl Iterator<Item = PacketType> {
    let all = PacketType::ALL.iter().copied();
    all.filter(|packet_type| packet_type.has_header())
}

/// The parts of a packet. Equal recipes make equal packets.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) packet_type: PacketType,
    /// The flags without those that follow from the type.
    pub(crate) flags: u16,
    /// Entries of each array.
    pub(crate) entries: usize,
    /// The `size` of a raw address header: at least 32.
    pub(crate) raw_address_size: usize,
    /// The seed of the fields' values.
    pub(crate) seed: u8,
    pub(crate) data: Vec<u8>,
}

impl Recipe {
    /// A recipe with every optional part.
    pub(crate) fn full(packet_type: PacketType) -> Recipe {
        Recipe {
            packet_type,
            flags: match packet_type {
                PacketType::Handshake => 0x800f,
                packet_type if packet_type.is_req() => 0x8003,
                _ => 0x8000,
            },
            entries: 2,
            raw_address_size: 36,
            seed: 1,
            data: b"payload".to_vec(),
        }
        .of_right_length()
    }

    /// The recipe without data if all packets of the type have the same length.
    pub(crate) fn of_right_length(mut self) -> Recipe {
        if !forms(self.packet_type).is_empty() {
            self.data.clear();
        }
        self
    }

    /// A recipe without optional parts.
    pub(crate) fn bare(packet_type: PacketType) -> Recipe {
        Recipe {
            flags: 0,
            entries: 0,
            data: Vec::new(),
            ..Recipe::full(packet_type)
        }
    }

    /// The flags that stock libfabric sets by type alone.
    fn implied_flags(&self) -> u16 {
        match self.packet_type.family() {
            Family::Rtm if self.packet_type.is_tagged() => 0x0c,
            Family::Rtm => 0x04,
            Family::Rta => 0x20,
            _ => 0,
        }
    }

    /// The packet, with zeroes as padding. No two fields have the same value.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let flags = self.flags | self.implied_flags();
        let mut packet = Vec::new();
        let mut value = self.seed;
        for section in sections(self.packet_type) {
            let rounds = if section.array.is_some() {
                self.entries
            } else {
                1
            };
            for _ in 0..rounds {
                for field in section.fields {
                    if !field.presence.holds(self.packet_type, flags) {
                        continue;
                    }
                    let mut number = |number: u64, width: usize| {
                        packet.extend_from_slice(&number.to_le_bytes()[..width]);
                    };
                    match (field.width, field.kind) {
                        (_, FieldKind::PacketType) => number(self.packet_type.code().into(), 1),
                        (_, FieldKind::Flags) => number(flags.into(), 2),
                        (_, FieldKind::Count(Array::ExtraInfo)) => {
                            number(self.entries as u64 + 3, 4)
                        }
                        (_, FieldKind::Count(_)) => number(self.entries as u64, 4),
                        (_, FieldKind::RawAddressSize) => number(self.raw_address_size as u64, 4),
                        (Width::RawAddressSurplus, _) => {
                            packet.resize(packet.len() + self.raw_address_size - 32, 0);
                        }
                        (Width::Rest, _) => packet.extend_from_slice(&self.data),
                        (Width::Fixed(width), FieldKind::Padding) => {
                            packet.resize(packet.len() + width, 0);
                        }
                        (Width::Fixed(1), _) if field.name == "version" => number(4, 1),
                        // A truth value.
                        (Width::Fixed(1), _) => number(u64::from(self.seed) & 1, 1),
                        (Width::Fixed(width), _) if field.name == "seg_length" => {
                            number(self.data.len() as u64, width);
                        }
                        (Width::Fixed(width), _) => {
                            for _ in 0..width {
                                value = value.wrapping_mul(5).wrapping_add(3);
                                packet.push(value);
                            }
                        }
                    }
                }
            }
        }
        packet
    }
}
