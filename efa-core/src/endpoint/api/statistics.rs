//! Counters of an endpoint.

use crate::endpoint::api::completion::CompletionFlags;

/// Counters since the endpoint was opened. They wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Packets that the device accepted, including resent ones.
    pub packets_sent: u64,
    /// Packets that arrived.
    pub packets_received: u64,
    /// Packets that were dropped because their sender could not be identified.
    pub unknown_senders: u64,
    /// Packets that were refused. Each is also an event.
    pub packets_refused: u64,
    /// Packets that were dropped because the endpoint had given up their sender.
    pub from_failed_peers: u64,
    /// Packets that arrived before their turn.
    pub out_of_order: u64,
    /// Messages that arrived before a matching receive.
    pub unexpected_messages: u64,
    /// Sends for which the peer had no receive buffer. Each packet was sent again.
    pub receiver_not_ready: u64,
    /// Control packets that were lost because the peer no longer existed.
    pub control_packets_lost: u64,
    /// Completions of the device for requests that are not in flight.
    pub stray_completions: u64,
    /// Events that were dropped because the application did not read them.
    pub events_dropped: u64,
    /// Bytes of user data that were copied, by [`Protocol`]; see [`Statistics::copied`].
    pub(crate) copied: [CopiedBytes; Protocol::COUNT],
    /// Sends, reported or not.
    pub sends: Counter,
    /// Receives, reported or not.
    pub receives: Counter,
    /// Writes, and atomics without a result.
    pub writes: Counter,
    /// Reads, and atomics with a result.
    pub reads: Counter,
    /// Peers' writes, and their atomics without a result: those with CQ data, and those that the
    /// device does not carry out by itself. The device does not report any others to the target.
    pub remote_writes: Counter,
    /// Peers' reads, and their atomics with a result, that the device does not carry out by itself.
    pub remote_reads: Counter,
}

crate::wire::enumerated! {
    /// Protocols whose data may be copied. Data that the device moves by itself (long-read messages
    /// and writes, direct reads and writes) is never copied, and has no variant.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Protocol {
        /// Eager messages.
        Eager,
        /// Medium messages.
        Medium,
        /// Long-CTS messages, including those that answer a READ_NACK.
        LongCts,
        /// The packets of runting reads.
        RuntingRead,
        /// Messages to zero-copy receivers.
        Headerless,
        /// Emulated eager writes.
        EagerWrite,
        /// Emulated long-CTS writes.
        LongCtsWrite,
        /// Emulated reads.
        EmulatedRead,
        /// Atomics.
        Atomic,
    }
}

impl Protocol {
    const COUNT: usize = Protocol::ALL.len();
}

/// Bytes of user data that the engine copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopiedBytes {
    /// Bytes copied from user memory to packet buffers. Registered pieces of at least 1 KiB are
    /// gathered by the device instead.
    pub sent: u64,
    /// Bytes copied from packets to user memory.
    pub received: u64,
}

/// How operations of one kind ended: the values of libfabric's counters (`fi_cntr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counter {
    /// Operations that succeeded.
    pub successes: u64,
    /// Operations that failed.
    pub errors: u64,
}

impl Statistics {
    /// The bytes of user data that were copied for a protocol.
    pub fn copied(&self, protocol: Protocol) -> CopiedBytes {
        self.copied[protocol as usize]
    }

    #[inline]
    pub(crate) fn note_sent(&mut self, protocol: Protocol, bytes: usize) {
        self.copied[protocol as usize].sent += bytes as u64;
    }

    #[inline]
    pub(crate) fn note_received(&mut self, protocol: Protocol, bytes: u64) {
        self.copied[protocol as usize].received += bytes;
    }

    /// Counts the end of an operation of the application.
    #[inline(always)]
    pub(crate) fn count(&mut self, flags: CompletionFlags, success: bool) {
        let counter = if flags.contains(CompletionFlags::SEND) {
            &mut self.sends
        } else if flags.contains(CompletionFlags::RECV) {
            &mut self.receives
        } else if flags.contains(CompletionFlags::REMOTE_WRITE) {
            &mut self.remote_writes
        } else if flags.contains(CompletionFlags::REMOTE_READ) {
            &mut self.remote_reads
        } else if flags.contains(CompletionFlags::WRITE) {
            &mut self.writes
        } else {
            &mut self.reads
        };
        let count = if success {
            &mut counter.successes
        } else {
            &mut counter.errors
        };
        *count = count.wrapping_add(1);
    }
}

/// Objects that an endpoint has now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Entries of the address vector, including peers that introduced themselves.
    pub peers: usize,
    /// Operations in flight that send data.
    pub outbound: usize,
    /// Receives posted, and operations in flight that receive data.
    pub inbound: usize,
    /// Messages that no receive has matched.
    pub unexpected: usize,
    /// Packets that wait for their turn or for a receive.
    pub deferred_packets: usize,
    /// Packets in the device, or waiting to be posted again.
    pub packets: usize,
    /// Messages with missing packets.
    pub assemblies: usize,
    /// Messages that the application claimed.
    pub claimed: usize,
    /// Responses to peers' requests (RECEIPT, EOR, ATOMRSP) that wait to be sent.
    pub owed: usize,
    /// Operations of peers that wait for room.
    pub waiting: usize,
}
