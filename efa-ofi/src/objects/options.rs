//! Options of endpoints (`fi_getopt`, `fi_setopt`): those of libfabric's own efa provider.
//!
//! Options that are promises (the largest message, or no use of shared memory) are kept. They
//! determine whether the endpoint receives into the application's buffers
//! ([`crate::objects::zero_copy`]).

use std::ffi::{c_int, c_void};
use std::ops::RangeInclusive;

use efa_core::endpoint::{EndpointConfig, Errno};
use efa_core::nic::{DeviceCaps, NicAttributes, QueuePairConfig};

use crate::capabilities::{INJECT_SIZE, MAX_MESSAGE, queue_sizes};
use crate::ffi::object::copy_out;
use crate::ffi::result::{ENOPROTOOPT, EOPBADSTATE, EOPNOTSUPP, Result};
use crate::ffi::{FI_OPT_FI_HMEM_P2P, FI_OPT_RX_SIZE, FI_OPT_TX_SIZE};
use crate::settings;

/// Options that are newer than the headers from which the bindings are generated (libfabric 2.0,
/// `rdma/fi_endpoint.h`).
const CUDA_API_PERMITTED: c_int = 10;
const SHARED_MEMORY_PERMITTED: c_int = 11;
/// The first of eight sizes: the maximum sizes of messages, tagged messages, RMA and atomics, and
/// then the maximum inject size of each.
const MAX_MSG_SIZE: c_int = 12;
const SIZES: usize = 8;

/// Options of the efa provider (libfabric 1.14 to 2.5, `rdma/fi_ext.h`).
const EFA: c_int = -(0xefa << 16);
const RNR_RETRY: c_int = EFA;
const EMULATED_READ: c_int = EFA + 1;
const EMULATED_WRITE: c_int = EFA + 2;
const EMULATED_ATOMICS: c_int = EFA + 3;
const USE_DEVICE_RDMA: c_int = EFA + 4;
const SENDRECV_IN_ORDER: c_int = EFA + 5;
const WRITE_IN_ORDER: c_int = EFA + 6;
const HOMOGENEOUS_PEERS: c_int = EFA + 7;

/// Whether the device accesses memory of accelerators directly: the option, and its values.
const P2P: c_int = FI_OPT_FI_HMEM_P2P as c_int;
const P2P_ENABLED: c_int = 0;
const P2P_REQUIRED: c_int = 1;
const P2P_DISABLED: c_int = 3;

/// The largest number of repetitions, which means no limit.
const RNR_WITHOUT_END: usize = 7;

/// Upper limits of options.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    caps: DeviceCaps,
    /// Entries of the queues of an endpoint, which it has in any case.
    queue_sizes: [usize; 2],
}

impl Limits {
    pub(crate) fn new(device: &NicAttributes) -> Limits {
        Limits {
            caps: device.caps,
            queue_sizes: queue_sizes(device).into(),
        }
    }
}

/// The index of an option among the eight sizes, if it is one.
fn size_of_messages(option: c_int) -> Option<usize> {
    let index = usize::try_from(option.checked_sub(MAX_MSG_SIZE)?).ok()?;
    (index < SIZES).then_some(index)
}

/// Whether an option is one of the two queue sizes, and which: of sends or of receives.
fn queue_of(option: c_int) -> Option<usize> {
    let options = [FI_OPT_TX_SIZE, FI_OPT_RX_SIZE];
    options.iter().position(|queue| *queue as c_int == option)
}

/// The options of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    rnr_retry: usize,
    p2p: c_int,
    sizes: [usize; SIZES],
    /// The numbers of sends and receives that the application starts before the first of them
    /// completes; 0 if it sets no size.
    queue_sizes: [usize; 2],
    use_device_rdma: bool,
    shared_memory: bool,
}

impl Options {
    /// The options of an endpoint at first: from the environment, and from its info the length of
    /// the longest message in bytes and the sizes of its queues.
    pub(crate) fn new(
        config: &EndpointConfig,
        max_message: usize,
        queue_sizes: [usize; 2],
    ) -> Options {
        let limits = [max_message, INJECT_SIZE];
        Options {
            rnr_retry: 3,
            p2p: P2P_ENABLED,
            sizes: std::array::from_fn(|index| limits[index / 4]),
            queue_sizes,
            use_device_rdma: config.use_device_rdma,
            shared_memory: settings::shared_memory(),
        }
    }

    /// The longest message that the application sends or receives, in bytes.
    pub(crate) fn max_message(&self) -> usize {
        self.sizes[0]
    }

    /// Whether the application permits shared memory for peers on the same host.
    pub(crate) fn permits_shared_memory(&self) -> bool {
        self.shared_memory
    }

    /// Puts the options into the settings of the engine and the device.
    pub(crate) fn apply(&self, config: &mut EndpointConfig, queue_pair: &mut QueuePairConfig) {
        config.use_device_rdma = self.use_device_rdma;
        queue_pair.rnr_retry = self.rnr_retry.min(RNR_WITHOUT_END) as u8;
    }

