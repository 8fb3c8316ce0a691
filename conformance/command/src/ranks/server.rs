//! Runs commands for rank 0 on the host of another rank.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, set_parent_process_death_signal, waitid,
};

use super::listen;
use super::message::Message;
use super::secret::Secret;

/// How long the other end may take until its command is there.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// How much of an output goes into a message at most, in bytes.
const PART: usize = 1 << 16;
/// The status of commands that a signal ended, and of those that did not start, as with ssh.
const NO_STATUS: u8 = 255;

/// A server of commands.
pub(super) struct Server {
    /// Where it listens.
    pub(super) address: SocketAddr,
    running: Arc<Running>,
}

/// The process groups of the commands. A group is in it while its first process was not waited for, so that the number
/// is its own.
#[derive(Default)]
struct Running(Mutex<Groups>);

#[derive(Default)]
struct Groups {
    groups: HashSet<Pid>,
    /// Nothing may start any more.
    is_over: bool,
}

impl Running {
    /// Changes the groups. A thread that panicked has left them whole.
    fn with<R>(&self, change: impl FnOnce(&mut Groups) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn kill(&self, group: Pid) {
        self.with(|all| {
            if all.groups.contains(&group) {
                // It may have ended.
                let _ = kill_process_group(group, Signal::KILL);
            }
        });
    }
}

impl Server {
    /// Serves whoever proves the secret, at a port of this address, until [`Server::end`] or the end of the process.
    pub(super) fn start(address: IpAddr, secret: Secret) -> io::Result<Self> {
        let (listener, address) = listen(address)?;
        let running = Arc::new(Running::default());
        let shared = Arc::clone(&running);
        thread::spawn(move || accept(&listener, &secret, &shared));
        Ok(Server { address, running })
    }

    /// Ends all commands.
    pub(super) fn end(&self) {
        self.running.with(|all| {
            all.is_over = true;
            for group in &all.groups {
                let _ = kill_process_group(*group, Signal::KILL);
            }
        });
    }
}

fn accept(listener: &TcpListener, secret: &Secret, running: &Arc<Running>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Too many files are open, most likely.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        let (secret, running) = (secret.clone(), Arc::clone(running));
        let serve = move || {
            // The other end notices that it is gone.
            let _ = session(stream, &secret, &running);
        };
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().spawn(serve);
    }
}

/// Runs the command of a connection.
fn session(mut stream: TcpStream, secret: &Secret, running: &Running) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(INTRODUCTION))?;
    secret.prove_as_server(&mut stream)?;
    let Message::Command(line) = Message::read(&mut stream)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    stream.set_read_timeout(None)?;
    let mut child = match start(&line, running) {
        Ok(child) => child,
        Err(error) => {
            let text = format!("cannot start a shell: {error}\n");
            Message::Errors(text.into_bytes()).write(&mut stream)?;
            return Message::Ended(NO_STATUS).write(&mut stream);
        }
    };
    let group = Pid::from_child(&child);
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let to = Mutex::new(stream.try_clone()?);
    let send = |message: Message| {
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        message.write(&mut *to)
    };
    thread::scope(|threads| {
        let from = stream.try_clone();
        threads.spawn(move || {
            if let Ok(mut from) = from {
                feed(&mut from, input);
            }
            // The other end is gone, or says nothing sensible.
            running.kill(group);
        });
        let pumps = [
            output.map(|from| threads.spawn(|| pump(from, |part| send(Message::Output(part))))),
            errors.map(|from| threads.spawn(|| pump(from, |part| send(Message::Errors(part))))),
        ];
        let status = wait(&mut child, group, running);
        for pump in pumps.into_iter().flatten() {
            let _ = pump.join();
        }
        let ended = send(Message::Ended(status));
        // Ends the thread that reads from it.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        ended
    })
}

fn start(line: &str, running: &Running) -> io::Result<Child> {
    let mut command = Command::new("sh");
    command
        .args(["-c", line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    // SAFETY: makes one system call between fork and exec, and neither allocates nor locks.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    running.with(|all| {
        if all.is_over {
            return Err(io::Error::other("rank 0 has ended"));
        }
        let child = command.spawn()?;
        all.groups.insert(Pid::from_child(&child));
        Ok(child)
    })
}

/// Passes on what is for the command's standard input, until the connection ends.
fn feed(from: &mut impl Read, mut input: Option<ChildStdin>) {
    loop {
        match Message::read(from) {
            Ok(Message::Input(bytes)) => {
                // A command that does not read is not told to end.
                if input
                    .as_mut()
                    .is_some_and(|input| input.write_all(&bytes).is_err())
                {
                    input = None;
                }
            }
            Ok(Message::InputEnd) => input = None,
            _ => return,
        }
    }
}

