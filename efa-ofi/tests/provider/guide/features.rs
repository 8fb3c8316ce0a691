//! The table of features of docs/ofi.md, from the answers of providers.

use std::collections::BTreeMap;

use efa_testing::workspace::expect_part;

use super::{TestFabric, compile, printed, releases};

/// The answers to each question, in the order of the questions. A question is the feature and the
/// guide's section, as two columns.
fn answers(printed: &str) -> Vec<(String, String)> {
    let lines = printed.lines().filter_map(|line| line.rsplit_once('|'));
    lines
        .map(|(question, answer)| (question.replace('|', " | "), answer.to_owned()))
        .collect()
}

#[test]
fn the_features_table_has_the_answers() {
    let directory = tempfile::tempdir().expect("a directory");
    let fabric = TestFabric::new();
    let program = compile("features", directory.path());
    let releases = releases();
    let ours = answers(&printed(&fabric, &program, &releases[0], "efa_rs"));
    assert!(ours.len() > 25, "{ours:?}");
    let mut stock = BTreeMap::new();
    for release in &releases {
        // Whatever the release, ours answers the same.
        let again = answers(&printed(&fabric, &program, release, "efa_rs"));
        assert_eq!(again, ours, "{}", release.name);
        let found = answers(&printed(&fabric, &program, release, "efa"));
        stock.insert(release.name, BTreeMap::from_iter(found));
    }
    const RELEASES: [&str; 3] = ["1.17", "2.1", "2.5"];
    if stock.len() < RELEASES.len() {
        println!("skipped: the table needs libfabric 2.1 and 2.5 (scripts/userland)");
        return;
    }
    let mut made =
        "\n| | guide | stock 1.17 | stock 2.1 | stock 2.5 | `efa_rs` |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for (question, own) in &ours {
        made += &format!("| {question} |");
        for release in RELEASES {
            let answer = stock[release]
                .get(question)
                .map_or("ends the program", String::as_str);
            made += &format!(" {answer} |");
        }
        made += &format!(" {own} |\n");
    }
    made += "\n";
    let marks = [
        "<!-- generated: features -->\n",
        "<!-- end of features -->\n",
    ];
    expect_part("docs/ofi.md", marks, "-p efa-ofi guide::features", &made);
}
