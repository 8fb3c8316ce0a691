//! `efa-emu run --pcap`: records the frames of the processes of one run.

use std::path::{Path, PathBuf};

use efa_capture::Interface;
use efa_shm::{CaptureScope, Host};

use super::recorded_device::RecordedDevice;
use efa_commands::Failure;
use efa_options::capture_output::{CaptureOptions, RecordingTotals, Store};

/// A run that is recorded.
pub(crate) struct RunRecording<'a> {
    path: PathBuf,
    devices: Vec<(&'a Host, RecordedDevice)>,
    store: Store,
    /// The reason why the recording ended before the run.
    failure: Option<Failure>,
}

impl<'a> RunRecording<'a> {
    /// Begins to record the devices of a run's hosts, which have this profile, before its program
    /// starts.
    pub(crate) fn begin(
        path: &Path,
        options: &CaptureOptions,
        profile: &str,
        devices: impl Iterator<Item = &'a Host>,
    ) -> Result<RunRecording<'a>, Failure> {
        let mut store = Store::create(path, options)?;
        let devices = devices.map(|device| {
            let interface = Interface::new(device.name().to_string(), profile, device.gid());
            let id = store.declare(&interface).map_err(|error| {
                Failure(format!(
                    "cannot write the capture {}: {error}",
                    path.display()
                ))
            })?;
            let recorded_device =
                RecordedDevice::begin(device, CaptureScope::Run, interface, id, options.snaplen())?;
            Ok((device, recorded_device))
        });
        Ok(RunRecording {
            path: path.to_owned(),
            devices: devices.collect::<Result<_, Failure>>()?,
            store,
            failure: None,
        })
    }

    /// Moves the frames recorded since the last call. Errors are reported at the end.
    pub(crate) fn turn(&mut self) {
        if self.failure.is_none() {
            self.failure = self.try_turn().err();
        }
    }

    fn try_turn(&mut self) -> Result<(), Failure> {
        for (device, recorded_device) in &mut self.devices {
            recorded_device.turn(device, &mut self.store)?;
        }
        Ok(self.store.turn()?)
    }

    /// Ends the recording. Returns the lines to print.
    pub(crate) fn end(self) -> Vec<String> {
        let path = self.path.display();
        let ended = match self.failure {
            Some(failure) => Err(failure),
            None => finish(self.devices, self.store),
        };
        match ended {
            Ok(written) => {
                let nothing = written.nothing_to_judge();
                let reason = nothing.map(|reason| format!("{path}: {reason}"));
                reason
                    .into_iter()
                    .chain([format!("{path}: {written}")])
                    .collect()
            }
            Err(Failure(reason)) => vec![format!("{path} is not complete: {reason}")],
        }
    }
}

fn finish(
    devices: Vec<(&Host, RecordedDevice)>,
    mut store: Store,
) -> Result<RecordingTotals, Failure> {
    for (_, recorded_device) in devices {
        recorded_device.finish(&mut store)?;
    }
    Ok(store.finish()?)
}
