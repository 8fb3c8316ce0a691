//! The shared memory fabric, used as clients of the device use it: within one process, and between
//! processes that are killed.

mod allocations;
mod both_links;
mod captured;
mod client;
mod connections;
mod crowded;
mod exchange;
mod held;
mod idle;
mod inside;
mod killing;
mod machines;
mod network;
mod opening;
mod processes;
mod speed;
mod warnings;

use efa_testing::heap::CountingHeap;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;
