//! Processes that are killed at any moment, stopped, or forked.

use std::path::Path;
use std::time::Duration;

use efa_core::nic::Status;
use efa_device_model::provider::{SendData, WcOpcode};
use efa_shm::{FabricError, RdmaPath};
use efa_testing::engine::{Address, Client, config, fabric};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::exchange::connect;
use crate::processes::{Parent, Process};

const SLOT: usize = 8928;
const BUFFERS: u64 = 64;

/// A child that sends and reads as fast as it can, to its parent and to itself, until it is killed.
pub(crate) fn hammer(parent: &Parent) {
    let mut own = config("victim");
    if parent.seed % 2 == 1 {
        own.rdma = RdmaPath::Rings;
    }
    let mut client = Client::open(&parent.root, &own);
    let memory = client.register(vec![5; 2 << 20]);
    parent.say(&client.address().to_text());
    let to = client.connect(Address::from_text(&parent.hear().unwrap()));
    let there = parent.hear().unwrap();
    let (address, rkey) = there.split_once(' ').unwrap();
    let there: (u64, u32) = (address.parse().unwrap(), rkey.parse().unwrap());
    parent.say(&format!("{} {}", memory.address(), memory.keys.rkey.0));
    for index in 0..BUFFERS {
        client.post_recv(index, memory.buffer(index as usize * SLOT, SLOT));
    }
    let mut random = SmallRng::seed_from_u64(parent.seed);
    let mut free = 128u32;
    loop {
        while free > 0 {
            free -= 1;
            let length = random.random_range(0..SLOT);
            let bulk = random.random_range(1..1 << 20);
            match random.random_range(0..16) {
                0 => client.post_read(BUFFERS, to, memory.buffer(1 << 20, bulk), there),
                1 => client.post_write(BUFFERS, to, memory.buffer(0, bulk), there, None),
                _ => {
                    let data = [memory.buffer(0, length)];
                    assert!(client.post_send(BUFFERS, to, SendData::Buffers(&data)));
                }
            }
        }
        let completion = client.wait();
        match completion.opcode() {
            WcOpcode::Recv => {
                let at = completion.wr_id as usize * SLOT;
                client.post_recv(completion.wr_id, memory.buffer(at, SLOT));
            }
            _ => free += 1,
        }
    }
}

/// The files below a test's root.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn survivors_of_a_killed_process_go_on() {
    kill_and_go_on(RdmaPath::Auto, 24);
}

/// Some containers forbid processes to read each other's memory. Half of the victims do the same,
/// so that data of reads goes through the rings, which the other requests of both sides fill.
#[test]
fn survivors_continue_with_rdma_through_rings() {
    kill_and_go_on(RdmaPath::Rings, 4);
}

