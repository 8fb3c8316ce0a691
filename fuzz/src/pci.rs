//! A misbehaving guest (`admin`), and a misbehaving program in the place of QEMU (`vfio`): no
//! panic, no access to memory outside of the guest's, and the device works for the next guest.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use efa_device_model::profile::Profile;
use efa_pci::function::{Bars, Function, Register};
use efa_pci::vfio::{Session, Stream};
use efa_shm::{Engine, Fabric, HostConfig};
use efa_testing::choices::Choices;

const PAGE: u64 = 4096;
/// The guest's memory is this much of a file, from address 0 on; as many bytes of the file after it
/// are not the guest's.
const LENGTH: u64 = 32 * PAGE;
const FOREIGN: u8 = 0xa5;

/// The addresses of the guest's admin queues.
const REQUESTS: u64 = 0;
const COMPLETIONS: u64 = PAGE;
const ASYNC_EVENTS: u64 = 2 * PAGE;
const RESPONSE: u64 = 3 * PAGE;
const DEPTH: u32 = 32;

/// The most steps of an input.
const STEPS: usize = 200;

struct Machine {
    function: Function,
    _root: tempfile::TempDir,
    file: File,
    /// The file that a program in the place of QEMU maps anywhere.
    given: File,
}

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let fabric = Fabric::open_below(root.path(), "fuzz").expect("a fabric");
        let config = HostConfig::new("fuzz", "vm");
        let profile = Profile::default();
        let function = Function::new(move || Engine::open_in(&fabric, &config, profile.clone()));
        Machine {
            function: function.expect("a device"),
            _root: root,
            file: tempfile::tempfile_in("/dev/shm").expect("a file"),
            given: tempfile::tempfile_in("/dev/shm").expect("a file"),
        }
    }

    fn descriptor(file: &File) -> OwnedFd {
        file.try_clone().expect("a descriptor").into()
    }

    fn check_foreign(&self) {
        let mut bytes = vec![0; LENGTH as usize];
        self.file
            .read_exact_at(&mut bytes, LENGTH)
            .expect("the file is as long");
        assert!(
            bytes.iter().all(|byte| *byte == FOREIGN),
            "foreign memory was touched"
        );
    }

    fn word(&mut self, register: Register, value: u32) {
        self.function
            .write(Bars::Registers, register as u64, &value.to_le_bytes());
    }

    /// The device's queues as a driver starts them.
    fn start(&mut self) {
        for (register, value) in [
            (Register::ReadResponseLow, RESPONSE as u32),
            (Register::AdminBaseLow, REQUESTS as u32),
            (Register::AdminCapabilities, 64 << 16 | DEPTH),
            (Register::CompletionBaseLow, COMPLETIONS as u32),
            (Register::CompletionCapabilities, 64 << 16 | DEPTH),
            (Register::AsyncBaseLow, ASYNC_EVENTS as u32),
            (Register::AsyncCapabilities, 64 << 16 | 16),
        ] {
            self.word(register, value);
        }
    }
}

/// Runs `play` with a device in its initial state, and checks it afterwards.
fn on_machine(play: impl FnOnce(&mut Machine)) {
    MACHINE.with_borrow_mut(|machine| {
        let machine = machine.get_or_insert_with(Machine::new);
        let bytes = [vec![0; LENGTH as usize], vec![FOREIGN; LENGTH as usize]].concat();
        machine
            .file
            .write_all_at(&bytes, 0)
            .expect("the file is written");
        play(machine);
        machine.function.reset();
        machine.function.notifier().clear_vectors();
        machine.function.memory().clear();
        machine.check_foreign();
        let mut vendor = [0; 2];
        machine.function.read_config(0, &mut vendor);
        assert_eq!(vendor, [0x0f, 0x1d]);
    });
}

/// Addresses of the guest, at its borders, or any.
fn address(choices: &mut Choices<'_>) -> u64 {
    match choices.byte() {
        0 => LENGTH - 8,
        1 => LENGTH,
        2 => u64::MAX - 7,
        3 => choices.long(),
        other => u64::from(other) * 512,
    }
}

