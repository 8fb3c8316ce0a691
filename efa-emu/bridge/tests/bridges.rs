//! Bridges between machines that are mount and UTS namespaces: each has its own `/dev/shm`, and so its own fabrics.
//! They share the network; machines with networks of their own are tested by `make interop`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use efa_testing::patience::Wait;
use efa_testing::workspace::{built, efa_emu};

/// Ends with its value.
struct Process {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Process {
    fn start(mut command: Command) -> Process {
        command.stdin(Stdio::null());
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.spawn().unwrap();
        // Its copies of the writing end would keep the reader waiting.
        drop(command);
        let said = Arc::<Mutex<String>>::default();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(reader);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
                heard.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        Process { child, said }
    }

    fn child_id(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said this; returns the line.
    #[track_caller]
    fn wait_for(&self, text: &str) -> String {
        let wait = Wait::start();
        loop {
            let said = self.said();
            // A line may not be whole yet.
            let mut lines = said
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            if let Some(line) = lines.find(|line| line.contains(text)) {
                return line.trim_end().to_owned();
            }
            wait.pause(|| format!("{text:?} was not said: {said}"));
        }
    }

    #[track_caller]
    fn wait_end(&mut self) -> (Option<i32>, String) {
        let wait = Wait::start();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), self.said());
            }
            wait.pause(|| format!("it does not end: {}", self.said()));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A machine: a process that keeps its namespaces.
struct Machine {
    name: &'static str,
    keeper: Process,
}

impl Machine {
    /// `None` where the system permits no namespaces; says why.
    fn new(name: &'static str) -> Option<Machine> {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = format!(
            "hostname {name} && mount -t tmpfs tmpfs /dev/shm && echo ready && exec sleep 600"
        );
        command.args(["--mount", "--uts", "--propagation", "private", "sh", "-c"]);
        command.arg(&script);
        let mut keeper = Process::start(command);
        let wait = Wait::start();
        while !keeper.said().contains("ready") {
            if keeper.child.try_wait().unwrap().is_some() {
                println!("skipped: no namespaces here: {}", keeper.said().trim_end());
                return None;
            }
            wait.pause(|| keeper.said());
        }
        Some(Machine { name, keeper })
    }

    /// A command on this machine.
    fn command(&self, program: &Path) -> Command {
        let pid = self.keeper.child.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid, "--mount", "--uts", "--wdns=/"]);
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg(program);
        command
    }

    fn bridge(&self, key: &Path, options: &[&str]) -> Process {
        let mut command = self.command(&built("efa-emu"));
        command.arg("bridge").arg("--key").arg(key).args(options);
        Process::start(command)
    }

    fn emulator(&self, arguments: &[&str]) -> Process {
        let mut command = self.command(&built("efa-emu"));
        command.args(arguments);
        Process::start(command)
    }

    /// Waits until `efa-emu ps` says this.
    #[track_caller]
    fn wait_for_host(&self, text: &str) {
        let wait = Wait::start();
        loop {
            let (_, listed) = self.emulator(&["ps"]).wait_end();
            if listed.contains(text) {
                return;
            }
            wait.pause(|| format!("{}: {listed}", self.name));
        }
    }
}

fn key(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    let made = efa_emu(&["bridge", "key"]).arg(&path).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    path
}

/// Where a bridge says that it listens.
fn address(bridge: &Process) -> String {
    let line = bridge.wait_for("listens on");
    line.rsplit(' ').next().unwrap().to_owned()
}

/// Two machines and their bridges, connected; `None` where there can be none.
fn joined(directory: &Path, options: &[&str]) -> Option<[(Machine, Process); 2]> {
    let key = key(directory, "key");
    let first = Machine::new("first")?;
    let second = Machine::new("second")?;
    let here = first.bridge(&key, &[&["--listen", "127.0.0.1:0"], options].concat());
    let peer = address(&here);
    let there = second.bridge(&key, &[&["--peer", &peer], options].concat());
    here.wait_for("connected with second");
    there.wait_for("connected with first");
    Some([(first, here), (second, there)])
}

