//! Queue pairs of one device that talk to each other, and what experiments do with them.

use std::time::{Duration, Instant};

use efa_core::address::RawAddress;
use efa_core::nic::{
    Access, Completion, CompletionKind, Destination, Domain as _, Doorbell, LocalKey, Nic as _,
    NicError, PolledNic as _, RdmaRequest, Region, SendRequest, Status, UserSlice,
};
use efa_hw::{DeviceReport, HwDevice, HwNic, NicConfig, OpenError};

/// How long to wait for a completion. A device that retries gives up after seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why an experiment failed, in words.
type Failed = String;

/// The device, and what it says of itself.
pub(super) struct Lab {
    device: HwDevice,
    pub(super) report: DeviceReport,
}

/// Memory that was registered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) slice: UserSlice,
    pub(super) region: Region,
}

/// Two queue pairs, each in a protection domain of its own.
pub(super) struct Pair {
    /// The side that sends.
    pub(super) a: HwNic,
    /// The side that is sent to.
    pub(super) b: HwNic,
    /// Where `a` finds `b`.
    pub(super) to: Destination,
}

fn words(error: NicError) -> Failed {
    error.to_string()
}

impl Lab {
    pub(super) fn new(device: HwDevice) -> Result<Lab, OpenError> {
        let report = device.report()?;
        Ok(Lab { device, report })
    }

    /// A queue pair in a protection domain of its own.
    pub(super) fn open(&self, config: NicConfig) -> Result<HwNic, Failed> {
        let small = NicConfig {
            send_queue_depth: 128,
            recv_queue_depth: 128,
            packet_buffers: 512,
            ..config
        };
        self.device
            .open_nic(small)
            .map_err(|error| error.to_string())
    }

    /// Two queue pairs, of which the first knows the other.
    pub(super) fn pair(&self, rnr_retry: u8, unsolicited: bool) -> Result<Pair, Failed> {
        let config = NicConfig {
            rnr_retry,
            unsolicited_write_recv: unsolicited,
            ..NicConfig::default()
        };
        let (mut a, b) = (self.open(config)?, self.open(config)?);
        let RawAddress { gid, qpn, qkey } = b.address();
        let ahn = a.create_address_handle(gid).map_err(words)?;
        Ok(Pair {
            a,
            b,
            to: Destination { ahn, qpn, qkey },
        })
    }
}

/// Registers memory of this length.
pub(super) fn memory(nic: &mut HwNic, length: usize, access: Access) -> Result<Memory, Failed> {
    let slice = nic.allocate(length).map_err(words)?;
    let region = nic.register(slice, access).map_err(words)?;
    Ok(Memory { slice, region })
}

/// Posts a send of these bytes.
pub(super) fn send(
    nic: &mut HwNic,
    to: Destination,
    bytes: &[u8],
    immediate: Option<u32>,
    context: u64,
) -> Result<(), Failed> {
    let buffer = nic
        .acquire_buffer()
        .ok_or("there is no packet buffer left")?;
    nic.buffer_mut(buffer)[..bytes.len()].copy_from_slice(bytes);
    post(
        nic,
        &SendRequest {
            destination: to,
            buffer,
            header_length: bytes.len(),
            payload: None,
            immediate,
            context,
        },
    )
}

/// Posts a send of user memory under any key.
pub(super) fn send_memory(
    nic: &mut HwNic,
    to: Destination,
    payload: (UserSlice, LocalKey),
) -> Result<(), Failed> {
    let buffer = nic
        .acquire_buffer()
        .ok_or("there is no packet buffer left")?;
    post(
        nic,
        &SendRequest {
            destination: to,
            buffer,
            header_length: 8,
            payload: Some(payload),
            immediate: None,
            context: 0,
        },
    )
}

fn post(nic: &mut HwNic, request: &SendRequest) -> Result<(), Failed> {
    nic.post_send(request, Doorbell::Ring).map_err(words)
}

/// Posts a receive.
pub(super) fn receive(nic: &mut HwNic) -> Result<(), Failed> {
    let buffer = nic
        .acquire_buffer()
        .ok_or("there is no packet buffer left")?;
    nic.post_recv(buffer).map_err(words)
}

/// A read of remote memory into local memory, or the write of the opposite.
pub(super) fn rdma(
    to: Destination,
    local: &Memory,
    remote: &Memory,
    immediate: Option<u32>,
) -> RdmaRequest {
    RdmaRequest {
        destination: to,
        local: local.slice,
        local_key: local.region.local_key,
        remote_address: remote.slice.address,
        remote_key: remote.region.remote_key,
        immediate,
        context: 0,
    }
}

/// Posts an RDMA read, and waits for its end.
pub(super) fn read(pair: &mut Pair, request: &RdmaRequest) -> Result<Status, Failed> {
    pair.a.post_read(request, Doorbell::Ring).map_err(words)?;
    Ok(pair.wait(1, 0)?.0[0].status)
}

/// Posts an RDMA write, and waits for its end and for `at_b` completions of the other side.
pub(super) fn write(
    pair: &mut Pair,
    request: &RdmaRequest,
    at_b: usize,
) -> Result<(Status, Vec<Completion>), Failed> {
    pair.a.post_write(request, Doorbell::Ring).map_err(words)?;
    let (at_a, at_b) = pair.wait(1, at_b)?;
    Ok((at_a[0].status, at_b))
}

impl Pair {
    /// Waits until each side has so many completions.
    pub(super) fn wait(
        &mut self,
        at_a: usize,
        at_b: usize,
    ) -> Result<(Vec<Completion>, Vec<Completion>), Failed> {
        let started = Instant::now();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        while a.len() < at_a || b.len() < at_b {
            self.a.poll(&mut a, 64);
            self.b.poll(&mut b, 64);
            if started.elapsed() > PATIENCE {
                return Err(format!(
                    "after {PATIENCE:?} {} of {at_a} requests and {} of {at_b} receives have ended",
                    a.len(),
                    b.len()
                ));
            }
        }
        // What is polled belongs to the pool again.
        for (nic, completions) in [(&mut self.a, &a), (&mut self.b, &b)] {
            for completion in completions {
                match completion.kind {
                    CompletionKind::Send { buffer } | CompletionKind::Recv { buffer, .. } => {
                        nic.release_buffer(buffer);
                    }
                    _ => {}
                }
            }
        }
        Ok((a, b))
    }

    /// Sends a few bytes, and waits for the end of the send.
    pub(super) fn send_status(&mut self) -> Result<Status, Failed> {
        send(&mut self.a, self.to, &[0; 8], None, 0)?;
        Ok(self.wait(1, 0)?.0[0].status)
    }

    /// Has the second side know the first, without which RDMA may be refused.
    pub(super) fn introduce(&mut self) -> Result<(), Failed> {
        let gid = self.a.address().gid;
        self.b.create_address_handle(gid).map(drop).map_err(words)
    }
}
