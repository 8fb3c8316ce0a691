//! The plan of a run: a fabric and a list of steps, both made from a seed. Every step is
//! independent, so that any of them can be removed.

use std::time::Duration;

use efa_core::endpoint::EndpointConfig;
use efa_core::nic::{DeviceCaps, Status};
use efa_core::wire::PacketType;
use efa_device_model::device::Service;
use efa_device_model::fault::{Action, Delay, Fault, Match, PacketTypes, Point};
use efa_device_model::link::Operation;
use efa_device_model::profile::Profile;
use efa_sim::{FabricConfig, NetworkConfig, NicConfig, Probability, QpnPolicy};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::combine::{Call, Combine};
use crate::release::Release;

/// The fabric and its events.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) fabric: FabricConfig,
    /// The largest packet of all devices, in bytes.
    pub(crate) mtu: usize,
    /// The settings of the programs, by host; a restarted program keeps them.
    pub(crate) programs: Vec<Settings>,
    pub(crate) steps: Vec<Step>,
    /// Whether packets of messages are lost for good: all programs report aborts to each other.
    pub(crate) aborts: bool,
}

/// How a program opens its endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) release: Release,
    pub(crate) profile: Profile,
    pub(crate) nic: NicConfig,
    pub(crate) endpoint: EndpointConfig,
    /// Polls its endpoint only at every n-th event of its host.
    pub(crate) patience: u32,
}

/// One step. Programs are identified by their hosts.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send {
        from: usize,
        to: usize,
        length: usize,
        tag: Option<u64>,
        with_data: bool,
        mode: SendMode,
        buffer: Buffer,
    },
    Receive {
        at: usize,
        from: Option<usize>,
        /// The tag, and the bits to ignore.
        tag: Option<(u64, u64)>,
        capacity: usize,
        buffer: Buffer,
    },
    MultiReceive {
        at: usize,
        capacity: usize,
        min_free: usize,
    },
    Write {
        from: usize,
        to: usize,
        length: usize,
        with_data: bool,
        mode: SendMode,
        buffer: Buffer,
    },
    Read {
        from: usize,
        to: usize,
        length: usize,
        buffer: Buffer,
    },
    /// Adds 1 to the counter of a program.
    Add {
        from: usize,
        to: usize,
        fetch: bool,
        mode: SendMode,
    },
    /// Changes elements that no other program changes.
    Combine {
        from: usize,
        to: usize,
        combine: Combine,
        mode: SendMode,
        buffer: Buffer,
    },
    /// Takes the lock word of a program if it is free.
    Claim {
        from: usize,
        to: usize,
    },
    Cancel {
        at: usize,
        choice: usize,
    },
    /// Reserves the first unexpected message, and receives or discards it.
    Reserve {
        at: usize,
        tagged: bool,
        keep: bool,
    },
    Fault(Box<Fault>),
    /// The program is killed; another one starts on its host.
    Die {
        at: usize,
    },
    /// A program removes another one from its address vector, with any operations in flight.
    Forget {
        at: usize,
        peer: usize,
    },
    /// A program deregisters the memory that its peers write and read, with any operations in
    /// flight, and registers it again.
    Withdraw {
        at: usize,
    },
    Run {
        events: usize,
    },
}

/// The way in which an operation is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendMode {
    Plain,
    /// Only failures are reported.
    Silent,
    Inject,
    DeliveryComplete,
}

/// The layout of an operation's local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Buffer {
    pub(crate) pieces: usize,
    pub(crate) registered: bool,
}

/// The bytes of the longest headers. The rest of a packet can be injected, or hold an operand with
/// its comparand.
const MAX_REQUEST_HEADER: usize = 168;
const MAX_ATOMIC_HEADER: usize = 152;

/// The registrations that a program has from its start to its end: its packet buffers, its memory,
/// and the same memory for its peers.
pub(crate) const REGIONS: usize = 3;

impl Plan {
    /// Whether a program is of a release.
    pub(crate) fn has(&self, release: Release) -> bool {
        self.programs.iter().any(|one| one.release == release)
    }

