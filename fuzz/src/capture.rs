//! Any bytes as a capture.

use efa_capture::Reader;

/// Reads all frames. A capture is an error or a sequence of frames within it; the reader allocates
/// no more memory than the capture has bytes, and ends.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(bytes, "capture") else {
        return;
    };
    let mut frames = 0;
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                frames += 1;
                assert_eq!(frame.number, frames, "frames are counted");
                assert!(frame.bytes.len() <= bytes.len());
                if let Ok(parsed) = &frame.frame {
                    let _ = format!("{parsed:?}");
                }
            }
            Ok(None) => break,
            Err(error) => {
                assert!(error.to_string().starts_with("capture"), "{error}");
                break;
            }
        }
        // The shortest block that holds a frame.
        assert!(
            frames as usize <= bytes.len() / 16,
            "more frames than bytes"
        );
    }
}
