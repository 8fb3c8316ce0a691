//! A target that stops in the middle of its copy from or to a client's memory, at the worst moment:
//! between its claim of the memory and the system call that copies. When it is continued, it makes
//! that call.

use std::sync::atomic::{AtomicU32, Ordering};

use efa_core::nic::Status;
use efa_device_model::device::{Error, QpChange, QpState};
use efa_device_model::provider::UdAddress;
use efa_shm::EngineError;
use efa_testing::engine::{Address, Client, Memory, config};

use crate::processes::{Parent, Process};

/// The bytes that a target copies with one call.
const PIECE: usize = 1 << 20;
/// The bytes of the target's memory.
const THEIRS: u8 = 0x77;
/// The byte that the client writes into its memory after the memory is released.
const OURS: u8 = 0xee;

/// Copies until this process stops itself; 0 for never.
static COPIES_LEFT: AtomicU32 = AtomicU32::new(0);

fn stop_if_requested() {
    // Only the device's thread copies.
    let left = COPIES_LEFT.load(Ordering::SeqCst);
    COPIES_LEFT.store(left.saturating_sub(1), Ordering::SeqCst);
    if left == 1 {
        // SAFETY: stops this process until its parent continues it.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

/// Replaces a function of the C library that the device calls to copy to or from a peer.
macro_rules! stand_in {
    ($function:ident, $number:path) => {
        /// # Safety
        /// As for the function of the C library.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function(
            pid: libc::pid_t,
            local: *const libc::iovec,
            local_count: libc::c_ulong,
            remote: *const libc::iovec,
            remote_count: libc::c_ulong,
            flags: libc::c_ulong,
        ) -> libc::ssize_t {
            stop_if_requested();
            // SAFETY: as the caller promises.
            let copied = unsafe {
                libc::syscall(
                    $number,
                    pid,
                    local,
                    local_count,
                    remote,
                    remote_count,
                    flags,
                )
            };
            copied as libc::ssize_t
        }
    };
}
stand_in!(process_vm_writev, libc::SYS_process_vm_writev);
stand_in!(process_vm_readv, libc::SYS_process_vm_readv);

/// A child that offers memory. The line `stop` makes its second copy from then on stop it.
pub(crate) fn holder(parent: &Parent) {
    let client = Client::open(&parent.root, &config("holder"));
    let memory = client.register(vec![THEIRS; 3 * PIECE]);
    parent.say(&client.address().to_text());
    client.connect(Address::from_text(&parent.hear().unwrap()));
    parent.say(&format!("{} {}", memory.address(), memory.keys.rkey.0));
    while let Some(line) = parent.hear() {
        assert_eq!(line, "stop");
        COPIES_LEFT.store(2, Ordering::SeqCst);
        parent.say("armed");
    }
}

/// A client, and a target that has stopped while it holds the client's memory.
struct Setup {
    _root: tempfile::TempDir,
    target: Process,
    client: Client,
    to: UdAddress,
    there: (u64, u32),
    local: Memory,
}

impl Setup {
    /// Posts two reads: of the first, the target has copied one of two pieces, and it holds the
    /// claim of the second one's memory.
    fn new() -> Setup {
        let root = tempfile::tempdir().unwrap();
        let mut client = Client::open(root.path(), &config("alpha"));
        let mut target = Process::start("holder", root.path(), 0);
        let to = client.connect(Address::from_text(&target.hear()));
        target.say(&client.address().to_text());
        let there = target.hear();
        let (start, rkey) = there.split_once(' ').unwrap();
        let there = (start.parse().unwrap(), rkey.parse().unwrap());
        let local = client.register(vec![0; 3 * PIECE]);
        target.say("stop");
        assert_eq!(target.hear(), "armed");
        // The target finds both reads when it continues.
        target.signal(libc::SIGSTOP);
        target.wait_until_stopped();
        client.post_read(1, to, local.buffer(0, 2 * PIECE), there);
        client.post_read(2, to, local.buffer(2 * PIECE, PIECE), there);
        target.signal(libc::SIGCONT);
        target.wait_until_stopped();
        Setup {
            _root: root,
            target,
            client,
            to,
            there,
            local,
        }
    }

    /// Both reads continue, and complete as if the target had not stopped.
    fn goes_on(&mut self) {
        self.target.signal(libc::SIGCONT);
        let mut done = [self.client.wait_ok().wr_id, self.client.wait_ok().wr_id];
        done.sort_unstable();
        assert_eq!(done, [1, 2]);
        assert!(self.local.bytes.iter().all(|byte| *byte == THEIRS));
    }
}

fn is_busy(result: Result<(), EngineError>) {
    let Err(EngineError::Device(error @ Error::Busy(_))) = result else {
        panic!("{result:?}");
    };
    assert_eq!(error.errno(), libc::EBUSY);
}

#[test]
fn deregistration_waits_for_a_stopped_target() {
    let mut setup = Setup::new();
    let lkey = setup.local.keys.lkey;
    is_busy(setup.client.engine.deregister_memory(lkey));
    setup.goes_on();
    // Now the memory can be released, and does not change any more.
    setup.client.deregister(lkey);
    setup.local.bytes.fill(OURS);
    setup
        .client
        .post_read(3, setup.to, setup.local.buffer(0, 8), setup.there);
    let refused = setup.client.wait().status();
    assert_eq!(refused, Some(Status::LocalInvalidLkey));
    assert!(setup.local.bytes.iter().all(|byte| *byte == OURS));
    setup.target.finish();
}

#[test]
fn queue_pair_destruction_waits_for_a_stopped_target() {
    let mut setup = Setup::new();
    let qpn = setup.client.address().qpn;
    let engine = &setup.client.engine;
    let change = |state| QpChange {
        state: Some(state),
        ..QpChange::default()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| is_busy(engine.destroy_qp(qpn)));
        scope.spawn(|| is_busy(engine.modify_qp(qpn, &change(QpState::Reset))));
        scope.spawn(|| is_busy(engine.modify_qp(qpn, &change(QpState::Error))));
        scope.spawn(|| is_busy(engine.quiesce()));
    });
    setup.goes_on();
    setup.client.destroy_qp();
    setup.target.finish();
}

#[test]
fn unused_memory_is_deregistered_at_once() {
    let mut setup = Setup::new();
    let other = setup.client.register(vec![0; PIECE]);
    setup.client.deregister(other.keys.lkey);
    setup.goes_on();
    setup.target.finish();
}

#[test]
fn a_killed_targets_memory_is_free() {
    let mut setup = Setup::new();
    setup.target.kill();
    setup.client.deregister(setup.local.keys.lkey);
    setup.local.bytes.fill(OURS);
    for _ in 0..2 {
        assert!(setup.client.wait().status() != Some(Status::Ok));
    }
    assert!(setup.local.bytes.iter().all(|byte| *byte == OURS));
}
