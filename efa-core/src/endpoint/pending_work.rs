//! Doing the work that waited for room in the device or for the end of a back-off.

use crate::endpoint::Endpoint;
use crate::endpoint::api::completion::Event;
use crate::endpoint::api::error::EndpointError;
use crate::endpoint::base::ids::PeerId;
use crate::endpoint::posting::Work;
use crate::nic::Nic;
use crate::wire::{Eor, Receipt};

/// What became of a piece of [`Work`].
enum Outcome {
    Done,
    /// There is more of it; others first.
    Again,
    /// The device has no room.
    Blocked,
}

impl<N: Nic> Endpoint<N> {
    /// Does what waits, as far as the device has room.
    pub(crate) fn do_pending_work(&mut self) {
        while let Some(work) = self.posting.next_work() {
            if let Some(peer) = self.peer_of(work)
                && let Some(state) = self.peers.state_mut(peer)
                && state.backoff.is_active()
            {
                if let Some(buffer) = self.posting.park(&mut state.backoff, work) {
                    self.recycle(buffer);
                }
                continue;
            }
            match self.do_work(work) {
                Outcome::Done => {
                    if let Some(peer) = work.answers() {
                        self.end_answer(peer);
                    }
                }
                Outcome::Again => self.posting.queue(work),
                Outcome::Blocked => return self.posting.put_back(work),
            }
        }
    }

    /// The peer to which work sends something.
    fn peer_of(&self, work: Work) -> Option<PeerId> {
        match work {
            Work::Handshake(peer)
            | Work::Fill(peer)
            | Work::Receipt { peer, .. }
            | Work::Eor { peer, .. }
            | Work::AtomicResponse { peer, .. } => Some(peer),
            Work::Admission => None,
            Work::Resend(id) => self.posting.peer(id),
            Work::Outbound(id) => self.sending.peer(id),
            Work::Inbound(id) => self.receiving.peer(id),
        }
    }

    fn do_work(&mut self, work: Work) -> Outcome {
        let connid = Some(self.address.qkey.into());
        let more = match work {
            Work::Admission => {
                self.admit_waiting();
                Ok(false)
            }
            Work::Handshake(peer) => self.send_handshake(peer).map(|()| false),
            Work::Fill(peer) => self.fill_gaps(peer).map(|()| false),
            Work::Resend(id) => self.resend(id).map(|()| false),
            Work::Outbound(id) => self.send_stream(id),
            Work::Inbound(id) => self.serve_inbound(id),
            Work::AtomicResponse { key, .. } => self.send_atomic_response(key).map(|()| false),
            Work::Receipt {
                peer,
                send_id,
                msg_id,
            } => {
                let receipt = Receipt {
                    send_id,
                    msg_id,
                    connid,
                    ..Receipt::default()
                };
                self.send_control(peer, &receipt).map(|()| false)
            }
            Work::Eor {
                peer,
                send_id,
                recv_id,
            } => {
                let eor = Eor {
                    send_id,
                    recv_id,
                    connid,
                    ..Eor::default()
                };
                self.send_control(peer, &eor).map(|()| false)
            }
        };
        match more {
            Ok(true) => Outcome::Again,
            Err(EndpointError::TryAgain) => Outcome::Blocked,
            Ok(false) | Err(_) => Outcome::Done,
        }
    }

    /// Ends the back-offs whose time has come.
    pub(crate) fn end_backoffs(&mut self) {
        while let Some((until, peer)) = self.posting.next_over(self.now) {
            if let Some(state) = self.peers.state_mut(peer) {
                self.posting.end_backoff(until, &mut state.backoff);
            }
        }
    }

    /// Posts receive buffers.
    pub(crate) fn post_receives(&mut self) {
        while let Err(error) = self.posting.post_receives() {
            self.reports.event(Event::ReceivePostFailed(error));
        }
    }
}
