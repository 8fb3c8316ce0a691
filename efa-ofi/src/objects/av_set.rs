//! Sets of addresses of an address vector, in an order: the members of collective operations.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard};

use efa_core::endpoint::{Errno, PeerId};

use crate::ffi::object::{Object, Ref, close, new_fid, object};
use crate::ffi::result::{EOPNOTSUPP, Result, status};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::address_vector::AddressVector;
use crate::state::addresses::Addresses;
use crate::state::domain::DomainState;

/// A set of addresses (`fid_av_set`).
#[repr(C)]
pub(crate) struct AvSet {
    c: fid_av_set,
    addresses: Mutex<Vec<fi_addr_t>>,
    vector: Ref<AddressVector>,
}

// SAFETY: `#[repr(C)]`, and `fid_av_set` begins with a `fid`; no other type has these operations.
unsafe impl Object for AvSet {
    const CLASS: u32 = FI_CLASS_AV_SET;
    const OPERATIONS: &'static Table<fi_ops> = &FID;
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<AvSet>),
    ..unsupported::FID
});

static OPS: Table<fi_ops_av_set> = Table::new(fi_ops_av_set {
    size: size_of::<fi_ops_av_set>(),
    set_union: Some(set_union),
    intersect: Some(intersect),
    diff: Some(diff),
    insert: Some(insert),
    remove: Some(remove),
    addr: Some(addr),
});

/// Flags of the operations that a set is for: any set is for all.
const OPERATIONS: u64 = FI_BARRIER_SET
    | FI_BROADCAST_SET
    | FI_ALLTOALL_SET
    | FI_ALLREDUCE_SET
    | FI_ALLGATHER_SET
    | FI_REDUCE_SCATTER_SET
    | FI_REDUCE_SET
    | FI_SCATTER_SET
    | FI_GATHER_SET;

impl AvSet {
    /// A set of all addresses (`FI_UNIVERSE`), of those in a range, or of none.
    ///
    /// # Errors
    /// `FI_EINVAL` for unknown flags and ranges that end before they begin, `FI_EOPNOTSUPP` for
    /// keys of other members (`comm_key`).
    pub(crate) fn open(
        vector: &AddressVector,
        attributes: &fi_av_set_attr,
        context: *mut c_void,
    ) -> Result<AvSet> {
        if attributes.flags & !(FI_UNIVERSE | OPERATIONS) != 0 {
            return Err(Errno::EINVAL);
        }
        if attributes.comm_key_size != 0 {
            return Err(EOPNOTSUPP);
        }
        let is_empty = [attributes.start_addr, attributes.end_addr].contains(&FI_ADDR_UNSPEC);
        let (start, end) = match attributes.flags & FI_UNIVERSE != 0 {
            true => (0, FI_ADDR_UNSPEC - 1),
            false => (attributes.start_addr, attributes.end_addr),
        };
        let universe = attributes.flags & FI_UNIVERSE != 0;
        if !is_empty && !universe && start > end {
            return Err(Errno::EINVAL);
        }
        let state = vector.domain.state()?;
        let known = known(&state, vector)?;
        let stride = attributes.stride.max(1);
        let wanted = |address: &fi_addr_t| {
            universe
                || (!is_empty
                    && (start..=end).contains(address)
                    && (address - start).is_multiple_of(stride))
        };
        let mut addresses: Vec<_> = known.peers().map(|peer| known.address(peer)).collect();
        addresses.sort_unstable();
        addresses.retain(wanted);
        Ok(AvSet {
            c: fid_av_set {
                fid: new_fid(context),
                ops: OPS.as_c(),
            },
            addresses: Mutex::new(addresses),
            vector: Ref::new(vector),
        })
    }

    fn addresses(&self) -> Result<MutexGuard<'_, Vec<fi_addr_t>>> {
        self.addresses.lock().map_err(|_| Errno::EOTHER)
    }

    /// Its members, in order.
    ///
    /// # Errors
    /// `FI_EINVAL` if one has left the address vector.
    pub(crate) fn members(&self) -> Result<Vec<PeerId>> {
        let addresses = self.addresses()?;
        let state = self.vector.domain.state()?;
        let known = known(&state, &self.vector)?;
        addresses
            .iter()
            .map(|address| known.peer(*address))
            .collect()
    }

    /// The address that names the set in calls. It is not an entry of an address vector.
    pub(crate) fn name(&self) -> fi_addr_t {
        std::ptr::from_ref(self).expose_provenance() as fi_addr_t
    }

    /// The addresses of `source`, for a change of this set.
    fn of_source(&self, source: &AvSet) -> Result<Vec<fi_addr_t>> {
        match self.vector.is(&source.vector) {
            true => Ok(source.addresses()?.clone()),
            false => Err(Errno::EINVAL),
        }
    }
}

