//! The device's side of vfio-user: QEMU's requests and their replies.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use zerocopy::IntoBytes;

use super::message::{
    CAPABILITIES, Command, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, RegionAccess, RegionInfo,
    SetIrqs, Version, irq, region,
};
use super::stream::{Message, Stream, StreamError, structure};
use crate::function::{Bars, ConfigSpace, Function, KEEP_ALIVE_INTERVAL, MSIX_VECTORS};

/// Maximum number of bytes of an access to a region.
const MAX_ACCESS: usize = 64 << 10;

/// The data and descriptors of a reply.
#[derive(Default)]
struct Answer<'a> {
    body: Vec<u8>,
    descriptor: Option<BorrowedFd<'a>>,
}

impl Answer<'_> {
    fn of(structure: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        Answer {
            body: structure.as_bytes().to_vec(),
            descriptor: None,
        }
    }
}

/// One connection with a client that provides the function to a guest.
pub struct Session<'a> {
    function: &'a mut Function,
}

impl<'a> Session<'a> {
    /// A session with a function in its initial state.
    pub fn new(function: &'a mut Function) -> Session<'a> {
        Session { function }
    }

    /// Executes a message, and replies if requested.
    ///
    /// # Errors
    /// The reply cannot be sent. A refused message gets an error as its reply.
    pub fn take(&mut self, message: Message, stream: &Stream) -> Result<(), StreamError> {
        let header = message.header;
        let flags = header.flags.get();
        if flags & Header::KIND != 0 {
            // The device has sent no request.
            return Ok(());
        }
        let answer = self.carry_out(message);
        if flags & Header::NO_ANSWER != 0 {
            return Ok(());
        }
        let mut back = Header {
            flags: Header::ANSWER.into(),
            error: 0.into(),
            ..header
        };
        match answer {
            Ok(Answer { body, descriptor }) => stream.send(back, &[&body], descriptor.as_slice()),
            Err(errno) => {
                back.flags = (Header::ANSWER | Header::ERROR).into();
                back.error = (errno as u32).into();
                stream.send(back, &[], &[])
            }
        }
    }

    fn carry_out(&mut self, message: Message) -> Result<Answer<'_>, i32> {
        let body = &message.body;
        match Command::of(message.header.command.get()).ok_or(libc::ENOSYS)? {
            Command::Version => version(structure(body)?),
            Command::DmaMap => self.map(structure(body)?, message),
            Command::DmaUnmap => self.unmap(structure(body)?),
            Command::DeviceInfo => Ok(Answer::of(&DeviceInfo {
                argument_size: (size_of::<DeviceInfo>() as u32).into(),
                // Resettable, PCI.
                flags: 0b11.into(),
                regions: region::COUNT.into(),
                irqs: irq::COUNT.into(),
            })),
            Command::RegionInfo => self.region_info(structure(body)?),
            Command::IrqInfo => irq_info(structure(body)?),
            Command::SetIrqs => self.set_irqs(structure(body)?, message),
            Command::RegionRead => self.read(structure(body)?),
            Command::RegionWrite => self.write(structure(body)?, body),
            Command::Reset => {
                self.function.reset();
                Ok(Answer::default())
            }
        }
    }

    fn map(&mut self, map: DmaMap, message: Message) -> Result<Answer<'_>, i32> {
        let flags = map.flags.get();
        // Memory without a file is a ROM, or memory of another device, which this device does not
        // need.
        if let Some(file) = message.descriptors.into_iter().next()
            && flags & DmaMap::READ != 0
        {
            let is_writable = flags & DmaMap::WRITE != 0;
            let (address, length) = (map.address.get(), map.length.get());
            let mapped =
                self.function
                    .memory()
                    .map(address, length, is_writable, file, map.offset.get());
            mapped.map_err(|error| {
                tracing::warn!(%error, "memory of the guest cannot be mapped");
                error.errno()
            })?;
        }
        Ok(Answer::default())
    }

    fn unmap(&mut self, unmap: DmaUnmap) -> Result<Answer<'_>, i32> {
        let memory = self.function.memory();
        if unmap.flags.get() & DmaUnmap::ALL != 0 {
            memory.clear();
        } else {
            // Mappings without a file are unknown.
            let _ = memory.unmap(unmap.address.get(), unmap.length.get());
        }
        Ok(Answer::of(&unmap))
    }

    fn region_info(&mut self, request: RegionInfo) -> Result<Answer<'_>, i32> {
        const READ_WRITE: u32 = 0b11;
        const MAPPABLE: u32 = 0b100;
        let number = request.region.get();
        if number >= region::COUNT {
            return Err(libc::EINVAL);
        }
        let bar = Bars::of(number);
        let length = match (number, bar) {
            (region::CONFIG, _) => ConfigSpace::length(),
            (_, Some(bar)) => bar.length(),
            _ => 0,
        };
        let is_mappable = bar.is_some_and(|bar| self.function.mappable(bar).is_some());
        let flags = match (length, is_mappable) {
            (0, _) => 0,
            (_, false) => READ_WRITE,
            (_, true) => READ_WRITE | MAPPABLE,
        };
        let mut answer = Answer::of(&RegionInfo {
            argument_size: (size_of::<RegionInfo>() as u32).into(),
            flags: flags.into(),
            region: number.into(),
            capabilities: 0.into(),
            length: length.into(),
            offset: 0.into(),
        });
        answer.descriptor = bar.and_then(|bar| self.function.mappable(bar));
        Ok(answer)
    }

    fn set_irqs(&mut self, set: SetIrqs, message: Message) -> Result<Answer<'_>, i32> {
        let (start, count, flags) = (set.start.get(), set.count.get(), set.flags.get());
        let vectors = u32::from(MSIX_VECTORS);
        let end = start.checked_add(count).filter(|end| *end <= vectors);
        let (Some(end), irq::MSIX) = (end, set.kind.get()) else {
            return Err(libc::EINVAL);
        };
        if flags & SetIrqs::TRIGGER == 0 {
            // QEMU masks vectors itself.
            return Err(libc::ENOTSUP);
        }
        let notifier = self.function.notifier();
        if flags & SetIrqs::EVENTFDS != 0 {
            let mut given = message.descriptors.into_iter();
            for vector in start..end {
                // A vector without a descriptor loses its previous one.
                notifier.set_vector(vector, given.next());
            }
        } else if flags & SetIrqs::NOTHING != 0 && count == 0 {
            notifier.clear_vectors();
        } else if flags & SetIrqs::NOTHING != 0 {
            (start..end).for_each(|vector| notifier.trigger(vector));
        } else {
            return Err(libc::ENOTSUP);
        }
        Ok(Answer::default())
    }

    fn read(&mut self, access: RegionAccess) -> Result<Answer<'_>, i32> {
        let (offset, number) = (access.offset.get(), access.region.get());
        let count = check_access(&access)?;
        let mut answer = Answer::of(&access);
        answer.body.resize(size_of::<RegionAccess>() + count, 0);
        let into = &mut answer.body[size_of::<RegionAccess>()..];
        match (number, Bars::of(number)) {
            (region::CONFIG, _) => self.function.read_config(offset, into),
            (_, Some(bar)) => self.function.read(bar, offset, into),
            _ => return Err(libc::EINVAL),
        }
        Ok(answer)
    }

    fn write(&mut self, access: RegionAccess, body: &[u8]) -> Result<Answer<'_>, i32> {
        let (offset, number) = (access.offset.get(), access.region.get());
        let count = check_access(&access)?;
        let data = &body[size_of::<RegionAccess>()..];
        let data = data.get(..count).ok_or(libc::EINVAL)?;
        match (number, Bars::of(number)) {
            (region::CONFIG, _) => self.function.write_config(offset, data),
            (_, Some(bar)) => self.function.write(bar, offset, data),
            _ => return Err(libc::EINVAL),
        }
        Ok(Answer::of(&access))
    }
}

