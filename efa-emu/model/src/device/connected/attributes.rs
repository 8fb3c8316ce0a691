//! The attributes of a connected queue pair, and the allowed state changes: the table of the verbs
//! (`ibv_modify_qp(3)`, and the kernel's `ib_modify_qp_is_ok`).

use efa_core::address::Gid;
use efa_core::nic::Access;

use super::psn::Psn;
use crate::device::error::Error;
use crate::device::queue_pair::QpState;

/// Peers may use atomic operations of the device on a region. EFA has no such access, so
/// [`Access::all`] does not contain it.
pub const REMOTE_ATOMIC: Access = Access::from_bits_retain(1 << 3);

bitflags::bitflags! {
    /// The attributes that a change sets, as `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ConnectionMask: u32 {
        /// The new state.
        const STATE = 1 << 0;
        /// The state that the caller expects.
        const CURRENT_STATE = 1 << 1;
        /// Requests an event when the send queue is drained.
        const DRAINED_EVENT = 1 << 2;
        /// The access that peers have.
        const ACCESS_FLAGS = 1 << 3;
        /// Partition key index; only 0 exists.
        const PKEY_INDEX = 1 << 4;
        /// Port; only 1 exists.
        const PORT = 1 << 5;
        /// The peer's address.
        const AV = 1 << 7;
        /// Payload bytes of a packet.
        const PATH_MTU = 1 << 8;
        /// The time-out for acknowledgements.
        const TIMEOUT = 1 << 9;
        /// Retries after time-outs and packets out of sequence.
        const RETRY_COUNT = 1 << 10;
        /// Retries after RNR.
        const RNR_RETRY = 1 << 11;
        /// The first packet sequence number to receive.
        const RQ_PSN = 1 << 12;
        /// Most outstanding reads and atomics of this queue pair.
        const MAX_RD_ATOMIC = 1 << 13;
        /// The alternate path, which the device does not have.
        const ALTERNATE_PATH = 1 << 14;
        /// The delay that an RNR NAK requests from the peer.
        const MIN_RNR_TIMER = 1 << 15;
        /// The first packet sequence number to send.
        const SQ_PSN = 1 << 16;
        /// Most outstanding reads and atomics of the peer.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration, which the device does not have.
        const PATH_MIGRATION = 1 << 18;
        /// The peer's queue pair.
        const DESTINATION = 1 << 20;
    }
}

/// The attributes of a connection, as in `ibv_qp_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionAttributes {
    /// The state.
    pub state: QpState,
    /// The state that the caller of a change expects.
    pub current_state: QpState,
    /// Partition key index.
    pub pkey_index: u16,
    /// Port.
    pub port: u8,
    /// The access that peers have.
    pub access: Access,
    /// The peer's GID.
    pub peer: Gid,
    /// The peer's queue pair, 24 bits.
    pub destination: u32,
    /// `ibv_mtu`: 1 for 256 bytes to 5 for 4096.
    pub path_mtu: u8,
    /// 4.096 microseconds times two to this power, 0 for no time-out; 5 bits.
    pub timeout: u8,
    /// Retries after time-outs and packets out of sequence, 3 bits.
    pub retry_count: u8,
    /// Retries after RNR, 7 for unlimited.
    pub rnr_retry: u8,
    /// The code of the delay that an RNR NAK requests from the peer, 5 bits.
    pub min_rnr_timer: u8,
    /// The first packet sequence number to receive.
    pub rq_psn: Psn,
    /// The first packet sequence number to send.
    pub sq_psn: Psn,
    /// Most outstanding reads and atomics of this queue pair.
    pub max_rd_atomic: u8,
    /// Most outstanding reads and atomics of the peer.
    pub max_dest_rd_atomic: u8,
}

impl Default for ConnectionAttributes {
    fn default() -> Self {
        ConnectionAttributes {
            state: QpState::Reset,
            current_state: QpState::Reset,
            pkey_index: 0,
            port: 1,
            access: Access::empty(),
            peer: Gid([0; 16]),
            destination: 0,
            path_mtu: 1,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
        }
    }
}

impl ConnectionMask {
    /// The attributes that a state change requires, without [`ConnectionMask::STATE`]. `None` if
    /// the change is not allowed (`ibv_modify_qp(3)`).
    pub fn required(from: QpState, to: QpState) -> Option<ConnectionMask> {
        transition(from, to).map(|(required, _)| required)
    }
}

