//! Reading and writing the structures of programs. Programs may have been built against older or
//! newer headers, and then have shorter or longer structures than this library.

use core::mem::MaybeUninit;
use core::ptr::copy_nonoverlapping;

use super::errno::Errno;

/// A C structure of numbers, all zero.
///
/// # Safety
/// Zero bytes must be a valid `T`.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: by contract.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Reads the first `size` bytes of a structure; the rest is zero.
///
/// # Safety
/// `from` is valid for reads of `size` bytes, at most the size of `T`; zero bytes and the bytes of
/// the program must be a valid `T`.
pub(crate) unsafe fn read_prefix<T: Copy>(from: *const T, size: usize) -> T {
    debug_assert!(size <= size_of::<T>());
    // SAFETY: by contract.
    let mut copy: T = unsafe { zeroed() };
    // SAFETY: readable by contract, and there is room.
    unsafe { copy_nonoverlapping(from.cast::<u8>(), (&raw mut copy).cast::<u8>(), size) };
    copy
}

/// Reads the fields of a structure before `$first`, the first field with a bit in `comp_mask`, and
/// of the other fields those whose bit is set. `EINVAL` for a null pointer.
///
/// # Safety
/// To be called in an unsafe function whose contract is that the pointer is null or valid for reads
/// up to the last field that `comp_mask` names.
macro_rules! read_masked {
    ($from:expr, $type:ty, $first:ident, { $($mask:ident: $field:ident),+ $(,)? }) => {{
        let from: *const $type = $from;
        if from.is_null() {
            Err(Errno::INVAL)
        } else {
            // SAFETY: every version has the fields before `$first`.
            let mut known = unsafe {
                $crate::ffi::structures::read_prefix(from, core::mem::offset_of!($type, $first))
            };
            $(
                if known.comp_mask & $mask != 0 {
                    // SAFETY: by contract.
                    known.$field = unsafe { (*from).$field };
                }
            )+
            Ok(known)
        }
    }};
}
pub(crate) use read_masked;

/// Reads a structure of `size` bytes. Fields that the program's version lacks are zero; bytes that
/// are unknown to this library must be zero. `EINVAL` for a null pointer, for less than `shortest`
/// bytes, or for unknown bytes that are not zero.
///
/// # Safety
/// `from` is null or valid for reads of `size` bytes, and zero bytes are a valid `T`.
pub(crate) unsafe fn read_sized<T: Copy>(
    from: *const T,
    size: u32,
    shortest: usize,
) -> Result<T, Errno> {
    // SAFETY: passed on.
    let value = unsafe { read_known(from, size, shortest) }?;
    let (known, size) = (size_of::<T>(), size as usize);
    // SAFETY: readable by contract.
    if (known..size).any(|offset| unsafe { from.cast::<u8>().add(offset).read() } != 0) {
        return Err(Errno::INVAL);
    }
    Ok(value)
}

/// As [`read_sized`], but ignores unknown bytes.
///
/// # Safety
/// `from` is null or valid for reads of `size` bytes, and zero bytes are a valid `T`.
pub(crate) unsafe fn read_known<T: Copy>(
    from: *const T,
    size: u32,
    shortest: usize,
) -> Result<T, Errno> {
    let size = size as usize;
    if from.is_null() || size < shortest {
        return Err(Errno::INVAL);
    }
    // SAFETY: by contract, `size` bytes are readable.
    Ok(unsafe { read_prefix(from, size.min(size_of::<T>())) })
}

/// Writes a value; `EINVAL` for a null pointer.
///
/// # Safety
/// `to` is null or valid for a write.
pub(crate) unsafe fn write<T>(to: *mut T, value: T) -> Result<(), Errno> {
    if to.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: by contract.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes the part of `value` that fits the program's structure of `size` bytes, and zeroes its
/// bytes beyond `value`. `EINVAL` for a null pointer, or for less than `shortest` bytes.
///
/// # Safety
/// `to` is null or valid for writes of `size` bytes.
pub(crate) unsafe fn write_sized<T: Copy>(
    to: *mut T,
    value: &T,
    size: usize,
    shortest: usize,
) -> Result<(), Errno> {
    if to.is_null() || size < shortest {
        return Err(Errno::INVAL);
    }
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are readable in `value` and writable at `to`; the rest up to `size` is
    // writable by contract.
    unsafe {
        copy_nonoverlapping((&raw const *value).cast::<u8>(), to.cast::<u8>(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::efadv_qp_init_attr;

    #[test]
    fn structures_of_other_ages_are_read() {
        #[repr(C)]
        struct NewerQpInitAttr {
            today: efadv_qp_init_attr,
            more: u64,
        }
        let mut structure = NewerQpInitAttr {
            today: efadv_qp_init_attr {
                flags: 3,
                wr_flags: 1,
                ..Default::default()
            },
            more: 0,
        };
        let pointer = (&raw const structure).cast::<efadv_qp_init_attr>();
        let read = |size| {
            // SAFETY: the structure has 32 bytes.
            unsafe { read_sized(pointer, size, 9) }.map(|value| (value.flags, value.wr_flags))
        };
        assert_eq!(read(16), Ok((3, 0)));
        assert_eq!(read(24), Ok((3, 1)));
        assert_eq!(read(32), Ok((3, 1)));
        assert_eq!(read(8), Err(Errno::INVAL));
        structure.more = 1;
        let pointer = (&raw const structure).cast::<efadv_qp_init_attr>();
        // SAFETY: as above.
        let longer = unsafe { read_sized(pointer, 32, 9) };
        assert_eq!(longer.err(), Some(Errno::INVAL));
    }
}
