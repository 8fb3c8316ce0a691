//! `efa-emu rsh`: what launchers call in place of `ssh`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use efa_emu::command::{Failure, living_directories};
use efa_emu::transport::ENV_FABRIC;

use super::process::{self, Forked};
use super::session::{self, Reply, Request};
use super::{ENV_CLUSTER, FABRIC_FILE, NAMES_FILE};
use crate::cli::complain;

/// Exit status for errors of `rsh` itself, and of commands that a signal ended: as of ssh.
const FAILED: u8 = 255;

/// Options of ssh with a value, which may be the rest of the word or the next one.
const WITH_VALUE: &[u8] = b"BDEFIJLOPQRSWbceilmopw";

/// Options of ssh without one. `1` and `2` are of old releases, and tools still give them.
const WITHOUT_VALUE: &[u8] = b"1246ACGKMNTVXYafgknqstvxy";

#[derive(Args)]
#[command(override_usage = "efa-emu rsh [OPTIONS OF SSH] [USER@]HOST [COMMAND [ARG]...]")]
pub(in crate::cli) struct RshArguments {
    /// What ssh would be called with. Of its options, -f, -n, -q, and SendEnv and SetEnv of -o are followed, and the others
    /// ignored.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARG"
    )]
    words: Vec<OsString>,
}

impl RshArguments {
    pub(in crate::cli) fn execute(self) -> ExitCode {
        main(self.words)
    }
}

/// Does what ssh does with these arguments.
pub(in crate::cli) fn main(words: Vec<OsString>) -> ExitCode {
    match Invocation::parse(words).and_then(|invocation| invocation.execute()) {
        Ok(status) => ExitCode::from(status),
        Err(Failure(reason)) => {
            complain(&reason);
            ExitCode::from(FAILED)
        }
    }
}

/// What ssh was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Invocation {
    host: OsString,
    /// The words of the command with blanks between them.
    command: Option<OsString>,
    /// `-n`, `-f`: nothing to read.
    no_input: bool,
    /// `-f`: goes on by itself once the command runs.
    background: bool,
    quiet: bool,
    /// Patterns of the names of variables that go along.
    send_env: Vec<OsString>,
    set_env: Vec<(OsString, OsString)>,
}

impl Invocation {
    fn parse(words: Vec<OsString>) -> Result<Invocation, Failure> {
        let mut invocation = Invocation::default();
        let mut words = words.into_iter().peekable();
        let mut host = None;
        // Options stand before the host, and again behind it.
        for _ in 0..2 {
            while let Some(word) = words.next_if(|word| is_option(word)) {
                if word == "--" {
                    break;
                }
                invocation.option(word.as_bytes(), || words.next())?;
            }
            if host.is_none() {
                host = words.next();
            }
        }
        let host =
            host.ok_or_else(|| Failure("rsh needs a host: efa-emu rsh HOST COMMAND".into()))?;
        let start = host.as_bytes().iter().rposition(|byte| *byte == b'@');
        let start = start.map_or(0, |at| at + 1);
        invocation.host = OsStr::from_bytes(&host.as_bytes()[start..]).to_owned();
        let command: Vec<_> = words.collect();
        invocation.command = (!command.is_empty()).then(|| command.join(OsStr::new(" ")));
        Ok(invocation)
    }

    /// Follows a word of options, whose last may have its value in the next word.
    fn option(
        &mut self,
        word: &[u8],
        next: impl FnOnce() -> Option<OsString>,
    ) -> Result<(), Failure> {
        for (at, letter) in word.iter().enumerate().skip(1) {
            match letter {
                b'n' => self.no_input = true,
                b'f' => (self.background, self.no_input) = (true, true),
                b'q' => self.quiet = true,
                letter if WITHOUT_VALUE.contains(letter) => {}
                letter if WITH_VALUE.contains(letter) => {
                    let value = match &word[at + 1..] {
                        [] => next().ok_or_else(|| {
                            let letter = char::from(*letter);
                            Failure(format!("rsh: option -{letter} needs a value, as with ssh"))
                        })?,
                        rest => OsStr::from_bytes(rest).to_owned(),
                    };
                    if *letter == b'o' {
                        self.setting(value.as_bytes());
                    }
                    return Ok(());
                }
                letter => {
                    let letter = letter.escape_ascii();
                    return Err(Failure(format!("rsh: ssh has no option -{letter}")));
                }
            }
        }
        Ok(())
    }

