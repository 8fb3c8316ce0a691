//! The provider under libfabric 2.7, whose tables of operations are longer than the tables of the
//! machine's headers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use crate::common::c::*;
use crate::common::{
    Libfabric, Options, Side, close, control, opened, piece, rma_message, with_pair, with_provider,
    with_side,
};

const ENOSYS: c_int = -libc::ENOSYS;
/// A capability and a flag of libfabric 2.7 for use by a GPU without the processor.
const FI_XPU: u64 = 1 << 44;

/// Any slot of a table, called with as many arguments as the longest has.
type Slot = unsafe extern "C" fn(
    *mut c_void,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> isize;

/// The tables of libfabric 2.7, in the order of their slots after `size` (`rdma/fabric.h` and the
/// others). This provider has no operation for those in parentheses.
const FID: &str = "close bind control ops_open (tostr) (ops_set)";
const FABRIC: &str = "domain (passive_ep) eq_open wait_open trywait domain2";
const DOMAIN: &str = "av_open cq_open endpoint (scalable_ep) cntr_open poll_open (stx_ctx) (srx_ctx) query_atomic \
     query_collective endpoint2 (xpu_ctx)";
const MR: &str = "reg regv regattr";
const AV: &str = "insert insertsvc (insertsym) remove lookup straddr av_set (insert_auth_key) (lookup_auth_key) \
     (set_user_id) lookup2";
const EP: &str =
    "cancel getopt setopt (tx_ctx) (rx_ctx) (rx_size_left) (tx_size_left) (export_xpu)";
const CM: &str =
    "(setname) getname (getpeer) (connect) (listen) (accept) (reject) (shutdown) (join)";
const MSG: &str = "recv recvv recvmsg send sendv sendmsg inject senddata injectdata";
const RMA: &str = "read readv readmsg write writev writemsg inject writedata injectdata";
const ATOMIC: &str = "write writev writemsg inject readwrite readwritev readwritemsg compwrite compwritev compwritemsg \
     writevalid readwritevalid compwritevalid";
const COLLECTIVE: &str = "barrier broadcast alltoall allreduce allgather reduce_scatter reduce scatter \
     gather msg barrier2";
const EQ: &str = "read readerr write sread strerror";
const CQ: &str = "read readfrom readerr sread sreadfrom signal strerror (export_xpu)";
const WAIT: &str = "wait";
const POLL: &str = "poll poll_add poll_del";
const AV_SET: &str = "set_union intersect diff insert remove addr";
const CNTR: &str = "read readerr add set wait adderr seterr (export_xpu)";

/// The slots of an object that has these of its own. `control` is called with the command 0
/// (`FI_GETFIDFLAG`), which is not supported; objects with a descriptor read the argument first.
fn fid_with(own: &str) -> String {
    let has = |name: &str| own.split(' ').any(|own| own == name);
    let slots = FID.split(' ').map(|slot| slot.trim_matches(['(', ')']));
    let slots = slots.map(|slot| match has(slot) {
        true => slot.to_owned(),
        false => format!("({slot})"),
    });
    slots.collect::<Vec<_>>().join(" ")
}

/// Calls each slot of a table, and the slots after it that a later release may add, with the object
/// and zeros. Returns the existing slots, as in the tables above.
///
/// # Safety
/// The object is open, and the table is one of its own.
unsafe fn call_all(object: *mut c_void, table: *const c_void, slots: &str) -> String {
    let call = |index: usize| {
        // SAFETY: by the caller's contract a table, whose slots follow its size.
        let slot = unsafe { table.cast::<Option<Slot>>().add(1 + index).read() };
        let slot = slot.unwrap_or_else(|| panic!("slot {index} of {slots} is null"));
        // SAFETY: on the processors that libfabric is for, functions take as many of the arguments
        // as they have.
        unsafe { slot(object, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) }
    };
    let mut found = Vec::new();
    let names: Vec<_> = slots.split(' ').collect();
    for (index, slot) in names.iter().enumerate() {
        let name = slot.trim_matches(['(', ')']);
        if name == "close" {
            // It is called in the end.
            found.push(name.to_owned());
            continue;
        }
        let answer = call(index);
        if ["strerror", "straddr"].contains(&name) {
            // SAFETY: these return texts.
            let text = unsafe { CStr::from_ptr(answer as *const c_char) };
            assert!(text.to_bytes().is_ascii(), "{name}: {text:?}");
            found.push(name.to_owned());
            continue;
        }
        // Some return an `int`, and others a `ssize_t`.
        let answer = answer as c_int;
        assert!(answer > -4096, "{name} of {slots} returned {answer}");
        found.push(match answer {
            ENOSYS => format!("({name})"),
            _ => name.to_owned(),
        });
    }
    for index in names.len()..names.len() + 4 {
        assert_eq!(call(index) as c_int, ENOSYS, "slot {index} of {slots}");
    }
    found.join(" ")
}

/// Tables, with the names of their slots.
type Tables = Vec<(*const c_void, &'static str)>;

/// One object of each kind.
struct OneOfEach {
    side: Side,
    /// Each with the slots that it has of its own in the table of its `fid`, and its other tables.
    objects: Vec<(*mut c_void, &'static str, Tables)>,
    memory: Box<[u8; 64]>,
}

impl OneOfEach {
    fn open(libfabric: &Libfabric) -> OneOfEach {
        let options = Options::USUAL.with(|options| options.wait_obj = FI_WAIT_FD);
        let side = Side::open(libfabric, &options);
        side.enable();
        let mut memory = Box::new([0_u8; 64]);
        let region = side.register(&mut *memory);
        let (events, counter) = (side.event_queue(FI_WAIT_FD), side.counter(FI_WAIT_NONE));
        let mut attributes = fi_wait_attr {
            wait_obj: FI_WAIT_FD,
            flags: 0,
        };
        let wait = opened(|set| call!(side.fabric => ops.wait_open(&mut attributes, set)));
        let mut attributes = fi_poll_attr::default();
        let poll = opened(|set| call!(side.domain => ops.poll_open(&mut attributes, set)));
        let (vector, mut attributes) = (side.vector, fi_av_set_attr::default());
        let set = opened(|set| call!(vector => ops.av_set(&mut attributes, set, null_mut())));
        /// An object with its tables.
        macro_rules! object {
            ($object:expr, $own:expr $(, $table:ident: $slots:ident)*) => {
                // SAFETY: the object is open.
                ($object.cast::<c_void>(), $own, unsafe {
                    vec![$(((*$object).$table.cast_const().cast::<c_void>(), $slots)),*]
                })
            };
        }
        let (endpoint, fabric, domain, queue) =
            (side.endpoint, side.fabric, side.domain, side.queue);
        // In an order in which they can be closed.
        let objects = vec![
            (region.cast(), "close", Vec::new()),
            object!(set, "close", ops: AV_SET),
            object!(poll, "close", ops: POLL),
            object!(wait, "close control", ops: WAIT),
            object!(counter, "close control", ops: CNTR),
            object!(endpoint, "close bind", ops: EP, cm: CM, msg: MSG, tagged: MSG, rma: RMA,
                atomic: ATOMIC, collective: COLLECTIVE),
            object!(events, "close control", ops: EQ),
            object!(vector, "close bind", ops: AV),
            object!(queue, "close control", ops: CQ),
            object!(domain, "close bind ops_open", ops: DOMAIN, mr: MR),
            object!(fabric, "close ops_open", ops: FABRIC),
        ];
        OneOfEach {
            side,
            objects,
            memory,
        }
    }

    /// Each object with each of its tables, and the slots of that table.
    fn tables(&self) -> impl Iterator<Item = (*mut c_void, *const c_void, String)> {
        self.objects.iter().flat_map(|(object, own, tables)| {
            // SAFETY: the object is open, and begins with a `fid`.
            let of_fid = unsafe { (*object.cast::<fid>()).ops };
            let own = (of_fid.cast_const().cast(), fid_with(own));
            let others = tables
                .iter()
                .map(|(table, slots)| (*table, (*slots).to_owned()));
            let all = std::iter::once(own).chain(others);
            all.map(|(table, slots)| (*object, table, slots))
                .collect::<Vec<_>>()
        })
    }

    fn close(self, libfabric: &Libfabric) {
        for (object, ..) in self.objects {
            assert_eq!(close(object), 0);
        }
        drop(self.memory);
        // SAFETY: it came from `fi_getinfo`.
        unsafe { (libfabric.freeinfo)(self.side.info) };
    }
}

#[test]
fn each_slot_of_each_object_answers() {
    with_provider(|libfabric| {
        let all = OneOfEach::open(libfabric);
        for (object, table, slots) in all.tables() {
            // SAFETY: the object is open, and it has this table.
            assert_eq!(unsafe { call_all(object, table, &slots) }, slots);
        }
        // SAFETY: the info is valid.
        let nic = unsafe { (*all.side.info).nic };
        // SAFETY: its device begins with a `fid`, which has this table.
        unsafe {
            let slots = fid_with("close tostr");
            let table = (*nic).fid.ops.cast_const().cast();
            assert_eq!(call_all(nic.cast(), table, &slots), slots);
        }
        // All of it is open still.
        all.close(libfabric);
    });
}

/// Calls that have no room for an error.
const WITHOUT_ERRORS: [&str; 4] = ["read", "readerr", "strerror", "straddr"];

#[test]
fn every_slot_refuses_other_objects() {
    with_provider(|libfabric| {
        let all = OneOfEach::open(libfabric);
        let mut wrong: Vec<*mut c_void> = all.objects.iter().map(|(object, ..)| *object).collect();
        let mut zeros = [0_u64; 32];
        wrong.extend([null_mut(), zeros.as_mut_ptr().cast()]);
        let mut calls = 0;
        for (own, table, slots) in all.tables() {
            let others = || wrong.iter().copied().filter(|other| *other != own);
            for (index, slot) in slots.split(' ').enumerate() {
                let name = slot.trim_matches(['(', ')']);
                let without_error = WITHOUT_ERRORS.contains(&name) && slots == CNTR;
                if ["strerror", "straddr"].contains(&name) {
                    continue;
                }
                // Unsupported calls read no arguments.
                let expected: &[c_int] = match () {
                    () if slot.starts_with('(') => &[ENOSYS, -libc::EINVAL],
                    () if without_error => &[0],
                    () => &[-libc::EINVAL],
                };
                for other in others() {
                    // SAFETY: the table is one of an open object, and its slots follow its size.
                    let found = unsafe {
                        let slot = table.cast::<Option<Slot>>().add(1 + index).read();
                        slot.expect("complete")(other, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
                    };
                    assert!(
                        expected.contains(&(found as c_int)),
                        "{name} of {slots}: {found}"
                    );
                    calls += 1;
                }
            }
        }
        println!("{calls} calls");
        // None of these calls has changed anything.
        all.close(libfabric);
    });
}

#[test]
fn closed_objects_are_refused() {
    with_provider(|libfabric| {
        let all = OneOfEach::open(libfabric);
        let tables: Vec<_> = all.tables().collect();
        all.close(libfabric);
        for (object, table, slots) in tables {
            // Transfers do not check their object, for speed, as their documentation says.
            if [CQ, CNTR, MSG, RMA, ATOMIC, COLLECTIVE].contains(&&*slots) {
                continue;
            }
            for (index, slot) in slots.split(' ').enumerate() {
                let name = slot.trim_matches(['(', ')']);
                if name == "straddr" || name == "strerror" {
                    continue;
                }
                let expected: &[c_int] = match slot.starts_with('(') {
                    true => &[ENOSYS, -libc::EINVAL],
                    false => &[-libc::EINVAL],
                };
                // SAFETY: tables are never closed.
                let found = unsafe {
                    let slot = table.cast::<Option<Slot>>().add(1 + index).read();
                    slot.expect("complete")(object, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
                };
                assert!(
                    expected.contains(&(found as c_int)),
                    "{name} of {slots}: {found}"
                );
            }
        }
    });
}

/// A slot of a table that the machine's headers do not have, by its index after `size`.
///
/// # Safety
/// The table has it, and it is of this type.
unsafe fn newer<F: Copy, T>(table: *const T, index: usize) -> F {
    assert_eq!(size_of::<F>(), size_of::<usize>());
    // SAFETY: by the caller's contract.
    unsafe { table.cast::<F>().add(1 + index).read() }
}

#[test]
fn addresses_are_looked_up_for_the_processor_only() {
    with_pair(&Options::USUAL, |pair| {
        let vector = pair.left.vector;
        type Lookup2 = unsafe extern "C" fn(
            *mut fid_av,
            fi_addr_t,
            *mut c_void,
            *mut usize,
            u64,
            *mut c_void,
        ) -> c_int;
        // SAFETY: `lookup2` is the eleventh.
        let (size, lookup2) = unsafe {
            (
                (*(*vector).ops).size,
                newer::<Lookup2, _>((*vector).ops, 10),
            )
        };
        // `fi_av_lookup2` reads the size.
        assert_eq!(size, 12 * size_of::<usize>());
        let lookup = |address, room: usize, flags| {
            let (mut found, mut length) = ([0_u8; 64], room);
            // SAFETY: the vector is open, and there is room for more than `length` bytes.
            let status = unsafe {
                let to = found.as_mut_ptr().cast();
                lookup2(vector, address, to, &mut length, flags, null_mut())
            };
            (status, found, length)
        };
        let name = pair.right.name();
        let (status, found, length) = lookup(pair.to_right, 64, 0);
        assert_eq!((status, length), (0, name.len()));
        assert_eq!(found[..32], name);
        // As `fi_av_lookup`: as many bytes as there is room for, and the whole length.
        let (status, found, length) = lookup(pair.to_right, 5, 0);
        assert_eq!((status, length), (0, name.len()));
        assert_eq!((&found[..5], found[5]), (&name[..5], 0));
        assert_eq!(lookup(7, 64, 0).0, -libc::EINVAL);
        let (status, found, length) = lookup(pair.to_right, 64, FI_XPU);
        assert_eq!((status, found, length), (ENOSYS, [0; 64], 64));
    });
}

#[test]
fn nothing_is_opened_for_a_gpu() {
    with_provider(|libfabric| {
        let offered = libfabric.info(|hints| hints.caps |= FI_XPU);
        assert_eq!(offered.err(), Some(-libc::ENODATA));
        let side = Side::open(libfabric, &Options::USUAL);
        let (domain, no) = (side.domain, null_mut());
        let mut endpoint = null_mut();
        let status = call!(domain => ops.endpoint2(side.info, &mut endpoint, FI_XPU, no));
        assert_eq!((status, endpoint), (-libc::EINVAL, null_mut()));
        let (mut queue, mut counter) = (null_mut(), null_mut());
        let mut attributes = fi_cq_attr {
            flags: FI_XPU,
            ..fi_cq_attr::default()
        };
        let status = call!(domain => ops.cq_open(&mut attributes, &mut queue, no));
        assert_eq!((status, queue), (-libc::EINVAL, null_mut()));
        let mut attributes = fi_cntr_attr {
            flags: FI_XPU,
            ..fi_cntr_attr::default()
        };
        let status = call!(domain => ops.cntr_open(&mut attributes, &mut counter, no));
        assert_eq!((status, counter), (-libc::EINVAL, null_mut()));
        let mut vector = null_mut();
        // Completions would have the application's numbers (`FI_AV_USER_ID`).
        let mut attributes = fi_av_attr {
            flags: FI_AV_USER_ID,
            ..fi_av_attr::default()
        };
        let status = call!(domain => ops.av_open(&mut attributes, &mut vector, no));
        assert_eq!((status, vector), (ENOSYS, null_mut()));
        let mut memory = [0_u8; 64];
        let region = side.register(&mut memory);
        // `FI_GET_MR_XPU_DESC` follows `FI_GET_FD`, which follows the last command of the machine's
        // headers.
        let command = FI_EXPORT_FID + 2;
        assert_eq!(control(region, command, &mut [0_u64; 4]), ENOSYS);
        assert_eq!(close(region), 0);
        side.close(libfabric);
    });
}

#[test]
fn efa_provider_operations_are_refused_by_name() {
    with_side(&Options::USUAL, |side| {
        /// Opens a table of operations of an object.
        fn open<T>(object: *mut T, name: *const c_char) -> (c_int, *mut c_void) {
            let mut table = null_mut();
            // SAFETY: every object begins with a `fid`, and is open.
            let status = unsafe {
                let fid = object.cast::<fid>();
                let open = (*(*fid).ops).ops_open.expect("the tables are complete");
                open(fid, name, 0, &mut table, null_mut())
            };
            (status, table)
        }
        for name in [c"efa domain ops", c"efa gda ops"] {
            let found = open(side.domain, name.as_ptr());
            assert_eq!(found, (-libc::EOPNOTSUPP, null_mut()), "{name:?}");
        }
        for name in [c"efa feature ops".as_ptr(), c"".as_ptr(), null()] {
            let found = open(side.domain, name);
            assert_eq!(found, (-libc::EINVAL, null_mut()));
        }
        for name in [c"efa domain ops".as_ptr(), null()] {
            let found = open(side.fabric, name);
            assert_eq!(found, (-libc::EINVAL, null_mut()));
        }
        let (status, table) = open(side.fabric, c"efa feature ops".as_ptr());
        assert_eq!(status, 0);
        // SAFETY: `struct fi_efa_feature_ops` is one function.
        let has = unsafe { *table.cast::<extern "C" fn(*const c_char) -> bool>() };
        assert!(!has(c"mixed_hmem_iov".as_ptr()) && !has(null()));
    });
}

#[test]
fn a_write_may_be_for_many_per_second() {
    /// `FI_EFA_WR_HIGH_PPS`.
    const HIGH_PPS: u64 = 1 << 60;
    /// A flag of the provider's that there is not.
    const UNKNOWN: u64 = 1 << 61;
    with_pair(&Options::USUAL, |pair| {
        let mut target = [0_u8; 4];
        let region = pair.right.register(&mut target);
        let (endpoint, from) = (pair.left.endpoint, b"data");
        let piece = piece(from.as_ptr(), 4);
        let remote = fi_rma_iov {
            addr: target.as_ptr().addr() as u64,
            len: 4,
            // SAFETY: the registration is open.
            key: unsafe { (*region).key },
        };
        let message = rma_message(&piece, pair.to_right, &remote);
        let refused = call!(endpoint => rma.writemsg(&message, UNKNOWN));
        assert_eq!(refused, -(FI_EBADFLAGS as isize));
        let flags = HIGH_PPS | FI_DELIVERY_COMPLETE;
        pair.start(|| call!(endpoint => rma.writemsg(&message, flags)));
        pair.left_completion();
        assert_eq!(&target, from);
        assert_eq!(close(region), 0);
    });
}
