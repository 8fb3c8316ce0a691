//! Tags and contexts that distinguish messages of collective operations from the application's.

/// The bit of tags that collective operations have, and messages of the application do not.
pub(crate) const TAG: u64 = 1 << 63;

/// The upper 16 bits of contexts of their messages, which neither addresses of memory nor small
/// numbers have. The others are the operation's key.
pub(crate) const CONTEXT: u64 = 0xefa0 << 48;

/// The context bit of probes that check whether a member still exists. Only their failures are
/// reported.
pub(crate) const QUESTION: u64 = 1 << 47;

/// The context of messages whose end affects no operation.
pub(crate) const NOTICE: u64 = CONTEXT | (QUESTION - 1);

/// The number of an operation within its group: the lower bits of tags.
pub(crate) const NUMBER: u64 = (1 << 24) - 1;

/// The tag of an operation: the bit of collective operations, 39 bits of the group, and 24 bits of
/// the operation's number.
pub(crate) fn tag(group: u64, number: u64) -> u64 {
    TAG | (group << 24 & !TAG) | (number % NUMBER)
}

/// The tag of the messages of a group that belong to no operation: no operation has the number.
pub(crate) fn notice_tag(tag: u64) -> u64 {
    tag | NUMBER
}

/// Returns whether this is the context of a message of a collective operation.
#[inline]
pub(crate) fn is_own(context: u64) -> bool {
    context >> 48 == CONTEXT >> 48
}
