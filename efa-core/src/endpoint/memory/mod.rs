//! Memory of the application that consists of several pieces.

pub(crate) mod iov;
