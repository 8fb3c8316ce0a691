//! Reliable connections (RC) with tag matching over verbs, for devices that support it. EFA does
//! not.
//!
//! A [`Connection`] is one end: a queue pair with its own memory, whose first byte has offset 0,
//! and one completion queue. It receives from its own queue, or from a shared one that matches
//! tags.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use efa_core::address::Gid;
use efa_verbs_sys as ffi;

use crate::device::{DeviceList, PORT, check, device_name, not_opened, verbs_error};
use crate::error::OpenError;
use crate::loaded::{self, around};
use crate::queue_pair::create_qp_ex;

/// Work requests of each queue, and completions.
const DEPTH: u32 = 256;

/// The operation of a work request in a send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// It sends a message.
    Send,
    /// It reads memory of the peer.
    Read {
        /// First byte.
        address: u64,
        /// The peer's key.
        key: u32,
    },
}

/// An operation on a list of tags, with its parameters (`ibv_post_srq_ops(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagRequest {
    /// Names it in its completion.
    pub wr_id: u64,
    /// Whether a success is reported too.
    pub is_signaled: bool,
    /// The number of unexpected messages that the program has handled, if the operation reports it.
    pub handled: Option<u32>,
    /// The operation.
    pub operation: TagOperation,
}

/// An operation on a list of tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TagOperation {
    /// Adds a tag, with memory of the connection for its message.
    Add {
        /// Identifies the memory in completions.
        recv_wr_id: u64,
        /// The offset of the memory.
        offset: usize,
        /// Its length in bytes.
        length: usize,
        /// The tag.
        tag: u64,
        /// The bits of it that are compared.
        mask: u64,
    },
    /// Deletes the tag with this handle.
    Delete(u32),
    /// No change: reports the number of handled unexpected messages.
    Sync,
}

/// A completion, with the numbers of the verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The work request.
    pub wr_id: u64,
    /// An `ibv_wc_status`.
    pub status: u32,
    /// An `ibv_wc_opcode`; undefined if the work request failed.
    pub opcode: u32,
    /// Flags of `ibv_wc_flags`.
    pub flags: u32,
    /// The number of received bytes.
    pub length: u32,
    /// The tag of a message that was matched.
    pub tag: u64,
    /// The sender's own data in a message that was matched.
    pub data: u32,
}

/// The configuration of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionConfig {
    /// The size of its memory in bytes.
    pub memory: usize,
    /// The size of its list of tags; `None` for a private receive queue.
    pub tags: Option<u32>,
}

/// The peer's address, and the parameters of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The peer's GID.
    pub gid: Gid,
    /// The peer's queue pair.
    pub qpn: u32,
    /// Payload bytes of a packet: 256 to 4096, a power of two.
    pub mtu: u32,
}

/// A verbs object, destroyed when dropped.
struct VerbsObject<T> {
    object: NonNull<T>,
    end: unsafe fn(*mut T) -> c_int,
}

impl<T> VerbsObject<T> {
    fn new(object: *mut T, end: unsafe fn(*mut T) -> c_int) -> Option<VerbsObject<T>> {
        NonNull::new(object).map(|object| VerbsObject { object, end })
    }

    fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for VerbsObject<T> {
    fn drop(&mut self) {
        // SAFETY: the object is alive, and all objects that were created from it were dropped
        // before.
        unsafe { (self.end)(self.as_ptr()) };
    }
}

/// A device that matches tags.
#[derive(Clone)]
pub struct TagMatchingDevice {
    context: Rc<VerbsObject<ffi::ibv_context>>,
    name: Rc<str>,
    gid: Gid,
}

impl TagMatchingDevice {
    /// Opens the first device of the machine that matches tags; `None` if none does.
    ///
    /// # Errors
    /// [`OpenError`] names the call that failed.
    pub fn open() -> Result<Option<TagMatchingDevice>, OpenError> {
        loaded::load()?;
        let list = DeviceList::get()?;
        for device in list.devices() {
            let name = device_name(device);
            // SAFETY: `device` is an entry of a list that is still alive.
            let context = unsafe { loaded::ibv_open_device(device) };
            let context = VerbsObject::new(context, loaded::ibv_close_device);
            let context = context.ok_or_else(|| not_opened(device, &name))?;
            if !matches_tags(&context) {
                continue;
            }
            let mut gid = ffi::ibv_gid::default();
            // SAFETY: the context is open and `gid` is a whole `ibv_gid`.
            let result = unsafe { loaded::ibv_query_gid(context.as_ptr(), PORT, 0, &mut gid) };
            check("ibv_query_gid", &name, result)?;
            return Ok(Some(TagMatchingDevice {
                context: Rc::new(context),
                name: name.into(),
                // SAFETY: every bit pattern is valid for the byte view of the union.
                gid: Gid(unsafe { gid.raw }),
            }));
        }
        Ok(None)
    }

