//! Connection setup: each bridge dials the given addresses, and accepts connections.
//!
//! Two bridges that dial each other need only one connection. The bridge with the smaller number
//! ([`Greeting::incarnation`]) dials. It asks the other bridge to wait a few times, in case it
//! cannot be reached.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use efa_commands::Failure;
use efa_commands::signals::Signals;
use efa_options::bridge::Join;
use efa_shm::{BridgeRegistration, Fabric};
use efa_wire::address::Gid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::carrier::SHUTDOWN_TIMEOUT;
use crate::greeting::{Greeting, Verdict};
use crate::key::Key;
use crate::local::{DeviceList, LocalDevices};
use crate::machine::Machine;
use crate::output::{complain, report};
use crate::peers;
use crate::secure::{Role, SecureConnection};

/// The default port.
const PORT: u16 = 61345;

/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(3);

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The number of times that a bridge which should not dial is asked to wait.
const PATIENCE: u32 = 5;

/// Most incoming connections that are not authenticated yet.
const MOST_STRANGERS: usize = 64;

/// Interval of checks whether the shutdown notices are sent.
const LOOK_FOR_END: Duration = Duration::from_millis(1);

/// Interval of name lookups.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Interval of checks whether the bridge is in use.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The time that a bridge with `--while-used` waits for the next host, and for the first one.
const UNUSED: Duration = Duration::from_secs(2);
const UNUSED_AT_FIRST: Duration = Duration::from_secs(60);

/// A machine that was greeted.
struct KnownMachine {
    machine: Arc<Machine>,
    carrier: JoinHandle<()>,
}

/// State that all threads share.
struct BridgeState {
    greeting: Greeting,
    key: Key,
    fabric: Fabric,
    local: Arc<LocalDevices>,
    timeout: Duration,
    machines: Mutex<BTreeMap<String, KnownMachine>>,
    strangers: AtomicUsize,
    /// Makes programs wait until their hosts are announced to other machines.
    post: Mutex<Option<BridgeRegistration>>,
}

/// Runs a bridge until a signal arrives.
pub(crate) fn run(join: Join) -> Result<ExitCode, Failure> {
    // Before any thread is started, because threads inherit the signal mask.
    let signals = Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    let key = Key::load(&join.key)?;
    let peers = peers::named(&join.peer)?;
    allow_many_files();
    if join.listen.is_empty() && join.peer.is_empty() {
        return Err(Failure(
            "say where to meet other bridges: --listen ADDRESS, --peer ADDRESS, or both".to_owned(),
        ));
    }
    let name = join.machine.clone().unwrap_or_else(host_name);
    let fabric = Fabric::open(&join.fabric)?;
    let post = match join.while_used {
        false => fabric.announce_bridge()?,
        true => match fabric.announce_only_bridge()? {
            Some(post) => post,
            None => {
                report(&format!(
                    "another bridge of the fabric {} runs",
                    join.fabric
                ));
                return Ok(ExitCode::SUCCESS);
            }
        },
    };
    let local = Arc::new(LocalDevices::new());
    let bridge = Arc::new(BridgeState {
        greeting: Greeting::new(&name, &join.fabric, join.plain, join.timeout),
        key,
        fabric: fabric.clone(),
        local: Arc::clone(&local),
        timeout: join.timeout,
        machines: Mutex::default(),
        strangers: AtomicUsize::new(0),
        post: Mutex::new(Some(post)),
    });
    for address in &join.listen {
        let listener = listen(address)?;
        report(&format!(
            "machine {name} listens on {}",
            listener.local_addr()?
        ));
        let bridge = Arc::clone(&bridge);
        spawn("accept", move || bridge.accept(&listener))?;
    }
    let watching = Arc::clone(&bridge);
    let hosts = Arc::clone(&local);
    spawn("hosts", move || {
        hosts.follow(&fabric, complain, |gid| watching.mark_if_known(gid))
    })?;
    for address in peers {
        let bridge = Arc::clone(&bridge);
        spawn("dial", move || bridge.dial_all(&address))?;
    }
    let mut unused = IdleTimer::new(UNUSED_AT_FIRST);
    while signals.wait_for(POLL_INTERVAL).is_none() {
        if join.while_used && unused.is_over(&local.device_list()) {
            report("no host of this machine is left: the bridge of --uplink ends");
            break;
        }
    }
    bridge.end();
    Ok(ExitCode::SUCCESS)
}

/// The time for which the bridge was not in use.
struct IdleTimer {
    since: Instant,
    patience: Duration,
    /// The number of the last list of hosts.
    number: u64,
}

impl IdleTimer {
    fn new(patience: Duration) -> IdleTimer {
        IdleTimer {
            since: Instant::now(),
            patience,
            number: 0,
        }
    }

