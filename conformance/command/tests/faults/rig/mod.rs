//! Endpoints, each in its own process on an emulated host, and the fabric's fault rules.

mod operations;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use efa_device_model::fault::Action;
use efa_play::application::{Failure, OperationRequest, Report, Started, Token};
use efa_play::drive::{Bytes, Command, EndpointOptions, Event};
use efa_play::libfabric::{Library, Provider, Version};
use efa_play::operation::EndpointIndex;
use efa_play::player::{Host, Launcher, Player, PlayerError, Program};
use efa_play::scenario::{Capability, Settings};
use efa_shm::{ArmedFault, Fabric};
use efa_testing::patience::{PATIENCE, Wait};
use efa_testing::workspace;

pub(crate) use operations::{COMPARE, FETCH, Region, UPDATE};

/// The quiet time before [`Rig::settle`] returns.
const QUIET: Duration = Duration::from_millis(150);

/// The implementation under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Software {
    /// The installed libfabric.
    Stock,
    /// The protocol engine, over the same emulated verbs.
    Engine,
}

/// The configuration of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    host: Host,
    software: Software,
    settings: Settings,
}

impl Side {
    pub(crate) fn new(name: &str, software: Software) -> Side {
        let host = Host {
            name: name.to_owned(),
            ..Host::default()
        };
        Side {
            host,
            software,
            settings: Settings::default(),
        }
        // A library that libfabric loads would write a file when the process crashes.
        .env("HFI_NO_BACKTRACE", "1")
        .env("IPATH_NO_BACKTRACE", "1")
    }

    pub(crate) fn option(mut self, option: &str, value: &str) -> Side {
        self.host
            .options
            .extend([option.to_owned(), value.to_owned()]);
        self
    }

    /// Arms the rules of a recipe while its process runs.
    pub(crate) fn recipe(self, name: &str) -> Side {
        let path = format!("{}/../faults/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        self.option("--faults", &path)
    }

    pub(crate) fn env(mut self, variable: &str, value: &str) -> Side {
        let pair = (variable.to_owned(), value.to_owned());
        self.host.environment.extend([pair]);
        self
    }

    /// Settings of the engine.
    pub(crate) fn settings(mut self, settings: Settings) -> Side {
        self.settings = settings;
        self
    }

    /// Sets the file for standard error.
    pub(crate) fn log(mut self, path: &Path) -> Side {
        self.host.log = Some(path.to_owned());
        self
    }

    pub(crate) fn profile(mut self, profile: &str) -> Side {
        self.host.profile = Some(profile.to_owned());
        self
    }
}

/// The release of stock libfabric whose behaviour the tests require.
const STOCK: Version = Version {
    major: 1,
    minor: 17,
};

/// Returns whether the tests can run here; prints why if not.
pub(crate) fn can_run(software: Software) -> bool {
    if software == Software::Engine {
        return true;
    }
    match Library::load(Path::new(Library::DEFAULT)) {
        Ok(library) if library.version() == STOCK => true,
        Ok(library) => {
            efa_testing::skip(format_args!(
                "what libfabric {STOCK} does is tested, and {} is installed",
                library.version()
            ));
            false
        }
        Err(error) => {
            efa_testing::skip(error);
            false
        }
    }
}

/// Some endpoints that know each other.
pub(crate) struct Rig {
    launcher: Launcher,
    pub(crate) players: Vec<Option<Player>>,
    sides: Vec<Side>,
    addresses: Vec<Vec<u8>>,
    next: Token,
    order: Vec<Token>,
    reports: HashMap<Token, Report>,
    /// Reports that belong to no operation, with their endpoints.
    pub(crate) events: Vec<(EndpointIndex, String)>,
}

impl Rig {
    /// Endpoints on their own hosts, with full address vectors, that have made progress once.
    pub(crate) fn new(sides: impl IntoIterator<Item = Side>) -> Rig {
        let mut rig = Rig::launch(sides);
        for at in 0..rig.sides.len() {
            for peer in (0..rig.sides.len()).filter(|peer| *peer != at) {
                rig.introduce(at, peer);
            }
        }
        // Stock libfabric posts its receive buffers when it first makes progress.
        rig.settle();
        rig
    }

