//! The tables in the Wireshark dissector equal those of `efa_core::wire` and `efa_capture::frame`.
//!
//! `wireshark/efa.lua` is one file, so that copying one file installs it. Its part between two
//! marker lines is generated here: `EFA_UPDATE=1 cargo test -p efa-wireshark tables` rewrites it.

use std::collections::BTreeMap;
use std::fmt::Write;

use bitflags::Flags;
use efa_capture::frame::header::{self, Format, Presence as When, Sender};
use efa_capture::frame::{self, Opcode};
use efa_core::address::RawAddress;
use efa_core::endpoint::ProviderError;
use efa_core::nic::Status;
use efa_core::wire::fields::{
    Array, FieldDescriptor, FieldKind, Presence, Section, Width, fields_of, forms, sections,
};
use efa_core::wire::infiniband::{
    Aeth, Bth, HeaderFormat, PADDING, RcHeader, RcOpcode, Reth, Rvh, SEQUENCE_BITS, SHORTEST_MTU,
    Tmh,
};
use efa_core::wire::{
    AtomicDatatype, AtomicOp, CtsFlags, ExtraFeatures, ExtraInfo, Family, FlagSet, HandshakeFlags,
    Message, OpeType, PROTOCOL_VERSION, Packet, PacketType, PeerError, ReqFlags, RmaIovs, Transfer,
    UniversalFlags,
};
use efa_testing::workspace::{expect_file, expect_part};
use efa_wireshark::Tshark;

/// The arguments of `cargo test` that run these tests.
const TESTS: &str = "-p efa-wireshark tables";

/// `RemoteRnr` as `REMOTE_RNR`.
fn upper_snake(camel: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in camel.chars().enumerate() {
        if at > 0 && letter.is_uppercase() {
            snake.push('_');
        }
        snake.extend(letter.to_uppercase());
    }
    snake
}

fn array(array: Array) -> &'static str {
    match array {
        Array::RmaIov => "rma_iov",
        Array::ReadIov => "read_iov",
        Array::ExtraInfo => "extra_info",
    }
}

fn family(family: Family) -> &'static str {
    match family {
        Family::Control => "control",
        Family::Rtm => "rtm",
        Family::Rtw => "rtw",
        Family::Rtr => "rtr",
        Family::Rta => "rta",
        Family::Retired => "retired",
        Family::Local => "local",
    }
}

/// The type of `ProtoField` for fields of this kind, and its base or value strings.
fn proto_field(kind: FieldKind, width: usize) -> (String, &'static str) {
    let uint = format!("uint{}", 8 * width);
    match kind {
        FieldKind::Number | FieldKind::Count(_) | FieldKind::RawAddressSize => (uint, "base.DEC"),
        FieldKind::Bits | FieldKind::Flags => (uint, "base.HEX"),
        FieldKind::PacketType => (uint, "base.DEC, TYPES"),
        FieldKind::AtomicDatatype => (uint, "base.DEC, DATATYPES"),
        FieldKind::AtomicOp => (uint, "base.DEC, ATOMIC_OPS"),
        FieldKind::OpeType => (uint, "base.DEC, OPE_TYPES"),
        FieldKind::ProviderError => (uint, "base.DEC, PROVIDER_ERRORS"),
        FieldKind::Gid => ("ipv6".into(), ""),
        FieldKind::Padding | FieldKind::Data | FieldKind::Unknown => ("bytes".into(), ""),
    }
}

fn table<K: std::fmt::Display>(
    out: &mut String,
    name: &str,
    entries: impl IntoIterator<Item = (K, String)>,
) {
    writeln!(out, "local {name} = {{").unwrap();
    for (key, value) in entries {
        writeln!(out, "    [{key}] = \"{value}\",").unwrap();
    }
    out.push_str("}\n");
}

