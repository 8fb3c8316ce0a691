//! The output for Wireshark: `word {key=value}{key=value}...`, one sentence on each line.

use efa_shm::HostStatus;

use super::toolbar::Control;
use super::{ALL_HOSTS, ALL_HOSTS_LABEL, INTERFACE_PREFIX};

/// Captures consist of Ethernet frames.
pub(super) const LINK_TYPES: &str = "dlt {number=1}{name=EN10MB}{display=Ethernet}\n";

const HOST_TOOLTIP: &str = "Record only what this host sends and receives";
const QPN_TOOLTIP: &str =
    "Record only what goes from or to queue pairs of this number; empty for all";

/// The interfaces, and the toolbar that Wireshark shows for them.
pub(super) fn interfaces(fabrics: &[(String, Vec<HostStatus>)]) -> String {
    let mut sentences = vec![format!(
        "extcap {{version={}}}{{display=EFA emulator}}",
        env!("CARGO_PKG_VERSION")
    )];
    for (fabric, hosts) in fabrics {
        let names: Vec<_> = hosts.iter().map(|host| host.name.to_string()).collect();
        let hosts = match &names[..] {
            [] => "no hosts yet".to_owned(),
            names => names.join(", "),
        };
        sentences.push(format!(
            "interface {{value={INTERFACE_PREFIX}{fabric}}}{{display=EFA fabric {fabric}: {hosts}}}"
        ));
    }
    let (host, qpn, log) = (Control::Host as u8, Control::Qpn as u8, Control::Log as u8);
    sentences.extend([
        format!(
            "control {{number={host}}}{{type=selector}}{{display=Host}}{{tooltip={HOST_TOOLTIP}}}"
        ),
        format!(
            "value {{control={host}}}{{value={ALL_HOSTS}}}{{display={ALL_HOSTS_LABEL}}}{{default=true}}"
        ),
        format!(
            "control {{number={qpn}}}{{type=string}}{{display=QPN}}{{validation=^[0-9]*$}}\
             {{tooltip={QPN_TOOLTIP}}}"
        ),
        format!(
            "control {{number={log}}}{{type=button}}{{role=logger}}{{display=Hosts seen}}\
             {{tooltip=Which hosts have joined the fabric since the capture began}}"
        ),
    ]);
    text(&sentences)
}

/// The options of one capture.
pub(super) fn options(hosts: &[HostStatus]) -> String {
    let mut sentences = vec![
        format!(
            "arg {{number=0}}{{call=--host}}{{display=Host}}{{type=selector}}{{tooltip={HOST_TOOLTIP}}}"
        ),
        format!(
            "arg {{number=1}}{{call=--qpn}}{{display=Queue pair number}}{{type=unsigned}}\
             {{range=0,65535}}{{tooltip={QPN_TOOLTIP}}}"
        ),
        "arg {number=2}{call=--once}{display=Each frame once}{type=boolflag}{default=false}\
         {tooltip=Record frames as they are sent, and not again as they are received}"
            .to_owned(),
        format!(
            "value {{arg=0}}{{value={ALL_HOSTS}}}{{display={ALL_HOSTS_LABEL}}}{{default=true}}"
        ),
    ];
    sentences.extend(hosts.iter().map(|HostStatus { name, .. }| {
        format!("value {{arg=0}}{{value={name}}}{{display={name}}}{{default=false}}")
    }));
    text(&sentences)
}

fn text(sentences: &[String]) -> String {
    sentences.join("\n") + "\n"
}