/// A driver: registers, commands, doorbells, and the content of its memory.
pub(crate) fn admin(bytes: &[u8]) {
    on_machine(|machine| {
        let file = Machine::descriptor(&machine.file);
        let mapped = machine.function.memory().map(0, LENGTH, true, file, 0);
        mapped.expect("memory of the guest");
        machine.start();
        let mut choices = Choices(bytes);
        let mut next = 0u16;
        for _ in 0..STEPS {
            if choices.is_over() {
                break;
            }
            match choices.byte() % 8 {
                0..=3 => command(machine, &mut choices, &mut next),
                4 => {
                    let register = Register::ALL[usize::from(choices.byte()) % Register::ALL.len()];
                    let value = choices.number() as u32;
                    if register == Register::Control {
                        next = 0;
                    }
                    machine.word(register, value);
                }
                5 => {
                    let page = u64::from(choices.half() % 4096);
                    let offset = page * PAGE + u64::from(choices.byte() % 3) * 4;
                    let value = choices.number() as u32;
                    machine
                        .function
                        .write(Bars::Doorbells, offset, &value.to_le_bytes());
                }
                6 => {
                    // A send queue, which is not trapped.
                    let at = u64::from(choices.byte()) * 64;
                    let words = [choices.number(), choices.number(), choices.number()];
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    if let Some(file) = machine.function.mappable(Bars::SendQueues) {
                        let file = File::from(file.try_clone_to_owned().expect("a descriptor"));
                        file.write_all_at(&bytes, at).expect("it is long enough");
                    }
                }
                _ => {
                    let at = address(&mut choices).min(LENGTH - 8);
                    let value = choices.number();
                    machine
                        .file
                        .write_all_at(&value.to_le_bytes(), at)
                        .expect("it is memory");
                }
            }
        }
        machine.function.send_keep_alive();
    });
}

/// Gives a command, in the right place and lap.
fn command(machine: &mut Machine, choices: &mut Choices<'_>, next: &mut u16) {
    let mut entry = [0; 64];
    entry[2] = choices.byte() % 22;
    entry[3] = (u32::from(*next) / DEPTH + 1) as u8 & 1 | choices.byte() & 0b110;
    let mut at = 4;
    while at < entry.len() {
        let (field, bytes) = match choices.byte() % 4 {
            0 => (1, choices.number()),
            1 => (2, choices.number()),
            2 => (4, choices.number()),
            _ => (8, address(choices)),
        };
        let end = (at + field).min(entry.len());
        entry[at..end].copy_from_slice(&bytes.to_le_bytes()[..end - at]);
        at = end;
    }
    let place = REQUESTS + u64::from(*next % DEPTH as u16) * 64;
    machine
        .file
        .write_all_at(&entry, place)
        .expect("it is memory");
    *next = next.wrapping_add(1);
    machine.word(Register::AdminDoorbell, (*next).into());
}

/// A program in the place of QEMU: messages of any length, some with descriptors.
pub(crate) fn vfio(bytes: &[u8]) {
    on_machine(|machine| {
        machine.given.set_len(LENGTH).expect("it grows");
        let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
        let (answers, answered) = UnixStream::pair().expect("a pair of sockets");
        answered.set_nonblocking(true).expect("it may be");
        let (stream, answers) = (Stream::from(server), Stream::from(answers));
        // Bytes for which the socket has no room are dropped.
        client.set_nonblocking(true).expect("it may be");
        let _ = client.write_all(bytes);
        drop(client);
        for _ in 0..STEPS {
            let Ok(Some(mut message)) = stream.receive() else {
                break;
            };
            if message.header.id.get() & 1 != 0 {
                message
                    .descriptors
                    .push(Machine::descriptor(&machine.given));
            }
            let sent = Session::new(&mut machine.function).take(message, &answers);
            sent.expect("the answer is taken");
            drain(&answered);
        }
    });
}

fn drain(mut answered: &UnixStream) {
    let mut bytes = [0; 4096];
    while matches!(std::io::Read::read(&mut answered, &mut bytes), Ok(1..)) {}
}
