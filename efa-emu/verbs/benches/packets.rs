//! The cost of a 64-byte message through the verbs: instructions, time, and the memory of queue
//! pairs.
//!
//! The program starts itself again on an emulated host, where it sends messages from one queue pair
//! of its own to another: one thread does the work of both sides, without waiting. Under valgrind's
//! callgrind the difference of a long and a short run is the number of instructions, which does not
//! depend on the load of the machine. The figure to compare with is a message through a crossbeam
//! channel in one thread. The same messages over a reliable connection of the profile `tm` are
//! counted beside those of SRD.
//!
//! `cargo bench -p efa-emu-verbs --bench packets -- instructions` counts instructions only, and
//! keeps the profiles of the long runs for `callgrind_annotate`. It measures the shared library in
//! the directory of `efa-emu`: build it first (`cargo build --workspace --release`).

use std::ffi::c_int;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::ptr::null_mut;
use std::time::Instant;

use efa_testing::callgrind::Profile;
use efa_testing::verbs::*;
use efa_testing::workspace;
use efa_verbs_abi::*;

const LENGTH: u32 = 64;

/// Messages of the short run under callgrind, and how many more the long one has.
const FEW: u64 = 2_048;
const MORE: u64 = 10_240;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["messages", count, burst] => number(count)
            .and_then(|count| Ok((count, number(burst)?)))
            .map(|(count, burst)| println!("{}", messages(count, burst))),
        [CONNECTED, count] => number(count).map(|count| println!("{}", connected(count))),
        [CHANNEL, count] => number(count).map(|count| println!("{}", channel(count))),
        ["pairs", count] => number(count).map(|count| println!("{}", pairs(count))),
        _ if words.contains(&"instructions") => count_instructions(),
        // `cargo test --benches` only checks that it starts.
        _ if words.contains(&"--test") => Ok(()),
        _ => report(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("packets: {message}");
            ExitCode::from(2)
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|error| format!("{text:?} is not a number: {error}"))
}

/// Nanoseconds per message of `count` messages, `burst` of them at a time.
fn messages(count: u64, burst: u64) -> f64 {
    let endpoint = Endpoint::new();
    let queue = extended_cq(&endpoint);
    let pairs = [(); 2].map(|()| deep_pair(&endpoint, queue));
    exchange(&endpoint, queue, pairs, count, burst)
}

/// As [`messages`], one message at a time, over a reliable connection.
fn connected(count: u64) -> f64 {
    let endpoint = Endpoint::new();
    let mut attributes: ibv_cq_init_attr_ex = zeroed();
    attributes.cqe = 8192;
    attributes.wc_flags = IBV_WC_STANDARD_FLAGS;
    let functions = verbs_context_of(endpoint.context);
    // SAFETY: a live context with all functions, and attributes on the stack.
    let queue = unsafe {
        let create = (*functions).create_cq_ex.expect("given");
        create(endpoint.context, &raw mut attributes).cast()
    };
    let pair = || {
        let (mut attributes, _) = endpoint.srd_request(queue, 0);
        attributes.qp_type = IBV_QPT_RC;
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
        attributes.sq_sig_all = 1;
        // SAFETY: live objects, and attributes on the stack.
        let pair: *mut ibv_qp = unsafe {
            let create = (*functions).create_qp_ex.expect("given");
            create(endpoint.context, &raw mut attributes)
        };
        assert!(!pair.is_null(), "no queue pair: errno {}", errno());
        pair
    };
    let pairs = [pair(), pair()];
    connect(&endpoint, pairs);
    exchange(&endpoint, queue, pairs, count, 1)
}

/// Brings two queue pairs up that are each other's peers.
fn connect(endpoint: &Endpoint, pairs: [*mut ibv_qp; 2]) {
    use efa_device_model::device::QpState::{Init, ReadyToReceive, ReadyToSend, Reset};
    use efa_device_model::device::connected::ConnectionMask as M;
    let steps = [
        (IBV_QPS_INIT, M::required(Reset, Init)),
        (IBV_QPS_RTR, M::required(Init, ReadyToReceive)),
        (IBV_QPS_RTS, M::required(ReadyToReceive, ReadyToSend)),
    ];
    for (own, peer) in [(0, 1), (1, 0)] {
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.port_num = 1;
        attributes.path_mtu = 5;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        attributes.ah_attr.grh.dgid = endpoint.gid;
        attributes.timeout = 14;
        attributes.retry_cnt = 7;
        attributes.rnr_retry = 7;
        // SAFETY: a live queue pair.
        attributes.dest_qp_num = unsafe { (*pairs[peer]).qp_num };
        for (state, mask) in steps {
            attributes.qp_state = state;
            let mask = (M::STATE | mask.expect("an allowed state change")).bits() as c_int;
            // SAFETY: a live queue pair, and attributes on the stack.
            let result = unsafe { ibv_modify_qp(pairs[own], &raw mut attributes, mask) };
            assert_eq!(result, 0, "to state {state}");
        }
    }
}

