//! The `tracing` events of a scenario, as lines.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt;

/// The output of a subscriber.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The events that this thread emitted in a scenario, one a line.
pub struct Events(String);

impl Events {
    /// Runs a scenario.
    pub fn of(scenario: impl FnOnce()) -> Events {
        let output = Output::default();
        let written = output.clone();
        let subscriber = fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .without_time()
            .with_writer(move || output.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, scenario);
        let bytes = written.0.lock().unwrap_or_else(PoisonError::into_inner);
        Events(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The lines that contain all of these texts.
    pub fn with(&self, texts: &[&str]) -> Vec<&str> {
        let has_all = |line: &&str| texts.iter().all(|text| line.contains(text));
        self.0.lines().map(str::trim).filter(has_all).collect()
    }

    /// Checks that exactly one line contains all of these texts.
    ///
    /// # Panics
    /// Otherwise, with all lines.
    #[track_caller]
    pub fn once(&self, texts: &[&str]) {
        assert_eq!(self.with(texts).len(), 1, "{texts:?} in {}", self.0);
    }
}
