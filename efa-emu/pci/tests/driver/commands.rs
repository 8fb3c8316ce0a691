//! Commands of the admin queue: created objects and refusals.

use efa_device_model::device::queue::{CompletionSize, WqeSize};
use efa_pci::admin::{
    AllocPd, AllocUar, CqMade, CreateAh, CreateCq, CreateQp, DeallocPd, DeallocUar, DestroyAh,
    DestroyCq, DestroyEq, DestroyQp, ENTRY, ModifyMask, QpMade, QpState, QueryQp, RegMr,
};
use zerocopy::FromZeros;

use super::fake::{Driver, Endpoint, Memory, driver};
use super::guest::{FABRIC, LENGTH, MEMORY, PAGE};

const NO_RESOURCES: u8 = 1;
const UNSUPPORTED: u8 = 3;
const ILLEGAL: u8 = 5;
const UNKNOWN: u8 = 6;
const BUSY: u8 = 7;

#[test]
fn more_commands_than_entries_go_round() {
    let (_root, mut driver) = driver("efa2");
    for _ in 0..200 {
        driver.feature(1).unwrap();
    }
}

#[test]
fn domains_and_access_regions_are_numbered_and_freed() {
    let (_root, mut driver) = driver("efa2");
    let pd = driver.number(14, &AllocPd::new_zeroed());
    let uar = driver.number(16, &AllocUar::new_zeroed());
    assert_eq!((pd, uar), (1, 1));
    let mut free_pd = DeallocPd::new_zeroed();
    free_pd.pd = pd.into();
    let mut free_uar = DeallocUar::new_zeroed();
    free_uar.uar = uar.into();
    for expected in [Ok(()), Err(ILLEGAL)] {
        assert_eq!(driver.command(15, &free_pd).map(drop), expected);
        assert_eq!(driver.command(17, &free_uar).map(drop), expected);
    }
}

#[test]
fn the_state_of_a_queue_pair_is_returned() {
    let (_root, mut driver) = driver("efa2");
    let endpoint = Endpoint::new(&mut driver, WqeSize::Bytes64, None);
    let mut query = QueryQp::new_zeroed();
    query.handle = endpoint.made.handle;
    let state = driver.make::<QpState>(3, &query).unwrap();
    assert_eq!((state.state.get(), state.rnr_retry), (3, 7));
    assert_eq!(state.qkey.get(), efa_testing::device::QKEY.0);
    let handle = endpoint.made.handle.get();
    let wrong = Driver::modify_request(handle, 2, 6, ModifyMask::empty());
    assert_eq!(
        driver.command(2, &wrong),
        Err(ILLEGAL),
        "it is not in that state"
    );
    let mut unknown = Driver::modify_request(handle, 3, 6, ModifyMask::empty());
    unknown.mask = (1 << 6).into();
    assert_eq!(driver.command(2, &unknown), Err(ILLEGAL));
    let error = Driver::modify_request(handle, 3, 6, ModifyMask::empty());
    driver.command(2, &error).unwrap();
    assert_eq!(driver.make::<QpState>(3, &query).unwrap().state.get(), 6);
    endpoint.destroy(&mut driver);
    assert_eq!(driver.command(3, &query), Err(ILLEGAL));
}

#[test]
fn used_objects_are_busy() {
    let (_root, mut driver) = driver("efa2");
    let (eqn, _) = driver.create_eq();
    let endpoint = Endpoint::new(&mut driver, WqeSize::Bytes64, Some(eqn));
    let mut queue = DestroyCq::new_zeroed();
    queue.cq = endpoint.cq.into();
    assert_eq!(driver.command(10, &queue), Err(BUSY));
    let mut events = DestroyEq::new_zeroed();
    events.eqn = eqn.into();
    assert_eq!(driver.command(19, &events), Err(BUSY));
    let mut pd = DeallocPd::new_zeroed();
    pd.pd = driver.pd.into();
    assert_eq!(driver.command(15, &pd), Err(BUSY));
    endpoint.destroy(&mut driver);
    driver.command(19, &events).unwrap();
    driver.command(15, &pd).unwrap();
}

