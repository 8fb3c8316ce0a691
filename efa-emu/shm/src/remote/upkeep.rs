//! Outstanding requests of a machine, liveness of peers, and when the bridge's thread may sleep.

use std::sync::atomic::Ordering;
use std::time::Duration;

use efa_core::address::Gid;

use super::machine::{DeferredRequest, ReceivePolicy, RemoteMachine};
use super::message;
use super::proxy::DeviceProxy;
use super::sleep::{Alarm, Sleep};
use efa_lock_free::record::Answer;

impl RemoteMachine {
    /// Whether records are queued for full rings of local processes.
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The number of records of local processes that the machine has not answered.
    pub fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// Drops the rings of dead processes. The caller calls this only occasionally, because it makes
    /// a system call for each process.
    pub fn check_peers(&mut self) {
        for index in 0..self.devices.capacity() {
            if !self.devices.contains(index) {
                continue;
            }
            let status = self.devices[index].nobody();
            let (mut ended, mut gone) = (Vec::new(), Vec::new());
            let is_known = |sender: Gid| self.admitted.contains(&sender);
            self.devices[index].check_peers(
                is_known,
                |token, answer| ended.push((token, answer)),
                |peer| gone.push(peer),
            );
            for peer in gone {
                let deferred = self
                    .deferred
                    .extract_if(|(of, process, _), _| *of == index && *process == peer);
                let deferred: Vec<DeferredRequest> =
                    deferred.map(|(_, deferred)| deferred).collect();
                for DeferredRequest { name, pull } in deferred {
                    if let Some(pull) = pull {
                        self.pulls.remove(pull);
                    }
                    message::append_outcome(&mut self.replies, name, status.code());
                }
            }
            for (token, answer) in ended {
                match answer {
                    // The process that would have sent the outcome is dead.
                    None | Some(Answer::Deferred) => self.undelivered(token, status),
                    Some(answer) => self.answered(token, answer),
                }
            }
        }
    }

    /// Whether records of devices are waiting that are not [admitted](RemoteMachine::admit).
    pub fn has_strangers(&self) -> bool {
        self.busy_devices().any(|device| {
            let mut senders = (0..device.polled()).filter_map(|place| device.sender(place));
            senders.any(|sender| !self.admitted.contains(&sender))
        })
    }

    // --- sleep ---

    /// Interrupts [`Sleep`].
    pub fn alarm(&self) -> Alarm {
        Alarm::new(&self.alarm)
    }

    /// Makes local processes wake the next sleeper. Returns `None` if there is new work, or the
    /// alarm was rung: then the thread must not sleep.
    pub fn prepare_to_sleep(
        &mut self,
        receive_policy: ReceivePolicy,
        messages: &mut Vec<u8>,
    ) -> Option<Sleep> {
        let rung = self.alarm.load(Ordering::Acquire);
        if std::mem::replace(&mut self.heard, rung) != rung {
            return None;
        }
        let sleep = Sleep::announce(self.doorbells(), &self.alarm, rung);
        let mut is_quiet = true;
        let devices = &mut self.devices;
        self.busy.retain(|index| {
            let device = &mut devices[*index];
            is_quiet &= device.prepare_to_sleep();
            device.is_listed = device.is_busy();
            device.is_listed
        });
        // Records that may not be read do not keep the thread awake.
        let may_wait = receive_policy == ReceivePolicy::Nothing || self.has_strangers();
        (!self.collect(receive_policy, messages) && (is_quiet || may_wait)).then_some(sleep)
    }

    /// The longest time to sleep; `None` if all remaining work wakes the sleeper.
    pub fn longest_sleep(&self) -> Option<Duration> {
        const QUEUED: Duration = Duration::from_millis(1);
        const WAITING: Duration = Duration::from_millis(20);
        let is_waiting = || self.busy_devices().any(DeviceProxy::is_waiting);
        if self.has_backlog() {
            Some(QUEUED)
        } else if !self.deferred.is_empty() || is_waiting() || self.has_strangers() {
            Some(WAITING)
        } else {
            None
        }
    }
}
