//! Two hosts behind a remote shell, on which cells run their programs instead of on emulated hosts.

use std::collections::BTreeMap;

use super::not_measured::NotMeasured;
use efa_device_model::profile::Profile;
use efa_play::player::{Description, HostDevice, PlaceError, Recording, RemoteAccess};

/// The names of the initiating host and of the other one in cells.
const NAMES: [[&str; 2]; 2] = [["a", "client"], ["b", "server"]];

/// Two hosts. Each has separate software and a separate device.
#[derive(Clone, Debug)]
pub struct Hosts {
    reach: RemoteAccess,
    described: [DescribedHost; 2],
}

/// A host and its properties.
#[derive(Clone, Debug)]
pub(crate) struct DescribedHost {
    place: HostDevice,
    description: Description,
    /// How packets are captured there, if possible.
    recording: Option<Recording>,
}

/// The reason why a host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// The place contains a device.
    #[error("{0}: stock programs take the first EFA device of a host: name the host alone")]
    Device(HostDevice),
    /// The host cannot be reached, or has no device.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

impl Hosts {
    /// The hosts of the sides `a` and `b`, which are queried for their versions and devices.
    ///
    /// # Errors
    /// A host cannot be used; the error has its name and the remedy.
    pub fn ask(
        reach: RemoteAccess,
        places: [HostDevice; 2],
        recording: Option<&Recording>,
    ) -> Result<Self, HostsError> {
        let host = |place: HostDevice| {
            if place.device.is_some() {
                return Err(HostsError::Device(place));
            }
            let description = reach.inspect(&place)?;
            let can_record = description.no_recorder.is_none();
            let recording = recording.filter(|how| can_record || matches!(how, Recording::By(_)));
            Ok(DescribedHost {
                place,
                description,
                recording: recording.cloned(),
            })
        };
        let [a, b] = places;
        let described = [host(a)?, host(b)?];
        Ok(Hosts { reach, described })
    }

    pub(crate) fn reach(&self) -> &RemoteAccess {
        &self.reach
    }

    /// The real host for the emulated one called `name` in cells.
    pub(crate) fn described_host(&self, name: &str) -> Result<&DescribedHost, NotMeasured> {
        let at = NAMES.iter().position(|names| names.contains(&name));
        at.map(|at| &self.described[at]).ok_or_else(|| {
            let reason = format!("there are two hosts, and none for the emulated host `{name}`");
            NotMeasured::Skipped(reason)
        })
    }

    pub(crate) fn names(&self) -> BTreeMap<String, String> {
        let described = NAMES.iter().zip(&self.described);
        let names = described.map(|([side, _], host)| ((*side).to_owned(), host.place.to_string()));
        names.collect()
    }
}

impl DescribedHost {
    pub(crate) fn place(&self) -> &HostDevice {
        &self.place
    }

    /// How a program's packets are captured here, if possible.
    pub(crate) fn recording(&self) -> Option<Recording> {
        self.recording.clone()
    }

    /// The address for programs of the other host.
    pub(crate) fn address(&self) -> String {
        self.description.address.to_string()
    }

    /// The part id of the device that programs use.
    pub(crate) fn part_id(&self) -> Option<u32> {
        self.description.parts.values().next().copied()
    }

    /// Checks that the device is of this generation, unless it is the default one: cells without a
    /// generation run on any.
    pub(crate) fn must_be(&self, profile: &str) -> Result<(), NotMeasured> {
        let wanted = match Profile::named(profile) {
            Ok(wanted) if profile != Profile::DEFAULT => wanted.part_id,
            _ => return Ok(()),
        };
        let host = &self.place.host;
        match self.part_id() {
            Some(part) if part == wanted => Ok(()),
            part => Err(NotMeasured::Skipped(format!(
                "this takes a device with part id {wanted:#06x} ({profile}), and {host} has {:#06x}",
                part.unwrap_or_default()
            ))),
        }
    }
}
