//! Group `libfabric`: releases of stock libfabric with themselves and with each other.

pub(crate) mod release;
mod sleep;

use super::harness::{Cell, CellsError, Lab};

const GROUP: &str = "libfabric";

/// Its cells as data.
pub(crate) const FILE: &str = include_str!("../../cells/libfabric.toml");

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, CellsError> {
    Ok(sleep::cells())
}
