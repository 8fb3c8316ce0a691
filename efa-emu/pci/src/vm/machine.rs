//! A guest: QEMU with the device, on a host of the fabric.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use efa_commands::Failure;
use efa_options::vm::VmArguments;

use super::software::Software;

/// The most guests, which one wire connects.
pub(crate) const MOST_GUESTS: usize = 2;

/// The common configuration of all guests.
pub(crate) struct GuestConfig<'a> {
    pub(crate) arguments: &'a VmArguments,
    pub(crate) software: &'a Software,
    /// The file system of the guests.
    pub(crate) files: PathBuf,
    /// The directory of sockets.
    pub(crate) directory: &'a Path,
    /// The directory of consoles.
    pub(crate) consoles: PathBuf,
    pub(crate) guests: usize,
    /// Further options for their `efa-emu run`.
    pub(crate) run_options: Vec<String>,
}

impl GuestConfig<'_> {
    /// The path of a guest's console.
    pub(crate) fn console(&self, guest: usize) -> PathBuf {
        self.consoles.join(format!("vm{guest}.log"))
    }

    /// The socket of a guest's monitor. Socket paths must be short, and `--keep`'s may be long.
    fn monitor(&self, guest: usize) -> PathBuf {
        self.directory.join(format!("vm{guest}.qmp"))
    }

    /// The path of the monitor for the user.
    pub(crate) fn monitor_link(&self, guest: usize) -> PathBuf {
        self.consoles.join(format!("vm{guest}.qmp"))
    }

    /// Starts the guest with this number, counting from 1. The child's input and output are those
    /// of its command.
    pub(crate) fn start(&self, guest: usize) -> Result<Child, Failure> {
        let beside = |name| Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name(name));
        let socket = self.directory.join(format!("vm{guest}.efa"));
        let mut command = Command::new(beside("efa-emu")?);
        let VmArguments {
            fabric, profile, ..
        } = self.arguments;
        command.args(["run", "--quiet", "--fabric", fabric, "--profile", profile]);
        command.arg("--host").arg(format!("vm{guest}"));
        command.args(&self.run_options);
        if let (1, Some(faults)) = (guest, &self.arguments.faults) {
            command.arg("--faults").arg(faults);
        }
        if let Some(keep) = &self.arguments.keep {
            command
                .arg("--pcap")
                .arg(keep.join(format!("vm{guest}.pcapng")));
        }
        let link = self.monitor_link(guest);
        // A link of a run that was killed.
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(self.monitor(guest), &link)
            .map_err(|error| Failure(format!("cannot make {}: {error}", link.display())))?;
        command.arg("--");
        command.arg(beside("efa-emu-pci")?).arg(&socket).arg("--");
        let qemu = self.qemu(guest, &socket);
        command.arg(qemu.get_program()).args(qemu.get_args());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let die = || {
            // The guest must not outlive this process.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
            Ok(())
        };
        // SAFETY: between `fork` and `exec` it only makes one system call.
        unsafe { command.pre_exec(die) };
        command
            .spawn()
            .map_err(|error| Failure(format!("cannot start the guest vm{guest}: {error}")))
    }

    fn qemu(&self, guest: usize, socket: &Path) -> Command {
        let VmArguments {
            memory, forward, ..
        } = self.arguments;
        let mut qemu = self.software.qemu();
        qemu.args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ]);
        qemu.args([
            "-machine",
            "q35,memory-backend=memory",
            "-cpu",
            "max",
            "-smp",
            "1",
        ]);
        qemu.args(["-accel", accelerator()]);
        qemu.args(["-m", &format!("{memory}M"), "-object"]);
        // The device can map the guest's memory because that is a file.
        qemu.arg(format!(
            "memory-backend-memfd,id=memory,size={memory}M,share=on"
        ));
        qemu.arg("-kernel").arg(&self.software.kernel);
        qemu.arg("-initrd").arg(&self.files);
        qemu.args(["-append", &format!("console=ttyS0 panic=-1 guest={guest}")]);
        qemu.arg("-serial")
            .arg(format!("file:{}", self.console(guest).display()));
        qemu.args(["-serial", "stdio"]);
        // The driver gives up on a register after 50 ms. So writes block the guest's processor
        // until the device has handled them. The cost is low, because messages do not write to send
        // queues through this path.
        qemu.arg("-device").arg(format!(
            r#"{{"driver":"vfio-user-pci","x-no-posted-writes":true,"socket":{{"type":"unix","path":"{}"}}}}"#,
            socket.display()
        ));
        qemu.arg("-qmp").arg(format!(
            "unix:{},server=on,wait=off",
            self.monitor(guest).display()
        ));
        let mut user = "user,id=machine".to_owned();
        for port in forward.iter().filter(|_| guest == 1) {
            user.push_str(&format!(",hostfwd=tcp:127.0.0.1:{port}-:{port}"));
        }
        qemu.args([
            "-netdev",
            &user,
            "-device",
            "virtio-net-pci,netdev=machine,romfile=",
        ]);
        if self.guests > 1 {
            let wire = self.directory.join("wire").display().to_string();
            let end = match guest {
                1 => "server=on",
                _ => "server=off,reconnect-ms=100",
            };
            let wire = format!("stream,id=guests,{end},addr.type=unix,addr.path={wire}");
            let card = format!("virtio-net-pci,netdev=guests,romfile=,mac=52:54:00:ef:a0:0{guest}");
            qemu.args(["-netdev", &wire, "-device", &card]);
        }
        qemu
    }
}

/// The acceleration of the processor. `/dev/kvm` alone is not sufficient: without the processor's
/// extension, guests make no progress.
fn accelerator() -> &'static str {
    let has_extension = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
        let mut words = text.split_ascii_whitespace();
        words.any(|word| word == "vmx" || word == "svm")
    });
    let is_permitted = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok();
    match has_extension && is_permitted {
        true => "kvm",
        false => "tcg",
    }
}