/// The required and the optional attributes of a state change. `None` if the change is not allowed.
fn transition(from: QpState, to: QpState) -> Option<(ConnectionMask, ConnectionMask)> {
    use ConnectionMask as M;
    use QpState::*;
    let none = M::empty();
    let identity = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let running = M::CURRENT_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER;
    Some(match (from, to) {
        (_, Reset | Error) => (none, none),
        (Reset, Init) => (identity, none),
        (Init, Init) => (none, identity),
        (Init, ReadyToReceive) => (
            M::AV
                | M::PATH_MTU
                | M::DESTINATION
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
            M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (ReadyToReceive, ReadyToSend) => (
            M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_RD_ATOMIC,
            running,
        ),
        (ReadyToSend | SendQueueDrained, ReadyToSend) => (none, running),
        (ReadyToSend, SendQueueDrained) => (none, M::DRAINED_EVENT),
        (SendQueueDrained, SendQueueDrained) => (
            none,
            running
                | M::PKEY_INDEX
                | M::PORT
                | M::AV
                | M::TIMEOUT
                | M::RETRY_COUNT
                | M::RNR_RETRY
                | M::MAX_RD_ATOMIC
                | M::MAX_DEST_RD_ATOMIC,
        ),
        _ => return None,
    })
}

/// The most outstanding reads and atomics in each direction.
pub const MAX_RD_ATOMIC: u8 = 16;

impl ConnectionAttributes {
    /// Checks a change completely, then applies it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a change that the state does not allow, missing or additional
    /// attributes, and invalid values; [`Error::Unsupported`] for path migration.
    pub(super) fn change(
        &mut self,
        to: &ConnectionAttributes,
        mask: ConnectionMask,
    ) -> Result<(), Error> {
        use ConnectionMask as M;
        let has = |bits| mask.contains(bits);
        if mask.intersects(M::ALTERNATE_PATH | M::PATH_MIGRATION) {
            return Err(Error::Unsupported("alternate paths"));
        }
        if has(M::CURRENT_STATE) && to.current_state != self.state {
            return Err(Error::invalid("current state", to.current_state as u64));
        }
        let state = if has(M::STATE) { to.state } else { self.state };
        let (required, optional) = transition(self.state, state)
            .ok_or_else(|| Error::invalid("next state", state as u64))?;
        if !has(required) {
            let missing = required.difference(mask).bits();
            return Err(Error::invalid("missing attributes, mask", missing));
        }
        let surplus = mask.difference(required | optional | M::STATE);
        if !surplus.is_empty() {
            return Err(Error::invalid("surplus attributes, mask", surplus.bits()));
        }
        let limit = |bit, what, value: u64, least, most| match has(bit)
            && !(least..=most).contains(&value)
        {
            true => Err(Error::invalid(what, value)),
            false => Ok(()),
        };
        let most = MAX_RD_ATOMIC.into();
        limit(M::PKEY_INDEX, "P-key index", to.pkey_index.into(), 0, 0)?;
        limit(M::PORT, "port", to.port.into(), 1, 1)?;
        limit(M::PATH_MTU, "path MTU", to.path_mtu.into(), 1, 5)?;
        limit(M::TIMEOUT, "timeout", to.timeout.into(), 0, 31)?;
        limit(M::RETRY_COUNT, "retry count", to.retry_count.into(), 0, 7)?;
        limit(M::RNR_RETRY, "RNR retry count", to.rnr_retry.into(), 0, 7)?;
        limit(
            M::MIN_RNR_TIMER,
            "RNR timer",
            to.min_rnr_timer.into(),
            0,
            31,
        )?;
        limit(M::MAX_RD_ATOMIC, "reads", to.max_rd_atomic.into(), 0, most)?;
        let peer_reads = to.max_dest_rd_atomic.into();
        limit(M::MAX_DEST_RD_ATOMIC, "peer's reads", peer_reads, 0, most)?;
        limit(
            M::DESTINATION,
            "queue pair",
            to.destination.into(),
            0,
            0xff_ffff,
        )?;
        self.put(to, mask);
        self.state = state;
        Ok(())
    }

    fn put(&mut self, to: &ConnectionAttributes, mask: ConnectionMask) {
        /// Copies each attribute whose bit is set.
        macro_rules! put {
            ($($bit:ident: $field:ident,)*) => {
                $(if mask.contains(ConnectionMask::$bit) {
                    self.$field = to.$field;
                })*
            };
        }
        put! {
            PKEY_INDEX: pkey_index,
            PORT: port,
            ACCESS_FLAGS: access,
            AV: peer,
            DESTINATION: destination,
            PATH_MTU: path_mtu,
            TIMEOUT: timeout,
            RETRY_COUNT: retry_count,
            RNR_RETRY: rnr_retry,
            MIN_RNR_TIMER: min_rnr_timer,
            RQ_PSN: rq_psn,
            SQ_PSN: sq_psn,
            MAX_RD_ATOMIC: max_rd_atomic,
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
        }
    }

    /// Payload bytes of a packet.
    pub(super) fn mtu(&self) -> u32 {
        128 << self.path_mtu.clamp(1, 5)
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionMask as M;
    use super::QpState::*;
    use super::*;

    fn change(from: QpState, to: QpState, mask: M) -> Result<QpState, i32> {
        let mut attributes = ConnectionAttributes {
            state: from,
            ..ConnectionAttributes::default()
        };
        let wanted = ConnectionAttributes {
            state: to,
            current_state: from,
            ..ConnectionAttributes::default()
        };
        let result = attributes.change(&wanted, mask | M::STATE);
        if result.is_err() {
            assert_eq!(attributes.state, from, "a refused change changes nothing");
        }
        result
            .map(|()| attributes.state)
            .map_err(|error| error.errno())
    }

    /// The requirements of `ibv_modify_qp(3)` for an RC queue pair.
    #[test]
    fn each_step_needs_its_attributes_and_no_other() {
        let rtr = M::AV
            | M::PATH_MTU
            | M::DESTINATION
            | M::RQ_PSN
            | M::MAX_DEST_RD_ATOMIC
            | M::MIN_RNR_TIMER;
        let rts = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_RD_ATOMIC;
        let steps = [
            (Reset, Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (Init, ReadyToReceive, rtr),
            (ReadyToReceive, ReadyToSend, rts),
        ];
        for (from, to, required) in steps {
            assert_eq!(change(from, to, required), Ok(to));
            for bit in required.iter() {
                let missing = required.difference(bit);
                assert_eq!(change(from, to, missing), Err(libc::EINVAL), "{bit:?}");
            }
            let surplus = required | M::DRAINED_EVENT;
            assert_eq!(change(from, to, surplus), Err(libc::EINVAL));
            let other = required | M::ALTERNATE_PATH;
            assert_eq!(change(from, to, other), Err(libc::EOPNOTSUPP));
        }
    }

    #[test]
    fn no_connection_state_is_skipped() {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let masks = match transition(from, to) {
                    Some((required, _)) => [required, required],
                    None => [M::empty(), M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS],
                };
                let reached = masks.iter().any(|mask| change(from, to, *mask) == Ok(to));
                let expected = matches!(
                    (from, to),
                    (_, Reset | Error)
                        | (Reset | Init, Init)
                        | (Init, ReadyToReceive)
                        | (ReadyToReceive | ReadyToSend | SendQueueDrained, ReadyToSend)
                        | (ReadyToSend | SendQueueDrained, SendQueueDrained)
                );
                assert_eq!(reached, expected, "{from:?} -> {to:?}");
            }
        }
    }

    #[test]
    fn values_beyond_their_fields_are_einval() {
        type Spoil = fn(&mut ConnectionAttributes);
        let wrong: [(M, Spoil); 8] = [
            (M::TIMEOUT, |to| to.timeout = 32),
            (M::RETRY_COUNT, |to| to.retry_count = 8),
            (M::RNR_RETRY, |to| to.rnr_retry = 8),
            (M::MIN_RNR_TIMER, |to| to.min_rnr_timer = 32),
            (M::MAX_RD_ATOMIC, |to| to.max_rd_atomic = MAX_RD_ATOMIC + 1),
            (M::MAX_DEST_RD_ATOMIC, |to| {
                to.max_dest_rd_atomic = MAX_RD_ATOMIC + 1;
            }),
            (M::PORT, |to| to.port = 2),
            (M::CURRENT_STATE, |to| to.current_state = Init),
        ];
        for (bit, spoil) in wrong {
            let mut attributes = ConnectionAttributes {
                state: SendQueueDrained,
                ..ConnectionAttributes::default()
            };
            let mut to = ConnectionAttributes {
                current_state: SendQueueDrained,
                ..attributes
            };
            assert_eq!(attributes.change(&to, bit), Ok(()), "{bit:?}");
            spoil(&mut to);
            let refused = attributes.change(&to, bit).map_err(|error| error.errno());
            assert_eq!(refused, Err(libc::EINVAL), "{bit:?}");
        }
    }
}
