//! Queue pairs: their attributes, and the allowed state changes.

use std::sync::Arc;

use efa_core::address::Qkey;

use super::error::Error;
use super::ids::{CqId, PdId};
use super::queue::{ReceiveRing, RequestIdSize, SendRing, WqeSize};

/// The transport of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Scalable reliable datagram: reliable, unordered.
    Srd,
    /// Unreliable datagram: a receive starts with a 40-byte GRH.
    Ud,
}

efa_core::wire::enumerated! {
    /// The state of a queue pair.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum QpState {
        /// Just created; nothing may be posted.
        Reset,
        /// Receives may be posted.
        Init,
        /// Ready to receive.
        ReadyToReceive,
        /// Ready to send and to receive.
        ReadyToSend,
        /// Sends are accepted but not started.
        SendQueueDrained,
        /// Outstanding requests were flushed, and nothing is accepted.
        Error,
    }
}

/// The RNR retry count for unlimited retries.
pub const RNR_RETRY_INFINITE: u8 = 7;

/// The parameters for creating a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// The transport.
    pub service: Service,
    /// The protection domain.
    pub pd: PdId,
    /// The completion queue of the send queue.
    pub send_cq: CqId,
    /// The completion queue of the receive queue.
    pub recv_cq: CqId,
    /// Send queue entries, a power of two.
    pub send_entries: u32,
    /// The size of a send queue entry.
    pub wqe_size: WqeSize,
    /// Receive queue descriptors, a power of two.
    pub recv_descriptors: u32,
    /// Whether RDMA writes with immediate consume no receive.
    pub unsolicited_write_recv: bool,
    /// The size of the send queue's request ids. 64 bits need a completion queue for them.
    pub request_ids: RequestIdSize,
}

/// The rings of a queue pair, shared between the device and its client.
#[derive(Clone)]
pub struct QpRings {
    /// The send queue.
    pub send: Arc<SendRing>,
    /// The receive queue.
    pub recv: Arc<ReceiveRing>,
}

impl QpRings {
    /// Checks that the rings match `config`.
    pub(super) fn check(&self, config: &QpConfig) -> Result<(), Error> {
        if self.send.entries() != config.send_entries || self.send.wqe_size() != config.wqe_size {
            return Err(Error::invalid("send queue depth", config.send_entries));
        }
        if self.recv.entries() != config.recv_descriptors {
            let entries = config.recv_descriptors;
            return Err(Error::invalid("receive queue depth", entries));
        }
        Ok(())
    }
}

/// The attributes that `modify_qp` sets. An attribute that is `None` does not change. The caller
/// refuses other attributes with `EOPNOTSUPP`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpChange {
    /// The new state.
    pub state: Option<QpState>,
    /// The state that the caller expects the queue pair to be in.
    pub current_state: Option<QpState>,
    /// Partition key index; only 0 exists.
    pub pkey_index: Option<u16>,
    /// Port; only 1 exists.
    pub port: Option<u8>,
    /// The Q-key that senders must use.
    pub qkey: Option<Qkey>,
    /// First packet sequence number. The device keeps it and does not use it.
    pub sq_psn: Option<u32>,
    /// Retries of a request after RNR; 7 for unlimited.
    pub rnr_retry: Option<u8>,
    /// Requests an event when the send queue is drained. The device accepts the request and never
    /// raises the event, like the hardware.
    pub drained_event: bool,
}

impl QpChange {
    /// The changes from [`QpState::Reset`] to [`QpState::ReadyToSend`], in order.
    pub fn bring_up(qkey: Qkey, rnr_retry: Option<u8>) -> [QpChange; 3] {
        let to = |state| QpChange {
            state: Some(state),
            ..QpChange::default()
        };
        [
            QpChange {
                pkey_index: Some(0),
                port: Some(1),
                qkey: Some(qkey),
                ..to(QpState::Init)
            },
            to(QpState::ReadyToReceive),
            QpChange {
                sq_psn: Some(0),
                rnr_retry,
                ..to(QpState::ReadyToSend)
            },
        ]
    }
}

