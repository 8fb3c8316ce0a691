//! Tests the fenced blocks of the pages. trycmd runs those of `console` (prompts and output) and
//! `sh` (only commands), each in a directory like a clone ([`block.sh`](block.sh)). They have to
//! print what the page shows, except for numbers and spaces. A comment before a block contains what
//! the page does not show, in lines `KEY: VALUE`:
//!
//! | key | value |
//! |---|---|
//! | `first` | a command that is run before the block; shell functions are in `block.sh` |
//! | `with` | `TEXT => OTHER`: what a reader writes for a text of the block |
//! | `status` | the exit status, if it is not 0 |
//! | `traces` | the corpus, if it is not that of [`TRACES`] |
//! | `userland` | software of `scripts/userland` without which the block is not run |
//! | `printed by` | the block is a part of what this command prints |
//! | `file` | the block is written to this file, which the commands of `first` read |
//! | `part of` | the block is a part of this file of the project |
//! | `tested by` | a test of the block: `NAME`, or `NAME: TEXT` with a text of both |
//! | `not run` | why nothing checks the block |
//! | `below ...` | the same for all further blocks of the page that have no comment |
//!
//! A test that does not read the page has to use the options of the block's commands.

mod known;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use efa_testing::patience::PATIENCE;
use efa_testing::workspace::{built, root, userland};

/// The corpus of a block that names no other.
const TRACES: &str = "eager-tagged long-cts";

const KEYS: [&str; 10] = [
    "first",
    "with",
    "status",
    "traces",
    "userland",
    "printed by",
    "file",
    "part of",
    "tested by",
    "not run",
];

/// A line `KEY: VALUE` of a comment.
type Mark = (String, String);

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    /// The page, and the line of the opening fence.
    place: String,
    language: String,
    text: String,
    marks: Vec<Mark>,
}

impl Block {
    fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let marks = self.marks.iter().filter(move |(its, _)| its == key);
        marks.map(|(_, value)| value.as_str())
    }

    fn value<'a>(&'a self, key: &'a str) -> Option<&'a str> {
        self.values(key).next()
    }

    fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Whether the block is run; if not, a mark tells what checks it.
    fn is_run(&self) -> bool {
        !["part of", "tested by", "not run"]
            .iter()
            .any(|key| self.has(key))
    }

    /// The commands, and the lines of output.
    fn commands(&self) -> (Vec<&str>, Vec<&str>) {
        match self.language.as_str() {
            "console" => {
                let (typed, output): (Vec<_>, Vec<_>) =
                    self.text.lines().partition(|line| line.starts_with("$ "));
                (typed.iter().map(|line| &line[2..]).collect(), output)
            }
            _ => (self.text.lines().collect(), Vec::new()),
        }
    }

    /// A test of trycmd that runs the block, with the script of its commands in `directory`.
    fn test(&self, directory: &Path) -> String {
        let (commands, mut shown) = self.commands();
        let mut commands = commands.join("\n");
        for with in self.values("with") {
            let (text, other) = with.split_once(" => ").expect("`with` has ` => `");
            assert!(commands.contains(text), "{}: no `{text}`", self.place);
            commands = commands.replacen(text, other, 1);
        }
        if let Some(command) = self.value("printed by") {
            commands = command.to_owned();
            shown = [
                &["..."],
                &self.text.lines().collect::<Vec<_>>()[..],
                &["..."],
            ]
            .concat();
        }
        let mut script = self.values("first").collect::<Vec<_>>().join("\n");
        if let Some(file) = self.value("file") {
            script = format!("cat >{file} <<'END'\n{}END\n{script}", self.text);
            commands.clear();
        }
        let file = directory.join(format!("{}.sh", self.place.replace('/', "-")));
        fs::write(&file, format!("{script}\n{commands}\n")).unwrap();
        let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages/block.sh");
        let traces = self.value("traces").unwrap_or(TRACES);
        let status = self.value("status").unwrap_or("0");
        let mut test = format!(
            "```console\n$ bash {} {} {} {traces}\n",
            runner.display(),
            file.display(),
            // Output that a page does not show is printed if the block fails.
            if shown.is_empty() { status } else { "-" }
        );
        if status != "0" {
            let _ = writeln!(test, "? {status}");
        }
        for line in &shown {
            let _ = writeln!(test, "{}", measured(line));
        }
        // It is not a part of the last line.
        if shown.last().is_some_and(|line| *line != "...") {
            test += "\n";
        }
        test + "```\n"
    }

    /// The error in a block that is not run, if any.
    fn mistake(&self, sources: &[String]) -> Option<String> {
        if let Some(file) = self.value("part of") {
            let text = fs::read_to_string(root().join(file)).unwrap_or_default();
            return (!text.contains(&self.text)).then(|| format!("not a part of {file}"));
        }
        let mut tests = Vec::new();
        for test in self.values("tested by") {
            let (name, part) = test.split_once(": ").unwrap_or((test, ""));
            let is_there = |source: &str| source.contains(&format!("fn {name}("));
            let Some(source) = sources.iter().find(|source| is_there(source)) else {
                return Some(format!("there is no test `{name}`"));
            };
            if !self.text.contains(part) || !source.contains(part) {
                return Some(format!("no `{part}` in block and `{name}`"));
            }
            tests.push(source);
        }
        let (page, _) = self.place.split_once(':').expect("a page and a line");
        if tests.is_empty() || tests.iter().any(|source| source.contains(page)) {
            return None;
        }
        let commands = self.text.lines().flat_map(known::commands).flatten();
        let mut options = commands.filter(|word| word.starts_with("--"));
        let is_used = |option: &str| tests.iter().any(|source| source.contains(option));
        let unused = options.find(|option| !is_used(option));
        unused.map(|option| format!("no test has `{option}`"))
    }
}

