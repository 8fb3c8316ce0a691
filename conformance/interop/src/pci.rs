//! Group `pci`: the stock Linux driver, and stock programs over it, in virtual machines.
//!
//! `efa-emu vm` boots the guests. Programs of this machine are their peers on emulated hosts.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use efa_check::capture::Capture;
use efa_check::check;
use efa_check::merge::merge;
use efa_core::rules::Severity;
use regex::Regex;

use crate::harness::{
    Bench, Cell, CellResult, CellsError, Lab, Running, Unmet, free_port, installed,
};

const GROUP: &str = "pci";

/// Two guests without acceleration on a machine with ten times as much to do as it has processors.
const LIMIT: Duration = Duration::from_secs(600);

/// The kernel of `scripts/userland linux-debian12`.
const KERNEL: &str = "6.1";

/// The words of the guests' commands.
type Commands = &'static [&'static str];

/// What is looked for in the output, and what is said of it.
type Figure = (&'static str, &'static str);

/// The last size that `fi_pingpong` has exchanged.
const SIZES: Figure = (r"(?m)^(?:vm2: )?1m +10 +=10", "sizes up to 1m checked");

/// Cells in which guests are among themselves: name, profile, commands, figures.
const GUESTS: [(&str, &str, Commands, &[Figure]); 8] = [
    (
        "ibv_devinfo -v, hw_counters",
        "efa2",
        &[
            "sh",
            "-c",
            "ibv_devinfo -v && cd /sys/class/infiniband/efa_0 && grep . hw_counters/submitted_cmds && uname -r",
        ],
        &[
            (r"hw_ver:\s+0xEFA2", "efa2"),
            (r"max_qp:\s+2048", "2048 queue pairs"),
            (r"PORT_ACTIVE", "port active"),
            (r"(?m)^\d+$", "commands counted"),
            (r"(?m)^(6\.1\.\S+)", "Linux $1"),
        ],
    ),
    (
        "first generation: ibv_devinfo",
        "efa0",
        &["ibv_devinfo"],
        &[
            (r"hw_ver:\s+0xEFA0", "efa0"),
            ("PORT_ACTIVE", "port active"),
        ],
    ),
    (
        "fi_info",
        "efa2",
        &["fi_info", "-p", "efa"],
        &[
            ("type: FI_EP_RDM", "an RDM endpoint"),
            ("type: FI_EP_DGRAM", "and a datagram endpoint"),
        ],
    ),
    (
        "ibv_ud_pingpong -e in one guest",
        "efa2",
        &[
            "sh",
            "-c",
            "ibv_ud_pingpong -e -g 0 & sleep 1; ibv_ud_pingpong -e -g 0 localhost && wait $!",
        ],
        &[(
            r"(?m)^(\d+) bytes in .*\n(\d+) iters in ([\d.]+) seconds",
            "$2 times, $1 bytes, by interrupts: $3 s",
        )],
    ),
    (
        "the driver is unloaded, loaded, unbound and bound",
        "efa2",
        &[
            "sh",
            "-c",
            "rmmod efa && ! ls /dev/infiniband/uverbs0 && insmod /modules/efa.ko && ibv_devinfo >/dev/null && \
             cd /sys/bus/pci/drivers/efa && device=$(echo 0000:*) && echo $device >unbind && \
             ! ls /dev/infiniband/uverbs0 && echo $device >bind && ibv_devinfo",
        ],
        &[("PORT_ACTIVE", "the port is active again")],
    ),
    (
        "two guests: fi_pingpong",
        "efa2",
        &[
            "fi_pingpong",
            "-c",
            "-p",
            "efa",
            "-e",
            "rdm",
            ":",
            "fi_pingpong",
            "-c",
            "-p",
            "efa",
            "-e",
            "rdm",
            "vm1",
        ],
        &[SIZES],
    ),
    (
        "two guests: ib_send_bw over SRD",
        "efa1",
        &[
            "ib_send_bw",
            "-x",
            "0",
            "-c",
            "SRD",
            "-n",
            "1000",
            ":",
            "ib_send_bw",
            "-x",
            "0",
            "-c",
            "SRD",
            "-n",
            "1000",
            "vm1",
        ],
        &[BANDWIDTH],
    ),
    (
        "two guests: ib_read_bw over SRD",
        "efa1",
        &[
            "ib_read_bw",
            "-x",
            "0",
            "-c",
            "SRD",
            "-n",
            "300",
            ":",
            "ib_read_bw",
            "-x",
            "0",
            "-c",
            "SRD",
            "-n",
            "300",
            "vm1",
        ],
        &[BANDWIDTH],
    ),
];

