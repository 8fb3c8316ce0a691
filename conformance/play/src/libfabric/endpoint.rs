//! Opening and closing an endpoint with its queues, domain and address vector.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::ptr;

use super::library::entry;
use super::operation::Pending;
use super::{Error, Library, Version, ffi};

/// The requirements of an endpoint.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The provider, by libfabric's name.
    pub provider: String,
    /// The version of the programming interface to request. The library's own version is used if
    /// that is lower.
    pub api: Version,
    /// The primary and secondary capabilities to request (`FI_TAGGED`, `FI_RMA`, ...).
    pub capabilities: u64,
    /// Register every buffer before it is used (`FI_MR_LOCAL`), instead of leaving that to the
    /// provider.
    pub register_local: bool,
    /// The application promises to send and receive no message longer than this, in bytes, to need
    /// no order, and to reserve room for a prefix before each message if the provider needs one.
    /// The EFA provider of 1.11 to 2.5 then receives into the application's buffers if such a
    /// message fits into a packet, buffers are registered ([`Settings::register_local`]), and
    /// neither tagged messages, directed receives nor atomics are requested. `None`: messages of
    /// any size.
    pub max_message: Option<usize>,
    /// The name of the device; `None` is the first that the provider lists.
    pub device: Option<String>,
}

/// A peer in the endpoint's address vector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address(pub(super) ffi::fi_addr_t);

/// Memory that peers may access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegionId(u64);

struct Region {
    memory: *mut [u8],
    mr: *mut ffi::fid_mr,
}

/// The first release that receives into the application's buffers without a prefix.
const FIRST_WITHOUT_PREFIX: Version = Version {
    major: 1,
    minor: 22,
};
/// The release that counts the prefix as part of the message that follows it: it sends and posts
/// that many more bytes, beyond the end of the buffer. Completions of receives never count the
/// prefix.
const PREFIX_TWICE: Version = Version {
    major: 1,
    minor: 11,
};

/// Memory around each message that belongs to the provider.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ReservedRoom {
    /// Bytes before the message, which count as part of the buffer.
    pub(super) prefix: usize,
    /// Bytes after the message, which do not count.
    pub(super) behind: usize,
    /// The number of bytes of the prefix that a receive's completion counts as received if the
    /// packet arrived in the buffer. If the message was copied there, its completion counts none.
    pub(super) counted: usize,
}

/// A reliable-datagram endpoint of one provider, with a private completion queue, event queue and
/// address vector.
pub struct Endpoint {
    pub(super) library: Library,
    info: *mut ffi::fi_info,
    fabric: *mut ffi::fid_fabric,
    domain: *mut ffi::fid_domain,
    pub(super) eq: *mut ffi::fid_eq,
    av: *mut ffi::fid_av,
    pub(super) cq: *mut ffi::fid_cq,
    pub(super) ep: *mut ffi::fid_ep,
    regions: HashMap<u64, Region>,
    next_region: u64,
    pub(super) register_local: bool,
    /// Whether peers name memory by its virtual address rather than by its offset in the region.
    virtual_addresses: bool,
    pub(super) margin: ReservedRoom,
    pub(super) pending: HashMap<usize, Pending>,
}

/// Returns whether enabling an endpoint failed because a live process has a shared memory object
/// with the same name. Stock libfabric makes the name from GID, queue pair number, user and a
/// Q-key, which depends on the time in microseconds (`efa_generate_rdm_connid`,
/// `efa_shm_ep_name_construct`): for endpoints on hosts of the same name in two fabrics, all of
/// them can be equal.
fn is_name_taken(error: &Error) -> bool {
    matches!(
        error,
        Error::Call {
            call: FI_ENABLE,
            code: libc::EBUSY,
            ..
        }
    )
}

