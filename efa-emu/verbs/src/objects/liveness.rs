//! Whether the device still has the object behind a handle.

use core::cmp::Ordering::{Equal, Greater, Less};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;

/// Whether the device still has the object behind a handle. Code that uses the object by its number
/// runs in [`Liveness::during`]: once another thread has destroyed the object, the number may
/// belong to another object.
pub(crate) struct Liveness(RwLock<bool>);

impl Liveness {
    /// The life of a new object.
    pub(crate) const fn new() -> Liveness {
        Liveness(RwLock::new(true))
    }

    /// Runs `work` on the object, `EINVAL` if it was destroyed. It is not destroyed meanwhile.
    pub(crate) fn during<R>(&self, work: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        let _locking = Locking::new();
        let is_there = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match *is_there {
            true => work(),
            false => Err(Errno::INVAL),
        }
    }

    /// As [`Liveness::during`], for two objects, which may be the same.
    pub(crate) fn during_both<R>(
        one: &Liveness,
        other: &Liveness,
        work: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        // All threads lock two objects in the same order.
        match core::ptr::from_ref(one).cmp(&core::ptr::from_ref(other)) {
            Equal => one.during(work),
            Less => one.during(|| other.during(work)),
            Greater => other.during(|| one.during(work)),
        }
    }

    /// Destroys the object, `EINVAL` if it was destroyed before. If `end` fails it still exists.
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

/// The life of an object that contains others and exists as long as they do.
pub(crate) struct SharedLiveness {
    liveness: Liveness,
    members: AtomicU32,
}

impl SharedLiveness {
    /// The life of a new object.
    pub(crate) const fn new() -> SharedLiveness {
        SharedLiveness {
            liveness: Liveness::new(),
            members: AtomicU32::new(0),
        }
    }

    /// Makes another object in this one, `EINVAL` if this one was destroyed. It exists until
    /// [`SharedLiveness::leave`] was called for the other object.
    pub(crate) fn join<R>(&self, make: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.liveness.during(|| {
            let made = make()?;
            self.members.fetch_add(1, Ordering::Relaxed);
            Ok(made)
        })
    }

    /// Counts that an object in this one was destroyed.
    pub(crate) fn leave(&self) {
        self.members.fetch_sub(1, Ordering::Relaxed);
    }

    /// Destroys the object: `EBUSY` while it contains others, `EINVAL` if it was destroyed before.
    /// If `end` fails it still exists.
    pub(crate) fn end(&self, end: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.liveness
            .end(|| match self.members.load(Ordering::Relaxed) {
                0 => end(),
                _ => Err(Errno::BUSY),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_end_once_and_refuse_later_use() {
        let (liveness, other) = (Liveness::new(), Liveness::new());
        assert_eq!(liveness.end(|| Err(Errno::BUSY)), Err(Errno::BUSY));
        for (one, two) in [
            (&liveness, &other),
            (&other, &liveness),
            (&liveness, &liveness),
        ] {
            assert_eq!(Liveness::during_both(one, two, || Ok(7)), Ok(7));
        }
        assert_eq!(liveness.end(|| Ok(())), Ok(()));
        let must_not_run = || -> Result<(), Errno> { panic!("there is no object any more") };
        assert_eq!(liveness.end(must_not_run), Err(Errno::INVAL));
        assert_eq!(liveness.during(must_not_run), Err(Errno::INVAL));
        let both = Liveness::during_both(&other, &liveness, must_not_run);
        assert_eq!(both, Err(Errno::INVAL));
    }

    #[test]
    fn objects_outlive_users_and_refuse_new_ones() {
        let liveness = SharedLiveness::new();
        assert_eq!(liveness.join(|| Ok(7)), Ok(7));
        let failed: Result<(), Errno> = liveness.join(|| Err(Errno::NODEV));
        assert_eq!(failed, Err(Errno::NODEV));
        let must_not_run = || -> Result<(), Errno> { panic!("it must not run") };
        assert_eq!(liveness.end(must_not_run), Err(Errno::BUSY));
        liveness.leave();
        assert_eq!(liveness.end(|| Err(Errno::NODEV)), Err(Errno::NODEV));
        assert_eq!(liveness.end(|| Ok(())), Ok(()));
        assert_eq!(liveness.join(must_not_run), Err(Errno::INVAL));
        assert_eq!(liveness.end(must_not_run), Err(Errno::INVAL));
    }
}
