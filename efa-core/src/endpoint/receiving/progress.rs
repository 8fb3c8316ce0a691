//! The amount of a transfer's data that has arrived, and how the rest is delivered.
//!
//! Only byte counts: this module is independent of packets and memory.

use super::arrived::{Insertion, ReceivedRanges};

/// The progress of one transfer.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Length of the whole message in bytes.
    length: u64,
    /// The bytes that have arrived in packets, including those for which the target has no room.
    arrived: ReceivedRanges,
    /// The end of the bytes that arrive in packets. RDMA reads fetch the later bytes.
    in_packets: u64,
    /// Bytes that RDMA reads have not brought.
    to_read: u64,
    flow_control: FlowControl,
}

/// How the data arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FlowControl {
    /// Unsolicited: the peer sends it, or it is read by RDMA.
    Unasked,
    /// In windows. This is the number of granted bytes that have not arrived.
    Windows { granted: u64 },
    /// The memory for an RDMA read could not be registered. When this many bytes have arrived in
    /// packets, a READ_NACK makes the peer send the rest.
    Refused { in_packets: u64 },
    /// READ_NACK was sent.
    Nacked,
}

/// The next action for a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextAction {
    /// Wait for more data.
    Wait,
    /// End it.
    Finish,
    /// Send a CTS: the peer waits for a window.
    Grant,
    /// Notify the peer that its data cannot be read.
    Refuse,
}

/// The effect of a packet that announces where data can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadStart {
    /// The reads must start.
    Read,
    /// No action: the data is being read, cannot be read, or arrives in packets.
    Nothing,
    /// The packet contradicts the known state of the transfer.
    Mismatch,
}

impl Progress {
    /// Nothing of `length` bytes has arrived.
    pub(super) fn new(length: u64) -> Self {
        Progress {
            length,
            arrived: ReceivedRanges::default(),
            in_packets: length,
            to_read: 0,
            flow_control: FlowControl::Unasked,
        }
    }

    /// The data that arrived in packets.
    #[inline]
    pub(super) fn arrived_mut(&mut self) -> &mut ReceivedRanges {
        &mut self.arrived
    }

    /// Length of the whole message in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that have not arrived.
    pub(super) fn lacking(&self) -> u64 {
        self.in_packets - self.arrived.bytes() + self.to_read
    }

