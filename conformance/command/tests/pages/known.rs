//! Commands in the text, and in blocks that are not run: the programs must know the subcommands and
//! options, and the Makefile the targets.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use efa_testing::workspace::{built, root};

const PROGRAMS: [&str; 4] = ["efa-emu", "efa-conformance", "efa-tap", "make"];

/// The commands of these programs in a line; commands that they start follow `--`.
pub(crate) fn commands(line: &str) -> impl Iterator<Item = Vec<&str>> {
    let code = line.split(" #").next().unwrap_or_default();
    // Package names are program names too.
    let code = if code.contains("cargo ") { "" } else { code };
    let parts = [" -- ", " && ", " | ", "; "]
        .iter()
        .fold(vec![code], |parts, separator| {
            parts
                .into_iter()
                .flat_map(|part| part.split(separator))
                .collect()
        });
    parts.into_iter().filter_map(|part| {
        let words = part.split_whitespace();
        let words: Vec<&str> = words.skip_while(|word| !PROGRAMS.contains(word)).collect();
        (words.len() > 1).then_some(words)
    })
}

/// The texts between single backquotes in a page. A span may continue on the next line, but not
/// beyond the end of its paragraph.
fn spans(text: &str) -> Vec<String> {
    let outside = text.split("\n```").step_by(2);
    let paragraphs = outside.flat_map(|prose| prose.split("\n\n"));
    let spans = paragraphs.flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    let spans = spans.filter(|span| PROGRAMS.iter().any(|program| span.starts_with(program)));
    spans.map(|span| span.replace('\n', " ")).collect()
}

/// The help of a program, or of one of its subcommands.
fn help(words: &[&str]) -> String {
    let mut command = Command::new(built(words[0]));
    let output = command.args(&words[1..]).arg("--help").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a word is a subcommand or an option, and not a placeholder.
fn is_name(word: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    word.chars().any(|letter| letter != '-') && word.chars().all(is_part)
}

/// Whether a character of a help text separates option names.
fn is_delimiter(letter: char) -> bool {
    !letter.is_ascii_alphanumeric() && letter != '-'
}

/// The error in a command of one of the programs, if any.
fn mistake<'a>(
    words: &[&'a str],
    helps: &mut BTreeMap<Vec<&'a str>, String>,
    makefile: &str,
) -> Option<String> {
    if words[0] == "make" {
        let target = !words[1].starts_with('-') && is_name(words[1]);
        let is_there = !target || makefile.contains(&format!("\n{}:", words[1]));
        return (!is_there).then(|| "the Makefile has no such target".to_owned());
    }
    let mut help_of = |words: &[&'a str]| {
        let entry = helps.entry(words.to_vec());
        entry.or_insert_with(|| help(words)).clone()
    };
    let mut help = help_of(&words[..1]);
    for (depth, word) in words.iter().enumerate().skip(1) {
        let Some((_, list)) = help.split_once("\nCommands:\n") else {
            break;
        };
        if !is_name(word) || word.starts_with('-') {
            break;
        }
        let mut names = list.lines().map(|line| line.split_whitespace().next());
        if !names.any(|name| name == Some(word)) {
            return Some(format!("there is no subcommand `{word}`"));
        }
        help = help_of(&words[..=depth]);
    }
    let mut options = words.iter().filter(|word| word.starts_with("--"));
    options.find_map(|word| {
        let option = word.split(['=', '|', ']']).next().unwrap_or_default();
        let is_known = !is_name(option) || help.split(is_delimiter).any(|known| known == option);
        (!is_known).then(|| format!("its help has no `{option}`"))
    })
}

#[test]
fn commands_that_are_not_run_are_known() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let pages = crate::pages();
    let lines: Vec<(&str, String)> = pages
        .iter()
        .flat_map(|(page, text)| {
            let blocks = crate::blocks(page, text).into_iter();
            let lines = blocks
                .filter(|block| {
                    !block.is_run() && ["console", "sh", "text", "yaml"].contains(&&*block.language)
                })
                .flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>());
            let lines = lines.chain(spans(text));
            lines.map(|line| (page.as_str(), line)).collect::<Vec<_>>()
        })
        .collect();
    let mut helps = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, line) in &lines {
        for words in commands(line) {
            count += 1;
            let mistake = mistake(&words, &mut helps, &makefile);
            wrong.extend(mistake.map(|why| format!("{page}: `{line}`: {why}")));
        }
    }
    assert!(count > 100, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_are_found_across_lines_and_behind_others() {
    let text = "See `efa-emu run\n--pcap F` and `x`.\n```\n`efa-emu ps`\n```\n| `make test` |\n";
    assert_eq!(spans(text), ["efa-emu run --pcap F", "make test"]);
    let found: Vec<_> =
        commands("$ efa-emu run --loss 1 -- mpirun -n 2 efa-tap run -o x # why").collect();
    let expected: [&[&str]; 2] = [
        &["efa-emu", "run", "--loss", "1"],
        &["efa-tap", "run", "-o", "x"],
    ];
    assert_eq!(found, expected);
}
