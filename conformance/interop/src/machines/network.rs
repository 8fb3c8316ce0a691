//! Machines: namespaces of this one, with separate links between them, and bridges that connect
//! their fabrics.
//!
//! ```text
//!   m0  eth0 ── v0 ┐
//!   m1  eth0 ── v1 ┤ br0 in the namespace `hub`, or `forward.py` there, which loses, delays and reorders
//!   m2  eth0 ── v2 ┘
//! ```
//!
//! Each machine has a separate host name, network, System V shared memory and `/dev/shm`, and
//! shares files and processes with this machine. The namespaces end with the processes that hold
//! them and with all others there ([`ending`]), when their standard input is closed, and so with
//! the harness.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use efa_commands::namespaces::{NamespaceError, Namespaces};
use efa_play::player::quote;

use crate::harness::{Bench, Finished, NotMeasured, Running, failed, installed};

/// The program that forwards frames instead of a kernel bridge, by its name in the repository.
const FORWARDER: &str = "conformance/interop/machines/forward.py";

/// Variables of this process that are passed to commands on machines, like those of a login. Other
/// variables could select devices or libraries of this machine.
const KEPT: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TMPDIR", "RUST_BACKTRACE"];

/// The start of the scripts that make namespaces. After their standard input was closed, by `drop`
/// or by the end of this program, it ends all processes in the network: a launcher's daemons are in
/// sessions of their own, as it is itself, which ends with no group of processes. It does nothing
/// in the network of this program.
fn ending() -> String {
    let own = std::process::id();
    format!(
        r#"exec 3<&0; setsid sh -c '
network=$(readlink /proc/$$/ns/net)
[ -n "$network" ] && [ "$network" != "$(readlink /proc/{own}/ns/net)" ] || exit
cat
for signal in TERM KILL; do
  for process in /proc/[0-9]*; do
    [ $process = /proc/$$ ] || [ "$(readlink $process/ns/net)" != "$network" ] ||
      kill -$signal ${{process#/proc/}}
  done
  [ $signal = KILL ] || sleep 2
done' <&3 >/dev/null 2>&1 &
"#
    )
}

/// How bridges are started.
#[derive(Clone, Copy)]
pub(super) struct BridgeOptions {
    pub(super) timeout: Duration,
    pub(super) plain: bool,
}

impl BridgeOptions {
    /// A timeout that pauses on a busy machine do not exceed.
    pub(super) const DEFAULT: BridgeOptions = BridgeOptions {
        timeout: Duration::from_secs(60),
        plain: false,
    };
}

/// The system does not permit namespaces.
fn skipped(error: NamespaceError) -> NotMeasured {
    NotMeasured::Skipped(error.to_string())
}

/// A machine.
struct Machine<'a> {
    name: String,
    address: Ipv4Addr,
    /// Before the keeper, so that it is dropped first.
    bridge: Option<Running<'a>>,
    keeper: Namespaces,
}

/// Machines connected by bridges. They end when this is dropped.
pub(super) struct Machines<'a> {
    bench: &'a Bench<'a>,
    machines: Vec<Machine<'a>>,
    forwarder: Option<Running<'a>>,
    hub: Namespaces,
    bridge_options: BridgeOptions,
    key: PathBuf,
    is_root: bool,
    /// The directory for temporary files, if it differs from this process's: a user who is root on
    /// the machines could not write to directories of root.
    temporary: Option<PathBuf>,
}

