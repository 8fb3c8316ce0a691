//! How a block is checked.

use std::fmt::Write as _;
use std::fs;

use efa_testing::patience::PATIENCE;
use efa_testing::workspace::{built, root, userland};

use crate::page::Block;
use crate::session::{Outcome, Session};
use crate::shape;

/// The traces that a session has, unless the row names others.
const TRACES: &[&str] = &["eager-tagged", "long-cts"];

/// The programs of the workspace that pages start.
const PROGRAMS: [&str; 3] = ["efa-conformance", "efa-emu", "efa-tap"];

/// The shell's wait for a condition, which ends without it after a while: the test fails then, and does not hang.
fn until(condition: &str) -> String {
    let most = PATIENCE.as_secs();
    format!(
        "begun=$SECONDS; until {condition} || ((SECONDS - begun > {most})); do sleep 0.05; done"
    )
}

/// A function of the shell that waits until a command succeeds, as [`until`] does.
fn patiently() -> String {
    format!("patiently() {{ local begun; {}; }}", until("\"$@\""))
}

/// How a block is checked.
pub(crate) struct Row {
    how: How,
    traces: &'static [&'static str],
    given: &'static str,
    userland: Option<&'static str>,
    beside: Option<&'static str>,
    words: Vec<(&'static str, &'static str)>,
    until: Vec<(&'static str, &'static str)>,
    interrupted: Vec<(&'static str, &'static str)>,
    status: i32,
    besides: &'static [&'static str],
}

