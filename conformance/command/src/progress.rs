//! The progress of a long run: a bar on a terminal, plain lines elsewhere.

use std::fmt::Display;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::outcome::say;

/// Shows results as they arrive.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Progress of `steps` steps. The bar is printed to standard error, results to standard output.
    pub(crate) fn new(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(
            Some(steps as u64),
            ProgressDrawTarget::stderr_with_hz(10),
        );
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Progress { bar }
    }

    /// A step begins.
    pub(crate) fn begin(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// The step ended with these results.
    pub(crate) fn end(&self, results: &[impl Display]) {
        self.bar.suspend(|| {
            for result in results {
                say(result);
            }
        });
        self.bar.inc(1);
    }

    /// All steps ended.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
