//! The shared memory fabric, used as clients of the device use it: within one process, and between
//! processes that are killed.

mod allocations;
mod both_links;
mod captured;
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

/// The entry point of children; does nothing in an ordinary run of the tests.
#[test]
fn child() {
    let Some((role, parent)) = processes::role() else {
        return;
    };
    match role.as_str() {
        "echo" => exchange::echo(&parent),
        "hammer" => killing::hammer(&parent),
        "holder" => held::holder(&parent),
        "churn" => killing::churn(&parent),
        "forker" => killing::forker(&parent),
        "crowded" => crowded::partner(&parent),
        "idle" => idle::idle(&parent),
        "memory" => exchange::memory(&parent),
        "receiver" => both_links::receiver(&parent),
        "speed" => speed::partner(&parent),
        "warned" => warnings::warned(&parent),
        _ => panic!("unknown role {role}"),
    }
}