/// The attributes that `query_qp` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttributes {
    /// Current state.
    pub state: QpState,
    /// Partition key index.
    pub pkey_index: u16,
    /// Port.
    pub port: u8,
    /// The Q-key that senders must use.
    pub qkey: Qkey,
    /// First packet sequence number.
    pub sq_psn: u32,
    /// Retries of a request after RNR; 7 for unlimited.
    pub rnr_retry: u8,
    /// The parameters with which the queue pair was created.
    pub config: QpConfig,
}

bitflags::bitflags! {
    /// The attributes of a state change.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct ChangedAttributes: u8 {
        const CURRENT_STATE = 1 << 0;
        const PKEY_INDEX = 1 << 1;
        const PORT = 1 << 2;
        const QKEY = 1 << 3;
        const SQ_PSN = 1 << 4;
        const RNR_RETRY = 1 << 5;
        const DRAINED_EVENT = 1 << 6;
    }
}

impl QpChange {
    fn given(&self) -> ChangedAttributes {
        let mut given = ChangedAttributes::empty();
        given.set(
            ChangedAttributes::CURRENT_STATE,
            self.current_state.is_some(),
        );
        given.set(ChangedAttributes::PKEY_INDEX, self.pkey_index.is_some());
        given.set(ChangedAttributes::PORT, self.port.is_some());
        given.set(ChangedAttributes::QKEY, self.qkey.is_some());
        given.set(ChangedAttributes::SQ_PSN, self.sq_psn.is_some());
        given.set(ChangedAttributes::RNR_RETRY, self.rnr_retry.is_some());
        given.set(ChangedAttributes::DRAINED_EVENT, self.drained_event);
        given
    }
}

/// The required and the optional attributes of a state change. `None` if the change is not allowed.
fn transition(
    service: Service,
    from: QpState,
    to: QpState,
) -> Option<(ChangedAttributes, ChangedAttributes)> {
    use QpState::*;
    let none = ChangedAttributes::empty();
    let identity =
        ChangedAttributes::PKEY_INDEX | ChangedAttributes::PORT | ChangedAttributes::QKEY;
    let running = ChangedAttributes::CURRENT_STATE | ChangedAttributes::QKEY;
    let rnr = match service {
        Service::Srd => ChangedAttributes::RNR_RETRY,
        Service::Ud => none,
    };
    Some(match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Init) => (identity, none),
        (Reset, _) => return None,
        (_, Error) => (none, none),
        (Init, Init) => (none, identity),
        (Init, ReadyToReceive) => (
            none,
            ChangedAttributes::PKEY_INDEX | ChangedAttributes::QKEY,
        ),
        (ReadyToReceive, ReadyToSend) => (ChangedAttributes::SQ_PSN, running | rnr),
        (ReadyToSend | SendQueueDrained, ReadyToSend) => (none, running),
        (ReadyToSend, SendQueueDrained) => (none, ChangedAttributes::DRAINED_EVENT),
        (SendQueueDrained, SendQueueDrained) => (
            none,
            ChangedAttributes::PKEY_INDEX | ChangedAttributes::QKEY,
        ),
        _ => return None,
    })
}

/// A queue pair in the device.
pub(super) struct QueuePair {
    pub(super) config: QpConfig,
    pub(super) state: QpState,
    pub(super) qkey: Qkey,
    pub(super) rings: QpRings,
    pub(super) send: SendSide,
    pub(super) recv: ReceiveSide,
    pub(super) rnr_retry: u8,
    pkey_index: u16,
    port: u8,
    sq_psn: u32,
    /// Whether the client writes the doorbells without a call.
    pub(super) watched: bool,
    /// Whether it has completion counters.
    pub(super) counted: bool,
    /// Whether the device has failed it. Its client may not have noticed.
    pub(super) broken: bool,
}

