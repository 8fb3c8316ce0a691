//! Who sends what after what, taken from a trace.

use std::collections::{BTreeMap, HashMap};

use efa_core::address::{Qkey, RawAddress};
use efa_core::wire::fields::fields_of;
use efa_emu::capture::Direction;
use efa_emu::frame::Kind;

use super::Strictness;
use crate::scenario::EndpointIndex;
use crate::trace::{CapturedPacket, Trace};

/// The addresses of a trace's endpoints, as its frames show them.
#[derive(Clone, Debug)]
pub struct Cast {
    /// In the order of the scenario.
    pub addresses: Vec<RawAddress>,
}

impl Cast {
    /// Finds each endpoint's address and checks that all frames agree on them.
    pub fn of(trace: &Trace) -> Result<Self, String> {
        let count = trace.scenario.endpoints.len();
        let mut addresses: Vec<Option<RawAddress>> = vec![None; count];
        let mut qkeys: Vec<Option<(u64, Qkey)>> = vec![None; count];
        for place in sent_requests(trace) {
            let frame = &trace.capture.frames[place];
            let endpoint = trace.endpoint_of[frame.interface];
            let name = &trace.scenario.endpoints[endpoint].name;
            let seen = RawAddress {
                gid: frame.source,
                qpn: frame.header.source_qpn,
                qkey: Qkey(0),
            };
            match addresses[endpoint] {
                None => addresses[endpoint] = Some(seen),
                Some(known) if known == seen => {}
                Some(known) => {
                    return Err(format!(
                        "packet {}, transport header: sender [{}]:{}, but endpoint `{name}` is \
                         [{}]:{}",
                        frame.number, seen.gid, seen.qpn, known.gid, known.qpn
                    ));
                }
            }
        }
        for place in sent_requests(trace) {
            let frame = &trace.capture.frames[place];
            let receiver = addresses.iter().position(|known| {
                known.is_some_and(|known| {
                    known.gid == frame.destination && known.qpn == frame.header.destination_qpn
                })
            });
            let Some(receiver) = receiver else {
                // Somebody who never answered: nothing to compare with.
                continue;
            };
            match qkeys[receiver] {
                None => qkeys[receiver] = Some((frame.number, frame.header.qkey)),
                Some((_, known)) if known == frame.header.qkey => {}
                Some((first, known)) => {
                    return Err(format!(
                        "packet {}, transport header field `Q-key`: expected {:#x} as in packet \
                         {first}, actual {:#x}",
                        frame.number, known.0, frame.header.qkey.0
                    ));
                }
            }
        }
        let addresses = addresses
            .into_iter()
            .zip(qkeys)
            .enumerate()
            .map(|(at, (address, qkey))| {
                let name = &trace.scenario.endpoints[at].name;
                let address = address.ok_or_else(|| format!("endpoint `{name}` sent nothing"))?;
                let (_, qkey) =
                    qkey.ok_or_else(|| format!("nothing was sent to endpoint `{name}`"))?;
                Ok(RawAddress { qkey, ..address })
            })
            .collect::<Result<_, String>>()?;
        Ok(Cast { addresses })
    }
}

/// Places of the sends as they left their hosts, without repetitions below the protocol.
pub fn sent_requests(trace: &Trace) -> impl Iterator<Item = usize> + '_ {
    let frames = trace.capture.frames.iter().enumerate();
    frames
        .filter(|(_, frame)| {
            frame.direction == Some(Direction::Outbound)
                && matches!(frame.header.kind, Kind::Send)
                && !frame.header.retransmission
        })
        .map(|(place, _)| place)
}

/// The same packet at its sender and at its receiver has the same key.
pub fn packet_key(frame: &CapturedPacket) -> (efa_core::address::Gid, u16, u32) {
    (
        frame.source,
        frame.header.source_qpn.0,
        frame.header.sequence,
    )
}

/// What a scripted endpoint does: it sends a packet, or reads memory.
struct Entry {
    /// The frame of the packet or of the request to read.
    place: usize,
    /// The step during which it was sent.
    step: usize,
    /// Packets of the endpoint under test that its sender had received before.
    needs: Vec<usize>,
}

