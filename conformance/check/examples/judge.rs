//! Judges a capture by the rules of the protocol: `cargo run --example judge -- FILE`.

use std::path::Path;
use std::process::ExitCode;

use efa_check::capture::Frames;
use efa_check::check::Judge;
use efa_wire::rules::Severity;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: judge FILE")?;
    // Frame by frame, so that a capture may be longer than memory.
    let mut frames = Frames::open(Path::new(&path))?.without_rdma_data();
    let mut judge = Judge::new();
    while let Some(frame) = frames.next_frame()? {
        frames.reuse(judge.frame(frame)?);
    }
    for interface in frames.lossy() {
        judge.lossy(interface);
    }
    let checked = judge.finish();
    for finding in &checked.findings {
        println!("{finding}");
    }
    Ok(match checked.at_least(Severity::Error) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
