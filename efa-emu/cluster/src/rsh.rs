//! `efa-emu rsh`: launchers call it instead of `ssh`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use efa_commands::{Failure, living_directories, output};
use efa_shm::ENV_FABRIC;

use crate::files::{ADDRESSES_FILE, ENV_CLUSTER, FABRIC_FILE, NAMES_FILE};
use crate::node::User;
use crate::process::{self, Forked};
use crate::session::{self, Reply, Request};
use crate::{PROGRAM, complain};

/// Exit status for errors of `rsh` itself, and for commands killed by a signal, as in ssh.
const FAILED: u8 = 255;

/// Options of ssh with a value, which is the rest of the word or the next word.
const WITH_VALUE: &[u8] = b"BDEFIJLOPQRSWbceilmopw";

/// Options of ssh without a value. `1` and `2` are from old releases, but still used by tools.
const WITHOUT_VALUE: &[u8] = b"1246ACGKMNTVXYafgknqstvxy";

/// The output of `-V`: scripts search for the name, and derive features from the version.
const VERSION: &str = concat!(
    "efa-emu ",
    env!("CARGO_PKG_VERSION"),
    ", in the place of OpenSSH_9.2p1"
);

/// The algorithm queries of `-Q`. Connections are not encrypted, so the answers are empty.
const QUERIES: [&str; 16] = [
    "cipher",
    "cipher-auth",
    "compression",
    "help",
    "kex",
    "kex-gss",
    "key",
    "key-ca-sign",
    "key-cert",
    "key-plain",
    "key-sig",
    "mac",
    "protocol-version",
    "sig",
    "Ciphers",
    "HostKeyAlgorithms",
];

/// The URL scheme of a host.
const SCHEME: &str = "ssh://";

/// The command for `-N`, with the longest time that any `sleep` accepts.
const WAIT: &str = "exec sleep 2147483647";

/// Executes the arguments like ssh.
pub fn main(words: Vec<OsString>) -> ExitCode {
    match Invocation::parse(words).and_then(|invocation| invocation.execute()) {
        Ok(status) => ExitCode::from(status),
        Err(Failure(reason)) => {
            complain(&reason);
            ExitCode::from(FAILED)
        }
    }
}

/// The action that the options select.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Purpose {
    /// Run a command, or a shell.
    #[default]
    Command,
    /// `-N`: wait until killed.
    Nothing,
    /// `-G`: print the configuration of a host.
    Configuration,
    /// `-V`: print the version.
    Version,
    /// `-Q`: print the algorithms of this type.
    Algorithms(OsString),
}

impl Purpose {
    /// Whether the host argument is optional.
    fn is_of_program(&self) -> bool {
        matches!(self, Purpose::Version | Purpose::Algorithms(_))
    }
}

/// The parsed arguments of ssh.
#[derive(Debug, Default, PartialEq, Eq)]
struct Invocation {
    purpose: Purpose,
    host: OsString,
    user: Option<OsString>,
    port: Option<OsString>,
    /// The words of the command, separated by blanks.
    command: Option<OsString>,
    /// `-n`, `-f`: no standard input.
    no_input: bool,
    /// `-f`: exits once the command runs.
    background: bool,
    quiet: bool,
    /// Patterns for names of variables to pass on.
    send_env: Vec<OsString>,
    set_env: Vec<(OsString, OsString)>,
}

