//! Judges a capture by the rules of the protocol: `cargo run --example judge -- FILE`.

use std::path::Path;
use std::process::ExitCode;

use efa_check::capture::Capture;
use efa_check::check::check;
use efa_wire::rules::Severity;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: judge FILE")?;
    let checked = check(&Capture::load(Path::new(&path))?);
    for finding in &checked.findings {
        println!("{finding}");
    }
    Ok(match checked.at_least(Severity::Error) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
