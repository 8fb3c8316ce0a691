//! A device with a hostile peer, and its client: the subject of the targets `link` and `bridge`.

use std::cell::RefCell;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::Access;
use efa_device_model::device::queue::{Buffer, RequestIdSize};
use efa_device_model::device::{Device, MemoryRegion, QpChange, QpState};
use efa_device_model::link::{Operation, RemoteRange, RequestHeader};
use efa_device_model::profile::Profile;
use efa_device_model::provider::{CompletionQueue, SendData, SendOpcode, UdAddress};
use efa_shm::fuzzing::{FuzzFabric, FuzzSession, RecordFields};
use efa_testing::choices::Choices;
use efa_testing::device::{ClientQueues, QKEY, RdmaOperation, Setup};

const QPN: Qpn = Qpn(7);

/// The bytes of the arena: before the registered region, in it, after it.
const GUARD: usize = 4096;
pub(crate) const REGION: usize = 64 << 10;
const GUARD_BYTE: u8 = 0xa5;
/// Receives, one slot each at the start of the region.
const SLOT: usize = 512;
const RECEIVES: usize = 8;

thread_local! {
    static FABRIC: RefCell<Option<(tempfile::TempDir, FuzzFabric)>> = const { RefCell::new(None) };
}

/// Runs `attack` in this thread's fabric. Its files are created once: that takes longer than an
/// attack.
pub(crate) fn in_fabric(attack: impl FnOnce(&FuzzFabric)) {
    FABRIC.with_borrow_mut(|fabric| {
        let (_, fabric) = fabric.get_or_insert_with(|| {
            let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let fabric = FuzzFabric::new(root.path()).expect("a fabric");
            (root, fabric)
        });
        attack(fabric);
    });
}

/// The device, its memory and its client.
pub(crate) struct Victim<'a> {
    pub(crate) session: FuzzSession<'a>,
    arena: Vec<u8>,
    lkey: u32,
    rkey: u32,
    queues: ClientQueues,
    completions: CompletionQueue,
    to: UdAddress,
    posted: u64,
    completed: Vec<bool>,
}

/// A request that the attacker invents, and its claims about the record.
pub(crate) struct Attack {
    pub(crate) request: RequestHeader,
    pub(crate) payload: Vec<u8>,
    flags: u8,
    kind: u8,
}

impl<'a> Victim<'a> {
    /// A device that sends to the queue pair of a peer.
    pub(crate) fn new(fabric: &'a FuzzFabric, (gid, qpn): (Gid, Qpn)) -> Self {
        let profile = Profile::by_name("efa2").expect("there is one").clone();
        let arena = vec![GUARD_BYTE; GUARD + REGION + GUARD];
        let mut device = Device::new(profile.clone(), fabric.victim());
        let pd = device.alloc_pd().expect("a domain");
        let start = arena.as_ptr() as u64 + GUARD as u64;
        let region = MemoryRegion::new(start, REGION as u64, Access::all());
        let keys = device.register_memory(pd, region).expect("a region");
        let (cq, ring) = device
            .create_cq(256, RequestIdSize::Bits16)
            .expect("a queue");
        let setup = Setup {
            profile,
            send_entries: 64,
            ..Setup::default()
        };
        let rings = device.create_qp(QPN, setup.config(pd, cq));
        let rings = rings.expect("a queue pair");
        let ahn = device.create_ah(pd, gid).expect("a handle");
        let mut victim = Victim {
            session: fabric.meet(device).expect("a session"),
            arena,
            lkey: keys.lkey.0,
            rkey: keys.rkey.0,
            queues: ClientQueues::new(QPN, rings, &setup.profile, setup.wqe_size, 0),
            completions: CompletionQueue::new(ring),
            to: UdAddress {
                ahn: ahn.0,
                qpn,
                qkey: QKEY,
            },
            posted: 0,
            completed: Vec::new(),
        };
        victim.ready();
        for _ in 0..RECEIVES {
            victim.post_receive();
        }
        victim
    }

    fn modify(&mut self, change: &QpChange) {
        let device = self.session.device();
        device.modify_qp(QPN, change).expect("a change");
        self.queues.set_state(change.state.expect("a state"));
    }

    fn set_state(&mut self, state: QpState) {
        self.modify(&QpChange {
            state: Some(state),
            ..QpChange::default()
        });
    }

    fn ready(&mut self) {
        for change in QpChange::bring_up(QKEY, None) {
            self.modify(&change);
        }
    }

    pub(crate) fn start(&self) -> u64 {
        self.arena.as_ptr() as u64 + GUARD as u64
    }

    fn buffer(&self, offset: usize, length: u32) -> Buffer {
        Buffer::new(self.start() + offset as u64, length, self.lkey)
    }

    fn new_request(&mut self) -> u64 {
        self.completed.push(false);
        self.posted += 1;
        self.posted - 1
    }

    pub(crate) fn post_receive(&mut self) {
        let offset = self.completed.len() % RECEIVES * SLOT;
        let buffer = self.buffer(offset, SLOT as u32);
        let wr_id = self.new_request();
        if self.queues.recv.post(wr_id, &[buffer]).is_err() {
            self.completed[wr_id as usize] = true;
        }
    }

