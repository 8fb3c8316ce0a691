//! The doctor's findings on machines with prepared files: a correct EC2 instance, and each way in
//! which it can be wrong.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use efa_core::address::Gid;
use efa_device_model::profile::Profile;
use efa_device_model::sysfs;
use efa_doctor::doctor::{CHECKS, Finding, Level, Machine, examine, worst};
use tempfile::TempDir;

/// The files of a machine, and the variables of a process on it.
struct FakeMachine {
    root: TempDir,
    environment: BTreeMap<String, String>,
}

impl FakeMachine {
    /// A machine without EFA.
    fn bare() -> FakeMachine {
        let staged = FakeMachine {
            root: tempfile::tempdir().unwrap(),
            environment: BTreeMap::new(),
        };
        staged.file("proc/sys/kernel/osrelease", "6.1.0-30-cloud-amd64");
        staged.file("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian 12\"");
        staged.file(
            "proc/self/status",
            "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\nGroups:\t1000 44",
        );
        staged.limit("8388608");
        staged
    }

    /// A correct EC2 instance of this type, with devices of this generation.
    fn instance(name: &str, profile: &str, devices: u8) -> FakeMachine {
        let staged = FakeMachine::bare();
        staged.file("sys/devices/virtual/dmi/id/sys_vendor", "Amazon EC2");
        staged.file("sys/devices/virtual/dmi/id/product_name", name);
        staged.file("sys/module/efa/version", "2.13.0g");
        staged.file("proc/sys/kernel/yama/ptrace_scope", "0");
        staged.file(
            "proc/meminfo",
            "HugePages_Free:     5000\nHugepagesize:       2048 kB",
        );
        staged.limit("unlimited");
        staged.devices(profile, devices);
        for (library, version) in [("libibverbs", "14.50.0"), ("libefa", "3.50.0")] {
            staged.library("usr/lib64", library, version);
        }
        staged.file("opt/amazon/efa/lib64/libfabric.so.1", "");
        staged
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.root.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn limit(&self, soft: &str) {
        let line = format!("Max locked memory         {soft:<20} unlimited            bytes");
        self.file("proc/self/limits", &line);
    }

    fn devices(&self, profile: &str, count: u8) {
        let gid = |index| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, index + 1]);
        let gids: Vec<Gid> = (0..count).map(gid).collect();
        let profile = Profile::by_name(profile).unwrap();
        sysfs::generate(&self.path("sys"), profile, &gids, &[]).unwrap();
        for index in 0..count {
            self.node(index, 0o666);
        }
    }

    fn node(&self, index: u8, mode: u32) {
        let node = format!("dev/infiniband/uverbs{index}");
        self.file(&node, "");
        fs::set_permissions(self.path(&node), Permissions::from_mode(mode)).unwrap();
    }

    fn library(&self, directory: &str, name: &str, version: &str) {
        let file = format!("{name}.so.1.{version}");
        self.file(&format!("{directory}/{file}"), "");
        symlink(file, self.path(&format!("{directory}/{name}.so.1"))).unwrap();
    }

    fn machine(&self) -> Machine {
        Machine::below(self.root.path(), self.environment.clone())
    }

    fn findings(&self) -> Vec<Finding> {
        examine(&self.machine())
    }
}

/// The findings of a check.
fn of<'a>(findings: &'a [Finding], check: &str) -> Vec<&'a Finding> {
    let found: Vec<_> = findings
        .iter()
        .filter(|finding| finding.check == check)
        .collect();
    assert!(!found.is_empty(), "{check}: {findings:#?}");
    found
}

/// The only finding of a check: its level, its value, its remedy.
#[track_caller]
fn only<'a>(findings: &'a [Finding], check: &str) -> (Level, &'a str, &'a str) {
    let [finding] = of(findings, check)[..] else {
        panic!("{check}: {findings:#?}");
    };
    let remedy = finding.remedy.as_deref().unwrap_or_default();
    (finding.level, &finding.value, remedy)
}

