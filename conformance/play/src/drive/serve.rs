//! Our own driven program: the driver protocol over stock libfabric or the protocol engine.
//!
//! The program makes progress only on command, so that the driver determines the order of events.
//! It ends at most 20 s after the end of its input.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use efa_core::endpoint::Instant;
use efa_hw::{DeviceName, HwDevice, NicConfig};

use super::line::shown;
use super::{Bytes, Command, EndpointOptions, Event, Identity, Line, VERSION};
use crate::answers::write_line;
use crate::application::checked::{CheckedApplication, LocalApplication};
use crate::application::engine::{CoreApplication, configuration};
use crate::application::stock::StockApplication;
use crate::application::{Application, RequestError};
use crate::libfabric::{self, Library, Provider};
use crate::scenario::Capability;

/// Maximum time for an endpoint to close after the end of the input. Stock libfabric's `fi_close`
/// waits for outstanding completions, forever if a fault holds one.
const PATIENCE: Duration = Duration::from_secs(20);

/// An implementation that can be driven.
pub trait Implementation {
    /// Its name, release and file.
    fn identity(&self) -> Identity;

    /// Opens an endpoint.
    fn open(&mut self, opening: &EndpointOptions) -> Result<Box<dyn Application>, RequestError>;
}

/// Stock libfabric, with one of its providers.
pub struct Stock {
    library: Library,
    provider: Provider,
}

impl Stock {
    /// Loads the library at `path`, or by `path` as a name if it has no slash.
    pub fn load(path: &Path, provider: Provider) -> Result<Self, libfabric::Error> {
        Library::load(path).map(|library| Stock { library, provider })
    }
}

impl Implementation for Stock {
    fn identity(&self) -> Identity {
        let path = self.library.file();
        Identity {
            name: self.provider.software(),
            release: Some(self.library.release()),
            path: Some(path.to_string_lossy().into_owned()),
            commit: None,
        }
    }

    fn open(&mut self, opening: &EndpointOptions) -> Result<Box<dyn Application>, RequestError> {
        let settings = libfabric::Settings {
            provider: self.provider.name.clone(),
            api: opening.api,
            capabilities: opening
                .capabilities
                .iter()
                .fold(0, |bits, capability| bits | capability.bits()),
            register_local: opening.register_local,
            max_message: opening.max_message,
            device: opening.device.clone(),
        };
        let endpoint = libfabric::Endpoint::open(&self.library, &settings)?;
        Ok(Box::new(StockApplication::new(endpoint)))
    }
}

/// The protocol engine.
pub struct Engine;

impl Engine {
    /// Its name in results.
    pub const NAME: &'static str = "efa-core";

    /// Its name and release.
    pub fn identity() -> Identity {
        Identity {
            name: Self::NAME.into(),
            release: Some(env!("CARGO_PKG_VERSION").into()),
            path: std::env::current_exe()
                .ok()
                .map(|path| path.to_string_lossy().into_owned()),
            commit: None,
        }
    }
}

impl Implementation for Engine {
    fn identity(&self) -> Identity {
        Engine::identity()
    }

    fn open(&mut self, opening: &EndpointOptions) -> Result<Box<dyn Application>, RequestError> {
        let refused = |error: efa_hw::OpenError| RequestError::Refused(error.to_string());
        let name = match &opening.device {
            Some(name) => DeviceName::Named(name.clone()),
            None => DeviceName::First,
        };
        let device = HwDevice::open(&name).map_err(refused)?;
        let mut config = NicConfig::default();
        if let Some(wanted) = opening.settings.unsolicited_write_recv {
            config.unsolicited_write_recv = wanted;
        }
        let nic = device.open_nic(config).map_err(refused)?;
        let start = std::time::Instant::now();
        let clock = move || Instant(start.elapsed());
        let config = configuration(&opening.settings);
        let sources = opening.has(Capability::Source);
        let application = CoreApplication::open(nic, config, sources, clock)?;
        Ok(Box::new(application))
    }
}

/// Executes commands until the input ends. Ends the process with status 1 if the implementation is
/// still busy 20 s later.
pub fn serve(
    implementation: &mut dyn Implementation,
    input: impl BufRead + Send + 'static,
    mut output: impl Write,
) -> io::Result<()> {
    let (sender, commands) = channel();
    // Reading blocks, and progress must not wait for it: a thread reads, and ends with the input.
    thread::spawn(move || {
        for line in input.lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
        drop(sender);
        thread::sleep(PATIENCE);
        eprintln!(
            "drive: the endpoint did not close within {} s of the end of the input: abandoned",
            PATIENCE.as_secs()
        );
        process::exit(1);
    });
    let mut driver = Driver {
        implementation,
        subject: None,
        progressing: false,
    };
    loop {
        let line = match driver.next_line(&commands, &mut output)? {
            Some(line) => line,
            None => return Ok(()),
        };
        let event = match Command::parse(&line) {
            Ok(command) => driver.obey(command, &mut output)?,
            Err(error) => unsupported(format!(
                "`{}` is not a command of version {VERSION} of the driver protocol: {error}",
                shown(&line)
            )),
        };
        write_line(&mut output, &event)?;
    }
}

fn unsupported(text: String) -> Event {
    Event::Unsupported { text }
}

struct Driver<'a> {
    implementation: &'a mut dyn Implementation,
    subject: Option<LocalApplication>,
    progressing: bool,
}

