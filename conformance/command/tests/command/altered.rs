//! Traces of the corpus that were altered: other bytes, without their end, or without some frames.

use std::path::PathBuf;
use std::time::Duration;

use efa_capture::{CaptureTap, CapturedFrame, Reader, RecordedFrame, WHOLE_FRAMES, Writer};
use efa_testing::workspace::traces;

/// A copy of a trace in a separate directory, to be altered.
pub(crate) struct AlteredTrace {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl AlteredTrace {
    pub(crate) fn of(trace: &str) -> AlteredTrace {
        let directory = tempfile::tempdir().unwrap();
        for extension in ["toml", "pcapng"] {
            let file = format!("{trace}.{extension}");
            std::fs::copy(traces().join(&file), directory.path().join(&file)).unwrap();
        }
        let path = directory.path().join(format!("{trace}.pcapng"));
        AlteredTrace { directory, path }
    }

    pub(crate) fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Changes the capture's bytes, with the offset of each frame's packet.
    pub(crate) fn edit(&self, change: impl FnOnce(&mut Vec<u8>, &[usize])) {
        const BEFORE_DATA: usize = 28;
        let mut reader = Reader::open(&self.path).unwrap();
        let mut offsets = Vec::new();
        while let Some(captured) = reader.next_frame().unwrap() {
            let headers = captured.link_bytes.len() - captured.frame.unwrap().payload.len();
            offsets.push(captured.offset as usize + BEFORE_DATA + headers);
        }
        let mut bytes = std::fs::read(&self.path).unwrap();
        change(&mut bytes, &offsets);
        std::fs::write(&self.path, bytes).unwrap();
    }

    /// Drops the frames for which `kept` returns false.
    pub(crate) fn keep(&self, kept: impl Fn(&CapturedFrame<'_>) -> bool) {
        self.rewrite(WHOLE_FRAMES, kept);
    }

    /// Likewise, and keeps only the first `snaplen` bytes of each frame.
    pub(crate) fn rewrite(&self, snaplen: u32, kept: impl Fn(&CapturedFrame<'_>) -> bool) {
        let mut reader = Reader::open(&self.path).unwrap();
        let mut frames = Vec::new();
        while let Some(frame) = reader.next_frame().unwrap() {
            if kept(&frame) {
                frames.push((frame.interface, RecordedFrame::from(&frame)));
            }
        }
        let mut writer = Writer::with_snaplen(Vec::new(), snaplen).unwrap();
        for interface in reader.interfaces() {
            writer.add_interface(&interface.device().unwrap()).unwrap();
        }
        for (interface, frame) in frames {
            let direction = frame.direction.unwrap();
            writer.raw(interface, frame.time, direction, &frame.bytes);
        }
        std::fs::write(&self.path, writer.finish(Duration::ZERO).unwrap()).unwrap();
    }
}
