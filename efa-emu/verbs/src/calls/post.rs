//! Posting work requests with the classic calls, which programs reach through the context's table.

use core::ffi::c_int;
use core::mem::offset_of;

use efa_core::address::{Qkey, Qpn};
use efa_device_model::device::Error;
use efa_device_model::device::queue::Buffer;
use efa_device_model::limits::{INLINE_SIZE_WIDE, MAX_SGE};
use efa_device_model::provider::{
    SendData, SendFlags, SendOpcode, SendQueue, SendRequest, UdAddress,
};

use crate::abi::{
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_ah, ibv_data_buf, ibv_qp, ibv_recv_wr, ibv_send_wr,
    ibv_sge,
};
use crate::ffi::errno::Errno;
use crate::ffi::interrupted::Locking;
use crate::objects::address_handle;
use crate::objects::queue_pair::QueuePair;

/// The most entries of a list that any device allows; longer lists are refused without reading
/// them.
pub(crate) const LIST_ROOM: usize = MAX_SGE;

// The C structure has the same layout as the device model's, so that a list can be used
// unconverted.
const _: () = {
    assert!(size_of::<ibv_sge>() == size_of::<Buffer>());
    assert!(align_of::<ibv_sge>() == align_of::<Buffer>());
    assert!(offset_of!(ibv_sge, addr) == offset_of!(Buffer, address));
    assert!(offset_of!(ibv_sge, length) == offset_of!(Buffer, length));
    assert!(offset_of!(ibv_sge, lkey) == offset_of!(Buffer, lkey));
};

/// A program's gather or scatter list; `None` if it has more entries than any device allows.
///
/// # Safety
/// `list` is valid for reads of `count` entries, and not changed, as long as the result is used.
#[inline(always)]
pub(crate) unsafe fn buffers<'a>(list: *const ibv_sge, count: usize) -> Option<&'a [Buffer]> {
    match count {
        // The pointer of an empty list is ignored.
        0 => Some(&[]),
        1..=LIST_ROOM if !list.is_null() => {
            // SAFETY: valid by contract, and both types have the same layout, as checked above.
            Some(unsafe { core::slice::from_raw_parts(list.cast(), count) })
        }
        _ => None,
    }
}

/// A part of inline data.
pub(crate) trait InlinePart: Copy {
    /// Its address and its length in bytes.
    fn memory(self) -> (*const u8, usize);
}

impl InlinePart for ibv_sge {
    #[inline(always)]
    fn memory(self) -> (*const u8, usize) {
        let address = core::ptr::with_exposed_provenance(self.addr as usize);
        (address, self.length as usize)
    }
}

impl InlinePart for ibv_data_buf {
    #[inline(always)]
    fn memory(self) -> (*const u8, usize) {
        (self.addr.cast_const().cast(), self.length)
    }
}

/// Inline data, copied out of the program's memory.
pub(crate) struct InlineCopy {
    bytes: [u8; INLINE_SIZE_WIDE as usize],
    length: usize,
}

impl InlineCopy {
    pub(crate) const EMPTY: InlineCopy = InlineCopy {
        bytes: [0; INLINE_SIZE_WIDE as usize],
        length: 0,
    };

    /// Appends all parts of a list. False for a null list, and for more data than any work request
    /// allows.
    ///
    /// # Safety
    /// `list` is null or valid for reads of `count` parts, whose memory can be read.
    #[must_use]
    #[inline(always)]
    pub(crate) unsafe fn push_list<T: InlinePart>(&mut self, list: *const T, count: usize) -> bool {
        let is_there = count == 0 || !list.is_null();
        is_there
            && (0..count).all(|index| {
                // SAFETY: by contract.
                unsafe {
                    let (address, length) = list.add(index).read().memory();
                    self.push(address, length)
                }
            })
    }

    /// Appends memory. Returns false without reading it if it is longer than any work request
    /// allows.
    ///
    /// # Safety
    /// `address` is valid for reads of `length` bytes.
    #[must_use]
    unsafe fn push(&mut self, address: *const u8, length: usize) -> bool {
        if length > self.bytes.len() - self.length {
            return false;
        }
        if length > 0 {
            // SAFETY: readable by contract, and there is room.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    address,
                    self.bytes.as_mut_ptr().add(self.length),
                    length,
                );
            }
        }
        self.length += length;
        true
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The peer of a work request. Queue pair numbers have 16 bits on this device.
///
/// # Safety
/// `handle` is null or an address handle of this library.
#[inline]
pub(crate) unsafe fn peer(handle: *const ibv_ah, qpn: u32, qkey: u32) -> UdAddress {
    UdAddress {
        // SAFETY: by contract.
        ahn: unsafe { address_handle::number(handle) },
        qpn: Qpn(qpn as u16),
        qkey: Qkey(qkey),
    }
}

