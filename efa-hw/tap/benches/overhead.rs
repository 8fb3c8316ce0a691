//! What a tap costs: messages between two endpoints of one process over the emulated device, without a tap, with an
//! idle one and with one that records, one after the other in each round.
//!
//! The figures of a shared machine are noise; their differences and ratios in one run are less so. Each variant's
//! best round counts.
//! Arguments: none; `--bench`, which cargo passes on; `child LENGTH COUNT` is the measured program.

use std::error::Error;
use std::time::Instant;

use efa_core::endpoint::{
    Endpoint, EndpointConfig, EndpointError, OperationFlags, PeerId, RecvArgs, SendArgs,
    SourceFilter,
};
use efa_core::nic::UserSlice;
use efa_hw::{DeviceName, HwDevice, HwNic, NicConfig};
use efa_testing::workspace::{built, efa_emu};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Rounds in which every variant is measured once.
const ROUNDS: usize = 7;

/// What stands in front of the program.
const VARIANTS: [(&str, Option<&[&str]>); 4] = [
    ("no tap", None),
    ("idle", Some(&["--idle"])),
    ("headers only", Some(&["--headers-only"])),
    ("everything", Some(&[])),
];

/// An endpoint with memory for one message.
struct End {
    endpoint: Endpoint<HwNic>,
    memory: UserSlice,
    begun: Instant,
}

impl End {
    fn open(length: usize) -> Result<End> {
        let mut nic = HwDevice::open(&DeviceName::First)?.open_nic(NicConfig::default())?;
        let memory = nic.allocate(length)?;
        Ok(End {
            endpoint: Endpoint::new(nic, EndpointConfig::default())?,
            memory,
            begun: Instant::now(),
        })
    }

    fn progress(&mut self) {
        let now = efa_core::endpoint::Instant::START + self.begun.elapsed();
        self.endpoint.progress(now);
    }

    fn receive(&mut self) -> Result<()> {
        self.endpoint.recv(RecvArgs {
            source: SourceFilter::Any,
            buffer: &[self.memory.into()],
            tag: None,
            flags: OperationFlags::COMPLETION,
            context: 1,
        })?;
        Ok(())
    }

    fn send(&mut self, peer: PeerId) -> Result<()> {
        let send = SendArgs {
            peer,
            data: &[self.memory.into()],
            tag: None,
            cq_data: None,
            flags: OperationFlags::empty(),
            context: 0,
        };
        loop {
            match self.endpoint.send(send) {
                Ok(()) => return Ok(()),
                Err(EndpointError::TryAgain) => self.progress(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Sends a message from one to the other, and returns when it has arrived.
fn pass(from: &mut End, to: &mut End, peer: PeerId) -> Result<()> {
    to.receive()?;
    from.send(peer)?;
    loop {
        from.progress();
        to.progress();
        if let Some(completion) = to.endpoint.poll_completion() {
            completion?;
            return Ok(());
        }
    }
}

/// The measured program: prints the nanoseconds of a message.
fn child(length: usize, count: u32) -> Result<()> {
    let (mut one, mut other) = (End::open(length)?, End::open(length)?);
    let to_other = one.endpoint.insert_address(other.endpoint.address())?;
    let to_one = other.endpoint.insert_address(one.endpoint.address())?;
    let mut exchange = |rounds: u32| -> Result<()> {
        for _ in 0..rounds {
            pass(&mut one, &mut other, to_other)?;
            pass(&mut other, &mut one, to_one)?;
        }
        Ok(())
    };
    // Handshakes, and the pages of the receive buffers.
    exchange(count / 4 + 2)?;
    let begun = Instant::now();
    exchange(count)?;
    let time = begun.elapsed();
    println!("{}", time.as_nanos() as f64 / f64::from(2 * count));
    Ok(())
}

/// Runs the program under a variant of the tap.
fn measure(tap: Option<&[&str]>, length: &str, count: &str) -> Result<f64> {
    let directory = tempfile::tempdir()?;
    let mut command = efa_emu(&["run", "-q", "--"]);
    if let Some(options) = tap {
        command.arg(built("efa-tap")).args(["run", "-q", "--pcap"]);
        command.arg(directory.path().join("capture"));
        command.args(options).arg("--");
    }
    command.arg(std::env::current_exe()?);
    let output = command.args(["child", length, count]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let reason = || format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    said.parse().map_err(|_| reason().into())
}

fn table(length: &str, count: &str) -> Result<()> {
    let mut best = [f64::INFINITY; VARIANTS.len()];
    for _ in 0..ROUNDS {
        for (best, (_, tap)) in best.iter_mut().zip(VARIANTS) {
            *best = best.min(measure(tap, length, count)?);
        }
    }
    println!("{length} bytes, best of {ROUNDS} rounds of {count} exchanges:");
    for (time, (name, _)) in best.into_iter().zip(VARIANTS) {
        let more = time - best[0];
        println!(
            "  {name:<14}{time:>12.0} ns per message {more:>+10.0} ns  {:.3} of the rate",
            best[0] / time
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [word, length, count] if word == "child" => child(length.parse()?, count.parse()?),
        _ => {
            table("64", "100000")?;
            table("1048576", "400")
        }
    }
}
