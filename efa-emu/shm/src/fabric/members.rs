//! The devices of a fabric: how processes enter them, and lists of them.

use std::path::Path;

use efa_core::address::Gid;

use super::directory::{Fabric, shared_memory_root};
use super::host::Host;
use super::known::KnownDevices;
use super::participants;
use super::paths::{MAX_NAME, check_name};
use super::status::{self, HostFilter, HostStatus};
use crate::error::FabricError;
use crate::identity::config::NetworkOptions;
use crate::identity::device_name::DeviceName;
use crate::identity::qpn::{HostTable, TableOwner};
use crate::transport::segment;
use efa_device_model::profile::Profile;
use efa_lock_free::qpn::ParticipantId;

/// All live hosts of the fabric `name`, ordered by their names.
pub fn list_hosts(name: &str) -> Result<Vec<HostStatus>, FabricError> {
    Fabric::find(name)?.hosts()
}

impl Fabric {
    /// The calling user's fabrics that have hosts, ordered by name. A fabric that cannot be read
    /// now counts as having none.
    pub fn running() -> Vec<Fabric> {
        Fabric::running_below(&shared_memory_root())
    }

    /// As [`Fabric::running`], below another directory.
    pub fn running_below(root: &Path) -> Vec<Fabric> {
        let mut running: Vec<_> = Fabric::all_below(root)
            .filter(|fabric| fabric.hosts().is_ok_and(|hosts| !hosts.is_empty()))
            .collect();
        running.sort_by(|a, b| a.name().cmp(b.name()));
        running
    }

    /// Makes the caller a participant of the device `name`, which is the host's name, with an index
    /// if it has several devices (see [`DeviceName`]): an existing live one, or a new one. `None`
    /// picks a new host `host-1`, `host-2`, ... With a `gid`, a new device gets exactly that one.
    ///
    /// `queue_pairs` is the maximum number of queue pairs of the device at a time; the first
    /// participant determines it.
    pub fn enter_host(
        &self,
        name: Option<&str>,
        gid: Option<Gid>,
        queue_pairs: u32,
    ) -> Result<Host, FabricError> {
        let Some(text) = name else {
            let mut entered = self.enter_all(&[None], Some(1), queue_pairs, None)?;
            return Ok(entered.remove(0).remove(0));
        };
        let invalid = || FabricError::InvalidName {
            what: "device",
            name: text.to_owned(),
            max: MAX_NAME,
        };
        self.enter_device(
            &DeviceName::parse(text).ok_or_else(invalid)?,
            gid,
            queue_pairs,
        )
    }

    /// As [`Fabric::enter_host`], for a device that is known by all parts of its name.
    pub fn enter_device(
        &self,
        name: &DeviceName,
        gid: Option<Gid>,
        queue_pairs: u32,
    ) -> Result<Host, FabricError> {
        check_name("host", name.host())?;
        self.with_lock(|hosts| {
            // A job has many programs, so each one reads only its own device.
            if let Some(gid) = gid
                && let Some(host) = Host::join(self, name, gid)?
            {
                return Ok(host);
            }
            participants::remove_dead(hosts)?;
            let owner = TableOwner::Own(queue_pairs);
            Host::enter(&mut KnownDevices::read(hosts)?, self, name, gid, owner)
        })
    }

    /// Makes the caller represent devices of another machine, which must not be known yet. Returns
    /// the participation in each, or the reason why there is none.
    ///
    /// # Errors
    /// The registry cannot be changed.
    pub(crate) fn enter_remotes(
        &self,
        devices: &[(&DeviceName, Gid)],
        machine: &str,
    ) -> Result<Vec<Result<Host, FabricError>>, FabricError> {
        check_name("machine", machine)?;
        self.with_registry(|hosts| {
            let mut known = KnownDevices::read(hosts)?;
            let enter = |(name, gid): &(&DeviceName, Gid)| {
                check_name("host", name.host())?;
                let owner = TableOwner::Remote(machine);
                Host::enter(&mut known, self, name, Some(*gid), owner)
            };
            Ok(devices.iter().map(enter).collect())
        })
    }

    /// Refuses names that a host cannot have.
    ///
    /// # Errors
    /// [`FabricError::InvalidName`]
    pub fn check_host_name(name: &str) -> Result<(), FabricError> {
        check_name("host", name)
    }

