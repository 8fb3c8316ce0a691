//! The tap's state of the libraries' objects, by their addresses.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use efa_verbs_sys as ffi;

use super::posted::PostedRequests;
use super::session::Session;
use super::spin::Spin;
use super::verbs_context::{CreateCq, CreateQp};

/// The most objects of each type.
const SLOTS: usize = 1 << 14;
/// A slot whose object was destroyed.
const GONE: usize = 1;

/// Finds a value by an address, without a lock. Values remain when their objects are destroyed,
/// because another thread may be polling for the queue pair.
pub(crate) struct Table<T: 'static> {
    keys: [AtomicUsize; SLOTS],
    values: [AtomicPtr<T>; SLOTS],
    changing: Mutex<()>,
}

impl<T: Sync + 'static> Table<T> {
    const fn new() -> Table<T> {
        Table {
            keys: [const { AtomicUsize::new(0) }; SLOTS],
            values: [const { AtomicPtr::new(null_mut()) }; SLOTS],
            changing: Mutex::new(()),
        }
    }

    /// The slot of a key, unless another key has it.
    #[inline]
    fn first(key: usize) -> usize {
        key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - SLOTS.ilog2())
    }

    /// The slots that a key may have.
    fn probes(key: usize) -> impl Iterator<Item = usize> {
        (0..SLOTS).map(move |step| (Self::first(key) + step) % SLOTS)
    }

    /// The value of a key.
    #[inline]
    pub(crate) fn get(&self, key: usize) -> Option<&'static T> {
        let slot = Self::first(key);
        if self.keys[slot].load(Ordering::Acquire) == key {
            // SAFETY: values are never freed.
            return unsafe { self.values[slot].load(Ordering::Acquire).as_ref() };
        }
        self.get_further(key)
    }

    /// As [`Table::get`], for a key whose first slot belongs to another key.
    #[cold]
    fn get_further(&self, key: usize) -> Option<&'static T> {
        for slot in Self::probes(key) {
            match self.keys[slot].load(Ordering::Acquire) {
                0 => return None,
                // SAFETY: values are never freed.
                found if found == key => unsafe {
                    return self.values[slot].load(Ordering::Acquire).as_ref();
                },
                _ => {}
            }
        }
        None
    }

    /// Adds a value. Returns whether there was room.
    pub(crate) fn insert(&self, key: usize, value: &'static T) -> bool {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = None;
        for slot in Self::probes(key) {
            match self.keys[slot].load(Ordering::Relaxed) {
                0 => {
                    free = free.or(Some(slot));
                    break;
                }
                GONE => free = free.or(Some(slot)),
                found if found == key => {
                    free = Some(slot);
                    break;
                }
                _ => {}
            }
        }
        let Some(slot) = free else { return false };
        let value = core::ptr::from_ref(value).cast_mut();
        // A reader that acquires the key also acquires the value, and through the value the object
        // to which it points.
        self.values[slot].store(value, Ordering::Release);
        self.keys[slot].store(key, Ordering::Release);
        true
    }

    /// Removes a value.
    pub(crate) fn remove(&self, key: usize) -> Option<&'static T> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in Self::probes(key) {
            match self.keys[slot].load(Ordering::Relaxed) {
                0 => return None,
                found if found == key => {
                    self.keys[slot].store(GONE, Ordering::Release);
                    // SAFETY: values are never freed.
                    return unsafe { self.values[slot].load(Ordering::Relaxed).as_ref() };
                }
                _ => {}
            }
        }
        None
    }
}

/// The value that all objects of a type share, as long as they do. While they do, a call need not
/// look up its object.
pub(crate) struct SharedValue<T: 'static> {
    value: AtomicPtr<T>,
    differ: Mutex<bool>,
}

impl<T: PartialEq + Sync + 'static> SharedValue<T> {
    const fn new() -> SharedValue<T> {
        SharedValue {
            value: AtomicPtr::new(null_mut()),
            differ: Mutex::new(false),
        }
    }

    /// The shared value, if there are objects and all have the same value.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: values are never freed.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Notes the value of a new object.
    pub(crate) fn learn(&self, value: &'static T) {
        let mut differ = self.differ.lock().unwrap_or_else(PoisonError::into_inner);
        *differ |= self.get().is_some_and(|known| known != value);
        let value = match *differ {
            true => null_mut(),
            false => core::ptr::from_ref(value).cast_mut(),
        };
        self.value.store(value, Ordering::Release);
    }
}

/// The functions of all devices' contexts.
pub(crate) static OPS: SharedValue<RealOps> = SharedValue::new();
/// The builders of all queue pairs.
pub(crate) static BUILDERS: SharedValue<RealBuilders> = SharedValue::new();
/// The functions of all completion queues.
pub(crate) static POLLS: SharedValue<RealPolls> = SharedValue::new();

pub(crate) static CONTEXTS: Table<Context> = Table::new();
pub(crate) static PAIRS: Table<QueuePair> = Table::new();
pub(crate) static PAIRS_BY_NUMBER: Table<QueuePair> = Table::new();
pub(crate) static QUEUES: Table<CompQueue> = Table::new();

/// An open EFA device.
pub(crate) struct Context {
    /// Its number within the process.
    pub(crate) device: u32,
    pub(crate) real: RealOps,
}

