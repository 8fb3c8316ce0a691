//! Group `libfabric`: releases of stock libfabric with themselves and with each other.

mod devices;
pub(crate) mod known;
pub(crate) mod pairs;
pub(crate) mod release;
mod sleep;
pub(crate) mod tools;

use super::harness::{Cell, Lab};

const GROUP: &str = "libfabric";

pub(super) fn cells(_: &Lab) -> Result<Vec<Cell>, String> {
    let mut cells = tools::cells();
    cells.extend(sleep::cells());
    cells.extend(pairs::cells());
    cells.extend(devices::cells());
    Ok(cells)
}
