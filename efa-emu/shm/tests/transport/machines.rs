//! Two fabrics that simulate two machines, and a thread that carries messages between them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use efa_core::address::Qkey;
use efa_core::nic::Status;
use efa_device_model::device::Service;
use efa_device_model::fault::{Action, HostName};
use efa_device_model::provider::{SendData, UdAddress, WcOpcode};
use efa_shm::remote::{ReceivePolicy, RemoteDevice, RemoteMachine};
use efa_shm::{DeviceName, Fabric, FabricError, HostConfig};
use efa_testing::engine::{Client, Memory, config, fabric};
use efa_testing::patience::{PATIENCE, Wait};
use efa_testing::pattern;

use crate::inside::{see_rdma, see_refusals};
use crate::network::{send_numbered, with_network};
use crate::processes::Process;

const INLINE: SendData<'_> = SendData::Inline(&[b"hello"]);

/// Types of messages.
const REQUEST: u8 = 16;
const READ_DATA: u8 = 17;
const OUTCOME: u8 = 19;

/// The other machine in the fabric of each of two.
struct Machines {
    roots: [tempfile::TempDir; 2],
    remotes: Arc<[Mutex<RemoteMachine>; 2]>,
    is_over: Arc<AtomicBool>,
    /// Whether the connection is cut. The carrier holds the lock while it carries, so that no
    /// message is in flight once it is set.
    is_cut: Arc<Mutex<bool>>,
    carrier: Option<JoinHandle<()>>,
}

impl Machines {
    fn new() -> Machines {
        let roots = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let remote = |at: usize| {
            let names = ["first", "second"];
            Mutex::new(RemoteMachine::new(fabric(roots[at].path()), names[1 - at]))
        };
        let remotes = Arc::new([remote(0), remote(1)]);
        let is_over = Arc::new(AtomicBool::new(false));
        let is_cut = Arc::new(Mutex::new(false));
        let carrier = {
            let (remotes, is_over, is_cut) = (
                Arc::clone(&remotes),
                Arc::clone(&is_over),
                Arc::clone(&is_cut),
            );
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    {
                        let is_cut = is_cut.lock().unwrap();
                        if !*is_cut {
                            carry(&remotes);
                        }
                    }
                    std::thread::yield_now();
                }
            })
        };
        Machines {
            roots,
            remotes,
            is_over,
            is_cut,
            carrier: Some(carrier),
        }
    }

    fn cut(&self, is_cut: bool) {
        *self.is_cut.lock().unwrap() = is_cut;
    }

    /// What a machine knows of the other one.
    fn remote(&self, machine: usize) -> MutexGuard<'_, RemoteMachine> {
        self.remotes[machine].lock().unwrap()
    }

    fn root(&self, machine: usize) -> &Path {
        self.roots[machine].path()
    }

    /// Carries messages from one machine to the other until one is of this type; that one is
    /// returned and not delivered.
    fn carry_until(&self, from: usize, kind: u8) -> Vec<u8> {
        let wait = Wait::start();
        loop {
            let bytes = collect(&mut self.remote(from));
            let (found, others): (Vec<_>, _) =
                messages(&bytes).partition(|message| message[4] == kind);
            for message in others {
                self.remote(1 - from).deliver(message).unwrap();
            }
            if let Some(message) = found.first() {
                return message.to_vec();
            }
            wait.pause(|| format!("there is no message of the kind {kind}"));
        }
    }

    /// The connection is lost, and all requests without an answer fail.
    fn lose_connection(&self) {
        for machine in [0, 1] {
            self.remote(machine).disconnect();
            self.remote(machine).give_up_lost();
        }
    }

    /// Announces a client's device to the other machine.
    fn announce(&self, machine: usize, client: &Client) {
        let network = fabric(self.root(machine)).network_of(client.engine.gid());
        let device = RemoteDevice {
            network: network.unwrap(),
            ..describe(client)
        };
        self.remote(1 - machine).enter(&device).unwrap();
        self.remote(machine).admit([device.gid].into_iter());
    }

    /// A client on each machine; each knows the other.
    fn pair(&self) -> (Client, Client) {
        self.pair_with(&config("alpha"))
    }

    /// The same, with this configuration for the client on the first machine.
    fn pair_with(&self, first: &HostConfig) -> (Client, Client) {
        let alpha = Client::open(self.root(0), first);
        let beta = Client::open(self.root(1), &config("beta"));
        self.announce(0, &alpha);
        self.announce(1, &beta);
        (alpha, beta)
    }

    /// A client on each machine. The first one knows the address of the second, which has posted
    /// that many receives of 64 bytes each in one memory region.
    fn receiving_pair(&self, posted: u64) -> (Client, Client, UdAddress, Memory) {
        let (alpha, mut beta) = self.pair();
        let to = alpha.connect(beta.address());
        let memory = beta.register(vec![0; 64]);
        for wr_id in 0..posted {
            beta.post_recv(wr_id, memory.buffer(0, 64));
        }
        (alpha, beta, to, memory)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let failed = self
            .carrier
            .take()
            .is_some_and(|carrier| carrier.join().is_err());
        assert!(!failed || std::thread::panicking());
    }
}

