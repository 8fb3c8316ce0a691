//! Tag matching in the simulator.

use std::sync::Arc;

use efa_core::address::{Gid, Qpn};
use efa_core::nic::{Access, UserSlice};
use efa_device_model::device::connected::{
    BufferList, ConnectedConfig, ConnectionAttributes, ConnectionMask, Payload, RecvWr,
    RemoteMemory, SendOperation, SendWr, SrqConfig, SrqId, TagConfig, TagRequestOperation,
    TaggedBuffer,
};
use efa_device_model::device::queue::{Buffer, CompletionRing, CompletionSlot, RequestIdSize};
use efa_device_model::device::{
    CqId, Device, Error, MemoryRegion, PdId, QpState, RegionKeys, connected,
};
use efa_device_model::profile::Profile;
use efa_hw::connected::{Completion, TagOperation, TagRequest, Work};
use efa_play::scenario::tags::TagScenario;
use efa_sim::SimHost;

use super::{Connection, DeviceError, Devices};
use crate::replay::backend::Backend as _;
use crate::replay::emu::Emu;

const PROFILE: &str = "tm";

/// Work requests of each queue.
const DEPTH: u32 = 256;

/// Capacity for the completions of all steps of an end: the device is not notified which
/// completions were read.
const COMPLETIONS: u32 = 1 << 14;

/// The queue pair of each end.
const QPN: Qpn = Qpn(7);

/// One end, on a separate host.
pub struct SimConnection {
    host: SimHost,
    memory: UserSlice,
    keys: RegionKeys,
    shared: Option<SrqId>,
    ring: Arc<CompletionRing>,
    consumer: u16,
}

impl SimConnection {
    fn open(host: SimHost, length: usize, tags: Option<u32>) -> Result<SimConnection, DeviceError> {
        let memory = host.allocate(length)?;
        let made = host.with_device(|device| -> Result<_, Error> {
            let pd = device.alloc_pd()?;
            let (cq, ring) = device.create_cq(COMPLETIONS, RequestIdSize::Bits16)?;
            let keys = device.register_memory(
                pd,
                MemoryRegion::new(
                    memory.address,
                    length as u64,
                    Access::LOCAL_WRITE | Access::REMOTE_READ,
                ),
            )?;
            let shared = shared_queue(device, pd, cq, tags)?;
            let config = ConnectedConfig {
                pd,
                send_cq: cq,
                recv_cq: cq,
                shared,
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_recv_sge: 1,
            };
            device.create_connected_qp(QPN, config)?;
            Ok((keys, shared, ring))
        });
        let (keys, shared, ring) = made?;
        Ok(SimConnection {
            host,
            memory,
            keys,
            shared,
            ring,
            consumer: 0,
        })
    }

    fn connect(&self, peer: Gid, mtu: u32) -> Result<(), Error> {
        let attributes = ConnectionAttributes {
            access: Access::REMOTE_READ,
            peer,
            destination: QPN.0.into(),
            path_mtu: (mtu.max(256).ilog2() - 7) as u8,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            ..ConnectionAttributes::default()
        };
        let states = [
            QpState::Reset,
            QpState::Init,
            QpState::ReadyToReceive,
            QpState::ReadyToSend,
        ];
        self.host.with_device(|device| {
            states.array_windows().try_for_each(|&[from, state]| {
                let to = ConnectionAttributes {
                    state,
                    ..attributes
                };
                let mask = ConnectionMask::required(from, state).unwrap_or_default();
                device.modify_connected_qp(QPN, &to, mask | ConnectionMask::STATE)
            })
        })
    }

    fn part(&self, offset: usize, length: usize) -> BufferList {
        let buffer = Buffer {
            address: self.memory.address + offset as u64,
            length: length as u32,
            lkey: self.keys.lkey.0,
        };
        BufferList::new(&[buffer]).unwrap_or_default()
    }
}

fn shared_queue(
    device: &mut Device,
    pd: PdId,
    cq: CqId,
    tags: Option<u32>,
) -> Result<Option<SrqId>, Error> {
    let Some(max_tags) = tags else {
        return Ok(None);
    };
    let config = SrqConfig {
        pd,
        max_wr: DEPTH,
        max_sge: 1,
        tags: Some(TagConfig { cq, max_tags }),
    };
    device.create_srq(config).map(Some)
}