    /// Makes the caller a participant of all devices of the host `name`, in their order: of an
    /// existing live host, or of a new one with that number of devices (`None`: one). `None` for a
    /// name picks a new one. The profile becomes visible together with the new devices.
    ///
    /// # Errors
    /// The number is out of range, or the host exists with another one.
    pub fn enter_devices(
        &self,
        name: Option<&str>,
        devices: Option<u32>,
        profile: &Profile,
    ) -> Result<Vec<Host>, FabricError> {
        let mut entered = self.enter_all(&[name], devices, profile.max_qp, Some(profile.name))?;
        Ok(entered.remove(0))
    }

    /// As [`Fabric::enter_devices`], for several hosts: about as fast as for one.
    ///
    /// # Errors
    /// The caller then participates in none of them.
    pub fn enter_hosts(
        &self,
        names: &[String],
        devices: Option<u32>,
        profile: &Profile,
    ) -> Result<Vec<Vec<Host>>, FabricError> {
        let names: Vec<_> = names.iter().map(|name| Some(name.as_str())).collect();
        self.enter_all(&names, devices, profile.max_qp, Some(profile.name))
    }

    fn enter_all(
        &self,
        names: &[Option<&str>],
        devices: Option<u32>,
        queue_pairs: u32,
        profile: Option<&str>,
    ) -> Result<Vec<Vec<Host>>, FabricError> {
        for name in names.iter().flatten() {
            Self::check_host_name(name)?;
        }
        let most = DeviceName::MOST;
        if let Some(wanted) = devices.filter(|wanted| !(1..=most).contains(wanted)) {
            return Err(FabricError::DeviceCount { wanted, most });
        }
        let mut all = Vec::new();
        let entered = self.with_registry(|hosts| {
            let mut known = KnownDevices::read(hosts)?;
            for name in names {
                all.push(Vec::new());
                let entered = all.last_mut().expect("it was just put there");
                Host::enter_all(
                    entered,
                    &mut known,
                    self,
                    *name,
                    devices,
                    queue_pairs,
                    profile,
                )?;
            }
            Ok(())
        });
        match entered {
            Ok(()) => Ok(all),
            Err(error) => {
                Host::leave_all(all.into_iter().flatten());
                Err(error)
            }
        }
    }

    /// The devices of all live hosts, ordered by name.
    pub fn hosts(&self) -> Result<Vec<HostStatus>, FabricError> {
        self.list(HostFilter::All)
    }

    /// As [`Fabric::hosts`], without hosts of other machines.
    pub fn hosts_of_this_machine(&self) -> Result<Vec<HostStatus>, FabricError> {
        self.list(HostFilter::OfThisMachine)
    }

    fn list(&self, listed: HostFilter) -> Result<Vec<HostStatus>, FabricError> {
        self.with_existing_registry(|hosts| {
            let mut list = status::list(hosts, listed)?;
            list.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(list)
        })
    }

    /// The size in bytes of a device in the fabric's directory before a program opens it, if its
    /// profile has this number of queue pairs.
    pub fn bytes_of_device(queue_pairs: u32) -> u64 {
        /// The file with the name of the profile.
        const PROFILE: usize = 4096;
        (HostTable::bytes(queue_pairs) + PROFILE) as u64
    }

    /// The size in bytes of the files of a program that opens a device, if one other program sends
    /// to it.
    pub fn bytes_of_program() -> u64 {
        segment::BYTES_WITH_ONE_RING as u64
    }

    /// The network options of a live device; `None` before a process has opened it.
    pub fn network_of(&self, gid: Gid) -> Option<NetworkOptions> {
        participants::network_of(&self.host_directory(gid), gid)
    }

