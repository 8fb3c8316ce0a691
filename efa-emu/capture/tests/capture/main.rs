//! Captures in all forms: written, shared by several writers, and read.

mod capture_file;
mod capture_shared;
mod examples;
mod formats;

fn counted(seen: u64, dropped: u64) -> efa_capture::Counts {
    efa_capture::Counts { seen, dropped }
}
