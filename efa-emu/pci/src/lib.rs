//! An emulated EFA device as a PCI device of a virtual machine, for the guest's driver.
//!
//! Each module uses only those before it:
//!
//! * [`memory`]: the memory of the guest. Its content is not trusted.
//! * [`admin`]: the formats of the admin interface.
//! * [`function`]: the PCI function: registers, commands, doorbells, interrupts. It uses
//!   [`efa_shm::Engine`], the same device that programs of a fabric have.
//! * [`vfio`]: vfio-user, the protocol by which QEMU uses devices in other processes.
//!
//! The queues of a guest are rings of the device model in memory that a client lends
//! ([`efa_device_model::device::queue::LentMemory`]). The programs are `efa-emu-pci`, which
//! provides one device, and `efa-emu-vm`, which boots guests for `efa-emu vm`.
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//!
//! use efa_pci::{function::Function, vfio::Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut function = Function::open(efa_shm::HostConfig::from_env()?)?;
//! Server::new(UnixListener::bind("efa.sock")?).run(&mut function)?;
//! # Ok(())
//! # }
//! ```

mod layout;

pub mod admin;
pub mod function;
pub mod memory;
pub mod vfio;