/// Nanoseconds per message of `count` messages from the first queue pair to the second, `burst` of
/// them at a time.
fn exchange(
    endpoint: &Endpoint,
    queue: *mut ibv_cq,
    pairs: [*mut ibv_qp; 2],
    count: u64,
    burst: u64,
) -> f64 {
    let mut memory = vec![7u64; 4096];
    let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    let [from, to] = pairs;
    let start = Instant::now();
    for _ in 0..count / burst {
        for _ in 0..burst {
            assert_eq!(post_recv(to, 1, &mut [sge(region, 8192, 8192)]), 0);
        }
        let mut data = [sge(region, 0, LENGTH)];
        for _ in 0..burst {
            let mut request = send_request(endpoint, to, 2, &mut data);
            assert_eq!(post_send(from, &mut request).0, 0);
        }
        let mut seen = 0;
        while seen < 2 * burst {
            seen += poll_session(queue, 2 * burst - seen);
        }
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

/// A completion queue as libfabric makes it.
fn extended_cq(endpoint: &Endpoint) -> *mut ibv_cq {
    let mut attributes: ibv_cq_init_attr_ex = zeroed();
    attributes.cqe = 8192;
    attributes.wc_flags = IBV_WC_STANDARD_FLAGS;
    let mut efa = efadv_cq_init_attr::default();
    let size = size_of::<efadv_cq_init_attr>() as u32;
    // SAFETY: a live context, and attributes on the stack.
    let queue =
        unsafe { efadv_create_cq(endpoint.context, &raw mut attributes, &raw mut efa, size) };
    assert!(!queue.is_null(), "no completion queue: errno {}", errno());
    queue.cast()
}

/// A queue pair of the depth that libfabric asks for.
fn deep_pair(endpoint: &Endpoint, queue: *mut ibv_cq) -> *mut ibv_qp {
    let (mut attributes, mut efa) = endpoint.srd_request(queue, 0);
    attributes.cap.max_send_wr = 4096;
    attributes.cap.max_recv_wr = 8192;
    attributes.cap.max_recv_sge = 1;
    attributes.sq_sig_all = 1;
    let size = size_of::<efadv_qp_init_attr>() as u32;
    // SAFETY: live objects, and attributes on the stack.
    let pair =
        unsafe { efadv_create_qp_ex(endpoint.context, &raw mut attributes, &raw mut efa, size) };
    assert!(!pair.is_null(), "no queue pair: errno {}", errno());
    ready(pair);
    pair
}

/// Reads up to `limit` completions as libfabric does: a session, and calls for their fields.
fn poll_session(queue: *mut ibv_cq, limit: u64) -> u64 {
    let queue: *mut ibv_cq_ex = queue.cast();
    let mut count = 0;
    // SAFETY: a live extended completion queue with all functions, in one thread.
    unsafe {
        if (*queue).start_poll.expect("given")(queue, null_mut()) != 0 {
            return 0;
        }
        loop {
            assert_eq!((*queue).status, 0, "a message failed");
            black_box((*queue).read_opcode.expect("given")(queue));
            black_box((*queue).read_wc_flags.expect("given")(queue));
            black_box((*queue).read_byte_len.expect("given")(queue));
            count += 1;
            if count == limit || (*queue).next_poll.expect("given")(queue) != 0 {
                break;
            }
        }
        (*queue).end_poll.expect("given")(queue);
    }
    count
}

/// Resident bytes per queue pair, with `count` queue pairs that have each sent and received a
/// message.
fn pairs(count: u64) -> f64 {
    let endpoint = Endpoint::new();
    let queue = extended_cq(&endpoint);
    let mut memory = vec![7u64; 4096];
    let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    let talk = |pair: *mut ibv_qp| {
        assert_eq!(post_recv(pair, 1, &mut [sge(region, 8192, 8192)]), 0);
        let mut data = [sge(region, 0, LENGTH)];
        let mut request = send_request(&endpoint, pair, 2, &mut data);
        assert_eq!(post_send(pair, &mut request).0, 0);
        let mut seen = 0;
        while seen < 2 {
            seen += poll_session(queue, 2 - seen);
        }
    };
    // The cost of the first message does not depend on the queue pairs.
    talk(deep_pair(&endpoint, queue));
    let before = resident();
    for _ in 0..count {
        talk(deep_pair(&endpoint, queue));
    }
    (resident() - before) as f64 / count as f64
}

/// Bytes of memory that this process has in use.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split_whitespace().nth(1).expect("the second field");
    // SAFETY: takes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    pages.parse::<u64>().expect("a number") * page
}

/// A command that runs this program on an emulated host, behind `wrapper`.
fn again(emulator: &Path, wrapper: &[String], arguments: &[&str]) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let fabric = format!("packets-{}", std::process::id());
    let mut command = Command::new(emulator);
    command.args(["run", "--fabric", &fabric]);
    if arguments[0] == CONNECTED {
        command.args(["--profile", "tm"]);
    }
    command.arg("--").args(wrapper).arg(own).args(arguments);
    command.stdin(Stdio::null());
    Ok(command)
}

