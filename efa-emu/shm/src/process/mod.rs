//! System resources of a process: memory and locks that it shares with others, files opened
//! with care and of a known layout, the monotonic clock, forks, and standard error for warnings.

pub(crate) mod clock;
pub(crate) mod fork;
pub(crate) mod layout;
pub(crate) mod lock;
pub(crate) mod opening;
pub(crate) mod shared;
pub(crate) mod warning;
