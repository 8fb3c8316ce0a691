//! vfio-user: the protocol by which one program uses a device that another program provides.
//!
//! * `message`: the messages. * `stream`: their transport, with file descriptors.
//! * `server`: the device's side.
//!
//! The specification is `docs/interop/vfio-user.rst` of QEMU; numbers of the structures are those
//! of the kernel's `<linux/vfio.h>`.

pub mod message;
mod server;
mod stream;

pub use server::{Server, Session, serve_connection};
pub use stream::{MAX_DESCRIPTORS, Message, Stream, StreamError};
