//! Lines of the driver protocol: a word, then `key=value` pairs, separated by single spaces.
//!
//! A value contains no space: `%XX` in it stands for the byte with that hexadecimal number. The key `text`
//! is an exception: it is the last of its line, and its value is the rest of the line without escapes.

use std::fmt::Write as _;

/// The part of what a program printed that a message shows. It may be anything.
pub(crate) fn shown(printed: &str) -> String {
    const SHOWN: usize = 80;
    match printed.char_indices().nth(SHOWN) {
        None => printed.escape_debug().to_string(),
        Some((end, _)) => format!("{}...", printed[..end].escape_debug()),
    }
}

/// Why a line cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineError {
    /// The line does not begin with a known word.
    #[error("no line begins with `{word}`; known are {known}")]
    Word {
        /// The word that it begins with.
        word: String,
        /// The known words.
        known: String,
    },
    /// A part of the line is not `key=value`.
    #[error("`{token}` in a `{word}` line is not of the form key=value")]
    Token {
        /// The line's word.
        word: &'static str,
        /// The part.
        token: String,
    },
    /// A key does not belong in this line, or occurs twice.
    #[error("`{key}` is no key of a `{word}` line, or is there twice; its keys are {known}")]
    Key {
        /// The line's word.
        word: &'static str,
        /// The key.
        key: String,
        /// The keys of such a line.
        known: String,
    },
    /// A key is missing.
    #[error("a `{word}` line needs the key `{key}`")]
    Missing {
        /// The line's word.
        word: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A value cannot be read.
    #[error("in a `{word}` line, {key}={value} is not {kind}")]
    Value {
        /// The line's word.
        word: &'static str,
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The expected kind of value.
        kind: &'static str,
    },
}

/// One key of a line.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in the line.
    pub name: &'static str,
    /// The kind of its value, in words.
    pub kind: &'static str,
    /// Whether the line always has it.
    pub required: bool,
    /// Its meaning.
    pub meaning: &'static str,
}

/// One kind of line.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The word that it begins with.
    pub word: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// An example of such a line.
    pub example: &'static str,
    /// Its keys, in the order in which they are written.
    pub keys: &'static [Key],
}

/// A type that is written as the value of a key.
pub trait Value: Sized {
    /// The kind of value, in words.
    const KIND: &'static str;

    /// The value, without spaces.
    fn show(&self) -> String;

    /// Reads what [`Value::show`] writes, or another spelling of it.
    fn read(text: &str) -> Option<Self>;
}

/// A member of a line: a required or an optional value.
pub trait Member: Sized {
    /// The kind of value, in words.
    const KIND: &'static str;
    /// Whether the line always has it.
    const REQUIRED: bool;

    /// The value, if there is one.
    fn show(&self) -> Option<String>;

    /// Reads it from a line.
    fn take(key: &'static str, pairs: &mut Pairs<'_>) -> Result<Self, LineError>;
}

impl<T: Value> Member for T {
    const KIND: &'static str = T::KIND;
    const REQUIRED: bool = true;

    fn show(&self) -> Option<String> {
        Some(Value::show(self))
    }

    fn take(key: &'static str, pairs: &mut Pairs<'_>) -> Result<Self, LineError> {
        let word = pairs.word;
        pairs.take(key)?.ok_or(LineError::Missing { word, key })
    }
}

impl<T: Value> Member for Option<T> {
    const KIND: &'static str = T::KIND;
    const REQUIRED: bool = false;

    fn show(&self) -> Option<String> {
        self.as_ref().map(Value::show)
    }

    fn take(key: &'static str, pairs: &mut Pairs<'_>) -> Result<Self, LineError> {
        pairs.take(key)
    }
}

/// `yes`; a line without the key means false.
impl Member for bool {
    const KIND: &'static str = "`yes`";
    const REQUIRED: bool = false;

    fn show(&self) -> Option<String> {
        self.then(|| Value::show(&Yes))
    }

    fn take(key: &'static str, pairs: &mut Pairs<'_>) -> Result<Self, LineError> {
        Ok(pairs.take::<Yes>(key)?.is_some())
    }
}

struct Yes;

impl Value for Yes {
    const KIND: &'static str = <bool as Member>::KIND;