/// The library's own functions.
#[derive(Clone, Copy, PartialEq)]
#[allow(
    unpredictable_function_pointer_comparisons,
    reason = "one address is one function; a function with two only makes calls look it up"
)]
pub(crate) struct RealOps {
    pub(crate) poll_cq:
        Option<unsafe extern "C" fn(*mut ffi::ibv_cq, c_int, *mut ffi::ibv_wc) -> c_int>,
    pub(crate) post_send: Option<
        unsafe extern "C" fn(
            *mut ffi::ibv_qp,
            *mut ffi::ibv_send_wr,
            *mut *mut ffi::ibv_send_wr,
        ) -> c_int,
    >,
    pub(crate) post_recv: Option<
        unsafe extern "C" fn(
            *mut ffi::ibv_qp,
            *mut ffi::ibv_recv_wr,
            *mut *mut ffi::ibv_recv_wr,
        ) -> c_int,
    >,
    pub(crate) create_cq_ex: Option<CreateCq>,
    pub(crate) create_qp_ex: Option<CreateQp>,
}

impl Context {
    /// The key of a queue pair of the device in [`PAIRS_BY_NUMBER`].
    pub(crate) fn pair_key(&self, qpn: u32) -> usize {
        (self.device as usize + 1) << 32 | qpn as usize
    }

    /// The queue pair of this number.
    #[inline]
    pub(crate) fn pair(&self, qpn: u32) -> Option<&'static QueuePair> {
        PAIRS_BY_NUMBER.get(self.pair_key(qpn))
    }
}

/// A queue pair.
pub(crate) struct QueuePair {
    pub(crate) context: &'static Context,
    pub(crate) qpn: u32,
    pub(crate) is_datagram: bool,
    pub(crate) qkey: AtomicU32,
    /// The number of requests.
    pub(crate) sequence: AtomicU32,
    /// The library's builders.
    pub(crate) real: RealBuilders,
    /// Belongs to the thread between `wr_start` and `wr_complete` or `wr_abort`: the library admits
    /// only one thread. Aborted requests stay in it until the next session starts.
    pub(crate) session: UnsafeCell<Session>,
    /// Receives that have not completed, in the order in which the device uses them.
    pub(crate) receives: Spin<PostedRequests>,
    /// RDMA reads that have not completed, whose data is to be recorded.
    pub(crate) reads: Spin<PostedRequests>,
    pub(crate) reads_under_way: AtomicUsize,
}

/// Whether the data of any RDMA read was to be recorded. Until this is set, an idle tap ignores
/// completions of sends.
pub(crate) static READS_FOLLOWED: AtomicBool = AtomicBool::new(false);

// SAFETY: the session is used by one thread at a time.
unsafe impl Sync for QueuePair {}
// SAFETY: as above.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Removes all posted requests.
    pub(crate) fn clear(&self) {
        self.receives.with(PostedRequests::clear);
        self.reads.with(PostedRequests::clear);
        self.reads_under_way.store(0, Ordering::Relaxed);
    }
}

/// The functions of `ibv_qp_ex` that EFA has.
#[derive(Clone, Copy, PartialEq)]
#[allow(
    unpredictable_function_pointer_comparisons,
    reason = "one address is one function; a function with two only makes calls look it up"
)]
pub(crate) struct RealBuilders {
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_send: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex)>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32)>,
    pub(crate) wr_set_ud_addr:
        Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, *mut ffi::ibv_ah, u32, u32)>,
    pub(crate) wr_set_inline_data:
        Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, *mut core::ffi::c_void, usize)>,
    pub(crate) wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, usize, *const ffi::ibv_data_buf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_set_sge_list:
        Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex, usize, *const ffi::ibv_sge)>,
    pub(crate) wr_start: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut ffi::ibv_qp_ex) -> c_int>,
}

/// A completion queue that is read with the functions of `ibv_cq_ex`.
pub(crate) struct CompQueue {
    pub(crate) context: &'static Context,
    pub(crate) real: RealPolls,
    /// Reports the GIDs of unknown senders.
    pub(crate) efa: *mut efa_hw::efadv::Cq,
}

/// The library's own functions.
#[derive(Clone, Copy, PartialEq)]
#[allow(
    unpredictable_function_pointer_comparisons,
    reason = "one address is one function; a function with two only makes calls look it up"
)]
pub(crate) struct RealPolls {
    pub(crate) start_poll:
        Option<unsafe extern "C" fn(*mut ffi::ibv_cq_ex, *mut ffi::ibv_poll_cq_attr) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut ffi::ibv_cq_ex) -> c_int>,
}

// SAFETY: the pointer refers to a structure of the library, which is valid as long as the queue.
unsafe impl Sync for CompQueue {}
// SAFETY: as above.
unsafe impl Send for CompQueue {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_finds_additions_but_not_removals() {
        static TABLE: Table<u32> = Table::new();
        for key in 2..2000 {
            assert!(TABLE.insert(key << 4, Box::leak(Box::new(key as u32))));
        }
        for key in (2..2000).step_by(2) {
            assert_eq!(TABLE.remove(key << 4), Some(&(key as u32)));
        }
        for key in 2..2000 {
            let expected = (key % 2 == 1).then_some(key as u32);
            assert_eq!(TABLE.get(key << 4).copied(), expected);
        }
        assert!(TABLE.remove(3).is_none());
    }

    #[test]
    fn common_properties_are_known_until_one_differs() {
        static COMMON: SharedValue<u32> = SharedValue::new();
        let known = |value: u32| {
            COMMON.learn(Box::leak(Box::new(value)));
            COMMON.get().copied()
        };
        assert_eq!(COMMON.get(), None);
        assert_eq!(
            [7, 7, 8, 7, 8].map(known),
            [Some(7), Some(7), None, None, None]
        );
    }
}