/// Carries all waiting messages, once in each direction.
fn carry(remotes: &[Mutex<RemoteMachine>; 2]) {
    for from in [0, 1] {
        let bytes = {
            let mut remote = remotes[from].lock().unwrap();
            remote.check_peers();
            collect(&mut remote)
        };
        for message in messages(&bytes) {
            remotes[1 - from].lock().unwrap().deliver(message).unwrap();
        }
    }
}

/// The messages for the other machine.
fn collect(remote: &mut RemoteMachine) -> Vec<u8> {
    let mut bytes = Vec::new();
    remote.collect(ReceivePolicy::Until(100_000), &mut bytes);
    bytes
}

/// Splits bytes into messages.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = u32::from_le_bytes(*bytes.first_chunk()?);
        let (message, behind) = bytes.split_at(length as usize);
        bytes = behind;
        Some(message)
    })
}

fn describe(client: &Client) -> RemoteDevice {
    RemoteDevice {
        name: client.engine.device_name().clone(),
        gid: client.engine.gid(),
        profile: Some("efa2".to_owned()),
        nobody: Status::RemoteBadDestQpn,
        network: Default::default(),
    }
}

fn arm(fabric: &Fabric, rule: &str) {
    fabric.arm(&rule.parse().unwrap()).unwrap();
}

fn release(fabric: &Fabric, label: &str) {
    fabric.act(Action::Release(label.to_owned())).unwrap();
}

/// The lowest number of empty polls, of several trials, after which the client should rest.
fn fewest_polls_before_a_rest(client: &Client) -> usize {
    let polls = || {
        let mut polls = 0;
        while !client.engine.should_rest() {
            client.engine.progress();
            polls += 1;
        }
        // Has no effect while the device's thread works.
        while client.engine.should_rest() {
            client.engine.rest();
        }
        polls
    };
    // Polls before the first result were not counted.
    polls();
    (0..20).map(|_| polls()).min().unwrap()
}

/// A program whose peers are all on its own machine yields only after a thousand polls, or sleeps
/// after sixteen if it has lost its processor to others; one with peers on other machines yields
/// after fewer, and never sleeps.
#[test]
fn peers_on_other_machines_make_programs_yield_early() {
    let machines = Machines::new();
    let (mut alpha, mut beta, to, _memory) = machines.receiving_pair(1);
    assert!(alpha.post_send(1, to, INLINE));
    assert_eq!(beta.wait_ok().wr_id, 0);
    assert_eq!(alpha.wait_ok().wr_id, 1);
    for client in [&alpha, &beta] {
        let polls = fewest_polls_before_a_rest(client);
        assert!((1..16).contains(&polls), "{polls} polls");
    }
}

