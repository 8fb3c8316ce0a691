//! Operations that programs start, until their endpoints accept them.

use efa_core::endpoint::{
    AtomicArgs, AtomicKind, EndpointError, Errno, IoVec, ReadArgs, RemoteIoVec, SendArgs, WriteArgs,
};
use efa_core::nic::UserSlice;
use efa_core::wire::{AtomicDatatype, AtomicOp};

use crate::combine::Call;
use crate::model::{Message, OneSided, OneSidedKind, ProgramId, RequestState, pattern};
use crate::plan::{Buffer, SendMode};
use crate::release::Release;

use super::memory::combined;
use super::{Item, MESSAGE, ONE_SIDED, SOMETHING_ELSE, World, flags};

impl World {
    pub(super) fn one_sided(
        &mut self,
        (from, to): (usize, usize),
        length: usize,
        kind: OneSidedKind,
        mode: SendMode,
        announces: bool,
        buffer: Buffer,
    ) -> Result<(), String> {
        let (from, to) = (self.current[from], self.current[to]);
        let number = self.one_sided.len();
        // The operand, the old values and the comparand of an atomic are adjacent.
        let local = match kind {
            OneSidedKind::Write | OneSidedKind::Read => self.allocate(from, length),
            _ => self.allocate(from, 3 * length),
        };
        let target = self.programs[to].memory.address;
        let remote = match kind {
            OneSidedKind::Write | OneSidedKind::Read | OneSidedKind::Combine(_) => {
                self.allocate(to, length)
            }
            OneSidedKind::Add | OneSidedKind::FetchAdd => target,
            OneSidedKind::Claim => target + 8,
        };
        match kind {
            OneSidedKind::Write => self.fill(from, local, &pattern(number, length)),
            OneSidedKind::Read => self.fill(to, remote, &pattern(number, length)),
            OneSidedKind::Add | OneSidedKind::FetchAdd => {
                self.fill(from, local, &1_u64.to_le_bytes());
            }
            OneSidedKind::Claim => self.fill(from, local, &(number as u64 + 1).to_le_bytes()),
            OneSidedKind::Combine(_) => {
                let [old, operand, comparand] = combined(number, length);
                self.fill(to, remote, &old);
                self.fill(from, local, &operand);
                self.fill(from, local + 2 * length as u64, &comparand);
            }
        }
        self.one_sided.push(OneSided {
            from,
            to,
            length,
            kind,
            mode,
            local,
            remote,
            buffer,
            announces,
            announced: false,
            orphaned: false,
            state: RequestState::Waiting,
        });
        self.programs[from].outbox.push_back(Item::OneSided(number));
        self.push(from)
    }

    /// Starts the operations of a program, until its endpoint has no room.
    pub(super) fn push(&mut self, at: ProgramId) -> Result<(), String> {
        while let Some(item) = self.programs[at].outbox.front().copied() {
            let (started, to, what) = match item {
                Item::Message(number) => {
                    let to = self.messages[number].to;
                    (self.send(number), to, format!("message {number}"))
                }
                Item::OneSided(number) => {
                    let to = self.one_sided[number].to;
                    let started = self.start_one_sided(number);
                    (started, to, format!("one-sided operation {number}"))
                }
            };
            let state = match started {
                Ok(()) => RequestState::Started,
                Err(EndpointError::TryAgain) if !self.parted.contains(&(at, to)) => return Ok(()),
                Err(_) if self.is_doomed(at, to) => RequestState::Refused,
                Err(error) if self.may_refuse(item, &error) => {
                    self.troubles.refusals += 1;
                    RequestState::Refused
                }
                Err(error) => return Err(format!("{what} was refused: {error}")),
            };
            if state == RequestState::Started {
                self.note_started(at, to, item)?;
                self.reuse_injected(item);
            }
            match item {
                Item::Message(number) => self.messages[number].state = state,
                Item::OneSided(number) => self.one_sided[number].state = state,
            }
            self.programs[at].outbox.pop_front();
        }
        Ok(())
    }

    /// Whether a message cannot be sent to a zero-copy receiver.
    pub(super) fn needs_header(&self, number: usize) -> Option<Errno> {
        let message = &self.messages[number];
        let zero_copy = self.release(message.to) == Release::V2_1ZeroCopy;
        match message {
            _ if !zero_copy => None,
            Message { tag: Some(_), .. } => Some(Errno::EOPNOTSUPP),
            message => (message.length > self.mtu).then_some(Errno::EINVAL),
        }
    }

    /// Whether an operation is not possible between releases.
    pub(super) fn may_refuse(&self, item: Item, error: &EndpointError) -> bool {
        let (from, to, mode) = match item {
            Item::Message(number) => {
                if let Some(errno) = self.needs_header(number) {
                    return error.errno() == errno;
                }
                let message = &self.messages[number];
                (message.from, message.to, message.mode)
            }
            Item::OneSided(number) => {
                let operation = &self.one_sided[number];
                (operation.from, operation.to, operation.mode)
            }
        };
        mode == SendMode::DeliveryComplete
            && error.errno() == Errno::EOPNOTSUPP
            && [from, to]
                .into_iter()
                .any(|program| !self.release(program).has_delivery_complete())
    }

