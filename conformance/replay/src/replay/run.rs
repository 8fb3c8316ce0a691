//! Replaying one side of a trace from beginning to end.

use std::collections::BTreeMap;

use efa_core::address::RawAddress;
use efa_core::nic::{Nic, QueuePair, Status};
use efa_core::rules::{self, Severity};
use efa_play::application::RequestError;
use efa_play::application::checked::ExitError;
use efa_play::operation::EndpointIndex;
use efa_play::runner::{self, OperationTracker};
use efa_play::trace::Trace;

use super::addresses::endpoint_addresses;
use super::backend::{Backend, BackendError, arm_faults};
use super::opener::Opener;
use super::peer::Peer;
use super::script::Script;
use super::session::{PacketHook, Replay, Strictness};
use super::verdict::Verdict;
use super::{headerless, rdma, requirements};
use crate::compare::{Bindings, Finding};

/// Replays `trace` with the result of `opener` as endpoint `dut`, with a `hook` between the
/// endpoint under test and the scripted ones.
pub fn replay<'t, B: Backend>(
    trace: &'t Trace,
    dut: EndpointIndex,
    strictness: Strictness,
    backend: &'t mut B,
    opener: &mut dyn Opener<B>,
    hook: Option<&'t mut PacketHook<'t>>,
) -> Result<Verdict, BackendError> {
    let mut replay = match open(trace, dut, strictness, backend, opener, hook) {
        Ok(Ok(replay)) => replay,
        Ok(Err(verdict)) => return Ok(verdict),
        Err(BackendError::Subject(RequestError::Unsupported(text))) => {
            return Ok(Verdict::without(text));
        }
        Err(error @ BackendError::Subject(_)) => {
            return Ok(Verdict {
                never_opened: true,
                ..Verdict::of_error(error)
            });
        }
        Err(error) => return Err(error),
    };
    // If it stopped early, the verdict has the reason.
    let _ = runner::run(&mut replay);
    Ok(conclude(replay))
}

/// Opens all endpoints, and introduces them to each other. Returns a verdict if the trace cannot be
/// replayed.
fn open<'t, B: Backend>(
    trace: &'t Trace,
    dut: EndpointIndex,
    strictness: Strictness,
    backend: &'t mut B,
    opener: &mut dyn Opener<B>,
    hook: Option<&'t mut PacketHook<'t>>,
) -> Result<Result<Replay<'t, B>, Verdict>, BackendError> {
    let recorded = match endpoint_addresses(trace) {
        Ok(recorded) => recorded,
        Err(error) => return Ok(Err(Verdict::of_error(error))),
    };
    backend.reset();
    let mut subject = opener.open(backend, &trace.scenario.endpoints[dut])?;
    let address = subject.address()?;
    let address = address
        .first_chunk()
        .map(RawAddress::from_bytes)
        .ok_or_else(|| RequestError::Refused("it has no raw address".into()))?;
    let mut peers = Vec::new();
    let mut actual = Vec::new();
    for (at, endpoint) in trace.scenario.endpoints.iter().enumerate() {
        if at == dut {
            actual.push(address);
            continue;
        }
        let nic = backend.open(endpoint)?;
        if let Some(lack) = requirements::device_lacks(trace, nic.queue_pair().attributes()) {
            return Ok(Err(Verdict::without(lack)));
        }
        actual.push(nic.address());
        let mut peer = Peer::new(at, nic, address)?;
        if headerless::is_zero_copy_receiver(trace, at) {
            let beside = backend.open_beside(peer.nic())?;
            peer.takes_headerless_on(beside)?;
        }
        peers.push(peer);
    }
    if let Some(lack) = arm_faults(backend, &trace.scenario, &actual)? {
        return Ok(Err(Verdict::without(lack)));
    }
    for &known in &trace.scenario.endpoints[dut].address_vector {
        subject.insert(known, &actual[known].to_bytes())?;
    }
    // Stock libfabric posts its receive buffers when it first makes progress.
    subject.poll()?;
    let owner = |place: usize| {
        let frame = &trace.capture.frames[place];
        let is_it = |address: &RawAddress| address.gid == frame.destination;
        recorded.iter().position(is_it).unwrap_or(dut)
    };
    let rdma = rdma::Requests::of(trace, dut, backend.sees_rdma(), owner);
    let refused = trace.refused.iter();
    let foreseen = refused
        .map(|(place, status)| {
            (
                trace.endpoint_of[trace.capture.frames[*place].interface],
                *status,
            )
        })
        .filter(|(at, status)| *at != dut && *status != Status::RemoteRnr)
        .collect();
    Ok(Ok(Replay {
        trace,
        dut,
        strictness,
        backend,
        subject,
        peers,
        script: Script::new(trace, dut),
        step: 0,
        rdma,
        bindings: Bindings::new(recorded.clone(), actual.clone(), &trace.scenario.policies),
        actual,
        announced: None,
        handshakes: BTreeMap::new(),
        hook,
        tracker: OperationTracker::new(&trace.scenario),
        is_over: false,
        failed: Vec::new(),
        foreseen,
        verdict: Verdict::default(),
    }))
}

/// Ends the endpoint under test, and adds what its end and the devices show.
fn conclude<B: Backend>(mut replay: Replay<'_, B>) -> Verdict {
    match replay.subject.end() {
        Ok(()) => {}
        Err(ExitError::Lingers(text)) => replay.verdict.add([Finding::plain(Severity::Note, text)]),
        Err(ExitError::Failed(text)) => {
            // Missing features do not excuse this.
            replay.verdict.unsupported = None;
            replay.verdict.add([Finding::of(&rules::OUTCOME, text)]);
        }
    }
    let mut said = vec![(replay.dut, replay.subject.take_device_errors())];
    let peers = replay.peers.iter_mut();
    said.extend(peers.map(|peer| (peer.endpoint(), peer.take_device_errors())));
    for (at, errors) in said {
        let name = &replay.trace.scenario.endpoints[at].name;
        let lines = errors.chunk_by(|one, next| one == next).map(|same| {
            let times = match same.len() {
                1 => String::new(),
                count => format!(", {count} times"),
            };
            format!(
                "the device of endpoint `{name}` reported{times}: {}",
                same[0]
            )
        });
        replay.verdict.device_errors.extend(lines);
    }
    replay.verdict
}
