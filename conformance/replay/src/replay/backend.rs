//! Where the endpoint under test and the scripted endpoints meet.

use efa_core::address::{Gid, RawAddress};
use efa_core::endpoint::Instant;
use efa_core::nic::NicError;
use efa_device_model::fault::Fault;
use efa_play::application::RequestError;
use efa_play::application::engine::{HostNic, Repetitions};
use efa_play::operation::Remote;
use efa_play::scenario::{EndpointSpec, Scenario};

/// Why a backend cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// There is no device, or it lacks something.
    #[error("{0}")]
    Unfit(String),
    /// The device refused what every device should do.
    #[error("the device refused to {what}: {source}")]
    Nic {
        /// What.
        what: &'static str,
        /// Why.
        source: NicError,
    },
    /// The backend is as it should be; what is under test cannot be opened.
    #[error("the endpoint under test cannot be opened: {0}")]
    Subject(#[from] RequestError),
}

/// An RDMA request on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RdmaSeen {
    /// Whose memory it is about.
    pub gid: Gid,
    /// Where in the memory, and its key.
    pub remote: Remote,
    /// Length in bytes.
    pub length: u64,
    /// It writes; otherwise it reads.
    pub writes: bool,
}

/// The clock of a backend, as the engine takes it.
pub type Clock = Box<dyn FnMut() -> Instant>;

/// Devices and the network between them.
pub trait Backend {
    /// A device.
    type Nic: HostNic;

    /// The name, as `--backend` takes it.
    fn name(&self) -> &'static str;

    /// Forgets everything: another replay begins.
    fn reset(&mut self);

    /// Opens a device for an endpoint of the scenario.
    fn open(&mut self, endpoint: &EndpointSpec) -> Result<Self::Nic, BackendError>;

    /// Opens another device with the GID of `first`, which was opened for the same endpoint.
    fn open_beside(&mut self, first: &Self::Nic) -> Result<Self::Nic, BackendError>;

    /// Arms `faults` until the next reset. The endpoints that they name are open, at `addresses`.
    /// Returns what the backend lacks for them, in words.
    fn arm_faults(
        &mut self,
        faults: &[Fault],
        addresses: &[(&str, RawAddress)],
    ) -> Result<Option<String>, BackendError>;

    /// The armed faults that have not been applied, as far as that is known.
    fn unapplied(&self) -> Vec<String> {
        Vec::new()
    }

    /// Counts the packets that have come twice in the present replay, if a fault lets them.
    fn repetitions(&self) -> Option<Repetitions> {
        None
    }

    /// The time.
    fn clock(&self) -> Clock;

    /// Nobody has anything to do: lets time pass until something may have happened, or until
    /// `timeout`. `rounds` counts the calls since something last happened. Returns `false` if
    /// waiting any longer is pointless.
    fn idle(&mut self, rounds: u32, timeout: Option<Instant>) -> bool;

    /// After so many calls of [`Self::idle`] in which nothing came, nothing is under way any more
    /// that nobody waits for.
    fn quiet_rounds(&self) -> u32;

    /// The next replay is captured, if that costs next to nothing; [`Self::take_capture`] ends it.
    fn capture_next(&mut self) {}

    /// The next replay is captured, if that is possible at all.
    fn capture_next_at_any_cost(&mut self) {
        self.capture_next();
    }

    /// The capture of the last replay, as pcapng.
    fn take_capture(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Whether [`Self::rdma_requests`] knows of all requests.
    fn sees_rdma(&self) -> bool {
        false
    }

    /// Takes the RDMA requests that the device with this GID has made since the last call, if they
    /// can be seen.
    fn rdma_requests(&mut self, gid: Gid) -> Vec<RdmaSeen> {
        let _ = gid;
        Vec::new()
    }
}

/// Arms the faults of a scenario whose endpoints are at these addresses. Returns what the backend
/// lacks.
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
