//! Address vectors.

use std::ffi::{CStr, c_char, c_int, c_void};

use efa_core::address::RawAddress;
use efa_core::endpoint::{Errno, PeerId};

use crate::border::{self, ENOSYS, Object, Result, Users};
use crate::domain::{Domain, State};
use crate::ffi::*;
use crate::info::address_of;
use crate::table::Table;
use crate::unsupported;

/// An address vector (`fid_av`).
#[repr(C)]
pub(crate) struct AddressVector {
    c: fid_av,
    pub(crate) domain: *const Domain,
    /// Its place in the domain's list.
    pub(crate) place: usize,
    pub(crate) users: Users,
}

/// The entries of an address vector.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// By `fi_addr_t`.
    peers: Vec<Option<PeerId>>,
    /// Places of `peers` that are free.
    free: Vec<fi_addr_t>,
    /// By [`PeerId::place`]: each peer, its entry, and how often it was inserted.
    by_peer: Vec<Option<(PeerId, fi_addr_t, usize)>>,
}

impl Addresses {
    /// # Errors
    /// `FI_EINVAL` if there is no such entry.
    #[inline]
    pub(crate) fn peer(&self, address: fi_addr_t) -> Result<PeerId> {
        let index = usize::try_from(address).map_err(|_| Errno::EINVAL)?;
        self.peers
            .get(index)
            .copied()
            .flatten()
            .ok_or(Errno::EINVAL)
    }

    /// The entry of a peer; `FI_ADDR_NOTAVAIL` if it has none.
    #[inline]
    pub(crate) fn address(&self, peer: PeerId) -> fi_addr_t {
        match self.by_peer.get(peer.place()) {
            Some(Some((found, address, _))) if *found == peer => *address,
            _ => FI_ADDR_UNSPEC,
        }
    }

    fn contains(&self, peer: PeerId) -> bool {
        self.address(peer) != FI_ADDR_UNSPEC
    }

    /// All peers, each once.
    fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().copied().flatten()
    }

    /// An address that is there keeps its place.
    fn insert(&mut self, peer: PeerId) -> fi_addr_t {
        let place = peer.place();
        if self.by_peer.len() <= place {
            self.by_peer.resize(place + 1, None);
        }
        if let Some((found, address, uses)) = &mut self.by_peer[place]
            && *found == peer
        {
            *uses += 1;
            return *address;
        }
        let address = self.free.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() as fi_addr_t - 1
        });
        self.peers[address as usize] = Some(peer);
        self.by_peer[place] = Some((peer, address, 1));
        address
    }

    /// Takes an entry out, and returns its peer if it was not inserted more often.
    fn remove(&mut self, address: fi_addr_t) -> Result<Option<PeerId>> {
        let peer = self.peer(address)?;
        if let Some(Some((_, _, uses))) = self.by_peer.get_mut(peer.place())
            && *uses > 1
        {
            *uses -= 1;
            return Ok(None);
        }
        self.by_peer[peer.place()] = None;
        self.peers[address as usize] = None;
        self.free.push(address);
        Ok(Some(peer))
    }
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these operations.
unsafe impl Object for AddressVector {
    const CLASS: u32 = FI_CLASS_AV;

    fn operations() -> &'static Table<fi_ops> {
        &FID
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    bind: Some(bind),
    ..unsupported::FID
});

/// The operations of libfabric 2.7 (`rdma/fi_domain.h`); those of the headers from which the bindings are generated end with
/// `av_set`.
#[repr(C)]
struct Operations {
    first: fi_ops_av,
    insert_auth_key: extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64) -> c_int,
    lookup_auth_key: extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int,
    set_user_id: extern "C" fn(*mut fid_av, fi_addr_t, fi_addr_t, u64) -> c_int,
    lookup2: unsafe extern "C" fn(
        *mut fid_av,
        fi_addr_t,
        *mut c_void,
        *mut usize,
        u64,
        *mut c_void,
    ) -> c_int,
}

static OPS: Table<Operations> = Table::new(Operations {
    first: fi_ops_av {
        size: size_of::<Operations>(),
        insert: Some(insert),
        insertsvc: Some(insertsvc),
        insertsym: Some(unsupported::insertsym),
        remove: Some(remove),
        lookup: Some(lookup),
        straddr: Some(straddr),
        av_set: Some(unsupported::av_set),
    },
    insert_auth_key: unsupported::insert_auth_key,
    lookup_auth_key: unsupported::lookup_auth_key,
    set_user_id: unsupported::set_user_id,
    lookup2,
});

