//! The table of experiments.

use std::time::Duration;

use efa_core::nic::{Access, DeviceCaps, Status};
use efa_device_model::profile::Profile;
use efa_device_model::qpn_policy::QpnPolicy;

use super::error::SurveyError;
use super::lab::{Lab, Pair, RETRIES};
use super::side::{QpnReuse, Rdma, ReportedCompletion, ReportedKind};
use super::{Answer, Experiment};

/// Bytes of the memory that peers read and write.
const REGION: usize = 4096;

/// For an experiment whose answer is not in the profile.
const fn learn_nothing(_: &mut Profile, _: &Answer) {}

/// A limit: the device's value, and the profile's field.
macro_rules! limit {
    ($id:literal, $question:literal, $report:ident => $field:ident) => {
        Experiment {
            id: $id,
            question: $question,
            measure: |lab| Ok(Answer::Number(lab.report.$report.into())),
            assumed: |profile| Answer::Number(profile.$field.into()),
            learn: |profile, answer| {
                if let Answer::Number(number) = answer
                    && let Ok(number) = (*number).try_into()
                {
                    profile.$field = number;
                }
            },
        }
    };
}

/// The status of a refused request: the experiment, and the profile's field.
macro_rules! refusal {
    ($id:literal, $question:literal, $measure:expr, $field:ident) => {
        Experiment {
            id: $id,
            question: $question,
            measure: $measure,
            assumed: |profile| Answer::Status(profile.statuses.$field),
            learn: |profile, answer| {
                if let Answer::Status(status) = answer {
                    profile.statuses.$field = *status;
                }
            },
        }
    };
}

/// A refused RDMA read, for devices with RDMA read.
macro_rules! refused_read {
    ($id:literal, $question:literal, $measure:expr, $field:ident) => {
        Experiment {
            assumed: |profile| with_read(profile, Answer::Status(profile.statuses.$field)),
            ..refusal!($id, $question, $measure, $field)
        }
    };
}

/// An assumption that is the same for all profiles.
macro_rules! constant {
    ($id:literal, $question:literal, $measure:expr, $assumed:expr) => {
        Experiment {
            id: $id,
            question: $question,
            measure: $measure,
            assumed: |_| $assumed,
            learn: learn_nothing,
        }
    };
}

