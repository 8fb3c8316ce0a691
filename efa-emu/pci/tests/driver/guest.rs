//! A guest without a virtual machine: memory in a file, and the client's side of vfio-user.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::thread::JoinHandle;

use efa_device_model::device::queue::LentMemory;
use efa_device_model::profile::Profile;
use efa_pci::function::{Bars, Function};
use efa_pci::vfio::message::{
    Command, DmaMap, DmaUnmap, Header, RegionAccess, RegionInfo, SetIrqs, Version, irq,
};
use efa_pci::vfio::{Stream, StreamError, serve_connection};
use efa_shm::{Engine, Fabric, HostConfig};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Name of the fabric of all tests; each test has its own directory for it.
pub(crate) const FABRIC: &str = "test";

/// The start of the guest's memory.
pub(crate) const MEMORY: u64 = 0x10_0000;
/// Its length in bytes.
pub(crate) const LENGTH: u64 = 16 << 20;

pub(crate) const PAGE: u64 = 4096;

/// A mapped file.
pub(crate) struct MappedFile {
    first: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is accessed as atomics, by any thread.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    fn new(file: impl AsFd, length: u64) -> Arc<MappedFile> {
        let length = length as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the system's choice.
        let first = unsafe { mmap(null_mut(), length, access, MapFlags::SHARED, file, 0) }.unwrap();
        let first = NonNull::new(first.cast()).unwrap();
        Arc::new(MappedFile { first, length })
    }

    /// Memory for the client's half of a ring.
    pub(crate) fn lend(self: &Arc<Self>, offset: u64, length: u64) -> LentMemory {
        assert!(offset + length <= self.length as u64);
        // SAFETY: in the mapping, which stays as long as the `Arc`, and is accessed as atomics.
        unsafe {
            LentMemory::new(
                self.first.add(offset as usize),
                length as usize,
                self.clone() as _,
            )
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; it is not in use any more.
        unsafe { munmap(self.first.as_ptr().cast(), self.length) }.unwrap();
    }
}

/// The header of a request.
pub(crate) fn header(id: u16, command: u16) -> Header {
    Header {
        id: id.into(),
        command: command.into(),
        size: 0.into(),
        flags: 0.into(),
        error: 0.into(),
    }
}

/// A request that triggers vectors, or sets what triggers them.
pub(crate) fn set_irqs(flags: u32, kind: u32, start: u32, count: u32) -> SetIrqs {
    SetIrqs {
        argument_size: 20.into(),
        flags: (flags | SetIrqs::TRIGGER).into(),
        kind: kind.into(),
        start: start.into(),
        count: count.into(),
    }
}

/// Opens a device of the tests' fabric below `root`.
pub(crate) fn open_engine(root: &Path, host: &str) -> Engine {
    let fabric = Fabric::open_below(root, FABRIC).unwrap();
    Engine::open_in(&fabric, &HostConfig::new(FABRIC, host), Profile::default()).unwrap()
}

/// The device of a host below `root`.
pub(crate) fn function(root: &Path, host: &str) -> Function {
    function_of(root, HostConfig::new(FABRIC, host), &Profile::default())
}

/// As [`function`], with any configuration of the host and any device.
pub(crate) fn function_of(root: &Path, config: HostConfig, profile: &Profile) -> Function {
    let fabric = Fabric::open_below(root, FABRIC).unwrap();
    let profile = profile.clone();
    Function::new(move || Engine::open_in(&fabric, &config, profile.clone())).unwrap()
}

/// A guest with a device.
pub(crate) struct Guest {
    stream: Option<Stream>,
    next_id: u16,
    file: File,
    pub(crate) memory: Arc<MappedFile>,
    /// The address of the next unused page.
    next_page: u64,
    /// The region with send queues.
    pub(crate) send_queues: Arc<MappedFile>,
    vectors: HashMap<u32, OwnedFd>,
    server: Option<JoinHandle<Result<(), StreamError>>>,
}

impl Guest {
    /// A guest with the device of a host below `root`. The device serves it in a thread.
    pub(crate) fn new(root: &Path, host: &str) -> Guest {
        Guest::with(function(root, host))
    }

