//! How the ranks of a job find each other: rank 0 listens, and a file in a directory that all share says where.
//!
//! The file has the job's secret, and only its owner can read it. It is there until all ranks have come.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use super::launcher::Rank;
use super::listen;
use super::message::Message;
use super::secret::Secret;
use super::server::Server;

/// How long a connection may take until both ends know each other.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// How often a rank looks for the file.
const LOOK: Duration = Duration::from_millis(50);
/// The file is not longer, in bytes.
const MOST: u64 = 4096;

/// What the file says.
#[derive(Serialize, Deserialize)]
struct Invitation {
    address: SocketAddr,
    secret: String,
}

/// How a rank introduces itself.
#[derive(Serialize, Deserialize)]
struct Introduction {
    number: u32,
    count: u32,
    name: String,
    address: SocketAddr,
}

/// A rank that has come to rank 0.
pub(super) struct Member {
    pub(super) number: u32,
    /// Its host.
    pub(super) name: String,
    /// Where it runs commands.
    pub(super) address: SocketAddr,
}

/// The place where the ranks of a job meet.
pub(super) struct Meeting {
    directory: PathBuf,
    path: PathBuf,
}

/// The invitation, which is removed when this is dropped; the directory too if it was made for it and nobody else uses it.
struct Posted<'m> {
    meeting: &'m Meeting,
    has_made_directory: bool,
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.meeting.path);
        if self.has_made_directory {
            let _ = fs::remove_dir(&self.meeting.directory);
        }
    }
}

impl Meeting {
    /// That of a job, in a directory that all its hosts share.
    pub(super) fn new(directory: &Path, job: Option<&str>) -> Self {
        let is_plain = |it: &char| it.is_ascii_alphanumeric() || *it == '-';
        let job: String = job.unwrap_or("any").chars().filter(is_plain).collect();
        Meeting {
            directory: directory.to_owned(),
            path: directory.join(format!("job-{job}")),
        }
    }

    /// Waits as rank 0 until all others have come. They are in the order of their numbers.
    pub(super) fn lead(
        &self,
        rank: &Rank,
        address: IpAddr,
        deadline: Instant,
    ) -> Result<(Vec<(Member, TcpStream)>, Secret), String> {
        let secret = Secret::random();
        let (listener, address) =
            listen(address).map_err(|error| format!("cannot listen: {error}"))?;
        let _posted = self.post(&Invitation {
            address,
            secret: secret.text(),
        })?;
        let (sender, coming) = channel();
        let own = secret.clone();
        // It ends with the process: who comes later sees that nobody cares.
        thread::spawn(move || accept(&listener, &own, &sender));
        let mut members: Vec<(Member, TcpStream)> = Vec::new();
        while members.len() + 1 < rank.count as usize {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((introduction, mut stream)) = coming.recv_timeout(left) else {
                let is_missing =
                    |number: &u32| !members.iter().any(|(member, _)| member.number == *number);
                let missing: Vec<String> = (1..rank.count)
                    .filter(is_missing)
                    .map(|number| number.to_string())
                    .collect();
                return Err(format!(
                    "of {} ranks, these did not come: {}",
                    rank.count,
                    missing.join(", ")
                ));
            };
            let Introduction {
                number,
                count,
                name,
                address,
            } = introduction;
            let is_here = members.iter().any(|(member, _)| member.number == number);
            let is_wrong = count != rank.count || number == 0 || number >= count;
            if is_here || is_wrong {
                let why = format!(
                    "another job of {} ranks meets in {}",
                    rank.count,
                    self.directory.display()
                );
                // It comes again.
                let _ = Message::Refused(why).write(&mut stream);
                continue;
            }
            if Message::Welcome.write(&mut stream).is_ok() {
                members.push((
                    Member {
                        number,
                        name,
                        address,
                    },
                    stream,
                ));
            }
        }
        members.sort_by_key(|(member, _)| member.number);
        Ok((members, secret))
    }

