//! The options of all commands that write captures. They have the names of `dumpcap(1)`.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use efa_capture::WHOLE_FRAMES;

/// Enough for all headers of the outer layers and of the emulated wire.
const SHORTEST: u32 = 128;

/// The options of a command that writes a capture.
#[derive(Args, Clone, Debug)]
pub struct CaptureOptions {
    /// Record the first N bytes of each frame only; 256 hold all headers. All of them with 0, or
    /// without this option.
    #[arg(short, long, visible_alias = "snapshot-length", value_name = "N", value_parser = snaplen)]
    snaplen: Option<u32>,
    /// Go on in another file, FILE_00001_TIME, FILE_00002_TIME and so on, after `filesize:N` (of
    /// 1000 bytes), `duration:N` (seconds) or `packets:N`; with `files:N`, keep the last N files
    /// only.
    #[arg(short = 'b', long = "ring-buffer", value_name = "WHAT:N")]
    switch: Vec<RingOption>,
}

/// An invalid value of an option.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum ValueError {
    #[error("write a number from {SHORTEST} to {WHOLE_FRAMES}, or 0 for whole frames")]
    SnapLength,
    #[error("write filesize:N, duration:N, packets:N or files:N")]
    Switch,
    #[error("{0:?} is not a positive number")]
    NotPositive(String),
    #[error("{0} files are too many")]
    TooManyFiles(u64),
    #[error("{0:?} is not a time in seconds")]
    NotSeconds(String),
}

fn snaplen(text: &str) -> Result<u32, ValueError> {
    match text.parse() {
        Ok(0) => Ok(WHOLE_FRAMES),
        Ok(length) if (SHORTEST..=WHOLE_FRAMES).contains(&length) => Ok(length),
        _ => Err(ValueError::SnapLength),
    }
}

/// The value of one `-b`.
#[derive(Clone, Copy, PartialEq, Debug)]
enum RingOption {
    FileSize(u64),
    Duration(Duration),
    Packets(u64),
    Files(u32),
}

impl FromStr for RingOption {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<RingOption, ValueError> {
        let (what, value) = text.split_once(':').ok_or(ValueError::Switch)?;
        let positive = || {
            let number = value.parse().ok().filter(|number| *number > 0);
            number.ok_or_else(|| ValueError::NotPositive(value.to_owned()))
        };
        Ok(match what {
            "filesize" => RingOption::FileSize(positive()?),
            "packets" => RingOption::Packets(positive()?),
            "files" => {
                let files = positive()?;
                RingOption::Files(
                    files
                        .try_into()
                        .map_err(|_| ValueError::TooManyFiles(files))?,
                )
            }
            "duration" => {
                let seconds = value.parse().ok().filter(|seconds| *seconds > 0.0);
                let duration = seconds.and_then(|time| Duration::try_from_secs_f64(time).ok());
                RingOption::Duration(
                    duration.ok_or_else(|| ValueError::NotSeconds(value.to_owned()))?,
                )
            }
            _ => return Err(ValueError::Switch),
        })
    }
}

/// Options that limit the number of files, and not the size of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "-b files:N needs to know when a file is full: add -b filesize:N, -b duration:N or -b packets:N"
)]
pub struct UnlimitedFile;

/// The conditions under which a capture continues in another file.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Ring {
    /// Bytes of a file.
    pub file_size: Option<u64>,
    /// The time since the beginning of a file.
    pub duration: Option<Duration>,
    /// Frames of a file.
    pub packets: Option<u64>,
    /// The number of files that are kept; all if `None`.
    pub files: Option<u32>,
}

impl CaptureOptions {
    /// The bytes that are recorded of each frame ([`WHOLE_FRAMES`]: all).
    pub fn snaplen(&self) -> u32 {
        self.snaplen.unwrap_or(WHOLE_FRAMES)
    }

    /// Whether any of the options is present.
    pub fn are_given(&self) -> bool {
        self.snaplen.is_some() || !self.switch.is_empty()
    }

    /// The condition for continuing in another file; `None` for never.
    pub fn ring(&self) -> Result<Option<Ring>, UnlimitedFile> {
        let mut ring = Ring::default();
        for switch in &self.switch {
            match *switch {
                RingOption::FileSize(thousands) => {
                    ring.file_size = Some(thousands.saturating_mul(1000));
                }
                RingOption::Duration(duration) => ring.duration = Some(duration),
                RingOption::Packets(packets) => ring.packets = Some(packets),
                RingOption::Files(files) => ring.files = Some(files),
            }
        }
        let is_limited = ring
            != Ring {
                files: ring.files,
                ..Ring::default()
            };
        match (is_limited, ring.files) {
            (true, _) => Ok(Some(ring)),
            (false, None) => Ok(None),
            (false, Some(_)) => Err(UnlimitedFile),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(switches: &[&str]) -> CaptureOptions {
        let switch = switches.iter().map(|text| text.parse().unwrap()).collect();
        CaptureOptions {
            snaplen: None,
            switch,
        }
    }

    #[test]
    fn snap_lengths_are_read_as_dumpcap_reads_them() {
        assert_eq!(options(&[]).snaplen(), WHOLE_FRAMES);
        assert_eq!(snaplen("0"), Ok(WHOLE_FRAMES));
        assert_eq!(snaplen("256"), Ok(256));
        for wrong in ["127", "262145", "-1", "x", ""] {
            assert!(snaplen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rings_are_read_as_dumpcap_reads_them() {
        assert_eq!(options(&[]).ring().ok().unwrap(), None);
        let ring = options(&["filesize:2", "files:3", "duration:0.5", "packets:7"]).ring();
        let expected = Ring {
            file_size: Some(2000),
            duration: Some(Duration::from_millis(500)),
            packets: Some(7),
            files: Some(3),
        };
        assert_eq!(ring.ok().unwrap(), Some(expected));
        assert!(options(&["files:3"]).ring().is_err());
        for wrong in [
            "filesize",
            "filesize:0",
            "filesize:-1",
            "size:3",
            "duration:0",
            "duration:x",
            "files:5000000000",
        ] {
            assert!(wrong.parse::<RingOption>().is_err(), "{wrong}");
        }
    }
}
