//! The profile's filters, the statistics and the installation.
//!
//! Needs `tshark`; without it the tests say so and pass.

use std::path::{Path, PathBuf};
use std::process::Command;

use efa_core::wire::ExtraFeatures;

use efa_testing::workspace::{emulator, root};
use efa_wireshark::Tshark;
use efa_wireshark::talk::{End, Talk};

fn wireshark() -> PathBuf {
    root().join("wireshark")
}

fn talk() -> Vec<u8> {
    let mut talk = Talk::acquainted(ExtraFeatures::RDMA_READ);
    talk.packet(End::A, &End::A.eager(0), &[0; 64]);
    talk.packet(End::A, &End::A.eager(3), &[0; 64]);
    talk.packet(End::A, &End::A.long_cts(1, 100, 1), &[0; 60]);
    talk.packet(End::B, &End::B.cts(1, 2, 40), b"");
    talk.packet(End::A, &End::A.data(2, 60, 40), &[0; 40]);
    talk.capture()
}

/// The filters in the profile's files and in the documentation.
fn filters() -> Vec<String> {
    let read =
        |name: &str| std::fs::read_to_string(wireshark().join("profile").join(name)).unwrap();
    let quoted = |line: &str, n: usize| line.split("\",\"").nth(n).map(str::to_owned);
    let mut filters = Vec::new();
    for line in read("colorfilters")
        .lines()
        .filter(|line| line.starts_with('@'))
    {
        filters.push(line.split('@').nth(2).unwrap().to_owned());
    }
    for line in read("dfilters").lines() {
        filters.push(line.split_once("\" ").unwrap().1.to_owned());
    }
    for line in read("dfilter_buttons")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        filters.push(quoted(line, 2).unwrap());
    }
    for line in read("io_graphs")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        filters.push(quoted(line, 2).unwrap());
    }
    let guide = std::fs::read_to_string(wireshark().join("../docs/wireshark.md")).unwrap();
    let section = guide
        .split("\n## ")
        .find(|part| part.starts_with("Filters"));
    let rows = section
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'));
    for row in rows {
        filters.extend(row.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    assert!(filters.len() > 40, "{}", filters.len());
    filters
}

#[test]
fn all_documented_and_profile_filters_are_valid() {
    let Some(tshark) = Tshark::find() else { return };
    let capture = talk();
    // An invalid filter makes tshark fail, with a message that quotes the filter.
    let all = filters().join(") || (");
    tshark.run(&capture, &["-2", "-Y", &format!("({all})")]);
    assert_eq!(
        tshark
            .run(&capture, &["-Y", "efa_rdm.type == 9"])
            .lines()
            .count(),
        2
    );
}

#[test]
fn statistics_count_packets_and_list_transfers_and_conversations() {
    let Some(tshark) = Tshark::find() else { return };
    let names = "packets,transfers,order,endpoints,conversations,nonsense";
    let text = tshark.statistics(&talk(), names);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|c| !c.is_empty())
                .collect()
        })
        .collect();
    let row = |begin: &str| rows.iter().find(|row| row.first() == Some(&begin)).unwrap();
    assert_eq!(row("SEND")[1..3], ["7", "100.0%"]);
    assert_eq!(
        row("EAGER_MSGRTM")[1..],
        ["2", "28.6%", "152", "38.0%", "76"]
    );
    let long = rows
        .iter()
        .find(|row| row.get(2) == Some(&"Long-CTS message"))
        .unwrap();
    assert_eq!(long[1], "message");
    assert_eq!(
        long[5..],
        ["100", "3", "5", "7", "2.000", "1.000", "0", "done"]
    );
    // Message 3 came before message 1, and 2 is missing.
    let order: Vec<_> = rows
        .iter()
        .skip_while(|row| row.first() != Some(&"seen by"))
        .skip(1)
        .take_while(|row| row.len() == 8)
        .map(|row| (row[3], row[4], row[5]))
        .collect();
    assert_eq!(
        order,
        [("0", "3", "3"), ("1", "5", "5"), ("3", "4", "never")]
    );
    let [a, b] = [End::A, End::B].map(End::address);
    let [a, b] = [a, b].map(|address| format!("[{}]:{}", address.gid, address.qpn));
    let row = |begin: &str| {
        let of_endpoints = rows
            .iter()
            .skip_while(|row| row.first() != Some(&"endpoint"));
        let mut of_this = of_endpoints.filter(|row| row.first() == Some(&begin));
        of_this.next().unwrap()[1..5].to_vec()
    };
    let (sent_by_a, sent_by_b) = (row(&a), row(&b));
    assert_eq!(sent_by_a[..2], ["1", "5"]);
    assert_eq!(sent_by_b[..2], ["1", "2"]);
    assert_eq!(sent_by_a[3], "2");
    assert_eq!(sent_by_b[3], "5");
    let conversation = text
        .lines()
        .find(|line| line.contains("message 2 is missing"))
        .unwrap();
    assert!(
        conversation.contains("as libfabric 1.10 or later, device 0xefa1"),
        "{conversation}"
    );
    assert!(text.contains("no statistics nonsense"));
}

#[test]
fn the_installation_is_where_wireshark_looks_for_it() {
    let Some(tshark) = Tshark::find() else { return };
    if std::env::var_os("TSHARK").is_some() {
        efa_testing::skip("the installation asks the tshark in the path, not the one in TSHARK");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let output = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("WIRESHARK_CONFIG_DIR")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {error}", program.display());
        (String::from_utf8_lossy(&output.stdout).into_owned(), error)
    };
    let run = |program: &Path, arguments: &[&str]| output(program, arguments).0;
    let told = run(&emulator(), &["wireshark", "install"]);
    for what in ["dissector: ", "profile: ", "interfaces: "] {
        let line = told.lines().find(|line| line.starts_with(what)).unwrap();
        assert!(line.contains(home.path().to_str().unwrap()), "{told}");
    }
    let file = home.path().join("talk.pcapng");
    std::fs::write(&file, talk()).unwrap();
    let list = run(
        Path::new("tshark"),
        &[
            "-C",
            "EFA",
            "-r",
            file.to_str().unwrap(),
            "-Y",
            "efa_rdm.type == 68",
        ],
    );
    // The columns of the profile, among them the endpoints and the subprotocol.
    let from = format!("[{}]:{}", End::A.address().gid, End::A.address().qpn);
    assert!(
        list.contains(&from) && list.contains("Long-CTS message"),
        "{list}"
    );
    // A second copy is refused, with the remedy.
    let script = format!("lua_script:{}", wireshark().join("efa.lua").display());
    let arguments = ["-X", &script, "-r", file.to_str().unwrap()];
    let (list, error) = output(Path::new("tshark"), &arguments);
    assert!(list.contains("LONGCTS_MSGRTM"), "{list}");
    assert!(error.contains("leave out -X lua_script"), "{error}");
    drop(tshark);
}
