//! Blocks of pcapng and files of the classic format, byte by byte, as other tools write them.

/// The code of an Enhanced Packet Block.
pub const ENHANCED: u32 = 6;
/// The code of the obsolete Packet Block.
pub const OBSOLETE: u32 = 2;

/// A block of pcapng.
pub fn block(code: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let length = (body.len() as u32 + 12).to_le_bytes();
    [&code.to_le_bytes()[..], &length, &body, &length].concat()
}

/// The header of a section.
pub fn section() -> Vec<u8> {
    block(
        0x0a0d_0d0a,
        b"\x4d\x3c\x2b\x1a\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
    )
}

/// An option of a block.
pub fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [code.to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The description of an interface.
pub fn interface(linktype: u16, reserved: u16, options: &[u8]) -> Vec<u8> {
    let mut body = [linktype.to_le_bytes(), reserved.to_le_bytes()].concat();
    body.extend(0_u32.to_le_bytes());
    body.extend(options);
    block(1, &body)
}

/// A packet of interface `id` at a time in the interface's units.
pub fn packet(code: u32, id: u32, time: u64, bytes: &[u8], options: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    let words = [id, (time >> 32) as u32, time as u32, length, length];
    let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend(options);
    block(code, &body)
}

/// The header of a file in the classic format, in big-endian byte order.
pub fn classic_header(magic: u32, linktype: u32) -> Vec<u8> {
    let mut header = magic.to_be_bytes().to_vec();
    header.extend(b"\0\x02\0\x04\0\0\0\0\0\0\0\0");
    header.extend(
        [262_144, linktype]
            .iter()
            .flat_map(|word: &u32| word.to_be_bytes()),
    );
    header
}

/// A record of such a file. `rest` follows its header.
pub fn classic_record(seconds: u32, fraction: u32, rest: &[u8], bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    let words = [seconds, fraction, length, length];
    let mut record: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    record.extend(rest);
    record.extend(bytes);
    record
}

/// Bytes of the Ethernet header.
pub const ETHERNET: usize = 14;

/// An Ethernet frame as Linux' cooked captures have it; `kind` 4 is outbound, 0 inbound.
pub fn cooked(frame: &[u8], kind: u8) -> Vec<u8> {
    let header = [0, kind, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x86, 0xdd];
    [&header, &frame[ETHERNET..]].concat()
}

/// Likewise in the second version.
pub fn cooked_2(frame: &[u8], kind: u8) -> Vec<u8> {
    let header = [
        0x86, 0xdd, 0, 0, 0, 0, 0, 2, 0, 1, kind, 6, 2, 0, 0, 0, 0, 1, 0, 0,
    ];
    [&header, &frame[ETHERNET..]].concat()
}
