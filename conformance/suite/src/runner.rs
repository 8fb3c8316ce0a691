//! Runs traces in order, on the selected backends.

use std::path::Path;

use efa_replay::replay::backend::BackendError;
use efa_replay::replay::coverage;
use efa_replay::replay::emu::Emu;
use efa_replay::replay::hw::Hw;
use efa_replay::replay::program_opener::ProgramOpener;
use efa_replay::synthetic;
use efa_replay::tagged::{TagTrace, Verbs};
use serde::{Deserialize, Serialize};

use super::each_event::Changes;
use super::{Case, Options, TraceResult, run_engine, run_trace, tagged};

/// The implementation under test, and the backends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Run in the deterministic emulator of this process.
    pub emu: bool,
    /// Run on verbs.
    pub hw: bool,
    /// The program under test, on verbs only; `None` is the engine.
    pub outside: Option<ProgramOpener>,
    /// The name in results of the implementation under test.
    pub dut: String,
    /// How each case is run.
    pub options: Options,
}

/// Runs traces.
pub struct Runner {
    settings: Settings,
    emu: Option<Emu>,
    /// The backend, or the error on a machine whose devices are only for traces of tag matching.
    hw: Option<Result<Hw, BackendError>>,
}

impl Runner {
    /// Opens the backends.
    ///
    /// # Errors
    /// [`BackendError::Unfit`] if there is no device for the verbs.
    pub fn open(settings: Settings) -> Result<Self, BackendError> {
        let hw = match settings.hw.then(Hw::open_device) {
            Some(Err(error)) if Verbs::open().is_err() => return Err(error),
            hw => hw,
        };
        Ok(Runner {
            emu: settings.emu.then(Emu::orderly),
            hw,
            settings,
        })
    }

    /// Runs a trace of tag matching on each backend.
    fn run_tagged(&mut self, path: &Path) -> TraceResult {
        let trace = match TagTrace::load(path) {
            Ok(trace) => trace,
            Err(error) => return TraceResult::unfit(error.to_string()),
        };
        let options = &self.settings.options;
        let emu = self.emu.as_mut();
        let emu = emu.map(|emu| tagged::run_in_simulator(path, &trace, emu, options));
        let hw = self.hw.as_ref();
        let hw = hw.map(|_| tagged::run_over_verbs(path, &trace, options));
        TraceResult {
            cases: emu.into_iter().chain(hw).collect(),
            unfit: Vec::new(),
        }
    }

    /// Runs a trace on each backend, each endpoint in turn under test.
    pub fn run(&mut self, path: &Path) -> TraceResult {
        if TagTrace::is_one(path) {
            return self.run_tagged(path);
        }
        let trace = match synthetic::load(path) {
            Ok(trace) => trace,
            Err(error) => return TraceResult::unfit(error.to_string()),
        };
        let mut ended = TraceResult::default();
        let mut add = |result: Result<Vec<Case>, BackendError>| match result {
            Ok(cases) => ended.cases.extend(cases),
            Err(error) => ended.unfit.push(format!("{}: {error}", path.display())),
        };
        let Settings {
            outside,
            dut,
            options,
            ..
        } = &mut self.settings;
        if let Some(backend) = &mut self.emu {
            add(run_engine(&trace, backend, options));
        }
        if let Some(Err(error)) = &self.hw {
            add(Err(BackendError::Unfit(error.to_string())));
        } else if let Some(Ok(backend)) = &mut self.hw {
            // Seeds only have an effect in the emulated network.
            let options = Options {
                seeds: 0,
                each_event: Changes::default(),
                ..options.clone()
            };
            add(match outside {
                Some(outside) => {
                    let beyond = coverage::beyond_script(&trace);
                    run_trace(&trace, backend, dut, outside, beyond, &options)
                }
                None => run_engine(&trace, backend, &options),
            });
        }
        ended
    }
}
