//! The provider as an application sees it: through the C interface of the libfabric that is
//! installed, on an emulated device. Two endpoints, each in a domain of its own, talk to each other
//! within the process.
#![allow(dead_code, reason = "not every test needs all of it")]
#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "each argument of `call!` is an argument of the unsafe call itself"
)]

pub(crate) use efa_libfabric_sys as c;

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};

use efa_testing::hw::with_device_under;
use efa_testing::patience::Wait;
use efa_testing::test_name;

use c::*;

/// The interface version that the tests request.
const VERSION: u32 = 1 << 16 | 17;

/// The directory of the plug-in.
const PLUG_INS: &str = concat!(env!("OUT_DIR"), "/plug-in");

/// Runs a test with the provider, in a process of its own. `body` is a closure of the test's
/// function itself, so that the test is found again ([`test_name`]).
pub(crate) fn with_provider(body: impl FnOnce(&Libfabric)) {
    with_provider_in(&[], body);
}

/// As [`with_provider`], with an endpoint that is not enabled yet.
pub(crate) fn with_side(options: &Options, body: impl FnOnce(&Side)) {
    with_opened((Side::open, Side::close), options, body);
}

/// As [`with_provider`], with two endpoints.
pub(crate) fn with_pair(options: &Options, body: impl FnOnce(&Pair)) {
    with_opened((Pair::open, Pair::close), options, body);
}

/// How something is opened and closed.
type Lifetime<T> = (fn(&Libfabric, &Options) -> T, fn(T, &Libfabric));

fn with_opened<T>((open, close): Lifetime<T>, options: &Options, body: impl FnOnce(&T)) {
    let name = test_name(&body);
    let body = |libfabric: &Libfabric| {
        let opened = open(libfabric, options);
        body(&opened);
        close(opened, libfabric);
    };
    with_provider_under(&[], name, |_| (), body);
}

/// Permits stock `efa` besides this provider.
pub(crate) const STOCK: (&str, &str) = ("FI_PROVIDER", "efa_rs,efa");
/// Makes stock `efa` use the device within a host, too.
pub(crate) const NO_SHM: (&str, &str) = ("FI_EFA_ENABLE_SHM_TRANSFER", "0");

/// As [`with_provider`], with these variables of the environment.
pub(crate) fn with_provider_in(variables: &[(&str, &str)], body: impl FnOnce(&Libfabric)) {
    let set = |command: &mut std::process::Command| _ = command.envs(variables.iter().copied());
    with_provider_under(&[], test_name(&body), set, body);
}

/// As [`with_provider`]. `prepare` changes the start of that process; its result is dropped when
/// the process has ended.
pub(crate) fn with_provider_and<T>(
    prepare: impl FnOnce(&mut std::process::Command) -> T,
    body: impl FnOnce(&Libfabric),
) {
    with_provider_under(&[], test_name(&body), prepare, body);
}

/// As [`with_provider_and`], for the test with the path `name`. `tool` is a program with its
/// arguments that runs that process.
pub(crate) fn with_provider_under<T>(
    tool: &[&str],
    name: &str,
    prepare: impl FnOnce(&mut std::process::Command) -> T,
    body: impl FnOnce(&Libfabric),
) {
    let prepare = |command: &mut std::process::Command| {
        command
            .env("FI_PROVIDER_PATH", PLUG_INS)
            .env("FI_PROVIDER", "efa_rs");
        prepare(command)
    };
    with_device_under(tool, name, prepare, |_| body(&Libfabric::load()));
}

/// The functions that libfabric exports. All others are in the tables of its objects.
pub(crate) struct Libfabric {
    pub(crate) getinfo: fi_getinfo_t,
    pub(crate) dupinfo: fi_dupinfo_t,
    pub(crate) freeinfo: fi_freeinfo_t,
    pub(crate) fabric: fi_fabric_t,
}

