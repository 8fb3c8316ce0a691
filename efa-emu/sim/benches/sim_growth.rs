//! Measures how the deterministic fabric scales: from 2 to 10,000 hosts in one process and one
//! thread.
//!
//! Every host has one queue pair with 256 posted receives, and keeps 16 packets of 64 bytes in
//! flight to hosts all over the fabric. For each number of hosts the benchmark prints events and
//! packets per second of processor time, the process's memory per queue pair before and after the
//! traffic, and heap allocations per packet in the steady state. The last two lines compare the
//! rates at 64 and 512 hosts, and print the memory of the largest fabric.
//!
//! Each number of hosts runs in its own process, so that none reuses memory of another. There the
//! allocator of the GNU C library is asked for huge pages (`GLIBC_TUNABLES`): some hundred hosts
//! use more pages than the TLB holds, and a TLB miss costs more than the memory access itself.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;
use std::time::Duration;

use efa_core::address::Ahn;
use efa_core::nic::{
    Completion, CompletionKind, Destination, Domain, Doorbell, Nic, PolledNic, SendRequest, Status,
};
use efa_sim::{Fabric, FabricConfig, HostConfig, NicConfig, SimNic};
use efa_testing::heap::{self, CountingHeap};

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

const WINDOW: usize = 16;
const PACKET: usize = 64;

/// The packets that arrive during the measurement.
const PACKETS: u64 = 200_000;

/// The argument before the number of hosts when this program starts itself.
const HOSTS: &str = "--hosts";

/// One host's program: sends to its peers in turn, and posts every buffer again.
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
        self.nic.post_send(
            &SendRequest {
                destination,
                buffer,
                header_length: PACKET,
                payload: None,
                immediate: None,
                context: 0,
            },
            Doorbell::Ring,
        )?;
        Ok(())
    }

    /// Handles completions, and returns the number of packets that arrived.
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

/// The measurement of a number of hosts, as their process prints it.
#[derive(Clone, Copy)]
struct Figures {
    events_per_second: f64,
    packets_per_second: f64,
    idle_bytes: u64,
    busy_bytes: u64,
    peak_bytes: u64,
    allocations: f64,
    simulated: f64,
}

impl Figures {
    fn print(&self) {
        let Figures {
            events_per_second,
            packets_per_second,
            idle_bytes,
            busy_bytes,
            peak_bytes,
            allocations,
            simulated,
        } = self;
        println!(
            "{events_per_second} {packets_per_second} {idle_bytes} {busy_bytes} {peak_bytes} \
             {allocations} {simulated}"
        );
    }

    fn parse(text: &str) -> Result<Figures, Box<dyn Error>> {
        let mut words = text.split_whitespace();
        let mut next = || words.next().ok_or("a figure is missing");
        Ok(Figures {
            events_per_second: next()?.parse()?,
            packets_per_second: next()?.parse()?,
            idle_bytes: next()?.parse()?,
            busy_bytes: next()?.parse()?,
            peak_bytes: next()?.parse()?,
            allocations: next()?.parse()?,
            simulated: next()?.parse()?,
        })
    }
}

/// A value of `/proc/self/status` in bytes.
fn process_memory(figure: &str) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(figure));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().nth(1));
    Ok(kilobytes
        .ok_or("the system does not tell it")?
        .parse::<u64>()?
        * 1024)
}

/// The processor time of this thread. Time that other processes take does not count.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn run(hosts: usize) -> Result<Figures, Box<dyn Error>> {
    let fabric = Fabric::new(FabricConfig {
        log: false,
        ..FabricConfig::seeded(1)
    });
    let handles: Vec<_> = (0..hosts)
        .map(|_| fabric.add_host(HostConfig::default()))
        .collect();
    let nic = NicConfig {
        send_queue_depth: 64,
        recv_queue_depth: 256,
        packet_buffers: 320,
        rnr_retry: 7,
        ..NicConfig::default()
    };
    let before = process_memory("VmRSS")?;
    let mut programs = Vec::new();
    for host in &handles {
        programs.push(Program {
            nic: host.open_nic(nic)?,
            peers: Vec::new(),
            next: 0,
        });
    }
    let bytes_per_qp = || -> Result<u64, Box<dyn Error>> {
        Ok(process_memory("VmRSS")?.saturating_sub(before) / hosts as u64)
    };
    let idle_bytes = bytes_per_qp()?;

    let addresses: Vec<_> = programs.iter().map(|one| one.nic.address()).collect();
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
            program.peers.push(Destination::new(ahn, to));
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
    // Until the programs have touched all their memory: each buffer and ring entry a few times.
    drive(PACKETS.max(64 * hosts as u64))?;
    let (allocations, simulated) = (heap::allocations(), fabric.now());
    let start = processor_time();
    let (events, arrived) = drive(PACKETS)?;
    let seconds = (processor_time() - start).as_secs_f64();
    let allocations = heap::allocations() - allocations;
    Ok(Figures {
        events_per_second: events as f64 / seconds,
        packets_per_second: arrived as f64 / seconds,
        simulated: (fabric.now() - simulated).as_secs_f64(),
        idle_bytes,
        busy_bytes: bytes_per_qp()?,
        peak_bytes: process_memory("VmHWM")?,
        allocations: allocations as f64 / arrived as f64,
    })
}

/// Runs this program again for one number of hosts.
fn run_apart(hosts: usize) -> Result<Figures, Box<dyn Error>> {
    let output = Command::new(std::env::current_exe()?)
        .args([HOSTS, &hosts.to_string()])
        .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Figures::parse(&String::from_utf8(output.stdout)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip_while(|argument| argument != HOSTS);
    if let Some(hosts) = arguments.nth(1) {
        run(hosts.parse()?)?.print();
        return Ok(());
    }
    println!("hosts    events/s   packets/s  idle B/QP  busy B/QP  allocs/packet  simulated ms");
    let mut all = BTreeMap::new();
    for hosts in [2, 64, 512, 10_000] {
        let figures = run_apart(hosts)?;
        println!(
            "{hosts:5} {:11.0} {:11.0} {:10} {:10} {:14.4} {:13.3}",
            figures.events_per_second,
            figures.packets_per_second,
            figures.idle_bytes,
            figures.busy_bytes,
            figures.allocations,
            1000.0 * figures.simulated,
        );
        all.insert(hosts, figures);
    }
    let rate = |hosts| all[&hosts].events_per_second;
    println!(
        "events/s at 512 hosts: {:.2} of those at 64 (goal: 0.67 at least)",
        rate(512) / rate(64)
    );
    println!(
        "10000 hosts, 16 packets in flight each: {:.2} GiB at most (goal: below 4)",
        all[&10_000].peak_bytes as f64 / f64::from(1 << 30)
    );
    Ok(())
}