/// A line as trycmd's pattern. Each number matches any number, except parts of a name (`rdmap0s0`)
/// and counts of failures (`0 failed`). The number of spaces beside a number may differ.
fn measured(line: &str) -> String {
    const ANY: &str = "[..]";
    // The terminal's echo of Ctrl+C.
    let line = line.trim_start_matches("^C");
    let mut words = Vec::new();
    let following = line.split(' ').skip(1).chain([""]);
    for (word, next) in line.split(' ').zip(following) {
        let counts_faults = ["failed", "errors", "drops"].iter();
        let counts_faults = counts_faults
            .into_iter()
            .any(|fault| next.starts_with(fault));
        let mut shape = String::new();
        for letter in word.chars() {
            if letter.is_ascii_digit() && shape.ends_with("[..]x") {
                shape.pop();
            }
            let is_named = !shape.ends_with(ANY)
                && shape.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_');
            match letter {
                '0'..='9' if !is_named && !counts_faults && !shape.ends_with(ANY) => shape += ANY,
                '0'..='9' | '.' if shape.ends_with(ANY) => {}
                _ => shape.push(letter),
            }
        }
        // The address of a device.
        words.push(if word.contains("fe80::") {
            ANY.to_owned()
        } else {
            shape
        });
    }
    let mut shape = words.join(" ");
    while let Some(at) = shape.find(" [..]").or_else(|| shape.find("[..] ")) {
        shape.replace_range(at..at + 5, ANY);
    }
    while shape.contains("[..][..]") {
        shape = shape.replace("[..][..]", ANY);
    }
    match shape.strip_suffix("...") {
        Some(beginning) if !beginning.is_empty() => format!("{beginning}{ANY}"),
        _ => shape,
    }
}

/// The blocks of a page, in their order.
fn blocks(page: &str, text: &str) -> Vec<Block> {
    let is_fence = |line: &str| line.trim_start().starts_with("```");
    let mut blocks: Vec<Block> = Vec::new();
    let (mut marks, mut below): (Vec<Mark>, Vec<Mark>) = Default::default();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(begin) = line.strip_prefix("<!--") {
            let mut comment = begin.to_owned();
            while !comment.contains("-->") {
                let (_, line) = lines.next().expect("comments end");
                comment += &format!("\n{line}");
            }
            for line in comment.trim_end_matches("-->").lines() {
                let Some((key, value)) = line.trim().split_once(": ") else {
                    continue;
                };
                let (list, key) = match key.strip_prefix("below ") {
                    Some(key) => (&mut below, key),
                    None => (&mut marks, key),
                };
                if !key.starts_with("generated") {
                    assert!(KEYS.contains(&key), "{page}: unknown mark `{key}`");
                    list.push((key.to_owned(), value.trim().to_owned()));
                }
            }
        } else if is_fence(line) {
            let body = lines.by_ref().map(|(_, line)| line);
            let text: String = body
                .take_while(|line| !is_fence(line))
                .flat_map(|line| [line, "\n"])
                .collect();
            let own = std::mem::take(&mut marks);
            blocks.push(Block {
                place: format!("{page}:{}", index + 1),
                language: line.trim_start().trim_start_matches('`').to_owned(),
                text,
                marks: if own.is_empty() { below.clone() } else { own },
            });
        }
    }
    assert!(marks.is_empty(), "{page}: {marks:?} are before no block");
    blocks
}

