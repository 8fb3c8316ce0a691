//! Any bytes as what a hostile process writes into the memory that it shares with a device: records,
//! descriptors, doorbells, answers, at any time between the device's steps.
//!
//! Checked: nothing panics; memory around what is registered stays as it is; every request of the
//! device's client completes at most once, and all of them once the client resets its queue pair or the
//! attacker's ring is given up.

use std::cell::RefCell;

use efa_core::address::{Qkey, Qpn};
use efa_core::nic::Access;
use efa_emu::device::queue::{Buffer, WqeSize};
use efa_emu::device::{Device, MemoryRegion, QpChange, QpConfig, QpState, Service};
use efa_emu::link::{HostSegment, Operation, RemoteRange, RequestHeader};
use efa_emu::profile::Profile;
use efa_emu::provider::{CompletionQueue, SendData, SendOpcode, SendRequest, UdAddress};
use efa_emu::transport::fuzzing::{Extra, Meeting, Stage};
use efa_testing::device::{ClientQueues, Kind};

const QKEY: Qkey = Qkey(0x1122_3344);
const QPN: Qpn = Qpn(7);

/// Bytes of the arena: in front of the registered region, in it, behind it.
const GUARD: usize = 4096;
const REGION: usize = 64 << 10;
const GUARD_BYTE: u8 = 0xa5;
/// Receives, one slot each at the start of the region.
const SLOT: usize = 512;
const RECEIVES: usize = 8;

const STEPS: usize = 400;

struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn word(&mut self) -> u32 {
        u32::from(self.half()) | u32::from(self.half()) << 16
    }

    fn long(&mut self) -> u64 {
        u64::from(self.word()) | u64::from(self.word()) << 32
    }

    /// Numbers around what matters, or any.
    fn number(&mut self) -> u64 {
        match self.byte() {
            0 => 0,
            1 => 1,
            2 => 2,
            3 => 3,
            4 => u64::MAX,
            5 => 1 << 63,
            6 => self.long(),
            7 => u64::from(self.word()),
            other => u64::from(other),
        }
    }

    fn length(&mut self) -> u32 {
        match self.byte() {
            0 => 0,
            1 => 1,
            2 => 8 << 10,
            3 => (8 << 10) + 1,
            4 => 16 << 10,
            5 => u32::MAX,
            6 => self.word(),
            other => u32::from(other) * 16,
        }
    }
}

thread_local! {
    static STAGE: RefCell<Option<(tempfile::TempDir, Stage)>> = const { RefCell::new(None) };
}

/// See the module documentation.
pub(crate) fn check(bytes: &[u8]) {
    STAGE.with_borrow_mut(|stage| {
        let (_, stage) = stage.get_or_insert_with(|| {
            let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let stage = Stage::new(root.path()).expect("a fabric");
            (root, stage)
        });
        Victim::new(stage).besiege(Choices(bytes));
    });
}

struct Victim<'a> {
    meeting: Meeting<'a>,
    arena: Vec<u8>,
    lkey: u32,
    rkey: u32,
    queues: ClientQueues,
    completions: CompletionQueue,
    to: UdAddress,
    posted: u64,
    completed: Vec<bool>,
    /// Names of the victim's requests, as the attacker learnt them.
    names: Vec<u32>,
}

impl<'a> Victim<'a> {
    fn new(stage: &'a Stage) -> Self {
        let profile = Profile::by_name("efa2").expect("there is one").clone();
        let arena = vec![GUARD_BYTE; GUARD + REGION + GUARD];
        let mut device = Device::new(profile.clone(), stage.victim());
        let pd = device.alloc_pd().expect("a domain");
        let start = arena.as_ptr() as u64 + GUARD as u64;
        let region = MemoryRegion {
            address: start,
            length: REGION as u64,
            iova: start,
            access: Access::all(),
        };
        let keys = device.register_memory(pd, region).expect("a region");
        let (cq, ring) = device.create_cq(256).expect("a queue");
        let config = QpConfig {
            service: Service::Srd,
            pd,
            send_cq: cq,
            recv_cq: cq,
            send_entries: 64,
            wqe_size: WqeSize::Bytes64,
            recv_descriptors: 64,
            unsolicited_write_recv: false,
        };
        let rings = device.create_qp(QPN, config).expect("a queue pair");
        let mut queues = ClientQueues::new(QPN, rings, &profile, WqeSize::Bytes64, 0);
        for change in QpChange::bring_up(QKEY, None) {
            device.modify_qp(QPN, &change).expect("a change");
            queues.set_state(change.state.expect("a state"));
        }
        let (gid, qpn) = stage.attacker();
        let ahn = device.create_ah(pd, gid).expect("a handle");
        let mut victim = Victim {
            meeting: stage.meet(device).expect("a meeting"),
            arena,
            lkey: keys.lkey.0,
            rkey: keys.rkey.0,
            queues,
            completions: CompletionQueue::new(ring),
            to: UdAddress {
                ahn: ahn.0,
                qpn,
                qkey: QKEY,
            },
            posted: 0,
            completed: Vec::new(),
            names: vec![0],
        };
        for _ in 0..RECEIVES {
            victim.post_receive();
        }
        victim.meeting.connect();
        victim
    }