    /// Returns whether all data has arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.lacking() == 0
    }

    /// The next action, if the device has no reads of the transfer in progress.
    pub(super) fn next_action(&self) -> NextAction {
        if self.is_complete() {
            return NextAction::Finish;
        }
        match self.flow_control {
            FlowControl::Windows { granted: 0 } => NextAction::Grant,
            FlowControl::Refused { in_packets } if self.arrived.bytes() >= in_packets => {
                NextAction::Refuse
            }
            FlowControl::Unasked
            | FlowControl::Windows { .. }
            | FlowControl::Refused { .. }
            | FlowControl::Nacked => NextAction::Wait,
        }
    }

    /// Records a piece of unsolicited data.
    #[inline]
    pub(super) fn take(&mut self, offset: u64, length: u64) -> Insertion {
        self.arrived.add(offset, length, self.in_packets)
    }

    /// Records a piece of a window, as [`Progress::take`] does. A new piece beyond the granted
    /// window is a misfit.
    #[inline]
    pub(super) fn take_granted(&mut self, offset: u64, length: u64) -> Insertion {
        if let FlowControl::Windows { granted } = self.flow_control
            && let Some(granted) = granted.checked_sub(length)
        {
            let insertion = self.take(offset, length);
            if insertion == Insertion::New {
                self.flow_control = FlowControl::Windows { granted };
            }
            return insertion;
        }
        match self.arrived.has(offset, length) {
            true => Insertion::Repeated,
            false => Insertion::Misfit,
        }
    }

    /// Records that the peer sends the rest in windows.
    pub(super) fn windows_follow(&mut self) {
        self.flow_control = FlowControl::Windows { granted: 0 };
    }

    /// Records that the peer was granted a window of this many bytes.
    pub(super) fn granted(&mut self, bytes: u64) {
        self.flow_control = FlowControl::Windows { granted: bytes };
    }

    /// Processes the announcement that the data beyond the first `in_packets` bytes can be read,
    /// from memory of `readable` bytes; `None` if that number is too large.
    pub(super) fn readable(&self, in_packets: u64, readable: Option<u64>) -> ReadStart {
        if matches!(
            self.flow_control,
            FlowControl::Refused { .. } | FlowControl::Nacked
        ) || in_packets == self.length
        {
            return ReadStart::Nothing;
        }
        // Earlier packets may have contradicted this one.
        let is_contradicted = in_packets > self.length || self.arrived.end() > in_packets;
        if is_contradicted || readable != Some(self.length) {
            return ReadStart::Mismatch;
        }
        ReadStart::Read
    }

    /// Plans to read the bytes from `next` on, none of which has arrived, into a target of
    /// `capacity` bytes. Returns where the reads end. Bytes beyond the target's capacity are not
    /// read.
    pub(super) fn plan_reads(&mut self, next: u64, capacity: u64) -> u64 {
        let end = self.length.min(capacity).max(next);
        self.in_packets = next;
        self.to_read = end - next;
        end
    }

    /// Records that a read has delivered this many bytes.
    pub(super) fn read(&mut self, bytes: u64) {
        self.to_read -= bytes;
    }

    /// Records that the data beyond the first `in_packets` bytes cannot be read.
    pub(super) fn refuse(&mut self, in_packets: u64) {
        self.flow_control = FlowControl::Refused { in_packets };
    }

    /// Records that READ_NACK was sent.
    pub(super) fn nacked(&mut self) {
        self.flow_control = FlowControl::Nacked;
    }

    /// Processes the response to READ_NACK, for a message of `length` bytes: the rest arrives in
    /// windows. Returns false if the packet does not answer a READ_NACK.
    pub(super) fn nack_answered(&mut self, length: u64) -> bool {
        let is_answer = self.flow_control == FlowControl::Nacked && self.length == length;
        if is_answer {
            self.windows_follow();
        }
        is_answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_bounds_and_duplicate_data_is_ignored() {
        let mut progress = Progress::new(100);
        assert_eq!(progress.take(60, 41), Insertion::Misfit);
        assert_eq!(progress.take(u64::MAX, 2), Insertion::Misfit);
        assert_eq!(progress.take(60, 40), Insertion::New);
        assert_eq!(progress.take(0, 61), Insertion::Misfit);
        // The number of bytes equals that of the message, but some are duplicates.
        assert_eq!(progress.take(60, 40), Insertion::Repeated);
        assert_eq!(
            (progress.lacking(), progress.next_action()),
            (60, NextAction::Wait)
        );
        assert_eq!(progress.take(0, 60), Insertion::New);
        assert_eq!(progress.next_action(), NextAction::Finish);
    }

    #[test]
    fn a_completed_window_requests_the_next_grant() {
        let mut progress = Progress::new(100);
        assert_eq!(progress.take_granted(0, 1), Insertion::Misfit);
        assert_eq!(progress.next_action(), NextAction::Wait);
        progress.windows_follow();
        assert_eq!(progress.next_action(), NextAction::Grant);
        progress.granted(8);
        assert_eq!(progress.next_action(), NextAction::Wait);
        // That is more than the window, and more than the message.
        assert_eq!(progress.take_granted(0, 9), Insertion::Misfit);
        assert_eq!(progress.take_granted(93, 8), Insertion::Misfit);
        assert_eq!(progress.take_granted(0, 5), Insertion::New);
        assert_eq!(progress.next_action(), NextAction::Wait);
        // A second copy uses nothing of the window up, whether there is room for it or not.
        assert_eq!(progress.take_granted(2, 3), Insertion::Repeated);
        assert_eq!(progress.take_granted(0, 5), Insertion::Repeated);
        assert_eq!(progress.take_granted(5, 3), Insertion::New);
        assert_eq!(progress.next_action(), NextAction::Grant);
        assert_eq!(progress.take_granted(5, 3), Insertion::Repeated);
        assert_eq!(progress.take_granted(8, 1), Insertion::Misfit);
        // The answer to a read of nothing has no data.
        assert_eq!(progress.take_granted(8, 0), Insertion::New);
    }

    #[test]
    fn unreadable_data_is_refused_and_sent_in_windows() {
        let mut progress = Progress::new(100);
        assert!(!progress.nack_answered(100));
        progress.refuse(10);
        assert_eq!(progress.next_action(), NextAction::Wait);
        assert_eq!(progress.take(0, 10), Insertion::New);
        assert_eq!(progress.next_action(), NextAction::Refuse);
        assert_eq!(progress.readable(10, Some(100)), ReadStart::Nothing);
        progress.nacked();
        assert_eq!(progress.next_action(), NextAction::Wait);
        assert!(!progress.nack_answered(99));
        assert!(progress.nack_answered(100));
        assert_eq!(progress.next_action(), NextAction::Grant);
    }

    #[test]
    fn reads_start_only_with_sizes_that_agree() {
        let mut progress = Progress::new(100);
        assert_eq!(progress.readable(0, Some(99)), ReadStart::Mismatch);
        assert_eq!(progress.readable(0, None), ReadStart::Mismatch);
        assert_eq!(progress.readable(101, Some(100)), ReadStart::Mismatch);
        assert_eq!(progress.readable(100, Some(100)), ReadStart::Nothing);
        assert_eq!(progress.readable(10, Some(100)), ReadStart::Read);
        // A packet has brought data that is also being read.
        assert_eq!(progress.take(10, 1), Insertion::New);
        assert_eq!(progress.readable(10, Some(100)), ReadStart::Mismatch);
        assert_eq!(progress.readable(11, Some(100)), ReadStart::Read);
    }

    #[test]
    fn data_beyond_the_target_is_not_read() {
        let mut progress = Progress::new(100);
        assert_eq!(progress.take(0, 11), Insertion::New);
        assert_eq!(progress.plan_reads(11, 60), 60);
        // Packets must not contain data that is also being read.
        assert_eq!(progress.take(11, 1), Insertion::Misfit);
        assert_eq!(progress.take(0, 11), Insertion::Repeated);
        progress.read(48);
        assert_eq!(
            (progress.lacking(), progress.next_action()),
            (1, NextAction::Wait)
        );
        progress.read(1);
        assert_eq!(progress.next_action(), NextAction::Finish);
        // The packets may have brought more than the target has room for.
        let mut progress = Progress::new(100);
        assert_eq!(progress.plan_reads(11, 5), 11);
        assert_eq!(progress.next_action(), NextAction::Wait);
        assert_eq!(progress.take(0, 11), Insertion::New);
        assert!(progress.is_complete());
    }
}
