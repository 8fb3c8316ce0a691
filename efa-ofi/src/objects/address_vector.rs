//! Address vectors.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::Ipv6Addr;

use efa_core::address::{Gid, Qkey, Qpn, RawAddress};
use efa_core::endpoint::Errno;

use crate::ffi::host::log_info;
use crate::ffi::object::{Object, Ref, close, copy_out, new_fid, object};
use crate::ffi::result::{ENODATA, ENOSYS, ETOOSMALL, Result, ssize, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::av_set;
use crate::objects::domain::Domain;
use crate::objects::event_queue::EventQueue;
use crate::state::addresses::Addresses;
use crate::state::domain::DomainState;

/// An address vector (`fid_av`).
#[repr(C)]
pub(crate) struct AddressVector {
    c: fid_av,
    /// The index of its entries in the domain's tables.
    pub(crate) index: usize,
    pub(crate) domain: Ref<Domain>,
}

// SAFETY: `#[repr(C)]`, and the first member begins with a `fid`; no other type has these
// operations.
unsafe impl Object for AddressVector {
    const CLASS: u32 = FI_CLASS_AV;
    const OPERATIONS: &'static Table<fi_ops> = &FID;
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<AddressVector>),
    bind: Some(bind),
    ..unsupported::FID
});

/// The operations of libfabric 2.7 (`rdma/fi_domain.h`); the headers for the bindings end with
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
        av_set: Some(av_set::open),
    },
    insert_auth_key: unsupported::insert_auth_key,
    lookup_auth_key: unsupported::lookup_auth_key,
    set_user_id: unsupported::set_user_id,
    lookup2,
});

impl AddressVector {
    /// Opens a vector. Attributes that the application does not set get defaults.
    ///
    /// # Errors
    /// `FI_ENOSYS` for features that this provider lacks: asynchronous insertion, vectors that are
    /// shared by name, and completions with the application's own addresses (`FI_AV_USER_ID`).
    /// `FI_EINVAL` for unknown types.
    pub(crate) fn open(
        domain: &Domain,
        attributes: &mut fi_av_attr,
        context: *mut c_void,
    ) -> Result<AddressVector> {
        if attributes.flags & !(FI_READ | FI_SYMMETRIC) != 0
            || !attributes.name.is_null()
            || attributes.rx_ctx_bits != 0
        {
            return Err(ENOSYS);
        }
        match attributes.type_ {
            FI_AV_UNSPEC => attributes.type_ = FI_AV_TABLE,
            FI_AV_MAP | FI_AV_TABLE => {}
            _ => return Err(Errno::EINVAL),
        }
        let mut state = domain.state()?;
        // Indices are not reused: endpoints of a vector that was closed keep theirs.
        let index = state.tables.vectors.len();
        state.tables.vectors.push(Some(Addresses::default()));
        Ok(AddressVector {
            c: fid_av {
                fid: new_fid(context),
                ops: OPS.as_c(),
            },
            index,
            domain: Ref::new(domain),
        })
    }

    /// Runs a call with the domain's state and the vector's entries.
    fn with<T>(
        &self,
        call: impl FnOnce(&mut DomainState, &mut Addresses) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.domain.state()?;
        let mut addresses = state.tables.vectors[self.index].take().unwrap_or_default();
        let result = call(&mut state, &mut addresses);
        state.tables.vectors[self.index] = Some(addresses);
        result
    }
}

impl Drop for AddressVector {
    fn drop(&mut self) {
        if let Ok(mut state) = self.domain.state()
            && let Some(addresses) = state.tables.vectors[self.index].take()
        {
            for peer in addresses.peers() {
                // The device may keep an address handle that it fails to release; the vector is
                // closed in any case.
                let _ = state.forget(peer);
            }
        }
    }
}

/// The address that a node and a service name: an address as `fi_tostr` and this provider write it,
/// or a GID and a queue pair number.
///
/// # Errors
/// `FI_ENODATA` for other texts, which are in the log.
pub(crate) fn address_of(node: &str, service: Option<&str>) -> Result<RawAddress> {
    let refuse = |reason: String| {
        log_info!(Core, "{reason}");
        ENODATA
    };
    if let Ok(address) = node.parse() {
        return Ok(address);
    }
    let gid: Ipv6Addr = node.parse().map_err(|_| {
        refuse(format!(
            "`{node}` is neither a GID nor an address such as [fe80::1]:2/0x00000003"
        ))
    })?;
    let qpn = service.unwrap_or("0");
    let qpn = qpn
        .parse()
        .map_err(|_| refuse(format!("service `{qpn}` is not a queue pair number")))?;
    Ok(RawAddress::new(Gid::from(gid), Qpn(qpn), Qkey(0)))
}

