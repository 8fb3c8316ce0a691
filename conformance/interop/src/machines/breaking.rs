//! The network between machines is slow, loses packets or fails, or bridges are killed: received
//! data is correct, initiators get errors for the rest, unaffected programs continue, and no files
//! remain.

use std::time::{Duration, Instant};

use efa_core::nic::Status;
use efa_shm::Fabric;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::limits::{GROUP, START, nothing_is_left};
use super::network::{BridgeOptions, Machines};
use crate::harness::survivors::{END, ENDLESS, SEED, Survivors, rounds};
use crate::harness::{
    Bench, Cell, CellResult, NotMeasured, Running, await_some, failed, installed,
};

/// The servers' port, which can be the same on all machines, because their ports are separate.
const PORT: u16 = 47592;

/// Heartbeat timeout of bridges, in cells that wait for it.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for a survivor to detect its peer's death.
const NOTICE: Duration = Duration::from_secs(2);

type CellFunction = fn(&Bench) -> CellResult;

pub(super) fn cells() -> Vec<Cell> {
    let cell = |name: &str, limit: u64, run: CellFunction| {
        Cell::new(GROUP, name, START + Duration::from_secs(limit), run)
    };
    vec![
        cell("captures of two machines are one", 240, captures),
        cell("fi_pingpong between all of four machines", 240, everybody),
        cell("fi_pingpong --plain", 60, |bench| {
            let bridge_options = BridgeOptions {
                plain: true,
                ..BridgeOptions::DEFAULT
            };
            let machines = Machines::joined_with(bench, 2, bridge_options)?;
            pingpong(&machines, [0, 1], &["-S", "all"])
        }),
        cell("fi_pingpong at 100 Mbit/s, packets lost", 120, slow),
        cell("fi_pingpong, losses and reordering", 120, lossy),
        cell("a partition that heals in time", 120, short_partition),
        cell(
            "a partition that does not, and survivors",
            240,
            long_partition,
        ),
        cell("20 bridges killed", 600, bridges_killed),
        cell("20 sides of fi_pingpong killed", 600, sides_killed),
    ]
}

/// The command `fi_pingpong`, whose data is checked unless it never exits.
const PINGPONG: [&str; 5] = ["fi_pingpong", "-p", "efa", "-e", "rdm"];

/// Starts the server on the second machine, and the client on the first.
fn start_pair<'a>(
    machines: &Machines<'a>,
    [client, server]: [usize; 2],
    options: &[&str],
    run_options: [&[&str]; 2],
) -> Result<[Running<'a>; 2], NotMeasured> {
    installed("fi_pingpong", "libfabric-bin")?;
    let words = [&PINGPONG[..], options].concat();
    let port = PORT.to_string();
    let there = [&words[..], &["-B", &port]].concat();
    let mut listener = machines.start(server, run_options[1], &there)?;
    machines.await_listener(server, &mut listener, PORT)?;
    let address = machines.address(server);
    let here = [&words[..], &["-P", &port, &address]].concat();
    let client = machines.start(client, run_options[0], &here)?;
    Ok([client, listener])
}

/// A complete ping-pong with checked data.
fn pingpong(machines: &Machines, pair: [usize; 2], options: &[&str]) -> CellResult {
    let options = [&["-c"], options].concat();
    let begin = Instant::now();
    let [client, server] = start_pair(machines, pair, &options, [&[], &[]])?;
    let printed = client.success()?.stdout;
    server.success()?;
    let sizes = printed.lines().filter(|line| line.contains('=')).count();
    let time = begin.elapsed().as_secs_f64();
    match sizes {
        0 => Err(failed!("nothing was sent: {printed}")),
        _ => Ok(format!("{sizes} sizes checked in {time:.1} s")),
    }
}

fn captures(bench: &Bench) -> CellResult {
    let machines = Machines::joined(bench, 2)?;
    let files = ["m0", "m1"].map(|name| bench.capture(name));
    let texts = files.each_ref().map(|file| file.display().to_string());
    let [client, server] = start_pair(
        &machines,
        [0, 1],
        &["-c", "-I", "20", "-S", "all"],
        [&["--pcap", &texts[0]], &["--pcap", &texts[1]]],
    )?;
    client.success()?;
    server.success()?;
    match bench.checked(&["m0", "m1"])? {
        frames @ 100.. => Ok(format!("{frames} frames, 0 errors")),
        frames => Err(failed!("only {frames} frames")),
    }
}