/// A free port, for the program's own connection.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// Waits until a process listens at the port: the machines have one network.
#[track_caller]
fn wait_for_listener(port: &str) {
    let suffix = format!(":{:04X}", port.parse::<u16>().unwrap());
    let wait = Wait::start();
    let is_listened_on = || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
            let table = std::fs::read_to_string(table).unwrap_or_default();
            table.lines().any(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                fields.len() > 3 && fields[1].ends_with(&suffix) && fields[3] == "0A"
            })
        })
    };
    while !is_listened_on() {
        wait.pause(|| format!("nobody listens at {port}"));
    }
}

#[test]
fn stock_programs_of_two_machines_talk_and_a_killed_bridge_is_a_dead_machine() {
    let directory = tempfile::tempdir().unwrap();
    let Some([(first, here), (second, mut there)]) = joined(directory.path(), &["--timeout", "1s"])
    else {
        return;
    };
    let port = free_port();
    let pingpong = "fi_pingpong -p efa -e rdm -c -I 2 -S all";
    let on = |host: &'static str, rest: String| -> Vec<String> {
        let words = format!("run --host {host} -- {pingpong} {rest}");
        words.split(' ').map(str::to_owned).collect()
    };
    let server = on("alpha", format!("-B {port}"));
    let client = on("beta", format!("-P {port} 127.0.0.1"));
    let words = |words: &[String]| -> Vec<&'static str> {
        words.iter().map(|word| &*word.clone().leak()).collect()
    };
    let mut server = first.emulator(&words(&server));
    second.wait_for_host("alpha");
    wait_for_listener(&port);
    let mut client = second.emulator(&words(&client));
    let (status, said) = client.wait_end();
    assert_eq!(
        status,
        Some(0),
        "{said}\n{}\n{}",
        server.said(),
        here.said()
    );
    assert!(said.contains("\n6m "), "{said}");
    let (status, said) = server.wait_end();
    assert_eq!(status, Some(0), "{said}");

    // Only the bridge of the other machine is gone, and with it the machine.
    let program = "echo started && exec sleep 600";
    let gamma = first.emulator(&["run", "--host", "gamma", "--", "sh", "-c", program]);
    gamma.wait_for("started");
    // A program starts when all machines know of its host.
    let (_, listed) = second.emulator(&["ps"]).wait_end();
    assert!(listed.contains("gamma"), "{listed}");
    // A bridge that does not get to it is waited for, for a while.
    let stop = |signal| rustix::process::kill_process(here.child_id(), signal).unwrap();
    stop(rustix::process::Signal::STOP);
    let waiting = first.emulator(&["run", "--host", "late", "--", "sleep", "600"]);
    waiting.wait_for("the bridge of the fabric default does not answer");
    stop(rustix::process::Signal::CONT);
    second.wait_for_host("late");
    drop(waiting);

    let delta = second.emulator(&["run", "--host", "delta", "--", "sleep", "600"]);
    first.wait_for_host("delta");
    there.child.kill().unwrap();
    // Its locks are released when it has gone, which may be after its connection.
    there.child.wait().unwrap();
    here.wait_for("the connection with second is lost");
    // What it left is removed by whoever looks next.
    let (_, listed) = second.emulator(&["ps"]).wait_end();
    assert!(
        listed.contains("delta") && !listed.contains("gamma"),
        "{listed}"
    );
    // It comes back.
    let key = directory.path().join("key");
    let again = second.bridge(&key, &["--peer", &address(&here), "--timeout", "1s"]);
    again.wait_for("connected with first");
    second.wait_for_host("gamma");
    drop((gamma, delta));
    // Bridges that are told to end say good-bye, and leave nothing.
    let mut here = here;
    stop_now(&here);
    again.wait_for("first has left");
    let (status, said) = here.wait_end();
    assert_eq!(status, Some(0), "{said}");
    let mut again = again;
    stop_now(&again);
    assert_eq!(again.wait_end().0, Some(0));
    for machine in [&first, &second] {
        let mut listing = machine.command(Path::new("ls"));
        let left = listing.args(["-A", "/dev/shm"]).output().unwrap();
        assert!(left.status.success() && left.stdout.is_empty(), "{left:?}");
    }
}

