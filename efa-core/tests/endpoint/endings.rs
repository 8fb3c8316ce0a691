//! Every operation ends, whichever of its packets is lost and whatever status the device reports.
//! Two endpoints carry out every kind of operation, and one packet at a time fails.

use efa_core::endpoint::*;
use efa_core::nic::{Access, DeviceCaps, Region, Status, UserSlice};
use efa_testing::nic::{DeviceTraits, MEMORY, Network, NetworkNic};

use crate::script::{config, memory, sum};

/// An operation of the first endpoint's application; the second endpoint posts receives if needed.
#[derive(Clone, Copy, Debug)]
struct AppOperation {
    name: &'static str,
    start: fn(&mut Pair) -> Result<(), EndpointError>,
    receives: usize,
}

struct Pair {
    network: Network,
    ends: [Endpoint<NetworkNic>; 2],
    /// Each other.
    peers: [PeerId; 2],
    /// The memory of the second endpoint.
    target: Region,
    done: [Vec<Result<CompletionEntry, ErrorEntry>>; 2],
    events: [Vec<Event>; 2],
}

const LENGTH: usize = 4000;

/// Context of the operation.
const DEED: u64 = 5;
/// Context of the receive.
const RECEIVE: u64 = 7;
/// Context of later operations.
const LATER: u64 = 9;

impl Pair {
    fn new(caps: DeviceCaps) -> Pair {
        let network = Network::default();
        let traits = DeviceTraits {
            caps,
            part_id: 0xEFA1,
            ..DeviceTraits::default()
        };
        let mut ends = [(1, 10), (2, 20)].map(|(host, qpn)| {
            let nic = network.open(host, qpn, u32::from(qpn) * 0x0101, traits.clone());
            let config = EndpointConfig {
                min_read_message_size: 3000,
                min_read_write_size: 3000,
                ..config()
            };
            Endpoint::new(nic, config).unwrap()
        });
        let addresses = [ends[1].address(), ends[0].address()];
        let peers = [0, 1].map(|end: usize| ends[end].insert_address(addresses[end]).unwrap());
        let all = UserSlice::new(MEMORY, 2 * LENGTH);
        let target = ends[1].register(all, Access::all()).unwrap();
        let mut pair = Pair {
            network,
            ends,
            peers,
            target,
            done: Default::default(),
            events: Default::default(),
        };
        pair.receive(1, RECEIVE);
        pair.send(0, 8, OperationFlags::empty(), DEED).unwrap();
        pair.settle();
        pair.done = Default::default();
        pair
    }

    fn receive(&mut self, at: usize, context: u64) {
        self.ends[at]
            .recv(RecvArgs::new(
                SourceFilter::Any,
                &[memory(0, LENGTH)],
                context,
            ))
            .unwrap();
    }

    fn send(
        &mut self,
        from: usize,
        length: usize,
        flags: OperationFlags,
        context: u64,
    ) -> Result<(), EndpointError> {
        self.ends[from].send(SendArgs {
            flags: flags | OperationFlags::COMPLETION,
            ..SendArgs::new(self.peers[from], &[memory(0, length)], context)
        })
    }

    fn remote(&self, length: usize) -> RemoteIoVec {
        RemoteIoVec::new(MEMORY, length as u64, self.target.remote_key)
    }

    fn write(&mut self, flags: OperationFlags) -> Result<(), EndpointError> {
        let remote = [self.remote(LENGTH)];
        self.ends[0].write(WriteArgs {
            peer: self.peers[0],
            data: &[memory(0, LENGTH)],
            remote: &remote,
            cq_data: None,
            flags: flags | OperationFlags::COMPLETION,
            context: DEED,
        })
    }

    fn read(&mut self, length: usize) -> Result<(), EndpointError> {
        let remote = [self.remote(length)];
        self.ends[0].read(ReadArgs {
            peer: self.peers[0],
            buffer: &[memory(0, length)],
            remote: &remote,
            flags: OperationFlags::COMPLETION,
            context: DEED,
        })
    }

    fn fetch(&mut self) -> Result<(), EndpointError> {
        let remote = [self.remote(8)];
        self.ends[0].atomic(AtomicArgs {
            kind: AtomicKind::Fetch {
                result: &[memory(64, 8)],
            },
            context: DEED,
            ..sum(self.peers[0], &[memory(0, 8)], &remote)
        })
    }