/// Passes on an output to its end.
fn pump(mut from: impl Read, send: impl Fn(Vec<u8>) -> io::Result<()>) {
    let mut part = vec![0; PART];
    while let Ok(length @ 1..) = from.read(&mut part) {
        if send(part[..length].to_vec()).is_err() {
            return;
        }
    }
}

/// Waits for the end of the command, and ends what it has left in its group.
fn wait(child: &mut Child, group: Pid, running: &Running) -> u8 {
    // It keeps its number until it is waited for.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(group), ended), Err(Errno::INTR)) {}
    running.kill(group);
    let status = running.with(|all| {
        all.groups.remove(&group);
        child.wait()
    });
    let code = status.ok().and_then(|status| status.code());
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(NO_STATUS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn server() -> (Server, Secret) {
        let secret = Secret::random();
        let server = Server::start(IpAddr::V4(Ipv4Addr::LOCALHOST), secret.clone());
        (server.unwrap(), secret)
    }

    fn connect(server: &Server, secret: &Secret, line: &str) -> TcpStream {
        let mut stream = TcpStream::connect(server.address).unwrap();
        secret.prove_as_client(&mut stream).unwrap();
        Message::Command(line.into()).write(&mut stream).unwrap();
        stream
    }

    /// What a command prints, and its status if it came.
    fn heard(stream: &mut TcpStream) -> (String, Option<u8>) {
        let mut text = Vec::new();
        loop {
            match Message::read(stream) {
                Ok(Message::Output(part)) => text.extend(part),
                Ok(Message::Errors(part)) => text.extend(part.to_ascii_uppercase()),
                Ok(Message::Ended(status)) => {
                    return (String::from_utf8(text).unwrap(), Some(status));
                }
                _ => return (String::from_utf8(text).unwrap(), None),
            }
        }
    }

    fn ended(text: &str, status: u8) -> (String, Option<u8>) {
        (text.to_owned(), Some(status))
    }

    #[test]
    fn commands_have_streams_and_a_status() {
        let (server, secret) = server();
        let mut stream = connect(&server, &secret, "cat; echo bad >&2; exit 3");
        Message::Input(b"a\xe2\x82\xac".to_vec())
            .write(&mut stream)
            .unwrap();
        Message::InputEnd.write(&mut stream).unwrap();
        let (text, status) = heard(&mut stream);
        assert!(text.contains("a€") && text.contains("BAD\n"), "{text}");
        assert_eq!(status, Some(3));
        let mut stream = connect(&server, &secret, "kill -KILL $$");
        assert_eq!(heard(&mut stream), ended("", NO_STATUS));
        // What a command leaves behind ends with it.
        let mut stream = connect(&server, &secret, "echo x; sleep 1000 & exit 0");
        assert_eq!(heard(&mut stream), ended("x\n", 0));
    }

    #[test]
    fn a_command_ends_with_its_connection() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let (server, secret) = server();
        // The fifo has an end when nothing that the command has started holds it any more.
        let line = format!("exec 9>'{}'; echo x; sleep 1000; true", fifo.display());
        let line = &line;
        let end_of = |end: &dyn Fn(TcpStream)| {
            let mut stream = connect(&server, &secret, line);
            let mut reader = std::fs::File::open(&fifo).unwrap();
            assert_eq!(
                Message::read(&mut stream).unwrap(),
                Message::Output(b"x\n".to_vec())
            );
            end(stream);
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        };
        end_of(&drop);
        end_of(&|mut stream| stream.write_all(b"\xff hostile").unwrap());
        end_of(&|_| server.end());
        let mut stream = connect(&server, &secret, "echo late");
        assert_eq!(
            heard(&mut stream),
            ended("CANNOT START A SHELL: RANK 0 HAS ENDED\n", NO_STATUS)
        );
    }

    #[test]
    fn whoever_does_not_know_the_secret_is_not_served() {
        let (server, secret) = server();
        for hostile in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"EFA-rnk\x01AAAAAAAA",
            &[0xff; 4096],
        ] {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(hostile).unwrap();
            let mut answer = Vec::new();
            // The server may have ended the connection already, and a reset is an end, too.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() <= 48, "{answer:?}");
        }
        let mut stream = TcpStream::connect(server.address).unwrap();
        assert!(Secret::random().prove_as_client(&mut stream).is_err());
        // It serves others as before.
        assert_eq!(
            heard(&mut connect(&server, &secret, "echo y")),
            ended("y\n", 0)
        );
    }
}
