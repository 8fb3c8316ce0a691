//! Messages as lines.

use efa_core::wire::{AtomicDatatype, AtomicOp};
use proptest::prelude::*;

use super::*;
use crate::application::Failure;
use crate::drive::LONGEST_COMMAND;
use crate::operation::{AtomicAction, RegionAccess, SendMode, TagMatch};

const EVERY: [RegionAccess; 2] = [RegionAccess::RemoteRead, RegionAccess::RemoteWrite];

#[test]
fn operations_are_the_lines_of_the_contract() {
    let payload = Payload {
        length: 100,
        seed: 7,
    };
    let remote = Remote {
        address: u64::MAX,
        key: 66,
    };
    let atomic = |datatype, action, delivery_complete| OperationRequest::Atomic {
        to: 1,
        remote,
        datatype,
        action,
        operand: payload,
        delivery_complete,
    };
    let compare = |op| AtomicAction::Compare { op, comparand: 8 };
    let lines = [
        (
            OperationRequest::Recv {
                length: 256,
                from: Some(1),
                tag: Some(TagMatch {
                    tag: 4656,
                    ignore: 15,
                }),
            },
            Some(7),
            r#"{"recv":{"length":256,"from":1,"tag":{"tag":4656,"ignore":15}}},"expect":7"#,
        ),
        (
            OperationRequest::Send {
                to: 1,
                payload,
                tag: Some(3),
                data: Some(119),
                mode: SendMode::Inject,
            },
            None,
            r#"{"send":{"to":1,"payload":{"length":100,"seed":7},"tag":3,"data":119,"mode":"inject"}}"#,
        ),
        (
            OperationRequest::Register {
                payload,
                access: EVERY.to_vec(),
            },
            None,
            r#"{"register":{"payload":{"length":100,"seed":7},"access":["remote-read","remote-write"]}}"#,
        ),
        (
            OperationRequest::Write {
                to: 1,
                remote,
                payload,
                data: None,
                delivery_complete: true,
            },
            None,
            r#"{"write":{"to":1,"remote":{"address":18446744073709551615,"key":66},"payload":{"length":100,"seed":7},"delivery-complete":true}}"#,
        ),
        (
            OperationRequest::Read {
                from: 1,
                remote,
                length: 100,
            },
            Some(9),
            r#"{"read":{"from":1,"remote":{"address":18446744073709551615,"key":66},"length":100}},"expect":9"#,
        ),
        (
            atomic(AtomicDatatype::UINT64, compare(AtomicOp::CSWAP), false),
            Some(9),
            r#"{"atomic":{"to":1,"remote":{"address":18446744073709551615,"key":66},"action":{"compare":{"op":"cswap","comparand":8}},"operand":{"length":100,"seed":7}}},"expect":9"#,
        ),
        (
            atomic(
                AtomicDatatype::FLOAT_COMPLEX,
                compare(AtomicOp::CSWAP_NE),
                false,
            ),
            None,
            r#"{"atomic":{"to":1,"remote":{"address":18446744073709551615,"key":66},"datatype":"float-complex","action":{"compare":{"op":"cswap-ne","comparand":8}},"operand":{"length":100,"seed":7}}}"#,
        ),
        (
            atomic(
                AtomicDatatype::INT8,
                AtomicAction::Update(AtomicOp::MIN),
                true,
            ),
            None,
            r#"{"atomic":{"to":1,"remote":{"address":18446744073709551615,"key":66},"datatype":"int8","action":{"update":"min"},"operand":{"length":100,"seed":7},"delivery-complete":true}}"#,
        ),
    ];
    for (operation, expect, text) in lines {
        let command = Command::Start {
            id: 5,
            operation,
            expect,
        };
        let line = format!(r#"{{"start":{{"id":5,"operation":{text}}}}}"#);
        assert_eq!(command.line(), line);
        assert!(line.len() < LONGEST_COMMAND);
        assert_eq!(Command::parse(&line), Ok(command));
    }
}

#[test]
fn atomics_that_there_are_not_are_no_commands() {
    let start = |action: &str| {
        let line = format!(
            r#"{{"start":{{"id":0,"operation":{{"atomic":{{"to":1,"remote":{{"address":0,"key":0}},"action":{action},"operand":{{"length":8,"seed":1}}}}}}}}}}"#
        );
        Command::parse(&line)
    };
    start(r#"{"update":"sum"}"#).unwrap();
    for (action, wrong) in [
        (r#"{"update":"read"}"#, "unknown name `read`"),
        (r#"{"fetch":"cswap"}"#, "unknown name `cswap`"),
        (
            r#"{"compare":{"op":"sum","comparand":1}}"#,
            "action.compare.op: unknown name `sum`, expected one of `cswap`",
        ),
        (r#"{"compare":{"op":"cswap"}}"#, "missing field `comparand`"),
        (r#"{"update":"nonsense"}"#, "expected one of `sum`, `xor`"),
    ] {
        let error = start(action).unwrap_err().to_string();
        assert!(error.contains(wrong), "{action}: {error}");
    }
}

#[test]
fn errors_of_a_line_are_described() {
    let send =
        |rest: &str| format!(r#"{{"start":{{"id":1,"operation":{{"send":{{"to":1,{rest}}}}}}}}}"#);
    for (line, wrong) in [
        ("nonsense", "expected"),
        ("", "EOF"),
        (
            r#"{"nonsense":{}}"#,
            "unknown variant `nonsense`, expected one of `hello`, `open`",
        ),
        (r#"{"poll":{}} {}"#, "trailing characters"),
        (r#"{"dump":{}}"#, "dump: missing field `id`"),
        (
            r#"{"dump":{"id":"x"}}"#,
            r#"dump.id: invalid type: string "x", expected u64"#,
        ),
        (
            r#"{"dump":{"id":-1}}"#,
            "dump.id: invalid value: integer `-1`, expected u64",
        ),
        (
            r#"{"dump":{"id":1,"idd":2}}"#,
            "unknown field `idd`, expected `id`",
        ),
        (r#"{"dump":{"id":1,"id":2}}"#, "duplicate field `id`"),
        (r#"{"poll":{"id":1}}"#, "unknown field `id`"),
        (
            &send(r#""payload":{"length":1,"sed":1}"#),
            "start.operation.send.payload.sed: unknown field `sed`, expected `length` or `seed`",
        ),
        (
            &send(r#""payload":{"length":1,"seed":1},"mode":"fast""#),
            "start.operation.send.mode: unknown variant `fast`, expected one of `normal`, `inject`",
        ),
        (
            r#"{"open":{"api":"1","capabilities":["msg"]}}"#,
            "open.api: `1` is not a version",
        ),
        (
            r#"{"open":{"api":"1.1","capabilities":["msg","fly"]}}"#,
            "open.capabilities[1]: unknown name `fly`, expected one of `msg`, `tagged`",
        ),
        (
            r#"{"open":{"api":"1.1","capabilities":[],"hints":{"runt-size":"x"}}}"#,
            "open.hints.runt-size: invalid type",
        ),
        (
            r#"{"insert":{"peer":1,"address":"0g"}}"#,
            r#"insert.address: "0g" is not bytes, two hexadecimal digits each"#,
        ),
    ] {
        let error = Command::parse(line).unwrap_err().to_string();
        assert!(error.contains(wrong), "{line}: {error}");
    }
}

#[test]
fn an_explanation_is_short_and_without_control_characters() {
    let line = format!(r#"{{"\u001b[31m{}":{{}}}}"#, "x".repeat(5000));
    let error = Command::parse(&line).unwrap_err().to_string();
    assert!(error.contains(r"\u{1b}[31mxxx"), "{error}");
    assert!(error.chars().count() < 500, "{error}");
}

#[test]
fn unknown_hints_are_ignored() {
    let line = r#"{"open":{"api":"1.1","capabilities":[],"hints":{"new":1,"runt-size":7}}}"#;
    let Ok(Command::Open(opening)) = Command::parse(line) else {
        panic!("{line}");
    };
    assert_eq!(opening.settings.runt_size, Some(7));
}

proptest! {
    #[test]
    fn reports_survive(
        token in any::<Option<u64>>(),
        length in any::<u64>(),
        data in any::<Option<u64>>(),
        source in any::<Option<u8>>(),
        failure in any::<Option<(i32, String, u64)>>(),
        differs in any::<Option<(u32, u8, u8)>>(),
    ) {
        let event = Event::Completed(Report {
            token,
            length,
            tag: length << 3,
            data,
            source: source.map(usize::from),
            failure: failure.map(|(code, text, overflow)| Failure { code, text, overflow }),
            difference: differs.map(|(position, actual, expected)| Difference {
                position: position as usize,
                actual,
                expected,
            }),
        });
        let line = event.line();
        prop_assert!(!line.contains('\n'), "{line}");
        prop_assert_eq!(Event::parse(&line), Ok(event));
    }

    #[test]
    fn any_line_is_read_or_refused(line in r#"\{"(poll|dump|open|insert|x)":\{("(id|api|peer)":[0-9"x\[\]]{0,4},?){0,3}\}{0,2}"#) {
        if let Ok(command) = Command::parse(&line) {
            prop_assert_eq!(Command::parse(&command.line()), Ok(command));
        }
        let _ = Event::parse(&line);
    }
}
