//! Merges the captures of several hosts into one trace.
//!
//! Each host keeps its interface, and each frame occurs as often as it was captured: as `outbound`
//! at its sender and as `inbound` at its receiver. Replay needs both, because only the receiver's
//! order shows the packets that a host had received before it sent a packet. To see each packet
//! once, filter for outbound frames (`frame.packet_flags_direction == 2` in Wireshark). No frame is
//! dropped; captures with lost frames are refused.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

use efa_capture::{Interface, InterfaceId, ReadError, Reader, RecordedFrame, Truncation, Writer};

use crate::clocks::Difference;

/// The reason why captures could not be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The merged file cannot be written.
    #[error("{path}: {source}")]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not a capture, or is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file is cut off.
    #[error("{path}: {truncation}")]
    Truncated {
        /// The path of the file.
        path: PathBuf,
        /// The position at which it ends.
        truncation: Truncation,
    },
    /// An interface of a capture does not belong to an emulated host's device.
    #[error(
        "{path}: interface {index} is not a device's with nanoseconds; record it with `efa-emu run --pcap`"
    )]
    NoDevice {
        /// The path of the file.
        path: PathBuf,
        /// The number of the interface.
        index: usize,
    },
    /// A capture lacks frames.
    #[error("{path}: {dropped} frames were not captured; record again on a less busy machine")]
    Dropped {
        /// The path of the file.
        path: PathBuf,
        /// The number of missing frames.
        dropped: u64,
    },
}

/// A comment for the first frame at or after a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// Since the Unix epoch.
    pub time: Duration,
    /// The text.
    pub text: String,
}

#[derive(Default)]
struct Host {
    interfaces: Vec<Interface>,
    /// Frames, with the index of their interface.
    frames: Vec<(usize, RecordedFrame)>,
}

fn read(path: &Path) -> Result<Host, MergeError> {
    let mut reader = Reader::open(path)?;
    let mut host = Host::default();
    while let Some(frame) = reader.next_frame()? {
        let interface = frame.interface.0 as usize;
        host.frames.push((interface, RecordedFrame::from(&frame)));
    }
    let path = || path.to_owned();
    if let Some(truncation) = reader.truncation() {
        let path = path();
        return Err(MergeError::Truncated { path, truncation });
    }
    let mut dropped = 0;
    for (index, interface) in reader.interfaces().iter().enumerate() {
        let device = interface.device();
        let device = device.ok_or_else(|| MergeError::NoDevice {
            path: path(),
            index,
        })?;
        host.interfaces.push(device);
        dropped += interface.counts.map_or(0, |counts| counts.dropped);
    }
    if dropped > 0 {
        let path = path();
        return Err(MergeError::Dropped { path, dropped });
    }
    Ok(host)
}

/// Merges the captures of `hosts`, which share one clock, into `output`, in the order of time.
/// `comments` describe the whole capture. Returns the number of frames.
pub fn merge(
    hosts: &[PathBuf],
    comments: &[String],
    annotations: &[Annotation],
    output: &Path,
) -> Result<usize, MergeError> {
    let hosts: Vec<_> = hosts
        .iter()
        .map(|host| (host.clone(), Difference::NONE))
        .collect();
    merge_clocks(&hosts, comments, annotations, output)
}

/// As [`merge`], for captures with different clocks, whose times are corrected by the given
/// differences.
pub fn merge_clocks(
    hosts: &[(PathBuf, Difference)],
    comments: &[String],
    annotations: &[Annotation],
    output: &Path,
) -> Result<usize, MergeError> {
    let mut interfaces = Vec::new();
    let mut frames = Vec::new();
    for (path, clock) in hosts {
        let host = read(path)?;
        let first = interfaces.len();
        interfaces.extend(host.interfaces);
        frames.extend(host.frames.into_iter().map(|(interface, mut frame)| {
            frame.time = clock.correct(frame.time);
            (first + interface, frame)
        }));
    }
    // The sort is stable: frames of one host with the same time keep their order.
    frames.sort_by_key(|(_, frame)| frame.time);
    annotate(&mut frames, annotations);
    let end = frames
        .last()
        .map_or(Duration::ZERO, |(_, frame)| frame.time);
    let written = write(&interfaces, &frames, comments, end, output);
    written.map_err(|source| MergeError::Write {
        path: output.to_owned(),
        source,
    })?;
    Ok(frames.len())
}

