//! One side of a scenario in a process of its own.
//!
//! The driver reads a [`Command`] per line from its standard input and writes [`Event`]s, one per
//! line, to its standard output; both are JSON. It makes progress only between `progress` and
//! `pause`, so that whoever drives decides what happens in which order. It ends with its input, at
//! the latest 20 s after it.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use efa_core::endpoint::Instant;
use efa_hw::{DeviceName, HwDevice, HwNic, NicConfig};
use serde::{Deserialize, Serialize};

use crate::application::engine::{CoreApplication, configuration};
use crate::application::stock::StockApplication;
use crate::application::subject::{Local, Subject};
use crate::application::{Application, Report, Request, RequestError, Started, Token};
use crate::libfabric::{self, Library, Version};
use crate::scenario::{Capability, EndpointIndex, EndpointSpec, Payload, Settings, Software};

/// How long an endpoint may take to close after the input has ended. Stock libfabric waits in
/// `fi_close` for what is outstanding, for ever if a staged fault withholds it.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a driver is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Open a stock endpoint. Answer: [`Event::Opened`].
    OpenLibfabric {
        /// The library.
        library: PathBuf,
        /// The interface version to ask for, in libfabric's encoding.
        api: u32,
        /// Capability bits.
        capabilities: u64,
        /// Whether to register every buffer.
        register_local: bool,
        /// The largest message, if the application promises one.
        max_message: Option<usize>,
    },
    /// Open an endpoint of the protocol engine on the first EFA device. Answer: [`Event::Opened`].
    OpenCore {
        /// The engine's settings.
        settings: Settings,
        /// Whether completions name the sender.
        report_sources: bool,
    },
    /// Make a peer known. Answer: [`Event::Done`].
    Insert {
        /// Its place in the scenario.
        peer: EndpointIndex,
        /// Its raw address.
        address: Vec<u8>,
    },
    /// Take a peer out of the address vector. Answer: [`Event::Done`].
    Remove {
        /// Its place in the scenario.
        peer: EndpointIndex,
    },
    /// Close the endpoint, with everything that is outstanding. Another one may be opened then.
    /// Answer: [`Event::Done`].
    Close,
    /// Start an operation. Answer: [`Event::Started`] or [`Event::TryAgain`].
    Start {
        /// The operation's name.
        token: Token,
        /// The operation.
        request: Request,
        /// The message that must arrive, if one must.
        seed: Option<u64>,
    },
    /// Compare registered memory with a message. Answer: [`Event::Checked`].
    Check {
        /// The registering operation.
        token: Token,
        /// Where, in bytes.
        offset: usize,
        /// The message.
        payload: Payload,
    },
    /// Report registered memory as 64-bit words. Answer: [`Event::Words`].
    Words {
        /// The registering operation.
        token: Token,
    },
    /// Make progress once and report completions. Answer: [`Event::Done`], after them.
    Poll,
    /// Make progress and report completions until `pause`. Answer: [`Event::Done`].
    Progress,
    /// Stop making progress. Answer: [`Event::Done`], after which no completion follows.
    Pause,
}

impl Command {
    /// Opens what the scenario says of an endpoint; stock libfabric is loaded from `library`.
    pub fn open(endpoint: &EndpointSpec, library: &Path) -> Self {
        match endpoint.software {
            Software::Libfabric => Command::OpenLibfabric {
                library: library.to_owned(),
                api: endpoint.api.to_raw(),
                capabilities: endpoint.capability_bits(),
                register_local: endpoint.register_local,
                max_message: endpoint.max_message,
            },
            Software::Core => Command::OpenCore {
                settings: endpoint.settings.clone(),
                report_sources: endpoint.has(Capability::Source),
            },
        }
    }
}

/// What a driver says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// The endpoint is open.
    Opened {
        /// Its raw address.
        address: Vec<u8>,
        /// The software's release.
        version: Version,
    },
    /// The command was carried out.
    Done,
    /// The operation was started.
    Started {
        /// What that gave.
        started: Started,
    },
    /// Resources are short: progress first.
    TryAgain,
    /// The comparison was made.
    Checked {
        /// The first difference.
        difference: Option<String>,
    },
    /// The words.
    Words {
        /// From the first.
        words: Vec<u64>,
    },
    /// An operation finished.
    Completed {
        /// How.
        report: Report,
    },
    /// The endpoint reported something outside of any operation.
    Reported {
        /// What.
        text: String,
    },
    /// The command failed.
    Failed {
        /// Why.
        text: String,
    },
}

/// Runs a driver until its input ends. Ends the whole process with status 1 if the driver is still
/// busy 20 s later.
pub fn run(input: impl BufRead + Send + 'static, mut output: impl Write) -> io::Result<()> {
    let (sender, commands) = channel();
    // Reading blocks, progress must not: the reader is a thread of its own and ends with the input.
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
        subject: None,
        progressing: false,
    };
    loop {
        let line = match driver.next_line(&commands, &mut output)? {
            Some(line) => line,
            None => return Ok(()),
        };
        let event = match serde_json::from_str(&line) {
            Ok(command) => driver.obey(command, &mut output)?,
            Err(error) => Event::Failed {
                text: format!("`{line}` is no command: {error}"),
            },
        };
        say(&mut output, &event)?;
    }
}

fn say(output: &mut impl Write, event: &Event) -> io::Result<()> {
    serde_json::to_writer(&mut *output, event)?;
    output.write_all(b"\n")?;
    output.flush()
}

struct Driver {
    subject: Option<Local>,
    progressing: bool,
}

