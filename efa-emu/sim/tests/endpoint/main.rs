//! The protocol engine on the simulated device: the failures that EFA users have met, staged.

mod decisions;
mod identity;
mod overtaking;
mod reinsertion;
mod rig;
mod shortage;
mod zero_copy;
