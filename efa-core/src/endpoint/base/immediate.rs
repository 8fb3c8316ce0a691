//! Remote completion data as immediate data of the device.
//!
//! The specification does not state its byte order. Stock libfabric passes the number to verbs in
//! the little-endian order of its hosts, although verbs expects network order. The device therefore
//! transfers the number with its bytes reversed.

/// The immediate data that carries `data`.
pub(crate) fn of_cq_data(data: u32) -> u32 {
    data.swap_bytes()
}

/// The completion data that a peer's immediate data carries.
pub(crate) fn to_cq_data(immediate: u32) -> u64 {
    immediate.swap_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observed in traffic of libfabric 2.1 and 2.5: 0x12345678 is 0x78563412 on the wire.
    #[test]
    fn bytes_are_ordered_as_in_libfabric() {
        assert_eq!(of_cq_data(0x1234_5678), 0x7856_3412);
        assert_eq!(to_cq_data(0x7856_3412), 0x1234_5678);
    }
}
