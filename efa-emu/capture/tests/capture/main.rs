//! Captures in all forms: written, shared by several writers, and read.

mod capture_file;
mod capture_shared;
mod examples;
mod formats;