#[test]
fn a_healthy_instance_has_only_notes() {
    let findings = FakeMachine::instance("p5en.48xlarge", "efa2", 16).findings();
    assert_eq!(worst(&findings), Level::Ok, "{findings:#?}");
    assert!(only(&findings, "machine").1.starts_with("p5en.48xlarge"));
    assert_eq!(
        only(&findings, "kernel").1,
        "6.1.0-30-cloud-amd64, Debian 12"
    );
    assert_eq!(only(&findings, "driver").1, "2.13.0g");
    assert_eq!(only(&findings, "memlock"), (Level::Ok, "unlimited", ""));
    assert_eq!(of(&findings, "device").len(), 16);
    assert_eq!(of(&findings, "permissions").len(), 16);
    let port = of(&findings, "port")[1];
    assert_eq!(port.subject.as_deref(), Some("rdmap20s27"));
    assert!(
        port.value
            .contains("fe80:0000:0000:0000:0000:0000:0000:0002")
    );
    let libraries: Vec<_> = of(&findings, "rdma-core")
        .iter()
        .map(|finding| finding.subject.as_deref().unwrap())
        .collect();
    assert_eq!(
        libraries,
        ["/usr/lib64/libibverbs.so.1", "/usr/lib64/libefa.so.1"]
    );
    let libfabric = of(&findings, "libfabric")[0].subject.as_deref().unwrap();
    assert!(libfabric.starts_with("/opt/amazon/efa/lib64/libfabric.so.1"));
}

#[test]
fn findings_belong_to_checks_and_have_remedies() {
    let machines = [
        FakeMachine::bare(),
        FakeMachine::instance("c5n.18xlarge", "efa0", 1),
        FakeMachine::instance("p4d.24xlarge", "efa1", 2),
    ];
    for findings in machines.map(|staged| staged.findings()) {
        for finding in &findings {
            assert!(CHECKS.iter().any(|(name, _)| *name == finding.check));
            let is_bad = finding.level > Level::Note;
            assert!(!is_bad || finding.remedy.is_some(), "{finding:#?}");
        }
        let places = findings.iter().map(|finding| {
            let mut names = CHECKS.iter();
            names.position(|(name, _)| *name == finding.check).unwrap()
        });
        assert!(places.is_sorted());
    }
}

#[test]
fn a_machine_with_nothing_has_one_error() {
    let findings = FakeMachine::bare().findings();
    let (level, value, remedy) = only(&findings, "device");
    assert_eq!((level, value), (Level::Error, "there is no EFA device"));
    assert!(remedy.contains("efa-emu run"), "{remedy}");
    assert!(only(&findings, "machine").1.contains("no DMI table"));
    assert_eq!(only(&findings, "memlock").0, Level::Error);
}

#[test]
fn a_missing_interface_suggests_attaching_one() {
    let findings = FakeMachine::instance("c5n.18xlarge", "efa0", 0).findings();
    let (level, _, remedy) = only(&findings, "device");
    assert_eq!(level, Level::Error);
    assert!(remedy.contains("--interface-type efa"), "{remedy}");
}

#[test]
fn a_missing_driver_differs_from_a_missing_device() {
    let staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    fs::remove_dir_all(staged.path("sys/class")).unwrap();
    fs::remove_file(staged.path("sys/devices/pci0000:00/0000:00:00.0/driver")).unwrap();
    let findings = staged.findings();
    let (level, value, remedy) = only(&findings, "device");
    assert_eq!((level, value), (Level::Error, "no driver has 0000:00:00.0"));
    assert!(remedy.contains("modprobe efa"), "{remedy}");
}

#[test]
fn fewer_devices_than_possible_are_noted() {
    let findings = FakeMachine::instance("p5.48xlarge", "efa2", 8).findings();
    let count = of(&findings, "device")[0];
    assert_eq!(
        (count.level, &count.value[..]),
        (Level::Note, "8 of 32 that the type can have")
    );
}

