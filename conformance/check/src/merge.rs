//! One trace from the captures of several hosts.
//!
//! Each host keeps an interface of its own, and each frame occurs as often as it was captured: as
//! `outbound` at its sender and as `inbound` at its receiver. Replay needs both, because only the
//! receiver's order shows what a host had received before it sent something. To see each packet
//! once, filter for outbound frames (`frame.packet_flags_direction == 2` in Wireshark). Nothing is
//! left out; a capture that lost frames is refused.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use pcap_file::{Endianness, PcapError};

use crate::clocks::Difference;

/// `if_tsresol` of nanoseconds.
const NANOSECONDS: u8 = 9;

/// Why captures could not be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A file cannot be opened or written.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not a capture, or is damaged.
    #[error("{path}: {source}")]
    Format {
        /// Which file.
        path: PathBuf,
        /// The error.
        source: PcapError,
    },
    /// A capture's times have another unit than nanoseconds.
    #[error("{path}: its times are not in nanoseconds; record it with `efa-emu run --pcap`")]
    TimeUnit {
        /// Which file.
        path: PathBuf,
    },
    /// A capture lacks frames.
    #[error("{path}: {dropped} frames were not captured; record again on a less busy machine")]
    Dropped {
        /// Which file.
        path: PathBuf,
        /// How many frames are missing.
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
    interfaces: Vec<InterfaceDescriptionBlock<'static>>,
    packets: Vec<EnhancedPacketBlock<'static>>,
    statistics: Vec<InterfaceStatisticsBlock<'static>>,
}

fn read(path: &Path) -> Result<Host, MergeError> {
    let io = |source| MergeError::Io {
        path: path.to_owned(),
        source,
    };
    let format = |source| MergeError::Format {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let mut reader = PcapNgReader::new(BufReader::new(file)).map_err(format)?;
    let mut host = Host::default();
    while let Some(block) = reader.next_block() {
        match block.map_err(format)?.into_owned() {
            Block::InterfaceDescription(interface) => {
                let unit = InterfaceDescriptionOption::IfTsResol(NANOSECONDS);
                if !interface.options.contains(&unit) {
                    return Err(MergeError::TimeUnit {
                        path: path.to_owned(),
                    });
                }
                host.interfaces.push(interface);
            }
            Block::EnhancedPacket(packet) => host.packets.push(packet),
            Block::InterfaceStatistics(statistics) => host.statistics.push(statistics),
            _ => {}
        }
    }
    let dropped = host
        .statistics
        .iter()
        .flat_map(|block| &block.options)
        .map(|option| match option {
            InterfaceStatisticsOption::IsbIfDrop(dropped) => *dropped,
            _ => 0,
        })
        .sum();
    if dropped > 0 {
        return Err(MergeError::Dropped {
            path: path.to_owned(),
            dropped,
        });
    }
    Ok(host)
}

/// Merges the captures of `hosts`, which have one clock, into `output`, in the order of time.
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

/// As [`merge`], for captures of several clocks: the times of each are corrected by how far its
/// clock is ahead.
pub fn merge_clocks(
    hosts: &[(PathBuf, Difference)],
    comments: &[String],
    annotations: &[Annotation],
    output: &Path,
) -> Result<usize, MergeError> {
    let mut interfaces = Vec::new();
    let mut packets = Vec::new();
    let mut statistics = Vec::new();
    for (path, clock) in hosts {
        let host = read(path)?;
        let first = interfaces.len() as u32;
        interfaces.extend(host.interfaces);
        packets.extend(host.packets.into_iter().map(|mut packet| {
            packet.interface_id += first;
            packet.timestamp = clock.correct(packet.timestamp);
            packet
        }));
        statistics.extend(host.statistics.into_iter().map(|mut block| {
            block.interface_id += first;
            block
        }));
    }
    // Stable: frames of one host with the same time stay in its order.
    packets.sort_by_key(|packet| packet.timestamp);
    annotate(&mut packets, annotations);
    let count = packets.len();

    let io = |source| MergeError::Io {
        path: output.to_owned(),
        source,
    };
    let format = |source| MergeError::Format {
        path: output.to_owned(),
        source,
    };
    let mut options = vec![SectionHeaderOption::UserApplication(Cow::Borrowed(
        concat!("efa-conformance ", env!("CARGO_PKG_VERSION")),
    ))];
    for comment in comments {
        options.push(SectionHeaderOption::Comment(Cow::Owned(comment.clone())));
    }
    let section = SectionHeaderBlock {
        endianness: Endianness::Little,
        options,
        ..SectionHeaderBlock::default()
    };
    let file = File::create(output).map_err(io)?;
    let mut writer =
        PcapNgWriter::with_section_header(BufWriter::new(file), section).map_err(format)?;
    let blocks = interfaces
        .into_iter()
        .map(Block::InterfaceDescription)
        .chain(packets.into_iter().map(Block::EnhancedPacket))
        .chain(statistics.into_iter().map(Block::InterfaceStatistics));
    for block in blocks {
        writer.write_block(&block).map_err(format)?;
    }
    writer.into_inner().flush().map_err(io)?;
    Ok(count)
}

/// Adds each annotation to the first frame at or after its time.
fn annotate(packets: &mut [EnhancedPacketBlock<'static>], annotations: &[Annotation]) {
    for annotation in annotations {
        let first = packets.partition_point(|packet| packet.timestamp < annotation.time);
        if let Some(packet) = packets.get_mut(first) {
            let text = Cow::Owned(annotation.text.clone());
            packet.options.push(EnhancedPacketOption::Comment(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(time: u64) -> EnhancedPacketBlock<'static> {
        EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(time),
            original_len: 0,
            data: Cow::Owned(Vec::new()),
            options: Vec::new(),
        }
    }

    #[test]
    fn annotations_go_to_the_first_frame_that_follows() {
        let mut packets = [packet(10), packet(20), packet(30)];
        let at = |time, text: &str| Annotation {
            time: Duration::from_nanos(time),
            text: text.into(),
        };
        annotate(
            &mut packets,
            &[at(5, "a"), at(10, "b"), at(11, "c"), at(31, "lost")],
        );
        let texts = |packet: &EnhancedPacketBlock<'_>| -> Vec<String> {
            packet
                .options
                .iter()
                .filter_map(|option| match option {
                    EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                    _ => None,
                })
                .collect()
        };
        assert_eq!(texts(&packets[0]), ["a", "b"]);
        assert_eq!(texts(&packets[1]), ["c"]);
        assert!(texts(&packets[2]).is_empty());
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