/// All experiments, in the order of the checklist.
pub static EXPERIMENTS: [Experiment; 43] = [
    limit!("part-id", "`vendor_part_id`: the generation of the device", vendor_part_id => part_id),
    limit!("hw-ver", "`hw_ver`: the PCI subsystem device", hw_ver => hw_version),
    Experiment {
        id: "fw-ver",
        question: "`fw_ver`: the version of the firmware",
        measure: |lab| Ok(Answer::text(&lab.report.fw_ver)),
        assumed: |profile| Answer::text(profile.firmware),
        learn: |profile, answer| {
            if let Answer::Text(text) = answer {
                profile.firmware = String::leak(text.clone());
            }
        },
    },
    Experiment {
        id: "device-caps",
        question: "`device_caps`: the capability bits",
        measure: |lab| Ok(Answer::Number(lab.report.device_caps.into())),
        assumed: |profile| Answer::Number(profile.caps.bits().into()),
        learn: |profile, answer| {
            if let Answer::Number(bits) = answer {
                profile.caps = DeviceCaps::from_bits_truncate(*bits as u32);
            }
        },
    },
    limit!("max-msg-sz", "`max_msg_sz`: the largest packet in bytes", max_msg_sz => mtu),
    limit!("max-sq-wr", "`max_sq_wr`: the largest send queue", max_sq_wr => max_sq_wr),
    limit!("max-rq-wr", "`max_rq_wr`: the largest receive queue", max_rq_wr => max_rq_wr),
    limit!("max-sq-sge", "`max_sq_sge`: gather entries of a send", max_sq_sge => max_sq_sge),
    limit!("max-rq-sge", "`max_rq_sge`: scatter entries of a receive", max_rq_sge => max_rq_sge),
    limit!("max-sge-rd", "`max_sge_rd`: local entries of an RDMA request",
        max_sge_rd => max_rdma_sge),
    limit!("inline-buf-size", "`inline_buf_size`: inline bytes of a send",
        inline_buf_size => inline_size),
    limit!("max-rdma-size", "`max_rdma_size`: the longest RDMA request",
        max_rdma_size => max_rdma_size),
    limit!("max-qp", "`max_qp`: queue pairs", max_qp => max_qp),
    limit!("max-cq", "`max_cq`: completion queues", max_cq => max_cq),
    limit!("max-cqe", "`max_cqe`: entries of a completion queue", max_cqe => max_cqe),
    limit!("max-mr", "`max_mr`: memory regions", max_mr => max_mr),
    limit!("max-mr-size", "`max_mr_size`: bytes of a region", max_mr_size => max_mr_size),
    limit!("max-pd", "`max_pd`: protection domains", max_pd => max_pd),
    limit!("max-ah", "`max_ah`: address handles", max_ah => max_ah),
    limit!("comp-vectors", "completion vectors of a context", comp_vectors => comp_vectors),
    refusal!(
        "unknown-queue-pair",
        "how does a send end whose destination queue pair was destroyed?",
        |lab| {
            let mut pair = lab.pair(RETRIES, false)?;
            let gone = lab.open_target()?;
            let address = gone.address();
            drop(gone);
            (pair.to.qpn, pair.to.qkey) = (address.qpn, address.qkey);
            Ok(Answer::Status(pair.send_status()?))
        },
        unknown_queue_pair
    ),
    refusal!(
        "wrong-qkey",
        "how does a send end that names another Q-key than the receiver's?",
        |lab| {
            let mut pair = lab.pair(RETRIES, false)?;
            pair.to.qkey ^= 1;
            Ok(Answer::Status(pair.send_status()?))
        },
        wrong_qkey
    ),
    constant!(
        "not-ready",
        "how does a send end that finds no receive, without retries (`rnr_retry` 0)?",
        |lab| Ok(Answer::Status(lab.pair(0, false)?.send_status()?)),
        Answer::Status(Status::RemoteRnr)
    ),
    constant!(
        "not-ready-later",
        "does a send arrive that finds no receive at first, with retries without end (7)?",
        |lab| {
            let pair = lab.pair(7, false)?;
            pair.a.send(pair.to, 8, None, 0)?;
            std::thread::sleep(Duration::from_millis(2));
            pair.b.receive()?;
            Ok(Answer::Status(pair.wait(1, 1)?.0[0].status()?))
        },
        Answer::Status(Status::Ok)
    ),
    Experiment {
        id: "not-ready-wait",
        question: "how long does the device wait before the first retry?",
        measure: |lab| {
            if !lab.has(DeviceCaps::RNR_RETRY) {
                return Ok(Answer::Absent("settable retries (RNR_RETRY)"));
            }
            let mut shortest = Duration::MAX;
            for _ in 0..5 {
                let (_, took) = lab.pair(1, false)?.timed_send()?;
                shortest = shortest.min(took);
            }
            Ok(Answer::Time(shortest))
        },
        assumed: |profile| match profile.caps.contains(DeviceCaps::RNR_RETRY) {
            true => Answer::Time(profile.rnr_backoff.first),
            false => Answer::Absent("settable retries (RNR_RETRY)"),
        },
        learn: |profile, answer| {
            if let Answer::Time(time) = answer {
                profile.rnr_backoff.first = *time;
                profile.rnr_backoff.longest = profile.rnr_backoff.longest.max(*time);
            }
        },
    },
    Experiment {
        id: "invalid-lkey",
        question: "how does a send end whose local key is of no region?",
        measure: |lab| {
            // The other entry is the packet's header.
            if lab.report.max_sq_sge < 2 {
                return Ok(Answer::Absent(NO_SECOND_ENTRY));
            }
            let pair = lab.pair(RETRIES, false)?;
            let mut own = pair.a.memory(REGION, Access::LOCAL_WRITE)?;
            own.length = 64;
            own.local_key ^= 0x55;
            pair.a.send_memory(pair.to, own)?;
            Ok(Answer::Status(pair.wait(1, 0)?.0[0].status()?))
        },
        assumed: |profile| match profile.max_sq_sge {
            0 | 1 => Answer::Absent(NO_SECOND_ENTRY),
            _ => Answer::Status(Status::LocalInvalidLkey),
        },
        learn: learn_nothing,
    },
    Experiment {
        id: "unknown-sender",
        question: "what does a receive say of a sender without an address handle?",
        measure: |lab| {
            let (pair, source) = received(lab, false)?;
            Ok(match source {
                (Some(_), _) => Answer::text("a number"),
                (None, Some(told)) if told == pair.a.gid => Answer::text("no number, and its GID"),
                (None, Some(_)) => Answer::text("no number, and another GID"),
                (None, None) => Answer::text("no number, and no GID"),
            })
        },
        assumed: |profile| match profile.caps.contains(DeviceCaps::CQ_WITH_SGID) {
            true => Answer::text("no number, and its GID"),
            false => Answer::text("no number, and no GID"),
        },
        learn: learn_nothing,
    },
    constant!(
        "known-sender",
        "what does a receive say of a sender with an address handle?",
        |lab| {
            let (pair, source) = received(lab, true)?;
            let own = pair.b.handle(pair.a.gid)?;
            Ok(match source.0 {
                Some(ahn) if ahn == own => Answer::text("the number of the handle"),
                Some(_) => Answer::text("another number"),
                None => Answer::text("no number"),
            })
        },
        Answer::text("the number of the handle")
    ),
    constant!(
        "ahn-of-two-domains",
        "do address handles of one GID in two protection domains have the same number?",
        |lab| {
            let pair = lab.pair(RETRIES, false)?;
            let other = lab.open()?.handle(pair.b.gid)?;
            Ok(match other == pair.to.ahn {
                true => Answer::text("the same"),
                false => Answer::text("another"),
            })
        },
        Answer::text("the same")
    ),
    constant!(
        "ahn-reuse",
        "does the number of a destroyed address handle come again at once?",
        |lab| {
            let nic = lab.open()?;
            let create = |last: u8| {
                let mut gid = nic.gid;
                gid[8..].copy_from_slice(&[0x02, 0, 0, 0xff, 0xfe, 0, 0, last]);
                let created = nic.handle(gid);
                created.map_err(|error| SurveyError::UnknownGid(Box::new(error)))
            };
            let numbers = [create(1)?, create(2)?, create(3)?];
            nic.forget(numbers[1])?;
            Ok(match create(4)? {
                next if next == numbers[1] => Answer::text("at once"),
                next if next == numbers[2].wrapping_add(1) => {
                    Answer::text("not at once: the next one")
                }
                _ => Answer::text("not at once"),
            })
        },
        Answer::text("at once")
    ),
    Experiment {
        id: "qpn-reuse",
        question: "which number does the next queue pair get, after some were destroyed?",
        measure: qpn_reuse,
        assumed: |profile| Answer::Reuse(profile.qpn_reuse),
        learn: |profile, answer| {
            if let Answer::Reuse(policy) = answer {
                profile.qpn_reuse = *policy;
            }
        },
    },
    constant!(
        "zero-length",
        "does a send of no bytes arrive as a receive of no bytes?",
        |lab| {
            let pair = lab.pair(RETRIES, false)?;
            pair.b.receive()?;
            pair.a.send(pair.to, 0, None, 0)?;
            match &pair.wait(1, 1)?.1[0].kind {
                ReportedKind::Receive { length: 0, .. } => Ok(Answer::text("yes")),
                other => Ok(Answer::text(format!("no: {other:?}"))),
            }
        },
        Answer::text("yes")
    ),
    constant!(
        "immediate",
        "does the immediate of a send arrive as it was sent?",
        |lab| {
            let pair = lab.pair(RETRIES, false)?;
            pair.b.receive()?;
            pair.a.send(pair.to, 8, Some(0x1234_5678), 0)?;
            match &pair.wait(1, 1)?.1[0].kind {
                ReportedKind::Receive {
                    immediate: Some(0x1234_5678),
                    ..
                } => Ok(Answer::text("yes")),
                other => Ok(Answer::text(format!("no: {other:?}"))),
            }
        },
        Answer::text("yes")
    ),
    constant!(
        "arrival-order",
        "do 64 packets, which were posted at once, arrive in order?",
        |lab| Ok(order(&burst(lab)?.1)),
        Answer::text("in order")
    ),
    constant!(
        "completion-order",
        "do the completions of 64 sends come in the order of the sends?",
        |lab| Ok(order(&burst(lab)?.0)),
        Answer::text("in order")
    ),
    refused_read!(
        "unknown-key",
        "how does an RDMA read end whose remote key is of no region?",
        |lab| refused_read(lab, Access::REMOTE_READ, |request| {
            request.remote_key ^= 0x5500;
        }),
        unknown_key
    ),
    refused_read!(
        "outside-region",
        "how does an RDMA read end that goes beyond the region?",
        |lab| refused_read(lab, Access::REMOTE_READ, |request| {
            request.remote_address += 1;
        }),
        outside_region
    ),
    refused_read!(
        "forbidden-access",
        "how does an RDMA read end of a region that was not registered for it?",
        |lab| refused_read(lab, Access::LOCAL_WRITE, |_| {}),
        forbidden_access
    ),
    refused_read!(
        "stale-key",
        "how does an RDMA read end whose region was deregistered?",
        |lab| {
            if !lab.has(DeviceCaps::RDMA_READ) {
                return Ok(Answer::Absent(NO_READ));
            }
            let pair = lab.pair(RETRIES, false)?;
            pair.introduce()?;
            let local = pair.a.memory(REGION, Access::LOCAL_WRITE)?;
            let remote = pair.b.memory(REGION, Access::REMOTE_READ)?;
            pair.b.deregister(remote)?;
            Ok(Answer::Status(pair.read(pair.rdma(&local, &remote, None))?))
        },
        unknown_key
    ),
    Experiment {
        id: "unknown-peer",
        question: "how does an RDMA read end if the responder has no address handle of the initiator?",
        measure: |lab| {
            if !lab.has(DeviceCaps::RDMA_READ) {
                return Ok(Answer::Absent(NO_READ));
            }
            let pair = lab.pair(RETRIES, false)?;
            let local = pair.a.memory(REGION, Access::LOCAL_WRITE)?;
            let remote = pair.b.memory(REGION, Access::REMOTE_READ)?;
            Ok(Answer::Status(pair.read(pair.rdma(&local, &remote, None))?))
        },
        assumed: |profile| {
            let status = match profile.unknown_peer_check {
                true => profile.statuses.unknown_peer,
                false => Status::Ok,
            };
            with_read(profile, Answer::Status(status))
        },
        learn: |profile, answer| {
            if let Answer::Status(status) = answer {
                profile.unknown_peer_check = *status != Status::Ok;
                if profile.unknown_peer_check {
                    profile.statuses.unknown_peer = *status;
                }
            }
        },
    },
    Experiment {
        id: "key-reuse",
        question: "does memory that is registered again get the same remote key?",
        measure: |lab| {
            let nic = lab.open_target()?;
            let first = nic.memory(REGION, Access::LOCAL_WRITE)?;
            nic.deregister(first)?;
            let again = nic.again(first, Access::LOCAL_WRITE)?;
            Ok(match again.remote_key == first.remote_key {
                true => Answer::text("the same"),
                false => Answer::text("another"),
            })
        },
        assumed: |_| Answer::text("another"),
        learn: learn_nothing,
    },
    Experiment {
        id: "write-immediate",
        question: "does an RDMA write with an immediate consume a receive?",
        measure: |lab| write_with_immediate(lab, false),
        assumed: |profile| match profile.caps.contains(DeviceCaps::RDMA_WRITE) {
            true => Answer::text("one receive"),
            false => Answer::Absent(NO_WRITE),
        },
        learn: learn_nothing,
    },
    Experiment {
        id: "unsolicited-write",
        question: "and on a queue pair for unsolicited writes?",
        measure: |lab| match lab.has(DeviceCaps::UNSOLICITED_WRITE_RECV) {
            true => write_with_immediate(lab, true),
            false => Ok(Answer::Absent(NO_UNSOLICITED)),
        },
        assumed: |profile| match profile.caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV) {
            true => Answer::text("no receive"),
            false => Answer::Absent(NO_UNSOLICITED),
        },
        learn: learn_nothing,
    },
];

