//! Messages of a hostile machine, for the fuzzer.

use efa_core::address::Gid;

use super::message;
use crate::engine::fuzzing::{RecordFields, record};
use efa_device_model::link::RequestHeader;

/// A request like that of an honest bridge, except for `damage`: a word of the record's header and
/// a change to it.
pub fn request(
    name: u64,
    gids: [Gid; 2],
    request: &RequestHeader,
    extra: RecordFields,
    data: &[u8],
    damage: Option<(usize, u64)>,
) -> Vec<u8> {
    let mut fields = record(request, extra, data.len()).fields();
    if let Some((word, change)) = damage {
        fields[word % fields.len()] ^= change;
    }
    let mut bytes = Vec::new();
    let fill = |into: &mut [u8]| into.copy_from_slice(data);
    message::append_request(&mut bytes, name, gids, &fields, data.len(), fill);
    bytes
}

/// Data for a read. `names` are the data's name and the read's.
pub fn read_data(names: [u64; 2], offset: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let fill = |into: &mut [u8]| into.copy_from_slice(data);
    message::append_read_data(&mut bytes, names, offset, data.len(), fill);
    bytes
}

/// An answer.
pub fn answer(name: u64, code: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    message::append_answer(&mut bytes, name, code);
    bytes
}

/// The outcome of a deferred request.
pub fn outcome(name: u64, code: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    message::append_outcome(&mut bytes, name, code);
    bytes
}
