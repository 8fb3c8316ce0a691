//! Invariants of parsing arbitrary bytes, for property tests and the fuzzer.

use efa_wire::fields::{FieldKind, Value, fields_of};
use efa_wire::{Packet, ParseError, Reason, Repr};

/// Panics if `part` is not inside `whole`. Empty parts may be anywhere.
fn assert_inside<T>(part: &[T], whole: &[u8]) {
    let (part, whole_range) = (part.as_ptr_range(), whole.as_ptr_range());
    let inside = part.start.cast() >= whole_range.start && part.end.cast() <= whole_range.end;
    assert!(
        part.start == part.end || inside,
        "a slice leaves the packet"
    );
}

/// Parses a packet in both ways, and checks the invariants.
pub fn check(bytes: &[u8]) {
    check_agreement(bytes);
    let mut end = 0;
    if let Some(mut fields) = fields_of(bytes) {
        for field in fields.by_ref() {
            assert_eq!(field.offset, end, "fields leave no gap");
            assert_inside(field.bytes, bytes);
            end += field.bytes.len();
            let _ = field.to_string();
        }
        let cut = fields.missing().map_or(0, |missing| missing.available);
        assert_eq!(end + cut, bytes.len(), "nothing is left over");
        assert_eq!(fields.rest().len(), bytes.len() - end);
    }
    match Packet::parse(bytes) {
        Ok(packet) => {
            let missing = fields_of(bytes).and_then(|mut fields| {
                fields.by_ref().for_each(drop);
                fields.missing()
            });
            assert_eq!(missing, None, "the walk covers what the parser accepts");
            let payload = packet.payload.of(bytes);
            assert_eq!(packet.payload.offset + payload.len(), bytes.len());
            assert_eq!(packet.payload.length, payload.len());
            // Emitting and parsing again must give the same packet.
            let again = packet.header.to_packet(payload);
            let parsed = Packet::parse(&again).expect("what was emitted parses");
            assert_eq!(parsed.header, packet.header);
            assert_eq!(parsed.payload.of(&again), payload);
        }
        Err(error) => {
            assert!(error.offset <= bytes.len());
            assert!(!error.to_string().is_empty());
            if let Reason::Truncated { needed, available } = error.reason {
                assert_eq!(error.offset + available, bytes.len());
                assert!(needed > available);
            }
        }
    }
}

/// The values of a packet's fields according to the tables. Excluded are the flags, because
/// emitting adds those that stock libfabric sets by type, and capability words that the typed
/// parser drops.
fn values(packet: &[u8]) -> Vec<(String, Value<'_>)> {
    fields_of(packet)
        .expect("an assigned type")
        .filter(|field| !matches!(field.descriptor.kind, FieldKind::Flags | FieldKind::Padding))
        .filter(|field| field.descriptor.name != "extra_info" || field.index < Some(4))
        .map(|field| (field.name().to_string(), field.value))
        .collect()
}

/// Checks that the typed parser and the tables agree.
fn check_agreement(bytes: &[u8]) {
    match Packet::parse(bytes) {
        Ok(packet) => {
            let again = packet.header.to_packet(packet.payload.of(bytes));
            assert_eq!(values(&again), values(bytes), "{packet:?}");
            let data = fields_of(bytes).into_iter().flatten().find(|field| {
                matches!(field.descriptor.kind, FieldKind::Data | FieldKind::Unknown)
            });
            assert_eq!(
                packet.payload.of(bytes),
                data.map_or(&[][..], |field| field.bytes)
            );
            let has_data = data.is_some_and(|field| field.descriptor.kind == FieldKind::Data);
            assert!(!has_data || packet.base.packet_type.carries_data());
        }
        Err(error) => check_error(bytes, &error),
    }
}

/// Checks that an error names a field that the tables have at this offset.
fn check_error(bytes: &[u8], error: &ParseError) {
    let Some(mut walk) = fields_of(bytes) else {
        assert_eq!(error.field, "type");
        return;
    };
    let here = walk
        .by_ref()
        .find(|field| field.descriptor.name == error.field && field.offset == error.offset);
    if let Reason::Truncated { needed, available } = error.reason {
        walk.by_ref().for_each(drop);
        let missing = walk.missing().expect("a field is missing");
        assert_eq!(here, None);
        assert_eq!(
            (
                missing.descriptor.name,
                missing.offset,
                missing.needed,
                missing.available
            ),
            (error.field, error.offset, needed, available)
        );
    } else {
        assert!(here.is_some(), "{error}");
    }
}
