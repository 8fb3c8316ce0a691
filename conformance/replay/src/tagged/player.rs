//! Execution of a scenario's steps by both ends.

use std::collections::BTreeMap;

use efa_core::rules::Severity;
use efa_core::wire::infiniband::{Rvh, Tmh};
use efa_device_model::device::connected::{ConnectedFlags, WcOperation, WcStatus};
use efa_hw::connected::{Completion, TagOperation, TagRequest, Work};
use efa_play::scenario::tags::{End, Expected, TagAction, TagMessage, TagScenario};
use zerocopy::IntoBytes as _;

use super::error::StepError;
use super::{Connection, DeviceError, Devices, TagVerdict};
use crate::compare::Finding;

/// The initial content of receive buffers, to detect writes outside of a message.
const FILL: u8 = 0xee;

/// Maximum number of calls in one wait.
const MOST_ROUNDS: u32 = 20_000;

/// A range of an end's memory.
#[derive(Clone, Copy, Debug)]
struct MemoryRange {
    offset: usize,
    length: usize,
}

/// The object with a given name in the scenario.
#[derive(Clone, Debug)]
enum NamedObject {
    /// A receive. If it is tagged, its data does not include message headers.
    Receive { range: MemoryRange, is_tagged: bool },
    /// A message: all its bytes, and the memory of a rendezvous's data.
    Sent {
        bytes: Vec<u8>,
        data: Option<MemoryRange>,
    },
    /// Another operation.
    Operation,
}

struct Player<'s, D: Devices> {
    scenario: &'s TagScenario,
    devices: &'s mut D,
    ends: [D::Connection; 2],
    /// The offset of the first unused byte in each end's memory.
    free: [usize; 2],
    objects: BTreeMap<&'s str, NamedObject>,
    /// Names by work request id.
    names: Vec<&'s str>,
    handles: BTreeMap<&'s str, u32>,
    /// Completions that no step has consumed.
    seen: [Vec<Completion>; 2],
    verdict: TagVerdict,
}

pub(super) fn play<D: Devices>(scenario: &TagScenario, devices: &mut D) -> TagVerdict {
    let memory = needed(scenario);
    let ends = match devices.connect(memory, scenario) {
        Ok(ends) => ends,
        Err(lack) => {
            return TagVerdict {
                unsupported: Some(lack.to_string()),
                ..TagVerdict::default()
            };
        }
    };
    let mut player = Player {
        scenario,
        devices,
        ends,
        free: [0; 2],
        objects: BTreeMap::new(),
        names: Vec::new(),
        handles: BTreeMap::new(),
        seen: [Vec::new(), Vec::new()],
        verdict: TagVerdict::default(),
    };
    // After a failed step, the following ones are meaningless.
    if let Err(error) = player.play() {
        let finding = Finding::plain(Severity::Error, error.to_string());
        player.verdict.findings.push(finding);
    }
    let Player {
        devices, verdict, ..
    } = player;
    TagVerdict {
        capture: devices.captured(),
        ..verdict
    }
}

/// The most memory that an end needs, in bytes.
fn needed(scenario: &TagScenario) -> usize {
    let of_step = |action: &TagAction| match action {
        TagAction::Receive { length, .. } | TagAction::Add { length, .. } => *length,
        TagAction::Send { message, .. } => match message {
            TagMessage::NoTag { length, .. } | TagMessage::Eager { length, .. } => {
                Tmh::LENGTH + length
            }
            TagMessage::Rendezvous { length, more, .. } => {
                Tmh::LENGTH + Rvh::LENGTH + more + length
            }
            TagMessage::Finish { .. } => Tmh::LENGTH + Rvh::LENGTH,
            TagMessage::Plain { bytes } => bytes.len(),
        },
        // A read is not longer than a message.
        TagAction::Read { .. } => 0,
        TagAction::Delete { .. } | TagAction::Sync { .. } | TagAction::See { .. } => 0,
    };
    let steps = scenario.steps.iter();
    // Each range is rounded up, and each read needs as much as all messages.
    let sum: usize = steps.map(|step| of_step(&step.action) + 64).sum();
    let reads = scenario.steps.iter();
    let reads = reads.filter(|step| matches!(step.action, TagAction::Read { .. }));
    sum * (1 + reads.count())
}

