//! Writes one packet of each type into a directory, as the fuzzer's first corpus.

#[path = "../tests/wire/recipe.rs"]
mod recipe;

use std::path::PathBuf;

use efa_core::wire::PacketType;
use recipe::Recipe;

fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds DIRECTORY");
        std::process::exit(2);
    };
    std::fs::create_dir_all(&directory)?;
    for packet_type in PacketType::ALL {
        let packet = Recipe::full(*packet_type).packet();
        std::fs::write(directory.join(packet_type.name()), packet)?;
    }
    Ok(())
}
