//! Tagged messages for measurements, without overhead: nothing is allocated, looked up or copied
//! around the library's calls.

use std::ffi::c_void;

use super::endpoint::{Address, Endpoint, close};
use super::library::entry;
use super::{ERROR_AVAILABLE, Error, TRY_AGAIN, ffi};

/// Registered memory that the caller owns.
pub struct BareBuffer {
    memory: *mut [u8],
    mr: *mut ffi::fid_mr,
    descriptor: *mut c_void,
}

impl Endpoint {
    /// Allocates and registers zeroed memory.
    pub fn bare_buffer(&self, length: usize) -> Result<BareBuffer, Error> {
        let memory = Box::into_raw(vec![0; length].into_boxed_slice());
        let access = ffi::FI_SEND | ffi::FI_RECV | ffi::FI_REMOTE_READ;
        match self.register_raw(memory, access) {
            Ok(mr) => Ok(BareBuffer {
                memory,
                mr,
                // SAFETY: the region was just opened.
                descriptor: unsafe { (*mr).mem_desc },
            }),
            Err(error) => {
                // SAFETY: made above, and not registered.
                drop(unsafe { Box::from_raw(memory) });
                Err(error)
            }
        }
    }

    /// Starts a send of `length` bytes of a buffer. Returns whether the provider had room.
    ///
    /// # Safety
    /// The buffer is of this endpoint, has at least `length` bytes, and is kept until the
    /// completion.
    pub unsafe fn bare_send(
        &self,
        buffer: &BareBuffer,
        length: usize,
        peer: Address,
        tag: u64,
        context: &mut ffi::fi_context2,
    ) -> Result<bool, Error> {
        // SAFETY: the endpoint is open; the caller keeps the memory, and the context belongs to the
        // library until the completion.
        let result = unsafe {
            let send = entry!((*self.ep).tagged, ffi::fi_ops_tagged, send)?;
            send(
                self.ep,
                buffer.memory.cast_const().cast(),
                length,
                buffer.descriptor,
                peer.0,
                tag,
                std::ptr::from_mut(context).cast(),
            )
        };
        self.had_room("fi_tsend", result)
    }

    /// Posts a receive of `length` bytes. Returns whether the provider had room.
    ///
    /// # Safety
    /// The buffer is of this endpoint, has at least `length` bytes, and is kept until the
    /// completion.
    pub unsafe fn bare_recv(
        &self,
        buffer: &BareBuffer,
        length: usize,
        tag: u64,
        context: &mut ffi::fi_context2,
    ) -> Result<bool, Error> {
        // SAFETY: as in `bare_send`.
        let result = unsafe {
            let recv = entry!((*self.ep).tagged, ffi::fi_ops_tagged, recv)?;
            recv(
                self.ep,
                buffer.memory.cast(),
                length,
                buffer.descriptor,
                ffi::FI_ADDR_UNSPEC,
                tag,
                0,
                std::ptr::from_mut(context).cast(),
            )
        };
        self.had_room("fi_trecv", result)
    }

    fn had_room(&self, call: &'static str, result: isize) -> Result<bool, Error> {
        if result == TRY_AGAIN {
            return Ok(false);
        }
        self.library.check(call, result).map(|()| true)
    }

    /// Makes progress and reads completions, at most the length of `entries`.
    pub fn bare_poll(&self, entries: &mut [ffi::fi_cq_tagged_entry]) -> Result<usize, Error> {
        // SAFETY: the queue is open and of the tagged format, and `entries` has the stated length.
        let count = unsafe {
            let read = entry!((*self.cq).ops, ffi::fi_ops_cq, read)?;
            read(self.cq, entries.as_mut_ptr().cast(), entries.len())
        };
        match count {
            TRY_AGAIN => Ok(0),
            ERROR_AVAILABLE => Err(Error::Usage(
                "an operation failed during the measurement".into(),
            )),
            count => {
                self.library.check("fi_cq_read", count)?;
                Ok(count as usize)
            }
        }
    }
}

impl Drop for BareBuffer {
    fn drop(&mut self) {
        // SAFETY: no operation uses the memory any more, by the contract of the calls that take it.
        unsafe {
            close(self.mr.cast());
            drop(Box::from_raw(self.memory));
        }
    }
}