fn stop_now(bridge: &Process) {
    rustix::process::kill_process(bridge.child_id(), rustix::process::Signal::TERM).unwrap();
}

/// `run --uplink` starts a bridge where there is none, and the bridge ends with the last program.
#[test]
fn an_uplink_is_there_as_long_as_programs_are() {
    let directory = tempfile::tempdir().unwrap();
    let key = key(directory.path(), "key");
    let (Some(first), Some(second)) = (Machine::new("first"), Machine::new("second")) else {
        return;
    };
    let port = free_port();
    let own = format!("127.0.0.1:{port}");
    let here = first.bridge(&key, &["--listen", &own]);
    here.wait_for("listens on");
    let key = key.to_str().unwrap();
    let uplink = [
        "--uplink",
        &own,
        "--uplink-key",
        key,
        "--uplink-listen",
        "127.0.0.1:0",
    ];
    let run = |machine: &Machine, host: &str, program: &[&str]| {
        machine.emulator(&[&["run", "--host", host], &uplink[..], &["--"], program].concat())
    };
    let wait = "echo started && exec sleep 600";
    let beta = run(&second, "beta", &["sh", "-c", wait]);
    beta.wait_for("bridge: connected with first");
    beta.wait_for("started");
    first.wait_for_host("beta");
    // The bridge is there already, on both machines.
    let (status, said) = run(&second, "gamma", &["true"]).wait_end();
    assert!(status == Some(0) && !said.contains("bridge"), "{said}");
    let (status, said) = run(&first, "alpha", &["true"]).wait_end();
    assert!(status == Some(0) && !said.contains("bridge"), "{said}");
    // What is wrong is said by whoever starts a bridge.
    let third = Machine::new("third").expect("there were others");
    let wrong = [
        "run",
        "--uplink",
        &own,
        "--uplink-key",
        "/none",
        "--",
        "true",
    ];
    let (status, said) = third.emulator(&wrong).wait_end();
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("cannot open /none"), "{said}");

    stop_now(&beta);
    here.wait_for("second has left");
    // It says good-bye before it leaves its own fabric.
    let wait = Wait::start();
    loop {
        let mut listing = second.command(Path::new("ls"));
        let left = listing.args(["-A", "/dev/shm"]).output().unwrap().stdout;
        if left.is_empty() {
            break;
        }
        wait.pause(|| String::from_utf8_lossy(&left).into_owned());
    }
}

#[test]
fn bridges_that_do_not_belong_together_say_why() {
    let directory = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| key(directory.path(), name));
    let Some(first) = Machine::new("first") else {
        return;
    };
    let here = first.bridge(&ours, &["--listen", "127.0.0.1:0"]);
    let peer = address(&here);
    for (key, options, complaint) in [
        (
            &theirs,
            &["--machine", "b"][..],
            "has another key: use the same --key file",
        ),
        (
            &ours,
            &["--machine", "b", "--fabric", "other"],
            "it joins the fabric default, this machine other",
        ),
        (
            &ours,
            &["--machine", "b", "--plain"],
            "it encrypts, this machine does not encrypt",
        ),
        (
            &ours,
            &["--machine", "first"],
            "both machines are called first",
        ),
    ] {
        let other = first.bridge(key, &[&["--peer", &peer], options].concat());
        other.wait_for(complaint);
    }
    here.wait_for("another key");
    // An address that nobody answers, and one where somebody else does.
    let nobody = format!("127.0.0.1:{}", free_port());
    let alone = first.bridge(&ours, &["--peer", &nobody]);
    alone.wait_for("Connection refused");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let _ = stream.read(&mut [0; 100]);
    });
    let lost = first.bridge(&ours, &["--peer", &stranger]);
    lost.wait_for("it does not speak TLS");
}