    fn show(&self) -> String {
        "yes".into()
    }

    fn read(text: &str) -> Option<Self> {
        (text == "yes").then_some(Yes)
    }
}

/// Reads a number as C's `strtoull(text, NULL, 0)` does, except that no number is octal.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

macro_rules! numbers {
    ($($type:ty, $kind:literal);*) => {
        $(impl Value for $type {
            const KIND: &'static str = $kind;

            fn show(&self) -> String {
                self.to_string()
            }

            fn read(text: &str) -> Option<Self> {
                number(text)?.try_into().ok()
            }
        })*
    };
}

numbers! {
    u8, "a number below 256";
    u32, "a number below 2^32";
    u64, "a number";
    usize, "a number"
}

/// A number that is written in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hex(pub u64);

impl Value for Hex {
    const KIND: &'static str = "a number";

    fn show(&self) -> String {
        format!("{:#x}", self.0)
    }

    fn read(text: &str) -> Option<Self> {
        number(text).map(Hex)
    }
}

/// Bytes, two hexadecimal digits each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes(pub Vec<u8>);

impl Value for Bytes {
    const KIND: &'static str = "bytes, two hexadecimal digits each";

    fn show(&self) -> String {
        let mut text = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    fn read(text: &str) -> Option<Self> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let byte = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        bytes.filter(|_| rest.is_empty()).map(Bytes)
    }
}

impl Value for String {
    const KIND: &'static str = "a word";

    fn show(&self) -> String {
        let mut text = String::with_capacity(self.len());
        for character in self.chars() {
            if character == '%' || character.is_whitespace() || character.is_control() {
                let mut utf8 = [0; 4];
                for byte in character.encode_utf8(&mut utf8).bytes() {
                    let _ = write!(text, "%{byte:02X}");
                }
            } else {
                text.push(character);
            }
        }
        text
    }

    fn read(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, after @ ..] = rest {
            rest = after;
            if *first != b'%' {
                bytes.push(*first);
                continue;
            }
            let digits = after.first_chunk::<2>()?;
            rest = &after[2..];
            let Bytes(escaped) = Bytes::read(std::str::from_utf8(digits).ok()?)?;
            bytes.extend(escaped);
        }
        String::from_utf8(bytes).ok()
    }
}

/// The key whose value is the rest of the line.
const TEXT: &str = "text";

/// Free text up to the end of the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text(pub String);

impl Value for Text {
    const KIND: &'static str = "the rest of the line";

    fn show(&self) -> String {
        // A line end would end the text.
        self.0.replace(['\n', '\r'], " ")
    }

    fn read(text: &str) -> Option<Self> {
        Some(Text(text.to_owned()))
    }
}

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Self {
        Text(text.into())
    }
}

/// The pairs of a line that have not been read yet.
pub struct Pairs<'a> {
    word: &'static str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Pairs<'a> {
    /// Splits the rest of a line after its word.
    pub(crate) fn of(word: &'static str, rest: &'a str) -> Result<Self, LineError> {
        let mut pairs = Vec::new();
        let mut rest = rest.trim_ascii();
        while !rest.is_empty() {
            if let Some(text) = rest.strip_prefix(TEXT).and_then(|r| r.strip_prefix('=')) {
                pairs.push((TEXT, text));
                break;
            }
            let (token, after) = rest.split_once(' ').unwrap_or((rest, ""));
            let Some(pair) = token.split_once('=') else {
                let token = shown(token);
                return Err(LineError::Token { word, token });
            };
            pairs.push(pair);
            rest = after.trim_ascii_start();
        }
        Ok(Pairs { word, pairs })
    }

    fn take<T: Value>(&mut self, key: &'static str) -> Result<Option<T>, LineError> {
        let Some(place) = self.pairs.iter().position(|(name, _)| *name == key) else {
            return Ok(None);
        };
        let (_, value) = self.pairs.remove(place);
        let read = T::read(value);
        read.map(Some).ok_or_else(|| LineError::Value {
            word: self.word,
            key,
            value: shown(value),
            kind: T::KIND,
        })
    }

    /// Returns an error if a pair was not read.
    pub(crate) fn end(self, known: &[&str]) -> Result<(), LineError> {
        let Some((key, _)) = self.pairs.first() else {
            return Ok(());
        };
        Err(LineError::Key {
            word: self.word,
            key: shown(key),
            known: match known {
                [] => "none".into(),
                known => known.join(", "),
            },
        })
    }
}

