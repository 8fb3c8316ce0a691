//! The dissector: its tables, what it shows, the transfers that it follows, its profile.

mod dissector;
mod profile;
mod tables;
mod tag_matching;
mod transfers;
