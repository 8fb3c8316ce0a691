//! The protocol engine as a provider that stock libfabric loads: `libefa_rs-fi.so`, provider
//! `efa_rs`.
//!
//! A libfabric that finds the file in a directory of `FI_PROVIDER_PATH` calls
//! [`fi_prov_ini`](entry::fi_prov_ini). All other calls use tables of functions in the objects to
//! which C has pointers. Each function is a thin shell: it checks its pointers ([`ffi`]), acquires
//! the domain's lock, and calls the engine.
//!
//! The modules, from the top: [`entry`] is the entry point of libfabric; [`info`] answers hints,
//! and [`open`] has the calls that open objects; [`calls`] transfer data; [`objects`] are the
//! objects that applications open; [`state`] is the state that the objects of a domain share. Below
//! them are [`capabilities`], [`settings`], [`fork`] and [`ffi`]. Each module uses only those below
//! it.

mod calls;
mod capabilities;
mod entry;
mod ffi;
mod fork;
mod info;
mod objects;
mod open;
mod settings;
mod state;
