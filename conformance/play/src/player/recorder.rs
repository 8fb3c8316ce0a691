//! Records the packets of a program's device, and transmits a capture from another host as lines
//! over the connection that started the program.

use std::io::{self, Read, Write};
use std::path::Path;

use efa_commands::shell::split_words;
use efa_shm::HostConfig;

use super::program::find_beside;
use super::requirement::RequirementError;
use crate::drive::{Bytes, Event, Line};

/// The placeholder for the capture's file in a recorder's command.
const FILE: &str = "{file}";
/// The number of bytes of the capture in a line: with two digits for each, less than the longest
/// answer.
const IN_A_LINE: usize = 1 << 18;

/// A command that runs a program and records its packets in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorder {
    /// The words before the program; `{file}` is replaced by the capture's path.
    words: Vec<String>,
}

impl Recorder {
    /// Parses a command, which is split into words as by a shell.
    ///
    /// # Errors
    /// The error in it.
    pub fn parse(command: &str) -> Result<Self, RequirementError> {
        let words = split_words(command)?;
        match words.iter().any(|word| word.contains(FILE)) {
            true => Ok(Recorder { words }),
            false => Err(RequirementError::CaptureFile),
        }
    }

    /// The recorder of this host: `efa-emu run` on an emulated host, `efa-tap` for other devices.
    ///
    /// # Errors
    /// The program that is missing.
    pub fn of_this_host() -> Result<Self, RequirementError> {
        let mut words = match HostConfig::from_env() {
            Ok(host) => on_emulated_host(find("efa-emu")?, &host),
            Err(_) => vec![find("efa-tap")?, "run".into(), "-q".into()],
        };
        words.extend(["--pcap".into(), FILE.into(), "--".into()]);
        Ok(Recorder { words })
    }

    /// The prefix of a program on this host that is not recorded: none for a real device; for an
    /// emulated one `efa-emu run`, which makes the program use the device in any environment.
    ///
    /// # Errors
    /// The missing program.
    pub(super) fn without_capture() -> Result<Vec<String>, RequirementError> {
        let Ok(host) = HostConfig::from_env() else {
            return Ok(Vec::new());
        };
        let mut words = on_emulated_host(find("efa-emu")?, &host);
        words.push("--".into());
        Ok(words)
    }

    /// The words before a program whose capture is written to `file`.
    pub(super) fn words(&self, file: &Path) -> Vec<String> {
        let text = file.display().to_string();
        let words = self.words.iter();
        words.map(|word| word.replace(FILE, &text)).collect()
    }
}

/// A program in the directory of this one, or else in `PATH`.
fn find(name: &'static str) -> Result<String, RequirementError> {
    let own = std::env::current_exe().unwrap_or_default();
    match find_beside(&own, name) {
        Some(path) => Ok(path.display().to_string()),
        None => Err(RequirementError::Recorder { name, own }),
    }
}

/// The words of `efa-emu run` that start a program on an emulated host that already exists.
fn on_emulated_host(efa_emu: String, host: &HostConfig) -> Vec<String> {
    let mut words = vec![efa_emu, "run".into(), "--quiet".into()];
    let options = [
        ("host", &host.host),
        ("fabric", &host.fabric),
        ("profile", &host.profile),
    ];
    words.extend(options.map(|(name, value)| format!("--{name}={value}")));
    if host.serve_unknown_peers {
        words.push("--serve-unknown-peers".into());
    }
    // The options have the same names on the command line.
    let network = host.network.to_string();
    words.extend(network.split(',').map(|option| format!("--{option}")));
    words
}

/// Writes a capture as lines of the driver protocol.
pub(super) fn write_lines(mut capture: impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut part = Vec::new();
    loop {
        part.clear();
        if capture
            .by_ref()
            .take(IN_A_LINE as u64)
            .read_to_end(&mut part)?
            == 0
        {
            return output.flush();
        }
        let event = Event::Captured {
            bytes: Bytes(part.clone()),
        };
        writeln!(output, "{}", event.line())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_names_its_file() {
        let problem = Recorder::parse("tcpdump -w x").unwrap_err();
        assert!(problem.to_string().contains("{file}"), "{problem}");
        assert!(Recorder::parse("'a").is_err());
    }

    #[test]
    fn long_captures_are_many_lines() {
        let bytes = vec![0x5a; IN_A_LINE + 1];
        let mut output = Vec::new();
        write_lines(&bytes[..], &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        let parts: Vec<usize> = text
            .lines()
            .map(|line| match Event::parse(line).unwrap() {
                Event::Captured { bytes } => bytes.0.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(parts, [IN_A_LINE, 1]);
        assert!(
            text.lines()
                .all(|line| line.len() < crate::drive::LONGEST_ANSWER)
        );
    }
}