fn flags<F: Flags>(out: &mut String, name: &str)
where
    F::Bits: Into<u64> + Copy,
{
    let named = F::FLAGS.iter().filter(|flag| !flag.name().is_empty());
    let bits = named.map(|flag| {
        let value: u64 = flag.value().bits().into();
        (value.trailing_zeros(), flag.name().to_lowercase())
    });
    table(out, name, bits.collect::<BTreeMap<_, _>>());
}

fn field(field: &FieldDescriptor) -> String {
    let width = match field.width {
        Width::Fixed(width) => width.to_string(),
        Width::RawAddressSurplus => "\"surplus\"".into(),
        Width::Rest => "\"rest\"".into(),
    };
    let bit = |flag: u16| flag.trailing_zeros();
    let presence = match field.presence {
        Presence::Always => String::new(),
        Presence::IfFlag(flag) | Presence::IfFlagElseNext(flag) => {
            format!(", when = {}", bit(flag))
        }
        Presence::UnlessFlag(flag) => format!(", unless = {}", bit(flag)),
        Presence::UnlessFlagIfRoom(flag) => format!(", unless = {}, if_room = true", bit(flag)),
        // A type has its own list of sections.
        Presence::IfType(_) | Presence::UnlessType(_) => String::new(),
    };
    let kind = match field.kind {
        FieldKind::Count(counted) => format!(", counts = \"{}\"", array(counted)),
        _ => String::new(),
    };
    format!("{{ \"{}\", {width}{presence}{kind} }}", field.name)
}

/// Lines of Lua with the fields of a type, section by section. Sections that differ only in their
/// descriptions have one line.
fn section_lines(
    packet_type: PacketType,
    sections: &'static [&'static Section],
) -> impl Iterator<Item = String> {
    sections.iter().filter_map(move |section| {
        let of_type = section.fields.iter();
        let fields: Vec<_> = of_type
            .filter(|field| field.presence.is_of(packet_type))
            .map(field)
            .collect();
        let array = section
            .array
            .map(|counted| format!("array = \"{}\"", array(counted)));
        let parts: Vec<_> = array.into_iter().chain(fields).collect();
        (!parts.is_empty()).then(|| format!("    {{ {} }},\n", parts.join(", ")))
    })
}

/// The set of the opcodes for which a predicate holds.
fn opcodes(out: &mut String, name: &str, holds: impl Fn(Opcode) -> bool) {
    let codes: Vec<_> = Opcode::ALL
        .into_iter()
        .filter(|opcode| holds(*opcode))
        .map(|opcode| format!("[{}] = true", opcode as u8))
        .collect();
    writeln!(out, "local {name} = {{ {} }}", codes.join(", ")).unwrap();
}

