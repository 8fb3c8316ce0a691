//! A program as the endpoint under test.

use std::collections::BTreeMap;
use std::sync::Arc;

use efa_play::application::RequestError;
use efa_play::application::checked::CheckedApplication;
use efa_play::drive::{EndpointOptions, Identity};
use efa_play::player::{Delays, DrivenApplication, Player, PlayerError, Program, Timeouts};
use efa_play::scenario::EndpointSpec;
use serde::{Deserialize, Serialize};

use super::backend::BackendError;
use super::hw::Hw;
use super::opener::Opener;

/// Number of consecutive starts without a `hello` after which a program is not started again.
const MOST_UNANSWERED: u32 = 3;

/// Opens a program, in a separate process on this host, as the endpoint under test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramOpener {
    /// The program to start.
    pub program: Program,
    /// The time limit for its answers.
    pub timeouts: Timeouts,
    /// The number of its last consecutive starts without a `hello`.
    unanswered: u32,
    #[serde(skip)]
    delays: Arc<Delays>,
}

impl ProgramOpener {
    /// A program that has not been started.
    pub fn new(program: Program, timeouts: Timeouts) -> Self {
        ProgramOpener {
            program,
            timeouts,
            unanswered: 0,
            delays: Arc::default(),
        }
    }

    /// Starts the program for `endpoint`, and waits for its `hello`.
    ///
    /// # Errors
    /// [`PlayerError::GivenUp`] if it never answers, otherwise its violation of the driver
    /// protocol.
    pub fn start(
        &mut self,
        endpoint: &str,
        environment: &BTreeMap<String, String>,
    ) -> Result<(Player, Identity), PlayerError> {
        if self.unanswered >= MOST_UNANSWERED {
            return Err(PlayerError::GivenUp {
                starts: MOST_UNANSWERED,
                limit: self.timeouts.start,
            });
        }
        let player = Player::launch_here(endpoint, &self.program, environment, self.timeouts)?;
        let mut player = player.with_delays(&self.delays);
        let identity = player.identity();
        self.unanswered = match identity {
            Err(PlayerError::Silent { .. }) => self.unanswered + 1,
            _ => 0,
        };
        Ok((player, identity?))
    }
}

impl Opener<Hw> for ProgramOpener {
    fn open(
        &mut self,
        _backend: &mut Hw,
        endpoint: &EndpointSpec,
    ) -> Result<Box<dyn CheckedApplication>, BackendError> {
        let (player, _) = self
            .start(&endpoint.name, &endpoint.environment)
            .map_err(RequestError::from)?;
        let driven = DrivenApplication::open(player, &EndpointOptions::from(endpoint))?;
        Ok(Box::new(driven))
    }
}
