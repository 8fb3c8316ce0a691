//! A capture of this process's emulated fabric by `efa-emu capture`, which makes the devices of all
//! processes record.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use efa_play::player::Launcher;
use efa_shm::HostConfig;
use rustix::process::{Pid, Signal, kill_process};

/// A capture that continues until it is ended or dropped.
pub(crate) struct Recording {
    recorder: Child,
    bytes: Option<JoinHandle<Vec<u8>>>,
}

impl Recording {
    /// Starts a capture. `None` without an emulated fabric: real devices cannot be captured.
    pub(crate) fn begin() -> Option<Self> {
        let fabric = HostConfig::from_env().ok()?.fabric;
        let efa_emu = Launcher::new(None).ok()?.efa_emu;
        let mut recorder = Command::new(efa_emu)
            .args(["capture", "--fabric", &fabric])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let output = recorder.stdout.take();
        let (begun, first_byte) = channel();
        let bytes = output.map(|mut output| {
            thread::spawn(move || {
                let mut bytes = vec![0; 1];
                // The first byte is written when all devices capture. After a read error there is
                // no capture.
                match output.read_exact(&mut bytes) {
                    Ok(()) => {
                        let _ = begun.send(());
                        let _ = output.read_to_end(&mut bytes);
                    }
                    Err(_) => bytes.clear(),
                }
                bytes
            })
        });
        let recording = Recording { recorder, bytes };
        // If the recorder exits instead, the channel is closed.
        first_byte.recv().ok()?;
        Some(recording)
    }

    /// Ends the capture and returns it as pcapng.
    pub(crate) fn end(mut self) -> Option<Vec<u8>> {
        let recorder = Pid::from_child(&self.recorder);
        kill_process(recorder, Signal::INT).ok()?;
        let bytes = self.bytes.take()?.join().ok()?;
        (!bytes.is_empty()).then_some(bytes)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // A recorder that was interrupted exits after it has written its last output.
        if self.bytes.is_some() {
            let _ = self.recorder.kill();
        }
        let _ = self.recorder.wait();
    }
}