/// Posts a list of sends. Called through the context's table.
///
/// Returns 0 or an errno. With an errno, `*bad` is the first request that was not posted; the
/// requests before it were posted: `EINVAL` for a null or destroyed queue pair or a request that
/// EFA does not have, `ENOMEM` for a full queue; or the device's error.
///
/// # Safety
/// `pair` is null or a queue pair of this library. `requests` is null or a valid list, with gather
/// lists and address handles that are valid during the call, and inline data that can be read.
/// `bad` is null or valid for a write.
pub(crate) unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    requests: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: by contract.
    let Some(pair) = (unsafe { QueuePair::from_pointer(pair) }) else {
        return libc::EINVAL;
    };
    let mut next = requests;
    let mut result = Ok(());
    let locking = Locking::new();
    let mut guard = pair.queues.send.lock(&locking);
    let Some(sender) = guard.as_mut() else {
        // SAFETY: by contract.
        return unsafe { report(Err(Errno::INVAL), requests, bad) };
    };
    while !next.is_null() {
        // SAFETY: by contract.
        result = unsafe { write_send(&mut sender.queue, next) };
        if result.is_err() {
            break;
        }
        // SAFETY: the list is valid by contract.
        next = unsafe { (*next).next };
    }
    if !core::ptr::eq(next, requests) {
        sender.queue.publish();
        if let Err(errno) = sender.hardware.ring_send_doorbell(pair.qpn, &locking) {
            result = Err(errno);
            next = requests;
        }
    }
    drop(guard);
    // SAFETY: by contract.
    unsafe { report(result, next, bad) }
}

/// Writes one request into the ring.
///
/// # Safety
/// `request` is valid for reads of the fields that every version of the structure has; its gather
/// list and address handle are valid during the call, and inline data can be read.
#[inline(always)]
unsafe fn write_send(queue: &mut SendQueue, request: *const ibv_send_wr) -> Result<(), Errno> {
    // Read field by field: programs that were built against an older header have a shorter
    // structure. SAFETY: by contract.
    let (opcode, immediate) = unsafe { ((*request).opcode, (*request).imm_data) };
    let opcode = match opcode {
        IBV_WR_SEND => SendOpcode::Send,
        IBV_WR_SEND_WITH_IMM => SendOpcode::SendWithImmediate(u32::from_be(immediate)),
        _ => return Err(Errno::INVAL),
    };
    // SAFETY: by contract.
    let (list, count, to) = unsafe { ((*request).sg_list, (*request).num_sge, (*request).ud) };
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    // SAFETY: by contract.
    let (wr_id, flags) = unsafe { ((*request).wr_id, (*request).send_flags) };
    let mut request_to_write = SendRequest {
        wr_id,
        opcode,
        flags,
        // SAFETY: by contract.
        to: unsafe { peer(to.ah, to.remote_qpn, to.remote_qkey) },
        data: SendData::Buffers(&[]),
    };
    if flags & SendFlags::INLINE.bits() != 0 {
        let mut copy = InlineCopy::EMPTY;
        // SAFETY: by contract.
        if !unsafe { copy.push_list(list, count) } {
            return Err(Errno::INVAL);
        }
        let parts = [copy.as_slice()];
        request_to_write.data = SendData::Inline(&parts);
        return Ok(queue.write(&request_to_write)?);
    }
    // SAFETY: the list has `count` entries by contract.
    let list = unsafe { buffers(list, count) }.ok_or(Errno::INVAL)?;
    request_to_write.data = SendData::Buffers(list);
    Ok(queue.write(&request_to_write)?)
}

/// Posts a list of receives. Called through the context's table.
///
/// Returns 0 or an errno as [`post_send`].
///
/// # Safety
/// `pair` is null or a queue pair of this library. `requests` is null or a valid list with valid
/// scatter lists. `bad` is null or valid for a write.
pub(crate) unsafe extern "C" fn post_recv(
    pair: *mut ibv_qp,
    requests: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by contract.
    let Some(pair) = (unsafe { QueuePair::from_pointer(pair) }) else {
        return libc::EINVAL;
    };
    let mut next = requests;
    let mut result = Ok(());
    let locking = Locking::new();
    let mut guard = pair.queues.recv.lock(&locking);
    let Some(queue) = guard.as_mut() else {
        // SAFETY: by contract.
        return unsafe { report(Err(Errno::INVAL), requests, bad) };
    };
    // SAFETY: the list is valid by contract.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: the scatter list has `num_sge` entries by contract.
        let list = usize::try_from(request.num_sge)
            .ok()
            .and_then(|count| unsafe { buffers(request.sg_list, count) });
        result = match list {
            Some(list) => queue.write(request.wr_id, list).map_err(Error::into),
            None => Err(Errno::INVAL),
        };
        if result.is_err() {
            break;
        }
        next = request.next;
    }
    if !core::ptr::eq(next, requests) {
        queue.publish();
    }
    drop(guard);
    // SAFETY: by contract.
    unsafe { report(result, next, bad) }
}

/// The result of a call that posts a list. `next` is the first request that was not posted.
///
/// # Safety
/// `bad` is null or valid for a write.
pub(super) unsafe fn report<T>(result: Result<(), Errno>, next: *mut T, bad: *mut *mut T) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            if !bad.is_null() {
                // SAFETY: by contract.
                unsafe { bad.write(next) };
            }
            errno.number()
        }
    }
}
