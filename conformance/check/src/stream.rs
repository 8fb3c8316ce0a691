//! The packets of one direction of a reliable connection, by number: which are new, which are
//! retransmissions, and whether the capture has all of them.

use std::ops::Range;

use efa_wire::infiniband::SEQUENCE_BITS;
use foldhash::HashSet;

/// Packet numbers with a larger distance belong to a new connection of the queue pair.
const WINDOW: i32 = 1 << 15;

/// The maximum number of message ends that are stored until an acknowledgement contains the number
/// of messages.
const MOST_ENDS: usize = 64;

/// Mask of packet numbers, and of the numbers of queue pairs in packets.
pub(crate) const LOW: u32 = (1 << SEQUENCE_BITS) - 1;

/// The distance of `to` from `from`.
pub(crate) fn distance(from: u32, to: u32) -> i32 {
    const SPARE: u32 = u32::BITS - SEQUENCE_BITS;
    (to.wrapping_sub(from) << SPARE).cast_signed() >> SPARE
}

/// The relation of a request packet to earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// A new packet.
    New,
    /// A retransmission.
    Again,
    /// The first packet after the queue pair was connected again.
    Restart,
}

/// The requests from one host to a queue pair of another.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    first: u32,
    /// The possible numbers of the next packet. A read uses one number per packet of its data, and
    /// that count is not known.
    next: Option<Range<u32>>,
    missing: HashSet<u32>,
    is_torn: bool,
    /// The last packets of its first messages.
    ends: Vec<u32>,
}

impl Stream {
    /// Handles a packet that uses at most `most` numbers.
    pub(crate) fn take(&mut self, psn: u32, most: u32, ends_message: bool) -> Arrival {
        let arrival = match &self.next {
            None => Arrival::Restart,
            Some(next) => self.place(psn, next.clone()),
        };
        if arrival == Arrival::Restart {
            *self = Stream {
                first: psn,
                ..Stream::default()
            };
        }
        let is_behind = |next: &Range<u32>| distance(next.start, psn) < 0;
        if !self.next.as_ref().is_some_and(is_behind) {
            self.next = Some(psn.wrapping_add(1)..psn.wrapping_add(most));
        }
        if arrival != Arrival::Again && ends_message && self.ends.len() < MOST_ENDS {
            self.ends.push(psn);
        }
        arrival
    }

    fn place(&mut self, psn: u32, next: Range<u32>) -> Arrival {
        let (ahead, beyond) = (distance(next.start, psn), distance(next.end, psn));
        if ahead < -WINDOW || beyond > WINDOW {
            return Arrival::Restart;
        }
        if ahead >= 0 {
            let missing = (0..beyond).map(|number| next.end.wrapping_add(number.cast_unsigned()));
            self.missing.extend(missing.map(|psn| psn & LOW));
            if self.missing.len() > WINDOW as usize {
                self.missing.clear();
                self.is_torn = true;
            }
            return Arrival::New;
        }
        if self.missing.remove(&psn) {
            return Arrival::New;
        }
        // An unknown number of packets before the first one is missing.
        self.is_torn |= distance(self.first, psn) < 0;
        Arrival::Again
    }

    /// Records that a part of the stream is unknown.
    pub(crate) fn tear(&mut self) {
        self.is_torn = true;
    }

    /// Whether the capture has all packets since the first one.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_torn && self.missing.is_empty()
    }

    /// Whether the first packet is the connection's first one: the number of messages in the
    /// responder's acknowledgement equals that in the capture.
    pub(crate) fn has_begun(&self, counted: Option<&Acknowledged>) -> bool {
        let Some(Acknowledged { psn, messages, .. }) = counted else {
            return false;
        };
        let until = self.ends.iter().filter(|end| distance(*psn, **end) <= 0);
        let is_near = (0..WINDOW).contains(&distance(self.first, *psn));
        is_near && self.ends.len() < MOST_ENDS && until.count() == *messages as usize
    }
}

/// The first acknowledgement of a connection in the capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    psn: u32,
    messages: u32,
    last: u32,
}

impl Acknowledged {
    /// Handles an acknowledgement that contains the number of messages.
    pub(crate) fn take(known: &mut Option<Acknowledged>, psn: u32, messages: u32) {
        let is_near = |known: &Acknowledged| distance(known.last, psn).abs() <= WINDOW;
        match known.as_mut().filter(|known| is_near(known)) {
            Some(known) => known.last = psn,
            None => {
                *known = Some(Acknowledged {
                    psn,
                    messages,
                    last: psn,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arrival::{Again, New, Restart};

    #[test]
    fn numbers_wrap_at_24_bits() {
        assert_eq!(distance(0xff_fffe, 3), 5);
        assert_eq!(distance(3, 0xff_fffe), -5);
        let mut stream = Stream::default();
        let arrivals = [0xff_ffff, 0, 0xff_ffff].map(|psn| stream.take(psn, 1, true));
        assert_eq!(arrivals, [Restart, New, Again]);
        assert!(stream.is_whole());
    }

    #[test]
    fn missing_packets_may_arrive_later() {
        let mut stream = Stream::default();
        let arrivals = [0xff_fffe, 2, 0, 0].map(|psn| stream.take(psn, 1, true));
        assert_eq!(arrivals, [Restart, New, New, Again]);
        assert!(!stream.is_whole());
        assert_eq!(
            [0xff_ffff, 1].map(|psn| stream.take(psn, 1, true)),
            [New; 2]
        );
        assert!(stream.is_whole());
        assert_eq!(stream.take(0xff_fff0, 1, true), Again, "before the first");
        assert!(!stream.is_whole());
    }

    #[test]
    fn reads_take_the_numbers_of_their_data() {
        for next in [11, 15, 18] {
            let mut stream = Stream::default();
            stream.take(10, 8, true);
            assert_eq!(stream.take(next, 1, true), New);
            assert!(stream.is_whole(), "{next}");
        }
        let mut stream = Stream::default();
        stream.take(10, 8, true);
        stream.take(19, 1, true);
        assert!(!stream.is_whole());
    }

    #[test]
    fn acknowledgements_show_whether_a_capture_is_complete() {
        let mut stream = Stream::default();
        for (psn, ends_message) in [(7, true), (8, false), (9, true), (10, true)] {
            stream.take(psn, 1, ends_message);
        }
        for (psn, messages, expected) in [(7, 1, true), (9, 2, true), (9, 3, false), (6, 0, false)]
        {
            let mut counted = None;
            Acknowledged::take(&mut counted, psn, messages);
            Acknowledged::take(&mut counted, 10, messages + 1);
            assert_eq!(stream.has_begun(counted.as_ref()), expected, "{psn}");
        }
        assert!(!stream.has_begun(None));
    }

    #[test]
    fn distant_numbers_are_of_another_life() {
        let mut stream = Stream::default();
        stream.take(7, 1, true);
        assert_eq!(stream.take(0x10_0000, 1, true), Restart);
        let mut counted = None;
        Acknowledged::take(&mut counted, 7, 1);
        Acknowledged::take(&mut counted, 0x10_0000, 1);
        assert!(stream.has_begun(counted.as_ref()) && stream.is_whole());
    }
}
