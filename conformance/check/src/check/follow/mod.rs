//! Following operations from packet to packet.
//!
//! * `dispatch`: which part follows a packet.
//! * `message`, `read`, `atomic`: the operations, by their requests; `handshake`, `abort`.
//! * `acknowledgement`: how messages and writes end.
//! * `segment`: packets of a message after its first; `window`: data in windows; `msg_id`.
//! * `follower`: a packet and its conversation, which all of these use.
//! * `awaited`: the packets that a conversation waits for.

mod abort;
mod acknowledgement;
mod atomic;
mod awaited;
mod dispatch;
mod follower;
mod handshake;
mod message;
mod msg_id;
mod read;
mod segment;
mod window;

pub(super) use follower::Follower;
