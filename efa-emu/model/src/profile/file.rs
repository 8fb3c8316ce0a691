//! Profiles in files: measured by a survey, or changed for a test.
//!
//! A file is TOML: the name of the profile, the built-in profile that it is based on, and the
//! differences.
//!
//! ```toml
//! name = "measured"
//! base = "efa2"
//! mtu = 8900
//! qpn_reuse = "oldest"
//!
//! [statuses]
//! wrong_qkey = 13
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use efa_core::nic::{DeviceCaps, Status};
use serde::{Deserialize, Serialize};

use super::{Profile, Statuses, numbers};
use crate::qpn_policy::UnknownQpnPolicy;

/// The reason why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It is neither a built-in profile nor a file.
    #[error("unknown profile {name:?}: use {known}, or the path of a profile's file (TOML)", known = known())]
    Unknown {
        /// The name.
        name: String,
    },
    /// The file cannot be read.
    #[error("cannot read the profile {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not a profile.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem.
        #[source]
        problem: ProfileProblem,
    },
}

/// A problem in a profile's file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileProblem {
    /// It is not TOML, or has an unknown key.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// The base profile is not built in.
    #[error("base is {base:?}, not one of {known}", known = known())]
    Base {
        /// The profile.
        base: String,
    },
    /// Its name is that of a built-in profile.
    #[error("name is {name:?}, a built-in profile's")]
    Name {
        /// The name.
        name: String,
    },
    /// The policy of queue pair numbers is unknown.
    #[error(transparent)]
    QpnReuse(#[from] UnknownQpnPolicy),
    /// The status code is not one of a refused request.
    #[error("statuses.{key}: {code} is not a status of a refused request")]
    Status {
        /// Its key.
        key: &'static str,
        /// The code.
        code: u8,
    },
    /// A value that the emulator does not support, in the words of [`Profile::fit`].
    #[error("{0}")]
    Limit(String),
}

fn known() -> String {
    let names: Vec<_> = Profile::built_in().map(|profile| profile.name).collect();
    names.join(", ")
}

/// Declares the file, with an optional key for each number of [`Profile`].
macro_rules! file {
    ($(
        $(#[$meaning:meta])*
        $field:ident: $type:ty = $value:expr, $name:literal $(as $text:expr)?, $source:expr;
    )*) => {
        #[derive(Debug, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            name: String,
            base: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            description: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            firmware: Option<String>,
            /// The bits of `efadv_device_attr.device_caps`.
            #[serde(skip_serializing_if = "Option::is_none")]
            device_caps: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            qpn_reuse: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            rnr_first_us: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            rnr_longest_us: Option<u64>,
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                $field: Option<$type>,
            )*
            #[serde(default)]
            statuses: StatusCodes,
            /// Other results of a survey. The emulator ignores them.
            #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
            answers: toml::Table,
        }

        impl File {
            fn put_numbers(&self, profile: &mut Profile) {
                $(if let Some(value) = self.$field {
                    profile.$field = value;
                })*
            }

            fn take_numbers(&mut self, profile: &Profile) {
                $(self.$field = Some(profile.$field);)*
            }
        }
    };
}

numbers!(file);

/// Declares the status codes of a file: an optional key for each field of [`Statuses`].
macro_rules! status_codes {
    ($($field:ident),*) => {
        #[derive(Debug, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct StatusCodes {
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                $field: Option<u8>,
            )*
        }

        impl StatusCodes {
            fn put(&self, statuses: &mut Statuses) -> Result<(), ProfileProblem> {
                $(if let Some(code) = self.$field {
                    statuses.$field = status(stringify!($field), code)?;
                })*
                Ok(())
            }

            fn of(statuses: &Statuses) -> StatusCodes {
                StatusCodes { $($field: Some(statuses.$field.code()),)* }
            }
        }
    };
}

status_codes!(
    unknown_queue_pair,
    wrong_qkey,
    unknown_key,
    outside_region,
    forbidden_access,
    unknown_peer
);

