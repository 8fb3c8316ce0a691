//! The device model, driven through its rings by the user-space half: two or more devices on a
//! network that holds every request until the test delivers it.

mod delivery;
mod events;
mod harness;
mod hostile;
mod lifecycle;
mod properties;
mod session;
mod statuses;
mod transfers;