    /// Whether all programs are of releases with a property.
    pub(crate) fn all(&self, kind: fn(Release) -> bool) -> bool {
        self.programs.iter().all(|one| kind(one.release))
    }

    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let count = rng.random_range(2..=3);
        let first_msg_id = *[0, u32::MAX - 5, u32::MAX / 2].choose(&mut rng).unwrap();
        let ordered = rng.random_bool(0.8);
        // The device gathers data of 1 KiB and more, so some packets must hold that much.
        let mtu = *[256, 520, 1024, 4096].choose(&mut rng).unwrap();
        let mut programs: Vec<Settings> = (0..count)
            .map(|_| settings(&mut rng, mtu, first_msg_id, ordered))
            .collect();
        let mut more = StdRng::seed_from_u64(seed ^ 27);
        choose_releases(&mut rng, &mut more, &mut programs);
        for settings in &mut programs {
            // Few can register the memory of a transfer.
            if let Some(spare) = *[None, None, Some(0), Some(1)].choose(&mut rng).unwrap() {
                let user_queue_pair = settings.release == Release::V2_1ZeroCopy;
                settings.profile.max_mr = REGIONS as u32 + u32::from(user_queue_pair) + spare;
            }
        }
        if rng.random_bool(0.2) {
            // So small that peers exceed them.
            for settings in &mut programs {
                settings.endpoint.reorder_window = *[2, 8, 1 << 16].choose(&mut rng).unwrap();
            }
        }
        let fabric = fabric(&mut rng, seed);
        // Half of the runs have recoverable faults, and half of those also deaths.
        let tells = |one: &Settings| one.release.has_peer_error();
        let faults = rng.random_bool(0.5);
        let aborts = !faults && programs.iter().all(tells) && more.random_bool(0.5);
        let has_connection_ids = |one: &Settings| one.release.has_connection_ids();
        let mut scope = Scope {
            count,
            mtu,
            faults,
            // Without connection ids late packets of dead programs are attributed to their
            // successors.
            deaths: faults && rng.random_bool(0.5) && programs.iter().all(has_connection_ids),
            withdrawals: rng.random_bool(0.3) && !aborts,
            aborts,
            has_headers: programs
                .iter()
                .all(|one| one.release != Release::V2_1ZeroCopy),
            drops: most_drops(&fabric.network),
        };
        let length = rng.random_range(20..90);
        let steps = (0..length).map(|_| step(&mut rng, &mut scope)).collect();
        Plan {
            seed,
            fabric,
            mtu,
            programs,
            steps,
            aborts,
        }
    }
}

/// The permitted steps.
struct Scope {
    /// Programs.
    count: usize,
    mtu: usize,
    faults: bool,
    /// All packets have a header.
    has_headers: bool,
    deaths: bool,
    withdrawals: bool,
    aborts: bool,
    /// The number of frames that the rules of further steps may drop.
    drops: u64,
}

/// In some runs all programs are ours; in the others some are of other releases.
fn choose_releases(rng: &mut StdRng, more: &mut StdRng, programs: &mut [Settings]) {
    match rng.random_range(0..10) {
        0..5 => {
            // If all programs have PEER_ERROR, they may abort messages.
            let others = [
                &[Release::Ours][..],
                &[Release::V2_7],
                &[Release::V2_6, Release::V2_7],
            ];
            let others = *others.choose(more).unwrap();
            for settings in programs.iter_mut() {
                if more.random_bool(0.6) {
                    settings.release = *others.choose(more).unwrap();
                }
            }
        }
        5..8 => {
            // 1.11 does not send headers of constant length, which zero-copy receivers of 1.17
            // request.
            let other = *[Release::V1_11, Release::V1_17Constant]
                .choose(rng)
                .unwrap();
            let old = [Release::V1_17, other];
            for settings in programs.iter_mut() {
                if rng.random_bool(0.6) {
                    settings.release = *old.choose(rng).unwrap();
                }
            }
        }
        _ => {
            // Older releases do not know such receivers, which lose messages that were sent to them
            // before their HANDSHAKE.
            for settings in programs.iter_mut() {
                settings.endpoint.handshake_before_messages = true;
                if rng.random_bool(0.5) {
                    settings.release = Release::V2_1ZeroCopy;
                }
            }
        }
    }
}

fn settings(rng: &mut StdRng, mtu: usize, first_msg_id: u32, ordered: bool) -> Settings {
    let name = ["efa0", "efa1", "efa2", "efa3"].choose(rng).unwrap();
    let mut profile = Profile::by_name(name).unwrap().clone();
    profile.mtu = mtu as u32;
    let send_queue_depth = *[2, 4, 64].choose(rng).unwrap();
    let recv_queue_depth = *[4, 8, 64].choose(rng).unwrap();
    let nic = NicConfig {
        service: Service::Srd,
        send_queue_depth,
        recv_queue_depth,
        packet_buffers: send_queue_depth + recv_queue_depth,
        qkey: None,
        rnr_retry: *[0, 1, 3].choose(rng).unwrap(),
        unsolicited_write_recv: profile.caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV)
            && rng.random(),
    };
    let endpoint = EndpointConfig {
        recv_buffers: recv_queue_depth,
        poll_batch: rng.random_range(1..20),
        max_operations: *[64, 4096].choose(rng).unwrap(),
        remote_operations: *[1, 4, 1 << 16].choose(rng).unwrap(),
        first_msg_id,
        ordered,
        max_medium_size: *[0, 2500, 8000].choose(rng).unwrap(),
        min_read_message_size: *[1500, 6000, 1 << 20].choose(rng).unwrap(),
        min_read_write_size: *[1500, 6000, 1 << 20].choose(rng).unwrap(),
        runt_size: *[0, 1200].choose(rng).unwrap(),
        read_segment_size: 4000,
        cts_window_packets: rng.random_range(1..5),
        use_device_rdma: rng.random_bool(0.8),
        deferred_bytes: 4 << 20,
        seed: rng.random(),
        ..EndpointConfig::default()
    };
    Settings {
        release: Release::Ours,
        profile,
        nic,
        endpoint,
        patience: *[1, 1, 7].choose(rng).unwrap(),
    }
}

