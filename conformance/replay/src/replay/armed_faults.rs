//! Faults over verbs: they are armed in the emulated fabric of this process, if there is one.
//!
//! All endpoints share one host there. Rules for an endpoint's host are changed to rules for the
//! endpoint's queue pair; rules that affect a whole host are not supported.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use efa_core::address::RawAddress;
use efa_device_model::fault::{Action, Fault, HostName, Match};
use efa_play::player::Launcher;
use efa_play::scenario::file_of_faults;
use efa_shm::HostConfig;

/// The reason why faults cannot be armed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArmError {
    #[error("staged faults, which need an emulated fabric")]
    NoFabric,
    #[error("staged faults of whole hosts, which need a host for each endpoint")]
    WholeHost,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("staged faults: {0}")]
    Refused(String),
}

/// Rules that are in force until this is dropped. A separate process arms them, like recordings:
/// the devices of this process belong to a host, and only other processes may look that host up.
pub(super) struct ArmedFaults {
    efa_emu: PathBuf,
    fabric: String,
    labels: Vec<String>,
}

impl ArmedFaults {
    /// Arms rules for endpoints with these addresses. The error is the missing feature.
    pub(super) fn arm(
        faults: &[Fault],
        addresses: &[(&str, RawAddress)],
    ) -> Result<Self, ArmError> {
        let rules: Vec<Fault> = faults
            .iter()
            .map(|fault| about_queue_pairs(fault, addresses))
            .collect::<Result<_, _>>()?;
        let fabric = HostConfig::from_env()
            .map_err(|_| ArmError::NoFabric)?
            .fabric;
        let efa_emu = Launcher::new(None).map_err(|_| ArmError::NoFabric)?.efa_emu;
        let text = file_of_faults(&rules);
        let mut labels: Vec<String> = rules.into_iter().map(|rule| rule.label).collect();
        labels.sort_unstable();
        labels.dedup();
        let armed = ArmedFaults {
            efa_emu,
            fabric,
            labels,
        };
        armed.fault_command(&["add", "--file", "-"], &text)?;
        Ok(armed)
    }

    /// The rules that have not been applied, in the emulator's format.
    pub(super) fn unapplied(&self) -> Vec<String> {
        // A removed fabric has no rules.
        let list = self.fault_command(&["list"], "").unwrap_or_default();
        let idle = list.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (_seen, applied) = (words.next()?, words.next()?);
            let rule = line.get(line.find('{')?..)?;
            let is_own = self
                .labels
                .iter()
                .any(|label| rule.contains(&format!("label = \"{label}\"")));
            (is_own && applied == "0").then(|| rule.to_owned())
        });
        idle.collect()
    }

    fn fault_command(&self, arguments: &[&str], input: &str) -> Result<String, ArmError> {
        let mut process = Command::new(&self.efa_emu)
            .args(["fault", "--fabric", &self.fabric])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = process.stdin.take() {
            // If it exits without reading its input, its output has the reason.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = process.wait_with_output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(ArmError::Refused(
                String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            )),
        }
    }
}

impl Drop for ArmedFaults {
    fn drop(&mut self) {
        for label in &self.labels {
            // A removed fabric has no rules.
            let _ = self.fault_command(&["clear", label], "");
        }
    }
}

/// The label of a scenario's rule, distinct from others in the fabric.
fn label(own: &str) -> String {
    format!("scenario {own}")
}

/// The same rule for the queue pairs of the endpoints in it.
fn about_queue_pairs(fault: &Fault, addresses: &[(&str, RawAddress)]) -> Result<Fault, ArmError> {
    let address = |host: &HostName| {
        let name = host.to_string();
        let found = addresses.iter().find(|(endpoint, _)| *endpoint == name);
        found
            .map(|(_, address)| *address)
            .ok_or(ArmError::WholeHost)
    };
    if fault.then.is_about_hosts() {
        return Err(ArmError::WholeHost);
    }
    let then = match &fault.then {
        Action::Release(own) => Action::Release(label(own)),
        then => then.clone(),
    };
    let Some(when) = &fault.when else {
        return Err(ArmError::WholeHost);
    };
    if when.host.is_some() {
        return Err(ArmError::WholeHost);
    }
    let sender = when.sender.as_ref().map(address).transpose()?;
    let receiver = when.receiver.as_ref().map(address).transpose()?;
    let host = |address: RawAddress| HostName::Gid(address.gid);
    let when = Match {
        sender: sender.map(host),
        source_qpn: sender.map(|address| address.qpn),
        receiver: receiver.map(host),
        destination_qpn: receiver.map(|address| address.qpn),
        ..when.clone()
    };
    Ok(Fault {
        label: label(&fault.label),
        when: Some(when),
        then,
    })
}

#[cfg(test)]
mod tests {
    use efa_core::address::{Gid, Qkey, Qpn};

    use super::*;

    const A: RawAddress = RawAddress::new(Gid([0xfe; 16]), Qpn(3), Qkey(1));
    const B: RawAddress = RawAddress { qpn: Qpn(4), ..A };

    fn translated(rule: &str) -> Result<String, ArmError> {
        let rule: Fault = rule.parse().unwrap();
        about_queue_pairs(&rule, &[("a", A), ("b", B)]).map(|rule| rule.to_string())
    }

    #[test]
    fn hosts_become_queue_pairs() {
        let rule =
            r#"when = { packet = "CTS", sender = "b", receiver = "a" }, then = { not-ready = 8 }"#;
        let text = translated(rule).unwrap();
        assert!(text.contains("source-qpn = 4"), "{text}");
        assert!(text.contains("destination-qpn = 3"), "{text}");
        assert!(text.contains(&format!("sender = \"{}\"", A.gid)), "{text}");
        assert!(text.contains("CTS"), "{text}");
    }

    #[test]
    fn labels_are_kept_apart_from_those_of_others() {
        let held = translated(r#"label = "x", when = { packet = "CTS" }, then = "hold""#).unwrap();
        assert!(held.contains(r#"label = "scenario x""#), "{held}");
        let freed = translated(r#"when = { packet = "EOR" }, then = { release = "x" }"#).unwrap();
        assert!(freed.contains(r#"release = "scenario x""#), "{freed}");
    }

    #[test]
    fn rules_about_whole_hosts_are_unsupported() {
        for rule in [
            r#"when = { on = "registration", host = "a" }, then = { fail = "ENOMEM" }"#,
            r#"when = { packet = "CTS" }, then = { kill = "a" }"#,
            r#"then = { cut = ["a", "b"] }"#,
        ] {
            assert!(
                matches!(translated(rule), Err(ArmError::WholeHost)),
                "{rule}"
            );
        }
    }
}
