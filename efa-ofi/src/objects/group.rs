//! Collective groups: an endpoint among the members of a set of addresses.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use efa_core::endpoint::{Errno, Failure, PeerId};

use crate::ffi::object::{Object, Ref, close, new_fid};
use crate::ffi::result::{EBUSY, ENOEQ, EOPBADSTATE, EOPNOTSUPP, Result};
use crate::ffi::table::Table;
use crate::ffi::*;
use crate::objects::av_set::AvSet;
use crate::objects::endpoint::Endpoint;
use crate::state::collective::{CompletionAction, Operands, Operation};
use crate::state::collective_messages;
use crate::state::domain::DomainState;
use crate::state::events::Events;
use crate::state::schedule::{Collective, Schedule};

/// A collective group (`fid_mc`).
#[repr(C)]
pub(crate) struct Group {
    c: fid_mc,
    pub(crate) members: Arc<[PeerId]>,
    /// The number of the endpoint among the members.
    pub(crate) rank: usize,
    /// The part of tags that all members agree on.
    id: u64,
    /// Number of operations so far; the same for all members.
    sequence: AtomicU64,
    /// All members have joined.
    joined: Arc<AtomicBool>,
    /// Its operations have this, too.
    activity: Arc<()>,
    pub(crate) endpoint: Ref<Endpoint>,
}

// SAFETY: `#[repr(C)]`, and `fid_mc` begins with a `fid`; no other type has these operations.
unsafe impl Object for Group {
    const CLASS: u32 = FI_CLASS_MC;
    const OPERATIONS: &'static Table<fi_ops> = &FID;

    fn before_close(&self) -> Result<()> {
        let mut state = self.endpoint.domain().state()?;
        match state.end_collectives(&self.activity) {
            true => Ok(()),
            false => Err(EBUSY),
        }
    }
}

static FID: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close::<Group>),
    ..unsupported::FID
});

/// A hash that all members compute (FNV-1a).
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Group {
    /// The endpoint among the members of a set.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` without the capability `FI_COLLECTIVE`, `FI_EOPBADSTATE` before the endpoint
    /// is enabled, `FI_ENOEQ` without an event queue, `FI_EINVAL` if the endpoint is not a member.
    pub(crate) fn new(endpoint: &Endpoint, set: &AvSet, context: *mut c_void) -> Result<Group> {
        let enabled = endpoint.enabled()?;
        if !enabled.route.collective {
            return Err(EOPNOTSUPP);
        }
        if enabled.route.events.is_none() {
            return Err(ENOEQ);
        }
        let members = set.members()?;
        let mut state = endpoint.domain().state()?;
        let own = state
            .core
            .endpoint(enabled.id)
            .ok_or(EOPBADSTATE)?
            .address();
        let mut addresses = Vec::new();
        for member in &members {
            addresses.push(state.core.lookup_address(*member).ok_or(Errno::EINVAL)?);
        }
        let rank = addresses.iter().position(|address| *address == own);
        let rank = rank.ok_or(Errno::EINVAL)?;
        let hashed = hash(addresses.iter().flat_map(|address| address.to_bytes()));
        let joins = endpoint.joins(hashed)?;
        let id = hash([hashed.to_ne_bytes(), joins.to_ne_bytes()].concat());
        Ok(Group {
            c: fid_mc {
                fid: new_fid(context),
                fi_addr: FI_ADDR_UNSPEC,
            },
            members: members.into(),
            rank,
            id,
            sequence: AtomicU64::new(0),
            joined: Arc::default(),
            activity: Arc::default(),
            endpoint: Ref::new(endpoint),
        })
    }

    /// Sets the address that names the group in calls: the memory address of the group, which is
    /// fixed from now on. It is not an entry of an address vector.
    pub(crate) fn note_name(&mut self) {
        self.c.fi_addr = std::ptr::from_mut(self).expose_provenance() as fi_addr_t;
    }

    /// The tag of the next operation.
    fn next_tag(&self) -> u64 {
        collective_messages::tag(self.id, self.sequence.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns whether all members have joined.
    pub(crate) fn is_joined(&self) -> bool {
        self.joined.load(Ordering::Acquire)
    }

    /// An operation of the group, with `length` bytes, or slices of `length` bytes.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` if the endpoint is not enabled.
    pub(crate) fn operation(
        &self,
        collective: Collective,
        length: usize,
        operands: Operands,
        end: impl CompletionAction + 'static,
    ) -> Result<Operation> {
        let schedule = Schedule::new(collective, self.rank, self.members.len(), length);
        Ok(Operation::new(
            self.endpoint.enabled()?.id,
            (Arc::clone(&self.members), Arc::clone(&self.activity)),
            self.next_tag(),
            schedule,
            operands,
            end,
        ))
    }

    /// Starts a barrier among the members, unless the application asserts that they have all
    /// joined. At its end an event reports that the endpoint has joined.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` if the endpoint is not enabled.
    pub(crate) fn join(&self, is_agreed: bool) -> Result<()> {
        let enabled = self.endpoint.enabled()?;
        let joining = JoinEvent {
            events: enabled.route.events.clone().ok_or(ENOEQ)?,
            group: std::ptr::from_ref(&self.c.fid).expose_provenance(),
            context: self.c.fid.context.expose_provenance(),
            joined: Arc::clone(&self.joined),
        };
        let mut state = self.endpoint.domain().state()?;
        if is_agreed {
            joining.report(&mut state, None);
            return Ok(());
        }
        let nothing = Operands {
            buffer: 0,
            result: 0,
            action: None,
        };
        let operation = self.operation(Collective::Barrier, 0, nothing, joining)?;
        state.start_collective(operation);
        Ok(())
    }
}

/// The event about a group that an endpoint has joined.
struct JoinEvent {
    events: Arc<Events>,
    /// Addresses of the group and of its context.
    group: usize,
    context: usize,
    joined: Arc<AtomicBool>,
}

impl CompletionAction for JoinEvent {
    fn report(&self, _: &mut DomainState, failure: Option<(Failure, Option<PeerId>)>) {
        let group = std::ptr::with_exposed_provenance_mut::<fid>(self.group);
        let context = std::ptr::with_exposed_provenance_mut(self.context);
        match failure {
            // SAFETY: the group is open while its endpoint has operations of it.
            Some((failure, _)) => self.events.fail(unsafe { &*group }, failure),
            None => {
                self.joined.store(true, Ordering::Release);
                self.events.complete(FI_JOIN_COMPLETE, group, context);
            }
        }
    }
}
