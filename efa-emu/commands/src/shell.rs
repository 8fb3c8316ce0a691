//! Commands in the form that shells accept, on this machine and on others.

use std::fmt;
use std::process::Command;
use std::str::FromStr;

/// Prefixes of the names of launchers, which pass each word unchanged.
const LAUNCHERS: [&str; 4] = ["srun", "mpirun", "mpiexec", "orterun"];

/// The reason why a command cannot be split into words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SplitError {
    /// The command has no word.
    #[error("it is empty")]
    Empty,
    /// A backslash is the last character.
    #[error("it ends in the middle of `\\`")]
    Backslash,
    /// The quotation mark that begins the unclosed part.
    #[error("the quotation mark {0} is not closed")]
    Quote(char),
}

/// A remote shell that is not a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the command is not usable: {0}; write for example `ssh -p 2222`")]
pub struct RemoteShellError(#[from] SplitError);

/// A command with the arguments of ssh: a host, and a command for the shell there. Or a launcher,
/// whose last word expects a host; a program and its arguments follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteShell {
    words: Vec<String>,
}

impl RemoteShell {
    /// The default. It never prompts for a password, because no user would answer.
    pub const DEFAULT: &'static str = "ssh -o BatchMode=yes";

    /// Whether it is the launcher of a parallel job, which starts a program without a shell.
    pub fn is_launcher(&self) -> bool {
        let name = self.words[0].rsplit('/').next().unwrap_or_default();
        LAUNCHERS.iter().any(|launcher| name.starts_with(launcher))
    }

    /// A command that runs `words` on `host`.
    pub fn command(&self, host: &str, words: &[String]) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg(host);
        match self.is_launcher() {
            true => command.args(words),
            false => command.arg(join(words)),
        };
        command
    }
}

impl FromStr for RemoteShell {
    type Err = RemoteShellError;

    /// Splits the text into words as a shell does.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words = split_words(text)?;
        Ok(RemoteShell { words })
    }
}

impl fmt::Display for RemoteShell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&join(&self.words))
    }
}

/// Splits a command into words as a shell does. Nothing is expanded.
///
/// # Errors
/// The error in it.
pub fn split_words(command: &str) -> Result<Vec<String>, SplitError> {
    match shlex::split(command) {
        Some(words) if words.is_empty() => Err(SplitError::Empty),
        Some(words) => Ok(words),
        None => Err(unfinished(command)),
    }
}

/// The error for a command with an unfinished quote.
fn unfinished(command: &str) -> SplitError {
    let ends_with = |end: &str| shlex::split(&format!("{command}{end}")).is_some();
    if ends_with("\\") {
        return SplitError::Backslash;
    }
    SplitError::Quote(if ends_with("'") { '\'' } else { '"' })
}

/// Quotes a word for a shell.
pub fn quote(word: &str) -> String {
    // `shlex` also quotes words that need it only at the start of a command, or not at all.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let quoter = shlex::Quoter::new().allow_nul(true);
    quoter.quote(word).expect("only a NUL is refused").into()
}

/// Quotes words for a shell.
pub fn join(words: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quote(word.as_ref())).collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_divided_as_a_shell_does() {
        let words = split_words("  ./a 'b c' d\"e f\"g h\\ i '' ").unwrap();
        assert_eq!(words, ["./a", "b c", "de fg", "h i", ""]);
        for (command, problem) in [
            ("a 'b\"", "the quotation mark ' is not closed"),
            ("a \"b'", "the quotation mark \" is not closed"),
            ("a \"b\\", "the quotation mark \" is not closed"),
            ("a\\", "it ends in the middle of `\\`"),
            ("  ", "it is empty"),
        ] {
            assert_eq!(split_words(command).unwrap_err().to_string(), problem);
        }
    }

    #[test]
    fn commands_reach_the_hosts_shell_word_by_word() {
        let shell: RemoteShell = "sh -c 'eval \"$1\"'".parse().unwrap();
        let words = ["printf", "%s.", "a b", "it's", "$HOME", "{a,b}", ""].map(String::from);
        let output = shell.command("node7", &words).output().unwrap();
        assert_eq!(output.stdout, b"a b.it's.$HOME.{a,b}..");
    }
}
