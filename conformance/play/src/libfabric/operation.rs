//! Posting operations.

use std::ffi::c_void;
use std::ptr;

use super::endpoint::{Address, Endpoint, ReservedRoom, close};
use super::library::entry;
use super::{Error, ffi};

/// The caller's name for an operation, which the completion returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// The receiver of a message, its tag and its completion data.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The receiving endpoint, as the address vector numbers it.
    pub peer: Address,
    /// `Some` for a tagged message.
    pub tag: Option<u64>,
    /// Remote completion data.
    pub data: Option<u64>,
}

/// A peer's registered memory.
#[derive(Clone, Copy, Debug)]
pub struct RemoteMemory {
    /// The endpoint that owns it, as the address vector numbers it.
    pub peer: Address,
    /// Its virtual address at the owner, or the offset in the region if the provider wants that.
    pub address: u64,
    /// The key of the memory region.
    pub key: u64,
}

/// An outstanding operation.
///
/// The context and the memory are raw pointers, because the library has pointers to both until the
/// completion.
pub(super) struct Pending {
    pub(super) token: Token,
    memory: *mut [u8],
    margin: ReservedRoom,
    mr: *mut ffi::fid_mr,
}

/// The arguments of an operation for the library.
struct Posting {
    ep: *mut ffi::fid_ep,
    buffer: *mut c_void,
    length: usize,
    /// The descriptor of the buffer's registration.
    desc: *mut c_void,
    context: *mut c_void,
}

impl Posting {
    fn iovec(&self) -> ffi::iovec {
        ffi::iovec {
            iov_base: self.buffer,
            iov_len: self.length,
        }
    }
}

/// Its address identifies the operation in completions.
type Context = ffi::fi_context2;

impl Pending {
    /// Returns the number of bytes before the message that count as received.
    ///
    /// # Safety
    /// The library has finished with the operation: it completed, was refused, or its endpoint is
    /// closed.
    pub(super) unsafe fn counted(&self) -> usize {
        // SAFETY: the memory was made in `begin_within`, and the library has finished with it.
        let memory = unsafe { &*self.memory };
        // The prefix was zero; a provider that receives in place writes a packet header there.
        let is_packet = memory[..self.margin.prefix].iter().any(|byte| *byte != 0);
        if is_packet { self.margin.counted } else { 0 }
    }

    /// Regains ownership of the operation from the library.
    ///
    /// # Safety
    /// `context` is the key under which this operation was pending, and the library has finished
    /// with it: it completed, was refused, or its endpoint is closed.
    pub(super) unsafe fn finish(self, context: usize) -> Vec<u8> {
        // SAFETY: both were made by `Box::into_raw` in `begin_within`; the registration of the
        // memory is closed first.
        let mut memory = unsafe {
            close(self.mr.cast());
            drop(Box::from_raw(context as *mut Context));
            Box::from_raw(self.memory).into_vec()
        };
        memory.truncate(memory.len() - self.margin.behind);
        memory.drain(..self.margin.prefix);
        memory
    }
}

impl Endpoint {
    fn begin(
        &mut self,
        call: &'static str,
        token: Token,
        buffer: Vec<u8>,
        post: impl FnOnce(&Posting) -> Result<isize, Error>,
    ) -> Result<(), Error> {
        self.begin_within(ReservedRoom::default(), call, token, buffer, post)
    }

    /// As [`Endpoint::begin`], for a message: `post` gets the message with its prefix.
    fn begin_message(
        &mut self,
        call: &'static str,
        token: Token,
        message: Vec<u8>,
        post: impl FnOnce(&Posting) -> Result<isize, Error>,
    ) -> Result<(), Error> {
        let memory = self.with_margin(message);
        self.begin_within(self.margin, call, token, memory, post)
    }

    fn with_margin(&self, mut message: Vec<u8>) -> Vec<u8> {
        message.splice(..0, vec![0; self.margin.prefix]);
        message.resize(message.len() + self.margin.behind, 0);
        message
    }