enum How {
    /// Its commands are run, and print what it shows.
    Runs,
    /// It is a part of what this command prints.
    IsPrintedBy(&'static str),
    /// It is a file of this name, and this command reads it.
    IsFile(&'static str, &'static str),
    /// It is a part of this file of the project.
    IsPartOf(&'static str),
    /// It is checked by a test of this name in this file of the project.
    IsCheckedBy(&'static str, &'static str, Seen),
    /// Its commands are targets of the Makefile, which somebody else runs.
    IsMade(&'static str),
    /// Nothing checks it.
    IsNotChecked(&'static str),
}

/// What a test elsewhere knows of a block.
enum Seen {
    /// The block itself.
    Page,
    /// What these commands do, which are all of the block's.
    Commands(&'static [&'static str]),
    /// What this part of the block says.
    Part(&'static str),
}

impl Row {
    fn new(how: How) -> Row {
        Row {
            how,
            traces: TRACES,
            given: "",
            userland: None,
            beside: None,
            words: Vec::new(),
            until: Vec::new(),
            interrupted: Vec::new(),
            status: 0,
            besides: &[],
        }
    }

    /// The block's commands are run, and print what the block shows.
    pub(crate) fn runs() -> Row {
        Row::new(How::Runs)
    }

    /// The block is a part of what `command` prints.
    pub(crate) fn printed_by(command: &'static str) -> Row {
        Row::new(How::IsPrintedBy(command))
    }

    /// The block is written to the file `name`, and `command` reads it.
    pub(crate) fn file(name: &'static str, command: &'static str) -> Row {
        Row::new(How::IsFile(name, command))
    }

    /// The block is a part of the project's file `file`, which tests use.
    pub(crate) fn part_of(file: &'static str) -> Row {
        Row::new(How::IsPartOf(file))
    }

    /// The test `test` in the project's file `file` reads the page and checks the block.
    pub(crate) fn read_by(file: &'static str, test: &'static str) -> Row {
        Row::new(How::IsCheckedBy(file, test, Seen::Page))
    }

    /// The test `test` in the project's file `file` does what the commands `commands` do. It does not read the page: if the
    /// block has other commands, look whether the test still does what they do.
    pub(crate) fn done_by(
        file: &'static str,
        test: &'static str,
        commands: &'static [&'static str],
    ) -> Row {
        Row::new(How::IsCheckedBy(file, test, Seen::Commands(commands)))
    }

    /// The test `test` in the project's file `file` expects what `part` of the block says, whatever the figures of the rest
    /// are. It does not read the page.
    pub(crate) fn expected_by(file: &'static str, test: &'static str, part: &'static str) -> Row {
        Row::new(How::IsCheckedBy(file, test, Seen::Part(part)))
    }

    /// The block's commands are targets of the Makefile, too long for a test; `who` runs them.
    pub(crate) fn made(who: &'static str) -> Row {
        Row::new(How::IsMade(who))
    }

    /// The block is not checked, because of `why`.
    pub(crate) fn not_checked(why: &'static str) -> Row {
        Row::new(How::IsNotChecked(why))
    }

    /// The session has these traces.
    pub(crate) fn traces(mut self, traces: &'static [&'static str]) -> Row {
        self.traces = traces;
        self
    }

    /// This script is run first.
    pub(crate) fn given(mut self, script: &'static str) -> Row {
        self.given = script;
        self
    }

    /// The commands use this software of `scripts/userland`, and are not run where it cannot be fetched.
    pub(crate) fn userland(mut self, name: &'static str) -> Row {
        self.userland = Some(name);
        self
    }

    /// This command runs in another terminal from the beginning to the end, where its output is not seen.
    pub(crate) fn beside(mut self, command: &'static str) -> Row {
        self.beside = Some(command);
        self
    }

    /// The reader writes `text` for the word `word`.
    pub(crate) fn with(mut self, word: &'static str, text: &'static str) -> Row {
        self.words.push((word, text));
        self
    }

    /// The reader types a command that begins with `beginning` when `condition` is true.
    pub(crate) fn when(mut self, beginning: &'static str, condition: &'static str) -> Row {
        self.until.push((beginning, condition));
        self
    }

    /// The reader ends the command that begins with `beginning` with Ctrl+C when `condition` is true.
    pub(crate) fn interrupted(mut self, beginning: &'static str, condition: &'static str) -> Row {
        self.interrupted.push((beginning, condition));
        self
    }

    /// The last command ends with this exit status.
    pub(crate) fn fails(mut self, status: i32) -> Row {
        self.status = status;
        self
    }

    /// Lines that begin like this may be printed besides what the block shows.
    pub(crate) fn besides(mut self, beginnings: &'static [&'static str]) -> Row {
        self.besides = beginnings;
        self
    }

    /// Checks the block; the error says what is wrong.
    pub(crate) fn check(&self, block: &Block) -> Result<(), String> {
        // Sessions have no network.
        if self.userland.is_some_and(|name| userland(name).is_none()) {
            return Ok(());
        }
        match self.how {
            How::Runs => self.run(block),
            How::IsPrintedBy(command) => {
                let shown: Vec<String> = block.text.lines().map(str::to_owned).collect();
                let outcome = self.session().run(&self.script(&[command.to_owned()]));
                self.judge(&outcome, shape::is_excerpt(&shown, &outcome.lines))
            }
            How::IsFile(name, command) => {
                let session = self.session();
                fs::write(session.clone_path().join(name), &block.text).unwrap();
                let outcome = session.run(&self.script(&[command.to_owned()]));
                self.judge(&outcome, true)
            }
            How::IsPartOf(file) => match text_of(file)?.contains(&block.text) {
                true => Ok(()),
                false => Err(format!("{file} does not contain it")),
            },
            How::IsCheckedBy(file, test, ref seen) => {
                let text = text_of(file)?;
                if !text.contains(&format!("fn {test}(")) {
                    return Err(format!("{file} has no test `{test}`"));
                }
                seen.compare(block, &text)
                    .map_err(|why| format!("{why}: look at {test} in {file}, then at the row"))
            }
            How::IsMade(who) => {
                println!("{}: not run here: {who}", block.place());
                let lines = block.commands().into_iter().map(|command| {
                    assert!(command.line.starts_with("make "), "{}", command.line);
                    command.line.replacen("make", "make --dry-run >make.log", 1)
                });
                let outcome = self.session().run(&self.script(&lines.collect::<Vec<_>>()));
                self.judge(&outcome, true)
            }
            How::IsNotChecked(why) => {
                println!("{}: not checked: {why}", block.place());
                Ok(())
            }
        }
    }

    fn session(&self) -> Session {
        Session::new(self.traces)
    }

    fn run(&self, block: &Block) -> Result<(), String> {
        let commands = block.commands();
        // What is not built would be waited for by what runs beside it.
        for program in PROGRAMS {
            let has = |line: &str| line.split_whitespace().any(|word| word == program);
            if commands.iter().any(|command| has(&command.line)) {
                built(program);
            }
        }
        let lines: Vec<String> = commands
            .iter()
            .map(|command| command.line.clone())
            .collect();
        let outcome = self.session().run(&self.script(&lines));
        // A block without any output shows commands only.
        let shown: Vec<String> = commands
            .into_iter()
            .flat_map(|command| command.output)
            .collect();
        let seen: Vec<String> = outcome
            .lines
            .iter()
            .filter(|line| !self.besides.iter().any(|other| line.starts_with(other)))
            .cloned()
            .collect();
        let is_shown = shown.is_empty() || shape::is_output(&shown, &seen);
        self.judge(&outcome, is_shown)
    }

    /// The commands as a script that tells their statuses.
    fn script(&self, commands: &[String]) -> String {
        let mut script = format!("pids=()\n{}\n{}\n", patiently(), self.given);
        // Writing to a String cannot fail.
        if let Some(beside) = self.beside {
            let _ = writeln!(script, "({beside}) >beside.log &\npids+=($!)");
        }
        for command in commands {
            let line = self
                .words
                .iter()
                .fold(command.clone(), |line, (word, text)| {
                    line.replace(word, text)
                });
            for (beginning, condition) in &self.until {
                if command.starts_with(beginning) {
                    let _ = writeln!(script, "{}", until(condition));
                }
            }
            let end = self
                .interrupted
                .iter()
                .find(|(beginning, _)| command.starts_with(beginning));
            let _ = match end {
                // In a process group of its own, as in a terminal.
                Some((_, condition)) => writeln!(
                    script,
                    "set -m\n{} &\nset +m\n{}\nkill -INT %%\nwait $!\necho $? >&9",
                    line.split("  #").next().unwrap_or_default(),
                    until(condition)
                ),
                None if command.ends_with('&') => writeln!(script, "{line}\npids+=($!)"),
                None => writeln!(script, "{line}\necho $? >&9"),
            };
        }
        script + "for pid in \"${pids[@]}\"; do wait $pid; echo $? >&9; done\n"
    }

    fn judge(&self, outcome: &Outcome, is_shown: bool) -> Result<(), String> {
        let (last, others) = outcome.statuses.split_last().expect("a row runs something");
        let printed = outcome.lines.join("\n");
        if *last != self.status || others.iter().any(|status| *status != 0) {
            return Err(format!("statuses {:?}\n{printed}", outcome.statuses));
        }
        match is_shown {
            true => Ok(()),
            false => Err(format!("prints something else:\n{printed}")),
        }
    }
}

impl Seen {
    /// Whether a test in a file with this text checks the block as it is now.
    fn compare(&self, block: &Block, test: &str) -> Result<(), String> {
        match self {
            Seen::Page => match test.contains(&block.page) {
                true => Ok(()),
                false => Err(format!("the test does not read {}", block.page)),
            },
            Seen::Commands(expected) => {
                let commands = block.commands();
                let lines: Vec<_> = commands.iter().map(|command| &command.line[..]).collect();
                match lines == *expected {
                    true => Ok(()),
                    false => Err(format!("the commands are {lines:?}, not {expected:?}")),
                }
            }
            Seen::Part(part) => match block.text.contains(part) {
                true => Ok(()),
                false => Err(format!("it does not say {part:?}")),
            },
        }
    }
}

#[test]
fn a_block_that_another_test_checks_is_the_one_that_the_test_was_written_for() {
    let block = |text: &str| Block {
        page: "docs/page.md".to_owned(),
        line: 1,
        chapter: String::new(),
        text: text.to_owned(),
    };
    let holds = |seen: Seen, text: &str| seen.compare(&block(text), "the test").is_ok();
    let terminal = "$ run --all\n3 runs\n";
    assert!(holds(Seen::Commands(&["run --all"]), terminal));
    assert!(!holds(Seen::Commands(&["run"]), terminal));
    assert!(!holds(
        Seen::Commands(&["run --all"]),
        "$ run --all\n$ rerun\n"
    ));
    assert!(holds(Seen::Part("3 runs"), terminal));
    assert!(!holds(Seen::Part("4 runs"), terminal));
    assert!(!holds(Seen::Page, terminal));
    assert!(
        Seen::Page
            .compare(&block(""), "read(\"docs/page.md\")")
            .is_ok()
    );
}

/// The text of a file of the project.
fn text_of(file: &str) -> Result<String, String> {
    fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))
}
