//! Lists the RDM packets of a capture: `cargo run --example read_capture -- FILE`.

use std::path::Path;

use efa_capture::frame::FrameKind;
use efa_capture::{ReadError, Reader};
use efa_wire::{Packet, Repr as _};

/// A line for each RDM packet of the capture.
fn lines(capture: &Path) -> Result<Vec<String>, ReadError> {
    let mut reader = Reader::open(capture)?;
    let mut lines = Vec::new();
    while let Some(captured) = reader.next_frame()? {
        // Skips other traffic of the interface, and frames that are not sends.
        let Ok(frame) = captured.frame else { continue };
        let FrameKind::Send = frame.header.kind else {
            continue;
        };
        let content = match Packet::parse(frame.payload) {
            Ok(packet) => packet.header.packet_type().name().to_owned(),
            Err(error) => error.to_string(),
        };
        lines.push(format!(
            "{} {:?} {} to {}: {content}",
            captured.number, captured.time, frame.source, frame.destination
        ));
    }
    Ok(lines)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let capture = std::env::args().nth(1).ok_or("usage: read_capture FILE")?;
    for line in lines(Path::new(&capture))? {
        println!("{line}");
    }
    Ok(())
}
