//! Finds the files that belong to this program: the emulated libraries, the corpus of traces, the
//! dissector, the recipes for other software.
//!
//! | the program is | the libraries are in | the data is in | the documentation is in |
//! |---|---|---|---|
//! | installed below any directory PREFIX, as `PREFIX/bin/efa-emu` | `PREFIX/lib/efa-rdm` | `PREFIX/share/efa-rdm` | `PREFIX/share/doc/efa-rdm` |
//! | built in a clone, anywhere below it | beside the program | the clone | the clone |
//! | built by `cargo install --path` | `target/release` of the clone that it was built from | that clone | that clone |
//!
//! The documentation is `README.md` and the directory `docs`. Installed data has the same names as
//! in the clone, such as `wireshark/efa.lua`. Nothing is configured, and an installation can be
//! moved as a whole.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use efa_capture::frame;
use efa_shm::version;

/// The name of the directories below `lib` and `share`.
const NAME: &str = "efa-rdm";

/// A file that identifies the data's directory.
const LANDMARK: &str = "wireshark/efa.lua";

/// The location of the running program's files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Installation {
    /// The directory of the executable, without symbolic links.
    beside: PathBuf,
    place: LibraryPlace,
}

/// How the program was installed.
#[derive(Clone, PartialEq, Eq, Debug)]
enum LibraryPlace {
    /// Below this directory, in the layout of a package.
    Installed(PathBuf),
    /// Built from this clone, and perhaps copied away from it.
    Clone(PathBuf),
    /// Copied by hand, without any other file.
    Alone,
}

/// A file that belongs to the program is missing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "cannot find {name}: neither {} nor a clone of the repository has it: install the whole package \
     (docs/install.md), or run the program where it was built", .installed.display()
)]
pub struct MissingData {
    /// Its name in the repository.
    name: String,
    /// The directory in which it would be installed.
    installed: PathBuf,
}

impl Installation {
    /// The installation that the running program belongs to.
    ///
    /// # Errors
    /// The program's own path is unknown: the program was removed, or `/proc` is missing.
    pub fn of_this_program() -> io::Result<Installation> {
        let executable = std::env::current_exe().and_then(std::fs::canonicalize)?;
        Ok(Installation::of(&executable, version::CLONE.map(Path::new)))
    }

    /// The installation of an executable that was built in the clone `built_in`. `executable` is
    /// its path without symbolic links.
    fn of(executable: &Path, built_in: Option<&Path>) -> Installation {
        let beside = executable.parent().unwrap_or(Path::new("/")).to_owned();
        let prefix = beside.parent().unwrap_or(Path::new("/"));
        let has_data = |directory: &Path| directory.join(LANDMARK).is_file();
        let place = if has_data(&prefix.join("share").join(NAME)) {
            LibraryPlace::Installed(prefix.to_owned())
        } else if let Some(clone) = beside
            .ancestors()
            .chain(built_in)
            .find(|directory| has_data(directory))
        {
            LibraryPlace::Clone(clone.to_owned())
        } else {
            LibraryPlace::Alone
        };
        Installation { beside, place }
    }

    /// The directories that may hold the pair of emulated libraries, in the order of preference.
    pub fn libraries(&self) -> Vec<PathBuf> {
        let beside = self.beside.clone();
        match &self.place {
            LibraryPlace::Installed(prefix) => vec![prefix.join("lib").join(NAME), beside],
            // Libraries of another profile belong to another build.
            LibraryPlace::Clone(clone) if beside.starts_with(clone) => vec![beside],
            LibraryPlace::Clone(clone) => vec![beside, clone.join("target/release")],
            LibraryPlace::Alone => vec![beside],
        }
    }

    /// The directory of libfabric's provider `name`, if it is a plug-in that belongs to this
    /// program.
    pub fn provider_directory(&self, name: &str) -> Option<PathBuf> {
        let file = plug_in(name);
        self.libraries()
            .into_iter()
            .find(|directory| directory.join(&file).is_file())
    }

    /// The directory of the data, whose files have the same names as in the repository.
    pub fn data(&self) -> Option<PathBuf> {
        match &self.place {
            LibraryPlace::Installed(prefix) => Some(prefix.join("share").join(NAME)),
            LibraryPlace::Clone(clone) => Some(clone.clone()),
            LibraryPlace::Alone => None,
        }
    }

    /// The file or directory of the data that has the name `name` in the repository.
    ///
    /// # Errors
    /// It does not exist.
    pub fn file(&self, name: &str) -> Result<PathBuf, MissingData> {
        let found = self.data().map(|data| data.join(name));
        found
            .filter(|path| path.exists())
            .ok_or_else(|| MissingData {
                name: name.to_owned(),
                installed: self.beside.join("../share").join(NAME),
            })
    }

    /// The directory of `README.md` and `docs`.
    pub fn documentation(&self) -> Option<PathBuf> {
        match &self.place {
            LibraryPlace::Installed(prefix) => Some(prefix.join("share/doc").join(NAME)),
            LibraryPlace::Clone(clone) => Some(clone.clone()),
            LibraryPlace::Alone => None,
        }
    }

