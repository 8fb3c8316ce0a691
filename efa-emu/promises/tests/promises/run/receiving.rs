//! All kinds of receives, and the messages that they are posted for.

use efa_core::endpoint::{
    ClaimedRecvArgs, EndpointError, MultiRecvArgs, OperationFlags, RecvArgs, SourceFilter,
    TagFilter,
};

use crate::model::{ProgramId, Receive, ReceiveKind, RequestState, pattern};
use crate::plan::Buffer;
use crate::user_queue_pair::Arrived;

use super::{MAX_RECEIVES, RECEIVE, WORD, World};

impl World {
    pub(super) fn open_receives(&self, at: ProgramId) -> impl Iterator<Item = usize> {
        let receives = self.receives.iter().enumerate();
        receives
            .filter(move |(_, receive)| receive.at == at && !receive.ended)
            .map(|(number, _)| number)
    }

    pub(super) fn note_receive(
        &mut self,
        at: ProgramId,
        from: Option<ProgramId>,
        tag: Option<(u64, u64)>,
        capacity: usize,
        kind: ReceiveKind,
    ) -> (usize, u64) {
        let address = self.allocate(at, capacity);
        self.receives.push(Receive {
            at,
            from,
            tag,
            capacity,
            address,
            kind,
            id: None,
            cancelled: false,
            cleared: false,
            taken: Vec::new(),
            ended: false,
        });
        self.programs[at].open_receives += 1;
        (self.receives.len() - 1, address)
    }

    pub(super) fn give_up_receive(&mut self, number: usize) {
        let receive = &mut self.receives[number];
        receive.ended = true;
        self.programs[receive.at].open_receives -= 1;
    }

    pub(super) fn receive(
        &mut self,
        at: ProgramId,
        from: Option<ProgramId>,
        tag: Option<(u64, u64)>,
        capacity: usize,
        buffer: Buffer,
    ) -> Result<(), String> {
        if self.programs[at].user.is_some() {
            return self.receive_without_header(at);
        }
        if self.programs[at].open_receives >= MAX_RECEIVES {
            return Ok(());
        }
        let source = match from {
            Some(from) if self.is_doomed(at, from) => return Ok(()),
            Some(from) => match self.peer(at, from) {
                Some(peer) => SourceFilter::Peer(peer),
                None => return Ok(()),
            },
            None => SourceFilter::Any,
        };
        let (number, address) = self.note_receive(at, from, tag, capacity, ReceiveKind::Posted);
        let pieces = self.pieces(at, address, capacity, buffer);
        let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
        let posted = endpoint.recv(RecvArgs {
            tag: tag.map(|(tag, ignore)| TagFilter { tag, ignore }),
            ..RecvArgs::new(source, &pieces, RECEIVE | number as u64)
        });
        match posted {
            Ok(id) => self.receives[number].id = Some(id),
            Err(EndpointError::TryAgain) => self.give_up_receive(number),
            Err(error) => return Err(format!("receive {number} was refused: {error}")),
        }
        self.collect(at)
    }

    pub(super) fn multi_receive(
        &mut self,
        at: ProgramId,
        capacity: usize,
        min_free: usize,
    ) -> Result<(), String> {
        let (number, address) = self.note_receive(at, None, None, capacity, ReceiveKind::Multi);
        let buffer = self.pieces(at, address, capacity, WORD)[0];
        let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
        let posted = endpoint.multi_recv(MultiRecvArgs {
            source: SourceFilter::Any,
            buffer,
            min_free,
            context: RECEIVE | number as u64,
        });
        match posted {
            Ok(id) => self.receives[number].id = Some(id),
            Err(EndpointError::TryAgain) => self.give_up_receive(number),
            Err(error) => return Err(format!("receive {number} was refused: {error}")),
        }
        self.collect(at)
    }

    pub(super) fn cancel(&mut self, number: usize, clearing: bool) -> Result<(), String> {
        let receive = &mut self.receives[number];
        let Some(id) = receive.id else { return Ok(()) };
        let at = receive.at;
        if let Some(endpoint) = &mut self.programs[at].endpoint
            && endpoint.cancel(id)
        {
            receive.cancelled = true;
            receive.cleared = clearing;
        }
        self.collect(at)
    }

