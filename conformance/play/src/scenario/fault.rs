//! Faults of a scenario: rules of the emulator about hosts that have the names of endpoints.

use efa_device_model::fault::{Action, Fault, HostName, PortSpeed};
use toml::Spanned;

use super::endpoint::EndpointSpec;
use super::error::{Result, Source, suggest};

/// Reads a rule, as the emulator does.
pub(super) fn fault(
    source: &Source<'_>,
    endpoints: &[EndpointSpec],
    raw: Spanned<toml::Value>,
) -> Result<Fault> {
    let line = source.line(raw.span().start);
    let rule: Fault = raw.into_inner().to_string().parse().map_err(|error| {
        let problem = format!("{error}");
        source.error(line, "fault", problem, "docs/faults.md describes the rules")
    })?;
    for host in hosts(&rule) {
        let name = host.to_string();
        if !endpoints.iter().any(|endpoint| endpoint.name == name) {
            let known = endpoints.iter().map(|endpoint| endpoint.name.as_str());
            let problem = format!("unknown endpoint `{name}`");
            return Err(source.error(line, "fault", problem, suggest(&name, known)));
        }
    }
    Ok(rule)
}

/// Rules as a file that the emulator reads.
pub fn file_of_faults(rules: &[Fault]) -> String {
    let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
    format!("fault = [\n{}\n]\n", rules.join(",\n"))
}

fn hosts(rule: &Fault) -> Vec<&HostName> {
    let matched = rule.when.iter();
    let mut hosts: Vec<&HostName> = matched
        .flat_map(|when| [&when.sender, &when.receiver, &when.host])
        .flatten()
        .collect();
    match &rule.then {
        Action::Cut(pair) | Action::Heal(pair) => hosts.extend(pair),
        Action::Kill(host)
        | Action::Remove(host)
        | Action::Restore(host)
        | Action::PortDown(host)
        | Action::PortUp(host) => hosts.push(host),
        Action::PortSpeed(PortSpeed { host, .. }) => hosts.push(host),
        Action::QpError(queues) | Action::CqError(queues) => hosts.push(&queues.host),
        _ => {}
    }
    hosts
}
