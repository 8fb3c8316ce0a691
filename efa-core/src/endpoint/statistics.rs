//! Counters of what an endpoint did and saw.

use super::completion::CompletionFlags;

/// Counters since the endpoint was opened. They wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Packets that the device took, those sent again included.
    pub packets_sent: u64,
    /// Packets that arrived.
    pub packets_received: u64,
    /// Packets whose sender could not be found out; they were dropped.
    pub unknown_senders: u64,
    /// Packets that were refused; each is an event too.
    pub packets_refused: u64,
    /// Packets of peers that were given up; they were dropped.
    pub from_failed_peers: u64,
    /// Packets that came before their turn.
    pub out_of_order: u64,
    /// Messages that no receive was waiting for.
    pub unexpected_messages: u64,
    /// Packets that found no receive buffer at the peer; each was sent again.
    pub receiver_not_ready: u64,
    /// Control packets that were lost because the peer was gone.
    pub control_packets_lost: u64,
    /// Completions of the device for work that it does not have.
    pub stray_completions: u64,
    /// Events that were dropped because the application did not take them.
    pub events_dropped: u64,
    /// Bytes of user data copied from packet buffers to user memory.
    pub copied_bytes: u64,
    /// Sends, reported or not.
    pub sends: Counter,
    /// Receives, reported or not.
    pub receives: Counter,
    /// Writes, and atomics without a result.
    pub writes: Counter,
    /// Reads, and atomics with a result.
    pub reads: Counter,
    /// Peers' writes with CQ data.
    pub remote_writes: Counter,
}

/// How operations of one kind ended: the values of libfabric's counters (`fi_cntr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counter {
    /// Those that succeeded.
    pub successes: u64,
    /// Those that failed.
    pub errors: u64,
}

impl Statistics {
    /// Counts the end of an operation of the application.
    #[inline]
    pub(super) fn count(&mut self, flags: CompletionFlags, success: bool) {
        let counter = if flags.contains(CompletionFlags::SEND) {
            &mut self.sends
        } else if flags.contains(CompletionFlags::RECV) {
            &mut self.receives
        } else if flags.contains(CompletionFlags::REMOTE_WRITE) {
            &mut self.remote_writes
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

/// What an endpoint holds at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Entries of the address vector, those that introduced themselves included.
    pub peers: usize,
    /// Operations in flight that send data.
    pub outbound: usize,
    /// Receives posted, and operations in flight that take data.
    pub inbound: usize,
    /// Messages that no receive has taken.
    pub unexpected: usize,
    /// Packets that wait: for their turn, or for a receive.
    pub held_packets: usize,
    /// Packets that the device has, or that wait to be posted again.
    pub packets: usize,
    /// Messages of which some packets have not come.
    pub assemblies: usize,
    /// Messages that the application claimed.
    pub claimed: usize,
    /// Answers to peers' requests (RECEIPT, EOR, ATOMRSP) that wait to be sent.
    pub owed: usize,
}
