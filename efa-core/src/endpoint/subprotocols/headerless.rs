//! Messages to zero-copy receivers. Stock libfabric 1.22 to 2.5 can receive directly into the
//! application's buffers, on a second queue pair that its handshake names (extra request 7, which
//! the spec does not list). Packets to that queue pair consist of data only; CQ data travels as
//! immediate data. Such a receiver refuses all other messages.

use crate::address::{Qkey, Qpn};
use crate::endpoint::subprotocols::SendSide;
use crate::nic::Nic;

use crate::endpoint::api::error::EndpointError;
use crate::endpoint::api::operation::{OperationFlags, SendArgs};
use crate::endpoint::api::statistics::Protocol;
use crate::endpoint::base::immediate;
use crate::endpoint::posting::OnePacket;
use crate::endpoint::posting::{Headerless, PacketOwner};
use crate::endpoint::subprotocols::outgoing_message::send_report;

impl<N: Nic> SendSide<'_, N> {
    /// Sends a message without a header. It is not part of the sequence of messages, and not
    /// tagged.
    pub(crate) fn send_headerless(
        &mut self,
        args: &SendArgs<'_>,
        length: u64,
        (qpn, qkey): (Qpn, Qkey),
    ) -> Result<(), EndpointError> {
        let too_large = |what, value, limit| EndpointError::OutOfRange { what, value, limit };
        if length > self.channel.sizes.mtu as u64 {
            let what = "length of a message to a zero-copy receiver";
            return Err(too_large(what, length, self.channel.sizes.mtu as u64));
        }
        let immediate = match args.cq_data.map(u32::try_from) {
            None => None,
            Some(Ok(data)) => Some(immediate::of_cq_data(data)),
            Some(Err(_)) => {
                let what = "CQ data for a zero-copy receiver";
                let data = args.cq_data.unwrap_or(0);
                return Err(too_large(what, data, u32::MAX.into()));
            }
        };
        if self.sending.is_full() {
            return Err(EndpointError::TryAgain);
        }
        let mut packet = self.channel.posting.start_headerless(Headerless {
            qpn,
            qkey,
            immediate,
        })?;
        let may_gather = !args.flags.contains(OperationFlags::INJECT);
        let all = (0, length as usize);
        self.channel.attach(
            &mut packet,
            Protocol::Headerless,
            args.data,
            all,
            may_gather,
        )?;
        // The packet's arrival is its delivery, so no RECEIPT is needed.
        let owner = PacketOwner::OnePacket(OnePacket {
            report: send_report(args),
            length,
        });
        self.channel.post_packet(args.peer, owner, packet)?;
        self.sending.reserve();
        Ok(())
    }
}
