//! Enabled datagram endpoints.

use efa_core::address::Qkey;
use efa_core::endpoint::Errno;
use efa_core::nic::{Domain as _, QueuePairConfig};

use crate::capabilities::queue_sizes;
use crate::ffi::fid;
use crate::ffi::result::{ENOAV, ENOCQ, Result};
use crate::objects::binding::Bindings;
use crate::objects::domain::Domain;
use crate::objects::enabled::{Attributes, Flags, add_packet_buffers, refused, route};
use crate::state::datagrams::Datagrams;

/// The Q-key of the queue pair. libfabric 1.17 to 2.6 always send to this one, regardless of the
/// address; 1.11 and releases after 2.6 use the Q-key of the address.
const QKEY: Qkey = Qkey(0);

/// Parts of an enabled datagram endpoint.
#[derive(Debug)]
pub(crate) struct EnabledDatagrams {
    /// Its key in the domain's state.
    pub(crate) key: usize,
    pub(crate) sends: Flags,
    pub(crate) receives: Flags,
}

impl EnabledDatagrams {
    /// Opens the queue pair of an endpoint.
    ///
    /// # Errors
    /// As for [`EnabledEndpoint::new`](crate::objects::enabled::EnabledEndpoint::new).
    pub(crate) fn new(
        fid: &fid,
        domain: &Domain,
        bindings: &Bindings,
        attributes: &Attributes,
    ) -> Result<EnabledDatagrams> {
        let vector = bindings.vector.as_ref().ok_or(ENOAV)?;
        if bindings.transmit.is_none() && bindings.receive.is_none() {
            return Err(ENOCQ);
        }
        let mut state = domain.state()?;
        let (send_queue_depth, recv_queue_depth) = queue_sizes(state.core.nic_mut().attributes());
        let config = QueuePairConfig {
            send_queue_depth,
            recv_queue_depth,
            qkey: Some(QKEY),
            rnr_retry: 0,
            unsolicited_write_recv: false,
            service_level: attributes.service_level,
        };
        // Receives are into the application's memory.
        let needed = (state.datagrams.len() + 1) * send_queue_depth;
        add_packet_buffers(&mut state, needed)?;
        let notifies = domain.is_automatic() || bindings.can_sleep();
        let queue = state.create_queue(config.completions(), notifies)?;
        let nic = state.core.nic_mut();
        let queue_pair = match nic.create_datagram_queue_pair(queue, &config) {
            Ok(queue_pair) => queue_pair,
            Err(error) => {
                state.end_queue(queue);
                return Err(refused("queue pair", &error, Errno::ENOMEM));
            }
        };
        let route = route(fid, vector.index, bindings, attributes);
        Ok(EnabledDatagrams {
            key: state.datagrams.insert(Datagrams::new(queue_pair, route)),
            sends: Flags::new(&bindings.transmit, attributes.tx_op_flags),
            receives: Flags::new(&bindings.receive, attributes.rx_op_flags),
        })
    }
}