    /// Follows `KEY=VALUE` or `KEY VALUE` of a configuration file of ssh.
    fn setting(&mut self, text: &[u8]) {
        let is_gap = |byte: &u8| *byte == b'=' || byte.is_ascii_whitespace();
        let Some(at) = text.iter().position(is_gap) else {
            return;
        };
        let (key, values) = (&text[..at], &text[at + 1..]);
        let values = values
            .split(u8::is_ascii_whitespace)
            .filter(|value| !value.is_empty());
        if key.eq_ignore_ascii_case(b"SendEnv") {
            self.send_env
                .extend(values.map(|value| OsString::from_vec(value.to_vec())));
        } else if key.eq_ignore_ascii_case(b"SetEnv") {
            self.set_env.extend(values.filter_map(|value| {
                let at = value.iter().position(|byte| *byte == b'=')?;
                let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                Some((text(&value[..at]), text(&value[at + 1..])))
            }));
        }
    }

    fn variables(&self) -> Vec<(OsString, OsString)> {
        let sent = env::vars_os().filter(|(name, _)| {
            let mut patterns = self.send_env.iter();
            patterns.any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
        });
        sent.chain(self.set_env.iter().cloned()).collect()
    }

    fn execute(&self) -> Result<u8, Failure> {
        let name = self.host.display();
        let directory = find_host(&self.host)?;
        let lost = |error| {
            Failure(format!(
                "cannot reach {name}: {error}: its processes have ended"
            ))
        };
        let mut connection = session::connect(&directory).map_err(lost)?;
        let request = Request {
            command: self.command.clone(),
            variables: self.variables(),
        };
        let (input, output, errors) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let nothing = match self.no_input {
            true => Some(File::open("/dev/null")?),
            false => None,
        };
        let input: BorrowedFd<'_> = nothing.as_ref().map_or(input.as_fd(), AsFd::as_fd);
        request
            .send(&mut connection, [input, output.as_fd(), errors.as_fd()])
            .map_err(lost)?;
        loop {
            match Reply::receive(&mut connection).map_err(lost)? {
                Some(Reply::Started) if self.background => {
                    if let Forked::Parent(_) = process::fork()? {
                        return Ok(0);
                    }
                    rustix::process::setsid()?;
                }
                Some(Reply::Started) => {}
                Some(Reply::Exited(status)) => return Ok(status),
                Some(Reply::Refused(reason)) => return Err(Failure(format!("{name}: {reason}"))),
                Some(Reply::Killed(signal)) => {
                    if !self.quiet {
                        complain(&format!("{name}: signal {signal} ended the command"));
                    }
                    return Ok(FAILED);
                }
                // The launcher has ended, or nobody waits for the command: nothing is worth a message.
                Some(Reply::ClusterEnds) => return Ok(FAILED),
                None if self.background => return Ok(FAILED),
                None => {
                    return Err(Failure(format!(
                        "the connection to {name} was closed: the host has ended"
                    )));
                }
            }
        }
    }
}

fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word.as_bytes()[0] == b'-'
}

/// Returns whether a name matches a pattern of ssh: `*` stands for any characters, `?` for one.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        ([b'?', pattern @ ..], [_, name @ ..]) => matches(pattern, name),
        ([one, pattern @ ..], [other, name @ ..]) => one == other && matches(pattern, name),
        _ => false,
    }
}

/// The directory of a host: of the cluster that this process belongs to, or of the one that is there.
fn find_host(name: &OsStr) -> Result<PathBuf, Failure> {
    let cluster = match env::var_os(ENV_CLUSTER) {
        Some(directory) => PathBuf::from(directory),
        None => only_cluster()?,
    };
    let names = std::fs::read_to_string(cluster.join(NAMES_FILE)).map_err(|error| {
        Failure(format!(
            "there is no cluster in {} ({error}): it has ended; unset {ENV_CLUSTER}, or start one with `efa-emu \
             cluster`",
            cluster.display()
        ))
    })?;
    let names: Vec<_> = names.lines().collect();
    if names.iter().any(|known| *known == name) {
        return Ok(cluster.join(name));
    }
    let hosts = match names.as_slice() {
        [first, .., last] => format!("the hosts are {first} to {last}"),
        names => format!("the only host is {}", names.join("")),
    };
    Err(Failure(format!(
        "{} is no host of this cluster: {hosts}",
        name.display()
    )))
}

