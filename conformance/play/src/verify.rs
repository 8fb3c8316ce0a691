//! Compares the results of an application with its scenario.

use crate::application::Report;
use crate::operation::EndpointIndex;
use crate::scenario::{Action, Capability, ErrorName, Operation, Scenario};

/// Returns the seed of the message whose bytes an operation must deliver.
pub fn expected_seed(scenario: &Scenario, id: &str) -> Option<u64> {
    let (_, operation, expect) = scenario.operation(id)?;
    // The completion of a send, write or registration returns the operation's own bytes.
    if !operation.delivers() {
        return None;
    }
    let (_, message, _) = scenario.operation(expect.message.as_ref()?)?;
    message.payload().map(|payload| payload.seed)
}

/// Compares the completion of operation `id` with the scenario; returns a text for each difference.
pub fn completion(scenario: &Scenario, id: &str, report: &Report) -> Vec<String> {
    let mut problems = Vec::new();
    let Some((at, operation, expect)) = scenario.operation(id) else {
        return vec![format!("`{id}` is not in the scenario")];
    };
    let mut differ = |what: &str, expected: String, actual: String| {
        if expected != actual {
            problems.push(format!(
                "`{id}`: {what}: expected {expected}, actual {actual}"
            ));
        }
    };
    let name = |code: i32| {
        let known = ErrorName::ALL.iter().find(|error| error.code == code);
        known.map_or_else(|| format!("error {code}"), |error| error.name.to_owned())
    };
    let expected = expect
        .error
        .map_or("success".into(), |error| error.name.into());
    let actual = report
        .failure
        .as_ref()
        .map_or("success".into(), |failure| name(failure.code));
    let is_any = expect.error == Some(ErrorName::ANY) && report.failure.is_some();
    let as_expected = is_any || expected == actual;
    if !as_expected {
        differ("result", expected, actual);
    }
    if let (Some(overflow), Some(failure)) = (expect.overflow, &report.failure) {
        differ(
            "bytes that did not fit",
            overflow.to_string(),
            failure.overflow.to_string(),
        );
    }
    let message = expect
        .message
        .as_ref()
        .and_then(|id| scenario.operation(id));
    if let Some((sender, message, _)) = message
        && as_expected
    {
        if let Operation::Recv { length, tag, .. } = operation
            && let Operation::Send {
                payload,
                tag: sent_tag,
                data,
                ..
            } = message
        {
            if expect.error.is_none() {
                differ(
                    "length",
                    payload.length.min(*length).to_string(),
                    report.length.to_string(),
                );
            }
            if tag.is_some() && sent_tag.is_some() {
                let show = |tag: u64| format!("{tag:#x}");
                differ("tag", show(sent_tag.unwrap_or_default()), show(report.tag));
            }
            if expect.error.is_none() {
                let show =
                    |data: Option<u64>| data.map_or("none".into(), |data| format!("{data:#x}"));
                differ("completion data", show(*data), show(report.data));
            }
            if scenario.endpoints[at].has(Capability::Source) && expect.error.is_none() {
                let show = |index: Option<usize>| {
                    index.map_or("unknown".to_owned(), |index| {
                        scenario.endpoints[index].name.clone()
                    })
                };
                differ("source", show(Some(sender)), show(report.source));
            }
        }
        differ(
            "bytes",
            "those of the message".into(),
            report.difference.map_or_else(
                || "those of the message".into(),
                |difference| difference.to_string(),
            ),
        );
    }
    problems
}

/// Compares the completion data of writes that arrived at endpoint `at` with the data of the
/// scenario's writes, in any order.
pub fn written(scenario: &Scenario, at: EndpointIndex, arrived: &[u64]) -> Option<String> {
    let writes = scenario.steps.iter().filter_map(|step| match step.action {
        Action::Start {
            operation: Operation::Write { to, data, .. },
            ..
        } if to == at => data,
        _ => None,
    });
    let mut expected: Vec<u64> = writes.collect();
    let mut actual = arrived.to_vec();
    expected.sort_unstable();
    actual.sort_unstable();
    (expected != actual).then(|| {
        format!(
            "completion data of writes to `{}`: expected {expected:x?}, actual {actual:x?}",
            scenario.endpoints[at].name
        )
    })
}
