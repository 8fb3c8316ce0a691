//! Tests of the carrier, with a fake bridge on the other machine.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use efa_device_model::provider::{SendData, UdAddress};
use efa_shm::remote::RemoteDevice;
use efa_shm::{Fabric, HostConfig};
use efa_testing::engine::{Address, Client};
use efa_wire::address::Gid;

use crate::frames::{self, Device, Frame, Frames, Notice};
use crate::key::Key;
use crate::local::{DeviceList, LocalDevices};
use crate::machine::Machine;
use crate::secure::Wire;
use crate::secure::tests::{meet, valid};

const FABRIC: &str = "test";
const NEVER: Duration = Duration::from_secs(3600);
const OFTEN: Duration = Duration::from_millis(100);

/// This machine, with a bridge that is connected to one other machine.
struct Bridge {
    root: tempfile::TempDir,
    key: Key,
    local: Arc<LocalDevices>,
    machine: Arc<Machine>,
    carrier: Option<JoinHandle<()>>,
}

/// Messages that the other bridge received.
#[derive(Debug)]
enum Received {
    Message,
    Notice(Notice),
}

/// The fake bridge's end of a connection.
struct Other {
    wire: Wire,
    frames: Frames,
}

fn fabric(root: &Path) -> Fabric {
    Fabric::open_below(root, FABRIC).unwrap()
}

fn device(name: &str, last: u8) -> RemoteDevice {
    let mut gid = [0xfd; 16];
    gid[15] = last;
    RemoteDevice {
        name: efa_shm::DeviceName::new(name, 0, 1),
        gid: Gid(gid),
        profile: None,
        nobody: efa_wire::Status::RemoteBadDestQpn,
        network: efa_shm::NetworkOptions::default(),
    }
}

impl Bridge {
    fn new() -> Bridge {
        let root = tempfile::tempdir().unwrap();
        let local = Arc::new(LocalDevices::new());
        let fabric = fabric(root.path());
        let machine = Arc::new(Machine::new("other", &fabric, &local, NEVER, false));
        let carried = Arc::clone(&machine);
        Bridge {
            root,
            key: valid(),
            local,
            machine,
            carrier: Some(std::thread::spawn(move || carried.carry())),
        }
    }

    /// Sets the devices of this machine.
    fn has(&self, devices: &[RemoteDevice]) {
        self.local.update(DeviceList {
            devices: Arc::new(devices.iter().map(Device::from).collect()),
            gids: Arc::new(devices.iter().map(|device| device.gid).collect()),
            ..DeviceList::default()
        });
    }

    /// Waits until the carrier has noticed the end of the connection, after which there can be a
    /// new one.
    fn await_loss(&self) {
        while self.machine.is_connected() {
            std::thread::yield_now();
        }
    }

    /// Connects with the fake bridge, which has this heartbeat timeout.
    fn connect(&self, their_timeout: Duration) -> Other {
        let [dialer, mut acceptor] = meet(&self.key, &self.key).map(Result::unwrap);
        // Instead of greetings.
        acceptor.receive(100).unwrap();
        let machine = Arc::clone(&self.machine);
        std::thread::spawn(move || machine.serve(acceptor, their_timeout));
        Other {
            wire: dialer.into_wire(false).unwrap(),
            frames: Frames::new(),
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.machine.end();
        let ended = self.carrier.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()) || std::thread::panicking());
        self.machine.leave();
    }
}

impl Other {
    fn send(&mut self, notices: &[Notice]) {
        let mut bytes = Vec::new();
        for notice in notices {
            frames::append_notice(&mut bytes, notice);
        }
        // All bytes are encrypted by one call.
        assert_eq!(self.wire.send(&bytes).unwrap(), bytes.len());
        while self.wire.has_unsent() {
            self.wire.send(&[]).unwrap();
        }
    }

