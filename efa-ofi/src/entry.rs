//! First calls of libfabric.

use std::ffi::{c_char, c_int, c_void};

use efa_core::endpoint::Errno;

use crate::capabilities::VERSION;
use crate::ffi::host::Host;
use crate::ffi::object::Object;
use crate::ffi::result::status;
use crate::ffi::{
    FI_PARAM_BOOL, FI_PARAM_SIZE_T, fi_context, fi_fabric_attr, fi_info, fi_provider, fid_fabric,
};
use crate::info::offer::offer;
use crate::objects::fabric::Fabric;
use crate::open;
use crate::settings::{self, DefaultValue, Parameter};

struct Provider(std::cell::UnsafeCell<fi_provider>);

// SAFETY: libfabric alone writes to its part of the structure, as it does with the statics of other
// providers.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(std::cell::UnsafeCell::new(fi_provider {
    version: VERSION,
    // The version of the libfabric that has loaded the provider, as libfabric requires.
    fi_version: 0,
    context: fi_context {
        internal: [std::ptr::null_mut(); 4],
    },
    name: c"efa_rs".as_ptr(),
    getinfo: Some(getinfo),
    fabric: Some(fabric),
    cleanup: Some(cleanup),
}));

/// The entry point of a plug-in (`FI_EXT_INI`).
///
/// # Returns
/// The provider; null if the libfabric that calls cannot be found.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "it is found by its name")]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let provider = PROVIDER.0.get();
    match std::panic::catch_unwind(|| Host::find(provider)) {
        Ok(Some(host)) => {
            // SAFETY: libfabric reads it after this call.
            unsafe { (*provider).fi_version = host.version() };
            define_parameters(host);
            provider
        }
        _ => std::ptr::null_mut(),
    }
}

/// The provider whose variables are read, as they are called.
static VARIABLES: NamedProvider = NamedProvider(fi_provider {
    version: VERSION,
    fi_version: 0,
    context: fi_context {
        internal: [std::ptr::null_mut(); 4],
    },
    name: c"efa".as_ptr(),
    getinfo: None,
    fabric: None,
    cleanup: None,
});

struct NamedProvider(fi_provider);

// SAFETY: libfabric reads its name only.
unsafe impl Sync for NamedProvider {}

/// Lists the variables of the environment with libfabric.
fn define_parameters(host: &Host) {
    for Parameter {
        name,
        help,
        default,
    } in settings::parameters()
    {
        let (kind, value) = match default {
            DefaultValue::Number(number) => (FI_PARAM_SIZE_T, number.to_string()),
            DefaultValue::Switch(is_on) => (FI_PARAM_BOOL, is_on.to_string()),
        };
        let help = format!("efa_rs: {help} (default: {value})");
        host.define(&VARIABLES.0, &name.to_lowercase(), kind, &help);
    }
}

/// Called before the provider is unloaded. It has nothing to do.
extern "C" fn cleanup() {}

/// Lists the infos that match the hints (`fi_getinfo`).
///
/// # Returns
/// 0 with a list in `result` that the caller frees; `-FI_ENODATA` if none matches.
///
/// # Safety
/// Strings and hints are null or valid, including everything that the hints point to, and `result`
/// is null or valid for a write.
unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    result: *mut *mut fi_info,
) -> c_int {
    status(|| {
        efa_log::init();
        // SAFETY: by the caller's contract.
        let result = unsafe { result.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: as above.
        *result = unsafe { offer(version, node, service, flags, hints) }?;
        Ok(())
    })
}

/// Opens a fabric (`fi_fabric`).
///
/// # Returns
/// 0 with the fabric in `result`; `-FI_EINVAL` without `result`.
///
/// # Safety
/// The attributes are null or valid, and `result` is null or valid for a write.
unsafe extern "C" fn fabric(
    attributes: *mut fi_fabric_attr,
    result: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: by the caller's contract.
        let version = unsafe { attributes.as_ref() }.map_or(0, |attributes| attributes.api_version);
        // SAFETY: as above.
        unsafe { Fabric::new(version, &open::FABRIC, context).give_to(result) }
    })
}
