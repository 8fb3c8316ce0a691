//! The state of an opened device, its counters, its port and its removal.

use efa_core::address::{Gid, Qpn};
use slab::Slab;

use super::address_book::AddressBook;
use super::comp_counter::CounterTable;
use super::connected::Connected;
use super::cq_table::CqTable;
use super::error::Error;
use super::event::DeviceEvent;
use super::initiator::Initiator;
use super::qp_table::QpTable;
use super::queue_pair::QpState;
use super::regions::RegionTable;
use crate::counters::{Command, CommandCounters, Counters, DiagnosticCounters, Statistics};
use crate::port::PortLink;
use crate::profile::Profile;

/// One opened device. See the [module documentation](super).
pub struct Device {
    pub(super) profile: Profile,
    pub(super) gid: Gid,
    /// Objects that use each protection domain.
    pub(super) pds: Slab<u32>,
    pub(super) regions: RegionTable,
    pub(super) book: AddressBook,
    pub(super) cqs: CqTable,
    pub(super) qps: QpTable,
    pub(super) initiator: Initiator,
    pub(super) counters: Counters,
    /// Without overruns, which the completion queues count.
    pub(super) diagnostics: DiagnosticCounters,
    pub(super) commands: CommandCounters,
    /// The last receiving queue pair, for [`Device::look_ahead`].
    pub(super) last_receiver: Option<Qpn>,
    pub(super) comp_counters: CounterTable,
    /// The device was removed. Only destroying objects is allowed.
    pub(super) removed: bool,
    pub(super) port: PortLink,
    pub(super) connected: Connected,
}

impl Device {
    /// Creates a device of this generation whose port has this GID.
    pub fn new(profile: Profile, gid: Gid) -> Self {
        Device {
            gid,
            pds: Slab::new(),
            regions: RegionTable::new(profile.max_mr),
            book: AddressBook::new(profile.max_ah),
            cqs: CqTable::default(),
            qps: QpTable::new(),
            initiator: Initiator::default(),
            counters: Counters::default(),
            diagnostics: DiagnosticCounters::default(),
            commands: CommandCounters::default(),
            last_receiver: None,
            comp_counters: CounterTable::default(),
            removed: false,
            port: PortLink::default(),
            connected: Connected::new(),
            profile,
        }
    }

    /// The device's generation.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The port's GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The counters of the port since the device was opened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The counters of the port and of commands since the device was opened.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            commands: self.commands,
            port: self.counters,
            diagnostics: DiagnosticCounters {
                cq_overruns: self.cqs.overruns(),
                ..self.diagnostics
            },
        }
    }

    /// Executes a command and counts it. The device's commands call this method. Other callers need
    /// it for commands that they refuse before the device gets them.
    ///
    /// A removed device refuses to create objects.
    pub fn command<T, E: From<Error>>(
        &mut self,
        command: Command,
        carry_out: impl FnOnce(&mut Device) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = match self.removed && command != Command::Other {
            true => Err(Error::Removed.into()),
            false => carry_out(self),
        };
        self.commands.count(command, result.is_err());
        if result.is_err() {
            tracing::debug!(gid = %self.gid, ?command, "command refused");
        }
        result
    }

    /// Removes the device: all queue pairs fail, and outstanding requests are flushed. Later
    /// requests are flushed or refused; objects can still be destroyed.
    pub fn remove(&mut self) {
        if self.removed {
            return;
        }
        let all: Vec<_> = self.qps.numbers().collect();
        for qpn in all {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.state = QpState::Error;
                self.flush(qpn);
            }
        }
        for qpn in self.connected.numbers() {
            self.fail_connected(qpn, None);
        }
        self.removed = true;
        self.cqs.raise(DeviceEvent::Fatal);
    }

    /// Returns [`Error::Removed`] after [`Device::remove`].
    pub fn check_present(&self) -> Result<(), Error> {
        match self.removed {
            true => Err(Error::Removed),
            false => Ok(()),
        }
    }

    /// Sets the port's link state, and raises events for the changes.
    pub fn set_port(&mut self, port: PortLink) {
        let before = std::mem::replace(&mut self.port, port);
        if port.is_down != before.is_down {
            self.cqs.raise(match port.is_down {
                true => DeviceEvent::PortError,
                false => DeviceEvent::PortActive,
            });
        }
        if port.speed != before.speed {
            self.cqs.raise(DeviceEvent::SpeedChange);
        }
    }

    /// The port's link state.
    pub fn port(&self) -> PortLink {
        self.port
    }
}