/// The flags of the transport header, the tables of its fields, and the functions that read them.
fn transport_header(out: &mut String) {
    out.push_str("-- {bit, name, description}\nlocal HEADER_FLAGS = {\n");
    for (flag, meaning) in frame::Flags::MEANINGS {
        let bit = flag.bits().trailing_zeros();
        let names = flag.iter_names().map(|(name, _)| name.to_lowercase());
        let name = names.collect::<String>();
        writeln!(out, "    {{ {bit}, \"{name}\", \"{meaning}\" }},").unwrap();
    }
    out.push_str("}\n");
    out.push_str(
        "-- {name, kind of ProtoField, description, base and value strings; at = offset, bytes;\n",
    );
    out.push_str("-- flag = bit that it needs, opcode = the only one that it is for, hidden = without meaning}\n");
    for (name, fields) in [
        ("HEADER_FIELDS", header::FIELDS),
        ("RDMA_FIELDS", header::RDMA_FIELDS),
    ] {
        writeln!(out, "local {name} = {{").unwrap();
        for field in fields {
            let uint = format!("uint{}", 8 * field.size);
            let (kind, base) = match field.format {
                Format::Text => ("string".to_owned(), ""),
                Format::Decimal | Format::Reserved => (uint, ", base.DEC"),
                Format::Hexadecimal | Format::Flags => (uint, ", base.HEX"),
                Format::Opcode => (uint, ", base.DEC, OPCODES"),
                Format::Status => (uint, ", base.DEC, STATUSES"),
            };
            let when = match field.presence {
                When::Always => String::new(),
                When::IfFlag(flag) => format!(", flag = {}", flag.bits().trailing_zeros()),
                When::InOpcode(opcode) => format!(", opcode = {}", opcode as u8),
            };
            let hidden = match field.format {
                Format::Reserved => ", hidden = true",
                _ => "",
            };
            writeln!(
                out,
                "    {{ \"{}\", \"{kind}\", {:?}{base}, at = {}, bytes = {}{when}{hidden} }},",
                field.name, field.meaning, field.offset, field.size
            )
            .unwrap();
        }
        out.push_str("}\n");
    }
    for (function, fields) in [
        ("unpack_header", header::FIELDS),
        ("unpack_rdma_header", header::RDMA_FIELDS),
    ] {
        let names: Vec<_> = fields
            .iter()
            .map(|field| format!("h.{}", field.name.replace('.', "_")))
            .collect();
        let codes: String = fields
            .iter()
            .map(|field| match (field.format, field.size) {
                (Format::Text, size) => format!("c{size}"),
                (_, 1) => "B".to_owned(),
                (_, size) => format!("I{size}"),
            })
            .collect();
        writeln!(out, "local function {function}(h, raw)").unwrap();
        writeln!(out, "    {} =", names.join(", ")).unwrap();
        writeln!(
            out,
            "        Struct.unpack(\"<{codes}\", raw, {})\nend",
            fields[0].offset + 1
        )
        .unwrap();
    }
}

/// The opcodes of reliable connections and the headers of messages with tags. They are in one
/// table, because a function in Lua has at most 200 local variables.
fn tag_matching(out: &mut String) {
    out.push_str(
        "-- RC_OPCODES: {name, bytes of the headers; reth, aeth: where these are; begins, ends: a\n\
         -- message; whole: it is one; response; ends_read: the last data of a read}. MESSAGE_HEADERS: their\n\
         -- bytes, by the operation of those that have headers. BTH and so on: {name, kind of ProtoField,\n\
         -- description, base; at = offset, bytes}\n",
    );
    out.push_str("local TAG_MATCHING = {\n");
    let [read, acknowledge] =
        [RcOpcode::ReadRequest, RcOpcode::Acknowledge].map(|opcode| opcode as u8);
    for (name, value) in [
        ("ROCE_PORT", u32::from(frame::ROCE_PORT)),
        ("SEQUENCE_BITS", SEQUENCE_BITS),
        ("SHORTEST_MTU", SHORTEST_MTU),
        ("READ_REQUEST", read.into()),
        ("ACKNOWLEDGE", acknowledge.into()),
        ("NOT_READY", Aeth::NOT_READY.into()),
        ("ACCESS_REFUSED", Aeth::ACCESS_REFUSED.into()),
        ("PADDING_MASK", PADDING.0.into()),
        ("PADDING_SHIFT", PADDING.1),
        ("BTH_LENGTH", Bth::LENGTH as u32),
        ("TMH_LENGTH", Tmh::LENGTH as u32),
    ] {
        writeln!(out, "    {name} = {value},").unwrap();
    }
    out.push_str("    RC_OPCODES = {\n");
    for opcode in RcOpcode::ALL.iter().copied() {
        let (code, row) = (opcode as u8, rc_opcode(opcode));
        writeln!(out, "        [{code}] = {row},").unwrap();
    }
    out.push_str("    },\n    OPERATIONS = {\n");
    for (code, name) in Tmh::OPERATIONS.iter().enumerate() {
        writeln!(out, "        [{code}] = \"{name}\",").unwrap();
    }
    out.push_str("    },\n    MESSAGE_HEADERS = {\n");
    for operation in [Tmh::RENDEZVOUS, Tmh::FINISH, Tmh::EAGER] {
        let length = Tmh::headers_length(operation);
        writeln!(out, "        [{operation}] = {length},").unwrap();
    }
    out.push_str("    },\n");
    for format in [
        Bth::FORMAT,
        Reth::FORMAT,
        Aeth::FORMAT,
        Tmh::FORMAT,
        Rvh::FORMAT,
    ] {
        header_fields(out, format);
    }
    out.push_str("}\n");
}

