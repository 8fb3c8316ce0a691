//! RDMA requests of the endpoint under test, compared with the recorded ones.
//!
//! The division of an operation into requests is the implementation's choice. The bytes that are
//! read and written, and their owner, are not.

use std::collections::BTreeMap;

use efa_capture::Direction;
use efa_capture::frame::FrameKind;
use efa_core::rules::{self, Severity};
use efa_core::wire::PacketType;
use efa_core::wire::fields::Source;
use efa_play::operation::{EndpointIndex, Remote};
use efa_play::trace::Trace;

use super::backend::{Backend, RdmaSeen};
use super::exchange::WireEvent;
use super::ranges::Ranges;
use super::session::{Replay, Stopped};
use crate::compare::{Finding, iov_entry};

/// Memory of a peer: owner, key, and whether it is written.
type Memory = (EndpointIndex, u64, bool);

/// The state of the endpoint under test's RDMA requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    visible: bool,
    /// The recorded requests, with the recorded addresses.
    recorded: Vec<(EndpointIndex, Remote, u64, bool)>,
    /// The actual requests, with the actual addresses.
    seen: BTreeMap<Memory, Ranges>,
    /// Expected and received immediate data, by peer.
    immediates: BTreeMap<EndpointIndex, (Vec<u32>, Vec<u32>)>,
}

impl Requests {
    /// The recorded requests of `dut` in a trace.
    pub(super) fn of(
        trace: &Trace,
        dut: EndpointIndex,
        visible: bool,
        owner: impl Fn(usize) -> EndpointIndex,
    ) -> Self {
        let mut requests = Requests {
            visible,
            ..Requests::default()
        };
        for (place, frame) in trace.capture.frames.iter().enumerate() {
            if frame.direction != Some(Direction::Outbound)
                || trace.endpoint_of[frame.interface] != dut
                || frame.header.retransmission
            {
                continue;
            }
            let (rdma, writes) = match frame.header.kind {
                FrameKind::RdmaReadRequest(rdma) => (rdma, false),
                FrameKind::RdmaWrite(rdma) => (rdma, true),
                _ => continue,
            };
            if let Some(immediate) = frame.header.immediate {
                let (expected, _) = requests.immediates.entry(owner(place)).or_default();
                expected.push(immediate);
            }
            if writes && rdma.offset > 0 {
                continue;
            }
            let remote = Remote {
                address: rdma.remote.address,
                key: rdma.remote.key.into(),
            };
            let length = rdma.total_length.into();
            requests
                .recorded
                .push((owner(place), remote, length, writes));
        }
        requests
    }

    /// Whether the recorded endpoint wrote to memory of `peer`.
    pub(super) fn writes_to(&self, peer: EndpointIndex) -> bool {
        let mut recorded = self.recorded.iter();
        recorded.any(|(owner, _, _, writes)| *owner == peer && *writes)
    }

    /// Whether the endpoint under test may have used RDMA instead of the recorded packets.
    pub(super) fn may_replace_packets(&self) -> bool {
        !self.visible || !self.seen.is_empty()
    }

    /// Whether the recorded endpoint used RDMA and the one under test has not yet.
    pub(super) fn expects_more(&self) -> bool {
        !self.recorded.is_empty() && self.seen.is_empty()
    }
}

const READ: Option<Source> = Some(Source::Spec {
    section: "4.1",
    table: None,
});
const WRITE: Option<Source> = Some(Source::Spec {
    section: "4.6",
    table: None,
});

