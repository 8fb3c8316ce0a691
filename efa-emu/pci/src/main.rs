//! `efa-emu-pci`: a device of this machine's fabric as a PCI device of a virtual machine.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use efa_commands::{Failure, child, complain, end};
use efa_options::pci::{PROGRAM, PciArguments};
use efa_pci::function::Function;
use efa_pci::vfio::Server;
use efa_shm::HostConfig;
use rustix::process::Signal;

/// Interval of checks for the program's exit, in addition to its signal.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Parser)]
#[command(name = PROGRAM, version, long_version = efa_commands::installation::version_text())]
struct Arguments {
    #[command(flatten)]
    pci: PciArguments,
}

fn main() -> ExitCode {
    efa_log::init();
    end(PROGRAM, execute())
}

fn execute() -> Result<ExitCode, Failure> {
    let PciArguments { socket, command } = Arguments::parse().pci;
    let mut function = Function::open(HostConfig::from_env()?)?;
    function.on_notice(|text| complain(PROGRAM, text));
    let server = Arc::new(Server::new(listen(&socket)?));
    let serving = Arc::clone(&server);
    let mut serve = move || {
        let outcome = serving.run(&mut function);
        if let Err(error) = outcome {
            complain(PROGRAM, &format!("no connections come any more: {error}"));
        }
    };
    let outcome = match command.split_first() {
        None => {
            serve();
            Ok(ExitCode::FAILURE)
        }
        Some((program, arguments)) => {
            // The thread ends with the process.
            std::thread::spawn(serve);
            let mut command = Command::new(program);
            command.args(arguments);
            // If this process died, the virtual machine would wait for its device forever.
            let die = || {
                rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
                Ok(())
            };
            // SAFETY: between `fork` and `exec` it only makes one system call.
            unsafe { command.pre_exec(die) };
            let ended = child::run(&mut command, || POLL_INTERVAL);
            if ended.as_ref().is_ok_and(|status| !status.success()) && !server.has_served() {
                complain(
                    PROGRAM,
                    &format!(
                        "no machine has asked for the device at {}: QEMU 11 and later can, if `{} -device help` names \
                         vfio-user-pci",
                        socket.display(),
                        program.display()
                    ),
                );
            }
            ended
                .map(child::end_as)
                .map_err(|error| child::cannot_start(program, error).into())
        }
    };
    let _ = fs::remove_file(&socket);
    outcome
}

/// Creates the socket. Replaces one without a listener, which a killed program has left.
fn listen(path: &Path) -> Result<UnixListener, Failure> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        let _ = fs::remove_file(path);
    }
    UnixListener::bind(path).map_err(|error| {
        let path = path.display();
        Failure(match error.kind() {
            std::io::ErrorKind::AddrInUse if is_socket => {
                format!("another program serves {path}: name another socket, or end that program")
            }
            std::io::ErrorKind::AddrInUse => {
                format!("{path} exists and is not a socket: name another one")
            }
            _ => {
                format!("cannot make the socket {path}: {error}: name one in a directory of yours")
            }
        })
    })
}