impl<'a> Machines<'a> {
    /// This many machines, `m0` and so on, with a key for bridges.
    pub(super) fn bare(bench: &'a Bench<'a>, count: u8) -> Result<Self, NotMeasured> {
        for (program, package) in [("unshare", "util-linux"), ("ip", "iproute2")] {
            installed(program, package)?;
        }
        // SAFETY: the call takes no pointers.
        let is_root = unsafe { libc::geteuid() } == 0;
        let temporary = (!is_root).then(own_temporary).transpose();
        let temporary = temporary.map_err(NotMeasured::failed)?;
        let script = format!(
            "{}ip link set lo up && ip link add name br0 type bridge && \
             ip addr add 10.61.0.254/24 dev br0 && ip link set br0 up",
            ending()
        );
        let hosts = bench.directory().join("hosts");
        let lines: String = (0..count)
            .map(|number| format!("{} m{number}\n", address(number)))
            .collect();
        let lines = format!("127.0.0.1 localhost\n{lines}");
        std::fs::write(&hosts, lines).map_err(NotMeasured::failed)?;
        let mut all = Machines {
            bench,
            machines: Vec::new(),
            forwarder: None,
            hub: Namespaces::make(&["--net"], None, &script).map_err(skipped)?,
            bridge_options: BridgeOptions::DEFAULT,
            key: bench.directory().join("key"),
            is_root,
            temporary,
        };
        for number in 0..count {
            all.add(number, &hosts)?;
        }
        let mut command = Command::new(&bench.lab().launcher.efa_emu);
        command.args(["bridge", "key"]).arg(&all.key);
        all.succeed("efa-emu bridge key", command)?;
        Ok(all)
    }

    /// This many machines, connected by bridges.
    pub(super) fn joined(bench: &'a Bench<'a>, count: u8) -> Result<Self, NotMeasured> {
        Machines::joined_with(bench, count, BridgeOptions::DEFAULT)
    }

    /// This many machines, connected by bridges with these options.
    pub(super) fn joined_with(
        bench: &'a Bench<'a>,
        count: u8,
        bridge_options: BridgeOptions,
    ) -> Result<Self, NotMeasured> {
        let mut all = Machines::bare(bench, count)?;
        all.bridge_options = bridge_options;
        for machine in 0..all.count() {
            all.start_bridge(machine)?;
        }
        for machine in 0..all.count() {
            for other in (0..all.count()).filter(|other| *other != machine) {
                all.await_connections(machine, other, 1)?;
            }
        }
        Ok(all)
    }

    fn add(&mut self, number: u8, hosts: &Path) -> Result<(), NotMeasured> {
        let name = format!("m{number}");
        let address = address(number);
        let script = format!(
            "{}hostname {name} && mount -t tmpfs tmpfs /dev/shm && mount --bind '{}' /etc/hosts && \
             ip link set lo up",
            ending(),
            hosts.display()
        );
        let kinds = ["--net", "--mount", "--uts", "--ipc"];
        let keeper = Namespaces::make(&kinds, Some(&self.hub), &script).map_err(skipped)?;
        self.machines.push(Machine {
            name,
            address,
            bridge: None,
            keeper,
        });
        let machine = self.machines[usize::from(number)].keeper.id();
        self.in_hub(&format!(
            "ip link add name v{number} type veth peer name eth0 netns {machine} && \
             ip link set v{number} master br0 up"
        ))?;
        // Programs determine their address by the route to others.
        let script = format!(
            "ip addr add {address}/24 dev eth0 && ip link set eth0 up && ip route add default via 10.61.0.254"
        );
        let mut command = self.command(usize::from(number));
        command.args(["sh", "-c", &script]);
        self.succeed(&script, command).map(drop)
    }

    /// Runs a shell script in the hub.
    fn in_hub(&self, script: &str) -> Result<Finished, NotMeasured> {
        let mut command = self.enter(self.hub.id(), &["--net"]);
        command.args(["sh", "-c", script]);
        self.succeed(script, command)
    }

    fn succeed(&self, what: &str, command: Command) -> Result<Finished, NotMeasured> {
        Running::start(self.bench, what.to_owned(), command)?.success()
    }