/// Adds ` key=value` to a line, if there is a value.
pub(crate) fn push(line: &mut String, key: &str, member: &impl Member) {
    if let Some(value) = member.show() {
        let _ = write!(line, " {key}={value}");
    }
}

/// Declares the lines of one side: an enumeration, its writing and parsing, and the table of its forms. The
/// documentation of variants and members becomes the meaning in the table.
macro_rules! lines {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $(
                $( #[doc = $meaning:literal] )+
                $word:literal $variant:ident = $example:literal {
                    $(
                        $( #[doc = $key_meaning:literal] )+
                        $member:ident: $type:ty = $key:literal,
                    )*
                }
            )*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum $name {
            $(
                $( #[doc = $meaning] )+
                $variant { $( $( #[doc = $key_meaning] )+ $member: $type, )* },
            )*
        }

        impl $name {
            /// All kinds of lines.
            pub const FORMS: &'static [$crate::drive::line::Form] = &[
                $(
                    $crate::drive::line::Form {
                        word: $word,
                        meaning: concat!($( $meaning ),+),
                        example: $example,
                        keys: &[
                            $(
                                $crate::drive::line::Key {
                                    name: $key,
                                    kind: <$type as $crate::drive::line::Member>::KIND,
                                    required: <$type as $crate::drive::line::Member>::REQUIRED,
                                    meaning: concat!($( $key_meaning ),+),
                                },
                            )*
                        ],
                    },
                )*
            ];

            /// The line, without its end.
            pub fn line(&self) -> String {
                match self {
                    $(
                        $name::$variant { $( $member, )* } => {
                            #[allow(unused_mut, reason = "some lines have no keys")]
                            let mut line = String::from($word);
                            $( $crate::drive::line::push(&mut line, $key, $member); )*
                            line
                        }
                    )*
                }
            }

            /// Reads a line without its end.
            pub fn parse(line: &str) -> Result<Self, $crate::drive::line::LineError> {
                let line = line.trim_ascii();
                let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
                match word {
                    $(
                        $word => {
                            #[allow(unused_mut, reason = "some lines have no keys")]
                            let mut pairs = $crate::drive::line::Pairs::of($word, rest)?;
                            let read = $name::$variant {
                                $(
                                    $member: $crate::drive::line::Member::take($key, &mut pairs)?,
                                )*
                            };
                            let keys: &[&str] = &[ $( $key, )* ];
                            pairs.end(keys)?;
                            Ok(read)
                        }
                    )*
                    _ => {
                        let known: Vec<String> =
                            Self::FORMS.iter().map(|form| format!("`{}`", form.word)).collect();
                        Err($crate::drive::line::LineError::Word {
                            word: $crate::drive::line::shown(word),
                            known: known.join(", "),
                        })
                    }
                }
            }
        }
    };
}
pub(crate) use lines;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_and_bytes_are_written_literally() {
        assert_eq!(Value::show(&"a b%\n".to_owned()), "a%20b%25%0A");
        assert_eq!(String::read("a%20b%25%0a"), Some("a b%\n".into()));
        assert_eq!(String::read("a%2"), None);
        assert_eq!(Value::show(&Bytes(vec![0, 0xff])), "00ff");
        assert_eq!(Bytes::read("00F"), None);
        assert_eq!(Bytes::read("00zz"), None);
        assert_eq!(Hex::read("0x1f"), Some(Hex(31)));
        assert_eq!(Hex::read("31"), Some(Hex(31)));
        assert_eq!(u8::read("256"), None);
        assert_eq!(u64::read("-1"), None);
    }

    proptest! {
        #[test]
        fn words_survive_and_hold_no_space(word in any::<String>()) {
            let shown = Value::show(&word);
            prop_assert!(!shown.contains(|c: char| c.is_whitespace() || c.is_control()), "{shown:?}");
            prop_assert_eq!(String::read(&shown), Some(word));
        }
    }
}
