//! Whether the device still has the object behind a handle.

use core::cmp::Ordering::{Equal, Greater, Less};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;

/// Whether the device still has the object behind a handle. Code that uses the object by its number
/// runs in [`Life::during`]: once another thread has destroyed the object, the number may belong to
/// another object.
pub(crate) struct Life(RwLock<bool>);

impl Life {
    /// The life of a new object.
    pub(crate) const fn new() -> Life {
        Life(RwLock::new(true))
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

    /// As [`Life::during`], for two objects, which may be the same.
    pub(crate) fn during_both<R>(
        one: &Life,
        other: &Life,
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
pub(crate) struct SharedLife {
    life: Life,
    members: AtomicU32,
}

impl SharedLife {
    /// The life of a new object.
    pub(crate) const fn new() -> SharedLife {
        SharedLife {
            life: Life::new(),
            members: AtomicU32::new(0),
        }
    }

    /// Makes another object in this one, `EINVAL` if this one was destroyed. It exists until
    /// [`SharedLife::leave`] was called for the other object.
    pub(crate) fn join<R>(&self, make: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.life.during(|| {
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
        self.life
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
    fn objects_outlive_users_and_refuse_new_ones() {
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
}