    /// Creates one end of a connection.
    ///
    /// # Errors
    /// [`OpenError`] names the call that failed.
    pub fn connection(&self, config: &ConnectionConfig) -> Result<Connection, OpenError> {
        let context = self.context.as_ptr();
        let failed = |call| verbs_error(call, &self.name);
        // SAFETY: the context is open.
        let pd = unsafe { loaded::ibv_alloc_pd(context) };
        let pd =
            VerbsObject::new(pd, loaded::ibv_dealloc_pd).ok_or_else(|| failed("ibv_alloc_pd"))?;
        let memory: Box<[UnsafeCell<u8>]> =
            (0..config.memory).map(|_| UnsafeCell::new(0)).collect();
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let first = UnsafeCell::raw_get(memory.as_ptr());
        // SAFETY: the memory is valid as long as the registration, whose field is dropped first.
        let region =
            unsafe { loaded::ibv_reg_mr(pd.as_ptr(), first.cast(), memory.len(), access as c_int) };
        let region = VerbsObject::new(region, loaded::ibv_dereg_mr);
        let region = region.ok_or_else(|| failed("ibv_reg_mr"))?;
        let cq = self.completion_queue()?;
        let shared = match config.tags {
            Some(tags) => Some(self.shared_queue(&pd, &cq, tags)?),
            None => None,
        };
        let mut attr = ffi::ibv_qp_init_attr_ex {
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: shared.as_ref().map_or(null_mut(), VerbsObject::as_ptr),
            cap: ffi::ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: if shared.is_some() { 0 } else { DEPTH },
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            comp_mask: ffi::IBV_QP_INIT_ATTR_PD,
            pd: pd.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the context is open, and the attributes name living objects.
        let qp = unsafe { create_qp_ex(context, &mut attr) };
        let qp = VerbsObject::new(qp, loaded::ibv_destroy_qp);
        Ok(Connection {
            qp: qp.ok_or_else(|| failed("ibv_create_qp_ex"))?,
            shared,
            cq,
            region,
            memory,
            _pd: pd,
            device: self.clone(),
        })
    }

    fn completion_queue(&self) -> Result<VerbsObject<ffi::ibv_cq>, OpenError> {
        let fields = ffi::IBV_WC_EX_WITH_BYTE_LEN | ffi::IBV_WC_EX_WITH_TM_INFO;
        let mut attr = ffi::ibv_cq_init_attr_ex {
            cqe: DEPTH,
            wc_flags: u64::from(fields),
            ..Default::default()
        };
        let context = self.context.as_ptr();
        let call = around!(context, create_cq_ex);
        // SAFETY: the context is open and the attributes are complete.
        let cq = call.map_or(null_mut(), |call| unsafe { call(context, &mut attr) });
        // `struct ibv_cq` is the beginning of `struct ibv_cq_ex`.
        let cq = VerbsObject::new(cq.cast(), loaded::ibv_destroy_cq);
        cq.ok_or_else(|| verbs_error("ibv_create_cq_ex", &self.name))
    }

    fn shared_queue(
        &self,
        pd: &VerbsObject<ffi::ibv_pd>,
        cq: &VerbsObject<ffi::ibv_cq>,
        tags: u32,
    ) -> Result<VerbsObject<ffi::ibv_srq>, OpenError> {
        let mut attr = ffi::ibv_srq_init_attr_ex {
            attr: ffi::ibv_srq_attr {
                max_wr: DEPTH,
                max_sge: 1,
                srq_limit: 0,
            },
            comp_mask: ffi::IBV_SRQ_INIT_ATTR_TYPE
                | ffi::IBV_SRQ_INIT_ATTR_PD
                | ffi::IBV_SRQ_INIT_ATTR_CQ
                | ffi::IBV_SRQ_INIT_ATTR_TM,
            srq_type: ffi::IBV_SRQT_TM,
            pd: pd.as_ptr(),
            cq: cq.as_ptr(),
            tm_cap: ffi::ibv_tm_cap {
                max_num_tags: tags,
                max_ops: tags,
            },
            ..Default::default()
        };
        let context = self.context.as_ptr();
        let call = around!(context, create_srq_ex);
        // SAFETY: the context is open, and the attributes name living objects.
        let queue = call.map_or(null_mut(), |call| unsafe { call(context, &mut attr) });
        let queue = VerbsObject::new(queue, loaded::ibv_destroy_srq);
        queue.ok_or_else(|| verbs_error("ibv_create_srq_ex", &self.name))
    }
}

/// Whether a device matches tags on reliable connections.
fn matches_tags(context: &VerbsObject<ffi::ibv_context>) -> bool {
    let Some(call) = around!(context.as_ptr(), query_device_ex) else {
        return false;
    };
    let mut attr = ffi::ibv_device_attr_ex::default();
    let size = size_of::<ffi::ibv_device_attr_ex>();
    // SAFETY: the context is open, and `attr` has the length that is passed with it.
    let result = unsafe { call(context.as_ptr(), std::ptr::null(), &mut attr, size) };
    let caps = attr.tm_caps;
    result == 0 && caps.max_num_tags > 0 && caps.flags & ffi::IBV_TM_CAP_RC != 0
}

/// One end of a connection.
pub struct Connection {
    // Each field is dropped before those that it depends on.
    qp: VerbsObject<ffi::ibv_qp>,
    shared: Option<VerbsObject<ffi::ibv_srq>>,
    cq: VerbsObject<ffi::ibv_cq>,
    region: VerbsObject<ffi::ibv_mr>,
    memory: Box<[UnsafeCell<u8>]>,
    _pd: VerbsObject<ffi::ibv_pd>,
    device: TagMatchingDevice,
}

impl Connection {
    /// The address of this end for the peer. Both ends use the same packet size.
    pub fn address(&self, mtu: u32) -> Peer {
        Peer {
            gid: self.device.gid,
            // SAFETY: the queue pair is alive.
            qpn: unsafe { self.qp.object.as_ref() }.qp_num,
            mtu,
        }
    }

