//! Manual pages and shell completions of a command line, laid out as below `PREFIX/share`.
//!
//! A program describes its exit statuses in the lines after its long help (`after_long_help`),
//! below a first line `Exit status:`. Each of its pages includes them.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Command;
use clap::builder::Resettable;
use clap_complete::Shell;
use clap_mangen::Man;

/// The directory in which each shell looks for completions, and the affixes of the file's name.
const COMPLETIONS: [(Shell, &str, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "", ""),
    (Shell::Zsh, "zsh/site-functions", "_", ""),
    (Shell::Fish, "fish/vendor_completions.d", "", ".fish"),
];

/// The line above the meanings of exit statuses.
const EXIT_STATUS: &str = "Exit status:\n";

/// A manual page or a file of completions cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write below {}: {source}", share.display())]
pub struct PagesError {
    share: PathBuf,
    source: io::Error,
}

/// Writes a page for the command and one for each of its subcommands that are not hidden, and its
/// completions.
///
/// The pages have the date `SOURCE_DATE_EPOCH`, or none, so that they do not depend on the time of
/// generation.
///
/// # Errors
/// A file cannot be written.
pub fn write(command: Command, share: &Path) -> Result<(), PagesError> {
    let time = env::var("SOURCE_DATE_EPOCH").ok();
    let time = time.and_then(|seconds| seconds.parse().ok());
    try_write(command, share, time).map_err(|source| PagesError {
        share: share.to_owned(),
        source,
    })
}

fn try_write(mut command: Command, share: &Path, time: Option<u64>) -> io::Result<()> {
    let name = command.get_name().to_owned();
    // Making completions adds the command `help` to `command`.
    let mut of_pages = without_help(command.clone());
    for (shell, directory, before, after) in COMPLETIONS {
        let directory = share.join(directory);
        fs::create_dir_all(&directory)?;
        let file = directory.join(format!("{before}{name}{after}"));
        fs::write(file, completions(shell, &mut command, &name))?;
    }
    let pages = Pages {
        directory: share.join("man/man1"),
        // Two quotation marks represent no date: the generator skips an empty word, and the next
        // word would become the date.
        date: time.and_then(date).unwrap_or_else(|| "\"\"".to_owned()),
        source: format!("{name} {}", command.get_version().unwrap_or_default()),
        exit_status: of_pages
            .get_after_long_help()
            .and_then(|text| Some(text.to_string().strip_prefix(EXIT_STATUS)?.to_owned())),
    };
    fs::create_dir_all(&pages.directory)?;
    of_pages.build();
    pages.write(&of_pages)
}

/// The manual pages of a program.
struct Pages {
    directory: PathBuf,
    date: String,
    source: String,
    exit_status: Option<String>,
}

impl Pages {
    /// Writes the page of a command, and the pages of its subcommands.
    fn write(&self, command: &Command) -> io::Result<()> {
        for subcommand in command.get_subcommands().filter(|its| !its.is_hide_set()) {
            self.write(subcommand)?;
        }
        // The long version includes paths on this machine.
        let mut command = command.clone().long_version(Resettable::Reset);
        if let Some(exit_status) = &self.exit_status {
            command = command.after_long_help(exit_status);
        }
        let man = Man::new(command)
            .date(&self.date)
            .source(&self.source)
            .manual("User Commands");
        let mut page = Vec::new();
        man.render(&mut page)?;
        let page = String::from_utf8(page).expect("the generator writes text");
        // The generator's heading for the text after the help.
        let page = page.replacen("\n.SH EXTRA\n", "\n.SH EXIT STATUS\n", 1);
        fs::write(self.directory.join(man.get_filename()), page)
    }
}

/// The day of a time in seconds since 1970 (UTC), as `YYYY-MM-DD`; `None` after the year 9999.
fn date(seconds: u64) -> Option<String> {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    let mut date = String::new();
    write!(date, "{}", humantime::format_rfc3339_seconds(time)).ok()?;
    date.truncate("YYYY-MM-DD".len());
    Some(date)
}

/// The script with which a shell completes the command line of `name`.
fn completions(shell: Shell, command: &mut Command, name: &str) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, name, &mut script);
    if shell != Shell::Bash {
        return script;
    }
    // In scripts for bash, clap_complete 4.6 writes a hyphen of the program's name in one way where
    // it determines the subcommand, and in another where it lists the options, so that none would
    // be completed (clap-rs/clap#6421).
    let [found, listed] = ["__", "__subcmd__"].map(|hyphen| name.replace('-', hyphen));
    let script = String::from_utf8(script).expect("the generator writes text");
    script.replace(&listed, &found).into_bytes()
}

