//! Address handles: the device's numbers for the GIDs of its peers.
//!
//! All handles of one GID have the same number, in all protection domains, as long as one of them
//! exists. Each protection domain can use only the numbers of its handles, and identifies only
//! their senders, so two libraries in one process (such as UCX and libfabric) do not see each
//! other's handles.

use efa_core::address::{Ahn, Gid};
use hashbrown::HashMap;

use super::error::Error;
use super::ids::PdId;

struct AddressEntry {
    gid: Gid,
    /// The number of handles in each protection domain. Nearly always there is one entry.
    handles: Vec<(PdId, u32)>,
}

pub(super) struct AddressBook {
    entries: Vec<Option<AddressEntry>>,
    by_gid: HashMap<Gid, Ahn>,
    free: Vec<u16>,
    limit: usize,
    /// The last sender that was found, because consecutive packets often have the same sender.
    /// Cleared when any handle is destroyed.
    last: Option<(PdId, Gid, Ahn)>,
}

impl AddressBook {
    pub(super) fn new(limit: u32) -> Self {
        AddressBook {
            entries: Vec::new(),
            by_gid: HashMap::new(),
            free: Vec::new(),
            limit: (limit as usize).min(usize::from(Ahn::UNKNOWN)),
            last: None,
        }
    }

    pub(super) fn create(&mut self, pd: PdId, gid: Gid) -> Result<Ahn, Error> {
        if gid == Gid::default() || gid.to_ipv6().is_multicast() {
            return Err(Error::invalid("destination GID's first byte", gid.0[0]));
        }
        if let Some(&ahn) = self.by_gid.get(&gid) {
            let entry = self.entries[usize::from(ahn.0)]
                .as_mut()
                .expect("a number in the GID index has an entry");
            match entry.handles.iter_mut().find(|(owner, _)| *owner == pd) {
                Some((_, count)) => *count += 1,
                None => entry.handles.push((pd, 1)),
            }
            return Ok(ahn);
        }
        if self.by_gid.len() >= self.limit {
            return Err(Error::Exhausted("address handle"));
        }
        let entry = Some(AddressEntry {
            gid,
            handles: vec![(pd, 1)],
        });
        let ahn = match self.free.pop() {
            Some(number) => {
                self.entries[usize::from(number)] = entry;
                Ahn(number)
            }
            None => {
                self.entries.push(entry);
                Ahn((self.entries.len() - 1) as u16)
            }
        };
        self.by_gid.insert(gid, ahn);
        Ok(ahn)
    }

    /// Destroys one handle. Returns whether its number is free now.
    pub(super) fn destroy(&mut self, pd: PdId, ahn: Ahn) -> Result<bool, Error> {
        let missing = Error::not_found("address handle", ahn.0);
        let slot = self.entries.get_mut(usize::from(ahn.0)).ok_or(missing)?;
        let entry = slot.as_mut().ok_or(missing)?;
        let position = entry
            .handles
            .iter()
            .position(|(owner, _)| *owner == pd)
            .ok_or(missing)?;
        let count = &mut entry.handles[position].1;
        *count -= 1;
        self.last = None;
        if *count == 0 {
            entry.handles.swap_remove(position);
        }
        if !entry.handles.is_empty() {
            return Ok(false);
        }
        self.by_gid.remove(&entry.gid);
        *slot = None;
        self.free.push(ahn.0);
        Ok(true)
    }

    /// The GID of a work request's handle number, if `pd` has such a handle.
    #[inline(always)]
    pub(super) fn destination(&self, pd: PdId, ahn: Ahn) -> Option<&Gid> {
        let entry = self.entries.get(usize::from(ahn.0))?.as_ref()?;
        let is_of_pd = |handles: &(PdId, u32)| handles.0 == pd;
        // Nearly always there is only one.
        let (first, others) = entry.handles.split_first()?;
        (is_of_pd(first) || others.iter().any(is_of_pd)).then_some(&entry.gid)
    }