#[test]
fn messages_go_both_ways_and_are_answered() {
    let machines = Machines::new();
    let (mut alpha, mut beta) = machines.pair();
    let memory = beta.register(vec![0; 8928]);
    let source = alpha.register(pattern(8928, 1));
    let (to, back) = (alpha.connect(beta.address()), beta.connect(alpha.address()));
    beta.post_recv(1, memory.buffer(0, 8928));
    assert!(alpha.post_send(7, to, SendData::Buffers(&[source.buffer(0, 8928)])));
    let received = beta.wait_ok();
    assert_eq!((received.wr_id, received.byte_len()), (1, 8928));
    assert_eq!(received.opcode(), WcOpcode::Recv);
    assert_eq!(received.src_qp(), alpha.address().qpn);
    assert_eq!(received.ahn().map(|ahn| ahn.0), Some(back.ahn));
    assert_eq!(memory.bytes, source.bytes);
    assert_eq!(alpha.wait_ok().wr_id, 7);
    let small = alpha.register(vec![0; 64]);
    alpha.post_recv(2, small.buffer(0, 64));
    assert!(beta.post_send(8, back, INLINE));
    assert_eq!(alpha.wait_ok().byte_len(), 5);
    assert_eq!(beta.wait_ok().wr_id, 8);

    // Many more than a ring has room for.
    let (mut sent, mut received) = (0, 0);
    let mut done = 0;
    while done < 2000 {
        while sent < 2000 && sent - done < 500 {
            beta.post_recv(sent, memory.buffer(0, 8928));
            assert!(alpha.post_send(sent, to, SendData::Buffers(&[source.buffer(0, 8000)])));
            sent += 1;
        }
        if let Some(completion) = beta.poll() {
            assert_eq!(completion.byte_len(), 8000);
            received += 1;
        }
        if let Some(completion) = alpha.poll() {
            assert_eq!(completion.status(), Some(Status::Ok));
            done += 1;
        }
    }
    while received < 2000 {
        beta.wait_ok();
        received += 1;
    }
}

/// The carrier keeps the order of messages, but the emulated network decides the order of arrival.
/// A machine that is busy for longer than the jitter sends in order, so the test tries again; it
/// fails only if the network never changes the order.
#[test]
fn several_paths_to_a_machine_reorder() {
    for (network, is_orderly) in [
        ("paths=1", true),
        ("latency=20ms,paths=4", false),
        ("jitter=20ms", false),
    ] {
        let wait = Wait::start();
        loop {
            let machines = Machines::new();
            let (mut alpha, mut beta) = machines.pair_with(&with_network("alpha", network));
            let seen = send_numbered(&mut alpha, &mut beta, Client::poll);
            assert!(seen.is_everything_once(), "{network}");
            if seen.arrived.is_sorted() == is_orderly {
                break;
            }
            assert!(!is_orderly, "{network}: {:?}", seen.arrived);
            wait.check(|| format!("{network}: always in order"));
        }
    }
}

#[test]
fn answers_of_remote_devices_return() {
    let machines = Machines::new();
    let (mut alpha, beta) = machines.pair();
    see_refusals(&mut alpha, beta);
}

#[test]
fn remote_rdma_checks_keys_and_bounds() {
    let machines = Machines::new();
    let (mut alpha, mut beta) = machines.pair();
    beta.connect(alpha.address());
    see_rdma(&mut alpha, &mut beta, "between machines");
}

/// More data than the rings have room for. Data for a read takes the same way as requests to read,
/// and must not wait for them.
#[test]
fn mutual_reads_do_not_deadlock() {
    const LENGTH: usize = 3 << 20;
    let machines = Machines::new();
    let (mut alpha, mut beta) = machines.pair();
    let (to, back) = (alpha.connect(beta.address()), beta.connect(alpha.address()));
    let sources = [
        alpha.register(pattern(LENGTH, 1)),
        beta.register(pattern(LENGTH, 2)),
    ];
    let there = |at: usize| (sources[at].address(), sources[at].keys.rkey.0);
    let (from_beta, from_alpha) = (
        alpha.register(vec![0; LENGTH]),
        beta.register(vec![0; LENGTH]),
    );
    for round in 0..3 {
        alpha.post_read(round, to, from_beta.buffer(0, LENGTH), there(1));
        beta.post_read(round, back, from_alpha.buffer(0, LENGTH), there(0));
    }
    let mut done = [0; 2];
    while done != [3; 2] {
        for (client, done) in [&mut alpha, &mut beta].into_iter().zip(&mut done) {
            if let Some(completion) = client.poll() {
                assert_eq!(completion.status(), Some(Status::Ok));
                *done += 1;
            }
        }
    }
    assert!(from_beta.bytes == sources[1].bytes && from_alpha.bytes == sources[0].bytes);
}