    /// A request for the victim's memory, or for addresses close to it, with one of the names.
    pub(crate) fn attack(&self, choices: &mut Choices<'_>, names: &[u32]) -> Attack {
        let flags = choices.byte();
        let operation = match flags & 3 {
            0 => Operation::Send,
            1 => Operation::Datagram,
            2 => Operation::RdmaRead,
            _ => Operation::RdmaWrite,
        };
        let kind = choices.byte();
        let length = choices.length();
        let payload = match flags & 4 {
            0 => length,
            _ => choices.length(),
        };
        let payload = vec![choices.byte(); (payload as usize).min(20 << 10)];
        let name = names[usize::from(choices.byte()) % names.len()];
        let remote = RemoteRange {
            address: match choices.byte() {
                0 => choices.long(),
                1 => self.start() - 1,
                2 => self.start() + REGION as u64 - u64::from(length),
                other => self.start() + u64::from(other) * 64,
            },
            key: match flags & 8 {
                0 => self.rkey,
                _ => self.rkey ^ choices.word(),
            },
        };
        let request = RequestHeader {
            operation,
            source_qpn: Qpn(choices.half()),
            destination_qpn: match flags & 16 {
                0 => QPN,
                _ => Qpn(choices.half()),
            },
            qkey: QKEY,
            sequence: name,
            retries: 0,
            immediate: (flags & 32 != 0).then_some(7),
            remote: matches!(operation, Operation::RdmaRead | Operation::RdmaWrite)
                .then_some(remote),
            length,
        };
        Attack {
            request,
            payload,
            flags,
            kind,
        }
    }

    /// A read of `length` bytes that the attacker may make.
    #[cfg(test)]
    pub(crate) fn permitted_read(&self, length: u32) -> RequestHeader {
        RequestHeader {
            operation: Operation::RdmaRead,
            source_qpn: QPN,
            destination_qpn: QPN,
            qkey: QKEY,
            sequence: 0,
            retries: 0,
            immediate: None,
            remote: Some(RemoteRange::new(self.start(), self.rkey)),
            length,
        }
    }

    /// Posts a request to the peer.
    pub(crate) fn post(&mut self, choices: &mut Choices<'_>) {
        let offset = RECEIVES * SLOT + usize::from(choices.byte()) * 16;
        let length = choices.length().min((REGION - offset) as u32);
        let buffer = self.buffer(offset, length);
        let to = self.to;
        if self.queues.send.outstanding() > 32 {
            return;
        }
        let kind = choices.byte() % 3;
        let wr_id = self.new_request();
        match kind {
            0 => {
                let length = length.min(4096);
                let data = [Buffer { length, ..buffer }];
                let data = SendData::Buffers(&data);
                let posted = self.queues.post(wr_id, to, SendOpcode::Send, data);
                if posted.is_err() {
                    self.completed[wr_id as usize] = true;
                }
            }
            1 => self
                .queues
                .post_rdma(wr_id, to, RdmaOperation::Read, buffer, (0, 1)),
            _ => self
                .queues
                .post_rdma(wr_id, to, RdmaOperation::Write(None), buffer, (0, 1)),
        }
        let _ = self.session.device().read_send_doorbell(QPN);
    }

    /// Forgets everything, and begins again.
    pub(crate) fn reset(&mut self) {
        self.set_state(QpState::Reset);
        self.completed.iter_mut().for_each(|done| *done = true);
        self.ready();
    }

    /// Takes completions, at most one of each request.
    pub(crate) fn collect(&mut self) {
        while let Some(completion) = self.completions.next(&mut self.queues) {
            let done = &mut self.completed[completion.wr_id as usize];
            assert!(!*done, "request {} completed twice", completion.wr_id);
            *done = true;
        }
    }

    /// Fails the queue pair: every request completes, and memory that is not registered is as it
    /// was.
    pub(crate) fn end(mut self) {
        self.set_state(QpState::Error);
        self.session.pass();
        self.collect();
        let open: Vec<_> = (0..self.completed.len())
            .filter(|index| !self.completed[*index])
            .collect();
        assert!(open.is_empty(), "requests {open:?} never completed");
        let guards = [&self.arena[..GUARD], &self.arena[GUARD + REGION..]];
        for guard in guards {
            assert!(
                guard.iter().all(|byte| *byte == GUARD_BYTE),
                "memory beside the registered region was written"
            );
        }
    }
}

impl Attack {
    /// The code of the record's kind.
    pub(crate) fn kind(&self) -> u8 {
        self.kind
    }

    /// The attacker's other claims about the record, and a word of its header to change.
    pub(crate) fn extra(&self, choices: &mut Choices<'_>) -> (RecordFields, Option<(usize, u64)>) {
        let extra = RecordFields {
            kind: self.kind,
            offset: match choices.byte() {
                0 => 0,
                1 => self.request.sequence,
                _ => choices.length(),
            },
            is_part: self.flags & 64 != 0,
            is_rnr: self.flags & 128 != 0,
            due: match choices.byte() {
                0 => choices.number(),
                _ => 0,
            },
        };
        let damage = match choices.byte() {
            byte @ 0..16 => Some((usize::from(byte), choices.number())),
            _ => None,
        };
        (extra, damage)
    }
}
