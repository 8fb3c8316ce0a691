//! The protocol engine on the simulated device, with faults for the failures that EFA users have
//! met.

mod decisions;
mod domain;
mod identity;
mod overtaking;
mod reinsertion;
mod rig;
mod shortage;
mod zero_copy;
