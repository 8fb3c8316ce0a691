//! Open devices that a process shares.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The open devices of the process, by name. A forked child starts with an empty list.
///
/// Each process has a separate list and lock, so a child never waits for a lock that another thread
/// of its parent held at the time of the fork. No device is opened or closed with the lock held.
pub(crate) struct OpenDevices<T> {
    /// The list of the process that used it last: null, or a leaked box.
    list: AtomicPtr<List<T>>,
}

/// Open devices of one process.
struct List<T> {
    process: u32,
    devices: Mutex<Vec<(String, Weak<T>)>>,
}

impl<T> OpenDevices<T> {
    pub(crate) const fn new() -> OpenDevices<T> {
        OpenDevices {
            list: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the device that is open under this name, or opens it. If two threads open the same
    /// device, both get the one that was opened first.
    pub(crate) fn get_or_open<E>(
        &self,
        name: &str,
        open: impl FnOnce() -> Result<Arc<T>, E>,
    ) -> Result<Arc<T>, E> {
        let list = self.list();
        let found = list.find(&mut list.lock(), name);
        if let Some(device) = found {
            return Ok(device);
        }
        let opened = open()?;
        let mut devices = list.lock();
        let faster = list.find(&mut devices, name);
        if faster.is_none() {
            devices.push((name.to_owned(), Arc::downgrade(&opened)));
        }
        drop(devices);
        Ok(faster.unwrap_or(opened))
    }

    /// The calling process's list.
    fn list(&self) -> &List<T> {
        let process = process::id();
        let mut current = self.list.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null or the result of `Box::into_raw`, was published with
            // release, and is never freed.
            if let Some(list) = unsafe { current.as_ref() }
                && list.process == process
            {
                return list;
            }
            let new = Box::into_raw(Box::new(List {
                process,
                devices: Mutex::new(Vec::new()),
            }));
            match self
                .list
                .compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => current = new,
                Err(other) => {
                    // SAFETY: no other thread has access to the box.
                    drop(unsafe { Box::from_raw(new) });
                    current = other;
                }
            }
        }
    }
}

impl<T> List<T> {
    /// Each change of the list is complete, even if a thread panics.
    fn lock(&self) -> MutexGuard<'_, Vec<(String, Weak<T>)>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires no reference to devices with other names: it might be the last one when it is
    /// dropped.
    fn find(&self, devices: &mut Vec<(String, Weak<T>)>, name: &str) -> Option<Arc<T>> {
        devices.retain(|(_, device)| device.strong_count() > 0);
        let mut named = devices.iter().filter(|(other, _)| other == name);
        named.find_map(|(_, device)| device.upgrade())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    static OPEN: OpenDevices<Device> = OpenDevices::new();

    /// Checks when dropped whether the lock of the list is free.
    struct Device(u32);

    impl Drop for Device {
        fn drop(&mut self) {
            assert!(
                OPEN.list().devices.try_lock().is_ok(),
                "closed under the lock"
            );
        }
    }

    fn get(name: &str, opens: u32) -> Arc<Device> {
        let open = || Ok::<_, Infallible>(Arc::new(Device(opens)));
        let Ok(device) = OPEN.get_or_open(name, open);
        device
    }

    #[test]
    fn devices_are_shared_until_the_last_user_leaves() {
        let first = get("shared", 1);
        assert_eq!(get("shared", 2).0, 1);
        assert_eq!(get("shared's neighbour", 3).0, 3);
        drop(first);
        assert_eq!(get("shared", 4).0, 4);
    }

    #[test]
    fn concurrent_opening_closes_the_slower_duplicate() {
        let mut faster = None;
        let slower = OPEN.get_or_open("raced", || {
            faster = Some(get("raced", 1));
            Ok::<_, Infallible>(Arc::new(Device(2)))
        });
        let Ok(slower) = slower;
        assert!(Arc::ptr_eq(&slower, &faster.unwrap()));
    }

    #[test]
    fn a_failed_open_leaves_no_entry() {
        assert!(matches!(OPEN.get_or_open("broken", || Err(5)), Err(5)));
        assert_eq!(get("broken", 1).0, 1);
    }

    #[test]
    fn a_forked_child_shares_and_locks_nothing() {
        let parents = get("forked", 1);
        let list = OPEN.list();
        let held = list.lock();
        // SAFETY: the child allocates, which the C library permits after a fork, and ends without
        // running the harness.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = get("forked", 2);
            let shared = get("forked", 3);
            let exit = i32::from(own.0 != 2 || shared.0 != 2);
            // SAFETY: as above.
            unsafe { libc::_exit(exit) };
        }
        drop(held);
        let mut status = -1;
        // SAFETY: the status is valid for a write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(get("forked", 4).0, parents.0);
    }
}
