//! Joins captures to one: starting `tshark` takes longer than dissecting most of them.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use efa_capture::frame::Frame;
use efa_capture::{CaptureTap, InterfaceId, Reader, Writer};
use efa_core::address::Gid;
use efa_core::wire::fields::{Value, fields_of};

/// Joined captures. Each has its own interfaces and GIDs, so that the captures share no
/// conversation.
pub struct JoinedCaptures {
    /// The pcapng file.
    pub capture: Vec<u8>,
    /// The indices of each capture's frames.
    pub frames: Vec<Range<usize>>,
}

impl JoinedCaptures {
    /// Joins captures of emulated devices.
    ///
    /// # Panics
    /// If a file is not such a capture, or is damaged.
    pub fn of(files: &[impl AsRef<Path>]) -> JoinedCaptures {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut frames = Vec::new();
        let (mut first_interface, mut end) = (0, 0);
        for (number, file) in (1..).zip(files) {
            // The interfaces are known after the last frame, and are declared before the first one.
            let mut reader = Reader::open(file.as_ref()).unwrap();
            while reader.next_frame().unwrap().is_some() {}
            for interface in reader.interfaces() {
                let mut device = interface.device().unwrap();
                device.gid = renamed(device.gid, number);
                writer.add_interface(&device).unwrap();
            }
            let interfaces = reader.interfaces().len() as u32;

            let begin = end;
            let mut reader = Reader::open(file.as_ref()).unwrap();
            while let Some(captured) = reader.next_frame().unwrap() {
                let frame = captured.frame.unwrap();
                let payload = with_renamed_addresses(frame.payload, number);
                let frame = Frame {
                    source: renamed(frame.source, number),
                    destination: renamed(frame.destination, number),
                    payload: &payload,
                    ..frame
                };
                let interface = InterfaceId(first_interface + captured.interface.0);
                let direction = captured.direction.unwrap();
                writer.frame(interface, captured.time, direction, &frame);
                end += 1;
            }
            frames.push(begin..end);
            first_interface += interfaces;
        }
        let capture = writer.finish(Duration::ZERO).unwrap();
        JoinedCaptures { capture, frames }
    }
}

/// A GID as it is in the capture with this number.
pub fn renamed(mut gid: Gid, number: u16) -> Gid {
    let [high, low] = number.to_be_bytes();
    gid.0[8] ^= high;
    gid.0[9] ^= low;
    gid
}

/// The payload of a frame with the addresses in it renamed.
pub fn with_renamed_addresses(payload: &[u8], number: u16) -> Vec<u8> {
    let mut renamed_payload = payload.to_vec();
    for field in fields_of(payload).into_iter().flatten() {
        if let Value::Gid(gid) = field.value {
            let gid = renamed(gid, number);
            renamed_payload[field.offset..][..gid.0.len()].copy_from_slice(&gid.0);
        }
    }
    renamed_payload
}
