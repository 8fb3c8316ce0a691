//! Invalid messages with tags and invalid operations on the tag list: their effects, and that
//! another queue pair of the same list continues. `docs/tag-matching.md` has the tables.

use efa_core::address::Qpn;
use efa_device_model::device::QpState;
use efa_device_model::device::connected::{
    MAX_RENDEZVOUS_HEADER, RVH, RendezvousHeader, TMH, TagHeader, TagOperation,
    TagRequestOperation, WcOperation, WcStatus,
};
use efa_testing::workspace;

use crate::tags::{
    ADDED, CALM, DATA_VALID, DELETED, MATCH, RECV, Receiver, SYNCED, TAGGED, WITHOUT_TAG,
};
use efa_testing::device::net::MEMORY;

/// Work request id, status, operation and flags of a completion.
type Reported = (u64, WcStatus, u8, u8);

/// The tag of invalid messages, its buffer of 64 bytes, and the tag of other messages.
const TAG: u64 = 5;
const BUFFER: u64 = 1;
const OTHERS: u64 = 6;

/// The first plain receive.
const PLAIN: u64 = 100;

use WcStatus::{
    LocalLength, RemoteAccess, RendezvousIncomplete, Success, TagMatching as ListFailure,
};

struct BadMessage {
    what: &'static str,
    message: fn(&Receiver) -> Vec<u8>,
    reported: &'static [Reported],
    /// Whether the connection ends.
    is_fatal: bool,
}

fn header(operation: u8, rest: &[u8]) -> Vec<u8> {
    let header = TagHeader {
        operation: TagOperation::Eager,
        data: 0,
        tag: TAG,
    };
    let mut bytes = header.to_bytes();
    bytes[0] = operation;
    [&bytes[..], rest].concat()
}

fn rendezvous(address: u64, key: u32, length: u32) -> Vec<u8> {
    let remote = RendezvousHeader {
        address,
        key,
        length,
    };
    header(1, &remote.to_bytes())
}

fn key(receiver: &Receiver) -> u32 {
    receiver.net.hosts[1].keys.rkey.0
}

const UNEXPECTED: &[Reported] = &[(PLAIN, Success, TAGGED, 0)];

const MESSAGES: [BadMessage; 17] = [
    BadMessage {
        what: "no bytes",
        message: |_| Vec::new(),
        reported: &[(PLAIN, Success, WITHOUT_TAG, 0)],
        is_fatal: false,
    },
    BadMessage {
        what: "a TMH without its last byte",
        message: |_| header(3, &[])[..TMH - 1].to_vec(),
        reported: &[(PLAIN, Success, WITHOUT_TAG, 0)],
        is_fatal: false,
    },
    BadMessage {
        what: "a TMH with the operation 4",
        message: |_| header(4, b"x"),
        reported: &[(PLAIN, Success, RECV, 0)],
        is_fatal: false,
    },
    BadMessage {
        what: "a TMH with the operation 255",
        message: |_| header(255, b"x"),
        reported: &[(PLAIN, Success, RECV, 0)],
        is_fatal: false,
    },
    BadMessage {
        what: "a TMH whose reserved bytes are not 0",
        message: |_| {
            let mut bytes = header(3, b"x");
            bytes[1..4].fill(0xff);
            bytes
        },
        reported: &[(BUFFER, Success, TAGGED, MATCH | DATA_VALID)],
        is_fatal: false,
    },
    BadMessage {
        what: "an eager message of 65 bytes for a buffer of 64",
        message: |_| header(3, &[7; 65]),
        reported: &[(BUFFER, LocalLength, TAGGED, 0)],
        is_fatal: true,
    },
    BadMessage {
        what: "the end of a rendezvous that nobody has begun",
        message: |_| header(2, &[0; RVH]),
        reported: &[(PLAIN, Success, RECV, 0)],
        is_fatal: false,
    },
    BadMessage {
        what: "the request of a rendezvous without RVH",
        message: |_| header(1, &[]),
        reported: UNEXPECTED,
        is_fatal: false,
    },
    BadMessage {
        what: "an RVH without its last byte",
        message: |receiver| {
            let mut bytes = rendezvous(MEMORY, key(receiver), 8);
            bytes.pop();
            bytes
        },
        reported: UNEXPECTED,
        is_fatal: false,
    },
    BadMessage {
        what: "the request of a rendezvous one byte beyond `max_rndv_hdr_size`",
        message: |receiver| {
            let mut bytes = rendezvous(MEMORY, key(receiver), 8);
            bytes.resize(MAX_RENDEZVOUS_HEADER as usize + 1, 0);
            bytes
        },
        reported: UNEXPECTED,
        is_fatal: false,
    },
    BadMessage {
        what: "the request of a rendezvous of several packets",
        message: |receiver| {
            let mut bytes = rendezvous(MEMORY, key(receiver), 8);
            bytes.resize(600, 0);
            bytes
        },
        reported: UNEXPECTED,
        is_fatal: false,
    },
    BadMessage {
        what: "an RVH with a key that is not valid",
        message: |receiver| rendezvous(MEMORY, key(receiver) ^ 0x5a5a, 8),
        reported: &[
            (BUFFER, Success, TAGGED, MATCH),
            (BUFFER, RemoteAccess, TAGGED, 0),
        ],
        is_fatal: true,
    },
    BadMessage {
        what: "an RVH with memory that is not there",
        message: |receiver| rendezvous(MEMORY - 4, key(receiver), 8),
        reported: &[
            (BUFFER, Success, TAGGED, MATCH),
            (BUFFER, RemoteAccess, TAGGED, 0),
        ],
        is_fatal: true,
    },
    BadMessage {
        what: "an RVH whose memory ends behind the last address",
        message: |receiver| rendezvous(u64::MAX - 3, key(receiver), 8),
        reported: &[
            (BUFFER, Success, TAGGED, MATCH),
            (BUFFER, RemoteAccess, TAGGED, 0),
        ],
        is_fatal: true,
    },
    BadMessage {
        what: "an RVH with 65 bytes for a buffer of 64",
        message: |receiver| rendezvous(MEMORY, key(receiver), 65),
        reported: &[(BUFFER, RendezvousIncomplete, TAGGED, MATCH)],
        is_fatal: false,
    },
    BadMessage {
        what: "an RVH with 4 GiB less one byte",
        message: |receiver| rendezvous(MEMORY, key(receiver), u32::MAX),
        reported: &[(BUFFER, RendezvousIncomplete, TAGGED, MATCH)],
        is_fatal: false,
    },
    BadMessage {
        what: "an RVH with no bytes, and a key that is not valid",
        message: |_| rendezvous(0, 0, 0),
        reported: &[
            (BUFFER, Success, TAGGED, MATCH),
            (BUFFER, Success, TAGGED, DATA_VALID),
        ],
        is_fatal: false,
    },
];

