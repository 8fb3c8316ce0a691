//! Rings from peers.

use std::sync::Arc;

use efa_core::address::Gid;
use efa_core::nic::Status;
use efa_device_model::device::Device;
use efa_device_model::link::{HostSegment, Operation};

use super::transfers::{FromRing, MessageFromRing};
use crate::link::outbound::Outbound;
use crate::link::peer::Peer;
use crate::link::tap::LinkTap;
use crate::transport::ring::Consumer;
use efa_lock_free::record::{Answer, Record};
use efa_lock_free::ring::Incoming;

/// A ring from a peer.
pub(super) struct InRing {
    pub(super) consumer: Consumer,
    pub(super) peer: Arc<Peer>,
    pub(super) from: Gid,
    /// Distinguishes this ring from an earlier one in the same slot.
    pub(super) serial: u64,
    pub(super) polled: bool,
    pub(super) idle_polls: u32,
    /// The sender has new answers, and a wake-up may have been missed.
    pub(super) answered: bool,
    /// Reads of the sender in progress that have left the ring.
    pub(super) reads: usize,
}

impl InRing {
    pub(super) fn later(&self, slot: usize, incoming: Incoming) -> DeferredRecord {
        DeferredRecord {
            slot,
            serial: self.serial,
            incoming,
        }
    }

    /// Passes a record with data to the device.
    pub(super) fn serve(
        &mut self,
        incoming: &Incoming,
        device: &mut Device,
        outbound: &mut Outbound,
    ) -> Answer {
        match incoming.record.is_message() {
            true => self.serve_message(incoming, device, outbound),
            false => self.serve_other(incoming, device, outbound),
        }
    }

    /// As [`InRing::serve`], for a message. Only copies of it are passed on by reference, so that
    /// it need not be in memory.
    #[inline(always)]
    pub(super) fn serve_message(
        &mut self,
        incoming: &Incoming,
        device: &mut Device,
        outbound: &mut Outbound,
    ) -> Answer {
        let mut transfer = MessageFromRing {
            consumer: &self.consumer,
            payload: incoming.payload(),
        };
        // A message has no RDMA fields to decode.
        let header = incoming.record.message_header();
        let status = device.deliver(self.from, &header, &mut transfer);
        if outbound.is_tapped() {
            self.tap(*incoming, None, status, outbound);
        }
        Answer::Status(status)
    }

    /// As [`InRing::serve`], for records other than messages.
    #[inline(never)]
    pub(super) fn serve_other(
        &mut self,
        incoming: &Incoming,
        device: &mut Device,
        outbound: &mut Outbound,
    ) -> Answer {
        let mut transfer = FromRing::new(&self.consumer, incoming);
        // A capture must contain acknowledgements as packets.
        let may_be = incoming.record.may_be_acknowledged() && !outbound.is_tapped();
        transfer.acknowledged = may_be.then_some(false);
        let status = device.deliver(self.from, &incoming.record.header(), &mut transfer);
        let FromRing {
            whole,
            acknowledged,
            ..
        } = transfer;
        if outbound.is_tapped() {
            self.tap(*incoming, whole, status, outbound);
        }
        match acknowledged {
            Some(true) => Answer::Acknowledged,
            Some(false) | None => Answer::Status(status),
        }
    }

    /// Delivers a message to the device a second time. Only the first delivery is answered.
    #[cold]
    pub(super) fn serve_again(
        &mut self,
        incoming: &Incoming,
        device: &mut Device,
        outbound: &mut Outbound,
    ) {
        let mut transfer = FromRing::new(&self.consumer, incoming);
        device.deliver(self.from, &incoming.record.header(), &mut transfer);
        if let Some(tap) = outbound.tap() {
            tap_arrival(tap, self.from, &transfer);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn tap(
        &self,
        incoming: Incoming,
        whole: Option<HostSegment>,
        status: Status,
        outbound: &mut Outbound,
    ) {
        let transfer = FromRing {
            whole,
            ..FromRing::new(&self.consumer, &incoming)
        };
        if let Some(tap) = outbound.tap() {
            tap_data(tap, self.from, &transfer, status);
        }
    }

    /// Answers a record and wakes its sender if it is visibly asleep. [`InRing::wake_answered`]
    /// wakes a sender that is just falling asleep: detecting this needs a fence that waits for the
    /// answer's cache line, which must not delay the delivery of a message to the application.
    #[inline(always)]
    pub(super) fn answer(&mut self, incoming: &Incoming, answer: Answer) {
        self.consumer.answer(incoming, answer);
        self.peer.segment.wake_sleeper();
        self.answered = true;
    }

    /// Wakes the sender if it sleeps and has new answers.
    #[inline(always)]
    pub(super) fn wake_answered(&mut self) {
        if self.answered {
            self.answered = false;
            self.peer.segment.wake();
        }
    }
}

/// A record that is handled later. Its ring may no longer exist at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredRecord {
    pub(super) slot: usize,
    pub(super) serial: u64,
    pub(super) incoming: Incoming,
}

/// Captures a request with its data, or with the last part of it, or a refused request.
pub(super) fn tap_data(tap: &mut LinkTap, from: Gid, transfer: &FromRing<'_>, status: Status) {
    let record = &transfer.incoming.record;
    if record.operation() == Operation::RdmaWrite {
        if record.is_last() || status != Status::Ok {
            tap_rdma(tap, from, record, transfer.whole, status);
        }
        return;
    }
    tap_arrival(tap, from, transfer);
    tap.answered(from, record, status);
}

/// Captures the arrival of a request with its data.
fn tap_arrival(tap: &mut LinkTap, from: Gid, transfer: &FromRing<'_>) {
    let mut payload = |offset: u32, into: &mut [u8]| {
        let place =
            transfer
                .consumer
                .payload(transfer.incoming.payload(), offset, into.len() as u32);
        place.map(|(memory, at)| memory.read(at, into)).is_some()
    };
    tap.received(from, &transfer.incoming.record, &mut payload);
}

/// Captures a finished RDMA request. `whole` is this process's side of its data.
pub(super) fn tap_rdma(
    tap: &mut LinkTap,
    from: Gid,
    record: &Record,
    whole: Option<HostSegment>,
    status: Status,
) {
    let mut none: &[u8] = &[];
    match (record.operation(), whole) {
        (Operation::RdmaRead, Some(whole)) if status == Status::Ok => {
            tap.received(from, record, &mut none);
            tap.read_data_sent(from, record, whole);
        }
        (Operation::RdmaWrite, Some(whole)) => tap.received_into(from, record, whole),
        _ => tap.received(from, record, &mut none),
    }
    tap.answered(from, record, status);
}
