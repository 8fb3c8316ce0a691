//! Checking of captures by the rules of the protocol, for any implementation.
//!
//! The checker is passive. It needs no scenario and accepts any capture: of one host, of both, or
//! of many; from the beginning or not; with both ends of each packet or one. It reads a capture
//! once, in the order of time, and stores only the operations in progress.
//!
//! * `judge`: frames, one by one, each as part of its conversation (`node`).
//! * `qp_generations`: new queue pairs with a reused number.
//! * `order`: sorts frames by time.
//! * `conversation`: two endpoints in the view of one of them: identity and handshakes; `ends`:
//!   what is incomplete at the end.
//! * `side`: one of the two endpoints; `protocol_detection`: whether they use the protocol.
//! * `follow`: operations, packet by packet; `rdma`: RDMA requests and their ends.
//! * `sequence`, `operation`, `runs`, `device`, `recent`: the state that these keep.
//! * `completeness`: missing frames of the capture; `gaps`: the same by request numbers.
//! * `copies`: the same packet at both ends.
//! * `content`: digests of packets, to recognise copies and retransmissions.
//! * `explain`: the packets of a correct sender.
//! * `tagged`: packets of reliable connections, which `crate::rendezvous` follows.
//! * `packet`: the meaning of a packet; `frame`: its frame; `format`: rules that depend on a single
//!   packet only.

mod completeness;
mod content;
mod conversation;
mod copies;
mod device;
mod ends;
mod explain;
mod follow;
mod format;
mod frame;
mod gaps;
mod judge;
mod node;
mod operation;
mod order;
mod packet;
mod protocol_detection;
mod qp_generations;
mod rdma;
mod recent;
mod report;
mod runs;
mod sequence;
mod side;
mod tagged;

pub use explain::Explanation;
pub use judge::{Judge, check};
pub use order::OutOfOrder;
pub use report::{CheckResult, Finding, NEED_ORDER, NotJudged};

#[cfg(test)]
mod tests;
