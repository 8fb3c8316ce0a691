//! A device that shares memory with a hostile process, for the fuzzer: the words and bytes of that
//! memory are the fuzzer's to write.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use efa_core::address::{Gid, Qpn};

use super::state::EngineState;
use crate::error::FabricError;
use crate::fabric::directory::Fabric;
use crate::fabric::host::Host;
use crate::identity::config::{HostConfig, NetworkOptions};
use crate::link::inbound;
use crate::process::shared::{PAGE, SharedMemory};
use crate::transport::ring::Consumer;
use crate::transport::segment::{MIN_RING, SLOTS, Segment, SlotContent};
use efa_device_model::device::Device;
use efa_device_model::link::{HostSegment, RequestHeader};
use efa_device_model::qpn_policy::QpnPolicy;
use efa_lock_free::qpn::QpnChoice;
use efa_lock_free::record::{self, LINE, Record, RecordKind, record_length};
use efa_lock_free::ring::{ANSWERS, Incoming, RingMemory, answer_code};

/// The files of two processes, one of them hostile. They are created once, for many
/// [`FuzzSession`]s.
#[derive(Debug)]
pub struct FuzzFabric {
    fabric: Fabric,
    config: HostConfig,
    victim: Host,
    attacker: Host,
    to_victim: Arc<Segment>,
    to_attacker: Arc<Segment>,
    attacker_qpn: Qpn,
}

impl FuzzFabric {
    /// Makes the files below `root`, for the exclusive use of the caller.
    pub fn new(root: &Path) -> Result<FuzzFabric, FabricError> {
        let fabric = Fabric::open_below(root, "fuzz")?;
        let enter = |name| {
            let host = fabric.enter_host(Some(name), None, 64)?;
            let segment = Segment::create(&host.device_path(), host.address())?;
            Ok::<_, FabricError>((host, Arc::new(segment)))
        };
        let (victim, to_victim) = enter("victim")?;
        let (attacker, to_attacker) = enter("attacker")?;
        to_attacker.declare_network(&NetworkOptions::default());
        let mut choice = QpnChoice::new(QpnPolicy::Lowest, 0);
        let attacker_qpn = attacker.take_qpn(&mut choice, None)?;
        Ok(FuzzFabric {
            fabric,
            config: HostConfig::new("fuzz", "victim"),
            victim,
            attacker,
            to_victim,
            to_attacker,
            attacker_qpn,
        })
    }

    /// The fabric that both are in.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The victim's address.
    pub fn victim(&self) -> Gid {
        self.victim.gid()
    }

    /// The attacker's address.
    pub fn attacker(&self) -> (Gid, Qpn) {
        (self.attacker.gid(), self.attacker_qpn)
    }

    /// A device that was just opened, and shared memory in its state before any request.
    pub fn meet(&self, device: Device) -> Result<FuzzSession<'_>, FabricError> {
        for segment in [&self.to_victim, &self.to_attacker] {
            segment.take_doorbells(|_| {});
            segment.stay_awake();
            for slot in 0..SLOTS {
                if segment.inspect(slot) != SlotContent::Free {
                    segment.free(slot);
                }
            }
        }
        let segment = Arc::clone(&self.to_victim);
        Ok(FuzzSession {
            stage: self,
            state: EngineState::new(device, &self.victim, segment, &self.config)?,
            out: None,
            back: None,
        })
    }
}

/// Reads of one initiator that a device serves outside of its ring, at most.
pub const MOST_READS: usize = inbound::MOST_READS;
/// Records of a ring that are without an answer, at most.
pub const MOST_UNANSWERED: usize = ANSWERS;

/// The attacker's end of its ring to the victim.
struct AttackRing {
    slot: usize,
    memory: SharedMemory,
    /// The offset of the next record, and its number.
    at: usize,
    number: u64,
}

/// The attacker's end of the victim's ring to it.
struct ReturnRing {
    consumer: Consumer,
    memory: SharedMemory,
    taken: Vec<Incoming>,
}

/// The attacker's fields of a record besides its request.
#[derive(Clone, Copy, Debug)]
pub struct RecordFields {
    /// The code of a [`RecordKind`], or one that there is not.
    pub kind: u8,
    /// Offset of the payload in the request's data, or a name.
    pub offset: u32,
    /// It is not the last part.
    pub is_part: bool,
    /// It is to be refused with "receiver not ready".
    pub is_rnr: bool,
    /// Its delivery time.
    pub due: u64,
}

impl RecordFields {
    fn kind(&self) -> RecordKind {
        [
            RecordKind::Pad,
            RecordKind::Data,
            RecordKind::Direct,
            RecordKind::Pull,
            RecordKind::ReadData,
            RecordKind::Outcome,
        ][usize::from(self.kind) % 6]
    }
}

/// The record of a request with this many bytes after it.
pub(crate) fn record(request: &RequestHeader, extra: RecordFields, payload: usize) -> Record {
    let mut record = Record::whole(extra.kind(), request, payload as u32)
        .at(extra.offset)
        .due_at(extra.due);
    if extra.is_part {
        record = record.not_last();
    }
    if extra.is_rnr {
        record = record.with_rnr();
    }
    record
}

/// The running victim, and the actions of the attacker.
pub struct FuzzSession<'a> {
    stage: &'a FuzzFabric,
    state: EngineState,
    out: Option<AttackRing>,
    back: Option<ReturnRing>,
}

