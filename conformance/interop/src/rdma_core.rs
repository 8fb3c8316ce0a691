//! Group `rdma_core`: the tools of two releases, and the tests of the Python bindings of four.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use efa_device_model::sysfs::DEVICE_NAME as DEVICE;

use super::harness::dialogue::converse;
use super::harness::{Bench, Cell, CellResult, Host, Lab, Unmet};

const GROUP: &str = "rdma_core";
const LIMIT: Duration = Duration::from_secs(60);
const PYVERBS_LIMIT: Duration = Duration::from_secs(240);

/// The name of the newer release for `scripts/userland`.
const NEWER: &str = "debian13";

/// The version of this machine's tools and of the newer ones.
const VERSIONS: [(&str, Option<&str>); 2] = [("44", None), ("56.1", Some(NEWER))];

/// The releases whose Python bindings are tested: those of Debian 11, of this machine, of Debian 13, and of Debian's
/// development branch, which has the newest.
const PYVERBS: [(&str, Option<&str>); 4] = [
    ("33", Some("pyverbs-debian11")),
    ("44", None),
    ("56", Some("pyverbs-debian13")),
    ("65", Some("pyverbs-debian14")),
];

/// The directory in which Debian's package `rdma-core` has the tests of the Python bindings, compressed.
const PYVERBS_TESTS: &str = "usr/share/doc/rdma-core/tests";

/// The interpreter that Debian's package `python3-pyverbs` is for.
const PYTHON: &str = "usr/bin/python3";

/// Test modules with tests for a device without connected queue pairs.
const PYVERBS_MODULES: &[&str] = &[
    "test_addr",
    "test_buf",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_device",
    "test_fork",
    "test_mr",
    "test_parent_domain",
    "test_pd",
    "test_qp",
    "test_qpex",
    "test_relaxed_ordering",
];

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for (version, userland) in VERSIONS {
        type Run = fn(&Host, &Host) -> CellResult;
        let mut cell = |name: &str, emulated: Option<&'static str>, run: Run| {
            let name = format!("{name} {version}");
            let cell = Cell::new(GROUP, name, LIMIT, move |bench| {
                let [a, b] = hosts(bench, userland)?;
                run(&a, &b)
            });
            cells.push(match emulated {
                Some(reason) => cell.emulated_only(reason),
                None => cell,
            });
        };
        let of_emulated = Some("what is printed is compared with the emulated device");
        cell("ibv_devices", of_emulated, |host, _| devices(host));
        cell("ibv_devinfo -v", of_emulated, |host, _| devinfo(host));
        cell("ibv_ud_pingpong", None, |a, b| pingpong(a, b, &[]));
        cell("ibv_ud_pingpong -e", None, |a, b| pingpong(a, b, &["-e"]));
    }
    let modules = PYVERBS_MODULES
        .iter()
        .map(|module| format!("tests.{module}."));
    let selections = [
        ("tests of EFA", vec!["efa".to_owned()]),
        ("tests of all devices", modules.collect()),
    ];
    for (version, userland) in PYVERBS {
        for (name, selection) in selections.clone() {
            let name = format!("pyverbs {version} {name}");
            let cell = Cell::new(GROUP, name, PYVERBS_LIMIT, move |bench| {
                tests(bench, userland, &selection)
            });
            cells.push(cell.emulated_only("the tests are prepared on this machine"));
        }
    }
    Ok(cells)
}

fn hosts<'a>(bench: &'a Bench<'a>, userland: Option<&str>) -> Result<[Host<'a>; 2], Unmet> {
    let hosts = ["a", "b"].map(|name| bench.host(name).profile("efa2"));
    match userland {
        Some(name) => {
            let userland = bench.userland(name)?;
            Ok(hosts.map(|host| host.userland(&userland)))
        }
        None => {
            bench.needs("ibv_devices", "ibverbs-utils")?;
            Ok(hosts)
        }
    }
}

fn expect(printed: &str, parts: &[&str]) -> Result<(), Unmet> {
    let words = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    match parts.iter().find(|part| !words.contains(*part)) {
        Some(part) => Err(Unmet::Failed(format!("`{part}` is not in\n{printed}"))),
        None => Ok(()),
    }
}

fn devices(host: &Host) -> CellResult {
    let list = host.run(&["ibv_devices"])?;
    expect(&list.stdout, &[DEVICE, "00efa0fffe"])?;
    let line = list.stdout.lines().find(|line| line.contains(DEVICE));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    Ok(words.join(" "))
}

