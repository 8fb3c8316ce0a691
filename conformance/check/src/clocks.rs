//! Comparison of hosts' clocks by the packets between them.
//!
//! Captures of two machines have the times of two clocks. A packet in both captures bounds their
//! difference, because it arrived after it was sent: packets in one direction provide an upper
//! bound, packets in the opposite direction a lower one. The handshakes, which are sent in both
//! directions at the beginning, already provide both bounds; the uncertainty is half of the
//! shortest round trip.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use efa_capture::Direction;
use efa_capture::frame::FrameKind;
use efa_wire::address::{Gid, Qpn};

use crate::capture::Capture;

/// The largest drift between two clocks, in seconds per second: uncorrected quartz oscillators have
/// a tenth of that.
const FASTEST_DRIFT: f64 = 1e-3;
/// Number of halvings of the range of drifts: far below a nanosecond in a day.
const NARROWED: u32 = 100;

/// A packet that was captured at both ends. Times are nanoseconds of the respective host's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flight {
    /// Whether its direction is from the first host to the second.
    pub outward: bool,
    /// The time at which it was sent.
    pub sent: i128,
    /// The time at which it arrived.
    pub arrived: i128,
}

impl Flight {
    /// Its time on the first host's clock.
    fn time(&self) -> i128 {
        match self.outward {
            true => self.sent,
            false => self.arrived,
        }
    }

    /// The second clock minus the first, if the latency of the packet was zero.
    fn difference(&self) -> i128 {
        match self.outward {
            true => self.arrived - self.sent,
            false => self.sent - self.arrived,
        }
    }
}

/// The difference of a second clock from a first one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Difference {
    /// The second clock minus the first, in nanoseconds, at the time `since` of the first clock.
    ahead: i128,
    /// The drift, in seconds per second.
    drift: f64,
    /// The first clock's time, in nanoseconds.
    since: i128,
    /// The uncertainty of `ahead`; `None` if there are no packets in one direction.
    pub uncertainty: Option<Duration>,
    /// The number of packets used.
    pub packets: usize,
}

/// The reason why clocks cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClockError {
    /// No packet was captured at both ends.
    #[error("no packet is in both captures, so their clocks cannot be compared")]
    NothingInCommon,
    /// With any difference of the clocks, some packets arrived before they were sent.
    #[error(
        "whatever the difference of the clocks, packets arrived before they were sent: a clock was set during \
         the capture"
    )]
    Contradiction,
}

impl Difference {
    /// No difference.
    pub const NONE: Difference = Difference {
        ahead: 0,
        drift: 0.0,
        since: 0,
        uncertainty: Some(Duration::ZERO),
        packets: 0,
    };

    /// The difference in the middle between the bounds of the flights.
    ///
    /// # Errors
    /// [`ClockError`].
    pub fn of(flights: &[Flight]) -> Result<Self, ClockError> {
        let first = flights.first().ok_or(ClockError::NothingInCommon)?;
        // Nanoseconds since the epoch do not fit into a floating-point number, but distances do.
        let (since, base) = (first.time(), first.difference());
        let points = |outward| -> Vec<(f64, f64)> {
            let chosen = flights.iter().filter(|flight| flight.outward == outward);
            chosen
                .map(|flight| {
                    let (x, y) = (flight.time() - since, flight.difference() - base);
                    (x as f64, y as f64)
                })
                .collect()
        };
        let (upper, lower) = (points(true), points(false));
        let highest = |drift: f64| {
            let values = upper.iter().map(|(x, y)| y - drift * x);
            values.fold(f64::INFINITY, f64::min)
        };
        let lowest = |drift: f64| {
            let values = lower.iter().map(|(x, y)| y - drift * x);
            values.fold(f64::NEG_INFINITY, f64::max)
        };
        let difference = |ahead: f64, drift, uncertainty| Difference {
            ahead: base + ahead.floor() as i128,
            drift,
            since,
            uncertainty,
            packets: flights.len(),
        };
        if lower.is_empty() || upper.is_empty() {
            let bound = if upper.is_empty() {
                lowest(0.0)
            } else {
                highest(0.0)
            };
            return Ok(difference(bound, 0.0, None));
        }
        let room = |drift: f64| highest(drift) - lowest(drift);
        let mut drift = 0.0;
        if room(drift) < 0.0 {
            // The margin has one maximum, because it is a minimum of linear functions.
            let (mut low, mut high) = (-FASTEST_DRIFT, FASTEST_DRIFT);
            for _ in 0..NARROWED {
                let third = (high - low) / 3.0;
                match room(low + third) < room(high - third) {
                    true => low += third,
                    false => high -= third,
                }
            }
            drift = (low + high) / 2.0;
            if room(drift) < 0.0 {
                return Err(ClockError::Contradiction);
            }
        }
        let middle = (highest(drift) + lowest(drift)) / 2.0;
        let uncertainty = Duration::from_nanos((room(drift) / 2.0).ceil() as u64);
        Ok(difference(middle, drift, Some(uncertainty)))
    }

