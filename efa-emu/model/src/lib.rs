//! The EFA device: what it does with the requests of its clients, without I/O and without a clock.
//!
//! * [`device`]: the hardware half; [`provider`]: the user-space half.
//! * [`link`]: what the device needs of whatever carries its requests. Two links implement it, each
//!   in a package of its own: `efa-sim`, any number of hosts in one thread and in virtual time, and
//!   `efa-shm`, processes and shared memory.
//! * [`network`] and [`fault`]: what happens to frames, on both links.
//! * [`profile`]: the generations of the device, built in or of a file; [`qpn_policy`]: which queue
//!   pair numbers it gives out; [`counters`]: its statistics.
//! * [`sysfs`]: the files that programs expect of it; [`numa`]: the processors that it is near to;
//!   [`port`]: what its port says of itself.
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
