//! The state of a replay, and the reporting of problems.

use std::collections::BTreeMap;

use efa_core::address::RawAddress;
use efa_core::nic::Status;
use efa_core::rules;
use efa_core::wire::ExtraFeatures;
use efa_play::application::Token;
use efa_play::application::checked::CheckedApplication;
use efa_play::operation::EndpointIndex;
use efa_play::runner::OperationTracker;
use efa_play::trace::Trace;

use super::backend::Backend;
use super::exchange::{ExchangedEvent, WireEvent};
use super::peer::Peer;
use super::rdma;
use super::script::Script;
use super::verdict::Verdict;
use crate::compare::{Bindings, Finding};

/// How strictly the packets of the endpoint under test are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strictness {
    /// Packets are compared field by field.
    Fields,
    /// Packets are not compared, because the network reorders. The application's results must be
    /// right.
    Outcome,
    /// Packets are not compared: a request failed, and operations may fail or remain incomplete.
    /// The results of completed ones must be right.
    Survival {
        /// The endpoint under test can detect the failure: if an operation remains incomplete, it
        /// must report this.
        is_told: bool,
    },
}

/// Replaces a packet of the endpoint under test before it is checked. Tests of the suite use it to
/// make correct implementations incorrect.
pub type PacketHook<'h> = dyn FnMut(Vec<u8>) -> Vec<Vec<u8>> + 'h;

pub(super) struct Replay<'t, B: Backend> {
    pub(super) trace: &'t Trace,
    pub(super) dut: EndpointIndex,
    pub(super) strictness: Strictness,
    pub(super) backend: &'t mut B,
    pub(super) subject: Box<dyn CheckedApplication>,
    pub(super) peers: Vec<Peer<B::Nic>>,
    pub(super) script: Script<'t>,
    pub(super) step: usize,
    pub(super) bindings: Bindings,
    /// The addresses of the endpoints.
    pub(super) actual: Vec<RawAddress>,
    /// The features that the endpoint under test has announced.
    pub(super) announced: Option<ExtraFeatures>,
    /// The features that scripted endpoints have announced.
    pub(super) handshakes: BTreeMap<EndpointIndex, ExtraFeatures>,
    pub(super) rdma: rdma::Requests,
    pub(super) hook: Option<&'t mut PacketHook<'t>>,
    pub(super) tracker: OperationTracker<'t>,
    /// Whether the last step has been executed.
    pub(super) is_over: bool,
    /// The operations that failed, where that is allowed; `None` for failures without an operation.
    pub(super) failed: Vec<Option<Token>>,
    /// Refusals of scripted endpoints' packets that are in the recording.
    pub(super) foreseen: Vec<(EndpointIndex, Status)>,
    pub(super) verdict: Verdict,
}

/// The replay cannot continue: an event is missing, or there are enough problems.
pub(super) struct Stopped;

impl<B: Backend> Replay<'_, B> {
    /// Whether the endpoint under test executes the operation and gets its completion.
    pub(super) fn is_own(&self, id: &str) -> bool {
        self.trace
            .scenario
            .operation(id)
            .is_some_and(|(at, operation, _)| at == self.dut && operation.completes())
    }

    /// Adds a packet or request to the exchange; `place` is the index of the corresponding recorded
    /// frame.
    pub(super) fn note(
        &mut self,
        from: EndpointIndex,
        to: EndpointIndex,
        place: Option<usize>,
        event: WireEvent,
    ) {
        if self.strictness == Strictness::Fields {
            self.verdict.exchanged.push(ExchangedEvent {
                from,
                to,
                place,
                event,
            });
        }
    }

    pub(super) fn unsupported(&mut self, text: String) -> Stopped {
        self.verdict.unsupported = Some(text);
        Stopped
    }

    /// Whether requests fail permanently, which an application may detect in any way.
    pub(super) fn tells_of_failures(&self) -> bool {
        let mut refused = self.trace.refused.values();
        refused.any(|status| *status != Status::RemoteRnr)
    }

    /// Reports a result that the application must not see.
    pub(super) fn problem(&mut self, text: String) -> Result<(), Stopped> {
        self.add([Finding::of(&rules::OUTCOME, text)])
    }

    /// Reports it, after which the replay cannot continue.
    pub(super) fn stop(&mut self, text: String) -> Stopped {
        // With enough problems it stops too.
        let _ = self.problem(text);
        Stopped
    }

    pub(super) fn survives(&self) -> bool {
        matches!(self.strictness, Strictness::Survival { .. })
    }

    /// Reports a problem that is an error even if a request failed.
    pub(super) fn never(&mut self, text: String) -> Result<(), Stopped> {
        self.verdict.add([Finding::of(&rules::OUTCOME, text)]);
        match self.verdict.is_enough() {
            true => Err(Stopped),
            false => Ok(()),
        }
    }

    pub(super) fn add(
        &mut self,
        findings: impl IntoIterator<Item = Finding>,
    ) -> Result<(), Stopped> {
        if self.survives() {
            return Ok(());
        }
        // In a network that reorders, fields depend on the order of arrival.
        let of_fields = self.strictness == Strictness::Fields;
        let findings = findings
            .into_iter()
            .filter(|finding| of_fields || finding.field.is_empty());
        self.verdict.add(findings);
        if self.verdict.is_enough() {
            return Err(Stopped);
        }
        Ok(())
    }
}
