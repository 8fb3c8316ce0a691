//! Runs `tshark` with the dissector and reads its output.

pub mod connected;
mod joined;
mod shown;
pub mod talk;
mod tshark;

pub use joined::{JoinedCaptures, renamed, with_renamed_addresses};
pub use shown::DissectedFrame;
pub use tshark::Tshark;

/// The blocks of a little-endian pcapng file.
pub fn blocks(mut capture: &[u8]) -> Vec<&[u8]> {
    let mut blocks = Vec::new();
    while !capture.is_empty() {
        let length = u32::from_le_bytes(capture[4..8].try_into().unwrap()) as usize;
        let (block, rest) = capture.split_at(length);
        blocks.push(block);
        capture = rest;
    }
    blocks
}
