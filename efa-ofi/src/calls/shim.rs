//! The C functions of calls that transfer data.

/// Defines functions for libfabric's tables. The first argument of each is the endpoint. An
/// expression starts the operation and returns `Result<usize>`. The macro adds the common part of
/// the documentation.
macro_rules! transfer_calls {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident($endpoint:ident, $($argument:ident: $type:ty),* $(,)?) $start:block
    )*) => {$(
        $(#[$documentation])*
        ///
        /// # Returns
        /// 0 once the operation has been started; `-FI_EINVAL` for invalid arguments,
        /// `-FI_EBADFLAGS`, `-FI_EOPBADSTATE` before the endpoint is enabled, `-FI_EAGAIN` while
        /// resources are short, `-FI_EOPNOTSUPP` for operations that the endpoint does not support.
        ///
        /// # Safety
        /// The endpoint is null or a live object of libfabric's; so are descriptors, which belong
        /// to registrations. Structures and lists are null or valid with all structures that they
        /// point to, and lists have the number of elements in their count. Buffers are the
        /// application's until the operation has completed, or until this returns if its data is
        /// injected.
        unsafe extern "C" fn $name(
            endpoint: *mut $crate::ffi::fid_ep,
            $($argument: $type),*
        ) -> isize {
            $crate::ffi::result::ssize(|| {
                // SAFETY: by the caller's contract.
                let endpoint = unsafe { $crate::ffi::object::transfer_object(endpoint.cast()) };
                let $endpoint: &$crate::objects::endpoint::Endpoint = endpoint?;
                $start
            })
        }
    )*};
}

pub(crate) use transfer_calls;
