//! The sizes and options of a queue pair: the checks and roundings of rdma-core and the kernel
//! driver, as one function of the request and the device's generation.

use efa_core::nic::DeviceCaps;
use efa_device_model::device::Service;
use efa_device_model::device::connected::{MAX_INLINE, MAX_WR};
use efa_device_model::device::queue::{RequestIdSize, WqeSize};
use efa_device_model::limits::{INLINE_SIZE_WIDE, MAX_SGE};
use efa_device_model::profile::Profile;
use efa_device_model::provider::RecvQueue;

use crate::abi::{
    EFADV_QP_DRIVER_TYPE_SRD, EFADV_QP_FLAGS_INLINE_WRITE, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV,
    EFADV_WR_EX_WITH_PROCESSING_HINTS, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_DRIVER, IBV_QPT_UD,
    efadv_qp_init_attr, ibv_qp_cap, ibv_qp_init_attr_ex,
};
use crate::ffi::errno::Errno;

/// A queue pair that can be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpPlan {
    /// `None` for a connected queue pair, whose queues are the device's own.
    pub(crate) service: Option<Service>,
    /// Entries of the send queue, a power of two.
    pub(crate) send_entries: u32,
    pub(crate) wqe_size: WqeSize,
    /// Descriptors of the receive queue, a power of two.
    pub(crate) recv_descriptors: u32,
    /// The granted capacities, which are returned to the program.
    pub(crate) cap: ibv_qp_cap,
    pub(crate) inline_write: bool,
    pub(crate) unsolicited_write_recv: bool,
    pub(crate) request_ids: RequestIdSize,
    /// The builders that the program requested; `None` for a queue pair without any.
    pub(crate) send_ops: Option<u64>,
    pub(crate) processing_hints: bool,
}

/// The size of the send queue's entries: large ones only if the request needs them.
pub(crate) fn wqe_size(profile: &Profile, max_inline: u32, inline_write: bool) -> WqeSize {
    if inline_write || max_inline > profile.inline_size {
        WqeSize::Bytes128
    } else {
        WqeSize::Bytes64
    }
}

/// The depth of the deepest send queue: the device's memory for it has room for `max_sq_wr` small
/// entries.
pub(crate) fn max_send_wr(profile: &Profile, size: WqeSize) -> u32 {
    match size {
        WqeSize::Bytes64 => profile.max_sq_wr,
        WqeSize::Bytes128 => profile.max_sq_wr / 2,
    }
}

/// The largest number of receives with `max_sge` entries each.
pub(crate) fn max_recv_wr(profile: &Profile, max_sge: u32) -> u32 {
    profile.max_rq_wr / max_sge.max(1)
}

/// The builders that queue pairs of this service support.
fn supported_ops(profile: &Profile, service: Service) -> u64 {
    let mut ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if service == Service::Srd {
        if profile.caps.contains(DeviceCaps::RDMA_READ) {
            ops |= IBV_QP_EX_WITH_RDMA_READ;
        }
        if profile.caps.contains(DeviceCaps::RDMA_WRITE) {
            ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        }
    }
    ops
}

/// Checks the requested type of queue pair, in the order of rdma-core's checks.
fn service(
    profile: &Profile,
    attributes: &ibv_qp_init_attr_ex,
    efa: &efadv_qp_init_attr,
) -> Result<Service, Errno> {
    let service = match attributes.qp_type {
        IBV_QPT_UD => Service::Ud,
        IBV_QPT_DRIVER if efa.driver_qp_type == EFADV_QP_DRIVER_TYPE_SRD => Service::Srd,
        _ => return Err(Errno::OPNOTSUPP),
    };
    let mut flags = 0;
    if profile.caps.contains(DeviceCaps::RDMA_WRITE) {
        flags |= EFADV_QP_FLAGS_INLINE_WRITE;
    }
    if profile.caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV) {
        flags |= EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
    }
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if efa.flags & !flags != 0 || attributes.comp_mask & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if attributes.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Errno::INVAL);
    }
    let with_ops = attributes.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if with_ops && attributes.send_ops_flags & !supported_ops(profile, service) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if efa.wr_flags & !EFADV_WR_EX_WITH_PROCESSING_HINTS != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if attributes.recv_cq.is_null() || attributes.send_cq.is_null() || !attributes.srq.is_null() {
        return Err(Errno::INVAL);
    }
    Ok(service)
}