impl<'s, D: Devices> Player<'s, D> {
    fn play(&mut self) -> Result<(), StepError> {
        for step in &self.scenario.steps {
            self.step(&step.action).map_err(|error| StepError::AtLine {
                line: step.line,
                error: Box::new(error),
            })?;
        }
        let quiet = self.devices.quiet_rounds();
        self.wait(quiet, |player| {
            player.seen.iter().any(|seen| !seen.is_empty())
        });
        for (end, seen) in [End::A, End::B].iter().zip(&self.seen) {
            if let Some(completion) = seen.first() {
                let seen = self.describe(completion);
                let end = end.name();
                return Err(StepError::Unexpected { end, seen });
            }
        }
        Ok(())
    }

    /// Advances time until the condition is true, or no event happens for `most` rounds. Returns
    /// whether it is true.
    fn wait(&mut self, most: u32, is_so: impl Fn(&Self) -> bool) -> bool {
        let mut rounds = 0;
        for _ in 0..MOST_ROUNDS {
            for end in 0..2 {
                while let Some(completion) = self.ends[end].poll() {
                    self.seen[end].push(completion);
                    rounds = 0;
                }
            }
            if is_so(self) {
                return true;
            }
            if rounds >= most || !self.devices.wait(rounds) {
                return false;
            }
            rounds += 1;
        }
        false
    }

    fn allocate(&mut self, end: End, length: usize) -> MemoryRange {
        let offset = self.free[end.index()];
        self.free[end.index()] += length.next_multiple_of(64);
        MemoryRange { offset, length }
    }

    fn id(&mut self, name: &'s str) -> u64 {
        self.names.push(name);
        self.names.len() as u64 - 1
    }

