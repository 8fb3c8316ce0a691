//! Writes one packet of each type into a directory, as the fuzzer's first corpus.

#[path = "../tests/wire/parts.rs"]
mod parts;

use std::path::PathBuf;

use efa_core::wire::Repr;
use parts::{Parts, wire_types};

fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds DIRECTORY");
        std::process::exit(2);
    };
    std::fs::create_dir_all(&directory)?;
    for packet_type in wire_types() {
        let parts = Parts::full(packet_type);
        let packet = parts.header().to_packet(&parts.payload);
        std::fs::write(directory.join(packet_type.name()), packet)?;
    }
    Ok(())
}
