//! A peer whose every packet is chosen by a test.

use std::collections::{BTreeMap, VecDeque};

use efa_core::address::{Ahn, Gid, RawAddress};
use efa_core::nic::{
    BufferId, Completion, CompletionKind, Destination, Domain, Doorbell, Nic, NicError, PolledNic,
    SendRequest, Source, Status,
};

use super::host::SimHost;
use super::nic::{NicConfig, SimNic};

/// A packet that a [`ScriptedPeer`] received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedPacket {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its sender, as far as it is known to the device.
    pub source: Source,
    /// Immediate data, if the sender supplied any.
    pub immediate: Option<u32>,
}

/// A completed request of a [`ScriptedPeer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FinishedRequest {
    /// The result of [`ScriptedPeer::send`], or the context of a request posted on the
    /// [`ScriptedPeer::nic`].
    pub context: u64,
    /// The status of its completion.
    pub status: Status,
}

/// A queue pair that sends exactly the bytes that are passed to it, and returns every packet that
/// arrives: the peer in a test of a protocol implementation.
///
/// ```
/// use efa_sim::{Fabric, FabricConfig, HostConfig, NicConfig, ScriptedPeer};
///
/// let fabric = Fabric::new(FabricConfig::default());
/// let host = || fabric.add_host(HostConfig::default());
/// let mut alice = ScriptedPeer::open(&host(), NicConfig::default())?;
/// let mut bob = ScriptedPeer::open(&host(), NicConfig::default())?;
///
/// alice.send(bob.address(), b"any bytes")?;
/// fabric.run_until_idle();
/// let packet = bob.next_packet()?.expect("the packet arrived");
/// assert_eq!(packet.bytes, b"any bytes");
/// assert_eq!(packet.source.ahn, None, "bob has no address handle for alice");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ScriptedPeer {
    nic: SimNic,
    handles: BTreeMap<Gid, Ahn>,
    contexts: u64,
    repost: bool,
    packets: VecDeque<ReceivedPacket>,
    finished: VecDeque<FinishedRequest>,
    completions: Vec<Completion>,
}

impl ScriptedPeer {
    /// Opens a queue pair and posts the maximum number of receives that it and its packet buffers
    /// allow, leaving buffers for a full send queue.
    pub fn open(host: &SimHost, config: NicConfig) -> Result<Self, NicError> {
        let mut peer = Self::open_without_receives(host, config)?;
        let spare = config
            .packet_buffers
            .saturating_sub(config.send_queue_depth);
        peer.post_receives(spare.min(config.recv_queue_depth))?;
        peer.repost = true;
        Ok(peer)
    }

    /// Opens a queue pair without posted receives: senders find it not ready.
    pub fn open_without_receives(host: &SimHost, config: NicConfig) -> Result<Self, NicError> {
        Ok(ScriptedPeer {
            nic: host.open_nic(config)?,
            handles: BTreeMap::new(),
            contexts: 0,
            repost: false,
            packets: VecDeque::new(),
            finished: VecDeque::new(),
            completions: Vec::new(),
        })
    }

    /// The queue pair's address.
    pub fn address(&self) -> RawAddress {
        self.nic.address()
    }

    /// The queue pair, for operations that this type does not offer. Do not poll it:
    /// [`ScriptedPeer::next_packet`] and [`ScriptedPeer::next_finished`] return its completions.
    pub fn nic(&mut self) -> &mut SimNic {
        &mut self.nic
    }

