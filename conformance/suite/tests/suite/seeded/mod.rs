//! Tests that the suite detects faults: single faults in our engine, one at a time. `run` has to
//! report each with the right statement, and `check` alone too if a capture shows it.
//!
//! * `fault`: how a fault is declared; `faults`: all of them.
//! * `device`: applies a fault between the engine and the simulator.
//! * `play`: runs the suite on an engine with a fault.

mod device;
mod fault;
mod faults;
mod play;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use efa_core::wire::PacketType;
use efa_testing::workspace::expect_part;
use fault::{Change, Fault, FaultyBehaviour};
use faults::CHAPTERS;
use play::Player;

/// The least number of faults.
const LEAST_FAULTS: usize = 80;
const LEAST_BY_CHECK: usize = 60;

#[test]
fn every_fault_is_caught_and_named() {
    let mut player = Player::default();
    let mut wrong = Vec::new();
    for fault in faults::all() {
        let played = player.play(Some(fault), fault.play());
        let mut complain = |what: String| wrong.push(format!("{}: {what}", fault.id));
        if played.applied == 0 {
            complain("it never took effect".into());
            continue;
        }
        // Consequences of a fault are reported after it.
        let statement = fault.caught.statement();
        if played
            .statements
            .first()
            .is_none_or(|first| *first != statement)
        {
            let named = &played.statements;
            complain(format!(
                "`run` does not name {statement} but {named:?}\n{}",
                played.text
            ));
        }
        if played.rules.first().copied() != fault.caught.rule() {
            complain(format!("`check` reports {:?}", played.rules));
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\n{} in all",
        wrong.join("\n"),
        wrong.len()
    );
    let by_check = faults::all().filter(|fault| fault.caught.rule().is_some());
    let (all, by_check) = (faults::all().count(), by_check.count());
    assert!(
        all >= LEAST_FAULTS && by_check >= LEAST_BY_CHECK,
        "{all}, {by_check} by `check`"
    );
}

/// The control: the same traces on the same device, with an engine without a fault. Where the peers
/// announce something other than recorded, a correct engine acts differently.
#[test]
fn without_a_fault_nothing_is_reported() {
    let mut player = Player::default();
    let as_recorded = faults::all().filter(|fault| fault.announced.is_none());
    let plays: BTreeSet<_> = as_recorded.map(Fault::play).collect();
    assert!(plays.len() > 20);
    for play in plays {
        let played = player.play(None, play);
        assert!(played.passed, "{play:?}: {}", played.text);
    }
}

/// A duplicate has a different meaning for each type, so each has the fault.
#[test]
fn every_packet_type_is_retransmitted() {
    let mut types = PacketType::ALL.iter().filter(|of| of.has_header());
    let missing = types.find(|of| {
        !faults::all().any(|fault| match fault.act {
            FaultyBehaviour::Sends(packets, Change::Twice) => packets.kind == **of,
            _ => false,
        })
    });
    assert_eq!(missing, None);
}

#[test]
fn ids_are_unique() {
    let ids: BTreeSet<_> = faults::all().map(|fault| fault.id).collect();
    assert_eq!(ids.len(), faults::all().count());
}

/// The tables of `docs/seeded-faults.md`.
fn documentation() -> String {
    let by_check = faults::all().filter(|fault| fault.caught.rule().is_some());
    let mut text = format!(
        "{} faults; `run` catches all of them, `check` {} on the capture alone.\n",
        faults::all().count(),
        by_check.count()
    );
    for (title, faults) in CHAPTERS.iter() {
        write!(
            text,
            "\n## {title}\n\n| fault | what the engine does | `run` names | `check` reports |\n\
             |---|---|---|---|\n"
        )
        .unwrap();
        for fault in faults {
            let rule = fault.caught.rule().map(|rule| format!("`{rule}`"));
            writeln!(
                text,
                "| `{}` | {} | `{}` | {} |",
                fault.id,
                fault.does,
                fault.caught.statement(),
                rule.unwrap_or_default()
            )
            .unwrap();
        }
    }
    text
}

#[test]
fn the_documentation_lists_the_faults_as_they_are() {
    let marks = ["<!-- generated from here on -->\n\n", ""];
    let tests = "-p efa-suite --test suite seeded";
    expect_part("docs/seeded-faults.md", marks, tests, &documentation());
}