    /// The address of the memory's first byte, and its key for the peer's reads.
    pub fn region(&self) -> (u64, u32) {
        // SAFETY: the registration is alive.
        let key = unsafe { self.region.object.as_ref() }.rkey;
        (self.memory.as_ptr().addr() as u64, key)
    }

    /// Connects with a peer, which connects with this end.
    ///
    /// # Errors
    /// [`OpenError::Verbs`] with the step that failed.
    pub fn connect(&self, peer: &Peer) -> Result<(), OpenError> {
        use ffi::ibv_qp_attr_mask as Mask;
        use ffi::ibv_qp_state as State;
        let access = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let mut attr = ffi::ibv_qp_attr {
            path_mtu: peer.mtu.max(256).ilog2() - 7,
            dest_qp_num: peer.qpn,
            qp_access_flags: access,
            port_num: PORT,
            ah_attr: ffi::ibv_ah_attr {
                grh: ffi::ibv_global_route {
                    dgid: ffi::ibv_gid { raw: peer.gid.0 },
                    hop_limit: 64,
                    ..Default::default()
                },
                is_global: 1,
                port_num: PORT,
                ..Default::default()
            },
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            // About a second: the other end may have to wait for a processor.
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            ..Default::default()
        };
        let steps = [
            (
                "ibv_modify_qp(INIT)",
                State::IBV_QPS_INIT,
                Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS,
            ),
            (
                "ibv_modify_qp(RTR)",
                State::IBV_QPS_RTR,
                Mask::IBV_QP_AV
                    | Mask::IBV_QP_PATH_MTU
                    | Mask::IBV_QP_DEST_QPN
                    | Mask::IBV_QP_RQ_PSN
                    | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                    | Mask::IBV_QP_MIN_RNR_TIMER,
            ),
            (
                "ibv_modify_qp(RTS)",
                State::IBV_QPS_RTS,
                Mask::IBV_QP_TIMEOUT
                    | Mask::IBV_QP_RETRY_CNT
                    | Mask::IBV_QP_RNR_RETRY
                    | Mask::IBV_QP_SQ_PSN
                    | Mask::IBV_QP_MAX_QP_RD_ATOMIC,
            ),
        ];
        for (call, state, mask) in steps {
            attr.qp_state = state;
            let mask = (mask | Mask::IBV_QP_STATE).0 as c_int;
            // SAFETY: the queue pair is alive and `attr` has every member that the mask names.
            let result = unsafe { loaded::ibv_modify_qp(self.qp.as_ptr(), &mut attr, mask) };
            check(call, &self.device.name, result)?;
        }
        Ok(())
    }

