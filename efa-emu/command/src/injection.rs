//! Makes the program use the emulated libraries: `LD_PRELOAD` of a pair of libraries with the
//! SONAMEs `libibverbs.so.1` and `libefa.so.1`, and a directory in `LD_LIBRARY_PATH` in which they
//! have their other names. Then no library of rdma-core with the same purpose is loaded,
//! independent of the release of the program's other libraries.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use efa_commands::installation::{Installation, plug_in};
use efa_commands::{Failure, directory_of};

/// The directory of the libraries, in place of the usual ones.
const ENV_LIBRARIES: &str = "EFA_EMU_LIB";

const LD_PRELOAD: &str = "LD_PRELOAD";

/// AddressSanitizer's variable for options, and the option that permits it not to be the first
/// library of the program. AddressSanitizer only needs to precede the C library, which it does: the
/// program names it. The emulated libraries define no function that it intercepts.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
const ANY_LINK_ORDER: &str = "verify_asan_link_order=0";

const LD_LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// libfabric's variables for the names of the permitted providers, and the directories of plug-ins.
const FI_PROVIDER: &str = "FI_PROVIDER";
const FI_PROVIDER_PATH: &str = "FI_PROVIDER_PATH";

/// File name of the library with the SONAME `libibverbs.so.1`.
pub(super) const VERBS: &str = "libefa_emu_verbs.so";

/// File name of the library with the SONAME `libefa.so.1`. It depends on the other one.
pub(super) const EFADV: &str = "libefa_emu_efadv.so";

/// The names by which programs open the libraries, and the library for each.
const LINKS: [(&str, &str); 4] = [
    ("libibverbs.so", VERBS),
    ("libibverbs.so.1", VERBS),
    ("libefa.so", EFADV),
    ("libefa.so.1", EFADV),
];

/// The libraries to preload.
pub(super) struct Libraries {
    verbs: PathBuf,
    efadv: PathBuf,
}

impl Libraries {
    /// Finds the libraries in the directory of [`ENV_LIBRARIES`], else in the executable or in the
    /// installation.
    pub(super) fn find() -> Result<Libraries, Failure> {
        let directories = match env::var_os(ENV_LIBRARIES) {
            Some(directory) => vec![PathBuf::from(directory)],
            None => usual_directories()?,
        };
        let remedies = "install the whole package (docs/install.md), build them with `cargo build --workspace`, install \
                        with `cargo install --path efa-emu/command --features bundled`";
        let found = directory_of(&[VERBS, EFADV], &directories, remedies, ENV_LIBRARIES)?;
        Ok(Libraries {
            verbs: found.join(VERBS),
            efadv: found.join(EFADV),
        })
    }

    /// `LD_LIBRARY_PATH` for the program: first `directory`, in which links are created. The
    /// dynamic linker identifies a preloaded library only by its SONAME, so a program that opens
    /// `libibverbs.so`, the name in the development package, would otherwise get the system's
    /// library.
    pub(super) fn search_path(
        &self,
        directory: &Path,
    ) -> Result<(&'static str, OsString), Failure> {
        for (link, library) in LINKS {
            let target = match library {
                VERBS => &self.verbs,
                _ => &self.efadv,
            };
            symlink(target, directory.join(link))?;
        }
        let mut path = directory.as_os_str().to_owned();
        if let Some(inherited) = env::var_os(LD_LIBRARY_PATH).filter(|path| !path.is_empty()) {
            path.push(":");
            path.push(inherited);
        }
        Ok((LD_LIBRARY_PATH, path))
    }

    /// `LD_PRELOAD` for the program. The user's libraries remain, and precede the emulated ones,
    /// because some of them (sanitizers) require it.
    pub(super) fn preload(&self) -> (&'static str, OsString) {
        let inherited = env::var_os(LD_PRELOAD).unwrap_or_default();
        (LD_PRELOAD, self.join(&inherited))
    }