#[test]
fn a_held_request_ends_on_release() {
    let machines = Machines::new();
    let (mut alpha, mut beta, to, _memory) = machines.receiving_pair(3);
    let there = fabric(machines.root(1));
    let rule = r#"label = "first", when = { operation = "send", nth = 1 }, then = "hold""#;
    arm(&there, rule);
    beta.poll();
    assert!(alpha.post_send(1, to, INLINE));
    assert!(alpha.post_send(2, to, INLINE));
    // The second one passes the rule.
    assert_eq!(wait_both(&mut alpha, &mut beta), 2);
    release(&there, "first");
    assert_eq!(wait_both(&mut alpha, &mut beta), 1);
}

/// Rules of one machine are armed on the other while it is connected, and are not sent back.
#[test]
fn rules_of_the_machine_hold_here_as_well() {
    let machines = Machines::new();
    let (mut alpha, mut beta, to, _memory) = machines.receiving_pair(3);
    let [here, there] = [0, 1].map(|machine| fabric(machines.root(machine)));
    let before = here.fault_generation();
    let rule = r#"label = "kept", when = { operation = "send", sender = "alpha", nth = 1 }, then = "hold""#;
    arm(&here, rule);
    assert_ne!(here.fault_generation(), before);
    // Immediate actions are not repeated elsewhere.
    let done = r#"then = { heal = ["alpha", "beta"] }"#;
    arm(&here, done);
    let declare = || {
        let (_, faults) = here.faults_of_this_machine().unwrap();
        let mut remote = machines.remote(1);
        let errors = remote.declare_faults(&faults);
        assert!(errors.is_empty(), "{errors:?}");
        faults.len()
    };
    assert_eq!((declare(), declare()), (1, 1));
    assert_eq!(there.armed().unwrap().len(), 1);
    // The copy is not one of the other machine's own rules.
    assert_eq!(there.faults_of_this_machine().unwrap().1, []);

    beta.poll();
    assert!(alpha.post_send(1, to, INLINE));
    assert!(alpha.post_send(2, to, INLINE));
    assert_eq!(wait_both(&mut alpha, &mut beta), 2);
    release(&here, "kept");
    declare();
    assert_eq!(wait_both(&mut alpha, &mut beta), 1);

    here.disarm(|_| true).unwrap();
    assert_eq!(declare(), 0);
    assert_eq!(there.armed().unwrap(), []);
    arm(&here, rule);
    declare();
    assert_eq!(there.armed().unwrap().len(), 1);
    machines.remote(1).leave(alpha.engine.gid());
    assert_eq!(there.armed().unwrap(), []);
}

#[test]
fn actions_on_a_host_apply_on_its_machine() {
    let machines = Machines::new();
    let (_alpha, _beta) = machines.pair();
    let here = fabric(machines.root(0));
    let beta: HostName = "beta".parse().unwrap();
    // The process that represents it is this one, which would be killed.
    for action in [Action::Kill, Action::Remove, Action::Restore] {
        let action = action(beta.clone());
        let error = here.act(action).unwrap_err().to_string();
        assert!(error.contains("beta is on the machine second"), "{error}");
    }
    assert_eq!(here.armed().unwrap(), []);
}

/// Waits for a completion of each client; returns the first one's.
fn wait_both(alpha: &mut Client, beta: &mut Client) -> u64 {
    beta.wait_ok();
    loop {
        beta.engine.progress();
        if let Some(completion) = alpha.poll() {
            assert_eq!(completion.status(), Some(Status::Ok));
            return completion.wr_id;
        }
    }
}