    /// Writes the file under another name first: nobody sees a part of it.
    fn post(&self, invitation: &Invitation) -> Result<Posted<'_>, String> {
        let failed = |error: io::Error| format!("cannot write {}: {error}", self.path.display());
        let has_made_directory = match DirBuilder::new().mode(0o700).create(&self.directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed(error)),
        };
        if self
            .read()
            .is_ok_and(|(address, secret)| meet(address, &secret).is_ok())
        {
            return Err(format!("another job meets at {}", self.path.display()));
        }
        let new = self.path.with_extension(std::process::id().to_string());
        let write = || {
            let _ = fs::remove_file(&new);
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(serde_json::to_string(invitation)?.as_bytes())?;
            fs::rename(&new, &self.path)
        };
        write().map_err(failed)?;
        Ok(Posted {
            meeting: self,
            has_made_directory,
        })
    }

    /// Reads the file. One that another user may have written would have this rank run that user's commands.
    fn read(&self) -> io::Result<(SocketAddr, Secret)> {
        let mut options = OpenOptions::new();
        let file: File = options
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&self.path)?;
        let metadata = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        if metadata.uid() != user || metadata.mode() & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("it has to belong to user {user}, and to be closed for others"),
            ));
        }
        let mut text = String::new();
        file.take(MOST).read_to_string(&mut text)?;
        let invitation: Invitation = serde_json::from_str(&text)?;
        let secret = Secret::parse(&invitation.secret).ok_or(io::ErrorKind::InvalidData)?;
        Ok((invitation.address, secret))
    }

    /// Goes to rank 0 as another rank. Returns the connection that ends with rank 0, and the server of its commands.
    pub(super) fn join(
        &self,
        rank: &Rank,
        name: &str,
        deadline: Instant,
    ) -> Result<(TcpStream, Server), String> {
        loop {
            let why = match self.try_to_join(rank, name) {
                Ok(joined) => return Ok(joined),
                Err(why) => why,
            };
            if Instant::now() >= deadline {
                return Err(why);
            }
            thread::sleep(LOOK);
        }
    }

    fn try_to_join(&self, rank: &Rank, name: &str) -> Result<(TcpStream, Server), String> {
        let (address, secret) = self
            .read()
            .map_err(|error| format!("{}: {error}", self.path.display()))?;
        let join = || {
            let mut control = meet(address, &secret)?;
            // Rank 0 reaches this host by the address with which this host reached rank 0.
            let server = Server::start(control.local_addr()?.ip(), secret.clone())?;
            let introduction = Introduction {
                number: rank.number,
                count: rank.count,
                name: name.to_owned(),
                address: server.address,
            };
            Message::Join(serde_json::to_string(&introduction)?).write(&mut control)?;
            match Message::read(&mut control)? {
                Message::Welcome => {}
                Message::Refused(why) => return Err(io::Error::other(why)),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            control.set_read_timeout(None)?;
            // The machine of rank 0 may be gone without a word.
            sockopt::set_socket_keepalive(&control, true)?;
            sockopt::set_tcp_keepidle(&control, Duration::from_secs(30))?;
            sockopt::set_tcp_keepintvl(&control, Duration::from_secs(10))?;
            Ok((control, server))
        };
        join().map_err(|error: io::Error| format!("rank 0 at {address}: {error}"))
    }
}

/// Connects to whoever has posted the invitation.
fn meet(address: SocketAddr, secret: &Secret) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, INTRODUCTION)?;
    stream.set_read_timeout(Some(INTRODUCTION))?;
    secret.prove_as_client(&mut stream)?;
    Ok(stream)
}

/// Hears who comes. Each is heard in a thread, so that one that says nothing keeps nobody waiting.
fn accept(listener: &TcpListener, secret: &Secret, sender: &Sender<(Introduction, TcpStream)>) {
    for mut stream in listener.incoming().flatten() {
        let (secret, sender) = (secret.clone(), sender.clone());
        let hear = move || {
            let introduced = stream
                .set_read_timeout(Some(INTRODUCTION))
                .and_then(|()| secret.prove_as_server(&mut stream))
                .and_then(|()| Message::read(&mut stream));
            if let Ok(Message::Join(text)) = introduced
                && let Ok(introduction) = serde_json::from_str(&text)
            {
                // Nobody waits any more for who comes late.
                let _ = sender.send((introduction, stream));
            }
        };
        // Without a thread the connection is closed, and comes again.
        let _ = thread::Builder::new().spawn(hear);
    }
}