fn rc_opcode(opcode: RcOpcode) -> String {
    let mut at = Bth::LENGTH;
    let mut more = String::new();
    for header in opcode.headers() {
        let name = match header {
            RcHeader::Reth => Some("reth"),
            RcHeader::Aeth => Some("aeth"),
            _ => None,
        };
        if let Some(name) = name {
            write!(more, ", {name} = {at}").unwrap();
        }
        at += header.format().length();
    }
    for (name, holds) in [
        ("begins", opcode.begins_message()),
        ("ends", opcode.ends_request()),
        ("whole", opcode.is_whole_message()),
        ("response", opcode.is_response()),
        ("ends_read", opcode.ends_read()),
    ] {
        if holds {
            write!(more, ", {name} = true").unwrap();
        }
    }
    format!("{{ \"{}\", {at}{more} }}", opcode.name())
}

fn header_fields(out: &mut String, format: HeaderFormat) {
    writeln!(out, "    {} = {{", format.name).unwrap();
    for field in format.fields {
        let base = match field.is_hexadecimal {
            true => "base.HEX",
            false => "base.DEC",
        };
        writeln!(
            out,
            "        {{ \"{}.{}\", \"uint{}\", {:?}, {base}, at = {}, bytes = {} }},",
            format.name.to_lowercase(),
            field.name,
            8 * field.width,
            field.meaning,
            field.offset,
            field.width
        )
        .unwrap();
    }
    out.push_str("    },\n");
}

