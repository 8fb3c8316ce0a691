//! Whether output has the shape that a page shows: the same lines, but for measured numbers and spaces.

/// A line with each address of a device and run of spaces in a form of its own, and each number, but for those that are a part
/// of a name (`rdmap0s0`) or count what is wrong (`0 failed`).
fn masked(line: &str) -> String {
    // What the terminal shows of Ctrl+C.
    let line = line.strip_prefix("^C").unwrap_or(line);
    let following = line.split_whitespace().skip(1).chain([""]);
    let words = line.split_whitespace().zip(following).map(|(word, next)| {
        if word.contains("fe80::") {
            return "GID".to_owned();
        }
        let counts_faults = ["failed", "errors", "drops"]
            .iter()
            .any(|fault| next.starts_with(fault));
        if counts_faults {
            return word.to_owned();
        }
        // Where the clone is, and how it was built.
        let word = ["target/release/", "target/debug/"]
            .iter()
            .find_map(|directory| word.split_once(directory))
            .map_or(word, |(_, program)| program);
        let mut shape = String::new();
        let mut in_number = false;
        for letter in word.chars() {
            let is_named =
                shape.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_');
            match letter {
                '0'..='9' if in_number => {}
                '0'..='9' if is_named && !shape.ends_with("#x") => shape.push(letter),
                '0'..='9' => {
                    shape.push('#');
                    in_number = true;
                }
                '.' if in_number => {}
                _ => {
                    shape.push(letter);
                    in_number = false;
                }
            }
        }
        shape
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns whether `actual` has the shape of `shown`, of which the end may be left out (`...`).
fn is_line(shown: &str, actual: &str) -> bool {
    match shown.strip_suffix("...") {
        Some(beginning) => masked(actual).starts_with(masked(beginning).trim_end_matches('#')),
        None => masked(actual) == masked(shown),
    }
}

/// Returns whether the lines of `actual` are those of `shown`. A line `...` stands for any lines, or none.
pub(crate) fn is_output(shown: &[String], actual: &[String]) -> bool {
    match shown.split_first() {
        None => actual.is_empty(),
        Some((first, rest)) if first.trim() == "..." => {
            (0..=actual.len()).any(|skipped| is_output(rest, &actual[skipped..]))
        }
        Some((first, rest)) => actual
            .split_first()
            .is_some_and(|(line, others)| is_line(first, line) && is_output(rest, others)),
    }
}

/// As [`is_output`], with anything before and behind.
pub(crate) fn is_excerpt(shown: &[String], actual: &[String]) -> bool {
    let any = ["...".to_owned()];
    is_output(&[&any, shown, &any].concat(), actual)
}

#[test]
fn lines_are_compared_but_for_numbers_and_spaces() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let shown = lines("64    =10  0.07s  fe80::ef:1\n...\nCTS 3, ...\nend");
    for (actual, expected) in [
        ("64 =10 1.5s fe80::2\nCTS 4, EOR 2\nend", true),
        ("64 =10 1.5s fe80::2\nmore\nmore\nCTS 4, \nend", true),
        ("64 =10 1.5m fe80::2\nCTS 4, EOR 2\nend", false),
        ("64 =10 1.5s fe80::2\nEOR 4, EOR 2\nend", false),
        ("64 =10 1.5s fe80::2\nCTS 4, EOR 2", false),
        ("more\n64 =10 1.5s fe80::2\nCTS 4, EOR 2\nend", false),
        ("64 =10 1.5s fe80::2\nCTS 4, EOR 2\nend\nmore", false),
    ] {
        assert_eq!(is_output(&shown, &lines(actual)), expected, "{actual}");
    }
    let shown = lines("rdmap0s0 of node0: 7 passed, 0 failed, 0x1b");
    for (actual, expected) in [
        ("rdmap0s0 of node0: 8 passed, 0 failed, 0x2b", true),
        ("rdmap0s6 of node0: 8 passed, 0 failed, 0x2b", false),
        ("rdmap0s0 of node1: 8 passed, 0 failed, 0x2b", false),
        ("rdmap0s0 of node0: 8 passed, 1 failed, 0x2b", false),
    ] {
        assert_eq!(is_output(&shown, &lines(actual)), expected, "{actual}");
    }
    assert!(is_excerpt(&lines("b 1\nc"), &lines("a\nb 22\nc\nd")));
    assert!(!is_excerpt(&lines("b 1\nc"), &lines("a\nb 22\nd\nc")));
}
