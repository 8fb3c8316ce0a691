//! How the endpoint under test is opened.

use efa_core::endpoint::EndpointConfig;
use efa_play::application::Report;
use efa_play::application::checked::{CheckedApplication, LocalApplication};
use efa_play::application::engine::{CoreApplication, configuration};
use efa_play::scenario::{Capability, EndpointSpec};

use super::backend::{Backend, BackendError};

/// How the endpoint under test is opened.
pub trait Opener<B: Backend> {
    /// Opens it as `endpoint`.
    fn open(
        &mut self,
        backend: &mut B,
        endpoint: &EndpointSpec,
    ) -> Result<Box<dyn CheckedApplication>, BackendError>;
}

/// Opens the protocol engine in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Engine {
    /// Seed of the engine's random choices.
    pub seed: u64,
    /// Replaces each report to the application, for tests of what is detected.
    pub report_fault: Option<fn(Report) -> Vec<Report>>,
}

impl<B: Backend> Opener<B> for Engine
where
    B::Nic: 'static,
{
    fn open(
        &mut self,
        backend: &mut B,
        endpoint: &EndpointSpec,
    ) -> Result<Box<dyn CheckedApplication>, BackendError> {
        let config = EndpointConfig {
            seed: self.seed,
            ..configuration(&endpoint.settings)
        };
        let application = CoreApplication::open(
            backend.open(endpoint)?,
            config,
            endpoint.has(Capability::Source),
            backend.clock(),
        );
        let application = application?.meeting_second_copies(backend.repetitions());
        let application = LocalApplication::new(Box::new(application));
        Ok(Box::new(application.with_report_fault(self.report_fault)))
    }
}
