//! The circumstances of a run, for its reports.

use std::collections::BTreeMap;
use std::env;
use std::time::{Instant, SystemTime};

use efa_core::wire::PROTOCOL_VERSION;
use efa_play::drive;
use efa_play::player::join;
use efa_suite::json::RunReport;

/// The start of a run.
pub(crate) struct RunStart {
    date: SystemTime,
    begin: Instant,
}

impl RunStart {
    /// Starts a run now.
    pub(crate) fn now() -> Self {
        RunStart {
            date: SystemTime::now(),
            begin: Instant::now(),
        }
    }

    /// The description of a run that ends now, for the reports.
    pub(crate) fn report(&self) -> RunReport {
        let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let versions = [
            ("efa-conformance", env!("CARGO_PKG_VERSION").to_owned()),
            ("EFA RDM protocol", PROTOCOL_VERSION.to_string()),
            ("driver protocol", drive::VERSION.to_string()),
            (
                "kernel",
                format!("{} {}", text(system.release()), text(system.machine())),
            ),
        ];
        let versions = versions.map(|(name, version)| (name.to_owned(), version));
        RunReport {
            started: humantime::format_rfc3339_seconds(self.date).to_string(),
            seconds: self.begin.elapsed().as_secs_f64(),
            host: text(system.nodename()),
            command: join(&words.collect::<Vec<_>>()),
            // A directory that was removed has no path.
            directory: env::current_dir().unwrap_or_default(),
            versions: BTreeMap::from(versions),
        }
    }
}
