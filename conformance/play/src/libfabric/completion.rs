//! Reads completions and events, which also makes progress in the provider.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use super::endpoint::{Address, Endpoint};
use super::library::entry;
use super::{ERROR_AVAILABLE, Error, TRY_AGAIN, Token, ffi};

/// One completed operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation's token; `None` for a peer's write to local memory.
    pub token: Option<Token>,
    /// The memory of the operation, which the application gets back.
    pub buffer: Vec<u8>,
    /// Completion flags (`FI_RECV`, `FI_REMOTE_CQ_DATA`, ...).
    pub flags: u64,
    /// Bytes received.
    pub length: usize,
    /// The tag of a received tagged message; else without meaning.
    pub tag: u64,
    /// Remote completion data, if the peer sent any.
    pub data: Option<u64>,
    /// The sender, if the endpoint requested sources and the sender is known.
    pub source: Option<Address>,
    /// Whether the operation succeeded, with libfabric's reason if not.
    pub result: Result<(), Failure>,
}

/// An operation's error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// libfabric's positive error number, such as 265 for truncation.
    pub code: i32,
    /// The provider's own number.
    pub provider_code: i32,
    pub(crate) text: String,
    /// Bytes that did not fit.
    pub overflow: usize,
}

/// Room for an error entry of any release.
#[repr(C)]
#[derive(Default)]
struct ErrorEntry {
    known: ffi::fi_cq_err_entry,
    /// Space for members that releases after the headers' append, as 1.20 did with `src_addr`.
    reserved: [u64; 8],
}

impl Endpoint {
    /// Makes progress and returns a completion, if one is available.
    pub fn poll(&mut self) -> Result<Option<Completion>, Error> {
        let mut entry = ffi::fi_cq_tagged_entry::default();
        let mut source = ffi::FI_ADDR_UNSPEC;
        // SAFETY: the queue is open, of the tagged format, and room for one entry is passed.
        let count = unsafe {
            let read = entry!((*self.cq).ops, ffi::fi_ops_cq, readfrom)?;
            read(self.cq, (&raw mut entry).cast(), 1, &mut source)
        };
        match count {
            0 | TRY_AGAIN => return Ok(None),
            ERROR_AVAILABLE => return self.read_error().map(Some),
            n => self.library.check("fi_cq_readfrom", n)?,
        }
        let (token, buffer, counted) = self.take(entry.op_context, entry.flags);
        let has_data = entry.flags & ffi::FI_REMOTE_CQ_DATA != 0;
        let is_message = entry.flags & ffi::FI_RECV != 0;
        let counted = if is_message { counted } else { 0 };
        Ok(Some(Completion {
            token,
            buffer,
            flags: entry.flags,
            length: entry.len.saturating_sub(counted),
            tag: entry.tag,
            data: has_data.then_some(entry.data),
            source: (source != ffi::FI_ADDR_UNSPEC).then_some(Address(source)),
            result: Ok(()),
        }))
    }

    fn read_error(&mut self) -> Result<Completion, Error> {
        let mut entry = ErrorEntry::default();
        // SAFETY: the queue is open; with a null `err_data` the provider keeps its buffer.
        unsafe {
            let read = entry!((*self.cq).ops, ffi::fi_ops_cq, readerr)?;
            self.library
                .check("fi_cq_readerr", read(self.cq, (&raw mut entry).cast(), 0))?;
        }
        let entry = entry.known;
        let (token, buffer, _) = self.take(entry.op_context, entry.flags);
        // SAFETY: the queue is open.
        let strerror = unsafe { entry!((*self.cq).ops, ffi::fi_ops_cq, strerror) };
        let cq = self.cq;
        // SAFETY: the number and the data belong to the entry that was just read.
        let text = provider_text(|buffer, length| unsafe {
            strerror.map_or(ptr::null(), |strerror| {
                strerror(cq, entry.prov_errno, entry.err_data, buffer, length)
            })
        });
        let has_data = entry.flags & ffi::FI_REMOTE_CQ_DATA != 0;
        Ok(Completion {
            token,
            buffer,
            flags: entry.flags,
            length: entry.len,
            tag: entry.tag,
            data: has_data.then_some(entry.data),
            source: None,
            result: Err(Failure {
                code: entry.err,
                provider_code: entry.prov_errno,
                text: text.unwrap_or_else(|| self.library.describe(entry.err)),
                overflow: entry.olen,
            }),
        })
    }

    /// Returns the token of a completion's context, its buffer, and the number of bytes of the
    /// prefix that its length includes. The completion of a peer's operation on local memory has no
    /// context of this endpoint: the context of 1.21 to 2.6 is left over from an earlier operation,
    /// whose key may be in use again (docs/findings.md, 16).
    fn take(&mut self, context: *mut c_void, flags: u64) -> (Option<Token>, Vec<u8>, usize) {
        if flags & (ffi::FI_REMOTE_WRITE | ffi::FI_REMOTE_READ) != 0 {
            return (None, Vec::new(), 0);
        }
        let key = context as usize;
        match self.pending.remove(&key) {
            None => (None, Vec::new(), 0),
            Some(pending) => {
                let token = pending.token;
                // SAFETY: the operation was pending under this key and has completed.
                let (counted, buffer) = unsafe { (pending.counted(), pending.finish(key)) };
                (Some(token), buffer, counted)
            }
        }
    }

    /// The number of operations that have not completed.
    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// Removes and returns the next error that the provider reported outside of any operation.
    pub fn poll_event(&mut self) -> Result<Option<Failure>, Error> {
        let mut event = 0;
        let mut bytes = [0_u8; 256];
        // SAFETY: the queue is open and the buffer has the stated length.
        let count = unsafe {
            let read = entry!((*self.eq).ops, ffi::fi_ops_eq, read)?;
            read(
                self.eq,
                &mut event,
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                0,
            )
        };
        if count != ERROR_AVAILABLE {
            // No event, or an event without an error.
            return if count == TRY_AGAIN {
                Ok(None)
            } else {
                self.library.check("fi_eq_read", count).map(|()| None)
            };
        }
        let mut entry = ffi::fi_eq_err_entry::default();
        // SAFETY: the queue is open; with a null `err_data` the provider keeps its buffer.
        unsafe {
            let read = entry!((*self.eq).ops, ffi::fi_ops_eq, readerr)?;
            self.library
                .check("fi_eq_readerr", read(self.eq, &mut entry, 0))?;
        }
        Ok(Some(Failure {
            code: entry.err,
            provider_code: entry.prov_errno,
            text: self.library.describe(entry.err),
            overflow: 0,
        }))
    }
}

/// Queries the provider's text for an error, which is either in the buffer or a separate string.
fn provider_text(call: impl FnOnce(*mut c_char, usize) -> *const c_char) -> Option<String> {
    let mut buffer = [0 as c_char; 256];
    let text = call(buffer.as_mut_ptr(), buffer.len() - 1);
    if text.is_null() {
        return None;
    }
    // SAFETY: the result is a NUL-terminated string; the buffer's last byte is never written.
    let text = unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned();
    (!text.is_empty()).then_some(text)
}