#[test]
fn low_memlock_is_an_error_only_when_enforced() {
    let mut staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    staged.limit("65536");
    let findings = staged.findings();
    let (level, value, remedy) = only(&findings, "memlock");
    assert_eq!(level, Level::Error);
    assert!(value.starts_with("64 KiB: too little"), "{value}");
    assert!(remedy.contains("memlock unlimited"), "{remedy}");

    staged.limit("1073741824");
    assert_eq!(only(&staged.findings(), "memlock").0, Level::Warning);

    staged.limit("65536");
    staged.file(
        "proc/self/status",
        "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000004000",
    );
    assert_eq!(only(&staged.findings(), "memlock").0, Level::Ok);

    staged.file(
        "proc/self/status",
        "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000000000",
    );
    assert_eq!(only(&staged.findings(), "memlock").0, Level::Error);
    staged
        .environment
        .insert("EFA_EMU_HOST".into(), "host-1".into());
    let findings = staged.findings();
    assert_eq!(only(&findings, "memlock").0, Level::Ok);
    assert_eq!(only(&findings, "emulator").0, Level::Note);
}

#[test]
fn drivers_too_old_for_device_or_instance() {
    for (instance, profile, version, level, expected) in [
        (
            "p5.48xlarge",
            "efa2",
            "1.16.0",
            Level::Error,
            "0xefa2 are supported from 2.1.0",
        ),
        (
            "p5.48xlarge",
            "efa2",
            "2.1.1",
            Level::Warning,
            "RDMA write came with 2.4.0",
        ),
        (
            "p4d.24xlarge",
            "efa0",
            "1.4.1",
            Level::Warning,
            "RDMA read came with 1.5.0",
        ),
        ("p4d.24xlarge", "efa0", "1.5.0", Level::Ok, "1.5.0"),
        (
            "hpc9z.96xlarge",
            "efa3",
            "2.10.0",
            Level::Error,
            "0xefa3 are supported from 2.12.0",
        ),
    ] {
        let staged = FakeMachine::instance(instance, profile, 1);
        staged.file("sys/module/efa/version", version);
        let findings = staged.findings();
        let (found, value, _) = only(&findings, "driver");
        assert!(
            found == level && value.contains(expected),
            "{found:?} {value}"
        );
    }
    let staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    fs::remove_file(staged.path("sys/module/efa/version")).unwrap();
    let findings = staged.findings();
    assert_eq!(only(&findings, "driver").0, Level::Note);
}

#[test]
fn devices_that_this_user_may_not_open() {
    let staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    for (mode, level) in [
        (0o600, Level::Error),
        (0o664, Level::Error),
        (0o606, Level::Ok),
    ] {
        staged.node(0, mode);
        let findings = staged.findings();
        let (found, value, remedy) = only(&findings, "permissions");
        assert_eq!(found, level, "{mode:o}: {value}");
        if level == Level::Error {
            assert!(value.contains(&format!("mode {mode:04o}")), "{value}");
            assert!(remedy.contains("udev"), "{remedy}");
        }
    }
    // The owner of the file.
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(staged.path("etc")).unwrap());
    staged.node(0, 0o600);
    staged.file(
        "proc/self/status",
        &format!("Uid:\t{owner}\t{owner}\t{owner}\t{owner}"),
    );
    assert_eq!(only(&staged.findings(), "permissions").0, Level::Ok);
    fs::remove_file(staged.path("dev/infiniband/uverbs0")).unwrap();
    let findings = staged.findings();
    let (level, value, remedy) = only(&findings, "permissions");
    assert_eq!(
        (level, value),
        (Level::Error, "/dev/infiniband/uverbs0 is missing")
    );
    assert!(remedy.contains("--device=/dev/infiniband"), "{remedy}");
}

