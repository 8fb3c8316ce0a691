//! `--uplink`: the bridge to other machines that a run starts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use efa_cluster::uplink::{Uplink, UplinkParameters};
use efa_commands::Failure;
use efa_shm::Fabric;

use crate::output::complain;

/// Maximum time to wait for the first other machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The interval of checks while waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Args)]
#[command(next_help_heading = "Other machines (docs/machines.md)")]
pub(super) struct UplinkOptions {
    /// Join the fabrics of other machines: unless a bridge runs already, start one that connects
    /// with the bridge at this address, as `efa-emu bridge --peer` takes it, and ends with the last
    /// program; repeatable.
    #[arg(long, value_name = "ADDRESS", requires = "uplink_key")]
    uplink: Vec<String>,
    /// The key of all bridges of the fabric, made by `efa-emu bridge key`.
    #[arg(long, value_name = "FILE", requires = "uplink")]
    uplink_key: Option<PathBuf>,
    /// The addresses that the bridge accepts connections at; by default all of this machine.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = UplinkParameters::EVERYWHERE,
        requires = "uplink"
    )]
    uplink_listen: String,
}

impl UplinkOptions {
    pub(super) fn is_wanted(&self) -> bool {
        !self.uplink.is_empty()
    }

    /// Starts a bridge if one is requested and none runs, and waits until it is connected to
    /// another machine.
    pub(super) fn start(&self, fabric: &Fabric, quiet: bool) -> Result<Option<Uplink>, Failure> {
        let Some(key) = self.uplink_key.as_ref().filter(|_| self.is_wanted()) else {
            return Ok(None);
        };
        let wanted = UplinkParameters {
            key,
            listen: &self.uplink_listen,
            listen_option: "--uplink-listen ADDRESS:PORT",
            peers: &self.uplink,
            machine: None,
        };
        let mut uplink = Uplink::start(fabric, &wanted, quiet)?;
        let begin = Instant::now();
        loop {
            if !uplink.look()? {
                return Ok(None);
            }
            if uplink.is_connected() {
                break;
            }
            if begin.elapsed() > PATIENCE {
                complain(&format!(
                    "no other machine was reached within {PATIENCE:?}: going on without, until one is"
                ));
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Some(uplink))
    }
}
