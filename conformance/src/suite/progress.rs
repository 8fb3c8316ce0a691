//! What a person sees while a corpus runs: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Case;
use crate::cli::say;

/// Shows cases as they end.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// For `traces` runs of a trace. The bar goes to standard error, results to standard output.
    pub fn new(traces: usize) -> Self {
        let bar = ProgressBar::with_draw_target(
            Some(traces as u64),
            ProgressDrawTarget::stderr_with_hz(10),
        );
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Progress { bar }
    }

    /// A trace begins.
    pub fn begin(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// A trace ended with these cases.
    pub fn end(&self, cases: &[Case]) {
        self.bar.suspend(|| {
            for case in cases {
                say(case);
            }
        });
        self.bar.inc(1);
    }

    /// Everything ended.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
