//! A cell in which two endpoints of stock libfabric, or of the engine as its provider, exchange a
//! topic.

use std::path::PathBuf;

use serde::Deserialize;

use crate::exchange::{HEADERLESS, Party, Topic, exchange, mtu};
use crate::harness::volume::Volume;
use crate::harness::{Bench, CellResult, CellsError, NotMeasured, failed};
use crate::libfabric::release::Release;
use efa_commands::installation::Installation;
use efa_device_model::profile::Profile;
use efa_play::libfabric::Provider;
use efa_play::scenario::Capability;

/// An exchange in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exchange {
    topic: String,
    /// The endpoint that starts operations.
    from: Endpoint,
    /// The endpoint that receives messages, and whose memory is accessed.
    to: Endpoint,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    release: String,
    /// `efa`, the release's own provider, or `efa_rs`.
    provider: Option<String>,
    profile: Option<String>,
    /// The device, if it is one of four.
    device: Option<Device>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: String,
    /// Its index among the host's devices.
    index: usize,
}

/// Number of devices of a host with several.
const DEVICES: &str = "4";

/// The room for a header that stock libfabric reserves in a packet without one.
const HEADER: usize = 16;

impl Endpoint {
    fn profile(&self) -> &str {
        self.profile.as_deref().unwrap_or(Profile::DEFAULT)
    }

    fn party(&self, bench: &Bench, topic: Topic) -> Result<Party, NotMeasured> {
        let release = Release::named(&self.release)?;
        let is_engine = self.provider.as_deref() == Some(Provider::ENGINE);
        let provider = match is_engine {
            true => Provider {
                name: Provider::ENGINE.into(),
                directory: directory_for(release)?,
            },
            false => Provider::efa(),
        };
        let mut party = release.party(bench, self.profile(), provider)?;
        if is_engine {
            let wanted = &mut party.opening.capabilities;
            wanted.retain(|one| *one != Capability::Atomic || topic == Topic::Atomics);
        }
        if topic == Topic::ZeroCopy {
            party.promise_packets(mtu(self.profile()));
        }
        if let Some(device) = &self.device {
            party.opening.device = Some(device.name.clone());
            let options = ["--devices", DEVICES].map(str::to_owned);
            party.host.options.extend(options);
        }
        Ok(party)
    }

    /// Checks that the host has used only the chosen device; returns its name.
    fn only_sender(&self, bench: &Bench, host: &str) -> Result<Option<String>, NotMeasured> {
        let Some(chosen) = &self.device else {
            return Ok(None);
        };
        let capture = bench.capture(host);
        let volumes = Volume::of_devices(&capture)?.into_iter();
        let used = volumes.filter(|(_, volume)| volume.frames() > 0);
        let used: Vec<String> = used.map(|(device, _)| device).collect();
        match &used[..] {
            [device] if device.ends_with(&format!(":{}", chosen.index)) => Ok(Some(device.clone())),
            _ => Err(failed!(
                "{used:?} have sent, not only the device {}: see {}",
                chosen.index,
                capture.display()
            )),
        }
    }
}

/// The directory in which a release finds the engine. With the dynamic linker of another Debian
/// release, which is outside of this installation, a program does not find the plug-in without
/// this.
fn directory_for(release: &Release) -> Result<Option<PathBuf>, NotMeasured> {
    match release.is_of_this_machine() {
        true => Ok(None),
        false => {
            let installation = Installation::of_this_program().map_err(NotMeasured::failed)?;
            Ok(installation.provider_directory(Provider::ENGINE))
        }
    }
}

impl Exchange {
    /// Checks that need expanded variables.
    pub(super) fn check(&self) -> Result<(), CellsError> {
        for endpoint in [&self.from, &self.to] {
            Release::named(&endpoint.release)?;
            Profile::named(endpoint.profile())?;
        }
        Topic::named(&self.topic).map(drop)
    }

    /// Exchanges the topic between the endpoints. Small sizes are captured, large ones only
    /// counted.
    pub(super) fn run(&self, bench: &Bench) -> CellResult {
        let topic = Topic::named(&self.topic)?;
        let Exchange { from, to, .. } = self;
        let [mut initiator, mut target] = [from.party(bench, topic)?, to.party(bench, topic)?];
        initiator.host.capture = Some(bench.capture("a"));
        target.host.capture = to.device.as_ref().map(|_| bench.capture("b"));
        let sizes = match topic {
            Topic::ZeroCopy => vec![1, 64, 4096, mtu(from.profile()) - HEADER],
            _ => Topic::SMALL.to_vec(),
        };
        let mut counts = exchange(bench, [&initiator, &target], topic, &sizes)?;
        let traffic = bench.traffic("a")?;
        if topic == Topic::ZeroCopy {
            let messages = topic.count_of_messages(&sizes);
            let (without, with) = (traffic.count(HEADERLESS), traffic.count("EAGER_MSGRTM"));
            if without < messages || with > 0 {
                return Err(failed!(
                    "{without} messages without header, of {messages}, and {with} with one: {traffic}"
                ));
            }
        }
        let senders = [from.only_sender(bench, "a")?, to.only_sender(bench, "b")?];
        let senders: Vec<String> = senders.into_iter().flatten().collect();
        // Larger sizes make no difference for the other topics.
        if matches!(topic, Topic::Messages | Topic::Rma) && senders.is_empty() {
            initiator.host.capture = None;
            counts = counts + exchange(bench, [&initiator, &target], topic, &Topic::LARGE)?;
        }
        // The cell's line shows that the exchange works; only captures of failed cells are kept. A
        // host may have no recorder.
        for host in ["a", "b"] {
            let _ = std::fs::remove_file(bench.capture(host));
        }
        Ok(match senders.is_empty() {
            true => format!(
                "{counts}; {} to {}; {traffic}",
                from.profile(),
                to.profile()
            ),
            false => format!("{counts}; only {} have sent", senders.join(" and ")),
        })
    }
}
