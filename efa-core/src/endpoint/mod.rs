//! The protocol engine: one RDM endpoint over one [`Nic`](crate::nic::Nic).
//!
//! An [`Endpoint`] does no I/O by itself and reads no clock. The application hands in operations
//! ([`Endpoint::send`], [`Endpoint::recv`], ...); [`Endpoint::progress`] takes completions from the
//! device and the time, and posts what there is to post; [`Endpoint::poll_completion`] and
//! [`Endpoint::poll_event`] say what happened. [`Endpoint::next_timeout`] says when `progress` has
//! something to do although the device is silent.

mod completion;
mod config;
mod error;
mod ids;
mod operation;
mod time;

pub use completion::{CompletionEntry, CompletionFlags, ErrorEntry, Event, PacketError};
pub use config::EndpointConfig;
pub use error::{EndpointError, Errno, Failure, ProviderError};
pub use ids::{PeerId, ReceiveId};
pub use operation::{
    IOV_LIMIT, IoVec, OperationFlags, ReadArgs, RecvArgs, RemoteIoVec, SendArgs, SourceFilter,
    TagFilter, WriteArgs,
};
pub use time::Instant;

use crate::address::RawAddress;
use crate::nic::Nic;

/// One RDM endpoint.
pub struct Endpoint<N: Nic> {
    nic: N,
    config: EndpointConfig,
}

impl<N: Nic> Endpoint<N> {
    /// Opens an endpoint on a queue pair and posts its receive buffers.
    ///
    /// # Errors
    /// The settings contradict each other or the device, or the device refuses a buffer.
    pub fn new(nic: N, config: EndpointConfig) -> Result<Self, EndpointError> {
        Ok(Endpoint { nic, config })
    }

    /// The endpoint's raw address, for the address vectors of others.
    pub fn address(&self) -> RawAddress {
        self.nic.local_address()
    }

    /// The settings.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// The device.
    pub fn nic(&self) -> &N {
        &self.nic
    }

    /// The device, for registrations and for whatever moves a simulated one along. Posting or
    /// polling on it behind the endpoint's back loses packets.
    pub fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    /// Puts an address into the address vector; an address that is there already keeps its id.
    ///
    /// # Errors
    /// The device's address book is full.
    pub fn insert_address(&mut self, address: RawAddress) -> Result<PeerId, EndpointError> {
        let _ = address;
        Err(EndpointError::TryAgain)
    }

    /// Takes an address out of the address vector. Operations with the peer fail with
    /// `FI_ECANCELED` (as soon as the device is done with their memory), messages of the peer that
    /// no receive took yet are dropped.
    ///
    /// # Errors
    /// The peer is not in the address vector.
    pub fn remove_address(&mut self, peer: PeerId) -> Result<(), EndpointError> {
        Err(EndpointError::UnknownPeer(peer))
    }

    /// The address of a peer.
    pub fn lookup_address(&self, peer: PeerId) -> Option<RawAddress> {
        let _ = peer;
        None
    }

    /// The peer with an address, whether it was inserted or introduced itself.
    pub fn find_address(&self, address: &RawAddress) -> Option<PeerId> {
        let _ = address;
        None
    }

    /// Starts to send a message.
    ///
    /// # Errors
    /// Nothing was sent and no completion follows; see [`EndpointError`].
    pub fn send(&mut self, args: SendArgs<'_>) -> Result<(), EndpointError> {
        let _ = args;
        Err(EndpointError::TryAgain)
    }

    /// Posts a receive. If a matching message is already here it completes at once, in the
    /// completion queue.
    ///
    /// # Errors
    /// Nothing was posted; see [`EndpointError`].
    pub fn recv(&mut self, args: RecvArgs<'_>) -> Result<ReceiveId, EndpointError> {
        let _ = args;
        Err(EndpointError::TryAgain)
    }

    /// Cancels a receive that no message has matched yet; it completes with `FI_ECANCELED`.
    /// Returns whether there was such a receive.
    pub fn cancel(&mut self, receive: ReceiveId) -> bool {
        let _ = receive;
        false
    }

    /// As [`Endpoint::cancel`], for the oldest receive posted with this context; linear in the
    /// number of posted receives.
    pub fn cancel_context(&mut self, context: u64) -> bool {
        let _ = context;
        false
    }

    /// Does whatever can be done at time `now`: takes completions from the device, handles
    /// packets, posts what waits, resends. Returns the number of device completions taken.
    pub fn progress(&mut self, now: Instant) -> usize {
        let _ = now;
        0
    }

    /// When `progress` has to be called even if the device stays silent.
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// The next completion, in the order in which operations ended.
    pub fn poll_completion(&mut self) -> Option<Result<CompletionEntry, ErrorEntry>> {
        None
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// Whether work is left that the application does not see: control packets (handshake, EOR,
    /// receipt, ...) not yet taken by the network. An orderly end calls `progress` until this is
    /// false.
    pub fn has_unsent_control_packets(&self) -> bool {
        false
    }

    /// Closes the endpoint and gives the device back, to be closed as well. Operations in flight
    /// end without a completion.
    pub fn close(self) -> N {
        self.nic
    }
}
