//! Commands for completion counters.

use std::sync::Arc;

use efa_core::address::Qpn;

use super::comp_counter::{CompCounter, CountedOps, CounterEntry, CounterId};
use super::error::Error;
use super::queue_pair::QpState;
use super::state::Device;
use crate::counters::Command;

impl Device {
    /// Creates a completion counter with these values. [`Error::Unsupported`] if the device's
    /// generation has none.
    pub fn create_counter(&mut self, counter: Arc<CompCounter>) -> Result<CounterId, Error> {
        self.command(Command::Other, |device| {
            device.check_present()?;
            let most = device.profile.max_comp_counters as usize;
            if most == 0 {
                return Err(Error::Unsupported("completion counters"));
            }
            let counters = &mut device.comp_counters.counters;
            if counters.len() >= most {
                return Err(Error::Exhausted("completion counter"));
            }
            let id = counters.insert(CounterEntry { counter, users: 0 });
            Ok(CounterId(id as u32))
        })
    }

    /// Destroys a completion counter; [`Error::Busy`] while it is attached to a queue pair.
    pub fn destroy_counter(&mut self, id: CounterId) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let counters = &mut device.comp_counters.counters;
            match counters.get(id.0 as usize) {
                None => Err(Error::not_found("completion counter", id.0)),
                Some(entry) if entry.users > 0 => Err(Error::Busy("completion counter")),
                Some(_) => {
                    counters.remove(id.0 as usize);
                    Ok(())
                }
            }
        })
    }

    /// Counts these operations of a queue pair from now on, until it is destroyed.
    /// [`Error::Invalid`] unless the queue pair is in the state reset or init; [`Error::Busy`] if
    /// one of the operations has a counter.
    pub fn attach_counter(
        &mut self,
        qpn: Qpn,
        id: CounterId,
        ops: CountedOps,
    ) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            device.check_present()?;
            let entry = device.comp_counters.counters.get_mut(id.0 as usize);
            let entry = entry.ok_or_else(|| Error::not_found("completion counter", id.0))?;
            let qp = device.qps.get_mut(qpn);
            let qp = qp.ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
            if !matches!(qp.state, QpState::Reset | QpState::Init) {
                return Err(Error::invalid("queue pair state", qp.state as u64));
            }
            let attached = device.cqs.counters_of(qpn);
            if attached.counted().intersects(ops) {
                return Err(Error::Busy("counter of the operation"));
            }
            attached.0.push((ops, id, Arc::clone(&entry.counter)));
            entry.users += 1;
            qp.counted = true;
            for queue in [qp.config.send_cq, qp.config.recv_cq] {
                device.cqs.count_entries(queue);
            }
            Ok(())
        })
    }

    /// Detaches the counters of a destroyed queue pair.
    pub(super) fn detach_counters(&mut self, qpn: Qpn) {
        let attached = self.cqs.take_counters(qpn);
        for (_, id, _) in attached.into_iter().flat_map(|attached| attached.0) {
            if let Some(entry) = self.comp_counters.counters.get_mut(id.0 as usize) {
                entry.users -= 1;
            }
        }
    }
}
