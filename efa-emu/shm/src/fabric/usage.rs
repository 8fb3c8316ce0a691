//! The progress of a run's programs with its devices.
//!
//! `efa-emu run` cannot observe its programs, some of which end within milliseconds. They leave
//! marks in the run's directory: a file for each [`UsageStep`], with a line for each process that
//! reached it. A process marks a step once; the message path leaves no marks.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The environment variable that names the directory of the marks.
pub const ENVIRONMENT: &str = "EFA_EMU_USAGE";

/// The approximate maximum length of a file of marks. Only the first lines are needed.
const LONGEST: u64 = 64 << 10;

/// A step on the way to messages over the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum UsageStep {
    /// The libraries of the device were loaded.
    Loaded,
    /// A program requested the list of devices.
    Listed,
    /// A queue pair was made.
    QueuePair,
    /// Data was sent to a process.
    Sent,
    /// The device was opened on a fabric in which the run is not.
    ApartFromRun,
    /// Another `efa-emu run` was started, whose programs use separate devices.
    RunInside,
}

impl UsageStep {
    const fn file_name(self) -> &'static str {
        match self {
            UsageStep::Loaded => "loaded",
            UsageStep::Listed => "listed",
            UsageStep::QueuePair => "queue-pair",
            UsageStep::Sent => "sent",
            UsageStep::ApartFromRun => "apart-from-run",
            UsageStep::RunInside => "run-inside",
        }
    }
}

/// A process that reached a step, in its state at that time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number, in its pid namespace.
    pub pid: u32,
    /// The file name of its first word, which is the program's name also if the dynamic linker was
    /// executed with the program as its argument.
    pub name: String,
    /// The file that was executed, if its path is text.
    pub executable: PathBuf,
}

impl Process {
    fn current() -> Process {
        let first_word = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&first_word).file_name().unwrap_or_default();
        Process {
            pid: std::process::id(),
            name: name.to_string_lossy().into_owned(),
            executable: std::env::current_exe().unwrap_or_default(),
        }
    }

    /// The line that [`Process::parse`] reads. Tabs and ends of lines within a value become spaces.
    fn line(&self) -> String {
        let plain = |text: &str| text.replace(['\t', '\n'], " ");
        format!(
            "{}\t{}\t{}\n",
            self.pid,
            plain(&self.name),
            plain(self.executable.to_str().unwrap_or_default())
        )
    }

    fn parse(line: &str) -> Option<Process> {
        let mut values = line.splitn(3, '\t');
        Some(Process {
            pid: values.next()?.parse().ok()?,
            name: values.next()?.to_owned(),
            executable: values.next()?.into(),
        })
    }
}

/// The directory of the marks, as the environment named it when the library was loaded. The program
/// may change its environment later, in another thread.
static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();

fn directory_in_environment() -> Option<PathBuf> {
    let directory = std::env::var_os(ENVIRONMENT)?;
    (!directory.is_empty()).then(|| directory.into())
}

/// Marks that this process loaded the libraries. Only after this call, which belongs before the
/// program's first instruction, [`mark`] does anything.
pub fn begin() {
    DIRECTORY.get_or_init(directory_in_environment);
    mark(UsageStep::Loaded);
}

/// Marks that this process reached a step, if a run has requested it and this is the first time.
#[cold]
pub fn mark(step: UsageStep) {
    static MARKED: AtomicU32 = AtomicU32::new(0);
    let Some(Some(directory)) = DIRECTORY.get() else {
        return;
    };
    let bit = 1 << step as u32;
    if MARKED.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        append(directory, step);
    }
}

/// Reports to the run that started the caller, if any, that the caller is itself a run.
pub fn mark_run_inside() {
    if let Some(directory) = directory_in_environment() {
        append(&directory, UsageStep::RunInside);
    }
}

/// A failure to leave a mark is not an error of the program: the run may have ended, or the disk
/// may be full.
fn append(directory: &Path, step: UsageStep) {
    let file = File::options()
        .append(true)
        .create(true)
        .open(directory.join(step.file_name()));
    if let Ok(mut file) = file
        && file.metadata().is_ok_and(|file| file.len() < LONGEST)
    {
        // One call, so that lines of several processes are not interleaved.
        let _ = file.write_all(Process::current().line().as_bytes());
    }
}

/// The processes that reached a step, according to the marks in a directory.
pub fn processes(directory: &Path, step: UsageStep) -> Vec<Process> {
    let marks = fs::read(directory.join(step.file_name())).unwrap_or_default();
    String::from_utf8_lossy(&marks)
        .lines()
        .filter_map(Process::parse)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_made() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(processes(directory.path(), UsageStep::QueuePair), []);
        append(directory.path(), UsageStep::QueuePair);
        append(directory.path(), UsageStep::QueuePair);
        let found = processes(directory.path(), UsageStep::QueuePair);
        assert_eq!(found, [Process::current(), Process::current()]);
        assert_eq!(processes(directory.path(), UsageStep::Listed), []);
    }

    #[test]
    fn odd_values_stay_on_their_line() {
        let odd = Process {
            pid: 7,
            name: "a\tb\n".into(),
            executable: "/b/a\tb".into(),
        };
        assert_eq!(odd.line(), "7\ta b \t/b/a b\n");
        let read = Process {
            pid: 7,
            name: "a b ".into(),
            executable: "/b/a b".into(),
        };
        assert_eq!(Process::parse("7\ta b \t/b/a b"), Some(read));
        assert_eq!(Process::parse("seven\ta\t"), None);
        assert_eq!(Process::parse("7\ta"), None);
    }

    #[test]
    fn the_marks_file_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(UsageStep::Loaded.file_name());
        fs::write(&file, vec![b'\n'; LONGEST as usize]).unwrap();
        append(directory.path(), UsageStep::Loaded);
        assert_eq!(fs::metadata(&file).unwrap().len(), LONGEST);
    }
}
