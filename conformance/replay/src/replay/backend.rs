//! The devices and the network between the endpoint under test and the scripted endpoints.

use efa_core::address::{Gid, RawAddress};
use efa_core::endpoint::Instant;
use efa_core::nic::NicError;
use efa_device_model::fault::Fault;
use efa_play::application::RequestError;
use efa_play::application::engine::{HostNic, Repetitions};
use efa_play::operation::Remote;
use efa_play::scenario::{EndpointSpec, Scenario};

/// The reason why a backend cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// What the machine lacks, with the remedy.
    #[error("{0}")]
    Unfit(String),
    /// A device of the backend refused a call that every replay needs.
    #[error("the device refused to {what}: {source}")]
    Nic {
        /// The request.
        what: &'static str,
        /// The device's reason.
        source: NicError,
    },
    /// The backend works, but the implementation under test cannot be opened.
    #[error("the endpoint under test cannot be opened: {0}")]
    Subject(#[from] RequestError),
}

/// An RDMA request in the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaSeen {
    /// The owner of the memory.
    pub gid: Gid,
    pub(crate) remote: Remote,
    /// Length in bytes.
    pub length: u64,
    /// Whether it writes; otherwise it reads.
    pub writes: bool,
}

/// The clock of a backend, for the engine.
pub type Clock = Box<dyn FnMut() -> Instant>;

/// Devices and the network between them.
pub trait Backend {
    /// The device of an endpoint.
    type Nic: HostNic;

    /// The name, as in `--backend`.
    fn name(&self) -> &'static str;

    /// Starts another replay with a new state.
    fn reset(&mut self);

    /// Opens a device for an endpoint of the scenario.
    fn open(&mut self, endpoint: &EndpointSpec) -> Result<Self::Nic, BackendError>;

    /// Opens another device with the GID of `first`, which was opened for the same endpoint.
    fn open_beside(&mut self, first: &Self::Nic) -> Result<Self::Nic, BackendError>;

    /// Arms `faults` until the next reset. The endpoints in them are open, at `addresses`. Returns
    /// the features that the backend lacks for them, as text.
    fn arm_faults(
        &mut self,
        faults: &[Fault],
        addresses: &[(&str, RawAddress)],
    ) -> Result<Option<String>, BackendError>;

    /// The armed faults that have not been applied, if known.
    fn unapplied(&self) -> Vec<String> {
        Vec::new()
    }

    /// Counts duplicate packets in the current replay, if a fault allows them.
    fn repetitions(&self) -> Option<Repetitions> {
        None
    }

    /// The backend's clock.
    fn clock(&self) -> Clock;

    /// Called when there is nothing to do: lets time pass until an event or until `timeout`.
    /// `rounds` counts the calls since the last event. Returns `false` if further waiting is
    /// useless.
    fn idle(&mut self, rounds: u32, timeout: Option<Instant>) -> bool;

    /// The number of calls of [`Self::idle`] without an event after which no packets are in the
    /// network any more.
    fn quiet_rounds(&self) -> u32;

    /// Captures the next replay, if that is cheap; [`Self::take_capture`] ends it.
    fn capture_next(&mut self) {}

    /// Captures the next replay, if that is possible at all.
    fn capture_next_at_any_cost(&mut self) {
        self.capture_next();
    }

    /// The capture of the last replay, as pcapng.
    fn take_capture(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Whether [`Self::rdma_requests`] returns all requests.
    fn sees_rdma(&self) -> bool {
        false
    }

    /// Removes and returns the RDMA requests of the device with this GID since the last call, if
    /// they are visible.
    fn rdma_requests(&mut self, gid: Gid) -> Vec<RdmaSeen> {
        let _ = gid;
        Vec::new()
    }
}

/// Arms the faults of a scenario for endpoints with these addresses. Returns the features that the
/// backend lacks.
pub(super) fn arm_faults<B: Backend>(
    backend: &mut B,
    scenario: &Scenario,
    addresses: &[RawAddress],
) -> Result<Option<String>, BackendError> {
    if scenario.faults.is_empty() {
        return Ok(None);
    }
    let names = scenario.endpoints.iter().map(|endpoint| &endpoint.name[..]);
    let places: Vec<_> = names.zip(addresses.iter().copied()).collect();
    backend.arm_faults(&scenario.faults, &places)
}
