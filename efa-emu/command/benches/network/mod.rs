//! Two machines, simulated by namespaces with a veth pair between them, and the bridges between
//! their fabrics.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use efa_commands::namespaces::{NamespaceError, Namespaces};
use efa_commands::process_group::ProcessGroup;
use efa_testing::workspace::emulator;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::programs;

/// The network interface of a machine.
pub(crate) const INTERFACE: &str = "eth0";

/// The addresses of the machines.
pub(crate) const ADDRESSES: [&str; 2] = ["10.62.0.1", "10.62.0.2"];

/// Two machines.
pub(crate) struct Machines {
    machines: [Namespaces; 2],
    emulator: PathBuf,
    key: PathBuf,
}

/// The bridges of a fabric, one on each machine.
pub(crate) struct Bridges {
    /// The name of the fabric.
    pub(crate) fabric: String,
    pub(crate) bridges: [ProcessGroup; 2],
}

/// The processors on which programs of the machines run.
#[derive(Clone, Copy)]
pub(crate) enum Binding {
    /// All processors that this process may use.
    Anywhere,
    /// One processor for each machine.
    To([usize; 2]),
}

impl Binding {
    /// The first two processors that this process may use, one for each machine.
    ///
    /// # Errors
    /// There is only one.
    pub(crate) fn to_own_processors() -> Result<Binding, String> {
        let allowed = sched_getaffinity(None).map_err(|error| error.to_string())?;
        let mut processors = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor));
        match (processors.next(), processors.next()) {
            (Some(first), Some(second)) => Ok(Binding::To([first, second])),
            _ => Err("there is one processor for two machines".to_owned()),
        }
    }
}

impl Machines {
    /// Creates the machines; `directory` gets the key of their bridges.
    ///
    /// # Errors
    /// An operation that the system does not permit.
    pub(crate) fn make(directory: &Path) -> Result<Machines, String> {
        let kinds = ["--net", "--mount", "--uts", "--ipc"];
        let make = |name: &str, neighbour: Option<&Namespaces>| {
            let script =
                format!("hostname {name} && mount -t tmpfs tmpfs /dev/shm && ip link set lo up");
            Namespaces::make(&kinds, neighbour, &script).map_err(text)
        };
        let first = make("m0", None)?;
        let second = make("m1", Some(&first))?;
        first
            .run(&format!(
                "ip link add name {INTERFACE} type veth peer name {INTERFACE} netns {}",
                second.id()
            ))
            .map_err(text)?;
        let machines = [first, second];
        for (machine, address) in machines.iter().zip(ADDRESSES) {
            machine
                .run(&format!(
                    "ip addr add {address}/24 dev {INTERFACE} && ip link set {INTERFACE} up && \
                 ip route add default dev {INTERFACE}"
                ))
                .map_err(text)?;
        }
        let (emulator, key) = (emulator(), directory.join("key"));
        let mut command = Command::new(&emulator);
        let made = command.args(["bridge", "key"]).arg(&key).output();
        let made = made.map_err(|error| error.to_string())?;
        if !made.status.success() {
            let reason = String::from_utf8_lossy(&made.stderr);
            return Err(format!("efa-emu bridge key: {}", reason.trim_end()));
        }
        Ok(Machines {
            machines,
            emulator,
            key,
        })
    }

    /// Joins the fabrics of this name by bridges with this port and these options.
    pub(crate) fn join(
        &self,
        fabric: &str,
        port: u16,
        options: &[&str],
        binding: Binding,
    ) -> Result<Bridges, String> {
        let fabric = format!("{fabric}-{}", std::process::id());
        let meeting = format!("{}:{port}", ADDRESSES[0]);
        let bridge = |machine: usize, place: &str, text: &str| {
            let mut command = self.bound(machine, binding, &self.emulator);
            command.args(["bridge", "--fabric", &fabric, "--key"]);
            command.arg(&self.key).args([place, &meeting]).args(options);
            start(&mut command, text)
        };
        let first = bridge(0, "--listen", "listens on")?;
        let second = bridge(1, "--peer", "connected with")?;
        Ok(Bridges {
            bridges: [first, second],
            fabric,
        })
    }

    /// A command on a machine.
    pub(crate) fn command(&self, machine: usize, program: &Path) -> Command {
        self.machines[machine].command(program)
    }

    /// A command on a machine, on its processors.
    pub(crate) fn bound(&self, machine: usize, binding: Binding, program: &Path) -> Command {
        match binding {
            Binding::Anywhere => self.command(machine, program),
            Binding::To(processors) => {
                let mut command = self.command(machine, "taskset".as_ref());
                let processor = processors[machine].to_string();
                command.args(["--cpu-list", &processor]).arg(program);
                command
            }
        }
    }

    /// The start of a command on a machine's host in a fabric; the program follows.
    pub(crate) fn on_host(&self, machine: usize, binding: Binding, fabric: &str) -> Command {
        let mut command = self.bound(machine, binding, &self.emulator);
        command.args(["run", "--quiet", "--fabric", fabric]);
        command.args(["--host", &format!("host{machine}"), "--"]);
        command
    }

    /// The path of the machine's shared memory in this process.
    pub(crate) fn shared_memory(&self, machine: usize) -> PathBuf {
        let keeper = self.machines[machine].id();
        PathBuf::from(format!("/proc/{keeper}/root/dev/shm"))
    }
}

fn text(error: NamespaceError) -> String {
    error.to_string()
}

/// Starts a bridge, and waits until it prints this text.
fn start(command: &mut Command, text: &str) -> Result<ProcessGroup, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // Hides the messages of both bridges about the loss of the other one, when they are ended.
    command.stderr(Stdio::null());
    let mut bridge = programs::start(command, "efa-emu bridge")?;
    let output = bridge.leader.stdout.take().ok_or("no standard output")?;
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    if !lines.any(|line| line.contains(text)) {
        return Err(format!("a bridge ended before it said {text:?}"));
    }
    // The bridge continues to print, and must not block on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Ok(bridge)
}
