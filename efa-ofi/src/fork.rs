//! Processes that fork, handled as in libfabric's own efa provider.
//!
//! If the kernel copies registered memory for children, no action is needed. Otherwise libibverbs
//! excludes it from children on request (`FI_EFA_FORK_SAFE`, `RDMAV_FORK_SAFE`, `IBV_FORK_SAFE`). A
//! process without this request is aborted when it forks, because the device could continue to use
//! memory that does not belong to the process any more.

use std::env;
use std::sync::OnceLock;

use efa_core::endpoint::Errno;
use efa_hw::{ForkSupport, enable_fork_support, fork_support};

use crate::ffi::host::{log_info, log_warn};
use crate::ffi::result::{ENODATA, Result};
use crate::settings;

/// The fork support of this process, looked up once.
static SUPPORT: OnceLock<Option<ForkSupport>> = OnceLock::new();

/// The action before the first registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ForkAction {
    Nothing,
    ToEnable,
}

/// Decides on the measures for fork support, from the state of libibverbs and from whether the
/// environment requests it.
fn need(support: ForkSupport, is_requested: bool) -> ForkAction {
    match (support, is_requested) {
        (ForkSupport::Disabled | ForkSupport::Unknown, true) => ForkAction::ToEnable,
        _ => ForkAction::Nothing,
    }
}

/// Prepares for forks, once, before the first registration.
///
/// # Errors
/// `FI_ENODATA` if support is requested and not available; libfabric's log has the reason.
pub(crate) fn prepare() -> Result<()> {
    let found = SUPPORT.get_or_init(|| {
        let found = look();
        if let Err(error) = &found {
            log_warn!(Core, "support for forks: {error}");
        }
        found.ok()
    });
    found.map(|_| ()).ok_or(ENODATA)
}

fn look() -> std::result::Result<ForkSupport, efa_hw::OpenError> {
    let support = fork_support()?;
    let by_libibverbs = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"];
    let is_requested = settings::is_on("FI_EFA_FORK_SAFE", false)
        || by_libibverbs.iter().any(|name| env::var_os(name).is_some());
    match need(support, is_requested) {
        ForkAction::Nothing => Ok(support),
        ForkAction::ToEnable => {
            enable_fork_support()?;
            log_info!(Core, "libibverbs keeps registered memory from children");
            Ok(ForkSupport::Enabled)
        }
    }
}

/// Returns whether children lack memory that is registered. Registrations must not outlast their
/// operations then.
pub(crate) fn is_kept_from_children() -> bool {
    SUPPORT.get() == Some(&Some(ForkSupport::Enabled))
}

/// Ends the process when it forks, from the first domain on, if that would not be safe.
///
/// # Errors
/// `FI_ENOMEM` if the handler cannot be allocated.
pub(crate) fn guard() -> Result<()> {
    static GUARD: OnceLock<bool> = OnceLock::new();
    let is_safe = !matches!(
        SUPPORT.get(),
        Some(Some(ForkSupport::Disabled | ForkSupport::Unknown))
    );
    let is_guarded = GUARD.get_or_init(|| {
        // SAFETY: the handler is a function of this object, which is never unloaded.
        is_safe || unsafe { libc::pthread_atfork(Some(end), None, None) } == 0
    });
    match is_guarded {
        true => Ok(()),
        false => Err(Errno::ENOMEM),
    }
}

/// Printed when a process ends because it forks.
const MESSAGE: &str = "efa_rs: this process forks, and has memory that is registered with an EFA \
device. With this kernel and this libibverbs the device could then write to pages that are not the \
process's any more. Set FI_EFA_FORK_SAFE=1, or use Linux 5.13 with rdma-core 35 or newer. The \
process ends now.\n";

/// Called in the process that forks, before it does.
unsafe extern "C" fn end() {
    // SAFETY: the message has this length; neither function needs anything else.
    unsafe {
        libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        libc::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_support_follows_need_and_request() {
        for (support, expected) in [
            (ForkSupport::Unneeded, ForkAction::Nothing),
            (ForkSupport::Enabled, ForkAction::Nothing),
            (ForkSupport::Disabled, ForkAction::ToEnable),
            (ForkSupport::Unknown, ForkAction::ToEnable),
        ] {
            assert_eq!(need(support, true), expected, "{support:?}");
            assert_eq!(need(support, false), ForkAction::Nothing, "{support:?}");
        }
    }
}
