//! Manual pages and shell completions of a command line, laid out as below `PREFIX/share`.

use std::fs;
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
        let file = directory.join(format!("{before}{name}{after}"));
        fs::write(file, completions(shell, &mut command, &name))?;
    }
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    // The long version names places on this machine.
    clap_mangen::generate_to(of_pages.long_version(Resettable::Reset), &pages)
}

/// What the shell reads to complete the command line of `name`.
fn completions(shell: Shell, command: &mut Command, name: &str) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, name, &mut script);
    if shell != Shell::Bash {
        return script;
    }
    // For bash, clap_complete 4.6 writes a hyphen of the program's name in one way where it finds out the subcommand, and in another
    // where it lists the options of that: none would be completed (clap-rs/clap#6421).
    let [found, listed] = ["__", "__subcmd__"].map(|hyphen| name.replace('-', hyphen));
    let script = String::from_utf8(script).expect("the generator writes text");
    script.replace(&listed, &found).into_bytes()
}

/// `help COMMAND` shows the page of the command, and needs none of its own.
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

    /// What bash, asked for completions of the last word, offers.
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
    fn bash_completes_options_of_subcommands_of_programs_with_a_hyphen() {
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
