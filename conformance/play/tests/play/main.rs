//! The page about the driver protocol, and stock libfabric.

mod declared;
mod driver_documented;
mod libfabric_stock;
