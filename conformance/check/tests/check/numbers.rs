//! Request numbers in captures of packets that a program omitted or added. A gap in them would show
//! that the recorder dropped frames.

use efa_capture::frame::FrameKind;
use efa_check::capture::CapturedPacket;

/// Whether a frame has a number of the queue pair that sent another one.
fn is_numbered_by(frame: &CapturedPacket, sent: &CapturedPacket) -> bool {
    let header = &frame.header;
    let of = match header.kind {
        FrameKind::Response(_) | FrameKind::RdmaReadResponse(_) => {
            (frame.destination, header.destination_qpn)
        }
        _ => (frame.source, header.source_qpn),
    };
    of == (sent.source, sent.header.source_qpn)
}

/// The number of the next request of the queue pair that sent a frame.
pub(crate) fn next_number(frames: &[CapturedPacket], sent: &CapturedPacket) -> u32 {
    let of_sender = frames.iter().filter(|frame| is_numbered_by(frame, sent));
    let numbers = of_sender.map(|frame| frame.header.sequence);
    numbers.max().unwrap_or(0) + 1
}

/// Numbers the requests after a removed one as if it had never been sent.
pub(crate) fn close_gap(frames: &mut [CapturedPacket], removed: &CapturedPacket) {
    for frame in frames {
        if is_numbered_by(frame, removed) && frame.header.sequence > removed.header.sequence {
            frame.header.sequence -= 1;
        }
    }
}
