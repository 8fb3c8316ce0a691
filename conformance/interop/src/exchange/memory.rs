//! Reading, writing and changing a peer's memory.

use std::time::{Duration, Instant};

use super::pair::{Pair, STALLED};
use super::party::{INITIATOR, TARGET};
use crate::harness::{NotMeasured, failed};
use efa_core::wire::{AtomicDatatype, AtomicOp};
use efa_play::application::{OperationRequest, Started, Token};
use efa_play::drive::{Command, Event};
use efa_play::operation::{AtomicAction, Payload, RegionAccess, Remote, pattern};

/// Interval of polls of memory that a peer should write.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The largest compared length in bytes: two operands must fit into a packet.
const COMPARED: usize = 4000;

impl Pair<'_> {
    fn register(&mut self, payload: Payload) -> Result<(Token, Remote), NotMeasured> {
        let access = vec![RegionAccess::RemoteRead, RegionAccess::RemoteWrite];
        let (operation, started) =
            self.start(TARGET, OperationRequest::Register { payload, access }, None)?;
        match started {
            Started::Region(remote) => Ok((operation.1, remote)),
            Started::Operation => Err(failed!("registering gave no memory")),
        }
    }

    pub(super) fn read_and_write(&mut self, size: usize) -> Result<(), NotMeasured> {
        let seed = self.tokens;
        let initial = Payload { length: size, seed };
        let (region, remote) = self.register(initial)?;
        let read = OperationRequest::Read {
            from: TARGET,
            remote,
            length: size,
        };
        self.begin(INITIATOR, read, Some(seed))
            .and_then(|operation| self.wait(operation, Some(size)))
            .map_err(|error| error.at("read"))?;
        self.count(size);
        let written = self.write(size, remote, None)?;
        // The initiator's completion does not mean that the bytes have arrived.
        self.await_bytes(region, written, STALLED)
            .map_err(|error| error.at("write"))?;
        self.count(size);
        Ok(())
    }

    pub(super) fn write_with_data(&mut self, size: usize) -> Result<(), NotMeasured> {
        let blank = Payload {
            length: size,
            seed: self.tokens,
        };
        let (region, remote) = self.register(blank)?;
        let data = 0x4321_8765;
        let written = self.write(size, remote, Some(data))?;
        // The arrival of the completion data implies that of the bytes.
        self.await_data(data)
            .and_then(|()| self.await_bytes(region, written, Duration::ZERO))
            .map_err(|error| error.at("write"))?;
        self.count(size);
        Ok(())
    }

    fn write(
        &mut self,
        size: usize,
        remote: Remote,
        data: Option<u64>,
    ) -> Result<Payload, NotMeasured> {
        let payload = Payload {
            length: size,
            seed: self.tokens,
        };
        let write = OperationRequest::Write {
            to: TARGET,
            remote,
            payload,
            data,
            delivery_complete: false,
        };
        self.begin(INITIATOR, write, None)
            .and_then(|operation| self.wait(operation, None))
            .map_err(|error| error.at("write"))?;
        Ok(payload)
    }

    fn await_data(&mut self, data: u64) -> Result<(), NotMeasured> {
        let begin = Instant::now();
        while self.written.is_empty() {
            self.listen()?;
            if begin.elapsed() > STALLED || self.bench.left().is_zero() {
                return Err(failed!("its data never arrives"));
            }
        }
        match std::mem::take(&mut self.written)[..] {
            [arrived] if arrived == data => Ok(()),
            ref arrived => Err(failed!("the data that arrives is {arrived:x?}")),
        }
    }

    /// Polls memory until it contains the message, for at most `patience`.
    fn await_bytes(
        &mut self,
        token: Token,
        payload: Payload,
        patience: Duration,
    ) -> Result<(), NotMeasured> {
        let begin = Instant::now();
        let check = Command::Check {
            id: token,
            offset: 0,
            payload,
        };
        loop {
            let difference = match self.ask(TARGET, &check)? {
                Event::Checked { difference: None } => return Ok(()),
                Event::Checked {
                    difference: Some(difference),
                } => difference,
                event => return Err(self.unexpected(TARGET, &event)),
            };
            if begin.elapsed() >= patience || self.bench.left().is_zero() {
                return Err(NotMeasured::Failed(difference.to_string()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    pub(super) fn atomics(&mut self, count: usize) -> Result<(), NotMeasured> {
        let length = count * size_of::<u64>();
        let payload = |seed| Payload { length, seed };
        let first = payload(self.tokens);
        let (region, remote) = self.register(first)?;
        let mut elements = words(first);
        let mut seed = self.tokens;
        // The message whose words are the elements, if there is one.
        let mut known = Some(first);
        let actions = [
            AtomicAction::Update(AtomicOp::ATOMIC_WRITE),
            AtomicAction::Fetch(AtomicOp::SUM),
            AtomicAction::Update(AtomicOp::BXOR),
            AtomicAction::Update(AtomicOp::ATOMIC_WRITE),
            AtomicAction::Fetch(AtomicOp::ATOMIC_READ),
            AtomicAction::Fetch(AtomicOp::ATOMIC_WRITE),
            AtomicAction::Update(AtomicOp::SUM),
            AtomicAction::Update(AtomicOp::ATOMIC_WRITE),
        ];
        for action in actions {
            seed += 1;
            let operand = payload(seed << 32);
            self.atomic(remote, action, operand, known.map(|payload| payload.seed))?;
            let op = action.code();
            if op != AtomicOp::ATOMIC_READ {
                for (element, operand) in elements.iter_mut().zip(words(operand)) {
                    *element = match op {
                        AtomicOp::SUM => element.wrapping_add(operand),
                        AtomicOp::BXOR => *element ^ operand,
                        _ => operand,
                    };
                }
                known = (op == AtomicOp::ATOMIC_WRITE).then_some(operand);
            }
            self.await_words(region, &elements)
                .map_err(|error| error.at(format_args!("{action:?}")))?;
            self.count(length);
        }
        // One comparison succeeds, one fails.
        if length <= COMPARED
            && let Some(held) = known
        {
            let compare = AtomicAction::Compare {
                op: AtomicOp::CSWAP,
                comparand: held.seed,
            };
            let swapped = payload((seed + 1) << 32);
            let refused = payload((seed + 2) << 32);
            self.atomic(remote, compare, swapped, Some(held.seed))?;
            self.await_words(region, &words(swapped))
                .map_err(|error| error.at("swap"))?;
            self.atomic(remote, compare, refused, Some(swapped.seed))?;
            self.await_words(region, &words(swapped))
                .map_err(|error| error.at("no swap"))?;
            self.count(2 * length);
        }
        Ok(())
    }

    /// Runs one atomic, which must return the message of seed `old`.
    fn atomic(
        &mut self,
        remote: Remote,
        action: AtomicAction,
        operand: Payload,
        old: Option<u64>,
    ) -> Result<(), NotMeasured> {
        let fetches = !matches!(action, AtomicAction::Update(_));
        let request = OperationRequest::Atomic {
            to: TARGET,
            remote,
            datatype: AtomicDatatype::UINT64,
            action,
            operand,
            delivery_complete: false,
        };
        let operation = self.begin(INITIATOR, request, old.filter(|_| fetches))?;
        let result = self.wait(operation, fetches.then_some(operand.length));
        result
            .map(drop)
            .map_err(|error| error.at(format_args!("{action:?}")))
    }

    fn await_words(&mut self, token: Token, expected: &[u64]) -> Result<(), NotMeasured> {
        let begin = Instant::now();
        loop {
            let found = match self.ask(TARGET, &Command::Dump { id: token })? {
                Event::Memory { bytes } => words_of(&bytes.0),
                event => return Err(self.unexpected(TARGET, &event)),
            };
            if found == expected {
                return Ok(());
            }
            if begin.elapsed() > STALLED || self.bench.left().is_zero() {
                let wrong = found
                    .iter()
                    .zip(expected)
                    .position(|(found, expected)| found != expected)
                    .unwrap_or(found.len());
                return Err(failed!("element {wrong} of memory is wrong"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

fn words(payload: Payload) -> Vec<u64> {
    words_of(&pattern::bytes(payload.seed, payload.length))
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().copied().map(u64::from_le_bytes).collect()
}