impl Libfabric {
    fn load() -> Libfabric {
        // SAFETY: the library's constructors require nothing of the program.
        let library = unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "libfabric.so.1 is not installed");
        let find = |name: &CStr| {
            // SAFETY: the library is open, and the name is a string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        // SAFETY: these are the types of libfabric's functions.
        unsafe {
            Libfabric {
                getinfo: std::mem::transmute::<*mut c_void, fi_getinfo_t>(find(c"fi_getinfo")),
                dupinfo: std::mem::transmute::<*mut c_void, fi_dupinfo_t>(find(c"fi_dupinfo")),
                freeinfo: std::mem::transmute::<*mut c_void, fi_freeinfo_t>(find(c"fi_freeinfo")),
                fabric: std::mem::transmute::<*mut c_void, fi_fabric_t>(find(c"fi_fabric")),
            }
        }
    }

    /// The provider's offer for the usual hints after `change`.
    ///
    /// # Errors
    /// The negative number that `fi_getinfo` returned.
    pub(crate) fn info(&self, change: impl FnOnce(&mut fi_info)) -> Result<*mut fi_info, c_int> {
        self.info_of(VERSION, change)
    }

    /// As [`Libfabric::info`], for an application of this version of the interface.
    ///
    /// # Errors
    /// As for [`Libfabric::info`].
    pub(crate) fn info_of(
        &self,
        version: u32,
        change: impl FnOnce(&mut fi_info),
    ) -> Result<*mut fi_info, c_int> {
        // SAFETY: null gives empty hints, with all attributes.
        unsafe {
            let hints = (self.dupinfo)(null());
            (*(*hints).fabric_attr).prov_name = libc::strdup(c"efa_rs".as_ptr());
            (*(*hints).ep_attr).type_ = FI_EP_RDM;
            (*(*hints).domain_attr).mr_mode =
                (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL) as c_int;
            change(&mut *hints);
            let mut info = null_mut();
            let status = (self.getinfo)(version, null(), null(), 0, hints, &mut info);
            (self.freeinfo)(hints);
            if status == 0 { Ok(info) } else { Err(status) }
        }
    }
}

/// Calls a function of an object's table: `call!(object => table.function(arguments))`.
macro_rules! call {
    ($object:expr => $table:ident.$function:ident($($argument:expr),* $(,)?)) => {{
        let object = $object;
        // SAFETY: the object is open, its tables are complete, and the test's arguments are valid.
        #[allow(unused_unsafe)]
        unsafe { ((*(*object).$table).$function.expect("the tables are complete"))(object, $($argument),*) }
    }};
}

/// Options of libfabric 2, which the machine's headers lack.
pub(crate) const SHARED_MEMORY_PERMITTED: c_int = 11;
pub(crate) const MAX_MSG_SIZE: c_int = 12;

/// The result of a call that has to be repeated later.
pub(crate) const AGAIN: isize = -(libc::EAGAIN as isize);
/// The result of a call with invalid arguments.
pub(crate) const EINVAL: isize = -(libc::EINVAL as isize);

/// Closes an object, and returns the result of `fi_close`.
pub(crate) fn close<T>(object: *mut T) -> c_int {
    // SAFETY: every object begins with a `fid`, and is open.
    unsafe {
        let fid = object.cast::<fid>();
        ((*(*fid).ops).close.expect("every object can be closed"))(fid)
    }
}

/// The object that a call opens in a place.
#[track_caller]
pub(crate) fn opened<T>(open: impl FnOnce(&mut *mut T) -> c_int) -> *mut T {
    let mut object = null_mut();
    assert_eq!(open(&mut object), 0);
    object
}

/// Binds an object to an endpoint.
pub(crate) fn bind<T>(endpoint: *mut fid_ep, object: *mut T, flags: u64) -> c_int {
    // SAFETY: both are open.
    unsafe {
        let fid = endpoint.cast::<fid>();
        ((*(*fid).ops).bind.expect("the tables are complete"))(fid, object.cast(), flags)
    }
}

/// Enables an endpoint.
fn enable(endpoint: *mut fid_ep) {
    // SAFETY: the endpoint is open.
    let status = unsafe {
        let fid = endpoint.cast::<fid>();
        let control = (*(*fid).ops).control.expect("the tables are complete");
        control(fid, FI_ENABLE as c_int, null_mut())
    };
    assert_eq!(status, 0);
}