const NO_SECOND_ENTRY: &str = "second gather entry";
const NO_READ: &str = "RDMA read";
const NO_WRITE: &str = "RDMA write";
const NO_UNSOLICITED: &str = "unsolicited writes";

/// The answer of a device with RDMA read.
fn with_read(profile: &Profile, answer: Answer) -> Answer {
    match profile.caps.contains(DeviceCaps::RDMA_READ) {
        true => answer,
        false => Answer::Absent(NO_READ),
    }
}

/// The number and the GID of a sender, as reported to its receiver.
type Source = (Option<u16>, Option<[u8; 16]>);

/// Sends to a queue pair with or without an address handle for the sender. Returns the sender that
/// its receive reports.
fn received(lab: &Lab, is_known: bool) -> Result<(Pair, Source), SurveyError> {
    let pair = lab.pair(RETRIES, false)?;
    if is_known {
        pair.introduce()?;
    }
    pair.b.receive()?;
    pair.a.send(pair.to, 8, None, 0)?;
    match pair.wait(1, 1)?.1[0].kind {
        ReportedKind::Receive { ahn, gid, .. } => Ok((pair, (ahn, gid))),
        ref other => Err(SurveyError::NoReceive {
            completion: format!("{other:?}"),
        }),
    }
}

/// Reads all of a region that has this access, after `change` has made the request invalid.
fn refused_read(lab: &Lab, access: Access, change: fn(&mut Rdma)) -> Result<Answer, SurveyError> {
    if !lab.has(DeviceCaps::RDMA_READ) {
        return Ok(Answer::Absent(NO_READ));
    }
    let pair = lab.pair(RETRIES, false)?;
    pair.introduce()?;
    let local = pair.a.memory(REGION, Access::LOCAL_WRITE)?;
    let remote = pair.b.memory(REGION, access)?;
    let mut request = pair.rdma(&local, &remote, None);
    change(&mut request);
    Ok(Answer::Status(pair.read(request)?))
}