/// `help COMMAND` shows the page of the command, so it needs no separate page.
fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    #[test]
    fn commands_have_manual_pages_and_completions() {
        let command = Command::new("tool")
            .version("1")
            .about("Does things")
            .subcommand(Command::new("sub").about("Does one thing"));
        let share = tempfile::tempdir().unwrap();
        write(command, share.path()).unwrap();
        for (file, text) in [
            ("man/man1/tool.1", "Does things"),
            ("man/man1/tool-sub.1", "Does one thing"),
            ("bash-completion/completions/tool", "sub"),
            ("zsh/site-functions/_tool", "Does one thing"),
            ("fish/vendor_completions.d/tool.fish", "Does one thing"),
        ] {
            let written = fs::read_to_string(share.path().join(file)).unwrap();
            assert!(written.contains(text), "{file}:\n{written}");
        }
        let pages = fs::read_dir(share.path().join("man/man1")).unwrap();
        assert_eq!(pages.count(), 2);
    }

    /// The pages of a command with a subcommand, with a description of exit statuses.
    fn pages(time: Option<u64>) -> [String; 2] {
        let sub = Command::new("sub").about("Does one thing");
        let command = Command::new("my-tool")
            .version("1.2")
            .propagate_version(true)
            .long_version("1.2\n/a/place")
            .after_long_help("Exit status:\n  0  done\n  7  sleepy\n")
            .subcommand(sub);
        let share = tempfile::tempdir().unwrap();
        try_write(command, share.path(), time).unwrap();
        let page = |name| fs::read_to_string(share.path().join("man/man1").join(name)).unwrap();
        ["my-tool.1", "my-tool-sub.1"].map(page)
    }

    /// The line with title, section, date, source and manual.
    fn title(page: &str) -> &str {
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with(".TH ")).unwrap();
        line.trim_end()
    }

    #[test]
    fn pages_have_their_date_and_the_program() {
        let [own, of_sub] = pages(Some(1_700_000_000));
        let rest = r#"1 2023-11-14 "my-tool 1.2" "User Commands""#;
        assert_eq!(title(&own), format!(".TH my-tool {rest}"));
        assert_eq!(title(&of_sub), format!(".TH my-tool-sub {rest}"));
        for time in [None, Some(253_402_300_800), Some(u64::MAX)] {
            let [own, of_sub] = pages(time);
            let rest = r#"1 "" "my-tool 1.2" "User Commands""#;
            assert_eq!(title(&own), format!(".TH my-tool {rest}"));
            assert_eq!(title(&of_sub), format!(".TH my-tool-sub {rest}"));
            assert!(!own.contains("/a/place"), "{own}");
        }
    }

    #[test]
    fn each_page_lists_the_exit_statuses() {
        for page in pages(None) {
            let (_, section) = page.split_once("\n.SH EXIT STATUS\n").expect(&page);
            let section = section.split("\n.SH ").next().unwrap();
            assert_eq!(section, "  0  done\n  7  sleepy");
            assert!(!page.contains("Exit status:"), "{page}");
        }
    }

    /// The completions of the last word that bash offers.
    fn offers(share: &Path, words: &[&str]) -> String {
        let script = r#"
            source "$1/bash-completion/completions/$2"
            function=$(complete -p "$2" | grep -o -- '-F [^ ]*')
            COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
            ${function#-F } "$2" "${*: -1}" "${*: -2:1}"
            echo "${COMPREPLY[*]}"
        "#;
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", script, "bash"]).arg(share).args(words);
        let output = bash.output().expect("bash starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn bash_completes_options_of_hyphenated_subcommands() {
        let option = |name| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let inner = Command::new("in-ner").arg(option("deep"));
        let sub = Command::new("sub").arg(option("shallow")).subcommand(inner);
        let command = Command::new("my-own-tool").version("1").subcommand(sub);
        let share = tempfile::tempdir().unwrap();
        write(command, share.path()).unwrap();
        for (words, offered) in [
            (&["my-own-tool", "s"][..], "sub"),
            (&["my-own-tool", "sub", "--sh"], "--shallow"),
            (&["my-own-tool", "sub", "i"], "in-ner"),
            (&["my-own-tool", "sub", "in-ner", "--d"], "--deep"),
        ] {
            assert_eq!(offers(share.path(), words), offered, "{words:?}");
        }
    }
}
