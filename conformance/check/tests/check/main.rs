//! Tests of `check`: single mistakes, comparison with the dissector, and text generated from the
//! rules.

mod example;
mod faults;
mod losses;
mod numbers;
mod rules_generated;
mod tagged_captures;
mod tags;
mod wireshark_rules;
