//! The first frames of a connection: both ends identify themselves and check whether they match.

use std::io;
use std::time::Duration;

use efa_shm::version;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::frames;
use crate::secure::SecureConnection;

/// Version of the protocol between bridges. It changes with the layout of greetings, notices,
/// messages or records.
pub(crate) const PROTOCOL: u32 = 3;

/// The kind of a frame with a greeting. It never changes, so that different versions can identify
/// each other.
const KIND: u8 = 1;

/// Maximum length of a greeting, in bytes.
const LONGEST: usize = 16 << 10;

/// The identity that a bridge sends first.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Greeting {
    pub(crate) protocol: u32,
    /// The build of the program.
    pub(crate) build: String,
    /// The name of the machine.
    pub(crate) machine: String,
    /// Unique number of the process.
    pub(crate) incarnation: u64,
    pub(crate) fabric: String,
    /// Whether it prefers no encryption.
    pub(crate) plain: bool,
    /// Its heartbeat timeout.
    pub(crate) timeout: Duration,
    /// The number of times that the other bridge has asked the dialer to wait.
    pub(crate) patience: u32,
}

/// The acceptor's answer.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) enum Verdict {
    Welcome,
    /// Dialer and acceptor are one process.
    Itself,
    /// There is a connection already.
    Known,
    /// The dialer must wait: the acceptor dials.
    Wait,
    Refused(String),
}

/// The acceptor's greeting.
#[derive(Serialize, Deserialize, Debug)]
struct Reply {
    greeting: Greeting,
    verdict: Verdict,
}

/// The other bridge has another version of the protocol.
#[derive(Debug, thiserror::Error)]
#[error(
    "the bridges speak different versions: {protocol} is {build} ({machine}), {other} is {other_build}: use one \
     build on all machines"
)]
struct WrongProtocol {
    protocol: u32,
    build: String,
    machine: String,
    other: String,
    other_build: String,
}

impl Greeting {
    pub(crate) fn new(machine: &str, fabric: &str, plain: bool, timeout: Duration) -> Greeting {
        Greeting {
            protocol: PROTOCOL,
            build: format!("efa-emu {}", version::build()),
            machine: machine.to_owned(),
            incarnation: rand::random(),
            fabric: fabric.to_owned(),
            plain,
            timeout,
            patience: 0,
        }
    }

    /// The dialer's part.
    pub(crate) fn dial(
        &self,
        connection: &mut SecureConnection,
    ) -> io::Result<(Greeting, Verdict)> {
        connection.send(&frame(self)?)?;
        let text = connection.receive(LONGEST)?;
        let value = content(&text)?;
        self.check_protocol(&value["greeting"])
            .map_err(io::Error::other)?;
        let reply: Reply = read(value)?;
        Ok((reply.greeting, reply.verdict))
    }

    /// The acceptor's part. `judge` returns the verdict for a matching dialer.
    pub(crate) fn accept(
        &self,
        connection: &mut SecureConnection,
        judge: impl FnOnce(&Greeting) -> Verdict,
    ) -> io::Result<(Greeting, Verdict)> {
        let text = connection.receive(LONGEST)?;
        let value = content(&text)?;
        let refuse = |connection: &mut SecureConnection, reason: String, own: String| {
            let reply = Reply {
                greeting: self.clone(),
                verdict: Verdict::Refused(reason),
            };
            // The connection ends in any case.
            let _ = frame(&reply).and_then(|frame| connection.send(&frame));
            Err(io::Error::other(own))
        };
        if let Err(error) = self.check_protocol(&value) {
            return refuse(connection, error.to_string(), error.to_string());
        }
        let theirs: Greeting = read(value)?;
        if let Some((reason, own)) = self.difference(&theirs) {
            return refuse(connection, reason, own);
        }
        let verdict = match theirs.incarnation == self.incarnation {
            true => Verdict::Itself,
            false => judge(&theirs),
        };
        let reply = Reply {
            greeting: self.clone(),
            verdict: verdict.clone(),
        };
        connection.send(&frame(&reply)?)?;
        Ok((theirs, verdict))
    }

    fn check_protocol(&self, theirs: &Value) -> Result<(), WrongProtocol> {
        let protocol = theirs["protocol"].as_u64();
        if protocol == Some(self.protocol.into()) {
            return Ok(());
        }
        Err(WrongProtocol {
            protocol: self.protocol,
            build: self.build.clone(),
            machine: self.machine.clone(),
            other: protocol.map_or("another".to_owned(), |number| number.to_string()),
            other_build: theirs["build"]
                .as_str()
                .unwrap_or("an unknown build")
                .to_owned(),
        })
    }

