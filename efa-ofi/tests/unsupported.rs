//! Calls that the provider does not have, through the C interface.

#[macro_use]
mod common;

use std::ptr::null_mut;

use common::{Options, Side, with_provider};

#[test]
fn collectives_are_refused() {
    with_provider("collectives_are_refused", |libfabric| {
        let side = Side::open(libfabric, &Options::default());
        let refused = -(libc::ENOSYS as isize);
        let no = null_mut();
        assert_eq!(call!(side.endpoint => collective.barrier(0, no)), refused);
        assert_eq!(
            call!(side.endpoint => collective.barrier2(0, 0, no)),
            refused
        );
        side.close(libfabric);
    });
}
