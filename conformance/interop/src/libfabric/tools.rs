//! `fi_info` and `fi_pingpong` of each release, and between releases; with the release's own provider or with another.

use std::path::PathBuf;
use std::time::Duration;

use efa_capture::frame::Kind;
use efa_check::capture::Capture;
use efa_core::nic::Status;
use efa_device_model::profile::Profile;
use efa_play::libfabric::{Provider, Version};

use super::GROUP;
use super::release::{Release, V1_11, V1_17, V2_1, V2_5};
use crate::harness::{Bench, Cell, CellResult, Host, Unmet};

const LIMIT: Duration = Duration::from_secs(120);
/// The time limit of a pair that cannot work.
const HOPELESS: Duration = Duration::from_secs(15);
/// How often processes are polled.
const LOOK: Duration = Duration::from_millis(20);

const RELEASES: [Release; 4] = [V1_11, V1_17, V2_1, V2_5];

/// The largest message of `fi_pingpong -S all`, where the endpoint takes messages of any size.
const LARGEST: usize = 1 << 20;

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for release in RELEASES {
        let name = format!("{} fi_info", release.name);
        cells.push(Cell::new(GROUP, name, LIMIT, move |bench| {
            info(bench, release, Provider::EFA)
        }));
        for (endpoint, fabric) in offers(release) {
            let suffix = fabric
                .map(|fabric| format!(" -f {fabric}"))
                .unwrap_or_default();
            let name = format!("{} fi_pingpong {endpoint}{suffix}", release.name);
            let side = Side {
                fabric,
                ..Side::of(release)
            };
            cells.push(pingpong_cell(GROUP, name, [side; 2], endpoint));
        }
    }
    for client in RELEASES {
        for server in RELEASES {
            if client.version == server.version {
                continue;
            }
            for endpoint in ["rdm", "dgram"] {
                let pair = format!("{} -> {}", client.name, server.name);
                let sides = [client, server].map(Side::of);
                let name = format!("{pair}: fi_pingpong {endpoint}");
                cells.push(pingpong_cell(GROUP, name, sides, endpoint));
            }
        }
    }
    cells
}

/// Returns whether the release offers the device without the RDM protocol as a fabric, which it prefers.
fn has_two_fabrics(release: Release) -> bool {
    release.version >= V2_1.version
}

/// The types of endpoints and the fabrics for which `fi_pingpong` can ask.
fn offers(release: Release) -> Vec<(&'static str, Option<&'static str>)> {
    if has_two_fabrics(release) {
        vec![
            ("rdm", Some("efa")),
            ("rdm", Some("efa-direct")),
            ("dgram", Some("efa")),
        ]
    } else {
        vec![("rdm", None), ("dgram", None)]
    }
}

/// One of the two programs of a ping-pong.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    release: Release,
    provider: &'static str,
    fabric: Option<&'static str>,
}

impl Side {
    /// The release with its own provider, and the RDM protocol.
    pub(crate) fn of(release: Release) -> Self {
        Side {
            release,
            provider: Provider::EFA,
            fabric: has_two_fabrics(release).then_some("efa"),
        }
    }

    /// The release with a plug-in that belongs to efa-emu.
    pub(crate) fn with(release: Release, provider: &'static str) -> Self {
        Side {
            release,
            provider,
            fabric: None,
        }
    }

    fn is_direct(self) -> bool {
        self.fabric == Some("efa-direct")
    }
}

/// A fault of stock releases in `fi_pingpong`.
struct Fault {
    /// Part of the failure that shows it.
    shows: &'static str,
    /// The status of a device's response that the capture must contain.
    status: Option<Status>,
    reason: &'static str,
}

impl Fault {
    /// Returns whether a failure shows this fault.
    /// The captures are of both hosts: what happens to a datagram only its receiver knows.
    fn explains(&self, failure: &str, captures: &[PathBuf]) -> bool {
        let is_in = |capture: &PathBuf, status| {
            Capture::load(capture).is_ok_and(|capture| {
                let answer = Kind::Response(status);
                capture
                    .frames
                    .iter()
                    .any(|frame| frame.header.kind == answer)
            })
        };
        let is_answered = |status| captures.iter().any(|capture| is_in(capture, status));
        failure.contains(self.shows) && self.status.is_none_or(is_answered)
    }
}

/// `fi_pingpong` asks for a prefix in front of each message (`FI_MSG_PREFIX`).
const PREFIX_IN_2_5: Fault = Fault {
    shows: WRONG_BYTES,
    status: None,
    reason: "2.5.1 offers the prefix that the program asks for (FI_MSG_PREFIX), and then sends it as \
             part of the message",
};
const PREFIX_IN_1_11: Fault = Fault {
    shows: WRONG_BYTES,
    status: None,
    reason: "1.11 offers the prefix that the program asks for (FI_MSG_PREFIX), and then sends and \
             receives it as part of the message; with itself that goes unnoticed",
};
const QKEY_OF_DATAGRAMS: Fault = Fault {
    shows: "took too long",
    status: Some(Status::RemoteBadDestQpn),
    reason: "1.11 gives its queue pair for datagrams a Q-key of its own and announces it; releases \
             from 1.17 to 2.6 send to Q-key 0, whatever the address says",
};