/// What this program prints on an emulated host.
fn printed(emulator: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = again(emulator, &[], arguments)?
        .output()
        .map_err(|error| format!("cannot start {}: {error}", emulator.display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{arguments:?}: {}\n{errors}", output.status))
}

/// The word in place of a burst's length: the peer of messages in bursts, and messages over a
/// connection.
const CHANNEL: &str = "channel";
const CONNECTED: &str = "connected";

/// The profile that callgrind writes for a run with messages in bursts of this length.
fn profile(emulator: &Path, burst: &str) -> PathBuf {
    emulator.with_file_name(format!("packets.callgrind.{burst}"))
}

/// Instructions per message, `None` without valgrind.
fn instructions(emulator: &Path, burst: &str) -> Result<Option<f64>, String> {
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !has_valgrind {
        return Ok(None);
    }
    let counted = |messages: u64| -> Result<u64, String> {
        let messages = messages.to_string();
        let arguments = match burst {
            CHANNEL | CONNECTED => vec![burst, &messages],
            _ => vec!["messages", &messages, burst],
        };
        let counted = Profile::record(|wrapper| again(emulator, wrapper, &arguments))?;
        let path = profile(emulator, burst);
        std::fs::write(&path, &counted.text)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(counted.total())
    };
    let few = counted(FEW)?;
    let difference = counted(FEW + MORE)?.saturating_sub(few);
    Ok(Some(difference as f64 / MORE as f64))
}

fn count_instructions() -> Result<(), String> {
    let emulator = workspace::emulator();
    println!("instructions per {LENGTH}-byte message, both sides, with the loop around the verbs");
    for (what, burst) in [
        ("bursts of  1", "1"),
        ("bursts of 64", "64"),
        ("crossbeam channel (peer)", CHANNEL),
        ("reliable connection", CONNECTED),
    ] {
        let count = instructions(&emulator, burst)?.ok_or("there is no valgrind")?;
        let profile = profile(&emulator, burst);
        println!("{what:<24} {count:>8.0}   {}", profile.display());
    }
    Ok(())
}

/// Nanoseconds to hand 64 bytes through a channel in one thread, `count` times.
fn channel(count: u64) -> f64 {
    let (sender, receiver) = crossbeam_channel::bounded::<[u8; LENGTH as usize]>(64);
    let start = Instant::now();
    for _ in 0..count {
        sender
            .try_send(black_box([7; LENGTH as usize]))
            .expect("room");
        black_box(receiver.try_recv().expect("a message"));
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

fn report() -> Result<(), String> {
    const ROUNDS: c_int = 5;
    let emulator = workspace::emulator();
    println!(
        "{LENGTH}-byte messages through the verbs, both sides in one thread, best of {ROUNDS}"
    );
    println!(
        "{:<34} {:>9} {:>8} {:>10} {:>14}",
        "", "ns", "of peer", "Mmsg/s", "instructions"
    );
    let mut peer = f64::INFINITY;
    let mut best = [f64::INFINITY; 2];
    let bursts = ["1", "64"];
    for _ in 0..ROUNDS {
        peer = peer.min(channel(1_000_000));
        for (best, burst) in best.iter_mut().zip(bursts) {
            let printed = printed(&emulator, &["messages", "256000", burst])?;
            let time = printed.trim().parse::<f64>();
            *best = best.min(time.map_err(|error| format!("{printed:?}: {error}"))?);
        }
    }
    println!(
        "{:<34} {peer:>9.1} {:>7.2}x {:>10.2} {:>14}",
        "crossbeam channel (peer)",
        1.0,
        1e3 / peer,
        "-"
    );
    for (time, burst) in best.into_iter().zip(bursts) {
        let count = match instructions(&emulator, burst)? {
            Some(count) => format!("{count:.0}"),
            None => "no valgrind".to_owned(),
        };
        println!(
            "{:<34} {time:>9.1} {:>7.2}x {:>10.2} {count:>14}",
            format!("one send and receive, bursts of {burst}"),
            time / peer,
            1e3 / time,
        );
    }
    println!("\nqueue pairs of 4096 sends and 8192 receives; resident bytes, one message each");
    for count in ["1", "64", "1024"] {
        match printed(&emulator, &["pairs", count]) {
            Ok(printed) => println!("{count:>5} queue pairs {:>10} B each", printed.trim()),
            Err(error) => println!("{count:>5} queue pairs: {error}"),
        }
    }
    Ok(())
}