/// The row of perftest.
const BANDWIDTH: Figure = (
    r"(?m)^vm2: +(\d+) +(\d+) +\S+ +([\d.]+)",
    "$1 bytes, $2 times: $3 MiB/s",
);

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, CellsError> {
    let guests = GUESTS.map(|(name, profile, commands, figures)| {
        let name = format!("{KERNEL}: {name}");
        Cell::new(GROUP, name, LIMIT, move |bench| {
            let run = start(bench, profile, &[], commands)?.success()?;
            let measured = figures_of(&run.stdout, figures)?;
            Ok(format!("{measured}; {}", checked(bench, &[])?))
        })
    });
    let mut cells: Vec<Cell> = guests.into();
    let cell = |name: &str, run: fn(&Bench) -> CellResult| {
        Cell::new(GROUP, format!("{KERNEL}: {name}"), LIMIT, run)
    };
    cells.push(cell(
        "a guest calls a process: fi_pingpong",
        guest_calls_process,
    ));
    cells.push(cell(
        "a process calls a guest: fi_pingpong",
        process_calls_guest,
    ));
    Ok(cells)
}

/// Starts guests with these commands. What they leave is in the bench's directory.
fn start<'a>(
    bench: &'a Bench<'a>,
    profile: &str,
    options: &[&str],
    commands: &[&str],
) -> Result<Running<'a>, Unmet> {
    // What cannot be fetched is no failure.
    for software in ["qemu-debian14", "linux-debian12", "guest-debian12"] {
        bench.userland(software)?;
    }
    let mut command = Command::new(&bench.launcher()?.efa_emu);
    command.args(["vm", "--fabric", bench.fabric(), "--profile", profile]);
    command.arg("--keep").arg(bench.directory());
    command.args(options).arg("--").args(commands);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(bench, "efa-emu vm".into(), command)
}

fn guest_calls_process(bench: &Bench) -> CellResult {
    installed("fi_pingpong", "libfabric-bin")?;
    let port = free_port()?.to_string();
    let words = ["fi_pingpong", "-c", "-p", "efa", "-e", "rdm", "-B", &port];
    let server = bench.host("server").captured().start(&words)?;
    let words = [
        "fi_pingpong",
        "-c",
        "-p",
        "efa",
        "-e",
        "rdm",
        "-P",
        &port,
        "host",
    ];
    let guest = start(bench, "efa2", &[], &words)?.success()?;
    server.success()?;
    let measured = figures_of(&guest.stdout, &[SIZES])?;
    Ok(format!("{measured}; {}", checked(bench, &["server"])?))
}

fn process_calls_guest(bench: &Bench) -> CellResult {
    installed("fi_pingpong", "libfabric-bin")?;
    let port = free_port()?.to_string();
    // The forwarded port is there before the guest's program listens at it. It says when it does.
    let serve = format!(
        "fi_pingpong -c -p efa -e rdm -B {port} & until netstat -ltn | grep -q :{port}; do sleep 0.1; done; \
         echo listens; wait $!"
    );
    let mut guest = start(bench, "efa2", &["--forward", &port], &["sh", "-c", &serve])?;
    guest.printed("listens")?;
    let words = [
        "fi_pingpong",
        "-c",
        "-p",
        "efa",
        "-e",
        "rdm",
        "-P",
        &port,
        "127.0.0.1",
    ];
    let client = bench.host("client").captured().start(&words)?.success()?;
    guest.success()?;
    let measured = figures_of(&client.stdout, &[SIZES])?;
    Ok(format!("{measured}; {}", checked(bench, &["client"])?))
}

/// What is said of an output, in which everything has to be that is looked for.
fn figures_of(output: &str, figures: &[Figure]) -> Result<String, Unmet> {
    let mut said = Vec::new();
    for (find, show) in figures {
        let find = Regex::new(find).map_err(Unmet::failed)?;
        let Some(found) = find.captures(output) else {
            return Err(Unmet::Failed(format!(
                "nothing like `{find}` was printed:\n{output}"
            )));
        };
        let mut shown = String::new();
        found.expand(show, &mut shown);
        said.push(shown);
    }
    Ok(said.join(", "))
}

/// Checks the captures of the guests, and of these hosts, for errors of the protocol.
fn checked(bench: &Bench, hosts: &[&str]) -> CellResult {
    let hosts = ["vm1", "vm2"].iter().chain(hosts);
    let files: Vec<PathBuf> = hosts
        .map(|host| bench.capture(host))
        .filter(|file| file.exists())
        .collect();
    let capture = match files.as_slice() {
        [only] => only.clone(),
        _ => {
            let merged = bench.capture("merged");
            merge(&files, &[], &[], &merged).map_err(Unmet::failed)?;
            merged
        }
    };
    let capture = Capture::load(&capture).map_err(Unmet::failed)?;
    let checked = check::check(&capture);
    let errors = checked
        .worse_than(Severity::Warning)
        .map(ToString::to_string);
    let problems: Vec<String> = capture.damage.iter().cloned().chain(errors).collect();
    match problems.is_empty() {
        true => Ok(format!("{} frames, 0 errors", capture.frames.len())),
        false => Err(Unmet::Failed(problems.join("\n"))),
    }
}