    /// The program may reuse the memory of injected data at once.
    fn reuse_injected(&self, item: Item) {
        let (from, address, length, mode) = match item {
            Item::Message(number) => {
                let Message {
                    from,
                    address,
                    length,
                    mode,
                    ..
                } = self.messages[number];
                (from, address, length, mode)
            }
            Item::OneSided(number) => {
                let OneSided {
                    from,
                    local,
                    length,
                    mode,
                    ..
                } = self.one_sided[number];
                (from, local, length, mode)
            }
        };
        if mode == SendMode::Inject {
            self.fill(from, address, &vec![SOMETHING_ELSE; length]);
        }
    }

    pub(super) fn note_started(
        &mut self,
        at: ProgramId,
        to: ProgramId,
        item: Item,
    ) -> Result<(), String> {
        let in_turn = match item {
            Item::Message(number) => {
                if self.needs_header(number).is_some() {
                    return Err(format!("message {number} was sent to a zero-copy receiver"));
                }
                self.release(to) != Release::V2_1ZeroCopy
            }
            Item::OneSided(number) => self.one_sided[number].kind.is_atomic(),
        };
        if in_turn {
            self.sequences.entry((at, to)).or_default().push(item);
        }
        Ok(())
    }

    pub(super) fn send(&mut self, number: usize) -> Result<(), EndpointError> {
        let message = &self.messages[number];
        let (from, to) = (message.from, message.to);
        let pieces = self.pieces(from, message.address, message.length, message.buffer);
        let (tag, cq_data, flags) = (message.tag, message.data, flags(message.mode, number));
        if self.parted.contains(&(from, to)) || self.parted.contains(&(to, from)) {
            return Err(EndpointError::UnknownClaim);
        }
        let peer = self.peer(from, to).ok_or(EndpointError::TryAgain)?;
        let Some(endpoint) = &mut self.programs[from].endpoint else {
            return Err(EndpointError::UnknownClaim);
        };
        endpoint.send(SendArgs {
            peer,
            data: &pieces,
            tag,
            cq_data,
            flags,
            context: MESSAGE | number as u64,
        })
    }

    pub(super) fn start_one_sided(&mut self, number: usize) -> Result<(), EndpointError> {
        let operation = &self.one_sided[number];
        let (from, to, kind) = (operation.from, operation.to, operation.kind);
        let (local, length) = (operation.local, operation.length);
        let key = match kind {
            OneSidedKind::Write | OneSidedKind::Read | OneSidedKind::Combine(_) => {
                self.programs[to].lent.remote_key
            }
            OneSidedKind::Add | OneSidedKind::FetchAdd | OneSidedKind::Claim => {
                self.programs[to].region.remote_key
            }
        };
        let part = match kind {
            OneSidedKind::Combine(combine) => {
                combine.elements.div_ceil(combine.remote_pieces) * combine.element_size()
            }
            _ => length.max(1),
        };
        let mut remote: Vec<RemoteIoVec> = (0..length)
            .step_by(part)
            .map(|start| RemoteIoVec {
                address: operation.remote + start as u64,
                length: part.min(length - start) as u64,
                key,
            })
            .collect();
        if remote.is_empty() {
            remote.push(RemoteIoVec::new(operation.remote, 0, key));
        }
        let pieces = self.pieces(from, local, length, operation.buffer);
        let cq_data = operation.announces.then_some(number as u64);
        let flags = flags(operation.mode, number);
        let context = ONE_SIDED | number as u64;
        if self.parted.contains(&(from, to)) || self.parted.contains(&(to, from)) {
            return Err(EndpointError::UnknownClaim);
        }
        let peer = self.peer(from, to).ok_or(EndpointError::TryAgain)?;
        let Some(endpoint) = &mut self.programs[from].endpoint else {
            return Err(EndpointError::UnknownClaim);
        };
        let third = |index| {
            [IoVec::new(UserSlice::new(
                local + index * length as u64,
                length,
            ))]
        };
        let (result, comparand) = (third(1), third(2));
        match kind {
            OneSidedKind::Write => endpoint.write(WriteArgs {
                peer,
                data: &pieces,
                remote: &remote,
                cq_data,
                flags,
                context,
            }),
            OneSidedKind::Read => endpoint.read(ReadArgs {
                peer,
                buffer: &pieces,
                remote: &remote,
                flags,
                context,
            }),
            OneSidedKind::Add
            | OneSidedKind::FetchAdd
            | OneSidedKind::Claim
            | OneSidedKind::Combine(_) => {
                let (datatype, operation, call) = match kind {
                    OneSidedKind::Combine(combine) => {
                        (combine.datatype, combine.operation, combine.call)
                    }
                    OneSidedKind::Claim => (AtomicDatatype::UINT64, AtomicOp::CSWAP, Call::Compare),
                    OneSidedKind::FetchAdd => (AtomicDatatype::UINT64, AtomicOp::SUM, Call::Fetch),
                    _ => (AtomicDatatype::UINT64, AtomicOp::SUM, Call::Write),
                };
                endpoint.atomic(AtomicArgs {
                    peer,
                    datatype,
                    operation,
                    operand: &pieces,
                    kind: match call {
                        Call::Compare => AtomicKind::Compare {
                            result: &result,
                            comparand: &comparand,
                        },
                        Call::Fetch => AtomicKind::Fetch { result: &result },
                        Call::Write => AtomicKind::Write,
                    },
                    remote: &remote,
                    flags,
                    context,
                })
            }
        }
    }
}
