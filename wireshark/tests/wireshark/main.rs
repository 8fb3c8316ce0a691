//! The dissector: its tables, its output, the transfers that it follows, its profile.

mod dissector;
mod profile;
mod tables;
mod tag_matching;
mod transfers;
