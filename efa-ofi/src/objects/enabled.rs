//! Enabled endpoints: the queue pair, and how operations are carried out on it.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_core::endpoint::{EndpointConfig, EndpointId, Errno, OperationFlags};
use efa_core::nic::{Domain as _, QueuePairConfig};

use crate::capabilities::{queue_sizes, tag_format};
use crate::ffi::host::{log_info, log_warn};
use crate::ffi::result::{ENOAV, ENOCQ, Result};
use crate::ffi::{FI_COLLECTIVE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_INJECT, FI_MORE, fid};
use crate::objects::binding::{Bindings, BoundQueue};
use crate::objects::domain::Domain;
use crate::objects::options::Options;
use crate::objects::zero_copy;
use crate::settings;
use crate::state::domain::DomainState;
use crate::state::route::Route;

/// Parts of an enabled endpoint.
#[derive(Debug)]
pub(crate) struct EnabledEndpoint {
    pub(crate) id: EndpointId,
    pub(crate) route: Route,
    /// How operations are carried out whose calls have no flags.
    pub(crate) sends: Flags,
    pub(crate) receives: Flags,
    /// The bits that tags may have.
    pub(crate) tags: u64,
    /// Receives name the sender whose messages they accept (`FI_DIRECTED_RECV`).
    pub(crate) directed: bool,
    /// Receives are into the application's buffers ([`zero_copy`]).
    pub(crate) zero_copy: bool,
}

/// Flags of operations in one direction.
#[derive(Debug)]
pub(crate) struct Flags {
    /// The flags of calls without any.
    pub(crate) default: AtomicU64,
    /// `FI_COMPLETION` if all successes are reported, not on request only.
    always: u64,
}

impl Flags {
    /// The flags of operations that end in a queue.
    pub(crate) fn new(bound: &Option<BoundQueue>, default: u64) -> Flags {
        Flags {
            default: AtomicU64::new(default),
            always: match bound {
                Some(bound) if !bound.selective => FI_COMPLETION,
                _ => 0,
            },
        }
    }

    /// The flags of a call, if it has any.
    #[inline]
    pub(crate) fn or_default(&self, flags: Option<u64>) -> u64 {
        flags.unwrap_or_else(|| self.default.load(Ordering::Relaxed))
    }

    /// The engine's flags, for a call with these.
    #[inline]
    pub(crate) fn of(&self, flags: u64) -> OperationFlags {
        let known = FI_MORE | FI_INJECT | FI_DELIVERY_COMPLETE | FI_COMPLETION;
        OperationFlags::from_bits_truncate(flags & known | self.always)
    }
}

/// The attributes of an endpoint, from its info.
#[derive(Debug)]
pub(crate) struct Attributes {
    pub(crate) tx_op_flags: u64,
    pub(crate) rx_op_flags: u64,
    pub(crate) directed: bool,
    pub(crate) names_source: bool,
    pub(crate) caps: u64,
    /// How messages are ordered, in either direction.
    pub(crate) msg_order: u64,
    pub(crate) service_level: u8,
}

/// Writes why something was refused to the log.
pub(crate) fn refused(what: &str, error: &dyn Display, errno: Errno) -> Errno {
    log_warn!(Endpoint, "{what}: {error}");
    errno
}