    fn begin_within(
        &mut self,
        margin: ReservedRoom,
        call: &'static str,
        token: Token,
        memory: Vec<u8>,
        post: impl FnOnce(&Posting) -> Result<isize, Error>,
    ) -> Result<(), Error> {
        let memory = Box::into_raw(memory.into_boxed_slice());
        let mut pending = Pending {
            token,
            memory,
            margin,
            mr: ptr::null_mut(),
        };
        let context = Box::into_raw(Box::new(Context::default()));
        let key = context as usize;
        let mut descriptor = ptr::null_mut();
        if self.register_local && !memory.is_empty() {
            let access = ffi::FI_SEND | ffi::FI_RECV | ffi::FI_READ | ffi::FI_WRITE;
            match self.register_raw(memory, access) {
                Ok(mr) => {
                    pending.mr = mr;
                    // SAFETY: the region was just opened.
                    descriptor = unsafe { (*mr).mem_desc };
                }
                Err(error) => {
                    // SAFETY: nothing was posted.
                    unsafe { pending.finish(key) };
                    return Err(error);
                }
            }
        }
        let posting = Posting {
            ep: self.ep,
            buffer: memory.cast(),
            length: memory.len() - margin.behind,
            desc: descriptor,
            context: context.cast(),
        };
        let result = post(&posting).and_then(|result| self.library.check(call, result));
        match result {
            Ok(()) => {
                self.pending.insert(key, pending);
                Ok(())
            }
            Err(error) => {
                // SAFETY: the library refused the operation.
                unsafe { pending.finish(key) };
                Err(error)
            }
        }
    }

    /// Posts a receive of up to `buffer.len()` bytes, from `source` or from any sender.
    pub fn recv(
        &mut self,
        token: Token,
        buffer: Vec<u8>,
        source: Option<Address>,
    ) -> Result<(), Error> {
        let source = source.map_or(ffi::FI_ADDR_UNSPEC, |address| address.0);
        self.begin_message("fi_recv", token, buffer, |on| {
            // SAFETY: the endpoint is open; `begin` keeps memory and context until the completion.
            unsafe {
                let recv = entry!((*on.ep).msg, ffi::fi_ops_msg, recv)?;
                Ok(recv(
                    on.ep, on.buffer, on.length, on.desc, source, on.context,
                ))
            }
        })
    }

    /// Posts a tagged receive; bits set in `ignore` are not compared.
    pub fn recv_tagged(
        &mut self,
        token: Token,
        buffer: Vec<u8>,
        source: Option<Address>,
        tag: u64,
        ignore: u64,
    ) -> Result<(), Error> {
        let source = source.map_or(ffi::FI_ADDR_UNSPEC, |address| address.0);
        self.begin_message("fi_trecv", token, buffer, |on| {
            // SAFETY: as in `recv`.
            unsafe {
                let recv = entry!((*on.ep).tagged, ffi::fi_ops_tagged, recv)?;
                let (buffer, length, desc) = (on.buffer, on.length, on.desc);
                Ok(recv(
                    on.ep, buffer, length, desc, source, tag, ignore, on.context,
                ))
            }
        })
    }

    /// Sends a message.
    pub fn send(&mut self, token: Token, buffer: Vec<u8>, to: Destination) -> Result<(), Error> {
        let peer = to.peer.0;
        self.begin_message("fi_send", token, buffer, |on| {
            let (ep, buffer, length) = (on.ep, on.buffer, on.length);
            let (desc, context) = (on.desc, on.context);
            // SAFETY: as in `recv`.
            unsafe {
                Ok(match (to.tag, to.data) {
                    (None, None) => {
                        let send = entry!((*ep).msg, ffi::fi_ops_msg, send)?;
                        send(ep, buffer, length, desc, peer, context)
                    }
                    (None, Some(data)) => {
                        let send = entry!((*ep).msg, ffi::fi_ops_msg, senddata)?;
                        send(ep, buffer, length, desc, data, peer, context)
                    }
                    (Some(tag), None) => {
                        let send = entry!((*ep).tagged, ffi::fi_ops_tagged, send)?;
                        send(ep, buffer, length, desc, peer, tag, context)
                    }
                    (Some(tag), Some(data)) => {
                        let send = entry!((*ep).tagged, ffi::fi_ops_tagged, senddata)?;
                        send(ep, buffer, length, desc, data, peer, tag, context)
                    }
                })
            }
        })
    }