    pub(crate) fn participants(&self) -> Result<Vec<(Gid, ParticipantId)>, FabricError> {
        self.with_existing_registry(participants::live_participants)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use efa_core::address::Qpn;
    use efa_testing::patience::PATIENCE;

    use super::*;
    use crate::fabric::gids::{device_gid, is_emulated, preferred_numbers};
    use crate::fabric::participants::LOOKS;
    use crate::fabric::paths::file_names;
    use crate::fabric::status::ParticipantStatus;
    use crate::identity::config::DEFAULT_FABRIC;
    use crate::link::staged::PortRules;
    use efa_device_model::qpn_policy::QpnPolicy;
    use efa_lock_free::qpn::QpnChoice;

    fn fabric(root: &tempfile::TempDir) -> Fabric {
        Fabric::open_below(root.path(), DEFAULT_FABRIC).unwrap()
    }

    /// Their processes may be the last of the fabric: nobody would remove what they create.
    #[test]
    fn questions_and_sweeps_create_no_fabric() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let directory = fabric.root().to_owned();
        // Creating the fabric would fail.
        root.close().unwrap();
        assert!(fabric.hosts().unwrap().is_empty());
        assert_eq!(fabric.participants().unwrap(), []);
        assert_eq!(fabric.armed().unwrap(), []);
        assert_eq!(fabric.faults_of_this_machine().unwrap(), (0, Vec::new()));
        assert_eq!(fabric.disarm(|_| true).unwrap(), 0);
        // A process ended while it removed the fabric.
        std::fs::create_dir_all(fabric.directory()).unwrap();
        fabric.sweep();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(directory).unwrap();
    }

    #[test]
    fn hosts_of_two_fabrics_have_different_gids() {
        let root = tempfile::tempdir().unwrap();
        let fabrics = [DEFAULT_FABRIC, "lab", "lab-1"].map(|name| {
            let fabric = Fabric::open_below(root.path(), name).unwrap();
            let hosts = [None, None, Some("alpha"), Some("beta")];
            hosts.map(|host| fabric.enter_host(host, None, 64).unwrap())
        });
        let gids: BTreeSet<_> = fabrics.iter().flatten().map(Host::gid).collect();
        assert_eq!(gids.len(), 12, "{gids:?}");
    }

    #[test]
    fn hosts_have_names_gids_and_an_end() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let first = fabric.enter_host(None, None, 64).unwrap();
        let second = fabric.enter_host(None, None, 64).unwrap();
        let joined = fabric.enter_host(Some("host-1"), None, 64).unwrap();
        let named = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        assert_eq!(first.name(), "host-1");
        assert_eq!(second.name(), "host-2");
        assert_eq!(first.gid().to_string(), "fe80::ef:a0ff:fe00:1");
        assert_eq!(joined.gid(), first.gid());
        let alpha = named.gid();
        assert!(![first.gid(), second.gid()].contains(&alpha));

        let mut lowest = QpnChoice::new(QpnPolicy::Lowest, 0);
        assert_eq!(first.take_qpn(&mut lowest, None).unwrap(), Qpn(2));
        assert_eq!(joined.take_qpn(&mut lowest, None).unwrap(), Qpn(3));
        assert_eq!(second.take_qpn(&mut lowest, None).unwrap(), Qpn(2));
        let list = fabric.hosts().unwrap();
        let names: Vec<_> = list.iter().map(|host| host.name.to_string()).collect();
        assert_eq!(names, ["alpha", "host-1", "host-2"]);
        let me = std::process::id() as i32;
        let expected = |qpn| ParticipantStatus {
            pid: me,
            has_device: false,
            queue_pairs: vec![Qpn(qpn)],
        };
        assert_eq!(list[1].participants, [expected(2), expected(3)]);