/// The status of a refusal.
fn status(key: &'static str, code: u8) -> Result<Status, ProfileProblem> {
    let found = Status::from_code(code).filter(|status| {
        // Other codes never end a request.
        matches!(
            status,
            Status::RemoteBadAddress
                | Status::RemoteAbort
                | Status::RemoteBadDestQpn
                | Status::RemoteBadLength
                | Status::RemoteBadStatus
                | Status::RemoteUnknownPeer
                | Status::RemoteFeatureMismatch
                | Status::LocalUnresponsiveRemote
                | Status::LocalUnreachableRemote
        )
    });
    found.ok_or(ProfileProblem::Status { key, code })
}

impl Profile {
    /// The profile for `efa-emu run --profile`: a built-in one by its name, or a file, whose path
    /// has a slash or ends in `.toml`.
    ///
    /// # Errors
    /// The profile does not exist, or the file is invalid.
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        if let Some(profile) = Profile::by_name(name) {
            return Ok(profile.clone());
        }
        match is_path(name) {
            true => Profile::read(Path::new(name)),
            false => Err(ProfileError::Unknown {
                name: name.to_owned(),
            }),
        }
    }

    /// Reads a profile's file. The name and other texts are leaked, so that they are static like
    /// those of the built-in profiles.
    fn read(path: &Path) -> Result<Profile, ProfileError> {
        let text = std::fs::read_to_string(path).map_err(|source| ProfileError::Read {
            path: path.to_owned(),
            source,
        })?;
        Profile::parse(&text).map_err(|problem| ProfileError::Invalid {
            path: path.to_owned(),
            problem,
        })
    }

    fn parse(text: &str) -> Result<Profile, ProfileProblem> {
        let file: File = toml::from_str(text)?;
        let base = Profile::by_name(&file.base).ok_or_else(|| ProfileProblem::Base {
            base: file.base.clone(),
        })?;
        if Profile::by_name(&file.name).is_some() {
            return Err(ProfileProblem::Name { name: file.name });
        }
        let mut profile = base.clone();
        file.put_numbers(&mut profile);
        profile.name = String::leak(file.name);
        profile.description = match file.description {
            Some(text) => String::leak(text),
            None => "of a file",
        };
        if let Some(firmware) = file.firmware {
            profile.firmware = String::leak(firmware);
        }
        if let Some(bits) = file.device_caps {
            profile.caps = DeviceCaps::from_bits_truncate(bits);
        }
        if let Some(first) = file.rnr_first_us {
            profile.rnr_backoff.first = Duration::from_micros(first);
        }
        if let Some(longest) = file.rnr_longest_us {
            profile.rnr_backoff.longest = Duration::from_micros(longest);
        }
        if let Some(policy) = &file.qpn_reuse {
            profile.qpn_reuse = policy.parse()?;
        }
        file.statuses.put(&mut profile.statuses)?;
        match profile.clone().fit().first() {
            None => Ok(profile),
            Some(problem) => Err(ProfileProblem::Limit(problem.clone())),
        }
    }

    /// The text of a file with all attributes of this profile, based on the built-in profile
    /// `base`. `answers` are other results of a survey.
    pub fn file_text(&self, base: &str, answers: toml::Table) -> String {
        let mut file = File {
            name: self.name.to_owned(),
            base: base.to_owned(),
            description: Some(self.description.to_owned()),
            firmware: Some(self.firmware.to_owned()),
            device_caps: Some(self.caps.bits()),
            qpn_reuse: Some(self.qpn_reuse.to_string()),
            rnr_first_us: Some(self.rnr_backoff.first.as_micros() as u64),
            rnr_longest_us: Some(self.rnr_backoff.longest.as_micros() as u64),
            statuses: StatusCodes::of(&self.statuses),
            answers,
            ..File::default()
        };
        file.take_numbers(self);
        toml::to_string(&file).expect("numbers and texts can be written")
    }

    /// Changes unsupported values to the nearest supported ones. Returns a description of each
    /// change.
    pub fn fit(&mut self) -> Vec<String> {
        let mut changed = Vec::new();
        let mut limit = |name: &str, value: &mut u32, fitting: u32| {
            if *value != fitting {
                changed.push(format!("{name} is {value}, the emulator can do {fitting}"));
                *value = fitting;
            }
        };
        for (name, value) in [
            ("max_sq_wr", &mut self.max_sq_wr),
            ("max_rq_wr", &mut self.max_rq_wr),
            ("max_cqe", &mut self.max_cqe),
            ("max_qp", &mut self.max_qp),
        ] {
            // The largest power of two that is not above the value.
            let fitting = 1 << (*value).clamp(4, 1 << 15).ilog2();
            limit(name, value, fitting);
        }
        for (name, value, least, most) in [
            ("mtu", &mut self.mtu, 256, 9000),
            ("max_sq_sge", &mut self.max_sq_sge, 1, 2),
            ("max_rq_sge", &mut self.max_rq_sge, 1, 3),
            ("max_rdma_sge", &mut self.max_rdma_sge, 0, 1),
            ("inline_size", &mut self.inline_size, 0, 32),
            ("max_mr", &mut self.max_mr, 1, Profile::MAX_MR),
            ("max_ah", &mut self.max_ah, 1, 65535),
            ("max_cq", &mut self.max_cq, 1, 1 << 16),
            ("max_pd", &mut self.max_pd, 1, 1 << 16),
            ("comp_vectors", &mut self.comp_vectors, 1, 256),
        ] {
            let fitting = (*value).clamp(least, most);
            limit(name, value, fitting);
        }
        changed
    }
}

