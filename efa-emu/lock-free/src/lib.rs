//! The algorithms by which threads and processes share memory without locks, or make locks.
//!
//! | module | contents |
//! |---|---|
//! | [`sync`] | the primitives that the others are made of |
//! | [`mutex`] | the engine's mutex |
//! | [`spin`] | a lock that one call acquires and a later one releases |
//! | [`doorbell`] | how a polling or sleeping owner learns of records |
//! | [`claim`] | which process may access an initiator's memory |
//! | [`record`] | the messages in a ring, and their byte layout |
//! | [`ring`] | records from one process to another, and the answers to them |
//! | [`qpn`] | queue pair numbers, owned by compare-and-swap |
//!
//! With `--cfg loom` the primitives are loom's, and the tests are models, which run in every
//! relevant interleaving (`README.md`).

pub mod claim;
pub mod doorbell;
pub mod mutex;
pub mod qpn;
pub mod record;
pub mod ring;
pub mod spin;
pub mod sync;

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod test_ring;
