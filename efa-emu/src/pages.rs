//! Manual pages and shell completions of a command line, laid out as below `PREFIX/share`.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use clap::Command;
use clap::builder::Resettable;
use clap_complete::Shell;

use crate::command::Failure;

/// Where each shell looks for completions, and the name of the file after that of the program.
const COMPLETIONS: [(Shell, &str, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "", ""),
    (Shell::Zsh, "zsh/site-functions", "_", ""),
    (Shell::Fish, "fish/vendor_completions.d", "", ".fish"),
];

/// Writes a page for the command and one for each of its subcommands that are not hidden, and its completions.
///
/// # Errors
/// A file cannot be written.
pub fn write(command: Command, share: &Path) -> Result<(), Failure> {
    try_write(command, share)
        .map_err(|error| Failure(format!("cannot write below {}: {error}", share.display())))
}

fn try_write(mut command: Command, share: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    // Making completions adds the command `help` for good.
    let of_pages = without_help(command.clone());
    for (shell, directory, before, after) in COMPLETIONS {
        let directory = share.join(directory);
        fs::create_dir_all(&directory)?;
        let mut file = File::create(directory.join(format!("{before}{name}{after}")))?;
        clap_complete::generate(shell, &mut command, &name, &mut file);
    }
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    // The long version names places on this machine.
    clap_mangen::generate_to(of_pages.long_version(Resettable::Reset), &pages)
}

/// `help COMMAND` shows the page of the command, and needs none of its own.
fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_the_program_its_completions() {
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
}
