//! The tables of `docs/wire-format.md` are the same as in the declaration.

use std::fmt::Write as _;

use efa_testing::workspace::expect_part;

use super::*;

fn tables() -> String {
    let mut text =
        String::from("\n| offset | size | field | when | meaning |\n|---|---|---|---|---|\n");
    let extension = RDMA_FIELDS.iter().map(|field| (field, "RDMA extension"));
    for (field, part) in FIELDS.iter().map(|field| (field, "")).chain(extension) {
        let when = match field.presence {
            Presence::Always => part.to_string(),
            Presence::IfFlag(flag) => format!("flag {flag}", flag = flag_name(flag)),
            Presence::InOpcode(opcode) => opcode.to_string(),
        };
        let Field {
            offset,
            size,
            name,
            meaning,
            ..
        } = field;
        writeln!(text, "| {offset} | {size} | {name} | {when} | {meaning} |").unwrap();
    }
    text.push_str(
        "\n### Opcodes\n\n| code | name | from | RDMA extension | data |\n|---|---|---|---|---|\n",
    );
    for opcode in Opcode::ALL {
        writeln!(
            text,
            "| {} | {opcode} | {} | {} | {} |",
            opcode as u8,
            match opcode.sender() {
                Sender::Initiator => "initiator",
                Sender::Responder => "responder",
            },
            if opcode.has_rdma_extension() {
                "yes"
            } else {
                "no"
            },
            opcode.carries(),
        )
        .unwrap();
    }
    text.push_str("\n### Flags\n\n| bit | name | meaning |\n|---|---|---|\n");
    for (flag, meaning) in Flags::MEANINGS {
        let bit = flag.bits().trailing_zeros();
        writeln!(text, "| {bit} | {} | {meaning} |", flag_name(*flag)).unwrap();
    }
    text.push('\n');
    text
}

fn flag_name(flag: Flags) -> String {
    let names = flag.iter_names().map(|(name, _)| name.to_lowercase());
    names.collect::<Vec<_>>().join(" or ")
}

#[test]
fn the_transport_header_is_documented() {
    const MARKS: [&str; 2] = [
        "<!-- generated: transport header begin -->\n",
        "<!-- generated: transport header end -->\n",
    ];
    let tests = "-p efa-capture documented";
    expect_part("docs/wire-format.md", MARKS, tests, &tables());
}