#[cfg(test)]
mod tests {
    use super::super::launcher::Launcher;
    use super::*;
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn rank(number: u32, count: u32) -> Rank {
        Rank {
            number,
            count,
            launcher: Launcher::Mpirun,
            job: None,
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(300)
    }

    fn in_time() -> Instant {
        Instant::now() + Duration::from_secs(120)
    }

    #[test]
    fn ranks_come_in_any_order_and_what_a_dead_job_left_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let shared = directory.path().join("shared");
        let meeting = Meeting::new(&shared, Some("prte@1/../x"));
        let old = Invitation {
            address: listen(HOME).unwrap().1,
            secret: Secret::random().text(),
        };
        fs::create_dir(&shared).unwrap();
        std::mem::forget(meeting.post(&old).unwrap());
        assert_eq!(meeting.path, shared.join("job-prte1x"));
        assert_eq!(fs::metadata(&meeting.path).unwrap().mode() & 0o777, 0o600);
        thread::scope(|threads| {
            let meeting = &meeting;
            for number in [3, 1, 2] {
                threads.spawn(move || {
                    let name = format!("node{number}");
                    let joined = meeting.join(&rank(number, 4), &name, in_time());
                    // Until rank 0 ends.
                    let (mut control, _server) = joined.unwrap();
                    assert_eq!(control.read(&mut [0]).unwrap(), 0);
                });
            }
            let led = meeting.lead(&rank(0, 4), HOME, in_time()).unwrap();
            let names: Vec<&str> = led.0.iter().map(|(member, _)| &*member.name).collect();
            assert_eq!(names, ["node1", "node2", "node3"]);
        });
        // Nothing is left behind, but for the directory that was there before.
        assert!(fs::read_dir(&shared).unwrap().next().is_none());
        let why = Meeting::new(&shared.join("new"), None).lead(&rank(0, 2), HOME, soon());
        assert!(why.is_err() && !shared.join("new").exists());
    }

    #[test]
    fn who_is_missing_and_who_is_too_many_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let meeting = Meeting::new(directory.path(), None);
        let why = meeting.lead(&rank(0, 3), HOME, soon()).err().unwrap();
        assert!(why.ends_with("these did not come: 1, 2"), "{why}");
        let why = meeting.join(&rank(1, 3), "x", soon()).err().unwrap();
        assert!(why.contains("job-any"), "{why}");
        thread::scope(|threads| {
            let lead = threads.spawn(|| meeting.lead(&rank(0, 3), HOME, in_time()));
            let one = meeting.join(&rank(1, 3), "x", in_time()).unwrap();
            // A second rank 1, one of another job, and another rank 0.
            for wrong in [rank(1, 3), rank(2, 4)] {
                let why = meeting.join(&wrong, "y", soon()).err().unwrap();
                assert!(why.contains("another job of 3 ranks"), "{why}");
            }
            let why = meeting.lead(&rank(0, 2), HOME, soon()).err().unwrap();
            assert!(why.contains("another job meets at"), "{why}");
            let two = meeting.join(&rank(2, 3), "z", in_time()).unwrap();
            assert_eq!(lead.join().unwrap().unwrap().0.len(), 2);
            drop((one, two));
        });
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_a_link_is_not_believed() {
        let directory = tempfile::tempdir().unwrap();
        let meeting = Meeting::new(directory.path(), None);
        let invitation = Invitation {
            address: (HOME, 1).into(),
            secret: Secret::random().text(),
        };
        let posted = meeting.post(&invitation).unwrap();
        assert!(meeting.read().is_ok());
        fs::set_permissions(&meeting.path, fs::Permissions::from_mode(0o640)).unwrap();
        let why = meeting.read().err().unwrap();
        assert!(why.to_string().contains("closed for others"), "{why}");
        fs::set_permissions(&meeting.path, fs::Permissions::from_mode(0o600)).unwrap();
        let other = directory.path().join("other");
        fs::rename(&meeting.path, &other).unwrap();
        std::os::unix::fs::symlink(&other, &meeting.path).unwrap();
        assert!(meeting.read().is_err());
        for hostile in [
            "",
            "{",
            "[]",
            "{\"address\":\"1.2.3.4:5\",\"secret\":\"ff\"}",
        ] {
            fs::remove_file(&meeting.path).unwrap();
            fs::write(&meeting.path, hostile).unwrap();
            fs::set_permissions(&meeting.path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(meeting.read().is_err(), "{hostile}");
        }
        drop(posted);
    }
}