    /// The command line to enter namespaces of a process; a program follows.
    fn words(&self, process: u32, namespaces: &[&str]) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), format!("--target={process}")];
        if !self.is_root {
            words.extend(["--user".to_owned(), "--preserve-credentials".to_owned()]);
        }
        words.extend(namespaces.iter().map(|&word| word.to_owned()));
        words
    }

    fn enter(&self, process: u32, namespaces: &[&str]) -> Command {
        let words = self.words(process, namespaces);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("--");
        if let Some(temporary) = &self.temporary {
            let variable = format!("TMPDIR={}", temporary.display());
            command.args(["env", &variable]);
        }
        command
    }

    /// A command on a machine; the program follows.
    pub(super) fn command(&self, machine: usize) -> Command {
        let directory = format!("--wdns={}", self.bench.directory().display());
        let namespaces = ["--net", "--mount", "--uts", "--ipc", &directory];
        self.enter(self.machines[machine].keeper.id(), &namespaces)
    }

    /// The command line to start a program on the host with the machine's name; the program
    /// follows. `options` are for `efa-emu run`.
    fn on_host(&self, machine: usize, options: &[&str]) -> Command {
        let mut command = self.command(machine);
        command
            .arg(&self.bench.lab().launcher.efa_emu)
            .args(["run", "--quiet", "--fabric", self.bench.fabric(), "--host"])
            .arg(&self.machines[machine].name)
            .args(options)
            .arg("--");
        command
    }

    /// Starts a program on a machine's host.
    pub(super) fn start(
        &self,
        machine: usize,
        options: &[&str],
        program: &[&str],
    ) -> Result<Running<'a>, NotMeasured> {
        let mut command = self.on_host(machine, options);
        // See group `kill`.
        command.env("IPATH_NO_BACKTRACE", "1").args(program);
        let what = format!("{}: {}", self.machines[machine].name, program.join(" "));
        Running::start(self.bench, what, command)
    }

    /// Whether the machines have no separate user namespace.
    pub(super) fn are_of_root(&self) -> bool {
        self.is_root
    }

    pub(super) fn count(&self) -> usize {
        self.machines.len()
    }

    pub(super) fn name(&self, machine: usize) -> &str {
        &self.machines[machine].name
    }

    /// The network of a machine, as `readlink /proc/self/ns/net` shows it there.
    pub(super) fn network(&self, machine: usize) -> Result<String, NotMeasured> {
        let link = format!("/proc/{}/ns/net", self.machines[machine].keeper.id());
        let network = std::fs::read_link(link).map_err(NotMeasured::failed)?;
        Ok(network.display().to_string())
    }

    pub(super) fn address(&self, machine: usize) -> String {
        self.machines[machine].address.to_string()
    }

    /// Whether a process of the machine listens at the port.
    pub(super) fn await_listener(
        &self,
        machine: usize,
        server: &mut Running,
        port: u16,
    ) -> Result<(), NotMeasured> {
        server.await_listener_beside(self.machines[machine].keeper.id(), port)
    }

    /// The path of the machine's shared memory for this process.
    pub(super) fn shared_memory(&self, machine: usize) -> PathBuf {
        PathBuf::from(format!(
            "/proc/{}/root/dev/shm",
            self.machines[machine].keeper.id()
        ))
    }

    // --- bridges ---

    /// The path of the key of all bridges.
    pub(super) fn key(&self) -> &Path {
        &self.key
    }

    /// Starts the bridge of a machine, which dials the machines with lower numbers, and is dialed
    /// by those with higher numbers.
    pub(super) fn start_bridge(&mut self, machine: usize) -> Result<(), NotMeasured> {
        let mut command = self.command(machine);
        command
            .arg(&self.bench.lab().launcher.efa_emu)
            .args(["bridge", "--listen", "0.0.0.0", "--fabric"])
            .args([self.bench.fabric(), "--key"])
            .arg(&self.key)
            .args([
                "--timeout",
                &format!("{}ms", self.bridge_options.timeout.as_millis()),
            ]);
        if self.bridge_options.plain {
            command.arg("--plain");
        }
        for other in &self.machines[..machine] {
            command.args(["--peer", &other.name]);
        }
        let what = format!("the bridge of m{machine}");
        let mut bridge = Running::start(self.bench, what, command)?;
        bridge.printed("listens on")?;
        self.machines[machine].bridge = Some(bridge);
        Ok(())
    }

    /// Waits until the bridge of a machine has reported this many connections with another one.
    pub(super) fn await_connections(
        &mut self,
        machine: usize,
        other: usize,
        times: usize,
    ) -> Result<(), NotMeasured> {
        let text = format!("connected with m{other}\n");
        match &mut self.machines[machine].bridge {
            Some(bridge) => bridge.printed_times(&text, times),
            None => Err(failed!("m{machine} has no bridge")),
        }
    }

    pub(super) fn kill_bridge(&mut self, machine: usize) -> Result<(), NotMeasured> {
        if let Some(bridge) = self.machines[machine].bridge.take() {
            bridge.kill();
            bridge.wait()?;
        }
        Ok(())
    }

    /// Sends SIGTERM to all bridges, and waits for their exit.
    pub(super) fn end_bridges(&mut self) -> Result<(), NotMeasured> {
        for machine in &mut self.machines {
            if let Some(bridge) = machine.bridge.take() {
                bridge.terminate();
                bridge.success()?;
            }
        }
        Ok(())
    }

    // --- links ---

    /// Sets the link of a machine down or up.
    pub(super) fn set_link(&self, machine: usize, is_up: bool) -> Result<(), NotMeasured> {
        let state = if is_up { "up" } else { "down" };
        self.in_hub(&format!("ip link set v{machine} {state}"))
            .map(drop)
    }

    /// Limits the rate to a machine to this many Mbit/s, with a queue so short that TCP fills it
    /// and loses packets.
    pub(super) fn limit(&self, machine: usize, rate: u32) -> Result<(), NotMeasured> {
        installed("tc", "iproute2")?;
        let script =
            format!("tc qdisc add dev v{machine} root tbf rate {rate}mbit burst 32kb limit 150kb");
        self.in_hub(&script).map(drop)
    }

    /// The number of packets that the queue of [`Machines::limit`] dropped.
    pub(super) fn dropped(&self, machine: usize) -> Result<u64, NotMeasured> {
        let shown = self
            .in_hub(&format!("tc -s qdisc show dev v{machine}"))?
            .stdout;
        let number = shown.split_once("dropped ").and_then(|(_, rest)| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        });
        number.ok_or_else(|| failed!("tc shows no drops: {shown}"))
    }

    /// Replaces the kernel bridge by a program that drops some frames, and delays each by a random
    /// time, so that they are reordered.
    pub(super) fn forward(&mut self, loss: f64, delay: Duration) -> Result<(), NotMeasured> {
        installed("python3", "python3")?;
        let script = self.bench.lab().file(FORWARDER);
        let links: Vec<String> = (0..self.count())
            .map(|number| format!("v{number}"))
            .collect();
        for link in &links {
            self.in_hub(&format!("ip link set {link} nomaster promisc on"))?;
        }
        let mut command = self.enter(self.hub.id(), &["--net"]);
        command
            .arg("python3")
            .arg(script)
            .args([loss.to_string(), delay.as_secs_f64().to_string()])
            .args(links);
        let mut forwarder = Running::start(self.bench, "forward.py".into(), command)?;
        forwarder.printed("forwards")?;
        self.forwarder = Some(forwarder);
        Ok(())
    }

    /// Ends the forwarder, and returns its report.
    pub(super) fn end_forwarder(&mut self) -> Result<String, NotMeasured> {
        match self.forwarder.take() {
            None => Ok(String::new()),
            Some(forwarder) => {
                forwarder.terminate();
                let said = forwarder.success()?.stdout;
                Ok(said.lines().last().unwrap_or_default().to_owned())
            }
        }
    }

    // --- scripts ---

    /// Writes a script with ssh's arguments: a machine's name, and a command for the shell there,
    /// which has the environment of a login and these variables. `front` precedes the shell.
    fn write_remote_shell(
        &self,
        variables: &[(&str, String)],
        front: &str,
    ) -> Result<PathBuf, NotMeasured> {
        let kept = KEPT.iter().filter_map(|name| {
            let value = std::env::var(name).ok()?;
            Some(format!("{name}={}", quote(&value)))
        });
        let temporary = self.temporary.iter();
        let temporary = temporary.map(|path| ("TMPDIR", path.display().to_string()));
        let set = variables
            .iter()
            .cloned()
            .chain(temporary)
            .map(|(name, value)| format!("{name}={}", quote(&value)));
        let environment: Vec<String> = kept.chain(set).collect();
        // A machine's programs are already in the user namespace.
        let user = match self.is_root {
            true => "",
            false => {
                "[ \"$(readlink /proc/self/ns/user)\" = \"$(readlink /proc/$target/ns/user)\" ] || \
                 user='--user --preserve-credentials'"
            }
        };
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
             case $host in\n{}*) echo \"there is no machine $host\" >&2; exit 255;;\nesac\n\
             user=\n{user}\n\
             exec env -i {} nsenter --target=$target $user --net --mount --uts --ipc --wdns={} -- {front} \
             sh -c \"$*\"\n",
            self.cases(),
            environment.join(" "),
            quote(&self.bench.directory().display().to_string()),
        );
        self.write_script("rsh", &script)
    }

    /// The shell words to run a program on a host.
    fn run_words(&self, host: &str) -> String {
        format!(
            "{} run --quiet --fabric {} --host {host}",
            quote(&self.bench.lab().launcher.efa_emu.display().to_string()),
            quote(self.bench.fabric()),
        )
    }

    /// Writes a script with ssh's arguments that runs commands on the hosts of machines.
    pub(super) fn shell_of_hosts(&self) -> Result<PathBuf, NotMeasured> {
        self.write_remote_shell(&[], &format!("{} --", self.run_words("$host")))
    }

    /// Writes a script with ssh's arguments that runs commands on machines, outside of their hosts.
    pub(super) fn shell_of_machines(
        &self,
        variables: &[(&str, String)],
    ) -> Result<PathBuf, NotMeasured> {
        self.write_remote_shell(variables, "")
    }

    /// Writes a script that runs a program on the host of the calling machine; `options` are for
    /// `efa-emu run`.
    pub(super) fn on_own_host(&self, options: &str) -> Result<PathBuf, NotMeasured> {
        let run = self.run_words("\"$(uname -n)\"");
        self.write_script(
            "on-host",
            &format!("#!/bin/sh\nexec {run} {options} -- \"$@\"\n"),
        )
    }

    fn cases(&self) -> String {
        let machines = self.machines.iter();
        let case =
            |machine: &Machine| format!("{}) target={};;\n", machine.name, machine.keeper.id());
        machines.map(case).collect()
    }

    /// Writes a script that replaces `efa-emu`, and runs it on the machine of the host in `--host`:
    /// hosts are distributed over the machines in the order of the list.
    pub(super) fn emulator(&self, hosts: &[&str]) -> Result<PathBuf, NotMeasured> {
        let cases: String = hosts
            .iter()
            .enumerate()
            .map(|(at, host)| {
                let machine = &self.machines[at % self.machines.len()];
                format!("{host}) target={};;\n", machine.keeper.id())
            })
            .collect();
        let (user, temporary) = match &self.temporary {
            None => ("", String::new()),
            Some(path) => {
                let path = quote(&path.display().to_string());
                (
                    "--user --preserve-credentials",
                    format!("env TMPDIR={path}"),
                )
            }
        };
        let script = format!(
            "#!/bin/sh\nlast=; host=\nfor word; do [ \"$last\" != --host ] || host=$word; \
             [ \"$word\" != -- ] || break; last=$word; done\n\
             case $host in\n{cases}*) echo \"no machine has the host $host\" >&2; exit 2;;\nesac\n\
             exec nsenter --target=$target {user} --net --mount --uts --ipc \"--wdns=$PWD\" -- {temporary} {} \"$@\"\n",
            quote(&self.bench.lab().launcher.efa_emu.display().to_string()),
        );
        self.write_script("efa-emu", &script)
    }

    fn write_script(&self, name: &str, text: &str) -> Result<PathBuf, NotMeasured> {
        let path = self.bench.directory().join(name);
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::write(&path, text)
            .and_then(|()| std::fs::set_permissions(&path, permissions))
            .map_err(NotMeasured::failed)?;
        Ok(path)
    }
}

/// A private directory of the user with a name short enough for device paths below it.
fn own_temporary() -> std::io::Result<PathBuf> {
    // SAFETY: the call takes no pointers.
    let user = unsafe { libc::geteuid() };
    let path = std::env::temp_dir().join(format!("efa-machines-{user}"));
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::create_dir_all(&path)?;
    std::fs::set_permissions(&path, mode)?;
    Ok(path)
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 61, 0, number + 1)
}