    /// Sends a message that completes only when the data is in the receiver's buffer.
    pub fn send_delivery_complete(
        &mut self,
        token: Token,
        buffer: Vec<u8>,
        to: Destination,
    ) -> Result<(), Error> {
        let addr = to.peer.0;
        let mut flags = ffi::FI_DELIVERY_COMPLETE | ffi::FI_COMPLETION;
        if to.data.is_some() {
            flags |= ffi::FI_REMOTE_CQ_DATA;
        }
        self.begin_message("fi_sendmsg", token, buffer, |on| {
            let (msg_iov, mut desc) = (&on.iovec(), on.desc);
            let (desc, context, data) = (&raw mut desc, on.context, to.data.unwrap_or(0));
            // SAFETY: as in `recv`; the message and its vectors are only read during the call.
            unsafe {
                Ok(match to.tag {
                    None => {
                        let send = entry!((*on.ep).msg, ffi::fi_ops_msg, sendmsg)?;
                        let message = ffi::fi_msg {
                            msg_iov,
                            desc,
                            iov_count: 1,
                            addr,
                            context,
                            data,
                        };
                        send(on.ep, &message, flags)
                    }
                    Some(tag) => {
                        let send = entry!((*on.ep).tagged, ffi::fi_ops_tagged, sendmsg)?;
                        let message = ffi::fi_msg_tagged {
                            msg_iov,
                            desc,
                            iov_count: 1,
                            addr,
                            tag,
                            ignore: 0,
                            context,
                            data,
                        };
                        send(on.ep, &message, flags)
                    }
                })
            }
        })
    }

    /// Sends a short message by copy, without a completion.
    pub fn inject(&mut self, bytes: &[u8], to: Destination) -> Result<(), Error> {
        let (ep, peer) = (self.ep, to.peer.0);
        let memory = self.with_margin(bytes.to_vec());
        let (buffer, length) = (memory.as_ptr().cast(), memory.len() - self.margin.behind);
        // SAFETY: the endpoint is open; the library copies the bytes during the call.
        let result = unsafe {
            match (to.tag, to.data) {
                (None, None) => {
                    entry!((*ep).msg, ffi::fi_ops_msg, inject)?(ep, buffer, length, peer)
                }
                (None, Some(data)) => {
                    entry!((*ep).msg, ffi::fi_ops_msg, injectdata)?(ep, buffer, length, data, peer)
                }
                (Some(tag), None) => {
                    entry!((*ep).tagged, ffi::fi_ops_tagged, inject)?(ep, buffer, length, peer, tag)
                }
                (Some(tag), Some(data)) => {
                    let inject = entry!((*ep).tagged, ffi::fi_ops_tagged, injectdata)?;
                    inject(ep, buffer, length, data, peer, tag)
                }
            }
        };
        self.library.check("fi_inject", result)
    }

    /// Writes `buffer` to a peer's memory, with completion data for the peer if `data` is given.
    /// With `delivery_complete` the operation completes after the memory has been written.
    pub fn write(
        &mut self,
        token: Token,
        buffer: Vec<u8>,
        to: RemoteMemory,
        data: Option<u64>,
        delivery_complete: bool,
    ) -> Result<(), Error> {
        let mut flags = ffi::FI_COMPLETION;
        if data.is_some() {
            flags |= ffi::FI_REMOTE_CQ_DATA;
        }
        if delivery_complete {
            flags |= ffi::FI_DELIVERY_COMPLETE;
        }
        self.begin("fi_write", token, buffer, |on| {
            // SAFETY: as in `recv`; the message and its vectors are only read during the call.
            unsafe {
                if flags == ffi::FI_COMPLETION {
                    let write = entry!((*on.ep).rma, ffi::fi_ops_rma, write)?;
                    let RemoteMemory { peer, address, key } = to;
                    let (buffer, length, desc) = (on.buffer, on.length, on.desc);
                    let result = write(
                        on.ep, buffer, length, desc, peer.0, address, key, on.context,
                    );
                    return Ok(result);
                }
                let mut desc = on.desc;
                let remote = ffi::fi_rma_iov {
                    addr: to.address,
                    len: on.length,
                    key: to.key,
                };
                let message = ffi::fi_msg_rma {
                    msg_iov: &on.iovec(),
                    desc: &raw mut desc,
                    iov_count: 1,
                    addr: to.peer.0,
                    rma_iov: &remote,
                    rma_iov_count: 1,
                    context: on.context,
                    data: data.unwrap_or(0),
                };
                let write = entry!((*on.ep).rma, ffi::fi_ops_rma, writemsg)?;
                Ok(write(on.ep, &message, flags))
            }
        })
    }

