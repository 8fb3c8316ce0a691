//! Removes the data of applications and the names of hosts from captures.
//!
//! A capture is copied block by block. The headers of each frame are kept, and the application's
//! data is cut off; the frame still records its original length. So `check`, `show` and Wireshark
//! read the copy as a capture with a snap length.

use std::path::Path;

use efa_capture::Reader;
use efa_capture::frame::Frame;
use efa_core::wire::fields::{Width, fields_of};

use super::error::{BlockError, BundleError};
use super::private::{self, PrivateTexts};

/// Block types of pcapng.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// Blocks with packets in forms that captures of this project do not use.
const OTHER_PACKETS: [u32; 2] = [2, 3];
/// Bytes between the length of a block and its options.
const FIXED: [(u32, usize); 3] = [(SECTION, 16), (INTERFACE, 8), (STATISTICS, 12)];

/// Option codes: of all blocks,
const END: u16 = 0;
const COMMENT: u16 = 1;
const CUSTOM: u16 = 2988;
/// of the section,
const USER_APPLICATION: u16 = 4;
/// and of interfaces.
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_IPV6: u16 = 5;
const IF_MAC: u16 = 6;
const IF_TIME_RESOLUTION: u16 = 9;
const IF_HARDWARE: u16 = 15;

/// Bytes of an enhanced packet block before the frame: type, length, interface, time, captured and
/// original length.
const BEFORE_FRAME: usize = 28;

/// The names of the interfaces in a capture: hosts, some with the number of a device.
///
/// # Errors
/// The file cannot be read, or is not a capture of this project.
pub(super) fn hosts(path: &Path) -> Result<Vec<String>, BundleError> {
    let mut reader = Reader::open(path)?;
    while reader.next_frame()?.is_some() {}
    let interfaces = reader.interfaces().iter();
    Ok(interfaces
        .filter_map(|interface| interface.name.clone())
        .collect())
}

