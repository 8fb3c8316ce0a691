//! The objects that C holds, and what becomes of them in a forked child.
//!
//! Behind most of them are queues, descriptors and threads of the process, which destructors and exit handlers of a child would
//! end for its parent. So they are closed already in a child: their calls fail, and `fi_close` returns 0.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::ffi::{fi_ops, fid};
use crate::table::Table;
use crate::unsupported;

/// What is open.
#[derive(Default)]
struct Objects {
    by_address: Option<HashMap<usize, Class>>,
    /// How many there were so far.
    opened: u64,
}

struct Class {
    /// libfabric's number (`FI_CLASS_...`).
    number: u32,
    is_memory: bool,
    /// How many objects were opened before it.
    order: u64,
}

static OBJECTS: Mutex<Objects> = Mutex::new(Objects {
    by_address: None,
    opened: 0,
});

fn objects() -> MutexGuard<'static, Objects> {
    // Nothing panics between two states of the table.
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters an object, whose address was exposed. One that is memory and nothing else stays open in a forked child.
pub(crate) fn enter(address: usize, number: u32, is_memory: bool) {
    if !is_memory {
        watch_forks();
    }
    let mut objects = objects();
    let class = Class {
        number,
        is_memory,
        order: objects.opened,
    };
    objects.opened += 1;
    let by_address = objects.by_address.get_or_insert_default();
    by_address.insert(address, class);
}

/// Takes an object out of the table.
pub(crate) fn leave(address: usize) {
    if let Some(by_address) = objects().by_address.as_mut() {
        by_address.remove(&address);
    }
}

/// The class of the object at an address, if there is one.
pub(crate) fn class_at(address: usize) -> Option<u32> {
    let objects = objects();
    Some(objects.by_address.as_ref()?.get(&address)?.number)
}

/// The address of the object of a class that was opened first of those that `matches`. None is closed meanwhile.
pub(crate) fn first_of(number: u32, matches: impl Fn(usize) -> bool) -> Option<usize> {
    let objects = objects();
    let all = objects.by_address.iter().flatten();
    let found = all.filter(|(address, class)| class.number == number && matches(**address));
    let first = found.min_by_key(|(_, class)| class.order);
    first.map(|(address, _)| *address)
}

thread_local! {
    /// The table while this thread forks: no other thread is changing it then.
    static HELD: Cell<Option<MutexGuard<'static, Objects>>> = const { Cell::new(None) };
}

/// Looks after the children of this process from now on: those of `fork`, not those of `vfork` and `posix_spawn`, which only
/// start another program.
fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers are functions of this object, which is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

// A thread whose local variables are gone already forks without the handlers.

unsafe extern "C" fn before() {
    let _ = HELD.try_with(|held| held.set(Some(objects())));
}

unsafe extern "C" fn in_parent() {
    let _ = HELD.try_with(Cell::take);
}

unsafe extern "C" fn in_child() {
    let Ok(Some(mut objects)) = HELD.try_with(Cell::take) else {
        return;
    };
    let Some(by_address) = objects.by_address.as_mut() else {
        return;
    };
    by_address.retain(|address, class| {
        if !class.is_memory {
            let object = std::ptr::with_exposed_provenance_mut::<fid>(*address);
            // SAFETY: it is open, and every object begins with a `fid`; the child has one thread.
            unsafe { (*object).ops = INHERITED.as_c() };
        }
        class.is_memory
    });
}

/// What an object has in a child.
static INHERITED: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    ..unsupported::FID
});

extern "C" fn close(_: *mut fid) -> c_int {
    0
}
