//! The distribution of a cluster's hosts over machines.

use std::io;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::ops::Range;

/// The loopback address of the host with this number on this machine. It is outside of
/// 127.0.0.0/16, where the machine's own names are.
pub(crate) fn address(number: u32) -> Ipv4Addr {
    const FIRST: u32 = u32::from_be_bytes([127, 1, 0, 1]);
    Ipv4Addr::from_bits(FIRST + number)
}

/// The reason why hosts cannot be distributed over machines.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// At least one machine would have no host.
    #[error(
        "{hosts} hosts are fewer than the {machines} machines of --machines: each needs one at least"
    )]
    TooFewHosts {
        /// The hosts of the whole cluster.
        hosts: u32,
        /// The machines of `--machines`, this one included.
        machines: usize,
    },
    /// A machine is named more than once.
    #[error("--machines has {0} twice: a machine has all of its hosts in one part of the cluster")]
    Twice(String),
    /// This machine is not among those of `--machines`.
    #[error("{0} is not one of --machines")]
    NotListed(String),
    /// The name of a machine cannot be resolved.
    #[error(
        "cannot find the machine {machine} of --machines: {source}: check the name, or add it to /etc/hosts"
    )]
    NotFound {
        /// The name as it was given.
        machine: String,
        /// The reason of the resolver.
        source: io::Error,
    },
    /// The resolver knows the name of a machine, but no address of it.
    #[error("the machine {0} of --machines has no address")]
    NoAddress(String),
}

/// The hosts of a cluster, by their numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    own: Range<u32>,
    others: Vec<OtherMachine>,
    is_member: bool,
}

/// The hosts of another machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherMachine {
    /// The name under which the machine is reached.
    pub machine: String,
    pub(crate) address: IpAddr,
    pub(crate) hosts: Range<u32>,
}

impl Layout {
    /// All hosts on this machine.
    pub(crate) fn alone(hosts: u32) -> Layout {
        Layout {
            own: 0..hosts,
            others: Vec::new(),
            is_member: false,
        }
    }

    /// Distributes hosts over machines, in order and as evenly as possible. This machine is the
    /// first of them, or `member` if the first one has started this part of the cluster.
    ///
    /// # Errors
    /// There are fewer hosts than machines, a machine is named twice, `member` is not in the list,
    /// or the address of another machine cannot be found.
    pub(crate) fn spread(
        hosts: u32,
        machines: &[String],
        member: Option<&str>,
    ) -> Result<Layout, LayoutError> {
        let count = machines.len();
        if (hosts as usize) < count {
            return Err(LayoutError::TooFewHosts {
                hosts,
                machines: count,
            });
        }
        if let Some(twice) = machines
            .iter()
            .enumerate()
            .find_map(|(at, name)| machines[..at].contains(name).then_some(name))
        {
            return Err(LayoutError::Twice(twice.clone()));
        }
        let own = member.unwrap_or(&machines[0]);
        let mut layout = Layout {
            own: 0..0,
            others: Vec::new(),
            is_member: member.is_some(),
        };
        let first = |at: usize| (u64::from(hosts) * at as u64 / count as u64) as u32;
        for (at, machine) in machines.iter().enumerate() {
            let hosts = first(at)..first(at + 1);
            if machine == own {
                layout.own = hosts;
                continue;
            }
            layout.others.push(OtherMachine {
                address: find(machine)?,
                machine: machine.clone(),
                hosts,
            });
        }
        match layout.own.is_empty() {
            true => Err(LayoutError::NotListed(own.to_owned())),
            false => Ok(layout),
        }
    }

    /// The hosts on this machine.
    pub fn own(&self) -> Range<u32> {
        self.own.clone()
    }

    /// The hosts on other machines.
    pub fn others(&self) -> &[OtherMachine] {
        &self.others
    }

    /// Whether another machine has started this part of the cluster.
    pub fn is_member(&self) -> bool {
        self.is_member
    }

    pub(crate) fn total(&self) -> u32 {
        let others: usize = self.others.iter().map(|part| part.hosts.len()).sum();
        (self.own.len() + others) as u32
    }

    /// The hosts that commands on this machine can reach: all of them where the cluster was
    /// started.
    pub(crate) fn reached(&self) -> Range<u32> {
        match self.is_member {
            true => self.own.clone(),
            false => 0..self.total(),
        }
    }

    /// The address of the host with this number: the host's address on this machine, otherwise that
    /// of its machine.
    pub(crate) fn address(&self, number: u32) -> IpAddr {
        let mut others = self.others.iter();
        others
            .find(|part| part.hosts.contains(&number))
            .map_or_else(|| address(number).into(), |part| part.address)
    }
}

/// Prefers an IPv4 address, because programs on the hosts use IPv4 where possible.
fn find(machine: &str) -> Result<IpAddr, LayoutError> {
    let found = (machine, 0)
        .to_socket_addrs()
        .map_err(|source| LayoutError::NotFound {
            machine: machine.to_owned(),
            source,
        })?;
    let addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let ipv4 = addresses.iter().find(|address| address.is_ipv4());
    ipv4.or(addresses.first())
        .copied()
        .ok_or_else(|| LayoutError::NoAddress(machine.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(names: &str) -> Vec<String> {
        names.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn each_host_has_its_own_loopback_address() {
        assert_eq!(address(0), Ipv4Addr::new(127, 1, 0, 1));
        assert_eq!(address(255), Ipv4Addr::new(127, 1, 1, 0));
        assert!(address(crate::names::MOST_HOSTS - 1).is_loopback());
    }

    #[test]
    fn each_machine_finds_its_own_part() {
        let list = machines("10.0.0.1 10.0.0.2 10.0.0.3");
        let first = Layout::spread(7, &list, None).unwrap();
        assert_eq!(
            (first.own(), first.reached(), first.total()),
            (0..2, 0..7, 7)
        );
        let parts: Vec<_> = first
            .others()
            .iter()
            .map(|part| (part.machine.as_str(), part.hosts.clone()))
            .collect();
        assert_eq!(parts, [("10.0.0.2", 2..4), ("10.0.0.3", 4..7)]);
        let last = Layout::spread(7, &list, Some("10.0.0.3")).unwrap();
        assert_eq!((last.own(), last.reached()), (4..7, 4..7));
        for (number, address) in [(0, "10.0.0.1"), (3, "10.0.0.2"), (4, "127.1.0.5")] {
            assert_eq!(last.address(number).to_string(), address);
        }
    }

    #[test]
    fn machines_that_cannot_be_are_named() {
        let expect = |hosts, list: &str, member, part: &str| {
            let error = Layout::spread(hosts, &machines(list), member).unwrap_err();
            let reason = error.to_string();
            assert!(reason.contains(part), "{reason}");
        };
        expect(
            1,
            "10.0.0.1 10.0.0.2",
            None,
            "1 hosts are fewer than the 2 machines",
        );
        expect(4, "10.0.0.1 10.0.0.1", None, "has 10.0.0.1 twice");
        expect(
            4,
            "10.0.0.1 10.0.0.2",
            Some("b"),
            "b is not one of --machines",
        );
        expect(
            4,
            "10.0.0.1 b.invalid",
            None,
            "cannot find the machine b.invalid",
        );
    }
}