    /// The first clock's time when the second one shows `time`.
    pub fn correct(&self, time: Duration) -> Duration {
        let shown = time.as_nanos() as i128;
        let gained = (shown - self.ahead - self.since) as f64 * self.drift / (1.0 + self.drift);
        let corrected = shown - self.ahead - gained.round() as i128;
        // A time before the epoch cannot be written to a capture.
        let nanoseconds = u128::try_from(corrected).unwrap_or_default();
        let seconds = u64::try_from(nanoseconds / 1_000_000_000).unwrap_or(u64::MAX);
        Duration::new(seconds, (nanoseconds % 1_000_000_000) as u32)
    }

    /// The second clock minus the first, in nanoseconds.
    pub fn ahead(&self) -> i128 {
        self.ahead
    }

    /// The difference of a third clock from the first; `further` is its difference from the second.
    pub fn then(&self, further: &Difference) -> Difference {
        let uncertainty = self.uncertainty.zip(further.uncertainty);
        Difference {
            ahead: self.ahead + further.ahead,
            drift: self.drift + further.drift,
            since: self.since,
            uncertainty: uncertainty.map(|(one, other)| one + other),
            packets: further.packets,
        }
    }
}

/// As in `3600.000012 s ahead (within 8.1 us, by 24 packets)`.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let distance = self.ahead.unsigned_abs();
        let way = if self.ahead < 0 { "behind" } else { "ahead" };
        write!(
            f,
            "{}.{:09} s {way}",
            distance / 1_000_000_000,
            distance % 1_000_000_000
        )?;
        match self.uncertainty {
            Some(uncertainty) => {
                write!(f, " (within {uncertainty:?}, by {} packets", self.packets)?
            }
            None => write!(
                f,
                " (at the most or the least, by {} packets of one direction",
                self.packets
            )?,
        }
        if self.drift != 0.0 {
            write!(f, ", gaining {:.3} ppm", self.drift * 1e6)?;
        }
        write!(f, ")")
    }
}

/// Identifies a packet at both ends. Sequence numbers of a real device are not visible, so they are
/// not part of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct PacketKey {
    destination: Gid,
    source_qpn: Qpn,
    destination_qpn: Qpn,
    bytes: u64,
}

/// The times of packets by their marks, in nanoseconds.
fn times(capture: &Capture, direction: Direction) -> HashMap<PacketKey, Vec<i128>> {
    let mut times: HashMap<PacketKey, Vec<i128>> = HashMap::new();
    let frames = capture.frames.iter();
    let sends = frames.filter(|frame| {
        matches!(frame.header.kind, FrameKind::Send) && frame.direction == Some(direction)
    });
    for frame in sends {
        let mut hasher = DefaultHasher::new();
        frame.there().hash(&mut hasher);
        let mark = PacketKey {
            destination: frame.destination,
            source_qpn: frame.header.source_qpn,
            destination_qpn: frame.header.destination_qpn,
            bytes: hasher.finish(),
        };
        let time = frame.time.as_nanos() as i128;
        match times.entry(mark) {
            Entry::Occupied(mut known) => known.get_mut().push(time),
            Entry::Vacant(new) => {
                new.insert(vec![time]);
            }
        }
    }
    times
}

/// The packets that were captured at both ends, with the times of both captures.
pub fn flights(first: &Capture, second: &Capture) -> Vec<Flight> {
    let mut flights = Vec::new();
    for (outward, sender, receiver) in [(true, first, second), (false, second, first)] {
        let mut sent = times(sender, Direction::Outbound);
        for (mark, mut arrived) in times(receiver, Direction::Inbound) {
            let Some(mut sent) = sent.remove(&mark) else {
                continue;
            };
            // Several equal copies can only be paired if all of them were captured at both ends:
            // then they arrive in the order in which they were sent.
            if sent.len() == arrived.len() {
                sent.sort_unstable();
                arrived.sort_unstable();
                let pairs = sent.into_iter().zip(arrived);
                flights.extend(pairs.map(|(sent, arrived)| Flight {
                    outward,
                    sent,
                    arrived,
                }));
            }
        }
    }
    flights
}