/// A packet that the endpoint under test is expected to send.
struct Expected {
    place: usize,
    step: usize,
    receiver: EndpointIndex,
    matched: bool,
}

/// What is still to happen in a replay.
pub struct Script<'t> {
    trace: &'t Trace,
    expected: Vec<Expected>,
    /// By frame place: index into `expected`.
    by_place: HashMap<usize, usize>,
    peers: BTreeMap<EndpointIndex, (Vec<Entry>, usize)>,
    last_matched: Option<u64>,
}

impl<'t> Script<'t> {
    /// The script for `dut` under test.
    pub fn new(trace: &'t Trace, dut: EndpointIndex) -> Self {
        let frames = &trace.capture.frames;
        let mut sender_copy = HashMap::new();
        for place in sent_requests(trace) {
            sender_copy.insert(packet_key(&frames[place]), place);
        }
        let endpoints: HashMap<_, EndpointIndex> = sent_requests(trace)
            .map(|place| &frames[place])
            .map(|frame| {
                let node = (frame.source, frame.header.source_qpn);
                (node, trace.endpoint_of[frame.interface])
            })
            .collect();
        let receiver_of = |frame: &CapturedPacket| {
            let node = (frame.destination, frame.header.destination_qpn);
            endpoints.get(&node).copied()
        };
        let mut expected = Vec::new();
        let mut peers: BTreeMap<EndpointIndex, (Vec<Entry>, usize)> = BTreeMap::new();
        let mut received: BTreeMap<EndpointIndex, Vec<usize>> = BTreeMap::new();
        for (place, frame) in frames.iter().enumerate() {
            if frame.header.retransmission {
                continue;
            }
            let at = trace.endpoint_of[frame.interface];
            let step = trace.step_of[place];
            let is_read = matches!(frame.header.kind, Kind::RdmaReadRequest(_));
            let is_played = matches!(frame.header.kind, Kind::Send) || (is_read && at != dut);
            if !is_played {
                continue;
            }
            match frame.direction {
                Some(Direction::Outbound) if at == dut => {
                    let receiver = receiver_of(frame).unwrap_or(dut);
                    expected.push(Expected {
                        place,
                        step,
                        receiver,
                        matched: false,
                    });
                }
                Some(Direction::Outbound) => {
                    if receiver_of(frame) != Some(dut) {
                        continue;
                    }
                    let needs = received.remove(&at).unwrap_or_default();
                    let entry = Entry { place, step, needs };
                    peers.entry(at).or_default().0.push(entry);
                }
                Some(Direction::Inbound) if at != dut => {
                    if let Some(&sent) = sender_copy.get(&packet_key(frame))
                        && trace.endpoint_of[frames[sent].interface] == dut
                    {
                        received.entry(at).or_default().push(sent);
                    }
                }
                Some(Direction::Inbound) | None => {}
            }
        }
        let by_place = expected
            .iter()
            .enumerate()
            .map(|(index, expected)| (expected.place, index))
            .collect();
        Script {
            trace,
            expected,
            by_place,
            peers,
            last_matched: None,
        }
    }

    /// The recorded packet that stands for one that arrived at `receiver`: the first that names the
    /// same part of the same message. If there is none: with [`Strictness::Fields`] the one that
    /// differs in the fewest bytes, so that a single difference is reported as what it is; with
    /// [`Strictness::Outcome`] the first of the same type, since headers that are shorter or longer
    /// (a HANDSHAKE came late) divide a message otherwise.
    pub fn expect(
        &mut self,
        receiver: EndpointIndex,
        bytes: &[u8],
        strictness: Strictness,
    ) -> Option<usize> {
        let frames = &self.trace.capture.frames;
        let open = || {
            let places = self.expected.iter().enumerate();
            places.filter(|(_, expected)| !expected.matched && expected.receiver == receiver)
        };
        let recorded = |expected: &Expected| &frames[expected.place].payload[..];
        let arrived = identity(bytes);
        let same = open().find(|(_, expected)| identity(recorded(expected)) == arrived);
        let chosen = same.or_else(|| match strictness {
            Strictness::Fields => {
                open().min_by_key(|(_, expected)| differing_bytes(recorded(expected), bytes))
            }
            Strictness::Outcome => {
                open().find(|(_, expected)| recorded(expected).first() == bytes.first())
            }
        });
        let (index, _) = chosen?;
        let chosen = &mut self.expected[index];
        chosen.matched = true;
        self.last_matched = Some(frames[chosen.place].number);
        Some(chosen.place)
    }

