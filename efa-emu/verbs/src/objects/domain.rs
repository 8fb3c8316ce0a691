//! Protection domains, parent domains and thread domains.

use std::sync::Arc;

use efa_device_model::device::PdId;

use super::context::Context;
use super::handle::{CStruct, Handle, handle};
use super::liveness::SharedLiveness;
use crate::abi::{ibv_pd, ibv_td};
use crate::ffi::errno::Errno;

/// A protection domain, or a parent domain, which refers to one.
pub(crate) struct Domain {
    c: CStruct<ibv_pd>,
    pub(crate) context: Arc<Context>,
    pub(crate) id: PdId,
    /// Counts the objects in the domain.
    pub(crate) liveness: SharedLiveness,
    parent: Option<ParentDomain>,
}

/// The parts of a parent domain.
struct ParentDomain {
    original: Arc<Domain>,
    thread_domain: Option<Arc<ThreadDomain>>,
}

handle!(Domain, ibv_pd);

impl Domain {
    /// Makes a protection domain of the device.
    pub(crate) fn alloc(context: Arc<Context>) -> Result<Arc<Domain>, Errno> {
        let hardware = context.hardware()?;
        let id = hardware.with_device(|device| device.alloc_pd())??;
        Ok(Domain::new(context, id, None))
    }

    /// Makes a parent domain, which keeps its parts until [`Domain::dealloc`].
    pub(crate) fn parent_of(
        original: Arc<Domain>,
        thread_domain: Option<Arc<ThreadDomain>>,
    ) -> Result<Arc<Domain>, Errno> {
        original.liveness.join(|| match &thread_domain {
            Some(thread_domain) => thread_domain.liveness.join(|| Ok(())),
            None => Ok(()),
        })?;
        let (context, id) = (Arc::clone(&original.context), original.id);
        let parent = ParentDomain {
            original,
            thread_domain,
        };
        Ok(Domain::new(context, id, Some(parent)))
    }

    fn new(context: Arc<Context>, id: PdId, parent: Option<ParentDomain>) -> Arc<Domain> {
        Arc::new(Domain {
            c: CStruct::new(ibv_pd {
                context: context.c_pointer(),
                handle: id.0,
            }),
            context,
            id,
            liveness: SharedLiveness::new(),
            parent,
        })
    }

    pub(crate) fn is_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Deallocates the domain, and its handle with `remove`; `EBUSY` while any object uses it.
    pub(crate) fn dealloc(&self, remove: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.liveness.end(|| {
            if !self.is_parent() {
                self.context.forget(|device| device.dealloc_pd(self.id))?;
            }
            remove()
        })?;
        if let Some(parent) = &self.parent {
            parent.original.liveness.leave();
            if let Some(thread_domain) = &parent.thread_domain {
                thread_domain.liveness.leave();
            }
        }
        Ok(())
    }
}

/// A program's promise to use objects in one thread only. It saves no locks here.
pub(crate) struct ThreadDomain {
    c: CStruct<ibv_td>,
    /// Counts the parent domains that use it.
    pub(crate) liveness: SharedLiveness,
}

handle!(ThreadDomain, ibv_td);

impl ThreadDomain {
    pub(crate) fn new(context: &Context) -> Arc<ThreadDomain> {
        let context = context.c_pointer();
        Arc::new(ThreadDomain {
            c: CStruct::new(ibv_td { context }),
            liveness: SharedLiveness::new(),
        })
    }
}