/// Checks a request and rounds its sizes.
pub(crate) fn plan(
    profile: &Profile,
    attributes: &ibv_qp_init_attr_ex,
    efa: &efadv_qp_init_attr,
) -> Result<QpPlan, Errno> {
    let service = service(profile, attributes, efa)?;
    let inline_write = efa.flags & EFADV_QP_FLAGS_INLINE_WRITE != 0;
    let wanted = &attributes.cap;
    let wqe_size = wqe_size(profile, wanted.max_inline_data, inline_write);
    if wanted.max_send_sge > profile.max_sq_sge
        || wanted.max_recv_sge > profile.max_rq_sge
        || wanted.max_send_wr > max_send_wr(profile, wqe_size)
        || wanted.max_recv_wr > max_recv_wr(profile, wanted.max_recv_sge)
        || wanted.max_inline_data > INLINE_SIZE_WIDE
    {
        return Err(Errno::INVAL);
    }
    let send_entries = wanted.max_send_wr.max(1).next_power_of_two();
    let recv_descriptors = RecvQueue::descriptors(wanted.max_recv_wr, wanted.max_recv_sge);
    Ok(QpPlan {
        service: Some(service),
        send_entries,
        wqe_size,
        recv_descriptors,
        cap: ibv_qp_cap {
            max_send_wr: send_entries,
            max_recv_wr: recv_descriptors / wanted.max_recv_sge.max(1),
            max_send_sge: wanted.max_send_sge,
            max_recv_sge: wanted.max_recv_sge,
            // As requested, although the entries may have room for more.
            max_inline_data: wanted.max_inline_data,
        },
        inline_write,
        unsolicited_write_recv: efa.flags & EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV != 0,
        request_ids: profile.longest_request_ids(),
        send_ops: (attributes.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0)
            .then_some(attributes.send_ops_flags),
        processing_hints: efa.wr_flags & EFADV_WR_EX_WITH_PROCESSING_HINTS != 0,
    })
}

