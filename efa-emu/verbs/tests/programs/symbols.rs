//! The shared libraries carry the names and versions that stock programs are linked to.

use std::ffi::{CString, c_void};

use efa_testing::programs::exported::{EFADV, PRIVATE, PRIVATE_FLAG, PRIVATE_VERSIONS, VERBS};
use efa_testing::workspace::built;

struct Library(*mut c_void);

impl Library {
    fn open(name: &str) -> Library {
        let name = CString::new(name).unwrap();
        // SAFETY: the libraries of this test have no constructors that do anything.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "cannot load {name:?}");
        Library(handle)
    }

    fn symbol(&self, name: &str, version: Option<&str>) -> *mut c_void {
        let name = CString::new(name).unwrap();
        match version {
            // SAFETY: a handle of `dlopen` and C strings.
            None => unsafe { libc::dlsym(self.0, name.as_ptr()) },
            Some(version) => {
                let version = CString::new(version).unwrap();
                // SAFETY: as above.
                unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) }
            }
        }
    }

    fn check(&self, symbols: &[(&str, &str)]) {
        for (version, names) in symbols {
            for name in names.split_whitespace() {
                let versioned = self.symbol(name, Some(version));
                assert!(!versioned.is_null(), "{name}@{version} is missing");
                assert!(!self.symbol(name, None).is_null(), "{name} is missing");
            }
        }
    }
}

/// Loads both by path, then by SONAME, which finds the loaded library: programs that open the
/// libraries themselves get the preloaded ones in this way.
#[test]
fn names_versions_and_sonames() {
    let verbs = Library::open(built("libefa_emu_verbs.so").to_str().unwrap());
    let efadv = Library::open(built("libefa_emu_efadv.so").to_str().unwrap());
    verbs.check(VERBS);
    efadv.check(EFADV);
    for version in PRIVATE_VERSIONS {
        let names = format!("{PRIVATE} {PRIVATE_FLAG} verbs_register_driver_{version}");
        let version = format!("IBVERBS_PRIVATE_{version}");
        for name in names.split_whitespace() {
            let symbol = verbs.symbol(name, Some(&version));
            assert!(!symbol.is_null(), "{name}@{version} is missing");
        }
    }
    assert_eq!(Library::open("libibverbs.so.1").0, verbs.0);
    assert_eq!(Library::open("libefa.so.1").0, efadv.0);

    // If a name has two versions, programs that name none get the current one.
    let newest = verbs.symbol("ibv_open_device", None);
    assert_eq!(newest, verbs.symbol("ibv_open_device", Some("IBVERBS_1.1")));
    assert_ne!(newest, verbs.symbol("ibv_open_device", Some("IBVERBS_1.0")));
    assert!(
        verbs
            .symbol("ibv_open_device", Some("IBVERBS_1.5"))
            .is_null()
    );
}