    /// Posts `count` receives.
    pub fn post_receives(&mut self, count: usize) -> Result<(), NicError> {
        for _ in 0..count {
            let buffer = self.nic.acquire_buffer().ok_or(NicError::QueueFull)?;
            if let Err(error) = self.nic.post_recv(buffer) {
                self.nic.release_buffer(buffer);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Creates an address handle for a host, unless there is one. From then on the sender of its
    /// packets is known, and this peer may use RDMA on the host.
    pub fn know(&mut self, gid: Gid) -> Result<Ahn, NicError> {
        if let Some(ahn) = self.handles.get(&gid) {
            return Ok(*ahn);
        }
        let ahn = self.nic.create_address_handle(gid)?;
        self.handles.insert(gid, ahn);
        Ok(ahn)
    }

    /// Destroys the address handle of a host.
    pub fn forget(&mut self, gid: Gid) -> Result<(), NicError> {
        match self.handles.remove(&gid) {
            Some(ahn) => self.nic.destroy_address_handle(ahn),
            None => Ok(()),
        }
    }

    /// The destination of requests to an address. Creates an address handle for its host if needed.
    pub fn destination(&mut self, to: RawAddress) -> Result<Destination, NicError> {
        Ok(Destination::new(self.know(to.gid)?, to))
    }

    /// Sends a packet, and returns the context of its completion.
    pub fn send(&mut self, to: RawAddress, packet: &[u8]) -> Result<u64, NicError> {
        self.send_with(to, packet, None)
    }

    /// As [`ScriptedPeer::send`], with immediate data.
    pub fn send_with_immediate(
        &mut self,
        to: RawAddress,
        packet: &[u8],
        immediate: u32,
    ) -> Result<u64, NicError> {
        self.send_with(to, packet, Some(immediate))
    }

    fn send_with(
        &mut self,
        to: RawAddress,
        packet: &[u8],
        immediate: Option<u32>,
    ) -> Result<u64, NicError> {
        let destination = self.destination(to)?;
        let buffer = self.nic.acquire_buffer().ok_or(NicError::QueueFull)?;
        let context = self.contexts;
        let bytes = self.nic.buffer_mut(buffer).get_mut(..packet.len());
        let posted = match bytes {
            Some(bytes) => {
                bytes.copy_from_slice(packet);
                let request = SendRequest {
                    destination,
                    buffer,
                    header_length: packet.len(),
                    payload: None,
                    immediate,
                    context,
                };
                self.nic.post_send(&request, Doorbell::Ring)
            }
            None => Err(NicError::invalid("packet length", packet.len() as u64)),
        };
        match posted {
            Ok(()) => {
                self.contexts += 1;
                Ok(context)
            }
            Err(error) => {
                self.nic.release_buffer(buffer);
                Err(error)
            }
        }
    }

    /// The next packet that arrived.
    pub fn next_packet(&mut self) -> Result<Option<ReceivedPacket>, NicError> {
        self.collect()?;
        Ok(self.packets.pop_front())
    }

    /// The next completed request of this peer.
    pub fn next_finished(&mut self) -> Result<Option<FinishedRequest>, NicError> {
        self.collect()?;
        Ok(self.finished.pop_front())
    }

    /// Polls the queue pair. Receives are posted again if the peer was opened with receives.
    fn collect(&mut self) -> Result<(), NicError> {
        let mut completions = std::mem::take(&mut self.completions);
        while self.nic.poll(&mut completions, 64) > 0 {}
        for completion in completions.drain(..) {
            let Completion {
                context,
                status,
                kind,
                ..
            } = completion;
            match kind {
                CompletionKind::Send { buffer } => {
                    self.nic.release_buffer(buffer);
                    self.finished.push_back(FinishedRequest { context, status });
                }
                CompletionKind::RdmaRead | CompletionKind::RdmaWrite => {
                    self.finished.push_back(FinishedRequest { context, status });
                }
                CompletionKind::Recv {
                    buffer,
                    length,
                    source,
                    immediate,
                } => {
                    if status == Status::Ok {
                        self.packets.push_back(ReceivedPacket {
                            bytes: self.nic.buffer(buffer)[..length].to_vec(),
                            source,
                            immediate,
                        });
                    }
                    self.give_back(buffer, status)?;
                }
                // This peer never posts user memory.
                CompletionKind::RecvUser { .. } => {}
                CompletionKind::RecvRdmaWithImmediate {
                    buffer,
                    source,
                    immediate,
                    ..
                } => {
                    if status == Status::Ok {
                        self.packets.push_back(ReceivedPacket {
                            bytes: Vec::new(),
                            source,
                            immediate: Some(immediate),
                        });
                    }
                    if let Some(buffer) = buffer {
                        self.give_back(buffer, status)?;
                    }
                }
            }
        }
        self.completions = completions;
        Ok(())
    }

    fn give_back(&mut self, buffer: BufferId, status: Status) -> Result<(), NicError> {
        if self.repost && status != Status::Flushed {
            self.nic.post_recv(buffer)
        } else {
            self.nic.release_buffer(buffer);
            Ok(())
        }
    }
}
