//! Any bytes as a capture.

use efa_capture::Reader;

/// Reads all frames. A capture is an error or a sequence of frames within it; the reader allocates
/// no more memory than the capture has bytes, and ends. A frame's number counts the frames up to
/// it, and those of the skipped blocks that Wireshark numbers too.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(bytes, "capture") else {
        return;
    };
    let (mut frames, mut last) = (0, 0);
    loop {
        let number = match reader.next_frame() {
            Ok(Some(frame)) => {
                frames += 1;
                assert!(frame.bytes.len() <= bytes.len());
                if let Ok(parsed) = &frame.frame {
                    let _ = format!("{parsed:?}");
                }
                frame.number
            }
            Ok(None) => break,
            Err(error) => {
                assert!(error.to_string().starts_with("capture"), "{error}");
                break;
            }
        };
        assert!(number > last, "frame {number} follows {last}");
        last = number;
        let counted = frames..=frames + reader.skipped_blocks();
        assert!(counted.contains(&number), "{number} is not in {counted:?}");
        // The shortest block that holds a frame.
        assert!(
            frames as usize <= bytes.len() / 16,
            "more frames than bytes"
        );
    }
}
