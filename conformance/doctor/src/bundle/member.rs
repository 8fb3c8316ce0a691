//! Taking files into a bundle.

use std::path::{Path, PathBuf};

use efa_device_model::profile::Profile;
use efa_suite::json::Report;
use serde_json::Value;

use super::captures::{self, without_private_data};
use super::error::BundleError;
use super::private::{self, PrivateTexts};

/// A file of a bundle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its path in the bundle.
    pub name: String,
    /// Its content, without private texts and payloads.
    pub bytes: Vec<u8>,
}

/// The types of files that a bundle accepts.
enum MemberKind {
    Capture,
    Report,
    Profile,
}

impl MemberKind {
    fn of(path: &Path) -> Result<MemberKind, BundleError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("pcapng") => Ok(MemberKind::Capture),
            Some("json") => Ok(MemberKind::Report),
            Some("toml") => Ok(MemberKind::Profile),
            _ => Err(BundleError::OtherKind(path.to_owned())),
        }
    }
}

/// The hosts that a file names: hosts on which endpoints were played, and on which packets were
/// captured. The names may contain a user or a device, as in the file.
///
/// # Errors
/// As [`member`].
pub fn hosts(path: &Path) -> Result<Vec<String>, BundleError> {
    match MemberKind::of(path)? {
        MemberKind::Capture => captures::hosts(path),
        MemberKind::Report => {
            let report = Report::read(path)?;
            let cases = report.cases.iter().flat_map(|case| case.places.values());
            let pairs = report.pairs.iter().flat_map(|pair| &pair.places);
            let own = Some(&report.run.host).filter(|host| !host.is_empty());
            Ok(cases.chain(pairs).chain(own).cloned().collect())
        }
        MemberKind::Profile => Ok(Vec::new()),
    }
}

/// Adds a file to a bundle: a capture without the users' data, a report of `run --json`, or a
/// profile.
///
/// # Errors
/// It is none of these, or cannot be read: no other files are added to a bundle.
pub fn member(path: &Path, private: &PrivateTexts) -> Result<Member, BundleError> {
    let text = || std::fs::read_to_string(path).map_err(BundleError::io(path));
    let (folder, bytes) = match MemberKind::of(path)? {
        MemberKind::Capture => ("captures", without_private_data(path, private)?),
        MemberKind::Report => {
            Report::read(path)?;
            let mut report: Value = serde_json::from_str(&text()?)?;
            leave_paths(&mut report);
            ("reports", private.hide_in_json(report).into_bytes())
        }
        MemberKind::Profile => {
            let whole = PathBuf::from(".").join(path);
            Profile::named(&whole.to_string_lossy())?;
            ("profiles", private.hide(&text()?).into_bytes())
        }
    };
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Member {
        name: format!("{folder}/{}", private.hide(&file)),
        bytes,
    })
}

/// In a report of a bundle, the path of a capture is reduced to the file's name, and command lines
/// and their working directory are removed.
fn leave_paths(report: &mut Value) {
    let cases = report.get_mut("cases").and_then(Value::as_array_mut);
    for case in cases.into_iter().flatten() {
        if let Some(Value::String(path)) = case.get_mut("capture") {
            *path = private::file_name(path).to_owned();
        }
        if let Some(command) = case.get_mut("repeat") {
            *command = "".into();
        }
    }
    for key in ["command", "directory"] {
        if let Some(value) = report.get_mut("run").and_then(|run| run.get_mut(key)) {
            *value = "".into();
        }
    }
}