/// Binds an event queue, which receives no events (`fi_av_bind`).
///
/// # Returns
/// 0; `-FI_EINVAL` for other objects, and with flags.
///
/// # Safety
/// Any pointers are permitted.
unsafe extern "C" fn bind(vector: *mut fid, queue: *mut fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let _: &AddressVector = unsafe { object(vector.cast()) }?;
        // SAFETY: as above.
        let _: &EventQueue = unsafe { object(queue.cast()) }?;
        match flags {
            0 => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    })
}

/// Adds addresses (`fi_av_insert`).
///
/// # Returns
/// The number of added addresses; `-FI_EINVAL` for unknown flags and missing addresses.
///
/// # Safety
/// `addresses` is null or has `count` addresses, and `results` is null or has room for `count`
/// entries. With `FI_SYNC_ERR`, `context` is null or has room for `count` error numbers.
unsafe extern "C" fn insert(
    vector: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    results: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let inserted = ssize(|| {
        // SAFETY: by the caller's contract.
        let vector: &AddressVector = unsafe { object(vector.cast()) }?;
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
                // SAFETY: `addresses` has `count` addresses, of any alignment.
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
                // SAFETY: both have room for `count` of them, unless they are null.
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

/// Adds the address that two texts name (`fi_av_insertsvc`).
///
/// # Returns
/// 1, 0 if it cannot be reached, or `-FI_EINVAL` if the texts do not name an address.
///
/// # Safety
/// `node` and `service` are null or strings, and `result` is null or has room for one entry. With
/// `FI_SYNC_ERR`, `context` is null or has room for one error number.
unsafe extern "C" fn insertsvc(
    vector: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    result: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let inserted = ssize(|| {
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
        // SAFETY: there is one address, and room for one result by the caller's contract.
        let count = unsafe { insert(vector, bytes.as_ptr().cast(), 1, result, flags, context) };
        usize::try_from(count).map_err(|_| Errno(-count))
    });
    inserted as c_int
}

/// Removes addresses (`fi_av_remove`).
///
/// # Returns
/// 0; `-FI_EINVAL` for flags and for missing entries.
///
/// # Safety
/// `addresses` is null or has `count` entries.
unsafe extern "C" fn remove(
    vector: *mut fid_av,
    addresses: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    status(|| {
        // SAFETY: by the caller's contract.
        let vector: &AddressVector = unsafe { object(vector.cast()) }?;
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
        vector.domain.state()?.deliver();
        removed
    })
}

/// Copies an address out, truncated to the buffer, and returns its full length (`fi_av_lookup`).
///
/// # Returns
/// 0; `-FI_EINVAL` for an unknown entry.
///
/// # Safety
/// `length` is null or valid for reads and writes, and `result` is valid for `length` bytes.
unsafe extern "C" fn lookup(
    vector: *mut fid_av,
    address: fi_addr_t,
    result: *mut c_void,
    length: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: by the caller's contract.
        let vector: &AddressVector = unsafe { object(vector.cast()) }?;
        let found = vector.with(|state, entries| {
            let peer = entries.peer(address)?;
            state.core.lookup_address(peer).ok_or(Errno::EINVAL)
        })?;
        // SAFETY: by the caller's contract.
        match unsafe { copy_out(&found.to_bytes(), result, length) } {
            Err(ETOOSMALL) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    })
}

/// As [`lookup`]. The form for GPUs (`FI_XPU`) is not supported (`fi_av_lookup2`).
///
/// # Returns
/// As [`lookup`]; `-FI_ENOSYS` with flags.
///
/// # Safety
/// `length` is null or valid for reads and writes, and `result` is valid for `length` bytes.
unsafe extern "C" fn lookup2(
    vector: *mut fid_av,
    address: fi_addr_t,
    result: *mut c_void,
    length: *mut usize,
    flags: u64,
    _xpu: *mut c_void,
) -> c_int {
    match flags {
        // SAFETY: `length` and `result` by the caller's contract.
        0 => unsafe { lookup(vector, address, result, length) },
        _ => -libc::ENOSYS,
    }
}

/// Formats an address as text, truncated to the buffer, and returns the length including the
/// terminator (`fi_av_straddr`).
///
/// # Returns
/// The text, or an empty one if a pointer is null.
///
/// # Safety
/// `address` is null or points to an address; `length` is null or valid for reads and writes, and
/// `text` is valid for `length` bytes.
unsafe extern "C" fn straddr(
    _vector: *mut fid_av,
    address: *const c_void,
    text: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    let written = ssize(|| {
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
        let copied = unsafe { copy_out(&written, text.cast(), length) };
        // SAFETY: as above.
        unsafe { length.write(needed) };
        copied.map(|()| 0)
    });
    match written {
        0 => text,
        _ => c"".as_ptr(),
    }
}