#[test]
fn a_vanished_machine_delivers_nothing_twice() {
    let machines = Machines::new();
    let (mut alpha, mut beta, to, _memory) = machines.receiving_pair(10);
    // The request arrives, its answer does not.
    machines.cut(true);
    assert!(alpha.post_send(1, to, INLINE));
    let mut messages = Vec::new();
    while !machines
        .remote(0)
        .collect(ReceivePolicy::Until(1), &mut messages)
        || messages.is_empty()
    {
        alpha.engine.progress();
    }
    machines.remote(1).deliver(&messages).unwrap();
    beta.wait_ok();
    for machine in [0, 1] {
        machines.remote(machine).disconnect();
    }
    assert_eq!(machines.remote(0).unanswered(), 1);
    machines.remote(0).give_up_lost();
    assert_eq!(alpha.wait().status(), Some(Status::LocalUnresponsiveRemote));
    // While the machine is away.
    assert!(alpha.post_send(2, to, INLINE));
    let mut nothing = Vec::new();
    let refused = loop {
        machines
            .remote(0)
            .collect(ReceivePolicy::Unresponsive, &mut nothing);
        if let Some(refused) = alpha.poll() {
            break refused;
        }
    };
    assert_eq!(refused.status(), Some(Status::LocalUnresponsiveRemote));
    assert!(nothing.is_empty());
    // The machine is back: later messages arrive, and no earlier ones do.
    machines.cut(false);
    assert!(alpha.post_send(3, to, INLINE));
    assert_eq!(wait_both(&mut alpha, &mut beta), 3);
    for _ in 0..100 {
        assert!(beta.poll().is_none() && alpha.poll().is_none());
    }
}

#[test]
fn a_departed_hosts_queue_pairs_are_removed() {
    let machines = Machines::new();
    let (mut alpha, beta) = machines.pair();
    let to = alpha.connect(beta.address());
    let here = fabric(machines.root(0));
    let listed = here.hosts().unwrap();
    let other = listed.iter().find(|host| host.name == *"beta").unwrap();
    assert_eq!(other.machine.as_deref(), Some("second"));
    // Neither a program of this machine nor another machine may take this host's name.
    let taken = |error: FabricError| error.to_string();
    let error = taken(here.enter_host(Some("beta"), None, 4).unwrap_err());
    assert!(
        error.contains("beta is a device of the machine second"),
        "{error}"
    );
    let mut third = RemoteMachine::new(here.clone(), "third");
    let error = taken(third.enter(&describe(&beta)).unwrap_err());
    assert!(error.contains("machine second"), "{error}");
    let error = taken(third.enter(&describe(&alpha)).unwrap_err());
    assert!(
        error.contains("alpha is a device of this machine"),
        "{error}"
    );
    let mut renamed = describe(&beta);
    renamed.name = DeviceName::new("gamma", 0, 1);
    let error = taken(third.enter(&renamed).unwrap_err());
    assert!(error.contains("GID"), "{error}");

    machines.remote(0).leave(beta.engine.gid());
    assert!(alpha.post_send(1, to, INLINE));
    let status = alpha.wait().status();
    assert!(
        matches!(
            status,
            Some(Status::RemoteBadDestQpn | Status::LocalUnreachableRemote)
        ),
        "{status:?}"
    );
    assert_eq!(here.hosts().unwrap().len(), 1);
    third.enter(&describe(&beta)).unwrap();
}

