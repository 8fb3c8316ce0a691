//! Known faults between stock releases.

use efa_play::libfabric::Version;

use crate::exchange::Topic;
use crate::harness::{Bench, CellResult, Unmet};

/// A fault of stock libfabric.
pub(crate) struct Fault {
    /// The first and the last initiating release.
    initiators: [Version; 2],
    /// The first and the last target release.
    targets: [Version; 2],
    /// The profiles of both devices; `None` means any.
    profiles: Option<[&'static str; 2]>,
    topic: Topic,
    /// Part of the failure that shows it.
    shows: &'static str,
    /// What the software does wrong.
    reason: &'static str,
}

const fn version(major: u16, minor: u16) -> Version {
    Version { major, minor }
}

const FAULTS: &[Fault] = &[
    Fault {
        initiators: [version(1, 11), version(2, 5)],
        targets: [version(1, 11), version(1, 17)],
        profiles: None,
        topic: Topic::UnexpectedData,
        shows: "the data that arrives is None",
        reason: "the data is in the packet; the receiver overwrites the completion's flags \
                 (FI_REMOTE_CQ_DATA) when it matches an unexpected message",
    },
    Fault {
        initiators: [version(1, 17), version(2, 5)],
        targets: [version(1, 11), version(1, 11)],
        profiles: None,
        topic: Topic::DeliveryComplete,
        shows: "error 95",
        reason: "1.11 cannot acknowledge delivery (its HANDSHAKE lacks extra feature 1), and the \
                 sender refuses instead of choosing another protocol",
    },
    Fault {
        initiators: [version(2, 1), version(2, 1)],
        targets: [version(2, 5), version(2, 5)],
        profiles: None,
        topic: Topic::WriteData,
        shows: "error 95",
        reason: "2.1 receives writes with data unsolicited, the 2.5.1 of the wheels does not (their \
                 HANDSHAKEs differ in extra feature 8), and 2.1 refuses instead of emulating the write",
    },
    Fault {
        initiators: [version(1, 17), version(1, 17)],
        targets: [version(1, 17), version(1, 17)],
        profiles: Some(["efa2", "efa0"]),
        topic: Topic::Messages,
        shows: "message of 1048576 bytes: endpoint `a`: libfabric's fi_send failed: Operation not \
                supported (error 95)",
        reason: "1.17 chooses to be read from by its own device alone, then refuses because the \
                 peer's cannot read (its HANDSHAKE lacks extra feature 0), and chooses nothing else",
    },
];

/// Returns the known fault of these releases, profiles and topic.
pub(crate) fn fault(
    releases: [Version; 2],
    profiles: [&str; 2],
    topic: Topic,
) -> Option<&'static Fault> {
    let within = |[from, to]: [Version; 2], version| from <= version && version <= to;
    FAULTS.iter().find(|fault| {
        fault.topic == topic
            && within(fault.initiators, releases[0])
            && within(fault.targets, releases[1])
            && fault.profiles.is_none_or(|named| named == profiles)
    })
}

/// What a cell comes to whose sides have this fault, if there is one.
pub(crate) fn judge(bench: &Bench, result: CellResult, fault: Option<&Fault>) -> CellResult {
    match (result, fault) {
        (Err(Unmet::Failed(text)), Some(fault)) if fault.explains(&text) => Err(Unmet::Known {
            reason: fault.reason.into(),
            capture: bench.capture("a"),
        }),
        (Ok(_), Some(fault)) => Err(Unmet::Failed(format!(
            "this works, but is listed as a fault of stock libfabric: {}",
            fault.reason
        ))),
        (result, _) => result,
    }
}

impl Fault {
    /// Returns whether a failure shows this fault.
    fn explains(&self, failure: &str) -> bool {
        failure.contains(self.shows)
    }
}