/// A copy of a capture without the data of applications and the names of hosts.
///
/// # Errors
/// The file cannot be read, or is not a capture of this project.
pub fn without_private_data(path: &Path, private: &PrivateTexts) -> Result<Vec<u8>, BundleError> {
    // Reports the error of a file that is not a capture.
    Reader::open(path)?;
    let bytes = std::fs::read(path).map_err(BundleError::io(path))?;
    cut(&bytes, private).map_err(|source| BundleError::Blocks {
        path: path.to_owned(),
        source,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

/// Copies the blocks that captures of this project use; an incomplete end stays incomplete. Blocks
/// of other writers, such as names of addresses, are dropped.
fn cut(mut rest: &[u8], private: &PrivateTexts) -> Result<Vec<u8>, BlockError> {
    let mut copy = Vec::with_capacity(rest.len() / 4);
    while let (Some(kind), Some(length)) = (word(rest, 0), word(rest, 4)) {
        let length = length as usize;
        if kind == SECTION && word(rest, 8) != Some(0x1a2b_3c4d) {
            return Err(BlockError::ByteOrder);
        }
        if length < 12 || !length.is_multiple_of(4) {
            return Err(BlockError::Length(length));
        }
        let Some(block) = rest.get(..length) else {
            break;
        };
        match kind {
            ENHANCED_PACKET => {
                cut_packet(block, &mut copy).ok_or(BlockError::Packet)?;
            }
            kind if OTHER_PACKETS.contains(&kind) => {
                return Err(BlockError::OtherPackets(kind));
            }
            kind => {
                let known = FIXED.iter().find(|(known, _)| *known == kind);
                if let Some((_, fixed)) = known {
                    copy_block(block, *fixed, private, &mut copy).ok_or(BlockError::Short(kind))?;
                }
            }
        }
        rest = &rest[length..];
    }
    Ok(copy)
}

/// Copies a block of a packet without the data of applications. `None` if its lengths contradict
/// each other.
fn cut_packet(block: &[u8], copy: &mut Vec<u8>) -> Option<()> {
    let captured = word(block, 20)? as usize;
    let original = word(block, 24)? as usize;
    let frame = block.get(BEFORE_FRAME..BEFORE_FRAME.checked_add(captured)?)?;
    let options = block.get(BEFORE_FRAME + captured.next_multiple_of(4)..block.len() - 4)?;
    let kept = &frame[..headers(frame, original)];
    let mut body = block[8..20].to_vec();
    body.extend_from_slice(&(kept.len() as u32).to_le_bytes());
    body.extend_from_slice(&(original as u32).to_le_bytes());
    append_padded(&mut body, kept);
    append_options(options, &mut body, |code, value| {
        (code != COMMENT && code < CUSTOM).then(|| value.to_vec())
    })?;
    append_block(ENHANCED_PACKET, &body, copy);
    Some(())
}

/// Copies a block without packets. Private words are removed from the texts of its options.
fn copy_block(
    block: &[u8],
    fixed: usize,
    private: &PrivateTexts,
    copy: &mut Vec<u8>,
) -> Option<()> {
    let kind = word(block, 0)?;
    let options = block.get(8 + fixed..block.len() - 4)?;
    let mut body = block.get(8..8 + fixed)?.to_vec();
    append_options(options, &mut body, |code, value| {
        let text = || String::from_utf8_lossy(value);
        match (kind, code) {
            (SECTION, USER_APPLICATION) => Some(private.hide(&text()).into_bytes()),
            (SECTION, _) => None,
            (INTERFACE, IF_NAME | IF_DESCRIPTION) => Some(private.hide(&text()).into_bytes()),
            (INTERFACE, IF_HARDWARE) => {
                Some(private.hide(private::file_name(&text())).into_bytes())
            }
            (INTERFACE, IF_IPV6 | IF_MAC | IF_TIME_RESOLUTION) => Some(value.to_vec()),
            (INTERFACE, _) => None,
            _ => (code != COMMENT && code < CUSTOM).then(|| value.to_vec()),
        }
    })?;
    append_block(kind, &body, copy);
    Some(())
}

/// Copies the options for which `keep` returns a value.
fn append_options(
    mut options: &[u8],
    body: &mut Vec<u8>,
    mut keep: impl FnMut(u16, &[u8]) -> Option<Vec<u8>>,
) -> Option<()> {
    let half =
        |bytes: &[u8], at: usize| Some(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let begun = body.len();
    while let (Some(code), Some(length)) = (half(options, 0), half(options, 2)) {
        if code == END {
            break;
        }
        let length = usize::from(length);
        let value = options.get(4..4 + length)?;
        if let Some(value) = keep(code, value) {
            body.extend_from_slice(&code.to_le_bytes());
            body.extend_from_slice(&u16::try_from(value.len()).ok()?.to_le_bytes());
            append_padded(body, &value);
        }
        options = options.get(4 + length.next_multiple_of(4)..)?;
    }
    if body.len() > begun {
        body.extend_from_slice(&[0; 4]);
    }
    Some(())
}

fn append_padded(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn append_block(kind: u32, body: &[u8], copy: &mut Vec<u8>) {
    let length = (12 + body.len() as u32).to_le_bytes();
    copy.extend_from_slice(&kind.to_le_bytes());
    copy.extend_from_slice(&length);
    copy.extend_from_slice(body);
    copy.extend_from_slice(&length);
}

/// The number of header bytes of a frame. A frame in a foreign format has none, so that none of its
/// bytes are kept.
fn headers(bytes: &[u8], original: usize) -> usize {
    let Ok(frame) = Frame::parse_cut(bytes, original) else {
        return 0;
    };
    let before = bytes.len() - frame.payload.len();
    let Some(fields) = frame.rdm_packet().and_then(fields_of_packet) else {
        return before;
    };
    before + fields
}

/// The number of bytes of a packet that are protocol fields. Its data is the field that contains
/// the rest.
fn fields_of_packet(packet: &[u8]) -> Option<usize> {
    let fields = fields_of(packet)?;
    let known = fields.take_while(|field| !matches!(field.descriptor.width, Width::Rest));
    Some(known.last().map_or(0, |field| field.range().end))
}