/// Calls `fi_control` of an object.
pub(crate) fn control<T, A>(object: *mut T, command: u32, argument: &mut A) -> c_int {
    // SAFETY: every object begins with a `fid`, and is open; the test passes the argument that the
    // command takes.
    unsafe {
        let fid = object.cast::<fid>();
        let control = (*(*fid).ops).control.expect("the tables are complete");
        control(fid, command as c_int, std::ptr::from_mut(argument).cast())
    }
}

/// A piece of memory, for a list.
pub(crate) fn piece<T>(base: *const T, length: usize) -> iovec {
    iovec {
        iov_base: base.cast_mut().cast(),
        iov_len: length,
    }
}

/// A message of one piece.
pub(crate) fn message(piece: &iovec, addr: fi_addr_t) -> fi_msg {
    fi_msg {
        msg_iov: piece,
        iov_count: 1,
        addr,
        ..fi_msg::default()
    }
}

/// A read or write of one piece at each end.
pub(crate) fn rma_message(piece: &iovec, addr: fi_addr_t, remote: &fi_rma_iov) -> fi_msg_rma {
    fi_msg_rma {
        msg_iov: piece,
        iov_count: 1,
        addr,
        rma_iov: remote,
        rma_iov_count: 1,
        ..fi_msg_rma::default()
    }
}

/// Values that a test shares with its threads.
pub(crate) struct Threads<'a, T>(pub(crate) &'a T);

impl<T> Clone for Threads<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Threads<'_, T> {}

// SAFETY: the provider is thread-safe unless a test requests less.
unsafe impl<T> Send for Threads<'_, T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Threads<'_, T> {}

impl<'a, T> Threads<'a, T> {
    /// A method, so that closures take the whole.
    pub(crate) fn get(self) -> &'a T {
        self.0
    }
}

/// Differences from the usual options of opened objects.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) endpoint_type: fi_ep_type,
    pub(crate) caps: u64,
    /// The mode bits that the application accepts.
    pub(crate) mode: u64,
    /// Flags of the completion queue's bindings besides the direction.
    pub(crate) queue_flags: u64,
    pub(crate) wait_obj: fi_wait_obj,
    /// Flags of receives whose calls have none.
    pub(crate) rx_op_flags: u64,
    pub(crate) wait_cond: fi_cq_wait_cond,
    /// Entries of the completion queue; 0 leaves them to the provider.
    pub(crate) queue_size: usize,
    pub(crate) threading: fi_threading,
    pub(crate) progress: fi_progress,
    /// The requested order of messages.
    pub(crate) msg_order: u64,
    pub(crate) mr_mode: u64,
    /// The provider: this one, or stock `efa` where the test has permitted it.
    pub(crate) provider: &'static CStr,
}

impl Options {
    pub(crate) const USUAL: Options = Options {
        endpoint_type: FI_EP_RDM,
        mode: 0,
        caps: FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV,
        queue_flags: 0,
        wait_obj: FI_WAIT_NONE,
        rx_op_flags: 0,
        wait_cond: FI_CQ_COND_NONE,
        queue_size: 0,
        threading: FI_THREAD_UNSPEC,
        progress: FI_PROGRESS_UNSPEC,
        msg_order: FI_ORDER_SAS,
        mr_mode: FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL,
        provider: c"efa_rs",
    };

    /// These options with a change.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Options)) -> Options {
        change(&mut self);
        self
    }
}

/// An endpoint with all that it needs.
pub(crate) struct Side {
    pub(crate) info: *mut fi_info,
    pub(crate) fabric: *mut fid_fabric,
    pub(crate) domain: *mut fid_domain,
    pub(crate) queue: *mut fid_cq,
    pub(crate) vector: *mut fid_av,
    pub(crate) endpoint: *mut fid_ep,
}

impl Side {
    /// Two sides with the same options.
    pub(crate) fn open_two(libfabric: &Libfabric, options: &Options) -> (Side, Side) {
        let open = || Side::open(libfabric, options);
        (open(), open())
    }