impl Invocation {
    fn parse(words: Vec<OsString>) -> Result<Invocation, Failure> {
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
                if invocation.purpose.is_of_program() {
                    return Ok(invocation);
                }
            }
            if host.is_none() {
                host = words.next();
            }
        }
        let host =
            host.ok_or_else(|| Failure("rsh needs a host: efa-emu rsh HOST COMMAND".into()))?;
        invocation.destination(host.as_bytes());
        let command: Vec<_> = words.collect();
        invocation.command = (!command.is_empty()).then(|| command.join(OsStr::new(" ")));
        Ok(invocation)
    }

    /// Parses `[USER@]HOST` or `ssh://[USER@]HOST[:PORT]`. Earlier options take precedence.
    fn destination(&mut self, text: &[u8]) {
        let owned = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        let uri = text.strip_prefix(SCHEME.as_bytes());
        let mut host = uri.map_or(text, |uri| uri.strip_suffix(b"/").unwrap_or(uri));
        if let Some(at) = host.iter().rposition(|byte| *byte == b'@') {
            self.user.get_or_insert_with(|| owned(&host[..at]));
            host = &host[at + 1..];
        }
        if uri.is_some()
            && let Some(at) = host.iter().rposition(|byte| *byte == b':')
        {
            self.port.get_or_insert_with(|| owned(&host[at + 1..]));
            host = &host[..at];
        }
        // Like ssh.
        self.host = owned(&host.to_ascii_lowercase());
    }

    /// Parses a word of options. The last option's value may be the next word.
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
                b'N' => self.purpose = Purpose::Nothing,
                b'G' => self.purpose = Purpose::Configuration,
                b'V' => {
                    self.purpose = Purpose::Version;
                    return Ok(());
                }
                letter if WITHOUT_VALUE.contains(letter) => {}
                letter if WITH_VALUE.contains(letter) => {
                    let value = match &word[at + 1..] {
                        [] => next().ok_or_else(|| {
                            let letter = char::from(*letter);
                            Failure(format!("rsh: option -{letter} needs a value, as with ssh"))
                        })?,
                        rest => OsStr::from_bytes(rest).to_owned(),
                    };
                    return self.option_with_value(*letter, value);
                }
                letter => {
                    let letter = letter.escape_ascii();
                    return Err(Failure(format!("rsh: ssh has no option -{letter}")));
                }
            }
        }
        Ok(())
    }

    fn option_with_value(&mut self, letter: u8, value: OsString) -> Result<(), Failure> {
        match letter {
            b'o' => return self.setting(value.as_bytes()),
            b'l' => {
                self.user.get_or_insert(value);
            }
            b'p' => {
                self.port.get_or_insert(value);
            }
            b'Q' => self.purpose = Purpose::Algorithms(value),
            b'O' => {
                return Err(Failure(format!(
                    "rsh: -O {}: there is no connection that calls share, and none is needed",
                    value.display()
                )));
            }
            b'W' => {
                return Err(Failure(format!(
                    "rsh: -W {}: nothing is forwarded, as the hosts have the machine's network: connect to it directly",
                    value.display()
                )));
            }
            _ => {}
        }
        Ok(())
    }

    /// Parses `KEY=VALUE` or `KEY VALUE` in the format of ssh's configuration files.
    fn setting(&mut self, text: &[u8]) -> Result<(), Failure> {
        let text = text.trim_ascii_start();
        let is_gap = |byte: &u8| *byte == b'=' || byte.is_ascii_whitespace();
        let Some(at) = text.iter().position(is_gap) else {
            return Ok(());
        };
        let (key, rest) = (&text[..at], text[at..].trim_ascii_start());
        let values = split_values(rest.strip_prefix(b"=").unwrap_or(rest)).ok_or_else(|| {
            let text = text.escape_ascii();
            Failure(format!("rsh: -o {text}: a quotation mark is not closed"))
        })?;
        let first = values.first().cloned();
        if key.eq_ignore_ascii_case(b"SendEnv") {
            self.send_env.extend(values);
        } else if key.eq_ignore_ascii_case(b"SetEnv") {
            self.set_env.extend(values.iter().filter_map(|value| {
                let value = value.as_bytes();
                let at = value.iter().position(|byte| *byte == b'=')?;
                let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                (at > 0).then(|| (text(&value[..at]), text(&value[at + 1..])))
            }));
        } else if key.eq_ignore_ascii_case(b"User") {
            self.user = self.user.take().or(first);
        } else if key.eq_ignore_ascii_case(b"Port") {
            self.port = self.port.take().or(first);
        }
        Ok(())
    }

    fn variables(&self) -> Vec<(OsString, OsString)> {
        let sent = env::vars_os().filter(|(name, _)| {
            let mut patterns = self.send_env.iter();
            patterns.any(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
        });
        sent.chain(self.set_env.iter().cloned()).collect()
    }

    fn execute(&self) -> Result<u8, Failure> {
        match &self.purpose {
            Purpose::Command => self.run(self.command.clone(), self.no_input),
            Purpose::Nothing => self.run(Some(WAIT.into()), true),
            Purpose::Configuration => Ok(answer(&self.configuration())),
            Purpose::Version => {
                // The same stream as ssh.
                let _ = writeln!(std::io::stderr(), "{VERSION}");
                Ok(0)
            }
            Purpose::Algorithms(kind) if kind == "help" => Ok(answer(&(QUERIES.join("\n") + "\n"))),
            Purpose::Algorithms(kind) if QUERIES.iter().any(|query| *kind == **query) => Ok(0),
            Purpose::Algorithms(kind) => Err(Failure(format!(
                "rsh: -Q {}: ssh has no such query: -Q help lists them",
                kind.display()
            ))),
        }
    }

    /// The output of `-G`: the settings that callers use.
    fn configuration(&self) -> String {
        let host = self.host.display();
        let own = || User::current().name.unwrap_or_default();
        let user = self.user.clone().unwrap_or_else(own);
        let port = self.port.clone().unwrap_or_else(|| "22".into());
        let (user, port) = (user.display(), port.display());
        format!("host {host}\nuser {user}\nhostname {host}\nport {port}\n")
    }

    /// Runs a command with the user's shell, or a shell, on the host.
    fn run(&self, command: Option<OsString>, no_input: bool) -> Result<u8, Failure> {
        let name = self.host.display();
        let directory = find_host(&self.host)?;
        let lost = |error| {
            Failure(format!(
                "cannot reach {name}: {error}: its processes have ended"
            ))
        };
        let mut connection = session::connect(&directory).map_err(lost)?;
        let request = Request {
            command,
            variables: self.variables(),
        };
        let (input, output, errors) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let nothing = match no_input {
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
                    rustix::process::setsid()?;
                }
                Some(Reply::Started | Reply::StartedWithout(_)) => {}
                Some(Reply::Exited(status)) => return Ok(status),
                Some(Reply::Refused(reason)) => return Err(Failure(format!("{name}: {reason}"))),
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
                None => {
                    return Err(Failure(format!(
                        "the connection to {name} was closed: the host has ended"
                    )));
                }
            }
        }
    }
}