    /// The number of a sender, if `pd` has a handle for it.
    #[inline(always)]
    pub(super) fn sender(&mut self, pd: PdId, gid: Gid) -> Option<Ahn> {
        match self.last {
            Some((last_pd, last, ahn)) if last_pd == pd && last == gid => Some(ahn),
            _ => self.find_sender(pd, gid),
        }
    }

    #[cold]
    fn find_sender(&mut self, pd: PdId, gid: Gid) -> Option<Ahn> {
        let ahn = *self.by_gid.get(&gid)?;
        self.destination(pd, ahn)?;
        self.last = Some((pd, gid, ahn));
        Some(ahn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UCX: PdId = PdId(0);
    const LIBFABRIC: PdId = PdId(1);

    fn gid(last: u8) -> Gid {
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
    }

    #[test]
    fn live_handles_of_a_gid_share_one_number() {
        let mut book = AddressBook::new(10);
        let ahn = book.create(UCX, gid(1)).unwrap();
        assert_eq!(ahn, Ahn(0));
        assert_eq!(book.create(UCX, gid(1)), Ok(ahn));
        assert_eq!(book.create(LIBFABRIC, gid(1)), Ok(ahn));
        assert_ne!(book.create(UCX, gid(2)), Ok(ahn));
        assert_eq!(book.destroy(UCX, ahn), Ok(false));
        assert_eq!(book.sender(UCX, gid(1)), Some(ahn));
        assert_eq!(book.destroy(UCX, ahn), Ok(false));
        assert_eq!(book.sender(UCX, gid(1)), None);
        assert_eq!(book.destination(UCX, ahn), None);
        assert_eq!(book.sender(LIBFABRIC, gid(1)), Some(ahn));
        assert!(book.destroy(UCX, ahn).is_err());
        assert_eq!(book.destination(LIBFABRIC, ahn), Some(&gid(1)));
        assert_eq!(book.destroy(LIBFABRIC, ahn), Ok(true));
        assert_eq!(book.destination(LIBFABRIC, ahn), None);
        assert!(book.destroy(LIBFABRIC, ahn).is_err());
        assert_eq!(book.sender(LIBFABRIC, gid(1)), None);
    }

    #[test]
    fn a_reused_number_does_not_name_its_predecessor() {
        let mut book = AddressBook::new(10);
        let ahn = book.create(UCX, gid(1)).unwrap();
        assert_eq!(book.sender(UCX, gid(1)), Some(ahn));
        book.destroy(UCX, ahn).unwrap();
        assert_eq!(book.create(UCX, gid(2)), Ok(ahn));
        assert_eq!(book.sender(UCX, gid(1)), None);
        assert_eq!(book.sender(UCX, gid(2)), Some(ahn));
    }

    #[test]
    fn the_limit_counts_destinations() {
        let mut book = AddressBook::new(2);
        for host in [1, 2, 1, 2] {
            book.create(UCX, gid(host)).unwrap();
        }
        let full = book.create(UCX, gid(3)).unwrap_err();
        assert_eq!(full.errno(), libc::ENOMEM);
    }

    #[test]
    fn addresses_that_are_no_host_are_refused() {
        let mut book = AddressBook::new(2);
        let multicast = Gid([0xff; 16]);
        for gid in [Gid::default(), multicast] {
            assert_eq!(book.create(UCX, gid).unwrap_err().errno(), libc::EINVAL);
        }
    }

    #[test]
    fn the_unknown_number_is_never_given_out() {
        let mut book = AddressBook::new(u32::MAX);
        let number = |host: u32| {
            let mut bytes = gid(0).0;
            bytes[8..12].copy_from_slice(&host.to_be_bytes());
            Gid(bytes)
        };
        for host in 1..=0xffff {
            assert_ne!(book.create(UCX, number(host)), Ok(Ahn(Ahn::UNKNOWN)));
        }
        assert!(book.create(UCX, number(0x10000)).is_err());
    }
}