    /// Whether the time limit is reached.
    fn is_over(&mut self, device_list: &DeviceList) -> bool {
        // Hosts may be added and removed between two checks.
        if !device_list.devices.is_empty() || device_list.number != self.number {
            *self = IdleTimer {
                number: device_list.number,
                ..IdleTimer::new(UNUSED)
            };
        }
        self.since.elapsed() > self.patience
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}

/// Each host of another machine needs two descriptors, and the usual limit is 1024.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Without it there is room for fewer hosts, and error messages name the limit.
    let _ = setrlimit(Resource::Nofile, most);
}

fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

fn with_port(address: &str) -> Result<Vec<SocketAddr>, io::Error> {
    // An IPv6 address without brackets has no port.
    if let Ok(address) = address.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, PORT)]);
    }
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(match has_port {
        true => address.to_socket_addrs()?.collect(),
        false => (address, PORT).to_socket_addrs()?.collect(),
    })
}

fn listen(address: &str) -> Result<TcpListener, Failure> {
    let listener = with_port(address).and_then(|addresses| TcpListener::bind(&addresses[..]));
    listener.map_err(|error| Failure(format!("cannot listen on {address}: {error}")))
}

impl BridgeState {
    /// The machine of the greeting, which is added if it is new.
    fn machine(self: &Arc<Self>, theirs: &Greeting) -> io::Result<Arc<Machine>> {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(met) = machines.get(&theirs.machine) {
            return Ok(Arc::clone(&met.machine));
        }
        let machine = Arc::new(Machine::new(
            &theirs.machine,
            &self.fabric,
            &self.local,
            self.timeout,
            self.greeting.plain,
        ));
        let carried = Arc::clone(&machine);
        let met = KnownMachine {
            machine: Arc::clone(&machine),
            carrier: spawn("carry", move || carried.carry())?,
        };
        machines.insert(theirs.machine.clone(), met);
        Ok(machine)
    }

    /// Marks a device of this machine if it was announced to all reachable machines. Returns the
    /// generation of the rules that were announced to them.
    fn mark_if_known(&self, gid: Gid) -> Option<u64> {
        let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let known: Option<Vec<u64>> = machines
            .values()
            .map(|met| met.machine.knows(gid))
            .collect();
        drop(machines);
        let generation = known?.into_iter().min();
        let generation = generation.unwrap_or_else(|| self.local.device_list().generation);
        let post = self.post.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(post) = post.as_ref() {
            post.mark_known(gid, generation);
        }
        Some(generation)
    }

    fn is_connected(&self, name: &str) -> bool {
        let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        machines
            .get(name)
            .is_some_and(|met| met.machine.is_connected())
    }

