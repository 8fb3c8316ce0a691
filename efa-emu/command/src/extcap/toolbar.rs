//! Wireshark's toolbar for the interface: two pipes with messages about its controls.
//!
//! A message is the letter `T`, the length of the rest (3 bytes, big-endian), the control's number,
//! a command, and the command's value.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use efa_capture::Interface;
use efa_wire::address::Qpn;

use super::{ALL_HOSTS, ALL_HOSTS_LABEL, Selection};

/// The toolbar's controls, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Control {
    Host = 0,
    Qpn = 1,
    Log = 2,
}

/// The command of a toolbar message. Wireshark sends the first two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Command {
    /// The toolbar is ready.
    Initialized = 0,
    /// Sets the value of a control; an empty one clears a log.
    Set = 1,
    /// Adds a value to a list, or text to a log.
    Add = 2,
    /// Removes a value from a list, or all if it is empty.
    Remove = 3,
    /// Shows a text in the status bar.
    StatusBar = 6,
}

const SIGN: u8 = b'T';
const HEADER: usize = 4;

/// Values that users type are far shorter; a longer one is damaged.
const LONGEST: usize = 1 << 16;

/// The toolbar of one capture.
pub(super) struct Toolbar {
    input: Option<File>,
    received: Vec<u8>,
    /// `None` once the pipe is open, or if there is none.
    output_path: Option<PathBuf>,
    output: Option<File>,
    to_send: Vec<u8>,
    is_initialized: bool,
    selection: Selection,
    /// The number of the recording's interfaces that the toolbar lists.
    listed: usize,
}

impl Toolbar {
    /// Connects to the toolbar. `tshark` has none.
    pub(super) fn new(
        input: Option<&Path>,
        output: Option<&Path>,
        selection: Selection,
    ) -> Toolbar {
        // Non-blocking, because Wireshark may open its end of either pipe first, or never.
        let input = input.and_then(|path| {
            let mut options = OpenOptions::new();
            let options = options.read(true).custom_flags(libc::O_NONBLOCK);
            options.open(path).ok()
        });
        Toolbar {
            input,
            received: Vec::new(),
            output_path: output.map(Path::to_owned),
            output: None,
            to_send: Vec::new(),
            is_initialized: false,
            selection,
            listed: 0,
        }
    }

    /// Reads the user's actions, and shows new hosts. Returns the selection if it changed.
    pub(super) fn turn(&mut self, hosts: &[Interface]) -> Option<Selection> {
        let before = self.selection.clone();
        self.receive();
        while let Some((control, command, value)) = self.next_message() {
            self.obey(control, command, &value);
        }
        if self.is_initialized {
            self.list(hosts);
            self.send();
        }
        (self.selection != before).then(|| self.selection.clone())
    }

