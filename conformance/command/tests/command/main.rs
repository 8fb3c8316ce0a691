//! The program as its users run it.

mod altered;
mod annotations;
mod bundle;
mod captures;
mod cli;
mod doctor;
mod eager_example;
mod exec;
mod findings;
mod hosts;
mod hw;
mod installed;
mod interop;
mod json;
mod launchers;
mod live;
mod output;
mod packages;
mod provider;
mod ssh;
mod stock;
mod survey;
mod tags;

/// Asserts that a text has these parts.
#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
}
