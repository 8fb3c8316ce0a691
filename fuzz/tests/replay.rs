//! The corpora, and any bytes at random.

use std::path::Path;

use efa_fuzz::TARGETS;

#[test]
fn of_the_corpora_breaks_no_promise() {
    for (name, target) in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("corpus")
            .join(name);
        let entries = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut count = 0;
        for entry in entries {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            // The name of the input that fails is the last that is printed.
            println!("{}", path.display());
            target(&bytes);
            count += 1;
        }
        assert!(count >= 10, "{} has {count} inputs", directory.display());
    }
}
