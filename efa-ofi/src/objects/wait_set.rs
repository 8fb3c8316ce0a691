//! Wait sets: several queues and counters for which one call waits.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use efa_core::endpoint::Errno;

use crate::ffi::object::{Object, Ref, close, new_fid, object};
use crate::ffi::result::{ENOSYS, Result, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::fabric::Fabric;
use crate::objects::queue::{Waitable, control};
use crate::state::wait::{self, Deadline, Epoll, Woken};

/// A wait set (`fid_wait`).
#[repr(C)]
pub(crate) struct WaitSet {
    c: fid_wait,
    members: Mutex<Vec<Member>>,
    /// Readable while the descriptor of any member is.
    epoll: Epoll,
    _fabric: Ref<Fabric>,
}

/// An object that was opened for a wait set.
#[derive(Clone, Copy)]
struct Member {
    object: *const c_void,
    /// [`Waitable::has_news`] and [`Waitable::arm_for_news`] of its type.
    has_news: unsafe fn(*const c_void) -> Result<bool>,
    arm: unsafe fn(*const c_void) -> Result<()>,
}

// SAFETY: the pointer is only used by calls of the object's type, which are for all threads.
unsafe impl Send for Member {}

// SAFETY: `#[repr(C)]`, and `fid_wait` begins with a `fid`; no other type has these operations.
unsafe impl Object for WaitSet {
    const CLASS: u32 = FI_CLASS_WAIT;
    const OPERATIONS: &'static Table<fi_ops> = &FID;
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<WaitSet>),
    control: Some(control::<WaitSet>),
    ..unsupported::FID
});

static OPS: Table<fi_ops_wait> = Table::new(fi_ops_wait {
    size: size_of::<fi_ops_wait>(),
    wait: Some(wait),
});

impl WaitSet {
    /// # Errors
    /// `FI_EINVAL` without attributes and for flags, `FI_ENOSYS` for wait objects without a
    /// descriptor. The process has too many descriptors.
    pub(crate) fn open(fabric: &Fabric, attributes: Option<&fi_wait_attr>) -> Result<WaitSet> {
        let attributes = attributes.filter(|attributes| attributes.flags == 0);
        match attributes.ok_or(Errno::EINVAL)?.wait_obj {
            FI_WAIT_UNSPEC | FI_WAIT_FD => {}
            _ => return Err(ENOSYS),
        }
        Ok(WaitSet {
            c: fid_wait {
                fid: new_fid(std::ptr::null_mut()),
                ops: OPS.as_c(),
            },
            members: Mutex::default(),
            epoll: Epoll::new()?,
            _fabric: Ref::new(fabric),
        })
    }

    fn members(&self) -> Result<MutexGuard<'_, Vec<Member>>> {
        self.members.lock().map_err(|_| Errno::EOTHER)
    }

    /// Waits until a member has an entry to read, or has counted an operation.
    ///
    /// # Errors
    /// `FI_ETIMEDOUT`, `FI_EINTR` after a signal that the process handled, and the errors of
    /// members.
    fn wait(&self, until: Deadline) -> Result<()> {
        loop {
            for member in self.members()?.iter() {
                // SAFETY: a member is removed before it is closed.
                if unsafe { (member.has_news)(member.object) }? {
                    return Ok(());
                }
            }
            if until.has_passed() {
                return Err(Errno(libc::ETIMEDOUT));
            }
            match self.try_wait() {
                Ok(()) if wait::sleep(self.epoll.as_fd(), until)? == Woken::Interrupted => {
                    return Err(Errno(libc::EINTR));
                }
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Waitable for WaitSet {
    fn wait_object(&self) -> (fi_wait_obj, Option<BorrowedFd<'_>>) {
        (FI_WAIT_FD, Some(self.epoll.as_fd()))
    }

    fn try_wait(&self) -> Result<()> {
        let members = self.members()?;
        let mut members = members.iter();
        // SAFETY: a member is removed before it is closed.
        members.try_for_each(|member| unsafe { (member.arm)(member.object) })
    }

    fn has_news(&self) -> Result<bool> {
        // A wait set is not a member of another set.
        Ok(false)
    }
}

/// The wait set of an object that was opened for one. Dropping this removes the object from the
/// set.
pub(crate) struct Membership {
    set: Ref<WaitSet>,
    object: AtomicPtr<c_void>,
}

impl Membership {
    /// A slot for an object with this descriptor in the wait set of its attributes.
    ///
    /// # Errors
    /// `FI_EINVAL` if the wait object is a set, and there is none.
    pub(crate) fn of(
        wait_obj: fi_wait_obj,
        set: *mut fid_wait,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Option<Membership>> {
        if wait_obj != FI_WAIT_SET {
            return Ok(None);
        }
        // SAFETY: any pointer is permitted.
        let set: &WaitSet = unsafe { object(set.cast()) }?;
        set.epoll.add(descriptor.ok_or(Errno::EINVAL)?)?;
        Ok(Some(Membership {
            set: Ref::new(set),
            object: AtomicPtr::default(),
        }))
    }

    /// Enters the object, which does not move any more.
    pub(crate) fn enter<T: Waitable>(&self, object: &T) {
        let object = std::ptr::from_ref(object).cast::<c_void>();
        self.object.store(object.cast_mut(), Ordering::Relaxed);
        if let Ok(mut members) = self.set.members() {
            members.push(Member {
                object,
                // SAFETY: the pointer of a member leads to an open object of its type.
                has_news: |object| unsafe { &*object.cast::<T>() }.has_news(),
                // SAFETY: as above.
                arm: |object| unsafe { &*object.cast::<T>() }.arm_for_news(),
            });
        }
    }

    /// The kind of wait object of a member, and the set's descriptor.
    pub(crate) fn wait_object(&self) -> (fi_wait_obj, Option<BorrowedFd<'_>>) {
        (FI_WAIT_SET, Some(self.set.epoll.as_fd()))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let object = self.object.load(Ordering::Relaxed).cast_const();
        if let Ok(mut members) = self.set.members() {
            members.retain(|member| member.object != object);
        }
    }
}

/// Waits until a queue or counter of a set has an event, for `timeout` milliseconds, or forever if
/// that is negative (`fi_wait`).
///
/// # Returns
/// 0, `-FI_ETIMEDOUT`, `-FI_EINTR` after a signal, or `-FI_EINVAL` for an object that is not a wait
/// set.
///
/// # Safety
/// Any pointer is permitted.
unsafe extern "C" fn wait(set: *mut fid_wait, timeout: c_int) -> c_int {
    // SAFETY: any pointer is permitted.
    status(|| unsafe { object::<WaitSet>(set.cast()) }?.wait(Deadline::after(timeout)))
}
