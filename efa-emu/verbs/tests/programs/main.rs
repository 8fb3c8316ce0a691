//! The commands of `efa-emu`, and stock programs on emulated hosts.

mod beside;
mod capture;
mod cluster;
mod containers;
mod extcap;
mod json;
mod libfabric;
mod network;
mod places;
mod poor_machines;
mod poor_places;
mod provider;
mod rails;
mod run;
mod symbols;
mod sysfs;
mod tools;
mod unnoticed;
