//! Judging captures by the rules of the protocol, whoever made them.
//!
//! The judge is passive. It needs no scenario and takes any capture: of one host, of both, or of
//! many; from the beginning or not; with both ends of each packet or one. It goes through a capture
//! once, in the order of time, and keeps only the operations under way.
//!
//! * `judge`: frames, one by one, each as part of its conversation (`node`).
//! * `births`: queue pairs that begin anew.
//! * `order`: puts frames into the order of time.
//! * `conversation`: two endpoints as one of them sees them: identity, handshakes, what is missing
//!   at the end.
//! * `follow`: operations, packet by packet; `rdma`: RDMA requests and their ends.
//! * `sequence`, `operation`, `runs`, `device`, `recent`: the state that these keep.
//! * `completeness`: what the capture lacks; `copies`: the same packet at both ends.
//! * `content`: packets in short, by which copies and repetitions are recognised.
//! * `explain`: what a right sender would have sent.
//! * `tagged`: packets of reliable connections, which `crate::rendezvous` follows.
//! * `packet`: what a packet says; `format`: rules that need no more than the packet.

mod births;
mod completeness;
mod content;
mod conversation;
mod copies;
mod device;
mod explain;
mod follow;
mod format;
mod judge;
mod node;
mod operation;
mod order;
mod packet;
mod rdma;
mod recent;
mod report;
mod runs;
mod sequence;
mod tagged;

pub use explain::Explanation;
pub use judge::{Judge, check};
pub use order::OutOfOrder;
pub use report::{Checked, Finding, NEED_ORDER, NotJudged};

#[cfg(test)]
mod tests;