#[test]
fn ports_without_a_link_or_a_gid() {
    let staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    staged.file("sys/class/infiniband/rdmap0s0/ports/1/state", "1: DOWN");
    let findings = staged.findings();
    assert_eq!(only(&findings, "port").1, "1: DOWN, not ACTIVE");
    assert_eq!(only(&findings, "port").0, Level::Error);
    staged.file("sys/class/infiniband/rdmap0s0/ports/1/state", "4: ACTIVE");
    let null = "0000:0000:0000:0000:0000:0000:0000:0000";
    staged.file("sys/class/infiniband/rdmap0s0/ports/1/gids/0", null);
    assert_eq!(only(&staged.findings(), "port").0, Level::Error);
}

#[test]
fn an_unexpected_device_generation_is_noted() {
    let findings = FakeMachine::instance("p4d.24xlarge", "efa3", 4).findings();
    let generation = of(&findings, "generation")[0];
    assert_eq!(generation.level, Level::Note);
    assert!(generation.value.contains("known of p4d.24xlarge: 0xefa0"));
}

#[test]
fn trace_scope_and_huge_pages() {
    let staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    staged.file("proc/sys/kernel/yama/ptrace_scope", "1");
    staged.file(
        "proc/meminfo",
        "HugePages_Free:        0\nHugepagesize:       2048 kB",
    );
    let findings = staged.findings();
    assert_eq!(only(&findings, "ptrace").0, Level::Warning);
    assert!(only(&findings, "ptrace").2.contains("ptrace_scope=0"));
    assert_eq!(only(&findings, "hugepages").0, Level::Note);
}

#[test]
fn accelerator_memory_needs_dmabuf_or_a_module() {
    let staged = FakeMachine::instance("p4d.24xlarge", "efa0", 4);
    staged.file("sys/module/nvidia/version", "535.183");
    let findings = staged.findings();
    assert_eq!(
        only(&findings, "gpu"),
        (Level::Ok, "NVIDIA 535.183, by dmabuf", "")
    );
    staged.file("proc/sys/kernel/osrelease", "5.4.0-1103-aws");
    let findings = staged.findings();
    let (level, value, remedy) = only(&findings, "gpu");
    assert!(
        level == Level::Warning && value.contains("cannot be reached"),
        "{value}"
    );
    assert!(remedy.contains("efa_nv_peermem"), "{remedy}");
    staged.file("sys/module/efa_nv_peermem/version", "1.1.0");
    let findings = staged.findings();
    assert_eq!(
        only(&findings, "gpu").1,
        "NVIDIA 535.183, by efa_nv_peermem"
    );
}

#[test]
fn library_copies_are_deduplicated_and_mixed_releases_warned() {
    let mut staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    let own = staged.path("home/user/lib");
    staged.library("home/user/lib", "libibverbs", "14.44.0");
    // The variable holds the full path, including the root.
    staged
        .environment
        .insert("LD_LIBRARY_PATH".into(), own.display().to_string());
    let cache =
        "glibc-ld.so.cache1.1\0libefa.so.1\0/opt/other/libefa.so.1\0/usr/lib64/libefa.so.1\0";
    staged.library("opt/other", "libefa", "3.50.0");
    fs::write(staged.path("etc/ld.so.cache"), cache).unwrap();
    let wheel = "usr/local/lib/python3.11/site-packages/mpich.libs/libfabric-3f2a.so.1.30.0";
    staged.file(wheel, "");
    let findings = staged.findings();
    let subjects = |check| -> Vec<&str> {
        let found = of(&findings, check).into_iter();
        found
            .filter_map(|finding| finding.subject.as_deref())
            .collect()
    };
    assert_eq!(
        subjects("rdma-core"),
        [
            "/home/user/lib/libibverbs.so.1",
            "/usr/lib64/libibverbs.so.1",
            "/opt/other/libefa.so.1",
            "/usr/lib64/libefa.so.1"
        ]
    );
    assert!(subjects("libfabric")[1].ends_with("mpich.libs/libfabric-3f2a.so.1.30.0"));
    let warning = of(&findings, "rdma-core")
        .into_iter()
        .find(|finding| finding.level > Level::Ok);
    let warning = warning.unwrap();
    assert_eq!(warning.level, Level::Warning);
    assert!(
        warning.value.contains("44.0") && warning.value.contains("50.0"),
        "{}",
        warning.value
    );
}

