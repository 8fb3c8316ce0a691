//! A message as a line of JSON: an object whose only key is the message's name.

use std::fmt::Write as _;

use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

/// The number of characters of a line that a message shows.
const SHOWN: usize = 80;
/// The number of characters of an explanation, which may quote a value and lists the expected ones.
const EXPLAINED: usize = 400;

/// The start of a program's output, for a message. It may be any text.
pub(crate) fn shown(printed: &str) -> String {
    cut(printed, SHOWN)
}

/// At most `most` characters, with control characters escaped.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => printable(&text[..end]) + "...",
        None => printable(text),
    }
}

/// A program's text with control characters escaped, because a terminal would interpret them.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// The reason why a line cannot be parsed: the key, the error, and the expected values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct LineError(String);

/// A message that is written as a line.
pub trait Line: Serialize + DeserializeOwned {
    /// The line, without its end.
    fn line(&self) -> String {
        // Messages have no maps with keys other than strings, the only values that JSON cannot
        // represent.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The message's name: the line's only key.
    fn name(&self) -> String {
        let line = self.line();
        line.split('"').nth(1).unwrap_or_default().to_owned()
    }

    /// Reads a line, with or without its end.
    ///
    /// # Errors
    /// The error in the line.
    fn parse(line: &str) -> Result<Self, LineError> {
        let mut json = serde_json::Deserializer::from_str(line);
        let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string());
        let ended = |message| json.end().map(|()| message).map_err(|e| e.to_string());
        parsed
            .and_then(ended)
            .map_err(|problem| LineError(cut(&problem, EXPLAINED)))
    }
}

/// Bytes, two hexadecimal digits each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let byte = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let bytes = bytes.filter(|_| rest.is_empty()).map(Bytes);
        bytes.ok_or_else(|| {
            D::Error::custom(format_args!(
                "\"{}\" is not bytes, two hexadecimal digits each",
                shown(&text)
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Line for Bytes {}

    #[test]
    fn bytes_are_hexadecimal_digits() {
        assert_eq!(Bytes(vec![0, 0xff]).line(), r#""00ff""#);
        assert_eq!(Bytes::parse(r#""00Ff""#), Ok(Bytes(vec![0, 0xff])));
        for wrong in [r#""00f""#, r#""00zz""#, r#""+0""#, "7", r#""00" 7"#, ""] {
            assert!(Bytes::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn text_is_shortened_and_control_characters_stripped() {
        assert_eq!(
            shown("{\"a\":\"b\\n\"}\u{1b}[31m"),
            "{\"a\":\"b\\n\"}\\u{1b}[31m"
        );
        assert_eq!(shown(&"x".repeat(81)), format!("{}...", "x".repeat(80)));
        assert_eq!(shown(&"x".repeat(80)), "x".repeat(80));
    }

    proptest! {
        #[test]
        fn bytes_survive(bytes in any::<Vec<u8>>()) {
            let bytes = Bytes(bytes);
            prop_assert_eq!(Bytes::parse(&bytes.line()), Ok(bytes));
        }
    }
}
