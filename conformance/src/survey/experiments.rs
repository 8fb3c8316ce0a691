//! The table of experiments.

use std::time::{Duration, Instant};

use efa_core::address::{Gid, Qkey, Qpn};
use efa_core::nic::{
    Access, Completion, CompletionKind, DeviceCaps, Domain as _, LocalKey, Nic as _,
    QueuePair as _, QueuePairConfig, RemoteKey, Source, Status,
};
use efa_emu::profile::Profile;
use efa_emu::qpn_policy::QpnPolicy;
use efa_hw::NicConfig;

use super::lab::{Lab, Pair, memory, rdma, read, receive, send, send_memory, write};
use super::{Answer, Experiment};

/// What stock libfabric lets the device retry.
const RETRIES: u8 = 3;

/// Bytes of the memory that peers read and write.
const REGION: usize = 4096;

/// An experiment whose answer the profile does not have.
const fn learn_nothing(_: &mut Profile, _: &Answer) {}

/// A limit: what the device says, and the profile's field.
macro_rules! limit {
    ($id:literal, $question:literal, $report:ident, $field:ident) => {
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

/// How a refused request ends: the experiment, and the profile's field.
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

/// A refused RDMA read, which takes a device that has RDMA read.
macro_rules! refused_read {
    ($id:literal, $question:literal, $measure:expr, $field:ident) => {
        Experiment {
            assumed: |profile| with_read(profile, Answer::Status(profile.statuses.$field)),
            ..refusal!($id, $question, $measure, $field)
        }
    };
}

/// Something that is the same with all profiles.
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
    limit!(
        "part-id",
        "`vendor_part_id`: the generation of the device",
        vendor_part_id,
        part_id
    ),
    limit!(
        "hw-ver",
        "`hw_ver`: the PCI subsystem device",
        hw_ver,
        hw_version
    ),
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
        measure: |lab| Ok(Answer::Number(lab.report.device_caps.bits().into())),
        assumed: |profile| Answer::Number(profile.caps.bits().into()),
        learn: |profile, answer| {
            if let Answer::Number(bits) = answer {
                profile.caps = DeviceCaps::from_bits_truncate(*bits as u32);
            }
        },
    },
    limit!(
        "max-msg-sz",
        "`max_msg_sz`: the largest packet in bytes",
        max_msg_sz,
        mtu
    ),
    limit!(
        "max-sq-wr",
        "`max_sq_wr`: the largest send queue",
        max_sq_wr,
        max_sq_wr
    ),
    limit!(
        "max-rq-wr",
        "`max_rq_wr`: the largest receive queue",
        max_rq_wr,
        max_rq_wr
    ),
    limit!(
        "max-sq-sge",
        "`max_sq_sge`: gather entries of a send",
        max_sq_sge,
        max_sq_sge
    ),
    limit!(
        "max-rq-sge",
        "`max_rq_sge`: scatter entries of a receive",
        max_rq_sge,
        max_rq_sge
    ),
    limit!(
        "max-sge-rd",
        "`max_sge_rd`: local entries of an RDMA request",
        max_sge_rd,
        max_rdma_sge
    ),
    limit!(
        "inline-buf-size",
        "`inline_buf_size`: inline bytes of a send",
        inline_buf_size,
        inline_size
    ),
    limit!(
        "max-rdma-size",
        "`max_rdma_size`: the longest RDMA request",
        max_rdma_size,
        max_rdma_size
    ),
    limit!("max-qp", "`max_qp`: queue pairs", max_qp, max_qp),
    limit!("max-cq", "`max_cq`: completion queues", max_cq, max_cq),
    limit!(
        "max-cqe",
        "`max_cqe`: entries of a completion queue",
        max_cqe,
        max_cqe
    ),
    limit!("max-mr", "`max_mr`: memory regions", max_mr, max_mr),
    limit!(
        "max-mr-size",
        "`max_mr_size`: bytes of a region",
        max_mr_size,
        max_mr_size
    ),
    limit!("max-pd", "`max_pd`: protection domains", max_pd, max_pd),
    limit!("max-ah", "`max_ah`: address handles", max_ah, max_ah),
    limit!(
        "comp-vectors",
        "completion vectors of a context",
        comp_vectors,
        comp_vectors
    ),
    refusal!(
        "unknown-queue-pair",
        "how does a send end whose destination queue pair was destroyed?",
        |lab| {
            let mut pair = lab.pair(RETRIES, false)?;
            let gone = lab.open(NicConfig::default())?;
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
            pair.to.qkey = Qkey(pair.to.qkey.0 ^ 1);
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
            let mut pair = lab.pair(7, false)?;
            send(&mut pair.a, pair.to, &[0; 8], None, 0)?;
            std::thread::sleep(Duration::from_millis(2));
            receive(&mut pair.b)?;
            Ok(Answer::Status(pair.wait(1, 1)?.0[0].status))
        },
        Answer::Status(Status::Ok)
    ),
    Experiment {
        id: "not-ready-wait",
        question: "how long does the device wait before the first retry?",
        measure: |lab| {
            if !lab.report.device_caps.contains(DeviceCaps::RNR_RETRY) {
                return Ok(Answer::Absent("settable retries (RNR_RETRY)"));
            }
            let mut shortest = Duration::MAX;
            for _ in 0..5 {
                let mut pair = lab.pair(1, false)?;
                let started = Instant::now();
                pair.send_status()?;
                shortest = shortest.min(started.elapsed());
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
            let mut pair = lab.pair(RETRIES, false)?;
            let own = memory(&mut pair.a, REGION, Access::LOCAL_WRITE)?;
            let mut slice = own.slice;
            slice.length = 64;
            let wrong = LocalKey(own.region.local_key.0 ^ 0x55);
            send_memory(&mut pair.a, pair.to, (slice, wrong))?;
            Ok(Answer::Status(pair.wait(1, 0)?.0[0].status))
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
            let gid = pair.a.address().gid;
            Ok(match source {
                Source { ahn: Some(_), .. } => Answer::text("a number"),
                Source {
                    gid: Some(told), ..
                } if told == gid => Answer::text("no number, and its GID"),
                Source { gid: Some(_), .. } => Answer::text("no number, and another GID"),
                Source { gid: None, .. } => Answer::text("no number, and no GID"),
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
            let (mut pair, source) = received(lab, true)?;
            let gid = pair.a.address().gid;
            let own = pair
                .b
                .create_address_handle(gid)
                .map_err(|error| error.to_string())?;
            Ok(match source.ahn {
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
            let mut pair = lab.pair(RETRIES, false)?;
            let gid = pair.b.address().gid;
            let own = pair
                .b
                .create_address_handle(gid)
                .map_err(|error| error.to_string())?;
            Ok(match own == pair.to.ahn {
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
            let mut nic = lab.open(NicConfig::default())?;
            let own = nic.address().gid;
            let mut create = |last: u8| {
                let mut gid = own;
                gid.0[8..].copy_from_slice(&[0x02, 0, 0, 0xff, 0xfe, 0, 0, last]);
                let created = nic.create_address_handle(Gid(gid.0));
                created.map_err(|error| format!("a handle of a GID that nobody has: {error}"))
            };
            let numbers = [create(1)?, create(2)?, create(3)?];
            nic.destroy_address_handle(numbers[1])
                .map_err(|error| error.to_string())?;
            let mut gid = own;
            gid.0[8..].copy_from_slice(&[0x02, 0, 0, 0xff, 0xfe, 0, 0, 4]);
            let next = nic
                .create_address_handle(gid)
                .map_err(|error| error.to_string())?;
            Ok(match next {
                next if next == numbers[1] => Answer::text("at once"),
                next if next.0 == numbers[2].0.wrapping_add(1) => {
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
            let mut pair = lab.pair(RETRIES, false)?;
            receive(&mut pair.b)?;
            send(&mut pair.a, pair.to, &[], None, 0)?;
            match pair.wait(1, 1)?.1[0].kind {
                CompletionKind::Recv { length: 0, .. } => Ok(Answer::text("yes")),
                other => Ok(Answer::text(format!("no: {other:?}"))),
            }
        },
        Answer::text("yes")
    ),
    constant!(
        "immediate",
        "does the immediate of a send arrive as it was sent?",
        |lab| {
            let mut pair = lab.pair(RETRIES, false)?;
            receive(&mut pair.b)?;
            send(&mut pair.a, pair.to, &[1; 8], Some(0x1234_5678), 0)?;
            match pair.wait(1, 1)?.1[0].kind {
                CompletionKind::Recv {
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
        "do 64 packets, which were posted at once, arrive in order on one device?",
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
            request.remote_key = RemoteKey(request.remote_key.0 ^ 0x5500);
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
            if !lab.report.device_caps.contains(DeviceCaps::RDMA_READ) {
                return Ok(Answer::Absent(NO_READ));
            }
            let mut pair = lab.pair(RETRIES, false)?;
            pair.introduce()?;
            let local = memory(&mut pair.a, REGION, Access::LOCAL_WRITE)?;
            let remote = memory(&mut pair.b, REGION, Access::REMOTE_READ)?;
            pair.b
                .deregister(remote.region)
                .map_err(|error| error.to_string())?;
            let request = rdma(pair.to, &local, &remote, None);
            Ok(Answer::Status(read(&mut pair, &request)?))
        },
        unknown_key
    ),
    Experiment {
        id: "unknown-peer",
        question: "how does an RDMA read end if the responder has no address handle of the initiator?",
        measure: |lab| {
            if !lab.report.device_caps.contains(DeviceCaps::RDMA_READ) {
                return Ok(Answer::Absent(NO_READ));
            }
            let mut pair = lab.pair(RETRIES, false)?;
            let local = memory(&mut pair.a, REGION, Access::LOCAL_WRITE)?;
            let remote = memory(&mut pair.b, REGION, Access::REMOTE_READ)?;
            let request = rdma(pair.to, &local, &remote, None);
            Ok(Answer::Status(read(&mut pair, &request)?))
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
            let mut pair = lab.pair(RETRIES, false)?;
            let first = memory(&mut pair.b, REGION, Access::LOCAL_WRITE)?;
            pair.b
                .deregister(first.region)
                .map_err(|error| error.to_string())?;
            let again = pair.b.register(first.slice, Access::LOCAL_WRITE);
            let again = again.map_err(|error| error.to_string())?;
            Ok(match again.remote_key == first.region.remote_key {
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
        measure: |lab| {
            let caps = lab.report.device_caps;
            match caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV) {
                true => write_with_immediate(lab, true),
                false => Ok(Answer::Absent(NO_UNSOLICITED)),
            }
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

/// The answer of a device that has RDMA read.
fn with_read(profile: &Profile, answer: Answer) -> Answer {
    match profile.caps.contains(DeviceCaps::RDMA_READ) {
        true => answer,
        false => Answer::Absent(NO_READ),
    }
}

/// Sends to a queue pair that knows the sender, or not. Returns what its receive says of the sender.
fn received(lab: &Lab, is_known: bool) -> Result<(Pair, Source), String> {
    let mut pair = lab.pair(RETRIES, false)?;
    if is_known {
        pair.introduce()?;
    }
    receive(&mut pair.b)?;
    send(&mut pair.a, pair.to, &[0; 8], None, 0)?;
    match pair.wait(1, 1)?.1[0].kind {
        CompletionKind::Recv { source, .. } => Ok((pair, source)),
        other => Err(format!("no receive: {other:?}")),
    }
}

/// Reads all of a region with this access, after `change` has made the request wrong.
fn refused_read(
    lab: &Lab,
    access: Access,
    change: fn(&mut efa_core::nic::RdmaRequest),
) -> Result<Answer, String> {
    if !lab.report.device_caps.contains(DeviceCaps::RDMA_READ) {
        return Ok(Answer::Absent(NO_READ));
    }
    let mut pair = lab.pair(RETRIES, false)?;
    pair.introduce()?;
    let local = memory(&mut pair.a, REGION, Access::LOCAL_WRITE)?;
    let remote = memory(&mut pair.b, REGION, access)?;
    let mut request = rdma(pair.to, &local, &remote, None);
    change(&mut request);
    Ok(Answer::Status(read(&mut pair, &request)?))
}

/// Writes with an immediate, and says what that takes at the other side, which has one receive.
fn write_with_immediate(lab: &Lab, unsolicited: bool) -> Result<Answer, String> {
    if !lab.report.device_caps.contains(DeviceCaps::RDMA_WRITE) {
        return Ok(Answer::Absent(NO_WRITE));
    }
    let mut pair = lab.pair(RETRIES, unsolicited)?;
    pair.introduce()?;
    let local = memory(&mut pair.a, REGION, Access::LOCAL_WRITE)?;
    let remote = memory(
        &mut pair.b,
        REGION,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    )?;
    receive(&mut pair.b)?;
    let request = rdma(pair.to, &local, &remote, Some(7));
    let (status, arrived) = write(&mut pair, &request, 1)?;
    match (status, arrived[0].kind) {
        (
            Status::Ok,
            CompletionKind::RecvRdmaWithImmediate {
                buffer,
                immediate: 7,
                ..
            },
        ) => Ok(Answer::text(match buffer {
            Some(_) => "one receive",
            None => "no receive",
        })),
        (status, other) => Ok(Answer::text(format!("{status:?}, {other:?}"))),
    }
}

/// How many packets are posted at once.
const BURST: u64 = 64;

/// Sends numbered packets. Returns their numbers in the order of the completions, and in that of the receives.
fn burst(lab: &Lab) -> Result<(Vec<u64>, Vec<u64>), String> {
    let mut pair = lab.pair(RETRIES, false)?;
    for _ in 0..BURST {
        receive(&mut pair.b)?;
    }
    for number in 0..BURST {
        let immediate = Some(number as u32);
        send(&mut pair.a, pair.to, &[0; 8], immediate, number)?;
    }
    let (sent, arrived) = pair.wait(BURST as usize, BURST as usize)?;
    let number = |completion: &Completion| match completion.kind {
        CompletionKind::Recv { immediate, .. } => immediate.map_or(u64::MAX, u64::from),
        _ => completion.context,
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

/// Makes four queue pairs, destroys three of them, and looks which number comes next; again and again.
fn qpn_reuse(lab: &Lab) -> Result<Answer, String> {
    const ROUNDS: usize = 4;
    // Reasons that the number that came was expected for.
    let (mut lowest, mut last, mut first, mut following) = (0, 0, 0, 0);
    let mut nic = lab.open(NicConfig::default())?;
    let queue = nic.queue_pair().completion_queue();
    let config = QueuePairConfig {
        send_queue_depth: 16,
        recv_queue_depth: 16,
        qkey: None,
        rnr_retry: RETRIES,
        unsolicited_write_recv: false,
    };
    for _ in 0..ROUNDS {
        let mut made = Vec::new();
        for _ in 0..4 {
            let pair = nic.create_queue_pair(queue, &config);
            made.push(pair.map_err(|error| error.to_string())?);
        }
        let numbers: Vec<Qpn> = made.iter().map(|pair| pair.address().qpn).collect();
        let kept = made.pop();
        // The middle number goes last, so that each reason has a number of its own.
        let order = [
            made.pop(),
            (!made.is_empty()).then(|| made.remove(0)),
            made.pop(),
        ];
        for pair in order.into_iter().flatten() {
            pair.close(&mut nic);
        }
        let next = nic
            .create_queue_pair(queue, &config)
            .map_err(|error| error.to_string())?;
        let number = next.address().qpn;
        lowest += usize::from(Some(&number) == numbers[..3].iter().min_by_key(|qpn| qpn.0));
        first += usize::from(number == numbers[2]);
        last += usize::from(number == numbers[1]);
        following += usize::from(number.0 == numbers[3].0.wrapping_add(1));
        next.close(&mut nic);
        kept.into_iter().for_each(|pair| pair.close(&mut nic));
    }
    Ok(match ROUNDS {
        rounds if lowest == rounds => Answer::Reuse(QpnPolicy::Lowest),
        rounds if following == rounds => Answer::Reuse(QpnPolicy::Oldest),
        rounds if last == rounds => Answer::text("the one that was freed last"),
        rounds if first == rounds => Answer::text("the one that was freed first"),
        _ => Answer::Reuse(QpnPolicy::Random),
    })
}