impl EnabledEndpoint {
    /// Opens the queue pair of an endpoint.
    ///
    /// # Errors
    /// `FI_ENOAV` and `FI_ENOCQ` if something is not bound, `FI_ENOMEM` if the device has no room,
    /// which is in the log.
    pub(crate) fn new(
        fid: &fid,
        domain: &Domain,
        bindings: &Bindings,
        attributes: &Attributes,
        options: &Options,
    ) -> Result<EnabledEndpoint> {
        let vector = bindings.vector.as_ref().ok_or(ENOAV)?;
        if bindings.transmit.is_none() && bindings.receive.is_none() {
            return Err(ENOCQ);
        }
        let mut state = domain.state()?;
        let device = state.core.nic_mut().attributes();
        let (send_queue_depth, recv_queue_depth) = queue_sizes(device);
        let mtu = device.mtu;
        let mut engine = settings::of_environment();
        engine.recv_buffers = recv_queue_depth;
        let mut config = QueuePairConfig {
            send_queue_depth,
            recv_queue_depth,
            qkey: None,
            rnr_retry: 3,
            unsolicited_write_recv: true,
            service_level: attributes.service_level,
        };
        options.apply(&mut engine, &mut config);
        let promises = zero_copy::Promises {
            caps: attributes.caps,
            msg_order: attributes.msg_order,
            max_message: options.max_message(),
            permits_shared_memory: options.permits_shared_memory(),
            registers_all: domain.registers_all,
        };
        let user = zero_copy::queue_pair(&config, &promises, mtu);
        let notifies = domain.is_automatic() || bindings.can_sleep();
        let id = open_queue_pairs(&mut state, config, user, engine, notifies)?;
        let route = route(fid, vector.index, bindings, attributes);
        bindings.attach_counters(id);
        state.endpoints.push((id, route.clone()));
        Ok(EnabledEndpoint {
            id,
            route,
            sends: Flags::new(&bindings.transmit, attributes.tx_op_flags),
            receives: Flags::new(&bindings.receive, attributes.rx_op_flags),
            tags: tag_format(attributes.caps),
            directed: attributes.directed,
            zero_copy: user.is_some(),
        })
    }
}

/// The destinations of an endpoint's completions. `vector` is the index of its address vector.
pub(crate) fn route(
    fid: &fid,
    vector: usize,
    bindings: &Bindings,
    attributes: &Attributes,
) -> Route {
    let key = |bound: &Option<BoundQueue>| bound.as_ref().map(|bound| bound.queue.key);
    let events = bindings.events.as_ref();
    Route {
        fid,
        vector,
        transmit: key(&bindings.transmit),
        receive: key(&bindings.receive),
        events: events.map(|queue| Arc::clone(&queue.events)),
        names_source: attributes.names_source,
        collective: attributes.caps & FI_COLLECTIVE != 0,
    }
}

/// Adds packet buffers to the domain up to the needed number.
///
/// # Errors
/// `FI_ENOMEM` if they cannot be registered, which is logged.
pub(crate) fn add_packet_buffers(state: &mut DomainState, needed: usize) -> Result<()> {
    let nic = state.core.nic_mut();
    let missing = needed.saturating_sub(nic.packet_buffers());
    let added = nic.add_packet_buffers(missing);
    added.map_err(|error| refused("packet buffers", &error, Errno::ENOMEM))
}

/// Opens an endpoint of the engine on a queue pair, and on a second one for zero-copy receive if
/// `user` describes it. Its completion queue `notifies` if a thread may sleep.
fn open_queue_pairs(
    state: &mut DomainState,
    mut config: QueuePairConfig,
    user: Option<QueuePairConfig>,
    engine: EndpointConfig,
    notifies: bool,
) -> Result<EndpointId> {
    // Each open endpoint needs the packet buffers that its queues can hold. The buffers of a closed
    // endpoint are reused by the next.
    let needed = (state.endpoints.len() + 1) * (config.send_queue_depth + config.recv_queue_depth);
    add_packet_buffers(state, needed)?;
    let completions = config.completions() + user.map_or(0, |user| user.completions());
    let queue = state.create_queue(completions, notifies)?;
    let nic = state.core.nic_mut();
    let main = nic.create_queue_pair(queue, &config).or_else(|error| {
        if config.service_level == 0 {
            return Err(error);
        }
        // A traffic class is a hint, and not every device and libefa supports service levels.
        log_info!(Endpoint, "without the traffic class: {error}");
        config.service_level = 0;
        nic.create_queue_pair(queue, &config)
    });
    let queue_pairs = main.and_then(|main| match &user {
        Some(user) => Ok((main, Some(nic.create_queue_pair(queue, user)?))),
        None => Ok((main, None)),
    });
    let core = &mut state.core;
    let opened = match queue_pairs {
        Ok((main, None)) => core.open_endpoint(main, engine),
        Ok((main, Some(user))) => core.open_endpoint_with_user_receives(main, user, engine),
        Err(error) => {
            state.end_queue(queue);
            return Err(refused("queue pair", &error, Errno::ENOMEM));
        }
    };
    opened.map_err(|error| {
        state.end_queue(queue);
        refused("endpoint", &error, error.errno())
    })
}