/// Writes with immediate data, and reports whether that consumes the one receive of the other side.
fn write_with_immediate(lab: &Lab, unsolicited: bool) -> Result<Answer, SurveyError> {
    if !lab.has(DeviceCaps::RDMA_WRITE) {
        return Ok(Answer::Absent(NO_WRITE));
    }
    let pair = lab.pair(RETRIES, unsolicited)?;
    pair.introduce()?;
    let local = pair.a.memory(REGION, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let remote = pair.b.memory(REGION, access)?;
    pair.b.receive()?;
    let request = pair.rdma(&local, &remote, Some(7));
    let (status, arrived) = pair.write(request, 1)?;
    match (status, &arrived[0].kind) {
        (
            Status::Ok,
            ReportedKind::Written {
                took_receive,
                immediate: 7,
            },
        ) => Ok(Answer::text(match took_receive {
            true => "one receive",
            false => "no receive",
        })),
        (status, other) => Ok(Answer::text(format!("{status:?}, {other:?}"))),
    }
}

/// The number of packets that are posted together.
const BURST: u64 = 64;

/// Sends numbered packets. Returns their numbers in the order of their completions, and in the
/// order of the receives.
fn burst(lab: &Lab) -> Result<(Vec<u64>, Vec<u64>), SurveyError> {
    let pair = lab.pair(RETRIES, false)?;
    for _ in 0..BURST {
        pair.b.receive()?;
    }
    pair.a.send_numbered(pair.to, BURST)?;
    let (sent, arrived) = pair.wait(BURST as usize, BURST as usize)?;
    let number = |done: &ReportedCompletion| match done.kind {
        ReportedKind::Receive { immediate, .. } => immediate.map_or(u64::MAX, u64::from),
        _ => done.context,
    };
    Ok((
        sent.iter().map(number).collect(),
        arrived.iter().map(number).collect(),
    ))
}

fn order(numbers: &[u64]) -> Answer {
    match numbers.is_sorted() {
        true => Answer::text("in order"),
        false => Answer::text("not in order"),
    }
}

fn qpn_reuse(lab: &Lab) -> Result<Answer, SurveyError> {
    let QpnReuse {
        rounds,
        lowest,
        last,
        first,
        following,
    } = lab.reuse()?;
    Ok(match rounds {
        rounds if lowest == rounds => Answer::Reuse(QpnPolicy::Lowest),
        rounds if following == rounds => Answer::Reuse(QpnPolicy::Oldest),
        rounds if last == rounds => Answer::text("the one that was freed last"),
        rounds if first == rounds => Answer::text("the one that was freed first"),
        _ => Answer::Reuse(QpnPolicy::Random),
    })
}