    fn name_of(&self, wr_id: u64) -> &'s str {
        let name = self.names.get(wr_id as usize);
        name.copied().unwrap_or("an unknown work request")
    }

    fn describe(&self, completion: &Completion) -> String {
        format!(
            "`{}` complete: {} {} with the flags {}, {} bytes, tag {:#x}",
            self.name_of(completion.wr_id),
            WcOperation::name_of(completion.opcode),
            WcStatus::name_of(completion.status),
            flag_names(ConnectedFlags::from_bits_truncate(completion.flags as u8)),
            completion.length,
            completion.tag,
        )
    }

    fn receive(
        &mut self,
        at: End,
        id: &'s str,
        length: usize,
        is_tagged: bool,
    ) -> (u64, MemoryRange) {
        let range = self.allocate(at, length);
        self.ends[at.index()].write(range.offset, &vec![FILL; length]);
        self.objects
            .insert(id, NamedObject::Receive { range, is_tagged });
        (self.id(id), range)
    }

    fn request(&mut self, request: &TagRequest) -> Result<u32, DeviceError> {
        self.ends[End::B.index()].post_tag_request(request)
    }

    fn step(&mut self, action: &'s TagAction) -> Result<(), StepError> {
        match action {
            TagAction::Receive { at, id, length } => {
                let (wr_id, range) = self.receive(*at, id, *length, false);
                self.ends[at.index()].post_receive(wr_id, range.offset, range.length)?;
                Ok(())
            }
            TagAction::Add {
                id,
                tag,
                mask,
                length,
                handled,
                signaled,
            } => {
                let (wr_id, range) = self.receive(End::B, id, *length, true);
                let handle = self.request(&TagRequest {
                    wr_id,
                    is_signaled: *signaled,
                    handled: *handled,
                    operation: TagOperation::Add {
                        recv_wr_id: wr_id,
                        offset: range.offset,
                        length: range.length,
                        tag: *tag,
                        mask: mask.unwrap_or(u64::MAX),
                    },
                })?;
                self.handles.insert(id, handle);
                Ok(())
            }
            TagAction::Delete { id, of, handled } => {
                self.objects.insert(id, NamedObject::Operation);
                let wr_id = self.id(id);
                let handle = self.handles.get(of.as_str()).copied().unwrap_or(u32::MAX);
                let operation = TagOperation::Delete(handle);
                self.operate(wr_id, *handled, operation)
            }
            TagAction::Sync { id, handled } => {
                self.objects.insert(id, NamedObject::Operation);
                let wr_id = self.id(id);
                self.operate(wr_id, Some(*handled), TagOperation::Sync)
            }
            TagAction::Send {
                at,
                id,
                message,
                status,
            } => self.send(*at, id, message, *status),
            TagAction::Read {
                id,
                of,
                offset,
                length,
                status,
            } => self.read(id, of, *offset, *length, *status),
            TagAction::See { at, completions } => self.see(*at, completions),
        }
    }

    fn operate(
        &mut self,
        wr_id: u64,
        handled: Option<u32>,
        operation: TagOperation,
    ) -> Result<(), StepError> {
        let request = TagRequest {
            wr_id,
            is_signaled: true,
            handled,
            operation,
        };
        self.request(&request)?;
        Ok(())
    }

    fn send(
        &mut self,
        at: End,
        id: &'s str,
        message: &'s TagMessage,
        status: Option<WcStatus>,
    ) -> Result<(), StepError> {
        let header = |operation, data: u32, tag: u64| {
            let header = Tmh {
                operation,
                data: data.into(),
                tag: tag.into(),
                ..Tmh::default()
            };
            header.as_bytes().to_vec()
        };
        let payload = pattern(
            self.names.len(),
            match message {
                TagMessage::NoTag { length, .. }
                | TagMessage::Eager { length, .. }
                | TagMessage::Rendezvous { length, .. } => *length,
                TagMessage::Finish { .. } | TagMessage::Plain { .. } => 0,
            },
        );
        let mut of_rendezvous = None;
        let bytes = match message {
            TagMessage::Plain { bytes } => bytes.clone(),
            TagMessage::NoTag { tag, data, .. } => [header(0, *data, *tag), payload].concat(),
            TagMessage::Eager { tag, data, .. } => {
                [header(Tmh::EAGER, *data, *tag), payload].concat()
            }
            TagMessage::Finish { of } => finish(&self.sent(of)?.0),
            TagMessage::Rendezvous {
                tag,
                data,
                length,
                again,
                more,
            } => {
                let range = match again {
                    Some(of) => self.data_of(of)?,
                    None => self.allocate(at, *length),
                };
                if again.is_none() {
                    self.ends[at.index()].write(range.offset, &payload);
                }
                of_rendezvous = Some(range);
                let (address, key) = self.ends[at.index()].region();
                let rvh = Rvh {
                    address: (address + range.offset as u64).into(),
                    key: key.into(),
                    length: (*length as u32).into(),
                };
                let rest = vec![0; *more];
                let head = header(Tmh::RENDEZVOUS, *data, *tag);
                [head, rvh.as_bytes().to_vec(), rest].concat()
            }
        };
        let range = self.allocate(at, bytes.len());
        self.ends[at.index()].write(range.offset, &bytes);
        let data = of_rendezvous;
        self.objects.insert(id, NamedObject::Sent { bytes, data });
        let wr_id = self.id(id);
        self.ends[at.index()].post(wr_id, Work::Send, range.offset, range.length)?;
        self.verdict.played += 1;
        self.ended(at, wr_id, status)
    }

    /// The bytes of a message, and the memory of a rendezvous's data.
    fn sent(&self, id: &str) -> Result<(Vec<u8>, Option<MemoryRange>), StepError> {
        match self.objects.get(id) {
            Some(NamedObject::Sent { bytes, data }) => Ok((bytes.clone(), *data)),
            _ => Err(StepError::NotMessage(id.to_owned())),
        }
    }

    /// The memory of a rendezvous's data.
    fn data_of(&self, id: &str) -> Result<MemoryRange, StepError> {
        let (_, data) = self.sent(id)?;
        data.ok_or_else(|| StepError::NotRendezvous(id.to_owned()))
    }

    fn read(
        &mut self,
        id: &'s str,
        of: &str,
        offset: usize,
        length: Option<usize>,
        status: Option<WcStatus>,
    ) -> Result<(), StepError> {
        let data = self.data_of(of)?;
        let rest = data.length.saturating_sub(offset);
        let length = length.unwrap_or(rest);
        let range = self.allocate(End::B, length);
        self.objects.insert(id, NamedObject::Operation);
        let (address, key) = self.ends[End::A.index()].region();
        let address = address + (data.offset + offset) as u64;
        let wr_id = self.id(id);
        let work = Work::Read { address, key };
        self.ends[End::B.index()].post(wr_id, work, range.offset, range.length)?;
        self.ended(End::B, wr_id, status)?;
        if status.is_none() && length <= rest {
            let expected = self.ends[End::A.index()].read(data.offset + offset, length);
            let found = self.ends[End::B.index()].read(range.offset, length);
            compare_bytes(id, &expected, &found)?;
        }
        Ok(())
    }

    /// Waits for the completion of a send queue's work request.
    fn ended(&mut self, at: End, wr_id: u64, status: Option<WcStatus>) -> Result<(), StepError> {
        let at = at.index();
        let position = |player: &Self| player.seen[at].iter().position(|it| it.wr_id == wr_id);
        self.wait(MOST_ROUNDS, |player| position(player).is_some());
        let id = self.name_of(wr_id);
        let position = position(self).ok_or_else(|| StepError::Incomplete(id.to_owned()))?;
        let completion = self.seen[at].remove(position);
        compare_status(id, status, &completion)
    }

    fn see(&mut self, at: End, completions: &'s [Expected]) -> Result<(), StepError> {
        let count = completions.len();
        self.wait(MOST_ROUNDS, |player| player.seen[at.index()].len() >= count);
        for expected in completions {
            let id = expected.id.as_str();
            if self.seen[at.index()].is_empty() {
                return Err(StepError::Incomplete(id.to_owned()));
            }
            let completion = self.seen[at.index()].remove(0);
            if self.name_of(completion.wr_id) != id {
                return Err(StepError::OtherCompletion {
                    id: id.to_owned(),
                    end: at.name(),
                    seen: self.describe(&completion),
                });
            }
            self.check(at, expected, &completion)?;
        }
        Ok(())
    }

    fn check(
        &self,
        at: End,
        expected: &Expected,
        completion: &Completion,
    ) -> Result<(), StepError> {
        let id = &expected.id;
        compare_status(id, expected.status, completion)?;
        let opcodes = [expected.is as u32, completion.opcode].map(WcOperation::name_of);
        compare(id, "opcode", &opcodes[0], &opcodes[1])?;
        let flags = expected.flags.iter().map(|flag| flag.0).collect();
        let seen = ConnectedFlags::from_bits_truncate(completion.flags as u8);
        compare(id, "flags", &flag_names(flags), &flag_names(seen))?;
        for (field, expected, found) in [
            (
                "length",
                expected.length.map(u64::from),
                completion.length.into(),
            ),
            ("tag", expected.tag, completion.tag),
            ("data", expected.data.map(u64::from), completion.data.into()),
        ] {
            if let Some(expected) = expected {
                let (expected, found) = (format!("{expected:#x}"), format!("{found:#x}"));
                compare(id, field, &expected, &found)?;
            }
        }
        if let Some(message) = &expected.holds {
            self.holds(at, expected, &self.content(expected, message)?)?;
        }
        match &expected.ends {
            Some(request) => self.holds(at, expected, &finish(&self.sent(request)?.0)),
            None => Ok(()),
        }
    }

    fn receive_of(&self, id: &str) -> Result<(MemoryRange, bool), StepError> {
        match self.objects.get(id) {
            Some(NamedObject::Receive { range, is_tagged }) => Ok((*range, *is_tagged)),
            _ => Err(StepError::NotReceive(id.to_owned())),
        }
    }

    /// The part of a message that a receive contains.
    fn content(&self, expected: &Expected, message: &str) -> Result<Vec<u8>, StepError> {
        let (_, is_tagged) = self.receive_of(&expected.id)?;
        let (mut bytes, data) = self.sent(message)?;
        Ok(match (is_tagged, expected.status.is_some(), data) {
            (false, ..) => bytes,
            // The headers of a rendezvous that is too large, without the software's data.
            (true, true, _) => {
                bytes.truncate(Tmh::LENGTH + Rvh::LENGTH);
                bytes
            }
            (true, false, Some(data)) => self.ends[End::A.index()].read(data.offset, data.length),
            (true, false, None) => bytes.split_off(Tmh::LENGTH.min(bytes.len())),
        })
    }

    /// Whether a receive contains exactly these bytes.
    fn holds(&self, at: End, expected: &Expected, content: &[u8]) -> Result<(), StepError> {
        let (range, _) = self.receive_of(&expected.id)?;
        let mut whole = vec![FILL; range.length];
        let part = whole.get_mut(..content.len());
        part.ok_or_else(|| StepError::NoRoom(expected.id.clone()))?
            .copy_from_slice(content);
        let found = self.ends[at.index()].read(range.offset, range.length);
        compare_bytes(&expected.id, &whole, &found)
    }
}

