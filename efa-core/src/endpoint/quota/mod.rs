//! How much is done for peers at a time: their shares, and which of their operations wait.

pub(crate) mod admission;
pub(crate) mod service;
