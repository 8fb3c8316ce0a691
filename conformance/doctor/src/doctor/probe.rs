//! Examines libraries and devices, each in a separate process, because a broken library may crash
//! its process.
//!
//! The process is `PROGRAM doctor --probe QUESTION`, where the question is `device:NAME` or
//! `library:PATH`. It prints an [`Answer`] as JSON.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use efa_hw::{DeviceName, HwDevice};
use efa_play::answers;
use serde::{Deserialize, Serialize};

use super::machine::Machine;

/// The longest run time of a process. None needs a second, but the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// A question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// The attributes of the device with this name.
    Device(String),
    /// The newest interface of this library of rdma-core.
    Library(PathBuf),
}

/// A text that is not a [`Question`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a question: write device:NAME or library:PATH")]
pub struct UnknownQuestion(String);

impl FromStr for Question {
    type Err = UnknownQuestion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("device", name)) => Ok(Question::Device(name.to_owned())),
            Some(("library", path)) => Ok(Question::Library(PathBuf::from(path))),
            _ => Err(UnknownQuestion(text.to_owned())),
        }
    }
}

impl Question {
    fn text(&self) -> String {
        match self {
            Question::Device(name) => format!("device:{name}"),
            Question::Library(path) => format!("library:{}", path.display()),
        }
    }
}

/// A device's attributes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceAnswer {
    /// Capability bits, in the numbers of `efadv_device_attr.device_caps`.
    pub capabilities: u32,
    /// The largest packet in bytes.
    pub packet_size: usize,
    pub(crate) part_id: u32,
}

/// The answer to a [`Question`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// For a device: what it answered.
    Device(DeviceAnswer),
    /// For a library: the newest version of its interface of which it has a call, if any version is
    /// known here.
    Library(Option<String>),
    /// Why there is no answer to the question.
    Error(String),
}

/// A call of each version of the interfaces, newest first.
const CALLS: [(&str, &str); 14] = [
    ("IBVERBS_1.18", "ibv_create_comp_cntr"),
    ("IBVERBS_1.17", "ibv_alloc_buf"),
    ("IBVERBS_1.16", "ibv_query_port_speed"),
    ("IBVERBS_1.14", "ibv_query_qp_data_in_order"),
    ("IBVERBS_1.13", "ibv_is_fork_initialized"),
    ("IBVERBS_1.12", "ibv_reg_dmabuf_mr"),
    ("IBVERBS_1.9", "ibv_get_device_index"),
    ("IBVERBS_1.6", "ibv_qp_to_qp_ex"),
    ("EFA_1.7", "efadv_create_comp_cntr"),
    ("EFA_1.5", "efadv_get_max_sq_depth"),
    ("EFA_1.4", "efadv_query_cq"),
    ("EFA_1.3", "efadv_query_mr"),
    ("EFA_1.2", "efadv_create_cq"),
    ("EFA_1.1", "efadv_query_device"),
];

/// Answers a question, in the process that was started for it.
pub fn answer(question: &Question) -> Answer {
    match question {
        Question::Device(name) => match HwDevice::open(&DeviceName::Named(name.clone())) {
            Ok(device) => {
                let attributes = efa_core::nic::Device::attributes(&device);
                Answer::Device(DeviceAnswer {
                    capabilities: attributes.caps.bits(),
                    packet_size: attributes.mtu,
                    part_id: attributes.vendor_part_id,
                })
            }
            Err(error) => Answer::Error(error.to_string()),
        },
        Question::Library(path) => {
            // SAFETY: when these libraries are loaded, they look for drivers. This process was
            // started so that a library that does something else causes no damage.
            match unsafe { libloading::Library::new(path) } {
                Ok(library) => Answer::Library(newest_call(path, &library)),
                Err(error) => Answer::Error(reason(&error)),
            }
        }
    }
}

fn newest_call(path: &Path, library: &libloading::Library) -> Option<String> {
    let is_efadv = path.to_string_lossy().contains("libefa");
    let has = |name: &str| {
        // The symbol lookup also searches the libraries that this one depends on.
        if name.starts_with("efadv_") != is_efadv {
            return false;
        }
        // SAFETY: the address is not used.
        unsafe { library.get::<*const std::ffi::c_void>(name) }.is_ok()
    };
    let (version, _) = CALLS.iter().find(|(_, call)| has(call))?;
    Some((*version).to_owned())
}

/// The dynamic linker's message.
fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Sends the question to a probe process, if the machine is the running one.
pub(super) fn ask(machine: &Machine, question: &Question) -> Option<Answer> {
    let mut command = Command::new(machine.program()?);
    command.args(["doctor", "--probe", &question.text()]);
    Some(output(command).unwrap_or_else(|error| Answer::Error(error.to_string())))
}

/// The question was not answered.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("cannot start a process: {0}")]
    Start(std::io::Error),
    #[error("no answer within {LIMIT:?}")]
    Late,
    #[error("the process that loads it crashes (signal {0})")]
    Crashed(i32),
    #[error("the process that loads it ends early ({0})")]
    EndedEarly(std::process::ExitStatus),
}

fn output(mut command: Command) -> Result<Answer, ProbeError> {
    let ended = answers::output(&mut command, LIMIT).map_err(ProbeError::Start)?;
    let status = ended.status.ok_or(ProbeError::Late)?;
    match status.signal() {
        Some(signal) => Err(ProbeError::Crashed(signal)),
        None => serde_json::from_str(&ended.output).map_err(|_| ProbeError::EndedEarly(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Answer, ProbeError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        output(command)
    }

    #[test]
    fn a_crashing_library_ends_only_the_probe_process() {
        let crashed = shell("kill -SEGV $$").unwrap_err().to_string();
        assert!(crashed.contains("signal 11"), "{crashed}");
        let early = shell("echo hello; exit 3").unwrap_err().to_string();
        assert!(early.contains("exit status: 3"), "{early}");
        assert_eq!(
            shell("echo '{\"library\":\"EFA_1.3\"}'").unwrap(),
            Answer::Library(Some("EFA_1.3".to_owned()))
        );
    }

    #[test]
    fn a_file_of_another_format_is_reported() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let question: Question = format!("library:{}", file.path().display())
            .parse()
            .unwrap();
        assert!(matches!(answer(&question), Answer::Error(_)));
        assert!("fabric".parse::<Question>().is_err());
    }
}
