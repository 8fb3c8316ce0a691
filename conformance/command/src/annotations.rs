//! Findings as annotations of CI systems: GitHub's workflow commands, GitLab's Code Quality, SARIF.
//!
//! Captures have no lines. Where a format requires one, it is the number of the packet.

use std::collections::BTreeSet;

use efa_check::check::Finding;
use efa_core::rules::{Rule, Severity};
use serde::Serialize;

/// The readers of annotations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    /// Workflow commands of GitHub Actions, one on each line.
    Github,
    /// A Code Quality report of GitLab.
    Gitlab,
    /// SARIF 2.1.0, which code scanning of GitHub and others read.
    Sarif,
}

/// A capture and its findings.
pub(crate) struct AnnotatedCapture {
    pub(crate) capture: String,
    pub(crate) findings: Vec<Finding>,
}

/// The findings of captures in a format, all in one document.
pub(crate) fn annotate(
    format: Format,
    captures: &[AnnotatedCapture],
) -> serde_json::Result<String> {
    match format {
        Format::Github => Ok(github(captures)),
        Format::Gitlab => serde_json::to_string_pretty(&gitlab(captures)),
        Format::Sarif => serde_json::to_string_pretty(&sarif(captures)),
    }
}

/// Calls `make` with each finding and the path of its capture.
fn each<T>(captures: &[AnnotatedCapture], make: impl Fn(&str, &Finding) -> T) -> Vec<T> {
    let findings = captures.iter().flat_map(|annotated| {
        let findings = annotated.findings.iter();
        findings.map(|finding| (annotated.capture.as_str(), finding))
    });
    findings
        .map(|(path, finding)| make(path, finding))
        .collect()
}

fn headline(finding: &Finding) -> String {
    format!(
        "packet {} ({}): {}. {}",
        finding.packet, finding.kind, finding.text, finding.rule.breach
    )
}

fn github(captures: &[AnnotatedCapture]) -> String {
    let command = |path: &str, finding: &Finding| {
        let level = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "notice",
        };
        let file = github_property(path);
        let title = github_property(finding.rule.id);
        let message = github_data(&finding.explanation().to_string());
        format!("::{level} file={file},title={title}::{message}")
    };
    each(captures, command).join("\n")
}

/// Text after a workflow command, which ends with the line.
fn github_data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// A property of a workflow command.
fn github_property(text: &str) -> String {
    github_data(text).replace(':', "%3A").replace(',', "%2C")
}

/// An issue of GitLab's Code Quality report.
#[derive(Serialize)]
struct Issue {
    description: String,
    check_name: &'static str,
    fingerprint: String,
    severity: &'static str,
    location: IssueLocation,
}

#[derive(Serialize)]
struct IssueLocation {
    path: String,
    lines: IssueLines,
}

#[derive(Serialize)]
struct IssueLines {
    begin: u64,
}

fn gitlab(captures: &[AnnotatedCapture]) -> Vec<Issue> {
    let issue = |path: &str, finding: &Finding| Issue {
        description: headline(finding),
        check_name: finding.rule.id,
        fingerprint: fingerprint(path, finding),
        severity: match finding.severity {
            Severity::Error => "major",
            Severity::Warning => "minor",
            Severity::Note => "info",
        },
        location: IssueLocation {
            path: path.to_owned(),
            lines: IssueLines {
                begin: finding.packet,
            },
        },
    };
    each(captures, issue)
}

/// The identity of a finding, equal in each run over the same capture: FNV-1a, whose values do not
/// depend on the release of a library.
fn fingerprint(path: &str, finding: &Finding) -> String {
    let Finding {
        rule, packet, text, ..
    } = finding;
    let text = format!("{path}\0{}\0{packet}\0{text}", rule.id);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[derive(Serialize)]
struct Sarif {
    #[serde(rename = "$schema")]
    schema: &'static str,
    version: &'static str,
    runs: [SarifRun; 1],
}

#[derive(Serialize)]
struct SarifRun {
    tool: SarifTool,
    results: Vec<SarifResult>,
}

#[derive(Serialize)]
struct SarifTool {
    driver: SarifDriver,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SarifDriver {
    name: &'static str,
    semantic_version: &'static str,
    rules: Vec<SarifRule>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SarifRule {
    id: &'static str,
    short_description: SarifText,
    full_description: SarifText,
    help: SarifText,
    default_configuration: SarifConfiguration,
}

#[derive(Serialize)]
struct SarifText {
    text: String,
}

#[derive(Serialize)]
struct SarifConfiguration {
    level: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SarifResult {
    rule_id: &'static str,
    rule_index: usize,
    level: &'static str,
    message: SarifText,
    locations: [SarifLocation; 1],
    partial_fingerprints: SarifFingerprints,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SarifLocation {
    physical_location: SarifPhysicalLocation,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SarifPhysicalLocation {
    artifact_location: SarifArtifact,
    region: SarifRegion,
}

#[derive(Serialize)]
struct SarifArtifact {
    uri: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SarifRegion {
    start_line: u64,
}

#[derive(Serialize)]
struct SarifFingerprints {
    #[serde(rename = "finding/v1")]
    finding: String,
}

fn sarif(captures: &[AnnotatedCapture]) -> Sarif {
    let ids: BTreeSet<_> = each(captures, |_, finding| finding.rule.id)
        .into_iter()
        .collect();
    let rules: Vec<_> = ids.iter().filter_map(|id| Rule::find(id)).collect();
    let result = |path: &str, finding: &Finding| SarifResult {
        rule_id: finding.rule.id,
        rule_index: ids.range(..finding.rule.id).count(),
        level: finding.severity.name(),
        message: SarifText {
            text: finding.explanation().to_string(),
        },
        locations: [SarifLocation {
            physical_location: SarifPhysicalLocation {
                artifact_location: SarifArtifact {
                    uri: relative_uri(path),
                },
                region: SarifRegion {
                    start_line: finding.packet,
                },
            },
        }],
        partial_fingerprints: SarifFingerprints {
            finding: fingerprint(path, finding),
        },
    };
    Sarif {
        schema: "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        version: "2.1.0",
        runs: [SarifRun {
            tool: SarifTool {
                driver: SarifDriver {
                    name: "efa-conformance",
                    semantic_version: env!("CARGO_PKG_VERSION"),
                    rules: rules.iter().map(|rule| sarif_rule(rule)).collect(),
                },
            },
            results: each(captures, result),
        }],
    }
}

fn sarif_rule(rule: &Rule) -> SarifRule {
    let text = |text: &str| SarifText { text: text.into() };
    SarifRule {
        id: rule.id,
        short_description: text(rule.breach),
        full_description: text(rule.meaning),
        help: text(&format!("{} ({})", rule.statement, rule.source)),
        default_configuration: SarifConfiguration {
            level: rule.severity.name(),
        },
    }
}

/// A path as a relative reference (RFC 3986), or as an absolute path if it begins with a slash.
fn relative_uri(path: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    let escape = |byte: u8| match is_plain(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(escape).collect()
}
