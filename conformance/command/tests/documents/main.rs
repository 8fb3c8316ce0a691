//! The commands of the pages: each fenced block is run as it stands, and its output is compared with the
//! one that the page shows. [`table`] has a row for each block that says how, or which test runs it.
//!
//! Commands run in a directory like a clone, with the programs that were built for the tests in the path
//! ([`session`]). Words in capitals such as `CAPTURE`, which readers replace, are replaced here too.

mod inline;
mod page;
mod row;
mod session;
mod shape;
mod table;

use efa_testing::workspace::root;

use self::page::{Block, blocks};
use self::table::{PAGES, Rows};

/// The rows of a page.
fn rows(page: &str) -> Rows {
    let found = PAGES.iter().find(|(path, _)| *path == page);
    found.unwrap_or_else(|| panic!("{page} has no rows")).1
}

/// Returns whether a row with this key is about the block: the key is the chapter, or the beginning of the
/// block's text.
fn is_about(key: &str, block: &Block) -> bool {
    match key.strip_prefix("## ") {
        Some(chapter) => block.chapter == chapter,
        None => block.text.starts_with(key),
    }
}

/// Runs the blocks of a page, and prints the time that each took.
fn check(page: &str) {
    let mut wrong = Vec::new();
    for block in blocks(root(), page) {
        let (_, row) = rows(page)
            .iter()
            .find(|(key, _)| is_about(key, &block))
            .unwrap_or_else(|| panic!("{} has no row", block.place()));
        let started = std::time::Instant::now();
        if let Err(why) = row().check(&block) {
            wrong.push(format!("{}: {why}", block.place()));
        }
        println!("{}: {:.2?}", block.place(), started.elapsed());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The pages of the project, by their paths.
fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    let mut directories = vec![root().to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("the project is readable") {
            let entry = entry.expect("the project is readable");
            let name = entry.file_name().into_string().expect("names are text");
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if !name.starts_with('.') && name != "target" {
                    directories.push(path);
                }
            } else if name.ends_with(".md") {
                let page = path.strip_prefix(root()).expect("it is below the root");
                pages.push(page.display().to_string());
            }
        }
    }
    pages
}

#[test]
fn every_block_of_every_page_has_one_row_and_every_row_a_block() {
    let mut wrong = Vec::new();
    for page in pages() {
        let blocks = blocks(root(), &page);
        let rows = match PAGES.iter().find(|(path, _)| *path == page) {
            Some((_, rows)) => *rows,
            None => &[],
        };
        for block in &blocks {
            let count = rows.iter().filter(|(key, _)| is_about(key, block)).count();
            if count != 1 {
                let line = block.text.lines().next().unwrap_or_default();
                wrong.push(format!("{}: {count} rows for `{line}`", block.place()));
            }
        }
        for (key, _) in rows {
            let count = blocks.iter().filter(|block| is_about(key, block)).count();
            if count == 0 || (count > 1 && !key.starts_with("## ")) {
                wrong.push(format!("{page}: {count} blocks for the row `{key}`"));
            }
        }
    }
    for (page, _) in PAGES {
        if !root().join(page).exists() {
            wrong.push(format!("{page}: there is no such page"));
        }
    }
    assert!(
        wrong.is_empty(),
        "conformance/command/tests/documents/table.rs:\n{}",
        wrong.join("\n")
    );
}