    /// Copies bytes of the memory.
    ///
    /// # Panics
    /// If the memory does not have them.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let bytes = &self.memory[offset..offset + length];
        let mut copy = vec![0; length];
        // SAFETY: both have `length` bytes. The device may write to them meanwhile; only bytes
        // whose completion was polled are defined.
        unsafe { UnsafeCell::raw_get(bytes.as_ptr()).copy_to(copy.as_mut_ptr(), length) };
        copy
    }

    /// Changes bytes of the memory.
    ///
    /// # Panics
    /// If the memory does not have them.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let place = &self.memory[offset..offset + bytes.len()];
        // SAFETY: both have the same number of bytes, and no reference to them exists.
        unsafe { UnsafeCell::raw_get(place.as_ptr()).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// A range of the memory, for a work request.
    fn part(&self, offset: usize, length: usize) -> ffi::ibv_sge {
        // SAFETY: the registration is alive.
        let lkey = unsafe { self.region.object.as_ref() }.lkey;
        ffi::ibv_sge {
            addr: self.region().0 + offset as u64,
            length: length as u32,
            lkey,
        }
    }

    /// The functions in the context's table.
    fn calls(&self) -> &ffi::ibv_context_ops {
        // SAFETY: the context is open, and its table does not change.
        unsafe { &(*self.device.context.as_ptr()).ops }
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), OpenError> {
        check(call, &self.device.name, result)
    }

    /// Posts a signaled work request with a range of the memory.
    ///
    /// # Errors
    /// [`OpenError::Verbs`] if the queue pair refuses it.
    pub fn post(
        &mut self,
        wr_id: u64,
        work: Work,
        offset: usize,
        length: usize,
    ) -> Result<(), OpenError> {
        let mut part = self.part(offset, length);
        let mut wr = ffi::ibv_send_wr {
            wr_id,
            sg_list: &mut part,
            num_sge: 1,
            opcode: ffi::ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        if let Work::Read { address, key } = work {
            wr.opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_READ;
            wr.wr.rdma.remote_addr = address;
            wr.wr.rdma.rkey = key;
        }
        let mut bad = null_mut();
        let call = self.calls().post_send;
        // SAFETY: the queue pair is alive, and the call copies the request.
        let result = call.map_or(libc::EOPNOTSUPP, |call| unsafe {
            call(self.qp.as_ptr(), &mut wr, &mut bad)
        });
        self.check("ibv_post_send", result)
    }

    /// Posts a receive with a range of the memory.
    ///
    /// # Errors
    /// [`OpenError::Verbs`] if the queue refuses it.
    pub fn post_receive(
        &mut self,
        wr_id: u64,
        offset: usize,
        length: usize,
    ) -> Result<(), OpenError> {
        let mut part = self.part(offset, length);
        let mut wr = ffi::ibv_recv_wr {
            wr_id,
            sg_list: &mut part,
            num_sge: 1,
            ..Default::default()
        };
        let mut bad = null_mut();
        let calls = self.calls();
        let result = match (&self.shared, calls.post_srq_recv, calls.post_recv) {
            // SAFETY: the queue is alive, and the call copies the receive.
            (Some(shared), Some(call), _) => unsafe { call(shared.as_ptr(), &mut wr, &mut bad) },
            // SAFETY: as above.
            (None, _, Some(call)) => unsafe { call(self.qp.as_ptr(), &mut wr, &mut bad) },
            _ => libc::EOPNOTSUPP,
        };
        self.check("ibv_post_recv", result)
    }

    /// Posts an operation on the list of tags. Returns the handle of a tag that was added.
    ///
    /// # Errors
    /// [`OpenError::Verbs`] if the list refuses it, or if there is no list.
    pub fn post_tag_request(&mut self, request: &TagRequest) -> Result<u32, OpenError> {
        let mut flags = 0;
        if request.is_signaled {
            flags |= ffi::IBV_OPS_SIGNALED;
        }
        if request.handled.is_some() {
            flags |= ffi::IBV_OPS_TM_SYNC;
        }
        let mut part;
        let mut wr = ffi::ibv_ops_wr {
            wr_id: request.wr_id,
            flags: flags as c_int,
            ..Default::default()
        };
        wr.tm.unexpected_cnt = request.handled.unwrap_or(0);
        wr.opcode = match request.operation {
            TagOperation::Add {
                recv_wr_id,
                offset,
                length,
                tag,
                mask,
            } => {
                part = self.part(offset, length);
                let add = &mut wr.tm.add;
                (add.recv_wr_id, add.tag, add.mask) = (recv_wr_id, tag, mask);
                (add.sg_list, add.num_sge) = (&mut part, 1);
                ffi::IBV_WR_TAG_ADD
            }
            TagOperation::Delete(handle) => {
                wr.tm.handle = handle;
                ffi::IBV_WR_TAG_DEL
            }
            TagOperation::Sync => ffi::IBV_WR_TAG_SYNC,
        };
        let mut bad = null_mut();
        let call = around!(self.device.context.as_ptr(), post_srq_ops);
        let result = match (call, &self.shared) {
            // SAFETY: the queue is alive, and the call copies the request, which is alive as well.
            (Some(call), Some(shared)) => unsafe { call(shared.as_ptr(), &mut wr, &mut bad) },
            _ => libc::EOPNOTSUPP,
        };
        self.check("ibv_post_srq_ops", result)?;
        Ok(wr.tm.handle)
    }

    /// The next completion.
    pub fn poll(&mut self) -> Option<Completion> {
        let cq: *mut ffi::ibv_cq_ex = self.cq.as_ptr().cast();
        let mut attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue is alive and was created as an extended one, with the fields that are
        // read. `&mut self` excludes other sessions, and this one ends before the function returns.
        unsafe {
            let table = &*cq;
            if (table.start_poll?)(cq, &mut attr) != 0 {
                return None;
            }
            let mut completion = Completion {
                wr_id: table.wr_id,
                status: table.status,
                ..Completion::default()
            };
            if let (Some(opcode), Some(flags), Some(length), Some(info)) = (
                table.read_opcode,
                table.read_wc_flags,
                table.read_byte_len,
                table.read_tm_info,
            ) {
                completion.opcode = opcode(cq);
                completion.flags = flags(cq);
                completion.length = length(cq);
                let mut tag = ffi::ibv_wc_tm_info::default();
                info(cq, &mut tag);
                (completion.tag, completion.data) = (tag.tag, tag.priv_);
            }
            if let Some(end) = table.end_poll {
                end(cq);
            }
            Some(completion)
        }
    }
}