    /// Opens everything, binds it together, and leaves the endpoint to [`Side::enable`].
    pub(crate) fn open(libfabric: &Libfabric, options: &Options) -> Side {
        let info = libfabric.info(|hints| {
            (hints.caps, hints.mode) = (options.caps, options.mode);
            // SAFETY: hints have all attributes.
            unsafe {
                (*hints.ep_attr).type_ = options.endpoint_type;
                (*hints.rx_attr).op_flags = options.rx_op_flags;
            }
            // SAFETY: hints come with all attributes.
            let domain = unsafe { &mut *hints.domain_attr };
            domain.threading = options.threading;
            domain.control_progress = options.progress;
            domain.data_progress = options.progress;
            domain.mr_mode = options.mr_mode as c_int;
            // SAFETY: as above.
            unsafe {
                (*hints.tx_attr).msg_order = options.msg_order;
                (*hints.rx_attr).msg_order = options.msg_order;
                let provider = &mut (*hints.fabric_attr).prov_name;
                libc::free(provider.cast());
                *provider = libc::strdup(options.provider.as_ptr());
            }
        });
        let info = info.expect("the hints can be met");
        // SAFETY: the info is valid.
        let attributes = unsafe { (*info).fabric_attr };
        // SAFETY: as above.
        let fabric = opened(|fabric| unsafe { (libfabric.fabric)(attributes, fabric, null_mut()) });
        let domain = opened(|domain| call!(fabric => ops.domain(info, domain, null_mut())));
        let mut attributes = fi_cq_attr {
            format: FI_CQ_FORMAT_TAGGED,
            wait_obj: options.wait_obj,
            wait_cond: options.wait_cond,
            size: options.queue_size,
            ..fi_cq_attr::default()
        };
        let queue =
            opened(|queue| call!(domain => ops.cq_open(&mut attributes, queue, null_mut())));
        let mut attributes = fi_av_attr {
            type_: FI_AV_TABLE,
            ..fi_av_attr::default()
        };
        let vector =
            opened(|vector| call!(domain => ops.av_open(&mut attributes, vector, null_mut())));
        let endpoint = opened(|endpoint| call!(domain => ops.endpoint(info, endpoint, null_mut())));
        assert_eq!(bind(endpoint, vector, 0), 0);
        let flags = FI_TRANSMIT | FI_RECV | options.queue_flags;
        assert_eq!(bind(endpoint, queue, flags), 0);
        Side {
            info,
            fabric,
            domain,
            queue,
            vector,
            endpoint,
        }
    }

    pub(crate) fn enable(&self) {
        enable(self.endpoint);
    }

    /// Opens another endpoint of the domain, which is bound to nothing.
    pub(crate) fn bare(&self) -> *mut fid_ep {
        opened(|endpoint| call!(self.domain => ops.endpoint(self.info, endpoint, null_mut())))
    }

    /// Opens and enables another endpoint of the domain, with the same queue and address vector.
    pub(crate) fn another(&self) -> *mut fid_ep {
        let endpoint = self.bare();
        assert_eq!(bind(endpoint, self.vector, 0), 0);
        assert_eq!(bind(endpoint, self.queue, FI_TRANSMIT | FI_RECV), 0);
        enable(endpoint);
        endpoint
    }

    /// Opens a counter with this wait object.
    pub(crate) fn counter(&self, wait_obj: fi_wait_obj) -> *mut fid_cntr {
        let mut attributes = fi_cntr_attr {
            wait_obj,
            ..fi_cntr_attr::default()
        };
        opened(|counter| call!(self.domain => ops.cntr_open(&mut attributes, counter, null_mut())))
    }

    /// Opens an event queue with this wait object.
    pub(crate) fn event_queue(&self, wait_obj: fi_wait_obj) -> *mut fid_eq {
        let mut attributes = fi_eq_attr {
            wait_obj,
            ..fi_eq_attr::default()
        };
        opened(|queue| call!(self.fabric => ops.eq_open(&mut attributes, queue, null_mut())))
    }

    /// Sets an option of the endpoint that has the type of `value`.
    pub(crate) fn set<T>(&self, option: c_int, value: T) -> c_int {
        // SAFETY: the endpoint is open, and the value is as long as is said.
        unsafe {
            let setopt = (*(*self.endpoint).ops).setopt;
            let setopt = setopt.expect("the tables are complete");
            let level = FI_OPT_ENDPOINT as c_int;
            let value = (&raw const value).cast();
            setopt(self.endpoint.cast(), level, option, value, size_of::<T>())
        }
    }