    /// Copies an option to the application.
    ///
    /// # Errors
    /// `FI_ENOPROTOOPT` for an unknown option, `FI_ETOOSMALL` if the value's buffer is too small.
    ///
    /// # Safety
    /// `length` is null or valid for reads and writes, and `value` is valid for `length` bytes.
    pub(crate) unsafe fn get(
        &self,
        option: c_int,
        limits: &Limits,
        value: *mut c_void,
        length: *mut usize,
    ) -> Result<()> {
        // SAFETY: `value` has as many bytes as `length` says, by the caller's contract.
        let give = |bytes: &[u8]| unsafe { copy_out(bytes, value, length) };
        let emulates = |cap| !(self.use_device_rdma && limits.caps.contains(cap));
        if let Some(index) = size_of_messages(option) {
            return give(&self.sizes[index].to_ne_bytes());
        }
        if let Some(queue) = queue_of(option) {
            let size = match self.queue_sizes[queue] {
                0 => limits.queue_sizes[queue],
                wanted => wanted,
            };
            return give(&size.to_ne_bytes());
        }
        match option {
            P2P => give(&self.p2p.to_ne_bytes()),
            RNR_RETRY => give(&self.rnr_retry.to_ne_bytes()),
            EMULATED_READ => give(&[emulates(DeviceCaps::RDMA_READ).into()]),
            EMULATED_WRITE => give(&[emulates(DeviceCaps::RDMA_WRITE).into()]),
            EMULATED_ATOMICS => give(&[1]),
            _ => Err(ENOPROTOOPT),
        }
    }

    /// Sets an option of an endpoint that is enabled or not.
    ///
    /// # Errors
    /// `FI_ENOPROTOOPT` for an unknown option, `FI_EINVAL` for an invalid value, `FI_EOPNOTSUPP`
    /// for a feature that the device lacks, `FI_EOPBADSTATE` if it can no longer be changed.
    ///
    /// # Safety
    /// `value` is null or has `length` bytes.
    pub(crate) unsafe fn set(
        &mut self,
        option: c_int,
        limits: &Limits,
        is_enabled: bool,
        value: *const c_void,
        length: usize,
    ) -> Result<()> {
        // SAFETY: `value` is null or has `length` bytes, by the caller's contract.
        let size = || unsafe { take(value, length) }.map(usize::from_ne_bytes);
        // SAFETY: as above.
        let switch = || unsafe { take(value, length) }.map(|[byte]| byte != 0);
        let before_enable = || match is_enabled {
            true => Err(EOPBADSTATE),
            false => Ok(()),
        };
        if let Some(index) = size_of_messages(option) {
            self.sizes[index] = within(0..=[MAX_MESSAGE, INJECT_SIZE][index / 4], size()?)?;
            return Ok(());
        }
        if let Some(queue) = queue_of(option) {
            let wanted = size()?;
            before_enable()?;
            self.queue_sizes[queue] = within(1..=limits.queue_sizes[queue], wanted)?;
            return Ok(());
        }
        match option {
            P2P => {
                // SAFETY: as above.
                let wanted = c_int::from_ne_bytes(unsafe { take(value, length) }?);
                if wanted == P2P_REQUIRED {
                    // Memory of other devices is not supported.
                    return Err(EOPNOTSUPP);
                }
                self.p2p = within(P2P_ENABLED..=P2P_DISABLED, wanted)?;
            }
            RNR_RETRY => {
                let wanted = size()?;
                before_enable()?;
                self.rnr_retry = within(0..=RNR_WITHOUT_END, wanted)?;
            }
            USE_DEVICE_RDMA => {
                let wanted = switch()?;
                before_enable()?;
                if wanted && !limits.caps.contains(DeviceCaps::RDMA_READ) {
                    return Err(EOPNOTSUPP);
                }
                self.use_device_rdma = wanted;
            }
            SHARED_MEMORY_PERMITTED => {
                let wanted = switch()?;
                before_enable()?;
                self.shared_memory = wanted && settings::shared_memory();
            }
            SENDRECV_IN_ORDER | WRITE_IN_ORDER => {
                if switch()? {
                    return Err(EOPNOTSUPP);
                }
            }
            // GPUs are not used, and the features of each peer are learned from its HANDSHAKE.
            CUDA_API_PERMITTED | HOMOGENEOUS_PEERS => _ = switch()?,
            _ => return Err(ENOPROTOOPT),
        }
        Ok(())
    }
}

/// # Errors
/// `FI_EINVAL` for a value outside of the range.
fn within<T: PartialOrd>(range: RangeInclusive<T>, value: T) -> Result<T> {
    match range.contains(&value) {
        true => Ok(value),
        false => Err(Errno::EINVAL),
    }
}

/// Reads a value of the application.
///
/// # Errors
/// `FI_EINVAL` if it is null or has another length.
///
/// # Safety
/// `value` is null or has `length` bytes.
pub(crate) unsafe fn take<const N: usize>(value: *const c_void, length: usize) -> Result<[u8; N]> {
    if value.is_null() || length != N {
        return Err(Errno::EINVAL);
    }
    // SAFETY: by the caller's contract, and of any alignment.
    Ok(unsafe { value.cast::<[u8; N]>().read_unaligned() })
}