    /// Endpoints on hosts `a` and `b`.
    pub(crate) fn pair(software: Software) -> Rig {
        Rig::new(["a", "b"].map(|name| Side::new(name, software)))
    }

    /// As [`Rig::pair`], with a recipe of `b`.
    pub(crate) fn staged(software: Software, recipe: &str) -> Rig {
        let b = Side::new("b", software).recipe(recipe);
        Rig::new([Side::new("a", software), b])
    }

    /// Exchanges a message in each direction between the first two endpoints, so that each has the
    /// other's HANDSHAKE.
    pub(crate) fn exchange_handshakes(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            self.exchange(from, to, 1000);
        }
    }

    /// Sends one short message.
    pub(crate) fn exchange(&mut self, from: EndpointIndex, to: EndpointIndex, tag: u64) {
        let arrives = self.trecv(to, tag, 8);
        let sent = self.tsend(from, to, tag, 8);
        self.wait_ok(&[arrives, sent]);
    }

    fn launch(sides: impl IntoIterator<Item = Side>) -> Rig {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let launcher = Launcher {
            efa_emu: workspace::emulator(),
            efa_conformance: workspace::conformance(),
            fabric: format!("faults-{}-{count}", std::process::id()),
        };
        let mut rig = Rig {
            launcher,
            players: Vec::new(),
            sides: Vec::new(),
            addresses: Vec::new(),
            next: 0,
            order: Vec::new(),
            reports: HashMap::new(),
            events: Vec::new(),
        };
        for side in sides {
            rig.join(side);
        }
        rig
    }

    /// Starts another endpoint, with an empty address vector.
    pub(crate) fn join(&mut self, side: Side) -> EndpointIndex {
        let program = match side.software {
            Software::Stock => Program::Libfabric {
                library: Library::DEFAULT.into(),
                provider: Provider::efa(),
            },
            Software::Engine => Program::Core,
        };
        let player = Player::launch(&self.launcher, &program, &side.host).unwrap();
        self.players.push(Some(player));
        self.sides.push(side);
        let at = self.players.len() - 1;
        self.addresses.push(Vec::new());
        self.open(at);
        at
    }

    /// Opens the endpoint of a process; closes an earlier one first.
    pub(crate) fn open(&mut self, at: EndpointIndex) {
        let command = Command::Open(EndpointOptions {
            api: Version::BASELINE_API,
            capabilities: vec![
                Capability::Msg,
                Capability::Tagged,
                Capability::Rma,
                Capability::Atomic,
                Capability::Source,
            ],
            register_local: false,
            max_message: None,
            device: None,
            settings: self.sides[at].settings.clone(),
        });
        match self.ask(at, &command) {
            Ok(Event::Opened { address }) => self.addresses[at] = address.0,
            other => panic!("{other:?}"),
        }
    }

    /// Closes an endpoint; its process continues.
    pub(crate) fn close(&mut self, at: EndpointIndex) {
        assert_eq!(self.ask(at, &Command::Close {}).unwrap(), Event::Done {});
    }

    /// Closes an endpoint whose close waits for completions that a rule holds. The close must not
    /// end before they are released.
    pub(crate) fn close_upon_release(&mut self, at: EndpointIndex, label: &str) {
        let player = self.players[at].as_mut().expect("the endpoint lives");
        player.send(&Command::Close {}).unwrap();
        if let Some(event) = player.receive(Duration::from_secs(1)).unwrap() {
            panic!("closing does not wait: {event:?}");
        }
        self.release(label);
        loop {
            let player = self.players[at].as_mut().expect("the endpoint lives");
            match player.receive(PATIENCE).unwrap() {
                Some(Event::Done {}) => return,
                Some(event) => self.note(at, event),
                None => panic!("closing does not end"),
            }
        }
    }

    /// Inserts `peer` into the address vector of `at`.
    pub(crate) fn introduce(&mut self, at: EndpointIndex, peer: EndpointIndex) {
        let address = Bytes(self.addresses[peer].clone());
        let answer = self.ask(at, &Command::Insert { peer, address }).unwrap();
        assert_eq!(answer, Event::Done {});
    }

    /// Removes `peer` from the address vector of `at`.
    pub(crate) fn remove(&mut self, at: EndpointIndex, peer: EndpointIndex) {
        let answer = self.ask(at, &Command::Remove { peer }).unwrap();
        assert_eq!(answer, Event::Done {});
    }

