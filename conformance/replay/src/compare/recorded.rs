//! Recorded packets.

use efa_core::rules::Severity;
use efa_core::wire::fields::Field;
use efa_play::operation::EndpointIndex;

use super::finding::Finding;
use super::policy;

/// The index of an operation among the operations of a trace.
pub(crate) type OperationIndex = usize;

/// A recorded packet with its sender, receiver and operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded<'a> {
    /// Its number in the trace.
    pub(crate) number: u64,
    pub(crate) sender: EndpointIndex,
    pub(crate) receiver: EndpointIndex,
    pub(crate) operation: Option<OperationIndex>,
    pub(crate) bytes: &'a [u8],
}

impl Recorded<'_> {
    /// A finding about a field of this packet.
    pub(crate) fn finding(&self, severity: Severity, field: &Field<'_>, text: String) -> Finding {
        Finding {
            severity,
            rule: Some(policy::broken_by(field.packet_type, field.descriptor, 0)),
            packet: Some(self.number),
            packet_type: field.packet_type.to_string(),
            field: field.name().to_string(),
            source: Some(field.descriptor.source),
            text,
        }
    }
}

/// The values of a recorded and an actual field, as numbers.
pub(super) fn numbers(expected: &Field<'_>, found: &Field<'_>) -> (u64, u64) {
    let number = |field: &Field<'_>| field.value.as_u64().unwrap_or(0);
    (number(expected), number(found))
}