    /// The options of AddressSanitizer for programs that use it. The user's options follow and take
    /// precedence.
    pub(super) fn sanitizer_options() -> (&'static str, OsString) {
        let mut options = OsString::from(ANY_LINK_ORDER);
        if let Some(inherited) = env::var_os(ASAN_OPTIONS).filter(|options| !options.is_empty()) {
            options.push(":");
            options.push(inherited);
        }
        (ASAN_OPTIONS, options)
    }

    fn join(&self, inherited: &OsStr) -> OsString {
        let ours = [&self.verbs, &self.efadv];
        let kept = inherited
            .as_bytes()
            .split(|byte| b" :".contains(byte))
            .map(OsStr::from_bytes)
            .filter(|entry| !entry.is_empty() && !ours.iter().any(|our| our.as_os_str() == *entry));
        let entries: Vec<_> = kept.chain(ours.iter().map(|our| our.as_os_str())).collect();
        entries.join(OsStr::new(":"))
    }
}

/// A libfabric provider that is a plug-in, and that programs have to use.
pub(super) struct Provider {
    name: String,
    directory: PathBuf,
}

impl Provider {
    /// Finds the provider `name` in the directory of [`ENV_LIBRARIES`], else in the installation.
    pub(super) fn find(name: String) -> Result<Provider, Failure> {
        let directories = match env::var_os(ENV_LIBRARIES) {
            Some(directory) => vec![PathBuf::from(directory)],
            None => installed_directories()?,
        };
        let remedies = format!(
            "build it with `cargo build --workspace`, or install the whole package (docs/install.md); \
             `--provider` names a plug-in that belongs to efa-emu, FI_PROVIDER={name} another provider"
        );
        let file = plug_in(&name);
        let directory = directory_of(&[&file], &directories, &remedies, ENV_LIBRARIES)?;
        Ok(Provider { name, directory })
    }

    /// The provider's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The variables that make libfabric find the provider, and use no other.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 2] {
        let mut path = self.directory.clone().into_os_string();
        if let Some(inherited) = env::var_os(FI_PROVIDER_PATH).filter(|path| !path.is_empty()) {
            path.push(":");
            path.push(inherited);
        }
        [
            (FI_PROVIDER, OsString::from(&self.name)),
            (FI_PROVIDER_PATH, path),
        ]
    }
}

/// The directory of the libraries that are bundled in this executable.
#[cfg(feature = "bundled")]
fn usual_directories() -> Result<Vec<PathBuf>, Failure> {
    let parent = efa_commands::user_directory_below(&efa_commands::temporary_directory())?;
    let unpacked = super::bundle::unpack_below(&parent).map_err(|error| {
        Failure(format!(
            "cannot write the libraries below {}: {error}: set TMPDIR to a directory that you can \
             write to",
            parent.display()
        ))
    })?;
    Ok(vec![unpacked])
}

/// The directory of the libraries in the installation.
#[cfg(not(feature = "bundled"))]
fn usual_directories() -> Result<Vec<PathBuf>, Failure> {
    installed_directories()
}

fn installed_directories() -> Result<Vec<PathBuf>, Failure> {
    let installation = Installation::of_this_program().map_err(|error| {
        Failure(format!(
            "cannot find my own path ({error}): set {ENV_LIBRARIES} to the directory of {VERBS}"
        ))
    })?;
    Ok(installation.libraries())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_keeps_user_entries_and_adds_ours_once() {
        let libraries = Libraries {
            verbs: "/o/v.so".into(),
            efadv: "/o/e.so".into(),
        };
        let ours = "/o/v.so:/o/e.so";
        assert_eq!(libraries.join(OsStr::new("")), ours);
        assert_eq!(
            libraries.join(OsStr::new("/a.so  b.so:/o/v.so")),
            OsStr::new(&format!("/a.so:b.so:{ours}"))
        );
        assert_eq!(libraries.join(OsStr::new(ours)), ours);
        let foreign = b"/caf\xe9/a.so".as_slice();
        let all = [foreign, b":", ours.as_bytes()].concat();
        assert_eq!(
            libraries.join(OsStr::from_bytes(foreign)),
            OsStr::from_bytes(&all)
        );
    }
}