/// The builders that connected queue pairs support.
const CONNECTED_OPS: u64 = IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// As [`plan`], for a connected queue pair.
pub(crate) fn plan_connected(attributes: &ibv_qp_init_attr_ex) -> Result<QpPlan, Errno> {
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let with_ops = attributes.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if attributes.comp_mask & !known != 0
        || with_ops && attributes.send_ops_flags & !CONNECTED_OPS != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    let wanted = &attributes.cap;
    // A queue pair with a shared receive queue has no separate receives.
    let (max_recv_wr, max_recv_sge) = match attributes.srq.is_null() {
        true => (wanted.max_recv_wr, wanted.max_recv_sge),
        false => (0, 0),
    };
    let most_sge = MAX_SGE as u32;
    if attributes.comp_mask & IBV_QP_INIT_ATTR_PD == 0
        || attributes.recv_cq.is_null()
        || attributes.send_cq.is_null()
        || wanted.max_send_wr > MAX_WR
        || max_recv_wr > MAX_WR
        || wanted.max_send_sge > most_sge
        || max_recv_sge > most_sge
        || wanted.max_inline_data as usize > MAX_INLINE
    {
        return Err(Errno::INVAL);
    }
    Ok(QpPlan {
        service: None,
        send_entries: 0,
        wqe_size: WqeSize::Bytes64,
        recv_descriptors: 0,
        cap: ibv_qp_cap {
            max_send_wr: wanted.max_send_wr,
            max_recv_wr,
            max_send_sge: wanted.max_send_sge,
            max_recv_sge,
            max_inline_data: wanted.max_inline_data,
        },
        inline_write: false,
        unsolicited_write_recv: false,
        request_ids: RequestIdSize::Bits64,
        send_ops: with_ops.then_some(attributes.send_ops_flags),
        processing_hints: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::structures::zeroed;

    /// The request of libfabric 1.17 for an RDM endpoint.
    fn request() -> (ibv_qp_init_attr_ex, efadv_qp_init_attr) {
        // SAFETY: integers, and pointers that may be null.
        let mut attributes: ibv_qp_init_attr_ex = unsafe { zeroed() };
        attributes.send_cq = core::ptr::dangling_mut();
        attributes.recv_cq = core::ptr::dangling_mut();
        attributes.qp_type = IBV_QPT_DRIVER;
        attributes.sq_sig_all = 1;
        attributes.cap = ibv_qp_cap {
            max_send_wr: 4096,
            max_recv_wr: 8192,
            max_send_sge: 2,
            max_recv_sge: 3,
            max_inline_data: 32,
        };
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.send_ops_flags = 0x14;
        (attributes, efadv_qp_init_attr::default())
    }

    fn profile(name: &str) -> Profile {
        Profile::by_name(name).unwrap().clone()
    }

    #[test]
    fn libfabrics_request_is_rounded_to_powers_of_two() {
        let (attributes, efa) = request();
        let plan = plan(&profile("efa2"), &attributes, &efa).unwrap();
        assert_eq!(plan.service, Some(Service::Srd));
        assert_eq!((plan.send_entries, plan.wqe_size), (4096, WqeSize::Bytes64));
        assert_eq!(plan.recv_descriptors, 32768);
        assert_eq!(plan.cap.max_recv_wr, 32768 / 3);
        assert_eq!(plan.cap.max_inline_data, 32);
        assert_eq!(plan.send_ops, Some(0x14));
    }

    /// Each row changes the request once, which causes the error of its table.
    #[test]
    fn requests_beyond_the_device_are_refused() {
        type Change = fn(&mut ibv_qp_init_attr_ex, &mut efadv_qp_init_attr);
        let unsupported: [(&str, Change); 7] = [
            ("RC", |a, _| a.qp_type = 2),
            ("driver type", |_, e| e.driver_qp_type = 1),
            ("comp_mask", |a, _| a.comp_mask |= 1 << 1),
            ("atomics", |a, _| a.send_ops_flags = 1 << 5),
            ("flags", |_, e| e.flags = 1 << 2),
            ("wr_flags", |_, e| e.wr_flags = 1 << 1),
            ("UD with RDMA", |a, _| a.qp_type = IBV_QPT_UD),
        ];
        let invalid: [(&str, Change); 9] = [
            ("no PD", |a, _| a.comp_mask &= !IBV_QP_INIT_ATTR_PD),
            ("no CQ", |a, _| a.send_cq = core::ptr::null_mut()),
            ("SRQ", |a, _| a.srq = core::ptr::dangling_mut()),
            ("send sge", |a, _| a.cap.max_send_sge = 3),
            ("recv sge", |a, _| a.cap.max_recv_sge = 4),
            ("send depth", |a, _| a.cap.max_send_wr = 4097),
            ("recv depth", |a, _| a.cap.max_recv_wr = 10923),
            ("inline", |a, _| a.cap.max_inline_data = 81),
            ("many large entries", |a, _| a.cap.max_inline_data = 33),
        ];
        let unsupported = unsupported.map(|case| (case, Errno::OPNOTSUPP));
        let invalid = invalid.map(|case| (case, Errno::INVAL));
        for ((what, change), errno) in unsupported.into_iter().chain(invalid) {
            let (mut attributes, mut efa) = request();
            change(&mut attributes, &mut efa);
            let planned = plan(&profile("efa2"), &attributes, &efa);
            assert_eq!(planned.err(), Some(errno), "{what}");
        }
    }

    #[test]
    fn a_generation_refuses_features_it_lacks() {
        let (mut attributes, mut efa) = request();
        assert_eq!(
            plan(&profile("efa0"), &attributes, &efa).err(),
            Some(Errno::OPNOTSUPP)
        );
        attributes.send_ops_flags = IBV_QP_EX_WITH_SEND;
        assert!(plan(&profile("efa0"), &attributes, &efa).is_ok());
        efa.flags = EFADV_QP_FLAGS_INLINE_WRITE;
        assert_eq!(
            plan(&profile("efa1"), &attributes, &efa).err(),
            Some(Errno::OPNOTSUPP)
        );
        attributes.cap.max_send_wr = 2048;
        let wide = plan(&profile("efa2"), &attributes, &efa).unwrap();
        assert_eq!(
            (wide.wqe_size, wide.inline_write),
            (WqeSize::Bytes128, true)
        );
    }
}