    /// The number of the packet that was matched last.
    pub fn last_matched(&self) -> Option<u64> {
        self.last_matched
    }

    /// The next packet that the scripted endpoint `at` sends, if it may be sent by now.
    pub fn due(&self, at: EndpointIndex, step: usize) -> Option<usize> {
        let (entries, next) = self.peers.get(&at)?;
        let entry = entries.get(*next)?;
        let arrived = |place: &usize| {
            self.by_place
                .get(place)
                .is_none_or(|&index| self.expected[index].matched)
        };
        (entry.step <= step && entry.needs.iter().all(arrived)).then_some(entry.place)
    }

    /// The packet that was due was sent.
    pub fn sent(&mut self, at: EndpointIndex) {
        if let Some((_, next)) = self.peers.get_mut(&at) {
            *next += 1;
        }
    }

    /// Whether everything up to `step` has happened.
    pub fn is_done(&self, step: usize) -> bool {
        self.missing(step).is_none()
            && self
                .peers
                .values()
                .all(|(entries, next)| entries.get(*next).is_none_or(|entry| entry.step > step))
    }

    /// The first packet up to `step` that the endpoint under test has not sent.
    pub fn missing(&self, step: usize) -> Option<usize> {
        self.expected
            .iter()
            .find(|expected| !expected.matched && expected.step <= step)
            .map(|expected| expected.place)
    }
}

/// What tells a packet of the endpoint under test from its others: its type, its message and its
/// place in the message. Ids that the endpoint chooses are not part of it.
fn identity(bytes: &[u8]) -> (Option<u8>, Option<u64>, Option<u64>) {
    let value = |name: &str| {
        fields_of(bytes)?
            .find(|field| field.descriptor.name == name)?
            .value
            .as_u64()
    };
    (bytes.first().copied(), value("msg_id"), value("seg_offset"))
}

/// In how many bytes two packets differ, as far as headers reach.
fn differing_bytes(a: &[u8], b: &[u8]) -> usize {
    const HEADERS: usize = 256;
    let differing = a.iter().zip(b).take(HEADERS).filter(|(a, b)| a != b);
    differing.count() + a.len().abs_diff(b.len())
}

/// The data that RDMA reads fetched from memory of a trace's endpoint: the read that `request` asks
/// for, if it is `Some`, otherwise whatever was fetched of `length` bytes at `address`.
pub fn fetched(
    trace: &Trace,
    owner: EndpointIndex,
    request: Option<&CapturedPacket>,
    address: u64,
    length: usize,
) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for frame in &trace.capture.frames {
        let Kind::RdmaReadResponse(rdma) = frame.header.kind else {
            continue;
        };
        let is_sent = frame.direction == Some(Direction::Outbound);
        if !is_sent || trace.endpoint_of[frame.interface] != owner {
            continue;
        }
        if let Some(request) = request
            && (frame.header.sequence != request.header.sequence
                || frame.destination != request.source
                || frame.header.destination_qpn != request.header.source_qpn)
        {
            continue;
        }
        let start = rdma.remote.address.wrapping_add(rdma.offset.into());
        let offset = start.checked_sub(address).map(|offset| offset as usize);
        let place =
            offset.and_then(|offset| bytes.get_mut(offset..)?.get_mut(..frame.payload.len()));
        if let Some(place) = place {
            place.copy_from_slice(&frame.payload);
        }
    }
    bytes
}