    /// The reason why the two do not match, in the words for the other end and for this one.
    fn difference(&self, theirs: &Greeting) -> Option<(String, String)> {
        let encrypts = |plain| match plain {
            true => "does not encrypt (--plain)",
            false => "encrypts",
        };
        if self.fabric != theirs.fabric {
            Some((
                format!(
                    "it joins the fabric {}, this machine {}: choose one --fabric",
                    self.fabric, theirs.fabric
                ),
                format!(
                    "it joins the fabric {}, this machine {}: choose one --fabric",
                    theirs.fabric, self.fabric
                ),
            ))
        } else if self.plain != theirs.plain {
            Some((
                format!(
                    "it {}, this machine {}: choose one",
                    encrypts(self.plain),
                    encrypts(theirs.plain)
                ),
                format!(
                    "it {}, this machine {}: choose one",
                    encrypts(theirs.plain),
                    encrypts(self.plain)
                ),
            ))
        } else if self.machine == theirs.machine && self.incarnation != theirs.incarnation {
            let text = format!(
                "both machines are called {}: choose names with --machine",
                self.machine
            );
            Some((text.clone(), text))
        } else {
            None
        }
    }
}

fn frame(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    frames::append(&mut bytes, KIND, &serde_json::to_vec(content)?);
    Ok(bytes)
}

fn content(frame: &[u8]) -> io::Result<Value> {
    if frame[4] != KIND {
        return Err(nonsense("another frame comes first"));
    }
    serde_json::from_slice(&frame[frames::HEADER..]).map_err(nonsense)
}

fn read<T: for<'a> Deserialize<'a>>(value: Value) -> io::Result<T> {
    serde_json::from_value(value).map_err(nonsense)
}

fn nonsense(reason: impl ToString) -> io::Error {
    let reason = reason.to_string();
    io::Error::other(format!("it does not greet as a bridge does ({reason})"))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::key::Key;
    use crate::secure::Role;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// The results of a greeting for dialer and acceptor; `dial` is the dialer's part.
    fn meet(
        acceptor: &Greeting,
        dial: impl FnOnce(&mut SecureConnection) -> io::Result<Verdict>,
    ) -> [io::Result<Verdict>; 2] {
        let now = SystemTime::now();
        let key = Key::between(now - DAY, now + DAY);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                let mut connection = SecureConnection::begin(stream, Role::Acceptor, &key)?;
                let accepted = acceptor.accept(&mut connection, |_| Verdict::Welcome);
                accepted.map(|(_, verdict)| verdict)
            });
            let stream = TcpStream::connect(address).unwrap();
            let dialed = SecureConnection::begin(stream, Role::Dialer, &key)
                .and_then(|mut connection| dial(&mut connection));
            [dialed, accepting.join().unwrap()]
        })
    }

    #[test]
    fn versions_that_differ_are_named_by_both_ends() {
        let one = Greeting::new("one", "default", false, Duration::from_secs(5));
        let other = Greeting {
            protocol: PROTOCOL + 1,
            build: "efa-emu 9.9.9".to_owned(),
            ..Greeting::new("other", "default", false, Duration::from_secs(5))
        };
        let met = meet(&one, |connection| Ok(other.dial(connection)?.1));
        let [dialer, acceptor] = met.map(|end| end.unwrap_err().to_string());
        for said in [&dialer, &acceptor] {
            let what = "the bridges speak different versions: ";
            assert!(said.contains(what), "{said}");
            assert!(said.contains("use one build on all machines"), "{said}");
            assert!(said.contains("efa-emu 9.9.9"), "{said}");
            assert!(said.contains(&one.build), "{said}");
        }
    }

    /// A later version may have another greeting.
    #[test]
    fn a_version_whose_greeting_is_another_is_named() {
        let one = Greeting::new("one", "default", false, Duration::from_secs(5));
        let met = meet(&one, |connection| {
            let greeting =
                serde_json::json!({ "protocol": 77, "build": "efa-emu 77", "shape": [] });
            connection.send(&frame(&greeting)?)?;
            let reply = content(&connection.receive(LONGEST)?)?;
            let verdict = read(reply["verdict"].clone())?;
            Ok(verdict)
        });
        let [dialer, acceptor] = met;
        let said = acceptor.unwrap_err().to_string();
        assert!(said.contains("77 is efa-emu 77"), "{said}");
        assert_eq!(dialer.unwrap(), Verdict::Refused(said));
    }
}
