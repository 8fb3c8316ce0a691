//! The objects to which C has pointers, and their treatment in a forked child.
//!
//! Most objects own queues, descriptors and threads of the process, which destructors and exit
//! handlers of a child would destroy for its parent. They are therefore marked as closed in a
//! child: their calls fail, and `fi_close` returns 0.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::ffi::table::Table;
use crate::ffi::{fi_ops, fid, unsupported};

/// The open objects.
#[derive(Default)]
struct Registry {
    by_address: Option<HashMap<usize, Class>>,
    /// The number of objects so far.
    opened: u64,
}

impl Registry {
    fn class(&mut self, address: usize) -> Option<&mut Class> {
        self.by_address.as_mut()?.get_mut(&address)
    }
}

struct Class {
    /// libfabric's number (`FI_CLASS_...`).
    number: u32,
    is_memory: bool,
    /// The number of objects that were opened before it.
    order: u64,
    /// The number of other objects that need it: it cannot be closed before them.
    users: usize,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    by_address: None,
    opened: 0,
});

fn registry() -> MutexGuard<'static, Registry> {
    // No code panics between two states of the table.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds an object, whose address was exposed. An object that consists of memory only stays open in
/// a forked child.
pub(crate) fn insert(address: usize, number: u32, is_memory: bool) {
    if !is_memory {
        watch_forks();
    }
    let mut registry = registry();
    let class = Class {
        number,
        is_memory,
        order: registry.opened,
        users: 0,
    };
    registry.opened += 1;
    let by_address = registry.by_address.get_or_insert_default();
    by_address.insert(address, class);
}

/// Removes an object from the table.
pub(crate) fn remove(address: usize) {
    if let Some(by_address) = registry().by_address.as_mut() {
        by_address.remove(&address);
    }
}

/// Adds an object that keeps the one at an address open.
pub(crate) fn add_user(address: usize) {
    if let Some(class) = registry().class(address) {
        class.users += 1;
    }
}

/// Reverts one [`add_user`].
pub(crate) fn remove_user(address: usize) {
    if let Some(class) = registry().class(address) {
        class.users -= 1;
    }
}

/// Whether other objects keep the one at an address open.
pub(crate) fn has_users(address: usize) -> bool {
    registry()
        .class(address)
        .is_some_and(|class| class.users > 0)
}

/// The class of the object at an address, if there is one.
pub(crate) fn class_at(address: usize) -> Option<u32> {
    Some(registry().class(address)?.number)
}

/// The address of the first-opened object of a class for which `matches` is true. No object is
/// closed meanwhile.
pub(crate) fn first_of(number: u32, matches: impl Fn(usize) -> bool) -> Option<usize> {
    let registry = registry();
    let all = registry.by_address.iter().flatten();
    let found = all.filter(|(address, class)| class.number == number && matches(**address));
    let first = found.min_by_key(|(_, class)| class.order);
    first.map(|(address, _)| *address)
}

thread_local! {
    /// The table while this thread forks: no other thread is changing it then.
    static FORKING: Cell<Option<MutexGuard<'static, Registry>>> = const { Cell::new(None) };
}

/// Handles the children of this process from now on: those of `fork`, not those of `vfork` and
/// `posix_spawn`, which only start another program.
fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers are functions of this object, which is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

// The three handlers have the signature that `pthread_atfork` requires; a caller has no duties. A
// thread whose local variables were destroyed forks without them.

/// Called before a fork: locks the table, so that it is consistent in the child.
unsafe extern "C" fn before() {
    let _ = FORKING.try_with(|held| held.set(Some(registry())));
}

/// Called in the parent after a fork: unlocks the table.
unsafe extern "C" fn in_parent() {
    let _ = FORKING.try_with(Cell::take);
}

/// Called in the child after a fork: closes the objects that have queues, descriptors or threads.
unsafe extern "C" fn in_child() {
    let Ok(Some(mut registry)) = FORKING.try_with(Cell::take) else {
        return;
    };
    let Some(by_address) = registry.by_address.as_mut() else {
        return;
    };
    by_address.retain(|address, class| {
        if !class.is_memory {
            let object = std::ptr::with_exposed_provenance_mut::<fid>(*address);
            // SAFETY: it is open, and every object begins with a `fid`; the child has one thread.
            unsafe { (*object).ops = CLOSED.as_c() };
        }
        class.is_memory
    });
}

/// Operations of an object in a child.
static CLOSED: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    ..unsupported::FID
});

/// Closes an object of the parent in its child (`fi_close`): does nothing, and returns 0.
extern "C" fn close(_: *mut fid) -> c_int {
    0
}
