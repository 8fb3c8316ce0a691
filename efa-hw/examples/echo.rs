//! An echo server on an EFA device, and its client.
//!
//! `echo` prints the server's address, and returns each message; `echo ADDRESS TEXT` is the client.
//! Without EFA hardware, start both with `efa-emu run --` in front.

use efa_core::address::RawAddress;
use efa_core::endpoint::{
    CompletionEntry, Endpoint, EndpointConfig, EndpointError, Instant, PeerId, RecvArgs, SendArgs,
    SourceFilter,
};
use efa_core::nic::UserSlice;
use efa_hw::{DeviceName, HwDevice, HwNic, NicConfig};
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The longest message.
const LONGEST: usize = 4096;

/// An endpoint with memory for one message.
struct Program {
    endpoint: Endpoint<HwNic>,
    memory: UserSlice,
    opened: std::time::Instant,
}

impl Program {
    fn open() -> Result<Program> {
        let mut nic = HwDevice::open(&DeviceName::First)?.open_nic(NicConfig::default())?;
        let memory = nic.allocate(LONGEST)?;
        Ok(Program {
            endpoint: Endpoint::new(nic, EndpointConfig::default())?,
            memory,
            opened: std::time::Instant::now(),
        })
    }

    fn progress(&mut self) {
        let now = Instant::START + self.opened.elapsed();
        self.endpoint.progress(now);
    }

    /// Waits for the end of an operation.
    fn wait(&mut self) -> Result<CompletionEntry> {
        loop {
            self.progress();
            if let Some(completion) = self.endpoint.poll_completion() {
                return Ok(completion?);
            }
        }
    }

    /// Waits for a message.
    fn receive(&mut self) -> Result<CompletionEntry> {
        self.endpoint
            .recv(RecvArgs::new(SourceFilter::Any, &[self.memory.into()], 0))?;
        self.wait()
    }

    /// Sends the first bytes of the memory.
    fn send(&mut self, peer: PeerId, length: usize) -> Result<()> {
        let message = UserSlice {
            length,
            ..self.memory
        };
        let data = [message.into()];
        let send = SendArgs::new(peer, &data, 0);
        loop {
            match self.endpoint.send(send) {
                Ok(()) => break,
                Err(EndpointError::TryAgain) => self.progress(),
                Err(error) => return Err(error.into()),
            }
        }
        self.wait()?;
        Ok(())
    }

    /// Sends one message back.
    fn serve(&mut self) -> Result<()> {
        let message = self.receive()?;
        let client = message.source.ok_or("the sender has no address")?;
        self.send(client, message.length as usize)
    }

    /// Sends a text, and returns the answer.
    fn request(&mut self, server: RawAddress, text: &str) -> Result<String> {
        let server = self.endpoint.insert_address(server)?;
        let nic = self.endpoint.nic_mut();
        nic.write(self.memory.address, text.as_bytes())?;
        self.send(server, text.len())?;
        let length = self.receive()?.length as usize;
        let answer = UserSlice {
            length,
            ..self.memory
        };
        Ok(String::from_utf8(self.endpoint.nic_mut().read(answer)?)?)
    }
}

fn run() -> Result<()> {
    let mut program = Program::open()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            println!("{}", program.endpoint.address());
            loop {
                program.serve()?;
            }
        }
        [server, text] => println!("{}", program.request(server.parse()?, text)?),
        _ => Err("usage: echo [ADDRESS TEXT]")?,
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}