#[test]
fn missing_libraries_are_errors_with_their_packages() {
    let staged = FakeMachine::bare();
    let findings = staged.findings();
    let missing = of(&findings, "rdma-core");
    assert_eq!(missing.len(), 2);
    for finding in missing {
        assert_eq!(finding.level, Level::Error);
        assert!(
            finding
                .remedy
                .as_deref()
                .unwrap()
                .contains("ibverbs-providers")
        );
    }
    assert_eq!(of(&findings, "libfabric")[0].level, Level::Note);
}

/// A metadata service that answers these requests with these bodies; anything else is not found.
fn serve(answers: &'static [(&'static str, &'static str)]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut part = [0; 512];
            while !request.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut part).unwrap();
                assert!(count > 0, "{}", String::from_utf8_lossy(&request));
                request.extend_from_slice(&part[..count]);
            }
            let request = String::from_utf8(request).unwrap();
            let is_token = request.starts_with("PUT ");
            assert!(is_token || request.contains("\r\nX-aws-ec2-metadata-token: t0ken\r\n"));
            let found = answers
                .iter()
                .find(|(beginning, _)| request.starts_with(beginning));
            let answer = match found {
                Some((_, body)) => format!("HTTP/1.1 200 OK\r\nServer: EC2ws\r\n\r\n{body}"),
                None => "HTTP/1.1 404 Not Found\r\n\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn metadata_supply_the_type_firmware_lacks() {
    const TOKEN: (&str, &str) = ("PUT /latest/api/token", "t0ken");
    let staged = FakeMachine::instance("HVM domU", "efa0", 1);
    let findings = staged.findings();
    assert!(only(&findings, "machine").1.contains("unknown type"));
    let address = serve(&[
        TOKEN,
        ("GET /latest/meta-data/instance-type ", "c5n.18xlarge"),
        (
            "GET /latest/meta-data/placement/availability-zone-id ",
            "use1-az4",
        ),
    ]);
    let findings = examine(&staged.machine().with_metadata(address));
    assert!(only(&findings, "machine").1.starts_with("c5n.18xlarge"));
    assert_eq!(
        only(&findings, "metadata"),
        (Level::Ok, "answers; availability zone use1-az4", "")
    );
}

#[test]
fn a_refusing_or_absent_metadata_service_is_noted() {
    let staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for (address, why) in [(serve(&[]), "404"), (nobody, "refused")] {
        let findings = examine(&staged.machine().with_metadata(address));
        let (level, value, remedy) = only(&findings, "metadata");
        assert!(level == Level::Note && value.contains(why), "{value}");
        assert!(remedy.contains("hop-limit"), "{remedy}");
        // The firmware's information is enough.
        assert!(only(&findings, "machine").1.starts_with("c5n.18xlarge"));
    }
    // Only on EC2 is the service asked.
    let bare = FakeMachine::bare();
    let findings = examine(&bare.machine().with_metadata(nobody));
    assert!(findings.iter().all(|finding| finding.check != "metadata"));
}

#[test]
fn devices_of_other_vendors_are_ignored() {
    let staged = FakeMachine::instance("c5n.18xlarge", "efa0", 1);
    let function = staged.path("sys/devices/pci0000:00/0000:00:00.0");
    fs::write(Path::new(&function).join("vendor"), "0x15b3\n").unwrap();
    let findings = staged.findings();
    assert_eq!(only(&findings, "device").1, "there is no EFA device");
}

#[test]
fn the_page_lists_every_check() {
    let page = efa_testing::workspace::root().join("docs/ec2.md");
    let page = fs::read_to_string(page).unwrap();
    for (name, meaning) in CHECKS {
        let row = format!("| `{name}` | {meaning} |\n");
        assert!(page.contains(&row), "docs/ec2.md lacks {row}");
    }
}