    /// Lets both make progress, without delivering anything.
    fn progress(&mut self) {
        for (end, endpoint) in self.ends.iter_mut().enumerate() {
            while endpoint.progress(Instant::START) > 0 {}
            self.done[end].extend(core::iter::from_fn(|| endpoint.poll_completion()));
            self.events[end].extend(core::iter::from_fn(|| endpoint.poll_event()));
        }
    }

    /// Delivers everything.
    fn settle(&mut self) {
        self.progress();
        while self.network.flights() > 0 {
            self.network.deliver(0);
            self.progress();
        }
        self.progress();
    }

    /// Goes through an operation in which the packet number `lost` is refused, `times` times.
    /// Returns the end that lost it, and whether there is one with this number.
    fn go_through(
        &mut self,
        deed: AppOperation,
        lost: usize,
        status: Status,
        times: usize,
    ) -> Option<usize> {
        (0..deed.receives).for_each(|_| self.receive(1, RECEIVE));
        (deed.start)(self).unwrap();
        self.progress();
        let (mut number, mut left, mut loser) = (0, 0, None);
        let mut bytes = Vec::new();
        while self.network.flights() > 0 {
            let flight = self.network.in_flight()[0].clone();
            // RDMA reads have no bytes, because they are not packets.
            if !flight.bytes.is_empty() {
                if number == lost {
                    (left, loser) = (times, Some(flight.from));
                    bytes.clone_from(&flight.bytes);
                }
                number += 1;
            }
            // The same bytes again are the same packet.
            if left > 0 && flight.bytes == bytes {
                left -= 1;
                self.network.fail(0, status);
            } else {
                self.network.deliver(0);
            }
            self.progress();
        }
        loser
    }

    /// The operation and its receive have ended, each once.
    fn have_ended(&self, deed: AppOperation) -> [bool; 2] {
        let ended = |end: usize, context| {
            let mut all = self.done[end].iter();
            all.any(|entry| context_of(entry) == context)
        };
        [ended(0, DEED), deed.receives == 0 || ended(1, RECEIVE)]
    }
}

fn context_of(entry: &Result<CompletionEntry, ErrorEntry>) -> u64 {
    match entry {
        Ok(entry) => entry.context,
        Err(entry) => entry.context,
    }
}

const DC: OperationFlags = OperationFlags::DELIVERY_COMPLETE;

const DEEDS: [AppOperation; 8] = [
    AppOperation {
        name: "eager with delivery complete",
        start: |pair| pair.send(0, 10, DC, DEED),
        receives: 1,
    },
    AppOperation {
        name: "medium",
        start: |pair| pair.send(0, 1900, OperationFlags::empty(), DEED),
        receives: 1,
    },
    AppOperation {
        name: "long",
        start: |pair| pair.send(0, LENGTH, OperationFlags::empty(), DEED),
        receives: 1,
    },
    AppOperation {
        name: "long with delivery complete",
        start: |pair| pair.send(0, LENGTH, DC, DEED),
        receives: 1,
    },
    AppOperation {
        name: "write",
        start: |pair| pair.write(DC),
        receives: 0,
    },
    AppOperation {
        name: "short read",
        start: |pair| pair.read(100),
        receives: 0,
    },
    AppOperation {
        name: "long read",
        start: |pair| pair.read(LENGTH),
        receives: 0,
    },
    AppOperation {
        name: "fetching atomic",
        start: |pair| pair.fetch(),
        receives: 0,
    },
];

/// Devices without RDMA, where everything goes in packets, and with RDMA read.
const DEVICES: [DeviceCaps; 2] = [DeviceCaps::empty(), DeviceCaps::RDMA_READ];