/// Whether a profile's name is the path of a file.
pub fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qpn_policy::QpnPolicy;

    #[test]
    fn every_profile_is_restored_from_its_file() {
        for built_in in Profile::all() {
            let mut profile = built_in.clone();
            assert_eq!(profile.fit(), Vec::<String>::new());
            profile.name = "measured";
            profile.mtu -= 8;
            profile.firmware = "1.2.3.4";
            profile.statuses.wrong_qkey = Status::RemoteAbort;
            profile.qpn_reuse = QpnPolicy::Oldest;
            let base = Profile::all()[0].name;
            let mut answers = toml::Table::new();
            answers.insert("arrival-order".into(), "in order".into());
            let text = profile.file_text(base, answers);
            assert_eq!(Profile::parse(&text).as_ref(), Ok(&profile), "{text}");
        }
    }

    #[test]
    fn a_file_lists_differences_from_its_base() {
        let text = "name = \"x\"\nbase = \"efa1\"\nmtu = 4096\n[statuses]\nunknown_peer = 8\n";
        let profile = Profile::parse(text).unwrap();
        let base = Profile::by_name("efa1").unwrap();
        assert_eq!((profile.mtu, profile.caps), (4096, base.caps));
        assert_eq!(profile.statuses.unknown_peer, Status::RemoteAbort);
        assert_eq!(profile.statuses.wrong_qkey, base.statuses.wrong_qkey);
    }

    #[test]
    fn impossible_values_are_refused_with_their_key() {
        for (line, problem) in [
            ("base = \"efa9\"", "base"),
            ("base = \"efa1\"\nmtus = 1", "mtus"),
            ("base = \"efa1\"\nmtu = 100000", "mtu is 100000"),
            (
                "base = \"efa1\"\nmax_qp = 1000",
                "max_qp is 1000, the emulator can do 512",
            ),
            ("base = \"efa1\"\nqpn_reuse = \"newest\"", "newest"),
            ("base = \"efa1\"\n[statuses]\nwrong_qkey = 0", "wrong_qkey"),
            ("base = \"efa1\"\n[statuses]\nwrong_qkey = 99", "wrong_qkey"),
            ("base = \"efa1\"\n[statuses]\nwrong_key = 9", "wrong_key"),
        ] {
            let error = Profile::parse(&format!("name = \"x\"\n{line}\n")).unwrap_err();
            assert!(error.to_string().contains(problem), "{line}: {error}");
        }
        let error = Profile::parse("name = \"efa1\"\nbase = \"efa1\"").unwrap_err();
        assert!(error.to_string().contains("built-in"), "{error}");
    }

    #[test]
    fn names_and_paths_are_distinguished() {
        assert_eq!(Profile::named("efa3").unwrap().name, "efa3");
        let unknown = Profile::named("efa").unwrap_err().to_string();
        assert!(
            unknown.contains("efa0, efa1") && unknown.contains("TOML"),
            "{unknown}"
        );
        let missing = Profile::named("./none.toml").unwrap_err().to_string();
        assert!(missing.contains("./none.toml"), "{missing}");
    }
}