/// The paths of the project's files with this suffix.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![root().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("the project is readable") {
            let entry = entry.expect("the project is readable");
            let name = entry.file_name().into_string().expect("names are text");
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if !name.starts_with('.') && name != "target" {
                    directories.push(entry.path());
                }
            } else if name.ends_with(ending) {
                files.push(entry.path());
            }
        }
    }
    files
}

/// The pages of the project: their paths below its directory, and their texts.
fn pages() -> Vec<(String, String)> {
    let pages = files(".md").into_iter().map(|path| {
        let page = path.strip_prefix(root()).expect("it is below the root");
        (
            page.display().to_string(),
            fs::read_to_string(&path).unwrap(),
        )
    });
    pages.collect()
}

#[test]
fn every_block_is_run_or_names_its_check() {
    let sources: Vec<String> = files(".rs")
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for block in blocks(&page, &text) {
            let can_run = ["console", "sh"].contains(&block.language.as_str())
                || block.has("file")
                || block.has("printed by");
            let why = match block.is_run() {
                true => (!can_run).then(|| "no mark, and neither `console` nor `sh`".to_owned()),
                false => block.mistake(&sources),
            };
            wrong.extend(why.map(|why| format!("{}: {why}", block.place)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the blocks of the pages for which `is_it` returns true.
fn run(is_it: impl Fn(&str) -> bool) {
    // Build first: otherwise blocks that run at the same time would wait for the build.
    let programs = ["efa-conformance", "efa-tap"].map(built);
    let programs = programs[0].parent().expect("a program is in a directory");
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let cases = trycmd::TestCases::new();
    for (page, text) in pages().iter().filter(|(page, _)| is_it(page)) {
        for block in blocks(page, text).iter().filter(|block| block.is_run()) {
            if block
                .value("userland")
                .is_some_and(|name| userland(name).is_none())
            {
                continue;
            }
            let test = directory
                .path()
                .join(format!("{}.trycmd", block.place.replace('/', "-")));
            fs::write(&test, block.test(directory.path())).unwrap();
            cases.case(&test);
        }
    }
    let path = |path: &Path| path.canonicalize().unwrap().display().to_string();
    cases
        .register_bin("bash", Path::new("/bin/bash"))
        .timeout(PATIENCE)
        .env("ROOT", path(root()))
        .env("PROGRAMS", path(programs))
        .env("TMPDIR", path(directory.path()))
        .run();
}

/// A test for each page that takes long, and one for the others.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        $(#[test]
        fn $name() {
            run(|page| page == $page);
        })*

        #[test]
        fn the_other_pages() {
            run(|page| ![$($page),*].contains(&page));
        }
    };
}

pages! {
    readme: "README.md",
    conformance: "docs/conformance.md",
    interop: "docs/interop.md",
    scenarios: "docs/scenarios.md",
    wireshark: "docs/wireshark.md",
}

#[test]
fn numbers_and_spaces_may_be_others() {
    for (line, pattern) in [
        ("64    =10  0.07s  fe80::ef:1 x", "[..]=[..]s[..]x"),
        (
            "rdmap0s0: 7 passed, 0 failed, 0x1b",
            "rdmap0s0:[..]passed, 0 failed,[..]b",
        ),
        ("CTS 3, ...", "CTS[..], [..]"),
        ("...", "..."),
    ] {
        assert_eq!(measured(line), pattern);
    }
}

#[test]
fn a_mark_covers_one_block_or_the_rest() {
    let text =
        "<!-- below not run: why -->\n```\na\n```\n<!--\nfirst: b\nstatus: 2\n-->\n```sh\nc\n```\n";
    let [first, second] = &blocks("page.md", text)[..] else {
        panic!("two blocks");
    };
    assert_eq!(
        (first.place.as_str(), first.value("not run")),
        ("page.md:2", Some("why"))
    );
    assert_eq!((second.is_run(), second.value("status")), (true, Some("2")));
    assert_eq!(second.commands().0, ["c"]);
}
