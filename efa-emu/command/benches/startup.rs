//! Measures the time from a program's start to its end, alone and on an emulated host, and the time
//! that opening the device takes there. Rounds are interleaved; figures are medians.

use std::ffi::{CStr, c_int, c_void};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use efa_testing::workspace::{built, emulator};

const ROUNDS: usize = 200;

/// The argument that makes this program open the device.
const OPEN: &str = "--open-a-device";

fn main() -> ExitCode {
    let result = match std::env::args().any(|argument| argument == OPEN) {
        true => open().map(|time| println!("{}", time.as_nanos())),
        false => measure(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("startup: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), String> {
    let fabric = format!("startup-{}", std::process::id());
    let on_host = |program: &mut Command| {
        let mut command = Command::new(emulator());
        command.args(["run", "--quiet", "--fabric", &fabric, "--"]);
        command.arg(program.get_program()).args(program.get_args());
        command
    };
    let libraries = ["libefa_emu_verbs.so", "libefa_emu_efadv.so"].map(built);
    let preload = libraries.map(|path| path.display().to_string()).join(":");
    let own = std::env::current_exe().map_err(|error| error.to_string())?;

    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(whole(&mut Command::new("true"))?);
        times[1].push(whole(Command::new("true").env("LD_PRELOAD", &preload))?);
        times[2].push(whole(&mut on_host(&mut Command::new("true")))?);
        times[3].push(told(&mut on_host(Command::new(&own).arg(OPEN)))?);
    }
    let [alone, preloaded, run, opened] = times.map(median);
    println!("{:42} {:>8} {:>8}", "", "ms", "ratio");
    for (what, time) in [
        ("true", alone),
        ("true with the libraries", preloaded),
        ("efa-emu run -- true", run),
        ("ibv_get_device_list and ibv_open_device", opened),
    ] {
        let ratio = time.as_secs_f64() / alone.as_secs_f64();
        println!("{what:42} {:8.2} {ratio:7.1}x", time.as_secs_f64() * 1e3);
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The time from the program's start to its end.
fn whole(command: &mut Command) -> Result<Duration, String> {
    let start = Instant::now();
    let status = command.status().map_err(|error| error.to_string())?;
    let time = start.elapsed();
    match status.success() {
        true => Ok(time),
        false => Err(format!("{command:?}: {status}")),
    }
}

/// The time that the program prints, in nanoseconds.
fn told(command: &mut Command) -> Result<Duration, String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let time = printed
        .trim()
        .parse()
        .map_err(|_| format!("{command:?}: {printed}"))?;
    Ok(Duration::from_nanos(time))
}

/// Opens the first device of the preloaded libraries, and returns the time that this took.
fn open() -> Result<Duration, String> {
    type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void;
    type OpenDevice = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    let get_list = symbol(c"ibv_get_device_list")?;
    let open_device = symbol(c"ibv_open_device")?;
    // SAFETY: the two functions have these types.
    let (get_list, open_device) = unsafe {
        (
            std::mem::transmute::<*mut c_void, GetDeviceList>(get_list),
            std::mem::transmute::<*mut c_void, OpenDevice>(open_device),
        )
    };
    let start = Instant::now();
    let mut count = 0;
    // SAFETY: the list has at least one entry and an end, and the context stays open until the
    // process ends.
    let context = unsafe {
        let list = get_list(&mut count);
        if list.is_null() || count < 1 {
            return Err("there is no device".into());
        }
        open_device(*list)
    };
    let time = start.elapsed();
    match context.is_null() {
        true => Err("the device cannot be opened".into()),
        false => Ok(time),
    }
}

fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    match found.is_null() {
        true => Err(format!(
            "{} is not there: start this under `efa-emu run`",
            name.to_string_lossy()
        )),
        false => Ok(found),
    }
}