    /// A guest with this device, which serves it in a thread.
    pub(crate) fn with(mut function: Function) -> Guest {
        let (client, socket) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve_connection(&mut function, socket));
        Guest::connected(client, Some(server))
    }

    /// A guest whose device is at the socket `path`.
    pub(crate) fn connect(path: &Path) -> Guest {
        Guest::connected(UnixStream::connect(path).unwrap(), None)
    }

    /// A guest whose device is at the other end of this socket.
    pub(crate) fn over(socket: UnixStream) -> Guest {
        Guest::connected(socket, None)
    }

    fn connected(socket: UnixStream, server: Option<JoinHandle<Result<(), StreamError>>>) -> Guest {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LENGTH).unwrap();
        let memory = MappedFile::new(&file, LENGTH);
        let mut guest = Guest {
            stream: Some(socket.into()),
            next_id: 0,
            file: file.into(),
            send_queues: Arc::clone(&memory),
            memory,
            next_page: 0,
            vectors: HashMap::new(),
            server,
        };
        let version = Version {
            major: 0.into(),
            minor: 0.into(),
        };
        guest
            .request(Command::Version, &[version.as_bytes(), b"{}\0"], &[])
            .unwrap();
        guest.map(MEMORY, LENGTH, 0).unwrap();
        let (info, file) = guest.region(Bars::SendQueues as u32);
        assert_eq!(info.flags.get(), 0b111, "send queues can be mapped");
        guest.send_queues = MappedFile::new(file.unwrap(), info.length.get());
        guest
    }

    /// Sends a command, and returns the reply's data or its errno.
    pub(crate) fn request(
        &mut self,
        command: Command,
        body: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), u32> {
        self.next_id = self.next_id.wrapping_add(1);
        let header = header(self.next_id, command as u16);
        let stream = self.stream();
        stream.send(header, body, descriptors).unwrap();
        let answer = stream.receive().unwrap().expect("an answer");
        assert_eq!(answer.header.id, header.id);
        assert_eq!(answer.header.command, header.command);
        match answer.header.flags.get() {
            Header::ANSWER => Ok((answer.body, answer.descriptors)),
            flags => {
                assert_eq!(flags, Header::ANSWER | Header::ERROR);
                Err(answer.header.error.get())
            }
        }
    }

    /// The connection.
    pub(crate) fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("the guest is connected")
    }

    /// Maps memory of the guest for the device.
    pub(crate) fn map(&mut self, address: u64, length: u64, offset: u64) -> Result<(), u32> {
        let map = DmaMap {
            argument_size: 32.into(),
            flags: (DmaMap::READ | DmaMap::WRITE).into(),
            offset: offset.into(),
            address: address.into(),
            length: length.into(),
        };
        let file = self.file.try_clone().unwrap();
        self.request(Command::DmaMap, &[map.as_bytes()], &[file.as_fd()])
            .map(drop)
    }

    /// Unmaps memory of the guest.
    pub(crate) fn unmap(&mut self, address: u64, length: u64) {
        let unmap = DmaUnmap {
            argument_size: 24.into(),
            flags: 0.into(),
            address: address.into(),
            length: length.into(),
        };
        self.request(Command::DmaUnmap, &[unmap.as_bytes()], &[])
            .unwrap();
    }

    /// The device's information about a region.
    pub(crate) fn region(&mut self, region: u32) -> (RegionInfo, Option<OwnedFd>) {
        let mut requested = RegionInfo::read_from_bytes(&[0; 32]).unwrap();
        requested.region = region.into();
        let (body, files) = self
            .request(Command::RegionInfo, &[requested.as_bytes()], &[])
            .unwrap();
        let info = RegionInfo::read_from_bytes(&body).unwrap();
        (info, files.into_iter().next())
    }

    /// Writes a region.
    pub(crate) fn write_region(
        &mut self,
        region: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), u32> {
        let access = RegionAccess {
            offset: offset.into(),
            region: region.into(),
            count: (bytes.len() as u32).into(),
        };
        self.request(Command::RegionWrite, &[access.as_bytes(), bytes], &[])
            .map(drop)
    }

    /// Reads a region.
    pub(crate) fn read_region(
        &mut self,
        region: u32,
        offset: u64,
        count: u32,
    ) -> Result<Vec<u8>, u32> {
        let access = RegionAccess {
            offset: offset.into(),
            region: region.into(),
            count: count.into(),
        };
        let (body, _) = self.request(Command::RegionRead, &[access.as_bytes()], &[])?;
        Ok(body[size_of::<RegionAccess>()..].to_vec())
    }

    /// Writes a word of a region.
    pub(crate) fn write(&mut self, bar: Bars, offset: u64, value: u32) {
        self.write_region(bar as u32, offset, &value.to_le_bytes())
            .unwrap();
    }

    /// Sets an eventfd for a vector.
    pub(crate) fn set_vector(&mut self, vector: u32) {
        let eventfd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let set = set_irqs(SetIrqs::EVENTFDS, irq::MSIX, vector, 1);
        self.request(Command::SetIrqs, &[set.as_bytes()], &[eventfd.as_fd()])
            .unwrap();
        self.vectors.insert(vector, eventfd);
    }

    /// QEMU's actions when its guest reboots: removes interrupts and memory, and resets the device.
    pub(crate) fn reboot(&mut self) {
        let set = set_irqs(SetIrqs::NOTHING, irq::MSIX, 0, 0);
        self.request(Command::SetIrqs, &[set.as_bytes()], &[])
            .unwrap();
        self.vectors.clear();
        self.unmap(MEMORY, LENGTH);
        self.request(Command::Reset, &[], &[]).unwrap();
        self.map(MEMORY, LENGTH, 0).unwrap();
    }

    /// The number of interrupts of a vector since the last call.
    pub(crate) fn interrupts(&self, vector: u32) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.vectors[&vector], &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    /// Waits for an interrupt.
    pub(crate) fn wait_for_interrupt(&self, vector: u32) {
        poll(
            &mut [PollFd::new(&self.vectors[&vector], PollFlags::IN)],
            None,
        )
        .unwrap();
        assert!(self.interrupts(vector) > 0);
    }

    /// Allocates zeroed pages of the guest's memory. Returns their address.
    pub(crate) fn take(&mut self, bytes: u64) -> u64 {
        let start = self.next_page;
        self.next_page += bytes.next_multiple_of(PAGE);
        assert!(self.next_page <= LENGTH, "the guest has no more memory");
        MEMORY + start
    }

    /// The client's half of a ring at an address of the guest.
    pub(crate) fn lend(&self, address: u64, length: u64) -> LentMemory {
        self.memory.lend(address - MEMORY, length)
    }

    /// Reads bytes of the guest's memory.
    pub(crate) fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, address - MEMORY)
            .unwrap();
        bytes
    }

    /// Writes bytes to the guest's memory.
    pub(crate) fn put(&self, address: u64, bytes: &(impl IntoBytes + Immutable + ?Sized)) {
        self.file
            .write_all_at(bytes.as_bytes(), address - MEMORY)
            .unwrap();
    }

    /// Ends the connection, and returns the device's result.
    pub(crate) fn leave(mut self) -> Result<(), StreamError> {
        drop(self.stream.take());
        self.server
            .take()
            .unwrap()
            .join()
            .expect("the device does not panic")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stream = None;
        if let Some(server) = self.server.take()
            && !std::thread::panicking()
        {
            let _ = server.join().expect("the device does not panic");
        }
    }
}
