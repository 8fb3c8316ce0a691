//! Commands within the text: the programs know the subcommands and options, and the Makefile the targets.

use std::collections::BTreeMap;
use std::process::Command;

use efa_testing::workspace::{built, root};

/// The commands in a page's text, which are between single backquotes.
fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut is_block = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            prose.extend([line, "\n"]);
        }
    }
    // A span may go on in the next line, but not beyond the end of its paragraph.
    for paragraph in prose.split("\n\n") {
        for span in paragraph.split('`').skip(1).step_by(2) {
            let command = span.split_whitespace().collect::<Vec<_>>().join(" ");
            let programs = ["efa-emu ", "efa-conformance ", "efa-tap ", "make "];
            if programs.iter().any(|program| command.starts_with(program)) {
                commands.push(command);
            }
        }
    }
    commands
}

/// The help of a program, or of one of its subcommands.
fn help(program: &str, subcommands: &[&str]) -> String {
    let arguments = [subcommands, &["--help"]].concat();
    let mut command = Command::new(built(program));
    let output = command
        .args(arguments)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a word is a subcommand or an option's name rather than something that the reader replaces.
fn is_name(word: &str) -> bool {
    !word.is_empty()
        && word
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter == '-')
}

/// Whether a help has this subcommand.
fn has_subcommand(help: &str, name: &str) -> bool {
    let (_, list) = help.split_once("\nCommands:\n").unwrap_or_default();
    let mut names = list.lines().map(|line| line.split_whitespace().next());
    names.any(|word| word == Some(name))
}

/// What is wrong with a command of one of the programs.
fn mistake<'a>(command: &'a str, helps: &mut BTreeMap<Vec<&'a str>, String>) -> Option<String> {
    // What is behind `--` belongs to another program.
    let own = command.split(" -- ").next().unwrap_or_default();
    let words: Vec<&str> = own.split(' ').collect();
    let mut help_of = |words: &[&'a str]| {
        let entry = helps.entry(words.to_vec());
        entry.or_insert_with(|| help(words[0], &words[1..])).clone()
    };
    let mut depth = 1;
    let mut help = help_of(&words[..1]);
    while let Some(word) = words.get(depth).filter(|word| is_name(word))
        && help.contains("\nCommands:\n")
        && !word.starts_with('-')
    {
        if !has_subcommand(&help, word) {
            return Some(format!("there is no subcommand `{word}`"));
        }
        depth += 1;
        help = help_of(&words[..depth]);
    }
    let mut options = words.iter().filter(|word| word.starts_with("--"));
    options.find_map(|word| {
        let option = word.split(['=', '|', ']']).next().unwrap_or_default();
        let is_known = !is_name(option) || help.contains(option);
        (!is_known).then(|| format!("its help has no `{option}`"))
    })
}

#[test]
fn commands_in_the_text_are_known() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let pages: Vec<(String, Vec<String>)> = crate::pages()
        .into_iter()
        .map(|page| {
            let text = std::fs::read_to_string(root().join(&page)).unwrap();
            (page, commands(&text))
        })
        .collect();
    let mut helps = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, commands) in &pages {
        for command in commands {
            count += 1;
            let mistake = match command.strip_prefix("make ") {
                Some(target) => {
                    let is_there = !is_name(target) || makefile.contains(&format!("\n{target}:"));
                    (!is_there).then(|| "the Makefile has no such target".to_owned())
                }
                None => mistake(command, &mut helps),
            };
            wrong.extend(mistake.map(|why| format!("{page}: `{command}`: {why}")));
        }
    }
    assert!(count > 60, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn spans_are_found_across_lines_and_not_in_blocks() {
    let text = "See `efa-emu run\n--pcap F` and `x`.\n```\n`efa-emu ps`\n```\n| `make test` |\n";
    assert_eq!(commands(text), ["efa-emu run --pcap F", "make test"]);
}
