//! One file to send back when something fails: what the doctor says, reports, profiles, and captures without the
//! users' data.
//!
//! A capture is copied block by block. Of each frame the headers stay and what the application sent goes: its bytes are
//! cut off, and the frame still says how many there were. So `check`, `show` and Wireshark read it as a capture with
//! a snap length.

use std::path::{Path, PathBuf};

use efa_core::wire::fields::{Width, fields_of};
use efa_emu::capture::Reader;
use efa_emu::frame::Frame;
use efa_emu::profile::Profile;

use crate::suite::json::Report;

/// Block types of pcapng.
const SECTION: u32 = 0x0a0d_0d0a;
const ENHANCED_PACKET: u32 = 6;
/// Blocks with packets in forms that our captures do not have.
const OTHER_PACKETS: [u32; 2] = [2, 3];

/// Bytes of an enhanced packet block before the frame: type, length, interface, time, captured and original length.
const BEFORE_FRAME: usize = 28;

/// A file of a bundle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its path in the bundle.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What is private on a machine, and what stands for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Private(Vec<(String, &'static str)>);

impl Private {
    /// The names of these hosts, and the path of the home directory. Short names are left: they would be found in other
    /// words.
    pub fn of(hosts: &[String], home: Option<&str>) -> Private {
        let mut names: Vec<_> = hosts
            .iter()
            .filter(|host| host.len() > 2)
            .map(|host| (host.clone(), "HOST"))
            .collect();
        names.extend(
            home.filter(|home| home.len() > 2)
                .map(|home| (home.to_owned(), "~")),
        );
        // The longest first: a name may begin with another one.
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Private(names)
    }

    /// The text without what is private.
    pub fn hide(&self, text: &str) -> String {
        let names = self.0.iter();
        names.fold(text.to_owned(), |text, (name, stands)| {
            text.replace(name, stands)
        })
    }
}

/// Takes a file into a bundle: a capture without the users' data, a report of `run --json`, or a profile.
///
/// # Errors
/// It is none of these, or cannot be read: nothing else gets into a bundle.
pub fn member(path: &Path, private: &Private) -> Result<Member, String> {
    let file = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let extension = path
        .extension()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let text =
        || std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    match extension.as_str() {
        "pcapng" => Ok(Member {
            name: format!("captures/{file}"),
            bytes: without_user_data(path)?,
        }),
        "json" => {
            Report::read(path).map_err(|error| error.to_string())?;
            let text = private.hide(&text()?);
            let bytes = text.into_bytes();
            Ok(Member {
                name: format!("reports/{file}"),
                bytes,
            })
        }
        "toml" => {
            let whole = PathBuf::from(".").join(path);
            Profile::named(&whole.to_string_lossy()).map_err(|error| error.to_string())?;
            let bytes = private.hide(&text()?).into_bytes();
            Ok(Member {
                name: format!("profiles/{file}"),
                bytes,
            })
        }
        _ => Err(format!(
            "{}: a bundle takes captures (.pcapng), reports of `run --json` (.json) and profiles of `survey` \
             (.toml)",
            path.display()
        )),
    }
}

/// A capture without what applications sent.
///
/// # Errors
/// The file cannot be read, or is no capture of ours.
pub fn without_user_data(path: &Path) -> Result<Vec<u8>, String> {
    // Says what is wrong with a file that is no capture.
    Reader::open(path).map_err(|error| error.to_string())?;
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    cut(&bytes).map_err(|problem| format!("{}: {problem}", path.display()))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

/// Copies all whole blocks; an end that is missing stays missing.
fn cut(mut rest: &[u8]) -> Result<Vec<u8>, String> {
    let mut copy = Vec::with_capacity(rest.len() / 4);
    while let (Some(kind), Some(length)) = (word(rest, 0), word(rest, 4)) {
        let length = length as usize;
        if kind == SECTION && word(rest, 8) != Some(0x1a2b_3c4d) {
            return Err("its numbers are not little-endian".to_owned());
        }
        if length < 12 || !length.is_multiple_of(4) {
            return Err(format!("a block has {length} bytes"));
        }
        let Some(block) = rest.get(..length) else {
            break;
        };
        match kind {
            ENHANCED_PACKET => {
                cut_packet(block, &mut copy).ok_or("a packet goes beyond its block")?
            }
            kind if OTHER_PACKETS.contains(&kind) => {
                return Err(format!("it has packets in blocks of type {kind}"));
            }
            _ => copy.extend_from_slice(block),
        }
        rest = &rest[length..];
    }
    Ok(copy)
}

/// Copies a block of a packet without the data of applications. `None` if its lengths contradict each other.
fn cut_packet(block: &[u8], copy: &mut Vec<u8>) -> Option<()> {
    let captured = word(block, 20)? as usize;
    let original = word(block, 24)? as usize;
    let frame = block.get(BEFORE_FRAME..BEFORE_FRAME.checked_add(captured)?)?;
    let options = block.get(BEFORE_FRAME + captured.next_multiple_of(4)..block.len() - 4)?;
    let kept = &frame[..headers(frame, original)];
    let padded = kept.len().next_multiple_of(4);
    let length = (BEFORE_FRAME + padded + options.len() + 4) as u32;
    copy.extend_from_slice(&ENHANCED_PACKET.to_le_bytes());
    copy.extend_from_slice(&length.to_le_bytes());
    copy.extend_from_slice(&block[8..20]);
    copy.extend_from_slice(&(kept.len() as u32).to_le_bytes());
    copy.extend_from_slice(&(original as u32).to_le_bytes());
    copy.extend_from_slice(kept);
    copy.resize(copy.len() + padded - kept.len(), 0);
    copy.extend_from_slice(options);
    copy.extend_from_slice(&length.to_le_bytes());
    Some(())
}

/// How many bytes of a frame are headers. Of a frame that is none of ours nothing is known, and nothing is kept.
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

/// How many bytes of a packet are fields of the protocol. Its data is the field that has all the rest.
fn fields_of_packet(packet: &[u8]) -> Option<usize> {
    let fields = fields_of(packet)?;
    let known = fields.take_while(|field| !matches!(field.descriptor.width, Width::Rest));
    Some(
        known
            .last()
            .map_or(0, |field| field.offset + field.bytes.len()),
    )
}