/// A receiver with a buffer for invalid messages and one for others.
fn receiver() -> Receiver {
    let mut receiver = Receiver::new(CALM);
    receiver.add(BUFFER, TAG, 64);
    receiver.add(2, OTHERS, 64);
    for _ in 0..4 {
        receiver.net.hosts[1].receive(Qpn(5), 50, 0xe000, 64);
    }
    receiver.completions();
    receiver
}

fn reported(receiver: &mut Receiver) -> Vec<Reported> {
    let statuses = [
        Success,
        LocalLength,
        RemoteAccess,
        ListFailure,
        RendezvousIncomplete,
    ];
    let entries = std::iter::from_fn(|| receiver.net.hosts[0].poll());
    entries
        .map(|entry| {
            let known = statuses
                .iter()
                .find(|known| **known as u8 == entry.status());
            let status = known.unwrap_or_else(|| panic!("{entry:?}"));
            let operation = entry.connected_operation();
            (
                entry.connected_wr_id(),
                *status,
                operation,
                entry.connected_flags(),
            )
        })
        .collect()
}

/// Checks that a message of another host still finds its buffer, and that another one is
/// unexpected.
fn others_go_on(receiver: &mut Receiver, what: &str) {
    let message = |tag| {
        let header = TagHeader {
            operation: TagOperation::Eager,
            data: 0,
            tag,
        };
        [&header.to_bytes()[..], b"as before"].concat()
    };
    receiver.send_from(2, &message(OTHERS));
    let both = MATCH | DATA_VALID;
    assert_eq!(reported(receiver), [(2, Success, TAGGED, both)], "{what}");
    assert_eq!(receiver.at(2)[..9], *b"as before", "{what}");
    receiver.send_from(2, &message(7));
    let (id, status, operation, flags) = reported(receiver)[0];
    assert_eq!((status, operation, flags), (Success, TAGGED, 0), "{what}");
    assert_eq!(receiver.at(id)[TMH..TMH + 9], *b"as before", "{what}");
}

#[test]
fn bad_messages_disturb_no_other_queue_pair() {
    for case in MESSAGES {
        let BadMessage {
            what,
            message,
            reported: expected,
            is_fatal,
        } = case;
        let mut receiver = receiver();
        let bytes = message(&receiver);
        receiver.send_from(1, &bytes);
        assert_eq!(reported(&mut receiver), expected, "{what}");
        let pair = receiver.net.hosts[0].device.query_connected_qp(Qpn(11));
        let has_failed = pair.unwrap().state == QpState::Error;
        assert_eq!(has_failed, is_fatal, "{what}");
        others_go_on(&mut receiver, what);
    }
}

