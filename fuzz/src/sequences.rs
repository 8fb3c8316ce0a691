//! Interprets any bytes as calls of the verbs by several threads, with handles that are valid,
//! freed, of another type, foreign or null, while other threads use and free the same ones.
//!
//! No call crashes or hangs, and calls return an errno that the verb may return. Afterwards all
//! objects can be destroyed, and the process has as many descriptors and threads as before.
//!
//! Calls that look a handle up get any pointer. Posting and polling dereference theirs, so they get
//! objects that live or were freed recently, as docs/security.md promises, and no other pointers.

use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use efa_core::address::Gid;
use efa_shm::HostConfig;
use libc::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};

use efa_testing::verbs::*;
use efa_verbs_abi::*;

const THREADS: usize = 3;
/// Calls of one thread.
const CALLS: usize = 128;
/// The most objects of a type at a time.
const MOST: usize = 8;

/// The permitted errors of a call.
const REFUSALS: [c_int; 4] = [EINVAL, EBUSY, ENOMEM, EOPNOTSUPP];

/// The types of objects, in the order in which they can be destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ObjectKind {
    Region,
    Pair,
    Handle,
    Queue,
    Channel,
    Domain,
}

const KINDS: [ObjectKind; 6] = [
    ObjectKind::Region,
    ObjectKind::Pair,
    ObjectKind::Handle,
    ObjectKind::Queue,
    ObjectKind::Channel,
    ObjectKind::Domain,
];

/// Handles of one type. They are stored as numbers, so that threads may share them.
#[derive(Default)]
struct Handles {
    live: Vec<usize>,
    freed: Vec<usize>,
}

/// The state that the threads share.
struct Table {
    context: usize,
    gid: ibv_gid,
    handles: [Mutex<Handles>; KINDS.len()],
}

/// One call and its arguments.
#[derive(Clone, Copy)]
struct Call {
    what: u8,
    handle: u8,
    other: u8,
    value: u8,
}

impl Table {
    fn context(&self) -> *mut ibv_context {
        with_exposed_provenance_mut(self.context)
    }

