//! `--dut` and `--peer`: the implementations that play endpoints.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use efa_play::libfabric::Provider;
use efa_play::player::{Program, join, split_words};

/// An implementation under test, in the form of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Dut {
    Core,
    Libfabric,
    Exec(Vec<String>),
}

impl FromStr for Dut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("exec:")) {
            ("core", _) => Ok(Dut::Core),
            ("libfabric", _) => Ok(Dut::Libfabric),
            (_, Some(command)) => split_words(command).map(Dut::Exec).map_err(|problem| {
                format!(
                    "the command is not usable: {problem}; write for example exec:'./program -x'"
                )
            }),
            _ => Err(
                "write `core`, `libfabric`, or `exec:` and the command that starts a program \
                      of yours (docs/driver.md)"
                    .into(),
            ),
        }
    }
}

/// The form that `--dut` accepts.
impl fmt::Display for Dut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dut::Core => f.write_str("core"),
            Dut::Libfabric => f.write_str("libfabric"),
            Dut::Exec(words) => write!(f, "exec:{}", join(words)),
        }
    }
}

impl Dut {
    /// The program that plays it; `libfabric` is the library of stock libfabric, and `provider` the
    /// provider of its endpoints.
    pub(crate) fn program(&self, libfabric: &Path, provider: Provider) -> Program {
        match self {
            Dut::Core => Program::Core,
            Dut::Libfabric => Program::Libfabric {
                library: libfabric.to_owned(),
                provider,
            },
            Dut::Exec(words) => Program::Exec {
                words: words.clone(),
            },
        }
    }
}
