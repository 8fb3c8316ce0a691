//! Makes a checked scenario from the keys of a file.

use std::collections::BTreeMap;
use std::path::Path;

use efa_core::rules::RULES;
use serde::Deserialize;
use toml::Spanned;

use super::contents::Scenario;
use super::endpoint::{self, Software};
use super::error::{Result, Source, read, suggest};
use super::fault::fault;
use super::keys::RawTable;
use super::packet::packet;
use super::policy::policy;
use super::step::{Action, Operation};
use super::steps::Steps;

/// The tables of a scenario file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    description: String,
    spec: Vec<String>,
    #[serde(default)]
    breaks: Vec<Spanned<String>>,
    endpoint: Vec<RawTable>,
    step: Vec<RawTable>,
    #[serde(default)]
    packet: Vec<Spanned<BTreeMap<Spanned<String>, toml::Value>>>,
    #[serde(default)]
    fault: Vec<Spanned<toml::Value>>,
    #[serde(default)]
    policy: Vec<RawTable>,
}

impl Scenario {
    /// Reads and checks a scenario.
    pub fn load(path: &Path) -> Result<Self> {
        Self::parse(path, &read(path)?)
    }

    /// Checks the text of a scenario; `path` is only used in messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let source = Source::new(path, text);
        let file: File = toml::from_str(text).map_err(|error| source.toml(&error))?;
        let name = path.file_stem().map_or_else(
            || "unnamed".into(),
            |stem| stem.to_string_lossy().into_owned(),
        );
        let endpoints = endpoint::endpoints(&source, file.endpoint)?;
        let mut reader = Steps::new(&source, &endpoints);
        let mut steps = Vec::new();
        let mut starts = Vec::new();
        for raw in file.step {
            starts.push(raw.span().start);
            steps.push(reader.step(raw)?);
        }
        let packets = file
            .packet
            .into_iter()
            .map(|raw| packet(&source, &endpoints, &starts, raw))
            .collect::<Result<Vec<_>>>()?;
        if let Some(scripted) = endpoints.iter().find(|e| e.software == Software::Script)
            && packets.is_empty()
        {
            return Err(source.error(
                1,
                "software",
                format!("`{}` does nothing: there are no packets", scripted.name),
                "add [[packet]] tables behind the steps during which they are sent",
            ));
        }
        let breaks = file
            .breaks
            .iter()
            .map(|given| rule(&source, given))
            .collect::<Result<Vec<_>>>()?;
        let faults = file
            .fault
            .into_iter()
            .map(|raw| fault(&source, &endpoints, raw))
            .collect::<Result<_>>()?;
        let policies = file
            .policy
            .into_iter()
            .map(|raw| policy(&source, raw))
            .collect::<Result<_>>()?;
        let scenario = Scenario {
            name,
            path: path.to_owned(),
            description: file.description.trim().to_owned(),
            spec: file.spec,
            endpoints,
            steps,
            packets,
            breaks,
            faults,
            policies,
        };
        check_messages(&source, &scenario)?;
        Ok(scenario)
    }

    /// Whether a file looks like a scenario whose packets are written by hand.
    pub fn has_packets(path: &Path) -> bool {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.trim() == "[[packet]]")
    }
}

fn rule(source: &Source<'_>, given: &Spanned<String>) -> Result<&'static str> {
    let id = given.as_ref();
    let found = RULES.iter().find(|rule| rule.id == id);
    found.map(|rule| rule.id).ok_or_else(|| {
        source.error(
            source.line(given.span().start),
            "breaks",
            format!("unknown rule `{id}`"),
            suggest(id, RULES.iter().map(|rule| rule.id)),
        )
    })
}

/// Expected messages must exist and provide bytes, and a receive must state what it expects.
fn check_messages(source: &Source<'_>, scenario: &Scenario) -> Result<()> {
    for step in &scenario.steps {
        let (message, required) = match &step.action {
            Action::Start {
                operation, expect, ..
            } => (
                expect.message.as_ref(),
                matches!(operation, Operation::Recv { .. } | Operation::Read { .. })
                    && expect.error.is_none(),
            ),
            Action::Check { message, .. } => (Some(message), true),
            Action::Wait { .. } | Action::Settle { .. } => continue,
        };
        let Some(message) = message else {
            if required {
                return Err(source.error(
                    step.line,
                    "expect",
                    "the step does not say what must arrive",
                    "add `expect = { message = \"ID\" }` with the id of the step that sends it",
                ));
            }
            continue;
        };
        let senders = scenario.steps.iter().filter_map(|s| match &s.action {
            Action::Start { id, operation, .. } if operation.payload().is_some() => {
                Some(id.as_str())
            }
            _ => None,
        });
        if !senders.clone().any(|id| id == message) {
            return Err(source.error(
                step.line,
                "message",
                format!("no step sends `{message}`"),
                suggest(message, senders),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