    fn with<R>(&self, kind: ObjectKind, work: impl FnOnce(&mut Handles) -> R) -> R {
        let handles = &self.handles[kind as usize];
        work(&mut handles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A handle of a type, mostly a live one; or a freed one, one of another type, a pointer to
    /// something else, or null.
    fn any<T>(&self, kind: ObjectKind, choice: u8) -> *mut T {
        match choice >> 4 {
            0 => null_mut(),
            1 => foreign(),
            2 => self.listed(KINDS[usize::from(choice) % KINDS.len()], false, choice),
            3 => self.listed(kind, true, choice),
            _ => self.listed(kind, false, choice),
        }
    }

    /// A handle of a type that is live or was freed recently; null if there is none.
    fn known<T>(&self, kind: ObjectKind, choice: u8) -> *mut T {
        self.listed(kind, choice >> 5 == 0, choice)
    }

    fn listed<T>(&self, kind: ObjectKind, freed: bool, choice: u8) -> *mut T {
        self.with(kind, |handles| {
            let list = if freed { &handles.freed } else { &handles.live };
            let chosen = usize::from(choice).checked_rem(list.len());
            chosen.map_or(null_mut(), |index| with_exposed_provenance_mut(list[index]))
        })
    }

    /// Notes an object that a verb created, or checks the error.
    fn made<T>(&self, kind: ObjectKind, made: *mut T) {
        if made.is_null() {
            let refusal = errno();
            assert!(
                REFUSALS.contains(&refusal),
                "making a {kind:?}: errno {refusal}"
            );
            return;
        }
        self.with(kind, |handles| {
            handles.live.push(made.expose_provenance());
        });
    }

    /// Destroys the object of the handle.
    fn end(&self, kind: ObjectKind, handle: *mut c_void) -> c_int {
        let status = match kind {
            ObjectKind::Region => ibv_dereg_mr(handle.cast()),
            ObjectKind::Pair => ibv_destroy_qp(handle.cast()),
            ObjectKind::Handle => ibv_destroy_ah(handle.cast()),
            ObjectKind::Queue => ibv_destroy_cq(handle.cast()),
            ObjectKind::Channel => ibv_destroy_comp_channel(handle.cast()),
            ObjectKind::Domain => ibv_dealloc_pd(handle.cast()),
        };
        if status == 0 {
            let number = handle.addr();
            self.with(kind, |handles| {
                // The library keeps the memory of more freed handles than there are in a run, so no
                // other object had the same address.
                let ended_before = handles.freed.contains(&number);
                assert!(!ended_before, "a {kind:?} was ended twice");
                handles.live.retain(|live| *live != number);
                handles.freed.push(number);
            });
        }
        status
    }

    fn call(&self, call: Call) {
        let kind = KINDS[usize::from(call.handle) % KINDS.len()];
        match call.what % 12 {
            0..=2 => self.make(kind, call),
            3 => expect(self.end(kind, self.any(kind, call.other)), "ending"),
            4 => self.modify(call),
            5 => {
                let (mut attributes, mut initial) = (zeroed(), zeroed());
                let mask = IBV_QP_STATE as c_int;
                let pair = self.any(ObjectKind::Pair, call.other);
                // SAFETY: the library looks the handle up; the structures are on the stack.
                let status =
                    unsafe { ibv_query_qp(pair, &raw mut attributes, mask, &raw mut initial) };
                expect(status, "ibv_query_qp");
            }
            6 | 7 => self.send(call),
            8 | 9 => self.receive(call),
            _ => {
                let queue: *mut ibv_cq = self.known(ObjectKind::Queue, call.other);
                if !queue.is_null() {
                    let mut completions = [ibv_wc::default(); 4];
                    let found = poll(queue, &mut completions);
                    assert!((-EINVAL..=4).contains(&found), "ibv_poll_cq: {found}");
                }
            }
        }
    }

    fn make(&self, kind: ObjectKind, call: Call) {
        if self.with(kind, |handles| handles.live.len() >= MOST) {
            return;
        }
        let context = self.context();
        let domain = self.any(ObjectKind::Domain, call.other);
        // SAFETY: the library looks handles up; all other arguments are valid.
        unsafe {
            match kind {
                ObjectKind::Domain => self.made(kind, ibv_alloc_pd(context)),
                ObjectKind::Region => {
                    let length = usize::from(call.value) * 8;
                    let access = IBV_ACCESS_LOCAL_WRITE as c_int;
                    self.made(kind, ibv_reg_mr(domain, memory(), length, access));
                }
                ObjectKind::Handle => {
                    let mut attributes: ibv_ah_attr = zeroed();
                    attributes.port_num = call.value % 4;
                    attributes.is_global = 1;
                    attributes.grh.dgid = self.gid;
                    self.made(kind, ibv_create_ah(domain, &raw mut attributes));
                }
                ObjectKind::Channel => self.made(kind, ibv_create_comp_channel(context)),
                ObjectKind::Queue => {
                    let channel = self.any(ObjectKind::Channel, call.other);
                    let entries = c_int::from(call.value);
                    let queue = ibv_create_cq(context, entries, null_mut(), channel, 0);
                    self.made(kind, queue);
                }
                ObjectKind::Pair => {
                    let mut attributes: ibv_qp_init_attr_ex = zeroed();
                    attributes.send_cq = self.any(ObjectKind::Queue, call.value);
                    attributes.recv_cq = self.any(ObjectKind::Queue, call.value);
                    attributes.cap = ibv_qp_cap {
                        max_send_wr: 16,
                        max_recv_wr: 16,
                        max_send_sge: 2,
                        max_recv_sge: 2,
                        max_inline_data: 32,
                    };
                    attributes.qp_type = IBV_QPT_DRIVER;
                    attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
                    attributes.pd = domain;
                    let mut efa = efadv_qp_init_attr::default();
                    let size = size_of::<efadv_qp_init_attr>() as u32;
                    let pair = efadv_create_qp_ex(context, &raw mut attributes, &raw mut efa, size);
                    self.made(kind, pair);
                }
            }
        }
    }

    fn modify(&self, call: Call) {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = c_int::from(call.value % 8);
        attributes.port_num = 1;
        attributes.qkey = QKEY;
        let mask = match call.value >> 6 {
            0 => IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
            1 => IBV_QP_STATE | IBV_QP_SQ_PSN,
            _ => IBV_QP_STATE,
        };
        let pair = self.any(ObjectKind::Pair, call.other);
        // SAFETY: the library looks the handle up; the structure is on the stack.
        let status = unsafe { ibv_modify_qp(pair, &raw mut attributes, mask as c_int) };
        expect(status, "ibv_modify_qp");
    }

    fn send(&self, call: Call) {
        let pair: *mut ibv_qp = self.known(ObjectKind::Pair, call.other);
        let region: *mut ibv_mr = self.known(ObjectKind::Region, call.value);
        let handle: *mut ibv_ah = self.known(ObjectKind::Handle, call.handle);
        if pair.is_null() || region.is_null() || handle.is_null() {
            return;
        }
        let mut list = [sge(region, 0, u32::from(call.value))];
        let mut request: ibv_send_wr = zeroed();
        request.sg_list = list.as_mut_ptr();
        request.num_sge = list.len() as c_int;
        request.opcode = IBV_WR_SEND;
        request.send_flags = IBV_SEND_SIGNALED;
        request.ud.ah = handle;
        // SAFETY: a queue pair that lives, or whose memory is kept.
        request.ud.remote_qpn = unsafe { (*pair).qp_num };
        request.ud.remote_qkey = QKEY;
        expect(post_send(pair, &mut request).0, "ibv_post_send");
    }

    fn receive(&self, call: Call) {
        let pair: *mut ibv_qp = self.known(ObjectKind::Pair, call.other);
        let region: *mut ibv_mr = self.known(ObjectKind::Region, call.value);
        if !pair.is_null() && !region.is_null() {
            let mut list = [sge(region, 0, u32::from(call.value))];
            expect(post_recv(pair, 1, &mut list), "ibv_post_recv");
        }
    }
}

fn expect(status: c_int, what: &str) {
    let is_errno = status == 0 || REFUSALS.contains(&status);
    assert!(is_errno, "{what}: {status}");
}

/// Registered memory, which the calls may write to.
fn memory() -> *mut c_void {
    static MEMORY: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
    MEMORY.as_ptr().cast_mut().cast()
}

/// The library that has a function, and its name there. `libibverbs.so.1` also has the functions of
/// `libefa.so.1`, and finds them there.
fn place_of(function: &str) -> (*mut c_void, String) {
    let name = match function.starts_with("efadv_") {
        true => format!("efa_emu_{function}"),
        false => function.to_owned(),
    };
    (library(), name)
}

/// The library whose verbs are called, loaded once, with its own host.
fn library() -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let number = *LIBRARY.get_or_init(|| {
        let mut config = HostConfig::new(&format!("fuzz-{}", std::process::id()), "fuzzed");
        config.gids = vec![Gid([
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x55,
        ])];
        for (variable, value) in config.to_env() {
            // SAFETY: the fuzzer has no other thread yet, and the thread of a test waits.
            unsafe { std::env::set_var(variable, value) };
        }
        let path = efa_testing::workspace::built("libefa_emu_verbs.so");
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: our library, whose constructors do nothing.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        library.expose_provenance()
    });
    with_exposed_provenance_mut(number)
}

/// Descriptors and threads of this process.
fn held() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"]
        .map(|directory| std::fs::read_dir(directory).unwrap().count())
}

