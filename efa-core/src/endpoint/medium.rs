//! Medium messages (spec section 3.2): several packets, sent at once without flow control.

use crate::nic::Nic;
use crate::wire::{MediumRtm, MsgId, Repr, ReqOptions, SendId};

use super::Endpoint;
use super::error::EndpointError;
use super::ids::OutboundId;
use super::iov::Iov;
use super::operation::SendArgs;
use super::outbound::{Awaited, Outbound, Stream};
use super::transmit::Outgoing;

/// What the segments of one message have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segments {
    msg_id: MsgId,
    tag: Option<u64>,
    delivery_complete: bool,
    /// Every segment has the same headers, as the receiver may see any of them first.
    options: ReqOptions,
    /// Bytes of data per segment; the last one may have less.
    size: usize,
}

impl<N: Nic> Endpoint<N> {
    /// Sends a message of `length` bytes as segments. The first one goes out before the call
    /// returns; the others follow as the device has room.
    pub(super) fn send_medium(
        &mut self,
        args: &SendArgs<'_>,
        length: u64,
        options: ReqOptions,
        delivery_complete: bool,
    ) -> Result<(), EndpointError> {
        let mut segments = Segments {
            msg_id: self.next_msg_id(args.peer),
            tag: args.tag,
            delivery_complete,
            options,
            size: 0,
        };
        let capacity = self
            .mtu
            .saturating_sub(segments.header(length, 0, SendId(0)).header_len());
        segments.size = segment_size(length, capacity);
        let outbound = Outbound {
            sent: 0,
            stream: Stream::Medium(segments),
            awaited: if delivery_complete {
                Awaited::Receipt
            } else {
                Awaited::Nothing
            },
            ..Outbound::single_packet(
                args.peer,
                Self::send_report(args),
                Iov::new(args.data)?,
                length,
            )
        };
        self.start_stream(outbound)
    }

    /// The next segment of a medium message.
    pub(super) fn medium_packet(
        &mut self,
        id: OutboundId,
        segments: &Segments,
        length: u64,
        offset: u64,
    ) -> Result<(Outgoing, usize), EndpointError> {
        let header = segments.header(length, offset, SendId(id.to_wire()));
        let size = (length - offset).min(segments.size as u64) as usize;
        Ok((self.start_packet(&header)?, size))
    }
}

impl Segments {
    fn header(&self, length: u64, offset: u64, send_id: SendId) -> MediumRtm {
        MediumRtm {
            msg_id: self.msg_id,
            msg_length: length,
            seg_offset: offset,
            tag: self.tag,
            receipt: self.delivery_complete.then_some(send_id),
            options: self.options,
        }
    }
}

/// Bytes per segment: as few segments as possible, of about the same size, which is a multiple of 8
/// so that the receiver's copies are aligned (as stock libfabric 1.17 splits).
fn segment_size(length: u64, capacity: usize) -> usize {
    let count = length.div_ceil(capacity.max(1) as u64).max(1);
    let size = length.div_ceil(count).next_multiple_of(8);
    size.min(capacity as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::segment_size;

    #[test]
    fn segments_are_even_aligned_and_as_few_as_possible() {
        for (length, capacity, expected) in [
            (8193, 8192, 4104),
            (65_536, 8864, 8192),
            (16_384, 8192, 8192),
            (100, 9, 9),
            (20, 16, 16),
            (1, 8192, 8),
        ] {
            let size = segment_size(length, capacity);
            assert_eq!(size, expected, "{length} by {capacity}");
            assert_eq!(
                length.div_ceil(size as u64),
                length.div_ceil(capacity as u64)
            );
        }
    }
}
