//! The driver protocol's page, and stock libfabric.

mod driver_documented;
mod libfabric_stock;