    /// Reserves the first message that any receive of a kind would match.
    pub(super) fn reserve(
        &mut self,
        at: ProgramId,
        tagged: bool,
        keep: bool,
    ) -> Result<(), String> {
        let everything = TagFilter {
            tag: 0,
            ignore: u64::MAX,
        };
        let tag = tagged.then_some(everything);
        let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
        let seen = endpoint.peek(SourceFilter::Any, tag);
        let Some((claim, info)) = endpoint.claim(SourceFilter::Any, tag) else {
            return match seen {
                Some(info) => Err(format!("{info:?} was seen and cannot be claimed")),
                None => Ok(()),
            };
        };
        if seen != Some(info) {
            return Err(format!("claimed {info:?}, but saw {seen:?}"));
        }
        let tag = tagged.then_some((0, u64::MAX));
        let (number, address) = self.note_receive(at, None, tag, 20_000, ReceiveKind::Claim);
        if !keep && let Some(data) = info.cq_data {
            let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
            endpoint
                .discard(claim)
                .map_err(|error| format!("a claimed message cannot be discarded: {error}"))?;
            self.note_taken(number, data as usize)?;
            self.give_up_receive(number);
            return Ok(());
        }
        let pieces = self.pieces(at, address, 20_000, WORD);
        let endpoint = self.programs[at].endpoint.as_mut().expect("it runs");
        endpoint
            .recv_claimed(ClaimedRecvArgs {
                claim,
                buffer: &pieces,
                flags: OperationFlags::COMPLETION,
                context: RECEIVE | number as u64,
            })
            .map_err(|error| format!("a claimed message cannot be received: {error}"))?;
        self.collect(at)
    }

    /// A zero-copy receiver posts a buffer.
    pub(super) fn receive_without_header(&mut self, at: ProgramId) -> Result<(), String> {
        let (number, _) = self.note_receive(at, None, None, self.mtu, ReceiveKind::ZeroCopy);
        match &mut self.programs[at].user {
            Some(user) => user.post(number),
            None => Ok(()),
        }
    }

    /// Polls for messages without headers.
    pub(super) fn collect_without_header(&mut self, at: ProgramId) -> Result<(), String> {
        let Some(user) = &mut self.programs[at].user else {
            return Ok(());
        };
        for Arrived {
            receive,
            bytes,
            cq_data,
        } in user.poll()?
        {
            let Some(number) = cq_data.map(|data| data as usize) else {
                return Err(format!("receive {receive} got a message without CQ data"));
            };
            self.note_taken(receive, number)?;
            self.give_up_receive(receive);
            self.troubles.headerless += 1;
            if bytes != pattern(number, self.messages[number].length) {
                return Err(format!(
                    "receive {receive} got other data than message {number}"
                ));
            }
        }
        Ok(())
    }

    /// Posts a buffer for each outstanding message to a zero-copy receiver: without one, its sender
    /// does not come to rest.
    pub(super) fn receive_the_rest_without_header(&mut self) -> Result<(), String> {
        for at in 0..self.programs.len() {
            let to_come = self.messages.iter().filter(|message| {
                message.to == at
                    && message.taken.is_none()
                    && message.state != RequestState::Refused
            });
            let to_come = to_come.count();
            while self.programs[at]
                .user
                .as_ref()
                .is_some_and(|user| user.posted() < to_come)
            {
                self.receive_without_header(at)?;
            }
        }
        Ok(())
    }

    /// Posts receives for all messages that were sent and not received.
    pub(super) fn receive_the_rest(&mut self) -> Result<(), String> {
        let buffer = WORD;
        let mut last = None;
        loop {
            let missing: Vec<usize> = (0..self.messages.len())
                .filter(|number| {
                    let message = &self.messages[*number];
                    message.state != RequestState::Refused
                        && message.taken.is_none()
                        && !message.aborted
                        && !self.is_doomed(message.from, message.to)
                })
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            // Messages of parted programs may match first.
            let taken = self
                .messages
                .iter()
                .filter(|message| message.taken.is_some() || message.aborted);
            let taken = Some(taken.count());
            if taken == last {
                let number = missing[0];
                let message = &self.messages[number];
                return Err(format!(
                    "message {number} from program {} to {} never arrives; it is {:?}, {} more \
                     are missing; {}",
                    message.from,
                    message.to,
                    message.state,
                    missing.len() - 1,
                    self.usages(),
                ));
            }
            last = taken;
            for number in missing {
                let message = &self.messages[number];
                let (at, tag) = (message.to, message.tag.map(|_| (0, u64::MAX)));
                self.receive(at, None, tag, 20_000, buffer)?;
            }
            self.settle()?;
        }
    }
}