    /// Reads a peer's memory into `buffer`.
    pub fn read(&mut self, token: Token, buffer: Vec<u8>, from: RemoteMemory) -> Result<(), Error> {
        self.begin("fi_read", token, buffer, |on| {
            let RemoteMemory { peer, address, key } = from;
            let (buffer, length, desc) = (on.buffer, on.length, on.desc);
            // SAFETY: as in `recv`.
            unsafe {
                let read = entry!((*on.ep).rma, ffi::fi_ops_rma, read)?;
                Ok(read(
                    on.ep, buffer, length, desc, peer.0, address, key, on.context,
                ))
            }
        })
    }

    /// Applies an atomic operation to `count` elements of a peer's memory. `datatype` and `op` are
    /// libfabric's numbers (`enum fi_datatype`, `enum fi_op`). `operands` contains the operand,
    /// then the comparand and room for the result, as `call` needs them; the completion returns it
    /// with the result.
    #[expect(
        clippy::too_many_arguments,
        reason = "it is the library's own signature"
    )]
    pub fn atomic(
        &mut self,
        token: Token,
        operands: Vec<u8>,
        count: usize,
        to: RemoteMemory,
        datatype: u32,
        op: u32,
        atomic: AtomicCall,
    ) -> Result<(), Error> {
        let parts = match atomic {
            AtomicCall::Update | AtomicCall::DeliveryComplete => 1,
            AtomicCall::Fetch => 2,
            AtomicCall::Compare => 3,
        };
        if !operands.len().is_multiple_of(parts) {
            return Err(Error::Usage(format!(
                "{} bytes of operands do not divide into {parts} equal parts",
                operands.len()
            )));
        }
        let part = operands.len() / parts;
        let RemoteMemory { peer, address, key } = to;
        self.begin("fi_atomic", token, operands, |on| {
            let (ep, mut desc, context) = (on.ep, on.desc, on.context);
            let base = on.buffer.cast::<u8>();
            // SAFETY: as in `recv`; the three operands are consecutive in the memory, and the
            // message and its vectors are only read during the call.
            unsafe {
                let (operand, second) = (base.cast(), base.add(part).cast());
                Ok(match atomic {
                    AtomicCall::Compare => {
                        let call = entry!((*ep).atomic, ffi::fi_ops_atomic, compwrite)?;
                        let (comparand, result) = (second, base.add(2 * part).cast());
                        call(
                            ep, operand, count, desc, comparand, desc, result, desc, peer.0,
                            address, key, datatype, op, context,
                        )
                    }
                    AtomicCall::Fetch => {
                        let call = entry!((*ep).atomic, ffi::fi_ops_atomic, readwrite)?;
                        call(
                            ep, operand, count, desc, second, desc, peer.0, address, key, datatype,
                            op, context,
                        )
                    }
                    AtomicCall::DeliveryComplete => {
                        let call = entry!((*ep).atomic, ffi::fi_ops_atomic, writemsg)?;
                        let operand = ffi::fi_ioc {
                            addr: base.cast(),
                            count,
                        };
                        let remote = ffi::fi_rma_ioc {
                            addr: address,
                            count,
                            key,
                        };
                        let message = ffi::fi_msg_atomic {
                            msg_iov: &operand,
                            desc: &raw mut desc,
                            iov_count: 1,
                            addr: peer.0,
                            rma_iov: &remote,
                            rma_iov_count: 1,
                            datatype,
                            op,
                            context,
                            data: 0,
                        };
                        call(ep, &message, ffi::FI_DELIVERY_COMPLETE | ffi::FI_COMPLETION)
                    }
                    AtomicCall::Update => {
                        let call = entry!((*ep).atomic, ffi::fi_ops_atomic, write)?;
                        let peer = peer.0;
                        call(
                            ep, operand, count, desc, peer, address, key, datatype, op, context,
                        )
                    }
                })
            }
        })
    }
}

/// One of libfabric's atomic calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicCall {
    /// `fi_atomic`.
    Update,
    /// `fi_atomicmsg` with `FI_DELIVERY_COMPLETE`.
    DeliveryComplete,
    /// `fi_fetch_atomic`; room for the result follows the operand.
    Fetch,
    /// `fi_compare_atomic`; the comparand and room for the result follow the operand.
    Compare,
}
