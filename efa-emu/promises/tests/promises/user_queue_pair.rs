//! The second queue pair of a zero-copy receiver (libfabric 1.22 to 2.5): the application's own
//! buffers are posted there, and messages arrive without headers, one per buffer.

use std::collections::HashMap;

use efa_core::nic::{BufferId, Completion, CompletionKind, Domain, Nic, PolledNic, Status};
use efa_core::wire::UserRecvQp;
use efa_sim::{NicConfig, SimHost, SimNic};

pub(crate) struct UserQueuePair {
    nic: SimNic,
    /// The posted receives, by their buffer.
    posted: HashMap<BufferId, usize>,
}

/// A message that arrived.
pub(crate) struct Arrived {
    pub(crate) receive: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) cq_data: Option<u32>,
}

const DEPTH: usize = 128;

impl UserQueuePair {
    pub(crate) fn open(host: &SimHost, rnr_retry: u8) -> Result<Self, String> {
        let nic = host.open_nic(NicConfig {
            send_queue_depth: 2,
            recv_queue_depth: DEPTH,
            packet_buffers: DEPTH,
            rnr_retry,
            ..NicConfig::default()
        });
        Ok(UserQueuePair {
            nic: nic.map_err(|error| error.to_string())?,
            posted: HashMap::new(),
        })
    }

    /// Its name in a HANDSHAKE.
    pub(crate) fn name(&self) -> UserRecvQp {
        let address = self.nic.address();
        UserRecvQp {
            qpn: address.qpn.0.into(),
            qkey: address.qkey,
        }
    }

    /// Posts a receive.
    pub(crate) fn post(&mut self, receive: usize) -> Result<(), String> {
        let buffer = self
            .nic
            .acquire_buffer()
            .ok_or("more receives than DEPTH")?;
        self.posted.insert(buffer, receive);
        self.nic
            .post_recv(buffer)
            .map_err(|error| error.to_string())
    }

    /// The number of receives that no message has consumed.
    pub(crate) fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Takes the arrived messages.
    pub(crate) fn poll(&mut self) -> Result<Vec<Arrived>, String> {
        let mut completions: Vec<Completion> = Vec::new();
        while self.nic.poll(&mut completions, 64) > 0 {}
        let mut arrived = Vec::new();
        for completion in completions {
            match completion.kind {
                CompletionKind::Recv {
                    buffer,
                    length,
                    immediate,
                    ..
                } if completion.status == Status::Ok => {
                    let receive = self.posted.remove(&buffer);
                    arrived.push(Arrived {
                        receive: receive.ok_or("a buffer came back that was not posted")?,
                        bytes: self.nic.buffer(buffer)[..length].to_vec(),
                        // In the byte order of stock libfabric.
                        cq_data: immediate.map(u32::swap_bytes),
                    });
                    self.nic.release_buffer(buffer);
                }
                other => return Err(format!("a user queue pair completed {other:?}")),
            }
        }
        Ok(arrived)
    }
}
