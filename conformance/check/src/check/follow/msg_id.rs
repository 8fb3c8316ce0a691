//! The ids of messages and atomics.

use efa_wire::rules;

use super::follower::Follower;
use crate::check::sequence::{IdGap, IdState};

impl Follower<'_> {
    /// Begins a message. Returns the relation of its msg_id to earlier ones.
    pub(super) fn begins_message(&mut self, msg_id: u32) -> IdState {
        let from_start = self.conversation.is_from_start();
        let packet_type = self.parsed.packet_type;
        let sequence = &mut self.conversation.sides[self.me].sequence;
        let (id, gap) = sequence.begin(msg_id, self.context.number, packet_type, from_start);
        match id {
            IdState::New | IdState::GivenUp => {}
            IdState::Again => {
                let text = format!("the device failed to send the first message {msg_id}");
                self.breach(&rules::MSG_ID_AGAIN, text);
            }
            IdState::Used => {
                let requests = &self.conversation.sides[self.me].requests;
                let text = match requests.refused(msg_id) {
                    Some(packet) => format!(
                        "packet {packet} of message {msg_id} was refused, and this one is another"
                    ),
                    None => format!("message {msg_id} was sent before"),
                };
                self.breach(&rules::MSG_ID_ONCE, text);
            }
        }
        self.skips(gap);
        id
    }

    /// Reports messages of the near end that are never sent.
    pub(super) fn skips(&mut self, gap: Option<IdGap>) {
        if let Some(gap) = gap
            && self.me == 0
        {
            self.conversation.gap(gap, self.context.interface);
        }
    }
}