fn fabric(rng: &mut StdRng, seed: u64) -> FabricConfig {
    let some = |rng: &mut StdRng, most: f64| match rng.random_bool(0.5) {
        true => Probability::new(rng.random_range(0.0..most)).unwrap(),
        false => Probability::NEVER,
    };
    FabricConfig {
        seed,
        network: NetworkConfig {
            jitter: Duration::from_micros(rng.random_range(0..100)),
            loss: some(rng, 0.05),
            rnr: some(rng, 0.2),
            in_flight: *[3, 1000].choose(rng).unwrap(),
            ..NetworkConfig::default()
        },
        qpn_policy: *[QpnPolicy::Lowest, QpnPolicy::Random].choose(rng).unwrap(),
        completion_window: rng.random_range(1..10),
        log: false,
    }
}

fn length(rng: &mut StdRng, mtu: usize) -> usize {
    match rng.random_range(0..10) {
        0 => 0,
        1..4 => rng.random_range(1..200),
        // With a header of some length it just fits, or just does not.
        4 => rng.random_range(mtu - 174..mtu),
        5 | 6 => rng.random_range(1024..3000),
        7 | 8 => rng.random_range(3000..9000),
        _ => rng.random_range(9000..20_000),
    }
}

fn mode(rng: &mut StdRng) -> SendMode {
    *[
        SendMode::Plain,
        SendMode::Plain,
        SendMode::Silent,
        SendMode::Inject,
        SendMode::DeliveryComplete,
    ]
    .choose(rng)
    .unwrap()
}

/// The number of frames that all rules of a run together may drop: even if they drop all attempts
/// of one request, it does not fail.
fn most_drops(network: &NetworkConfig) -> u64 {
    let attempts = u64::from(network.reliability.attempts);
    match network.loss {
        Probability::NEVER => attempts - 1,
        // The other attempts suffice for the losses of the network itself.
        _ => attempts / 2,
    }
}

fn step(rng: &mut StdRng, scope: &mut Scope) -> Step {
    let mtu = scope.mtu;
    let from = rng.random_range(0..scope.count);
    // A program may send to itself.
    let to = rng.random_range(0..scope.count);
    let buffer = Buffer {
        pieces: if rng.random_bool(0.2) { 3 } else { 1 },
        registered: rng.random(),
    };
    let tag = rng.random_bool(0.6).then(|| rng.random_range(0..4));
    let choice = match rng.random_range(0..100) {
        // Only messages are reported as aborted; the other side of other operations would wait
        // forever.
        54..76 if scope.aborts => 0,
        choice => choice,
    };
    match choice {
        0..30 => {
            let mode = mode(rng);
            Step::Send {
                from,
                to,
                length: match mode {
                    SendMode::Inject => rng.random_range(0..=mtu - MAX_REQUEST_HEADER),
                    _ => length(rng, mtu),
                },
                tag,
                with_data: rng.random(),
                mode,
                buffer,
            }
        }
        30..52 => Step::Receive {
            at: from,
            from: rng.random_bool(0.4).then_some(to),
            tag: tag.map(|tag| (tag, *[0, 0, 1, u64::MAX].choose(rng).unwrap())),
            capacity: 8 + length(rng, mtu).max(if rng.random_bool(0.8) { 20_000 } else { 0 }),
            buffer,
        },
        52..54 => Step::MultiReceive {
            at: from,
            capacity: rng.random_range(3000..40_000),
            min_free: rng.random_range(1..3000),
        },
        54..62 => {
            let mode = mode(rng);
            Step::Write {
                from,
                to,
                length: match mode {
                    SendMode::Inject => rng.random_range(0..=mtu - MAX_REQUEST_HEADER),
                    _ => length(rng, mtu),
                },
                with_data: rng.random_bool(0.4),
                mode,
                buffer,
            }
        }
        62..69 => Step::Read {
            from,
            to,
            length: length(rng, mtu),
            buffer,
        },
        69..74 => Step::Add {
            from,
            to,
            fetch: rng.random(),
            mode: mode(rng),
        },
        74 => Step::Claim { from, to },
        75 => {
            let combine = Combine::random(rng, (mtu - MAX_ATOMIC_HEADER) / 2);
            Step::Combine {
                from,
                to,
                combine,
                mode: match combine.call {
                    Call::Write => mode(rng),
                    Call::Fetch | Call::Compare => SendMode::Plain,
                },
                buffer,
            }
        }
        76..78 => Step::Cancel {
            at: from,
            choice: rng.random_range(0..8),
        },
        78..81 => Step::Reserve {
            at: from,
            tagged: tag.is_some(),
            keep: rng.random(),
        },
        81..87 if scope.aborts && scope.has_headers && rng.random_bool(0.3) => {
            Step::Fault(Box::new(repetition(rng, scope.aborts)))
        }
        81..87 if scope.aborts => Step::Fault(Box::new(abort(rng))),
        81..87 if scope.faults => Step::Fault(Box::new(fault(rng, scope))),
        87..89 if scope.deaths => Step::Die { at: from },
        89 if scope.deaths && from != to => Step::Forget { at: from, peer: to },
        90..92 if scope.withdrawals => Step::Withdraw { at: from },
        _ => Step::Run {
            events: rng.random_range(1..60),
        },
    }
}

