//! One file to send back when something fails: what the doctor says, reports, profiles, and captures without the
//! users' data.
//!
//! Texts have no names of hosts and users ([`Private`]), captures no data of applications
//! ([`without_private_data`]).

mod captures;
mod private;

use std::path::{Path, PathBuf};

use efa_device_model::profile::Profile;
use efa_suite::json::Report;
use serde_json::Value;

pub use captures::without_private_data;
pub use private::Private;

/// A file of a bundle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its path in the bundle.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The kinds of files that a bundle takes.
enum Kind {
    Capture,
    Report,
    Profile,
}

impl Kind {
    fn of(path: &Path) -> Result<Kind, String> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("pcapng") => Ok(Kind::Capture),
            Some("json") => Ok(Kind::Report),
            Some("toml") => Ok(Kind::Profile),
            _ => Err(format!(
                "{}: a bundle takes captures (.pcapng), reports of `run --json` (.json) and profiles of `survey` \
                 (.toml)",
                path.display()
            )),
        }
    }
}

/// The hosts that a file names: where endpoints were played, and where packets were captured. As they stand there: with a
/// user or a device.
///
/// # Errors
/// As [`member`].
pub fn hosts(path: &Path) -> Result<Vec<String>, String> {
    match Kind::of(path)? {
        Kind::Capture => captures::hosts(path),
        Kind::Report => {
            let report = Report::read(path).map_err(|error| error.to_string())?;
            let cases = report.cases.iter().flat_map(|case| case.places.values());
            let pairs = report.pairs.iter().flat_map(|pair| &pair.places);
            Ok(cases.chain(pairs).cloned().collect())
        }
        Kind::Profile => Ok(Vec::new()),
    }
}

/// Takes a file into a bundle: a capture without the users' data, a report of `run --json`, or a profile.
///
/// # Errors
/// It is none of these, or cannot be read: nothing else gets into a bundle.
pub fn member(path: &Path, private: &Private) -> Result<Member, String> {
    let text =
        || std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let (folder, bytes) = match Kind::of(path)? {
        Kind::Capture => ("captures", without_private_data(path, private)?),
        Kind::Report => {
            Report::read(path).map_err(|error| error.to_string())?;
            let mut report: Value =
                serde_json::from_str(&text()?).map_err(|error| error.to_string())?;
            leave_paths(&mut report);
            ("reports", private.hide_in_json(report).into_bytes())
        }
        Kind::Profile => {
            let whole = PathBuf::from(".").join(path);
            Profile::named(&whole.to_string_lossy()).map_err(|error| error.to_string())?;
            ("profiles", private.hide(&text()?).into_bytes())
        }
    };
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Member {
        name: format!("{folder}/{}", private.hide(&file)),
        bytes,
    })
}

/// Of a capture's path, a report in a bundle has the file's name.
fn leave_paths(report: &mut Value) {
    let cases = report.get_mut("cases").and_then(Value::as_array_mut);
    for case in cases.into_iter().flatten() {
        if let Some(Value::String(path)) = case.get_mut("capture") {
            *path = private::file_name(path).to_owned();
        }
    }
}
