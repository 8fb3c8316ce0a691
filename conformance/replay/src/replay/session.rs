//! The state of a replay, and how what goes wrong is noted.

use std::collections::BTreeMap;

use efa_core::address::RawAddress;
use efa_core::nic::Status;
use efa_core::rules;
use efa_core::wire::ExtraFeatures;
use efa_play::application::Token;
use efa_play::application::subject::Subject;
use efa_play::operation::EndpointIndex;
use efa_play::runner::Ledger;
use efa_play::trace::Trace;

use super::backend::Backend;
use super::exchange::{Exchanged, WireEvent};
use super::peer::Peer;
use super::rdma;
use super::script::Script;
use super::verdict::Verdict;
use crate::compare::{Bindings, Finding};

/// How strictly the packets of the endpoint under test are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strictness {
    /// Field by field.
    Fields,
    /// Not: the network reorders, so packets may differ; what the application sees may not.
    Outcome,
    /// Not: a request failed, and operations may fail or stay open. What completes has to be right.
    Survival {
        /// The endpoint under test knows of the failure: if an operation stays open, it has to
        /// tell.
        is_told: bool,
    },
}

/// Replaces a packet of the endpoint under test before it is looked at: what the hook returns
/// arrives instead. Tests of the suite make right implementations wrong in this way.
pub type PacketHook<'h> = dyn FnMut(Vec<u8>) -> Vec<Vec<u8>> + 'h;

pub(super) struct Replay<'t, B: Backend> {
    pub(super) trace: &'t Trace,
    pub(super) dut: EndpointIndex,
    pub(super) strictness: Strictness,
    pub(super) backend: &'t mut B,
    pub(super) subject: Box<dyn Subject>,
    pub(super) peers: Vec<Peer<B::Nic>>,
    pub(super) script: Script<'t>,
    /// The step that is being played.
    pub(super) step: usize,
    pub(super) bindings: Bindings,
    /// Where the endpoints are.
    pub(super) actual: Vec<RawAddress>,
    /// What the endpoint under test has announced.
    pub(super) announced: Option<ExtraFeatures>,
    /// What scripted endpoints have announced.
    pub(super) greeted: BTreeMap<EndpointIndex, ExtraFeatures>,
    pub(super) rdma: rdma::Requests,
    pub(super) hook: Option<&'t mut PacketHook<'t>>,
    pub(super) ledger: Ledger<'t>,
    /// The last step has been played.
    pub(super) is_over: bool,
    /// The operations that failed, where that is allowed; `None` stands for what belongs to no one
    /// operation.
    pub(super) failed: Vec<Option<Token>>,
    /// What is refused of scripted endpoints' packets, as in the recording.
    pub(super) foreseen: Vec<(EndpointIndex, Status)>,
    pub(super) verdict: Verdict,
}

/// The replay cannot go on: what it waits for does not come, or enough went wrong.
pub(super) struct Stopped;

impl<B: Backend> Replay<'_, B> {
    /// Whether the endpoint under test runs the operation and will hear of its end.
    pub(super) fn is_own(&self, id: &str) -> bool {
        self.trace
            .scenario
            .operation(id)
            .is_some_and(|(at, operation, _)| at == self.dut && operation.completes())
    }

    /// Keeps something that passed; `place` is the recorded frame that it stands for.
    pub(super) fn note(
        &mut self,
        from: EndpointIndex,
        to: EndpointIndex,
        place: Option<usize>,
        event: WireEvent,
    ) {
        if self.strictness == Strictness::Fields {
            self.verdict.exchanged.push(Exchanged {
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

    /// Whether requests fail for good, of which an application may be told in any way.
    pub(super) fn tells_of_failures(&self) -> bool {
        let mut refused = self.trace.refused.values();
        refused.any(|status| *status != Status::RemoteRnr)
    }

    /// Something that the application, or nobody, should see.
    pub(super) fn problem(&mut self, text: String) -> Result<(), Stopped> {
        self.add([Finding::of(&rules::OUTCOME, text)])
    }

    pub(super) fn survives(&self) -> bool {
        matches!(self.strictness, Strictness::Survival { .. })
    }

    /// What must not happen even if a request failed.
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
        // In a network that reorders, fields depend on what arrived first.
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
