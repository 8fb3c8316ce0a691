//! `efa-emu rsh`: launchers call it instead of `ssh`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use efa_commands::living_directories;
use efa_shm::ENV_FABRIC;

use crate::complain;
use crate::files::{ADDRESSES_FILE, ENV_CLUSTER, FABRIC_FILE, NAMES_FILE};
use crate::process::{self, Forked};
use crate::session::{self, CommandRequest, Reply};

/// Exit status for errors of `rsh` itself, and for commands killed by a signal, as in ssh.
const FAILED: u8 = 255;

/// Options of ssh with a value, which is the rest of the word or the next word. Those whose effect
/// callers would miss are refused: `-N`, `-G`, `-V`, `-Q`, `-O`, `-W`.
const WITH_VALUE: &[u8] = b"BDEFIJLPRSbceilmopw";

/// Options of ssh without a value. `1` and `2` are from old releases, but still used by tools.
const WITHOUT_VALUE: &[u8] = b"1246ACKMTXYafgknqstvxy";

/// Executes the arguments like ssh.
pub fn main(words: Vec<OsString>) -> ExitCode {
    let invocation = Invocation::parse(words).map_err(RshError::from);
    match invocation.and_then(|invocation| invocation.run()) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(FAILED)
        }
    }
}

/// The reason why arguments are not those of ssh.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum UsageError {
    #[error("rsh needs a host: efa-emu rsh HOST COMMAND")]
    NoHost,
    #[error("rsh: option -{0} needs a value, as with ssh")]
    NoValue(char),
    #[error("rsh has no option -{}", .0.escape_ascii())]
    NoOption(u8),
    #[error("rsh does not follow SetEnv: write `env NAME=VALUE` before the command")]
    SetEnv,
}

/// The reason why a command is not run on a host.
#[derive(Debug, thiserror::Error)]
enum RshError {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error("cannot reach {}: {source}: its processes have ended", host.display())]
    Unreachable { host: OsString, source: io::Error },
    /// The reason of the host's process, as it has sent it.
    #[error("{}: {reason}", host.display())]
    Refused { host: OsString, reason: String },
    #[error("the connection to {} was closed: the host has ended", .0.display())]
    Closed(OsString),
    #[error(
        "there is no cluster in {} ({source}): it has ended; unset {ENV_CLUSTER}, or start one with `efa-emu cluster`",
        directory.display()
    )]
    ClusterEnded {
        directory: PathBuf,
        source: io::Error,
    },
    #[error(
        "there is no cluster: start one with `efa-emu cluster`; a host of `efa-emu run` is joined with `efa-emu run \
         --host`"
    )]
    NoCluster,
    #[error(
        "there are clusters on the fabrics {}: set {ENV_FABRIC} to one of them",
        fabrics.join(", ")
    )]
    SeveralClusters { fabrics: Vec<String> },
    #[error("{} is not a host of this cluster: {}", host.display(), listed(hosts))]
    NoSuchHost { host: OsString, hosts: Vec<String> },
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A text about the hosts of a cluster, which has at least one.
fn listed(hosts: &[String]) -> String {
    match hosts {
        [first, .., last] => format!("the hosts are {first} to {last}"),
        hosts => format!("the only host is {}", hosts.join("")),
    }
}

/// The parsed arguments of ssh.
#[derive(Debug, Default, PartialEq, Eq)]
struct Invocation {
    host: OsString,
    /// The words of the command, separated by blanks.
    command: Option<OsString>,
    /// `-n`, `-f`: no standard input.
    no_input: bool,
    /// `-f`: exits once the command runs.
    background: bool,
    quiet: bool,
    /// Patterns for names of variables to pass on.
    send_env: Vec<OsString>,
}

impl Invocation {
    fn parse(words: Vec<OsString>) -> Result<Invocation, UsageError> {
        let mut invocation = Invocation::default();
        let mut words = words.into_iter().peekable();
        let mut host = None;
        // Options are before the host, and may be repeated after it.
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
        let host = host.ok_or(UsageError::NoHost)?;
        // `[USER@]HOST`, in lower case like ssh.
        let host = host
            .as_bytes()
            .rsplit(|byte| *byte == b'@')
            .next()
            .unwrap_or_default();
        invocation.host = OsString::from_vec(host.to_ascii_lowercase());
        let command: Vec<_> = words.collect();
        invocation.command = (!command.is_empty()).then(|| command.join(OsStr::new(" ")));
        Ok(invocation)
    }