/// The length of an access, which is inside of its region.
fn check_access(access: &RegionAccess) -> Result<usize, i32> {
    let number = access.region.get();
    let length = match (number, Bars::of(number)) {
        (region::CONFIG, _) => ConfigSpace::length(),
        (_, Some(bar)) => bar.length(),
        _ => return Err(libc::EINVAL),
    };
    let count = access.count.get();
    let end = access.offset.get().checked_add(count.into());
    let is_inside = end.is_some_and(|end| end <= length) && count as usize <= MAX_ACCESS;
    is_inside.then_some(count as usize).ok_or(libc::EINVAL)
}

fn version<'a>(request: Version) -> Result<Answer<'a>, i32> {
    if request.major.get() != 0 {
        return Err(libc::EINVAL);
    }
    let mut answer = Answer::of(&Version {
        major: 0.into(),
        minor: 0.into(),
    });
    answer.body.extend_from_slice(CAPABILITIES);
    Ok(answer)
}

fn irq_info<'a>(request: IrqInfo) -> Result<Answer<'a>, i32> {
    const EVENTFDS: u32 = 1;
    let (flags, count) = match request.kind.get() {
        irq::MSIX => (EVENTFDS, MSIX_VECTORS.into()),
        // QEMU reports an error if a device has zero of these.
        irq::ERROR => return Err(libc::EINVAL),
        kind if kind < irq::COUNT => (0, 0),
        _ => return Err(libc::EINVAL),
    };
    Ok(Answer::of(&IrqInfo {
        argument_size: (size_of::<IrqInfo>() as u32).into(),
        flags: flags.into(),
        kind: request.kind,
        count: u32::into(count),
    }))
}

/// Serves a connection until the client closes it, and then resets the function.
///
/// # Errors
/// The stream is unusable.
pub fn serve_connection(function: &mut Function, socket: UnixStream) -> Result<(), StreamError> {
    let stream = Stream::from(socket);
    let outcome = serve(function, &stream);
    function.notifier().clear_vectors();
    function.reset();
    function.memory().clear();
    outcome
}

fn serve(function: &mut Function, stream: &Stream) -> Result<(), StreamError> {
    let mut shown = Instant::now();
    loop {
        let mut rest = KEEP_ALIVE_INTERVAL.saturating_sub(shown.elapsed());
        if rest.is_zero() {
            shown = Instant::now();
            function.send_keep_alive();
            continue;
        }
        if let Some(due) = function.next_completion() {
            let until = due.saturating_duration_since(Instant::now());
            if until.is_zero() {
                function.complete_late();
                continue;
            }
            rest = rest.min(until);
        }
        if !stream.wait(rest)? {
            continue;
        }
        let Some(message) = stream.receive()? else {
            return Ok(());
        };
        Session::new(function).take(message, stream)?;
    }
}

/// Accepts connections, one at a time.
pub struct Server {
    listener: UnixListener,
    has_served: AtomicBool,
}

impl Server {
    /// A server for a listening socket.
    pub fn new(listener: UnixListener) -> Server {
        Server {
            listener,
            has_served: AtomicBool::new(false),
        }
    }

    /// Whether there has been a connection.
    pub fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// Serves successive connections.
    ///
    /// # Errors
    /// No more connections can be accepted.
    pub fn run(&self, function: &mut Function) -> std::io::Result<()> {
        loop {
            let (socket, _) = self.listener.accept()?;
            self.has_served.store(true, Ordering::Relaxed);
            if let Err(error) = serve_connection(function, socket) {
                tracing::warn!(%error, "the connection has ended");
            }
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
