//! Failures, and the steps that cause them.

use std::cell::RefCell;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use efa_sim::Fabric;

use crate::plan::Plan;
use crate::run;

thread_local! {
    /// The message and the location of this thread's last panic.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Prints no panics: the search for the needed steps causes many.
pub(crate) fn quiet_panics() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        LAST_PANIC.with(|last| *last.borrow_mut() = info.to_string());
        // The failure of the test itself is printed.
        if info
            .location()
            .is_some_and(|place| place.file().ends_with("promises/main.rs"))
        {
            loud(info);
        }
    }));
}

/// Runs some steps of a plan; a panic is a failure like any other.
pub(crate) fn attempt(
    plan: &Plan,
    keep: &[usize],
    prepare: impl FnOnce(&Fabric),
) -> Result<(), String> {
    let run = || run::run(plan, keep, prepare).map(|_| ());
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let panic = LAST_PANIC.with(|last| last.borrow().clone());
        Err(format!("panic: {panic}"))
    })
}

/// The number of runs in the search for the needed steps.
const MAX_ATTEMPTS: usize = 600;

/// Removes steps as long as the rest fails, with any error.
fn needed(plan: &Plan, error: String) -> (Vec<usize>, String) {
    let mut keep: Vec<usize> = (0..plan.steps.len()).collect();
    let mut error = error;
    let mut size = keep.len().div_ceil(2);
    let mut attempts = 0;
    while size > 0 && attempts < MAX_ATTEMPTS {
        let mut start = 0;
        let mut shorter = false;
        while start < keep.len() && attempts < MAX_ATTEMPTS {
            let mut rest = keep.clone();
            rest.drain(start..(start + size).min(keep.len()));
            attempts += 1;
            match attempt(plan, &rest, |_| {}) {
                Err(other) => {
                    (keep, error, shorter) = (rest, other, true);
                }
                Ok(()) => start += size,
            }
        }
        if !shorter || size > 1 {
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }
    (keep, error)
}

/// The world of a plan and some of its steps, one per line.
pub(crate) fn listing(plan: &Plan, keep: &[usize]) -> String {
    let mut text = format!("seed {}, {:?}\n", plan.seed, plan.fabric);
    for (host, settings) in plan.programs.iter().enumerate() {
        let _ = writeln!(
            text,
            "host {host}: {:?} on {}, {:?}, {:?}, patience {}",
            settings.release,
            settings.profile.name,
            settings.nic,
            settings.endpoint,
            settings.patience
        );
    }
    for index in keep {
        let _ = writeln!(text, "{index:4} {:?}", plan.steps[*index]);
    }
    text
}

/// The report of a failure: the steps that it needs, and the command that repeats it.
pub(crate) fn report(plan: &Plan, error: String) -> String {
    let count = plan.steps.len();
    let (keep, error) = needed(plan, error);
    let steps: Vec<String> = keep.iter().map(usize::to_string).collect();
    format!(
        "{error}\n\n{}of {count} steps these {} are needed; repeat with\n  EFA_SEED={} EFA_STEPS={} \
         cargo test -p efa-promises random_programs -- --nocapture\n",
        listing(plan, &keep),
        keep.len(),
        plan.seed,
        steps.join(","),
    )
}
