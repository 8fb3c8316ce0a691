//! Checks whether two hosts can reach each other over EFA, with a message in each direction.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use efa_play::application::checked::CheckedApplication;
use efa_play::application::{OperationRequest, RequestError};
use efa_play::drive::EndpointOptions;
use efa_play::operation::{Payload, SendMode};
use efa_play::player::{
    DrivenApplication, HostDevice, HostedProgram, Player, Program, RemoteAccess, Timeouts,
};

use super::finding::Finding;

/// The length of each message in bytes.
const LENGTH: usize = 1024;

/// The longest time of the exchange. Devices give up after seconds, so nothing arrives later than
/// this.
const PATIENCE: Duration = Duration::from_secs(60);

/// The reason why the messages did not arrive.
enum ExchangeError {
    /// A side failed before its first message.
    Unfit { who: &'static str, problem: String },
    /// Both sides have devices, but a message was lost.
    Silent(Vec<String>),
}

/// Exchanges messages with another host, which the remote shell reaches, and reports whether they
/// arrived. `options` are those by which a user changes how the host is reached.
pub fn reach(place: &HostDevice, by: &RemoteAccess, options: &str) -> Finding {
    let started = Instant::now();
    let finding = match exchange(place, by) {
        Ok(()) => {
            let value = format!("answers over EFA ({:.1?})", started.elapsed());
            Finding::ok("peer", value)
        }
        Err(ExchangeError::Unfit { who, problem }) => Finding::error(
            "peer",
            format!("{who} cannot take part: {problem}"),
        )
        .remedy(format!(
            "run `efa-conformance doctor` there; the remote shell has to work without asking, and \
             the program has to be there ({options})",
        )),
        Err(ExchangeError::Silent(failures)) => {
            let why = match failures.is_empty() {
                true => String::new(),
                false => format!(": {}", failures.join("; ")),
            };
            Finding::error("peer", format!("no message came through{why}")).remedy(
                "the security group of both interfaces must allow all traffic to and from itself, in \
                 both directions (a rule with a range of addresses is not enough for EFA): aws ec2 \
                 authorize-security-group-ingress --group-id SG --protocol -1 --source-group SG, and \
                 the same with -egress; both interfaces must be in one subnet",
            )
        }
    };
    finding.of(place.to_string())
}

fn exchange(place: &HostDevice, by: &RemoteAccess) -> Result<(), ExchangeError> {
    const HERE: &str = "this host";
    const THERE: &str = "the peer";
    let unfit = |who, problem: &dyn std::fmt::Display| ExchangeError::Unfit {
        who,
        problem: problem.to_string(),
    };
    by.inspect(place).map_err(|error| unfit(THERE, &error))?;
    let (program, nothing) = (Program::Core, BTreeMap::new());
    let here = Player::launch_here(HERE, &program, &nothing, Timeouts::DEFAULT);
    let hosted = HostedProgram::driven(&program);
    let there = Player::launch_at(THERE, place, by, &hosted, Timeouts::DEFAULT);
    let mut sides = Vec::new();
    for (who, player, device) in [(HERE, here, None), (THERE, there, place.device.clone())] {
        let opening = EndpointOptions {
            device,
            ..super::messages()
        };
        let player = player.map_err(|error| unfit(who, &error))?;
        let side = DrivenApplication::open(player, &opening);
        sides.push((who, side.map_err(|error| unfit(who, &error))?));
    }
    talk(&mut sides)
}

/// Each side receives one message and sends one.
fn talk(sides: &mut [(&'static str, DrivenApplication)]) -> Result<(), ExchangeError> {
    const RECEIVE: u64 = 0;
    const SEND: u64 = 1;
    let seed = |from: usize| from as u64 + 1;
    let addresses: Result<Vec<_>, _> = sides
        .iter()
        .map(|(who, side)| side.address().map_err(|error| refused(who, &error)))
        .collect();
    let addresses = addresses?;
    for (index, (who, side)) in sides.iter_mut().enumerate() {
        let other = 1 - index;
        let receive = OperationRequest::Recv {
            length: LENGTH,
            from: None,
            tag: None,
        };
        side.insert(other, &addresses[other])
            .and_then(|()| side.start(RECEIVE, &receive, Some(seed(other))))
            .map_err(|error| refused(who, &error))?;
    }
    let mut to_send = [true; 2];
    let mut outstanding = [2; 2];
    let mut failures = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while outstanding != [0; 2] && failures.is_empty() {
        if Instant::now() > deadline {
            return Err(ExchangeError::Silent(failures));
        }
        for (index, (who, side)) in sides.iter_mut().enumerate() {
            if to_send[index] {
                let send = OperationRequest::Send {
                    to: 1 - index,
                    payload: Payload {
                        seed: seed(index),
                        length: LENGTH,
                    },
                    tag: None,
                    data: None,
                    mode: SendMode::Normal,
                };
                match side.start(SEND, &send, None) {
                    Ok(_) => to_send[index] = false,
                    Err(RequestError::TryAgain) => {}
                    Err(error) => return Err(refused(who, &error)),
                }
            }
            for report in side.poll().map_err(|error| refused(who, &error))? {
                outstanding[index] -= 1;
                failures.extend(
                    report
                        .failure
                        .map(|failure| format!("{who}: {}", failure.text)),
                );
                if report.difference.is_some() {
                    failures.push(format!("{who}: the message has other bytes than were sent"));
                }
            }
        }
        // Progress is made by commands; there is no hurry.
        std::thread::sleep(Duration::from_millis(1));
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(ExchangeError::Silent(failures)),
    }
}

fn refused(who: &'static str, error: &RequestError) -> ExchangeError {
    ExchangeError::Unfit {
        who,
        problem: error.to_string(),
    }
}