impl<B: Backend> Replay<'_, B> {
    /// Notes the RDMA requests of the endpoint under test.
    pub(super) fn watch_rdma(&mut self) -> Result<(), Stopped> {
        for RdmaSeen {
            gid,
            remote,
            length,
            writes,
        } in self.backend.rdma_requests(self.actual[self.dut].gid)
        {
            let owner = self.actual.iter().position(|address| address.gid == gid);
            let Some(owner) = owner else { continue };
            self.note(self.dut, owner, None, WireEvent::DutRdma { writes, length });
            let seen = self
                .rdma
                .seen
                .entry((owner, remote.key, writes))
                .or_default();
            let again = seen.insert(remote.address..remote.address.saturating_add(length));
            if again > 0 {
                let what = if writes { "written" } else { "read" };
                let mut finding = Finding::plain(
                    Severity::Note,
                    format!("{again} bytes at {:#x} are {what} again", remote.address),
                );
                finding.source = if writes { WRITE } else { READ };
                self.add([finding])?;
            }
        }
        Ok(())
    }

    /// Notes an immediate that arrived at the scripted endpoint `at`.
    pub(super) fn take_immediate(&mut self, at: EndpointIndex, immediate: u32) {
        let (_, arrived) = self.rdma.immediates.entry(at).or_default();
        arrived.push(immediate);
    }

    /// Checks an EOR, which confirms that the data of the request was read.
    pub(super) fn check_eor(
        &mut self,
        packet_type: Option<PacketType>,
        peer: EndpointIndex,
        place: usize,
    ) -> Result<(), Stopped> {
        if packet_type != Some(PacketType::Eor) || !self.backend.sees_rdma() {
            return Ok(());
        }
        self.watch_rdma()?;
        let Some(operation) = self.script.operations().operation(place) else {
            return Ok(());
        };
        let packets = self.script.operations().get(operation).packets.clone();
        let Some(&request) = packets.first() else {
            return Ok(());
        };
        let request = &self.trace.capture.frames[request].payload;
        let mut offered = 0;
        while let Some(entry) = iov_entry(request, "read_iov", Some(offered)) {
            offered += 1;
            let recorded = self.rdma.recorded.clone();
            for (owner, remote, length, _) in recorded {
                let inside = remote.key == entry.remote.key
                    && (entry.remote.address..entry.remote.address + entry.length)
                        .contains(&remote.address);
                if owner == peer && inside && !self.is_seen(owner, remote, length, false) {
                    let mut finding = Finding::of(
                        &rules::EOR_EARLY,
                        format!(
                            "EOR says that {length} bytes were read of which some were not \
                             (recorded {:#x})",
                            remote.address
                        ),
                    );
                    finding.source = READ;
                    self.add([finding])?;
                }
            }
        }
        Ok(())
    }

    fn is_seen(&self, owner: EndpointIndex, recorded: Remote, length: u64, writes: bool) -> bool {
        let Some(actual) = self.bindings.locate(owner, recorded) else {
            return false;
        };
        let seen = self.rdma.seen.get(&(owner, actual.key, writes));
        let range = actual.address..actual.address + length;
        seen.is_some_and(|seen| seen.contains(&range)) || length == 0
    }

    /// At the end, checks that the recorded bytes were read and written.
    pub(super) fn check_rdma(&mut self) -> Result<(), Stopped> {
        for (at, (mut expected, mut arrived)) in std::mem::take(&mut self.rdma.immediates) {
            expected.sort_unstable();
            arrived.sort_unstable();
            if expected != arrived {
                let name = &self.trace.scenario.endpoints[at].name;
                let mut finding = Finding::of(
                    &rules::RDMA_AS_ASKED,
                    format!(
                        "immediate data at `{name}`: expected {expected:#x?}, actual {arrived:#x?}"
                    ),
                );
                finding.source = WRITE;
                self.add([finding])?;
            }
        }
        if !self.backend.sees_rdma() {
            return Ok(());
        }
        self.watch_rdma()?;
        let mut allowed: BTreeMap<Memory, Ranges> = BTreeMap::new();
        for (owner, remote, length, writes) in self.rdma.recorded.clone() {
            if let Some(actual) = self.bindings.locate(owner, remote) {
                let ranges = allowed.entry((owner, actual.key, writes)).or_default();
                ranges.insert(actual.address..actual.address + length);
            }
            if !self.is_seen(owner, remote, length, writes) {
                let what = if writes { "written" } else { "read" };
                let mut finding = Finding::of(
                    &rules::RDMA_AS_ASKED,
                    format!(
                        "{length} bytes (recorded at {:#x}) of memory of `{}` were not {what} by \
                         the device of the endpoint under test",
                        remote.address, self.trace.scenario.endpoints[owner].name
                    ),
                );
                finding.source = if writes { WRITE } else { READ };
                self.add([finding])?;
            }
        }
        for ((owner, key, writes), seen) in self.rdma.seen.clone() {
            let allowed = allowed.remove(&(owner, key, writes)).unwrap_or_default();
            if let Some(range) = seen.first_outside(&allowed) {
                let what = if writes { "written" } else { "read" };
                let mut finding = Finding::of(
                    &rules::RDMA_AS_ASKED,
                    format!(
                        "{} bytes at {:#x} of memory of `{}` were {what}, for which nothing asks",
                        range.end - range.start,
                        range.start,
                        self.trace.scenario.endpoints[owner].name
                    ),
                );
                finding.source = if writes { WRITE } else { READ };
                self.add([finding])?;
            }
        }
        Ok(())
    }
}
