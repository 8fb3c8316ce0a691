//! The program that plays an endpoint.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::libfabric::Provider;

/// A program that speaks the driver protocol.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Program {
    /// This program, with the protocol engine.
    Core,
    /// This program, with stock libfabric.
    Libfabric {
        /// The library: a path, or a name for the dynamic linker.
        library: PathBuf,
        /// The provider that the endpoint is opened with.
        provider: Provider,
    },
    /// Any other program.
    Exec {
        /// The program, then its arguments.
        words: Vec<String>,
    },
}

impl Program {
    /// The program and its arguments; `own` is this program's own file.
    pub fn words(&self, own: &Path) -> Vec<OsString> {
        let own = || vec![own.as_os_str().to_owned(), "drive".into()];
        match self {
            Program::Core => [own(), vec!["core".into()]].concat(),
            Program::Libfabric { library, provider } => {
                let named = ["libfabric".into(), "--libfabric".into(), library.into()];
                [own(), named.to_vec(), provider.words()].concat()
            }
            Program::Exec { words } => words.iter().map(OsString::from).collect(),
        }
    }
}

/// Splits a command into words as a shell does: at spaces outside of `'...'` and `"..."`; `\\` quotes the
/// next character. Nothing is expanded.
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
    fn a_provider_is_named_unless_it_is_libfabrics_own() {
        let words = |provider| {
            let library = "libfabric.so.1".into();
            let words = Program::Libfabric { library, provider }.words(Path::new("own"));
            words.join(" ".as_ref()).into_string().unwrap()
        };
        let stock = "own drive libfabric --libfabric libfabric.so.1";
        assert_eq!(words(Provider::efa()), stock);
        let other = Provider {
            name: "efa_rs".into(),
            directory: Some("plug-ins".into()),
        };
        assert_eq!(other.software(), "libfabric:efa_rs");
        assert_eq!(
            words(other),
            format!("{stock} --provider efa_rs --provider-path plug-ins")
        );
    }

    #[test]
    fn commands_are_divided_as_a_shell_does() {
        let words = split_words("  ./a 'b c' d\"e f\"g h\\ i '' ").unwrap();
        assert_eq!(words, ["./a", "b c", "de fg", "h i", ""]);
        assert!(split_words("a 'b").unwrap_err().contains('\''));
        assert!(split_words("  ").unwrap_err().contains("empty"));
        assert!(split_words("a\\").is_err());
    }
}
