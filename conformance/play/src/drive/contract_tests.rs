//! Lines as text, and their parsed form.

use proptest::prelude::*;

use super::*;
use crate::drive::LONGEST_COMMAND;

const EVERY: [RegionAccess; 2] = [RegionAccess::RemoteRead, RegionAccess::RemoteWrite];

#[test]
fn every_example_is_read_and_written_as_it_is() {
    for form in Command::FORMS {
        let read = Command::parse(form.example).unwrap();
        assert_eq!(read.line(), form.example);
        assert!(form.example.len() < LONGEST_COMMAND);
        assert!(form.example.starts_with(form.word));
    }
    for form in Event::FORMS {
        let read = Event::parse(form.example).unwrap();
        assert_eq!(read.line(), form.example);
        assert!(form.example.starts_with(form.word));
    }
}

#[test]
fn operations_are_the_lines_of_the_contract() {
    let payload = Payload {
        length: 100,
        seed: 7,
    };
    let remote = Remote {
        address: 0x1000,
        key: 0x42,
    };
    let comparand = Payload {
        length: 100,
        seed: 8,
    };
    let lines = [
        (
            Request::Recv {
                length: 256,
                from: Some(1),
                tag: Some(TagMatch {
                    tag: 0x1230,
                    ignore: 0xf,
                }),
            },
            Some(7),
            "recv id=5 length=256 from=1 tag=0x1230 ignore=0xf seed=7",
        ),
        (
            Request::Send {
                to: 1,
                payload,
                tag: Some(3),
                data: Some(0x77),
                mode: SendMode::Inject,
            },
            None,
            "send id=5 to=1 length=100 seed=7 tag=0x3 data=0x77 mode=inject",
        ),
        (
            Request::Register {
                payload,
                access: EVERY.to_vec(),
            },
            None,
            "register id=5 length=100 seed=7 access=remote-read,remote-write",
        ),
        (
            Request::Write {
                to: 1,
                remote,
                payload,
                data: None,
                delivery_complete: true,
            },
            None,
            "write id=5 to=1 address=0x1000 key=0x42 length=100 seed=7 delivery-complete=yes",
        ),
        (
            Request::Read {
                from: 1,
                remote,
                length: 100,
            },
            Some(9),
            "read id=5 from=1 address=0x1000 key=0x42 length=100 seed=9",
        ),
        (
            Request::Atomic {
                to: 1,
                remote,
                datatype: AtomicDatatype::UINT64,
                action: AtomicAction::Compare(AtomicOp::CSWAP, comparand),
                operand: payload,
                delivery_complete: false,
            },
            Some(9),
            "atomic id=5 to=1 address=0x1000 key=0x42 length=100 operand=7 call=compare op=cswap \
             comparand=8 seed=9",
        ),
        (
            Request::Atomic {
                to: 1,
                remote,
                datatype: AtomicDatatype::FLOAT_COMPLEX,
                action: AtomicAction::Compare(AtomicOp::CSWAP_NE, comparand),
                operand: payload,
                delivery_complete: false,
            },
            None,
            "atomic id=5 to=1 address=0x1000 key=0x42 length=100 operand=7 call=compare op=cswap-ne \
             datatype=float-complex comparand=8",
        ),
        (
            Request::Atomic {
                to: 1,
                remote,
                datatype: AtomicDatatype::INT8,
                action: AtomicAction::Update(AtomicOp::MIN),
                operand: payload,
                delivery_complete: true,
            },
            None,
            "atomic id=5 to=1 address=0x1000 key=0x42 length=100 operand=7 call=update op=min \
             datatype=int8 delivery-complete=yes",
        ),
    ];
    for (request, seed, line) in lines {
        let command = Command::start(5, &request, seed);
        assert_eq!(command.line(), line);
        let read = Command::parse(line).unwrap();
        assert_eq!(read.operation(), Ok((5, request, seed)));
    }
}

#[test]
fn atomics_that_there_are_not_start_nothing() {
    for end in [
        "call=update op=read",
        "call=fetch op=cswap",
        "call=compare op=sum comparand=1",
        "call=compare op=cswap",
        "call=update op=sum comparand=1",
        "call=update op=nonsense",
    ] {
        let line = format!("atomic id=0 to=1 address=0x0 key=0x0 length=8 operand=1 {end}");
        let command = Command::parse(&line).unwrap();
        assert!(command.operation().is_err(), "{line}");
    }
}

#[test]
fn what_is_wrong_with_a_line_is_said() {
    for (line, wrong) in [
        ("nonsense", "no line begins with `nonsense`"),
        ("", "no line begins with ``"),
        ("recv id=1", "a `recv` line needs the key `length`"),
        ("recv id=1 length=x", "length=x is not a number"),
        (
            "recv id=1 length=2 legnth=3",
            "`legnth` is no key of a `recv` line",
        ),
        ("poll id=1 id=2", "`id` is no key of a `poll` line"),
        (
            "recv id=1 length",
            "`length` in a `recv` line is not of the form key=value",
        ),
        (
            "send id=1 to=1 length=1 seed=1 mode=normal",
            "mode=normal is not `inject`",
        ),
        ("open api=1 capabilities=msg", "api=1 is not a version"),
        (
            "open api=1.1 capabilities=msg,fly",
            "is not a list of capabilities",
        ),
    ] {
        let error = Command::parse(line).unwrap_err().to_string();
        assert!(error.contains(wrong), "{line}: {error}");
    }
}

#[test]
fn the_text_is_the_rest_of_the_line() {
    let text = Text("100% of id=3 text=x".into());
    let line = "refused text=100% of id=3 text=x";
    assert_eq!(Event::parse(line), Ok(Event::Refused { text }));
    let two = Event::Refused {
        text: Text("two\nlines".into()),
    };
    assert_eq!(two.line(), "refused text=two lines");
}

proptest! {
    #[test]
    fn reports_survive(
        token in any::<Option<u64>>(),
        length in any::<u32>(),
        data in any::<Option<u64>>(),
        source in any::<Option<u8>>(),
        code in proptest::option::of(1_i32..4000),
        overflow in any::<u32>(),
        differs in any::<Option<(u32, u8, u8)>>(),
    ) {
        let report = Report {
            token,
            length: length.into(),
            tag: u64::from(length) << 3,
            data,
            source: source.map(usize::from),
            failure: code.map(|code| Failure {
                code,
                text: "it did not fit".into(),
                overflow: overflow.into(),
            }),
            difference: differs.map(|(position, actual, expected)| Difference {
                position: position as usize,
                actual,
                expected,
            }),
        };
        let line = Event::completed(report.clone()).line();
        prop_assert_eq!(Event::parse(&line).unwrap().into_report(), Ok(report));
    }

    #[test]
    fn any_line_is_read_or_refused(line in "[a-z]{0,9}( [a-z-]{0,9}=?[0-9a-z%]{0,6}){0,4}") {
        if let Ok(command) = Command::parse(&line) {
            prop_assert_eq!(Command::parse(&command.line()), Ok(command));
        }
        let _ = Event::parse(&line);
    }
}