    /// Parses a word of options. The last option's value may be the next word.
    fn option(
        &mut self,
        word: &[u8],
        next: impl FnOnce() -> Option<OsString>,
    ) -> Result<(), UsageError> {
        for (at, letter) in word.iter().enumerate().skip(1) {
            match letter {
                b'n' => self.no_input = true,
                b'f' => (self.background, self.no_input) = (true, true),
                b'q' => self.quiet = true,
                letter if WITHOUT_VALUE.contains(letter) => {}
                letter if WITH_VALUE.contains(letter) => {
                    let value = match &word[at + 1..] {
                        [] => next().ok_or(UsageError::NoValue(char::from(*letter)))?,
                        rest => OsStr::from_bytes(rest).to_owned(),
                    };
                    return match letter {
                        b'o' => self.setting(value.as_bytes()),
                        _ => Ok(()),
                    };
                }
                letter => return Err(UsageError::NoOption(*letter)),
            }
        }
        Ok(())
    }

    /// Parses `KEY=VALUE` or `KEY VALUE` in the format of ssh's configuration files.
    fn setting(&mut self, text: &[u8]) -> Result<(), UsageError> {
        let text = String::from_utf8_lossy(text);
        let is_gap = |byte: char| byte == '=' || byte.is_ascii_whitespace();
        let (key, values) = text.trim().split_once(is_gap).unwrap_or_default();
        if key.eq_ignore_ascii_case("SendEnv") {
            let values = values.trim_start_matches(is_gap).split_ascii_whitespace();
            self.send_env.extend(values.map(OsString::from));
        } else if key.eq_ignore_ascii_case("SetEnv") {
            return Err(UsageError::SetEnv);
        }
        Ok(())
    }

    fn variables(&self) -> Vec<(OsString, OsString)> {
        let is_sent = |name: &OsStr| {
            let mut patterns = self.send_env.iter();
            patterns.any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
        };
        env::vars_os().filter(|(name, _)| is_sent(name)).collect()
    }

    /// Runs a command with the user's shell, or a shell, on the host.
    fn run(&self) -> Result<u8, RshError> {
        let name = self.host.display();
        let directory = find_host(&self.host)?;
        let lost = |source| RshError::Unreachable {
            host: self.host.clone(),
            source,
        };
        let mut connection = session::connect(&directory).map_err(lost)?;
        let request = CommandRequest {
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
        let mut replies = BufReader::new(connection);
        loop {
            match Reply::receive(&mut replies).map_err(lost)? {
                Some(Reply::Started) if self.background => {
                    if let Forked::Parent(_) = process::fork()? {
                        return Ok(0);
                    }
                    rustix::process::setsid().map_err(io::Error::from)?;
                }
                Some(Reply::Started | Reply::StartedWithout(_)) => {}
                Some(Reply::Exited(status)) => return Ok(status),
                Some(Reply::Refused(reason)) => {
                    return Err(RshError::Refused {
                        host: self.host.clone(),
                        reason,
                    });
                }
                Some(Reply::Killed(signal)) => {
                    if !self.quiet {
                        complain(&format!("{name}: signal {signal} ended the command"));
                    }
                    return Ok(FAILED);
                }
                // The launcher has exited, or no process waits for the command: no message is
                // needed.
                Some(Reply::ClusterEnds) => return Ok(FAILED),
                None if self.background => return Ok(FAILED),
                None => return Err(RshError::Closed(self.host.clone())),
            }
        }
    }
}

fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word.as_bytes()[0] == b'-'
}

/// Returns whether a name matches a pattern of ssh: `*` matches any characters, `?` one.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        ([b'?', pattern @ ..], [_, name @ ..]) => matches(pattern, name),
        ([one, pattern @ ..], [other, name @ ..]) => one == other && matches(pattern, name),
        _ => false,
    }
}