    /// Sets an option of the endpoint.
    pub(crate) fn set_option(&self, option: u32, value: usize) -> c_int {
        self.set(option as c_int, value)
    }

    /// An option of the endpoint.
    pub(crate) fn option(&self, option: u32) -> usize {
        let (mut value, mut length) = (0_usize, size_of::<usize>());
        // SAFETY: the endpoint is open, and there is room for `length` bytes.
        let status = unsafe {
            let getopt = (*(*self.endpoint).ops).getopt;
            let getopt = getopt.expect("the tables are complete");
            let (to, length) = ((&raw mut value).cast(), &raw mut length);
            getopt(
                self.endpoint.cast(),
                FI_OPT_ENDPOINT as c_int,
                option as c_int,
                to,
                length,
            )
        };
        assert_eq!((status, length), (0, size_of::<usize>()));
        value
    }

    /// Cancels the operation with this context.
    pub(crate) fn cancel(&self, context: *mut c_void) -> isize {
        // SAFETY: the endpoint is open.
        unsafe {
            let cancel = (*(*self.endpoint).ops).cancel;
            cancel.expect("the tables are complete")(self.endpoint.cast(), context)
        }
    }

    /// The endpoint's address.
    pub(crate) fn name(&self) -> [u8; 32] {
        name_of(self.endpoint)
    }

    /// Inserts an address.
    pub(crate) fn insert(&self, name: &[u8; 32]) -> fi_addr_t {
        let mut address = 0;
        let count =
            call!(self.vector => ops.insert(name.as_ptr().cast(), 1, &mut address, 0, null_mut()));
        assert_eq!(count, 1);
        address
    }

    /// Reads one completion, or returns the negative error number.
    pub(crate) fn read(&self) -> Result<(fi_cq_tagged_entry, fi_addr_t), isize> {
        let mut entry = fi_cq_tagged_entry::default();
        let mut source = 0;
        let count = call!(self.queue => ops.readfrom((&raw mut entry).cast(), 1, &mut source));
        if count == 1 {
            Ok((entry, source))
        } else {
            Err(count)
        }
    }

    /// Reads the completion of an operation that failed.
    pub(crate) fn read_error(&self) -> fi_cq_err_entry {
        let mut entry = fi_cq_err_entry::default();
        assert_eq!(call!(self.queue => ops.readerr(&mut entry, 0)), 1);
        entry
    }

    /// Registers memory for everything.
    pub(crate) fn register<T>(&self, memory: &mut [T]) -> *mut fid_mr {
        let access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        self.register_for(memory, access)
    }

    /// Registers memory for some uses.
    pub(crate) fn register_for<T>(&self, memory: &mut [T], access: u64) -> *mut fid_mr {
        let mut region = null_mut();
        // SAFETY: the domain is open, and the memory lives longer than the registration.
        let status = unsafe {
            let reg = (*(*self.domain).mr).reg.expect("the tables are complete");
            let (buffer, length) = (memory.as_mut_ptr().cast(), size_of_val(memory));
            let domain = self.domain.cast();
            reg(
                domain,
                buffer,
                length,
                access,
                0,
                0,
                0,
                &mut region,
                null_mut(),
            )
        };
        assert_eq!(status, 0);
        region
    }

    /// Closes everything.
    pub(crate) fn close(self, libfabric: &Libfabric) {
        assert_eq!(close(self.endpoint), 0);
        self.close_rest(libfabric);
    }

    /// Closes everything but the endpoint, which is closed already.
    pub(crate) fn close_rest(self, libfabric: &Libfabric) {
        assert_eq!(close(self.vector), 0);
        assert_eq!(close(self.queue), 0);
        assert_eq!(close(self.domain), 0);
        assert_eq!(close(self.fabric), 0);
        // SAFETY: it came from `fi_getinfo`.
        unsafe { (libfabric.freeinfo)(self.info) };
    }
}

