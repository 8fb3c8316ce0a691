//! Frames: the content of a connection. Messages ([`efa_shm::remote`]) and control messages of
//! bridges are frames.

use std::io;
use std::ops::Range;

use efa_device_model::fault::{FaultError, FaultId};
use efa_shm::remote::{FRAME_HEADER, LONGEST_MESSAGE, RemoteDevice};
use efa_shm::{CarriedFault, DeviceName};
use efa_wire::Status;
use efa_wire::address::Gid;
use serde::{Deserialize, Serialize};

/// Bytes of a frame's header: its length and its kind.
pub(crate) const HEADER: usize = FRAME_HEADER;

/// Maximum length of a list of devices, in bytes.
const LONGEST: usize = 64 << 20;

/// A control message between bridges.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Notice {
    /// All devices and rules of the sender's machine.
    Devices {
        /// The number of the list.
        number: u64,
        devices: Vec<Device>,
        /// The fault rules that are armed there.
        faults: Vec<Rule>,
    },
    /// A list was read.
    Entered {
        /// Its number.
        number: u64,
        /// The devices that could not enter the receiver's fabric, and why.
        refused: Vec<(String, String)>,
    },
    /// A heartbeat: the sender has nothing else to send.
    Alive,
    /// The sender shuts down.
    Bye,
}

/// A device in a list.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Device {
    host: String,
    index: u32,
    devices: u32,
    gid: [u8; 16],
    profile: Option<String>,
    /// Status code for queue pair numbers that no process owns.
    nobody: u8,
    network: String,
}

/// A fault rule in a list.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Rule {
    id: u64,
    text: String,
    /// The number of orders to release the frames that the rule holds.
    releases: u64,
}

impl From<CarriedFault> for Rule {
    fn from(carried: CarriedFault) -> Rule {
        Rule {
            id: carried.id.0,
            text: carried.fault.to_string(),
            releases: carried.releases,
        }
    }
}

impl Rule {
    /// The rule for the fabric.
    ///
    /// # Errors
    /// The error in its text.
    pub(crate) fn carried(&self) -> Result<CarriedFault, FaultError> {
        Ok(CarriedFault {
            id: FaultId(self.id),
            fault: self.text.parse()?,
            releases: self.releases,
        })
    }
}

impl From<&RemoteDevice> for Device {
    fn from(device: &RemoteDevice) -> Device {
        Device {
            host: device.name.host().to_owned(),
            index: device.name.index(),
            devices: device.name.devices(),
            gid: device.gid.0,
            profile: device.profile.clone(),
            nobody: device.nobody.code(),
            network: device.network.to_string(),
        }
    }
}

impl Device {
    /// The device for the fabric; `None` if it is invalid.
    pub(crate) fn remote(&self) -> Option<RemoteDevice> {
        let possible = 1..=DeviceName::MOST;
        if !possible.contains(&self.devices) || self.index >= self.devices {
            return None;
        }
        Some(RemoteDevice {
            name: DeviceName::new(&self.host, self.index, self.devices),
            gid: Gid(self.gid),
            profile: self.profile.clone(),
            nobody: Status::from_code(self.nobody)?,
            network: self.network.parse().ok()?,
        })
    }

    pub(crate) fn gid(&self) -> Gid {
        Gid(self.gid)
    }

    /// The name of the device.
    pub(crate) fn name(&self) -> String {
        DeviceName::new(&self.host, self.index, self.devices).to_string()
    }
}

/// The kind of frames with a notice.
const NOTICE: u8 = 2;

/// Appends a frame of this kind.
pub(crate) fn append(bytes: &mut Vec<u8>, kind: u8, content: &[u8]) {
    bytes.extend(((HEADER + content.len()) as u32).to_le_bytes());
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend(content);
}

/// Appends a notice.
pub(crate) fn append_notice(bytes: &mut Vec<u8>, notice: &Notice) {
    // Maps in a notice have text keys, so this cannot fail.
    let text = serde_json::to_vec(notice).unwrap_or_default();
    append(bytes, NOTICE, &text);
}