/// More devices than words that one system call can wait for. A sender to any of them wakes the
/// sleeper.
#[test]
fn each_of_many_devices_wakes_the_sleeper() {
    const DEVICES: u16 = 200;
    let root = tempfile::tempdir().unwrap();
    let mut alpha = Client::open(root.path(), &config("alpha"));
    let mut remote = RemoteMachine::new(fabric(root.path()), "second");
    let devices: Vec<RemoteDevice> = (0..DEVICES)
        .map(|number| {
            let mut device = describe(&alpha);
            device.name = DeviceName::new(&format!("beta-{number}"), 0, 1);
            device.gid.0[..2].copy_from_slice(&number.to_be_bytes());
            device
        })
        .collect();
    // A repetition changes nothing, and a device that cannot enter does not prevent the others.
    let mut twice = devices.clone();
    twice.push(describe(&alpha));
    twice.extend(devices.iter().cloned());
    let entered = remote.enter_all(&twice).unwrap();
    let refused: Vec<usize> = (0..entered.len())
        .filter(|at| entered[*at].is_err())
        .collect();
    let repeated = DEVICES + 1..2 * DEVICES + 1;
    let expected: Vec<usize> = std::iter::once(DEVICES)
        .chain(repeated)
        .map(usize::from)
        .collect();
    assert_eq!(refused, expected);
    assert!(
        remote
            .enter_all(&devices)
            .unwrap()
            .iter()
            .all(Result::is_ok)
    );
    let hosts = || fabric(root.path()).hosts().unwrap().len();
    assert_eq!(hosts(), usize::from(DEVICES) + 1);

    remote.admit([alpha.engine.gid()].into_iter());
    for device in [0, 130, 199, 1, 130] {
        let mut address = alpha.address();
        address.gid = devices[device].gid;
        let to = alpha.connect(address);
        let mut messages = Vec::new();
        let sleep = loop {
            match remote.prepare_to_sleep(ReceivePolicy::Until(1 << 20), &mut messages) {
                Some(sleep) => break sleep,
                None => alpha.engine.progress(),
            }
        };
        assert!(messages.is_empty());
        std::thread::scope(|scope| {
            let began = Instant::now();
            let sleeper = scope.spawn(move || sleep.sleep(PATIENCE));
            assert!(alpha.post_send(7, to, INLINE));
            while !sleeper.is_finished() {
                alpha.engine.progress();
            }
            assert!(began.elapsed() < PATIENCE, "nobody woke the sleeper");
        });
        let wait = Wait::start();
        while !remote.collect(ReceivePolicy::Until(1 << 20), &mut messages) {
            wait.pause(|| format!("nobody rang for device {device}"));
        }
        let gid = &devices[device].gid.0[..];
        assert!(messages.windows(16).any(|bytes| bytes == gid), "{device}");
    }
    remote.leave_if(|_| true);
    assert_eq!(hosts(), 1);
}

#[test]
fn requests_are_not_forwarded_to_third_machines() {
    let machines = Machines::new();
    let (mut alpha, beta) = machines.pair();
    // The second machine knows a device of a third one, and the first believes that it belongs to
    // the second.
    let there: Fabric = fabric(machines.root(1));
    let mut third = RemoteMachine::new(there, "third");
    let mut gamma = describe(&beta);
    gamma.name = DeviceName::new("gamma", 0, 1);
    gamma.gid.0[15] ^= 1;
    third.enter(&gamma).unwrap();
    machines.remote(0).enter(&gamma).unwrap();
    let mut address = beta.address();
    address.gid = gamma.gid;
    let to = alpha.connect(address);
    assert!(alpha.post_send(1, to, INLINE));
    assert_eq!(alpha.wait().status(), Some(Status::LocalUnreachableRemote));
}

/// Delivers a request repeatedly, while its receiver takes none, until one has to wait for room.
fn fill_ring(remote: &mut RemoteMachine, request: &[u8]) {
    assert_eq!(request[4], REQUEST);
    while !remote.has_backlog() {
        remote.deliver(request).unwrap();
    }
}