/// The address of an endpoint.
pub(crate) fn name_of(endpoint: *mut fid_ep) -> [u8; 32] {
    let mut name = [0_u8; 32];
    let mut length = name.len();
    // SAFETY: the endpoint is open, and there is room for `length` bytes.
    let status = unsafe {
        let getname = (*(*endpoint).cm).getname.expect("the tables are complete");
        getname(endpoint.cast(), name.as_mut_ptr().cast(), &mut length)
    };
    assert_eq!((status, length), (0, name.len()));
    name
}

/// Two endpoints that know each other.
pub(crate) struct Pair {
    pub(crate) left: Side,
    pub(crate) right: Side,
    /// `right` in the address vector of `left`.
    pub(crate) to_right: fi_addr_t,
    pub(crate) to_left: fi_addr_t,
}

impl Pair {
    pub(crate) fn open(libfabric: &Libfabric, options: &Options) -> Pair {
        let (left, right) = Side::open_two(libfabric, options);
        Pair::of(left, right)
    }

    /// Enables both.
    pub(crate) fn of(left: Side, right: Side) -> Pair {
        left.enable();
        right.enable();
        let (to_right, to_left) = (left.insert(&right.name()), right.insert(&left.name()));
        Pair {
            left,
            right,
            to_right,
            to_left,
        }
    }

    /// Makes progress on both sides until `result` is there.
    pub(crate) fn until<T>(&self, what: &str, mut result: impl FnMut(&Pair) -> Option<T>) -> T {
        let wait = Wait::start();
        loop {
            if let Some(result) = result(self) {
                return result;
            }
            // Reading no entries makes progress and takes nothing.
            for side in [&self.left, &self.right] {
                call!(side.queue => ops.read(null_mut(), 0));
            }
            wait.check(|| what.to_owned());
            std::thread::yield_now();
        }
    }

    /// Waits for a completion on the left side, whose errors are not expected.
    pub(crate) fn left_completion(&self) -> (fi_cq_tagged_entry, fi_addr_t) {
        self.until("a completion on the left", |pair| pair.left.completion())
    }

    /// Waits for a completion on the right side, whose errors are not expected.
    pub(crate) fn right_completion(&self) -> (fi_cq_tagged_entry, fi_addr_t) {
        self.until("a completion on the right", |pair| pair.right.completion())
    }

    /// Sends bytes from left to right, with a tag or untagged, and waits until they are sent.
    #[track_caller]
    pub(crate) fn send(&self, data: &[u8], tag: Option<u64>) {
        let (endpoint, to, no) = (self.left.endpoint, self.to_right, null_mut());
        let (from, length) = (data.as_ptr().cast(), data.len());
        self.start(|| match tag {
            None => call!(endpoint => msg.send(from, length, no, to, no)),
            Some(tag) => call!(endpoint => tagged.send(from, length, no, to, tag, no)),
        });
        let (entry, _) = self.left_completion();
        assert_ne!(entry.flags & FI_SEND, 0);
    }

    /// Waits for the failure of an operation on the right side.
    pub(crate) fn right_failure(&self) -> fi_cq_err_entry {
        self.until("a failure on the right", |pair| match pair.right.read() {
            Ok((entry, _)) => panic!("{entry:?}"),
            Err(error) if error == AGAIN => None,
            Err(_) => Some(pair.right.read_error()),
        })
    }

    /// Starts an operation, as soon as there is room for it.
    #[track_caller]
    pub(crate) fn start(&self, mut call: impl FnMut() -> isize) {
        let status = self.until("an operation starts", |_| {
            let status = call();
            (status != AGAIN).then_some(status)
        });
        assert_eq!(status, 0);
    }

    pub(crate) fn close(self, libfabric: &Libfabric) {
        self.left.close(libfabric);
        self.right.close(libfabric);
    }
}

impl Side {
    fn completion(&self) -> Option<(fi_cq_tagged_entry, fi_addr_t)> {
        match self.read() {
            Ok(completion) => Some(completion),
            Err(error) if error == AGAIN => None,
            Err(error) => panic!("{error}: {:?}", self.read_error()),
        }
    }
}