    fn receive(&mut self) {
        let Some(input) = &mut self.input else { return };
        let mut chunk = [0; 4096];
        while self.received.len() < 2 * LONGEST {
            match input.read(&mut chunk) {
                // This also happens before Wireshark has opened its end.
                Ok(0) => return,
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.input = None;
                    return;
                }
            }
        }
    }

    /// Removes and returns a complete message: control, command and value.
    fn next_message(&mut self) -> Option<(u8, u8, Vec<u8>)> {
        let &[sign, high, middle, low, ..] = &self.received[..] else {
            return None;
        };
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        if sign != SIGN || !(2..=LONGEST).contains(&length) {
            // The start of the next message cannot be found.
            self.input = None;
            self.received.clear();
            return None;
        }
        if self.received.len() < HEADER + length {
            return None;
        }
        let message: Vec<u8> = self.received.drain(..HEADER + length).collect();
        Some((
            message[HEADER],
            message[HEADER + 1],
            message[HEADER + 2..].to_vec(),
        ))
    }

    fn obey(&mut self, control: u8, command: u8, value: &[u8]) {
        if command == Command::Initialized as u8 {
            self.is_initialized = true;
            self.listed = 0;
            self.message(Control::Host, Command::Remove, "");
            self.add_host(ALL_HOSTS, ALL_HOSTS_LABEL);
            self.message(Control::Log, Command::Set, "");
            return;
        }
        if command != Command::Set as u8 {
            return;
        }
        let value = String::from_utf8_lossy(value);
        let value = value.trim();
        if control == Control::Host as u8 {
            let is_one = !value.is_empty() && value != ALL_HOSTS;
            self.selection.host = is_one.then(|| value.to_owned());
        } else if control == Control::Qpn as u8 {
            match value.parse() {
                Ok(number) => self.selection.qpn = Some(Qpn(number)),
                Err(_) if value.is_empty() => self.selection.qpn = None,
                Err(_) => {
                    let text = format!("{value:?} is not a queue pair number from 0 to 65535");
                    self.message(Control::Qpn, Command::StatusBar, &text);
                }
            }
        }
    }

    /// Adds the hosts that are not listed yet.
    fn list(&mut self, hosts: &[Interface]) {
        let is_first = self.listed == 0 && !hosts.is_empty();
        for index in self.listed..hosts.len() {
            let Interface { host, profile, gid } = &hosts[index];
            // A host that returned with another GID has another interface.
            if !hosts[..index].iter().any(|earlier| earlier.host == *host) {
                self.add_host(host, host);
            }
            let line = format!("{host} ({gid}, {profile}) records its traffic\n");
            self.message(Control::Log, Command::Add, &line);
        }
        self.listed = hosts.len();
        if is_first {
            let host = self.selection.host.clone();
            self.message(
                Control::Host,
                Command::Set,
                host.as_deref().unwrap_or(ALL_HOSTS),
            );
            let qpn = self.selection.qpn.map(|Qpn(number)| number.to_string());
            self.message(Control::Qpn, Command::Set, &qpn.unwrap_or_default());
        }
    }

    fn add_host(&mut self, value: &str, label: &str) {
        self.message(Control::Host, Command::Add, &format!("{value}\0{label}"));
    }

    fn message(&mut self, control: Control, command: Command, value: &str) {
        let length = (value.len() + 2) as u32;
        let [_, high, middle, low] = length.to_be_bytes();
        let header = [SIGN, high, middle, low, control as u8, command as u8];
        self.to_send.extend_from_slice(&header);
        self.to_send.extend_from_slice(value.as_bytes());
    }

    /// Sends until the pipe is full.
    fn send(&mut self) {
        if let Some(path) = &self.output_path {
            let mut options = OpenOptions::new();
            let options = options.write(true).custom_flags(libc::O_NONBLOCK);
            match options.open(path) {
                Ok(file) => self.output = Some(file),
                // Wireshark has not opened its end yet.
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return,
                Err(_) => {}
            }
            self.output_path = None;
        }
        let Some(output) = &mut self.output else {
            self.to_send.clear();
            return;
        };
        while !self.to_send.is_empty() {
            match output.write(&self.to_send) {
                Ok(length) => drop(self.to_send.drain(..length)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.output = None;
                    self.to_send.clear();
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use efa_wire::address::Gid;

    use super::*;

    /// A toolbar, and Wireshark's ends of its pipes.
    struct Rig {
        toolbar: Toolbar,
        input: File,
        output: File,
        _directory: tempfile::TempDir,
    }

    impl Rig {
        fn new(selection: Selection) -> Rig {
            let directory = tempfile::tempdir().unwrap();
            let path = |name: &str| directory.path().join(name);
            let pipes = [path("in"), path("out")];
            let made = Process::new("mkfifo").args(&pipes).status().unwrap();
            assert!(made.success());
            let toolbar = Toolbar::new(Some(&pipes[0]), Some(&pipes[1]), selection);
            let input = OpenOptions::new().write(true).open(&pipes[0]).unwrap();
            let output = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&pipes[1])
                .unwrap();
            Rig {
                toolbar,
                input,
                output,
                _directory: directory,
            }
        }

        fn send(&mut self, control: u8, command: Command, value: &str) {
            let length = (value.len() + 2) as u8;
            let header = [b'T', 0, 0, length, control, command as u8];
            self.input.write_all(&header).unwrap();
            self.input.write_all(value.as_bytes()).unwrap();
        }

        /// The messages that the toolbar received: control, command and value.
        fn received(&mut self) -> Vec<(u8, u8, String)> {
            let mut bytes = Vec::new();
            let _ = self.output.read_to_end(&mut bytes);
            let mut messages = Vec::new();
            let mut rest = &bytes[..];
            while let [b'T', high, middle, low, content @ ..] = rest {
                let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
                let value = String::from_utf8(content[2..length].to_vec()).unwrap();
                messages.push((content[0], content[1], value));
                rest = &content[length..];
            }
            assert!(rest.is_empty());
            messages
        }
    }

    fn host(name: &str) -> Interface {
        Interface::new(name, "efa2", Gid([0; 16]))
    }

    #[test]
    fn the_user_selects_and_new_hosts_are_listed() {
        let mut rig = Rig::new(Selection::default());
        assert_eq!(rig.toolbar.turn(&[host("a")]), None);
        assert_eq!(rig.received(), [], "before the toolbar is there");
        rig.send(255, Command::Initialized, "");
        assert_eq!(rig.toolbar.turn(&[host("a")]), None);
        let hosts: Vec<_> = rig.received();
        let of_hosts: Vec<_> = hosts
            .iter()
            .filter(|(control, ..)| *control == 0)
            .map(|(_, command, value)| (*command, value.as_str()))
            .collect();
        assert_eq!(
            of_hosts,
            [(3, ""), (2, "*\0All hosts"), (2, "a\0a"), (1, "*")]
        );

        rig.send(0, Command::Set, "a");
        rig.send(1, Command::Set, "7");
        let selection = rig.toolbar.turn(&[host("a"), host("b")]).unwrap();
        assert_eq!(selection.host.as_deref(), Some("a"));
        assert_eq!(selection.qpn, Some(Qpn(7)));
        assert!(rig.received().contains(&(0, 2, "b\0b".into())));

        rig.send(0, Command::Set, "*");
        rig.send(1, Command::Set, "");
        let selection = rig.toolbar.turn(&[]).unwrap();
        assert_eq!(selection, Selection::default());

        rig.send(1, Command::Set, "70000");
        assert_eq!(rig.toolbar.turn(&[]), None);
        let warnings = rig.received();
        assert!(
            matches!(&warnings[..], [(1, 6, text)] if text.contains("70000")),
            "{warnings:?}"
        );
    }

    #[test]
    fn capture_options_are_shown_in_the_toolbar() {
        let mut rig = Rig::new(Selection {
            host: Some("a".into()),
            qpn: Some(Qpn(3)),
        });
        rig.send(255, Command::Initialized, "");
        assert_eq!(rig.toolbar.turn(&[host("a")]), None);
        let received = rig.received();
        assert!(received.contains(&(0, 1, "a".into())), "{received:?}");
        assert!(received.contains(&(1, 1, "3".into())), "{received:?}");
    }

    #[test]
    fn damage_in_the_pipe_ends_the_listening() {
        for damage in [
            &b"X\0\0\x02\0\x01"[..],
            b"T\xff\xff\xff\0\x01",
            b"T\0\0\0\0\x01",
        ] {
            let mut rig = Rig::new(Selection::default());
            rig.input.write_all(damage).unwrap();
            assert_eq!(rig.toolbar.turn(&[]), None);
            assert!(rig.toolbar.input.is_none());
        }
        let mut rig = Rig::new(Selection::default());
        rig.input.write_all(b"T\0\0\x03\0").unwrap();
        assert_eq!(rig.toolbar.turn(&[]), None, "not whole yet");
        rig.input.write_all(b"\x01a").unwrap();
        let selection = rig.toolbar.turn(&[]).unwrap();
        assert_eq!(selection.host.as_deref(), Some("a"));
    }
}
