//! Files that processes map, which begin with a magic number and the version of their layout.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::opening;
use super::shared::{self, SharedMemory};
use crate::error::FabricError;
use std::sync::atomic::Ordering;

pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_VERSION: usize = 8;

/// The layout of a file.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) magic: u64,
    pub(crate) version: u32,
    /// What is wrong with a file that has another magic number.
    pub(crate) foreign: &'static str,
}

impl Layout {
    /// Creates a file of `length` bytes, and maps the first `mapped` of them, for which there is
    /// memory. [`Layout::complete`] makes it valid.
    pub(crate) fn create(
        &self,
        options: &OpenOptions,
        path: &Path,
        length: usize,
        mapped: usize,
    ) -> Result<(File, SharedMemory), FabricError> {
        let file = options
            .open(path)
            .map_err(FabricError::io("create", path))?;
        shared::resize(&file, length).map_err(FabricError::io("resize", path))?;
        shared::reserve(&file, 0, mapped).map_err(FabricError::io("reserve memory for", path))?;
        let memory = SharedMemory::map(&file, 0, mapped).map_err(FabricError::io("map", path))?;
        let version = memory.u32_at::<AT_VERSION>();
        version.store(self.version, Ordering::Relaxed);
        Ok((file, memory))
    }

    /// Makes a file valid, all of whose other content is written.
    pub(crate) fn complete(&self, memory: &SharedMemory) {
        let magic = memory.u64_at::<AT_MAGIC>();
        magic.store(self.magic, Ordering::Release);
    }

    /// Maps the first `mapped` bytes of a file of at least `length` bytes; `None` if there is none
    /// at `path`.
    pub(crate) fn open(
        &self,
        path: &Path,
        length: usize,
        mapped: usize,
    ) -> Result<Option<(File, SharedMemory)>, FabricError> {
        let found = opening::existing(path).map_err(FabricError::io("open", path))?;
        let Some(file) = found else {
            return Ok(None);
        };
        let memory = map(&file, path, length, mapped)?;
        let magic = memory.u64_at::<AT_MAGIC>().load(Ordering::Acquire);
        if magic != self.magic {
            return Err(damaged(path, self.foreign));
        }
        let version = memory.u32_at::<AT_VERSION>().load(Ordering::Relaxed);
        if version != self.version {
            return Err(FabricError::UnknownLayout {
                path: path.to_owned(),
                found: version.to_string(),
                expected: self.version.to_string(),
            });
        }
        Ok(Some((file, memory)))
    }
}

/// Maps the first `mapped` bytes of a file that must have `length` bytes.
pub(crate) fn map(
    file: &File,
    path: &Path,
    length: usize,
    mapped: usize,
) -> Result<SharedMemory, FabricError> {
    let metadata = file.metadata().map_err(FabricError::io("stat", path))?;
    if metadata.len() < length as u64 {
        return Err(damaged(path, "it is too short"));
    }
    SharedMemory::map(file, 0, mapped).map_err(FabricError::io("map", path))
}

/// The error about a file whose content is wrong.
pub(crate) fn damaged(path: &Path, what: &'static str) -> FabricError {
    FabricError::Damaged {
        path: path.to_owned(),
        what,
    }
}