/// The result of an operation on the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The call fails.
    Errno(i32),
    /// It completes.
    Completion(u8, WcStatus),
}

struct BadOperation {
    what: &'static str,
    operate: fn(&mut Receiver) -> Result<u32, i32>,
    outcome: Outcome,
}

/// The handle of the buffer for invalid messages, which was added first.
const HANDLE: u32 = 0;

const DELETE: TagRequestOperation = TagRequestOperation::Delete(HANDLE);

/// Sends two unexpected messages, and reports one of them.
fn report_one_of_two(receiver: &mut Receiver) {
    for _ in 0..2 {
        receiver.send_from(1, &header(1, &[]));
    }
    receiver
        .operate(3, Some(1), TagRequestOperation::Sync)
        .unwrap();
    reported(receiver);
}

const OPERATIONS: [BadOperation; 11] = [
    BadOperation {
        what: "DEL of a tag that was deleted",
        operate: |receiver| {
            receiver.operate(3, None, DELETE).unwrap();
            reported(receiver);
            receiver.operate(4, None, DELETE)
        },
        outcome: Outcome::Completion(DELETED, ListFailure),
    },
    BadOperation {
        what: "DEL of a tag that a message has taken",
        operate: |receiver| {
            receiver.send_from(1, &header(3, b"x"));
            reported(receiver);
            receiver.operate(4, None, DELETE)
        },
        outcome: Outcome::Completion(DELETED, ListFailure),
    },
    BadOperation {
        what: "DEL of a handle that no tag had",
        operate: |receiver| receiver.operate(4, None, TagRequestOperation::Delete(2)),
        outcome: Outcome::Errno(libc::EINVAL),
    },
    BadOperation {
        what: "DEL of the handle `0xffffffff`",
        operate: |receiver| receiver.operate(4, None, TagRequestOperation::Delete(u32::MAX)),
        outcome: Outcome::Errno(libc::EINVAL),
    },
    BadOperation {
        what: "SYNC with a count from the future",
        operate: |receiver| receiver.operate(4, Some(1), TagRequestOperation::Sync),
        outcome: Outcome::Completion(SYNCED, ListFailure),
    },
    BadOperation {
        what: "SYNC with a count from the future, while messages are not handled",
        operate: |receiver| {
            report_one_of_two(receiver);
            receiver.operate(4, Some(3), TagRequestOperation::Sync)
        },
        outcome: Outcome::Completion(SYNCED, ListFailure),
    },
    BadOperation {
        what: "SYNC with a count that goes back",
        operate: |receiver| {
            report_one_of_two(receiver);
            receiver.operate(4, Some(0), TagRequestOperation::Sync)
        },
        outcome: Outcome::Completion(SYNCED, ListFailure),
    },
    BadOperation {
        what: "ADD with a count from the future",
        operate: |receiver| {
            let add = receiver.tag(3, 8, 64);
            receiver.operate(4, Some(1), add)
        },
        outcome: Outcome::Completion(ADDED, ListFailure),
    },
    BadOperation {
        what: "DEL with a count from the future",
        operate: |receiver| receiver.operate(4, Some(1), DELETE),
        outcome: Outcome::Completion(DELETED, ListFailure),
    },
    BadOperation {
        what: "ADD to a list that is full",
        operate: |receiver| {
            for tag in 0..2 {
                receiver.add(3, 20 + tag, 64);
            }
            reported(receiver);
            let add = receiver.tag(4, 22, 64);
            receiver.operate(4, None, add)
        },
        outcome: Outcome::Errno(libc::ENOMEM),
    },
    BadOperation {
        what: "an operation on a queue without tags",
        operate: |receiver| {
            let tags = receiver.srq;
            let srq = receiver.net.hosts[0].shared_queue(1, None);
            receiver.srq = srq;
            let result = receiver.operate(4, Some(0), TagRequestOperation::Sync);
            receiver.srq = tags;
            result
        },
        outcome: Outcome::Errno(libc::EINVAL),
    },
];

#[test]
fn bad_operations_change_nothing() {
    for case in OPERATIONS {
        let what = case.what;
        let mut receiver = receiver();
        let result = (case.operate)(&mut receiver);
        match case.outcome {
            Outcome::Errno(errno) => {
                assert_eq!(result, Err(errno), "{what}");
                assert_eq!(reported(&mut receiver), [], "{what}");
            }
            Outcome::Completion(operation, status) => {
                assert!(result.is_ok(), "{what}: {result:?}");
                let found = reported(&mut receiver);
                let [(4, found_status, found_operation, _)] = found[..] else {
                    panic!("{what}: {found:?}");
                };
                assert_eq!(
                    (found_operation, found_status),
                    (operation, status),
                    "{what}"
                );
            }
        }
        others_go_on(&mut receiver, what);
    }
}