fn everybody(bench: &Bench) -> CellResult {
    let machines = Machines::joined(bench, 4)?;
    let mut pairs = 0;
    for client in 0..4 {
        for server in (0..4).filter(|server| *server != client) {
            pingpong(&machines, [client, server], &["-I", "10", "-S", "all"])?;
            pairs += 1;
        }
    }
    Ok(format!("{pairs} pairs"))
}

fn slow(bench: &Bench) -> CellResult {
    let machines = Machines::joined(bench, 2)?;
    for machine in 0..2 {
        machines.limit(machine, 100)?;
    }
    let measured = pingpong(&machines, [0, 1], &["-I", "5", "-S", "all"])?;
    let dropped = machines.dropped(0)? + machines.dropped(1)?;
    match dropped {
        0 => Err(failed!("{measured}, but nothing was lost")),
        _ => Ok(format!("{measured}; {dropped} packets dropped")),
    }
}

fn lossy(bench: &Bench) -> CellResult {
    let mut machines = Machines::joined(bench, 2)?;
    machines.forward(0.005, Duration::from_micros(500))?;
    let measured = pingpong(&machines, [0, 1], &["-I", "3", "-S", "all"])?;
    Ok(format!("{measured}; {}", machines.end_forwarder()?))
}

/// The link fails for a shorter time than the bridges' timeout: the only effect is a pause.
fn short_partition(bench: &Bench) -> CellResult {
    let machines = Machines::joined(bench, 2)?;
    let options = ["-c", "-I", "3000", "-S", "4096"];
    let [mut client, server] = start_pair(&machines, [0, 1], &options, [&[], &[]])?;
    await_queue_pairs(&machines, bench)?;
    let mut cuts = 0;
    let mut random = SmallRng::seed_from_u64(SEED);
    // Until it has exited, at most three times.
    while cuts < 3 && client.ends_within(pause(&mut random)).is_none() {
        machines.set_link(1, false)?;
        std::thread::sleep(Duration::from_millis(700));
        machines.set_link(1, true)?;
        cuts += 1;
    }
    client.success()?;
    server.success()?;
    match cuts {
        0 => Err(failed!("it ended before the link was cut")),
        _ => Ok(format!("3000 messages each way checked, {cuts} cuts")),
    }
}

fn pause(random: &mut SmallRng) -> Duration {
    Duration::from_millis(random.random_range(50..300))
}

/// The link of one of three machines fails for longer than the bridges' timeout.
fn long_partition(bench: &Bench) -> CellResult {
    installed("ib_send_bw", "perftest")?;
    let bridge_options = BridgeOptions {
        timeout: TIMEOUT,
        ..BridgeOptions::DEFAULT
    };
    let mut machines = Machines::joined_with(bench, 3, bridge_options)?;
    let command = format!("ib_send_bw -c SRD -x 0 -D 600 -p {}", PORT + 1);
    let words: Vec<&str> = command.split(' ').collect();
    let profile = ["--profile", "efa1"];
    let mut server = machines.start(1, &profile, &words)?;
    machines.await_listener(1, &mut server, PORT + 1)?;
    let address = machines.address(1);
    let words = [&words[..], &[&address]].concat();
    let mut client = machines.start(0, &profile, &words)?;
    await_queue_pairs(&machines, bench)?;
    std::thread::sleep(Duration::from_millis(300));
    machines.set_link(1, false)?;
    let cut = Instant::now();
    let status = client
        .ends_within(END)
        .ok_or_else(|| failed!("the client has not noticed"))?;
    let noticed = cut.elapsed();
    let finished = client.wait()?;
    let said = format!("{}{}", finished.stdout, finished.stderr);
    // perftest prints the device's own status, which is 'unresponsive remote', as the vendor's.
    let unresponsive = format!("syndrom {:#x}", Status::LocalUnresponsiveRemote.code());
    if status.success() || !said.contains(&unresponsive) {
        return Err(failed!("the client ended ({status}): {said}"));
    }
    let others = pingpong(&machines, [0, 2], &["-I", "10", "-S", "all"])?;
    drop(server);
    machines.set_link(1, true)?;
    for other in [0, 2] {
        machines.await_connections(1, other, 2)?;
    }
    pingpong(&machines, [0, 1], &["-I", "10", "-S", "all"])?;
    let line = said
        .lines()
        .find(|line| line.contains("syndrom"))
        .unwrap_or_default();
    end_without_trace(bench, &mut machines)?;
    Ok(format!(
        "noticed after {:.2} s ({}); survivors: {others}; healed",
        noticed.as_secs_f64(),
        line.trim()
    ))
}