/// The call that enables an endpoint, for errors.
const FI_ENABLE: &str = "fi_enable";

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("fabric", &self.fabric_name())
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    const QUEUE_SIZE: usize = 4096;

    /// The number of attempts to open an endpoint whose name is in use.
    const ATTEMPTS: u32 = 3;

    /// Opens and enables an endpoint.
    pub fn open(library: &Library, settings: &Settings) -> Result<Self, Error> {
        let mut attempt = 1;
        loop {
            match Endpoint::try_open(library, settings) {
                Err(error) if attempt < Self::ATTEMPTS && is_name_taken(&error) => attempt += 1,
                result => return result,
            }
        }
    }

    fn try_open(library: &Library, settings: &Settings) -> Result<Self, Error> {
        let mut endpoint = Endpoint {
            library: library.clone(),
            info: ptr::null_mut(),
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            eq: ptr::null_mut(),
            av: ptr::null_mut(),
            cq: ptr::null_mut(),
            ep: ptr::null_mut(),
            regions: HashMap::new(),
            next_region: 0,
            register_local: false,
            virtual_addresses: true,
            margin: ReservedRoom::default(),
            pending: HashMap::new(),
        };
        // Each step initialises one member; on an error the drop of `endpoint` closes the opened
        // objects.
        endpoint.find(settings)?;
        endpoint.open_objects()?;
        endpoint.bind_and_enable()?;
        Ok(endpoint)
    }

    fn find(&mut self, settings: &Settings) -> Result<(), Error> {
        let provider = CString::new(settings.provider.as_str())
            .map_err(|_| Error::Usage("a provider's name has no NUL bytes".into()))?;
        let functions = &self.library.0;
        // SAFETY: NULL requests an empty structure.
        let hints = unsafe { (functions.dupinfo)(ptr::null()) };
        if hints.is_null() {
            return Err(Error::Missing("memory for fi_info"));
        }
        let mut mr_mode = ffi::FI_MR_ALLOCATED | ffi::FI_MR_PROV_KEY | ffi::FI_MR_VIRT_ADDR;
        if settings.register_local {
            mr_mode |= ffi::FI_MR_LOCAL;
        }
        let mut mode = ffi::FI_CONTEXT | ffi::FI_CONTEXT2;
        // Later releases receive into the application's buffers without a prefix.
        if settings.max_message.is_some() && self.library.version() < FIRST_WITHOUT_PREFIX {
            mode |= ffi::FI_MSG_PREFIX;
        }
        // SAFETY: `hints` is a fresh structure of the library with all attributes allocated; the
        // provider name must come from malloc because `fi_freeinfo` frees it, hence strdup.
        unsafe {
            (*hints).caps = settings.capabilities;
            (*hints).mode = mode;
            (*(*hints).ep_attr).type_ = ffi::FI_EP_RDM;
            (*(*hints).domain_attr).mr_mode = mr_mode as c_int;
            (*(*hints).fabric_attr).prov_name = libc::strdup(provider.as_ptr());
        }
        let version = settings.api.min(self.library.version());
        // SAFETY: all pointers are null or valid; the result is written to `self.info`.
        let result = unsafe {
            (functions.getinfo)(
                version.to_raw(),
                ptr::null(),
                ptr::null(),
                0,
                hints,
                &mut self.info,
            )
        };
        // SAFETY: `hints` is the result of `fi_dupinfo` and is not used any more.
        unsafe { (functions.freeinfo)(hints) };
        let chosen = if result == 0 {
            self.choose(settings.device.as_deref())
        } else {
            ptr::null_mut()
        };
        if chosen.is_null()
            && result == 0
            && let Some(device) = &settings.device
        {
            return Err(Error::NoDevice {
                provider: settings.provider.clone(),
                device: device.clone(),
            });
        }
        if chosen.is_null() {
            return Err(Error::NoEndpoint {
                provider: settings.provider.clone(),
                version: self.library.version(),
                text: self.library.describe(-result),
            });
        }
        // SAFETY: `chosen` is an entry of the library's list. The copy allows the other entries to
        // be freed.
        let only = unsafe { (functions.dupinfo)(chosen) };
        // SAFETY: the list is the result of `fi_getinfo` and `chosen` is not used any more.
        unsafe { (functions.freeinfo)(self.info) };
        self.info = only;
        if only.is_null() {
            return Err(Error::Missing("memory for fi_info"));
        }
        // SAFETY: `only` is a valid structure with its attributes.
        let mr_mode = unsafe { (*(*only).domain_attr).mr_mode } as u64;
        self.register_local = mr_mode & ffi::FI_MR_LOCAL != 0;
        self.virtual_addresses = mr_mode & ffi::FI_MR_VIRT_ADDR != 0;
        if let Some(size) = settings.max_message {
            self.promise(size);
        }
        Ok(())
    }

    /// Lowers the limits with which the endpoint is opened, as applications may do: to messages of
    /// up to `size` bytes, without an order.
    fn promise(&mut self, size: usize) {
        // SAFETY: `info` is a valid structure with its attributes, and it is not used elsewhere.
        unsafe {
            let info = self.info;
            (*(*info).ep_attr).max_msg_size = size;
            (*(*info).tx_attr).msg_order = 0;
            (*(*info).rx_attr).msg_order = 0;
            if (*info).mode & ffi::FI_MSG_PREFIX != 0 {
                self.margin.prefix = (*(*info).ep_attr).msg_prefix_size;
            }
        }
        match self.library.version() {
            PREFIX_TWICE => self.margin.behind = self.margin.prefix,
            _ => self.margin.counted = self.margin.prefix,
        }
    }

    /// Returns the first entry with the RDM protocol, of the named device if there is a name.
    /// Releases from 2.1 on also list the fabric `efa-direct`, the device without the protocol.
    fn choose(&self, device: Option<&str>) -> *mut ffi::fi_info {
        let mut info = self.info;
        while !info.is_null() {
            // SAFETY: `info` is an entry of the library's list; its attributes are set and the name
            // is null or a string.
            let (type_, name, domain, next) = unsafe {
                (
                    (*(*info).ep_attr).type_,
                    (*(*info).fabric_attr).name,
                    (*(*info).domain_attr).name,
                    (*info).next,
                )
            };
            // SAFETY: as above.
            let direct = !name.is_null() && unsafe { CStr::from_ptr(name) } == c"efa-direct";
            let is_wanted = device.is_none_or(|device| {
                // SAFETY: as above. The provider names its domains after the devices, as in
                // `rdmap0s6-rdm`.
                !domain.is_null()
                    && unsafe { CStr::from_ptr(domain) }
                        .to_bytes()
                        .strip_prefix(device.as_bytes())
                        .is_some_and(|rest| rest.is_empty() || rest == b"-rdm")
            });
            if type_ == ffi::FI_EP_RDM && !direct && is_wanted {
                return info;
            }
            info = next;
        }
        ptr::null_mut()
    }

    fn open_objects(&mut self) -> Result<(), Error> {
        let library = self.library.clone();
        // SAFETY: `self.info` is a valid entry; each call writes the object on success only, and
        // the objects are used in the order in which libfabric nests them.
        unsafe {
            let result =
                (library.0.fabric)((*self.info).fabric_attr, &mut self.fabric, ptr::null_mut());
            library.check("fi_fabric", result as isize)?;

            let open = entry!((*self.fabric).ops, ffi::fi_ops_fabric, domain)?;
            let result = open(self.fabric, self.info, &mut self.domain, ptr::null_mut());
            library.check("fi_domain", result as isize)?;

            let mut attr = ffi::fi_eq_attr::default();
            let open = entry!((*self.fabric).ops, ffi::fi_ops_fabric, eq_open)?;
            let result = open(self.fabric, &mut attr, &mut self.eq, ptr::null_mut());
            library.check("fi_eq_open", result as isize)?;

            let mut attr = ffi::fi_cq_attr {
                size: Self::QUEUE_SIZE,
                format: ffi::FI_CQ_FORMAT_TAGGED,
                ..Default::default()
            };
            let open = entry!((*self.domain).ops, ffi::fi_ops_domain, cq_open)?;
            let result = open(self.domain, &mut attr, &mut self.cq, ptr::null_mut());
            library.check("fi_cq_open", result as isize)?;

            let mut attr = ffi::fi_av_attr {
                type_: ffi::FI_AV_TABLE,
                ..Default::default()
            };
            let open = entry!((*self.domain).ops, ffi::fi_ops_domain, av_open)?;
            let result = open(self.domain, &mut attr, &mut self.av, ptr::null_mut());
            library.check("fi_av_open", result as isize)?;

            let open = entry!((*self.domain).ops, ffi::fi_ops_domain, endpoint)?;
            let result = open(self.domain, self.info, &mut self.ep, ptr::null_mut());
            library.check("fi_endpoint", result as isize)
        }
    }

    fn bind_and_enable(&mut self) -> Result<(), Error> {
        let fid = self.ep.cast::<ffi::fid>();
        // SAFETY: all objects are open, and each begins with its `fid`.
        unsafe {
            let bind = entry!((*fid).ops, ffi::fi_ops, bind)?;
            // Without an event queue the provider aborts the process on a protocol error.
            self.library
                .check("fi_ep_bind(eq)", bind(fid, self.eq.cast(), 0) as isize)?;
            self.library
                .check("fi_ep_bind(av)", bind(fid, self.av.cast(), 0) as isize)?;
            let flags = ffi::FI_SEND | ffi::FI_RECV;
            self.library
                .check("fi_ep_bind(cq)", bind(fid, self.cq.cast(), flags) as isize)?;
            let control = entry!((*fid).ops, ffi::fi_ops, control)?;
            let result = control(fid, ffi::FI_ENABLE as c_int, ptr::null_mut());
            self.library.check(FI_ENABLE, result as isize)
        }
    }

    /// The endpoint's raw address.
    pub fn name(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; 256];
        let mut length = bytes.len();
        // SAFETY: the endpoint is open; the call writes at most `length` bytes and sets it.
        unsafe {
            let getname = entry!((*self.ep).cm, ffi::fi_ops_cm, getname)?;
            let result = getname(self.ep.cast(), bytes.as_mut_ptr().cast(), &mut length);
            self.library.check("fi_getname", result as isize)?;
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The fabric's name.
    pub fn fabric_name(&self) -> String {
        if self.info.is_null() {
            return String::new();
        }
        // SAFETY: `info` is valid with its attributes; the name is null or a string.
        unsafe {
            let name = (*(*self.info).fabric_attr).name;
            if name.is_null() {
                String::new()
            } else {
                CStr::from_ptr(name).to_string_lossy().into_owned()
            }
        }
    }

    /// Largest message that can be injected, in bytes.
    pub fn inject_size(&self) -> usize {
        // SAFETY: `info` is valid with its attributes once the endpoint is open.
        unsafe { (*(*self.info).tx_attr).inject_size }
    }

    /// Inserts a peer's raw address into the address vector.
    pub fn insert(&mut self, raw: &[u8]) -> Result<Address, Error> {
        // The library reads the length of its provider's addresses, even if `raw` is shorter.
        let mut padded = [0_u8; 256];
        let Some(target) = padded.get_mut(..raw.len()) else {
            return Err(Error::Usage(format!(
                "a raw address of {} bytes is too long",
                raw.len()
            )));
        };
        target.copy_from_slice(raw);
        let mut address = ffi::FI_ADDR_UNSPEC;
        // SAFETY: the vector is open; `padded` is at least as long as any provider's address.
        let inserted = unsafe {
            let insert = entry!((*self.av).ops, ffi::fi_ops_av, insert)?;
            insert(
                self.av,
                padded.as_ptr().cast(),
                1,
                &mut address,
                0,
                ptr::null_mut(),
            )
        };
        self.library.check("fi_av_insert", inserted as isize)?;
        if inserted != 1 {
            return Err(Error::Usage("libfabric refused the raw address".into()));
        }
        Ok(Address(address))
    }

    /// Removes a peer from the address vector.
    pub fn remove(&mut self, address: Address) -> Result<(), Error> {
        let mut address = address.0;
        // SAFETY: the vector is open; one address is passed.
        let result = unsafe {
            let remove = entry!((*self.av).ops, ffi::fi_ops_av, remove)?;
            remove(self.av, &mut address, 1, 0)
        };
        self.library.check("fi_av_remove", result as isize)
    }

    /// Registers memory; `access` consists of the bits `FI_SEND`, `FI_RECV`, `FI_READ`, `FI_WRITE`,
    /// `FI_REMOTE_READ` and `FI_REMOTE_WRITE`.
    pub(super) fn register_raw(
        &self,
        memory: *const [u8],
        access: u64,
    ) -> Result<*mut ffi::fid_mr, Error> {
        let mut mr = ptr::null_mut();
        // SAFETY: the domain is open; the caller keeps `memory` alive until the region is closed.
        unsafe {
            let reg = entry!((*self.domain).mr, ffi::fi_ops_mr, reg)?;
            let result = reg(
                self.domain.cast(),
                memory.cast(),
                memory.len(),
                access,
                0,
                0,
                0,
                &mut mr,
                ptr::null_mut(),
            );
            self.library.check("fi_mr_reg", result as isize)?;
        }
        Ok(mr)
    }

    /// Registers memory that peers may read or write. The endpoint owns the memory until it is
    /// closed.
    pub fn register(&mut self, memory: Vec<u8>, access: u64) -> Result<RegionId, Error> {
        let memory = Box::into_raw(memory.into_boxed_slice());
        let mr = match self.register_raw(memory, access) {
            Ok(mr) => mr,
            Err(error) => {
                // SAFETY: made by `into_raw` above and not registered.
                drop(unsafe { Box::from_raw(memory) });
                return Err(error);
            }
        };
        let id = self.next_region;
        self.next_region += 1;
        self.regions.insert(id, Region { memory, mr });
        Ok(RegionId(id))
    }

    fn region(&self, id: RegionId) -> &Region {
        &self.regions[&id.0]
    }

    /// Returns a region's address and key for peers.
    pub fn region_location(&self, id: RegionId) -> (u64, u64) {
        let region = self.region(id);
        // SAFETY: regions are open as long as the endpoint.
        let key = unsafe { (*region.mr).key };
        let address = match self.virtual_addresses {
            true => region.memory.cast::<u8>() as u64,
            false => 0,
        };
        (address, key)
    }

    /// Returns a copy of a region's current bytes.
    pub fn region_bytes(&self, id: RegionId) -> Vec<u8> {
        let region = self.region(id);
        let mut bytes = vec![0; region.memory.len()];
        // SAFETY: the region's memory is valid as long as the endpoint. A peer may write to it at
        // any time; any mixture of old and new bytes is acceptable here.
        unsafe {
            ptr::copy_nonoverlapping(
                region.memory.cast::<u8>().cast_const(),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
        bytes
    }
}

/// Closes an object; does nothing with null.
///
/// # Safety
/// `object` is null or an open object of the library that nothing uses any more.
pub(super) unsafe fn close(object: *mut c_void) {
    if object.is_null() {
        return;
    }
    let fid = object.cast::<ffi::fid>();
    // SAFETY: every object starts with its `fid`, whose table has `close`.
    unsafe {
        if let Ok(close) = entry!((*fid).ops, ffi::fi_ops, close) {
            close(fid);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: objects are closed from the inside out, and memory is freed only after the
        // endpoint and the registrations that name it are closed.
        unsafe {
            close(self.ep.cast());
            for (context, pending) in self.pending.drain() {
                pending.finish(context);
            }
            for region in self.regions.values() {
                close(region.mr.cast());
                drop(Box::from_raw(region.memory));
            }
            close(self.cq.cast());
            close(self.av.cast());
            close(self.eq.cast());
            close(self.domain.cast());
            close(self.fabric.cast());
            if !self.info.is_null() {
                (self.library.0.freeinfo)(self.info);
            }
        }
    }
}