impl AddressVector {
    /// Runs a call with the domain's state and the vector's entries.
    fn with<T>(&self, call: impl FnOnce(&mut State, &mut Addresses) -> Result<T>) -> Result<T> {
        // SAFETY: a domain is not closed before its address vectors.
        let mut state = unsafe { &*self.domain }.state()?;
        let mut addresses = state.tables.vectors[self.place].take().unwrap_or_default();
        let result = call(&mut state, &mut addresses);
        state.tables.vectors[self.place] = Some(addresses);
        result
    }
}

impl Drop for AddressVector {
    fn drop(&mut self) {
        // SAFETY: a domain is not closed before its address vectors.
        let domain = unsafe { &*self.domain };
        if let Ok(mut state) = domain.state()
            && let Some(addresses) = state.tables.vectors[self.place].take()
        {
            for peer in addresses.peers() {
                // The device may keep what it does not give back; the vector is gone in any case.
                let _ = state.forget(peer);
            }
        }
        domain.users.remove();
    }
}

/// # Safety
/// As libfabric documents `fi_av_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_av_attr,
    result: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let domain: &Domain = unsafe { border::object(domain.cast()) }?;
        // SAFETY: likewise.
        let attributes = unsafe { attributes.as_mut() }.ok_or(Errno::EINVAL)?;
        // Insertion is over when the call returns, vectors are not shared by name, and completions have the vector's own
        // addresses (`FI_AV_USER_ID`).
        if attributes.flags & !(FI_READ | FI_SYMMETRIC) != 0
            || !attributes.name.is_null()
            || attributes.rx_ctx_bits != 0
        {
            return Err(ENOSYS);
        }
        if attributes.type_ == FI_AV_UNSPEC {
            attributes.type_ = FI_AV_TABLE;
        }
        let mut state = domain.state()?;
        // Places are not used again: endpoints of a vector that was closed keep theirs.
        let place = state.tables.vectors.len();
        state.tables.vectors.push(Some(Addresses::default()));
        drop(state);
        domain.users.add();
        let vector = AddressVector {
            c: fid_av {
                fid: fid {
                    context,
                    ..fid::default()
                },
                ops: OPS.as_c(),
            },
            domain,
            place,
            users: Users::default(),
        };
        // SAFETY: by the caller's contract.
        unsafe { vector.give_to(result) }
    })
}

/// # Safety
/// As libfabric documents `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let vector: &AddressVector = unsafe { border::object(fid.cast()) }?;
        vector.users.none()?;
        // SAFETY: no endpoint uses it, and C gives up its pointer.
        drop(unsafe { border::take(vector) });
        Ok(())
    })
}

/// Binds an event queue, for which there are no events.
extern "C" fn bind(_vector: *mut fid, _queue: *mut fid, _flags: u64) -> c_int {
    0
}

/// # Safety
/// As libfabric documents `fi_av_insert`.
unsafe extern "C" fn insert(
    vector: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    results: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let inserted = border::count(|| {
        // SAFETY: by the caller's contract.
        let vector: &AddressVector = unsafe { border::object(vector.cast()) }?;
        if flags & !(FI_MORE | FI_SYNC_ERR) != 0 || (addresses.is_null() && count > 0) {
            return Err(Errno::EINVAL);
        }
        // With this flag the context has room for a status of each address.
        let statuses = match flags & FI_SYNC_ERR {
            0 => std::ptr::null_mut(),
            _ => context.cast::<c_int>(),
        };
        vector.with(|state, entries| {
            let mut inserted = 0;
            for index in 0..count {
                // SAFETY: there are `count` addresses, of any alignment.
                let bytes = unsafe {
                    addresses
                        .cast::<[u8; RawAddress::LEN]>()
                        .add(index)
                        .read_unaligned()
                };
                let result = state.core.insert_address(RawAddress::from_bytes(&bytes));
                let address = match result {
                    Ok(peer) => {
                        inserted += 1;
                        if !entries.contains(peer) {
                            *state.peers.entry(peer).or_default() += 1;
                        }
                        entries.insert(peer)
                    }
                    Err(_) => FI_ADDR_UNSPEC,
                };
                // SAFETY: both have room for `count` of them, if they are there.
                unsafe {
                    if !results.is_null() {
                        results.add(index).write(address);
                    }
                    if !statuses.is_null() {
                        statuses
                            .add(index)
                            .write(result.err().map_or(0, |error| error.errno().0));
                    }
                }
            }
            Ok(inserted)
        })
    });
    inserted as c_int
}