    /// Waits for the next frame.
    fn receive(&mut self) -> io::Result<Received> {
        loop {
            match self.frames.next()? {
                Some(Frame::Message(_)) => return Ok(Received::Message),
                Some(Frame::Notice(notice)) => return Ok(Received::Notice(notice)),
                None => {}
            }
            if !self.wire.receive(&mut self.frames)? {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits for a list of devices, skipping heartbeats. Returns its number and the names of the
    /// devices.
    fn receive_devices(&mut self) -> (u64, Vec<String>) {
        loop {
            match self.receive().unwrap() {
                Received::Notice(Notice::Alive) => {}
                Received::Notice(Notice::Devices {
                    number, devices, ..
                }) => return (number, devices.iter().map(Device::name).collect()),
                received => panic!("{received:?}"),
            }
        }
    }

    /// Checks that only heartbeats arrive for a while.
    fn receive_only_heartbeats(&mut self) {
        for _ in 0..4 {
            let received = self.receive().unwrap();
            assert!(
                matches!(received, Received::Notice(Notice::Alive)),
                "{received:?}"
            );
        }
    }

    fn read(&mut self, number: u64) {
        let refused = Vec::new();
        self.send(&[Notice::Entered { number, refused }]);
    }

    /// Announces devices, and waits until they have entered.
    fn announce(&mut self, devices: &[RemoteDevice]) {
        self.send(&[list(1, devices)]);
        loop {
            match self.receive().unwrap() {
                Received::Notice(Notice::Alive) => {}
                Received::Notice(Notice::Entered { number, refused }) => {
                    assert_eq!((number, refused), (1, Vec::new()));
                    return;
                }
                received => panic!("{received:?}"),
            }
        }
    }
}

fn list(number: u64, devices: &[RemoteDevice]) -> Notice {
    Notice::Devices {
        number,
        devices: devices.iter().map(Device::from).collect(),
        faults: Vec::new(),
    }
}

/// A process of this machine that sends to one device.
struct Sender {
    client: Client,
    to: UdAddress,
}

impl Sender {
    fn new(root: &Path, gid: Gid) -> Sender {
        let client = Client::open(root, &HostConfig::new(FABRIC, "alpha"));
        let to = client.connect(Address {
            gid,
            ..client.address()
        });
        Sender { client, to }
    }

    fn device(&self) -> RemoteDevice {
        RemoteDevice {
            gid: self.client.engine.gid(),
            ..device("alpha", 0)
        }
    }

    fn send(&mut self) {
        let data = SendData::Inline(&[b"hello"]);
        assert!(self.client.post_send(1, self.to, data));
        self.client.engine.progress();
    }
}

#[test]
fn messages_for_a_machine_wait_until_it_reconnects() {
    let bridge = Bridge::new();
    let beta = device("beta", 1);
    let mut other = bridge.connect(OFTEN);
    assert_eq!(other.receive_devices(), (0, Vec::new()));
    other.read(0);
    other.announce(std::slice::from_ref(&beta));
    let mut alpha = Sender::new(bridge.root.path(), beta.gid);
    bridge.has(&[alpha.device()]);
    let (number, devices) = other.receive_devices();
    assert_eq!(devices, ["alpha"]);
    other.read(number);
    alpha.send();
    while !matches!(other.receive().unwrap(), Received::Message) {}
    // A new process of the other bridge, to which no devices were announced.
    other.wire.cut();
    bridge.await_loss();
    alpha.send();
    let mut other = bridge.connect(OFTEN);
    assert_eq!(other.receive_devices(), (number, devices));
    other.receive_only_heartbeats();
    other.read(number);
    while !matches!(other.receive().unwrap(), Received::Message) {}
}

#[test]
fn changes_are_announced_after_the_last_was_read() {
    let bridge = Bridge::new();
    let mut other = bridge.connect(OFTEN);
    assert_eq!(other.receive_devices(), (0, Vec::new()));
    let [alpha, beta, gamma] = [device("alpha", 1), device("beta", 2), device("gamma", 3)];
    bridge.has(std::slice::from_ref(&alpha));
    bridge.has(&[alpha.clone(), beta.clone()]);
    bridge.has(&[beta.clone(), gamma.clone()]);
    other.receive_only_heartbeats();
    // That list was never sent.
    other.read(1);
    other.receive_only_heartbeats();
    assert_eq!(bridge.machine.knows(beta.gid), None);
    other.read(0);
    let expected = vec!["beta".to_owned(), "gamma".to_owned()];
    assert_eq!(other.receive_devices(), (3, expected));
    other.receive_only_heartbeats();
    assert_eq!(bridge.machine.knows(beta.gid), None);
    other.read(3);
    while bridge.machine.knows(beta.gid).is_none() {
        std::thread::yield_now();
    }
    assert_eq!(bridge.machine.knows(alpha.gid), None);
}

#[test]
fn a_machine_flooding_device_lists_is_disconnected() {
    let bridge = Bridge::new();
    let mut other = bridge.connect(OFTEN);
    // In one TLS record, so that both are received together.
    other.send(&[list(1, &[device("beta", 1)]), list(2, &[])]);
    let error = loop {
        if let Err(error) = other.receive() {
            break error;
        }
    };
    let is_cut = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
    assert!(is_cut.contains(&error.kind()), "{error}");
    // The machine may connect again.
    bridge.await_loss();
    let mut other = bridge.connect(OFTEN);
    assert_eq!(other.receive_devices(), (0, Vec::new()));
    other.announce(&[device("beta", 1)]);
}

/// This machine's own timeout is an hour, with four heartbeats in it.
#[test]
fn keepalives_follow_the_less_patient_machine() {
    let bridge = Bridge::new();
    let mut other = bridge.connect(OFTEN);
    other.receive_devices();
    other.receive_only_heartbeats();
}