    /// An endpoint's queue pair number.
    pub(crate) fn qpn(&self, at: EndpointIndex) -> u16 {
        let address = &self.addresses[at];
        u16::from_le_bytes([address[16], address[17]])
    }

    /// An endpoint's Q-key.
    pub(crate) fn qkey(&self, at: EndpointIndex) -> u32 {
        let bytes = self.addresses[at][20..24].try_into().unwrap();
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn fabric_name(&self) -> &str {
        &self.launcher.fabric
    }

    fn fabric(&self) -> Fabric {
        Fabric::open(&self.launcher.fabric).unwrap()
    }

    /// Arms a rule.
    pub(crate) fn fault(&self, rule: &str) {
        self.fabric().arm(&rule.parse().unwrap()).unwrap();
    }

    pub(crate) fn act(&self, action: Action) {
        self.fabric().act(action).unwrap();
    }

    /// Releases the events that rules with this label hold.
    pub(crate) fn release(&self, label: &str) {
        self.act(Action::Release(label.to_owned()));
    }

    /// Disarms all rules, which releases the events that they hold.
    pub(crate) fn clear(&self) {
        self.fabric().disarm(|_| true).unwrap();
    }

    /// The only armed rule with this label.
    pub(crate) fn armed(&self, label: &str) -> ArmedFault {
        let found = self.all_armed(label);
        let [only] = &found[..] else {
            panic!("armed with the label {label:?}: {found:?}");
        };
        only.clone()
    }

    /// The armed rules with this label.
    pub(crate) fn all_armed(&self, label: &str) -> Vec<ArmedFault> {
        let all = self.fabric().armed().unwrap();
        let labelled = all.into_iter().filter(|armed| armed.fault.label == label);
        labelled.collect()
    }

    /// Waits until a rule was applied `times` times.
    pub(crate) fn await_applied(&mut self, label: &str, times: u64) {
        self.await_armed(
            label,
            |rules| matches!(rules, [rule] if rule.applied >= times),
        );
    }

    /// Waits until each rule with this label holds as many frames: it counts as applied before it
    /// holds them.
    pub(crate) fn await_held(&mut self, label: &str, frames: &[u64]) {
        self.await_armed(label, |rules| {
            rules.iter().map(|it| it.held).eq(frames.iter().copied())
        });
    }

    fn await_armed(&mut self, label: &str, is_so: impl Fn(&[ArmedFault]) -> bool) {
        let wait = Wait::start();
        while !is_so(&self.all_armed(label)) {
            wait.check(|| format!("{:?}", self.all_armed(label)));
            self.turn();
        }
    }

    /// Ends the process of an endpoint as `kill -9` does.
    pub(crate) fn kill(&mut self, at: EndpointIndex) {
        let host = self.sides[at].host.name.clone();
        self.act(Action::Kill(host.into()));
        self.forget(at);
    }

    /// Ignores an endpoint whose process was killed from now on.
    pub(crate) fn forget(&mut self, at: EndpointIndex) {
        drop(self.players[at].take());
    }

    /// Waits for the end of an endpoint's process, which makes progress until then.
    pub(crate) fn await_death(&mut self, at: EndpointIndex) {
        let wait = Wait::start();
        while let Some(player) = &mut self.players[at] {
            match player.receive(Duration::from_millis(2)) {
                Ok(None) => self.turn_of(&[at]),
                Ok(Some(event)) => self.note(at, event),
                Err(_) => self.forget(at),
            }
            wait.check(|| "it lives on".into());
        }
    }

    fn ask(&mut self, at: EndpointIndex, command: &Command) -> Result<Event, PlayerError> {
        let mut aside = Vec::new();
        let player = self.players[at].as_mut().expect("the endpoint lives");
        let answer = player.ask(command, &mut aside);
        for event in aside {
            self.note(at, event);
        }
        answer
    }

    fn note(&mut self, at: EndpointIndex, event: Event) {
        match event {
            Event::Completed(report) => {
                if let Some(token) = report.token {
                    self.order.push(token);
                    let before = self.reports.insert(token, report);
                    assert!(before.is_none(), "operation {token} completed twice");
                }
            }
            Event::Reported { text } => self.events.push((at, text)),
            other => panic!("{other:?}"),
        }
    }

    /// Starts an operation; all endpoints make progress while resources are exhausted. `seed` names
    /// the message that must arrive.
    fn start(
        &mut self,
        at: EndpointIndex,
        request: OperationRequest,
        seed: Option<u64>,
    ) -> Result<(Token, Started), PlayerError> {
        let token = self.next;
        self.next += 1;
        let command = Command::Start {
            id: token,
            operation: request,
            expect: seed,
        };
        let wait = Wait::start();
        loop {
            match self.ask(at, &command)?.into_started() {
                Ok(started) => return Ok((token, started)),
                Err(Event::Again {}) => {
                    wait.check(|| "FI_EAGAIN without an end".into());
                    self.turn();
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// All endpoints make progress for a moment.
    pub(crate) fn turn(&mut self) {
        let all: Vec<_> = (0..self.players.len()).collect();
        self.turn_of(&all);
    }

    /// Some endpoints make progress for a moment.
    pub(crate) fn turn_of(&mut self, only: &[EndpointIndex]) {
        for command in [Command::Progress {}, Command::Pause {}] {
            for at in only {
                if self.players[*at].is_some() {
                    // The death of a process is noticed by operations that never complete, or by
                    // `await_death`.
                    let _ = self.ask(*at, &command);
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Makes progress until nothing more happens for a while.
    pub(crate) fn settle(&mut self) {
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET {
            let before = (self.order.len(), self.events.len());
            self.turn();
            if (self.order.len(), self.events.len()) != before {
                quiet_since = Instant::now();
            }
        }
    }

    /// Makes progress until these operations have completed; returns their reports.
    #[track_caller]
    pub(crate) fn wait(&mut self, tokens: &[Token]) -> Vec<Report> {
        let wait = Wait::start();
        while !tokens.iter().all(|token| self.is_done(*token)) {
            wait.check(|| {
                let done = self.done(tokens);
                format!("{tokens:?} done: {done:?}, events: {:?}", self.events)
            });
            self.turn();
        }
        tokens
            .iter()
            .map(|token| self.reports[token].clone())
            .collect()
    }

    /// As [`Rig::wait`]; all operations must succeed.
    #[track_caller]
    pub(crate) fn wait_ok(&mut self, tokens: &[Token]) -> Vec<Report> {
        let reports = self.wait(tokens);
        for report in &reports {
            assert_eq!(report.failure, None, "operation {:?}", report.token);
            assert_eq!(report.difference, None, "operation {:?}", report.token);
        }
        reports
    }

    pub(crate) fn is_done(&self, token: Token) -> bool {
        self.reports.contains_key(&token)
    }

    /// Waits for an operation; returns its error number, 0 if it succeeded.
    #[track_caller]
    pub(crate) fn code(&mut self, token: Token) -> i32 {
        self.failure(token).map_or(0, |failure| failure.code)
    }

    /// Waits for an operation; returns why it failed, `None` if it succeeded.
    #[track_caller]
    pub(crate) fn failure(&mut self, token: Token) -> Option<Failure> {
        self.wait(&[token]).remove(0).failure
    }

    /// Returns which of these operations have completed.
    pub(crate) fn done(&self, tokens: &[Token]) -> Vec<bool> {
        tokens.iter().map(|token| self.is_done(*token)).collect()
    }

    /// The operations in the order of their completions.
    pub(crate) fn order(&self) -> &[Token] {
        &self.order
    }

    /// Ends all processes regularly.
    pub(crate) fn end(mut self) {
        for player in self.players.drain(..).flatten() {
            player.end().unwrap();
        }
    }
}

/// Kills the hosts of a failed test: stock libfabric's `fi_close` may wait forever for a completion
/// that a rule holds.
impl Drop for Rig {
    fn drop(&mut self) {
        let Ok(fabric) = Fabric::open(&self.launcher.fabric) else {
            return;
        };
        for (side, player) in self.sides.iter().zip(&self.players) {
            if player.is_some() {
                // A host that has ended meanwhile is no longer in the fabric.
                let _ = fabric.act(Action::Kill(side.host.name.clone().into()));
            }
        }
    }
}
