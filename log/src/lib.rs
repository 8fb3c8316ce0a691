//! `EFA_LOG`: shows the decisions of the engine, the device and the link, in every program that
//! loads a library of this workspace. `docs/logging.md` is the guide.
//!
//! | variable | meaning |
//! |---|---|
//! | `EFA_LOG` | the events to show: the directives of `tracing-subscriber`'s `EnvFilter`, such as `efa_core=debug` |
//! | `EFA_LOG_FILE` | a file to which lines are appended, instead of standard error |
//!
//! Each line has the time, the process, the level, the module and the fields, and is one call of
//! `write`, so that the lines of several processes do not mix.
//!
//! The libraries only emit `tracing` events. A program that has a subscriber of its own does not
//! need this package.
//!
//! ```
//! // Does nothing unless `EFA_LOG` is set.
//! efa_log::init();
//! ```

use std::env;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The variable with the directives.
const FILTER: &str = "EFA_LOG";
/// The variable with the output file.
const FILE: &str = "EFA_LOG_FILE";

/// An invalid variable.
#[derive(Debug, thiserror::Error)]
enum SettingError {
    #[error(
        "{FILTER}: invalid directive `{}`: use a level (error, warn, info, debug, trace) or \
         MODULE=LEVEL, such as {FILTER}=efa_core=debug",
        directive.escape_debug()
    )]
    Directive { directive: String },
    #[error("{FILE}: cannot open `{}`: {source}; name a file that can be written", path.display())]
    Open { path: PathBuf, source: io::Error },
}

/// Shows the events that `EFA_LOG` selects from now on. Does nothing if the variable is not set or
/// empty, if this was called before, or if the program has a `tracing` subscriber. An invalid
/// variable is reported in one line on standard error, and no events are shown.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(directives) = env::var_os(FILTER).filter(|value| !value.is_empty()) else {
            return;
        };
        let path = env::var_os(FILE);
        let opened = filter(&directives.to_string_lossy())
            .and_then(|filter| Ok((filter, Output::open(path.as_deref().map(Path::new))?)));
        match opened {
            Ok((filter, output)) => show(filter, output),
            Err(reason) => {
                let _ = (&Output::StandardError).write_all(format!("efa: {reason}\n").as_bytes());
            }
        }
    });
}

fn show(filter: EnvFilter, output: Output) {
    let output: &'static Output = Box::leak(Box::new(output));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(TimeAndProcess)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_writer(move || output)
        .finish();
    // An error means that the program shows the events itself.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Parses directives one by one, so that the error names the invalid one.
fn filter(directives: &str) -> Result<EnvFilter, SettingError> {
    let mut filter = EnvFilter::default();
    for text in directives.split(',').filter(|text| !text.is_empty()) {
        let directive: Directive = text.trim().parse().map_err(|_| SettingError::Directive {
            directive: text.to_owned(),
        })?;
        filter = filter.add_directive(directive);
    }
    Ok(filter)
}

/// The time and the process id, which differs in a forked child.
struct TimeAndProcess;

impl FormatTime for TimeAndProcess {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        SystemTime.format_time(writer)?;
        write!(writer, " {}", std::process::id())
    }
}

/// The destination of lines. It has no lock, because a forked child could find it locked.
enum Output {
    StandardError,
    File(File),
}

impl Output {
    fn open(path: Option<&Path>) -> Result<Output, SettingError> {
        let Some(path) = path else {
            return Ok(Output::StandardError);
        };
        let opened = File::options().create(true).append(true).open(path);
        opened
            .map(Output::File)
            .map_err(|source| SettingError::Open {
                path: path.to_owned(),
                source,
            })
    }
}

impl Write for &Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Output::StandardError => Ok(rustix::io::write(rustix::stdio::stderr(), line)?),
            Output::File(file) => (&*file).write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
