//! What an endpoint keeps about one peer that it talks to: what each part keeps about it.

use crate::endpoint::api::error::Failure;
use crate::endpoint::peers::handshake::Handshaking;
use crate::endpoint::posting::PeerBackoff;
use crate::endpoint::receiving::ReorderWindow;
use crate::endpoint::sending::{ReadBased, Sequence};
use crate::wire::MsgId;

/// The state of the conversation with one peer.
pub(crate) struct Conversation {
    /// The ids of messages and atomics to the peer.
    pub(crate) sequence: Sequence,
    pub(crate) handshake: Handshaking,
    /// Why the conversation cannot go on, if so: packets of the peer are dropped.
    pub(crate) failure: Option<Failure>,
    /// It sent something since this was last looked at.
    pub(crate) heard: bool,
    /// What came from the peer before its turn.
    pub(crate) window: ReorderWindow,
    /// Memory of its packets that wait, in bytes.
    pub(crate) held_bytes: usize,
    /// Messages to the peer of which it reads a part.
    pub(crate) read_based: ReadBased,
    /// The waits after receiver-not-ready answers.
    pub(crate) backoff: PeerBackoff,
}

impl Conversation {
    /// Returns whether nothing is under way in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.sequence.is_idle() && self.held_bytes == 0 && self.backoff.is_idle()
    }
}

impl From<MsgId> for Conversation {
    /// The state at the start of a conversation, in which both sides count messages from `first` on.
    fn from(first: MsgId) -> Self {
        Conversation {
            sequence: Sequence::new(first),
            handshake: Handshaking::default(),
            failure: None,
            heard: false,
            window: ReorderWindow::new(first),
            held_bytes: 0,
            read_based: ReadBased::default(),
            backoff: PeerBackoff::default(),
        }
    }
}
