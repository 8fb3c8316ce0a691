//! Verbs as a backend: a real EFA device, or another device with the same ABI.

use std::time::Duration;

use efa_core::address::RawAddress;
use efa_core::endpoint::Instant;
use efa_device_model::fault::Fault;
use efa_hw::{DeviceName, HwDevice, HwNic, NicConfig};
use efa_play::scenario::EndpointSpec;

use super::armed_faults::ArmedFaults;
use super::backend::{Backend, BackendError, Clock};
use super::recording::Recording;

/// All endpoints on one device of this host, which transports their packets.
pub struct Hw {
    device: HwDevice,
    start: std::time::Instant,
    captures_next: bool,
    recording: Option<Recording>,
    armed: Option<ArmedFaults>,
}

/// Sleep time when idle, and the number of sleeps before giving up: two seconds in total.
const IDLE_SLEEP: Duration = Duration::from_micros(100);
const IDLE_ROUNDS: u32 = 20_000;
/// Ten milliseconds: a packet needs microseconds, but the process under test may have to be
/// scheduled.
pub(crate) const QUIET_ROUNDS: u32 = 200;

/// Lets time pass. `rounds` counts the calls since the last event. Returns whether further waiting
/// is useful.
pub(crate) fn wait(rounds: u32) -> bool {
    if rounds > 100 {
        std::thread::sleep(IDLE_SLEEP);
    } else {
        std::thread::yield_now();
    }
    rounds < IDLE_ROUNDS
}

impl Hw {
    /// Opens the first EFA device.
    pub fn open_device() -> Result<Self, BackendError> {
        let device = HwDevice::open(&DeviceName::First).map_err(|error| {
            BackendError::Unfit(format!(
                "no device for the hw backend: {error}; without EFA hardware run `efa-emu run \
                     -- efa-conformance run --backend hw`"
            ))
        })?;
        Ok(Hw {
            device,
            start: std::time::Instant::now(),
            captures_next: false,
            recording: None,
            armed: None,
        })
    }

    /// Creates a queue pair. All have the GID of the device.
    fn open_nic(&self) -> Result<HwNic, BackendError> {
        self.device
            .open_nic(NicConfig::default())
            .map_err(|error| BackendError::Unfit(error.to_string()))
    }
}

impl Backend for Hw {
    type Nic = HwNic;

    fn name(&self) -> &'static str {
        "hw"
    }

    fn reset(&mut self) {
        self.recording = None;
        self.armed = None;
        if std::mem::take(&mut self.captures_next) {
            self.recording = Recording::begin();
        }
    }

    fn open(&mut self, _endpoint: &EndpointSpec) -> Result<HwNic, BackendError> {
        self.open_nic()
    }

    fn open_beside(&mut self, _first: &HwNic) -> Result<HwNic, BackendError> {
        self.open_nic()
    }

    fn arm_faults(
        &mut self,
        faults: &[Fault],
        addresses: &[(&str, RawAddress)],
    ) -> Result<Option<String>, BackendError> {
        match ArmedFaults::arm(faults, addresses) {
            Ok(armed) => {
                self.armed = Some(armed);
                Ok(None)
            }
            Err(lack) => Ok(Some(lack.to_string())),
        }
    }

    fn unapplied(&self) -> Vec<String> {
        self.armed
            .as_ref()
            .map_or(Vec::new(), ArmedFaults::unapplied)
    }

    fn clock(&self) -> Clock {
        let start = self.start;
        Box::new(move || Instant(start.elapsed()))
    }

    fn idle(&mut self, rounds: u32, _timeout: Option<Instant>) -> bool {
        wait(rounds)
    }

    fn quiet_rounds(&self) -> u32 {
        QUIET_ROUNDS
    }

    /// It starts a process.
    fn capture_next_at_any_cost(&mut self) {
        self.captures_next = true;
    }

    fn take_capture(&mut self) -> Option<Vec<u8>> {
        self.recording.take()?.end()
    }
}
