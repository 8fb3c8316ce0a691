//! The registry: every object to which programs have a pointer, by that pointer.
//!
//! Calls off the data path look up every pointer of a program here: a null, freed or foreign
//! pointer is `EINVAL` instead of an invalid access.
//!
//! A lookup would be too slow for calls of the data path, which follow the pointer. The memory of
//! freed objects is kept for a while, so that a freed pointer points to an object that is marked as
//! destroyed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;
use crate::objects::address_handle::AddressHandle;
use crate::objects::buffer::Buffer;
use crate::objects::channel::Channel;
use crate::objects::comp_counter::Counter;
use crate::objects::comp_queue::CompQueue;
use crate::objects::context::Context;
use crate::objects::domain::{Domain, ThreadDomain};
use crate::objects::handle::Handle;
use crate::objects::memory_region::MemoryRegion;
use crate::objects::queue_pair::QueuePair;
use crate::objects::shared_queue::SharedQueue;

pub(crate) static CONTEXTS: Registry<Context> = Registry::new();
pub(crate) static DOMAINS: Registry<Domain> = Registry::new();
pub(crate) static THREAD_DOMAINS: Registry<ThreadDomain> = Registry::new();
pub(crate) static BUFFERS: Registry<Buffer> = Registry::new();
pub(crate) static REGIONS: Registry<MemoryRegion> = Registry::new();
pub(crate) static ADDRESS_HANDLES: Registry<AddressHandle> = Registry::new();
pub(crate) static CHANNELS: Registry<Channel> = Registry::new();
pub(crate) static COMP_QUEUES: Registry<CompQueue> = Registry::new();
pub(crate) static QUEUE_PAIRS: Registry<QueuePair> = Registry::new();
pub(crate) static SHARED_QUEUES: Registry<SharedQueue> = Registry::new();
pub(crate) static COUNTERS: Registry<Counter> = Registry::new();

/// The number of freed handles of a type whose memory is kept. They drop their large parts when
/// they are freed.
const KEPT: usize = 1024;

/// The live handles of one type.
pub(crate) struct Registry<T> {
    handles: Mutex<Handles<T>>,
}

struct Handles<T> {
    live: BTreeMap<usize, Arc<T>>,
    freed: VecDeque<Arc<T>>,
}

impl<T> Handles<T> {
    fn keep(&mut self, freed: &Arc<T>) {
        self.freed.push_back(Arc::clone(freed));
        if self.freed.len() > KEPT {
            self.freed.pop_front();
        }
    }
}

impl<T: Handle> Registry<T> {
    pub(crate) const fn new() -> Self {
        Registry {
            handles: Mutex::new(Handles {
                live: BTreeMap::new(),
                freed: VecDeque::new(),
            }),
        }
    }

    /// Runs `work` on the handles.
    fn with<R>(&self, work: impl FnOnce(&mut Handles<T>) -> R) -> R {
        let _locking = Locking::new();
        // No code panics while it is locked, and a poisoned map is still consistent.
        work(&mut self.handles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a handle that programs can use.
    pub(crate) fn insert(&self, handle: Arc<T>) -> *mut T::C {
        let pointer = handle.c_pointer();
        self.with(|handles| handles.live.insert(pointer.addr(), handle));
        pointer
    }

    /// The handle behind a program's pointer, `EINVAL` if there is none.
    pub(crate) fn get(&self, pointer: *const T::C) -> Result<Arc<T>, Errno> {
        self.with(|handles| {
            handles
                .live
                .get(&pointer.addr())
                .cloned()
                .ok_or(Errno::INVAL)
        })
    }

    /// Removes a handle. Of two threads that free the same handle, one succeeds.
    pub(crate) fn remove(&self, pointer: *const T::C) -> Result<Arc<T>, Errno> {
        self.with(|handles| {
            let handle = handles.live.remove(&pointer.addr()).ok_or(Errno::INVAL)?;
            handles.keep(&handle);
            Ok(handle)
        })
    }

    /// Returns whether `chosen` is true for a handle. Allocates nothing.
    pub(crate) fn any(&self, chosen: impl Fn(&T) -> bool) -> bool {
        self.with(|handles| handles.live.values().any(|handle| chosen(handle)))
    }

    /// The handles for which `chosen` is true.
    pub(crate) fn all(&self, chosen: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.with(|handles| {
            let live = handles.live.values();
            live.filter(|handle| chosen(handle)).cloned().collect()
        })
    }

    /// Removes all handles for which `chosen` is true.
    pub(crate) fn remove_all(&self, chosen: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.with(|handles| {
            let live = handles.live.values();
            let removed: Vec<_> = live.filter(|handle| chosen(handle)).cloned().collect();
            for handle in &removed {
                handles.live.remove(&handle.c_pointer().addr());
                handles.keep(handle);
            }
            removed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::handle::{CStruct, handle};

    struct TestObject {
        c: CStruct<u32>,
    }

    handle!(TestObject, u32);

    #[test]
    fn null_foreign_and_freed_pointers_are_einval() {
        let registry = Registry::new();
        let pointer = registry.insert(Arc::new(TestObject { c: CStruct::new(7) }));
        assert!(registry.get(pointer).is_ok());
        let foreign = 7;
        assert_eq!(registry.get(core::ptr::null()).err(), Some(Errno::INVAL));
        assert_eq!(registry.get(&raw const foreign).err(), Some(Errno::INVAL));
        assert!(registry.remove(pointer).is_ok());
        assert_eq!(registry.get(pointer).err(), Some(Errno::INVAL));
        assert_eq!(registry.remove(pointer).err(), Some(Errno::INVAL));
    }
}
