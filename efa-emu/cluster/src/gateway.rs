//! A host of another machine as a process of this one. It starts clients' commands there through
//! the machine's own remote shell and the cluster on that machine.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use efa_commands::shell::RemoteShell;

use crate::files::ENV_CLUSTER;
use crate::service::{self, Service};
use crate::session::{CommandRequest, Reply};

/// There is no work between requests.
const NOTHING: Duration = Duration::from_secs(3600);

/// The configuration to reach a host of another machine.
pub(crate) struct Gateway<'a> {
    pub(crate) host: String,
    pub(crate) machine: &'a str,
    /// The directory of the cluster on that machine.
    pub(crate) cluster: &'a str,
    /// The path of this program there.
    pub(crate) program: &'a str,
    pub(crate) shell: &'a RemoteShell,
}

/// Serves requests for the host until the cluster ends. Reports to `cluster` that it is ready, or
/// the error.
pub(crate) fn serve(gateway: &Gateway<'_>, directory: &Path, mut cluster: UnixStream) {
    let begin = || -> io::Result<Service> {
        service::detach()?;
        Service::begin(directory, &cluster)
    };
    match begin() {
        Ok(service) => {
            Reply::Started.send(&mut cluster);
            service.run(|request| gateway.command(request), || NOTHING);
        }
        Err(error) => Reply::Refused(error.to_string()).send(&mut cluster),
    }
}

impl Gateway<'_> {
    /// The command that executes a request with `efa-emu rsh` on that machine.
    fn command(&self, request: &CommandRequest) -> Command {
        let mut words = vec!["env".to_owned(), format!("{ENV_CLUSTER}={}", self.cluster)];
        let text = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
        let variables = request.variables.iter();
        words.extend(
            variables
                .clone()
                .map(|(name, value)| format!("{}={}", text(name), text(value))),
        );
        words.extend([self.program.to_owned(), "rsh".to_owned()]);
        words.extend(variables.map(|(name, _)| format!("-oSendEnv={}", text(name))));
        words.push(self.host.clone());
        words.extend(request.command.as_deref().map(text));
        self.shell.command(self.machine, &words)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn requests_reach_the_other_rsh_word_by_word() {
        // Instead of ssh: prints the words into which the remote shell splits the command.
        let shell: RemoteShell = "sh -c 'eval \"set -- $1\"; printf \"<%s>\" \"$0\" \"$@\"'"
            .parse()
            .unwrap();
        let gateway = Gateway {
            host: "node4".to_owned(),
            machine: "b",
            cluster: "/tmp/a cluster",
            program: "/opt/efa-emu",
            shell: &shell,
        };
        let request = CommandRequest {
            command: Some(OsString::from("echo \"$HOME\" 'it'\\''s'")),
            variables: vec![("A".into(), "1 2".into())],
        };
        let shown = gateway.command(&request).output().unwrap().stdout;
        assert_eq!(
            String::from_utf8(shown).unwrap(),
            "<b><env><EFA_EMU_CLUSTER=/tmp/a cluster><A=1 2></opt/efa-emu><rsh><-oSendEnv=A><node4>\
             <echo \"$HOME\" 'it'\\''s'>"
        );
    }
}