/// The device's progress in the send queue.
#[derive(Default)]
pub(super) struct SendSide {
    /// Entries below this counter were read from the ring.
    pub(super) fetched: u16,
    /// Entries below this counter are valid.
    pub(super) producer: u16,
    /// The number of requests that were read and have not completed.
    pub(super) in_flight: u32,
    /// Sequence number of the next request.
    pub(super) sequence: u32,
    /// Whether the queue pair is in the device's list of queue pairs with unread entries.
    pub(super) scheduled: bool,
    /// The direct doorbell's value when it was last read.
    pub(super) rung: u16,
    /// The client has used the direct doorbell.
    pub(super) is_direct: bool,
}

impl SendSide {
    /// Restarts with an empty ring. The queue pair stays in the device's list.
    pub(super) fn restart(&mut self) {
        *self = SendSide {
            scheduled: self.scheduled,
            ..SendSide::default()
        };
    }
}

/// The device's progress in the receive queue, in descriptors.
#[derive(Default)]
pub(super) struct ReceiveSide {
    /// Descriptors below this counter were consumed.
    pub(super) consumed: u16,
    /// The doorbell's value when it was last read.
    pub(super) producer: u16,
    /// The memory of descriptors below this counter was prefetched by [`Device::look_ahead`].
    ///
    /// [`Device::look_ahead`]: super::Device::look_ahead
    pub(super) fetched: u16,
    /// Bytes of the last message.
    pub(super) last_length: u32,
}

impl QueuePair {
    pub(super) fn new(config: QpConfig, rings: QpRings) -> Self {
        QueuePair {
            config,
            state: QpState::Reset,
            qkey: Qkey(0),
            rings,
            send: SendSide::default(),
            recv: ReceiveSide::default(),
            rnr_retry: RNR_RETRY_INFINITE,
            pkey_index: 0,
            port: 1,
            sq_psn: 0,
            watched: false,
            counted: false,
            broken: false,
        }
    }

    pub(super) fn attributes(&self) -> QpAttributes {
        QpAttributes {
            state: self.state,
            pkey_index: self.pkey_index,
            port: self.port,
            qkey: self.qkey,
            sq_psn: self.sq_psn,
            rnr_retry: self.rnr_retry,
            config: self.config,
        }
    }

    /// Checks a change completely, then applies it. The caller changes the queues.
    pub(super) fn change(&mut self, change: &QpChange, rnr_settable: bool) -> Result<(), Error> {
        let state_code = |state: QpState| state as u64;
        if let Some(believed) = change.current_state
            && believed != self.state
        {
            return Err(Error::invalid("current state", state_code(believed)));
        }
        let to = change.state.unwrap_or(self.state);
        let (required, optional) = transition(self.config.service, self.state, to)
            .ok_or_else(|| Error::invalid("next state", state_code(to)))?;
        let given = change.given();
        if !given.contains(required) {
            let missing = required.difference(given).bits();
            return Err(Error::invalid("missing attributes, set", missing));
        }
        let surplus = given.difference(required | optional);
        if !surplus.is_empty() {
            return Err(Error::invalid("surplus attributes, set", surplus.bits()));
        }
        if let Some(retry) = change.rnr_retry {
            if !rnr_settable {
                return Err(Error::Unsupported("setting the RNR retry count"));
            }
            if retry > RNR_RETRY_INFINITE {
                return Err(Error::invalid("RNR retry count", retry));
            }
        }
        if let Some(index) = change.pkey_index
            && index != 0
        {
            return Err(Error::invalid("P-key index", index));
        }
        if let Some(port) = change.port
            && port != 1
        {
            return Err(Error::invalid("port", port));
        }
        self.state = to;
        self.pkey_index = change.pkey_index.unwrap_or(self.pkey_index);
        self.port = change.port.unwrap_or(self.port);
        self.qkey = change.qkey.unwrap_or(self.qkey);
        self.sq_psn = change.sq_psn.unwrap_or(self.sq_psn);
        self.rnr_retry = change.rnr_retry.unwrap_or(self.rnr_retry);
        Ok(())
    }