/// The outcome of a deferred request comes while the initiator's ring is full; then the connection
/// is lost, and the next one too.
#[test]
fn deferred_outcomes_outlive_the_connection() {
    let machines = Machines::new();
    let (mut alpha, mut beta, to, _memory) = machines.receiving_pair(1);
    let back = beta.connect(alpha.address());
    let there = fabric(machines.root(1));
    let rule = r#"label = "kept", when = { operation = "send", nth = 1 }, then = "hold""#;
    arm(&there, rule);
    beta.poll();
    assert!(alpha.post_send(1, to, INLINE));
    let wait = Wait::start();
    while !there.armed().unwrap().iter().any(|armed| armed.held > 0) {
        beta.engine.progress();
        wait.pause(|| "nothing is kept".to_owned());
    }
    machines.cut(true);
    release(&there, "kept");
    beta.wait_ok();
    let outcome = machines.carry_until(1, OUTCOME);
    assert!(beta.post_send(2, back, INLINE));
    let request = machines.carry_until(1, REQUEST);
    alpha
        .engine
        .with_device(|_| {
            fill_ring(&mut machines.remote(0), &request);
            assert_eq!(machines.remote(0).unanswered(), 1);
            machines.remote(0).deliver(&outcome).unwrap();
            for _ in 0..2 {
                assert_eq!(machines.remote(0).unanswered(), 0);
                machines.remote(0).disconnect();
                machines.remote(0).give_up_lost();
            }
        })
        .unwrap();
    machines.cut(false);
    let wait = Wait::start();
    let ended = loop {
        if let Some(completion) = alpha.poll() {
            break completion;
        }
        wait.check(|| "nobody told the initiator".to_owned());
    };
    assert_eq!((ended.wr_id, ended.status()), (1, Some(Status::Ok)));
}

/// A process has sent data for a read, and the connection is lost before the reader takes it. The
/// same process serves the next read, which gets the bytes that it requests.
#[test]
fn read_data_does_not_cross_connections() {
    let machines = Machines::new();
    let (mut alpha, beta) = machines.pair();
    machines.cut(true);
    let to = alpha.connect(beta.address());
    beta.connect(alpha.address());
    let local = alpha.register(vec![0; 64]);
    let sources = [1, 2].map(|seed| beta.register(pattern(64, seed)));
    let there = |at: usize| (sources[at].address(), sources[at].keys.rkey.0);
    alpha.post_read(1, to, local.buffer(0, 64), there(0));
    let request = machines.carry_until(0, REQUEST);
    machines.remote(1).deliver(&request).unwrap();
    machines.lose_connection();
    assert_eq!(alpha.wait().status(), Some(Status::LocalUnresponsiveRemote));

    alpha.post_read(2, to, local.buffer(0, 64), there(1));
    let mut brought = Vec::new();
    let wait = Wait::start();
    let ended = loop {
        if let Some(completion) = alpha.poll() {
            break completion;
        }
        beta.engine.progress();
        for from in [0, 1] {
            let bytes = collect(&mut machines.remote(from));
            for message in messages(&bytes) {
                if message[4] == READ_DATA {
                    brought.push(message[32..].to_vec());
                }
                machines.remote(1 - from).deliver(message).unwrap();
            }
        }
        wait.check(|| "the read does not end".to_owned());
    };
    assert_eq!((ended.wr_id, ended.status()), (2, Some(Status::Ok)));
    assert_eq!(local.bytes, sources[1].bytes);
    assert_eq!(brought, [sources[1].bytes.to_vec()]);
}

/// The queue for one process is bounded; otherwise no message for the others would be handled.
#[test]
fn datagrams_for_stopped_processes_do_not_accumulate() {
    const LENGTH: usize = 4096;
    let machines = Machines::new();
    let [alpha, mut beta] = [(0, "alpha"), (1, "beta")].map(|(machine, host)| {
        let root = machines.root(machine);
        let client = Client::open_with(root, &config(host), Qkey(1), Service::Ud, |_| {});
        machines.announce(machine, &client);
        client
    });
    machines.cut(true);
    let to = beta.connect(alpha.address());
    let source = beta.register(pattern(LENGTH, 1));
    assert!(beta.post_send(1, to, SendData::Buffers(&[source.buffer(0, LENGTH)])));
    let datagram = machines.carry_until(1, REQUEST);
    assert!(datagram.len() > LENGTH);
    alpha
        .engine
        .with_device(|_| {
            let mut first = machines.remote(0);
            // Together more than may wait.
            for _ in 0..(300 << 20) / LENGTH {
                first.deliver(&datagram).unwrap();
            }
            assert!(first.has_backlog());
            assert!(!first.is_overloaded());
        })
        .unwrap();
    machines.cut(false);
    let wait = Wait::start();
    while machines.remote(0).has_backlog() {
        alpha.engine.progress();
        wait.pause(|| "some still wait".to_owned());
    }
}