impl Devices for Emu {
    type Connection = SimConnection;

    fn name(&self) -> &'static str {
        "emu"
    }

    fn connect(
        &mut self,
        memory: usize,
        scenario: &TagScenario,
    ) -> Result<[SimConnection; 2], DeviceError> {
        self.capture_next();
        self.reset();
        let profile = Profile::by_name(PROFILE);
        let profile = profile.ok_or(DeviceError::UnknownProfile(PROFILE))?;
        let open = |name: &str, tags| {
            let host = self.fabric().add_host(efa_sim::HostConfig {
                name: Some(name.to_owned()),
                profile: profile.clone(),
                ..efa_sim::HostConfig::default()
            });
            SimConnection::open(host, memory, tags)
        };
        let ends = [open("a", None)?, open("b", Some(scenario.connection.tags))?];
        for (end, peer) in [(0, 1), (1, 0)] {
            let peer = ends[peer].host.gid();
            let mtu = scenario.connection.mtu;
            ends[end].connect(peer, mtu)?;
        }
        Ok(ends)
    }

    fn wait(&mut self, rounds: u32) -> bool {
        self.idle(rounds, None)
    }

    fn quiet_rounds(&self) -> u32 {
        u32::MAX
    }

    fn captured(&mut self) -> Option<Vec<u8>> {
        self.take_capture()
    }
}

impl Connection for SimConnection {
    fn region(&self) -> (u64, u32) {
        (self.memory.address, self.keys.rkey.0)
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let address = self.memory.address + offset as u64;
        let bytes = self.host.read(UserSlice { address, length });
        bytes.unwrap_or_default()
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let written = self.host.write(self.memory.address + offset as u64, bytes);
        written.expect("the player keeps within the memory");
    }

    fn post(
        &mut self,
        wr_id: u64,
        work: Work,
        offset: usize,
        length: usize,
    ) -> Result<(), DeviceError> {
        let operation = match work {
            Work::Send => SendOperation::Send(None),
            Work::Read { address, key } => SendOperation::Read(RemoteMemory { address, key }),
        };
        let wr = SendWr {
            wr_id,
            operation,
            payload: Payload::Buffers(self.part(offset, length)),
            is_signaled: true,
            is_fenced: false,
            is_solicited: false,
        };
        let post = |device: &mut Device| device.post_connected_send(QPN, wr);
        Ok(self.host.with_device(post)?)
    }

    fn post_receive(
        &mut self,
        wr_id: u64,
        offset: usize,
        length: usize,
    ) -> Result<(), DeviceError> {
        let buffers = self.part(offset, length);
        let receive = RecvWr { wr_id, buffers };
        let post = |device: &mut Device| match self.shared {
            Some(shared) => device.post_srq_recv(shared, receive),
            None => device.post_connected_recv(QPN, receive),
        };
        Ok(self.host.with_device(post)?)
    }

    fn post_tag_request(&mut self, request: &TagRequest) -> Result<u32, DeviceError> {
        let operation = match request.operation {
            TagOperation::Add {
                recv_wr_id,
                offset,
                length,
                tag,
                mask,
            } => TagRequestOperation::Add(TaggedBuffer {
                wr_id: recv_wr_id,
                buffers: self.part(offset, length),
                tag,
                mask,
            }),
            TagOperation::Delete(handle) => TagRequestOperation::Delete(handle),
            TagOperation::Sync => TagRequestOperation::Sync,
        };
        let request = connected::TagRequest {
            wr_id: request.wr_id,
            is_signaled: request.is_signaled,
            handled: request.handled,
            operation,
        };
        let shared = self.shared.ok_or(DeviceError::NoTagList)?;
        let post = |device: &mut Device| device.post_tag_request(shared, &request);
        Ok(self.host.with_device(post)?)
    }

    fn poll(&mut self) -> Option<Completion> {
        let CompletionSlot::Entry(entry) = self.ring.read(self.consumer) else {
            return None;
        };
        self.consumer = self.consumer.wrapping_add(1);
        Some(Completion {
            wr_id: entry.connected_wr_id(),
            status: entry.status().into(),
            opcode: entry.connected_operation().into(),
            flags: entry.connected_flags().into(),
            length: entry.connected_length(),
            tag: entry.connected_tag(),
            data: entry.connected_data(),
        })
    }
}
