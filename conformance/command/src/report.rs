//! `report`: one page of several runs, with the differences if there are two.

use std::path::PathBuf;

use efa_suite::changes::Changes;
use efa_suite::html;
use efa_suite::json::Report;

use crate::outcome::{Outcome, complain, say};

/// Arguments of `report`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Results of runs, as `run --json` writes them.
    #[arg(required = true, value_name = "FILE")]
    results: Vec<PathBuf>,
    /// The page to write.
    #[arg(long, value_name = "FILE", value_parser = crate::outcome::report_file())]
    html: PathBuf,
}

pub(crate) fn report(arguments: &Arguments) -> Outcome {
    let reports: Result<Vec<Report>, _> = arguments
        .results
        .iter()
        .map(|path| Report::read(path))
        .collect();
    let reports = match reports {
        Ok(reports) => reports,
        Err(problem) => return complain(problem, Outcome::Unfit),
    };
    if let [before, after] = &reports[..] {
        say(Changes::between(before, after));
    }
    match html::write(&reports, &arguments.html) {
        Ok(()) => Outcome::Passed,
        Err(error) => complain(
            format_args!("cannot write {}: {error}", arguments.html.display()),
            Outcome::Unfit,
        ),
    }
}
