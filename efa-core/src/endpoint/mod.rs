//! The protocol engine.
