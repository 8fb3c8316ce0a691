//! How the deterministic fabric grows: 2, 64 and 512 hosts in one process and one thread.
//!
//! `cargo run --release -p efa-emu --example sim_growth [PACKETS]`
//!
//! Every host has one queue pair and keeps 16 packets of 64 bytes in flight to hosts all over the
//! fabric. Printed are events and packets per second of real time, heap bytes per queue pair (rings,
//! tables, completion queue) before and after the traffic (which takes packet buffers into use), and
//! heap allocations per packet once the traffic runs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use efa_core::address::Ahn;
use efa_core::nic::{Completion, CompletionKind, Destination, Nic, SendRequest, Status};
use efa_emu::sim::{Fabric, FabricConfig, HostConfig, NicConfig, SimNic};

/// The system's allocator with counters.
struct Counting;

static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters are not part of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract, and the block came from the system.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WINDOW: usize = 16;
const PACKET: usize = 64;

/// One host's program: sends round robin to its peers, gives every buffer back.
struct Program {
    nic: SimNic,
    peers: Vec<Destination>,
    next: usize,
}

impl Program {
    fn send(&mut self) -> Result<(), Box<dyn Error>> {
        let buffer = self
            .nic
            .acquire_buffer()
            .ok_or("no packet buffer is free")?;
        let destination = self.peers[self.next % self.peers.len()];
        self.next += 1;
        self.nic.post_send(&SendRequest {
            destination,
            buffer,
            header_length: PACKET,
            payload: None,
            immediate: None,
            context: 0,
        })?;
        Ok(())
    }

    /// Handles what completed and returns how many packets arrived.
    fn progress(&mut self, completions: &mut Vec<Completion>) -> Result<u64, Box<dyn Error>> {
        let mut arrived = 0;
        completions.clear();
        self.nic.poll(completions, WINDOW);
        for completion in completions.iter() {
            if completion.status != Status::Ok {
                return Err(completion.status.describe().into());
            }
            match completion.kind {
                CompletionKind::Send { buffer } => {
                    self.nic.release_buffer(buffer);
                    self.send()?;
                }
                CompletionKind::Recv { buffer, .. } => {
                    arrived += 1;
                    self.nic.post_recv(buffer)?;
                }
                _ => return Err("a completion of something that was never posted".into()),
            }
        }
        Ok(arrived)
    }
}

struct Figures {
    events: u64,
    packets: u64,
    real: Duration,
    simulated: Duration,
    idle_bytes: u64,
    busy_bytes: u64,
    allocations: u64,
}

fn run(hosts: usize, packets: u64) -> Result<Figures, Box<dyn Error>> {
    let fabric = Fabric::new(FabricConfig {
        log: false,
        ..FabricConfig::seeded(1)
    });
    let handles: Vec<_> = (0..hosts)
        .map(|_| fabric.add_host(HostConfig::default()))
        .collect();
    let nic = NicConfig {
        send_depth: 64,
        recv_depth: 256,
        packet_buffers: 320,
        rnr_retry: 7,
        ..NicConfig::default()
    };
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    let mut programs = Vec::new();
    for host in &handles {
        programs.push(Program {
            nic: host.open(nic)?,
            peers: Vec::new(),
            next: 0,
        });
    }
    let bytes_per_qp = |before: u64| (LIVE_BYTES.load(Ordering::Relaxed) - before) / hosts as u64;
    let idle_bytes = bytes_per_qp(before);

    let addresses: Vec<_> = programs.iter().map(|one| one.nic.local_address()).collect();
    for (own, program) in programs.iter_mut().enumerate() {
        let mut handles: BTreeMap<usize, Ahn> = BTreeMap::new();
        for distance in 1..=8 {
            // Near and far peers; with few hosts some of them coincide.
            let peer = (own + distance * distance) % hosts;
            if peer == own {
                continue;
            }
            let to = addresses[peer];
            let ahn = match handles.get(&peer) {
                Some(ahn) => *ahn,
                None => program.nic.create_address_handle(to.gid)?,
            };
            handles.insert(peer, ahn);
            program.peers.push(Destination {
                ahn,
                qpn: to.qpn,
                qkey: to.qkey,
            });
        }
        for _ in 0..256 {
            let buffer = program.nic.acquire_buffer().ok_or("no packet buffer")?;
            program.nic.post_recv(buffer)?;
        }
    }
    for program in &mut programs {
        for _ in 0..WINDOW {
            program.send()?;
        }
    }

    let mut completions = Vec::with_capacity(WINDOW);
    let mut drive = |packets: u64| -> Result<(u64, u64), Box<dyn Error>> {
        let (mut events, mut arrived) = (0, 0);
        while arrived < packets {
            let step = fabric.step().ok_or("the fabric went idle")?;
            events += 1;
            if let Some(host) = step.host {
                arrived += programs[host.index()].progress(&mut completions)?;
            }
        }
        Ok((events, arrived))
    };
    drive(packets / 4)?;
    let (allocations, simulated) = (ALLOCATIONS.load(Ordering::Relaxed), fabric.now());
    let start = Instant::now();
    let (events, arrived) = drive(packets)?;
    Ok(Figures {
        events,
        packets: arrived,
        real: start.elapsed(),
        simulated: fabric.now() - simulated,
        idle_bytes,
        busy_bytes: bytes_per_qp(before),
        allocations: ALLOCATIONS.load(Ordering::Relaxed) - allocations,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let packets = match std::env::args().nth(1) {
        None => 1_000_000,
        Some(text) => text
            .parse()
            .map_err(|error| format!("PACKETS: {text:?} is no number: {error}"))?,
    };
    println!("hosts    events/s   packets/s  idle B/QP  busy B/QP  allocs/packet  simulated");
    for hosts in [2, 64, 512] {
        let figures = run(hosts, packets)?;
        let seconds = figures.real.as_secs_f64();
        println!(
            "{hosts:5} {:11.0} {:11.0} {:10} {:10} {:14.4} {:>10.3?}",
            figures.events as f64 / seconds,
            figures.packets as f64 / seconds,
            figures.idle_bytes,
            figures.busy_bytes,
            figures.allocations as f64 / figures.packets as f64,
            figures.simulated,
        );
    }
    Ok(())
}