/// # Safety
/// As libfabric documents `fi_av_insertsvc`.
unsafe extern "C" fn insertsvc(
    vector: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    result: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let inserted = border::count(|| {
        if node.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: strings, by the caller's contract.
        let (node, service) = unsafe {
            let service = (!service.is_null()).then(|| CStr::from_ptr(service).to_string_lossy());
            (CStr::from_ptr(node).to_string_lossy(), service)
        };
        let address = address_of(&node, service.as_deref()).map_err(|_| Errno::EINVAL)?;
        let bytes = address.to_bytes();
        // SAFETY: the caller's contract is the same; there is one address.
        let count = unsafe { insert(vector, bytes.as_ptr().cast(), 1, result, flags, context) };
        usize::try_from(count).map_err(|_| Errno(-count))
    });
    inserted as c_int
}

/// # Safety
/// As libfabric documents `fi_av_remove`.
unsafe extern "C" fn remove(
    vector: *mut fid_av,
    addresses: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let vector: &AddressVector = unsafe { border::object(vector.cast()) }?;
        if flags != 0 || (addresses.is_null() && count > 0) {
            return Err(Errno::EINVAL);
        }
        let removed = vector.with(|state, entries| {
            for index in 0..count {
                // SAFETY: there are `count` of them.
                if let Some(peer) = entries.remove(unsafe { addresses.add(index).read() })? {
                    state.forget(peer)?;
                }
            }
            Ok(())
        });
        // SAFETY: a domain is not closed before its address vectors.
        unsafe { &*vector.domain }.state()?.deliver();
        removed
    })
}

/// # Safety
/// As libfabric documents `fi_av_lookup`.
unsafe extern "C" fn lookup(
    vector: *mut fid_av,
    address: fi_addr_t,
    result: *mut c_void,
    length: *mut usize,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let vector: &AddressVector = unsafe { border::object(vector.cast()) }?;
        if length.is_null() {
            return Err(Errno::EINVAL);
        }
        let found = vector.with(|state, entries| {
            let peer = entries.peer(address)?;
            state.core.lookup_address(peer).ok_or(Errno::EINVAL)
        })?;
        // SAFETY: by the caller's contract. The whole length is returned where there is too little room.
        match unsafe { border::copy_out(&found.to_bytes(), result, length) } {
            Err(border::ETOOSMALL) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    })
}

/// As [`lookup`], or what a GPU needs in the place of the address (`FI_XPU`), which there is not.
///
/// # Safety
/// As libfabric documents `fi_av_lookup2`.
unsafe extern "C" fn lookup2(
    vector: *mut fid_av,
    address: fi_addr_t,
    result: *mut c_void,
    length: *mut usize,
    flags: u64,
    _xpu: *mut c_void,
) -> c_int {
    match flags {
        // SAFETY: the caller's contract is the same.
        0 => unsafe { lookup(vector, address, result, length) },
        _ => -libc::ENOSYS,
    }
}

/// # Safety
/// As libfabric documents `fi_av_straddr`.
unsafe extern "C" fn straddr(
    _vector: *mut fid_av,
    address: *const c_void,
    text: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    let written = border::count(|| {
        if address.is_null() || length.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: an address, of any alignment.
        let bytes = unsafe { address.cast::<[u8; RawAddress::LEN]>().read_unaligned() };
        let mut written = RawAddress::from_bytes(&bytes).to_string().into_bytes();
        let needed = written.len() + 1;
        // SAFETY: by the caller's contract.
        let room = unsafe { *length };
        written.truncate(room.saturating_sub(1));
        written.push(0);
        // SAFETY: as above.
        let copied = unsafe { border::copy_out(&written, text.cast(), length) };
        // SAFETY: as above.
        unsafe { length.write(needed) };
        copied.map(|()| 0)
    });
    match written {
        0 => text,
        _ => c"".as_ptr(),
    }
}