fn generated() -> String {
    let mut out = String::new();

    writeln!(out, "local PROTOCOL_VERSION = {PROTOCOL_VERSION}").unwrap();
    writeln!(out, "local RAW_ADDRESS_LENGTH = {}", RawAddress::LEN).unwrap();
    out.push_str("-- The excess of a count over the number of entries, and the most entries that are accepted.\n");
    out.push_str("local ARRAYS = {\n");
    for (of, bias, most) in [
        (Array::RmaIov, 0, RmaIovs::MAX),
        (Array::ReadIov, 0, RmaIovs::MAX),
        (
            Array::ExtraInfo,
            ExtraInfo::default().nextra_p3(),
            ExtraInfo::MAX,
        ),
    ] {
        let name = array(of);
        writeln!(out, "    {name} = {{ bias = {bias}, most = {most} }},").unwrap();
    }
    out.push_str("}\n");
    writeln!(out, "local UDP_PORT = {}", frame::UDP_PORT).unwrap();
    writeln!(out, "local MAGIC = \"{}\"", header::MAGIC.escape_ascii()).unwrap();
    writeln!(out, "local HEADER_VERSION = {}", header::VERSION).unwrap();
    let first_tapped = header::FIRST_TAPPED_SEQUENCE;
    writeln!(out, "local FIRST_TAPPED = {first_tapped}").unwrap();
    writeln!(out, "local HEADER_LENGTH = {}", header::HEADER_LEN).unwrap();
    writeln!(
        out,
        "local RDMA_HEADER_LENGTH = {}",
        header::RDMA_HEADER_LEN
    )
    .unwrap();
    table(
        &mut out,
        "OPCODES",
        Opcode::ALL.map(|opcode| (opcode as u8, opcode.to_string())),
    );
    opcodes(&mut out, "HAS_RDMA", Opcode::has_rdma_extension);
    let is_answer = |opcode: Opcode| opcode.sender() == Sender::Responder;
    opcodes(&mut out, "IS_ANSWER", is_answer);
    let statuses = Status::ALL.map(|status| (status.code(), upper_snake(&format!("{status:?}"))));
    table(&mut out, "STATUSES", statuses);
    let statuses = Status::ALL.map(|status| (status.code(), status.describe().to_string()));
    table(&mut out, "STATUS_MEANINGS", statuses);
    transport_header(&mut out);

    let names = |name: fn(u32) -> Option<&'static str>| {
        (0..64).filter_map(move |code| Some((code, name(code)?.to_string())))
    };
    table(
        &mut out,
        "DATATYPES",
        names(|code| AtomicDatatype(code).name()),
    );
    table(&mut out, "ATOMIC_OPS", names(|code| AtomicOp(code).name()));
    table(&mut out, "OPE_TYPES", names(|code| OpeType(code).name()));
    writeln!(out, "local NO_OPERATION = {}", PeerError::NO_OP).unwrap();
    let errors = ProviderError::ALL.map(|error| (error.code(), upper_snake(&format!("{error:?}"))));
    table(&mut out, "PROVIDER_ERRORS", errors);
    let types = PacketType::ALL
        .iter()
        .map(|packet_type| (packet_type.code(), packet_type.name().to_string()));
    table(&mut out, "TYPES", types);
    flags::<ReqFlags>(&mut out, "REQ_FLAGS");
    flags::<CtsFlags>(&mut out, "CTS_FLAGS");
    flags::<HandshakeFlags>(&mut out, "HANDSHAKE_FLAGS");
    flags::<UniversalFlags>(&mut out, "UNIVERSAL_FLAGS");
    flags::<ExtraFeatures>(&mut out, "FEATURES");

    // Fields with one name may differ in width (recv_length): the declaration has the largest.
    let mut fields: BTreeMap<&str, (FieldKind, usize, String)> = BTreeMap::new();
    let mut distinct: Vec<String> = Vec::new();
    let all_forms = PacketType::ALL.iter().flat_map(|packet_type| {
        let others = forms(*packet_type).iter().map(|(_, sections)| *sections);
        std::iter::once(sections(*packet_type))
            .chain(others)
            .map(|sections| (*packet_type, sections))
    });
    for (packet_type, sections) in all_forms {
        for line in section_lines(packet_type, sections) {
            if !distinct.contains(&line) {
                distinct.push(line);
            }
        }
        for section in sections {
            for field in section.fields {
                let width = match field.width {
                    Width::Fixed(width) => width,
                    Width::RawAddressSurplus | Width::Rest => 0,
                };
                let text = format!("{} ({})", field.description, field.source);
                let entry = fields
                    .entry(field.name)
                    .or_insert((field.kind, width, text));
                entry.1 = entry.1.max(width);
            }
        }
    }
    out.push_str("-- {name, kind of ProtoField, base and value strings, description}\n");
    out.push_str("local FIELDS = {\n");
    for (name, (kind, width, text)) in fields {
        let (kind, base) = proto_field(kind, width);
        let base = if base.is_empty() {
            String::new()
        } else {
            format!(", {base}")
        };
        writeln!(out, "    {{ \"{name}\", \"{kind}\", \"{text}\"{base} }},").unwrap();
    }
    out.push_str("}\n");

    out.push_str("-- {name, bytes, when/unless = bit of the flags, counts = array}\n");
    out.push_str("local SECTIONS = {\n");
    out.extend(distinct.iter().map(String::as_str));
    out.push_str("}\n");

    out.push_str(
        "-- {flag_names: of its flags; length: of all packets; forms: that no release sends, by length; is_req, tagged, dc (delivery complete); segment: several make up one\n\
         -- message; read: the receiver reads by RDMA; windowed: the rest goes in windows that CTS grants;\n\
         -- message: the fields with its numbers; formless: must not be on the wire; unsent: no release sends or receives it; starts: what a request\n\
         -- begins; implies, excludes = bits of the flags that all and none have; needs = bits of the features of which the\n\
         -- receiver must have announced one; numbers of the sections}\n",
    );
    out.push_str("local PACKETS = {\n");
    for packet_type in PacketType::ALL {
        let numbers = |sections| {
            let numbers: Vec<_> = section_lines(*packet_type, sections)
                .map(|line| {
                    let index = distinct.iter().position(|other| *other == line);
                    (index.unwrap() + 1).to_string()
                })
                .collect();
            numbers.join(", ")
        };
        let flags = match packet_type.flag_set() {
            FlagSet::Universal => "UNIVERSAL_FLAGS",
            FlagSet::Req => "REQ_FLAGS",
            FlagSet::Cts => "CTS_FLAGS",
            FlagSet::Handshake => "HANDSHAKE_FLAGS",
        };
        let mut more = format!(", flag_names = {flags}");
        let transfer = packet_type.transfer();
        for (name, holds) in [
            ("is_req", packet_type.is_req()),
            ("tagged", packet_type.is_tagged()),
            ("dc", packet_type.is_delivery_complete()),
            ("segment", transfer.is_some_and(Transfer::is_segmented)),
            ("read", transfer.is_some_and(Transfer::is_read)),
            ("windowed", transfer == Some(Transfer::LongCts)),
            ("formless", !packet_type.has_format()),
            (
                "unsent",
                packet_type.has_format() && !packet_type.has_header(),
            ),
        ] {
            if holds {
                write!(more, ", {name} = true").unwrap();
            }
        }
        more.extend(message_fields(*packet_type));
        let others: Vec<_> = forms(*packet_type)
            .iter()
            .map(|(length, sections)| format!("[{length}] = {{ {} }}", numbers(sections)))
            .collect();
        if !others.is_empty() {
            let length = packet_type.header_len(0, 0);
            let others = others.join(", ");
            write!(more, ", length = {length}, forms = {{ {others} }}").unwrap();
        }
        if let Some(subprotocol) = packet_type.starts() {
            write!(more, ", starts = \"{subprotocol}\"").unwrap();
        }
        let implied: Vec<_> = packet_type
            .implied_flags()
            .iter()
            .map(|flag| flag.bits().trailing_zeros().to_string())
            .collect();
        if !implied.is_empty() {
            write!(more, ", implies = {{ {} }}", implied.join(", ")).unwrap();
        }
        let excluded: Vec<_> = packet_type
            .excluded_flags()
            .iter()
            .map(|flag| flag.bits().trailing_zeros().to_string())
            .collect();
        if !excluded.is_empty() {
            write!(more, ", excludes = {{ {} }}", excluded.join(", ")).unwrap();
        }
        let needs: Vec<_> = packet_type
            .needs_any_of()
            .iter()
            .map(|feature| feature.bits().trailing_zeros().to_string())
            .collect();
        if !needs.is_empty() {
            write!(more, ", needs = {{ {} }}", needs.join(", ")).unwrap();
        }
        writeln!(
            out,
            "    [{}] = {{ name = \"{}\", family = \"{}\"{more}, {} }},",
            packet_type.code(),
            packet_type.name(),
            family(packet_type.family()),
            numbers(sections(*packet_type))
        )
        .unwrap();
    }
    out.push_str("}\n");
    tag_matching(&mut out);
    out
}

