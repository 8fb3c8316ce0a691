//! A run: starts the guests in order, and waits for all.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ExitCode};
use std::sync::mpsc::{Receiver, Sender, channel};

use efa_commands::{Failure, RunDirectory, complain, shell};
use efa_options::vm::VmArguments;

use super::machine::{GuestConfig, MOST_GUESTS};
use super::software::Software;
use super::{PROGRAM, contents};

/// The line by which a guest requests the number of its boot.
const BOOTS: &str = "efa-emu-vm: boots";
/// The line with which a guest reports that its command runs.
const RUNS: &str = "efa-emu-vm: runs";
/// The start of the line with which a guest reports the exit status of its command.
const EXIT: &str = "efa-emu-vm: exit ";

/// The state of a guest.
enum GuestState {
    /// Its command runs, for the first time or after a reboot.
    Runs(usize),
    /// Its machine has exited, with its command's status.
    Ended(usize, Option<u8>),
}

/// Runs the commands.
///
/// # Errors
/// QEMU or the kernel is not available, or a guest cannot be created.
pub(crate) fn run(arguments: &VmArguments) -> Result<ExitCode, Failure> {
    let commands = divide(&arguments.commands)?;
    let run_options = match &arguments.run {
        Some(options) => shell::split_words(options)
            .map_err(|error| Failure(format!("--run '{options}': {error}")))?,
        None => Vec::new(),
    };
    let software = Software::fetch(arguments)?;
    let directory = RunDirectory::create()?;
    let consoles = match &arguments.keep {
        Some(consoles) => {
            fs::create_dir_all(consoles).map_err(|error| {
                let consoles = consoles.display();
                Failure(format!(
                    "cannot make {consoles}: {error}: name another directory"
                ))
            })?;
            consoles.clone()
        }
        None => directory.subdirectory("consoles")?,
    };
    let files = directory.path().join("files.cpio");
    contents::write(&files, &software, &commands, &arguments.with)?;
    let site = GuestConfig {
        arguments,
        software: &software,
        files,
        directory: directory.path(),
        consoles,
        guests: commands.len(),
        run_options,
    };
    let (sender, states) = channel();
    let mut children = Vec::new();
    let mut first_failure = None;
    // The next guest boots after the previous one runs, because its command may need that one's.
    while children.len() < commands.len() && first_failure.is_none() {
        let guest = children.len() + 1;
        complain(PROGRAM, &format!("vm{guest} boots"));
        children.push(start(&site, guest, &sender)?);
        first_failure = until_it_runs(&site, &states, guest);
    }
    drop(sender);
    while first_failure.is_none()
        && let Ok(news) = states.recv()
    {
        first_failure = failure(&site, &news);
    }
    for child in &mut children {
        if first_failure.is_some() {
            end(child);
        }
        child.wait()?;
    }
    for guest in 1..=children.len() {
        let _ = fs::remove_file(site.monitor_link(guest));
    }
    Ok(first_failure.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// The commands of the guests.
fn divide(words: &[String]) -> Result<Vec<Vec<String>>, Failure> {
    let commands: Vec<Vec<String>> = words.split(|word| word == ":").map(<[_]>::to_vec).collect();
    if commands.iter().any(Vec::is_empty) {
        return Err(Failure(
            "a guest has no command: write one before and behind `:`".to_owned(),
        ));
    }
    if commands.len() > MOST_GUESTS {
        let count = commands.len();
        return Err(Failure(format!(
            "{count} guests: there are at most {MOST_GUESTS}"
        )));
    }
    Ok(commands)
}

/// Starts a guest, whose output is shown.
fn start(
    site: &GuestConfig<'_>,
    guest: usize,
    sender: &Sender<GuestState>,
) -> Result<Child, Failure> {
    let mut child = site.start(guest)?;
    let (mut input, output) = (child.stdin.take(), child.stdout.take());
    let sender = sender.clone();
    let prefix = match site.guests {
        1 => String::new(),
        _ => format!("vm{guest}: "),
    };
    std::thread::spawn(move || {
        let mut status = None;
        let mut boots = 0;
        // The line before the status is empty if the command's output ended with a newline.
        let mut is_empty_due = false;
        let lines = output.map(|output| BufReader::new(output).split(b'\n'));
        for line in lines.into_iter().flatten().map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches('\r');
            if let (BOOTS, Some(input)) = (line, &mut input) {
                boots += 1;
                let _ = writeln!(input, "{boots}");
            } else if line == RUNS {
                let _ = sender.send(GuestState::Runs(guest));
            } else if let Some(exit) = line.strip_prefix(EXIT) {
                status = exit.parse().ok();
            } else {
                if std::mem::replace(&mut is_empty_due, line.is_empty()) {
                    show(&prefix, "");
                }
                if !line.is_empty() {
                    show(&prefix, line);
                }
            }
        }
        let _ = sender.send(GuestState::Ended(guest, status));
    });
    Ok(child)
}

/// Prints a line of a guest, if standard output is still open.
fn show(prefix: &str, line: &str) {
    let _ = writeln!(std::io::stdout(), "{prefix}{line}");
}

/// Waits until the command of a guest runs. Returns the status of any command that has failed
/// meanwhile.
fn until_it_runs(
    site: &GuestConfig<'_>,
    states: &Receiver<GuestState>,
    guest: usize,
) -> Option<u8> {
    while let Ok(news) = states.recv() {
        let failure = failure(site, &news);
        if failure.is_some() || matches!(news, GuestState::Runs(runs) if runs == guest) {
            return failure;
        }
    }
    None
}

/// The status of a guest that has failed.
fn failure(site: &GuestConfig<'_>, news: &GuestState) -> Option<u8> {
    const NO_STATUS: u8 = 1;
    match *news {
        GuestState::Runs(_) | GuestState::Ended(_, Some(0)) => None,
        GuestState::Ended(_, Some(status)) => Some(status),
        GuestState::Ended(guest, None) => {
            let console = site.console(guest);
            let text = fs::read(&console).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let last: Vec<&str> = text.lines().rev().take(5).collect();
            for line in last.iter().rev() {
                complain(PROGRAM, &format!("vm{guest}: {line}"));
            }
            let hint = "keep its console with --keep DIR";
            complain(
                PROGRAM,
                &format!("vm{guest} has ended before its command: {hint}"),
            );
            Some(NO_STATUS)
        }
    }
}

/// Stops a guest whose peer has failed.
fn end(child: &Child) {
    if let Some(pid) = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn commands_of_guests_are_divided_by_colons() {
        let divided = divide(&words("server -x : client vm1")).unwrap();
        assert_eq!(divided, [words("server -x"), words("client vm1")]);
        assert_eq!(divide(&words("only one")).unwrap(), [words("only one")]);
        for (text, expected) in [
            (": client", "a guest has no command"),
            ("server :", "a guest has no command"),
            ("a : b : c", "3 guests"),
        ] {
            let Failure(reason) = divide(&words(text)).unwrap_err();
            assert!(reason.starts_with(expected), "{text}: {reason}");
        }
    }
}
