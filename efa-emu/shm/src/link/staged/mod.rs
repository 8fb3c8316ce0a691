//! Staged faults between processes: the fabric's board of rules as one device evaluates it.

mod answers;
mod carried;
mod command;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use efa_core::address::{Gid, Qpn};

use crate::error::FabricError;
use crate::fabric::board::FaultBoard;
use crate::fabric::directory::Fabric;
use crate::fabric::host::Host;
use crate::fabric::paths::table_path;
use crate::identity::device_name::DeviceName;
use crate::identity::qpn::HostTable;
use crate::process::warning::Warning;
use efa_device_model::device::PortLink;
use efa_device_model::fault::{
    AdminCommand, Event, EventOutcome, FaultId, Faults, Trigger, Verdict,
};

pub(crate) use answers::{LateAnswer, LateAnswers};
pub use carried::CarriedFault;

/// The interval at which a device reads the board while a rule is armed.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A change on the board.
#[derive(Debug)]
pub(crate) struct RuleChange {
    /// Rules whose held frames are released.
    pub(crate) released: Vec<FaultId>,
}

/// The rules in the state that one device has read.
pub(crate) struct StagedRules {
    fabric: Fabric,
    board: Arc<FaultBoard>,
    known: u64,
    faults: Faults,
    /// Orders to release that were carried out, by rule.
    releases: HashMap<FaultId, u64>,
    names: RefCell<HashMap<Gid, Option<DeviceName>>>,
}

impl StagedRules {
    pub(crate) fn new(fabric: &Fabric) -> Result<StagedRules, FabricError> {
        Ok(StagedRules::on(fabric, fabric.board()?))
    }

    fn on(fabric: &Fabric, board: Arc<FaultBoard>) -> StagedRules {
        StagedRules {
            fabric: fabric.clone(),
            // Differs from the board's, so that the first look reads the board.
            known: board.generation().wrapping_sub(1),
            board,
            faults: Faults::default(),
            releases: HashMap::new(),
            names: RefCell::default(),
        }
    }

    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        !self.faults.is_empty()
    }

    pub(crate) fn has(&self, id: FaultId) -> bool {
        self.faults.is_armed(id)
    }

    /// Whether the board has not changed since it was read.
    #[inline(always)]
    pub(crate) fn is_current(&self) -> bool {
        self.board.generation() == self.known
    }

    /// Handles changes of the board: reads one word if there are none.
    #[inline]
    pub(crate) fn look(&mut self) -> Option<RuleChange> {
        if self.is_current() {
            return None;
        }
        Some(self.read_board())
    }

    #[cold]
    fn read_board(&mut self) -> RuleChange {
        self.known = self.board.generation();
        // Acquires the writes that were made before the generation was raised.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        let list = self.board.list();
        let is_there = |id| list.iter().any(|armed| armed.id == id);
        self.faults.retain(is_there);
        self.releases.retain(|id, _| is_there(*id));
        self.names.get_mut().clear();
        let mut released = Vec::new();
        for armed in list {
            let orders = self.board.releases(armed.id);
            if !self.faults.is_armed(armed.id) {
                self.faults.arm(armed.id, armed.fault);
                self.releases.insert(armed.id, orders);
            } else if self.releases.insert(armed.id, orders) != Some(orders) {
                released.push(armed.id);
            }
        }
        RuleChange { released }
    }

    /// Decides about an event. Hosts that an event kills are killed here; all other side effects of
    /// rules are left to [`StagedRules::execute`].
    pub(crate) fn decide(&mut self, event: &Event<'_>) -> Verdict {
        let StagedRules {
            fabric,
            names,
            faults,
            board,
            ..
        } = self;
        let mut verdict = faults.decide(event, &is_named(fabric, names), &**board);
        self.execute(verdict.take_deaths());
        verdict
    }

    /// Decides about an event that is over with the decision.
    fn decide_at_once(&mut self, event: &Event<'_>) -> Option<EventOutcome> {
        let Verdict { outcome, triggers } = self.decide(event);
        self.execute(triggers);
        outcome.map(|(_, outcome)| outcome)
    }

    /// Carries out the side effects of rules, once the event itself has proceeded.
    pub(crate) fn execute(&self, triggers: Vec<Trigger>) {
        for trigger in triggers {
            let done = self.fabric.execute(&trigger, &self.board);
            if let Err(error) = done {
                Warning::FaultWithoutEffect
                    .warn_once(format_args!("a staged fault cannot do its work: {error}"));
            }
        }
    }

    /// Records that this device has released all frames that these rules held.
    pub(crate) fn note_released(&mut self, faults: &[FaultId]) {
        for fault in faults {
            self.releases.insert(*fault, self.board.releases(*fault));
        }
    }

    /// The error number of a registration that a rule fails.
    pub(crate) fn registration_failure(&mut self, host: Gid, length: u64) -> Option<i32> {
        match self.decide_at_once(&Event::Registration { host, length })? {
            EventOutcome::Fail(errno) => Some(errno),
            _ => None,
        }
    }

    /// The number that a rule sets for the next queue pair.
    pub(crate) fn preferred_qpn(&mut self, host: Gid) -> Option<Qpn> {
        match self.decide_at_once(&Event::QueuePair { host })? {
            EventOutcome::Qpn(qpn) => Some(qpn),
            _ => None,
        }
    }

    /// The effect of rules on a command of a device's admin queue.
    pub(crate) fn command_outcome(
        &mut self,
        host: Gid,
        command: AdminCommand,
    ) -> Option<EventOutcome> {
        self.decide_at_once(&Event::Command { host, command })
    }

    pub(crate) fn port(&self, gid: Gid) -> PortLink {
        let named = is_named(&self.fabric, &self.names);
        self.faults.port(gid, &named, &*self.board)
    }

    /// Counts one more or one less frame that a device holds for a rule.
    pub(crate) fn note_held(&self, fault: FaultId, change: i64) {
        self.board.note_held(fault, change);
    }
}

/// Whether a name is a device's or its host's. The name of a removed device is known if it was
/// last_poll up before.
fn is_named<'a>(
    fabric: &'a Fabric,
    names: &'a RefCell<HashMap<Gid, Option<DeviceName>>>,
) -> impl Fn(Gid, &str) -> bool + 'a {
    move |gid, name| {
        let mut names = names.borrow_mut();
        let known = names.entry(gid).or_insert_with(|| {
            let path = table_path(&fabric.host_directory(gid));
            let table = HostTable::open(&path, gid).ok().flatten();
            table.map(|table| table.name())
        });
        known.as_ref().is_some_and(|known| known.is_meant_by(name))
    }
}

/// The rules of a fabric, for readers of the [state of ports](PortState). A forked process may use
/// them, too.
#[derive(Clone)]
pub struct PortRules {
    fabric: Fabric,
    board: Arc<FaultBoard>,
}

impl PortRules {
    /// The rules of a fabric.
    pub fn of(fabric: &Fabric) -> Result<PortRules, FabricError> {
        Ok(PortRules {
            fabric: fabric.clone(),
            board: fabric.board()?,
        })
    }
}

/// The state of a device's port, for processes on the device's host.
pub struct PortState {
    staged: StagedRules,
    gid: Gid,
}

impl PortState {
    /// The state of a device's ports, by the rules of its fabric.
    pub fn new(rules: &PortRules, device: &Host) -> PortState {
        PortState {
            staged: StagedRules::on(&rules.fabric, Arc::clone(&rules.board)),
            gid: device.gid(),
        }
    }

    /// The port's link now.
    pub fn link(&mut self) -> PortLink {
        self.staged.look();
        self.staged.port(self.gid)
    }
}
