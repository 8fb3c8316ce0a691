//! Two hosts that a remote shell reaches, on which cells run their programs in place of emulated
//! ones.

use std::collections::BTreeMap;

use super::unmet::Unmet;
use efa_device_model::profile::Profile;
use efa_play::player::{Description, HostDevice, PlaceError, Reach, Recording};

/// The names that cells have for the host of the side that starts, and for the other one.
const NAMES: [[&str; 2]; 2] = [["a", "client"], ["b", "server"]];

/// Two hosts. Each has its own software, and its own device.
#[derive(Clone, Debug)]
pub struct Hosts {
    reach: Reach,
    seats: [Seat; 2],
}

/// A host, and what it says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    place: HostDevice,
    description: Description,
    /// How packets are recorded there, if they can be.
    recording: Option<Recording>,
}

/// Nothing can be run on a host.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// The place names a device.
    #[error("{0}: stock programs take the first EFA device of a host: name the host alone")]
    Device(HostDevice),
    /// The host cannot be reached, or lacks something.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

impl Hosts {
    /// The hosts of the sides `a` and `b`, which are asked for their versions and devices.
    ///
    /// # Errors
    /// Why nothing can be run there, with the host and the remedy.
    pub fn ask(
        reach: Reach,
        places: [HostDevice; 2],
        recording: Option<&Recording>,
    ) -> Result<Self, HostsError> {
        let seat = |place: HostDevice| {
            if place.device.is_some() {
                return Err(HostsError::Device(place));
            }
            let description = reach.inspect(&place)?;
            let can_record = description.no_recorder.is_none();
            let recording = recording.filter(|how| can_record || matches!(how, Recording::By(_)));
            Ok(Seat {
                place,
                description,
                recording: recording.cloned(),
            })
        };
        let [a, b] = places;
        let seats = [seat(a)?, seat(b)?];
        Ok(Hosts { reach, seats })
    }

    /// How hosts are reached.
    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The host that stands for the emulated one which a cell calls `name`.
    pub(crate) fn seat(&self, name: &str) -> Result<&Seat, Unmet> {
        let at = NAMES.iter().position(|names| names.contains(&name));
        at.map(|at| &self.seats[at]).ok_or_else(|| {
            let reason = format!("there are two hosts, and none for the emulated host `{name}`");
            Unmet::Skipped(reason)
        })
    }

    /// The names of the hosts by the sides.
    pub(crate) fn names(&self) -> BTreeMap<String, String> {
        let seats = NAMES.iter().zip(&self.seats);
        let names = seats.map(|([side, _], seat)| ((*side).to_owned(), seat.place.to_string()));
        names.collect()
    }
}

impl Seat {
    pub(crate) fn place(&self) -> &HostDevice {
        &self.place
    }

    /// How a program's packets are recorded here, if they can be.
    pub(crate) fn recording(&self) -> Option<Recording> {
        self.recording.clone()
    }

    /// The address at which programs of the other host find this one.
    pub(crate) fn address(&self) -> String {
        self.description.address.to_string()
    }

    /// The part id of the device that programs take.
    pub(crate) fn part_id(&self) -> Option<u32> {
        self.description.parts.values().next().copied()
    }

    /// The device has to be of this generation, unless it is the default one: cells that name none
    /// run on any.
    pub(crate) fn must_be(&self, profile: &str) -> Result<(), Unmet> {
        let wanted = match Profile::named(profile) {
            Ok(wanted) if profile != Profile::DEFAULT => wanted.part_id,
            _ => return Ok(()),
        };
        let host = &self.place.host;
        match self.part_id() {
            Some(part) if part == wanted => Ok(()),
            part => Err(Unmet::Skipped(format!(
                "this takes a device with part id {wanted:#06x} ({profile}), and {host} has {:#06x}",
                part.unwrap_or_default()
            ))),
        }
    }
}