/// The cluster of the user's that runs; with `EFA_EMU_FABRIC`, the one on that fabric.
fn only_cluster() -> Result<PathBuf, Failure> {
    let wanted = env::var(ENV_FABRIC).ok();
    let fabric_of = |directory: &Path| std::fs::read_to_string(directory.join(FABRIC_FILE)).ok();
    let clusters: Vec<(String, PathBuf)> = living_directories()
        .into_iter()
        .filter_map(|directory| Some((fabric_of(&directory)?, directory)))
        .filter(|(fabric, _)| wanted.as_ref().is_none_or(|wanted| wanted == fabric))
        .collect();
    match clusters.as_slice() {
        [(_, only)] => Ok(only.clone()),
        [] => Err(Failure(
            "there is no cluster: start one with `efa-emu cluster`; a host of `efa-emu run` is joined with \
             `efa-emu run --host`"
                .into(),
        )),
        several => {
            let fabrics: Vec<_> = several.iter().map(|(fabric, _)| fabric.as_str()).collect();
            Err(Failure(format!(
                "there are clusters on the fabrics {}: set {ENV_FABRIC} to one of them",
                fabrics.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Invocation, String> {
        let words = words.iter().map(OsString::from).collect();
        Invocation::parse(words).map_err(|Failure(reason)| reason)
    }

    /// The lines with which launchers and tools call ssh.
    #[test]
    fn options_are_told_from_host_and_command_as_ssh_does() {
        let node = |command: &str| Invocation {
            host: "node1".into(),
            command: Some(command.into()),
            ..Invocation::default()
        };
        let cases: [(&[&str], Invocation); 8] = [
            (&["node1", "true"], node("true")),
            // Open MPI
            (
                &["-x", "node1", "orted", "-mca", "ess", "\"env\""],
                node("orted -mca ess \"env\""),
            ),
            // pdsh
            (&["-2", "-a", "-x", "-lroot", "node1", "date"], node("date")),
            (
                &[
                    "-l",
                    "me",
                    "-p",
                    "22",
                    "-oBatchMode=yes",
                    "-i",
                    "key",
                    "me@node1",
                    "a",
                    "b c",
                ],
                node("a b c"),
            ),
            (
                &["-vvT4", "-o", "Port 22", "--", "node1", "--", "-x"],
                node("-x"),
            ),
            (&["a@b@node1", "-p", "22", "ls", "-l"], node("ls -l")),
            (
                &["-xn", "node1", "true"],
                Invocation {
                    no_input: true,
                    ..node("true")
                },
            ),
            (
                &["-qf", "node1", "true"],
                Invocation {
                    no_input: true,
                    background: true,
                    quiet: true,
                    ..node("true")
                },
            ),
        ];
        for (words, expected) in cases {
            assert_eq!(parse(words), Ok(expected), "{words:?}");
        }
        assert_eq!(parse(&["node1"]).unwrap().command, None);
    }

    #[test]
    fn wrong_use_is_told() {
        for (words, part) in [
            (&["-x"][..], "needs a host"),
            (&["-p"], "-p needs a value"),
            (&["-Z", "node1"], "no option -Z"),
        ] {
            let reason = parse(words).unwrap_err();
            assert!(reason.contains(part), "{words:?}: {reason}");
        }
    }

    #[test]
    fn settings_name_the_variables_that_go_along() {
        let words = [
            "-oSendEnv=LC_* LANG",
            "-o",
            "setenv A=1 B=2=3",
            "-o",
            "Junk",
            "node1",
        ];
        let invocation = parse(&words).unwrap();
        assert_eq!(invocation.send_env, ["LC_*", "LANG"]);
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        assert_eq!(invocation.set_env, [pair("A", "1"), pair("B", "2=3")]);
        for (pattern, name, expected) in [
            ("LC_*", "LC_ALL", true),
            ("LC_*", "LC", false),
            ("*A*", "LANG", true),
            ("L?NG", "LANG", true),
            ("LANG", "LANGUAGE", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }
}
