//! `fi_info` and `fi_pingpong` of each release that brings them.

use std::time::Duration;

use super::GROUP;
use super::release::{Release, V1_11, V1_17, V2_1};
use crate::interop::traffic::Traffic;
use crate::interop::{Bench, Cell, CellResult, Unmet, free_port};

const LIMIT: Duration = Duration::from_secs(120);

/// The wheels have no programs of libfabric's.
const RELEASES: [Release; 3] = [V1_11, V1_17, V2_1];

/// The largest message of `fi_pingpong -S all`, where the endpoint takes messages of any size.
const LARGEST: usize = 1 << 20;

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for release in RELEASES {
        let name = format!("{} fi_info", release.name);
        cells.push(Cell::new(GROUP, name, LIMIT, move |bench| {
            info(bench, release)
        }));
        let mut runs: Vec<(&'static str, Option<&'static str>)> =
            vec![("rdm", None), ("dgram", None)];
        if release.version == V2_1.version {
            // It offers the bare device as a fabric of its own, and prefers it.
            runs = vec![
                ("rdm", Some("efa")),
                ("rdm", Some("efa-direct")),
                ("dgram", Some("efa")),
            ];
        }
        for (endpoint, fabric) in runs {
            let suffix = fabric
                .map(|fabric| format!(" -f {fabric}"))
                .unwrap_or_default();
            let name = format!("{} fi_pingpong {endpoint}{suffix}", release.name);
            cells.push(Cell::new(GROUP, name, LIMIT, move |bench| {
                pingpong(bench, release, endpoint, fabric)
            }));
        }
    }
    cells
}

/// The values of `field:` lines, in order.
fn values<'a>(text: &'a str, field: &str) -> Vec<&'a str> {
    let value = |line: &'a str| line.trim().strip_prefix(field)?.strip_prefix(": ");
    text.lines().filter_map(value).collect()
}

fn info(bench: &Bench, release: Release) -> CellResult {
    let host = release.host(bench, "a")?;
    let listed = host.run(&["fi_info", "-p", "efa"])?.stdout;
    let types = values(&listed, "type");
    for wanted in ["FI_EP_RDM", "FI_EP_DGRAM"] {
        if !types.contains(&wanted) {
            return Err(Unmet::Failed(format!(
                "no endpoint of type {wanted}\n{listed}"
            )));
        }
    }
    let detailed = host.run(&["fi_info", "-p", "efa", "-v"])?.stdout;
    let first = |field: &str| {
        values(&detailed, field)
            .first()
            .copied()
            .unwrap_or("?")
            .to_owned()
    };
    let (device, driver) = (first("device_id"), first("driver"));
    if device != "0xefa2" || driver != "efa" {
        return Err(Unmet::Failed(format!(
            "device {device}, driver {driver}\n{detailed}"
        )));
    }
    let mut fabrics = values(&listed, "fabric");
    fabrics.sort_unstable();
    fabrics.dedup();
    Ok(format!(
        "{} endpoints of {}, device {device}, MTU {}",
        types.len(),
        fabrics.join(" and "),
        first("mtu")
    ))
}

fn pingpong(bench: &Bench, release: Release, endpoint: &str, fabric: Option<&str>) -> CellResult {
    let number = free_port()?;
    let port = number.to_string();
    // With integrity checks.
    let mut common = vec!["fi_pingpong", "-c", "-p", "efa", "-e", endpoint];
    common.extend(fabric.iter().flat_map(|fabric| ["-f", fabric]));
    let mut server = release
        .host(bench, "server")?
        .captured()
        .start(&[&common[..], &["-B", &port]].concat())?;
    server.await_listener(number)?;
    let client = release
        .host(bench, "client")?
        .run(&[&common[..], &["-P", &port, "127.0.0.1"]].concat())?;
    server.success()?;
    let sizes: Vec<usize> = client.stdout.lines().filter_map(size_of_line).collect();
    let largest = sizes.last().copied().unwrap_or(0);
    // The bare device takes messages of up to its MTU, and sends them without the RDM protocol.
    let direct = fabric == Some("efa-direct");
    if largest == 0 || (endpoint == "rdm" && !direct) && largest != LARGEST {
        let reason = format!("the largest message had {largest} bytes\n{}", client.stdout);
        return Err(Unmet::Failed(reason));
    }
    let traffic = Traffic::of(&bench.capture("server"))?;
    let traffic = match direct {
        true => format!("{} frames without the RDM protocol", traffic.total()),
        false => traffic.to_string(),
    };
    let sizes = sizes.len();
    Ok(format!(
        "{sizes} sizes up to {largest} bytes checked; {traffic}"
    ))
}

/// The size that a line of `fi_pingpong`'s table is about, such as `64k`.
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