fn write(
    interfaces: &[Interface],
    frames: &[(usize, RecordedFrame)],
    comments: &[String],
    end: Duration,
    output: &Path,
) -> io::Result<()> {
    let program = concat!("efa-conformance ", env!("CARGO_PKG_VERSION"));
    let sink = BufWriter::new(File::create(output)?);
    let mut writer = Writer::with_comments(sink, program, comments)?;
    for interface in interfaces {
        writer.add_interface(interface)?;
    }
    for (interface, frame) in frames {
        writer.add(InterfaceId(*interface as u32), frame)?;
    }
    writer.finish(end)?;
    Ok(())
}

/// Adds each annotation to the first frame at or after its time.
fn annotate(frames: &mut [(usize, RecordedFrame)], annotations: &[Annotation]) {
    for annotation in annotations {
        let first = frames.partition_point(|(_, frame)| frame.time < annotation.time);
        if let Some((_, frame)) = frames.get_mut(first) {
            frame.comments.push(annotation.text.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(time: u64) -> (usize, RecordedFrame) {
        let frame = RecordedFrame {
            time: Duration::from_nanos(time),
            direction: None,
            bytes: Vec::new(),
            original_len: 0,
            comments: Vec::new(),
        };
        (0, frame)
    }

    #[test]
    fn annotations_go_to_the_first_frame_that_follows() {
        let mut frames = [frame(10), frame(20), frame(30)];
        let at = |time, text: &str| Annotation {
            time: Duration::from_nanos(time),
            text: text.into(),
        };
        annotate(
            &mut frames,
            &[at(5, "a"), at(10, "b"), at(11, "c"), at(31, "lost")],
        );
        assert_eq!(frames[0].1.comments, ["a", "b"]);
        assert_eq!(frames[1].1.comments, ["c"]);
        assert!(frames[2].1.comments.is_empty());
    }

    /// A trace of the corpus is a merged capture. Merging it again does not change it.
    #[test]
    fn merging_keeps_every_frame_and_comment() {
        let path = efa_testing::workspace::traces().join("long-cts.pcapng");
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join("out.pcapng");
        let count = merge(std::slice::from_ref(&path), &[], &[], &output).unwrap();
        let (before, after) = (read(&path).unwrap(), read(&output).unwrap());
        assert_eq!(before.interfaces, after.interfaces);
        assert_eq!(count, before.frames.len());
        let parts = |host: &Host| -> Vec<_> {
            let frames = host.frames.iter().cloned();
            let parts = frames.map(|(at, it)| {
                let length = it.original_len;
                (at, it.time, it.direction, it.bytes, length, it.comments)
            });
            parts.collect()
        };
        assert_eq!(parts(&before), parts(&after));
        assert!(before.frames.iter().any(|(_, it)| !it.comments.is_empty()));
    }

    #[test]
    fn a_capture_that_is_cut_off_is_refused() {
        let path = efa_testing::workspace::traces().join("long-cts.pcapng");
        let directory = tempfile::tempdir().unwrap();
        let cut = directory.path().join("cut.pcapng");
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(&cut, &bytes[..bytes.len() - 30]).unwrap();
        let output = directory.path().join("out.pcapng");
        let error = merge(&[cut], &[], &[], &output).unwrap_err();
        assert!(matches!(error, MergeError::Truncated { .. }), "{error}");
    }

    #[test]
    fn a_file_that_is_no_capture_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text.pcapng");
        std::fs::write(&path, "no capture at all").unwrap();
        let output = directory.path().join("out.pcapng");
        let error = merge(&[path], &[], &[], &output).unwrap_err();
        assert!(error.to_string().contains("text.pcapng"), "{error}");
    }
}
