//! `run --at` by ssh, with servers and keys of the test's own on the loopback interface.
//!
//! Needs `efa-emu` beside the program (`cargo build --workspace`). `scripts/userland` unpacks the
//! server; the machine's own is neither used nor changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use efa_commands::ports::free_port;
use efa_testing::patience::Wait;
use efa_testing::workspace::{conformance, efa_conformance, emulator, expect, traces, userland};

/// The number of times that a server is started again if its port was taken meanwhile.
const ATTEMPTS: u32 = 3;

/// An ssh server, which ends when this is dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_root() -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::geteuid() == 0 }
}

/// The directories and files of the test.
struct Rig {
    directory: tempfile::TempDir,
    software: PathBuf,
}

impl Rig {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn make_key(&self, name: &str) {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(self.path(name))
            .status();
        assert!(made.unwrap().success());
    }

    /// Starts the server whose sessions belong to the emulated host `host`.
    fn serve(&self, host: &str) -> Server {
        for _ in 0..ATTEMPTS {
            let port = free_port().unwrap();
            let directory = self.directory.path().display();
            let config = self.write(
                &format!("{host}.config"),
                &format!(
                    "ListenAddress 127.0.0.1\nPort {port}\nHostKey {directory}/host\n\
                     AuthorizedKeysFile {directory}/user.pub\nStrictModes no\nUsePAM no\n\
                     PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n\
                     PidFile none\nSetEnv EFA_TEST_HOST={host}\n"
                ),
            );
            let log = self.path(&format!("{host}.log"));
            let mut process = self.server(&config);
            process.stdin(Stdio::null()).stdout(Stdio::null());
            process.stderr(fs::File::create(&log).unwrap());
            let mut process = process.spawn().unwrap();
            let wait = Wait::start();
            loop {
                let said = fs::read_to_string(&log).unwrap();
                if said.contains("Server listening") {
                    return Server { process, port };
                }
                if process.try_wait().unwrap().is_some() {
                    println!("sshd: {said}");
                    break;
                }
                wait.pause(|| format!("sshd does not listen: {said}"));
            }
        }
        panic!("sshd did not start");
    }

    /// The command of a server. If root starts it, it requires a user and a directory that this
    /// machine may lack: they are provided in a mount namespace.
    fn server(&self, config: &Path) -> Command {
        let run = self.software.join("run");
        let sshd = self.software.join("root/usr/sbin/sshd");
        let mut command = if is_root() {
            let mut users = fs::read_to_string("/etc/passwd").unwrap();
            users += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n";
            let users = self.write("passwd", &users);
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c"]).arg(
                "mount --bind \"$0\" /etc/passwd && mount -t tmpfs none /run && mkdir -m 755 /run/sshd && \
                 exec \"$@\"",
            );
            command.arg(users).arg(run);
            command
        } else {
            Command::new(run)
        };
        command.arg(sshd).args(["-D", "-e", "-f"]).arg(config);
        command
    }
}

/// The requirements of the test; `None`, and a message, if one is missing.
fn rig() -> Option<Rig> {
    let software = userland("sshd-debian12")?;
    for (program, arguments) in [("ssh", &["-V"][..]), ("unshare", &["--mount", "true"])] {
        let output = Command::new(program).args(arguments).output();
        let is_needed = program == "ssh" || is_root();
        if is_needed && !output.is_ok_and(|output| output.status.success()) {
            efa_testing::skip(format_args!("`{program} {}` fails", arguments.join(" ")));
            return None;
        }
    }
    let rig = Rig {
        directory: tempfile::tempdir().unwrap(),
        software,
    };
    rig.make_key("host");
    rig.make_key("user");
    Some(rig)
}

#[test]
fn two_hosts_are_reached_by_ssh() {
    let Some(rig) = rig() else { return };
    let servers = [rig.serve("node0"), rig.serve("node1")];
    let mut client = String::from("Host nobody\n  HostName 127.0.0.1\n  Port 1\n");
    for (number, server) in servers.iter().enumerate() {
        client += &format!(
            "Host node{number}\n  HostName 127.0.0.1\n  Port {}\n",
            server.port
        );
    }
    client += &format!(
        "Host *\n  IdentityFile {}\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  \
         UserKnownHostsFile /dev/null\n  LogLevel ERROR\n",
        rig.path("user").display()
    );
    let client = rig.write("client", &client);
    // The sessions of a server belong to its emulated host.
    let fabric = format!("ssh-{}", std::process::id());
    let [emulator, own] = [emulator(), conformance()].map(|path| path.display().to_string());
    let program = rig.write(
        "program",
        &format!(
            "#!/bin/sh\n[ -n \"$EFA_EMU_HOST\" ] && exec {own} \"$@\"\n\
             exec {emulator} run --quiet --fabric {fabric} --host $EFA_TEST_HOST -- {own} \"$@\"\n"
        ),
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let rsh = format!("ssh -F {} -o BatchMode=yes", client.display());
    let run = |places: [&str; 2]| {
        let mut command = efa_conformance(&["run"]);
        let names = ["eager-tagged", "long-cts"];
        command.args(names.map(|name| traces().join(format!("{name}.pcapng"))));
        command.args(places.iter().flat_map(|place| ["--at", place]));
        command
            .args(["--rsh", &rsh, "--remote-program"])
            .arg(&program);
        command.args(["--jobs", "2"]);
        command
    };
    let texts = ["a at node0, b at node1: ", " packets judged", "2 passed"];
    expect(run(["a=node0", "b=node1"]), 0, &texts);
    // Programs that do not speak the suite's protocol, with their captures.
    let directory = tempfile::tempdir().unwrap();
    let mut table = efa_conformance(&["interop", "--group", "libfabric", "--directory"]);
    table.arg(directory.path());
    table.args([
        "--filter",
        "1.17 fi_pingpong rdm",
        "--at",
        "a=node0",
        "--at",
        "b=node1",
    ]);
    let output = table
        .args(["--rsh", &rsh, "--remote-program"])
        .arg(&program);
    let printed = expect(output, 0, &[]);
    let is_there = [" checked; EAGER_MSGRTM", "1 passed"].iter();
    let is_there = is_there.clone().all(|text| printed.contains(text));
    assert!(
        is_there || printed.contains("fi_pingpong is not installed"),
        "{printed}"
    );
    // The behaviour of the devices; no process of the sides is left.
    let mut survey = efa_conformance(&["survey", "--only", "known-sender", "--at", "a=node0"]);
    survey.args(["--at", "b=node1", "--rsh", &rsh, "--remote-program"]);
    expect(survey.arg(&program), 0, &["as assumed known-sender"]);
    let texts = ["cannot reach nobody", "Connection refused"];
    expect(run(["a=node0", "b=nobody"]), 2, &texts);
}
