//! The cost of a message in the steady state: no system call.

use std::path::Path;
use std::process::Command;

use efa_testing::programs::{Program, TestFabric, needs};
use efa_testing::verbs::*;
use efa_verbs_abi::*;

/// The number of messages that the program sends when it is measured.
const MESSAGES: &str = "EFA_EMU_TEST_MESSAGES";

/// The descriptor that the program "closes" around each block of messages, as a mark in a trace.
const MARK: i32 = -4242;
const BLOCKS: usize = 20;
const BLOCK: usize = 200;

/// Two queue pairs of one process that are each other's peers.
struct Talk {
    endpoint: Endpoint,
    queue: *mut ibv_cq,
    pairs: [*mut ibv_qp; 2],
    region: *mut ibv_mr,
    _memory: Vec<u64>,
}

impl Talk {
    fn new() -> Talk {
        let endpoint = Endpoint::new();
        let queue = endpoint.cq(64);
        let pairs = [(); 2].map(|()| endpoint.srd(queue, 0));
        let mut memory = vec![7u64; 1024];
        let region = endpoint.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
        Talk {
            endpoint,
            queue,
            pairs,
            region,
            _memory: memory,
        }
    }

    /// Sends messages of 64 bytes, one after the other, each until both sides have completed.
    fn exchange(&self, messages: usize) {
        let [from, to] = self.pairs;
        for _ in 0..messages {
            let mut room = [sge(self.region, 4096, 4096)];
            assert_eq!(post_recv(to, 1, &mut room), 0);
            send(&self.endpoint, from, to, 2, &mut [sge(self.region, 0, 64)]);
            let mut seen = 0;
            while seen < 2 {
                let mut completions = [ibv_wc::default(); 2];
                let new = poll(self.queue, &mut completions);
                assert!(new >= 0);
                for completion in &completions[..new as usize] {
                    assert_eq!(completion.status, 0);
                    seen += 1;
                }
            }
        }
    }
}

/// Starts `test` again on an emulated host, as an argument of `wrapper`; returns its output.
fn again(test: &str, wrapper: &[&str], messages: usize) -> String {
    let program = std::env::current_exe().expect("a test program knows its path");
    let program = program.to_str().expect("the path is text");
    let fabric = TestFabric::new();
    let own = [program, "--exact", test, "--nocapture"];
    let mut command: Command = fabric.run(&[&["--"], wrapper, &own].concat());
    command.env(MESSAGES, messages.to_string());
    let outcome = Program::start(command).wait().expect_success(test);
    assert!(outcome.stdout.contains("1 passed"), "{}", outcome.stdout);
    outcome.stdout + &outcome.stderr
}

fn messages_to_send() -> Option<usize> {
    let messages = std::env::var(MESSAGES).ok()?;
    Some(messages.parse().expect("a number"))
}

/// The thread that wrote a line of a trace, if it marks the border of a block.
fn marker(line: &str) -> Option<&str> {
    let (thread, call) = line.split_once(' ')?;
    call.contains(&format!("close({MARK}")).then_some(thread)
}

/// For each block in a trace, the system calls of its thread.
fn calls_of_blocks(trace: &str) -> Vec<usize> {
    let mut blocks = Vec::new();
    let mut inside: Option<(&str, usize)> = None;
    for line in trace.lines() {
        match (marker(line), &mut inside) {
            (Some(thread), None) => inside = Some((thread, 0)),
            (Some(_), Some((_, calls))) => {
                blocks.push(*calls);
                inside = None;
            }
            // A call that is interrupted by a call of another thread takes two lines.
            (None, _) if line.contains(" resumed>") => {}
            (None, Some((thread, calls))) if line.starts_with(&format!("{thread} ")) => {
                *calls += 1;
            }
            _ => {}
        }
    }
    blocks
}

#[test]
fn a_message_makes_no_system_call() {
    const TEST: &str = "steady::a_message_makes_no_system_call";
    let mark = || {
        // SAFETY: the descriptor does not exist.
        unsafe { libc::close(MARK) };
    };
    if messages_to_send().is_some() {
        let talk = Talk::new();
        talk.exchange(BLOCK);
        for _ in 0..BLOCKS {
            mark();
            talk.exchange(BLOCK);
            mark();
        }
        // A block with one call shows that calls are counted.
        mark();
        // SAFETY: takes no pointers.
        unsafe { libc::syscall(libc::SYS_getppid) };
        mark();
        return;
    }
    needs!("strace", "strace");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("trace");
    let path = file.to_str().expect("the path is text");
    again(TEST, &["strace", "-f", "-o", path], BLOCK);
    let trace = read(&file);
    let calls = calls_of_blocks(&trace);
    assert_eq!(calls.len(), BLOCKS + 1, "{calls:?}");
    assert_eq!(calls[BLOCKS], 1, "the count counts");
    // The device of a thread that is not scheduled for a while is served by the device's own
    // thread, and the first thread waits for that one's lock: the busier the machine, the more
    // blocks have a call. A device that needs a call for some messages leaves no block without one.
    assert!(
        calls[..BLOCKS].contains(&0),
        "system calls in blocks of {BLOCK} messages: {calls:?}"
    );
}

fn read(path: &Path) -> String {
    let bytes = std::fs::read(path).expect("the trace was written");
    String::from_utf8_lossy(&bytes).into_owned()
}