    /// A directory in which fetched or recorded files may stay: `target` of a clone, or else one in
    /// the user's cache, by the XDG base directory specification.
    pub fn work(&self) -> PathBuf {
        if let LibraryPlace::Clone(clone) = &self.place {
            return clone.join("target");
        }
        let [cache, home] =
            ["XDG_CACHE_HOME", "HOME"].map(|name| std::env::var_os(name).map(PathBuf::from));
        cache
            .filter(|path| path.is_absolute())
            .or_else(|| home.map(|home| home.join(".cache")))
            .unwrap_or_else(std::env::temp_dir)
            .join(NAME)
    }
}

/// The file name of libfabric's provider `name` as a plug-in. libfabric only opens files with this
/// ending.
pub fn plug_in(name: &str) -> String {
    format!("lib{name}-fi.so")
}

/// The text of `--version`: the build, the versions of the formats that programs must agree on (of
/// the protocol, of captures, and of the memory that the processes of a fabric share), and the
/// directories of the files.
pub fn version_text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = format!(
            "{}\nEFA RDM protocol {}, transport header {}, fabric layout {}",
            version::build(),
            efa_wire::PROTOCOL_VERSION,
            frame::header::VERSION,
            efa_shm::LAYOUT,
        );
        let own = Installation::of_this_program().ok();
        let places = [
            ("data", own.as_ref().and_then(Installation::data)),
            (
                "documentation",
                own.as_ref().and_then(Installation::documentation),
            ),
        ];
        for (what, path) in places {
            if let Some(path) = path {
                text.push_str(&format!("\n{what}: {}", path.display()));
            }
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_names_formats_and_paths() {
        let text = version_text();
        assert!(text.starts_with(version::PACKAGE), "{text}");
        assert!(text.contains("\nEFA RDM protocol 4, transport header 1, fabric layout "));
        // Tests are built in a clone.
        let clone = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let data = format!("\ndata: {}\n", clone.display());
        assert!(text.contains(&data), "{text}");
    }

    fn with_data(directory: &Path) {
        let file = directory.join(LANDMARK);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }

    #[test]
    fn an_installed_program_uses_its_own_files() {
        let root = tempfile::tempdir().unwrap();
        let (prefix, clone) = (root.path().join("usr"), root.path().join("clone"));
        with_data(&prefix.join("share/efa-rdm"));
        with_data(&clone);
        let found = Installation::of(&prefix.join("bin/efa-emu"), Some(&clone));
        assert_eq!(found.libraries()[0], prefix.join("lib/efa-rdm"));
        assert_eq!(found.provider_directory("efa_rs"), None);
        let libraries = prefix.join("lib/efa-rdm");
        std::fs::create_dir_all(&libraries).unwrap();
        std::fs::write(libraries.join("libefa_rs-fi.so"), "").unwrap();
        assert_eq!(found.provider_directory("efa_rs"), Some(libraries));
        assert_eq!(
            found.file("wireshark").unwrap(),
            prefix.join("share/efa-rdm/wireshark")
        );
        let documentation = found.documentation();
        assert_eq!(documentation.unwrap(), prefix.join("share/doc/efa-rdm"));
        assert!(!found.work().starts_with(root.path()));
    }

    /// In any directory where cargo puts the executable: below a target triple, or with test
    /// programs.
    #[test]
    fn a_built_program_uses_its_clone() {
        let root = tempfile::tempdir().unwrap();
        with_data(root.path());
        for executable in [
            "target/release/efa-emu",
            "target/x86_64-unknown-linux-gnu/debug/deps/efa_emu-1",
        ] {
            let executable = root.path().join(executable);
            let found = Installation::of(&executable, None);
            assert_eq!(found.data().unwrap(), root.path(), "{executable:?}");
            let beside = executable.parent().unwrap().to_owned();
            assert_eq!(found.libraries(), [beside], "not those of another profile");
            assert_eq!(found.work(), root.path().join("target"));
        }
    }

    #[test]
    fn a_cargo_installed_program_uses_its_clone() {
        let root = tempfile::tempdir().unwrap();
        let (home, clone) = (root.path().join("home"), root.path().join("clone"));
        with_data(&clone);
        let executable = home.join(".cargo/bin/efa-emu");
        let found = Installation::of(&executable, Some(&clone));
        assert_eq!(found.libraries()[1], clone.join("target/release"));
        assert_eq!(found.file("wireshark").unwrap(), clone.join("wireshark"));

        std::fs::remove_dir_all(&clone).unwrap();
        let found = Installation::of(&executable, Some(&clone));
        assert_eq!(found.place, LibraryPlace::Alone);
        let missing = found.file("traces").unwrap_err().to_string();
        assert!(missing.contains("cannot find traces"), "{missing}");
        assert!(missing.contains("share/efa-rdm"), "{missing}");
    }
}
