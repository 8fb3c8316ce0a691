//! The driver protocol's page, and stock libfabric.

mod declared;
mod driver_documented;
mod libfabric_stock;
