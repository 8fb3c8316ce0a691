//! Commands as shells take them, here and on other machines.

use std::fmt;
use std::process::Command;
use std::str::FromStr;

/// What names of launchers begin with. They hand each word on as it is.
const LAUNCHERS: [&str; 4] = ["srun", "mpirun", "mpiexec", "orterun"];

/// A command with the arguments of ssh: a host, and a command for the shell there. Or a launcher, whose last word asks for
/// a host: a program and its arguments follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteShell {
    words: Vec<String>,
}

impl RemoteShell {
    /// What is used if nothing else is said. It never asks for a password: nobody would answer.
    pub const DEFAULT: &'static str = "ssh -o BatchMode=yes";

    /// Whether it is the launcher of a parallel job, which starts a program and no shell.
    pub fn is_launcher(&self) -> bool {
        let name = self.words[0].rsplit('/').next().unwrap_or_default();
        LAUNCHERS.iter().any(|launcher| name.starts_with(launcher))
    }

    /// A command that runs `words` on `host`.
    pub fn command(&self, host: &str, words: &[String]) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg(host);
        if self.is_launcher() {
            command.args(words);
            return command;
        }
        let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
        command.arg(quoted.join(" "));
        command
    }
}

impl FromStr for RemoteShell {
    type Err = String;

    /// Divides the text into words as a shell does.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match split_words(text) {
            Ok(words) => Ok(RemoteShell { words }),
            Err(problem) => Err(format!(
                "the command is not usable: {problem}; write for example `ssh -p 2222`"
            )),
        }
    }
}

impl fmt::Display for RemoteShell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.words.iter().map(|word| quote(word)).collect();
        f.write_str(&words.join(" "))
    }
}

/// Splits a command into words as a shell does: at spaces outside of `'...'` and `"..."`; `\\`
/// quotes the next character. Nothing is expanded.
pub fn split_words(command: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = command.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            (_, Some(end)) if character == end => quote = None,
            ('\'' | '"', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => match characters.next() {
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => return Err("it ends in the middle of `\\`".into()),
            },
            (_, None) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("the quotation mark {quote} is not closed"));
    }
    words.extend(word);
    if words.is_empty() {
        return Err("it is empty".into());
    }
    Ok(words)
}

/// A word as a shell takes it.
pub fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_divided_as_a_shell_does() {
        let words = split_words("  ./a 'b c' d\"e f\"g h\\ i '' ").unwrap();
        assert_eq!(words, ["./a", "b c", "de fg", "h i", ""]);
        assert!(split_words("a 'b").unwrap_err().contains('\''));
        assert!(split_words("  ").unwrap_err().contains("empty"));
        assert!(split_words("a\\").is_err());
    }

    #[test]
    fn a_command_reaches_the_shell_of_the_host_word_by_word() {
        let shell: RemoteShell = "sh -c 'eval \"$1\"'".parse().unwrap();
        let words = ["printf", "%s.", "a b", "it's", "$HOME", ""].map(String::from);
        let output = shell.command("node7", &words).output().unwrap();
        assert_eq!(output.stdout, b"a b.it's.$HOME..");
    }
}
