//! What libfabric calls first.

use std::ffi::{c_char, c_int, c_void};

use crate::border::{self, Object};
use crate::fabric::Fabric;
use crate::ffi::{fi_context, fi_fabric_attr, fi_info, fi_provider, fid_fabric};
use crate::host::Host;
use crate::info;

/// The version of the provider: the newest release of libfabric with whose efa provider it was tested, 2.5.1, as
/// libfabric numbers its own providers (`FI_VERSION(major * 100 + minor, revision * 10)`). Open MPI's `btl/ofi` takes all
/// providers whose names begin with `efa` for that one, and refuses those of releases before 1.12.
pub(crate) const VERSION: u32 = 205 << 16 | 10;

struct Provider(std::cell::UnsafeCell<fi_provider>);

// SAFETY: libfabric alone writes to its part of the structure, as it does with the statics of other providers.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(std::cell::UnsafeCell::new(fi_provider {
    version: VERSION,
    // That of the libfabric that has loaded the provider, which it has to be.
    fi_version: 0,
    context: fi_context {
        internal: [std::ptr::null_mut(); 4],
    },
    name: c"efa_rs".as_ptr(),
    getinfo: Some(getinfo),
    fabric: Some(fabric),
    cleanup: Some(cleanup),
}));

/// The provider as libfabric knows it.
pub(crate) fn provider() -> *mut fi_provider {
    PROVIDER.0.get()
}

/// The entry point of a plug-in (`FI_EXT_INI`). Returns null if the libfabric that calls cannot be found.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "it is found by its name")]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    match std::panic::catch_unwind(Host::find) {
        Ok(Some(host)) => {
            // SAFETY: libfabric looks at it after this call.
            unsafe { (*provider()).fi_version = host.version() };
            provider()
        }
        _ => std::ptr::null_mut(),
    }
}

extern "C" fn cleanup() {}

/// `fi_getinfo`.
///
/// # Safety
/// As libfabric documents: strings and hints are valid or null, and `result` is valid for a write.
unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    result: *mut *mut fi_info,
) -> c_int {
    border::status(|| {
        efa_log::init();
        // SAFETY: the caller's contract is the same.
        let infos = unsafe { info::offer(version, node, service, flags, hints) }?;
        // SAFETY: valid for a write.
        unsafe { result.write(infos) };
        Ok(())
    })
}

/// `fi_fabric`.
///
/// # Safety
/// As libfabric documents: the attributes are valid, and `result` is valid for a write.
unsafe extern "C" fn fabric(
    attributes: *mut fi_fabric_attr,
    result: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    border::status(|| {
        // SAFETY: by the caller's contract.
        let version = unsafe { attributes.as_ref() }.map_or(0, |attributes| attributes.api_version);
        // SAFETY: by the caller's contract.
        unsafe { Fabric::new(version, context).give_to(result) }
    })
}
