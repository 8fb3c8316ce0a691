//! The provider's variables, as libfabric lists them (`fi_getparams`, `fi_info -e`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::common::c::*;
use crate::common::{Libfabric, with_provider_in};

type GetParameters = unsafe extern "C" fn(*mut *mut fi_param, *mut c_int) -> c_int;
type FreeParameters = unsafe extern "C" fn(*mut fi_param);

/// All parameters that this provider has listed: name, text, and value if it is set.
fn parameters(libfabric: &Libfabric) -> Vec<(String, String, Option<String>)> {
    // Providers are loaded with the first call.
    let info = libfabric.info(|_| {}).expect("there is a device");
    // SAFETY: the library is loaded, these are the types of its functions, and the list is valid
    // until it is freed.
    unsafe {
        (libfabric.freeinfo)(info);
        let library = libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW);
        let find = |name: &CStr| libc::dlsym(library, name.as_ptr());
        let get = std::mem::transmute::<*mut c_void, GetParameters>(find(c"fi_getparams"));
        let free = std::mem::transmute::<*mut c_void, FreeParameters>(find(c"fi_freeparams"));
        let (mut first, mut count) = (null_mut(), 0);
        assert_eq!(get(&mut first, &mut count), 0);
        let text = |text: *const c_char| {
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        let all = std::slice::from_raw_parts(first, count as usize).iter();
        let all = all.filter_map(|parameter| {
            let help = text(parameter.help_string)?;
            let is_ours = help.contains("efa_rs: ");
            is_ours.then(|| {
                (
                    text(parameter.name).unwrap_or_default(),
                    help,
                    text(parameter.value),
                )
            })
        });
        let all = all.collect();
        free(first);
        all
    }
}

#[test]
fn variables_are_listed_with_defaults_and_values() {
    with_provider_in(&[("FI_EFA_RUNT_SIZE", "1234")], |libfabric| {
        let found = parameters(libfabric);
        let mut names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
        names.sort_unstable();
        let expected = [
            "FI_EFA_ENABLE_SHM_TRANSFER",
            "FI_EFA_FORK_SAFE",
            "FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE",
            "FI_EFA_INTER_MIN_READ_MESSAGE_SIZE",
            "FI_EFA_INTER_MIN_READ_WRITE_SIZE",
            "FI_EFA_INTER_READ_SEGMENT_SIZE",
            "FI_EFA_RUNT_SIZE",
            "FI_EFA_TX_MIN_CREDITS",
            "FI_EFA_USE_DEVICE_RDMA",
            "FI_EFA_USE_ZCPY_RX",
        ];
        assert_eq!(names, expected);
        for (name, help, value) in &found {
            assert!(help.contains("(default: "), "{name}: {help}");
            let set = (name == "FI_EFA_RUNT_SIZE").then_some("1234");
            assert_eq!(value.as_deref(), set, "{name}");
        }
    });
}