/// The difference of each capture's clock from that of the first one. Captures without common
/// packets with the first are compared through others.
///
/// # Errors
/// The index of a capture whose clock cannot be compared, and the reason.
pub fn align(captures: &[impl Borrow<Capture>]) -> Result<Vec<Difference>, (usize, ClockError)> {
    let mut known: Vec<Option<Difference>> = vec![None; captures.len()];
    if let Some(first) = known.first_mut() {
        *first = Some(Difference::NONE);
    }
    loop {
        let mut found = None;
        let mut missing = None;
        'search: for (at, capture) in captures.iter().enumerate() {
            if known[at].is_some() {
                continue;
            }
            for (other, compared) in captures.iter().zip(&known) {
                let Some(compared) = compared else {
                    continue;
                };
                match Difference::of(&flights(other.borrow(), capture.borrow())) {
                    Ok(difference) => {
                        found = Some((at, compared.then(&difference)));
                        break 'search;
                    }
                    Err(error) => missing = Some((at, error)),
                }
            }
        }
        match (found, missing) {
            (Some((at, difference)), _) => known[at] = Some(difference),
            (None, Some(missing)) => return Err(missing),
            (None, None) => break,
        }
    }
    Ok(known.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: i128 = 3_600_000_000_000;

    /// A packet with the times of two clocks; the second is `ahead` at 0 and gains `drift`
    /// thousandths of a millionth.
    fn flight(outward: bool, start: i128, takes: i128, ahead: i128, drift: i128) -> Flight {
        let second = |time: i128| time + ahead + time * drift / 1_000_000_000;
        let (sent, arrived) = match outward {
            true => (start, second(start + takes)),
            false => (second(start), start + takes),
        };
        Flight {
            outward,
            sent,
            arrived,
        }
    }

    /// Whether the packet arrives after it was sent, with the second clock corrected, up to
    /// `tolerance`.
    fn is_forward(flight: &Flight, difference: &Difference, tolerance: i128) -> bool {
        let nanoseconds = |time: i128| Duration::from_nanos(u64::try_from(time).unwrap());
        let corrected = |time| difference.correct(nanoseconds(time)).as_nanos() as i128;
        match flight.outward {
            true => corrected(flight.arrived) >= flight.sent - tolerance,
            false => flight.arrived >= corrected(flight.sent) - tolerance,
        }
    }

    /// A time in 2026, when the first packet is sent.
    const BEGIN: i128 = 1_790_000_000_000_000_000;

    fn packets() -> impl Strategy<Value = Vec<(bool, i128, i128)>> {
        let one = |outward| (Just(outward), 0..10_000_000_000_i128, 1..2_000_000_i128);
        // At least one of each direction.
        let more = proptest::collection::vec(
            (any::<bool>(), 0..10_000_000_000_i128, 1..2_000_000_i128),
            0..40,
        );
        (one(true), one(false), more).prop_map(|(first, second, mut more)| {
            more.extend([first, second]);
            more
        })
    }

    proptest! {
        /// For any clocks, the true difference is within the uncertainty, and no packet arrives
        /// before it was sent.
        #[test]
        fn the_true_difference_is_within_the_uncertainty(
            packets in packets(),
            ahead in -30 * HOUR..30 * HOUR,
        ) {
            let flights: Vec<Flight> = packets
                .into_iter()
                .map(|(outward, start, takes)| flight(outward, BEGIN + start, takes, ahead, 0))
                .collect();
            let found = Difference::of(&flights).unwrap();
            let wrong = (found.ahead() - ahead).unsigned_abs();
            // Rounding the middle loses a nanosecond.
            prop_assert!(wrong <= found.uncertainty.unwrap().as_nanos() + 1, "{found}, {wrong} ns wrong");
            for flight in &flights {
                prop_assert!(is_forward(flight, &found, 0), "{flight:?}, {found}");
            }
        }

        /// A drift that exceeds the packets' latency is detected.
        #[test]
        fn drift_is_followed(
            packets in packets(),
            ahead in -2 * HOUR..2 * HOUR,
            drift in -200_000..200_000_i128,
        ) {
            let flights: Vec<Flight> = packets
                .into_iter()
                .map(|(outward, start, takes)| {
                    // The drift begins with the capture.
                    let flight = flight(outward, start, takes, ahead, drift);
                    Flight {
                        outward,
                        sent: flight.sent + BEGIN,
                        arrived: flight.arrived + BEGIN,
                    }
                })
                .collect();
            let found = Difference::of(&flights).unwrap();
            for flight in &flights {
                prop_assert!(is_forward(flight, &found, 3), "{flight:?}, {found}");
            }
        }
    }

    #[test]
    fn the_shortest_round_trip_is_the_uncertainty() {
        let flights = [
            flight(true, BEGIN, 20_000, HOUR, 0),
            flight(false, BEGIN + 50_000, 30_000, HOUR, 0),
            flight(true, BEGIN + 90_000, 10_000, HOUR, 0),
        ];
        let found = Difference::of(&flights).unwrap();
        // 10 us out and 30 us back: in the middle it is 10 us off.
        assert_eq!(found.ahead() - HOUR, -10_000);
        assert_eq!(found.uncertainty, Some(Duration::from_micros(20)));
        assert_eq!(
            found.to_string(),
            "3599.999990000 s ahead (within 20µs, by 3 packets)"
        );
    }

    #[test]
    fn packets_of_one_direction_are_a_bound_only() {
        let flights = [flight(true, BEGIN, 20_000, -HOUR, 0)];
        let found = Difference::of(&flights).unwrap();
        assert_eq!(found.uncertainty, None);
        assert_eq!(found.ahead() + HOUR, 20_000);
        assert!(
            found.to_string().contains("s behind (at the most"),
            "{found}"
        );
        assert_eq!(Difference::of(&[]), Err(ClockError::NothingInCommon));
    }

    #[test]
    fn a_clock_that_was_set_is_reported() {
        let flights = [
            flight(true, BEGIN, 20_000, 0, 0),
            flight(false, BEGIN, 20_000, 0, 0),
            flight(true, BEGIN + 1000, 20_000, -HOUR, 0),
            flight(false, BEGIN + 1000, 20_000, -HOUR, 0),
        ];
        assert_eq!(Difference::of(&flights), Err(ClockError::Contradiction));
    }

    /// A recorded conversation, split into the captures of its hosts, one of them with another
    /// clock.
    fn divided(name: &str, shift: i128) -> Vec<Capture> {
        let traces = efa_testing::workspace::traces();
        let whole = Capture::load(&traces.join(name)).unwrap();
        let shifted = |time: Duration| {
            Duration::from_nanos(u64::try_from(time.as_nanos() as i128 + shift).unwrap())
        };
        (0..whole.interfaces.len())
            .map(|interface| {
                let mut part = whole.clone();
                part.frames.retain(|frame| frame.interface == interface);
                if interface > 0 {
                    for frame in &mut part.frames {
                        frame.time = shifted(frame.time);
                    }
                }
                part
            })
            .collect()
    }

    #[test]
    fn captures_are_aligned_by_their_packets() {
        for name in ["eager-tagged.pcapng", "long-cts.pcapng", "ping-pong.pcapng"] {
            for shift in [HOUR, -HOUR, 500_000, 0] {
                let captures = divided(name, shift);
                let found = align(&captures).unwrap();
                assert_eq!(found[0], Difference::NONE);
                let uncertainty = found[1].uncertainty.unwrap();
                let wrong = (found[1].ahead() - shift).unsigned_abs();
                assert!(wrong <= uncertainty.as_nanos(), "{name}: {}", found[1]);
                assert!(found[1].packets >= 2, "{name}: {}", found[1]);
                for flight in flights(&captures[0], &captures[1]) {
                    assert!(is_forward(&flight, &found[1], 0), "{name}: {flight:?}");
                }
                // Handshakes and answers go both ways, within less than this.
                assert!(
                    uncertainty < Duration::from_millis(100),
                    "{name}: {}",
                    found[1]
                );
            }
        }
    }

    #[test]
    fn captures_without_a_common_packet_are_named() {
        let mut captures = divided("eager-tagged.pcapng", 0);
        captures[1].frames.clear();
        assert_eq!(align(&captures), Err((1, ClockError::NothingInCommon)));
    }
}