/// Kills `rounds` processes that exchange requests with the survivor, one after the other.
fn kill_and_go_on(rdma: RdmaPath, rounds: u64) {
    let root = tempfile::tempdir().unwrap();
    let mut random = SmallRng::seed_from_u64(1);
    let mut own = config("survivor");
    own.rdma = rdma;
    let mut survivor = Client::open(root.path(), &own);
    let memory = survivor.register(vec![3; BUFFERS as usize * SLOT + (2 << 20)]);
    let bulk = BUFFERS as usize * SLOT;
    for index in 0..BUFFERS {
        survivor.post_recv(index, memory.buffer(index as usize * SLOT, SLOT));
    }
    let mut statuses = std::collections::BTreeSet::new();
    for round in 0..rounds {
        let mut victim = Process::start("hammer", root.path(), round);
        let to = connect(&survivor, &mut victim);
        victim.say(&format!(
            "{} {}",
            memory.address() + bulk as u64,
            memory.keys.rkey.0
        ));
        let there = victim.hear();
        let (address, rkey) = there.split_once(' ').unwrap();
        let there: (u64, u32) = (address.parse().unwrap(), rkey.parse().unwrap());
        // The survivor sends the victim as many requests as it gets from it.
        let mut outstanding = 0;
        let mut received = 0u64;
        let lifetime: u64 = random.random_range(1..3000);
        let mut victim = Some(victim);
        let mut failed = 0;
        loop {
            if received >= lifetime
                && let Some(victim) = victim.take()
            {
                victim.kill();
            }
            // Outstanding requests fail, and so do some that are posted afterwards.
            while outstanding < 64 && (victim.is_some() || failed < 200) {
                outstanding += 1;
                let length = random.random_range(0..SLOT);
                let longer = random.random_range(1..1 << 20);
                match random.random_range(0..16) {
                    0 => survivor.post_read(BUFFERS, to, memory.buffer(bulk, longer), there),
                    1 => survivor.post_write(BUFFERS, to, memory.buffer(bulk, longer), there, None),
                    _ => {
                        let data = [memory.buffer(0, length)];
                        assert!(survivor.post_send(BUFFERS, to, SendData::Buffers(&data)));
                    }
                }
            }
            if outstanding == 0 && victim.is_none() {
                break;
            }
            // Every request of the survivor completes; otherwise this loop does not end.
            let Some(completion) = survivor.poll() else {
                std::thread::yield_now();
                continue;
            };
            if completion.opcode() == WcOpcode::Recv {
                assert_eq!(completion.status(), Some(Status::Ok));
                received += 1;
                let at = completion.wr_id as usize * SLOT;
                survivor.post_recv(completion.wr_id, memory.buffer(at, SLOT));
                continue;
            }
            outstanding -= 1;
            let status = completion.status().unwrap();
            if status != Status::Ok {
                assert!(victim.is_none(), "{status:?} from a live victim");
                failed += 1;
                statuses.insert(status.code());
            }
        }
        // A new process of the same host works at once, with a new queue pair. Its open has removed
        // the files of the killed process.
        let mut successor = Process::start("echo", root.path(), round);
        let to = connect(&survivor, &mut successor);
        assert_eq!(successor.hear(), "ready");
        let hosts = fabric(root.path()).hosts().unwrap();
        let names: Vec<_> = hosts.iter().map(|host| host.name.to_string()).collect();
        assert_eq!(names, ["echo", "survivor"]);
        assert_eq!(hosts[0].participants[0].pid, successor.pid());
        assert!(hosts.iter().all(|host| host.participants.len() == 1));
        assert!(
            hosts
                .iter()
                .all(|host| host.participants[0].queue_pairs.len() == 1)
        );
        assert_eq!(
            files(root.path()).len(),
            2 * 3 + 2,
            "{:?}",
            files(root.path())
        );
        let word = [memory.buffer(0, 100)];
        assert!(survivor.post_send(BUFFERS, to, SendData::Buffers(&word)));
        let mut back = 0;
        while back < 2 {
            let completion = survivor.wait_ok();
            back += 1;
            if completion.opcode() == WcOpcode::Recv {
                assert_eq!(completion.byte_len(), 100);
                let at = completion.wr_id as usize * SLOT;
                survivor.post_recv(completion.wr_id, memory.buffer(at, SLOT));
            }
        }
        successor.kill();
    }
    assert!(
        statuses.contains(&Status::RemoteBadDestQpn.code()),
        "{statuses:?}"
    );
    assert_eq!(statuses.len(), 1, "codes {statuses:?}");
    // The last victim left files behind; the next scan of the fabric removes them.
    assert!(files(root.path()).len() > 5);
    fabric(root.path()).hosts().unwrap();
    assert_eq!(files(root.path()).len(), 5);
    drop(survivor);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// A child that opens and closes devices until it is killed.
pub(crate) fn churn(parent: &Parent) {
    parent.say("ready");
    loop {
        drop(Client::open(&parent.root, &config("churn")));
    }
}

#[test]
fn killing_during_open_and_close_leaves_nothing() {
    const ROUNDS: u64 = 60;
    let root = tempfile::tempdir().unwrap();
    let mut random = SmallRng::seed_from_u64(2);
    for round in 0..ROUNDS {
        let mut first = Process::start("churn", root.path(), round);
        let mut second = Process::start("churn", root.path(), round);
        first.hear();
        second.hear();
        std::thread::sleep(Duration::from_micros(random.random_range(0..3000)));
        first.kill();
        // Neither the other process nor a new one is disturbed.
        let mut client = Client::open(root.path(), &config("churn"));
        let to_self = client.connect(client.address());
        let memory = client.register(vec![0; 64]);
        client.post_recv(1, memory.buffer(0, 64));
        assert!(client.post_send(2, to_self, SendData::Inline(&[b"x"])));
        client.wait_ok();
        client.wait_ok();
        second.kill();
    }
    assert_eq!(fabric(root.path()).hosts().unwrap(), []);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// A child that forks a grandchild which outlives it, without executing another program.
pub(crate) fn forker(parent: &Parent) {
    let mut client = Client::open(&parent.root, &config("forker"));
    let memory = client.register(vec![0; 64]);
    // SAFETY: the grandchild does only what a forked child of a threaded process may do: it uses
    // its own memory, and makes calls that fail cleanly.
    let grandchild = unsafe { libc::fork() };
    if grandchild == 0 {
        let refused = [
            client.engine.is_forked(),
            matches!(client.engine.with_device(|_| ()), Err(FabricError::Forked)),
            client.engine.set_event_handler(None).is_err(),
        ];
        client.engine.progress();
        let _ = client.glance();
        let code = i32::from(refused != [true; 3]);
        // Closing the device here must not close the parent's.
        drop(client);
        drop(memory);
        if code != 0 {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(code) };
        }
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    let mut status = 0;
    // SAFETY: `grandchild` is our child and `status` is valid for the write.
    let ended = unsafe { libc::waitpid(grandchild, &raw mut status, libc::WNOHANG) };
    assert_eq!(ended, 0, "the grandchild found something usable: {status}");
    // This process's own device still works.
    let to_self = client.connect(client.address());
    client.post_recv(1, memory.buffer(0, 64));
    assert!(client.post_send(2, to_self, SendData::Inline(&[b"x"])));
    client.wait_ok();
    client.wait_ok();
    parent.say(&format!("{grandchild}"));
    parent.hear();
}

#[test]
fn a_forked_child_does_not_extend_its_parent() {
    let root = tempfile::tempdir().unwrap();
    let mut process = Process::start("forker", root.path(), 0);
    let grandchild: i32 = process.hear().parse().unwrap();
    let hosts = fabric(root.path()).hosts().unwrap();
    assert_eq!(hosts[0].participants[0].pid, process.pid());
    process.kill();
    // SAFETY: no signal is sent; the process was forked by our child and runs until it is killed.
    let lives = unsafe { libc::kill(grandchild, 0) } == 0;
    assert!(lives, "the grandchild");
    assert_eq!(fabric(root.path()).hosts().unwrap(), []);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    // SAFETY: as above; it is orphaned and no other process will end it.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
}

#[test]
fn destroying_a_queue_pair_reclaims_its_memory() {
    const LENGTH: usize = 4 << 20;
    let root = tempfile::tempdir().unwrap();
    let mut client = Client::open(root.path(), &config("alpha"));
    let mut target = Process::start("memory", root.path(), 0);
    let address = Address::from_text(&target.hear());
    target.say(&client.address().to_text());
    let to = client.connect(address);
    let there = target.hear();
    let (start, rkey) = there.split_once(' ').unwrap();
    let there = (start.parse().unwrap(), rkey.parse().unwrap());
    let mut local = client.register(vec![0; LENGTH]);
    // Sets up the ring and lets the target's thread sleep again.
    client.post_read(0, to, local.buffer(0, 8), there);
    client.wait_ok();
    target.signal(libc::SIGSTOP);
    target.wait_until_stopped();
    for index in 0..4 {
        let part = local.buffer(index * LENGTH / 4, LENGTH / 4);
        client.post_read(index as u64, to, part, there);
    }
    client.destroy_qp();
    // The memory belongs to the application again, whatever the target does when it continues.
    local.bytes.fill(0xee);
    target.signal(libc::SIGCONT);
    target.say("sum");
    target.hear();
    // A request of another device: when it is answered, the target has polled all rings.
    let mut other = Client::open(root.path(), &config("alpha"));
    let to = other.connect(address);
    let memory = other.register(vec![0; 64]);
    other.post_read(9, to, memory.buffer(0, 64), there);
    other.wait_ok();
    assert!(local.bytes.iter().all(|byte| *byte == 0xee));
    target.finish();
}
