//! Pages of documentation, divided into their fenced blocks.

use std::path::Path;

/// A fenced block of a page.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The page's path in the project.
    pub(crate) page: String,
    /// The line of its opening fence.
    pub(crate) line: usize,
    /// The chapter that it is in: the text of the last heading of the second level.
    pub(crate) chapter: String,
    /// Its lines.
    pub(crate) text: String,
}

/// A command of a block, and the output that the block shows after it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Command {
    pub(crate) line: String,
    pub(crate) output: Vec<String>,
}

/// What the lines of a terminal begin with that were typed.
const PROMPT: &str = "$ ";

impl Block {
    /// The block's place, for messages.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    /// The commands: if the block has prompts, the lines behind them, each with the output up to the next
    /// one; else all lines.
    pub(crate) fn commands(&self) -> Vec<Command> {
        let is_terminal = self.text.lines().any(|line| line.starts_with(PROMPT));
        let mut commands: Vec<Command> = Vec::new();
        for line in self.text.lines().filter(|line| !line.trim().is_empty()) {
            let typed = match line.strip_prefix(PROMPT) {
                Some(typed) => Some(typed),
                None if is_terminal => None,
                None => Some(line),
            };
            match (typed, commands.last_mut()) {
                (Some(typed), _) => commands.push(Command {
                    line: typed.to_owned(),
                    output: Vec::new(),
                }),
                (None, Some(command)) => command.output.push(line.to_owned()),
                (None, None) => panic!("{}: output before the first prompt", self.place()),
            }
        }
        commands
    }
}

/// The fenced blocks of a page below `root`.
pub(crate) fn blocks(root: &Path, page: &str) -> Vec<Block> {
    let text =
        std::fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    let mut blocks = Vec::new();
    let mut chapter = String::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        match (&mut open, is_fence) {
            (Some(_), true) => blocks.extend(open.take()),
            (Some(block), false) => block.text.extend([line, "\n"]),
            (None, true) => {
                open = Some(Block {
                    page: page.to_owned(),
                    line: index + 1,
                    chapter: chapter.clone(),
                    text: String::new(),
                });
            }
            (None, false) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    chapter = heading.to_owned();
                }
            }
        }
    }
    assert!(open.is_none(), "{page}: the last block has no end");
    blocks
}

#[test]
fn a_page_is_divided_into_blocks_and_those_into_commands() {
    let directory = tempfile::tempdir().unwrap();
    let text =
        "text\n```\n$ one\nout\n  more\n$ two\n```\n## Chapter\n```sh\na   # why\n\nb\n```\n";
    std::fs::write(directory.path().join("page.md"), text).unwrap();
    let blocks = blocks(directory.path(), "page.md");
    let [terminal, script] = &blocks[..] else {
        panic!("{blocks:?}");
    };
    assert_eq!(
        (terminal.place().as_str(), terminal.chapter.as_str()),
        ("page.md:2", "")
    );
    assert_eq!((script.line, script.chapter.as_str()), (9, "Chapter"));
    let command = |line: &str, output: &[&str]| Command {
        line: line.to_owned(),
        output: output.iter().map(|&line| line.to_owned()).collect(),
    };
    assert_eq!(
        terminal.commands(),
        [command("one", &["out", "  more"]), command("two", &[])]
    );
    assert_eq!(
        script.commands(),
        [command("a   # why", &[]), command("b", &[])]
    );
}