/// Whether the release's queue pairs for datagrams have the Q-key 0 and send to it, whatever the address of the
/// peer says. Before and after them, queue pairs have Q-keys of their own, and those of addresses are used
/// (libfabric pull request 12678, August 2026, in 2.7).
fn has_no_qkeys_of_datagrams(release: Release) -> bool {
    let again = Version { major: 2, minor: 7 };
    (V1_17.version..again).contains(&release.version)
}

/// The program's message for wrong data.
const WRONG_BYTES: &str = "Error at iteration";

fn fault(sides: [Side; 2], endpoint: &str) -> Option<&'static Fault> {
    // They are faults of the release's own provider.
    let has = |release: Release| {
        sides
            .iter()
            .any(|side| side.release.version == release.version && side.provider == Provider::EFA)
    };
    let what = |side: Side| (side.release.version, side.provider);
    let is_mixed = what(sides[0]) != what(sides[1]);
    let is_without_qkeys =
        |side: Side| side.provider == Provider::EFA && has_no_qkeys_of_datagrams(side.release);
    match endpoint {
        "rdm" if has(V2_5) && !sides[0].is_direct() => Some(&PREFIX_IN_2_5),
        "rdm" if has(V1_11) && is_mixed => Some(&PREFIX_IN_1_11),
        "dgram" if is_without_qkeys(sides[0]) != is_without_qkeys(sides[1]) => {
            Some(&QKEY_OF_DATAGRAMS)
        }
        _ => None,
    }
}

/// A client and a server.
pub(crate) fn pingpong_cell(
    group: &'static str,
    name: String,
    sides: [Side; 2],
    endpoint: &'static str,
) -> Cell {
    let fault = fault(sides, endpoint);
    // Some programs hang.
    let limit = if fault.is_some() { HOPELESS } else { LIMIT };
    Cell::new(group, name, limit, move |bench| {
        match (pingpong(bench, sides, endpoint), fault) {
            (Err(Unmet::Failed(text)), Some(fault))
                if fault.explains(&text, &["server", "client"].map(|host| bench.capture(host))) =>
            {
                Err(Unmet::Known {
                    reason: fault.reason.into(),
                    capture: bench.capture("server"),
                })
            }
            (Ok(_), Some(fault)) => Err(Unmet::Failed(format!(
                "this works, but is listed as a fault of stock libfabric: {}",
                fault.reason
            ))),
            (result, _) => result,
        }
    })
}

/// A host with the release's programs. The wheels have none, so Debian 13's programs run with their library.
fn host<'a>(
    bench: &'a Bench<'a>,
    name: &str,
    release: Release,
    provider: &str,
) -> Result<Host<'a>, Unmet> {
    let host = own_host(bench, name, release)?;
    Ok(match provider {
        Provider::EFA => host,
        plug_in => host.provider(plug_in),
    })
}

/// Where hosts are not emulated, their own programs may be of any release.
fn is_there(bench: &Bench, name: &str, release: Release) -> Result<(), Unmet> {
    let Some(seat) = bench.seat(name)? else {
        return Ok(());
    };
    if release.userland(bench)?.is_some() {
        return Ok(());
    }
    let printed = bench.host(name).run(&["fi_info", "--version"])?.stdout;
    let version = values(&printed, "libfabric").concat();
    match version.starts_with(&format!("{}.", release.name)) {
        true => Ok(()),
        false => Err(Unmet::Skipped(format!(
            "{} has libfabric {version}, and the cell is about {}",
            seat.place(),
            release.name
        ))),
    }
}

fn own_host<'a>(bench: &'a Bench<'a>, name: &str, release: Release) -> Result<Host<'a>, Unmet> {
    is_there(bench, name, release)?;
    if release.version != V2_5.version {
        return release.host(bench, name);
    }
    let library = release.library(release.userland(bench)?.as_ref());
    Ok(bench
        .host(name)
        .userland(&bench.userland("debian13")?)
        .env("FI_PROVIDER_PATH", library.with_file_name("libfabric"))
        .env("LD_PRELOAD", library))
}

/// The values of `field:` lines, in order.
fn values<'a>(text: &'a str, field: &str) -> Vec<&'a str> {
    let value = |line: &'a str| line.trim().strip_prefix(field)?.strip_prefix(": ");
    text.lines().filter_map(value).collect()
}