fn devinfo(host: &Host) -> CellResult {
    let info = host.run(&["ibv_devinfo", "-v"])?.stdout;
    let name = format!("hca_id: {DEVICE}");
    let expected = [
        name.as_str(),
        "transport: unspecified (4)",
        "vendor_id: 0x1d0f",
        "vendor_part_id: 61346",
        "state: PORT_ACTIVE (4)",
        "max_msg_sz: 0x22e0",
        "link_layer: Unspecified",
        "GID[ 0]: fe80:",
    ];
    expect(&info, &expected)?;
    Ok(format!("{} lines, as on EFA", info.lines().count()))
}

fn pingpong(server: &Host, client: &Host, options: &[&str]) -> CellResult {
    let program = [&["ibv_ud_pingpong", "-g", "0"], options].concat();
    let [_, client] = converse(server, client, &program)?;
    let measured = client.stdout.lines().filter(|line| line.contains(" in "));
    let measured: Vec<&str> = measured.map(str::trim).collect();
    match measured[..] {
        [] => Err(Unmet::Failed(format!("no results in\n{}", client.stdout))),
        _ => Ok(measured.join(", ")),
    }
}

/// Runs the tests whose names contain one of `selection`, in the cell's directory.
fn tests(bench: &Bench, userland: Option<&str>, selection: &[String]) -> CellResult {
    let userland = userland.map(|name| bench.userland(name)).transpose()?;
    let root = match &userland {
        Some(userland) => userland.directory().join("root"),
        None => PathBuf::from("/"),
    };
    let lacks = |what: &str, package: &str| {
        Unmet::Skipped(format!("{what} is not there (Debian package {package})"))
    };
    let (python, original) = (root.join(PYTHON), root.join(PYVERBS_TESTS));
    if !original.join("run_tests.py").is_file() {
        return Err(lacks(PYVERBS_TESTS, "rdma-core"));
    }
    if !root.join("usr/lib/python3/dist-packages/pyverbs").is_dir() {
        return Err(lacks("Python module pyverbs", "python3-pyverbs"));
    }
    let copy = bench.directory().join("tests");
    let tools = bench.directory().join("bin");
    copy_tests(&original, &copy)
        .and_then(|()| write_rdma(&tools))
        .map_err(|error| Unmet::Failed(format!("cannot prepare the tests: {error}")))?;
    let mut path = tools.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut host = bench.host("a").profile("efa2").env("PATH", path);
    if let Some(userland) = &userland {
        host = host.userland(userland);
    }
    let script = copy.join("run_tests.py");
    let [python, script] = [&python, &script].map(|path| path.to_str().unwrap_or_default());
    let mut program = vec![python, script, "--dev", DEVICE];
    for part in selection {
        program.extend(["-k", part]);
    }
    let finished = host.run(&program)?;
    // unittest reports on standard error.
    let lines: Vec<&str> = finished.stderr.lines().collect();
    let ran = lines.iter().find(|line| line.starts_with("Ran "));
    let verdict = lines.last().filter(|line| line.starts_with("OK"));
    match (ran, verdict) {
        (Some(ran), Some(verdict)) if !ran.starts_with("Ran 0 ") => {
            let ran = ran.split(" in ").next().unwrap_or_default();
            Ok(format!("{ran}: {verdict}"))
        }
        _ => Err(Unmet::Failed(format!("no tests ran\n{}", finished.stderr))),
    }
}

/// Writes a program `rdma` that answers as iproute2's does on an instance with one EFA device: the tests ask it for the
/// device's network interface, and it asks the kernel.
fn write_rdma(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let program = directory.join("rdma");
    let link = format!(
        r#"[{{"ifname":"{DEVICE}","port":1,"state":"ACTIVE","physical_state":"LINK_UP"}}]"#
    );
    std::fs::write(&program, format!("#!/bin/sh\necho '{link}'\n"))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
}

fn copy_tests(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let from = entry?.path();
        let Some(name) = from.file_name() else {
            continue;
        };
        if from.extension().is_some_and(|extension| extension == "gz") {
            let unpacked = Command::new("gzip").arg("-dc").arg(&from).output()?;
            let name = Path::new(name).with_extension("");
            std::fs::write(to.join(name), unpacked.stdout)?;
        } else if from.is_file() {
            std::fs::copy(&from, to.join(name))?;
        }
    }
    Ok(())
}