#[test]
fn handles_of_one_address_have_one_number() {
    let (_root, mut driver) = driver("efa2");
    let gid = driver.gid();
    let mut other = gid;
    other.0[15] ^= 1;
    let (first, second) = (driver.address(gid), driver.address(other));
    assert_eq!(driver.address(gid), first);
    assert_ne!(first, second);
    let mut destroy = DestroyAh::new_zeroed();
    destroy.ah = first.into();
    destroy.pd = driver.pd.into();
    for expected in [Ok(()), Ok(()), Err(ILLEGAL)] {
        assert_eq!(driver.command(6, &destroy).map(drop), expected);
    }
    let mut nowhere = CreateAh::new_zeroed();
    nowhere.pd = driver.pd.into();
    assert_eq!(driver.command(5, &nowhere), Err(ILLEGAL));
}

#[test]
fn wrong_completion_queues_are_refused() {
    let (_root, mut driver) = driver("efa0");
    let mut refused = |size, change: fn(&mut CreateCq)| {
        let mut request = driver.cq_request(size, None);
        change(&mut request);
        driver.command(9, &request).unwrap_err()
    };
    let short = CompletionSize::Bytes16;
    assert_eq!(refused(short, |cq| cq.depth = 3.into()), ILLEGAL);
    assert_eq!(refused(short, |cq| cq.depth = 0.into()), ILLEGAL);
    assert_eq!(refused(short, |cq| cq.entry = 5), ILLEGAL);
    assert_eq!(refused(short, |cq| cq.entry = 4 | 0x20), ILLEGAL);
    assert_eq!(refused(short, |cq| cq.sub_queues = 2.into()), ILLEGAL);
    assert_eq!(refused(short, |cq| cq.uar = 9.into()), ILLEGAL);
    assert_eq!(
        refused(short, |cq| cq.flags = 0x20),
        ILLEGAL,
        "no event queue"
    );
    assert_eq!(refused(short, |cq| cq.flags = 0x40), UNSUPPORTED);
    // Completions of this generation never have a GID.
    let long = CompletionSize::Bytes32;
    assert_eq!(refused(long, |cq| cq.entry = 8 | 0x20), UNSUPPORTED);
    let end = MEMORY + LENGTH - PAGE;
    for base in [
        0,
        8,
        MEMORY - 64,
        MEMORY + 8,
        end + 64,
        MEMORY + LENGTH,
        u64::MAX - 63,
    ] {
        let mut request = driver.cq_request(short, None);
        request.base = base.into();
        assert_eq!(driver.command(9, &request), Err(ILLEGAL), "{base:#x}");
    }
    let request = driver.cq_request(long, None);
    driver.command(9, &request).unwrap();
}

#[test]
fn wrong_queue_pairs_are_refused_and_cost_nothing() {
    let (_root, mut driver) = driver("efa0");
    let request = driver.cq_request(CompletionSize::Bytes16, None);
    let cq = driver.make::<CqMade>(9, &request).unwrap().cq.get();
    let mut refused = |change: fn(&mut CreateQp)| {
        let mut request = driver.qp_request(cq, WqeSize::Bytes64);
        change(&mut request);
        driver.command(1, &request).unwrap_err()
    };
    assert_eq!(refused(|qp| qp.service = 0), ILLEGAL);
    assert_eq!(refused(|qp| qp.service = 3), ILLEGAL);
    assert_eq!(refused(|qp| qp.flags = 1), UNSUPPORTED);
    assert_eq!(
        refused(|qp| qp.flags = 4),
        UNSUPPORTED,
        "of a later generation"
    );
    assert_eq!(refused(|qp| qp.pd = 9.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.uar = 9.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.send_cq = 9.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.recv_cq = u32::MAX.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.send_depth = 65.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.send_depth = u32::MAX.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.send_bytes = 63.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.send_bytes = u32::MAX.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.recv_bytes = 48.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.recv_bytes = u32::MAX.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.recv_base = 64.into()), ILLEGAL);
    assert_eq!(refused(|qp| qp.recv_base = (u64::MAX - 63).into()), ILLEGAL);
    let long = |qp: &mut CreateQp| {
        qp.send_depth = 8192.into();
        qp.send_bytes = (8192 * 64).into();
    };
    assert_eq!(refused(long), ILLEGAL, "longer than the device's longest");
    // The refused command has used no memory of send queues.
    let request = driver.qp_request(cq, WqeSize::Bytes64);
    let made = driver.make::<QpMade>(1, &request).unwrap();
    assert_eq!((made.send_queue.get(), made.handle.get()), (0, 0));
}