/// The length of the frame that begins with these bytes.
///
/// # Errors
/// It is longer than frames of its kind may be, or shorter than its header.
pub(crate) fn length(header: &[u8], longest: usize) -> io::Result<usize> {
    let length = header
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word)) as usize;
    match (HEADER..=longest).contains(&length) {
        true => Ok(length),
        false => Err(io::Error::other(format!(
            "it has sent a frame of {length} bytes: is it of the same version?"
        ))),
    }
}

/// A frame.
pub(crate) enum Frame<'a> {
    Message(&'a [u8]),
    Notice(Notice),
}

/// Received bytes, and their division into frames.
pub(crate) struct Frames {
    bytes: Vec<u8>,
    /// The bytes that were not read yet.
    present: Range<usize>,
}

impl Frames {
    /// Bytes per read.
    pub(crate) const CHUNK: usize = 256 << 10;

    pub(crate) fn new() -> Frames {
        Frames {
            bytes: vec![0; 2 * Self::CHUNK],
            present: 0..0,
        }
    }

    /// Free space for received bytes.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.present.is_empty() {
            self.present = 0..0;
        }
        if self.bytes.len() - self.present.end < Self::CHUNK {
            let length = self.present.len();
            self.bytes.copy_within(self.present.clone(), 0);
            self.present = 0..length;
            // Grows only with the longest frame.
            if self.bytes.len() - length < Self::CHUNK {
                self.bytes.resize(length + 2 * Self::CHUNK, 0);
            }
        }
        &mut self.bytes[self.present.end..]
    }

    /// Records that `count` bytes of the free space were filled.
    pub(crate) fn filled(&mut self, count: usize) {
        self.present.end += count;
    }

    /// Drops all received bytes. Returns their number.
    #[cfg(test)]
    pub(crate) fn discard(&mut self) -> usize {
        let present = std::mem::take(&mut self.present);
        present.len()
    }

    /// The next frame, if it is complete.
    ///
    /// # Errors
    /// The bytes are not frames.
    pub(crate) fn next(&mut self) -> io::Result<Option<Frame<'_>>> {
        let present = &self.bytes[self.present.clone()];
        if present.len() < HEADER {
            return Ok(None);
        }
        let is_notice = present[4] == NOTICE;
        let length = length(present, if is_notice { LONGEST } else { LONGEST_MESSAGE })?;
        if present.len() < length {
            return Ok(None);
        }
        let frame = self.present.start..self.present.start + length;
        self.present.start = frame.end;
        let frame = &self.bytes[frame];
        if !is_notice {
            return Ok(Some(Frame::Message(frame)));
        }
        let notice = serde_json::from_slice(&frame[HEADER..]);
        notice.map(Frame::Notice).map(Some).map_err(|error| {
            io::Error::other(format!("it has sent a notice that makes no sense: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(frames: &mut Frames, bytes: &[u8]) {
        frames.room()[..bytes.len()].copy_from_slice(bytes);
        frames.filled(bytes.len());
    }

    #[test]
    fn frames_are_parsed_from_any_pieces() {
        let mut bytes = Vec::new();
        append_notice(&mut bytes, &Notice::Alive);
        append(&mut bytes, 16, &[7; 100]);
        append_notice(&mut bytes, &Notice::Bye);
        for step in [1, 3, 50, bytes.len()] {
            let mut frames = Frames::new();
            let mut seen = Vec::new();
            for part in bytes.chunks(step) {
                feed(&mut frames, part);
                while let Some(frame) = frames.next().unwrap() {
                    seen.push(match frame {
                        Frame::Message(message) => message.len(),
                        Frame::Notice(Notice::Alive) => 1,
                        Frame::Notice(_) => 2,
                    });
                }
            }
            assert_eq!(seen, [1, HEADER + 100, 2]);
        }
    }

    #[test]
    fn impossible_lengths_and_notices_are_errors() {
        for bytes in [
            &[7, 0, 0, 0, 16, 0, 0, 0][..],
            &[0, 0, 0, 0, 2, 0, 0, 0],
            &[255; 8],
            &[12, 0, 0, 0, 2, 0, 0, 0, b'n', b'o', b'n', b'o'],
        ] {
            let mut frames = Frames::new();
            feed(&mut frames, bytes);
            assert!(frames.next().is_err(), "{bytes:?}");
        }
    }
}
