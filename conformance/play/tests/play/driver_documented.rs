//! `docs/driver.md` agrees with the implemented driver protocol.

use std::fmt::Write as _;

use efa_play::drive::line::Form;
use efa_play::drive::{Command, Event, LONGEST_ANSWER, LONGEST_COMMAND, VERSION};
use efa_play::operation::pattern;
use efa_play::player::{Patience, UNSUPPORTED};

const MARK: &str = "<!-- generated from here on: EFA_UPDATE=1 cargo test -p efa-play --test play \
                    driver_documented -->\n";

fn path() -> std::path::PathBuf {
    efa_testing::workspace::root().join("docs/driver.md")
}

fn document() -> String {
    std::fs::read_to_string(path()).expect("docs/driver.md is there")
}

fn chapter(title: &str, forms: &[Form]) -> String {
    let mut text = format!("\n## {title}\n");
    for form in forms {
        let meaning = form.meaning.trim();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n### `{}`\n\n{meaning}\n\n```\n{}\n```\n",
            form.word, form.example
        );
        if form.keys.is_empty() {
            continue;
        }
        text.push_str("\n| key | | value | meaning |\n|---|---|---|---|\n");
        for key in form.keys {
            let presence = if key.required { "" } else { "optional" };
            let meaning = key.meaning.trim();
            let _ = writeln!(
                text,
                "| `{}` | {presence} | {} | {meaning} |",
                key.name, key.kind
            );
        }
    }
    text
}

#[test]
fn the_tables_are_those_of_the_declaration() {
    let text = document();
    let (before, after) = text.split_once(MARK).expect("the mark is there");
    let generated = chapter("Commands", Command::FORMS) + &chapter("Answers", Event::FORMS);
    if std::env::var_os("EFA_UPDATE").is_some() {
        std::fs::write(path(), format!("{before}{MARK}{generated}")).unwrap();
        return;
    }
    assert!(
        after == generated,
        "docs/driver.md is not what the lines are declared as: \
         EFA_UPDATE=1 cargo test -p efa-play --test play driver_documented"
    );
}

#[test]
fn the_conversation_is_understood() {
    let text = document();
    let mut lines = 0;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            Command::parse(command).unwrap();
            lines += 1;
        } else if let Some(event) = line.strip_prefix("< ") {
            Event::parse(event).unwrap();
            lines += 1;
        }
    }
    assert!(lines > 10, "{lines}");
}

#[test]
fn figures_are_those_of_the_code() {
    let text = document().replace('\n', " ");
    let message = pattern::bytes(7, 10);
    let bytes: Vec<String> = message.iter().map(|byte| format!("{byte:02x}")).collect();
    for claim in [
        format!("Message 7 begins `{}`", bytes.join(" ")),
        format!("This is version {VERSION}."),
        format!("Commands are at most {LONGEST_COMMAND} bytes long"),
        format!("answers at most {} MiB", LONGEST_ANSWER >> 20),
        format!("ends with status {UNSUPPORTED} "),
        format!(
            "answer another command ({} each by default)",
            Patience::DEFAULT.answer.as_secs()
        ),
    ] {
        assert!(text.contains(&claim), "{claim}");
    }
}
