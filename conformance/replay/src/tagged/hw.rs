//! Tag matching over verbs.

use efa_hw::connected::{
    Completion, Connection as Verb, ConnectionConfig, TagMatchingDevice, TagRequest, Work,
};
use efa_play::scenario::tags::TagScenario;

use super::{Connection, DeviceError, Devices};
use crate::replay::hw;
use crate::replay::recording::Recording;

/// Both ends on one device of this machine.
pub struct Verbs {
    device: TagMatchingDevice,
    recording: Option<Recording>,
}

impl Verbs {
    /// Opens the first device with tag matching.
    ///
    /// # Errors
    /// If there is none, or it cannot be opened.
    pub fn open() -> Result<Verbs, DeviceError> {
        let device = TagMatchingDevice::open()?.ok_or(DeviceError::NoTagMatching)?;
        Ok(Verbs {
            device,
            recording: None,
        })
    }
}

impl Devices for Verbs {
    type Connection = Verb;

    fn name(&self) -> &'static str {
        "hw"
    }

    fn connect(&mut self, memory: usize, scenario: &TagScenario) -> Result<[Verb; 2], DeviceError> {
        self.recording = Recording::begin();
        let tags = [None, Some(scenario.connection.tags)];
        let open = |tags| {
            let config = ConnectionConfig { memory, tags };
            self.device.connection(&config)
        };
        let ends = [open(tags[0])?, open(tags[1])?];
        let mtu = scenario.connection.mtu;
        for (end, peer) in [(0, 1), (1, 0)] {
            let peer = ends[peer].address(mtu);
            ends[end].connect(&peer)?;
        }
        Ok(ends)
    }

    fn wait(&mut self, rounds: u32) -> bool {
        hw::wait(rounds)
    }

    fn quiet_rounds(&self) -> u32 {
        hw::QUIET_ROUNDS
    }

    fn captured(&mut self) -> Option<Vec<u8>> {
        self.recording.take()?.end()
    }
}

impl Connection for Verb {
    fn region(&self) -> (u64, u32) {
        self.region()
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        self.read(offset, length)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.write(offset, bytes);
    }

    fn post(
        &mut self,
        wr_id: u64,
        work: Work,
        offset: usize,
        length: usize,
    ) -> Result<(), DeviceError> {
        Ok(self.post(wr_id, work, offset, length)?)
    }

    fn post_receive(
        &mut self,
        wr_id: u64,
        offset: usize,
        length: usize,
    ) -> Result<(), DeviceError> {
        Ok(self.post_receive(wr_id, offset, length)?)
    }

    fn post_tag_request(&mut self, request: &TagRequest) -> Result<u32, DeviceError> {
        Ok(self.post_tag_request(request)?)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.poll()
    }
}
