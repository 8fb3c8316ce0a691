//! The announcements of an endpoint.

use efa_wire::ExtraFeatures;
use efa_wire::rules;

use super::follower::Follower;
use crate::check::packet::HandshakeContent;

impl Follower<'_> {
    pub(super) fn handshake(&mut self, announced: HandshakeContent) {
        let you_read_the_version = {
            let peer = &self.conversation.sides[self.you];
            peer.handshake.is_some() && peer.features.contains(ExtraFeatures::READ_NACK)
        };
        let side = &mut self.conversation.sides[self.me];
        match side.handshake {
            Some(first) => {
                let text = format!("the first was in packet {first}");
                self.breach(&rules::HANDSHAKE_ONCE, text);
            }
            None => {
                side.handshake = Some(self.context.number);
                side.features = announced.features;
                let (number, me, you) = (self.context.number, self.me, self.you);
                self.conversation.check_early(number, me, you);
            }
        }
        if you_read_the_version && announced.device_version.is_none() {
            let text = "the receiver reads the field without looking whether it is there".into();
            self.breach(&rules::DEVICE_VERSION, text);
        }
    }
}
