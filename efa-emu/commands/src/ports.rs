//! TCP ports for programs that get their port before they start, and a check whether they listen.
//!
//! Such a port is chosen some time before it is used. If the kernel chose it, another process could
//! get it meanwhile: the kernel assigns it to the next process that binds port 0, as every rank of
//! an MPI job does, and clients would connect to that process. Therefore ports are chosen outside
//! of the kernel's range, and processes that choose reserve theirs among each other.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};

/// The kernel's range, as `ip(7)` describes it.
const KERNEL_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// More ports below it than above belong to known services.
const LOWEST: u16 = 20_000;
/// In a smaller range, processes that choose at the same time would often choose the same port.
const FEWEST: usize = 1000;
/// The number of ports that are tried before the choice is left to the kernel.
const TRIES: usize = 100;
/// The number of ports that a process has reserved at most. Each takes a descriptor.
const RESERVED: usize = 64;

/// Returns a TCP port on which no process of this host listens. If such ports exist, the kernel
/// does not assign the port to processes that bind port 0, and this function returns it in no
/// process of the network namespace until this process has ended or chosen 64 others.
///
/// # Errors
/// The system has no free port.
pub fn free_port() -> io::Result<u16> {
    let kernel_range = std::fs::read_to_string(KERNEL_RANGE).unwrap_or_default();
    let beside = beside(&kernel_range).into_iter().flat_map(random);
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
    match beside
        .take(TRIES)
        .find(|port| reserve(*port) && is_free(*port))
    {
        Some(port) => Ok(port),
        None => Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?
            .local_addr()?
            .port()),
    }
}

/// Reserves a port for this process. Returns false if it is reserved already. The reservation is an
/// abstract Unix socket: like a port it belongs to a network namespace, and the kernel frees it
/// when the process ends. Where such sockets are not permitted, nothing is reserved.
fn reserve(port: u16) -> bool {
    static RESERVATIONS: Mutex<VecDeque<UnixDatagram>> = Mutex::new(VecDeque::new());
    let name = SocketAddr::from_abstract_name(format!("efa-emu-port-{port}"));
    match name.and_then(|name| UnixDatagram::bind_addr(&name)) {
        Ok(reservation) => {
            let mut all = RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() == RESERVED {
                all.pop_front();
            }
            all.push_back(reservation);
            true
        }
        Err(error) => error.kind() != io::ErrorKind::AddrInUse,
    }
}

/// The range of ports to choose from, outside of the kernel's range.
fn beside(kernel_range: &str) -> Option<RangeInclusive<u16>> {
    let mut bounds = kernel_range.split_whitespace();
    let mut bound = || bounds.next()?.parse::<u16>().ok();
    let (first, last) = (bound()?, bound()?);
    let below = LOWEST..=first.saturating_sub(1);
    let above = last.checked_add(1)?.max(LOWEST)..=u16::MAX;
    [below, above]
        .into_iter()
        .find(|range| range.len() >= FEWEST)
}

/// Endless random ports of a range that is not empty.
fn random(range: RangeInclusive<u16>) -> impl Iterator<Item = u16> {
    let count = range.len() as u64;
    // Each `RandomState` has another key.
    let choose = move || RandomState::new().hash_one(std::process::id()) % count;
    std::iter::repeat_with(move || *range.start() + choose() as u16)
}

/// Returns whether the kernel's tables of sockets have a listener on `port`.
pub fn is_listened_on(port: u16) -> bool {
    is_listened_on_beside("self", port)
}

/// The same in the network namespace of another process, by its number.
pub fn is_listened_on_beside(process: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = format!("/proc/{process}/net/{table}");
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| is_listener(line, &suffix))
    })
}

/// Whether a line of `/proc/net/tcp` describes a socket that listens at an address with this
/// suffix.
fn is_listener(line: &str, suffix: &str) -> bool {
    const LISTEN: &str = "0A";
    let mut fields = line.split_whitespace().skip(1);
    let (local, state) = (fields.next(), fields.nth(1));
    local.is_some_and(|local| local.ends_with(suffix)) && state == Some(LISTEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_beside_the_kernels() {
        for (kernel, expected) in [
            // Linux's default.
            ("32768\t60999\n", Some(LOWEST..=32_767)),
            ("10000\t40000\n", Some(40_001..=u16::MAX)),
            ("1024\t15000\n", Some(LOWEST..=u16::MAX)),
            ("21000\t40000\n", Some(LOWEST..=20_999)),
            ("20999\t40000\n", Some(40_001..=u16::MAX)),
            // Ranges that leave too few ports.
            ("1024\t65535\n", None),
            ("1024\t65000\n", None),
            ("0\t0\n", Some(LOWEST..=u16::MAX)),
            ("", None),
            ("32768", None),
            ("-1\t70000", None),
        ] {
            assert_eq!(beside(kernel), expected, "{kernel:?}");
        }
        let chosen: Vec<u16> = random(30_000..=30_099).take(2000).collect();
        assert!(chosen.iter().all(|port| (30_000..=30_099).contains(port)));
        // Each of a hundred is missed by 2000 with a probability of 2e-9.
        let different: std::collections::BTreeSet<_> = chosen.into_iter().collect();
        assert_eq!(different.len(), 100);
    }

    #[test]
    fn chosen_ports_are_reserved_and_not_ephemeral() {
        let kernel_range = std::fs::read_to_string(KERNEL_RANGE).unwrap();
        let Some(range) = beside(&kernel_range) else {
            efa_testing::skip(format_args!(
                "the kernel's range leaves none: {kernel_range}"
            ));
            return;
        };
        for _ in 0..100 {
            let port = free_port().unwrap();
            assert!(range.contains(&port), "{port}, {range:?}");
            assert!(!is_listened_on(port), "{port}");
            assert!(!reserve(port), "{port}");
        }
    }

    #[test]
    fn listeners_are_seen() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port().unwrap())).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listened_on(port));
        let own = std::process::id().to_string();
        assert!(is_listened_on_beside(&own, port));
        assert!(!is_listened_on_beside("no-process", port));
        drop(listener);
        assert!(!is_listened_on(port));
    }

    #[test]
    fn listeners_are_distinguished_from_other_sockets() {
        const LISTENER: &str = "   0: 00000000:B9E8 00000000:0000 0A 00000000:00000000 00:00000000";
        const CONNECTED: &str =
            "   1: 0100007F:B9E8 0100007F:8000 01 00000000:00000000 00:00000000";
        const HEADER: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when";
        assert!(is_listener(LISTENER, ":B9E8"));
        assert!(!is_listener(LISTENER, ":B9E9"));
        assert!(!is_listener(CONNECTED, ":B9E8"));
        // The peer's port.
        assert!(!is_listener(CONNECTED, ":8000"));
        assert!(!is_listener(HEADER, ":B9E8"));
    }
}