    // --- those that dial here ---

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let Ok((stream, from)) = listener.accept() else {
                // One possible cause is a lack of descriptors.
                std::thread::sleep(PAUSE);
                continue;
            };
            if self.strangers.load(Ordering::Relaxed) >= MOST_STRANGERS {
                let reason = "too many connections are not authenticated";
                tracing::debug!(%from, reason, "connection refused");
                continue;
            }
            self.strangers.fetch_add(1, Ordering::Relaxed);
            let bridge = Arc::clone(self);
            let served = spawn("connection", move || bridge.serve(stream, from));
            if served.is_err() {
                self.strangers.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn serve(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let greeted = self.exchange_handshakes(stream);
        self.strangers.fetch_sub(1, Ordering::Relaxed);
        let outcome = greeted.and_then(|(connection, theirs, verdict)| match verdict {
            Verdict::Welcome => {
                let machine = self.machine(&theirs)?;
                machine.serve(connection, theirs.timeout).unwrap_or(Ok(()))
            }
            _ => Ok(()),
        });
        if let Err(reason) = &outcome {
            tracing::debug!(%from, %reason, "connection refused");
        }
        match outcome {
            Ok(()) => {}
            // A port scan.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => complain(&format!("refusing a connection from {from}: {error}")),
        }
    }

    fn exchange_handshakes(
        &self,
        stream: TcpStream,
    ) -> io::Result<(SecureConnection, Greeting, Verdict)> {
        let mut connection = SecureConnection::begin(stream, Role::Acceptor, &self.key)?;
        let judge = |theirs: &Greeting| {
            if self.is_connected(&theirs.machine) {
                Verdict::Known
            } else if theirs.incarnation > self.greeting.incarnation && theirs.patience < PATIENCE {
                Verdict::Wait
            } else {
                Verdict::Welcome
            }
        };
        let (theirs, verdict) = self.greeting.accept(&mut connection, judge)?;
        tracing::debug!(machine = theirs.machine, ?verdict, "greeting answered");
        Ok((connection, theirs, verdict))
    }

    // --- those that are dialed ---

    /// Dials all addresses of a name as long as they belong to it.
    fn dial_all(self: &Arc<Self>, name: &str) {
        let resolved = Arc::<ResolvedName>::default();
        let mut warning = ChangedWarning::default();
        loop {
            match with_port(name) {
                Ok(addresses) => {
                    warning.clear();
                    for peer in resolved.change(addresses.into_iter().collect()) {
                        let bridge = Arc::clone(self);
                        let among = Arc::clone(&resolved);
                        let dial = move || {
                            bridge.dial(peer, &among);
                            among.has_ended(peer);
                        };
                        if spawn("dial", dial).is_err() {
                            resolved.has_ended(peer);
                        }
                    }
                }
                Err(error) => warning.warn(&format!("cannot find {name}: {error}; trying again")),
            }
            std::thread::sleep(LOOK_UP);
        }
    }

    /// Dials an address repeatedly, as long as it belongs to its name.
    fn dial(self: &Arc<Self>, address: SocketAddr, among: &ResolvedName) {
        let mut warning = ChangedWarning::default();
        let mut greeting = self.greeting.clone();
        while among.is_wanted(address) {
            match self.dial_once(address, &greeting) {
                Ok(DialOutcome::Itself) => {
                    while among.is_wanted(address) {
                        std::thread::sleep(LOOK_UP);
                    }
                }
                Ok(DialOutcome::Greeted(wait)) => {
                    warning.clear();
                    greeting.patience = if wait { greeting.patience + 1 } else { 0 };
                }
                Err(reason) => {
                    tracing::debug!(%address, %reason, "no connection");
                    warning.warn(&format!(
                        "no connection with {address}: {reason}; trying again"
                    ));
                }
            }
            std::thread::sleep(PAUSE);
        }
        report(&format!(
            "{address} is dialed no longer: its name stands for others"
        ));
    }

    fn dial_once(self: &Arc<Self>, address: SocketAddr, own: &Greeting) -> io::Result<DialOutcome> {
        let stream = TcpStream::connect_timeout(&address, CONNECT)?;
        let mut connection = SecureConnection::begin(stream, Role::Dialer, &self.key)?;
        let (theirs, verdict) = own.dial(&mut connection)?;
        tracing::debug!(%address, machine = theirs.machine, ?verdict, "greeting was answered");
        match verdict {
            Verdict::Itself => return Ok(DialOutcome::Itself),
            Verdict::Refused(reason) => return Err(io::Error::other(reason)),
            Verdict::Wait => return Ok(DialOutcome::Greeted(true)),
            Verdict::Known => {}
            Verdict::Welcome => {
                if let Some(served) = self.machine(&theirs)?.serve(connection, theirs.timeout) {
                    served?;
                    return Ok(DialOutcome::Greeted(false));
                }
            }
        }
        // The other connection is used while it exists.
        while self.is_connected(&theirs.machine) {
            std::thread::sleep(PAUSE);
        }
        Ok(DialOutcome::Greeted(false))
    }

    /// Notifies the other machines of the shutdown, and leaves the fabric.
    fn end(&self) {
        let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        machines.values().for_each(|met| met.machine.end());
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        let carry = || machines.values().any(|met| !met.carrier.is_finished());
        while carry() && Instant::now() < until {
            std::thread::sleep(LOOK_FOR_END);
        }
        machines.values().for_each(|met| met.machine.leave());
        drop(
            self.post
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }
}

/// The addresses of a name.
#[derive(Default)]
struct ResolvedName {
    addresses: Mutex<Addresses>,
}

#[derive(Default)]
struct Addresses {
    /// The current addresses of the name.
    wanted: HashSet<SocketAddr>,
    /// The addresses that have a thread.
    running: HashSet<SocketAddr>,
}

impl ResolvedName {
    fn lock(&self) -> MutexGuard<'_, Addresses> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the current addresses of the name. Returns those that need a thread.
    fn change(&self, wanted: HashSet<SocketAddr>) -> Vec<SocketAddr> {
        let mut addresses = self.lock();
        let new: Vec<_> = wanted.difference(&addresses.running).copied().collect();
        addresses.running.extend(&new);
        addresses.wanted = wanted;
        new
    }

    fn is_wanted(&self, address: SocketAddr) -> bool {
        self.lock().wanted.contains(&address)
    }

    /// Records that the address's thread has ended.
    fn has_ended(&self, address: SocketAddr) {
        self.lock().running.remove(&address);
    }
}

/// The outcome of dialing.
enum DialOutcome {
    /// The address is this machine's own.
    Itself,
    /// A connection exists, or the other bridges make one. The flag shows whether the other end
    /// reported it.
    Greeted(bool),
}

/// Prints a warning once, until it changes.
#[derive(Default)]
struct ChangedWarning(String);

impl ChangedWarning {
    fn warn(&mut self, text: &str) {
        if self.0 != text {
            text.clone_into(&mut self.0);
            complain(text);
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
