//! The C structures of `<infiniband/verbs.h>` and `<infiniband/efadv.h>`, and the structures of
//! rdma-core's own `driver.h` that contain them, for 64-bit Linux.
//!
//! Names and field names are those of the headers, so that a reader can compare the two. C
//! enumerations are plain integers here: their values come from programs, and a value that is not
//! in the headers must not be undefined behaviour. Fields that the device does not use are kept for
//! the layout. The tests in `abi_layout` check every offset that clients rely on.

#![allow(
    non_camel_case_types,
    missing_docs,
    reason = "the names are the C headers' own, and the headers document them"
)]

mod comp_counter;
mod context;
mod driver;
mod efadv;
mod objects;
mod requests;
mod values;

pub use comp_counter::*;
pub use context::*;
pub use driver::*;
pub use efadv::*;
pub use objects::*;
pub use requests::*;
pub use values::*;
