//! `run` and `interop` as the processes of a parallel job, which `mpirun` or `srun` starts: rank 0 leads, the others run its commands.
//!
//! The player reaches hosts by a remote shell. Here that is [`shell`], a command of this program: it speaks to the
//! server of the rank on that host.

mod launcher;
mod meeting;
mod message;
mod secret;
mod server;
pub(crate) mod shell;

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use efa_commands::{Failure, RunDirectory, temporary_directory};
use efa_play::player::{RemoteShell, own_address, quote};
use efa_shm::HostConfig;

pub(crate) use launcher::Launcher;
use launcher::Rank;
use meeting::{Meeting, Member};
use server::Server;
use shell::Table;

#[derive(clap::Args)]
pub(crate) struct Ranks {
    /// The hosts are those on which this launcher has started this command: rank 0 runs everything, the others serve it.
    /// Launchers are found by their environment variables if `--pairs` is given without hosts.
    #[arg(long, value_enum,
          conflicts_with_all = ["hosts", "hostfile", "rsh"])]
    under: Option<Launcher>,
    /// Under a launcher: the directory in which the ranks find each other, the same one for all hosts.
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "efa-conformance-ranks"
    )]
    rendezvous: PathBuf,
    /// Under a launcher: the address of rank 0's host for the other ranks; that of the default route unless it is named.
    #[arg(long, value_name = "ADDRESS")]
    leader_address: Option<IpAddr>,
}

/// What this process is to do.
pub(crate) enum Part {
    /// Runs everything.
    Lead(Box<Leader>),
    /// Nothing more: it has run the leader's commands, and the leader has ended.
    Served,
}

/// Rank 0, to which the others have come. They end when this is dropped, or this process ends.
pub(crate) struct Leader {
    /// The hosts of the ranks, each once.
    pub(crate) hosts: Vec<String>,
    /// What starts commands on them.
    pub(crate) shell: RemoteShell,
    /// This program, for the hosts.
    pub(crate) program: String,
    launcher: Launcher,
    count: u32,
    /// The ends of these connections end the other ranks.
    _members: Vec<TcpStream>,
    /// Has the file that `shell` reads.
    _directory: RunDirectory,
}

impl Leader {
    /// The words in front of a command that repeat the start of the ranks.
    pub(crate) fn words(&self) -> Vec<String> {
        let words = match self.launcher {
            Launcher::Mpirun => format!("mpirun -n {} --map-by node", self.count),
            Launcher::Srun => format!("srun -N {0} -n {0}", self.count),
        };
        words.split(' ').map(str::to_owned).collect()
    }

    /// The option that names the launcher.
    pub(crate) fn option(&self) -> (&'static str, String) {
        ("--under", self.launcher.to_string())
    }
}

impl Ranks {
    /// Returns whether a launcher is named.
    pub(crate) fn are_named(&self) -> bool {
        self.under.is_some()
    }

    /// Brings the ranks together, which may take `limit`. Returns at once if this is rank 0, and otherwise when
    /// rank 0 has ended.
    pub(crate) fn meet(&self, limit: Duration) -> Result<Part, String> {
        let rank = Rank::find(self.under, |name| std::env::var(name).ok())?;
        let meeting = Meeting::new(&self.rendezvous, rank.job.as_deref());
        let deadline = Instant::now() + limit;
        if rank.number > 0 {
            let (control, server) = meeting.join(&rank, &own_name(), deadline).map_err(|why| {
                format!(
                    "rank {} of {} did not come to rank 0 within {limit:?}: {why}; {} has to be one directory for all \
                     hosts, or name one with --rendezvous",
                    rank.number,
                    rank.count,
                    self.rendezvous.display()
                )
            })?;
            serve_until_the_end_of(control, server);
            return Ok(Part::Served);
        }
        let address = self.leader_address.unwrap_or_else(own_address);
        let (members, secret) = meeting.lead(&rank, address, deadline).map_err(|why| {
            format!(
                "rank 0, at {address}: {why}; {} has to be one directory for all hosts (--rendezvous), and the address \
                 one that they reach (--leader-address)",
                self.rendezvous.display()
            )
        })?;
        let own = Server::start(IpAddr::V4(Ipv4Addr::LOCALHOST), secret.clone())
            .map_err(|error| format!("cannot serve commands of this host: {error}"))?;
        let mut hosts = vec![own_name()];
        let mut addresses = BTreeMap::from([(own_name(), own.address)]);
        let mut connections = Vec::new();
        for (
            Member {
                number,
                name,
                address,
            },
            connection,
        ) in members
        {
            connections.push(connection);
            if addresses.contains_key(&name) {
                eprintln!(
                    "efa-conformance: note: rank {number} does nothing: another rank is on {name} already; start one \
                     on each host (--map-by node, --ntasks-per-node=1)"
                );
                continue;
            }
            addresses.insert(name.clone(), address);
            hosts.push(name);
        }
        if hosts.len() < 2 {
            return Err(format!(
                "all {} ranks are on {}: start one on each host, with `mpirun --map-by node` or `srun \
                 --ntasks-per-node=1`",
                rank.count, hosts[0]
            ));
        }
        let own = std::env::current_exe().map_err(|error| format!("what am I? {error}"))?;
        let program = own.display().to_string();
        let directory = RunDirectory::create_below(&temporary_directory(), "efa-conformance")
            .map_err(|Failure(problem)| problem)?;
        let table = directory.path().join("ranks");
        Table::new(&secret, addresses).write(&table)?;
        let words = ["rank-shell", &table.display().to_string()].map(quote);
        Ok(Part::Lead(Box::new(Leader {
            hosts,
            shell: format!("{} {}", quote(&program), words.join(" ")).parse()?,
            program,
            launcher: rank.launcher,
            count: rank.count,
            _members: connections,
            _directory: directory,
        })))
    }
}

/// Runs rank 0's commands until its connection ends.
fn serve_until_the_end_of(mut control: TcpStream, server: Server) {
    // Nothing more is said on it.
    let _ = control.read(&mut [0]);
    server.end();
}

/// The name of this host: the emulated one's, or the machine's.
fn own_name() -> String {
    if let Ok(config) = HostConfig::from_env() {
        return config.host;
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// Listens at a port of this address that nobody else uses.
fn listen(address: IpAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((address, 0))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
