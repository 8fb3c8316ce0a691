//! Stands in for `efa-shm` as the table of queue pair numbers sees it.

#[path = "../../efa-emu/shm/src/device_name.rs"]
#[allow(dead_code, unreachable_pub, reason = "the models use a part")]
pub(crate) mod device_name;
pub mod numbers;
#[path = "../../efa-emu/shm/src/opening.rs"]
pub(crate) mod opening;
#[path = "../../efa-emu/shm/src/qpn.rs"]
pub(crate) mod qpn;

pub(crate) mod error {
    use std::io;
    use std::path::{Path, PathBuf};

    /// What the table reports.
    #[derive(Debug)]
    pub(crate) enum FabricError {
        Damaged {
            path: PathBuf,
            what: &'static str,
        },
        Io(io::Error),
        QpnsExhausted {
            limit: u32,
        },
        UnknownLayout {
            path: PathBuf,
            found: String,
            expected: String,
        },
    }

    impl FabricError {
        pub(crate) fn io(_: &'static str, _: &Path) -> impl FnOnce(io::Error) -> FabricError {
            FabricError::Io
        }
    }
}

pub(crate) mod shared {
    use std::fs::File;
    use std::io;

    use loom::sync::atomic::{AtomicU32, AtomicU64};

    /// As long as the head of a table.
    pub(crate) const PAGE: usize = 128;

    /// A table's memory. Words of 32 bits are in the head, words of 64 bits behind it; but for the
    /// first.
    #[derive(Debug)]
    pub(crate) struct SharedMemory {
        magic: AtomicU64,
        head: Vec<AtomicU32>,
        slots: Vec<AtomicU64>,
    }

    impl SharedMemory {
        pub(crate) fn map(_: &File, _: usize, length: usize) -> io::Result<SharedMemory> {
            Ok(SharedMemory {
                magic: AtomicU64::new(0),
                head: (0..PAGE / 4).map(|_| AtomicU32::new(0)).collect(),
                slots: (PAGE..length)
                    .step_by(8)
                    .map(|_| AtomicU64::new(0))
                    .collect(),
            })
        }

        pub(crate) fn u32_at<const OFFSET: usize>(&self) -> &AtomicU32 {
            &self.head[OFFSET / 4]
        }

        pub(crate) fn u64_at<const OFFSET: usize>(&self) -> &AtomicU64 {
            assert_eq!(OFFSET, 0);
            &self.magic
        }

        pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
            &self.slots[(offset - PAGE) / 8]
        }

        /// The name and the GID, at which no model looks.
        pub(crate) fn write(&self, _: usize, _: &[u8]) {}

        pub(crate) fn read(&self, _: usize, _: &mut [u8]) {}
    }

    pub(crate) fn resize(_: &File, _: usize) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn reserve(_: &File, _: usize, _: usize) -> io::Result<()> {
        Ok(())
    }
}