/// What `fi_info` shows of a provider, on a device of the default profile.
pub(crate) fn info(bench: &Bench, release: Release, provider: &str) -> CellResult {
    let host = host(bench, "a", release, provider)?;
    let listed = host.run(&["fi_info", "-p", provider])?.stdout;
    let types = values(&listed, "type");
    let wanted: &[&str] = match provider {
        Provider::EFA => &["FI_EP_RDM", "FI_EP_DGRAM"],
        _ => &["FI_EP_RDM"],
    };
    for wanted in wanted {
        if !types.contains(wanted) {
            return Err(Unmet::Failed(format!(
                "no endpoint of type {wanted}\n{listed}"
            )));
        }
    }
    let detailed = host.run(&["fi_info", "-p", provider, "-v"])?.stdout;
    let first = |field: &str| {
        values(&detailed, field)
            .first()
            .copied()
            .unwrap_or("?")
            .to_owned()
    };
    let (device, driver) = (first("device_id"), first("driver"));
    // The plug-in describes no device.
    let is_described = provider == Provider::EFA;
    let part = match bench.seat("a")? {
        Some(seat) => seat.part_id().unwrap_or_default(),
        None => Profile::default().part_id,
    };
    if is_described && (device != format!("{part:#06x}") || driver != "efa") {
        return Err(Unmet::Failed(format!(
            "device {device}, driver {driver}\n{detailed}"
        )));
    }
    let mut fabrics = values(&listed, "fabric");
    fabrics.sort_unstable();
    fabrics.dedup();
    let offered = format!("{} endpoints of {}", types.len(), fabrics.join(" and "));
    Ok(match is_described {
        true => format!("{offered}, device {device}, MTU {}", first("mtu")),
        false => offered,
    })
}

fn pingpong(bench: &Bench, sides: [Side; 2], endpoint: &str) -> CellResult {
    // With integrity checks.
    let words = |side: Side| {
        let mut words = vec!["fi_pingpong", "-c", "-p", side.provider, "-e", endpoint];
        words.extend(side.fabric.iter().flat_map(|fabric| ["-f", fabric]));
        words
    };
    let [from, to] = sides;
    let place = host(bench, "server", to.release, to.provider)?.captured();
    let number = place.free_port()?;
    let (port, address) = (number.to_string(), place.address()?);
    let mut server = place.serve(&[&words(to)[..], &["-B", &port]].concat(), number)?;
    let mut client = host(bench, "client", from.release, from.provider)?
        .captured()
        .start(&[&words(from)[..], &["-P", &port, &address]].concat())?;
    // If one program fails, the other may hang.
    loop {
        let ended = server.ends_within(LOOK);
        if ended.is_some_and(|status| !status.success()) {
            return server.success().map(|server| server.stdout);
        }
        if client.ends_within(LOOK).is_some() || bench.left().is_zero() {
            break;
        }
    }
    let client = client.success()?;
    server.success()?;
    let sizes: Vec<usize> = client.stdout.lines().filter_map(size_of_line).collect();
    let largest = sizes.last().copied().unwrap_or(0);
    // `efa-direct` takes messages of up to the MTU, and sends them without the RDM protocol.
    let direct = from.is_direct();
    if largest == 0 || (endpoint == "rdm" && !direct) && largest != LARGEST {
        let reason = format!("the largest message had {largest} bytes\n{}", client.stdout);
        return Err(Unmet::Failed(reason));
    }
    let traffic = bench.traffic("server")?;
    let traffic = match direct {
        true => format!("{} frames without the RDM protocol", traffic.total()),
        false => traffic.to_string(),
    };
    let sizes = sizes.len();
    Ok(format!(
        "{sizes} sizes up to {largest} bytes checked; {traffic}"
    ))
}

/// The size in a line of `fi_pingpong`'s table, such as `64k`.
fn size_of_line(line: &str) -> Option<usize> {
    let mut fields = line.split_whitespace();
    let (size, _sent, acknowledged) = (fields.next()?, fields.next()?, fields.next()?);
    if !acknowledged.starts_with('=') {
        return None;
    }
    let (digits, unit) = match size.strip_suffix(['k', 'm']) {
        Some(digits) if size.ends_with('k') => (digits, 1 << 10),
        Some(digits) => (digits, 1 << 20),
        None => (size, 1),
    };
    Some(digits.parse::<usize>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_tables_of_the_tools() {
        assert_eq!(
            size_of_line("64k     10      =10      1.2m   0.38s  0.00"),
            Some(64 << 10)
        );
        assert_eq!(
            size_of_line("1m      10      =10      20m    0.38s  0.00"),
            Some(1 << 20)
        );
        assert_eq!(
            size_of_line("0       10      =10      0      0.38s  0.00"),
            Some(0)
        );
        assert_eq!(size_of_line("bytes   #sent   #ack     total  time"), None);
        let text = "provider: efa\n    fabric: efa-direct\n    type: FI_EP_RDM\n";
        assert_eq!(values(text, "fabric"), ["efa-direct"]);
    }
}
