//! Poll sets: one call that checks several completion queues and counters.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard};

use efa_core::endpoint::Errno;

use crate::ffi::object::{Object, Ref, close, new_fid, object};
use crate::ffi::result::{Result, ssize, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::counter::Counter;
use crate::objects::domain::Domain;
use crate::objects::queue::Waitable;

/// A poll set (`fid_poll`).
#[repr(C)]
pub(crate) struct PollSet {
    c: fid_poll,
    members: Mutex<Vec<Member>>,
    domain: Ref<Domain>,
}

/// A member of a poll set, which keeps it open.
enum Member {
    Queue(Ref<CompletionQueue>),
    Counter(Ref<Counter>),
}

impl Member {
    /// # Errors
    /// `FI_EINVAL` for an object that is neither queue nor counter.
    fn of(fid: *const c_void) -> Result<Member> {
        // SAFETY: any pointer is permitted.
        if let Ok(queue) = unsafe { object::<CompletionQueue>(fid) } {
            return Ok(Member::Queue(Ref::new(queue)));
        }
        // SAFETY: as above.
        unsafe { object::<Counter>(fid) }.map(|counter| Member::Counter(Ref::new(counter)))
    }

    fn domain(&self) -> &Ref<Domain> {
        match self {
            Member::Queue(queue) => &queue.domain,
            Member::Counter(counter) => &counter.domain,
        }
    }

    fn fid(&self) -> &fid {
        match self {
            Member::Queue(queue) => queue.fid(),
            Member::Counter(counter) => counter.fid(),
        }
    }

    fn has_news(&self) -> Result<bool> {
        match self {
            Member::Queue(queue) => queue.has_news(),
            Member::Counter(counter) => counter.has_news(),
        }
    }
}

// SAFETY: `#[repr(C)]`, and `fid_poll` begins with a `fid`; no other type has these operations.
unsafe impl Object for PollSet {
    const CLASS: u32 = FI_CLASS_POLL;
    const OPERATIONS: &'static Table<fi_ops> = &FID;
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<PollSet>),
    ..unsupported::FID
});

static OPS: Table<fi_ops_poll> = Table::new(fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: Some(poll),
    poll_add: Some(poll_add),
    poll_del: Some(poll_del),
});

impl PollSet {
    /// # Errors
    /// `FI_EINVAL` for flags.
    pub(crate) fn open(domain: &Domain, attributes: Option<&fi_poll_attr>) -> Result<PollSet> {
        if attributes.is_some_and(|attributes| attributes.flags != 0) {
            return Err(Errno::EINVAL);
        }
        Ok(PollSet {
            c: fid_poll {
                fid: new_fid(std::ptr::null_mut()),
                ops: OPS.as_c(),
            },
            members: Mutex::default(),
            domain: Ref::new(domain),
        })
    }

    fn members(&self) -> Result<MutexGuard<'_, Vec<Member>>> {
        self.members.lock().map_err(|_| Errno::EOTHER)
    }
}

/// Makes progress on the members of a set, and returns the contexts of those that have unread
/// entries, or have counted since the last call (`fi_poll`).
///
/// # Returns
/// The number of contexts, at most `count`; `-FI_EINVAL` for an object that is not a poll set.
///
/// # Safety
/// `contexts` is null or has room for `count` pointers.
unsafe extern "C" fn poll(set: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    let found = ssize(|| {
        // SAFETY: any pointer is permitted.
        let set: &PollSet = unsafe { object(set.cast()) }?;
        let room = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if contexts.is_null() && room > 0 {
            return Err(Errno::EINVAL);
        }
        let mut found = 0;
        for member in set.members()?.iter() {
            // The next call reports the others.
            if found == room {
                break;
            }
            if member.has_news()? {
                // SAFETY: there is room for another.
                unsafe { contexts.add(found).write(member.fid().context) };
                found += 1;
            }
        }
        Ok(found)
    });
    found as c_int
}

/// Adds a completion queue or counter to a set (`fi_poll_add`). A second addition has no effect.
///
/// # Returns
/// 0; `-FI_EINVAL` for other objects, objects of other domains, and flags.
///
/// # Safety
/// Any pointers are permitted.
unsafe extern "C" fn poll_add(set: *mut fid_poll, event: *mut fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let set: &PollSet = unsafe { object(set.cast()) }?;
        let member = Member::of(event.cast())?;
        if flags != 0 || !set.domain.is(member.domain()) {
            return Err(Errno::EINVAL);
        }
        let mut members = set.members()?;
        if !members.iter().any(|other| std::ptr::eq(other.fid(), event)) {
            members.push(member);
        }
        Ok(())
    })
}

/// Removes a completion queue or counter from a set (`fi_poll_del`), if the set contains it.
///
/// # Returns
/// 0; `-FI_EINVAL` for an object that is not a poll set, and flags.
///
/// # Safety
/// Any pointers are permitted.
unsafe extern "C" fn poll_del(set: *mut fid_poll, event: *mut fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let set: &PollSet = unsafe { object(set.cast()) }?;
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let mut members = set.members()?;
        members.retain(|member| !std::ptr::eq(member.fid(), event));
        Ok(())
    })
}
