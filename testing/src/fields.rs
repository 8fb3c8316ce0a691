//! Numeric fields of packets, by name.

use efa_core::wire::fields::field_of;

/// The value of a packet's numeric field.
///
/// # Panics
/// If the packet has no such field.
pub fn number(packet: &[u8], name: &str) -> u64 {
    let (at, length) = place(packet, name);
    let mut bytes = [0; 8];
    bytes[..length].copy_from_slice(&packet[at..at + length]);
    u64::from_le_bytes(bytes)
}

/// Writes a number, modulo the field's width.
///
/// # Panics
/// If the packet has no such field.
pub fn write(packet: &mut [u8], name: &str, value: u64) {
    let (at, length) = place(packet, name);
    packet[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
}

/// Offset and length of a field, of which only the first eight bytes are used.
fn place(packet: &[u8], name: &str) -> (usize, usize) {
    let place = field_of(packet, name).map(|field| (field.offset, field.bytes.len().min(8)));
    place.unwrap_or_else(|| panic!("no field {name}"))
}