/// An operation that is refused, or completes with an error, changes neither the count of
/// unexpected messages nor the list.
#[test]
fn failed_operations_have_no_effect() {
    let mut receiver = receiver();
    let add = receiver.tag(3, 8, 64);
    let handle = receiver.operate(3, Some(9), add).unwrap();
    let delete = |handle| TagRequestOperation::Delete(handle);
    receiver.operate(4, Some(9), DELETE).unwrap();
    receiver.operate(5, None, delete(handle)).unwrap();
    let expected = [
        (3, ListFailure, ADDED, 0),
        (4, ListFailure, DELETED, 0),
        (5, ListFailure, DELETED, 0),
    ];
    assert_eq!(reported(&mut receiver), expected);
    receiver.send_from(1, &header(3, b"x"));
    let both = MATCH | DATA_VALID;
    assert_eq!(reported(&mut receiver), [(BUFFER, Success, TAGGED, both)]);
    // A count together with an unknown handle, and together with a tag for which there is no room.
    receiver.send_from(1, &header(3, b"y"));
    assert_eq!(reported(&mut receiver), UNEXPECTED);
    let refused = receiver.operate(6, Some(1), delete(77));
    assert_eq!(refused, Err(libc::EINVAL));
    for tag in [TAG, 20, 21] {
        receiver.add(6, tag, 64);
    }
    let add = receiver.tag(6, 30, 64);
    assert_eq!(receiver.operate(6, Some(1), add), Err(libc::ENOMEM));
    reported(&mut receiver);
    receiver.send_from(1, &header(3, b"z"));
    let second = receiver.at(PLAIN + 1)[TMH];
    assert_eq!(second, b'z', "new tags are not matched yet");
}

fn status_name(status: WcStatus) -> String {
    match status {
        Success => "success".to_owned(),
        failure => format!("`IBV_WC_{}`", WcStatus::name_of(failure as u32)),
    }
}

fn operation_name(operation: u8) -> String {
    format!("`IBV_WC_{}`", WcOperation::name_of(operation.into()))
}

fn flag_names(flags: u8) -> &'static str {
    match flags {
        0 => "",
        MATCH => " with MATCH",
        DATA_VALID => " with DATA_VALID",
        _ => " with MATCH and DATA_VALID",
    }
}

fn message_row(case: &BadMessage) -> String {
    let describe = |(id, status, operation, flags): &Reported| {
        let place = match *id {
            BUFFER => "",
            _ if *operation == TAGGED => " in a plain receive",
            _ => "",
        };
        let status = match status {
            Success => String::new(),
            status => format!(", {}", status_name(*status)),
        };
        let name = operation_name(*operation);
        format!("{name}{}{place}{status}", flag_names(*flags))
    };
    let reported: Vec<String> = case.reported.iter().map(describe).collect();
    let ends = match case.is_fatal {
        true => " the connection ends |",
        false => " |",
    };
    format!("| {} | {} |{ends}\n", case.what, reported.join("; "))
}

fn operation_row(case: &BadOperation) -> String {
    let outcome = match case.outcome {
        Outcome::Errno(libc::EINVAL) => "`EINVAL`".to_owned(),
        Outcome::Errno(libc::ENOMEM) => "`ENOMEM`".to_owned(),
        Outcome::Errno(other) => panic!("errno {other} has no name here"),
        Outcome::Completion(operation, status) => {
            let operation = operation_name(operation);
            format!("{operation}, {}", status_name(status))
        }
    };
    format!("| {} | {outcome} |\n", case.what)
}

/// `EFA_UPDATE=1 cargo test -p efa-device-model --test connected documented` writes the tables.
#[test]
fn bad_input_is_documented() {
    let messages: String = MESSAGES.iter().map(message_row).collect();
    let messages = format!("| message | completions | |\n|---|---|---|\n{messages}");
    let documented = |mark, text: &str| {
        let marks = [
            &format!("<!-- {mark} -->\n\n"),
            &format!("\n<!-- end of {mark} -->"),
        ];
        let tests = "-p efa-device-model --test connected documented";
        workspace::expect_part(
            "docs/tag-matching.md",
            marks.map(|it| it.as_str()),
            tests,
            text,
        );
    };
    documented("bad messages", &messages);
    let operations: String = OPERATIONS.iter().map(operation_row).collect();
    let operations = format!("| operation | what comes of it |\n|---|---|\n{operations}");
    documented("bad operations", &operations);
}
