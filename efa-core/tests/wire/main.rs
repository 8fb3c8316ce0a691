//! The formats of all packet types, from outside the crate: literal bytes, round trips, hostile
//! bytes, and the agreement of the typed parser with the tables of fields.

mod errors;
mod hostile;
mod invariants;
mod literal;
mod parts;
mod round_trip;
mod strategy;
mod tables;
mod typed;