impl Driver<'_> {
    /// Waits for a command, and makes progress in the meantime after `progress`.
    fn next_line(
        &mut self,
        commands: &Receiver<String>,
        output: &mut impl Write,
    ) -> io::Result<Option<String>> {
        loop {
            if !self.progressing {
                return Ok(commands.recv().ok());
            }
            match commands.try_recv() {
                Ok(line) => return Ok(Some(line)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => {}
            }
            if !self.progress(output)? {
                // Nothing completed: yield the processor to the peer.
                match commands.recv_timeout(Duration::from_micros(50)) {
                    Ok(line) => return Ok(Some(line)),
                    Err(RecvTimeoutError::Disconnected) => return Ok(None),
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
        }
    }

    /// Polls once; returns whether anything completed.
    fn progress(&mut self, output: &mut impl Write) -> io::Result<bool> {
        let Some(subject) = &mut self.subject else {
            return Ok(false);
        };
        let reports = match subject.poll() {
            Ok(reports) => reports,
            Err(error) => {
                self.progressing = false;
                let text = format!("polling failed: {error}");
                write_line(output, &Event::Reported { text })?;
                return Ok(false);
            }
        };
        let events = subject.events();
        let events = events.unwrap_or_else(|error| vec![error.to_string()]);
        let busy = !reports.is_empty() || !events.is_empty();
        for report in reports {
            write_line(output, &Event::Completed(report))?;
        }
        for text in events {
            write_line(output, &Event::Reported { text })?;
        }
        Ok(busy)
    }

    fn obey(&mut self, command: Command, output: &mut impl Write) -> io::Result<Event> {
        let result = match command {
            Command::Poll {} => {
                self.progress(output)?;
                Ok(Event::Done {})
            }
            Command::Progress {} => {
                self.progressing = true;
                Ok(Event::Done {})
            }
            Command::Pause {} => {
                // Operations that completed before the pause are reported before its answer.
                while self.progressing && self.progress(output)? {}
                self.progressing = false;
                Ok(Event::Done {})
            }
            command => self.call(command),
        };
        Ok(match result {
            Ok(event) => event,
            Err(RequestError::TryAgain) => Event::Again {},
            Err(RequestError::Unsupported(text)) => unsupported(text),
            Err(RequestError::Refused(text)) => Event::Refused { text },
        })
    }

    fn call(&mut self, command: Command) -> Result<Event, RequestError> {
        let command = match command {
            Command::Hello { version: VERSION } => {
                let software = self.implementation.identity();
                return Ok(Event::Hello {
                    version: VERSION,
                    software,
                });
            }
            Command::Hello { version } => {
                return Err(RequestError::Unsupported(format!(
                    "version {version} of the driver protocol; this program speaks {VERSION}"
                )));
            }
            Command::Close {} => {
                self.subject = None;
                return Ok(Event::Done {});
            }
            Command::Open(_) if self.subject.is_some() => {
                return Err(RequestError::Refused("an endpoint is open already".into()));
            }
            Command::Open(opening) => {
                let opened = self.implementation.open(&opening)?;
                let address = Bytes(opened.address()?);
                self.subject = Some(LocalApplication::new(opened));
                return Ok(Event::Opened { address });
            }
            command => command,
        };
        let Some(subject) = &mut self.subject else {
            return Err(RequestError::Refused("no endpoint is open".into()));
        };
        Ok(match command {
            Command::Insert { peer, address } => {
                subject.insert(peer, &address.0)?;
                Event::Done {}
            }
            Command::Remove { peer } => {
                subject.remove(peer)?;
                Event::Done {}
            }
            Command::Start {
                id,
                operation,
                expect,
            } => subject.start(id, &operation, expect)?.into(),
            Command::Check {
                id,
                offset,
                payload,
            } => Event::Checked {
                difference: subject.check(id, offset, payload)?,
            },
            Command::Dump { id } => Event::Memory {
                bytes: Bytes(subject.dump(id)?),
            },
            other => return Err(RequestError::Unsupported(other.line())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converse(input: &str) -> Vec<Event> {
        let mut output = Vec::new();
        serve(&mut Engine, io::Cursor::new(input.to_owned()), &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines()
            .map(|line| Event::parse(line).unwrap())
            .collect()
    }

    #[test]
    fn every_line_is_answered_until_the_input_ends() {
        let events = converse(
            "{\"hello\":{\"version\":2}}\n\
             {\"progress\":{}}\n\
             {\"pause\":{}}\n\
             {\"nonsense\":{}}\n\
             {\"insert\":{\"peer\":0,\"address\":\"00\"}}\n",
        );
        assert!(matches!(&events[0], Event::Hello { software, .. } if software.name == "efa-core"));
        assert_eq!(events[1..3], [Event::Done {}, Event::Done {}]);
        assert!(matches!(&events[3], Event::Unsupported { text } if text.contains("nonsense")));
        assert!(matches!(&events[4], Event::Refused { text } if text.contains("no endpoint")));
        assert_eq!(events.len(), 5);
    }

    #[test]
    fn another_version_is_unsupported() {
        for (hello, text) in [
            (
                r#"{"hello":{"version":3}}"#,
                "version 3 of the driver protocol; this program speaks 2",
            ),
            (
                "hello version=1",
                "`hello version=1` is not a command of version 2 of the driver protocol",
            ),
        ] {
            let events = converse(&format!("{hello}\n"));
            assert!(
                matches!(&events[..], [Event::Unsupported { text: said }] if said.contains(text)),
                "{events:?}"
            );
        }
    }
}