impl FuzzSession<'_> {
    /// The victim's device.
    pub fn device(&mut self) -> &mut Device {
        self.state.device()
    }

    /// One turn of the victim's work.
    pub fn pass(&mut self) {
        self.state.pass();
    }

    /// The work of the victim's thread before it sleeps, and its check of peers.
    pub fn pause(&mut self) {
        self.state.check_peers();
        self.stage.to_victim.fall_asleep();
        self.state.prepare_to_sleep();
        self.stage.to_victim.stay_awake();
    }

    /// The attacker sets up a ring to the victim, and abandons its current one.
    pub fn connect(&mut self) {
        if let Some(out) = self.out.take() {
            self.stage.to_victim.give_up(out.slot);
        }
        let own = self.stage.attacker.address();
        if let Ok(Some((slot, memory))) = self.stage.to_victim.claim_ring(own, MIN_RING) {
            self.out = Some(AttackRing {
                slot,
                memory,
                at: 0,
                number: 0,
            });
        }
    }

    /// The attacker sends a record like an honest process, except for `damage`: a word of the
    /// header and a change to it. The list of the initiator's memory is the payload of a record of
    /// the kind 2.
    pub fn send(
        &mut self,
        request: &RequestHeader,
        extra: RecordFields,
        payload: &[u8],
        list: &[HostSegment],
        damage: Option<(usize, u64)>,
    ) {
        let (bytes, length) = record::segments_to_bytes(list);
        let payload = match extra.kind() {
            RecordKind::Direct => &bytes[..length],
            _ => payload,
        };
        let mut fields = record(request, extra, payload.len()).fields();
        if let Some((word, change)) = damage {
            fields[word % fields.len()] ^= change;
        }
        let Some(out) = &mut self.out else {
            return;
        };
        let end = out.memory.capacity();
        let length = record_length(payload.len());
        if out.at + length > end {
            out.write(&Record::pad(end - out.at).fields(), &[], end - out.at);
        }
        out.write(&fields, payload, length);
        self.stage.to_victim.announce(out.slot);
    }

    /// Whether the victim has answered the attacker's record with this number. The number must be
    /// among the last [`MOST_UNANSWERED`] ones.
    pub fn is_answered(&self, number: u64) -> bool {
        self.out
            .as_ref()
            .is_some_and(|out| answer_code(&out.memory, number).is_some())
    }

    /// Writes a word of the ring to the victim.
    pub fn scribble_ring(&mut self, word: usize, value: u64) {
        if let Some(out) = &self.out {
            let words = (PAGE + out.memory.capacity()) / 8;
            out.memory
                .u64(8 * (word % words))
                .store(value, Ordering::SeqCst);
        }
    }

    /// Writes a word of the victim's segment outside of the rings: the head with the doorbells, or
    /// the descriptor of one of the first slots. The words that the victim reads only at opening
    /// are not changed, so that later meetings find them.
    pub fn scribble_head(&mut self, word: usize, value: u64) {
        self.stage.to_victim.scribble(word, value);
    }

    /// As [`FuzzSession::scribble_head`], for the attacker's own segment, where the victim sends
    /// to.
    pub fn scribble_own_head(&mut self, word: usize, value: u64) {
        self.stage.to_attacker.scribble(word, value);
    }

    /// Reads the next record of the victim as the attacker. Returns the request and the record's
    /// name.
    pub fn take(&mut self) -> Option<(RequestHeader, u32)> {
        if self.back.is_none() {
            let segment = &self.stage.to_attacker;
            let victim = self.stage.victim.address();
            let found = (0..SLOTS).find_map(|slot| match segment.inspect(slot) {
                SlotContent::InUse { sender, capacity } if sender == victim => {
                    Some((slot, capacity))
                }
                _ => None,
            });
            let (slot, capacity) = found?;
            self.back = Some(ReturnRing {
                consumer: Consumer::new(segment.adopt_ring(slot, capacity).ok()?),
                memory: segment.adopt_ring(slot, capacity).ok()?,
                taken: Vec::new(),
            });
        }
        let back = self.back.as_mut()?;
        let incoming = back.consumer.take().ok().flatten()?;
        back.taken.push(incoming);
        let record = &incoming.record;
        Some((record.header(), record.offset()))
    }

    /// Claims or releases, as the attacker, the memory of the oldest record that it has read.
    pub fn hold(&mut self, hold: bool) {
        if let Some(back) = &self.back
            && let Some(incoming) = back.taken.first()
        {
            match hold {
                true => drop(back.consumer.begin_copy(incoming)),
                false => back.consumer.end_copy(incoming),
            }
        }
    }

    /// Answers, as the attacker, the oldest record that it has read with any code.
    pub fn answer(&mut self, code: u8) {
        if let Some(back) = &mut self.back
            && !back.taken.is_empty()
        {
            let incoming = back.taken.remove(0);
            back.consumer
                .answer(&incoming, record::Answer::from_code(code & 0x3f));
        }
    }

    /// Writes a byte of the answers to the victim.
    pub fn scribble_answers(&mut self, at: usize, value: u8) {
        if let Some(back) = &self.back {
            back.memory.write(PAGE - ANSWERS + at % ANSWERS, &[value]);
        }
    }

    /// Whether the victim has refused the attacker's ring.
    pub fn is_refused(&self) -> bool {
        self.out
            .as_ref()
            .is_some_and(|out| self.stage.to_victim.is_refused(out.slot))
    }
}

impl AttackRing {
    fn write(&mut self, fields: &record::Fields, payload: &[u8], length: usize) {
        let end = self.memory.capacity();
        let header = PAGE + self.at;
        for (index, value) in fields.iter().enumerate() {
            self.memory
                .u64(header + 8 * (index + 1))
                .store(*value, Ordering::Relaxed);
        }
        self.memory.write(header + LINE, payload);
        let behind = (self.at + length) % end;
        self.memory.u64(PAGE + behind).store(0, Ordering::Relaxed);
        self.number += 1;
        self.memory
            .u64(header)
            .store(self.number, Ordering::Release);
        self.at = behind;
    }
}