#[test]
fn the_shortest_queues_are_possible() {
    let (_root, mut driver) = driver("efa2");
    let mut queue = driver.cq_request(CompletionSize::Bytes16, None);
    queue.depth = 1.into();
    let cq = driver.make::<CqMade>(9, &queue).unwrap().cq.get();
    for (recv_bytes, send_bytes) in [(16, 64), (32, 128), (0, 64), (16, 0)] {
        let mut request = driver.qp_request(cq, WqeSize::Bytes64);
        request.recv_bytes = recv_bytes.into();
        request.recv_depth = 1.into();
        request.send_bytes = send_bytes.into();
        request.send_depth = 1.into();
        driver.command(1, &request).unwrap();
    }
}

#[test]
fn send_queues_take_as_much_as_there_is() {
    let (_root, mut driver) = driver("efa2");
    let request = driver.cq_request(CompletionSize::Bytes16, None);
    let cq = driver.make::<CqMade>(9, &request).unwrap().cq.get();
    let mut request = driver.qp_request(cq, WqeSize::Bytes128);
    request.recv_bytes = 0.into();
    request.send_depth = 4096.into();
    request.send_bytes = (4096 * 128).into();
    let mut handles = Vec::new();
    let status = loop {
        match driver.make::<QpMade>(1, &request) {
            Ok(made) => handles.push(made.handle),
            Err(status) => break status,
        }
    };
    assert_eq!((status, handles.len()), (NO_RESOURCES, 128));
    let mut destroy = DestroyQp::new_zeroed();
    destroy.handle = handles[7];
    driver.command(4, &destroy).unwrap();
    driver.command(1, &request).unwrap();
}

#[test]
fn wrong_regions_are_refused() {
    let (_root, mut driver) = driver("efa1");
    let page = driver.take(4 * PAGE);
    let request = |driver: &Driver| {
        let mut request = RegMr::new_zeroed();
        request.pd = driver.pd.into();
        request.length = PAGE.into();
        request.flags = 12;
        request.permissions = RegMr::LOCAL_WRITE;
        request.pages[0] = page.into();
        request
    };
    let mut refused = |change: fn(&mut RegMr)| {
        let mut request = request(&driver);
        change(&mut request);
        driver.command(7, &request).unwrap_err()
    };
    assert_eq!(refused(|mr| mr.pd = 9.into()), ILLEGAL);
    assert_eq!(refused(|mr| mr.length = 0.into()), ILLEGAL);
    assert_eq!(refused(|mr| mr.length = u64::MAX.into()), ILLEGAL);
    assert_eq!(refused(|mr| mr.iova = (u64::MAX - 4095).into()), ILLEGAL);
    assert_eq!(refused(|mr| mr.flags = 11), ILLEGAL);
    assert_eq!(refused(|mr| mr.flags = 12 | RegMr::PHYSICAL), UNSUPPORTED);
    assert_eq!(refused(|mr| mr.permissions = 0x80), ILLEGAL);
    assert_eq!(
        refused(|mr| mr.permissions = 0b011),
        UNSUPPORTED,
        "this one has no RDMA write"
    );
    assert_eq!(refused(|mr| mr.pages[0] = 0.into()), ILLEGAL);
    assert_eq!(refused(|mr| mr.pages[0] = (MEMORY + 8).into()), ILLEGAL);
    assert_eq!(
        refused(|mr| mr.pages[0] = (MEMORY + LENGTH).into()),
        ILLEGAL
    );
    // The second page is at address 0, which is not memory.
    assert_eq!(refused(|mr| mr.iova = 1.into()), ILLEGAL);
    let good = request(&driver);
    driver.command(7, &good).unwrap();
    assert_eq!(driver.deregister(0), Err(ILLEGAL));
}

