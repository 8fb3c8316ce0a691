//! Two endpoints in one process, of the engine or of a libfabric's provider.

use std::path::Path;

use efa_core::endpoint::{
    Endpoint, EndpointConfig, EndpointError, Instant, IoVec, OperationFlags, PeerId, RecvArgs,
    SendArgs, SourceFilter, TagFilter,
};
use efa_core::nic::{Access, UserSlice};
use efa_hw::{DeviceName, HwDevice, HwNic, NicConfig};
use efa_play::libfabric::{self, Address, BareBuffer, Library, Settings, Version, ffi};

use crate::measure::Workload;

/// A sender and a receiver.
pub(crate) trait Ends {
    /// Starts to send message `number`. Returns whether there was room.
    fn send(&mut self, number: usize) -> Result<bool, String>;
    /// Posts the receive of message `number`. Returns whether there was room.
    fn recv(&mut self, number: usize) -> Result<bool, String>;
    /// Makes progress at the sender; returns the number of completed messages.
    fn poll_sender(&mut self) -> Result<usize, String>;
    /// Makes progress at the receiver; returns the number of received messages.
    fn poll_receiver(&mut self) -> Result<usize, String>;
}

/// The engine over verbs.
pub(crate) struct CoreEnds {
    sender: Endpoint<HwNic>,
    receiver: Endpoint<HwNic>,
    peer: PeerId,
    source: IoVec,
    targets: Vec<IoVec>,
}

impl CoreEnds {
    pub(crate) fn open(workload: Workload) -> Result<Self, String> {
        let device = HwDevice::open(&DeviceName::First).map_err(|error| error.to_string())?;
        let open = || {
            let nic = device
                .open_nic(NicConfig::default())
                .map_err(|error| error.to_string())?;
            Endpoint::new(nic, EndpointConfig::default()).map_err(|error| error.to_string())
        };
        let (mut sender, mut receiver) = (open()?, open()?);
        let peer = sender
            .insert_address(receiver.address())
            .map_err(|error| error.to_string())?;
        receiver
            .insert_address(sender.address())
            .map_err(|error| error.to_string())?;
        let source = memory(&mut sender, workload.length)?;
        let target = memory(&mut receiver, workload.length * workload.window)?;
        let targets = (0..workload.window)
            .map(|slot| IoVec {
                memory: UserSlice {
                    address: target.memory.address + (slot * workload.length) as u64,
                    length: workload.length,
                },
                ..target
            })
            .collect();
        Ok(CoreEnds {
            sender,
            receiver,
            peer,
            source,
            targets,
        })
    }
}

fn memory(endpoint: &mut Endpoint<HwNic>, length: usize) -> Result<IoVec, String> {
    let memory = endpoint
        .nic_mut()
        .allocate(length)
        .map_err(|error| error.to_string())?;
    let region = endpoint
        .register(memory, Access::LOCAL_WRITE | Access::REMOTE_READ)
        .map_err(|error| error.to_string())?;
    Ok(IoVec {
        memory,
        region: Some(region),
    })
}

fn started<T>(result: Result<T, EndpointError>) -> Result<bool, String> {
    match result {
        Ok(_) => Ok(true),
        Err(EndpointError::TryAgain) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

fn poll(endpoint: &mut Endpoint<HwNic>) -> Result<usize, String> {
    // The emulated device refuses nothing here, so time need not advance.
    endpoint.progress(Instant::START);
    let mut count = 0;
    while let Some(completion) = endpoint.poll_completion() {
        completion.map_err(|error| format!("{error:?}"))?;
        count += 1;
    }
    Ok(count)
}

impl Ends for CoreEnds {
    fn send(&mut self, number: usize) -> Result<bool, String> {
        started(self.sender.send(SendArgs {
            tag: Some(number as u64),
            ..SendArgs::new(self.peer, &[self.source], number as u64)
        }))
    }

    fn recv(&mut self, number: usize) -> Result<bool, String> {
        started(self.receiver.recv(RecvArgs {
            source: SourceFilter::Any,
            buffer: &[self.targets[number % self.targets.len()]],
            tag: Some(TagFilter::exact(number as u64)),
            flags: OperationFlags::COMPLETION,
            context: number as u64,
        }))
    }

    fn poll_sender(&mut self) -> Result<usize, String> {
        poll(&mut self.sender)
    }

    fn poll_receiver(&mut self) -> Result<usize, String> {
        poll(&mut self.receiver)
    }
}

/// Stock libfabric, with one of its providers.
pub(crate) struct StockEnds {
    // Buffers are dropped before the endpoints whose domains they are registered with.
    source: BareBuffer,
    targets: Vec<BareBuffer>,
    sender: libfabric::Endpoint,
    receiver: libfabric::Endpoint,
    peer: Address,
    length: usize,
    /// The contexts of the sends, then of the receives; one for each message in the window.
    contexts: Vec<ffi::fi_context2>,
    entries: [ffi::fi_cq_tagged_entry; 64],
}

impl StockEnds {
    pub(crate) fn open(library: &Path, provider: &str, workload: Workload) -> Result<Self, String> {
        let library = Library::load(library).map_err(|error| error.to_string())?;
        let settings = Settings {
            provider: provider.into(),
            api: Version::BASELINE_API,
            capabilities: ffi::FI_TAGGED,
            register_local: true,
            max_message: None,
            device: None,
        };
        let open =
            || libfabric::Endpoint::open(&library, &settings).map_err(|error| error.to_string());
        let (mut sender, mut receiver) = (open()?, open()?);
        let name = |endpoint: &libfabric::Endpoint| endpoint.name().map_err(|e| e.to_string());
        let peer = sender
            .insert(&name(&receiver)?)
            .map_err(|error| error.to_string())?;
        receiver
            .insert(&name(&sender)?)
            .map_err(|error| error.to_string())?;
        let buffer = |endpoint: &libfabric::Endpoint| {
            endpoint
                .bare_buffer(workload.length)
                .map_err(|error| error.to_string())
        };
        let targets = (0..workload.window)
            .map(|_| buffer(&receiver))
            .collect::<Result<_, _>>()?;
        Ok(StockEnds {
            source: buffer(&sender)?,
            targets,
            sender,
            receiver,
            peer,
            length: workload.length,
            contexts: vec![ffi::fi_context2::default(); 2 * workload.window],
            entries: [ffi::fi_cq_tagged_entry::default(); 64],
        })
    }
}

impl Ends for StockEnds {
    fn send(&mut self, number: usize) -> Result<bool, String> {
        let slot = number % self.targets.len();
        let context = &mut self.contexts[slot];
        let (tag, length) = (number as u64, self.length);
        // SAFETY: the buffer is of that length, and lives as long as the endpoint.
        let sent = unsafe {
            self.sender
                .bare_send(&self.source, length, self.peer, tag, context)
        };
        sent.map_err(|error| error.to_string())
    }

    fn recv(&mut self, number: usize) -> Result<bool, String> {
        let window = self.targets.len();
        let slot = number % window;
        let context = &mut self.contexts[window + slot];
        // SAFETY: as in `send`; the receive of the message a window ago has completed.
        let posted = unsafe {
            self.receiver
                .bare_recv(&self.targets[slot], self.length, number as u64, context)
        };
        posted.map_err(|error| error.to_string())
    }

    fn poll_sender(&mut self) -> Result<usize, String> {
        self.sender
            .bare_poll(&mut self.entries)
            .map_err(|error| error.to_string())
    }

    fn poll_receiver(&mut self) -> Result<usize, String> {
        self.receiver
            .bare_poll(&mut self.entries)
            .map_err(|error| error.to_string())
    }
}