/// Four bytes are a call; the threads take calls in turn.
pub(crate) fn check(bytes: &[u8]) {
    LOOKUP.get_or_init(|| place_of);
    static BEFORE: OnceLock<[usize; 2]> = OnceLock::new();
    let before = BEFORE.get_or_init(|| {
        // Makes the objects that exist once per process.
        run(&[]);
        std::thread::sleep(Duration::from_millis(100));
        held()
    });
    run(bytes);
    let is_as_before = |held: [usize; 2]| held[0] <= before[0] && held[1] <= before[1];
    let held = settled(is_as_before);
    assert!(
        is_as_before(held),
        "descriptors and threads: {held:?}, before {before:?}"
    );
}

/// The resources of the process. Threads are listed until a moment after they were joined: waits
/// for a while until the resources are as expected.
fn settled(is_expected: impl Fn([usize; 2]) -> bool) -> [usize; 2] {
    let mut last = held();
    for _ in 0..10_000 {
        if is_expected(last) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        last = held();
    }
    last
}

fn run(bytes: &[u8]) {
    let endpoint = Endpoint::new();
    let table = Table {
        context: endpoint.context.expose_provenance(),
        gid: endpoint.gid,
        handles: Default::default(),
    };
    // Something that works to begin with.
    let queue = endpoint.cq(32);
    table.made(ObjectKind::Domain, endpoint.pd);
    table.made(ObjectKind::Handle, endpoint.handle);
    table.made(ObjectKind::Queue, queue);
    let calls: Vec<Call> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&[what, handle, other, value]| Call {
            what,
            handle,
            other,
            value,
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, calls) = (&table, &calls);
            scope.spawn(move || {
                let own = calls.iter().skip(thread).step_by(THREADS).take(CALLS);
                own.for_each(|each| table.call(*each));
            });
        }
    });
    for kind in KINDS {
        for number in table.with(kind, |handles| handles.live.clone()) {
            let status = table.end(kind, with_exposed_provenance_mut(number));
            assert_eq!(status, 0, "a {kind:?} cannot be ended");
        }
    }
    assert_eq!(ibv_close_device(endpoint.context), 0);
}
