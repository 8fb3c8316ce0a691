//! The operations of the endpoints.
//!
//! Arriving bytes are compared with the sent ones: messages by their tag, regions by their owner.

use efa_core::wire::{AtomicDatatype, AtomicOp};
use efa_play::application::{OperationRequest, Started, Token};
use efa_play::drive::{Command, Event};
use efa_play::operation::{
    AtomicAction, EndpointIndex, Payload, RegionAccess, Remote, SendMode, TagMatch,
};
use efa_play::player::PlayerError;
use efa_testing::patience::Wait;

use super::Rig;

/// Memory that peers may read and write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    at: EndpointIndex,
    token: Token,
    remote: Remote,
    payload: Payload,
}

/// The message with a tag.
fn tagged(tag: u64, length: usize) -> Payload {
    Payload {
        length,
        seed: 1_000_000 + tag,
    }
}

/// The seeds of a region's first contents, and of the bytes written to it.
const BEFORE: u64 = 2_000_000;
const WRITTEN: u64 = 2_000_001;

/// Every untagged message.
fn untagged(length: usize) -> Payload {
    Payload {
        length,
        seed: 3_000_000,
    }
}

impl Rig {
    /// As [`Rig::start`]; the operation must be accepted.
    #[track_caller]
    fn begin(&mut self, at: EndpointIndex, request: OperationRequest, seed: Option<u64>) -> Token {
        let started = self.start(at, request, seed);
        started.unwrap_or_else(|error| panic!("{error}")).0
    }

    /// Posts a receive for one message of the given tag.
    #[track_caller]
    pub(crate) fn trecv(&mut self, at: EndpointIndex, tag: u64, length: usize) -> Token {
        let request = OperationRequest::Recv {
            length,
            from: None,
            tag: Some(TagMatch { tag, ignore: 0 }),
        };
        self.begin(at, request, Some(tagged(tag, length).seed))
    }

    /// Posts a receive for any untagged message.
    #[track_caller]
    pub(crate) fn recv(&mut self, at: EndpointIndex, length: usize) -> Token {
        let request = OperationRequest::Recv {
            length,
            from: None,
            tag: None,
        };
        self.begin(at, request, Some(untagged(length).seed))
    }

    /// Sends a tagged message.
    #[track_caller]
    pub(crate) fn tsend(
        &mut self,
        at: EndpointIndex,
        to: EndpointIndex,
        tag: u64,
        length: usize,
    ) -> Token {
        let sent = self.try_tsend(at, to, tag, length);
        sent.unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Rig::tsend`]; returns the error if the operation is refused.
    pub(crate) fn try_tsend(
        &mut self,
        at: EndpointIndex,
        to: EndpointIndex,
        tag: u64,
        length: usize,
    ) -> Result<Token, PlayerError> {
        let payload = tagged(tag, length);
        let request = message(to, payload, Some(tag), SendMode::Normal);
        self.start(at, request, None).map(|(token, _)| token)
    }

    /// Sends a tagged message with delivery complete.
    #[track_caller]
    pub(crate) fn tsend_dc(
        &mut self,
        at: EndpointIndex,
        to: EndpointIndex,
        tag: u64,
        length: usize,
    ) -> Token {
        let payload = tagged(tag, length);
        let request = message(to, payload, Some(tag), SendMode::DeliveryComplete);
        self.begin(at, request, None)
    }

    /// Sends an untagged message.
    #[track_caller]
    pub(crate) fn send(
        &mut self,
        at: EndpointIndex,
        to: EndpointIndex,
        length: usize,
        mode: SendMode,
    ) -> Token {
        self.begin(at, message(to, untagged(length), None, mode), None)
    }

    /// Registers memory that peers may read and write.
    #[track_caller]
    pub(crate) fn register(&mut self, at: EndpointIndex, length: usize) -> Region {
        let payload = Payload {
            length,
            seed: BEFORE,
        };
        let access = vec![RegionAccess::RemoteRead, RegionAccess::RemoteWrite];
        let started = self.start(at, OperationRequest::Register { payload, access }, None);
        let (token, started) = started.unwrap_or_else(|error| panic!("{error}"));
        let Started::Region(remote) = started else {
            panic!("{started:?}");
        };
        Region {
            at,
            token,
            remote,
            payload,
        }
    }

    /// Writes a whole region.
    #[track_caller]
    pub(crate) fn write(
        &mut self,
        at: EndpointIndex,
        to: &Region,
        delivery_complete: bool,
    ) -> Token {
        let payload = Payload {
            seed: WRITTEN,
            ..to.payload
        };
        let request = OperationRequest::Write {
            to: to.at,
            remote: to.remote,
            payload,
            data: None,
            delivery_complete,
        };
        self.begin(at, request, None)
    }

    /// Waits until the region holds the bytes of [`Rig::write`]: the completion of a write does not
    /// mean that the bytes have arrived.
    #[track_caller]
    pub(crate) fn wait_written(&mut self, region: &Region) {
        let payload = Payload {
            seed: WRITTEN,
            ..region.payload
        };
        let command = Command::Check {
            id: region.token,
            offset: 0,
            payload,
        };
        let wait = Wait::start();
        loop {
            let answer = self.ask(region.at, &command).unwrap();
            let Event::Checked { difference } = answer else {
                panic!("{answer:?}");
            };
            if difference.is_none() {
                return;
            }
            wait.check(|| format!("{difference:?}"));
            self.turn();
        }
    }

    /// Reads a whole region that was never written.
    #[track_caller]
    pub(crate) fn read(&mut self, at: EndpointIndex, from: &Region) -> Token {
        let request = OperationRequest::Read {
            from: from.at,
            remote: from.remote,
            length: from.payload.length,
        };
        self.begin(at, request, Some(from.payload.seed))
    }

    /// Changes the first element of a region.
    #[track_caller]
    pub(crate) fn atomic(
        &mut self,
        at: EndpointIndex,
        to: &Region,
        action: AtomicAction,
        delivery_complete: bool,
    ) -> Token {
        let operand = Payload {
            length: 8,
            seed: WRITTEN,
        };
        let request = OperationRequest::Atomic {
            to: to.at,
            remote: to.remote,
            datatype: AtomicDatatype::UINT64,
            action,
            operand,
            delivery_complete,
        };
        self.begin(at, request, None)
    }
}

/// An atomic of each packet type.
pub(crate) const UPDATE: AtomicAction = AtomicAction::Update(AtomicOp::SUM);
pub(crate) const FETCH: AtomicAction = AtomicAction::Fetch(AtomicOp::SUM);
pub(crate) const COMPARE: AtomicAction = AtomicAction::Compare {
    op: AtomicOp::CSWAP,
    comparand: BEFORE,
};

fn message(
    to: EndpointIndex,
    payload: Payload,
    tag: Option<u64>,
    mode: SendMode,
) -> OperationRequest {
    OperationRequest::Send {
        to,
        payload,
        tag,
        data: None,
        mode,
    }
}
