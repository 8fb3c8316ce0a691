//! The protocol engine of `efa-core` as an application.