/// A fault that ends a message: one of its packets is lost for good, or the device cannot read it.
fn abort(rng: &mut StdRng) -> Fault {
    let packets: [u8; 15] = [
        4, 64, 65, 66, 67, 68, 69, 128, 129, 133, 134, 135, 136, 145, 146,
    ];
    let when = match rng.random_range(0..4) {
        0 => Match {
            operation: Some(Operation::RdmaRead),
            ..Match::any(Point::Request)
        },
        _ => Match::packet(*packets.choose(rng).unwrap()),
    };
    let status = match when.operation {
        Some(_) => Status::RemoteBadAddress,
        // The sender cannot know whether it arrived, or knows that it did not.
        None => *[Status::RemoteBadStatus, Status::RemoteBadLength]
            .choose(rng)
            .unwrap(),
    };
    Fault::new(when, Action::Answer(status))
        .skip(rng.random_range(0..3))
        .times(rng.random_range(1..4))
}

/// Packets that arrive twice, of types whose second copy is recognised by the receiver.
fn repetition(rng: &mut StdRng, aborts: bool) -> Fault {
    let types = PacketType::ALL.iter();
    let types = types.filter(|of| of.has_header() && of.shows_second_copies());
    let mut packets: Vec<u8> = types.map(|of| of.code()).collect();
    if rng.random_bool(0.5) {
        packets = match aborts {
            // They are rare.
            true => vec![PacketType::PeerError.code()],
            false => vec![*packets.choose(rng).unwrap()],
        };
    }
    let when = Match {
        packet: PacketTypes(packets),
        ..Match::default()
    };
    Fault::new(when, Action::Repeat)
        .skip(rng.random_range(0..4))
        .times(rng.random_range(1..12))
}

/// A recoverable fault.
fn fault(rng: &mut StdRng, scope: &mut Scope) -> Fault {
    if rng.random_bool(0.3) {
        let fail = Action::Fail(efa_device_model::fault::Errno(12));
        return Fault::new(Match::any(Point::Registration), fail)
            .skip(rng.random_range(0..3))
            .times(rng.random_range(1..4));
    }
    let on = *[Point::Request, Point::Answer].choose(rng).unwrap();
    let packets: [u8; 18] = [
        3, 4, 5, 7, 8, 9, 10, 11, 64, 65, 66, 67, 68, 69, 128, 130, 133, 135,
    ];
    let when = match rng.random_range(0..3) {
        0 => Match::any(on),
        _ => Match {
            on,
            ..Match::packet(*packets.choose(rng).unwrap())
        },
    };
    let late = Duration::from_micros(rng.random_range(1..2000));
    let mut then = match (rng.random_range(0..4), on) {
        (0, Point::Request) => Action::Answer(Status::RemoteRnr),
        (1, _) => Action::Drop,
        (2, Point::Request) if scope.has_headers => return repetition(rng, false),
        _ => Action::Delay(Delay::from(late)),
    };
    let mut times = rng.random_range(1..12);
    if then == Action::Drop {
        times = match rng.random_bool(0.4) {
            true => scope.drops,
            false => times.min(scope.drops),
        };
        scope.drops -= times;
        if times == 0 {
            then = Action::Delay(Delay::from(late));
            times = 1;
        }
    }
    Fault::new(when, then)
        .skip(rng.random_range(0..4))
        .times(times)
}
