//! The C functions, by family: they check and convert the arguments of programs, and call the
//! objects.
//!
//! A function that is not `unsafe` follows no pointer before it was found in the
//! [registry](crate::registry): a null, freed or foreign handle is an error, `EINVAL` where the
//! function does not state another one. Only calls of the data path ([`post`], [`builder`],
//! [`poll`]) follow handles directly.
//!
//! A verb that destroys an object does nothing if it is called by a signal handler that has
//! interrupted another verb ([`errno::status_of_end`](crate::ffi::errno::status_of_end)).

pub(crate) mod address_handle;
pub(crate) mod async_event;
pub(crate) mod buffer;
pub(crate) mod builder;
pub(crate) mod channel;
pub(crate) mod comp_counter;
pub(crate) mod comp_queue;
pub(crate) mod connected;
mod connected_builder;
pub(crate) mod context;
pub(crate) mod device;
mod device_node;
pub(crate) mod domain;
pub(crate) mod efadv;
mod loading;
pub(crate) mod memory_region;
pub(crate) mod poll;
pub(crate) mod post;
pub(crate) mod query;
pub(crate) mod queue_pair;
pub(crate) mod shared_queue;
pub(crate) mod strings;
pub(crate) mod sysfs_files;
pub(crate) mod unsupported;