impl Driver {
    /// Waits for a command, making progress meanwhile if told to.
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
                // Nothing happened: leave the processor to the other side.
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
                say(output, &Event::Reported { text })?;
                return Ok(false);
            }
        };
        let events = subject.events();
        let events = events.unwrap_or_else(|error| vec![error.to_string()]);
        let busy = !reports.is_empty() || !events.is_empty();
        for report in reports {
            say(output, &Event::Completed { report })?;
        }
        for text in events {
            say(output, &Event::Reported { text })?;
        }
        Ok(busy)
    }

    fn obey(&mut self, command: Command, output: &mut impl Write) -> io::Result<Event> {
        let result = match command {
            Command::Poll => {
                self.progress(output)?;
                Ok(Event::Done)
            }
            Command::Progress => {
                self.progressing = true;
                Ok(Event::Done)
            }
            Command::Pause => {
                // What completed before the pause is reported before it.
                while self.progressing && self.progress(output)? {}
                self.progressing = false;
                Ok(Event::Done)
            }
            command => self.call(command),
        };
        Ok(match result {
            Ok(event) => event,
            Err(RequestError::TryAgain) => Event::TryAgain,
            Err(error) => Event::Failed {
                text: error.to_string(),
            },
        })
    }

    fn call(&mut self, command: Command) -> Result<Event, RequestError> {
        let (opened, version): (Box<dyn Application>, Version) = match command {
            Command::OpenLibfabric {
                library,
                api,
                capabilities,
                register_local,
                max_message,
            } => {
                let library = Library::load(&library)?;
                let settings = libfabric::Settings {
                    provider: libfabric::Settings::EFA.into(),
                    api: Version::from_raw(api),
                    capabilities,
                    register_local,
                    max_message,
                };
                let endpoint = libfabric::Endpoint::open(&library, &settings)?;
                (Box::new(StockApplication::new(endpoint)), library.version())
            }
            Command::OpenCore {
                settings,
                report_sources,
            } => (open_core(&settings, report_sources)?, OWN_VERSION),
            Command::Close => {
                self.subject = None;
                return Ok(Event::Done);
            }
            command => return self.use_application(command),
        };
        let address = opened.address()?;
        self.subject = Some(Local::new(opened));
        Ok(Event::Opened { address, version })
    }

    fn use_application(&mut self, command: Command) -> Result<Event, RequestError> {
        let Some(subject) = &mut self.subject else {
            return Err(RequestError::Refused("no endpoint is open".into()));
        };
        match command {
            Command::Insert { peer, address } => {
                subject.insert(peer, &address)?;
                Ok(Event::Done)
            }
            Command::Remove { peer } => {
                subject.remove(peer)?;
                Ok(Event::Done)
            }
            Command::Start {
                token,
                request,
                seed,
            } => {
                let started = subject.start(token, &request, seed)?;
                Ok(Event::Started { started })
            }
            Command::Check {
                token,
                offset,
                payload,
            } => {
                let difference = subject.check(token, offset, payload)?;
                Ok(Event::Checked { difference })
            }
            Command::Words { token } => {
                let words = subject.words(token)?;
                Ok(Event::Words { words })
            }
            Command::OpenLibfabric { .. }
            | Command::OpenCore { .. }
            | Command::Close
            | Command::Poll
            | Command::Progress
            | Command::Pause => Err(RequestError::Refused("an endpoint is open already".into())),
        }
    }
}

/// The release of the protocol engine.
const OWN_VERSION: Version = Version { major: 0, minor: 1 };

fn open_core(
    settings: &Settings,
    report_sources: bool,
) -> Result<Box<dyn Application>, RequestError> {
    let refused = |error: efa_hw::OpenError| RequestError::Refused(error.to_string());
    let device = HwDevice::open(&DeviceName::First).map_err(refused)?;
    let mut config = NicConfig::default();
    if let Some(wanted) = settings.unsolicited_write_recv {
        config.unsolicited_write_recv = wanted;
    }
    let nic = HwNic::open(device, config).map_err(refused)?;
    let start = std::time::Instant::now();
    let clock = move || Instant(start.elapsed());
    let config = configuration(settings);
    let application = CoreApplication::open(nic, config, report_sources, clock)?;
    Ok(Box::new(application))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converse(input: &str) -> Vec<Event> {
        let mut output = Vec::new();
        run(io::Cursor::new(input.to_owned()), &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_driver_answers_every_line_and_ends_with_its_input() {
        let events = converse(
            "{\"command\":\"progress\"}\n\
             {\"command\":\"pause\"}\n\
             nonsense\n\
             {\"command\":\"insert\",\"peer\":0,\"address\":[]}\n",
        );
        assert_eq!(events[..2], [Event::Done, Event::Done]);
        assert!(matches!(&events[2], Event::Failed { text } if text.contains("nonsense")));
        assert!(matches!(&events[3], Event::Failed { text } if text.contains("no endpoint")));
        assert_eq!(events.len(), 4);
    }

    #[test]
    fn a_library_that_cannot_be_loaded_is_named() {
        let command = Command::OpenLibfabric {
            library: "./no-such-libfabric.so".into(),
            api: Version::BASELINE_API.to_raw(),
            capabilities: 0,
            register_local: false,
            max_message: None,
        };
        let line = serde_json::to_string(&command).unwrap() + "\n";
        let events = converse(&line);
        assert!(
            matches!(&events[..], [Event::Failed { text }] if text.contains("no-such-libfabric")),
            "{events:?}"
        );
    }
}
