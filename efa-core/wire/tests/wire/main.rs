//! The formats of all packet types, from outside the crate: round trips, hostile bytes, captured
//! packets, and the agreement of the typed parser with the tables of fields. Literal bytes are
//! declared with the formats.

mod allocations;
mod captured;
mod errors;
mod hostile;
mod recipe;
mod round_trip;
mod strategy;
mod tables;

use efa_testing::heap::CountingHeap;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;
