//! Captures judged: by single mistakes, beside the dissector, and what is generated from the rules.

mod example;
mod faults;
mod losses;
mod rules_generated;
mod tagged_captures;
mod tags;
mod wireshark_rules;