    fn start(&self) -> u64 {
        self.arena.as_ptr() as u64 + GUARD as u64
    }

    fn buffer(&self, offset: usize, length: u32) -> Buffer {
        Buffer {
            address: self.start() + offset as u64,
            length,
            lkey: self.lkey,
        }
    }

    fn new_request(&mut self) -> u64 {
        self.completed.push(false);
        self.posted += 1;
        self.posted - 1
    }

    fn post_receive(&mut self) {
        let offset = self.completed.len() % RECEIVES * SLOT;
        let buffer = self.buffer(offset, SLOT as u32);
        let wr_id = self.new_request();
        if self.queues.recv.post(wr_id, &[buffer]).is_err() {
            self.completed[wr_id as usize] = true;
        }
    }

    fn besiege(mut self, mut choices: Choices<'_>) {
        for _ in 0..STEPS {
            if choices.is_over() {
                break;
            }
            self.step(&mut choices);
            self.meeting.pass();
            self.collect();
        }
        self.end();
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 16 {
            0..=4 => self.attack_with_record(choices),
            5 => {
                let word = usize::from(choices.half());
                let value = choices.number();
                self.meeting.scribble_ring(word, value);
            }
            6 => {
                let word = usize::from(choices.byte());
                let value = choices.number();
                self.meeting.scribble_head(word, value);
            }
            7 => {
                let word = usize::from(choices.byte());
                let value = choices.number();
                self.meeting.scribble_own_head(word, value);
            }
            8 => self.meeting.connect(),
            9 | 10 => {
                if let Some((_, name)) = self.meeting.take() {
                    self.names.push(name);
                }
            }
            11 => self.meeting.answer(choices.byte()),
            12 => match choices.byte() {
                byte if byte < 128 => self.meeting.hold(byte & 1 == 1),
                byte => {
                    let at = usize::from(choices.byte());
                    self.meeting.scribble_answers(at, byte);
                }
            },
            13 | 14 => self.post(choices),
            _ => match choices.byte() {
                0 => self.reset(),
                1..4 => self.meeting.pause(),
                _ => self.post_receive(),
            },
        }
    }

    fn attack_with_record(&mut self, choices: &mut Choices<'_>) {
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
        let name = self.names[usize::from(choices.byte()) % self.names.len()];
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
        // The attacker is this process: the memory that it names must be its own, or nobody's.
        let list: Vec<_> = (0..choices.byte() % 4)
            .map(|_| HostSegment {
                address: match choices.byte() {
                    0 => 16,
                    1 => u64::MAX - 8,
                    other => self.start() + 32 * u64::from(other),
                },
                length: match choices.byte() {
                    0 => length,
                    other => u32::from(other),
                }
                .min((REGION / 2) as u32),
            })
            .collect();
        let extra = Extra {
            kind,
            offset: match choices.byte() {
                0 => 0,
                1 => name,
                _ => choices.length(),
            },
            is_part: flags & 64 != 0,
            not_ready: flags & 128 != 0,
            due: match choices.byte() {
                0 => choices.number(),
                _ => 0,
            },
        };
        let damage = match choices.byte() {
            byte @ 0..16 => Some((usize::from(byte), choices.number())),
            _ => None,
        };
        // A damaged list could name any memory of this process.
        let damage = damage.filter(|_| kind % 6 != 2);
        self.meeting.send(&request, extra, &payload, &list, damage);
    }

    fn post(&mut self, choices: &mut Choices<'_>) {
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
                let request = SendRequest {
                    wr_id,
                    opcode: SendOpcode::Send,
                    flags: 0,
                    to,
                    data: SendData::Buffers(&data),
                };
                if self.queues.send.post(&request).is_err() {
                    self.completed[wr_id as usize] = true;
                }
            }
            1 => self.queues.post_rdma(wr_id, to, Kind::Read, buffer, (0, 1)),
            _ => self
                .queues
                .post_rdma(wr_id, to, Kind::Write(None), buffer, (0, 1)),
        }
        let _ = self.meeting.device().look_at_send_queue(QPN);
    }

    /// Forgets everything, and begins again.
    fn reset(&mut self) {
        let reset = QpChange {
            state: Some(QpState::Reset),
            ..QpChange::default()
        };
        self.meeting
            .device()
            .modify_qp(QPN, &reset)
            .expect("any state may be reset");
        self.queues.set_state(QpState::Reset);
        self.completed.iter_mut().for_each(|done| *done = true);
        for change in QpChange::bring_up(QKEY, None) {
            self.meeting
                .device()
                .modify_qp(QPN, &change)
                .expect("a change");
            self.queues.set_state(change.state.expect("a state"));
        }
    }

    fn collect(&mut self) {
        while let Some(completion) = self.completions.next(&mut self.queues) {
            let done = &mut self.completed[completion.wr_id as usize];
            assert!(!*done, "request {} completed twice", completion.wr_id);
            *done = true;
        }
    }

    fn end(mut self) {
        let fail = QpChange {
            state: Some(QpState::Error),
            ..QpChange::default()
        };
        let device = self.meeting.device();
        device.modify_qp(QPN, &fail).expect("any state may fail");
        self.queues.set_state(QpState::Error);
        self.meeting.pass();
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
