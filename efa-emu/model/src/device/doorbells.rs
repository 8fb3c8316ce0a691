//! Doorbells of send queues.

use efa_core::address::Qpn;

use super::error::Error;
use super::queue_pair::QpState;
use super::state::Device;
use crate::link::Link;

impl Device {
    /// Reads a send queue's doorbell, which its client has written. The next [`Device::transmit`]
    /// reads the new entries.
    ///
    /// A producer counter that is further ahead than the length of the ring fails the queue pair.
    #[inline(always)]
    pub fn read_send_doorbell(&mut self, qpn: Qpn) -> Result<(), Error> {
        if self.take_send_doorbell(qpn)? {
            self.schedule(qpn);
        }
        Ok(())
    }

    /// As [`Device::read_send_doorbell`], and also reads the new entries immediately and offers
    /// them to the link, unless other queue pairs have their turns first.
    #[inline(always)]
    pub fn serve_send_doorbell(&mut self, qpn: Qpn, link: &mut impl Link) -> Result<(), Error> {
        if self.take_send_doorbell(qpn)? {
            if !self.initiator.scheduled.is_empty() || self.read_send_queue(qpn, link) {
                self.schedule(qpn);
            }
            self.flush_failed();
        }
        Ok(())
    }

    /// Reads a send queue's doorbell. Returns whether there are new entries and the queue pair is
    /// not yet scheduled.
    #[inline(always)]
    fn take_send_doorbell(&mut self, qpn: Qpn) -> Result<bool, Error> {
        let qp = self
            .qps
            .get_mut(qpn)
            .ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        if qp.state != QpState::ReadyToSend {
            return Ok(false);
        }
        let producer = qp.rings.send.doorbell().read() as u16;
        if u32::from(producer.wrapping_sub(qp.send.fetched)) > qp.config.send_entries {
            self.fail(qpn);
            return Ok(false);
        }
        qp.send.producer = producer;
        Ok(producer != qp.send.fetched && !qp.send.scheduled)
    }

    fn schedule(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.send.scheduled = true;
            self.initiator.scheduled.push(qpn);
        }
    }

    /// Reads the doorbells of all watched queue pairs and completion queues. Returns whether a
    /// queue pair's was rung.
    pub fn read_watched_doorbells(&mut self) -> bool {
        let mut is_rung = false;
        for position in 0..self.initiator.watched.len() {
            let qpn = self.initiator.watched[position];
            is_rung |= self.read_direct_doorbell(qpn);
        }
        self.cqs.ring_watched();
        is_rung
    }

    /// As [`Device::read_send_doorbell`], for the doorbell of a client that rings without a call.
    /// Returns whether its value has changed.
    fn read_direct_doorbell(&mut self, qpn: Qpn) -> bool {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        if qp.state != QpState::ReadyToSend || !qp.take_ring() {
            return false;
        }
        let send = &mut qp.send;
        let ahead = send.rung.wrapping_sub(send.fetched);
        if u32::from(ahead) > qp.config.send_entries {
            // Entries may have been read before their doorbell, see `find_written_entries`.
            if u32::from(send.fetched.wrapping_sub(send.rung)) > qp.config.send_entries {
                self.fail(qpn);
            }
            return true;
        }
        if ahead > send.producer.wrapping_sub(send.fetched) {
            send.producer = send.rung;
        }
        if send.producer != send.fetched && !send.scheduled {
            send.scheduled = true;
            self.initiator.scheduled.push(qpn);
        }
        true
    }

    /// Reads the doorbell that the client of a queue pair uses.
    pub(super) fn read_client_doorbell(&mut self, qpn: Qpn) -> Result<(), Error> {
        if self.qps.get(qpn).is_some_and(|qp| qp.send.is_direct) {
            self.read_direct_doorbell(qpn);
            return Ok(());
        }
        self.read_send_doorbell(qpn)
    }

    /// Finds entries that a client has written completely but not announced. The client is about to
    /// write the doorbell, without a call.
    pub fn find_written_entries(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return;
        };
        if qp.state != QpState::ReadyToSend {
            return;
        }
        let send = &mut qp.send;
        while u32::from(send.producer.wrapping_sub(send.fetched)) < qp.config.send_entries
            && qp.rings.send.is_written(send.producer)
        {
            send.producer = send.producer.wrapping_add(1);
        }
        send.is_direct = true;
        if send.producer != send.fetched && !send.scheduled {
            send.scheduled = true;
            self.initiator.scheduled.push(qpn);
        }
    }
}
