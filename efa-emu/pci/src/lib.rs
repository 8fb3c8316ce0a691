//! An emulated EFA device as a PCI device of a virtual machine, whose guest's own driver finds it.
//!
//! * [`memory`]: the memory of the guest. What lies there is not trusted.
//! * [`admin`]: the formats of the admin interface.
//! * [`function`]: the PCI function: registers, commands, doorbells, interrupts. Behind it is
//!   [`efa_shm::Engine`], the device that programs of a fabric have too.
//! * [`vfio`]: vfio-user, by which QEMU has devices that other programs present.

mod layout;

pub mod admin;
pub mod function;
pub mod memory;
pub mod vfio;
