//! A server and a client program on two emulated hosts.

use std::process::Command;

use efa_commands::ports::free_port;

use super::fabric::TestFabric;
use super::program::{Finished, Program, wait_for_listener};
use super::words;

/// Makes a launcher start `command`. Returns it unchanged without a launcher.
pub fn started_by(launcher: &[&str], command: Command) -> Command {
    let [program, options @ ..] = launcher else {
        return command;
    };
    let mut launched = Command::new(program);
    launched
        .args(options)
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    launched
}

/// A server program and a client program that use the same TCP port, each under an `efa-emu run`.
pub struct Dialogue<'a> {
    fabric: &'a TestFabric,
    port: String,
    arguments: Vec<&'a str>,
    server_port: &'a str,
    client_port: &'a str,
    /// Added to both programs' environments.
    pub environment: &'a [(&'a str, &'a str)],
    /// A program with options that starts each `efa-emu run`, for example in namespaces of its own.
    pub launcher: &'a [&'a str],
    /// The client's arguments, if they differ from the server's.
    pub client_arguments: Option<Vec<&'a str>>,
}

impl<'a> Dialogue<'a> {
    /// `fi_pingpong` between endpoints of type RDM of the efa provider, with further options.
    pub fn pingpong(fabric: &'a TestFabric, options: &'a str) -> Dialogue<'a> {
        let program = ["fi_pingpong", "-p", "efa", "-e", "rdm"];
        let arguments = [&program[..], &words(options)].concat();
        Dialogue::new(fabric, &arguments, "-B", "-P")
    }

    /// Both sides run `arguments`; the server gets the port after the option `server_port`, the
    /// client gets it after `client_port`, and the address of the server.
    pub fn new(
        fabric: &'a TestFabric,
        arguments: &[&'a str],
        server_port: &'a str,
        client_port: &'a str,
    ) -> Dialogue<'a> {
        Dialogue {
            fabric,
            port: free_port().expect("there are free ports").to_string(),
            arguments: arguments.to_vec(),
            server_port,
            client_port,
            environment: &[],
            launcher: &[],
            client_arguments: None,
        }
    }

    fn command(&self, options: &[&str], arguments: &[&str], tail: &[&str]) -> Command {
        let mut command = self
            .fabric
            .run(&[options, &["--"], arguments, tail].concat());
        command.envs(self.environment.iter().copied());
        started_by(self.launcher, command)
    }

    /// Starts the server with these options of `efa-emu run`, and waits until it listens.
    pub fn server(&self, options: &[&str]) -> Program {
        let tail = [self.server_port, &self.port];
        let mut server = Program::start(self.command(options, &self.arguments, &tail));
        wait_for_listener(self.port.parse().expect("a port"), &mut server);
        server
    }

    /// Starts the client.
    pub fn client(&self, options: &[&str]) -> Program {
        let tail = [self.client_port, &self.port, "127.0.0.1"];
        let arguments = self.client_arguments.as_ref().unwrap_or(&self.arguments);
        Program::start(self.command(options, arguments, &tail))
    }

    /// Runs both until they exit.
    ///
    /// # Panics
    /// If one of them fails, with its output.
    #[track_caller]
    pub fn run(&self, server_options: &[&str], client_options: &[&str]) -> [Finished; 2] {
        let server = self.server(server_options);
        let client = self.client(client_options).wait();
        let server = if client.status.success() {
            server.wait()
        } else {
            // Otherwise it would wait for the client forever.
            server.signal(libc::SIGTERM);
            server.wait()
        };
        assert!(
            client.status.success() && server.status.success(),
            "{:?}\nserver {}: {}{}\nclient {}: {}{}",
            self.arguments,
            server.status,
            server.stdout,
            server.stderr,
            client.status,
            client.stdout,
            client.stderr
        );
        [server, client]
    }
}
