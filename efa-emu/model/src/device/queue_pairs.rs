//! Commands for queue pairs.

use std::sync::Arc;

use efa_core::address::Qpn;
use efa_core::nic::DeviceCaps;

use super::error::Error;
use super::queue::{ReceiveRing, SendRing};
use super::queue_pair::{QpAttributes, QpChange, QpConfig, QpRings, QpState, QueuePair};
use super::state::Device;
use crate::counters::Command;

impl Device {
    /// Creates a queue pair with the number that the caller chose.
    ///
    /// # Errors
    /// [`Error::Busy`] if another queue pair has the number.
    pub fn create_qp(&mut self, qpn: Qpn, config: QpConfig) -> Result<QpRings, Error> {
        self.create_qp_over(qpn, config, None)
    }

    /// As [`Device::create_qp`], optionally with rings that the caller has created for `config`.
    pub fn create_qp_over(
        &mut self,
        qpn: Qpn,
        config: QpConfig,
        rings: Option<QpRings>,
    ) -> Result<QpRings, Error> {
        self.command(Command::CreateQp, |device| {
            device.check_pd(config.pd)?;
            if config.send_entries > device.profile.max_sq_wr {
                return Err(Error::invalid("send queue depth", config.send_entries));
            }
            if config.recv_descriptors > device.profile.max_rq_wr {
                return Err(Error::invalid(
                    "receive queue depth",
                    config.recv_descriptors,
                ));
            }
            if config.unsolicited_write_recv
                && !device
                    .profile
                    .caps
                    .contains(DeviceCaps::UNSOLICITED_WRITE_RECV)
            {
                return Err(Error::Unsupported("unsolicited write receive"));
            }
            device.check_request_ids(config.request_ids)?;
            if device.qps.get(qpn).is_some() || device.is_connected_qp(qpn) {
                return Err(Error::Busy("queue pair number"));
            }
            if device.qps.live() >= device.profile.max_qp {
                return Err(Error::Exhausted("queue pair"));
            }
            device
                .cqs
                .check_request_ids(config.send_cq, config.request_ids)?;
            let rings = match rings {
                Some(rings) => {
                    rings.check(&config)?;
                    rings
                }
                None => QpRings {
                    send: Arc::new(SendRing::new(config.send_entries, config.wqe_size)?),
                    recv: Arc::new(ReceiveRing::new(config.recv_descriptors)?),
                },
            };
            device.cqs.attach(config.send_cq)?;
            if let Err(error) = device.cqs.attach(config.recv_cq) {
                device.cqs.detach(config.send_cq);
                return Err(error);
            }
            device.retain_pd(config.pd);
            tracing::info!(gid = %device.gid, %qpn, service = ?config.service, "queue pair made");
            device
                .qps
                .insert(qpn, QueuePair::new(config, rings.clone()));
            Ok(rings)
        })
    }

    /// Changes a queue pair's attributes and state, according to the kernel driver.
    ///
    /// Changing to [`QpState::Error`] flushes all outstanding requests. Changing to
    /// [`QpState::Reset`] drops them and empties the rings.
    pub fn modify_qp(&mut self, qpn: Qpn, change: &QpChange) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            // A removed device only accepts a reset, the first step of destruction.
            if change.state != Some(QpState::Reset) {
                device.check_present()?;
            }
            let rnr_settable = device.profile.caps.contains(DeviceCaps::RNR_RETRY);
            let qp = device
                .qps
                .get_mut(qpn)
                .ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
            qp.change(change, rnr_settable)?;
            match change.state {
                Some(QpState::Reset) => {
                    device.forget_requests(qpn);
                    device.reset_queues(qpn);
                }
                Some(QpState::Error) => device.flush(qpn),
                Some(QpState::ReadyToSend) => device.read_client_doorbell(qpn)?,
                _ => {}
            }
            Ok(())
        })
    }

    fn reset_queues(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.rings.send.doorbell().write(0);
            if let Some(page) = qp.rings.send.direct_doorbell() {
                page.doorbell().write(0);
                qp.rings.send.clear();
            }
            qp.rings.recv.doorbell().write(0);
            qp.send.restart();
            qp.recv = Default::default();
            qp.broken = false;
        }
    }

    /// A queue pair's attributes.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpAttributes, Error> {
        self.check_present()?;
        self.qps
            .get(qpn)
            .map(QueuePair::attributes)
            .ok_or_else(|| Error::not_found("queue pair", qpn.0))
    }

    /// Destroys a queue pair. Its outstanding requests are dropped: they write no completions, and
    /// answers that arrive later are ignored.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), Error> {
        self.command(Command::Other, |device| {
            let Some(qp) = device.qps.remove(qpn) else {
                return device.destroy_connected_qp(qpn);
            };
            device.cqs.detach(qp.config.send_cq);
            device.cqs.detach(qp.config.recv_cq);
            device.release_pd(qp.config.pd);
            device.initiator.remove_qp(qpn);
            device.detach_counters(qpn);
            device.forget_requests(qpn);
            Ok(())
        })
    }

    /// The send queue of a queue pair.
    pub fn send_ring(&self, qpn: Qpn) -> Option<&Arc<SendRing>> {
        Some(&self.qps.get(qpn)?.rings.send)
    }

    /// Sets whether [`Device::read_watched_doorbells`] reads this queue pair's doorbells, which is
    /// required if the client writes them without a call.
    pub fn watch_qp(&mut self, qpn: Qpn, watched: bool) -> Result<(), Error> {
        let qp = self
            .qps
            .get_mut(qpn)
            .ok_or_else(|| Error::not_found("queue pair", qpn.0))?;
        if watched {
            let page = qp.rings.send.make_direct_doorbell()?;
            qp.send.rung = page.doorbell().read() as u16;
        }
        qp.watched = watched;
        self.initiator.watch(qpn, watched);
        Ok(())
    }
}
