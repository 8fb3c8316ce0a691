//! Checks limits of processes: locked memory, huge pages, access to other processes' memory.

use super::finding::Finding;
use super::machine::Machine;

/// Libfabric's EFA provider registers up to about 71 MiB for one endpoint before any message.
const ENDPOINT: u64 = 128 << 20;

/// Enough for MPI jobs.
const PLENTY: u64 = 16 << 30;

/// The bit of `CAP_IPC_LOCK` in a mask of capabilities.
const IPC_LOCK: u64 = 1 << 14;

pub(super) fn examine(machine: &Machine, findings: &mut Vec<Finding>) {
    findings.push(locked_memory(machine));
    findings.push(huge_pages(machine));
    findings.push(trace_scope(machine));
}

fn locked_memory(machine: &Machine) -> Finding {
    const REMEDY: &str = "in /etc/security/limits.d/efa.conf: `* soft memlock unlimited` and `* hard \
        memlock unlimited`, then log in again; of a service: LimitMEMLOCK=infinity (Slurm: of \
        slurmd); of a container: --ulimit memlock=-1";
    let limits = machine.text("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let Some(soft) = line.and_then(|line| line.split_whitespace().next()) else {
        return Finding::note("memlock", "unknown: /proc/self/limits cannot be read");
    };
    let status = machine.text("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let is_exempt = mask.is_some_and(|mask| mask & IPC_LOCK != 0);
    let Ok(bytes) = soft.parse::<u64>() else {
        return Finding::ok("memlock", soft);
    };
    let value = format!("{} KiB", bytes >> 10);
    if machine.emulated().is_some() {
        let value = format!("{value}; the emulated device locks no memory");
        return Finding::ok("memlock", value);
    }
    if is_exempt {
        return Finding::ok(
            "memlock",
            format!("{value}, which CAP_IPC_LOCK exempts from"),
        );
    }
    match bytes {
        PLENTY.. => Finding::ok("memlock", value),
        ENDPOINT.. => Finding::warning("memlock", value).remedy(REMEDY),
        _ => {
            let value = format!("{value}: too little for one endpoint of libfabric");
            Finding::error("memlock", value).remedy(REMEDY)
        }
    }
}

fn huge_pages(machine: &Machine) -> Finding {
    let text = machine.text("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (Some(free), Some(size)) = (number("HugePages_Free:"), number("Hugepagesize:")) else {
        return Finding::note("hugepages", "unknown: /proc/meminfo does not tell");
    };
    let value = format!("{free} of {size} KiB are free");
    match free {
        0 => Finding::note("hugepages", value).remedy(
            "none is needed: libfabric then takes ordinary pages; to have some: sudo sysctl -w \
             vm.nr_hugepages=NUMBER",
        ),
        _ => Finding::ok("hugepages", value),
    }
}

fn trace_scope(machine: &Machine) -> Finding {
    let Some(scope) = machine.text("/proc/sys/kernel/yama/ptrace_scope") else {
        return Finding::ok("ptrace", "not restricted: the kernel has no Yama");
    };
    match scope.as_str() {
        "0" => Finding::ok("ptrace", "0: not restricted"),
        _ => Finding::warning(
            "ptrace",
            format!("{scope}: ranks on one host copy each message twice"),
        )
        .remedy("sudo sysctl -w kernel.yama.ptrace_scope=0, and in /etc/sysctl.d to keep it"),
    }
}