/// The fields from which [`Message`] has its numbers, found in a packet whose fields all differ.
fn message_fields(packet_type: PacketType) -> Option<String> {
    const DATA: u64 = 7;
    let mut bytes = vec![0; packet_type.header_len(0, 0) + DATA as usize];
    bytes[..2].copy_from_slice(&[packet_type.code(), PROTOCOL_VERSION]);
    let mut names = BTreeMap::from([(DATA, "data_length")]);
    for (value, field) in (100_u64..).zip(fields_of(&bytes.clone())?) {
        if field.descriptor.kind == FieldKind::Number && field.offset > 1 {
            let range = field.range();
            bytes[range.clone()].copy_from_slice(&value.to_le_bytes()[..range.len()]);
            names.insert(value, field.descriptor.name);
        }
    }
    let packet = Packet::parse(&bytes).ok()?;
    let message = Message::of(&packet.header, DATA)?;
    let mut found = Vec::new();
    for (name, value) in [
        ("length", message.length),
        ("offset", message.offset),
        ("in_requests", message.in_requests),
    ] {
        if value > 0 {
            found.push(format!("{name} = \"{}\"", names[&value]));
        }
    }
    Some(format!(", message = {{ {} }}", found.join(", ")))
}

/// The title, the explanation, and a predicate for the names in the group.
type FieldGroup<'a> = (&'a str, &'a str, &'a dyn Fn(&str) -> bool);

