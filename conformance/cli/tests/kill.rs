//! Kills at random moments, in a short form; `efa-conformance interop --group kill` has the long one.

use std::path::Path;

use efa_conformance::player::Launcher;
use efa_interop::{Lab, Outcome, Selection};
use efa_testing::workspace;

#[test]
fn the_network_outlives_twenty_kills() {
    let conformance = Path::new(env!("CARGO_BIN_EXE_efa-conformance"));
    let launcher = Launcher {
        efa_emu: workspace::emulator(),
        efa_conformance: conformance.to_owned(),
        fabric: format!("kill-test-{}", std::process::id()),
    };
    let lab = Lab::new(workspace::root(), launcher, Selection::default()).unwrap();
    let cells = efa_interop::select(&lab, Some("kill"), Some("kill-20 ")).unwrap();
    assert_eq!(cells.len(), 1);
    let row = cells[0].run(&lab);
    println!("{row}");
    assert!(
        matches!(
            row.outcome,
            Outcome::Passed { .. } | Outcome::Unmet(efa_interop::Unmet::Skipped(_))
        ),
        "{row}"
    );
}