/// The directory of a host, in the cluster of this process, or in the only cluster.
fn find_host(name: &OsStr) -> Result<PathBuf, RshError> {
    let cluster = match env::var_os(ENV_CLUSTER) {
        Some(directory) => PathBuf::from(directory),
        None => only_cluster()?,
    };
    let names = match std::fs::read_to_string(cluster.join(NAMES_FILE)) {
        Ok(names) => names,
        Err(source) => {
            return Err(RshError::ClusterEnded {
                directory: cluster,
                source,
            });
        }
    };
    let names: Vec<_> = names.lines().collect();
    let addresses = std::fs::read_to_string(cluster.join(ADDRESSES_FILE)).unwrap_or_default();
    if let Some(known) = names
        .iter()
        .find(|known| **known == name)
        .or_else(|| host_at(&addresses, &names, name))
    {
        return Ok(cluster.join(known));
    }
    Err(RshError::NoSuchHost {
        host: name.to_owned(),
        hosts: names.into_iter().map(str::to_owned).collect(),
    })
}

/// The host with a unique address in `/etc/hosts`. Hosts of other machines share their machine's
/// address.
fn host_at<'a>(addresses: &str, names: &'a [&'a str], address: &OsStr) -> Option<&'a &'a str> {
    let mut at = addresses
        .lines()
        .map(str::split_whitespace)
        .filter(|line| line.clone().next().is_some_and(|first| address == first))
        .flat_map(|line| line.skip(1))
        .filter_map(|name| names.iter().find(|known| **known == name));
    at.next().filter(|_| at.next().is_none())
}

/// The only running cluster of the user. With `EFA_EMU_FABRIC`, the cluster on that fabric.
fn only_cluster() -> Result<PathBuf, RshError> {
    let wanted = env::var(ENV_FABRIC).ok();
    let fabric_of = |directory: &Path| std::fs::read_to_string(directory.join(FABRIC_FILE)).ok();
    let clusters: Vec<(String, PathBuf)> = living_directories()
        .into_iter()
        .filter_map(|directory| Some((fabric_of(&directory)?, directory)))
        .filter(|(fabric, _)| wanted.as_ref().is_none_or(|wanted| wanted == fabric))
        .collect();
    match clusters.as_slice() {
        [(_, only)] => Ok(only.clone()),
        [] => Err(RshError::NoCluster),
        several => Err(RshError::SeveralClusters {
            fabrics: several.iter().map(|(fabric, _)| fabric.clone()).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Invocation, String> {
        let words = words.iter().map(OsString::from).collect();
        Invocation::parse(words).map_err(|error| error.to_string())
    }

    /// The command lines with which launchers and tools call ssh.
    #[test]
    fn options_host_and_command_split_as_in_ssh() {
        let node = |command: &str| Invocation {
            host: "node1".into(),
            command: Some(command.into()),
            ..Invocation::default()
        };
        let cases: [(&[&str], Invocation); 8] = [
            (&["NODE1", "true"], node("true")),
            // Open MPI
            (
                &["-x", "node1", "orted", "-mca", "ess", "\"env\""],
                node("orted -mca ess \"env\""),
            ),
            // pdsh
            (&["-2", "-a", "-x", "-lroot", "node1", "date"], node("date")),
            (
                &[
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
    fn misuse_is_reported() {
        for (words, part) in [
            (&["-x"][..], "needs a host"),
            (&["-p"], "-p needs a value"),
            (&["-Z", "node1"], "no option -Z"),
            (&[], "needs a host"),
            (&["-N", "node1"], "no option -N"),
            (&["-oSetEnv=A=b", "node1"], "env NAME=VALUE"),
        ] {
            let reason = parse(words).unwrap_err();
            assert!(reason.contains(part), "{words:?}: {reason}");
        }
    }

    #[test]
    fn a_host_is_found_by_its_address() {
        let names = ["node0", "node1", "node2", "node3"];
        let list = "127.0.0.1 localhost\n127.1.0.1 node0\n127.1.0.2 node1\n10.0.0.1 node2\n10.0.0.1 node3\n";
        let found = |address: &str| host_at(list, &names, OsStr::new(address)).copied();
        assert_eq!(found("127.1.0.2"), Some("node1"));
        for other in ["10.0.0.1", "127.0.0.1", "127.1.0.3", "localhost", ""] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn settings_name_the_variables_that_go_along() {
        let words = [
            "-oSendEnv=LC_* LANG",
            "-o",
            "sendenv = A",
            "-o",
            "Junk",
            "node1",
        ];
        let invocation = parse(&words).unwrap();
        assert_eq!(invocation.send_env, ["LC_*", "LANG", "A"]);
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
