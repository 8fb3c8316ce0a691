//! Tag matching over verbs.

use efa_hw::connected::{
    Completion, Connection as Verb, ConnectionConfig, TagMatchingDevice, TagRequest, Work,
};
use efa_play::scenario::tags::TagScenario;

use super::{Connection, Devices};
use crate::replay::hw;
use crate::replay::recording::Recording;

/// Both ends on one device of this machine.
pub struct Verbs {
    device: TagMatchingDevice,
    recording: Option<Recording>,
}

impl Verbs {
    /// Opens the first device with tag matching. The error is the missing feature.
    pub fn open() -> Result<Verbs, String> {
        let device = TagMatchingDevice::open().map_err(|error| error.to_string())?;
        let device = device.ok_or(
            "no device matches tags; without the hardware run `efa-emu run --profile tm -- \
             efa-conformance run --backend hw`",
        )?;
        Ok(Verbs {
            device,
            recording: None,
        })
    }
}

fn text(error: efa_hw::OpenError) -> String {
    error.to_string()
}

impl Devices for Verbs {
    type Connection = Verb;

    fn name(&self) -> &'static str {
        "hw"
    }

    fn connect(&mut self, memory: usize, scenario: &TagScenario) -> Result<[Verb; 2], String> {
        self.recording = Recording::begin();
        let tags = [None, Some(scenario.connection.tags)];
        let open = |tags| {
            let config = ConnectionConfig { memory, tags };
            self.device.connection(&config).map_err(text)
        };
        let ends = [open(tags[0])?, open(tags[1])?];
        let mtu = scenario.connection.mtu;
        for (end, peer) in [(0, 1), (1, 0)] {
            let peer = ends[peer].address(mtu);
            ends[end].connect(&peer).map_err(text)?;
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

    fn post(&mut self, wr_id: u64, work: Work, offset: usize, length: usize) -> Result<(), String> {
        self.post(wr_id, work, offset, length).map_err(text)
    }

    fn post_receive(&mut self, wr_id: u64, offset: usize, length: usize) -> Result<(), String> {
        self.post_receive(wr_id, offset, length).map_err(text)
    }

    fn post_tag_request(&mut self, request: &TagRequest) -> Result<u32, String> {
        self.post_tag_request(request).map_err(text)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.poll()
    }
}
