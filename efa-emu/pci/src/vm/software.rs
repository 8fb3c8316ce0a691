//! The required software: QEMU, a kernel with the driver, and programs for the guests.
//! `scripts/userland` downloads it the first time, and prints the paths.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use efa_commands::Failure;
use efa_commands::installation::Installation;
use efa_options::vm::VmArguments;

/// The paths of the software.
pub(crate) struct Software {
    /// The directory `usr` of QEMU's packages.
    pub(crate) qemu: PathBuf,
    pub(crate) kernel: PathBuf,
    /// The modules, in load order.
    pub(crate) modules: PathBuf,
    /// The file system of the guests' packages.
    pub(crate) programs: PathBuf,
}

impl Software {
    /// Downloads missing software.
    pub(crate) fn fetch(arguments: &VmArguments) -> Result<Software, Failure> {
        let VmArguments {
            linux,
            programs,
            package,
            ..
        } = arguments;
        let script = Installation::of_this_program()?.file("scripts/userland")?;
        let qemu = fetched(&script, "qemu-debian14", &[])?.join("root/usr");
        let linux = fetched(&script, &format!("linux-{linux}"), &[])?;
        let guest = fetched(&script, &format!("guest-{programs}"), package)?;
        Ok(Software {
            qemu,
            kernel: linux.join("vmlinuz"),
            modules: linux.join("modules"),
            programs: guest.join("root"),
        })
    }

    /// A command for QEMU, which uses a separate C library.
    pub(crate) fn qemu(&self) -> Command {
        let libraries = self.qemu.join("lib/x86_64-linux-gnu");
        // The library that `efa-emu run` preloads needs another C library.
        let mut command = Command::new("env");
        command
            .args(["-u", "LD_PRELOAD", "-u", "LD_LIBRARY_PATH"])
            .arg(libraries.join("ld-linux-x86-64.so.2"))
            .arg("--library-path")
            .arg(&libraries)
            .arg(self.qemu.join("bin/qemu-system-x86_64"));
        for data in ["share/qemu", "share/seabios"] {
            command.arg("-L").arg(self.qemu.join(data));
        }
        command
    }
}

fn fetched(script: &Path, name: &str, packages: &[String]) -> Result<PathBuf, Failure> {
    let output = Command::new(script)
        .arg(name)
        .args(packages)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Failure(format!("cannot run {}: {error}", script.display())))?;
    if !output.status.success() {
        return Err(Failure(format!("cannot fetch {name}: see above")));
    }
    let directory = String::from_utf8_lossy(&output.stdout);
    Ok(PathBuf::from(directory.trim_end()))
}