/// A process was killed while records waited for it, and the machine knows no such host any more:
/// no process takes them.
#[test]
fn rings_of_dead_strangers_are_given_up() {
    let machines = Machines::new();
    let (_alpha, beta) = machines.pair();
    machines.cut(true);
    let mut victim = Process::start("hammer", machines.root(0), 0);
    victim.hear();
    victim.say(&beta.address().to_text());
    victim.say("0 0");
    let mut remote = machines.remote(0);
    let wait = Wait::start();
    while !remote.has_strangers() {
        assert!(collect(&mut remote).is_empty());
        wait.pause(|| "the victim sends nothing".to_owned());
    }
    // A sleeper checks for this from time to time.
    assert!(remote.longest_sleep().is_some());
    remote.check_peers();
    assert!(remote.has_strangers());
    victim.kill();
    remote.check_peers();
    assert!(!remote.has_strangers());
    assert_eq!(remote.longest_sleep(), None);
}

/// The request would otherwise be kept until the connection is lost, because no outcome ends it.
#[test]
fn an_unawaited_read_makes_no_message() {
    let machines = Machines::new();
    let (mut alpha, beta) = machines.pair();
    machines.cut(true);
    let to = alpha.connect(beta.address());
    let local = alpha.register(vec![0; 64]);
    alpha.post_read(1, to, local.buffer(0, 64), (0, 0));
    let mut read = machines.carry_until(0, REQUEST);
    read[8..16].fill(0);
    let error = machines.remote(1).deliver(&read).unwrap_err();
    assert!(error.to_string().ends_with("a bad name"), "{error}");
}

#[test]
fn hostile_messages_are_errors_or_requests_that_fail() {
    let machines = Machines::new();
    // Many of the messages are never sent by a correct peer.
    let (mut alpha, beta, to, memory) = machines.receiving_pair(1000);
    machines.cut(true);
    let source = alpha.register(pattern(64, 1));
    let there = (memory.address(), memory.keys.rkey.0);
    assert!(alpha.post_send(1, to, INLINE));
    alpha.post_read(2, to, source.buffer(0, 64), there);
    let mut honest = Vec::new();
    // Both requests: headers of 8 words each, and data.
    while honest.len() < 2 * 104 {
        machines
            .remote(0)
            .collect(ReceivePolicy::Until(1 << 20), &mut honest);
        alpha.engine.progress();
    }
    // Each byte of the valid messages is changed, and each length shortened. None of this may cause
    // a panic, and valid requests are served afterwards.
    let mut refused = 0;
    let mut answers = Vec::new();
    for message in messages(&honest) {
        for at in 4..message.len() {
            for change in [1, 0x80, 0xff] {
                let mut hostile = message.to_vec();
                hostile[at] ^= change;
                refused += u32::from(machines.remote(1).deliver(&hostile).is_err());
            }
            refused += u32::from(machines.remote(1).deliver(&message[..at]).is_err());
            beta.engine.progress();
            machines
                .remote(1)
                .collect(ReceivePolicy::Until(1 << 20), &mut answers);
            machines.remote(1).check_peers();
        }
    }
    assert!(refused > 100, "{refused}");
    // Answers to requests that do not exist.
    for message in messages(&answers) {
        let mut other = message.to_vec();
        other[8] ^= 0x40;
        for message in [&other, message] {
            let _ = machines.remote(0).deliver(message);
        }
    }
    machines.lose_connection();
    machines.cut(false);
    assert!(alpha.post_send(100, to, INLINE));
    let ended = loop {
        beta.engine.progress();
        let completion = alpha.poll();
        if let Some(completion) = completion.filter(|completion| completion.wr_id == 100) {
            break completion;
        }
    };
    assert_eq!(ended.status(), Some(Status::Ok));
}
