//! Handles: objects whose first part is the C structure that programs see.
//!
//! Programs hand back pointers. For calls off the data path every pointer is looked up in the
//! registry of its kind, so that a null, freed or foreign one is `EINVAL` instead of a wild access.
//!
//! Calls of the data path have no time for that: they follow the pointer. So that a freed one leads
//! to an object that says that it is dead, the memory of freed handles is kept for a while.

use core::cmp::Ordering::{Equal, Greater, Less};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::errno::Errno;
use crate::interrupted::Locking;

/// A type that programs see as a `C`.
///
/// # Safety
/// [`Handle::c_pointer`] must return the address of a `C` inside `self` that stays valid and at the
/// same place as long as `self` does not move, and that may be written through (it is in an
/// `UnsafeCell`).
pub(crate) unsafe trait Handle {
    /// The C structure.
    type C;

    /// What the program gets.
    fn c_pointer(&self) -> *mut Self::C;
}

/// How many freed handles of a kind keep their memory. What is large in them they drop when they
/// are freed.
const KEPT: usize = 1024;

/// Whether the device still has the object behind a handle. Who works on the object by its number does so in
/// [`Life::during`]: once another thread has ended it, the number may be another object's.
pub(crate) struct Life(RwLock<bool>);

impl Life {
    /// Of an object that was just made.
    pub(crate) const fn new() -> Life {
        Life(RwLock::new(true))
    }

    /// Does something with the object, `EINVAL` if it has ended. It does not end meanwhile.
    pub(crate) fn during<R>(&self, work: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        let _locking = Locking::new();
        let is_there = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match *is_there {
            true => work(),
            false => Err(Errno::INVAL),
        }
    }

    /// As [`Life::during`], of two objects, which may be the same.
    pub(crate) fn during_both<R>(
        one: &Life,
        other: &Life,
        work: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        // All threads take two in the same order.
        match core::ptr::from_ref(one).cmp(&core::ptr::from_ref(other)) {
            Equal => one.during(work),
            Less => one.during(|| other.during(work)),
            Greater => other.during(|| one.during(work)),
        }
    }

    /// Ends the object, `EINVAL` if it has ended. If `end` fails it is still there.
    pub(crate) fn end(&self, end: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let _locking = Locking::new();
        let mut is_there = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !*is_there {
            return Err(Errno::INVAL);
        }
        end()?;
        *is_there = false;
        Ok(())
    }
}

/// The life of an object that others are made in, and that stays while they do.
pub(crate) struct SharedLife {
    life: Life,
    members: AtomicU32,
}

impl SharedLife {
    /// Of an object that was just made.
    pub(crate) const fn new() -> SharedLife {
        SharedLife {
            life: Life::new(),
            members: AtomicU32::new(0),
        }
    }

    /// Makes something in the object, `EINVAL` if that has ended. It stays until
    /// [`SharedLife::leave`] was called for what was made.
    pub(crate) fn join<R>(&self, make: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.life.during(|| {
            let made = make()?;
            self.members.fetch_add(1, Ordering::Relaxed);
            Ok(made)
        })
    }

    /// Something that was made in the object is gone.
    pub(crate) fn leave(&self) {
        self.members.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends the object: `EBUSY` while something is in it, `EINVAL` if it has ended. If `end` fails it is still
    /// there.
    pub(crate) fn end(&self, end: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.life
            .end(|| match self.members.load(Ordering::Relaxed) {
                0 => end(),
                _ => Err(Errno::BUSY),
            })
    }
}

/// The live handles of one kind.
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
        // Nothing panics while it is locked; a poisoned map would still be a whole one.
        work(&mut self.handles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a handle known to programs.
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

    /// Takes a handle away from programs. Of two threads that free the same handle, one succeeds.
    pub(crate) fn remove(&self, pointer: *const T::C) -> Result<Arc<T>, Errno> {
        self.with(|handles| {
            let handle = handles.live.remove(&pointer.addr()).ok_or(Errno::INVAL)?;
            handles.keep(&handle);
            Ok(handle)
        })
    }

    /// Returns whether there is a handle that `chosen` says. Allocates nothing.
    pub(crate) fn any(&self, chosen: impl Fn(&T) -> bool) -> bool {
        self.with(|handles| handles.live.values().any(|handle| chosen(handle)))
    }

    /// The handles that `chosen` says.
    pub(crate) fn all(&self, chosen: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.with(|handles| {
            let live = handles.live.values();
            live.filter(|handle| chosen(handle)).cloned().collect()
        })
    }

    /// Takes all handles away that `chosen` says.
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
    use core::cell::UnsafeCell;

    use super::*;

    struct Thing(UnsafeCell<u32>);

    // SAFETY: the tests only compare addresses.
    unsafe impl Send for Thing {}
    // SAFETY: as above.
    unsafe impl Sync for Thing {}
    // SAFETY: the cell is inside the value.
    unsafe impl Handle for Thing {
        type C = u32;
        fn c_pointer(&self) -> *mut u32 {
            self.0.get()
        }
    }

    #[test]
    fn an_object_ends_once_and_nothing_is_done_with_it_afterwards() {
        let (life, other) = (Life::new(), Life::new());
        assert_eq!(life.end(|| Err(Errno::BUSY)), Err(Errno::BUSY));
        for (one, two) in [(&life, &other), (&other, &life), (&life, &life)] {
            assert_eq!(Life::during_both(one, two, || Ok(7)), Ok(7));
        }
        assert_eq!(life.end(|| Ok(())), Ok(()));
        let must_not_run = || -> Result<(), Errno> { panic!("there is no object any more") };
        assert_eq!(life.end(must_not_run), Err(Errno::INVAL));
        assert_eq!(life.during(must_not_run), Err(Errno::INVAL));
        let both = Life::during_both(&other, &life, must_not_run);
        assert_eq!(both, Err(Errno::INVAL));
    }

    #[test]
    fn an_object_stays_while_something_is_in_it_and_takes_nothing_in_afterwards() {
        let life = SharedLife::new();
        assert_eq!(life.join(|| Ok(7)), Ok(7));
        let failed: Result<(), Errno> = life.join(|| Err(Errno::NODEV));
        assert_eq!(failed, Err(Errno::NODEV));
        let must_not_run = || -> Result<(), Errno> { panic!("it must not run") };
        assert_eq!(life.end(must_not_run), Err(Errno::BUSY));
        life.leave();
        assert_eq!(life.end(|| Err(Errno::NODEV)), Err(Errno::NODEV));
        assert_eq!(life.end(|| Ok(())), Ok(()));
        assert_eq!(life.join(must_not_run), Err(Errno::INVAL));
        assert_eq!(life.end(must_not_run), Err(Errno::INVAL));
    }

    #[test]
    fn null_foreign_and_freed_pointers_are_einval() {
        let registry = Registry::new();
        let pointer = registry.insert(Arc::new(Thing(UnsafeCell::new(7))));
        assert!(registry.get(pointer).is_ok());
        let foreign = 7;
        assert_eq!(registry.get(core::ptr::null()).err(), Some(Errno::INVAL));
        assert_eq!(registry.get(&raw const foreign).err(), Some(Errno::INVAL));
        assert!(registry.remove(pointer).is_ok());
        assert_eq!(registry.get(pointer).err(), Some(Errno::INVAL));
        assert_eq!(registry.remove(pointer).err(), Some(Errno::INVAL));
    }
}