fn compare_bytes(id: &str, expected: &[u8], found: &[u8]) -> Result<(), StepError> {
    let differs = expected
        .iter()
        .zip(found)
        .position(|(one, other)| one != other);
    match differs {
        None => Ok(()),
        Some(at) => {
            let [expected, found] = [expected, found].map(|bytes| format!("{:#04x}", bytes[at]));
            compare(id, &format!("byte {at}"), &expected, &found)
        }
    }
}

/// Whether a completion has the expected status, which is success by default.
fn compare_status(
    id: &str,
    expected: Option<WcStatus>,
    completion: &Completion,
) -> Result<(), StepError> {
    let expected = expected.unwrap_or(WcStatus::Success) as u32;
    let statuses = [expected, completion.status].map(WcStatus::name_of);
    compare(id, "status", &statuses[0], &statuses[1])
}

/// The names of flags.
fn flag_names(flags: ConnectedFlags) -> String {
    let names: Vec<&str> = flags.iter_names().map(|(name, _)| name).collect();
    format!("{names:?}")
}

/// Whether a field of a completion, or a byte of its data, is as expected.
fn compare(id: &str, field: &str, expected: &str, found: &str) -> Result<(), StepError> {
    match expected == found {
        true => Ok(()),
        false => Err(StepError::Differs {
            id: id.to_owned(),
            field: field.to_owned(),
            expected: expected.to_owned(),
            actual: found.to_owned(),
        }),
    }
}

/// The end of the rendezvous that a message has requested.
fn finish(request: &[u8]) -> Vec<u8> {
    let mut bytes = request[..request.len().min(Tmh::LENGTH + Rvh::LENGTH)].to_vec();
    if let Some(operation) = bytes.first_mut() {
        *operation = Tmh::FINISH;
    }
    bytes
}

/// The test data of a message.
fn pattern(number: usize, length: usize) -> Vec<u8> {
    let bytes = (0..length).map(|at| (number * 31 + at * 7 + 1) as u8);
    bytes.collect()
}