/// The entries of an address vector.
fn known<'a>(state: &'a DomainState, vector: &AddressVector) -> Result<&'a Addresses> {
    let addresses = state.tables.vectors.get(vector.index);
    addresses.and_then(Option::as_ref).ok_or(Errno::EINVAL)
}

/// Opens a set of addresses of an address vector (`fi_av_set`).
///
/// # Returns
/// 0 with the set in `result`, or an error of [`AvSet::open`]; `-FI_EINVAL` for a wrong vector, and
/// without attributes or `result`.
///
/// # Safety
/// The attributes are null or valid, and `result` is null or valid for a write.
pub(crate) unsafe extern "C" fn open(
    vector: *mut fid_av,
    attributes: *mut fi_av_set_attr,
    result: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let vector: &AddressVector = unsafe { object(vector.cast()) }?;
        // SAFETY: by the caller's contract.
        let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::EINVAL)?;
        let set = AvSet::open(vector, attributes, context)?;
        // SAFETY: as above.
        unsafe { set.give_to(result) }
    })
}

/// Defines the calls that change a set by another.
macro_rules! set_calls {
    ($($(#[$documentation:meta])* $name:ident: |$set:ident, $source:ident| $change:expr;)*) => {$(
        $(#[$documentation])*
        ///
        /// # Returns
        /// 0; `-FI_EINVAL` for an object that is not a set, and for sets of different address
        /// vectors.
        ///
        /// # Safety
        /// Any pointers are permitted.
        unsafe extern "C" fn $name(set: *mut fid_av_set, source: *const fid_av_set) -> c_int {
            status(|| {
                // SAFETY: any pointer is permitted.
                let set: &AvSet = unsafe { object(set.cast()) }?;
                // SAFETY: as above.
                let $source = set.of_source(unsafe { object(source.cast()) }?)?;
                let mut $set = set.addresses()?;
                $change;
                Ok(())
            })
        }
    )*};
}

set_calls! {
    /// Adds the addresses of another set at the end (`fi_av_set_union`).
    set_union: |set, source| for address in source {
        if !set.contains(&address) {
            set.push(address);
        }
    };
    /// Removes the addresses that are not in another set (`fi_av_set_intersect`).
    intersect: |set, source| set.retain(|address| source.contains(address));
    /// Removes the addresses that are in another set (`fi_av_set_diff`).
    diff: |set, source| set.retain(|address| !source.contains(address));
}

/// Adds an address at the end (`fi_av_set_insert`), unless the set contains it.
///
/// # Returns
/// 0; `-FI_EINVAL` for an object that is not a set, and for addresses outside of the vector.
///
/// # Safety
/// Any pointer is permitted.
unsafe extern "C" fn insert(set: *mut fid_av_set, address: fi_addr_t) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let set: &AvSet = unsafe { object(set.cast()) }?;
        let state = set.vector.domain.state()?;
        known(&state, &set.vector)?.peer(address)?;
        drop(state);
        let mut addresses = set.addresses()?;
        if !addresses.contains(&address) {
            addresses.push(address);
        }
        Ok(())
    })
}

/// Removes an address (`fi_av_set_remove`).
///
/// # Returns
/// 0; `-FI_EINVAL` for an object that is not a set, and for addresses outside of the set.
///
/// # Safety
/// Any pointer is permitted.
unsafe extern "C" fn remove(set: *mut fid_av_set, address: fi_addr_t) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let set: &AvSet = unsafe { object(set.cast()) }?;
        let mut addresses = set.addresses()?;
        let index = addresses.iter().position(|other| *other == address);
        addresses.remove(index.ok_or(Errno::EINVAL)?);
        Ok(())
    })
}

/// Returns the address that names the set when an endpoint joins it (`fi_av_set_addr`).
///
/// # Returns
/// 0; `-FI_EINVAL` for an object that is not a set, and without `result`.
///
/// # Safety
/// `result` is null or valid for a write.
unsafe extern "C" fn addr(set: *mut fid_av_set, result: *mut fi_addr_t) -> c_int {
    status(|| {
        // SAFETY: any pointer is permitted.
        let set: &AvSet = unsafe { object(set.cast()) }?;
        // SAFETY: by the caller's contract.
        *unsafe { result.as_mut() }.ok_or(Errno::EINVAL)? = set.name();
        Ok(())
    })
}