/// Prints an answer, and returns the exit status.
fn answer(text: &str) -> u8 {
    output::print(PROGRAM, text);
    match output::is_incomplete() {
        true => FAILED,
        false => 0,
    }
}

fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word.as_bytes()[0] == b'-'
}

/// The words of a setting. Blanks inside of `'...'` and `"..."` belong to a word; `\` quotes
/// quotation marks and itself, and a blank outside. `None`: a quotation mark is not closed.
fn split_values(text: &[u8]) -> Option<Vec<OsString>> {
    let mut values = Vec::new();
    let mut value: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, quote) {
            (b'\\', _) => {
                let quoted = bytes.next_if(|next| {
                    matches!(next, b'\'' | b'"' | b'\\') || quote.is_none() && *next == b' '
                });
                value.get_or_insert_default().push(quoted.unwrap_or(byte));
            }
            (_, Some(end)) if byte == end => quote = None,
            (b'\'' | b'"', None) => {
                quote = Some(byte);
                value.get_or_insert_default();
            }
            (_, None) if byte.is_ascii_whitespace() => values.extend(value.take()),
            _ => value.get_or_insert_default().push(byte),
        }
    }
    values.extend(value);
    let values = values.into_iter().map(OsString::from_vec).collect();
    quote.is_none().then_some(values)
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
    let addresses = std::fs::read_to_string(cluster.join(ADDRESSES_FILE)).unwrap_or_default();
    if let Some(known) = names
        .iter()
        .find(|known| **known == name)
        .or_else(|| host_at(&addresses, &names, name))
    {
        return Ok(cluster.join(known));
    }
    let hosts = match names.as_slice() {
        [first, .., last] => format!("the hosts are {first} to {last}"),
        names => format!("the only host is {}", names.join("")),
    };
    Err(Failure(format!(
        "{} is not a host of this cluster: {hosts}",
        name.display()
    )))
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

    /// The command lines with which launchers and tools call ssh.
    #[test]
    fn options_host_and_command_split_as_in_ssh() {
        let node = |command: &str| Invocation {
            host: "node1".into(),
            command: Some(command.into()),
            ..Invocation::default()
        };
        let as_user = |user: &str, command: &str| Invocation {
            user: Some(user.into()),
            ..node(command)
        };
        let cases: [(&[&str], Invocation); 12] = [
            (&["node1", "true"], node("true")),
            (&["NODE1", "true"], node("true")),
            (
                &["ssh://me@Node1:2222", "true"],
                Invocation {
                    port: Some("2222".into()),
                    ..as_user("me", "true")
                },
            ),
            (&["ssh://node1/", "true"], node("true")),
            (
                &["-N", "node1"],
                Invocation {
                    purpose: Purpose::Nothing,
                    command: None,
                    ..node("")
                },
            ),
            // Open MPI
            (
                &["-x", "node1", "orted", "-mca", "ess", "\"env\""],
                node("orted -mca ess \"env\""),
            ),
            // pdsh
            (
                &["-2", "-a", "-x", "-lroot", "node1", "date"],
                as_user("root", "date"),
            ),
            (
                &[
                    "-l",
                    "me",
                    "-p",
                    "22",
                    "-oBatchMode=yes",
                    "-i",
                    "key",
                    "you@node1",
                    "a",
                    "b c",
                ],
                Invocation {
                    port: Some("22".into()),
                    ..as_user("me", "a b c")
                },
            ),
            (
                &["-vvT4", "-o", "Port 22", "--", "node1", "--", "-x"],
                Invocation {
                    port: Some("22".into()),
                    ..node("-x")
                },
            ),
            (
                &["a@b@node1", "-p", "22", "ls", "-l"],
                Invocation {
                    port: Some("22".into()),
                    ..as_user("a@b", "ls -l")
                },
            ),
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
            (&["-G"], "needs a host"),
            (&["-W", "h:22", "node1"], "-W h:22: nothing is forwarded"),
            (&["-Ocheck", "node1"], "-O check: there is no connection"),
            (&["-oSetEnv=A=\"b", "node1"], "is not closed"),
        ] {
            let reason = parse(words).unwrap_err();
            assert!(reason.contains(part), "{words:?}: {reason}");
        }
    }

    #[test]
    fn questions_about_the_program_need_no_host() {
        let purpose = |words: &[&str]| parse(words).unwrap().purpose;
        assert_eq!(purpose(&["-V"]), Purpose::Version);
        assert_eq!(
            purpose(&["-Q", "cipher"]),
            Purpose::Algorithms("cipher".into())
        );
        let known = ["-p", "7", "-G", "-l", "me", "Node1"];
        assert_eq!(
            parse(&known).unwrap().configuration(),
            "host node1\nuser me\nhostname node1\nport 7\n"
        );
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
            "setenv A=1 B=2=3",
            "-o",
            "SetEnv = C=\"a b\" 'D=it\"s' E=\\\"\\x F=a\\ b =g",
            "-o",
            "Junk",
            "node1",
        ];
        let invocation = parse(&words).unwrap();
        assert_eq!(invocation.send_env, ["LC_*", "LANG"]);
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        assert_eq!(
            invocation.set_env,
            [
                pair("A", "1"),
                pair("B", "2=3"),
                pair("C", "a b"),
                pair("D", "it\"s"),
                pair("E", "\"\\x"),
                pair("F", "a b")
            ]
        );
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
