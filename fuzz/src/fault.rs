//! Any text as a file of faults.

use efa_device_model::fault::{Fault, parse_file};

/// A file is refused with its name, or its rules equal the rules of their own text.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match parse_file("faults.toml", text) {
        Ok(faults) => {
            for fault in faults {
                let said = fault.to_string();
                let again: Fault = said
                    .parse()
                    .unwrap_or_else(|error| panic!("{said:?} is refused: {error}"));
                assert_eq!(again, fault, "{said}");
            }
        }
        Err(error) => assert!(error.to_string().starts_with("faults.toml"), "{error}"),
    }
    // The same text as a rule of the command line.
    if let Err(error) = text.parse::<Fault>() {
        assert!(!error.to_string().is_empty());
    }
}