#[test]
fn a_region_ends_when_it_is_deregistered() {
    let (_root, mut driver) = driver("efa2");
    let memory = Memory::new(&mut driver);
    driver.deregister(memory.lkey).unwrap();
    assert_eq!(driver.deregister(memory.lkey), Err(ILLEGAL));
}

#[test]
fn statistics_count_commands_and_nothing_else() {
    let (_root, mut driver) = driver("efa2");
    for (statistics, count) in [(0, 5), (1, 4), (2, 4), (3, 4), (4, 5)] {
        let numbers = driver.statistics(statistics);
        assert!(numbers.iter().all(|number| *number == 0) && numbers.len() >= count);
    }
}

fn arm(root: &tempfile::TempDir, rule: &str) {
    let fabric = efa_shm::Fabric::open_below(root.path(), FABRIC).unwrap();
    fabric.arm(&rule.parse().unwrap()).unwrap();
}

/// The number of a created protection domain.
fn pd_of(entry: [u8; ENTRY]) -> u16 {
    u16::from_le_bytes([entry[8], entry[9]])
}

#[test]
fn staged_faults_fail_commands() {
    let (root, mut driver) = driver("efa2");
    for (errno, status) in [
        ("ENOMEM", NO_RESOURCES),
        ("EOPNOTSUPP", UNSUPPORTED),
        ("EINVAL", ILLEGAL),
        ("EPERM", UNKNOWN),
    ] {
        let rule = format!(
            "when = {{ on = 'command', command = 'alloc-pd', host = 'vm', nth = 2 }}, \
             then = {{ fail = '{errno}' }}"
        );
        arm(&root, &rule);
        let before = driver.command(14, &AllocPd::new_zeroed()).map(pd_of);
        let failed = driver.command(14, &AllocPd::new_zeroed()).map(pd_of);
        assert!(driver.feature(1).is_ok(), "another command");
        let after = driver.command(14, &AllocPd::new_zeroed()).map(pd_of);
        assert_eq!(failed, Err(status), "{errno}");
        assert_eq!(after, before.map(|pd| pd + 1), "a failed one makes nothing");
    }
}

#[test]
fn a_delayed_command_is_done_and_completes_later() {
    let (root, mut driver) = driver("efa2");
    for delay in ["60s", "1ms"] {
        let rule = format!(
            "when = {{ on = 'command', command = 'alloc-pd', count = 1 }}, \
             then = {{ delay = '{delay}' }}"
        );
        arm(&root, &rule);
    }
    driver.give(14, &AllocPd::new_zeroed());
    assert!(driver.feature(1).is_ok(), "others do not wait for it");
    let late = driver.give(14, &AllocPd::new_zeroed());
    let (id, outcome) = loop {
        match driver.take_completion() {
            Some(completion) => break completion,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(id, late);
    assert_eq!(outcome.map(pd_of), Ok(2), "the first was carried out, too");
    assert!(driver.take_completion().is_none());
}

#[test]
fn a_lost_command_is_neither_done_nor_completed() {
    let (root, mut driver) = driver("efa2");
    arm(
        &root,
        "when = { on = 'command', command = 'alloc-pd', count = 1 }, then = 'lose'",
    );
    driver.give(14, &AllocPd::new_zeroed());
    // Commands are served in order, so it would have completed before this one.
    let entry = driver.command(14, &AllocPd::new_zeroed());
    assert_eq!(entry.map(pd_of), Ok(1));
    assert!(driver.take_completion().is_none());
    driver.start();
    assert!(driver.feature(1).is_ok(), "a reset takes it back");
}
