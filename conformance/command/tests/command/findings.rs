//! The commands in `docs/findings.md` exist.

use efa_testing::workspace::{efa_conformance, expect, root};

/// The texts between two marks.
fn between<'t>(text: &'t str, begin: &str, end: char) -> Vec<&'t str> {
    let found = text.split(begin).skip(1);
    found
        .filter_map(|rest| Some(rest.split_once(end)?.0))
        .collect()
}

#[test]
fn every_finding_can_be_shown() {
    let page = std::fs::read_to_string(root().join("docs/findings.md")).unwrap();
    let cells = expect(efa_conformance(&["interop", "--list"]), 0, &[]);
    let filters = between(&page, "--filter '", '\'');
    assert!(filters.len() >= 7, "{filters:?}");
    for filter in filters {
        assert!(cells.contains(filter), "no cell `{filter}`");
    }
    let traces = between(&page, " traces/", ' ');
    assert!(traces.len() >= 4, "{traces:?}");
    for trace in traces {
        let path = root().join("traces").join(trace);
        assert!(path.exists(), "{}", path.display());
    }
    // A section for each row, with all of its parts.
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
    let sections: Vec<_> = page.split("\n## ").skip(1).collect();
    assert_eq!(rows.count(), sections.len());
    for section in sections {
        let title = section.lines().next().unwrap();
        for part in [
            "* **Reproduced**",
            "* **Trace**",
            "* **Where**",
            "* **Right**",
            "\n> ",
        ] {
            assert!(section.contains(part), "{part} of {title}");
        }
        let blocks = section.split("\n```").skip(1).step_by(2);
        for block in blocks {
            assert!(block.lines().count() <= 31, "{title}: {block}");
        }
    }
}
