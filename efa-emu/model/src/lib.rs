//! The model of the EFA device: how it handles its clients' requests, without I/O and without a
//! clock.
//!
//! * [`device`]: the hardware half; [`provider`]: the user-space half.
//! * [`link`]: the interface to the transport of its requests. Two packages implement it:
//!   `efa-sim`, any number of hosts in one thread and in virtual time, and `efa-shm`, processes and
//!   shared memory.
//! * [`network`] and [`fault`]: the effects of network and faults on frames, for both links.
//! * [`profile`]: the generations of the device, built in or read from a file; [`qpn_policy`]: the
//!   choice of queue pair numbers; [`limits`]: what all generations have; [`counters`]: statistics.
//! * [`sysfs`]: the files that programs expect; [`numa`]: the processors next to the device;
//!   [`port`]: the state of its port.
//!
//! ```
//! use efa_device_model::profile::Profile;
//!
//! let profile = Profile::by_name("efa2").expect("it is built in");
//! let attributes = profile.nic_attributes(1);
//! assert_eq!(attributes.mtu, profile.mtu as usize);
//! ```

pub mod counters;
pub mod device;
pub mod duration;
pub mod fault;
pub mod limits;
pub mod link;
mod match_list;
pub mod network;
pub mod numa;
pub mod port;
pub mod prefetch;
pub mod profile;
pub mod provider;
pub mod qpn_policy;
pub mod sysfs;
