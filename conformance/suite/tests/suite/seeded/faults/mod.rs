//! The faults, by what they are about.

mod atomics;
mod completion_data;
mod handshake;
mod long_cts;
mod messages;
mod one_sided;
mod read_based;
mod receipts;
mod twice;

use super::fault::Fault;

/// All faults, with headings.
pub(crate) const CHAPTERS: &[(&str, &[Fault])] = &[
    ("Eager messages and their order", messages::EAGER),
    ("Medium messages", messages::MEDIUM),
    ("Long-CTS and its windows", long_cts::FAULTS),
    ("Long read and runting read", read_based::FAULTS),
    ("Delivery complete", receipts::FAULTS),
    ("Reads", one_sided::READS),
    ("Writes", one_sided::WRITES),
    ("Atomics", atomics::FAULTS),
    ("Packets that are sent twice", twice::FAULTS),
    ("Completion data", completion_data::FAULTS),
    ("Handshake and features", handshake::FEATURES),
    ("Addresses and connection ids", handshake::IDENTITY),
];

/// All faults.
pub(crate) fn all() -> impl Iterator<Item = &'static Fault> {
    CHAPTERS.iter().flat_map(|(_, faults)| *faults)
}