#[test]
fn temporary_refusals_by_a_device_cost_nothing() {
    let mut losses = 0;
    for device in DEVICES {
        for (deed, status) in DEEDS.into_iter().flat_map(|deed| {
            [Status::RemoteAbort, Status::RemoteBadAddress].map(|status| (deed, status))
        }) {
            for lost in 0.. {
                let mut pair = Pair::new(device);
                let loser = pair.go_through(deed, lost, status, 3);
                let (name, reported) = (deed.name, (&pair.done, &pair.events));
                assert_eq!(
                    pair.have_ended(deed),
                    [true; 2],
                    "{name}, {lost}: {reported:?}"
                );
                let all_well = pair.done.iter().flatten().all(Result::is_ok);
                let no_events = pair.events.iter().all(Vec::is_empty);
                assert!(all_well && no_events, "{name}, {lost}: {reported:?}");
                if loser.is_none() {
                    losses += lost;
                    break;
                }
            }
        }
    }
    assert!(losses > 100, "{losses}");
}

/// A permanent loss is reported on the sending side. The other side may wait until it sends a
/// packet itself, whose failure shows that its peer has ended.
#[test]
fn a_permanent_loss_ends_both_sides() {
    for device in DEVICES {
        for (deed, status) in DEEDS.into_iter().flat_map(|deed| {
            [
                Status::RemoteAbort,
                Status::RemoteBadLength,
                Status::RemoteBadStatus,
            ]
            .map(|status| (deed, status))
        }) {
            for lost in 0.. {
                let mut pair = Pair::new(device);
                let Some(loser) = pair.go_through(deed, lost, status, usize::MAX) else {
                    break;
                };
                let place = format!("{}, packet {lost}, {status:?}", deed.name);
                let is_reported = |end: usize| {
                    pair.done[end].iter().any(Result::is_err) || !pair.events[end].is_empty()
                };
                assert!(
                    is_reported(loser),
                    "{place}: {:?} {:?}",
                    pair.done,
                    pair.events
                );
                // The program with the loss ends; the other one sends a packet.
                let waits = 1 - loser;
                let Pair {
                    network,
                    ends,
                    peers,
                    ..
                } = &mut pair;
                let [first, second] = ends;
                let (gone, left) = match loser {
                    0 => (first, second),
                    _ => (second, first),
                };
                let replacement = network.open(3, 30, 3, DeviceTraits::default());
                let replacement = Endpoint::new(replacement, config()).unwrap();
                core::mem::replace(gone, replacement).close();
                let _ = left.send(SendArgs::new(peers[waits], &[memory(0, 8)], LATER));
                pair.settle();
                let ended = pair.have_ended(deed)[waits];
                let receives = usize::from(waits == 1 && deed.receives == 1);
                let unmatched = receives == 1 && pair.ends[1].usage().inbound == 1 && !ended;
                assert!(
                    ended || unmatched,
                    "{place}: {:?} {:?}",
                    pair.done,
                    pair.events
                );
            }
        }
    }
}

/// The device of the reader refuses every RDMA read.
#[test]
fn a_failed_read_ends_both_sides() {
    let read_by_the_peer = ["long", "long with delivery complete", "write"];
    for deed in DEEDS {
        if !read_by_the_peer.contains(&deed.name) {
            continue;
        }
        let mut pair = Pair::new(DeviceCaps::RDMA_READ);
        (0..deed.receives).for_each(|_| pair.receive(1, RECEIVE));
        (deed.start)(&mut pair).unwrap();
        pair.progress();
        let mut reads = 0;
        while pair.network.flights() > 0 {
            match pair.network.in_flight()[0].bytes.is_empty() {
                true => {
                    reads += 1;
                    pair.network.fail(0, Status::RemoteBadAddress);
                }
                false => assert!(pair.network.deliver(0)),
            }
            pair.progress();
        }
        assert!(reads > 0, "{}", deed.name);
        let reported = (&pair.done, &pair.events);
        // No packet of libfabric notifies the source of a write.
        let is_reported = deed.name != "write";
        let expected = [is_reported, true];
        assert_eq!(
            pair.have_ended(deed),
            expected,
            "{}: {reported:?}",
            deed.name
        );
        assert!(
            pair.done.iter().flatten().all(Result::is_err),
            "{reported:?}"
        );
        assert!(pair.ends.iter().all(|end| !end.has_packets_in_flight()));
        // Both continue.
        pair.done = Default::default();
        pair.receive(1, RECEIVE);
        pair.send(0, 8, OperationFlags::empty(), DEED).unwrap();
        pair.settle();
        assert!(pair.done.iter().flatten().all(Result::is_ok));
        assert_eq!(pair.done.iter().map(Vec::len).sum::<usize>(), 2);
    }
}