    /// Reads the doorbell of a client that rings without a call. Returns whether its value has
    /// changed.
    pub(super) fn take_ring(&mut self) -> bool {
        let Some(page) = self.rings.send.direct_doorbell() else {
            return false;
        };
        let rung = page.doorbell().read() as u16;
        let is_new = std::mem::replace(&mut self.send.rung, rung) != rung;
        self.send.is_direct |= is_new;
        is_new
    }

    /// Returns whether requests of this transport with this key are accepted.
    #[inline(always)]
    pub(super) fn accepts(&self, service: Service, qkey: Qkey) -> bool {
        let receives = matches!(
            self.state,
            QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrained
        );
        receives && self.config.service == service && self.qkey == qkey
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::QpState::*;
    use super::*;

    /// The bits of `ibv_qp_attr_mask` that a change can have besides the state.
    const CUR_STATE: u32 = 1 << 1;
    const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    const PKEY_INDEX: u32 = 1 << 4;
    const PORT: u32 = 1 << 5;
    const QKEY: u32 = 1 << 6;
    const RNR_RETRY: u32 = 1 << 11;
    const SQ_PSN: u32 = 1 << 16;
    const BITS: [u32; 7] = [
        CUR_STATE,
        EN_SQD_ASYNC_NOTIFY,
        PKEY_INDEX,
        PORT,
        QKEY,
        RNR_RETRY,
        SQ_PSN,
    ];

    fn change(from: QpState, to: QpState, mask: u32) -> QpChange {
        QpChange {
            state: Some(to),
            current_state: (mask & CUR_STATE != 0).then_some(from),
            pkey_index: (mask & PKEY_INDEX != 0).then_some(0),
            port: (mask & PORT != 0).then_some(1),
            qkey: (mask & QKEY != 0).then_some(Qkey(7)),
            sq_psn: (mask & SQ_PSN != 0).then_some(9),
            rnr_retry: (mask & RNR_RETRY != 0).then_some(3),
            drained_event: mask & EN_SQD_ASYNC_NOTIFY != 0,
        }
    }

    pub(in crate::device) fn queue_pair(service: Service, state: QpState) -> QueuePair {
        let config = QpConfig {
            service,
            pd: PdId(0),
            send_cq: CqId(0),
            recv_cq: CqId(0),
            send_entries: 1,
            wqe_size: WqeSize::Bytes64,
            recv_descriptors: 1,
            unsolicited_write_recv: false,
            request_ids: RequestIdSize::Bits16,
        };
        let rings = QpRings {
            send: Arc::new(SendRing::new(1, WqeSize::Bytes64).unwrap()),
            recv: Arc::new(ReceiveRing::new(1).unwrap()),
        };
        let mut qp = QueuePair::new(config, rings);
        qp.state = state;
        qp
    }

    /// The changes of an SRD queue pair: from, to, required and optional attributes. All others are
    /// refused.
    const TABLE: [(QpState, QpState, u32, u32); 19] = [
        (Reset, Reset, 0, 0),
        (Reset, Init, PKEY_INDEX | PORT | QKEY, 0),
        (Init, Reset, 0, 0),
        (Init, Init, 0, PKEY_INDEX | PORT | QKEY),
        (Init, ReadyToReceive, 0, PKEY_INDEX | QKEY),
        (Init, Error, 0, 0),
        (ReadyToReceive, Reset, 0, 0),
        (
            ReadyToReceive,
            ReadyToSend,
            SQ_PSN,
            CUR_STATE | QKEY | RNR_RETRY,
        ),
        (ReadyToReceive, Error, 0, 0),
        (ReadyToSend, Reset, 0, 0),
        (ReadyToSend, ReadyToSend, 0, CUR_STATE | QKEY),
        (ReadyToSend, SendQueueDrained, 0, EN_SQD_ASYNC_NOTIFY),
        (ReadyToSend, Error, 0, 0),
        (SendQueueDrained, Reset, 0, 0),
        (SendQueueDrained, ReadyToSend, 0, CUR_STATE | QKEY),
        (SendQueueDrained, SendQueueDrained, 0, PKEY_INDEX | QKEY),
        (SendQueueDrained, Error, 0, 0),
        (Error, Reset, 0, 0),
        (Error, Error, 0, 0),
    ];

    #[test]
    fn state_changes_take_exactly_the_tables_attributes() {
        for service in [Service::Srd, Service::Ud] {
            for from in QpState::ALL {
                for to in QpState::ALL {
                    let row = TABLE.iter().find(|row| (row.0, row.1) == (from, to));
                    for choice in 0..1u32 << BITS.len() {
                        let mask = (0..BITS.len())
                            .filter(|bit| choice >> bit & 1 != 0)
                            .fold(0, |mask, bit| mask | BITS[bit]);
                        let allowed = row.is_some_and(|&(_, _, required, mut optional)| {
                            if service == Service::Ud {
                                optional &= !RNR_RETRY;
                            }
                            mask & required == required && mask & !(required | optional) == 0
                        });
                        let mut qp = queue_pair(service, from);
                        let result = qp.change(&change(from, to, mask), true);
                        let context = format!("{service:?} {from:?} -> {to:?} mask {mask:#x}");
                        assert_eq!(result.is_ok(), allowed, "{context}: {result:?}");
                        if allowed {
                            assert_eq!(qp.state, to, "{context}");
                        } else {
                            assert_eq!(qp.state, from, "{context}");
                            assert_eq!(result.unwrap_err().errno(), libc::EINVAL, "{context}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn attributes_are_kept_and_wrong_values_change_nothing() {
        let mut qp = queue_pair(Service::Srd, Reset);
        let init = change(Reset, Init, PKEY_INDEX | PORT | QKEY);
        for wrong in [
            QpChange {
                port: Some(2),
                ..init
            },
            QpChange {
                pkey_index: Some(1),
                ..init
            },
        ] {
            assert_eq!(qp.change(&wrong, true).unwrap_err().errno(), libc::EINVAL);
            assert_eq!((qp.state, qp.qkey), (Reset, Qkey(0)));
        }
        qp.change(&init, true).unwrap();
        qp.change(&change(Init, ReadyToReceive, 0), true).unwrap();
        let run = change(ReadyToReceive, ReadyToSend, SQ_PSN | RNR_RETRY);
        let refused = qp.change(&run, false).unwrap_err();
        assert_eq!(refused.errno(), libc::EOPNOTSUPP);
        let too_many = QpChange {
            rnr_retry: Some(8),
            ..run
        };
        assert_eq!(
            qp.change(&too_many, true).unwrap_err().errno(),
            libc::EINVAL
        );
        assert_eq!(qp.attributes().rnr_retry, RNR_RETRY_INFINITE);
        qp.change(&run, true).unwrap();
        let attributes = qp.attributes();
        assert_eq!(attributes.qkey, Qkey(7));
        assert_eq!((attributes.rnr_retry, attributes.sq_psn), (3, 9));
    }

    #[test]
    fn a_wrong_belief_about_the_state_is_refused() {
        let mut qp = queue_pair(Service::Srd, SendQueueDrained);
        let believes = QpChange {
            current_state: Some(ReadyToSend),
            ..change(SendQueueDrained, ReadyToSend, 0)
        };
        assert_eq!(
            qp.change(&believes, true).unwrap_err().errno(),
            libc::EINVAL
        );
    }
}
