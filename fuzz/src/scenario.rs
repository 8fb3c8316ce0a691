//! Any text as a scenario.

use std::path::Path;

use efa_play::scenario::Scenario;

/// A scenario is refused with the file's name, or its names refer to existing objects.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Scenario::parse(Path::new("scenario.toml"), text) {
        Ok(scenario) => {
            for (index, endpoint) in scenario.endpoints.iter().enumerate() {
                assert_eq!(scenario.endpoint(&endpoint.name), Some(index));
            }
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("scenario.toml"), "{said}");
        }
    }
}