/// Bridges are killed while data flows. A new one connects, and the next pair works.
fn bridges_killed(bench: &Bench) -> CellResult {
    let bridge_options = BridgeOptions {
        timeout: Duration::from_millis(1000),
        ..BridgeOptions::DEFAULT
    };
    let mut machines = Machines::joined_with(bench, 2, bridge_options)?;
    let mut survivors = Survivors::default();
    rounds(KILLS, |round| {
        let pair = start_pair(&machines, [0, 1], &ENDLESS, [&[], &[]])?;
        round.await_moment(|| await_queue_pairs(&machines, bench))?;
        let victim = round.random.random_range(0..2);
        machines.kill_bridge(victim)?;
        for side in pair {
            survivors.end(side, NOTICE)?;
        }
        machines.start_bridge(victim)?;
        machines.await_connections(victim, 1 - victim, 1)?;
        if round.number % 5 == 4 {
            pingpong(&machines, [0, 1], &["-I", "10", "-S", "all"])?;
        }
        Ok(())
    })?;
    end_without_trace(bench, &mut machines)?;
    Ok(format!("{KILLS} kills; sides: {survivors}; nothing left"))
}

/// One side is killed, on either machine.
fn sides_killed(bench: &Bench) -> CellResult {
    let mut machines = Machines::joined(bench, 2)?;
    let mut survivors = Survivors::default();
    rounds(KILLS, |round| {
        let [client, server] = start_pair(&machines, [0, 1], &ENDLESS, [&[], &[]])?;
        round.await_moment(|| await_queue_pairs(&machines, bench))?;
        let (victim, survivor) = match round.random.random() {
            true => (client, server),
            false => (server, client),
        };
        victim.kill();
        victim.wait()?;
        survivors.end(survivor, NOTICE)
    })?;
    pingpong(&machines, [0, 1], &["-I", "10", "-S", "all"])?;
    end_without_trace(bench, &mut machines)?;
    Ok(format!(
        "{KILLS} kills; survivors: {survivors}; nothing left"
    ))
}

/// Number of killed bridges or sides.
const KILLS: u64 = 20;

/// Waits until a process of the first machine has a queue pair.
fn await_queue_pairs(machines: &Machines, bench: &Bench) -> Result<(), NotMeasured> {
    if !machines.are_of_root() {
        // Programs there run as root of a user namespace, and their fabrics have its name.
        return Err(NotMeasured::Skipped(
            "only root can look at the fabrics of machines".into(),
        ));
    }
    let root = machines.shared_memory(0);
    let fabric = Fabric::open_below(&root, bench.fabric()).map_err(NotMeasured::failed)?;
    await_some(START, || {
        let hosts = fabric.hosts().map_err(NotMeasured::failed)?;
        let own = hosts.iter().filter(|host| host.machine.is_none());
        let mut participants = own.flat_map(|host| &host.participants);
        match participants.any(|one| !one.queue_pairs.is_empty()) {
            true => Ok(()),
            false => Err(failed!("no side with a queue pair within {START:?}")),
        }
    })
}

/// Ends the bridges, which must leave no files.
fn end_without_trace(bench: &Bench, machines: &mut Machines) -> Result<(), NotMeasured> {
    machines.end_bridges()?;
    nothing_is_left(bench, machines, Duration::ZERO)
}