/// The reference of all filters.
fn reference(tshark: &Tshark) -> String {
    let mut text = String::from(
        "# Fields of the dissector

Every name is a display filter in Wireshark. This list is generated from what `tshark -G fields` says of
`wireshark/efa.lua`; a test keeps it current. [wireshark.md](wireshark.md) tells how to use it, and
[rules.md](rules.md) explains the rules.
",
    );
    let fields = tshark.fields();
    let groups: [FieldGroup<'_>; 7] = [
        (
            "Transport header",
            "The header that the emulated network puts in front of a packet \
             ([format](wire-format.md)), and what is found by following requests.",
            &|name| name.starts_with("efa.") && !name.contains(".rule."),
        ),
        (
            "RDM packet",
            "The packet as libfabric built it, by the names of the protocol document.",
            &|name| {
                let derived = ["transfer", "negotiated", "rule.", "flags.", "extra_info."];
                let name = name.strip_prefix("efa_rdm.").unwrap_or("rule.");
                !derived.iter().any(|prefix| name.starts_with(prefix))
            },
        ),
        (
            "Flags and features",
            "Single bits: of the packet's flags, and of the first word of a HANDSHAKE.",
            &|name| name.starts_with("efa_rdm.flags.") || name.starts_with("efa_rdm.extra_info."),
        ),
        (
            "Transfer",
            "What the packet is part of: a message, a read, a write, an atomic operation or an \
             exchange of handshakes.",
            &|name| name.starts_with("efa_rdm.transfer"),
        ),
        (
            "Negotiated",
            "What the packet's two endpoints had announced when it was sent.",
            &|name| name.starts_with("efa_rdm.negotiated"),
        ),
        (
            "Hardware tag matching",
            "Headers of messages with tags, behind Wireshark's own fields of RoCE v2, and the packets \
             of their rendezvous.",
            &|name| name.starts_with("efa_tm.") && !name.contains(".rule."),
        ),
        ("Rules", "Expert information.", &|name| {
            name.contains(".rule.")
        }),
    ];
    let mut listed = 0;
    for (title, about, belongs) in groups {
        write!(
            text,
            "\n## {title}\n\n{about}\n\n| filter | type | meaning |\n|---|---|---|\n"
        )
        .unwrap();
        for (name, [kind, label, meaning]) in fields.iter().filter(|(name, _)| belongs(name)) {
            listed += 1;
            let kind = kind.trim_start_matches("FT_").to_lowercase();
            let meaning = match meaning.as_str() {
                "" => label.clone(),
                meaning => format!("{label}: {meaning}"),
            };
            writeln!(text, "| `{name}` | {kind} | {meaning} |").unwrap();
        }
    }
    assert_eq!(listed, fields.len(), "each field is in one group");
    text
}

#[test]
fn every_field_is_documented() {
    let Some(tshark) = Tshark::find() else { return };
    expect_file("docs/wireshark-fields.md", TESTS, reference(&tshark));
}

#[test]
fn the_dissector_has_the_tables_of_the_codec() {
    const MARKS: [&str; 2] = [
        "-- >>> generated from efa_core::wire and efa_capture::frame, do not edit\n",
        "-- <<< generated\n",
    ];
    expect_part("wireshark/efa.lua", MARKS, TESTS, &generated());
}