        drop(first);
        assert_eq!(
            joined.take_qpn(&mut lowest, None).unwrap(),
            Qpn(2),
            "its numbers went with it"
        );
        drop(named);
        assert_eq!(
            fabric.enter_host(Some("alpha"), None, 64).unwrap().gid(),
            alpha
        );
        drop((second, joined));
        assert_eq!(
            std::fs::read_dir(root.path()).unwrap().count(),
            0,
            "nothing is left"
        );
    }

    #[test]
    fn a_host_has_its_profile_before_being_visible() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let profile = &Profile::all()[0];
        let enter = |hosts: &Path| {
            let (mut entered, mut known) = (Vec::new(), KnownDevices::read(hosts)?);
            let name = Some(profile.name);
            Host::enter_all(&mut entered, &mut known, &fabric, None, Some(2), 64, name)?;
            Ok((entered, status::list(hosts, HostFilter::All)?))
        };
        // The registry is not read while it is locked.
        let (_entered, seen) = fabric.with_registry(enter).unwrap();
        let profiles: Vec<_> = seen.iter().map(|host| host.profile.as_deref()).collect();
        assert_eq!(profiles, [Some(profile.name); 2]);
    }

    /// The number of devices that were searched for dead processes while `work` ran.
    fn looks(work: impl FnOnce()) -> usize {
        let before = LOOKS.get();
        work();
        LOOKS.get() - before
    }

    fn names(hosts: usize) -> Vec<String> {
        (0..hosts).map(|number| format!("node{number}")).collect()
    }

    /// Otherwise the start and the end of a cluster, and of a job on it, would take time
    /// proportional to the square of the number of hosts.
    #[test]
    fn joining_and_leaving_scan_no_other_hosts() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let profile = &Profile::all()[0];
        for hosts in [3, 30] {
            let mut entered = Vec::new();
            let looked = looks(|| {
                entered = fabric.enter_hosts(&names(hosts), Some(4), profile).unwrap();
            });
            assert_eq!(looked, 0, "there were no devices before");
            let devices = || entered.iter().flatten();
            let looked = looks(|| {
                let patience = Duration::from_secs(60);
                let missing = fabric.wait_for_recorders(devices(), patience).unwrap();
                assert!(missing.is_none());
                let missing = fabric.wait_for_bridges(devices(), patience).unwrap();
                assert!(missing.is_none());
                PortRules::of(&fabric).unwrap();
            });
            assert_eq!(looked, 0);
            let device = &entered[1][2];
            let mut program = None;
            let looked = looks(|| {
                let opened = Fabric::open_below(root.path(), DEFAULT_FABRIC).unwrap();
                let entered = opened.enter_device(device.name(), Some(device.gid()), 64);
                program = Some(entered.unwrap());
            });
            assert_eq!(looked, 1, "its own");
            assert_eq!(looks(|| drop(program)), 1, "its own");
            let devices = devices().count();
            let looked = looks(|| Host::leave_all(entered.into_iter().flatten()));
            assert_eq!(looked, devices, "each once");
            assert!(!fabric.directory().exists());
        }
    }

    /// The bridge lives when the wait begins, and ends before it looks at the device.
    #[test]
    fn an_ended_bridge_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let device = fabric.enter_host(None, None, 64).unwrap();
        let bridge = fabric.announce_bridge().unwrap();
        let missing = fabric.wait_for_bridges([&device], Duration::ZERO).unwrap();
        assert!(missing.is_some(), "a live one is waited for");
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let devices = std::iter::once_with(|| {
                drop(bridge);
                &device
            });
            let missing = fabric.wait_for_bridges(devices, Duration::MAX).unwrap();
            sender.send(missing.is_some()).unwrap();
        });
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(false));
    }

    #[test]
    fn a_host_enters_all_devices_or_none() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let _living = fabric.enter_host(Some("living"), None, 64).unwrap();
        // Not ours, since others can write to it.
        let number = preferred_numbers(fabric.name(), "node1").next().unwrap();
        let in_the_way = fabric.host_directory(device_gid(number, 1));
        std::fs::create_dir_all(in_the_way.join("notes")).unwrap();
        std::fs::set_permissions(&in_the_way, std::fs::Permissions::from_mode(0o770)).unwrap();
        let profile = &Profile::all()[0];
        let error = fabric.enter_hosts(&names(3), Some(2), profile).unwrap_err();
        assert!(
            matches!(error, FabricError::WritableByOthers { .. }),
            "{error}"
        );
        assert_eq!(fabric.hosts().unwrap().len(), 1);
    }

    #[test]
    fn a_gid_belongs_to_one_live_host() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let gid = Gid([9; 16]);
        let alpha = fabric.enter_host(Some("alpha"), Some(gid), 64).unwrap();
        let error = fabric.enter_host(Some("beta"), Some(gid), 64).unwrap_err();
        assert!(error.to_string().contains("\"alpha\""), "{error}");
        let error = fabric
            .enter_host(Some("alpha"), Some(Gid([8; 16])), 64)
            .unwrap_err();
        assert!(matches!(error, FabricError::GidTaken { .. }), "{error}");
        drop(alpha);
        fabric.enter_host(Some("beta"), Some(gid), 64).unwrap();
    }

    #[test]
    fn devices_of_a_host_share_names_and_gids() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let gids = |devices: &[Host]| -> Vec<_> {
            let gids = devices.iter().map(|device| device.gid().to_string());
            gids.collect()
        };
        let two = fabric
            .enter_devices(None, Some(2), &Profile::all()[0])
            .unwrap();
        assert_eq!(gids(&two), ["fe80::ef:a0ff:fe00:1", "fe80::ef:a1ff:fe00:1"]);
        // A process that joins enters the remaining devices, even if some were removed.
        let joined = fabric
            .enter_devices(Some("host-1"), None, &Profile::all()[0])
            .unwrap();
        assert_eq!(gids(&joined), gids(&two));
        for wanted in [1, 3] {
            let refused = fabric.enter_devices(Some("host-1"), Some(wanted), &Profile::all()[0]);
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("host-1") && error.contains('2'), "{error}");
        }
        let [first, second] = <[Host; 2]>::try_from(two).unwrap();
        drop((first, joined));
        let names = || -> Vec<_> {
            let hosts = fabric.hosts().unwrap();
            hosts.iter().map(|host| host.name.to_string()).collect()
        };
        assert_eq!(names(), ["host-1:1"]);
        let again = fabric
            .enter_devices(Some("host-1"), None, &Profile::all()[0])
            .unwrap();
        assert_eq!(gids(&again)[1], second.gid().to_string());
        assert_eq!(names(), ["host-1:0", "host-1:1"]);

        // A host whose name is free is not always one whose GIDs are.
        let squatted = device_gid(2, 1);
        let _squatter = fabric.enter_host(Some("x"), Some(squatted), 64).unwrap();
        let third = fabric
            .enter_devices(None, Some(32), &Profile::all()[0])
            .unwrap();
        assert_eq!(third[0].name(), "host-2:0");
        assert_eq!(third[0].gid(), device_gid(3, 0));
        assert_eq!(third[31].gid().to_string(), "fe80::ef:bfff:fe00:3");
        assert!(third.iter().all(|device| is_emulated(device.gid())));
        for other in [0x9f, 0xc0] {
            let Gid(mut gid) = third[0].gid();
            gid[10] = other;
            assert!(!is_emulated(Gid(gid)));
        }
    }

    #[test]
    fn colliding_names_get_different_gids() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let mut numbers = preferred_numbers(fabric.name(), "alpha");
        let wanted = device_gid(numbers.next().unwrap(), 0);
        let _squatter = fabric
            .enter_host(Some("squatter"), Some(wanted), 64)
            .unwrap();
        let alpha = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        assert_eq!(alpha.gid(), device_gid(numbers.next().unwrap(), 0));
    }

    #[test]
    fn foreign_files_are_ignored_foreign_names_refused() {
        let root = tempfile::tempdir().unwrap();
        let fabric = fabric(&root);
        let longest = "x".repeat(64);
        let host = fabric.enter_host(Some(&longest), None, 64).unwrap();
        assert_eq!(host.name().host(), longest, "as long as a machine's");
        drop(host);
        for name in ["", ".", "..", "a/b", "a b", &"x".repeat(65), "ü"] {
            let error = fabric.enter_host(Some(name), None, 64).unwrap_err();
            assert!(
                matches!(error, FabricError::InvalidName { what: "host", .. }),
                "{error}"
            );
            assert!(
                fabric
                    .enter_devices(Some(name), None, &Profile::all()[0])
                    .is_err()
            );
            let error = Fabric::open_below(root.path(), name).unwrap_err();
            assert!(
                matches!(error, FabricError::InvalidName { what: "fabric", .. }),
                "{error}"
            );
        }
        // Folders, including folders with the names of the fabric's files, in a live host's
        // directory and in a dead one's.
        let strangers = ["notes", "7.lock", "8.device"];
        let alpha = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        let directory = alpha.directory().to_owned();
        for stranger in strangers {
            std::fs::create_dir(directory.join(stranger)).unwrap();
        }
        let beta = fabric.enter_host(Some("beta"), None, 64).unwrap();
        assert_eq!(fabric.hosts().unwrap().len(), 2);
        drop(alpha);
        assert_eq!(
            fabric.hosts().unwrap().len(),
            1,
            "it has ended all the same"
        );
        let alpha = fabric.enter_host(Some("alpha"), None, 64).unwrap();
        assert_eq!(alpha.directory(), directory, "it comes back to its GID");
        assert_eq!(fabric.hosts().unwrap().len(), 2);
        drop((alpha, beta));
        let mut left = file_names(&directory).unwrap();
        left.sort();
        assert_eq!(left, ["7.lock", "8.device", "notes"], "nobody's but theirs");
    }
}
